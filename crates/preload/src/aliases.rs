//! Second names of the calls: libc's own (`__read`), and those of programs built with 64-bit file
//! offsets (`fcntl64`). On the supported machines both kinds of offsets are equal.

use core::ffi::{c_int, c_void};

use libc::{fd_set, iovec, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};
use toehold_sockets::api;
use toehold_sockets::system::deferral;

use crate::fork::fork;
use crate::points;
use crate::process::clone;

macro_rules! export {
    ($is_asked:ident, $ask:ident:
     $($alias:ident is $name:path, ($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.startup")]
        unsafe extern "C" fn $alias($($arg: $type),*) -> $ret {
            // A separate function, so that other calls save no registers.
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn asked($($arg: $type),*) -> $ret {
                let _deferred = points::$ask();
                // SAFETY: the arguments are passed on with the caller's promises.
                unsafe { $name($($arg),*) }
            }
            match points::$is_asked() {
                // SAFETY: as above.
                true => unsafe { asked($($arg),*) },
                // SAFETY: as above.
                false => unsafe { $name($($arg),*) },
            }
        }
    )*};
}

// Cancellation points.
export! {
    is_asked, ask:
    __read is api::read, (fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    __write is api::write, (fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    __send is api::send, (fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    __connect is api::connect, (fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    __close is api::close, (fd: c_int) -> c_int;
    __poll is api::poll, (fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    __select is api::select, (
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int;
    preadv64v2 is api::preadv2, (
        fd: c_int,
        iov: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int
    ) -> ssize_t;
    pwritev64v2 is api::pwritev2, (
        fd: c_int,
        iov: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int
    ) -> ssize_t;
}

export! {
    is_deferred, defer:
    __dup2 is api::dup2, (from: c_int, to: c_int) -> c_int;
    __fcntl is api::fcntl, (fd: c_int, command: c_int, argument: usize) -> c_int;
    fcntl64 is api::fcntl, (fd: c_int, command: c_int, argument: usize) -> c_int;
    sendfile64 is api::sendfile, (
        out: c_int,
        input: c_int,
        offset: *mut off_t,
        count: size_t
    ) -> ssize_t;
    __sigaction is deferral::sigaction, (
        signal: c_int,
        new: *const libc::sigaction,
        old: *mut libc::sigaction
    ) -> c_int;
    __fork is fork, () -> c_int;
    __clone is clone, (
        function: extern "C" fn(*mut c_void) -> c_int,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        parent: usize,
        tls: usize,
        child: usize
    ) -> c_int;
}
