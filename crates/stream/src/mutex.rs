//! The word of a lock whose waiters sleep until it is opened: a futex, without its system calls.
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
//!
//! One is woken for all that sleep, and wakes the next when it opens the lock itself. So a thread
//! that was woken has to look again, whatever happens to it: the shell lets no signal handler in
//! before that.

use toehold_channel::sync::{AtomicU32, Ordering};

const OPEN: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep.
pub const AWAITED: u32 = 2;

/// The word. All zeroes is an open lock.
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

    /// Takes it if nobody has it.
    #[inline]
    pub fn try_take(&self) -> bool {
        // Acquire pairs with the Release in `MutexWord::release`.
        self.0
            .compare_exchange(OPEN, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Whether somebody has it. Relaxed: for those who only ask when to try.
    #[inline]
    pub fn looks_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OPEN
    }

    /// Takes it, or has its holder wake one: the caller sleeps while [`MutexWord::word`] is
    /// [`AWAITED`], then asks again.
    pub fn take_or_await(&self) -> bool {
        // Acquire pairs with the Release in `MutexWord::release`.
        self.0.swap(AWAITED, Ordering::Acquire) == OPEN
    }

    /// The holder opens it: true when it has to wake one of those that sleep.
    #[inline]
    #[must_use = "somebody may sleep"]
    pub fn release(&self) -> bool {
        // Release pairs with the Acquire in `MutexWord::try_take` and `MutexWord::take_or_await`.
        self.0.swap(OPEN, Ordering::Release) == AWAITED
    }

    /// Opens it whoever had it: after fork the child's only thread is not the holder, and nobody
    /// sleeps.
    pub fn reset(&self) {
        // Relaxed: there is no other thread.
        self.0.store(OPEN, Ordering::Relaxed);
    }

    /// The word that the kernel looks at.
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }
}
