//! The socket layer's calls, each with the signature and the contract of the libc function of the same name. Descriptors that are
//! not ours cost one branch, then the real call.
//!
//! - [`bytes`]: calls that move bytes;
//! - [`connections`]: calls that make a connection, name its ends, and end it;
//! - [`descriptors`]: closing, duplicating, modes and options;
//! - [`readiness`], [`epoll`]: calls that wait.

// Every function here forwards its arguments, with its caller's promises, to the libc function of the same name or to the layer
// below; one argument covers all of these blocks, here and in the modules, so it is not repeated at each.
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

mod bytes;
mod connections;
mod descriptors;
mod epoll;
mod readiness;

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use libc::{iovec, pollfd};
use toehold_channel::table::Reason;

pub use self::bytes::{
    read, readv, recv, recvfrom, recvmmsg, recvmsg, send, sendfile, sendmmsg, sendmsg, sendto,
    splice, write, writev,
};
pub use self::connections::{
    accept, accept4, bind, connect, getpeername, getsockname, listen, shutdown,
};
pub use self::descriptors::{
    close, close_range, closefrom, dup, dup2, dup3, fcntl, getsockopt, ioctl, passing_on,
    setsockopt,
};
pub use self::epoll::{
    epoll_create, epoll_create1, epoll_ctl, epoll_pwait, epoll_pwait2, epoll_wait,
};
pub use self::readiness::{poll, ppoll, pselect, select};
use crate::state::{self, Kind};
use crate::{buffers, pairing, real};

#[inline]
fn part(base: *const c_void, len: usize) -> iovec {
    iovec {
        iov_base: base.cast_mut(),
        iov_len: len,
    }
}

/// The parts an array names, or nothing when the kernel would refuse them.
#[inline]
unsafe fn parts<'a>(iov: *const iovec, count: usize) -> Option<&'a [iovec]> {
    if count == 0 {
        return Some(&[]);
    }
    if iov.is_null() || count > buffers::PARTS_MAX {
        return None;
    }
    // SAFETY: the caller of the C function promises `count` readable elements.
    Some(unsafe { core::slice::from_raw_parts(iov, count) })
}

/// A plain kernel send of one part, for helpers that need one.
pub(crate) fn kernel_send(fd: i32, part: &iovec) -> isize {
    // SAFETY: `part` names memory its owner vouches for.
    unsafe { real::write(fd, part.iov_base, part.iov_len) }
}

/// A plain kernel receive into one part.
pub(crate) fn kernel_recv(fd: i32, part: &iovec) -> isize {
    // SAFETY: as in `kernel_send`.
    unsafe { real::read(fd, part.iov_base, part.iov_len) }
}

/// Waits until `fd` can take more.
pub(crate) fn wait_writable(fd: i32) {
    let mut one = pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one `pollfd`.
    unsafe { poll(&mut one, 1, 100) };
}

/// A descriptor is about to be used by stdio, whose own reads and writes do not pass through us: true when the stream must be served
/// by our calls (the connection has a channel already), false when the kernel's will do and the connection stays on the host path.
pub fn stdio_needs_us(fd: c_int) -> bool {
    let Some(c) = state::connection(fd) else {
        return false;
    };
    if !c.local.region.load(Ordering::Relaxed).is_null() {
        return true;
    }
    c.pin(Reason::Stdio);
    false
}

/// True when `fd` is tracked: calls that libc makes on its behalf inside itself must be made through us.
pub fn is_tracked(fd: c_int) -> bool {
    state::kind(fd) == Kind::Connection
}

/// Lets the adapter's wishes reach a connection the program is not using; exported for tests.
pub fn service(fd: c_int) {
    if let Some(c) = state::connection(fd) {
        if c.local.region.load(Ordering::Relaxed).is_null() {
            pairing::consider(&c);
        } else {
            crate::send::service(&c);
        }
    }
}
