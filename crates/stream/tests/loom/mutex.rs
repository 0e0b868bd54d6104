//! The lock whose waiters sleep: one thread has the lock at a time and sees the writes of the
//! threads before it. A lost wake-up would be a deadlock.

use std::sync::Arc;

use super::explore;
use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
use toehold_channel::sync::Ordering;
use toehold_stream::mutex::{AWAITED, MutexWord};

/// The lock with the kernel's part, and a counter that the lock guards.
struct Guarded {
    lock: MutexWord,
    /// The threads that sleep on the word. The kernel checks the word and puts the thread to sleep
    /// in one step, as seen by the thread that wakes it.
    sleepers: (Mutex<()>, Condvar),
    count: UnsafeCell<u32>,
}

// SAFETY: the count is accessed by the lock's holder alone, which loom checks.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new() -> Arc<Guarded> {
        Arc::new(Guarded {
            lock: MutexWord::open(),
            sleepers: (Mutex::new(()), Condvar::new()),
            count: UnsafeCell::new(0),
        })
    }

    fn sleep(&self) {
        let asleep = self.sleepers.0.lock().unwrap();
        // Relaxed: the model's lock orders the load, as the kernel's does.
        if self.lock.word().load(Ordering::Relaxed) == AWAITED {
            drop(self.sleepers.1.wait(asleep).unwrap());
        }
    }

    fn wake_one(&self) {
        drop(self.sleepers.0.lock().unwrap());
        self.sleepers.1.notify_one();
    }

    /// Increments the counter under the lock.
    fn count(&self) {
        if !self.lock.try_take() {
            while !self.lock.take_or_await() {
                self.sleep();
            }
        }
        self.count_held();
    }

    fn count_held(&self) {
        // SAFETY: we hold the lock.
        self.count.with_mut(|count| unsafe { *count += 1 });
        if self.lock.release() {
            self.wake_one();
        }
    }
}

/// `threads` threads and this one each increment the counter `times` times.
fn all_count(preemptions: usize, threads: u32, times: u32) {
    explore(preemptions, move || {
        let guarded = Guarded::new();
        let others: Vec<_> = (0..threads)
            .map(|_| {
                let guarded = guarded.clone();
                loom::thread::spawn(move || (0..times).for_each(|_| guarded.count()))
            })
            .collect();
        (0..times).for_each(|_| guarded.count());
        for other in others {
            other.join().unwrap();
        }
        // SAFETY: all others have ended.
        let count = guarded.count.with(|count| unsafe { *count });
        assert_eq!(count, (threads + 1) * times);
        assert!(guarded.lock.looks_open());
    });
}

#[test]
fn two_threads_have_a_lock_in_turns() {
    all_count(3, 1, 2);
}

#[test]
fn of_two_that_sleep_for_a_lock_each_is_woken() {
    all_count(3, 2, 1);
}

#[test]
fn who_only_tries_neither_disturbs_nor_is_disturbed() {
    explore(3, || {
        let guarded = Guarded::new();
        let [trier, waiter] = [guarded.clone(), guarded.clone()];
        let trier = loom::thread::spawn(move || {
            let taken = trier.lock.try_take();
            if taken {
                trier.count_held();
            }
            u32::from(taken)
        });
        let waiter = loom::thread::spawn(move || waiter.count());
        guarded.count();
        waiter.join().unwrap();
        let tried = trier.join().unwrap();
        // SAFETY: all others have ended.
        let count = guarded.count.with(|count| unsafe { *count });
        assert_eq!(count, 2 + tried);
    });
}
