//! A burst of connections: more connections at once than carriers can be parked.
//!
//! A seed has to wait for its pairing, which pays when many connections follow on the carrier. In a
//! burst only a few connections find a carrier, and each seed delays all connections behind it. So
//! in a burst, and for a moment after it, no end asks for seeds. Both ends recognise a burst
//! without a message: connections begin, and none ends in between.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// This many connections in a row, none of which has ended, are a burst.
const BURST_MIN: u32 = super::carriers::PARKED_MAX;
/// The time that the next burst is expected after a burst.
const BURST_NS: u64 = 2_000_000_000;

/// Counts the connections of one role. Updates may be lost, because the count is only a guess.
pub(super) struct Burst {
    /// Connections that began since the last one ended.
    begun: AtomicU32,
    until_ns: AtomicU64,
}

impl Burst {
    pub(super) const fn none() -> Burst {
        Burst {
            begun: AtomicU32::new(0),
            until_ns: AtomicU64::new(0),
        }
    }

    /// A connection has begun. True when it is part of a burst, or follows one.
    pub(super) fn is_joined(&self, now: impl Fn() -> u64) -> bool {
        let begun = self.begun.load(Ordering::Relaxed).saturating_add(1);
        self.begun.store(begun, Ordering::Relaxed);
        if begun >= BURST_MIN {
            self.until_ns.store(now() + BURST_NS, Ordering::Relaxed);
            return true;
        }
        let until = self.until_ns.load(Ordering::Relaxed);
        until != 0 && now() < until
    }

    /// A connection has ended.
    #[inline]
    pub(super) fn is_left(&self) {
        if self.begun.load(Ordering::Relaxed) != 0 {
            self.begun.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_end_in_between_are_no_burst() {
        let burst = Burst::none();
        for _ in 0..4 {
            assert!((1..BURST_MIN).all(|_| !burst.is_joined(|| 1)));
            burst.is_left();
        }
    }

    #[test]
    fn after_a_burst_the_next_one_is_expected_for_a_while() {
        let burst = Burst::none();
        assert!((1..BURST_MIN).all(|_| !burst.is_joined(|| 1)));
        assert!(burst.is_joined(|| 1));
        burst.is_left();
        assert!(burst.is_joined(|| BURST_NS));
        assert!(!burst.is_joined(|| BURST_NS + 1));
    }
}
