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
//! The bit and the count are two words, and a process may be killed between them. So the word of
//! the count also says who is being counted out:
//!
//! ```text
//!   holders := count | place      the first step, a compare-exchange
//!   held_by: bit off
//!   holders := count - 1          the last step, a compare-exchange: only while place stands there
//! ```
//!
//! A dead member that stands there is counted out by whoever finds it, from the step that it
//! reached. Of two that take the last step for one member, one succeeds. A second member that
//! leaves while a living one stands there completes that one's departure, so nobody waits.
//!
//! A child has its place before it exists, and the bits and counts of what it will hold: its parent
//! enters [`FAMILY_BIRTH`] and its own number. The child puts its number there, or its parent does
//! once `fork` has returned, whoever is first. So a child that is killed before its first
//! instruction is missed like any other. If the parent is killed inside `fork`, the place is given
//! up some seconds later, unless a child has come.
//!
//! A member that finds no place counts as a holder all the same, and is not missed when it is
//! killed. The bits need no order of their own: the number of holders is what decides.
//!
//! Not covered: a parent that is killed between counting its child in and setting the child's bit.
//! The count stays too high then.

use toehold_channel::sync::{AtomicU32, AtomicU64, Ordering};
use toehold_channel::table::{
    Entry, EntryState, FAMILY_BIRTH, FAMILY_MAX, FAMILY_ORPHAN, FAMILY_PID, HOLDERS_COUNT,
};

use crate::sleepers::Family;

/// Counts a holder out. Pairs with `COUNTED_OUT` of the others: whoever is the last sees all that
/// they did.
const COUNTED_OUT: Ordering = Ordering::AcqRel;

/// How long a child may take from its birth to its first instructions, once its parent is dead. One
/// that is stopped for longer finds its place given away, and takes another.
pub const BIRTH_SECONDS_MAX: u32 = 10;
/// The bits of an orphan's word that are a time.
const ORPHAN_SECONDS: u32 = FAMILY_ORPHAN - 1;

/// The table that a family shares.
pub trait Members: Family {
    /// The family's list, of at most [`FAMILY_MAX`] places.
    fn list(&self) -> &[AtomicU32];

    /// Every entry that was ever used.
    fn entries(&self) -> impl Iterator<Item = &Entry>;

    /// Seconds since any fixed moment.
    fn now_seconds(&self) -> u32;

    /// Enters process `pid` in the list; its place. A full list has room again when members are
    /// gone.
    fn join(&self, pid: u32) -> Option<u32> {
        let is_it = |place: &AtomicU32| place.load(Ordering::Relaxed) == pid;
        match self.list().iter().position(is_it) {
            Some(place) => Some(place as u32),
            None => self.enter(pid),
        }
    }

    /// Finds a place for a new member, `word`.
    fn enter(&self, word: u32) -> Option<u32> {
        let place = self.list().iter().position(|place| {
            let member = place.load(Ordering::Relaxed);
            (member == 0 || !self.lives(place, member)) && claim(place, member, word)
        })? as u32;
        self.take_off(place, word & FAMILY_PID);
        Some(place)
    }

    /// Whether the `member` that stands at `place` lives, or may be about to.
    fn lives(&self, place: &AtomicU32, member: u32) -> bool {
        if member & FAMILY_BIRTH == 0 {
            return self.is_alive(member);
        }
        let now = self.now_seconds();
        if member & FAMILY_ORPHAN != 0 {
            return now.wrapping_sub(member) & ORPHAN_SECONDS < BIRTH_SECONDS_MAX;
        }
        if !self.is_alive(member & FAMILY_PID) {
            // Nobody knows whether it had the child before it died. If it had, the child enters
            // itself.
            let orphan = FAMILY_BIRTH | FAMILY_ORPHAN | now & ORPHAN_SECONDS;
            let _ = place.compare_exchange(member, orphan, Ordering::Relaxed, Ordering::Relaxed);
        }
        true
    }

    /// A place for the child that this process is about to have, its `forks`-th, and the word that
    /// stands there. No other birth writes that word, until 256 forks later.
    fn expect_child(&self, forks: u32) -> Option<(u32, u32)> {
        let serial = forks << FAMILY_PID.count_ones() & (FAMILY_ORPHAN - 1) & !FAMILY_PID;
        let word = FAMILY_BIRTH | serial | self.me();
        Some((self.enter(word)?, word))
    }

