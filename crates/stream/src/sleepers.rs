//! The members of a family that sleep on a connection.
//!
//! All processes that hold a connection share one wake word and one carrier. So a process that
//! wakes up keeps both in the state that the others need: the wake word asks for a doorbell while
//! any process sleeps, and a doorbell stays on the carrier until all processes that it has to wake
//! have seen it.
//!
//! ```text
//!   sleeper, under the wake lock               another process, which has seen news
//!   asleep := its number; wake word := BELL    fence SeqCst
//!   fence SeqCst                               look at asleep
//!   look for news; none: sleep                 nobody? take the doorbell off the carrier
//! ```
//!
//! Either the sleeper sees the news, or the other process sees the sleeper.
//!
//! A process that was killed in its sleep is known to be dead once its parent has reaped it. Until
//! then its doorbells stay on the carrier, and another process that wants to sleep finds them each
//! time.

use toehold_channel::doorbell::WakeWord;
use toehold_channel::sync::{Ordering, fence};
use toehold_channel::table::Entry;
use toehold_channel::untrusted::Untrusted;

use crate::attachment::Sleepers;

/// The store in `enter` pairs with the look in `are_elsewhere`, as drawn above.
const SLEEPER_SEQ_CST: Ordering = Ordering::SeqCst;

/// The processes of a family, as one of them sees them.
pub trait Family {
    /// The number of this process.
    fn me(&self) -> u32;
    /// True when there is a process with that number, and it is not known to be a zombie.
    fn is_alive(&self, pid: u32) -> bool;
}

/// The sleepers of a connection, as one process of the family sees them.
#[derive(Clone, Copy)]
pub struct FamilySleepers<'a, F> {
    entry: &'a Entry,
    /// Threads of this process.
    threads: &'a Sleepers,
    family: F,
}

impl<'a, F: Family> FamilySleepers<'a, F> {
    /// The sleepers of `entry`; `threads` counts the threads of this process.
    #[inline]
    pub fn new(entry: &'a Entry, threads: &'a Sleepers, family: F) -> FamilySleepers<'a, F> {
        FamilySleepers {
            entry,
            threads,
            family,
        }
    }

    /// Records that a thread of this process is going to sleep. Callers hold the connection's wake
    /// lock, then store the wake word, and fence.
    pub fn enter(&self) {
        if !self.threads.enter() {
            return;
        }
        let me = self.family.me();
        let is_free = |pid: u32| pid == 0 || pid == me || !self.family.is_alive(pid);
        let mut places = self.entry.asleep.iter();
        if let Some(place) = places.find(|place| is_free(place.load(Ordering::Relaxed))) {
            place.store(me, SLEEPER_SEQ_CST);
        }
    }

    /// Records that a thread of this process woke. True when no thread sleeps any more. Callers
    /// hold the connection's wake lock.
    pub fn leave(&self) -> bool {
        if !self.threads.leave() {
            return false;
        }
        self.give_place_back();
        !self.are_elsewhere()
    }

    /// Removes this process, which gives the connection up: none of its threads and none of its
    /// epoll instances waits for the connection any more.
    pub fn part(&self) {
        self.give_place_back();
        if self.is_resting_mine() {
            let none = WakeWord::None.to_word();
            self.entry.resting_wake.store(none, Ordering::Relaxed);
        }
    }

    fn give_place_back(&self) {
        let me = self.family.me();
        let mut places = self.entry.asleep.iter();
        if let Some(place) = places.find(|place| place.load(Ordering::Relaxed) == me) {
            place.store(0, SLEEPER_SEQ_CST);
        }
    }

    /// True when a thread of any process sleeps and has asked for a doorbell.
    pub fn are_there(&self) -> bool {
        self.threads.any() || self.are_elsewhere()
    }

    /// True when a thread of another process sleeps and has asked for a doorbell.
    fn are_elsewhere(&self) -> bool {
        // When this process is the only holder, all other places are left over from dead processes.
        if !self.is_shared() {
            return false;
        }
        // Pairs with the sleeper's fence, after `enter`, as drawn above.
        fence(Ordering::SeqCst);
        let me = self.family.me();
        self.entry.asleep.iter().any(|place| {
            let pid = place.load(SLEEPER_SEQ_CST);
            if pid == 0 || pid == me {
                return false;
            }
            let is_alive = self.family.is_alive(pid);
            if !is_alive {
                let _ = place.compare_exchange(pid, 0, SLEEPER_SEQ_CST, Ordering::Relaxed);
            }
            is_alive
        })
    }

    /// The wake word to return to when no thread sleeps, as a number.
    pub fn resting(&self) -> Untrusted<u32> {
        let none = WakeWord::None.to_word();
        let word = self.entry.resting_wake.load(Ordering::Relaxed);
        let owner = self.entry.resting_pid.load(Ordering::Relaxed);
        let holds = word.is(none)
            || owner == self.family.me()
            || self.is_shared() && self.family.is_alive(owner);
        if holds { word } else { none.into() }
    }

    /// The resting wake word when it names an epoll instance of this process; otherwise the number
    /// of [`WakeWord::None`].
    pub fn own_resting(&self) -> Untrusted<u32> {
        match self.is_resting_mine() {
            true => self.entry.resting_wake.load(Ordering::Relaxed),
            false => WakeWord::None.to_word().into(),
        }
    }

    /// True when the resting wake word names an epoll instance of another process.
    pub fn is_resting_anothers(&self) -> bool {
        !self.resting().is(WakeWord::None.to_word()) && !self.is_resting_mine()
    }

    fn is_resting_mine(&self) -> bool {
        self.entry.resting_pid.load(Ordering::Relaxed) == self.family.me()
    }

    /// True when several processes may hold the connection.
    fn is_shared(&self) -> bool {
        self.entry.has_several_holders(Ordering::Relaxed)
    }
}
