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
//! process of its own user, and only until the program's first instruction. It patches last. When
//! anything is in the way before that, the program runs on the kernel as it is.
//!
//! Programs that the program executes are patched in this way, too ([`following`]).

mod file;
pub(crate) mod following;
mod mapping;
mod patching;
mod plans;
mod tracee;

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::getpid;

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
    /// It has ended before it could be patched.
    Ended,
    /// It could not be let go as it was, and has been ended.
    Lost(io::Error),
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
            Refusal::Ended => out.write_str("it has ended before it was patched"),
            Refusal::Lost(error) => write!(
                out,
                "it has been ended, because its first instructions could not be restored ({error})"
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

/// A process that traces this one and patches the program that this one executes.
#[derive(Debug)]
pub(crate) struct Helper {
    socket: UnixStream,
}

impl Helper {
    /// Starts it for this process, which is about to execute `program`.
    pub(crate) fn start(library: &Path, program: &Path) -> Result<Helper, Refusal> {
        let (ours, theirs) = UnixStream::pair().map_err(Refusal::NotTraced)?;
        let mut start = Start {
            target: getpid().as_raw_nonzero().get(),
            library,
            program,
            theirs: Some(theirs),
            ours: ours.as_raw_fd(),
            helper: 0,
        };
        start_helper(&mut start).map_err(Refusal::NotTraced)?;
        drop(start.theirs);
        // Yama lets only ancestors trace, and whom the process names. Without Yama this fails.
        // SAFETY: no memory is involved.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, start.helper as libc::c_ulong) };
        let mut helper = Helper { socket: ours };
        helper.socket.write_all(&[0]).map_err(Refusal::NotTraced)?;
        Ok(helper)
    }

    /// Waits until it traces this process: exec may follow.
    pub(crate) fn wait(&mut self) -> Result<(), Refusal> {
        let mut error = [0];
        let answer = self.socket.read_exact(&mut error);
        answer.map_err(Refusal::NotTraced)?;
        match error[0] {
            0 => Ok(()),
            error => Err(Refusal::NotTraced(io::Error::from_raw_os_error(
                error.into(),
            ))),
        }
    }
}

impl Drop for Helper {
    /// The program is not executed, or not to be patched: nobody traces this process any more.
    fn drop(&mut self) {
        let _ = self.socket.write_all(&[0]);
        let _ = self.socket.read_to_end(&mut Vec::new());
    }
}

/// For the helper.
struct Start<'a> {
    /// This process.
    target: libc::pid_t,
    library: &'a Path,
    program: &'a Path,
    /// The helper's end of a socket.
    theirs: Option<UnixStream>,
    /// Our end.
    ours: RawFd,
    /// The helper's number, when it has been made.
    helper: libc::pid_t,
}

/// Starts the helper as a grandchild: the program has no child that it does not know. The process
/// in between uses this one's memory while this one waits, so memory is copied once.
fn start_helper(start: &mut Start<'_>) -> io::Result<()> {
    extern "C" fn between(start: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the starter's, or in the helper a copy of it.
        let start = unsafe { &mut *start.cast::<Start<'_>>() };
        // SAFETY: as fork(2), but for a signal when the child ends, which nobody waits for.
        match unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } {
            0 => {
                // SAFETY: closes the starter's end, which nobody uses here.
                unsafe { libc::close(start.ours) };
                let status = match start.theirs.take() {
                    Some(socket) => helper(start, socket),
                    None => 1,
                };
                // SAFETY: ends this process; nothing of the starter's is to be flushed or run here.
                unsafe { libc::_exit(status) }
            }
            child => {
                start.helper = child as libc::pid_t;
                libc::c_int::from(child < 0)
            }
        }
    }
    const STACK_BYTES: usize = 1 << 20;
    let (protection, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    let flags = private | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a fresh mapping.
    let stack = unsafe { libc::mmap(std::ptr::null_mut(), STACK_BYTES, protection, flags, -1, 0) };
    if stack == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    let mut status = 0;
    // SAFETY: the stack is the child's alone, and its end is a multiple of 16. This process has one
    // thread, which waits until the child has ended. The mapping ends with the exec.
    unsafe {
        let top = stack.cast::<u8>().add(STACK_BYTES).cast();
        let child = libc::clone(between, top, flags, (&raw mut *start).cast());
        if child < 0 || libc::waitpid(child, &raw mut status, libc::__WALL) != child {
            return Err(io::Error::last_os_error());
        }
    }
    match status {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
    }
}

/// Traces the starter until it has become another program, and patches that.
fn helper(start: &Start<'_>, mut starter: UnixStream) -> i32 {
    let seized = (|| {
        starter.read_exact(&mut [0])?;
        Watch::begin(start.target, false)
    })();
    let answer = match &seized {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EPERM) as u8,
    };
    if starter.write_all(&[answer]).is_err() {
        return 1;
    }
    let Ok(watch) = seized else { return 1 };
    match watch.patch(start.library, Some(start.program), starter) {
        // A dynamic linker that is run by hand preloads the library itself.
        Ok(()) | Err(Refusal::NotAlone | Refusal::Ended) => 0,
        Err(refusal @ Refusal::Lost(_)) => {
            eprintln!("toehold: {refusal}");
            1
        }
        Err(refusal) => {
            eprintln!("toehold: {refusal}; the program runs on kernel TCP");
            1
        }
    }
}
