//! The calls by which a program confines itself (seccomp(2)), or its children to another pid
//! namespace: the library leaves before. Where a thread changes its network namespace, short
//! connections are the kernel's from then on.
//!
//! Not every such call sets a filter. libseccomp asks what the kernel has by calls that must fail,
//! when a program is loaded with it, or when it first uses it: container engines and systemd's own
//! programs do so.

use core::ffi::{c_int, c_uint};

use toehold_sockets::system::real;
use toehold_sockets::{confine, leave_network_namespace, leave_to_namespaces};

use crate::tracer;

/// `prctl(2)`. Variadic in C; the optional arguments travel where fixed ones would.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    before_prctl(option, a, b);
    // SAFETY: passed on with the caller's promises.
    unsafe { real::prctl(option, a, b, c, d) }
}

/// `prctl(2)` is about to be called.
pub(crate) fn before_prctl(option: c_int, value: usize, filter: usize) {
    match option {
        libc::PR_SET_SECCOMP if prctl_confines(value, filter) => confine(),
        libc::PR_SET_PTRACER => tracer::is_named(value),
        _ => {}
    }
}

/// `seccomp(2)`, which has no function in libc, is about to be called.
pub(crate) fn before_seccomp(operation: usize, flags: usize, filter: usize) {
    if seccomp_confines(operation, flags, filter) {
        confine();
    }
}

/// False for a filter at no address, for which the kernel answers `EFAULT`: nothing can be mapped
/// there (`vm.mmap_min_addr`).
fn prctl_confines(mode: usize, filter: usize) -> bool {
    mode != libc::SECCOMP_MODE_FILTER as usize || filter != 0
}

/// False for a filter at no address, and for the strict mode with an argument, which it does not
/// have (`EINVAL`).
fn seccomp_confines(operation: usize, flags: usize, filter: usize) -> bool {
    // The kernel takes 32 bits of both.
    match (operation as c_uint, flags as c_uint) {
        (libc::SECCOMP_SET_MODE_STRICT, 0) => filter == 0,
        (libc::SECCOMP_SET_MODE_STRICT, _) => false,
        (libc::SECCOMP_SET_MODE_FILTER, _) => filter != 0,
        _ => false,
    }
}

/// `unshare(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    before_unsharing(flags);
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

/// A child in new namespaces is about to be made, `flags` (`CLONE_NEW*`). It has no carrier of
/// ours, and our network namespace stays ours.
pub(crate) fn before_namespaces(flags: c_int) {
    if flags & libc::CLONE_NEWPID != 0 {
        leave_to_namespaces();
    }
}

/// `unshare(2)` is about to be called.
pub(crate) fn before_unsharing(flags: c_int) {
    before_namespaces(flags);
    if flags & libc::CLONE_NEWNET != 0 {
        leave_network_namespace();
    }
}

/// `setns(2)` is about to be called: with `kind` 0 the descriptor says which namespace it is.
pub(crate) fn before_joining(kind: c_int) {
    if kind == 0 || kind & libc::CLONE_NEWPID != 0 {
        leave_to_namespaces();
    } else if kind & libc::CLONE_NEWNET != 0 {
        leave_network_namespace();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_about_filters_sets_none() {
        const FILTER: usize = libc::SECCOMP_SET_MODE_FILTER as usize;
        const STRICT: usize = libc::SECCOMP_SET_MODE_STRICT as usize;
        assert!(seccomp_confines(STRICT, 0, 0));
        assert!(seccomp_confines(FILTER, 1, 0x1000));
        assert!(!seccomp_confines(STRICT, 1, 0));
        assert!(!seccomp_confines(STRICT, 0, 0x1000));
        assert!(!seccomp_confines(FILTER, 1, 0));
        assert!(!seccomp_confines(
            libc::SECCOMP_GET_ACTION_AVAIL as usize,
            0,
            0x1000
        ));
        assert!(prctl_confines(libc::SECCOMP_MODE_STRICT as usize, 0));
        assert!(prctl_confines(libc::SECCOMP_MODE_FILTER as usize, 0x1000));
        assert!(!prctl_confines(libc::SECCOMP_MODE_FILTER as usize, 0));
    }
}
