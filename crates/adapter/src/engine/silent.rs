//! Carriers at the relay whose preamble is not complete.
//!
//! A program sends its preamble within a moment. A carrier that is silent for long is closed. If
//! there are too many, the oldest are closed, so a program that floods the relay mostly loses its
//! own carriers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time that a carrier may be silent.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
/// The most silent carriers.
pub(super) const COUNT_MAX: usize = 4096;

/// Silent carriers by number. Later carriers have higher numbers.
#[derive(Debug)]
pub(super) struct Silent<T> {
    by_number: BTreeMap<u64, (T, Instant)>,
    next: u64,
}

impl<T> Default for Silent<T> {
    fn default() -> Self {
        Silent {
            by_number: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<T> Silent<T> {
    /// The number that the next one will have.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// Adds a carrier. Returns how many were dropped because there were too many.
    pub(super) fn insert(&mut self, one: T, now: Instant) -> usize {
        self.by_number.insert(self.next, (one, now));
        self.next += 1;
        let is_full = self.by_number.len() > COUNT_MAX;
        if is_full {
            self.by_number.pop_first();
        }
        is_full.into()
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.by_number.get_mut(&number).map(|(one, _)| one)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        self.by_number.remove(&number).map(|(one, _)| one)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Drops carriers that have been silent for too long. Returns how many.
    pub(super) fn forget_old(&mut self, now: Instant) -> usize {
        let before = self.by_number.len();
        while let Some(oldest) = self.by_number.first_entry() {
            let (_, since) = oldest.get();
            if now.duration_since(*since) < TIMEOUT {
                break;
            }
            oldest.remove();
        }
        before - self.by_number.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_number_of_its_own() {
        let mut silent = Silent::default();
        let now = Instant::now();
        for one in ["a", "b"] {
            assert_eq!(silent.insert(one, now), 0);
        }
        assert_eq!(silent.next_number(), 2);
        assert_eq!(silent.get_mut(1), Some(&mut "b"));
        assert_eq!(silent.remove(0), Some("a"));
        assert_eq!(silent.remove(0), None);
        assert_eq!(silent.remove(1), Some("b"));
        assert!(silent.is_empty());
    }

    #[test]
    fn flood_drives_out_its_own_first() {
        let mut silent = Silent::default();
        let now = Instant::now();
        let mut gone = 0;
        for flood in 0..2 * COUNT_MAX {
            gone += silent.insert(flood, now);
            // Somebody else's, who speaks next.
            let other = silent.next_number();
            gone += silent.insert(flood, now);
            assert_eq!(silent.remove(other), Some(flood));
        }
        assert_eq!(silent.by_number.len() + gone, 2 * COUNT_MAX);
        assert!(silent.by_number.len() <= COUNT_MAX);
    }

    #[test]
    fn what_is_silent_for_long_is_let_go() {
        let mut silent = Silent::default();
        let now = Instant::now();
        silent.insert("old", now);
        silent.insert("young", now + TIMEOUT / 2);
        assert_eq!(
            silent.forget_old(now + TIMEOUT - Duration::from_nanos(1)),
            0
        );
        assert_eq!(silent.forget_old(now + TIMEOUT), 1);
        assert_eq!(silent.remove(0), None);
        assert_eq!(silent.remove(1), Some("young"));
    }
}
