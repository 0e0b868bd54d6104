//! The calls by which a program confines itself (seccomp(2)): the library leaves before.

use core::ffi::c_int;

use toehold_sockets::{confine, real};

/// `prctl(2)`. Variadic in C; the optional arguments travel where fixed ones would.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    before_prctl(option);
    // SAFETY: passed on with the caller's promises.
    unsafe { real::prctl(option, a, b, c, d) }
}

/// `prctl(2)` is about to be called.
pub(crate) fn before_prctl(option: c_int) {
    if option == libc::PR_SET_SECCOMP {
        confine();
    }
}

/// `seccomp(2)`, which has no function in libc, is about to be called.
pub(crate) fn before_seccomp(operation: usize) {
    const SET_MODE_STRICT: usize = 0;
    const SET_MODE_FILTER: usize = 1;
    if matches!(operation, SET_MODE_STRICT | SET_MODE_FILTER) {
        confine();
    }
}
