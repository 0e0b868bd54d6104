//! Finds the system calls in a program's machine code, and plans how each is redirected.
//!
//! A program that does not call libc makes its system calls with the instruction `syscall`. Each
//! place with this instruction is a *site*. This crate reads x86-64 machine code, finds the sites
//! and plans for each a *patch*: a few bytes that jump to a *stub*. The stub calls a handler, which
//! either answers the call or lets the program's own `syscall` execute.
//!
//! - [`instruction`]: an instruction's length and branch target.
//! - [`movable`]: instructions that have the same effect at another address.
//! - [`sweep`]: decodes all instructions of a piece of code, in one pass from its start.
//! - [`search`]: decodes the instructions and branches around each system call, without a full
//!   sweep.
//! - [`plan`]: the patch of each site, or the reason why a site cannot be patched.
//! - [`numbers`]: the system call number at a site, if the code shows it.
//! - [`guarded`]: system calls that a signal handler of the program cancels.
//! - [`stub`]: the bytes of patches and stubs.
//! - [`rewrite`]: combines the patches of a page to one write.
//! - [`elf`]: finds the code of an ELF file.
//!
//! The crate makes no system call. It needs no heap: callers provide the memory for a sweep.

#![cfg_attr(not(test), no_std)]

// The name that the tests beside the crate use; the tests within the crate share their helpers.
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
