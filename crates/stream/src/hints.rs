//! The receive hints of a connection: flags of its holder, and an errno that was not reported to
//! the program yet.
//!
//! ```text
//!   31 ─────────── 16 15 ─────────── 0
//!   errno, or 0       flags
//! ```
//!
//! Threads of both directions may change the word concurrently, each with one atomic operation.

use toehold_channel::sync::{AtomicU32, Ordering};

/// Position of the errno's lowest bit.
const ERRNO_SHIFT: u32 = 16;

/// The error among `hints`, if there is one.
#[inline]
pub fn error_in(hints: u32) -> Option<i32> {
    match hints >> ERRNO_SHIFT {
        0 => None,
        error => Some(error as i32),
    }
}

/// Adds `error` and `flags`, unless there is an error already: the kernel would report the first
/// error.
pub fn keep_error(hints: &AtomicU32, flags: u32, error: i32) {
    let kept = flags | (error as u32) << ERRNO_SHIFT;
    let add = |hints| error_in(hints).is_none().then_some(hints | kept);
    // Relaxed: no other memory depends on it.
    let _ = hints.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
}

/// Takes the error out. All flags stay, including those that another thread sets at this moment.
pub fn take_error(hints: &AtomicU32) -> Option<i32> {
    error_in(hints.load(Ordering::Relaxed))?;
    error_in(hints.fetch_and((1 << ERRNO_SHIFT) - 1, Ordering::Relaxed))
}
