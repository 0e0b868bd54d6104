//! Messages that open their connection: the bytes before the remote's answer, and the bytes after
//! it.

use core::sync::atomic::Ordering;

use libc::{iovec, msghdr};
use toehold_channel::table::{FLAG_DEFERRED, FLAG_RESULT_UNREPORTED};

use super::transmit_more;
use crate::connection::orderings::OFFLOAD_ACQUIRE;
use crate::connection::{Connection, pending_errors};
use crate::offload::awaiting;
use crate::system::real::Door;
use crate::system::{errno, sys};
use crate::transfer::buffers::{self, part};

/// A program's message: its parts and its flags.
pub(crate) type Message<'m> = (&'m [iovec], i32);

/// Sends the first bytes of a deferred connection, which open it. `None`: the connection is not
/// deferred.
///
/// # Safety
/// The parts are readable.
#[cold]
pub(super) unsafe fn send_first(
    connection: &Connection,
    (parts, flags): Message<'_>,
) -> Option<isize> {
    if connection.entry.flags.load(OFFLOAD_ACQUIRE) & FLAG_DEFERRED == 0 {
        return None;
    }
    let taken = match buffers::total(parts) {
        // There are no bytes to send, so the SYN still waits.
        Ok(0) => return Some(0),
        Ok(_) => errno::keep(|| awaiting::open_deferred(connection, parts)),
        Err(error) => Err(error),
    };
    let taken = match taken {
        Ok(Some(taken)) => taken,
        Ok(None) => return None,
        Err(error) => return Some(errno::result(Err(error))),
    };
    let waits = flags & libc::MSG_DONTWAIT == 0 && !sys::is_nonblocking(connection.number());
    if !waits {
        // The next `connect` returns success once, as on Linux.
        let state = &connection.entry.flags;
        state.fetch_or(FLAG_RESULT_UNREPORTED, Ordering::Relaxed);
        return Some(taken as isize);
    }
    Some(match awaiting::before_transfer(connection, flags) {
        Ok(_) => {
            let rest = (parts, flags & !libc::MSG_FASTOPEN);
            // SAFETY: the caller's promise.
            unsafe { send_rest(Door::Name, connection, rest, taken) }
        }
        // The wait was interrupted, or its time is over.
        Err(libc::EINPROGRESS | libc::EINTR | libc::EAGAIN) => taken as isize,
        Err(error) => errno::result(Err(error)),
    })
}

/// Sends the rest of a message once the connection is made. If bytes were taken before, the call
/// returns their count on an error, and raises no signal (`do_error` in `tcp_sendmsg_locked`).
///
/// # Safety
/// The parts are readable.
pub(crate) unsafe fn send_rest(
    door: Door,
    connection: &Connection,
    (parts, flags): Message<'_>,
    taken: usize,
) -> isize {
    let send = |list: &[iovec], flags| {
        let kernel = |fd| {
            let header = header_of(list);
            // SAFETY: the caller's promise.
            unsafe { door.sendmsg(fd, &header, flags) }
        };
        // SAFETY: the caller's promise.
        unsafe { transmit_more(connection, list, flags, kernel) }
    };
    if taken == 0 {
        return send(parts, flags);
    }
    let mut sent = taken;
    let (cut, whole) = behind(parts, taken);
    for list in [&[cut][..], whole] {
        let Ok(wanted @ 1..) = buffers::total(list) else {
            continue;
        };
        let result = errno::keep(|| {
            let result = send(list, flags | libc::MSG_NOSIGNAL);
            if result < 0 {
                pending_errors::keep_for_next_call(connection, errno::get());
            }
            result
        });
        sent += result.max(0).unsigned_abs();
        if result.unsigned_abs() != wanted {
            break;
        }
    }
    sent as isize
}

/// The rest of the part that contains byte `skip`, and the parts behind it.
fn behind(parts: &[iovec], mut skip: usize) -> (iovec, &[iovec]) {
    for (n, one) in parts.iter().enumerate() {
        if skip < one.iov_len {
            let base = one.iov_base.wrapping_byte_add(skip);
            return (part(base, one.iov_len - skip), &parts[n + 1..]);
        }
        skip -= one.iov_len;
    }
    (part(core::ptr::null(), 0), &[])
}

pub(crate) fn header_of(parts: &[iovec]) -> msghdr {
    // SAFETY: zeroes are a valid `msghdr`.
    let mut header: msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = parts.as_ptr().cast_mut();
    header.msg_iovlen = parts.len() as _;
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_of_a_message_begins_where_its_payload_ends() {
        let bytes = [0u8; 9];
        let list = [(0, 4), (4, 0), (4, 5)].map(|(at, len)| part(bytes[at..].as_ptr().cast(), len));
        let left = |skip| {
            let (cut, whole) = behind(&list, skip);
            let all = core::iter::once(&cut).chain(whole);
            let at = |one: &iovec| one.iov_base.addr().wrapping_sub(bytes.as_ptr().addr());
            all.filter(|one| one.iov_len > 0)
                .map(|one| (at(one), one.iov_len))
                .collect::<Vec<_>>()
        };
        assert_eq!(left(0), [(0, 4), (4, 5)]);
        assert_eq!(left(3), [(3, 1), (4, 5)]);
        assert_eq!(left(4), [(4, 5)]);
        assert_eq!(left(8), [(8, 1)]);
        assert_eq!(left(9), []);
    }
}
