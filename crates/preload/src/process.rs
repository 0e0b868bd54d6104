//! Exit and exec: what a process holds when it goes, it holds no longer.

use core::ffi::{c_char, c_int};

use toehold_sockets::{before_exec, ending, exec_failed, real};

/// Registers for the ordinary end of the program.
pub(crate) fn follow_exit() {
    extern "C" fn at_exit() {
        ending();
    }
    // SAFETY: the handler lives as long as the library, which is never unloaded.
    unsafe { libc::atexit(at_exit) };
}

/// `_exit(2)`: no `atexit` handlers run.
#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    ending();
    loop {
        // SAFETY: ends the process.
        unsafe { real::syscall(libc::SYS_exit_group, status as usize, 0, 0, 0, 0, 0) };
    }
}

/// `_Exit(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: as `_exit`.
    unsafe { _exit(status) }
}

/// `execve(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn execve(
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    before_exec();
    // SAFETY: passed on with the caller's promises. Returns only when it failed.
    let result = unsafe { real::execve(path, argv, envp) };
    exec_failed();
    result
}
