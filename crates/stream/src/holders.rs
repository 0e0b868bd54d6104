//! Which processes of a family hold a connection.
//!
//! Each entry has a bit for every member of the family, by the member's place in the table's list.
//! Each member sets and clears its own bits. A process that is killed cannot clear its bits. So a
//! member that asks whether others hold a connection also checks whether the members whose bits are
//! set are alive. A dead member's bits are cleared in all entries before its place is used again:
//!
//! ```text
//!   family:   [ 17, 42, 0, … ]       42 is dead:  place 1 := "cleared by us"
//!   held_by:     1   1  0                         bit 1 off in every entry;  place 1 := 0
//! ```
//!
//! When several members leave at the same time, exactly one of them is the last. Each of them
//! announces that it leaves before it looks:
//!
//! ```text
//!   leaving: own bit on
//!   fence SeqCst
//!   is there another living holder that does not leave?   no: ended_by := own place, if it is 0
//!   held_by: own bit off;  leaving: own bit off
//! ```
//!
//! The last member to announce finds no other holder. So at least one of them tries to store
//! `ended_by`, and exactly one succeeds. If a member is killed at any of these steps, its bits are
//! cleared like those of any dead member. A member that clears the bits of a dead member does not
//! become a holder by that: a place that is being cleared belongs to no member.
//!
//! The process that used a connection last may be gone while another process holds the connection.
//! So a member that wants an entry for a new connection asks for its holders first (`end_unheld`).
//! The end of a connection is the work of one process, which `ended_by` names: only that process
//! moves the entry on from `Live`, so that no process ends the entry's next connection.
//!
//! A child gets its place, and its bits in the entries, before it exists: the parent stores
//! [`FAMILY_BIRTH`] and its own number in the place. Then the child's number is stored, by the
//! child or by the parent when `fork` has returned, whichever is first. So a child that is killed
//! before its first instruction is noticed like any other dead member. If the parent is killed
//! inside `fork`, the place is given up some seconds later, unless a child has stored its number.
//!
//! A member that finds no free place is only counted (`holders`). If it is killed, nobody notices,
//! and the count stays.

use toehold_channel::sync::{AtomicU32, Ordering, fence};
use toehold_channel::table::{
    Entry, EntryState, FAMILY_BIRTH, FAMILY_MAX, FAMILY_ORPHAN, FAMILY_PID,
};

use crate::sleepers::Family;

/// A member leaves, or the bits of a dead one are cleared. Pairs with the looks of the others
/// ([`Members::is_held_elsewhere`]): the last member sees all stores of the others.
const LEAVE_ACQ_REL: Ordering = Ordering::AcqRel;

/// Loads the bits of others. Pairs with the accesses by [`LEAVE_ACQ_REL`].
const LEAVE_ACQUIRE: Ordering = Ordering::Acquire;

/// Loads a place before the bits of that place. Pairs with the stores by [`PLACE_RELEASE`]: the
/// former member's bits are cleared.
const PLACE_ACQUIRE: Ordering = Ordering::Acquire;

/// Stores a place whose bits are cleared. Pairs with the loads by [`PLACE_ACQUIRE`] and with the
/// compare-exchange in `claim`.
const PLACE_RELEASE: Ordering = Ordering::Release;

/// In a place, with the number of a process: that process is clearing the former member's bits.
const CLEARED_BY: u32 = FAMILY_ORPHAN;

/// The bits of [`Entry::ended_by`] that name the last holder: one more than its place. The bits
/// above count the uses of the entry.
const ENDED_NAME: u32 = (1 << 10) - 1;
/// In these bits: the last holder had no place, or another process carries out the end for it.
const NAMELESS: u32 = ENDED_NAME;

/// The time that a child whose parent is dead may take from its birth to its first instructions, in
/// seconds. A child that is stopped for longer loses its place, and takes another.
pub const BIRTH_SECONDS_MAX: u32 = 10;
/// The bits of an orphan's word that hold the time.
const ORPHAN_SECONDS: u32 = FAMILY_ORPHAN - 1;

/// The most changes of a place during one look at it. Members change it once or twice; a member
/// that is another user by now may change it without an end.
const CHANGES_MAX: u32 = 64;

