//! Cancellation points (pthreads(7)) of a program whose libc is loaded beside the library.
//!
//! libc ends a thread that is cancelled (`pthread_cancel(3)`) within its own functions. A call that
//! finds what it wants in a ring enters none of them, so a thread that makes only such calls would
//! never end. From the first `pthread_cancel` on, each call that is a cancellation point asks libc
//! first, before it changes anything and holds any lock. A call that waits does so in a function of
//! libc's, which is a cancellation point itself.
//!
//! A thread that may be cancelled at any moment (`PTHREAD_CANCEL_ASYNCHRONOUS`) must not end in the
//! middle of the library, with a lock held. From the first such thread on, each call makes its
//! thread one that is cancelled at cancellation points, for as long as the call lasts.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, Ordering};

use toehold_sockets::system::real;

/// The program's calls so far, of those that matter here: [`CANCELS`], [`AT_ANY_MOMENT`].
static DONE: AtomicU8 = AtomicU8::new(0);
/// In [`DONE`]: it has cancelled a thread.
const CANCELS: u8 = 1;
/// In [`DONE`]: it has asked for a thread that is cancelled at any moment.
const AT_ANY_MOMENT: u8 = 2;

/// True when a call that is a cancellation point has to [`ask`] first.
#[inline(always)]
pub(crate) fn is_asked() -> bool {
    // Relaxed: one that sees it late waits in libc's functions, or is followed by another call. A
    // thread has set itself what concerns its own end.
    DONE.load(Ordering::Relaxed) != 0
}

/// True when a call that is no cancellation point has to [`defer`] its thread's end.
#[inline(always)]
pub(crate) fn is_deferred() -> bool {
    // Relaxed: as above.
    DONE.load(Ordering::Relaxed) & AT_ANY_MOMENT != 0
}

/// A call that is a cancellation point begins. It ends when the guard is dropped.
#[cold]
pub(crate) fn ask() -> Option<Deferred> {
    if DONE.load(Ordering::Relaxed) & CANCELS != 0 {
        // SAFETY: the library holds no lock, and its frames have nothing to be dropped.
        unsafe { real::pthread_testcancel() };
    }
    defer()
}

/// As [`ask`], of a call that is no cancellation point.
#[cold]
pub(crate) fn defer() -> Option<Deferred> {
    let mut before = DEFERRED;
    if is_deferred() {
        // SAFETY: one number is written.
        unsafe { real::pthread_setcanceltype(DEFERRED, &raw mut before) };
    }
    (before == ASYNCHRONOUS).then(|| Deferred(()))
}

/// While it lives, its thread is cancelled at cancellation points, and would be at any moment. A
/// thread that is cancelled in its call never drops it, and has no use for its type any more. One
/// that leaves its call by `longjmp` stays so.
pub(crate) struct Deferred(());

impl Drop for Deferred {
    /// A thread that was cancelled meanwhile ends here.
    #[cold]
    fn drop(&mut self) {
        let mut before = DEFERRED;
        // SAFETY: one number is written. The library holds no lock.
        unsafe { real::pthread_setcanceltype(ASYNCHRONOUS, &raw mut before) };
    }
}

/// `PTHREAD_CANCEL_DEFERRED` and `PTHREAD_CANCEL_ASYNCHRONOUS`.
const DEFERRED: c_int = 0;
const ASYNCHRONOUS: c_int = 1;

/// `pthread_setcanceltype(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int {
    if kind == ASYNCHRONOUS {
        DONE.fetch_or(AT_ANY_MOMENT, Ordering::Relaxed);
    }
    // SAFETY: passed on with the caller's promise.
    unsafe { real::pthread_setcanceltype(kind, before) }
}

/// `pthread_cancel(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    DONE.fetch_or(CANCELS, Ordering::Relaxed);
    // SAFETY: passed on with the caller's promise.
    unsafe { real::pthread_cancel(thread) }
}
