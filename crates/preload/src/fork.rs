//! Forks, by name and by number.

use core::ffi::{c_long, c_void};

use toehold_freestanding::errno;
use toehold_sockets::system::real;
use toehold_sockets::{
    after_fork_in_child, after_fork_in_parent, before_fork, begin_vfork, end_vfork,
};

/// A fork by number runs no `pthread_atfork` handlers, so this does the work of the library's
/// handlers.
pub(crate) fn forked(fork: impl FnOnce() -> c_long) -> c_long {
    before_fork();
    let result = fork();
    match result {
        0 => after_fork_in_child(),
        _ => after_fork_in_parent(result),
    }
    result
}

/// `fork(2)`: the handlers run, but none of them learns the child's number, or that the fork has
/// failed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fork() -> libc::pid_t {
    // SAFETY: passed on with the caller's promises.
    let child = unsafe { real::fork() };
    if child != 0 {
        after_fork_in_parent(child.into());
    }
    child
}

/// `vfork(2)` returns twice. The library makes the call itself if it must know that the parent has
/// returned; otherwise it jumps to libc's function.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> libc::pid_t {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {begin}",
        "add rsp, 8",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        // The child goes on first, on this stack, and its calls overwrite the return address.
        "pop rdx",
        "mov eax, {number}",
        "syscall",
        "push rdx",
        "mov rdi, rax",
        "test rax, rax",
        "jnz {end}",
        "ret",
        begin = sym begin,
        number = const libc::SYS_vfork,
        end = sym end,
    )
}

/// libc's own name for `vfork`.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn __vfork() -> libc::pid_t {
    core::arch::naked_asm!("jmp {vfork}", vfork = sym vfork)
}

/// The function that makes the call; null when [`vfork`] does.
#[cfg(target_arch = "x86_64")]
extern "C" fn begin() -> *mut c_void {
    match begin_vfork() {
        true => core::ptr::null_mut(),
        false => real::address_of_vfork(),
    }
}

/// The call has returned in the parent, with the child's number or an error.
#[cfg(target_arch = "x86_64")]
extern "C" fn end(result: isize) -> libc::pid_t {
    end_vfork();
    if result < 0 {
        errno::set(-result as i32);
        return -1;
    }
    result as libc::pid_t
}
