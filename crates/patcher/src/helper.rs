//! A process that a program's library has made for a helper: the program's memory, but not its
//! signals, its descriptors and its name.

use core::ffi::c_int;

use toehold_freestanding::call;

use super::system::set_action;

/// Leaves the calling process nothing of the program's but its memory, and one descriptor, which
/// is 0 from here on. No handler of the program's runs in it: where it fails, it just ends.
///
/// # Safety
/// The process has one thread, which nobody else needs, and a table of descriptors of its own.
pub unsafe fn stand_alone(descriptor: c_int) {
    let mut unblocked = 0_u64;
    for signal in FAULTS {
        set_action(signal, end as *const () as usize);
        unblocked |= 1 << (signal - 1);
    }
    // Ignored, it would tell nothing of traced processes.
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

/// Signals that tell of a failure of this process's own. A kernel that ended it for one of them
/// would dump its memory, and with it end the program, whose memory it is (before 5.17).
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
