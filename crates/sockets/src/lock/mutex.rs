//! A lock private to this process that is held across system calls. A thread that waits for it
//! sleeps.
//!
//! A holder that makes system calls may lose its processor while it holds the lock, and then more
//! and more threads wait for it. `sched_yield` is unsuitable there: a thread that yields gives up
//! the rest of its time slice (Linux 6.18, kernel/sched/fair.c, `yield_task_fair`), so it runs
//! again only after all others have used a whole slice each. So waiting threads sleep on a futex.
//! The locks of [`crate::lock`] are opened with a store, which is cheaper, and are held for some
//! instructions or a copy.
//!
//! The word and why no wake-up is lost: [`toehold_stream::mutex`].
//!
//! *Signals.* No handler of the program runs while its thread holds the lock ([`deferral`]) or
//! sleeps for it. A handler that ran between the wake-up and the next try might leave by a jump, or
//! take long: then the wake-up would be lost for the other sleepers. So this is the only section
//! that sleeps. A signal that comes meanwhile is delayed for as long as others hold the lock.
//!
//! *Fork.* A process may fork while another thread holds the lock. The child's only thread is not
//! the holder, and no thread sleeps there, so the child opens the lock ([`Mutex::reset`]).

use toehold_stream::mutex::{AWAITED, MutexWord};

use crate::system::deferral::{self, Section};
use crate::system::sys;

/// Number of tries before a sleep, because most holders release the lock soon.
const SPINS: u32 = 200;

/// The lock. All zeroes is an open one.
pub(crate) struct Mutex(MutexWord);

/// A held [`Mutex`].
pub(crate) struct MutexHeld<'a> {
    lock: &'a Mutex,
    /// After the lock is open: signals that came meanwhile are delivered when this is dropped.
    _section: Section,
}

impl Mutex {
    /// An open lock.
    pub(crate) const fn new() -> Mutex {
        Mutex(MutexWord::open())
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
        self.0.try_take().then(|| MutexHeld {
            lock: self,
            _section: section,
        })
    }

    #[cold]
    fn lock_contended(&self) -> MutexHeld<'_> {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.0.looks_open() {
                if let Some(held) = self.try_lock() {
                    return held;
                }
            }
        }
        // One section for all sleeps until the lock is ours: see *Signals*.
        let section = deferral::enter();
        while !self.0.take_or_await() {
            sys::sleep_while(self.0.word(), AWAITED);
        }
        MutexHeld {
            lock: self,
            _section: section,
        }
    }

    /// Opens the lock, even if another thread held it: after fork the child's only thread is not
    /// the holder.
    pub(crate) fn reset(&self) {
        self.0.reset();
    }
}

impl Drop for MutexHeld<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.0.release() {
            sys::wake_one(self.lock.0.word());
        }
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::c_int;
    use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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
    fn a_waiter_sleeps_until_the_lock_is_opened() {
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
            // Each of the two threads wakes the other.
            drop(held);
        });
        assert!(lock.try_lock().is_some());
    }

    /// Whether a thread of this process blocks a signal, from proc(5).
    fn blocks(thread: i32, signal: c_int) -> bool {
        let path = format!("/proc/self/task/{thread}/status");
        let text = std::fs::read_to_string(path).expect("a thread of ours");
        let mask = text.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.expect("it has a mask") & 1 << (signal - 1) != 0
    }

    #[test]
    fn a_handler_runs_when_its_thread_sleeps_no_more_for_the_lock() {
        static RAN: AtomicBool = AtomicBool::new(false);
        extern "C" fn handler(_: c_int) {
            RAN.store(true, Ordering::Relaxed);
        }
        deferral::stand_before(libc::SIGUSR1, handler, 0);
        let lock = Mutex::new();
        let held = lock.lock();
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: no arguments.
                tell.send(unsafe { libc::gettid() })
                    .expect("the test waits");
                drop(lock.lock());
            });
            let waiter = told.recv().expect("it tells");
            let sleeps = || sleeps_in(waiter) == Some(libc::SYS_futex);
            while !sleeps() {
                thread::yield_now();
            }
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), waiter, libc::SIGUSR1) };
            // The signal has either been handled or been deferred.
            let is_put_off = || blocks(waiter, libc::SIGUSR1) && sleeps();
            while !(RAN.load(Ordering::Relaxed) || is_put_off()) {
                thread::yield_now();
            }
            let ran_in_sleep = RAN.load(Ordering::Relaxed);
            drop(held);
            assert!(!ran_in_sleep);
        });
        assert!(RAN.load(Ordering::Relaxed));
    }

    #[test]
    fn one_thread_holds_the_lock_at_a_time() {
        const THREADS: usize = 4;
        const TIMES: usize = 20_000;
        let lock = Mutex::new();
        let count = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..TIMES {
                        let _held = lock.lock();
                        // Two steps: without the lock, updates of other threads between them would
                        // be lost.
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
    fn a_child_opens_the_lock() {
        let lock = Mutex::new();
        // A child's thread has no section. This thread ends its own, because the next thread may
        // get its place.
        let _held = lock.lock();
        assert!(lock.try_lock().is_none());
        lock.reset();
        assert!(lock.try_lock().is_some());
    }
}
