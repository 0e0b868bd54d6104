//! The calls by which a program confines itself (seccomp(2)), or its children to another pid
//! namespace: the library leaves before.

use core::ffi::c_int;

use toehold_sockets::{confine, leave_to_namespaces, real};

use crate::tracer;

/// `prctl(2)`. Variadic in C; the optional arguments travel where fixed ones would.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    before_prctl(option, a);
    // SAFETY: passed on with the caller's promises.
    unsafe { real::prctl(option, a, b, c, d) }
}

/// `prctl(2)` is about to be called.
pub(crate) fn before_prctl(option: c_int, value: usize) {
    match option {
        libc::PR_SET_SECCOMP => confine(),
        libc::PR_SET_PTRACER => tracer::is_named(value),
        _ => {}
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

/// `unshare(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    before_namespaces(flags);
    // SAFETY: no memory is involved.
    unsafe { real::syscall(libc::SYS_unshare, flags as usize, 0, 0, 0, 0, 0) as c_int }
}

/// `setns(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    before_joining(kind);
    // SAFETY: no memory is involved.
    unsafe { real::syscall(libc::SYS_setns, fd as usize, kind as usize, 0, 0, 0, 0) as c_int }
}

/// New namespaces are about to be made, `flags` (`CLONE_NEW*`): for this process, or for a child.
pub(crate) fn before_namespaces(flags: c_int) {
    if flags & libc::CLONE_NEWPID != 0 {
        leave_to_namespaces();
    }
}

/// `setns(2)` is about to be called: with `kind` 0 the descriptor says which namespace it is.
pub(crate) fn before_joining(kind: c_int) {
    if kind == 0 || kind & libc::CLONE_NEWPID != 0 {
        leave_to_namespaces();
    }
}
