//! Forks that run no `pthread_atfork` handlers.

use core::ffi::c_long;

use toehold_sockets::{after_fork_in_child, before_fork, fork_failed};

/// A fork made by number runs no `pthread_atfork` handlers: do what ours would have done.
pub(crate) fn forked(fork: impl FnOnce() -> c_long) -> c_long {
    before_fork();
    let result = fork();
    match result {
        0 => after_fork_in_child(),
        1.. => {}
        _ => fork_failed(),
    }
    result
}
