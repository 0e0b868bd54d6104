//! The region of a connection in one process: how it is given, used and taken away.
//!
//! Calls that use only the carrier run concurrently, without a lock. A region changes what these
//! calls may do, so it is given only while no such call is running. It is taken away only while no
//! thread is inside. Each side stores before it looks:
//!
//! ```text
//!   a call, a thread                     attach, leave
//!   count := count + 1                   region := new (or null)
//!   fence SeqCst                         fence SeqCst
//!   look at the region                   look at the counts
//! ```
//!
//! One of the two looks comes after the other side's store. So `give` sees the count of a call on
//! the carrier, or the call sees the region. And `take` sees the count of a thread that enters, or
//! the thread sees that the region is gone.

use core::ptr::null_mut;

use toehold_channel::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::calls::{Calls, Name, REGION_SEQ_CST, Seat};

/// The place for a region, and counts of the threads that use it. All zeroes means that there is no
/// region.
#[derive(Debug, Default)]
pub struct Attachment {
    /// Null while the connection is on its carrier only.
    region: AtomicPtr<u8>,
    /// Threads inside that do not sleep.
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
        self.0.count_out();
    }
}

impl Attachment {
    /// The region. Another thread may take it away at any time, unless the caller is inside or
    /// holds the lock of a direction.
    #[inline]
    pub fn region(&self) -> *mut u8 {
        self.region.load(REGION_SEQ_CST)
    }

    /// True when there is a region now: a hint.
    #[inline]
    pub fn has_region(&self) -> bool {
        !self.region.load(Ordering::Relaxed).is_null()
    }

    /// Enters the region: the region stays as long as the guard lives. `None` when there is no
    /// region.
    #[inline]
    pub fn enter(&self) -> Option<(*mut u8, Inside<'_>)> {
        self.users.fetch_add(1, REGION_SEQ_CST);
        model_fence();
        let inside = Inside(self);
        let region = self.region();
        (!region.is_null()).then_some((region, inside))
    }

    /// Counts a call on the carrier that begins. `None` when there is a region; then the call is
    /// not counted.
    #[inline(always)]
    pub fn begin_host_call<'a>(&self, calls: &'a Calls, name: Name) -> Option<Seat<'a>> {
        let seat = calls.enter(name);
        model_fence();
        if self.region().is_null() {
            return Some(seat);
        }
        calls.leave(seat, name.mark);
        None
    }

    /// True when a call on the carrier may begin without being counted, because the connection is
    /// pinned. The caller has seen that. Whoever gives a region looks afterwards whether the
    /// connection is pinned, and takes the region back. Each side stores before it looks:
    ///
    /// ```text
    ///   a thread that pins, then a call       attach
    ///   pinned := 1                           region := new
    ///   fence SeqCst                          fence SeqCst
    ///   look at the region                    look at `pinned`
    /// ```
    ///
    /// So a region that the call does not see will be taken back, or was taken back.
    #[inline]
    pub fn begin_pinned_call(&self) -> bool {
        model_fence();
        self.region().is_null()
    }

    /// Gives a region: calls that begin from now on see it. False while a call on the carrier may
    /// be running; then the region is not given. `is_gone` is as in [`Calls::are_over`]. The caller
    /// holds the locks of both directions.
    pub fn give(
        &self,
        region: *mut u8,
        calls: [&Calls; 2],
        is_gone: impl Fn(Name) -> bool,
    ) -> bool {
        self.region.store(region, REGION_SEQ_CST);
        model_fence();
        let is_quiet = calls.iter().all(|calls| calls.are_over(&is_gone));
        if !is_quiet {
            self.take();
        }
        is_quiet
    }

    /// Stores a region that was taken before, or that another program has handed over.
    pub fn put(&self, region: *mut u8) {
        self.region.store(region, REGION_SEQ_CST);
    }

    /// Takes the region away. Threads may still use it until [`Attachment::is_used`] returns false.
    pub fn take(&self) {
        self.region.store(null_mut(), REGION_SEQ_CST);
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
        // A thread may have entered since the first look, which only avoids taking the region in
        // vain.
        if self.is_used() {
            self.put(region);
            return None;
        }
        Some(region)
    }

    /// Counts out a thread that has ended while it was inside: its guard is never dropped.
    pub fn leave_for_ended(&self) {
        self.count_out();
    }

    /// Counts a thread out. A child that was forked in a signal handler comes out of a region into
    /// which its parent has gone. The child's count is 0 then, and stays 0.
    #[inline]
    fn count_out(&self) {
        if self.users.fetch_sub(1, REGION_SEQ_CST) == 0 {
            self.users.fetch_add(1, REGION_SEQ_CST);
        }
    }

    /// True while a thread may be inside. A thread that goes to sleep is first counted as a sleeper
    /// and then leaves the users. So the users are read first: if the sleepers were read first,
    /// such a thread could be missed in both counts.
    pub fn is_used(&self) -> bool {
        self.users.load(REGION_SEQ_CST) != 0 || self.sleepers.any()
    }

    /// True while more threads are inside than sleep, so that one of them runs. A thread that
    /// sleeps inside a call is counted twice, and one that sleeps in `poll` once. So a thread that
    /// runs may be missed beside the latter.
    pub fn is_running(&self) -> bool {
        u64::from(self.users.load(REGION_SEQ_CST)) > self.sleepers.count()
    }

    /// After fork: the threads that were counted are the parent's.
    pub fn forget_threads(&self) {
        // The load avoids most stores, so most of the child's pages need no copy.
        if self.users.load(Ordering::Relaxed) != 0 {
            self.users.store(0, Ordering::Relaxed);
        }
        self.sleepers.forget();
    }

    /// Another connection begins in this place. Threads that are inside stay counted. They count
    /// themselves out later, even if the place belongs to another connection then.
    pub fn reset(&self) {
        self.region.store(null_mut(), Ordering::Relaxed);
    }
}

