//! One direction of a channel: a byte ring with a private cursor at each end.
//!
//! ```text
//!            head (receiver)          tail (sender)
//!              │ unread bytes           │ credit
//!   ───────────┼────────────────────────┼───────────────┐
//!              offset = position & (capacity - 1)       └─ wraps
//! ```
//!
//! Positions count bytes since the ring began and never wrap in practice (2^64). Each end keeps its
//! own cursor in memory the peer cannot write; the shared word only publishes it. Invariant:
//! `head <= tail <= head + capacity`, checked on every load of the peer's word.
//!
//! The cursors are in the family's table. A member of the family may have changed its user, so the
//! table is no safer than the peer's words: each word is loaded once, checked, and used from the
//! local copy. Whatever the words say, [`stretches`] never leaves the ring.
//!
//! The capacity in force may change only while the ring is empty. So a receiver that has loaded
//! `tail`, and has not yet published a `head` equal to it, reads the capacity with which those
//! bytes were laid out.
//!
//! This module deals in offsets; its callers move the bytes.

use crate::layout::{CAPACITY_LOG2_MAX, CAPACITY_LOG2_MIN, Consume, Publish, RING_BYTES};
use crate::sync::{AtomicU32, Ordering, fence};
use crate::untrusted::{Untrusted, Word32, Word64};

/// Stores the word that completes a step, after all stores that prepare the step. If the process is
/// killed here, another process of the family reads that word to see whether the step was
/// completed. Pairs with the Acquire in `lock::inherit`. Only the order of the instructions
/// matters.
pub const STEP_RELEASE: Ordering = Ordering::Release;

/// A word of the peer that failed its check. The channel ends; nothing else does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `tail` is behind our cursor or more than a capacity ahead of it.
    Tail,
    /// `head` went backwards or beyond what was published.
    Head,
    /// The capacity is not one that we allow.
    Capacity,
    /// A switch record contradicts the counted bytes, or there are too many records.
    Record,
    /// The wake word names a ready bitmap or bit that does not exist.
    Wake,
    /// The words of our own cursor, in the family's table, contradict each other: another process
    /// of the family, perhaps another user's, has overwritten them.
    Table,
}

/// Up to two stretches of ring memory, in order: `(offset, length)`.
pub type Stretches = [(usize, usize); 2];

/// Splits `len` bytes at `position` of a ring of `1 << capacity_log2` bytes at its end. Both
/// stretches lie in the largest ring, whatever the arguments; their sum is `len` when `len` is at
/// most a capacity that we allow.
#[inline]
pub fn stretches(
    position: impl Into<Untrusted<u64>>,
    len: usize,
    capacity_log2: impl Into<Untrusted<u32>>,
) -> Stretches {
    let capacity = 1usize << capacity_log2.into().capped(CAPACITY_LOG2_MAX);
    let len = len.min(capacity);
    let offset = position.into().masked(capacity as u64 - 1) as usize;
    // No copy leaves the ring: the offset of the first byte is checked in release builds, too.
    assert!(offset < capacity && capacity <= RING_BYTES);
    let first = len.min(capacity - offset);
    [(offset, first), (0, len - first)]
}

/// The sending end. Callers hold the direction's send lock.
pub struct Sender<'a> {
    /// Our line.
    pub publish: &'a Publish,
    /// The peer's line.
    pub consume: &'a Consume,
    /// Our cursor: bytes published.
    pub tail: &'a Word64,
    /// The peer's `head` when last looked at.
    pub head_seen: &'a Word64,
    /// Capacity in force.
    pub capacity_log2: &'a Word32,
    /// Set when the ring was found full since it last grew.
    pub was_full: &'a AtomicU32,
}

