//! The atomics of this crate, from one place: loom's when the model checker runs, otherwise the
//! platform's. Also a word to sleep on, which neither has.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(not(loom))]
pub(crate) use core::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

/// The platform's atomics, also under the model checker: for memory that loom does not know.
pub(crate) mod os {
    pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
}

/// `core::cell::UnsafeCell` with loom's interface, which sees every access.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// A word that one thread can sleep on until another changes it and wakes it: a futex.
pub(crate) struct Gate {
    /// The word that the sleeper looks at. Wakers change it first, then call [`wake`](Self::wake).
    pub(crate) word: AtomicU32,
    #[cfg(loom)]
    model: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            word: AtomicU32::new(0),
            #[cfg(loom)]
            model: (loom::sync::Mutex::new(()), loom::sync::Condvar::new()),
        }
    }

    /// Sleeps unless the word is no longer `expected`; returns for any reason or none.
    #[cfg(not(loom))]
    pub(crate) fn sleep(&self, expected: u32, timeout_ns: u64) {
        let timeout = libc::timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
        };
        let limit: *const libc::timespec = if timeout_ns == u64::MAX {
            core::ptr::null()
        } else {
            &timeout
        };
        // SAFETY: the word outlives the call, the time is on our stack or null.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                expected,
                limit,
            )
        };
    }

    /// Wakes the sleeper, if there is one.
    #[cfg(not(loom))]
    pub(crate) fn wake(&self) {
        // SAFETY: the word outlives the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                1,
            )
        };
    }

    /// Models the kernel's futex: for the waker, the look at the word and the falling asleep are
    /// one step.
    #[cfg(loom)]
    pub(crate) fn sleep(&self, expected: u32, _timeout_ns: u64) {
        let guard = self.model.0.lock().unwrap();
        // Relaxed: the model's lock orders it, as the kernel's does.
        if self.word.load(Ordering::Relaxed) == expected {
            drop(self.model.1.wait(guard).unwrap());
        }
    }

    #[cfg(loom)]
    pub(crate) fn wake(&self) {
        drop(self.model.0.lock().unwrap());
        self.model.1.notify_one();
    }
}

/// The processor on which this thread runs, or ran a moment ago.
pub(crate) fn processor() -> u32 {
    #[cfg(loom)]
    return 0;
    // SAFETY: no pointers. It fails only where there is no such call; no processor has that number
    // then.
    #[cfg(not(loom))]
    unsafe {
        libc::sched_getcpu() as u32
    }
}

/// The cheap half of a fence, for the side that runs often. It only stops reordering by the
/// compiler. The side that runs rarely calls [`fence_heavy`], which makes every processor of this
/// process pass a full fence.
///
/// A store before `fence_light` and a load after it, against a store before `fence_heavy` and a
/// load after it: at least one of the two loads sees the other side's store. As with two full
/// fences.
#[inline(always)]
pub(crate) fn fence_light() {
    #[cfg(not(loom))]
    if membarrier::is_ready() {
        // Pairs with the barrier in `membarrier::all_threads`.
        return core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
    // Pairs with the fence in `fence_heavy`.
    fence(Ordering::SeqCst);
}

/// The other half of [`fence_light`]. False when the kernel no longer provides the barrier, for
/// example because of a system call filter that was installed since. The caller may then miss the
/// other side's store, and must not rely on seeing it.
#[must_use]
pub(crate) fn fence_heavy() -> bool {
    #[cfg(not(loom))]
    if membarrier::is_ready() {
        return membarrier::all_threads();
    }
    // Pairs with the fence in `fence_light`.
    fence(Ordering::SeqCst);
    true
}

/// `membarrier(2)`: one thread's call makes every processor that runs this process pass a full
/// fence.
#[cfg(not(loom))]
pub(crate) mod membarrier {
    use core::sync::atomic::{AtomicBool, Ordering, fence};

    const REGISTER: libc::c_int = 1 << 4;
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

    /// Set once, before the first queue exists, and never cleared. So both sides of a queue see the
    /// same value, and Relaxed is enough.
    static READY: AtomicBool = AtomicBool::new(false);

    /// Registers for the kernel's barrier. A child inherits the registration by fork; no privilege
    /// is needed.
    pub(crate) fn prepare() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            // SAFETY: a system call without pointers.
            let answer = unsafe { libc::syscall(libc::SYS_membarrier, REGISTER, 0, 0) };
            READY.store(answer == 0, Ordering::Relaxed);
        });
    }

    #[inline(always)]
    pub(crate) fn is_ready() -> bool {
        READY.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn all_threads() -> bool {
        // With the kernel's barrier it pairs with the compiler's fence in `fence_light`.
        fence(Ordering::SeqCst);
        // SAFETY: a system call without pointers.
        unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) == 0 }
    }
}
