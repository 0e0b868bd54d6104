//! Patches a program without a dynamic linker while its exec stops it: maps the library into it,
//! and leads its `syscall` instructions there.
//!
//! This is the work of a helper: a process that traces another one through one exec, and ends.
//! There are two kinds of helpers, and both have the memory of the program that starts them:
//!
//! - that of `toehold run`, which is to become the program (`toehold`, in its module `patched`);
//! - that of the library, for programs that the program executes (`toehold_preload::following`).
//!
//! The helper needs no privilege: it traces a process of its own user, and only until the program's
//! first instruction. It patches last. When anything is in the way before that, the program runs on
//! the kernel as it is.
//!
//! - `watch`: tracing, until somebody executes a program.
//! - `patching`: finds the program's sites, and patches them.
//! - `mapping`: the library in the program's memory.
//! - `tracee`: the stopped program: its registers and its memory, and system calls in its name.
//! - `room`: where the code of these calls lies.
//! - `parting`: the program's wait for a helper that is its child.
//! - `plans`: the patches of earlier starts.
//! - `file`: files as they were at some time.
//! - `system`: files and errors without a C library.
//! - `helper`: a process that has the program's memory, and nothing else of the program's.
//! - [`heap`]: memory for all of these, where there is no C library.
//!
//! The crate runs in the memory of any program. So it makes system calls only, and uses neither
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

/// Why a program runs without the library.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// The kernel does not let it be traced.
    NotTraced(Error),
    /// Another process traces it.
    Traced,
    /// Something went wrong while it was stopped.
    Failed(Error),
    /// This processor or kernel does not let programs use GS.
    NoGs,
    /// None of its sites can be patched.
    NoSites,
    /// A site that makes a call about sockets cannot be patched.
    NoRoom,
    /// A signal handler of its own undoes system calls.
    Guarded,
    /// The library has looked at the program and keeps out of it.
    NotWanted,
    /// It has a dynamic linker, or is one.
    NotAlone,
    /// It has ended before it could be patched.
    Ended,
    /// It could not be let go as it was, and has been ended.
    Lost(Error),
}

pub use helper::stand_alone;
pub use patching::obstacle;
pub use system::{Error, File, Result};
pub use watch::{Task, Watch};
