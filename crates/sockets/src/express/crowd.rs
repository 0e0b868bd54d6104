//! A crowd: more connections at once than carriers can be parked.
//!
//! Seeds are worth their waits when many connections follow on each carrier. Of a crowd only a
//! small part finds a carrier, and each seed keeps all that come behind it waiting. So in a crowd,
//! and for a moment after it, no end asks for seeds. Both ends see it without a word: connections
//! begin, and none ends in between.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// So many connections in a row, of which none has ended, are a crowd.
const CROWD_MIN: u32 = super::carriers::PARKED_MAX;
/// The next crowd is expected for so long.
const CROWD_NS: u64 = 2_000_000_000;

/// Connections of one role. Updates may be lost: it is a guess.
pub(super) struct Crowd {
    /// Connections that began since the last one ended.
    begun: AtomicU32,
    until_ns: AtomicU64,
}

impl Crowd {
    pub(super) const fn none() -> Crowd {
        Crowd {
            begun: AtomicU32::new(0),
            until_ns: AtomicU64::new(0),
        }
    }

    /// A connection has begun. True when it is one of a crowd, or follows one.
    pub(super) fn is_joined(&self, now: impl Fn() -> u64) -> bool {
        let begun = self.begun.load(Ordering::Relaxed).saturating_add(1);
        self.begun.store(begun, Ordering::Relaxed);
        if begun >= CROWD_MIN {
            self.until_ns.store(now() + CROWD_NS, Ordering::Relaxed);
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
    fn connections_that_end_in_between_are_no_crowd() {
        let crowd = Crowd::none();
        for _ in 0..4 {
            assert!((1..CROWD_MIN).all(|_| !crowd.is_joined(|| 1)));
            crowd.is_left();
        }
    }

    #[test]
    fn after_a_crowd_the_next_one_is_expected_for_a_while() {
        let crowd = Crowd::none();
        assert!((1..CROWD_MIN).all(|_| !crowd.is_joined(|| 1)));
        assert!(crowd.is_joined(|| 1));
        crowd.is_left();
        assert!(crowd.is_joined(|| CROWD_NS));
        assert!(!crowd.is_joined(|| CROWD_NS + 1));
    }
}
