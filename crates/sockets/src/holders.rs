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
//! instruction is missed like any other.
//!
//! A member that finds no place counts as a holder all the same, and is not missed when it is
//! killed. The bits need no order of their own: the number of holders is what decides.

use core::sync::atomic::{AtomicU32, Ordering};

use toehold_channel::table::{Entry, EntryState, FAMILY_BIRTH, FAMILY_MAX};

use crate::orderings::{LAST_OUT, STATE_TOLD};
use crate::table::{self, Table};
use crate::{process, sys};

/// Place of this process in the family's list, or `NO_PLACE`.
static PLACE: AtomicU32 = AtomicU32::new(NO_PLACE);
/// Place of the child that this process expected last, in the child its own, or `NO_PLACE`.
static EXPECTED: AtomicU32 = AtomicU32::new(NO_PLACE);
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
        (member == 0 || !is_alive(member)) && claim(place, member, word)
    })? as u32;
    take_off(table, place, word & !FAMILY_BIRTH);
    Some(place)
}

/// Whether a member lives, or may be about to.
fn is_alive(member: u32) -> bool {
    // The parent may have ended since: nobody knows whether it had the child before.
    member & FAMILY_BIRTH != 0 || sys::process_exists(member)
}

/// A place for the child that this process is about to have.
pub(crate) fn expect_child(table: &Table) -> Option<u32> {
    let place = enter(table, FAMILY_BIRTH | process::pid());
    EXPECTED.store(place.unwrap_or(NO_PLACE), Ordering::Relaxed);
    place
}

/// A place of a child that `parent` expects, as that of `pid`; `None` when it has no such place.
///
/// Of several expected children, whichever comes takes whichever place: they differ in what their
/// parent opened or closed between the forks, and [`settle_as_child`] puts that right.
fn name_child(table: &Table, parent: u32, pid: u32) -> Option<u32> {
    let family = &table.header().family;
    loop {
        let is_it = |place: &AtomicU32| {
            let member = place.load(Ordering::Relaxed);
            member == pid || member == FAMILY_BIRTH | parent
        };
        let place = family.iter().position(is_it)?;
        let is_known = family[place].load(Ordering::Relaxed) == pid;
        if is_known || claim(&family[place], FAMILY_BIRTH | parent, pid) {
            return Some(place as u32);
        }
    }
}

/// This process has had a child.
pub(crate) fn child_born(table: &Table, child: u32) {
    let is_known = |place: &AtomicU32| place.load(Ordering::Relaxed) == child;
    if !table.header().family.iter().any(is_known) {
        name_child(table, process::pid(), child);
    }
}

/// This process has had no child after all. False when it had found no place for one.
pub(crate) fn child_unborn(table: &Table) -> bool {
    let me = process::pid();
    let Some(place) = name_child(table, me, FAMILY_BIRTH) else {
        return false;
    };
    take_off(table, place, me);
    // Pairs with the Acquire in `claim`.
    table.header().family[place as usize].store(0, Ordering::Release);
    true
}

/// This process is the child of `parent`: takes its place. False when its parent had found none.
pub(crate) fn begin_as_child(table: &Table, parent: u32) -> bool {
    // The first process of a pid namespace has another number than its parent knows.
    let is_known = sys::parent() != 0;
    let named = is_known.then(|| name_child(table, parent, process::pid()));
    let expected = EXPECTED.load(Ordering::Relaxed);
    let place = named
        .flatten()
        .or_else(|| (expected != NO_PLACE).then_some(expected));
    match place {
        Some(place) => PLACE.store(place, Ordering::Relaxed),
        None => join_self(table),
    }
    place.is_some()
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
            let is_dead = member != 0 && member != me && !is_alive(member);
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
    table.header().family.iter().any(|member| {
        let member = member.load(Ordering::Relaxed);
        member != 0 && member != process::pid() && is_alive(member)
    })
}

/// Takes process `pid` off the family's list.
pub(crate) fn leave_family(pid: u32) {
    let Some(table) = table::table() else { return };
    for place in &table.header().family {
        let _ = place.compare_exchange(pid, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}
