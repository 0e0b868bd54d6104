//! The region of a connection in one process: given, used, taken away.
//!
//! Calls that use only the carrier run without a lock, many at a time. A region changes what they
//! may do, so it is given while no such call is on its way; and it is taken away while no thread is
//! inside. Both sides count before they look:
//!
//! ```text
//!   a call, a thread                     attach, leave
//!   count := count + 1                   region := new (or null)
//!   fence SeqCst                         fence SeqCst
//!   look at the region                   look at the counts
//! ```
//!
//! One of the two looks comes after the other side's store. So a call on the carrier is counted
//! when the region is given, or sees the region; and a thread inside is counted when the region is
//! taken away, or finds none.

use core::ptr::null_mut;

use toehold_channel::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// All accesses of the drawing above. The look at the region pairs with the look at the counts
/// (`is_used`, `give`): at least one sees the other side's store.
const AGREED: Ordering = Ordering::SeqCst;

/// A region's place, and who is inside. All zeroes is a place without a region.
#[derive(Debug, Default)]
pub struct Attachment {
    /// Null while the connection is on its carrier only.
    region: AtomicPtr<u8>,
    /// Threads inside, other than those that sleep.
    users: AtomicU32,
    /// Threads that sleep in the kernel for the connection.
    pub sleepers: Sleepers,
}

/// A thread is inside: the region stays this connection's until the guard is dropped.
#[derive(Debug)]
pub struct Inside<'a>(&'a Attachment);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, AGREED);
    }
}

impl Attachment {
    /// The region. It may be taken away at any time, unless the caller is inside or holds a lock
    /// that whoever takes it needs.
    #[inline]
    pub fn region(&self) -> *mut u8 {
        self.region.load(AGREED)
    }

    /// True when there is a region now: a hint.
    #[inline]
    pub fn has_region(&self) -> bool {
        !self.region.load(Ordering::Relaxed).is_null()
    }

    /// The region, which stays while the guard lives; nothing when there is none.
    #[inline]
    pub fn enter(&self) -> Option<(*mut u8, Inside<'_>)> {
        self.users.fetch_add(1, AGREED);
        model_fence();
        let inside = Inside(self);
        let region = self.region();
        (!region.is_null()).then_some((region, inside))
    }

    /// Counts a call on the carrier in. False, and not counted, when there is a region.
    #[inline]
    pub fn begin_host_call(&self, in_flight: &AtomicU32) -> bool {
        in_flight.fetch_add(1, AGREED);
        model_fence();
        if self.region().is_null() {
            return true;
        }
        self.end_host_call(in_flight);
        false
    }

    /// Counts it out. A child that was forked by a signal handler comes back from its parent's
    /// call, which it has forgotten: nothing is counted out then.
    #[inline]
    pub fn end_host_call(&self, in_flight: &AtomicU32) {
        let less = |count: u32| count.checked_sub(1);
        let _ = in_flight.fetch_update(AGREED, Ordering::Relaxed, less);
    }

    /// Gives a region: calls that begin from here on see it. False, and not given, while a call on
    /// the carrier is on its way. The caller holds the locks of both directions.
    pub fn give(&self, region: *mut u8, in_flight: [&AtomicU32; 2]) -> bool {
        self.region.store(region, AGREED);
        model_fence();
        let is_quiet = in_flight.iter().all(|count| count.load(AGREED) == 0);
        if !is_quiet {
            self.take();
        }
        is_quiet
    }

    /// Puts a region back that was taken, or one that another program has handed over.
    pub fn put(&self, region: *mut u8) {
        self.region.store(region, AGREED);
    }

    /// Takes the region away. It is nobody's once [`Attachment::is_used`] says so.
    pub fn take(&self) {
        self.region.store(null_mut(), AGREED);
        model_fence();
    }

    /// Takes the region away, unless a thread is inside. The caller holds the locks of both
    /// directions.
    pub fn take_unused(&self) -> Option<*mut u8> {
        let region = self.region();
        if region.is_null() || self.is_used() {
            return None;
        }
        self.take();
        // A thread may have entered since the look above, which only spares it the taking.
        if self.is_used() {
            self.put(region);
            return None;
        }
        Some(region)
    }

    /// A thread that was inside has ended there, and its guard is never dropped.
    pub fn leave_for_ended(&self) {
        self.users.fetch_sub(1, AGREED);
    }

    /// True while a thread may be inside. A thread that goes to sleep is counted among the sleepers
    /// before it leaves the users, so the users are looked at first: between two looks the other
    /// way round it would be in neither count.
    pub fn is_used(&self) -> bool {
        self.users.load(AGREED) != 0 || self.sleepers.any()
    }

    /// After fork: the threads that were counted are the parent's.
    pub fn forget_threads(&self) {
        // Looked at before: most pages of a child stay as they are.
        if self.users.load(Ordering::Relaxed) != 0 {
            self.users.store(0, Ordering::Relaxed);
        }
        self.sleepers.forget();
    }

    /// Another connection begins here. Threads that are inside stay counted: they count themselves
    /// out, whoever the place is for by then.
    pub fn reset(&self) {
        self.region.store(null_mut(), Ordering::Relaxed);
    }
}

/// loom orders a `SeqCst` access as it orders `AcqRel`, and knows `SeqCst` of fences only.
#[inline]
fn model_fence() {
    // Pairs with itself, between the store and the look in `give`, `take` and `enter`.
    #[cfg(loom)]
    toehold_channel::sync::fence(Ordering::SeqCst);
}

/// Threads of a process that sleep in the kernel for a connection, and how many of them wait for
/// bytes only. Both counts are in one word: a look at the one and then at the other could meet a
/// reader that leaves in between, and take a sender that sleeps for that reader.
#[derive(Debug, Default)]
pub struct Sleepers(AtomicU64);

/// One sleeper; the readers among them are counted in the upper half.
const SLEEPER: u64 = 1;
const READER: u64 = 1 << 32;

impl Sleepers {
    /// A thread is going to sleep; true when it is the only one.
    pub fn enter(&self) -> bool {
        let before = self.0.fetch_add(SLEEPER, AGREED);
        model_fence();
        before & (READER - 1) == 0
    }

    /// It woke; true when no other sleeps. A child that was forked by a signal handler wakes from
    /// the parent's sleep, which it has forgotten: nothing is counted out then.
    pub fn leave(&self) -> bool {
        self.count_out(SLEEPER, READER - 1) & (READER - 1) <= 1
    }

    /// A thread that has entered waits for bytes only.
    pub fn begin_reading(&self) {
        self.0.fetch_add(READER, AGREED);
    }

    /// It does so no more. It leaves next.
    pub fn end_reading(&self) {
        self.count_out(READER, !(READER - 1));
    }

    /// Takes `one` off the count in `half`, if that is not 0. Both counts before.
    fn count_out(&self, one: u64, half: u64) -> u64 {
        let less = |counts: u64| (counts & half != 0).then(|| counts - one);
        let before = self.0.fetch_update(AGREED, Ordering::Relaxed, less);
        before.unwrap_or_else(|counts| counts)
    }

    /// True when a thread sleeps.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.load(AGREED) & (READER - 1) != 0
    }

    /// True when a thread sleeps that may wait for credit.
    #[inline]
    pub fn any_for_credit(&self) -> bool {
        let counts = self.0.load(AGREED);
        counts & (READER - 1) > counts >> 32
    }

    /// After fork: the threads that slept are the parent's.
    fn forget(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}
