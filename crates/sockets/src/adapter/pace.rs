//! How much of the program's time goes into requests of the adapter, and which thread gives it: one
//! at a time, in slices.
//!
//! In a round that is urgent, a thread with other work gives [`URGENT_SHARE`] of its time. In any
//! other round it gives [`PATIENT_SHARE`], and time that has passed since the next slice might have
//! begun is credit for further slices.
//!
//! Threads that worked at the same time would wait for each other: to give a region back, a thread
//! needs the adapter's lock. Each thread would also begin its slice before another thread had
//! recorded its own, and many threads would give many times their share.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::lock::mutex::{Mutex, MutexHeld};

/// A slice takes no longer, except for the connection that is looked at when it is over.
pub(super) const SLICE_NS: u64 = 200_000;
/// Rounds that are not urgent begin at most this often.
const ROUND_INTERVAL_NS: u64 = 20_000_000;
/// Rounds that are not urgent take at most `1 / PATIENT_SHARE` of the time: a peer that sleeps may
/// leave thousands of connections unfinished for hours.
const PATIENT_SHARE: u64 = 32;
/// The longest time that gives credit: a thread that slept for longer works on unfinished
/// connections for at most `CREDIT_NS / PATIENT_SHARE` before it sleeps again.
const CREDIT_NS: u64 = 1_000_000_000;
/// A slice that seems to have lasted longer was interrupted: the process was stopped, for example.
const LASTED_NS_MAX: u64 = 50 * SLICE_NS;
/// Urgent rounds take at most `1 / URGENT_SHARE` of the time of a thread that has other work.
const URGENT_SHARE: u64 = 2;

/// The pace of this process.
pub(super) struct Pace {
    /// Held by the thread whose turn it is.
    turn: Mutex,
    /// When the next slice may begin. Changed by the holder of `turn` only. Relaxed: others read it
    /// to save a try.
    next_ns: AtomicU64,
}

/// A thread's turn: no other thread works meanwhile.
pub(super) struct Turn<'a> {
    pace: &'a Pace,
    _held: MutexHeld<'a>,
}

/// A slice that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    /// From then on it might have begun.
    due_ns: u64,
    begun_ns: u64,
}

impl Pace {
    /// A slice may begin at once.
    pub(super) const fn new() -> Pace {
        Pace {
            turn: Mutex::new(),
            next_ns: AtomicU64::new(0),
        }
    }

    /// True when it is not too early at `now_ns` for the next slice: a hint.
    #[inline]
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns.load(Ordering::Relaxed)
    }

    /// This thread's turn, unless another thread has its turn now.
    pub(super) fn try_take(&self) -> Option<Turn<'_>> {
        let held = self.turn.try_lock()?;
        Some(Turn {
            pace: self,
            _held: held,
        })
    }

    /// This thread's turn. Waits for the slice of another thread.
    pub(super) fn take(&self) -> Turn<'_> {
        Turn {
            pace: self,
            _held: self.turn.lock(),
        }
    }

    /// After fork: the thread that has its turn may be one of the parent's.
    pub(super) fn forked(&self) {
        self.turn.reset();
    }
}

impl Turn<'_> {
    /// The next slice may begin at `now_ns`, whatever the last one was.
    pub(super) fn is_due_at(&self, now_ns: u64) {
        self.pace.next_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Begins a slice. `None`: it is too early for a thread that has other work. A thread that
    /// `has_none` keeps no pause in an urgent round.
    pub(super) fn begin(&self, now_ns: u64, has_none: bool) -> Option<Slice> {
        let due_ns = self.pace.next_ns.load(Ordering::Relaxed);
        (now_ns >= due_ns || has_none).then_some(Slice {
            due_ns,
            begun_ns: now_ns,
        })
    }

    /// Ends a slice: chooses when the next one may begin.
    pub(super) fn end(&self, slice: Slice, ended_ns: u64, is_urgent: bool, is_round_over: bool) {
        let next_ns = slice.next_ns(ended_ns, is_urgent, is_round_over);
        self.pace.next_ns.store(next_ns, Ordering::Relaxed);
    }
}

impl Slice {
    /// True when it has lasted long enough.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.begun_ns) >= SLICE_NS
    }

    /// When the next slice may begin.
    fn next_ns(self, ended_ns: u64, is_urgent: bool, is_round_over: bool) -> u64 {
        let lasted_ns = ended_ns.saturating_sub(self.begun_ns).min(LASTED_NS_MAX);
        let patient_pause_ns = lasted_ns * (PATIENT_SHARE - 1);
        match (is_urgent, is_round_over) {
            (true, _) => ended_ns + lasted_ns * (URGENT_SHARE - 1),
            (false, true) => ended_ns + ROUND_INTERVAL_NS.max(patient_pause_ns),
            (false, false) => {
                let waited_ns = self.begun_ns.saturating_sub(self.due_ns);
                let credit_ns = waited_ns.min(CREDIT_NS);
                (ended_ns + patient_pause_ns).saturating_sub(credit_ns)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_other_work_gets_its_share_of_the_time() {
        let next = |lasted, is_urgent, is_round_over| {
            let slice = Slice {
                due_ns: 7,
                begun_ns: 7,
            };
            slice.next_ns(7 + lasted, is_urgent, is_round_over) - 7
        };
        assert_eq!(next(SLICE_NS, true, false), URGENT_SHARE * SLICE_NS);
        assert_eq!(next(SLICE_NS, true, true), URGENT_SHARE * SLICE_NS);
        assert_eq!(next(SLICE_NS, false, false), PATIENT_SHARE * SLICE_NS);
        let long = 10 * SLICE_NS;
        assert_eq!(next(0, false, true), ROUND_INTERVAL_NS);
        assert_eq!(next(long, false, true), PATIENT_SHARE * long);
        // The process was stopped meanwhile.
        let stopped = 10_000_000_000;
        let pause = (PATIENT_SHARE - 1) * LASTED_NS_MAX;
        assert_eq!(next(stopped, false, false), stopped + pause);
        // The clock went backwards.
        let slice = Slice {
            due_ns: 0,
            begun_ns: 7,
        };
        assert_eq!(slice.next_ns(3, false, true), 3 + ROUND_INTERVAL_NS);
    }

    #[test]
    fn a_thread_that_has_slept_has_credit_for_many_slices() {
        let (mut now, mut due_ns, mut slices) = (5_000_000_000, 0, 0);
        while due_ns <= now {
            let slice = Slice {
                due_ns,
                begun_ns: now,
            };
            now += SLICE_NS;
            due_ns = slice.next_ns(now, false, false);
            slices += 1;
        }
        let expected = CREDIT_NS / (PATIENT_SHARE * SLICE_NS);
        assert!((expected..expected + 9).contains(&slices), "{slices}");
    }

    /// With credit for many slices and a slice that is still under way, a second thread would begin
    /// one, too.
    #[test]
    fn slices_of_two_threads_come_one_after_the_other() {
        let pace = Pace::new();
        let turn = pace.try_take().expect("nobody's");
        let slice = turn.begin(7, false).expect("due");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| pace.try_take().is_none());
            assert!(other.join().expect("no panic"));
        });
        turn.end(slice, 7 + SLICE_NS, true, false);
        drop(turn);
        let next = 7 + URGENT_SHARE * SLICE_NS;
        assert!(!pace.is_due(next - 1) && pace.is_due(next));
        let turn = pace.try_take().expect("nobody's");
        assert!(turn.begin(next - 1, false).is_none(), "it has other work");
        assert!(turn.begin(next - 1, true).is_some());
    }
}