/// The table that a family shares.
pub trait Members: Family {
    /// The family's list, of at most [`FAMILY_MAX`] places.
    fn list(&self) -> &[AtomicU32];

    /// All entries that have ever been used.
    fn entries(&self) -> impl Iterator<Item = &Entry>;

    /// Seconds since any fixed moment.
    fn now_seconds(&self) -> u32;

    /// Enters process `pid` in the list and returns its place. In a full list the places of dead
    /// members are used again.
    fn join(&self, pid: u32) -> Option<u32> {
        let is_it = |place: &AtomicU32| place.load(Ordering::Relaxed) == pid;
        match self.list().iter().position(is_it) {
            Some(place) => Some(place as u32),
            None => self.enter(pid),
        }
    }

    /// Stores `word` in a free place, for a new member.
    fn enter(&self, word: u32) -> Option<u32> {
        let place = self.list().iter().position(|place| {
            let member = place.load(Ordering::Relaxed);
            let is_free = member == 0 || !self.lives(place, member);
            is_free && claim(place, member, CLEARED_BY | self.me())
        })? as u32;
        self.take_off(place, word & FAMILY_PID);
        self.list()[place as usize].store(word, PLACE_RELEASE);
        Some(place)
    }

    /// Whether the `member` that stands at `place` lives, or may be about to.
    fn lives(&self, place: &AtomicU32, member: u32) -> bool {
        if member & FAMILY_BIRTH == 0 {
            return self.is_alive(member & FAMILY_PID);
        }
        let now = self.now_seconds();
        if member & FAMILY_ORPHAN != 0 {
            return now.wrapping_sub(member) & ORPHAN_SECONDS < BIRTH_SECONDS_MAX;
        }
        if !self.is_alive(member & FAMILY_PID) {
            // It is not known whether the parent had the child before it died. If it had, the child
            // will enter itself.
            let orphan = FAMILY_BIRTH | FAMILY_ORPHAN | now & ORPHAN_SECONDS;
            let _ = place.compare_exchange(member, orphan, Ordering::Relaxed, Ordering::Relaxed);
        }
        true
    }

    /// Reserves a place for the child of this process's fork number `forks`. Returns the place and
    /// the word that is stored there. No other birth uses that word until 256 forks later.
    fn expect_child(&self, forks: u32) -> Option<(u32, u32)> {
        let serial = forks << FAMILY_PID.count_ones() & (FAMILY_ORPHAN - 1) & !FAMILY_PID;
        let word = FAMILY_BIRTH | serial | self.me();
        Some((self.enter(word)?, word))
    }

    /// Writes `pid` to the place that was reserved with `word`. False when another member has the
    /// place now: the child has already ended, or it took so long that its place was given up.
    fn name_child(&self, place: u32, word: u32, pid: u32) -> bool {
        let Some(place) = self.list().get(place as usize) else {
            return false;
        };
        for _ in 0..CHANGES_MAX {
            let member = place.load(Ordering::Relaxed);
            let orphan = FAMILY_BIRTH | FAMILY_ORPHAN;
            if member != word && member & orphan != orphan {
                return member == pid;
            }
            if claim(place, member, pid) {
                return true;
            }
        }
        false
    }

    /// Frees the place that was reserved with `word`, because `fork` failed.
    fn fork_failed(&self, place: u32, word: u32) {
        let me = self.me();
        if self.name_child(place, word, CLEARED_BY | me) {
            self.take_off(place, me);
            self.list()[place as usize].store(0, PLACE_RELEASE);
        }
    }

    /// Corrects the child's bit of one entry. The child's place came with a copy of the parent's
    /// bits, but another thread of the parent may have opened or closed connections before the
    /// fork.
    fn settle_as_child(&self, entry: &Entry, place: Option<u32>, is_held: bool) {
        let is_marked = place
            .and_then(|place| Holder::new(entry, place))
            .is_some_and(|holder| holder.is_marked());
        if is_held && !is_marked {
            enter(entry, place);
        } else if let (true, false, Some(place)) = (is_marked, is_held, place) {
            take_off_entry(entry, place, self.me());
        }
    }

