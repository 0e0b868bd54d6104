//! A helper that a program's library has made: it has the program's memory, but not its signals,
//! its descriptors or its name.

use core::ffi::c_int;

use toehold_freestanding::call;

use super::system::set_action;

/// Removes from the calling process everything of the program except its memory and one descriptor,
/// which becomes 0. No signal handler of the program runs in this process: on an error, it just
/// ends.
///
/// # Safety
/// The process has one thread, which has no other task, and its own table of descriptors.
pub unsafe fn stand_alone(descriptor: c_int) {
    let mut unblocked = 0_u64;
    for signal in FAULTS {
        set_action(signal, end as *const () as usize);
        unblocked |= 1 << (signal - 1);
    }
    // If SIGCHLD were ignored, it would not report traced processes.
    set_action(libc::SIGCHLD, libc::SIG_DFL);
    let blocked = !unblocked;
    let (how, mask, name) = (libc::SIG_SETMASK, &raw const blocked, c"toehold".as_ptr());
    // SAFETY: a mask of eight bytes, and a name that ends with a null byte. The descriptors are
    // this process's own.
    unsafe {
        call!(SYS_rt_sigprocmask, how, mask, 0, 8);
        call!(SYS_prctl, libc::PR_SET_NAME, name, 0, 0, 0);
        if descriptor != 0 {
            call!(SYS_dup3, descriptor, 0, 0);
        }
        call!(SYS_close_range, 1, u32::MAX, 0);
    }
}

/// Signals that report an error in this process itself. If the kernel ended the process for one of
/// them, it would dump core, and so end the program that shares the memory (before Linux 5.17).
const FAULTS: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGABRT,
];

extern "C" fn end(_: c_int) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { call!(SYS_exit_group, 1) };
    }
}