    /// Writes `pid` to the place that was taken by `word`. False when the place is another's by
    /// now: the child has come and gone, or took so long that it was given up.
    fn name_child(&self, place: u32, word: u32, pid: u32) -> bool {
        let Some(place) = self.list().get(place as usize) else {
            return false;
        };
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

    /// This process has had no child after all for the place that was taken by `word`.
    fn child_unborn(&self, place: u32, word: u32) {
        let me = self.me();
        if self.name_child(place, word, me) {
            self.take_off(place, me);
            // Release pairs with the compare-exchange in `claim`.
            self.list()[place as usize].store(0, Ordering::Release);
        }
    }

    /// The place of a child comes with marks and counts of what its parent held. Another thread of
    /// the parent's may have opened or closed connections before the fork: this puts one of them
    /// right.
    fn settle_as_child(&self, entry: &Entry, place: Option<u32>, is_held: bool) {
        let is_marked = place
            .and_then(|place| Departure::new(entry, place))
            .is_some_and(|noted| noted.is_marked());
        if is_held && !is_marked {
            entry.holders.fetch_add(1, Ordering::Relaxed);
            mark(entry, place);
        } else if is_marked && !is_held {
            take_off_entry(entry, place, self.me());
        }
    }

    /// This process, at `place`, holds the connection no longer. True when it was the last that
    /// did. False when it had left before: exit handlers run while other threads still close.
    fn leave(&self, entry: &Entry, place: Option<u32>) -> bool {
        let others = self.are_others(entry);
        count_out(entry, place).is_some_and(|left| left == 0 || !others)
    }

    /// True when another process of the family, alive, may hold the connection.
    fn are_others(&self, entry: &Entry) -> bool {
        if entry.holder_count(Ordering::Relaxed) <= 1 {
            return false;
        }
        self.miss_the_dead(entry);
        // Acquire pairs with the increment in `lifecycle::before_fork`: the birth was counted
        // before.
        entry.holder_count(Ordering::Acquire) > 1 && self.are_others_alive()
    }

    /// Looks whether the members that are noted as holders live; those that do not hold nothing
    /// more.
    fn miss_the_dead(&self, entry: &Entry) {
        // One that stands there may have taken its bit off.
        if let Some(leaving) = Departure::under_way(entry.holders.load(Ordering::Relaxed)) {
            self.miss_if_dead(leaving);
        }
        for (word, bits) in entry.held_by.iter().enumerate() {
            let mut bits = bits.load(Ordering::Relaxed);
            while bits != 0 {
                self.miss_if_dead(word as u32 * u64::BITS + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// If the member at place `index` is dead, it is taken off every entry, and its place is free.
    fn miss_if_dead(&self, index: u32) {
        let Some(place) = self.list().get(index as usize) else {
            return;
        };
        let (me, member) = (self.me(), place.load(Ordering::Relaxed));
        let is_dead = member != 0 && member != me && !self.lives(place, member);
        // In our name, so that others find the place again should we die over it.
        if is_dead && claim(place, member, me) {
            self.take_off(index, member);
            // Release pairs with the compare-exchange in `claim`.
            place.store(0, Ordering::Release);
        }
    }

    /// The member `pid`, or whoever had `place` before it, is gone: takes it off every entry.
    fn take_off(&self, place: u32, pid: u32) {
        for entry in self.entries() {
            take_off_entry(entry, Some(place), pid);
        }
    }

    /// True when another process of this family is alive: only then can somebody else hold our
    /// descriptors.
    fn are_others_alive(&self) -> bool {
        self.list().iter().any(|place| {
            let member = place.load(Ordering::Relaxed);
            member != 0 && member != self.me() && self.lives(place, member)
        })
    }

    /// Takes process `pid` off the list.
    fn remove(&self, pid: u32) {
        for place in self.list() {
            let _ = place.compare_exchange(pid, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

fn claim(place: &AtomicU32, member: u32, word: u32) -> bool {
    // Acquire pairs with the Release stores in `miss_if_dead` and `child_unborn`: the bits of the
    // one before are gone.
    place
        .compare_exchange(member, word, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Notes that the member at `place` holds the connection. Does not count it.
pub fn mark(entry: &Entry, place: Option<u32>) {
    if let Some(noted) = place.and_then(|place| Departure::new(entry, place)) {
        noted.word.fetch_or(noted.bit, Ordering::Relaxed);
    }
}

/// The connection is new: the member at `place` alone holds it.
pub fn begin(entry: &Entry, place: Option<u32>) {
    for word in &entry.held_by {
        word.store(0, Ordering::Relaxed);
    }
    mark(entry, place);
    entry.holders.store(1, Ordering::Relaxed);
}

/// Counts the member at `place` out: how many holders are left. `None` when it was counted out
/// before. A member without a place has no note: it is counted out each time.
pub fn count_out(entry: &Entry, place: Option<u32>) -> Option<u32> {
    let Some(departure) = place.and_then(|place| Departure::new(entry, place)) else {
        let before = entry.holders.fetch_sub(1, COUNTED_OUT);
        return Some((before & HOLDERS_COUNT).saturating_sub(1));
    };
    departure.announce().then(|| departure.complete()).flatten()
}

/// A member that is being counted out, a step at a time.
#[derive(Clone, Copy)]
pub struct Departure<'a> {
    entry: &'a Entry,
    /// The word of `held_by` and the bit in it.
    word: &'a AtomicU64,
    bit: u64,
    /// One more than the place, above the count.
    name: u32,
}

impl<'a> Departure<'a> {
    /// That of the member at `place`; `None` for a place that no bit stands for.
    pub fn new(entry: &'a Entry, place: u32) -> Option<Departure<'a>> {
        Some(Departure {
            entry,
            word: entry.held_by.get(place as usize / u64::BITS as usize)?,
            bit: 1 << (place % u64::BITS),
            name: (place + 1) << HOLDERS_COUNT.count_ones(),
        })
    }

    /// The place of the member that is being counted out, by the word of the count.
    fn under_way(holders: u32) -> Option<u32> {
        (holders >> HOLDERS_COUNT.count_ones()).checked_sub(1)
    }

    fn is_marked(&self) -> bool {
        self.word.load(Ordering::Relaxed) & self.bit != 0
    }

    /// The first step. False when the member holds nothing.
    pub fn announce(&self) -> bool {
        let holders = &self.entry.holders;
        loop {
            let seen = holders.load(Ordering::Relaxed);
            if seen & !HOLDERS_COUNT == self.name {
                // It was killed here, or another thread of its process does this, too.
                return true;
            }
            if !self.is_marked() {
                return false;
            }
            match Departure::under_way(seen) {
                None => {
                    let said = seen | self.name;
                    // Relaxed: who sees the bit gone and not this sees the count as it was. Who
                    // knows that the member is dead sees both.
                    let (yes, no) = (Ordering::Relaxed, Ordering::Relaxed);
                    if holders.compare_exchange(seen, said, yes, no).is_ok() {
                        return true;
                    }
                }
                Some(other) => {
                    // It may be stopped, so nobody waits for it.
                    match Departure::new(self.entry, other) {
                        Some(other) => _ = other.complete(),
                        // No member's name: the word was spoilt.
                        None => return false,
                    }
                }
            }
        }
    }

    /// The second step.
    pub fn unmark(&self) {
        self.word.fetch_and(!self.bit, Ordering::Relaxed);
    }

    /// The last step: how many holders are left. `None` when another has taken it.
    pub fn count_down(&self) -> Option<u32> {
        let holders = &self.entry.holders;
        loop {
            let seen = holders.load(Ordering::Relaxed);
            if seen & !HOLDERS_COUNT != self.name {
                return None;
            }
            let left = (seen & HOLDERS_COUNT).saturating_sub(1);
            let exchanged = holders.compare_exchange(seen, left, COUNTED_OUT, Ordering::Relaxed);
            if exchanged.is_ok() {
                return Some(left);
            }
        }
    }

    fn complete(&self) -> Option<u32> {
        self.unmark();
        self.count_down()
    }
}

fn take_off_entry(entry: &Entry, place: Option<u32>, pid: u32) {
    if count_out(entry, place) == Some(0) {
        // It was the last: free for whoever needs an entry, once that process is gone.
        entry.pid.store(pid, Ordering::Relaxed);
        let (live, ended) = (EntryState::Live as u32, EntryState::Ended as u32);
        // Release pairs with the compare-exchange in `Header::allocate`.
        let _ = (entry.state).compare_exchange(live, ended, Ordering::Release, Ordering::Relaxed);
    }
}

const _: () = assert!(FAMILY_MAX.is_multiple_of(u64::BITS as usize));
const _: () = assert!((FAMILY_MAX as u32) < u32::MAX >> HOLDERS_COUNT.count_ones());
