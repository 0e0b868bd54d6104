//! Which news ends the sleeps on an instance: that of rings, or that of ordinary members.

use core::sync::atomic::{AtomicU32, Ordering};

/// Whether rings end enough of the sleeps on an instance to sleep on the doorbells of pairs,
/// although ordinary members have events, too. There, an event of an ordinary member costs one
/// system call more, and a message in a ring costs its sender a write to an `eventfd` instead of a
/// byte over TCP.
pub(super) struct WakeBalance(AtomicU32);

impl WakeBalance {
    /// A wake-up by a ring saves as much as so many wake-ups by ordinary members cost.
    const RING: u32 = 8;
    const MAX: u32 = 8 * WakeBalance::RING;

    pub(super) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// A sleep has ended. Threads that share an instance may lose each other's notes.
    pub(super) fn note(&self, is_by_ring: bool) {
        let before = self.0.load(Ordering::Relaxed);
        let after = match is_by_ring {
            true => (before + WakeBalance::RING).min(WakeBalance::MAX),
            false => before.saturating_sub(1),
        };
        if after != before {
            self.0.store(after, Ordering::Relaxed);
        }
    }

    pub(super) fn favours_pairs(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_favoured_while_rings_end_one_sleep_in_nine() {
        let balance = WakeBalance(AtomicU32::new(0));
        assert!(!balance.favours_pairs());
        for _ in 0..100 {
            balance.note(true);
            for _ in 0..WakeBalance::RING {
                assert!(balance.favours_pairs());
                balance.note(false);
            }
        }
        assert!(!balance.favours_pairs(), "rings have ended no other sleep");
        for _ in 0..1000 {
            balance.note(true);
        }
        for _ in 0..WakeBalance::MAX {
            balance.note(false);
        }
        assert!(!balance.favours_pairs(), "the past counts up to a bound");
    }
}
