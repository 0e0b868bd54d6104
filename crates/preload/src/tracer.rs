//! The process that may trace this one, as named to the security module Yama (`PR_SET_PTRACER`).
//!
//! Yama stores one such process for each process, and cannot be asked for it. The program may have
//! named its debugger, or its crash handler. So the library records the process that the program
//! names, and names it again when the library's own helper has begun to trace.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use toehold_freestanding::call;

/// This process's number (upper half), and the process that the program has named last (lower
/// half). A child begins with a copy of its parent's word, or shares it, but nothing is named for
/// the child: the number shows that. Relaxed: no other memory depends on it.
static OF_PROGRAM: AtomicU64 = AtomicU64::new(0);

/// Any process may trace this process (`PR_SET_PTRACER_ANY`).
const ANYBODY: usize = usize::MAX;

/// The program is about to name a process: its number, 0 for none, or [`ANYBODY`].
pub(crate) fn is_named(whom: usize) {
    OF_PROGRAM.store(
        u64::from(own_number()) << 32 | u64::from(whom as u32),
        Relaxed,
    );
}

/// The process that the program has named; 0 for none.
fn of_program() -> usize {
    let word = OF_PROGRAM.load(Relaxed);
    match (word >> 32 == u64::from(own_number()), word as u32) {
        (false, _) => 0,
        (true, u32::MAX) => ANYBODY,
        (true, whom) => whom as usize,
    }
}

/// A helper that is named to Yama until this is dropped; then the program's process is named again.
#[derive(Debug)]
pub(crate) struct Named;

impl Named {
    /// `None` when the kernel has no Yama.
    pub(crate) fn begin(whom: usize) -> Option<Named> {
        (set(whom) == 0).then_some(Named)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        set(of_program());
    }
}

fn set(whom: usize) -> isize {
    // SAFETY: no memory is involved.
    unsafe { call!(SYS_prctl, libc::PR_SET_PTRACER, whom, 0, 0, 0) }
}

fn own_number() -> u32 {
    // SAFETY: no memory is involved.
    unsafe { call!(SYS_getpid) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_the_program_has_named_is_true_of_its_own_process() {
        assert_eq!(of_program(), 0);
        for whom in [7, ANYBODY, 0] {
            is_named(whom);
            assert_eq!(of_program(), whom);
        }
        OF_PROGRAM.fetch_add(7 | 1 << 32, Relaxed);
        assert_eq!(of_program(), 0, "a child has named nobody");
    }
}
