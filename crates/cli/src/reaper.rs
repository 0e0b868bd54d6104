//! A process that keeps orphans from the program that this one becomes.
//!
//! `toehold run` starts an adapter by a process in between, which leaves; so the system's first
//! process has the adapter for a child. As the first process of a container, or as one that takes
//! orphans over (`PR_SET_CHILD_SUBREAPER`, which an exec keeps), `run` would get it back: the
//! program would have a child that it has not made, and that does not end while there are
//! connections. There the reaper takes the adapter over:
//!
//! ```text
//! the program ── reaper ── adapter
//! ```
//!
//! The program does not meet the reaper. No signal tells its end, and only `__WALL` waits for it.
//! An exec would make it an ordinary child, so it stays a copy of `run`. An ancestor of `run` that
//! takes orphans over gets the adapter all the same: a process cannot know that there is one.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, chdir, child_subreaper, getpid, set_child_subreaper, setsid};

/// Whether orphans of this process's children become its own.
pub(crate) fn is_needed() -> bool {
    getpid() == Pid::INIT || child_subreaper().is_ok_and(|set| set.is_some())
}

/// Has a reaper do `work`, which makes processes that go on. This process has one thread.
///
/// # Errors
///
/// Those of `work`, or a sentence.
pub(crate) fn have_it(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let no_reaper = |error: io::Error| format!("cannot make a process for the adapter: {error}");
    let (mut ours, theirs) = UnixStream::pair().map_err(no_reaper)?;
    // SAFETY: as fork(2), but that no signal tells the child's end. There is one thread, and the
    // child does not ask libc for its number.
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

/// The work was done.
const DONE: &str = "\0";

/// The reaper.
fn reap(work: impl FnOnce() -> Result<(), String>, mut starter: UnixStream) -> ! {
    // A signal of the terminal is for the program.
    let _ = setsid();
    let _ = set_child_subreaper(Some(getpid()));
    let words = work().err().unwrap_or_else(|| DONE.to_owned());
    let _ = starter.write_all(words.as_bytes());
    // Nothing of the program's stays in use.
    let _ = chdir("/");
    // SAFETY: nobody in this process uses a descriptor from here on, and it ends without a look at
    // those that Rust has open.
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
