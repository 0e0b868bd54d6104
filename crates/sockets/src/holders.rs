//! Which processes of a family hold a connection.
//!
//! An entry counts its holders. A process that is killed cannot take itself off that count, so each
//! entry also has a bit for every member of the family, by the member's place in the table's list.
//! Whoever needs to know whether others hold a connection first looks whether those whose bits
//! stand there are alive. A dead member's bits are taken off all entries before its place is given
//! away:
//!
//! ```text
//!   family:   [ 17, 42, 0, … ]       42 is dead:  place 1 := us, bit 1 off every entry,
//!   held_by:     1   1  0                         one holder less of each that had it; place := 0
//! ```
//!
//! A child has its place before it exists, and the bits and counts of what it will hold: its parent
//! enters `FAMILY_BIRTH` and its own number. The child puts its number there, or its parent does
//! once `fork` has returned, whoever is first. So a child that is killed before its first
//! instruction is missed like any other. Each forking thread remembers its place: threads that fork
//! at once do not take each other's. If the parent is killed inside `fork`, the place is given up
//! some seconds later, unless a child has come.
//!
//! A member that finds no place counts as a holder all the same, and is not missed when it is
//! killed. The bits need no order of their own: the number of holders is what decides.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use toehold_channel::table::{
    Entry, EntryState, FAMILY_BIRTH, FAMILY_MAX, FAMILY_ORPHAN, FAMILY_PID,
};

use crate::orderings::{LAST_OUT, STATE_TOLD};
use crate::table::{self, Table};
use crate::{deferral, process, sys};

/// Place of this process in the family's list, or `NO_PLACE`.
static PLACE: AtomicU32 = AtomicU32::new(NO_PLACE);
const NO_PLACE: u32 = u32::MAX;

/// Enters process `pid` in the family's list; its place. A full list has room again when members
/// are gone.
pub(crate) fn join(table: &Table, pid: u32) -> Option<u32> {
    let family = &table.header().family;
    let known = family
        .iter()
        .position(|place| place.load(Ordering::Relaxed) == pid);
    match known {
        Some(place) => Some(place as u32),
        None => enter(table, pid),
    }
}

/// Finds a place for a new member, `word`.
fn enter(table: &Table, word: u32) -> Option<u32> {
    let place = table.header().family.iter().position(|place| {
        let member = place.load(Ordering::Relaxed);
        (member == 0 || !is_alive(place, member)) && claim(place, member, word)
    })? as u32;
    take_off(table, place, word & FAMILY_PID);
    Some(place)
}

/// Whether the `member` that stands at `place` lives, or may be about to.
fn is_alive(place: &AtomicU32, member: u32) -> bool {
    if member & FAMILY_BIRTH == 0 {
        return sys::process_exists(member);
    }
    let now = (sys::now_ns() / 1_000_000_000) as u32;
    if member & FAMILY_ORPHAN != 0 {
        return now.wrapping_sub(member) & ORPHAN_SECONDS < BIRTH_SECONDS_MAX;
    }
    if !sys::process_exists(member & FAMILY_PID) {
        // Nobody knows whether it had the child before it died. If it had, the child enters itself.
        let orphan = FAMILY_BIRTH | FAMILY_ORPHAN | now & ORPHAN_SECONDS;
        let _ = place.compare_exchange(member, orphan, Ordering::Relaxed, Ordering::Relaxed);
    }
    true
}

/// How long a child may take from its birth to its first instructions, once its parent is dead. One
/// that is stopped for longer finds its place given away, and takes another.
const BIRTH_SECONDS_MAX: u32 = 10;
/// The bits of an orphan's word that are a time.
const ORPHAN_SECONDS: u32 = FAMILY_ORPHAN - 1;

/// A place that a thread of this process has taken for the child that it is about to have. The
/// child has a copy, and its only thread is that thread.
struct Expected {
    /// The thread's pointer, 0 for none.
    thread: AtomicUsize,
    place: AtomicU32,
    /// The word that was written to the place. No other birth writes it, until 256 forks later.
    word: AtomicU32,
}

/// Threads that fork at one moment.
const FORKING_MAX: usize = 16;
static EXPECTED: [Expected; FORKING_MAX] = [const {
    Expected {
        thread: AtomicUsize::new(0),
        place: AtomicU32::new(0),
        word: AtomicU32::new(0),
    }
}; FORKING_MAX];

impl Expected {
    /// A slot for `thread`: the one that it has, or a free one.
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

    /// The place and its word, of which this thread's slot is emptied.
    fn take(thread: usize) -> Option<(u32, u32)> {
        let has = |slot: &&Expected| slot.thread.load(Ordering::Relaxed) == thread;
        let slot = EXPECTED.iter().find(has)?;
        let (place, word) = (&slot.place, &slot.word);
        let expected = (place.load(Ordering::Relaxed), word.load(Ordering::Relaxed));
        slot.thread.store(0, Ordering::Relaxed);
        Some(expected)
    }
}

