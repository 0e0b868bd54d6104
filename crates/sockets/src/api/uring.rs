//! io_uring's calls. libc has no functions for them: programs use `syscall(2)` or liburing.

use core::ffi::{c_long, c_uint, c_void};

use crate::system::{errno, real};
use crate::uring;

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
    /// `IORING_ENTER_GETEVENTS`.
    const GET_EVENTS: c_uint = 1;
    let seen = errno::keep(|| uring::entering_in_turn(fd, wanted, flags, control));
    let (complete, flags) = match seen < wanted {
        // The kernel does not wait when it finds fewer requests than the call announces.
        true => (0, flags & !GET_EVENTS),
        false => (complete, flags),
    };
    let [seen, complete, flags] = [seen, complete, flags].map(|word| word as usize);
    let number = libc::SYS_io_uring_enter;
    let result =
        unsafe { real::syscall(number, fd as usize, seen, complete, flags, argument, size) };
    if wanted > 0 {
        uring::entered(fd);
    }
    result
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

/// A ring was made at `fd` past `syscall(2)`; negative for none.
pub unsafe fn io_uring_made(fd: i32, parameters: *const c_void) {
    if fd >= 0 {
        errno::keep(|| unsafe { uring::opened(fd, parameters.cast()) });
    }
}

/// `io_uring_enter` is about to be made past `syscall(2)`.
pub fn io_uring_entering(fd: i32, wanted: c_uint, flags: c_uint) {
    errno::keep(|| uring::entering(fd, wanted, flags, control));
}

/// `io_uring_register` is about to be made past `syscall(2)`.
pub unsafe fn io_uring_registering(
    fd: i32,
    opcode: c_uint,
    argument: *const c_void,
    count: c_uint,
) {
    errno::keep(|| unsafe { uring::registering(fd, opcode, argument.cast(), count) });
}

/// The kernel is going to use the `count` descriptors at `fds` by itself.
pub unsafe fn passing_on_all(fds: *const i32, count: c_uint) {
    errno::keep(|| unsafe { uring::given(fds, count) });
}

/// liburing has made `ring`, a `struct io_uring`.
pub unsafe fn liburing_made(ring: *const c_void) {
    errno::keep(|| unsafe { uring::liburing::made(ring.cast()) });
}

/// liburing is about to hand over the requests in `ring`.
pub unsafe fn liburing_submits(ring: *const c_void) {
    errno::keep(|| unsafe { uring::liburing::submits(ring.cast(), control) });
}

/// liburing is about to close `ring`.
pub unsafe fn liburing_ends(ring: *const c_void) {
    errno::keep(|| unsafe { uring::liburing::ends(ring.cast()) });
}

/// `epoll_ctl(2)` as a request: 0, or an errno.
unsafe fn control(epfd: i32, operation: i32, fd: i32, event: *mut libc::epoll_event) -> i32 {
    match unsafe { super::epoll::epoll_ctl(epfd, operation, fd, event) } {
        0 => 0,
        _ => errno::get(),
    }
}
