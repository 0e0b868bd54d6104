//! Which processes of a family hold a connection: [`toehold_stream::holders`], with this process's
//! place, its threads that fork, and the processes of this machine.
//!
//! Each forking thread remembers the place that it has taken for its child: threads that fork at
//! once do not take each other's.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use toehold_channel::table::Entry;
use toehold_stream::holders::{self, Members};
pub(crate) use toehold_stream::holders::{count_out, enter, name};
use toehold_stream::sleepers::Family;

use crate::process;
use crate::process::table::{self, Table};
use crate::system::{errno, sys};

/// Place of this process in the family's list, or `NO_PLACE`.
static PLACE: AtomicU32 = AtomicU32::new(NO_PLACE);
const NO_PLACE: u32 = u32::MAX;

impl Family for Table {
    fn me(&self) -> u32 {
        process::pid()
    }

    fn is_alive(&self, pid: u32) -> bool {
        sys::process_exists(pid)
    }
}

impl Members for Table {
    fn list(&self) -> &[AtomicU32] {
        &self.header().family
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        (0..self.entries_used()).filter_map(move |index| self.entry(index))
    }

    fn now_seconds(&self) -> u32 {
        (sys::now_ns() / 1_000_000_000) as u32
    }
}

/// A place that a thread of this process has reserved for the child that it is about to fork. The
/// child has a copy of this, and its only thread is a copy of that thread.
struct Expected {
    /// The thread's pointer, 0 for none.
    thread: AtomicUsize,
    place: AtomicU32,
    /// The word that was written to the place. No other birth writes it, until 256 forks later.
    word: AtomicU32,
}

/// The most threads that fork at the same time.
const FORKING_MAX: usize = 16;
static EXPECTED: [Expected; FORKING_MAX] = [const {
    Expected {
        thread: AtomicUsize::new(0),
        place: AtomicU32::new(0),
        word: AtomicU32::new(0),
    }
}; FORKING_MAX];

impl Expected {
    /// The slot of `thread`, or a free one.
    fn of_thread(thread: usize) -> Option<&'static Expected> {
        let has = |slot: &&Expected| slot.thread.load(Ordering::Relaxed) == thread;
        // Relaxed: only the thread that has a slot looks at its other words.
        let take = |slot: &&Expected| {
            (slot.thread)
                .compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        EXPECTED
            .iter()
            .find(has)
            .or_else(|| EXPECTED.iter().find(take))
    }

    /// Takes the place and its word out of this thread's slot.
    fn take(thread: usize) -> Option<(u32, u32)> {
        let has = |slot: &&Expected| slot.thread.load(Ordering::Relaxed) == thread;
        let slot = EXPECTED.iter().find(has)?;
        let (place, word) = (&slot.place, &slot.word);
        let expected = (place.load(Ordering::Relaxed), word.load(Ordering::Relaxed));
        slot.thread.store(0, Ordering::Relaxed);
        Some(expected)
    }
}

/// Enters process `pid` in the family's list; its place.
pub(crate) fn join(table: &Table, pid: u32) -> Option<u32> {
    table.join(pid)
}

/// Reserves a place for the child that this thread is about to fork.
pub(crate) fn expect_child(table: &Table) -> Option<u32> {
    expect_child_of(table, errno::thread())
}

fn expect_child_of(table: &Table, thread: usize) -> Option<u32> {
    let slot = Expected::of_thread(thread)?;
    let Some((place, word)) = table.expect_child(process::forks()) else {
        slot.thread.store(0, Ordering::Relaxed);
        return None;
    };
    slot.place.store(place, Ordering::Relaxed);
    slot.word.store(word, Ordering::Relaxed);
    Some(place)
}

/// This thread has forked a child.
pub(crate) fn child_forked(table: &Table, child: u32) {
    child_forked_by(table, child, errno::thread());
}

fn child_forked_by(table: &Table, child: u32, thread: usize) {
    if let Some((place, word)) = Expected::take(thread) {
        table.name_child(place, word, child);
    }
}

