//! Programs without a dynamic linker: the library is mapped into them, and their `syscall`
//! instructions lead there.
//!
//! ```text
//! toehold run ──clone──▶ helper: traces its starter
//!      │ exec               │
//!      ▼ stopped            ▼
//!   the program  ◀── maps the library, writes stubs and patches, lets go, ends
//! ```
//!
//! The program keeps its process number and its parent. The helper needs no privilege: it traces a
//! process of its own user, and only until the program's first instruction. It patches last. When
//! anything is in the way before that, the program runs on the kernel as it is.
//!
//! Programs that the program executes are patched in this way, too ([`following`]).

mod exec;
mod file;
pub(crate) mod following;
mod mapping;
mod patching;
mod plans;
mod tracee;

use std::fmt;
use std::io;

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
    /// A signal handler of its own undoes system calls.
    Guarded,
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
            Refusal::Guarded => out.write_str(
                "its system calls are not patched, because its signal handlers look whether they \
                 interrupt one, as those of emulators do (qemu-user)",
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

pub(crate) use exec::exec;
/// Why a program that runs was not patched, as far as its file and the kernel tell.
pub(crate) use patching::obstacle;
