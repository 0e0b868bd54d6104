//! Parts of a system for the library inside a program, without a C library at link time.
//!
//! `libtoehold.so` must start in every program: with any glibc, with musl, or with no C library at
//! all. So it names no symbol of another library, needs no thread-local storage and no heap. This
//! crate has the parts that other code takes from libc or from `std`:
//!
//! - `syscall`: system calls, with the kernel's answer;
//! - `waits`: those that may wait, where the program cancels threads;
//! - `fd`: descriptors that close themselves;
//! - `memory`: mappings;
//! - `shared`, `prefetch`: copies of memory that others may be writing (`from_shared`,
//!   `to_shared`);
//! - `guarded`: such copies from and to buffers of the program, which may be bad;
//! - `objects`: the loaded objects, and the functions of the program's libc among them;
//! - `elf`: symbol tables in memory;
//! - `errno`: the program's `errno`, or a word of our own where there is no libc;
//! - `vdso`: the clock and the processor number without entering the kernel;
//! - `environment`: the program's environment variables;
//! - `diag`: questions about sockets, as the kernel reads them.

#![cfg_attr(not(test), no_std)]

pub mod diag;
pub mod elf;
pub mod environment;
pub mod errno;
pub mod fd;
pub mod guarded;
pub mod memory;
pub mod objects;
pub mod prefetch;
mod shared;
pub mod syscall;
pub mod vdso;
pub mod waits;

pub use shared::{from_shared, to_shared};
