//! The word of a lock whose waiters sleep until it is opened: a futex, without its system calls.
//!
//! ```text
//!   waits                                   opens
//!   swaps AWAITED in; was it OPEN?          swaps OPEN in; was it AWAITED?
//!   no: sleeps while it is AWAITED          yes: wakes one
//! ```
//!
//! No wake-up is lost: the kernel checks the word and puts the thread to sleep in one step, and a
//! holder that finds AWAITED when it opens the lock wakes a thread. A thread that takes the lock
//! after a sleep leaves AWAITED there, because others may sleep. That costs at most one unnecessary
//! system call.
//!
//! Only one of the sleeping threads is woken, and it wakes the next one when it opens the lock. So
//! a thread that was woken must always try again: the shell runs no signal handler before that.

use toehold_channel::sync::{AtomicU32, Ordering};

const OPEN: u32 = 0;
const HELD: u32 = 1;
/// The lock is held, and a thread may sleep.
pub const AWAITED: u32 = 2;

/// The word of a lock. All zeroes means open.
#[derive(Debug)]
pub struct MutexWord(AtomicU32);

impl MutexWord {
    /// An open lock.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn open() -> MutexWord {
        MutexWord(AtomicU32::new(OPEN))
    }

    /// An open lock, of loom's atomics.
    #[cfg(loom)]
    #[must_use]
    pub fn open() -> MutexWord {
        MutexWord(AtomicU32::new(OPEN))
    }

    /// Takes the lock if it is open.
    #[inline]
    pub fn try_take(&self) -> bool {
        // Acquire pairs with the Release in `MutexWord::release`.
        self.0
            .compare_exchange(OPEN, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Whether the lock is held. Relaxed: callers only use this to decide when to try.
    #[inline]
    pub fn looks_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OPEN
    }

    /// Takes the lock, or asks its holder to wake a thread. On false the caller sleeps while
    /// [`MutexWord::word`] is [`AWAITED`], then tries again.
    pub fn take_or_await(&self) -> bool {
        // Acquire pairs with the Release in `MutexWord::release`.
        self.0.swap(AWAITED, Ordering::Acquire) == OPEN
    }

    /// Opens the lock. True when the caller has to wake one sleeping thread.
    #[inline]
    #[must_use = "somebody may sleep"]
    pub fn release(&self) -> bool {
        // Release pairs with the Acquire in `MutexWord::try_take` and `MutexWord::take_or_await`.
        self.0.swap(OPEN, Ordering::Release) == AWAITED
    }

    /// Opens the lock of a forked child, even if another thread held it: no other thread exists
    /// there, so none sleeps.
    pub fn reset(&self) {
        // Relaxed: there is no other thread.
        self.0.store(OPEN, Ordering::Relaxed);
    }

    /// The word for the futex calls.
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }
}
