//! The calls programs make by name.

use core::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};
use toehold_sockets::api;

use crate::points;

macro_rules! export {
    ($is_asked:ident, $ask:ident: $($name:ident($($arg:ident: $type:ty),*) $(-> $ret:ty)?;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.startup")]
        unsafe extern "C" fn $name($($arg: $type),*) $(-> $ret)? {
            // A separate function, so that other calls save no registers.
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn asked($($arg: $type),*) $(-> $ret)? {
                let _deferred = points::$ask();
                // SAFETY: the arguments are passed on with the caller's promises.
                unsafe { api::$name($($arg),*) }
            }
            match points::$is_asked() {
                // SAFETY: as above.
                true => unsafe { asked($($arg),*) },
                // SAFETY: as above.
                false => unsafe { api::$name($($arg),*) },
            }
        }
    )*};
}

// Cancellation points.
export! {
    is_asked, ask:
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_wait(epfd: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int;
    epoll_pwait(epfd: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(epfd: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    splice(input: c_int, input_offset: *mut off_t, out: c_int, out_offset: *mut off_t, len: size_t, flags: c_uint) -> ssize_t;
}

export! {
    is_deferred, defer:
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int);
    dup(fd: c_int) -> c_int;
    dup2(from: c_int, to: c_int) -> c_int;
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    // Variadic in C. On every supported ABI the optional argument is passed like a fixed one.
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    eventfd_read(fd: c_int, value: *mut u64) -> c_int;
    eventfd_write(fd: c_int, value: u64) -> c_int;
    mlockall(flags: c_int) -> c_int;
    munlockall() -> c_int;
}
