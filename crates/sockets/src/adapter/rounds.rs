//! Where this process is in its rounds through all its connections: one word.
//!
//! ```text
//!   bits   63 ─────── 40 39 ─────── 16 15 ─────── 0
//!            left          urgent         next
//! ```
//!
//! `next` is the entry to look at next. `left` entries are to be looked at from there on, round and
//! round the table; with the first `urgent` of them the program may be kept busy. A new request is
//! urgent for one round from wherever the process is, so that requests that come during a round do
//! not begin it anew. An entry that is not finished is looked at again in the round after, which is
//! not urgent.
//!
//! Invariant: `urgent <= left`, and both are counts of entries up to [`ENTRIES`], those that were
//! never used included.
//!
//! Several threads take entries from the word, each another one. Relaxed throughout: the word
//! guards no memory. A thread that takes an entry for a request has loaded the request's
//! `attention` before, or took the entry from a round that goes on.

use core::sync::atomic::{AtomicU64, Ordering};

use toehold_channel::table::ENTRIES;

/// All entries, once.
const ROUND: u64 = ENTRIES as u64;
const NEXT_BITS: u32 = ENTRIES.ilog2();
const COUNT_BITS: u32 = 24;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const _: () = assert!(ENTRIES.is_power_of_two());
const _: () = assert!(NEXT_BITS + 2 * COUNT_BITS <= u64::BITS);
const _: () = assert!(ROUND < COUNT_MAX);

/// The word.
#[derive(Debug)]
pub(super) struct Rounds(AtomicU64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    next: u64,
    urgent: u64,
    left: u64,
}

impl Rounds {
    /// Nothing is to be looked at.
    pub(super) const fn new() -> Rounds {
        Rounds(AtomicU64::new(0))
    }

    /// All entries are to be looked at, for a new request.
    pub(super) fn ask(&self) {
        self.change(|state| State {
            urgent: ROUND,
            left: state.left.max(ROUND),
            ..state
        });
    }

    /// An entry is to be looked at again, in the next round.
    pub(super) fn again(&self, index: u32) {
        self.change(|state| State {
            left: state.left.max(state.ahead(index)),
            ..state
        });
    }

    /// As [`Rounds::again`]; the next round is urgent, too.
    pub(super) fn again_at_once(&self, index: u32) {
        self.change(|state| {
            let ahead = state.ahead(index);
            State {
                urgent: state.urgent.max(ahead),
                left: state.left.max(ahead),
                ..state
            }
        });
    }

    /// Takes the next entry of a table of which `used` were used so far: its number, and whether
    /// it is the last one of its round.
    pub(super) fn take(&self, used: u32) -> Option<(u32, bool)> {
        let mut taken = None;
        self.change(|state| {
            let (stepped, found) = state.step(u64::from(used));
            taken = found;
            stepped
        });
        taken
    }

    /// True when nothing is to be looked at.
    #[inline]
    pub(super) fn are_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) >> (NEXT_BITS + COUNT_BITS) == 0
    }

    /// True when some entry has not been looked at for the last request.
    #[inline]
    pub(super) fn are_urgent(&self) -> bool {
        State::of(self.0.load(Ordering::Relaxed)).urgent > 0
    }

    fn change(&self, mut change: impl FnMut(State) -> State) {
        let changed = |word| Some(change(State::of(word)).word());
        let _ = (self.0).fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }
}

impl State {
    fn of(word: u64) -> State {
        State {
            next: word % ROUND,
            urgent: word >> NEXT_BITS & COUNT_MAX,
            left: word >> (NEXT_BITS + COUNT_BITS),
        }
    }

    /// The number of entries from the next one up to `index`. If `index` is next, it was the last
    /// one of its round.
    fn ahead(self, index: u32) -> u64 {
        u64::from(index).wrapping_sub(self.next) % ROUND + 1
    }

    fn word(self) -> u64 {
        self.next | self.urgent << NEXT_BITS | self.left << (NEXT_BITS + COUNT_BITS)
    }

