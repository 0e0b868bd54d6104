//! Code with which the program waits for a helper that is its child.
//!
//! If the library makes the helper as a child of the process that executes the program, the program
//! would inherit an ended child that it does not know. So it waits for that child before its first
//! instruction. The code follows the stubs of the program's sites.
//! first instruction. The code stands behind the stubs of the program's sites.

use toehold_freestanding::call;

// r12 is the helper's process number, r13 the address of the program's first instruction. All other
// registers that are changed here were 0, as the kernel sets them at an exec. The memory below the
// stack pointer is unused so far.
core::arch::global_asm!(
    ".pushsection .rodata.toehold_parting, \"a\", @progbits",
    ".hidden toehold_parting",
    ".globl toehold_parting",
    ".hidden toehold_parting_end",
    ".globl toehold_parting_end",
    "toehold_parting:",
    "2:",
    "mov eax, {wait4}",
    "mov edi, r12d",
    "xor esi, esi",
    "mov edx, {wall}",
    "xor r10d, r10d",
    "syscall",
    "cmp rax, -{eintr}",
    "je 2b",
    "xor eax, eax",
    "xor ecx, ecx",
    "xor edx, edx",
    "xor edi, edi",
    "xor r11d, r11d",
    "xor r12d, r12d",
    "push r13",
    "xor r13d, r13d",
    "ret",
    "toehold_parting_end:",
    ".popsection",
    wait4 = const libc::SYS_wait4,
    wall = const libc::__WALL,
    eintr = const libc::EINTR,
);

unsafe extern "C" {
    static toehold_parting: u8;
    static toehold_parting_end: u8;
}

/// The code, which is position-independent.
pub(crate) fn code() -> &'static [u8] {
    let (from, end) = (&raw const toehold_parting, &raw const toehold_parting_end);
    // SAFETY: read-only bytes of this program, in this order.
    unsafe { core::slice::from_raw_parts(from, end.offset_from_unsigned(from)) }
}

/// The number of this helper, if it is a child of `process`.
pub(crate) fn child_of(process: libc::pid_t) -> Option<libc::pid_t> {
    // SAFETY: no memory is involved.
    let (own, parent) = unsafe { (call!(SYS_getpid), call!(SYS_getppid)) };
    (parent as libc::pid_t == process).then_some(own as libc::pid_t)
}
