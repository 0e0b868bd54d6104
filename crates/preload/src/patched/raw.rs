//! System calls without libc and without errno.

use core::arch::asm;
use core::ffi::c_void;

/// Makes a system call. The answer is the kernel's: from -4095 to -1 it is an error.
///
/// # Safety
/// As the call demands.
pub(crate) unsafe fn call(number: i64, arguments: [usize; 6]) -> isize {
    let answer: isize;
    // SAFETY: the caller's promise; `syscall` changes rax, rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// Calls `function` on the stack that ends at `stack`.
///
/// # Safety
/// The stack is unused and large enough. It ends at a multiple of 16.
pub(crate) unsafe fn on_stack(
    stack: usize,
    function: unsafe extern "C" fn(*mut c_void) -> u32,
    argument: *mut c_void,
) -> u32 {
    let answer: u32;
    // SAFETY: the caller's promise; the function keeps r12, where the stack pointer is meanwhile.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {stack}",
            "call {function}",
            "mov rsp, r12",
            stack = in(reg) stack,
            function = in(reg) function,
            in("rdi") argument,
            lateout("eax") answer,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    answer
}

/// A new private mapping of zeros. It may be large, because only touched pages use memory.
pub(crate) fn map(bytes: usize) -> Option<usize> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let arguments = [0, bytes, protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a fresh mapping touches no memory of anybody.
    let answer = unsafe { call(libc::SYS_mmap, arguments) };
    (answer > 0).then_some(answer as usize)
}

/// The calling thread's number.
pub(crate) fn thread() -> u64 {
    // SAFETY: no memory is involved.
    unsafe { call(libc::SYS_gettid, [0; 6]) as u64 }
}

/// True unless a thread of this process has the number.
pub(crate) fn is_gone(thread: u64) -> bool {
    // SAFETY: no memory is involved; signal 0 is none.
    let answer = unsafe {
        let process = call(libc::SYS_getpid, [0; 6]) as usize;
        call(libc::SYS_tgkill, [process, thread as usize, 0, 0, 0, 0])
    };
    answer == -(libc::ESRCH as isize)
}