    /// The state behind the next used entry, and that entry with whether it is the round's last.
    fn step(self, used: u64) -> (State, Option<(u32, bool)>) {
        let begun = match self.next < used {
            true => self,
            // Entries beyond were never used.
            false => self.skip(ROUND - self.next),
        };
        if begun.left == 0 || begun.next >= used {
            return (
                State {
                    urgent: 0,
                    left: 0,
                    ..begun
                },
                None,
            );
        }
        let stepped = begun.skip(1);
        let is_last = stepped.next >= used;
        let behind = match is_last {
            true => stepped.skip((ROUND - stepped.next) % ROUND),
            false => stepped,
        };
        (behind, Some((begun.next as u32, is_last)))
    }

    fn skip(self, count: u64) -> State {
        State {
            next: (self.next + count) % ROUND,
            urgent: self.urgent.saturating_sub(count),
            left: self.left.saturating_sub(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(rounds: &Rounds, used: u32, count: usize) -> Vec<u32> {
        let entries = (0..count).map_while(|_| rounds.take(used));
        entries.map(|(index, _)| index).collect()
    }

    #[test]
    fn a_request_has_each_entry_looked_at_once() {
        let rounds = Rounds::new();
        assert!(rounds.are_over() && rounds.take(3).is_none());
        rounds.ask();
        assert!(rounds.are_urgent());
        let entries: Vec<_> = (0..9).map_while(|_| rounds.take(3)).collect();
        assert_eq!(entries, [(0, false), (1, false), (2, true)]);
        assert!(rounds.are_over() && !rounds.are_urgent());
    }

    #[test]
    fn requests_during_a_round_do_not_begin_it_anew() {
        let rounds = Rounds::new();
        rounds.ask();
        let mut entries = taken(&rounds, 5, 2);
        for _ in 0..4 {
            rounds.ask();
        }
        entries.extend(taken(&rounds, 5, 99));
        assert_eq!(entries, [0, 1, 2, 3, 4, 0, 1]);
        assert!(rounds.are_over());
    }

    #[test]
    fn what_is_not_finished_is_looked_at_again_without_haste() {
        let rounds = Rounds::new();
        rounds.ask();
        for _ in 0..4 {
            let (index, _) = rounds.take(4).expect("asked");
            if index == 2 {
                rounds.again(index);
            }
        }
        assert!(!rounds.are_urgent() && !rounds.are_over());
        assert_eq!(taken(&rounds, 4, 99), [0, 1, 2]);
        assert!(rounds.are_over());
    }

    #[test]
    fn entry_that_was_looked_at_in_vain_keeps_the_round_urgent() {
        let rounds = Rounds::new();
        rounds.ask();
        for _ in 0..4 {
            let (index, _) = rounds.take(4).expect("asked");
            if index == 2 {
                rounds.again_at_once(index);
            }
        }
        assert!(rounds.are_urgent());
        assert_eq!(taken(&rounds, 4, 2), [0, 1]);
        assert!(rounds.are_urgent());
        assert_eq!(taken(&rounds, 4, 99), [2]);
        assert!(rounds.are_over() && !rounds.are_urgent());
    }

    #[test]
    fn the_last_entry_of_a_table_ends_a_round_even_as_the_only_one() {
        let rounds = Rounds::new();
        rounds.ask();
        for _ in 0..3 {
            assert_eq!(rounds.take(1), Some((0, true)));
            rounds.again(0);
        }
        assert_eq!(rounds.take(1), Some((0, true)));
        assert!(rounds.are_over());
    }

    #[test]
    fn tables_of_all_entries_and_of_none_have_rounds_too() {
        let rounds = Rounds::new();
        rounds.ask();
        assert_eq!(taken(&rounds, 0, 9), []);
        rounds.ask();
        let all = taken(&rounds, ENTRIES as u32, 2 * ENTRIES);
        assert_eq!(all.len(), ENTRIES);
        assert!(rounds.are_over());
    }

    #[test]
    fn entries_that_come_into_use_during_a_round_belong_to_it() {
        let rounds = Rounds::new();
        rounds.ask();
        let mut entries = taken(&rounds, 2, 1);
        entries.extend(taken(&rounds, 4, 99));
        assert_eq!(entries, [0, 1, 2, 3]);
    }
}
