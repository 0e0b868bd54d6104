//! Programs without a dynamic linker: the library is mapped into them, and their `syscall`
//! instructions are redirected to it.
//!
//! ```text
//! toehold run ──clone──▶ helper: traces its starter
//!      │ exec               │
//!      ▼ stopped            ▼
//!   the program  ◀── maps the library, writes stubs and patches, lets go, ends
//! ```
//!
//! The program keeps its process number and its parent. `toehold-patcher` does the helper's work;
//! the library uses it too, for programs that the program executes.

mod exec;

use std::fmt;
use std::io;

use toehold_patcher::{Error, Refusal};

/// A sentence that tells why a program runs without the library.
#[derive(Debug)]
pub(crate) struct Sentence(Refusal);

impl fmt::Display for Sentence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Refusal::NotTraced(error) => write!(
                out,
                "its system calls cannot be patched, because the kernel does not let it be traced \
                 ({}); a debugger, Yama or a filter for system calls may be the reason",
                cause(*error)
            ),
            Refusal::Traced => out.write_str(
                "its system calls cannot be patched, because another process traces it, as \
                 debuggers, strace and proot do",
            ),
            Refusal::Failed(error) => {
                write!(out, "its system calls cannot be patched: {}", cause(*error))
            }
            Refusal::NoGs => out.write_str(
                "its system calls cannot be patched, because this processor or kernel does not \
                 let programs set GS (FSGSBASE)",
            ),
            Refusal::NoRoom => out.write_str(
                "its system calls are not patched, because one about sockets has no room for a \
                 patch",
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
            Refusal::Ended => out.write_str("it ended before it was patched"),
            Refusal::Lost(error) => write!(
                out,
                "it was ended, because its first instructions could not be restored ({})",
                cause(*error)
            ),
            Refusal::NoSites => out.write_str(
                "its system calls cannot be patched: there are none, or none that can be patched \
                 safely",
            ),
        }
    }
}

/// An error in the form in which this command prints errors.
fn cause(error: Error) -> io::Error {
    match error {
        Error::Kernel(number) => io::Error::from_raw_os_error(number),
        Error::Failed(why) => io::Error::other(why),
        Error::Signal(signal) => {
            io::Error::other(format!("the library has failed in it, by signal {signal}"))
        }
    }
}

/// The reason why a running program was not patched, as far as its file and the kernel tell.
pub(crate) fn obstacle(process: libc::pid_t) -> Option<Sentence> {
    toehold_patcher::obstacle(process).map(Sentence)
}

pub(crate) use exec::exec;