    /// This process, at `place`, stops holding the connection. True when it was the last holder.
    /// False when it had left before, or another of its threads is leaving: exit handlers run while
    /// other threads still close.
    fn leave(&self, entry: &Entry, place: Option<u32>) -> bool {
        let Some(holder) = place.and_then(|place| Holder::new(entry, place)) else {
            count_out(entry, None);
            // Pairs with the fence in `announce`: when two members leave, one of them sees that the
            // other is gone.
            fence(Ordering::SeqCst);
            return !self.is_held_elsewhere(entry, false) && claim_end(entry, NAMELESS);
        };
        if !holder.announce() {
            return false;
        }
        let is_last = !self.is_held_elsewhere(entry, false) && holder.claim_end();
        holder.clear();
        is_last
    }

    /// The last user of a live entry has ended: ends the connection if no process holds it, this
    /// one at `place` included. True when the entry is [`EntryState::Ended`] now. The last user may
    /// have left the connection to others: a server's process accepts, forks a child, and ends.
    fn end_unheld(&self, entry: &Entry, place: Option<u32>) -> bool {
        // Loaded first: the claim below fails if the entry has a new connection meanwhile. Acquire
        // pairs with the claims by `LEAVE_ACQ_REL`.
        let word = entry.ended_by.load(LEAVE_ACQUIRE);
        let is_ours = match place.and_then(|place| Holder::new(entry, place)) {
            Some(holder) => holder.is_marked(),
            // This process is only counted, if it holds the connection.
            None => entry.holders.load(LEAVE_ACQUIRE) > 0,
        };
        if is_ours || self.is_held_elsewhere(entry, true) {
            return false;
        }
        let is_over = match word & ENDED_NAME {
            0 => true,
            NAMELESS => false,
            // That process may be carrying out the end of the connection.
            name => !(self.list().get(name as usize - 1)).is_some_and(|place| {
                let member = place.load(PLACE_ACQUIRE);
                member != 0 && self.lives(place, member)
            }),
        };
        is_over && claim_use(entry, word, NAMELESS) && end_entry(entry)
    }

    /// True when another process of the family, alive, may hold the connection.
    fn are_others(&self, entry: &Entry) -> bool {
        // Relaxed: a parent and its child both see the bits that the fork has set.
        entry.has_several_holders(Ordering::Relaxed) && self.is_held_elsewhere(entry, true)
    }

    /// A member other than this process that holds the connection, or may be about to leave it. A
    /// momentary value, for status.
    fn another_holder(&self, entry: &Entry) -> Option<u32> {
        let words = entry.held_by.iter().zip(0..);
        words.into_iter().find_map(|(held, word)| {
            let bits = held.load(LEAVE_ACQUIRE);
            (0..u64::BITS)
                .filter(|bit| bits >> bit & 1 != 0)
                .find_map(|bit| {
                    let place: u32 = word * u64::BITS + bit;
                    let member = self.list().get(place as usize)?.load(PLACE_ACQUIRE);
                    let is_process = member & (FAMILY_BIRTH | FAMILY_ORPHAN) == 0;
                    (is_process && member != 0 && member != self.me()).then_some(member)
                })
        })
    }

    /// True when another process of the family, alive, holds the connection. Members that are
    /// leaving count only if `with_leaving`. The bits of dead members are cleared.
    fn is_held_elsewhere(&self, entry: &Entry, with_leaving: bool) -> bool {
        if entry.holders.load(LEAVE_ACQUIRE) > 0 && self.are_others_alive() {
            return true;
        }
        let mut words = entry.held_by.iter().enumerate();
        // Nearly always all words but one are empty.
        words.any(|(word, held)| {
            held.load(LEAVE_ACQUIRE) != 0 && self.is_held_in(entry, word, with_leaving)
        })
    }

    /// As [`Members::is_held_elsewhere`], but only for the members whose bits are in `word`.
    #[inline(never)]
    fn is_held_in(&self, entry: &Entry, word: usize, with_leaving: bool) -> bool {
        // Loaded before the other bits. A member clears its `leaving` bit last, so a member that
        // leaves in between is not taken for a holder.
        let leaving = entry.leaving[word].load(LEAVE_ACQUIRE);
        let mut bits = entry.held_by[word].load(LEAVE_ACQUIRE);
        if !with_leaving {
            bits &= !leaving;
        }
        while bits != 0 {
            let place = word as u32 * u64::BITS + bits.trailing_zeros();
            if Holder::new(entry, place).is_some_and(|holder| self.holds(&holder)) {
                return true;
            }
            bits &= bits - 1;
        }
        false
    }

