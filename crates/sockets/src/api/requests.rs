//! io_uring's calls, which libc has no functions for: `syscall(2)` makes them.

use core::ffi::{c_long, c_uint, c_void};

use crate::{errno, real, uring};

/// `io_uring_setup(2)`.
pub unsafe fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_long {
    let (number, count) = (libc::SYS_io_uring_setup, entries as usize);
    let fd = unsafe { real::syscall(number, count, parameters as usize, 0, 0, 0, 0) };
    if fd >= 0 {
        errno::keep(|| unsafe { uring::opened(fd as i32, parameters.cast()) });
    }
    fd
}

/// `io_uring_enter(2)`.
pub unsafe fn io_uring_enter(
    fd: i32,
    wanted: c_uint,
    complete: c_uint,
    flags: c_uint,
    argument: usize,
    size: usize,
) -> c_long {
    errno::keep(|| uring::entering(fd, wanted, flags));
    let [wanted, complete, flags] = [wanted, complete, flags].map(|word| word as usize);
    let number = libc::SYS_io_uring_enter;
    unsafe { real::syscall(number, fd as usize, wanted, complete, flags, argument, size) }
}

/// `io_uring_register(2)`.
pub unsafe fn io_uring_register(
    fd: i32,
    opcode: c_uint,
    argument: *mut c_void,
    count: c_uint,
) -> c_long {
    errno::keep(|| unsafe { uring::registering(fd, opcode, argument.cast(), count) });
    let [opcode, count] = [opcode, count].map(|word| word as usize);
    let number = libc::SYS_io_uring_register;
    unsafe { real::syscall(number, fd as usize, opcode, argument as usize, count, 0, 0) }
}
