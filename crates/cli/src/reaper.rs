//! A process that inherits orphans in place of the program that this process becomes.
//!
//! `toehold run` starts an adapter through an intermediate process, which ends; so the adapter
//! becomes a child of the system's first process. But if `run` is the first process of a container,
//! or a subreaper (`PR_SET_CHILD_SUBREAPER`, which an exec keeps), `run` would inherit the adapter.
//! Then the program would have a child that it has not made, and that does not end while there are
//! connections. In these cases the reaper inherits the adapter:
//!
//! ```text
//! the program ── reaper ── adapter
//! ```
//!
//! The program does not see the reaper: no signal reports the reaper's end, and only `__WALL` waits
//! for it. An exec would make the reaper an ordinary child, so it stays a copy of `run`. If an
//! ancestor of `run` is a subreaper, that ancestor inherits the adapter: a process cannot know of
//! such an ancestor.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, chdir, child_subreaper, getpid, set_child_subreaper, setsid};

/// Whether this process inherits the orphans of its children.
pub(crate) fn is_needed() -> bool {
    getpid() == Pid::INIT || child_subreaper().is_ok_and(|set| set.is_some())
}

/// Lets a reaper do `work`, which starts processes that continue. This process must have one
/// thread.
///
/// # Errors
///
/// The errors of `work`, or a sentence.
pub(crate) fn have_it(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let no_reaper = |error: io::Error| format!("cannot make a process for the adapter: {error}");
    let (mut ours, theirs) = UnixStream::pair().map_err(no_reaper)?;
    // SAFETY: like fork(2), except that no signal reports the child's end. There is one thread, and
    // the child does not ask libc for its process number.
    match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
        ..0 => return Err(no_reaper(io::Error::last_os_error())),
        0 => reap(work, theirs),
        _ => drop(theirs),
    }
    let mut words = String::new();
    match ours.read_to_string(&mut words).map_err(no_reaper)? {
        0 => Err("the process for the adapter was ended".to_owned()),
        _ if words == DONE => Ok(()),
        _ => Err(words),
    }
}

/// Reports that the work was done.
const DONE: &str = "\0";

/// The reaper.
fn reap(work: impl FnOnce() -> Result<(), String>, mut starter: UnixStream) -> ! {
    // Signals from the terminal are meant for the program.
    let _ = setsid();
    let _ = set_child_subreaper(Some(getpid()));
    let words = work().err().unwrap_or_else(|| DONE.to_owned());
    let _ = starter.write_all(words.as_bytes());
    // Releases everything of the program that would stay in use.
    let _ = chdir("/");
    // SAFETY: this process uses no descriptor from here on, and ends without use of those that Rust
    // has open.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        loop {
            let ended = libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL);
            if ended < 0 && *libc::__errno_location() != libc::EINTR {
                libc::_exit(0);
            }
        }
    }
}