impl Sender<'_> {
    /// Bytes that may be published now. Loads the peer's word only when the credit known so far is
    /// less than `want`.
    ///
    /// # Errors
    /// [`Fault::Head`] when the peer's word contradicts our cursor.
    #[inline]
    pub fn credit(&self, want: u64) -> Result<u64, Fault> {
        match self.credit_known() {
            Some(known) if known >= want => Ok(known),
            Some(_) => self.credit_fresh(),
            None => Err(Fault::Table),
        }
    }

    /// Bytes that may be published by the credit known so far, without a load of the peer's word;
    /// `None` when our own words contradict each other.
    #[inline]
    pub fn credit_known(&self) -> Option<u64> {
        let tail = self.tail.load(Ordering::Relaxed);
        let seen = self.head_seen.load(Ordering::Relaxed);
        room(self.capacity().ok()?, tail, seen)
    }

    /// As [`Sender::credit`], but always loads the peer's word. A ring that was full and is empty
    /// now grows.
    ///
    /// # Errors
    /// [`Fault::Head`] when the peer's word contradicts our cursor.
    pub fn credit_fresh(&self) -> Result<u64, Fault> {
        let log2 = self.capacity()?;
        let credit = self.credit_with(log2)?;
        if credit == 0 {
            self.was_full.store(1, Ordering::Relaxed);
        } else if credit == 1u64 << log2
            && self.was_full.load(Ordering::Relaxed) != 0
            && log2 < CAPACITY_LOG2_MAX
        {
            return Ok(self.grow(log2));
        }
        Ok(credit)
    }

    /// As [`Sender::credit_fresh`], but the ring does not grow: an engine writes bytes beyond the
    /// published ones, whose offsets must not change.
    ///
    /// # Errors
    /// [`Fault::Head`] when the peer's word contradicts our cursor.
    pub fn credit_as_it_is(&self) -> Result<u64, Fault> {
        self.credit_with(self.capacity()?)
    }

    fn credit_with(&self, log2: u32) -> Result<u64, Fault> {
        let tail = self.tail.load(Ordering::Relaxed);
        let seen = self.head_seen.load(Ordering::Relaxed);
        // Acquire pairs with the Release store in `Receiver::consume`: the peer has finished
        // reading the bytes before `head`.
        let head = self.consume.head.load(Ordering::Acquire);
        if head < seen || head > tail {
            return Err(Fault::Head);
        }
        let credit = room(log2, tail, head).ok_or(Fault::Table)?;
        self.head_seen.store(head, Ordering::Relaxed);
        Ok(credit)
    }

    /// Capacity in force, as a power of two.
    ///
    /// # Errors
    /// [`Fault::Table`].
    #[inline]
    pub fn capacity(&self) -> Result<u32, Fault> {
        let log2 = self.capacity_log2.load(Ordering::Relaxed);
        log2.within(CAPACITY_LOG2_MIN..=CAPACITY_LOG2_MAX)
            .ok_or(Fault::Table)
    }

    /// Whether the ring has room, by the peer's unchecked word; changes nothing. A hint.
    #[inline]
    pub fn looks_writable(&self) -> bool {
        // Acquire pairs with the Release store in `Receiver::consume`.
        let head = self.consume.head.load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Relaxed);
        let log2 = self.capacity_log2.load(Ordering::Relaxed);
        let most = (1u64 << log2.capped(CAPACITY_LOG2_MAX)) - 1;
        tail.ahead_of(head, most).is_some()
    }

    /// True when a ring that is full gets larger once it is empty.
    pub fn may_grow(&self) -> bool {
        self.capacity_log2
            .load(Ordering::Relaxed)
            .at_most(CAPACITY_LOG2_MAX - 1)
            .is_some()
    }

    /// Raises the capacity of a ring that is empty now and has been full; returns the new credit.
    fn grow(&self, log2: u32) -> u64 {
        /// Two doublings at a time: from the first pages to the largest ring in four steps.
        const STEP: u32 = 2;
        let log2 = (log2 + STEP).min(CAPACITY_LOG2_MAX);
        self.was_full.store(0, Ordering::Relaxed);
        self.set_capacity(log2);
        1u64 << log2
    }

    /// Gives a ring that is empty a capacity, as a power of two.
    pub fn set_capacity(&self, log2: u32) {
        self.capacity_log2.store(log2, Ordering::Relaxed);
        // Relaxed: the next store of `tail` carries it to the peer.
        self.publish.capacity_log2.store(log2, Ordering::Relaxed);
    }

    /// As [`Sender::set_capacity`], for a capacity that may be smaller. The last known `head` of
    /// the peer may be further behind than the new capacity, so `head` is loaded again.
    ///
    /// # Errors
    /// [`Fault::Head`] when the peer's word contradicts our cursor.
    pub fn shrink(&self, log2: u32) -> Result<(), Fault> {
        self.credit_as_it_is()?;
        self.set_capacity(log2);
        Ok(())
    }

    /// The stretches for the next `len` bytes. `len` must not exceed the credit. The stretches
    /// always lie in the ring; they are shorter than `len` when the table has changed since.
    #[inline]
    pub fn reserve(&self, len: usize) -> Stretches {
        stretches(
            self.tail.load(Ordering::Relaxed),
            len,
            self.capacity_log2.load(Ordering::Relaxed),
        )
    }

    /// Publishes the next `len` bytes. Acts as a full barrier: the caller's next load (of the
    /// peer's wake word) comes after the peer can see these bytes. See [`crate::doorbell`].
    #[inline]
    pub fn publish(&self, len: usize) {
        let tail = self.tail.load(Ordering::Relaxed).plus(len as u64);
        self.tail.store(tail, STEP_RELEASE);
        // Release (part of SeqCst) pairs with the Acquire load in `Receiver::available`. On x86 one
        // exchange is cheaper than a store and a fence; loom models only the fence.
        #[cfg(not(loom))]
        self.publish.tail.swap(tail, Ordering::SeqCst);
        #[cfg(loom)]
        self.publish.tail.store(tail, Ordering::Release);
        #[cfg(loom)]
        fence(Ordering::SeqCst);
    }

    /// As [`Sender::publish`] without the barrier, for all but the last of several publications.
    #[inline]
    pub fn publish_part(&self, len: usize) {
        let tail = self.tail.load(Ordering::Relaxed).plus(len as u64);
        self.tail.store(tail, STEP_RELEASE);
        // Release pairs with the Acquire load in `Receiver::available`.
        self.publish.tail.store(tail, Ordering::Release);
    }
}

