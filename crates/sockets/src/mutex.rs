//! A lock of this process alone that is held across system calls: who waits for it sleeps.
//!
//! A holder that makes system calls may lose its processor with the lock held, and then its threads
//! come to wait for it one after the other. `sched_yield` is no way to wait there: a thread that
//! yields gives up the rest of its time slice (Linux 6.18, kernel/sched/fair.c,
//! `yield_task_fair`), so it runs again after all others have used a whole one each. So who waits
//! sleeps on a futex. The locks of [`crate::lock`] are opened by a store, which is cheaper, and
//! held for some instructions or a copy.
//!
//! ```text
//!   waits                                   opens
//!   AWAITED by an exchange; was it OPEN?    OPEN by an exchange; was it AWAITED?
//!   no: sleeps while it is AWAITED          yes: wakes one
//! ```
//!
//! No wake-up is lost: the kernel looks at the word and goes to sleep in one step, and a word that
//! was AWAITED when it was opened wakes. Whoever takes it after a sleep leaves AWAITED there,
//! because others may sleep; that costs one call in vain at most.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::deferral::{self, Section};
use crate::sys;

const OPEN: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep.
const AWAITED: u32 = 2;
/// Looks before a sleep: most holders are about to let go.
const SPINS: u32 = 200;

/// The lock. All zeroes is an open one.
pub(crate) struct Mutex(AtomicU32);

/// A held [`Mutex`].
pub(crate) struct MutexHeld<'a> {
    lock: &'a Mutex,
    /// After the lock is open: signals that came meanwhile are delivered when this is dropped.
    _section: Section,
}

impl Mutex {
    /// An open lock.
    pub(crate) const fn new() -> Mutex {
        Mutex(AtomicU32::new(OPEN))
    }

    /// Takes it.
    #[inline]
    pub(crate) fn lock(&self) -> MutexHeld<'_> {
        match self.try_lock() {
            Some(held) => held,
            None => self.lock_contended(),
        }
    }

    /// Takes it if nobody has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexHeld<'_>> {
        let section = deferral::enter();
        // Acquire pairs with the Release in `MutexHeld::drop`.
        self.0
            .compare_exchange(OPEN, HELD, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| MutexHeld {
                lock: self,
                _section: section,
            })
    }

    #[cold]
    fn lock_contended(&self) -> MutexHeld<'_> {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.0.load(Ordering::Relaxed) == OPEN {
                if let Some(held) = self.try_lock() {
                    return held;
                }
            }
        }
        loop {
            let section = deferral::enter();
            // Acquire pairs with the Release in `MutexHeld::drop`.
            if self.0.swap(AWAITED, Ordering::Acquire) == OPEN {
                return MutexHeld {
                    lock: self,
                    _section: section,
                };
            }
            // A handler of a signal may run while this thread sleeps.
            drop(section);
            sys::sleep_while(&self.0, AWAITED);
        }
    }

    /// Opens it whoever had it: after fork the child's only thread is not the holder.
    pub(crate) fn reset(&self) {
        // Relaxed: there is no other thread.
        self.0.store(OPEN, Ordering::Relaxed);
    }
}

impl Drop for MutexHeld<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the Acquire in `Mutex::try_lock` and `Mutex::lock_contended`.
        if self.lock.0.swap(OPEN, Ordering::Release) == AWAITED {
            sys::wake_one(&self.lock.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    /// The system call in which a thread of this process sleeps, from proc(5).
    fn sleeps_in(thread: i32) -> Option<i64> {
        let path = format!("/proc/self/task/{thread}/syscall");
        let text = std::fs::read_to_string(path).expect("a thread of ours");
        text.split(' ').next()?.parse().ok()
    }

    #[test]
    fn who_waits_sleeps_until_it_is_opened() {
        let lock = Mutex::new();
        let held = lock.lock();
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..2 {
                let (lock, tell) = (&lock, tell.clone());
                scope.spawn(move || {
                    // SAFETY: no arguments.
                    tell.send(unsafe { libc::gettid() })
                        .expect("the test waits");
                    drop(lock.lock());
                });
            }
            for waiter in told.iter().take(2) {
                while sleeps_in(waiter) != Some(libc::SYS_futex) {
                    thread::yield_now();
                }
            }
            // One wakes the other.
            drop(held);
        });
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn one_has_it_at_a_time() {
        const THREADS: usize = 4;
        const TIMES: usize = 20_000;
        let lock = Mutex::new();
        let count = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..TIMES {
                        let _held = lock.lock();
                        // Two steps, between which others would be lost.
                        let before = count.load(Ordering::Relaxed);
                        core::hint::spin_loop();
                        count.store(before + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.into_inner() as usize, THREADS * TIMES);
    }

    #[test]
    fn a_child_opens_it() {
        let lock = Mutex::new();
        core::mem::forget(lock.lock());
        assert!(lock.try_lock().is_none());
        lock.reset();
        assert!(lock.try_lock().is_some());
    }
}
