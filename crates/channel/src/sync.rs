//! Atomics and fences: the machine's own, or loom's when the protocols are model-checked.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

/// One step of a spin loop.
#[inline]
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}

/// Models processes that are killed between two of their steps.
#[cfg(loom)]
pub mod kill {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    loom::thread_local! {
        static STEPS_LEFT: Cell<Option<u32>> = Cell::new(None);
    }

    struct Killed;

    /// Called before each store in shared memory and before the return of each call into the
    /// model's kernel. Does not return when the thread is to be killed at this step.
    pub fn step() {
        STEPS_LEFT.with(|left| match left.get() {
            None => {}
            Some(0) => {
                left.set(None);
                resume_unwind(Box::new(Killed));
            }
            Some(steps) => left.set(Some(steps - 1)),
        });
    }

    /// Runs `work` as a process that is killed after `steps` steps; false when it was killed.
    pub fn outlives(steps: u32, work: impl FnOnce()) -> bool {
        STEPS_LEFT.with(|left| left.set(Some(steps)));
        let done = catch_unwind(AssertUnwindSafe(work));
        STEPS_LEFT.with(|left| left.set(None));
        match done {
            Ok(()) => true,
            Err(cause) if cause.is::<Killed>() => false,
            Err(cause) => resume_unwind(cause),
        }
    }
}