    /// True when a member other than this process, whose bit was seen, is alive and holds the
    /// connection. If it is dead, its bits are cleared in every entry, and its place is free. A
    /// place that changes all the time counts as a living member's.
    fn holds(&self, holder: &Holder<'_>) -> bool {
        let Some(place) = self.list().get(holder.place as usize) else {
            return false;
        };
        let me = self.me();
        for _ in 0..CHANGES_MAX {
            let member = place.load(PLACE_ACQUIRE);
            if member == 0 || member == me {
                return false;
            }
            let is_cleared = member & (FAMILY_BIRTH | FAMILY_ORPHAN) == CLEARED_BY;
            if self.lives(place, member) {
                // The bit is loaded again, because it may have belonged to the place's former
                // member.
                return !is_cleared && holder.is_marked();
            }
            // The claim carries our number, so that others take the place over if we are killed
            // while we clear it.
            if claim(place, member, CLEARED_BY | me) {
                self.take_off(holder.place, member & FAMILY_PID);
                place.store(0, PLACE_RELEASE);
                return false;
            }
        }
        true
    }

    /// Clears the bit of `place` in every entry, because the member `pid` (or the former member of
    /// the place) is gone.
    fn take_off(&self, place: u32, pid: u32) {
        for entry in self.entries() {
            take_off_entry(entry, place, pid);
        }
    }

