//! Processes of a family give up a connection or are killed, at one time. The last living holder
//! learns that it is the last, and no other process does.

use std::sync::Arc;

use super::explore;
use toehold_channel::sync::{AtomicU32, Ordering};
use toehold_channel::table::{Entry, EntryState, FAMILY_ORPHAN};
use toehold_stream::holders::{BIRTH_SECONDS_MAX, Holder, Members, begin, enter};
use toehold_stream::sleepers::Family;

const PROCESSES: usize = 3;

/// A table with one entry, and a family. Each member has the place of its number.
struct Table {
    list: [AtomicU32; PROCESSES],
    entry: Entry,
    dead: [AtomicU32; PROCESSES],
    now: AtomicU32,
}

fn pid(process: usize) -> u32 {
    process as u32 + 17
}

/// The table as one process sees it.
struct Seen<'a> {
    table: &'a Table,
    process: usize,
}

impl Family for Seen<'_> {
    fn me(&self) -> u32 {
        pid(self.process)
    }

    fn is_alive(&self, asked: u32) -> bool {
        // Processes beyond the list are born in a test, and are alive.
        let dead = self.table.dead.get((asked - pid(0)) as usize);
        dead.is_none_or(|dead| dead.load(Ordering::Acquire) == 0)
    }
}

impl Members for Seen<'_> {
    fn list(&self) -> &[AtomicU32] {
        &self.table.list
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        std::iter::once(&self.table.entry)
    }

    fn now_seconds(&self) -> u32 {
        self.table.now.load(Ordering::Relaxed)
    }
}

impl Table {
    /// The first `holders` processes hold the connection.
    fn new(holders: usize) -> Arc<Table> {
        let table = Table {
            list: std::array::from_fn(|process| AtomicU32::new(pid(process))),
            entry: Entry::default(),
            dead: Default::default(),
            now: AtomicU32::new(0),
        };
        let entry = &table.entry;
        entry
            .state
            .store(EntryState::Live as u32, Ordering::Relaxed);
        begin(entry, Some(0));
        for place in 1..holders as u32 {
            enter(entry, Some(place));
        }
        Arc::new(table)
    }

    fn leave(&self, process: usize) -> bool {
        let seen = Seen {
            table: self,
            process,
        };
        seen.leave(&self.entry, Some(process as u32))
    }

    fn are_others(&self, process: usize) -> bool {
        let seen = Seen {
            table: self,
            process,
        };
        seen.are_others(&self.entry)
    }

    fn end_unheld(&self, process: usize) -> bool {
        let seen = Seen {
            table: self,
            process,
        };
        seen.end_unheld(&self.entry, Some(process as u32))
    }

    fn kill(&self, process: usize) {
        self.dead[process].store(1, Ordering::Release);
    }
}

#[test]
fn of_two_that_leave_one_is_the_last() {
    explore(3, || {
        let table = Table::new(2);
        let other = table.clone();
        let thread = loom::thread::spawn(move || other.leave(1));
        let here = table.leave(0);
        let there = thread.join().unwrap();
        assert!(here ^ there, "last here: {here}, there: {there}");
    });
}

#[test]
fn of_two_that_leave_beside_one_that_was_killed_one_is_the_last() {
    explore(3, || {
        let table = Table::new(3);
        table.kill(2);
        let other = table.clone();
        let thread = loom::thread::spawn(move || other.leave(1));
        let here = table.leave(0);
        let there = thread.join().unwrap();
        assert!(here ^ there, "last here: {here}, there: {there}");
        assert_eq!(table.entry.holder_count(Ordering::Relaxed), 0);
    });
}

/// Two members find the dead one at one time, and its bits are cleared once.
#[test]
fn holder_that_was_killed_is_counted_out_once() {
    explore(3, || {
        let table = Table::new(3);
        table.kill(0);
        let other = table.clone();
        let thread = loom::thread::spawn(move || other.are_others(2));
        assert!(table.are_others(1), "the third lives");
        assert!(thread.join().unwrap(), "the second lives");
        assert_eq!(table.entry.holder_count(Ordering::Relaxed), 2);
    });
}

/// The second process is killed while it leaves, before each of its steps. The third process lives,
/// and holds nothing or the connection, too. Once the second is known to be dead, it is counted no
/// more.
#[test]
fn a_member_killed_while_it_leaves_is_no_holder_once_it_is_dead() {
    for (steps, holders) in (0..3).flat_map(|steps| [(steps, 2), (steps, 3)]) {
        explore(3, move || {
            let table = Table::new(3);
            if holders == 2 {
                assert!(!table.leave(2), "the others hold it");
            }
            let other = table.clone();
            let thread = loom::thread::spawn(move || {
                let holder = Holder::new(&other.entry, 1).expect("a place");
                if steps > 0 && holder.announce() && steps > 1 {
                    holder.clear();
                }
                other.kill(1);
            });
            // The answer does not matter while the other process may live.
            table.are_others(0);
            thread.join().unwrap();
            assert_eq!(table.are_others(0), holders == 3);
            assert_eq!(table.entry.holder_count(Ordering::Relaxed), holders - 1);
            if holders == 3 {
                assert!(!table.leave(2), "the first holds it");
            }
            assert!(table.leave(0), "the last one alive");
        });
    }
}

