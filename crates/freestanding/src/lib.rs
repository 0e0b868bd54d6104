//! Services of the system for the library inside a program, without a C library at link time.
//!
//! `libtoehold.so` must start in every program: with any glibc, with musl, or without a C library.
//! So it refers to no symbol of another library, and needs no thread-local storage and no heap.
//! This crate has the services that other code takes from libc or from `std`:
//!
//! - `syscall`: system calls, with the kernel's answer;
//! - `waits`: system calls that may wait, in programs that cancel threads;
//! - `fd`: descriptors that close themselves;
//! - `memory`: mappings;
//! - `shared`, `prefetch`: copies of memory that others may be writing (`from_shared`,
//!   `to_shared`);
//! - `guarded`: copies from and to buffers of the program whose address may be bad;
//! - `objects`: the loaded objects, and the functions of the program's libc among them;
//! - `elf`: symbol tables in memory;
//! - `errno`: the program's `errno`, or a word of our own where there is no libc;
//! - `vdso`: the clock and the processor number without entering the kernel;
//! - `environment`: the program's environment variables;
//! - `diag`: queries about sockets to the kernel.

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