/// A place for the child that this thread is about to have.
pub(crate) fn expect_child(table: &Table) -> Option<u32> {
    expect_child_of(table, deferral::thread_pointer())
}

fn expect_child_of(table: &Table, thread: usize) -> Option<u32> {
    let slot = Expected::of_thread(thread)?;
    let serial = process::forks() << FAMILY_PID.count_ones() & (FAMILY_ORPHAN - 1) & !FAMILY_PID;
    let word = FAMILY_BIRTH | serial | process::pid();
    let Some(place) = enter(table, word) else {
        slot.thread.store(0, Ordering::Relaxed);
        return None;
    };
    slot.place.store(place, Ordering::Relaxed);
    slot.word.store(word, Ordering::Relaxed);
    Some(place)
}

/// Writes `pid` to the place that was taken by `word`. False when the place is another's by now:
/// the child has come and gone, or took so long that it was given up.
fn name_child(table: &Table, place: u32, word: u32, pid: u32) -> bool {
    let place = &table.header().family[place as usize];
    loop {
        let member = place.load(Ordering::Relaxed);
        let orphan = FAMILY_BIRTH | FAMILY_ORPHAN;
        if member != word && member & orphan != orphan {
            return member == pid;
        }
        if claim(place, member, pid) {
            return true;
        }
    }
}

/// This thread has had a child.
pub(crate) fn child_born(table: &Table, child: u32) {
    child_born_to(table, child, deferral::thread_pointer());
}

fn child_born_to(table: &Table, child: u32, thread: usize) {
    if let Some((place, word)) = Expected::take(thread) {
        name_child(table, place, word, child);
    }
}

/// This thread has had no child after all. False when it had found no place for one.
pub(crate) fn child_unborn(table: &Table) -> bool {
    let Some((place, word)) = Expected::take(deferral::thread_pointer()) else {
        return false;
    };
    let me = process::pid();
    if name_child(table, place, word, me) {
        take_off(table, place, me);
        // Pairs with the Acquire in `claim`.
        table.header().family[place as usize].store(0, Ordering::Release);
    }
    true
}

/// This process is a child: takes its place. False when its parent had found none.
pub(crate) fn begin_as_child(table: &Table) -> bool {
    let expected = Expected::take(deferral::thread_pointer());
    for slot in &EXPECTED {
        slot.thread.store(0, Ordering::Relaxed);
    }
    // In a new pid namespace it has another number than its parent knows, who enters that one.
    let is_named =
        |place, word| sys::parent() == 0 || name_child(table, place, word, process::pid());
    match expected {
        Some((place, word)) if is_named(place, word) => PLACE.store(place, Ordering::Relaxed),
        _ => join_self(table),
    }
    expected.is_some()
}

/// A child's place comes with marks and counts of what its parent held. Another thread of its
/// parent's may have opened or closed connections before the fork: this puts one of them right.
pub(crate) fn settle_as_child(entry: &Entry, is_held: bool) {
    let is_marked = place()
        .and_then(|place| bit_of(entry, place))
        .is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0);
    if is_held && !is_marked {
        entry.holders.fetch_add(1, Ordering::Relaxed);
        mark(entry, place());
    } else if is_marked && !is_held {
        take_off_entry(entry, place(), process::pid());
    }
}

/// As [`join`], of this process.
pub(crate) fn join_self(table: &Table) {
    let place = join(table, process::pid()).unwrap_or(NO_PLACE);
    PLACE.store(place, Ordering::Relaxed);
}

