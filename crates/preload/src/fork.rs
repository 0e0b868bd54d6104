//! Forks, by name and by number.

use core::ffi::c_long;

use toehold_sockets::system::real;
use toehold_sockets::{after_fork_in_child, after_fork_in_parent, before_fork};

/// A fork made by number runs no `pthread_atfork` handlers: do what ours would have done.
pub(crate) fn forked(fork: impl FnOnce() -> c_long) -> c_long {
    before_fork();
    let result = fork();
    match result {
        0 => after_fork_in_child(),
        _ => after_fork_in_parent(result),
    }
    result
}

/// `fork(2)`: its handlers run, but none of them learns the child's number or that there is none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fork() -> libc::pid_t {
    // SAFETY: passed on with the caller's promises.
    let child = unsafe { real::fork() };
    if child != 0 {
        after_fork_in_parent(child.into());
    }
    child
}
