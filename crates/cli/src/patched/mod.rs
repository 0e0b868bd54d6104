//! Programs without a dynamic linker: the library is mapped into them, and their `syscall`
//! instructions lead there.
//!
//! ```text
//! toehold run ──fork──▶ helper: traces its parent
//!      │ exec              │
//!      ▼ stopped           ▼
//!   the program  ◀── maps the library, writes stubs and patches, lets go, ends
//! ```
//!
//! The program keeps its process number and its parent. The helper needs no privilege: it traces a
//! process of its own user, and only until the program's first instruction. When anything is in the
//! way the helper undoes nothing, because it patches last: the program runs on the kernel.
//!
//! Programs that the program executes are patched in this way, too ([`following`]).

mod file;
pub(crate) mod following;
mod mapping;
mod patching;
mod tracee;

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::{getpid, getppid};

use following::Watch;

/// Why a program runs without the library.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The kernel does not let it be traced.
    NotTraced(io::Error),
    /// Something went wrong while it was stopped.
    Failed(io::Error),
    /// This processor or kernel does not let programs use GS.
    NoGs,
    /// None of its sites can be patched.
    NoSites,
    /// The library has looked at the program and keeps out of it.
    NotWanted,
    /// It has a dynamic linker, or is one.
    NotAlone,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotTraced(error) => write!(
                out,
                "its system calls cannot be patched, because the kernel does not let it be traced \
                 ({error}); a debugger, Yama or a filter for system calls may be the reason"
            ),
            Refusal::Failed(error) => write!(out, "its system calls cannot be patched: {error}"),
            Refusal::NoGs => out.write_str(
                "its system calls cannot be patched, because this processor or kernel does not \
                 let programs set GS (FSGSBASE)",
            ),
            Refusal::NotWanted => out.write_str(
                "its system calls are not patched, because the library does not serve it; a \
                 filter for system calls may be the reason",
            ),
            Refusal::NotAlone => out.write_str(
                "its system calls are not patched, because it has a dynamic linker, or is one",
            ),
            Refusal::NoSites => out.write_str(
                "its system calls cannot be patched: there are none, or none that can be patched \
                 safely",
            ),
        }
    }
}

/// Why a program that runs was not patched, as far as its file and the kernel tell.
pub(crate) use patching::obstacle;

/// Has a helper patch this process's next program. Returns when the helper is ready: exec must
/// follow.
pub(crate) fn patch_next_program(library: &Path) -> Result<(), Refusal> {
    let (mut ours, theirs) = UnixStream::pair().map_err(Refusal::NotTraced)?;
    match fork().map_err(Refusal::NotTraced)? {
        None => {
            // The helper is a grandchild: the program has no child that it does not know.
            let target = getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
            drop(ours);
            let status = match fork() {
                Ok(None) => helper(target, library, theirs),
                Ok(Some(_)) => 0,
                Err(_) => 1,
            };
            // SAFETY: ends this process; nothing of the parent's is to be flushed or run here.
            unsafe { libc::_exit(status) }
        }
        Some(child) => {
            drop(theirs);
            let mut status = 0;
            // SAFETY: writes the status only.
            unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) };
        }
    }
    converse(&mut ours).map_err(Refusal::NotTraced)
}

/// Lets the helper trace this process, and waits until it does.
fn converse(helper: &mut UnixStream) -> io::Result<()> {
    let mut number = [0; 4];
    helper.read_exact(&mut number)?;
    let number = i32::from_ne_bytes(number) as libc::c_ulong;
    // Yama lets only ancestors trace, and whom the process names. Without Yama this fails.
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, number) };
    helper.write_all(&[0])?;
    let mut error = [0];
    helper.read_exact(&mut error)?;
    match error[0] {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.into())),
    }
}

/// Traces `target` until it has become another program, and patches that.
fn helper(target: libc::pid_t, library: &Path, mut parent: UnixStream) -> i32 {
    let seized = (|| {
        parent.write_all(&getpid().as_raw_nonzero().get().to_ne_bytes())?;
        parent.read_exact(&mut [0])?;
        Watch::begin(target, false)
    })();
    let answer = match &seized {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EPERM) as u8,
    };
    if parent.write_all(&[answer]).is_err() || answer != 0 {
        return 1;
    }
    drop(parent);
    let Ok(watch) = seized else { return 1 };
    match watch.patch(library, None) {
        // A dynamic linker that is run by hand preloads the library itself.
        Ok(()) | Err(Refusal::NotAlone) => 0,
        Err(refusal) => {
            eprintln!("toehold: {refusal}; the program runs on kernel TCP");
            1
        }
    }
}

/// `None` in the child. This process must have one thread.
fn fork() -> io::Result<Option<libc::pid_t>> {
    // SAFETY: the command has one thread, so no lock is held by another one.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        child => Ok(Some(child)),
    }
}
