//! The calls of one direction that run on the carrier, in one process.
//!
//! A region is given only while no such call runs ([`crate::attachment`]). A call usually counts
//! itself out. But a signal handler may leave it by `longjmp(3)`, and a thread may be cancelled in
//! it (`pthread_cancel(3)`): then no code of the library runs at its end. So a call is not only
//! counted but named. Its name is the address of its *mark*, a word in its own stack frame, and the
//! number of its thread. As long as the call runs, its frame stays, and so does the mark. Whoever
//! needs the calls to be over looks for the marks of those that are still named:
//!
//! - the memory is gone, or other code has written there: the frame is gone, and so is the call;
//! - the mark is there, and the thread is not: the call ended with its thread;
//! - the mark and the thread are there: the call may run.
//!
//! The last answer is wrong if no code has used the memory since the call was left. Then the region
//! is given later. The first two answers are never wrong.
//!
//! ```text
//!   place:   0 ──► entering ──► named ──────────────────────► 0    by the call
//!                                 │  ▲ its mark is there      ▲
//!                                 ▼  │                        │
//!                               checked ──────────────────────┘    the call was left
//! ```
//!
//! A call that ends takes its name out of a place even if the place is just being checked. A place
//! that is being checked is taken by no other call, so the checker's last step does not concern
//! another call with this address.

use toehold_channel::sync::{AtomicU32, AtomicU64, Ordering};

/// All accesses of the drawing in `attachment`. The look at the region pairs with the look at the
/// counts (`is_used`, `give`): at least one sees the other side's store.
pub(crate) const REGION_SEQ_CST: Ordering = Ordering::SeqCst;

/// Calls that are named at a time. Further calls are only counted.
const PLACES: usize = 3;

/// In a place: the call's thread is not stored yet.
const ENTERING: u64 = 1;
/// In a place: a thread looks whether the call was left.
const CHECKED: u64 = 2;
const STATES: u64 = ENTERING | CHECKED;

/// The calls of one direction. All zeroes: there is none.
#[derive(Debug, Default)]
pub struct Calls {
    /// Each is 0 or the address of a mark, with the place's state in the lowest bits.
    places: [AtomicU64; PLACES],
    /// The thread of each call, 0 if it is unknown.
    threads: [AtomicU32; PLACES],
    /// Calls without a place.
    unnamed: AtomicU32,
    /// 1 while a thread checks places.
    has_checker: AtomicU32,
}

/// A call, by its mark's address and its thread. The address is a multiple of 4 and not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The address of the call's mark.
    pub mark: u64,
    /// The number of the call's thread; 0 if it is unknown.
    pub thread: u32,
}

/// Where a call is counted: in a place, or without a name.
#[derive(Clone, Copy, Debug)]
pub struct Seat<'a>(Option<&'a AtomicU64>);