fn claim(place: &AtomicU32, member: u32, pid: u32) -> bool {
    // Acquire pairs with the Release store in `miss_the_dead`: the bits of the one before are gone.
    place
        .compare_exchange(member, pid, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// This process's place.
pub(crate) fn place() -> Option<u32> {
    let place = PLACE.load(Ordering::Relaxed);
    (place != NO_PLACE).then_some(place)
}

/// Notes that the member at `place` holds the connection. Does not count it.
pub(crate) fn mark(entry: &Entry, place: Option<u32>) {
    if let Some((word, bit)) = place.and_then(|place| bit_of(entry, place)) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Takes back what [`mark`] noted; false when it was not noted. A member without a place has no
/// note: true.
pub(crate) fn unmark(entry: &Entry, place: Option<u32>) -> bool {
    match place.and_then(|place| bit_of(entry, place)) {
        Some((word, bit)) => word.fetch_and(!bit, Ordering::Relaxed) & bit != 0,
        None => true,
    }
}

/// The connection is new: this process alone holds it.
pub(crate) fn begin(entry: &Entry) {
    for word in &entry.held_by {
        word.store(0, Ordering::Relaxed);
    }
    mark(entry, place());
    entry.holders.store(1, Ordering::Relaxed);
}

/// This process holds the connection no longer. True when it was the last that did.
pub(crate) fn leave(entry: &Entry) -> bool {
    let others = are_others(entry);
    if !unmark(entry, place()) {
        // It had left before: exit handlers run while other threads still close.
        return false;
    }
    entry.holders.fetch_sub(1, LAST_OUT) <= 1 || !others
}

/// True when another process of the family, alive, may hold the connection.
pub(crate) fn are_others(entry: &Entry) -> bool {
    if entry.holders.load(Ordering::Relaxed) <= 1 {
        return false;
    }
    miss_the_dead(entry);
    // Acquire pairs with the increment in `lifecycle::before_fork`: the birth was counted before.
    entry.holders.load(Ordering::Acquire) > 1 && family_alive()
}

/// Looks whether the members that are noted as holders live; those that do not hold nothing more.
fn miss_the_dead(entry: &Entry) {
    let Some(table) = table::table() else { return };
    let me = process::pid();
    for (word, bits) in entry.held_by.iter().enumerate() {
        let mut bits = bits.load(Ordering::Relaxed);
        while bits != 0 {
            let index = word as u32 * u64::BITS + bits.trailing_zeros();
            bits &= bits - 1;
            let place = &table.header().family[index as usize];
            let member = place.load(Ordering::Relaxed);
            let is_dead = member != 0 && member != me && !is_alive(place, member);
            // In our name, so that others find the place again should we die over it.
            if is_dead && claim(place, member, me) {
                take_off(&table, index, member);
                // Release pairs with the compare-exchange in `claim`.
                place.store(0, Ordering::Release);
            }
        }
    }
}

/// The member `pid`, or whoever had `place` before it, is gone: takes it off every entry.
fn take_off(table: &Table, place: u32, pid: u32) {
    for entry in (0..table.entries_used()).filter_map(|index| table.entry(index)) {
        take_off_entry(entry, Some(place), pid);
    }
}

fn take_off_entry(entry: &Entry, place: Option<u32>, pid: u32) {
    if unmark(entry, place) && entry.holders.fetch_sub(1, LAST_OUT) <= 1 {
        // It was the last: free for whoever needs an entry, once that process is gone.
        entry.pid.store(pid, Ordering::Relaxed);
        let (live, ended) = (EntryState::Live as u32, EntryState::Ended as u32);
        let _ = (entry.state).compare_exchange(live, ended, STATE_TOLD, Ordering::Relaxed);
    }
}

fn bit_of(entry: &Entry, place: u32) -> Option<(&core::sync::atomic::AtomicU64, u64)> {
    let word = entry.held_by.get(place as usize / u64::BITS as usize)?;
    Some((word, 1 << (place % u64::BITS)))
}

const _: () = assert!(FAMILY_MAX.is_multiple_of(u64::BITS as usize));

/// True when another process of this family is alive: only then can somebody else hold our
/// descriptors.
pub(crate) fn family_alive() -> bool {
    let Some(table) = table::table() else {
        return false;
    };
    table.header().family.iter().any(|place| {
        let member = place.load(Ordering::Relaxed);
        member != 0 && member != process::pid() && is_alive(place, member)
    })
}

/// Takes process `pid` off the family's list.
pub(crate) fn leave_family(pid: u32) {
    let Some(table) = table::table() else { return };
    for place in &table.header().family {
        let _ = place.compare_exchange(pid, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, IntoRawFd};
    use toehold_channel::memfd;
    use toehold_channel::table::TABLE_BYTES;

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
        assert!(name_child(&table, first, at(first), 1001));
        table.header().family[first as usize].store(0, Ordering::Relaxed);
        let awaited = at(second);
        child_born_to(&table, 1001, 64);
        assert_eq!(at(second), awaited, "the second child's place is its own");
        child_born_to(&table, 1002, 128);
        assert_eq!((at(first), at(second)), (0, 1002));
    }

    #[test]
    fn a_place_whose_parent_died_in_fork_is_given_up() {
        let table = table();
        let place = &table.header().family[3];
        place.store(FAMILY_BIRTH | dead_process(), Ordering::Relaxed);
        let alive = |place: &AtomicU32| is_alive(place, place.load(Ordering::Relaxed));
        assert!(alive(place), "the child may be about to run");
        let orphan = place.load(Ordering::Relaxed);
        assert_ne!(orphan & FAMILY_ORPHAN, 0);
        assert!(alive(place), "not long ago");
        let earlier = orphan.wrapping_sub(BIRTH_SECONDS_MAX) & ORPHAN_SECONDS;
        place.store(earlier | FAMILY_BIRTH | FAMILY_ORPHAN, Ordering::Relaxed);
        assert!(!alive(place), "nobody came");
        // A child that comes in time has its place.
        place.store(orphan, Ordering::Relaxed);
        assert!(name_child(&table, 3, FAMILY_BIRTH | 7, 1003));
        assert_eq!(place.load(Ordering::Relaxed), 1003);
    }
}
