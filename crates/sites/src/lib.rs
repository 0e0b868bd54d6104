//! Finds the system calls in a program's machine code, and plans how each is led elsewhere.
//!
//! A program that does not call libc makes its system calls by the instruction `syscall`. Each
//! place where that instruction stands is a *site*. This crate reads x86-64 machine code, finds the
//! sites and plans for each a *patch*: a few bytes that jump to a *stub*. The stub calls a handler,
//! which either answers the call or lets the program's own `syscall` happen.
//!
//! - [`instruction`]: how long an instruction is, and where it branches to.
//! - [`movable`]: which instructions do the same at another address.
//! - [`sweep`]: all instructions of a piece of code, in one pass from its start.
//! - [`search`]: the instructions and branches around each system call, without a full sweep.
//! - [`plan`]: the patch of each site, or the reason why a site cannot be patched.
//! - [`numbers`]: which call a site makes, as far as it shows.
//! - [`guarded`]: system calls that a signal handler of the program's undoes.
//! - [`stub`]: the bytes of patches and stubs.
//! - [`rewrite`]: the patches of a page, as one write.
//! - [`elf`]: where the code of an ELF file is.
//!
//! The crate makes no system call. It needs no heap: callers lend the memory that a sweep needs.

#![cfg_attr(not(test), no_std)]

// As the tests beside the crate name it, whose helpers the tests within it use.
#[cfg(test)]
extern crate self as toehold_sites;

pub mod elf;
pub mod guarded;
pub mod instruction;
pub mod movable;
pub mod numbers;
pub mod plan;
pub mod rewrite;
pub mod search;
pub mod stub;
pub mod sweep;

#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
