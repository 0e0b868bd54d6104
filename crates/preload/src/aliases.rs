//! Second names of the calls: libc's own (`__read`), and those of programs built with 64-bit file
//! offsets (`fcntl64`). On the machines that we serve the offsets are the same.

use core::ffi::{c_int, c_void};

use libc::{fd_set, iovec, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};
use toehold_sockets::api;

macro_rules! export {
    ($($alias:ident is $name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $alias($($arg: $type),*) -> $ret {
            // SAFETY: the arguments are passed on with the caller's promises.
            unsafe { api::$name($($arg),*) }
        }
    )*};
}

export! {
    __read is read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    __write is write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    __send is send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    __connect is connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    __close is close(fd: c_int) -> c_int;
    __dup2 is dup2(from: c_int, to: c_int) -> c_int;
    __fcntl is fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fcntl64 is fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    __poll is poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    __select is select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int;
    sendfile64 is sendfile(
        out: c_int,
        input: c_int,
        offset: *mut off_t,
        count: size_t
    ) -> ssize_t;
    preadv64v2 is preadv2(
        fd: c_int,
        iov: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int
    ) -> ssize_t;
    pwritev64v2 is pwritev2(
        fd: c_int,
        iov: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int
    ) -> ssize_t;
}
