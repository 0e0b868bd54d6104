//! Restores process state that Rust's start-up changes, so that the program that this process
//! becomes inherits it unchanged.
//!
//! Rust's start-up ignores `SIGPIPE`, and opens `/dev/null` for each of the descriptors 0 to 2 that
//! is closed. `Command` resets `SIGPIPE` to its default action before an exec. But many parents
//! have ignored it on purpose: systemd does so for its services.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libc::c_int;

/// Runs before Rust's start-up. These words are written while there is only one thread.
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

/// Restores the original state for the next exec. Makes only system calls.
///
/// # Errors
///
/// None. The type is that of functions that `Command` runs before its exec.
pub(crate) fn restore() -> io::Result<()> {
    let action = match SIGPIPE_IS_IGNORED.load(Relaxed) {
        true => libc::SIG_IGN,
        false => libc::SIG_DFL,
    };
    set(action, libc::FD_CLOEXEC);
    Ok(())
}

/// Restores Rust's state after an exec has failed.
pub(crate) fn restore_rusts() {
    set(libc::SIG_IGN, 0);
}

fn set(action: libc::sighandler_t, flags: c_int) {
    // SAFETY: an action without a handler, and descriptors that Rust's start-up has opened.
    unsafe {
        libc::signal(libc::SIGPIPE, action);
        for (fd, is_closed) in (0..).zip(&IS_CLOSED) {
            if is_closed.load(Relaxed) {
                libc::fcntl(fd, libc::F_SETFD, flags);
            }
        }
    }
}
