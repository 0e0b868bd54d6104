//! System calls without libc: no hook of the library is called, there is no cancellation point, and
//! `errno` does not change. Each returns the kernel's answer; a negative answer is a negated errno.

/// An error number from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(
    /// Its number (errno(3)).
    pub i32,
);

/// The kernel's answer: a number, or an errno.
///
/// # Errors
/// The kernel's.
#[inline]
pub fn answer(result: isize) -> Result<usize, i32> {
    usize::try_from(result).map_err(|_| -result as i32)
}

/// [`answer`] with the error as a type.
///
/// # Errors
/// The kernel's.
#[inline]
pub fn checked(result: isize) -> Result<usize, Errno> {
    answer(result).map_err(Errno)
}

/// A system call.
///
/// # Safety
/// As for the system call `number` with these arguments.
#[inline]
#[allow(clippy::too_many_arguments)]
pub unsafe fn raw(
    number: libc::c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the Linux x86-64 system call convention; the caller answers for the arguments.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the Linux AArch64 system call convention; the caller answers for the arguments.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number, inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    result
}

/// [`raw`] with any number of arguments: `call!(SYS_close, fd)`.
#[macro_export]
macro_rules! call {
    ($number:ident $(, $arg:expr)* $(,)?) => {{
        let args: &[usize] = &[$($arg as usize),*];
        let at = |i: usize| args.get(i).copied().unwrap_or(0);
        let number = $crate::syscall::numbers::$number;
        $crate::syscall::raw(number, at(0), at(1), at(2), at(3), at(4), at(5))
    }};
}

/// The numbers of the system calls.
pub mod numbers {
    pub use libc::*;
}
