//! Locks for state that a fork family shares, and for our own.
//!
//! A family lock names its owner: the process in the upper bits, a fingerprint of the thread in the lower. When the
//! owning process is dead the lock is taken over: what it guards (cursors, counts) is always stored whole, last,
//! so a dead owner leaves either the old or the new value.

use core::sync::atomic::Ordering;

use toehold_channel::sync::AtomicU32;

use crate::{state, sys};

/// Bits of the thread's fingerprint in an owner word; process numbers need at most 22.
const THREAD_BITS: u32 = 10;

/// This thread as an owner, never 0.
#[inline]
fn owner_word() -> u32 {
    let thread: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the thread pointer, which the ABI keeps at fs:0.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads the thread pointer.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) thread, options(nostack, nomem, preserves_flags));
    }
    let fingerprint = (thread >> 6) as u32 ^ (thread >> 16) as u32;
    state::pid() << THREAD_BITS | fingerprint & ((1 << THREAD_BITS) - 1)
}

/// A held family lock; released on drop.
pub(crate) struct Held<'a>(&'a AtomicU32);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the Acquire in `lock`.
        self.0.store(0, Ordering::Release);
    }
}

/// Takes `word` if nobody has it.
#[inline]
pub(crate) fn try_lock(word: &AtomicU32) -> Option<Held<'_>> {
    word.compare_exchange(0, owner_word(), Ordering::Acquire, Ordering::Relaxed)
        .ok()
        .map(|_| Held(word))
}

/// Takes `word`; `None` when this very thread seems to hold it already (a signal handler interrupted the holder).
#[inline]
pub(crate) fn lock(word: &AtomicU32) -> Option<Held<'_>> {
    match try_lock(word) {
        Some(held) => Some(held),
        None => lock_contended(word),
    }
}

#[cold]
fn lock_contended(word: &AtomicU32) -> Option<Held<'_>> {
    /// Turns of pause before yielding: the holder is copying at most a ring's worth.
    const SPINS: u32 = 200;
    /// After this long with our own fingerprint on it, the holder is us.
    const REENTRY_NS: u64 = 20_000_000;
    let me = owner_word();
    let mut since = 0u64;
    let mut turn = 0u32;
    loop {
        let owner = word.load(Ordering::Relaxed);
        if owner == 0 {
            if let Some(held) = try_lock(word) {
                return Some(held);
            }
            continue;
        }
        turn = turn.wrapping_add(1);
        if turn < SPINS {
            core::hint::spin_loop();
            continue;
        }
        sys::yield_now();
        if turn.is_multiple_of(64) {
            if owner == me {
                let now = sys::now_ns();
                if since == 0 {
                    since = now;
                } else if now - since > REENTRY_NS {
                    return None;
                }
            }
            let pid = owner >> THREAD_BITS;
            if pid != state::pid() && !sys::process_exists(pid) {
                let taken = word.compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    return Some(Held(word));
                }
            }
        }
    }
}

/// A lock private to this process, for tables that are never held across a sleep.
#[derive(Default)]
pub(crate) struct Private(AtomicU32);

/// A held [`Private`] lock.
pub(crate) struct PrivateHeld<'a>(&'a Private);

impl Private {
    /// An open lock. All zeroes is one, too.
    pub(crate) const fn new() -> Private {
        Private(AtomicU32::new(0))
    }

    /// Takes it.
    #[inline]
    pub(crate) fn lock(&self) -> PrivateHeld<'_> {
        let mut turn = 0u32;
        while self
            .0
            .compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            turn += 1;
            if turn < 200 {
                core::hint::spin_loop()
            } else {
                sys::yield_now()
            }
        }
        PrivateHeld(self)
    }

    /// Takes it if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<PrivateHeld<'_>> {
        self.0
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| PrivateHeld(self))
    }

    /// True when somebody has it at this moment.
    pub(crate) fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Opens it whoever had it: after fork the child's only thread is not the holder.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Drop for PrivateHeld<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}
