//! The state of the program at a patched site, and the entry's next steps.

/// The state of the program that the entry saves.
#[repr(C, align(16))]
pub(crate) struct Frame {
    /// rdi, rsi, rdx, r10, r8, r9.
    pub(crate) arguments: [usize; 6],
    /// The call's number; then its answer.
    pub(crate) rax: isize,
    /// The flags, in the form of `lahf` and `seto`.
    pub(super) flags: u64,
    /// The stub.
    pub(super) stub: *const Stub,
    /// The program's stack pointer.
    pub(super) stack: u64,
    pub(super) rbx: u64,
    /// For [`Verdict::MakeHere`]: the area of the thread that is about to be made, or
    /// [`COPIES_MEMORY`], or [`SHARES_MEMORY`].
    pub(crate) new: usize,
    pub(super) sse: [[u64; 2]; 16],
}

/// The beginning of a stub (`toehold_sites::stub`).
#[repr(C)]
pub(super) struct Stub {
    pub(super) entry: u64,
    pub(super) pass: u64,
    pub(super) done: u64,
    pub(super) site: u64,
}

/// The entry's next step after `handle`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The program's own `syscall` happens.
    Pass = 0,
    /// `rax` is the answer.
    Answered = 1,
    /// The entry makes the call: it makes a process or a thread.
    MakeHere = 2,
}

/// The new process has its own memory.
pub(crate) const COPIES_MEMORY: usize = 1;
/// The new process uses its parent's memory, while the parent waits.
pub(crate) const SHARES_MEMORY: usize = 0;

/// The entry's next step after `after_in_child`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// The child has its own memory, and leaves its frame.
    HasFrame = 1,
    /// The parent waits and needs the frame, so the frame stays.
    BorrowsFrame = 0,
}
