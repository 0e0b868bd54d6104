//! Patches a program without a dynamic linker while it is stopped at its exec: maps the library
//! into it, and redirects its `syscall` instructions to the library.
//!
//! This is the work of a helper: a process that traces another process through one exec, and then
//! ends. There are two kinds of helpers; both share the memory of the program that starts them:
//!
//! - the helper of `toehold run`, which will become the program (`toehold`, in its module
//!   `patched`);
//! - the helper of the library, for programs that the program executes
//!   (`toehold_preload::following`).
//!
//! The helper needs no privilege: it traces a process of its own user, and only until the program's
//! first instruction. It patches as the last step. If an earlier step fails, the program runs
//! unchanged on the kernel.
//!
//! - `watch`: traces until a process executes a program.
//! - `patching`: finds the program's sites, and patches them.
//! - `mapping`: maps the library into the program's memory.
//! - `tracee`: the stopped program: its registers, its memory, and system calls made in its name.
//! - `room`: finds a place for the code of these calls.
//! - `parting`: the program's wait for a helper that is its child.
//! - `plans`: stores patches for later starts.
//! - `file`: files and their versions.
//! - `system`: files and errors without a C library.
//! - `helper`: separates a helper from everything of the program except its memory.
//! - [`heap`]: memory for all of these where there is no C library.
//!
//! The crate runs in the memory of any program. So it makes system calls directly, and uses neither
//! thread-local storage nor libc's functions.

#![cfg_attr(not(test), no_std)]
#![cfg(target_arch = "x86_64")]

extern crate alloc;

mod file;
pub mod heap;
mod helper;
mod mapping;
mod parting;
mod patching;
mod plans;
mod room;
mod system;
mod tracee;
mod watch;

/// The reason why a program runs without the library.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// The kernel does not allow tracing the process.
    NotTraced(Error),
    /// Another process traces the process.
    Traced,
    /// An error happened while the program was stopped.
    Failed(Error),
    /// This processor or kernel does not let programs use GS.
    NoGs,
    /// None of the program's sites can be patched.
    NoSites,
    /// A site that makes a call about sockets cannot be patched.
    NoRoom,
    /// A signal handler of the program restarts system calls itself.
    Guarded,
    /// The library has examined the program and does not act in it.
    NotWanted,
    /// The program has a dynamic linker, or is one.
    NotAlone,
    /// The process ended before it could be patched.
    Ended,
    /// The program could not be restored, and was ended.
    Lost(Error),
}

pub use helper::stand_alone;
pub use patching::obstacle;
pub use system::{Error, File, Result};
pub use watch::{Task, Watch};
