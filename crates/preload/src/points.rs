//! Cancellation points (pthreads(7)) of a program whose libc is loaded beside the library.
//!
//! libc ends a thread that is cancelled (`pthread_cancel(3)`) within its own functions. A call that
//! finds what it wants in a ring enters none of them, so a thread that makes only such calls would
//! never end. From the first `pthread_cancel` on, each call that is a cancellation point asks libc
//! first, before it changes anything and holds any lock. A call that waits does so in a function of
//! libc's, which is a cancellation point itself.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use toehold_sockets::real;

/// Set by the first `pthread_cancel`.
static ARE_ASKED: AtomicBool = AtomicBool::new(false);

/// A call that is a cancellation point begins.
#[inline(always)]
pub(crate) fn begin() {
    // Relaxed: one that sees it late waits in libc's functions, or is followed by another call.
    if ARE_ASKED.load(Ordering::Relaxed) {
        ask();
    }
}

#[cold]
fn ask() {
    // SAFETY: the library holds no lock, and its frames have nothing to be dropped.
    unsafe { real::pthread_testcancel() };
}

/// `pthread_cancel(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    ARE_ASKED.store(true, Ordering::Relaxed);
    // SAFETY: passed on with the caller's promise.
    unsafe { real::pthread_cancel(thread) }
}