impl Calls {
    /// No call.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Calls {
        Calls {
            places: [const { AtomicU64::new(0) }; PLACES],
            threads: [const { AtomicU32::new(0) }; PLACES],
            unnamed: AtomicU32::new(0),
            has_checker: AtomicU32::new(0),
        }
    }

    /// Counts a call that begins. Its mark is already written, and stays until [`Calls::leave`].
    #[inline]
    pub fn enter(&self, name: Name) -> Seat<'_> {
        // Nearly always there is no other call.
        match self.take(0, 0, name) {
            true => Seat(Some(&self.places[0])),
            false => self.enter_beside(name),
        }
    }

    /// Takes place `n` if it contains `before`.
    #[inline]
    fn take(&self, n: usize, before: u64, name: Name) -> bool {
        let place = &self.places[n];
        let entering = name.mark | ENTERING;
        let taken = place.compare_exchange(before, entering, REGION_SEQ_CST, Ordering::Relaxed);
        if taken.is_ok() {
            // Relaxed: published by the next store.
            self.threads[n].store(name.thread, Ordering::Relaxed);
            // Release pairs with the compare-exchange in `check`.
            place.store(name.mark, Ordering::Release);
        }
        taken.is_ok()
    }

    #[cold]
    fn enter_beside(&self, name: Name) -> Seat<'_> {
        for (n, place) in self.places.iter().enumerate() {
            let before = place.load(Ordering::Relaxed);
            // A call with this mark was left, because the memory is the new call's now. A place
            // that is being checked stays the checker's: it may have looked before the new mark.
            let is_free = before == 0 || before & !ENTERING == name.mark;
            if is_free && self.take(n, before, name) {
                return Seat(Some(place));
            }
        }
        self.unnamed.fetch_add(1, REGION_SEQ_CST);
        Seat(None)
    }

    /// Counts a call out, by its mark's address. A child that was forked in a signal handler
    /// returns from a call that its parent began. The child does not count that call, and its own
    /// calls stay counted.
    #[inline]
    pub fn leave(&self, Seat(place): Seat<'_>, mark: u64) {
        let is_out = place.is_some_and(|place| {
            let out = place.compare_exchange(mark, 0, REGION_SEQ_CST, Ordering::Relaxed);
            out.is_ok()
        });
        if !is_out {
            self.leave_beside(place, mark);
        }
    }

    /// Counts out a call without a place, or one whose place is being checked.
    #[cold]
    fn leave_beside(&self, place: Option<&AtomicU64>, mark: u64) {
        let Some(place) = place else {
            let less = |count: u32| count.checked_sub(1);
            let _ = (self.unnamed).fetch_update(REGION_SEQ_CST, Ordering::Relaxed, less);
            return;
        };
        let out = |word: u64| (word & !STATES == mark).then_some(0);
        let _ = place.fetch_update(REGION_SEQ_CST, Ordering::Relaxed, out);
    }

    /// True when no call is counted. Some may have been left.
    #[inline]
    pub fn are_none(&self) -> bool {
        self.unnamed.load(REGION_SEQ_CST) == 0
            && (self.places.iter()).all(|place| place.load(REGION_SEQ_CST) == 0)
    }

    /// Counts out the calls that were left. True when no call is counted any more. `is_gone` tells
    /// for a name whether its mark or its thread is surely gone.
    pub fn are_over(&self, is_gone: impl Fn(Name) -> bool) -> bool {
        if self.are_none() {
            return true;
        }
        // Two checkers of a place could take each other's state for their own. Acquire pairs with
        // the Release store of `has_checker` below.
        let is_checker = self
            .has_checker
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if !is_checker {
            return false;
        }
        for n in 0..PLACES {
            self.check(n, &is_gone);
        }
        // Release pairs with the Acquire of `has_checker` above.
        self.has_checker.store(0, Ordering::Release);
        self.are_none()
    }

    fn check(&self, n: usize, is_gone: &impl Fn(Name) -> bool) {
        let place = &self.places[n];
        let mark = place.load(Ordering::Relaxed);
        // Acquire pairs with the Release store in `enter`: the thread is this call's, and its mark
        // was written.
        let is_named = mark != 0
            && mark & STATES == 0
            && place
                .compare_exchange(mark, mark | CHECKED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if !is_named {
            return;
        }
        let thread = self.threads[n].load(Ordering::Relaxed);
        let after = match is_gone(Name { mark, thread }) {
            true => 0,
            false => mark,
        };
        // It fails when the call has ended meanwhile. Release pairs with the compare-exchange in
        // `enter`, Acquire with the store there: the look at the call comes before the next call.
        let _ = place.compare_exchange(mark | CHECKED, after, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// After fork: the threads that were inside are the parent's.
    pub fn forget_threads(&self) {
        // The loads avoid most stores, so most of the child's pages need no copy.
        for place in &self.places {
            if place.load(Ordering::Relaxed) != 0 {
                place.store(0, Ordering::Relaxed);
            }
        }
        for word in [&self.unnamed, &self.has_checker] {
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FIRST: Name = Name {
        mark: 0x1000,
        thread: 7,
    };
    const SECOND: Name = Name {
        mark: 0x2000,
        thread: 8,
    };

    #[test]
    fn call_that_was_left_is_counted_out_and_the_others_stay() {
        let calls = Calls::default();
        calls.enter(FIRST);
        let second = calls.enter(SECOND);
        assert!(!calls.are_over(|name| name == FIRST));
        assert!(!calls.are_over(|_| false), "the second one runs");
        calls.leave(second, SECOND.mark);
        assert!(calls.are_over(|_| false));
    }

    /// A program may jump out of its calls for ever, without a pause in which they are checked.
    #[test]
    fn later_call_with_the_mark_of_one_that_was_left_takes_its_place() {
        let calls = Calls::default();
        for _ in 0..10 * PLACES {
            calls.enter(FIRST);
        }
        let last = calls.enter(FIRST);
        calls.leave(last, FIRST.mark);
        assert!(calls.are_none());
    }

    #[test]
    fn calls_beyond_the_places_are_counted() {
        let calls = Calls::default();
        let names = (1..=2 * PLACES as u64).map(|n| Name {
            mark: n << 4,
            thread: 0,
        });
        let seats: Vec<_> = names.map(|name| (calls.enter(name), name)).collect();
        assert!(!calls.are_over(|_| true), "nothing is known of the others");
        for (seat, name) in seats {
            calls.leave(seat, name.mark);
        }
        assert!(calls.are_none());
    }

    #[test]
    fn call_that_ends_while_it_is_checked_leaves_its_place() {
        let calls = Calls::default();
        let seat = calls.enter(FIRST);
        let ends = |_| {
            calls.leave(seat, FIRST.mark);
            // The next call has the same mark.
            calls.enter(FIRST);
            true
        };
        assert!(!calls.are_over(ends), "the next call runs");
        assert!(!calls.are_over(|_| false));
    }

    /// A child that was forked in a signal handler, inside a call of its parent.
    #[test]
    fn child_that_returns_from_its_parents_call_leaves_its_own_calls_counted() {
        let calls = Calls::default();
        let parents = calls.enter(FIRST);
        calls.forget_threads();
        let own = calls.enter(SECOND);
        calls.leave(parents, FIRST.mark);
        assert!(!calls.are_none());
        calls.leave(own, SECOND.mark);
        assert!(calls.are_none());
    }
}
