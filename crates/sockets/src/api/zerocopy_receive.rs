//! `TCP_ZEROCOPY_RECEIVE`: a receive by `getsockopt(2)`. The kernel maps pages that it has received
//! into the program's memory, or copies a few bytes, or tells the program how many bytes to receive
//! by another call.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;

use libc::socklen_t;
use toehold_channel::table::Reason;

use crate::api::bytes::recv;
use crate::connection::carrier::Carrier;
use crate::connection::{Connection, options};
use crate::direction::switching;
use crate::system::{errno, faults};
use crate::transfer::peek;

/// `struct tcp_zerocopy_receive` of include/uapi/linux/tcp.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
    inq: u32,
    err: i32,
    copybuf_address: u64,
    copybuf_len: i32,
    flags: u32,
    msg_control: u64,
    msg_controllen: u64,
    msg_flags: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Request>() == 64);

/// The shortest request that the kernel takes: up to `length`.
const LEN_MIN: usize = offset_of!(Request, recv_skip_hint);

/// The flag that a request may have: it asks for times of arrival (include/net/tcp.h).
const TCP_CMSG_TS: u32 = 2;

/// Receives from a connection with a channel. The kernel sees only doorbells of its bytes and would
/// give them to the program. None when the kernel is to answer: it refuses the request, or all
/// bytes are its own.
///
/// A ring's pages cannot be mapped. So the connection goes back to its carrier, and until then the
/// program gets the answers that the kernel gives when no page can be mapped: a copy, or the number
/// of bytes to receive by another call.
pub(super) unsafe fn receive(
    c: &Connection,
    fd: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Option<c_int> {
    if Carrier::of(c) != Carrier::Tcp {
        return None;
    }
    errno::keep(|| switching::retire(c, Reason::Unsupported));
    c.end()?;
    if len.is_null() || value.is_null() || !faults::can_read(len, 1) {
        return None;
    }
    let room = usize::try_from(unsafe { *len }.cast_signed()).ok()?;
    let whole = room.min(size_of::<Request>());
    if whole < LEN_MIN || !faults::can_read(value.cast::<u8>(), whole) {
        return None;
    }
    let mut request = Request::default();
    // SAFETY: `whole` bytes at `value` are readable, and the request has room for them.
    unsafe {
        value
            .cast::<u8>()
            .copy_to_nonoverlapping((&raw mut request).cast(), whole);
    }
    let is_refused = !request.address.is_multiple_of(PAGE_BYTES)
        || request.reserved != 0
        || request.msg_flags & !TCP_CMSG_TS != 0;
    if is_refused {
        return None;
    }
    let copy_max = request.copybuf_len;
    (request.length, request.recv_skip_hint) = (0, 0);
    (request.copybuf_len, request.msg_flags) = (0, 0);
    match errno::keep(|| peek::waiting(c)) {
        Some(0) if has_ended(c) => {
            errno::set(libc::EIO);
            return Some(-1);
        }
        Some(waiting) if waiting > 0 && waiting <= copy_max => {
            let target = request.copybuf_address as *mut c_void;
            let got = unsafe { recv(fd, target, waiting as usize, libc::MSG_DONTWAIT) };
            if got < 0 {
                return Some(-1);
            }
            request.copybuf_len = got as i32;
        }
        // Whoever cannot count the bytes lets the program's next receive find out.
        waiting => request.recv_skip_hint = waiting.unwrap_or(1).cast_unsigned(),
    }
    if whole >= offset_of!(Request, copybuf_address) {
        request.err = -errno::keep(|| options::take_error(c));
    }
    request.inq = errno::keep(|| peek::left(c)).cast_unsigned();
    let told_len = whole as socklen_t;
    // SAFETY: both are readable; the targets are this call's.
    let told = unsafe {
        faults::give((&raw const request).cast(), value.cast(), whole).and_then(|()| {
            let size = size_of_val(&told_len);
            faults::give((&raw const told_len).cast(), len.cast(), size)
        })
    };
    Some(errno::result(told.map(|()| 0)) as c_int)
}

/// True when the stream has ended and no byte is left: of what [`peek::left`] counts only the end
/// remains.
fn has_ended(c: &Connection) -> bool {
    errno::keep(|| peek::left(c) > 0 && peek::waiting(c) == Some(0))
}

/// The kernel maps whole pages.
const PAGE_BYTES: u64 = 4096;
