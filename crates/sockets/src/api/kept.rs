//! Calls that take bytes, on a descriptor that the library has left: bytes that were kept for it
//! come first ([`kept_bytes`]).

use core::ffi::c_int;

use libc::{iovec, msghdr};

use crate::process::kept_bytes;
use crate::system::real::Door;
use crate::system::{errno, real};
use crate::transfer::buffers;

/// Makes a call on the kernel, unless bytes were kept for the descriptor ([`kept_bytes`]).
///
/// # Safety
/// `parts` are writable.
#[inline]
pub(super) unsafe fn kept_or(
    fd: c_int,
    parts: &[iovec],
    flags: c_int,
    kernel: impl FnOnce() -> isize,
) -> isize {
    if kept_bytes::has_any() && buffers::total(parts) != Ok(0) {
        // SAFETY: the caller's promise.
        if let Some(result) = unsafe { receive_kept(fd, parts, flags) } {
            return result;
        }
    }
    kernel()
}

/// Receives kept bytes. A receive that looks, or that waits for all bytes, then goes on in the
/// kernel. `None`: there are no kept bytes.
///
/// # Safety
/// As for [`kept_or`].
#[cold]
pub(super) unsafe fn receive_kept(fd: c_int, parts: &[iovec], flags: c_int) -> Option<isize> {
    // SAFETY: the caller's promise, here and below.
    let kept = unsafe { kept_bytes::receive(fd, parts, flags) }?;
    let looks = flags & libc::MSG_PEEK != 0;
    let wanted = buffers::total(parts).unwrap_or(0);
    let (Ok(done), true) = (
        usize::try_from(kept),
        looks || flags & libc::MSG_WAITALL != 0,
    ) else {
        return Some(kept);
    };
    if done >= wanted {
        return Some(kept);
    }
    let flags = match flags & libc::MSG_WAITALL {
        0 => flags | libc::MSG_DONTWAIT,
        _ => flags,
    };
    let (mut window, count) = buffers::window(parts, done, wanted - done);
    let more = errno::keep(|| unsafe {
        // SAFETY: zeroes are a valid message.
        let mut message: msghdr = core::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (window.as_mut_ptr(), count as _);
        let more = match window[..count] {
            [one] => real::recv(fd, one.iov_base, one.iov_len, flags),
            _ => Door::Name.recvmsg(fd, &mut message, flags),
        };
        let error = errno::get();
        if more < 0 && !looks && ![libc::EAGAIN, libc::EINTR].contains(&error) {
            kept_bytes::keep_error(fd, error);
        }
        more
    });
    Some(kept + more.max(0))
}
