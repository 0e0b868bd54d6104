//! How long the engine's thread looks for more work before it sleeps.
//!
//! A sleep costs a wake-up, and a program a system call to cause it; looking costs a core. So looking is worth it for as long as it has
//! recently paid: a level goes up when it did, or when a sleep was so short that it would have, and down with each long sleep. An idle
//! engine is at level 0, where it does not look at all. Between looks the processor is given away, to the programs we wait for.

use std::time::{Duration, Instant};

/// Budgets by level, in microseconds.
const BUDGETS_US: [u64; 5] = [0, 4, 12, 30, 60];
/// A sleep shorter than this would have been better spent looking.
const SHORT_SLEEP: Duration = Duration::from_micros(120);
/// Others may have used most of it: the looking ends after this long in any case.
const LOOKING_MAX: Duration = Duration::from_micros(500);

#[derive(Debug, Default)]
pub(super) struct Patience {
    level: usize,
}

impl Patience {
    /// Calls `look` until it finds something or the budget is used up; true when it found something.
    pub(super) fn look(&mut self, mut look: impl FnMut() -> bool) -> bool {
        let budget = Duration::from_micros(BUDGETS_US[self.level]);
        if budget.is_zero() {
            return false;
        }
        let began = Instant::now();
        let mut now = began;
        let mut given = Duration::ZERO;
        loop {
            std::thread::yield_now();
            let after = Instant::now();
            // What a yield took beyond its own cost others have used.
            given += (after - now).saturating_sub(YIELD_COST);
            if look() {
                self.raise();
                return true;
            }
            now = Instant::now();
            let spent = now - began;
            if spent.saturating_sub(given) >= budget || spent >= LOOKING_MAX {
                return false;
            }
        }
    }

    /// A sleep is over.
    pub(super) fn slept(&mut self, length: Duration) {
        if length < SHORT_SLEEP {
            self.raise();
        } else {
            self.level = self.level.saturating_sub(1);
        }
    }

    fn raise(&mut self) {
        self.level = (self.level + 1).min(BUDGETS_US.len() - 1);
    }
}

const YIELD_COST: Duration = Duration::from_micros(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_engine_does_not_look() {
        let mut patience = Patience::default();
        for _ in 0..10 {
            patience.slept(Duration::ZERO);
        }
        assert!(patience.look(|| true));
        for _ in 0..BUDGETS_US.len() {
            patience.slept(Duration::from_secs(1));
        }
        assert!(!patience.look(|| panic!("looked")));
    }
}