    /// True when another process of this family is alive. Only then can another process hold our
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
    // Acquire pairs with the stores by `PLACE_RELEASE`: the former member's bits are cleared.
    place
        .compare_exchange(member, word, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Begins a new connection: the member at `place` is its only holder.
pub fn begin(entry: &Entry, place: Option<u32>) {
    // Two loops: one over both takes three times as many instructions.
    for word in &entry.held_by {
        word.store(0, Ordering::Relaxed);
    }
    for word in &entry.leaving {
        word.store(0, Ordering::Relaxed);
    }
    // Relaxed: the entry is published by its state.
    let before = entry.ended_by.load(Ordering::Relaxed);
    let next = (before | ENDED_NAME).wrapping_add(1);
    entry.ended_by.store(next, Ordering::Relaxed);
    entry.holders.store(0, Ordering::Relaxed);
    enter(entry, place);
}

/// Makes the member at `place` a further holder of the connection.
pub fn enter(entry: &Entry, place: Option<u32>) {
    match place.and_then(|place| Holder::new(entry, place)) {
        Some(holder) => holder.mark(),
        // Release pairs with the load of `holders` by `LEAVE_ACQUIRE`, as the bit's does.
        None => _ = entry.holders.fetch_add(1, Ordering::Release),
    }
}

/// Gives a holder that was only counted the bit of the member at `place`.
pub fn name(entry: &Entry, place: Option<u32>) {
    if let Some(holder) = place.and_then(|place| Holder::new(entry, place)) {
        holder.mark();
        count_out(entry, None);
    }
}

/// Removes the member at `place` from the holders, without a look at the others. A member without a
/// place has no bit, so each call counts one holder out.
pub fn count_out(entry: &Entry, place: Option<u32>) {
    match place.and_then(|place| Holder::new(entry, place)) {
        Some(holder) => _ = holder.clear(),
        None => {
            let less = |count: u32| count.checked_sub(1);
            let _ = (entry.holders).fetch_update(LEAVE_ACQ_REL, Ordering::Relaxed, less);
        }
    }
}

/// Records `name` as the last holder of this use of the entry. False when another name is already
/// recorded.
fn claim_end(entry: &Entry, name: u32) -> bool {
    let open = entry.ended_by.load(Ordering::Relaxed) & !ENDED_NAME;
    claim_use(entry, open, name)
}

/// As [`claim_end`], if `word` is still in `ended_by`: it counts this use, and names no process or
/// one that is dead.
fn claim_use(entry: &Entry, word: u32, name: u32) -> bool {
    let named = word & !ENDED_NAME | name;
    (entry.ended_by)
        .compare_exchange(word, named, LEAVE_ACQ_REL, Ordering::Relaxed)
        .is_ok()
}

/// A live entry becomes [`EntryState::Ended`]: any member may allocate it once the process of its
/// `pid` is gone.
fn end_entry(entry: &Entry) -> bool {
    let (live, ended) = (EntryState::Live as u32, EntryState::Ended as u32);
    // Release pairs with the compare-exchange in `Header::allocate`.
    (entry.state)
        .compare_exchange(live, ended, Ordering::Release, Ordering::Relaxed)
        .is_ok()
}

/// A member's bits in an entry.
#[derive(Clone, Copy)]
pub struct Holder<'a> {
    entry: &'a Entry,
    place: u32,
    word: usize,
    bit: u64,
}

impl<'a> Holder<'a> {
    /// The bits of the member at `place`; `None` for a place without a bit.
    pub fn new(entry: &'a Entry, place: u32) -> Option<Holder<'a>> {
        let word = (place / u64::BITS) as usize;
        (word < entry.held_by.len()).then_some(Holder {
            entry,
            place,
            word,
            bit: 1 << (place % u64::BITS),
        })
    }

    fn is_marked(&self) -> bool {
        self.entry.held_by[self.word].load(LEAVE_ACQUIRE) & self.bit != 0
    }

    /// The member holds the connection.
    pub fn mark(&self) {
        // Release pairs with the loads by `LEAVE_ACQUIRE`: a member that sees the bit sees the
        // holder's number in its place.
        self.entry.held_by[self.word].fetch_or(self.bit, Ordering::Release);
    }

    /// The first step of leaving. False when the member holds nothing, or leaves already.
    pub fn announce(&self) -> bool {
        if !self.is_marked() {
            return false;
        }
        let before = self.entry.leaving[self.word].fetch_or(self.bit, LEAVE_ACQ_REL);
        // Pairs with the other's fence in `announce`: of two that leave, one sees the other's bit.
        fence(Ordering::SeqCst);
        before & self.bit == 0
    }

    /// The second step, for a member that has found no other holder. True when it is the last
    /// holder.
    pub fn claim_end(&self) -> bool {
        claim_end(self.entry, self.place + 1)
    }

    /// The last step. True when the member held the connection.
    pub fn clear(&self) -> bool {
        let before = self.entry.held_by[self.word].fetch_and(!self.bit, LEAVE_ACQ_REL);
        self.entry.leaving[self.word].fetch_and(!self.bit, LEAVE_ACQ_REL);
        before & self.bit != 0
    }

    /// True when the member was the last holder, and the end of the connection was not carried out:
    /// this process does that now.
    /// `word` was in `ended_by` before the member's bit was cleared.
    fn was_last(&self, word: u32) -> bool {
        // Pairs with the fence in `announce`: we see a member that leaves, or it sees that the bit
        // is cleared.
        fence(Ordering::SeqCst);
        if self.entry.holder_count(LEAVE_ACQUIRE) != 0 {
            return false;
        }
        let (open, name) = (word & !ENDED_NAME, self.place + 1);
        // The end becomes the work of this process. No other carries it out: a second one might end
        // the entry's next connection.
        (word == open || word == open | name) && claim_use(self.entry, word, NAMELESS)
    }
}

fn take_off_entry(entry: &Entry, place: u32, pid: u32) {
    let Some(holder) = Holder::new(entry, place) else {
        return;
    };
    // Loaded first: once the bit is cleared, another process may end this use of the entry and
    // begin the next. Acquire pairs with the claims by `LEAVE_ACQ_REL`.
    let word = entry.ended_by.load(LEAVE_ACQUIRE);
    if holder.clear() && holder.was_last(word) {
        entry.pid.store(pid, Ordering::Relaxed);
        end_entry(entry);
    }
}

const _: () = assert!(FAMILY_MAX.is_multiple_of(u64::BITS as usize));
const _: () = assert!((FAMILY_MAX as u32) < NAMELESS);
