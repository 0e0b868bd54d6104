//! The socket layer's calls, each with the signature and the contract of the libc function of the
//! same name. For descriptors that are not ours, a call costs one branch before libc's function.
//!
//! - [`bytes`]: calls that move bytes; [`kept`]: bytes that come before the kernel's;
//! - [`messages`]: calls that move messages; [`opening`]: messages that open a connection;
//! - [`connections`]: calls that make a connection, name its ends, and end it;
//! - [`descriptors`]: closing, duplicating, modes and options;
//! - [`readiness`], [`epoll`]: calls that wait;
//! - `uring`: calls of io_uring; `zerocopy_receive`: a receive by `getsockopt`.

// Every function here forwards its arguments, with its caller's promises, to the libc function of
// the same name or to the layer below; this argument covers all of these blocks, here and in the
// modules, so it is not repeated. It does not cover blocks that follow a pointer of the program:
// such a pointer is checked first (`faults`), because the kernel would answer a bad one with
// `EFAULT`.
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

mod bytes;
mod connections;
mod descriptors;
mod epoll;
mod kept;
mod messages;
mod opening;
mod readiness;
mod uring;
mod zerocopy_receive;

use core::ffi::{c_int, c_void};

use toehold_channel::table::{Mode, Reason};

use crate::connection::closing;
use crate::connection::{self, Connection};
use crate::direction::switching;
use crate::express::listener;
use crate::offload::passive_open;
use crate::pairing;
use crate::process::descriptors::{Kind, is_noted, kind};
use crate::process::{self, confinement, kept_bytes};
use crate::system::{errno, sys};

pub use self::bytes::{
    eventfd_read, eventfd_write, preadv2, pwritev2, read, readv, recv, recvfrom, send, sendfile,
    sendto, splice, write, writev,
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
pub use self::messages::{
    may_read_message, recvmmsg, recvmmsg_by, recvmsg, recvmsg_by, sendmmsg, sendmmsg_by, sendmsg,
    sendmsg_by,
};
pub use self::readiness::{is_refused, poll, ppoll, pselect, select};
pub use self::uring::{
    io_uring_enter, io_uring_entering, io_uring_made, io_uring_register, io_uring_registering,
    io_uring_setup, liburing_ends, liburing_made, liburing_submits, passing_on_all,
};
pub use crate::memory::mlockall::{mlockall, munlockall};

/// stdio is about to use a descriptor, and its reads and writes do not pass through the library.
/// True when the connection already has a channel, so our calls must serve the stream. False when
/// the kernel can serve it; then the connection stays on the host path.
pub fn stdio_needs_us(fd: c_int) -> bool {
    let Some(c) = connection::at(fd) else {
        return kept_bytes::has_any() && kept_bytes::has(fd);
    };
    if c.local.attachment.has_region() {
        return true;
    }
    c.pin(Reason::Stdio);
    false
}

/// Makes `call`, in which libc closes `fd`, the descriptor of one of its streams, without a call of
/// ours. The number may be used again. (A stream that our calls serve is closed by our calls.)
#[unsafe(link_section = ".text.startup")]
pub fn stream_closed_by<T>(fd: c_int, call: impl FnOnce() -> T) -> T {
    passive_open::told_after(stream_closes(fd), call)
}

/// True when a listener ends.
#[unsafe(link_section = ".text.startup")]
fn stream_closes(fd: c_int) -> bool {
    if kept_bytes::has_any() && !confinement::is_guest() {
        kept_bytes::closing(fd);
    }
    let has_channel = |c: Connection| c.local.attachment.has_region();
    let is_known = connection::at(fd).is_some() || is_noted(fd);
    if is_known && !connection::at(fd).is_some_and(has_channel) && !process::borrowed_memory() {
        errno::keep(|| closing::closing(fd));
    }
    if listener::are_any() {
        errno::keep(|| listener::closing(fd));
    }
    passive_open::is_ending(fd)
}

/// True when `fd` is tracked or has kept bytes: calls that libc would make internally must go
/// through the library.
pub fn is_tracked(fd: c_int) -> bool {
    kind(fd) == Kind::Connection || kept_bytes::has_any() && kept_bytes::has(fd)
}

/// True when the library knows nothing about `fd`, neither as a connection nor as an epoll
/// instance. So the program may make its calls to the kernel directly.
pub fn is_kernels(fd: c_int) -> bool {
    kind(fd) == Kind::Foreign && !is_noted(fd) && !kept_bytes::has_any()
}

/// True when the library still keeps received bytes that the program has not read, although it no
/// longer serves the connection.
#[must_use]
pub fn has_kept_bytes() -> bool {
    kept_bytes::has_any()
}

/// Carries out the adapter's commands for a connection that the program is not using; exported for
/// tests.
pub fn service(fd: c_int) {
    if let Some(c) = connection::at(fd) {
        if !c.local.attachment.has_region() {
            pairing::consider(&c);
        } else {
            switching::service(&c);
        }
    }
}

/// A part of the program that bypasses the library is going to write to `fd`: our direction moves
/// to the carrier for good.
pub fn before_kernel_writes(fd: c_int) {
    let Some(c) = connection::at(fd) else {
        return;
    };
    errno::keep(|| match !c.local.attachment.has_region() {
        true => c.pin(Reason::Unsupported),
        false => drop(switching::leave_ring(&c, Reason::Unsupported)),
    });
}

/// A part of the program that bypasses the library is going to read from `fd` into these `len`
/// bytes. `None` when it may read, because all further bytes come on the carrier. Otherwise the
/// read was made here, with the returned result.
///
/// # Safety
/// `buffer` is writable for `len` bytes.
pub unsafe fn before_kernel_reads(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
) -> Option<Result<usize, i32>> {
    /// Time within which a peer finishes a send that was in progress when we refused the channel.
    const SETTLE_NS: u64 = 4_000_000;
    let is_kept = || kept_bytes::has_any() && len > 0 && kept_bytes::has(fd);
    let Some(c) = connection::at(fd) else {
        return is_kept().then(|| {
            errno::keep(|| {
                // SAFETY: the caller's promise.
                let got = unsafe { recv(fd, buffer, len, libc::MSG_DONTWAIT) };
                usize::try_from(got).map_err(|_| errno::get())
            })
        });
    };
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
