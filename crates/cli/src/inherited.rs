//! The parts of its state that this process was started with and that Rust's start changes: a
//! program that this process becomes has them as they were.
//!
//! Rust's start has `SIGPIPE` ignored, and opens `/dev/null` as each of the descriptors 0 to 2 that
//! is closed. `Command` sets `SIGPIPE` to its default action before an exec, although many parents
//! have it ignored on purpose: systemd does for its services.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libc::c_int;

/// Runs before Rust's start. One thread writes these words, before there is another.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

static SIGPIPE_IS_IGNORED: AtomicBool = AtomicBool::new(false);
static IS_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

extern "C" fn remember() {
    // SAFETY: a `sigaction` of zeroes is one, and the kernel's is written there.
    let is_ignored = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    };
    SIGPIPE_IS_IGNORED.store(is_ignored, Relaxed);
    for (fd, is_closed) in (0..).zip(&IS_CLOSED) {
        // SAFETY: no memory is involved.
        is_closed.store(unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0, Relaxed);
    }
}

/// Has the next exec find the state as it was. Makes system calls only.
///
/// # Errors
///
/// None: it is one of the functions that `Command` runs before its exec.
pub(crate) fn restore() -> io::Result<()> {
    let action = match SIGPIPE_IS_IGNORED.load(Relaxed) {
        true => libc::SIG_IGN,
        false => libc::SIG_DFL,
    };
    set(action, libc::FD_CLOEXEC);
    Ok(())
}

/// Takes that back after an exec that has failed.
pub(crate) fn restore_rusts() {
    set(libc::SIG_IGN, 0);
}

fn set(action: libc::sighandler_t, flags: c_int) {
    // SAFETY: an action without a handler, and descriptors that Rust's start has opened.
    unsafe {
        libc::signal(libc::SIGPIPE, action);
        for (fd, is_closed) in (0..).zip(&IS_CLOSED) {
            if is_closed.load(Relaxed) {
                libc::fcntl(fd, libc::F_SETFD, flags);
            }
        }
    }
}