/// Free bytes when those from `head` to `tail` are unread; `None` when the cursors contradict the
/// capacity.
#[inline]
fn room(capacity_log2: u32, tail: Untrusted<u64>, head: Untrusted<u64>) -> Option<u64> {
    let capacity = 1u64 << capacity_log2;
    Some(capacity - tail.ahead_of(head, capacity)?)
}

/// The receiving end. Callers hold the direction's receive lock.
pub struct Receiver<'a> {
    /// The peer's line.
    pub publish: &'a Publish,
    /// Our line.
    pub consume: &'a Consume,
    /// Our cursor: bytes consumed.
    pub head: &'a Word64,
}

/// A receiver's view of the ring's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Unread bytes.
    pub len: u64,
    /// The capacity they were laid out with.
    pub capacity_log2: u32,
}

impl Receiver<'_> {
    /// Unread bytes.
    ///
    /// # Errors
    /// [`Fault::Tail`] or [`Fault::Capacity`] when the peer's words contradict our cursor or each
    /// other.
    #[inline]
    pub fn available(&self) -> Result<Filled, Fault> {
        let head = self.head.load(Ordering::Relaxed);
        // Acquire pairs with the store in `Sender::publish`: the bytes before `tail` are there.
        let tail = self.publish.tail.load(Ordering::Acquire);
        if tail == head {
            return Ok(Filled {
                len: 0,
                capacity_log2: CAPACITY_LOG2_MIN,
            });
        }
        let capacity_log2 = self.publish.capacity_log2.load(Ordering::Relaxed);
        let capacity_log2 = capacity_log2
            .within(CAPACITY_LOG2_MIN..=CAPACITY_LOG2_MAX)
            .ok_or(Fault::Capacity)?;
        let len = tail
            .ahead_of(head, 1u64 << capacity_log2)
            .ok_or(Fault::Tail)?;
        Ok(Filled { len, capacity_log2 })
    }

    /// True when the peer has published bytes that were not consumed. Needs no lock, and checks
    /// nothing.
    #[inline]
    pub fn looks_filled(&self) -> bool {
        // Acquire pairs with the store in `Sender::publish`.
        self.publish.tail.load(Ordering::Acquire) != self.head.load(Ordering::Relaxed)
    }

    /// The stretches of the next `len` unread bytes.
    #[inline]
    pub fn peek(&self, skip: u64, len: usize, filled: Filled) -> Stretches {
        stretches(
            self.head.load(Ordering::Relaxed).plus(skip),
            len,
            filled.capacity_log2,
        )
    }

    /// Gives `len` bytes back as credit. Returns true when the ring was at least half full and is
    /// less than half full now. The caller then looks whether the sender sleeps for credit; a full
    /// barrier has passed (see [`crate::doorbell`]).
    ///
    /// No sleeper is missed, because a sender sleeps only on a full ring. `filled` may be older
    /// than that. If `filled` has at least half a ring, its consumption passes the half. If it has
    /// less, at least half a ring is left after it, and the consumption of the rest passes the
    /// half.
    #[inline]
    #[must_use]
    pub fn consume(&self, len: usize, filled: Filled) -> bool {
        let head = self.head.load(Ordering::Relaxed).plus(len as u64);
        self.head.store(head, STEP_RELEASE);
        // Release pairs with the Acquire load in `Sender::credit_fresh`: our reads are done.
        self.consume.head.store(head, Ordering::Release);
        let half = 1u64 << (filled.capacity_log2 - 1);
        let crossed = filled.len >= half && filled.len - (len as u64) < half;
        if crossed {
            // Pairs with the fence in `End::peer_can_ring`, after the sender has stored
            // `want_credit`.
            fence(Ordering::SeqCst);
        }
        crossed
    }
}
