//! Messages that open a connection (TCP Fast Open, RFC 7413).

use core::ffi::c_int;

use libc::{iovec, sockaddr, socklen_t};

use crate::offload::{addresses, fast_open, routing};
use crate::process;
use crate::process::descriptors::{self, FRESH_CUSTOMIZED};
use crate::system::real::Door;
use crate::system::{errno, faults};

/// A send with `MSG_FASTOPEN`, if the library serves it.
#[cold]
pub(super) unsafe fn open_by_message(
    door: Door,
    fd: c_int,
    message: (&[iovec], c_int),
    address: *const sockaddr,
    len: socklen_t,
) -> Option<isize> {
    let is_readable = address.is_null() || addresses::is_readable(address, len);
    let done = match routing::has_business() && is_readable {
        true => unsafe { fast_open::send(door, fd, message, address, len) },
        false => None,
    };
    // The kernel connects the socket, and the library does not see the result.
    descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
    done
}

/// True when a message with these flags may be read: a bad pointer then gives `EFAULT` instead of a
/// crash.
#[inline]
pub(super) fn may_look(fd: c_int, flags: c_int) -> bool {
    faults::are_armed() || flags & libc::MSG_FASTOPEN != 0 && is_armed_to_open(fd)
}

/// The process's first connection may be opened by this message. True when the message may be read.
#[cold]
fn is_armed_to_open(fd: c_int) -> bool {
    // As in `open_by_message`.
    descriptors::change_fresh(fd, FRESH_CUSTOMIZED, true);
    if routing::has_business() && process::is_started() {
        errno::keep(faults::arm);
    }
    faults::are_armed()
}
