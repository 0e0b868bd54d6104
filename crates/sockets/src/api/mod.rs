//! The socket layer's calls, each with the signature and the contract of the libc function of the
//! same name. Descriptors that are not ours cost one branch, then the real call.
//!
//! - [`bytes`]: calls that move bytes;
//! - [`connections`]: calls that make a connection, name its ends, and end it;
//! - [`descriptors`]: closing, duplicating, modes and options;
//! - [`readiness`], [`epoll`]: calls that wait;
//! - `uring`: calls of io_uring.

// Every function here forwards its arguments, with its caller's promises, to the libc function of
// the same name or to the layer below; one argument covers all of these blocks, here and in the
// modules, so it is not repeated at each. It covers no block that follows a pointer of the
// program's: the kernel answers a bad one, so it is looked at first (`faults`).
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

mod bytes;
mod connections;
mod descriptors;
mod epoll;
mod readiness;
mod uring;

use core::ffi::{c_int, c_void};

use toehold_channel::table::{Mode, Reason};

use crate::connection::closing;
use crate::connection::{self, Connection};
use crate::direction::switching;
use crate::pairing;
use crate::process::descriptors::{Kind, is_noted, kind};
use crate::process::{self, kept_bytes};
use crate::system::{errno, sys};

pub use self::bytes::{
    eventfd_read, eventfd_write, may_read_message, preadv2, pwritev2, read, readv, recv, recvfrom,
    recvmmsg, recvmmsg_by, recvmsg, recvmsg_by, send, sendfile, sendmmsg, sendmmsg_by, sendmsg,
    sendmsg_by, sendto, splice, write, writev,
};
pub use self::connections::{
    accept, accept4, bind, connect, getpeername, getsockname, listen, shutdown, socket,
};
pub use self::descriptors::{
    close, close_range, closefrom, dup, dup2, dup3, fcntl, getsockopt, giving_to_kernel, ioctl,
    passing_on, setsockopt, standard_descriptors_replaced, takes_socket,
};
pub use self::epoll::{
    epoll_create, epoll_create1, epoll_ctl, epoll_pwait, epoll_pwait2, epoll_wait,
};
pub use self::readiness::{is_refused, poll, ppoll, pselect, select};
pub use self::uring::{
    io_uring_enter, io_uring_entering, io_uring_made, io_uring_register, io_uring_registering,
    io_uring_setup, liburing_ends, liburing_made, liburing_submits, passing_on_all,
};
pub use crate::memory::mlockall::{mlockall, munlockall};

/// A descriptor is about to be used by stdio, whose own reads and writes do not pass through us:
/// true when the stream must be served by our calls (the connection has a channel already), false
/// when the kernel's will do and the connection stays on the host path.
pub fn stdio_needs_us(fd: c_int) -> bool {
    let Some(c) = connection::at(fd) else {
        return false;
    };
    if c.local.attachment.has_region() {
        return true;
    }
    c.pin(Reason::Stdio);
    false
}

/// libc is about to close `fd`, which a stream of its own has, inside itself: its number may be
/// given out again. A stream that is served by our calls closes by them.
#[unsafe(link_section = ".text.startup")]
pub fn stream_closes(fd: c_int) {
    let has_channel = |c: Connection| c.local.attachment.has_region();
    let is_known = connection::at(fd).is_some() || is_noted(fd);
    if is_known && !connection::at(fd).is_some_and(has_channel) && !process::borrowed_memory() {
        errno::keep(|| closing::closing(fd));
    }
}

/// True when `fd` is tracked: calls that libc makes on its behalf inside itself must be made
/// through us.
pub fn is_tracked(fd: c_int) -> bool {
    kind(fd) == Kind::Connection
}

/// True when the kernel alone answers calls that move the bytes of `fd`, or that wait for it as an
/// epoll instance: nothing is known of it, so the program's own call does as well as one here.
pub fn is_kernels(fd: c_int) -> bool {
    kind(fd) == Kind::Foreign && !is_noted(fd) && !kept_bytes::has_any()
}

/// True when bytes were received for the program that it has not read, though the library serves it
/// no more.
#[must_use]
pub fn has_kept_bytes() -> bool {
    kept_bytes::has_any()
}

/// Lets the adapter's wishes reach a connection the program is not using; exported for tests.
pub fn service(fd: c_int) {
    if let Some(c) = connection::at(fd) {
        if !c.local.attachment.has_region() {
            pairing::consider(&c);
        } else {
            switching::service(&c);
        }
    }
}

/// A part of the program that does not know us is going to write to `fd`: our direction moves to
/// the carrier, for good.
pub fn before_kernel_writes(fd: c_int) {
    let Some(c) = connection::at(fd) else {
        return;
    };
    errno::keep(|| match !c.local.attachment.has_region() {
        true => c.pin(Reason::Unsupported),
        false => drop(switching::leave_ring(&c, Reason::Unsupported)),
    });
}

/// A part of the program that does not know us is going to read from `fd` into these `len` bytes.
/// `None`: it may, the carrier has all that comes. Otherwise the read has been made here, with this
/// result.
///
/// # Safety
/// `buffer` is writable for `len` bytes.
pub unsafe fn before_kernel_reads(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
) -> Option<Result<usize, i32>> {
    /// A peer that was in the middle of a send when it was refused finishes it within this time.
    const SETTLE_NS: u64 = 4_000_000;
    let c = connection::at(fd)?;
    if !c.local.attachment.has_region() {
        c.pin(Reason::Unsupported);
        return None;
    }
    errno::keep(|| {
        switching::leave_ring(&c, Reason::Unsupported);
        let start = sys::now_ns();
        loop {
            // SAFETY: the caller's promise.
            let got = unsafe { recv(fd, buffer, len, libc::MSG_DONTWAIT) };
            if got >= 0 {
                return Some(Ok(got as usize));
            }
            if errno::get() != libc::EAGAIN {
                return Some(Err(errno::get()));
            }
            let is_down = c
                .end()
                .is_none_or(|end| end.rx_mode() == Mode::Carrier && !end.records_pending());
            if is_down {
                return None;
            }
            if sys::now_ns() - start >= SETTLE_NS {
                switching::quiesce(&c, Reason::Unsupported);
                return None;
            }
            sys::yield_now();
        }
    })
}
