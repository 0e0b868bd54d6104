//! Exit and exec: what a process holds when it goes, it holds no longer.

use core::ffi::{c_char, c_int, c_void};

use toehold_sockets::{api, before_exec, ending, exec_failed, real};

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

/// `posix_spawn_file_actions_adddup2(3)`: the child will have the descriptor, and libc makes it without calling us.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    from: c_int,
    to: c_int,
) -> c_int {
    api::passing_on(from);
    // SAFETY: passed on with the caller's promises.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, from, to) }
}

macro_rules! exec {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            before_exec();
            // SAFETY: passed on with the caller's promises. Returns only when it failed.
            let result = unsafe { real::$name($($arg),*) };
            exec_failed();
            result
        }
    )*};
}

exec! {
    /// `execve(2)`.
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char);
    /// `execv(3)`; libc's goes straight to its own `execve`.
    execv(path: *const c_char, argv: *const *const c_char);
    /// `execvp(3)`, likewise.
    execvp(file: *const c_char, argv: *const *const c_char);
    /// `execvpe(3)`, likewise.
    execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char);
    /// `fexecve(3)`, likewise.
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char);
}
