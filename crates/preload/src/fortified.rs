//! The `_chk` variants that `_FORTIFY_SOURCE` compiles in: calls with one more argument, the size
//! of the buffer that the compiler knows.

use core::ffi::{c_int, c_void};

use libc::{nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use toehold_sockets::api;
use toehold_sockets::system::real;

use crate::points;

fn check(len: size_t, room: size_t) {
    if len > room {
        // SAFETY: reports a buffer overflow and ends the process, as libc's own `_chk` functions
        // do.
        unsafe { real::__chk_fail() };
        crate::abort();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    let _deferred = points::is_asked().then(points::ask);
    check(len, room);
    // SAFETY: passed on with the caller's promises, here and below.
    unsafe { api::read(fd, buffer, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    let _deferred = points::is_asked().then(points::ask);
    check(len, room);
    // SAFETY: as above.
    unsafe { api::recv(fd, buffer, len, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    let _deferred = points::is_asked().then(points::ask);
    check(len, room);
    // SAFETY: as above.
    unsafe { api::recvfrom(fd, buffer, len, flags, address, address_len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    room: size_t,
) -> c_int {
    let _deferred = points::is_asked().then(points::ask);
    check(count as size_t * size_of::<pollfd>(), room);
    // SAFETY: as above.
    unsafe { api::poll(fds, count, timeout_ms) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    let _deferred = points::is_asked().then(points::ask);
    check(count as size_t * size_of::<pollfd>(), room);
    // SAFETY: as above.
    unsafe { api::ppoll(fds, count, timeout, mask) }
}
