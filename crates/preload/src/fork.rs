//! Forks, by name and by number.

use core::ffi::c_long;

use toehold_sockets::system::real;
use toehold_sockets::{after_fork_in_child, after_fork_in_parent, before_fork};

/// A fork by number runs no `pthread_atfork` handlers, so this does the work of the library's
/// handlers.
pub(crate) fn forked(fork: impl FnOnce() -> c_long) -> c_long {
    before_fork();
    let result = fork();
    match result {
        0 => after_fork_in_child(),
        _ => after_fork_in_parent(result),
    }
    result
}

/// `fork(2)`: the handlers run, but none of them learns the child's number, or that the fork has
/// failed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fork() -> libc::pid_t {
    // SAFETY: passed on with the caller's promises.
    let child = unsafe { real::fork() };
    if child != 0 {
        after_fork_in_parent(child.into());
    }
    child
}
