//! Threads that are cancelled (`pthread_cancel(3)`) while they sleep in a function of libc.
//!
//! libc ends such a thread inside that function, and the library's frames never run again. But a
//! sleeper is counted, has asked for doorbells, or has set an option of its socket. So each sleep
//! registers a function that undoes this when the thread ends in the sleep.
//!
//! - *glibc* calls the function that was given to `_pthread_cleanup_push`. glibc also calls it when
//!   a signal handler leaves the sleep by `longjmp(3)`.
//! - *musl* ends a sleep with `ECANCELED` if the thread is in the state `PTHREAD_CANCEL_MASKED`. (A
//!   registered function is no choice there: `longjmp` of musl does not remove it, and it would
//!   later be called in a frame that is gone.)
//!
//! A program without libc's functions ends its sleeps with `EINTR`
//! ([`toehold_freestanding::waits`]), and the frames of the library return.

use core::ffi::{c_int, c_void};

use crate::system::real::{self, Cancelling};

/// musl's state of a thread in which sleeps end with `ECANCELED` (`pthread.h`).
const MASKED: c_int = 2;
/// `PTHREAD_CANCEL_DISABLE`: musl's state of a thread whose sleep has ended so.
const DISABLED: c_int = 1;
/// `PTHREAD_CANCEL_ENABLE`.
const ENABLED: c_int = 0;

/// Calls `sleep`. If the thread is cancelled in it, `undo` is called before the thread ends. `undo`
/// may take locks, because the caller holds none.
#[inline]
pub(crate) fn sleeping<T>(undo: impl FnMut(), sleep: impl FnOnce() -> T) -> T {
    match real::cancelling() {
        Cancelling::Calls => sleeping_in_glibc(undo, sleep),
        Cancelling::Ends => sleeping_in_musl(undo, sleep),
        Cancelling::Unknown => sleep(),
    }
}

fn sleeping_in_glibc<T, U: FnMut()>(mut undo: U, sleep: impl FnOnce() -> T) -> T {
    unsafe extern "C" fn call<U: FnMut()>(undo: *mut c_void) {
        // SAFETY: given to libc below with this type. The sleep is over.
        unsafe { (*undo.cast::<U>())() }
    }
    // `_pthread_cleanup_buffer`: a function, its argument, a state, the one before.
    let mut buffer = [0usize; 4];
    let place: *mut c_void = buffer.as_mut_ptr().cast();
    let undo = (&raw mut undo).cast();
    // SAFETY: both live until they are taken back below (pthread_cleanup_push(3)).
    unsafe { real::_pthread_cleanup_push(place, call::<U>, undo) };
    let result = sleep();
    // SAFETY: given above, and not called.
    unsafe { real::_pthread_cleanup_pop(place, 0) };
    result
}

fn sleeping_in_musl<T>(mut undo: impl FnMut(), sleep: impl FnOnce() -> T) -> T {
    let set = |state: c_int| {
        let mut before = state;
        // SAFETY: one number is written. A state that is not known changes nothing.
        unsafe { real::pthread_setcancelstate(state, &raw mut before) };
        before
    };
    let before = set(MASKED);
    if before != ENABLED {
        set(before);
        return sleep();
    }
    let result = sleep();
    if set(ENABLED) == DISABLED {
        undo();
        // SAFETY: the library holds no lock, and its frames have nothing else to be dropped.
        unsafe { real::pthread_testcancel() };
    }
    result
}
