//! The system below the library, and its behaviour as a guest in another program.
//!
//! - [`real`], [`sys`]: libc's own functions; system calls;
//! - [`errno`]: the program's `errno`;
//! - [`faults`]: bad pointers of the program;
//! - [`deferral`]: signal handlers do not run while their thread holds a lock of the library;
//! - [`threads`]: the number of a thread;
//! - [`cancellation`]: how the state of a thread is undone that is cancelled in its sleep.

pub(crate) mod cancellation;
pub mod deferral;
pub(crate) mod errno;
pub mod faults;
pub mod real;
pub(crate) mod sys;
pub(crate) mod threads;
