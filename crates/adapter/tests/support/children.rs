//! Forked children of a test's process.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::wait_until;

/// A child. It is killed when this is dropped.
pub(crate) struct Child {
    pid: libc::pid_t,
    is_reaped: bool,
}

impl Child {
    /// Forks a child that calls `part`, and ends well if `part` returns true. The child has only
    /// the descriptors `kept`.
    pub(crate) fn fork(kept: &[BorrowedFd<'_>], part: impl FnOnce() -> bool) -> Child {
        Child::fork_and(|| close_all_but(kept), part)
    }

    /// As [`Child::fork`], with all descriptors of this process.
    pub(crate) fn fork_with_all(part: impl FnOnce() -> bool) -> Child {
        Child::fork_and(leave_outputs, part)
    }

    fn fork_and(begin: impl FnOnce(), part: impl FnOnce() -> bool) -> Child {
        // SAFETY: the child has one thread, ends in `_exit`, and frees nothing of its parent's.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            begin();
            // A panic must not go on in the parent's frames: they would end the parent's values.
            let is_well = catch_unwind(AssertUnwindSafe(part)).unwrap_or(false);
            // SAFETY: nothing of the parent's is to run here.
            unsafe { libc::_exit(i32::from(!is_well)) };
        }
        Child {
            pid,
            is_reaped: false,
        }
    }

    /// Waits for the end.
    pub(crate) fn ends_well(mut self) -> bool {
        let mut status = 0;
        let has_ended = wait_until(|| {
            // SAFETY: our child, not reaped yet.
            match unsafe { libc::waitpid(self.pid, &mut status, libc::WNOHANG) } {
                0 => false,
                waited => {
                    assert_eq!(waited, self.pid);
                    true
                }
            }
        });
        assert!(has_ended, "the child {} does not end", self.pid);
        self.is_reaped = true;
        status == 0
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_reaped {
            // SAFETY: our child, not reaped yet.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// Closes all descriptors of a forked child but these, and leaves the outputs of its parent. As
/// long as a child has a copy, no other process hears that a test has closed its own; and whoever
/// reads the outputs waits for it.
///
/// It makes system calls only.
pub(crate) fn close_all_but(kept: &[BorrowedFd<'_>]) {
    leave_outputs();
    let mut next = libc::STDERR_FILENO as u32 + 1;
    loop {
        let numbers = kept.iter().map(|one| one.as_raw_fd() as u32);
        let stays = numbers.filter(|&number| number >= next).min();
        let last = stays.map_or(u32::MAX, |stays| stays - 1);
        if last >= next {
            // SAFETY: plain system call; no value of this process uses the descriptors any more.
            unsafe { libc::syscall(libc::SYS_close_range, next, last, 0) };
        }
        let Some(stays) = stays else { return };
        next = stays + 1;
    }
}

/// Replaces the standard descriptors of a forked child by /dev/null.
fn leave_outputs() {
    // SAFETY: plain system calls on numbers that the child owns.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for number in 0..=libc::STDERR_FILENO {
            libc::dup2(null, number);
        }
        if null > libc::STDERR_FILENO {
            libc::close(null);
        }
    }
}