/// A member that clears the bits of a dead one is killed before each step of it. The next member
/// completes the work.
#[test]
fn a_member_killed_while_it_removes_dead_members_is_removed_too() {
    for steps in 0..2 {
        explore(3, move || {
            let table = Table::new(3);
            table.kill(2);
            let other = table.clone();
            let thread = loom::thread::spawn(move || {
                // As `Members::holds` does.
                let (dead, me) = (pid(2), FAMILY_ORPHAN | pid(1));
                let place = &other.list[2];
                let is_claimed =
                    place.compare_exchange(dead, me, Ordering::Acquire, Ordering::Relaxed);
                let holder = Holder::new(&other.entry, 2).expect("a place");
                if is_claimed.is_ok() && steps > 0 {
                    holder.clear();
                }
                other.kill(1);
            });
            table.are_others(0);
            thread.join().unwrap();
            assert!(!table.are_others(0));
            assert!(table.leave(0), "the last one alive");
            assert_eq!(table.entry.holder_count(Ordering::Relaxed), 0);
        });
    }
}

/// A member that does not hold the connection clears the bits of a dead holder, while the last
/// living holder leaves: that holder is the last.
#[test]
fn who_leaves_while_another_clears_the_dead_is_the_last() {
    explore(3, || {
        let table = Table::new(2);
        table.kill(1);
        let other = table.clone();
        // As a member does that needs a place.
        let thread = loom::thread::spawn(move || {
            let seen = Seen {
                table: &other,
                process: 2,
            };
            seen.enter(pid(2) + 1)
        });
        assert!(table.leave(0), "the last one alive");
        thread.join().unwrap();
        assert_eq!(table.entry.holder_count(Ordering::Relaxed), 0);
    });
}

/// All holders are dead, and two other processes find that out: the entry is free once their death
/// is known.
#[test]
fn entry_of_the_dead_is_ended() {
    explore(3, || {
        let table = Table::new(2);
        table.kill(0);
        table.kill(1);
        let other = table.clone();
        let enter = |table: &Table, number: u32| {
            let seen = Seen { table, process: 2 };
            seen.enter(pid(2) + number)
        };
        let thread = loom::thread::spawn(move || enter(&other, 1));
        let here = enter(&table, 2);
        let there = thread.join().unwrap();
        assert!(here.is_some() && there.is_some() && here != there);
        let ended = EntryState::Ended as u32;
        assert_eq!(table.entry.state.load(Ordering::Relaxed), ended);
    });
}

/// Two members leave at one time while a third is stopped in the middle of leaving.
#[test]
fn no_end_waits_for_a_peer_that_is_stopped_while_it_leaves() {
    explore(2, || {
        let table = Table::new(3);
        let stopped = Holder::new(&table.entry, 2).expect("a place");
        assert!(stopped.announce());
        let other = table.clone();
        let thread = loom::thread::spawn(move || other.leave(1));
        let here = table.leave(0);
        let there = thread.join().unwrap();
        assert!(here ^ there, "last here: {here}, there: {there}");
        assert!(!stopped.claim_end(), "another was the last");
        stopped.clear();
        assert_eq!(table.entry.holder_count(Ordering::Relaxed), 0);
    });
}

/// A parent that forks is killed before and after it has set its child's bit. The place of a child
/// that never came is given up in time, and the bit is cleared with it.
#[test]
fn parent_that_is_killed_in_fork_leaves_no_holder() {
    for is_marked in [false, true] {
        explore(3, move || {
            let table = Table::new(2);
            let other = table.clone();
            let thread = loom::thread::spawn(move || {
                let parent = Seen {
                    table: &other,
                    process: 1,
                };
                // As `lifecycle::before_fork` does.
                other.list[2].store(0, Ordering::Relaxed);
                let (place, _) = parent.expect_child(1).expect("room");
                if is_marked {
                    enter(&other.entry, Some(place));
                }
                other.kill(1);
            });
            table.are_others(0);
            thread.join().unwrap();
            // At first the child may still come.
            assert_eq!(table.are_others(0), is_marked);
            table.now.store(BIRTH_SECONDS_MAX, Ordering::Relaxed);
            assert!(!table.are_others(0));
            assert!(table.leave(0), "the last one alive");
            assert_eq!(table.entry.holder_count(Ordering::Relaxed), 0);
        });
    }
}

#[test]
fn of_one_that_leaves_and_one_that_wants_the_entry_one_ends_the_connection() {
    explore(3, || {
        let table = Table::new(1);
        let other = table.clone();
        let thread = loom::thread::spawn(move || other.end_unheld(1));
        let here = table.leave(0);
        assert!(here, "it was the last");
        assert!(!thread.join().unwrap(), "the last holder is alive");
        table.kill(0);
        assert!(table.end_unheld(1), "it did not carry out the end");
    });
}

#[test]
fn an_entry_whose_holder_was_killed_is_ended_once_and_no_later_use_of_it() {
    explore(2, || {
        let table = Table::new(1);
        table.kill(0);
        let other = table.clone();
        // The other process takes the entry for a new connection as soon as it has ended.
        let thread = loom::thread::spawn(move || {
            other.end_unheld(1);
            let (ended, claimed) = (EntryState::Ended as u32, EntryState::Claimed as u32);
            let (state, order) = (&other.entry.state, Ordering::Acquire);
            let is_taken = (state.compare_exchange(ended, claimed, order, order)).is_ok();
            if is_taken {
                begin(&other.entry, Some(1));
                state.store(EntryState::Live as u32, Ordering::Release);
            }
            is_taken
        });
        table.end_unheld(2);
        let is_taken = thread.join().unwrap();
        let state = table.entry.state.load(Ordering::Acquire);
        let expected = match is_taken {
            true => EntryState::Live,
            false => EntryState::Ended,
        };
        assert_eq!(state, expected as u32);
    });
}