/// This thread's `fork` has failed. False when it had found no place for a child.
pub(crate) fn fork_failed(table: &Table) -> bool {
    let expected = Expected::take(errno::thread());
    if let Some((place, word)) = expected {
        table.fork_failed(place, word);
    }
    expected.is_some()
}

/// This process is a child, and takes its place. False when its parent had found no place.
pub(crate) fn begin_as_child(table: &Table) -> bool {
    let expected = Expected::take(errno::thread());
    for slot in &EXPECTED {
        slot.thread.store(0, Ordering::Relaxed);
    }
    // In a new pid namespace the child has another number than its parent sees; the parent enters
    // the number that it sees.
    let is_named =
        |place, word| sys::parent() == 0 || table.name_child(place, word, process::pid());
    match expected {
        Some((place, word)) if is_named(place, word) => PLACE.store(place, Ordering::Relaxed),
        _ => join_self(table),
    }
    expected.is_some()
}

/// Corrects one of the bits that a child's place has inherited from its parent.
pub(crate) fn settle_as_child(entry: &Entry, is_held: bool) {
    if let Some(table) = table::table() {
        table.settle_as_child(entry, place(), is_held);
    }
}

/// As [`join`], of this process.
pub(crate) fn join_self(table: &Table) {
    let place = table.join(process::pid()).unwrap_or(NO_PLACE);
    PLACE.store(place, Ordering::Relaxed);
}

/// This process's place.
pub(crate) fn place() -> Option<u32> {
    let place = PLACE.load(Ordering::Relaxed);
    (place != NO_PLACE).then_some(place)
}

/// The connection is new: this process alone holds it.
pub(crate) fn begin(entry: &Entry) {
    holders::begin(entry, place());
}

/// This process stops holding the connection. True when it was the last holder.
pub(crate) fn leave(entry: &Entry) -> bool {
    table::table().is_none_or(|table| table.leave(entry, place()))
}

/// The last user of a live entry has ended: ends the connection if no process holds it.
pub(crate) fn end_unheld(table: &Table, entry: &Entry) -> bool {
    table.end_unheld(entry, place())
}

/// This process has left the connection to others: shows one of them to `toehold status`. A child
/// has inherited the descriptor's number; where the child has moved it, `closing` has shown that.
pub(crate) fn show_another(entry: &Entry) {
    if let Some(table) = table::table() {
        show_another_of(&table, entry);
    }
}

