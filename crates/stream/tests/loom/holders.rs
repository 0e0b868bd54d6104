//! Processes of a family that give a connection up or are killed, at one time: the last one alive
//! is told so, and nobody else.

use std::sync::Arc;

use super::explore;
use toehold_channel::sync::{AtomicU32, Ordering};
use toehold_channel::table::{Entry, EntryState};
use toehold_stream::holders::{Departure, Members, begin, mark};
use toehold_stream::sleepers::Family;

const PROCESSES: usize = 3;

/// A table with one entry, and a family of which each member has the place of its number.
struct Table {
    list: [AtomicU32; PROCESSES],
    entry: Entry,
    dead: [AtomicU32; PROCESSES],
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
        self.table.dead[(asked - pid(0)) as usize].load(Ordering::Acquire) == 0
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
        0
    }
}

impl Table {
    /// The first `holders` processes hold the connection.
    fn new(holders: usize) -> Arc<Table> {
        let table = Table {
            list: std::array::from_fn(|process| AtomicU32::new(pid(process))),
            entry: Entry::default(),
            dead: Default::default(),
        };
        let entry = &table.entry;
        entry
            .state
            .store(EntryState::Live as u32, Ordering::Relaxed);
        begin(entry, Some(0));
        for place in 1..holders as u32 {
            entry.holders.fetch_add(1, Ordering::Relaxed);
            mark(entry, Some(place));
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
        assert_eq!(table.entry.holders.load(Ordering::Relaxed), 0);
    });
}

/// The dead is missed by two at one time, and counted out once.
#[test]
fn holder_that_was_killed_is_counted_out_once() {
    explore(3, || {
        let table = Table::new(3);
        table.kill(2);
        let other = table.clone();
        let thread = loom::thread::spawn(move || other.are_others(1));
        assert!(table.are_others(0), "the other lives");
        assert!(thread.join().unwrap(), "the first lives");
        assert_eq!(table.entry.holders.load(Ordering::Relaxed), 2);
    });
}

/// The second process is killed while it leaves, before each step of that, and the third lives and
/// holds nothing, or the connection, too. Once the second is known to be dead, nobody counts it.
#[test]
fn who_is_killed_while_it_leaves_is_no_holder_once_it_is_dead() {
    for (steps, holders) in (0..4).flat_map(|steps| [(steps, 2), (steps, 3)]) {
        explore(3, move || {
            let table = Table::new(3);
            if holders == 2 {
                assert!(!table.leave(2), "the others hold it");
            }
            let other = table.clone();
            let thread = loom::thread::spawn(move || {
                let departure = Departure::new(&other.entry, 1).expect("a place");
                let is_announced = steps > 0 && departure.announce();
                if is_announced && steps > 1 {
                    departure.unmark();
                }
                if is_announced && steps > 2 {
                    departure.count_down();
                }
                other.kill(1);
            });
            // Whatever it is told while the other may live.
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

/// Who counts a dead member out is killed over it, before each step. The next one completes that.
#[test]
fn who_is_killed_while_it_counts_the_dead_out_is_counted_out_too() {
    for steps in 0..3 {
        explore(3, move || {
            let table = Table::new(3);
            table.kill(2);
            let other = table.clone();
            let thread = loom::thread::spawn(move || {
                // As `Members::miss_if_dead`.
                let (dead, me) = (pid(2), pid(1));
                let place = &other.list[2];
                let is_claimed =
                    place.compare_exchange(dead, me, Ordering::Acquire, Ordering::Relaxed);
                let departure = Departure::new(&other.entry, 2).expect("a place");
                if is_claimed.is_ok() && steps > 0 && departure.announce() && steps > 1 {
                    departure.unmark();
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

/// Two leave at one time while a third is stopped in the middle of leaving.
#[test]
fn nobody_waits_for_one_that_is_stopped_while_it_leaves() {
    explore(2, || {
        let table = Table::new(3);
        let stopped = Departure::new(&table.entry, 2).expect("a place");
        assert!(stopped.announce());
        let other = table.clone();
        let thread = loom::thread::spawn(move || other.leave(1));
        let here = table.leave(0);
        let there = thread.join().unwrap();
        assert!(here ^ there, "last here: {here}, there: {there}");
        stopped.unmark();
        assert_eq!(stopped.count_down(), None, "it was completed");
        assert_eq!(table.entry.holder_count(Ordering::Relaxed), 0);
    });
}