/// loom treats a `SeqCst` access like `AcqRel`, and models `SeqCst` for fences only.
#[inline]
fn model_fence() {
    // Pairs with itself, between the store and the look in `give`, `take` and `enter`.
    #[cfg(loom)]
    toehold_channel::sync::fence(Ordering::SeqCst);
}

/// Threads of a process that sleep in the kernel for a connection, and how many of them wait for
/// bytes only. Both counts are in one word, so that they are read together: with two loads, a
/// reader that leaves in between could hide a sender that sleeps.
#[derive(Debug, Default)]
pub struct Sleepers(AtomicU64);

/// One sleeper; the readers among them are counted in the upper half.
const SLEEPER: u64 = 1;
const READER: u64 = 1 << 32;

impl Sleepers {
    /// Counts a thread that is going to sleep; true when it is the only sleeper.
    pub fn enter(&self) -> bool {
        let before = self.0.fetch_add(SLEEPER, REGION_SEQ_CST);
        model_fence();
        before & (READER - 1) == 0
    }

    /// Counts out a thread that woke; true when no other thread sleeps. A child that was forked in
    /// a signal handler wakes from a sleep that its parent began. The child's count is 0 then, and
    /// stays 0.
    pub fn leave(&self) -> bool {
        self.count_out(SLEEPER, READER - 1) & (READER - 1) <= 1
    }

    /// Counts a thread that has entered as a reader: it waits for bytes only.
    pub fn begin_reading(&self) {
        self.0.fetch_add(READER, REGION_SEQ_CST);
    }

    /// Counts that reader out. The thread then calls [`Sleepers::leave`].
    pub fn end_reading(&self) {
        self.count_out(READER, !(READER - 1));
    }

    /// Subtracts `one` from the count in `half`, if that count is not 0. Returns both former
    /// counts.
    fn count_out(&self, one: u64, half: u64) -> u64 {
        let less = |counts: u64| (counts & half != 0).then(|| counts - one);
        let before = self.0.fetch_update(REGION_SEQ_CST, Ordering::Relaxed, less);
        before.unwrap_or_else(|counts| counts)
    }

    /// True when a thread sleeps.
    #[inline]
    pub fn any(&self) -> bool {
        self.count() != 0
    }

    /// The threads that sleep.
    #[inline]
    fn count(&self) -> u64 {
        self.0.load(REGION_SEQ_CST) & (READER - 1)
    }

    /// True when a thread sleeps that may wait for credit.
    #[inline]
    pub fn any_for_credit(&self) -> bool {
        let counts = self.0.load(REGION_SEQ_CST);
        counts & (READER - 1) > counts >> 32
    }

    /// After fork: the threads that slept are the parent's.
    fn forget(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn child_that_was_forked_inside_a_region_is_not_counted_when_it_comes_out() {
        let attachment = Attachment::default();
        let mut memory = 0u8;
        attachment.put(&raw mut memory);
        let (_, inside) = attachment.enter().expect("a region");
        attachment.forget_threads();
        drop(inside);
        assert!(!attachment.is_used());
        assert_eq!(attachment.take_unused(), Some(&raw mut memory));
    }

    #[test]
    fn thread_that_sleeps_inside_a_call_does_not_run() {
        let attachment = Attachment::default();
        let mut memory = 0u8;
        attachment.put(&raw mut memory);
        let inside = attachment.enter().expect("a region");
        assert!(attachment.is_running());
        attachment.sleepers.enter();
        assert!(!attachment.is_running() && attachment.is_used());
        let another = attachment.enter().expect("a region");
        assert!(attachment.is_running());
        drop((inside, another));
        assert!(!attachment.is_running() && attachment.is_used());
    }
}
