//! Cancellation points (pthreads(7)) of a program whose libc is loaded beside the library.
//!
//! libc ends a cancelled thread (`pthread_cancel(3)`) inside its own functions. A call that is
//! served by a ring enters none of them, so a thread that makes only such calls would never end. So
//! from the first `pthread_cancel` on, each call that is a cancellation point first asks libc,
//! before it changes anything or holds a lock. A call that waits does so in a function of libc,
//! which is itself a cancellation point.
//!
//! A thread that may be cancelled at any moment (`PTHREAD_CANCEL_ASYNCHRONOUS`) must not end inside
//! the library while it holds a lock. So from the first such thread on, each call switches its
//! thread to deferred cancellation as long as the call lasts.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, Ordering};

use toehold_sockets::system::real;

/// The relevant calls that the program has made: [`CANCELS`], [`AT_ANY_MOMENT`].
static DONE: AtomicU8 = AtomicU8::new(0);
/// In [`DONE`]: it has cancelled a thread.
const CANCELS: u8 = 1;
/// In [`DONE`]: it has asked for a thread that is cancelled at any moment.
const AT_ANY_MOMENT: u8 = 2;

/// True when a call that is a cancellation point has to [`ask`] first.
#[inline(always)]
pub(crate) fn is_asked() -> bool {
    // Relaxed: a thread that sees the mark late waits in libc's functions, or makes another call
    // later. A thread sets its own cancellation type itself.
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

/// Until it is dropped, a thread with asynchronous cancellation is only cancelled at cancellation
/// points. A thread that is cancelled in its call never drops it, and does not need its type any
/// more. A thread that leaves its call by `longjmp` keeps deferred cancellation.
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
