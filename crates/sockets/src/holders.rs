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
//! A member that finds no place counts as a holder all the same, and is not missed when it is
//! killed. The bits need no order of their own: the number of holders is what decides.

use core::sync::atomic::{AtomicU32, Ordering};

use toehold_channel::table::{Entry, EntryState, FAMILY_MAX};

use crate::orderings::{LAST_OUT, STATE_TOLD};
use crate::table::{self, Table};
use crate::{process, sys};

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
    let entered = || {
        family.iter().position(|place| {
            let member = place.load(Ordering::Relaxed);
            let is_free = member == 0 || !sys::process_exists(member);
            is_free && claim(place, member, pid)
        })
    };
    let place = known.or_else(entered)? as u32;
    if known.is_none() {
        take_off(table, place, pid);
    }
    Some(place)
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
            let is_dead = member != 0 && member != me && !sys::process_exists(member);
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
        if unmark(entry, Some(place)) && entry.holders.fetch_sub(1, LAST_OUT) <= 1 {
            // It was the last: free for whoever needs an entry, once that process is gone.
            entry.pid.store(pid, Ordering::Relaxed);
            let (live, ended) = (EntryState::Live as u32, EntryState::Ended as u32);
            let _ = (entry.state).compare_exchange(live, ended, STATE_TOLD, Ordering::Relaxed);
        }
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
    // A child that was killed before it could enter itself is no member, and whoever has no child
    // is waiting for none.
    // Acquire pairs with the child's decrement in `lifecycle::after_fork_in_child`: by then it
    // stands in the list.
    if table.header().births.load(Ordering::Acquire) != 0 && sys::has_children() {
        return true;
    }
    table.header().family.iter().any(|member| {
        let member = member.load(Ordering::Relaxed);
        member != 0 && member != process::pid() && sys::process_exists(member)
    })
}

/// Takes process `pid` off the family's list.
pub(crate) fn leave_family(pid: u32) {
    let Some(table) = table::table() else { return };
    for place in &table.header().family {
        let _ = place.compare_exchange(pid, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}