fn show_another_of(table: &Table, entry: &Entry) {
    let me = process::pid();
    // Relaxed: status takes momentary values.
    if entry.pid.load(Ordering::Relaxed) == me
        && let Some(other) = table.another_holder(entry)
    {
        // A process that shows itself at this moment is the better answer: the other may leave.
        let shown = &entry.pid;
        let _ = shown.compare_exchange(me, other, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// True when another process of the family, alive, may hold the connection.
#[inline]
pub(crate) fn are_others(entry: &Entry) -> bool {
    entry.has_several_holders(Ordering::Relaxed)
        && table::table().is_some_and(|table| table.are_others(entry))
}

/// True when another process of this family is alive. Only then can another process hold our
/// descriptors.
pub(crate) fn family_alive() -> bool {
    table::table().is_some_and(|table| table.are_others_alive())
}

/// Takes process `pid` off the family's list.
pub(crate) fn leave_family(pid: u32) {
    if let Some(table) = table::table() {
        table.remove(pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toehold_channel::memfd;
    use toehold_channel::table::{EntryState, FAMILY_BIRTH, FAMILY_ORPHAN, TABLE_BYTES};
    use toehold_stream::holders::BIRTH_SECONDS_MAX;

    fn table() -> Table {
        let file = memfd::create(c"table", TABLE_BYTES).expect("memory");
        let header = table::map_header(file.as_fd()).expect("mapped");
        table::open(header, file.into_raw_fd())
    }

    fn dead_process() -> u32 {
        let mut child = std::process::Command::new("true").spawn().expect("started");
        child.wait().expect("ended");
        child.id()
    }

    #[test]
    fn threads_that_fork_at_once_do_not_take_each_others_places() {
        let table = table();
        let at = |place: u32| table.header().family[place as usize].load(Ordering::Relaxed);
        let first = expect_child_of(&table, 64).expect("room");
        let second = expect_child_of(&table, 128).expect("room");
        // The first child runs and ends before its `fork` returns.
        assert!(table.name_child(first, at(first), 1001));
        table.header().family[first as usize].store(0, Ordering::Relaxed);
        let awaited = at(second);
        child_forked_by(&table, 1001, 64);
        assert_eq!(at(second), awaited, "the second child's place is its own");
        child_forked_by(&table, 1002, 128);
        assert_eq!((at(first), at(second)), (0, 1002));
    }

    #[test]
    fn a_place_whose_parent_died_in_fork_is_given_up() {
        let table = table();
        let place = &table.header().family[3];
        place.store(FAMILY_BIRTH | dead_process(), Ordering::Relaxed);
        let alive = |place: &AtomicU32| table.lives(place, place.load(Ordering::Relaxed));
        assert!(alive(place), "the child may be about to run");
        let orphan = place.load(Ordering::Relaxed);
        assert_ne!(orphan & FAMILY_ORPHAN, 0);
        assert!(alive(place), "not long ago");
        let earlier = orphan.wrapping_sub(BIRTH_SECONDS_MAX) & (FAMILY_ORPHAN - 1);
        place.store(earlier | FAMILY_BIRTH | FAMILY_ORPHAN, Ordering::Relaxed);
        assert!(!alive(place), "nobody came");
        // A child that comes in time gets its place.
        place.store(orphan, Ordering::Relaxed);
        assert!(table.name_child(3, FAMILY_BIRTH | 7, 1003));
        assert_eq!(place.load(Ordering::Relaxed), 1003);
    }

    #[test]
    fn a_connection_that_its_last_user_left_to_others_is_not_ended() {
        let table = table();
        let entry = Entry::default();
        let state = |is_live| match is_live {
            true => EntryState::Live as u32,
            false => EntryState::Ended as u32,
        };
        let (us, living, dead) = (process::pid(), sys::parent(), dead_process());
        for (holders, is_held) in [
            (&[living] as &[u32], true),
            (&[us], true),
            (&[dead, living], true),
            (&[dead], false),
            (&[], false),
        ] {
            entry.state.store(state(true), Ordering::Relaxed);
            toehold_stream::holders::begin(&entry, table.join(us));
            count_out(&entry, table.join(us));
            for &pid in holders {
                enter(&entry, table.join(pid));
            }
            assert_eq!(table.end_unheld(&entry, table.join(us)), !is_held);
            assert_eq!(entry.state.load(Ordering::Relaxed), state(is_held));
        }
    }

    #[test]
    fn process_that_shows_itself_stays_shown() {
        const ROUNDS: usize = 20_000;
        const SHOWN: u32 = 1004;
        let (table, entry) = (table(), Entry::default());
        toehold_stream::holders::begin(&entry, table.join(process::pid()));
        enter(&entry, table.join(sys::parent()));
        let turn = AtomicUsize::new(0);
        let shown_again = std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    while turn.load(Ordering::Acquire) != 2 * round + 1 {
                        core::hint::spin_loop();
                    }
                    entry.pid.store(SHOWN, Ordering::Relaxed);
                    turn.store(2 * round + 2, Ordering::Release);
                }
            });
            let shown = (0..ROUNDS).filter(|round| {
                entry.pid.store(process::pid(), Ordering::Relaxed);
                turn.store(2 * round + 1, Ordering::Release);
                show_another_of(&table, &entry);
                while turn.load(Ordering::Acquire) != 2 * round + 2 {
                    core::hint::spin_loop();
                }
                entry.pid.load(Ordering::Relaxed) != SHOWN
            });
            shown.count()
        });
        assert_eq!(shown_again, 0);
    }
}
