//! This process: whether the library serves it, its number, and how it waits.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use toehold_channel::table::WaitMode;

use crate::sys;

/// Set once, when the library is started for this process.
pub(crate) static ENABLED: AtomicBool = AtomicBool::new(false);
pub(crate) static PID: AtomicU32 = AtomicU32::new(0);
pub(crate) static WAIT: AtomicU32 = AtomicU32::new(0);
/// How often this process, and those that it descends from, have forked.
pub(crate) static FORKS: AtomicU32 = AtomicU32::new(0);

/// True once the library serves this process.
#[inline]
pub(crate) fn is_started() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// This process as it was started or forked. In a `vfork` child it is the parent.
#[inline]
pub(crate) fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// Changes with each child that inherits what we have mapped.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// How to wait.
#[inline]
pub(crate) fn wait_mode() -> WaitMode {
    WaitMode::from_word(WAIT.load(Ordering::Relaxed)).unwrap_or(WaitMode::Adaptive)
}

/// True in a `vfork` child (or a raw `clone` that shares memory): what it closes is its own, what
/// we know is its parent's.
#[inline]
pub(crate) fn borrowed_memory() -> bool {
    sys::getpid() != pid()
}
