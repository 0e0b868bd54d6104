//! Messages that open their connection (`MSG_FASTOPEN`, RFC 7413).
//!
//! ```text
//!   sendto ─► has the remote given a cookie? ── no ──► as `connect`, then as `send`
//!                       │ yes
//!                       ▼
//!             carrier to the relay, preamble and payload in one send ─► the SYN takes them along
//! ```
//!
//! Without a cookie nothing of the message leaves before the answer: a call that does not wait says
//! `EINPROGRESS`, as on Linux (`tcp_sendmsg_fastopen` in net/ipv4/tcp.c). With one, a call that
//! does not wait says how much was taken.
//!
//! The remote may have what was taken, whatever becomes of the connection. So from then on the
//! kernel cannot begin afresh, and an adapter that dies is an error (`awaiting::SILENCE`).

use libc::{iovec, msghdr, sockaddr, socklen_t};
use toehold_channel::table::{FLAG_OFFLOAD, FLAG_REFUSED};

use crate::connection::orderings::OFFLOAD_SEEN;
use crate::connection::{self, Connection, pending_errors, tracking};
use crate::offload::active_open::{self, By, Opened};
use crate::offload::{addresses, routing};
use crate::process;
use crate::system::real::Door;
use crate::system::{errno, sys};
use crate::transfer::buffers::{self, part};
use crate::transfer::send::transmit_more;

/// A program's message: its parts and its flags.
type Message<'m> = (&'m [iovec], i32);

/// A send with `MSG_FASTOPEN`, as far as it is the engine's. `None`: the kernel's.
///
/// # Safety
/// As for `sendmsg`.
#[cold]
pub(crate) unsafe fn send(
    door: Door,
    fd: i32,
    (parts, flags): Message<'_>,
    address: *const sockaddr,
    len: socklen_t,
) -> Option<isize> {
    /// Of them the kernel knows more than we do.
    const KERNELS: i32 = libc::MSG_OOB | libc::MSG_ZEROCOPY;
    if flags & KERNELS != 0 || !process::is_started() {
        return None;
    }
    // SAFETY: the caller's promise.
    let remote = unsafe { addresses::read(address, len) };
    let known = connection::at(fd);
    if let Some(known) = &known {
        let state = known.entry.flags.load(OFFLOAD_SEEN);
        let is_refused_first = !address.is_null() && remote.is_none();
        if state & (FLAG_OFFLOAD | FLAG_REFUSED) == 0 || is_refused_first {
            return None;
        }
    }
    let may_begin = remote.filter(|&remote| routing::may_be_offloaded(remote));
    if known.is_none() && may_begin.is_none() || process::borrowed_memory() {
        return None;
    }
    let waits = flags & libc::MSG_DONTWAIT == 0 && !sys::is_nonblocking(fd);
    let mut taken = 0;
    let opened = match active_open::again(fd, || waits) {
        Some(opened) => opened,
        None => {
            let remote = may_begin?;
            errno::keep(tracking::prepare);
            let by = By::Message(parts);
            match errno::keep(|| active_open::begin(fd, remote, &by)) {
                Ok(begun) => {
                    taken = begun.payload;
                    match waits {
                        true => active_open::finish(&begun.connection),
                        // On Linux no answer is there before the call ends.
                        false => active_open::in_progress(&begun.connection),
                    }
                }
                Err(instead) => instead,
            }
        }
    };
    let is_late = || matches!(errno::get(), libc::EINPROGRESS | libc::EINTR);
    Some(match opened {
        Opened::Done(0) => {
            let connection = connection::at(fd)?;
            let rest = (parts, flags & !libc::MSG_FASTOPEN);
            // SAFETY: the caller's promise.
            unsafe { send_rest(door, &connection, rest, taken) }
        }
        Opened::Done(_) if taken > 0 && is_late() => {
            if let Some(connection) = connection::at(fd) {
                // It is still being made.
                let _ = active_open::in_progress(&connection);
            }
            taken as isize
        }
        Opened::Done(_) => -1,
        Opened::Failed(error) => errno::result(Err(error)),
        Opened::Beside(end) => {
            let (mut name, len) = errno::keep(|| addresses::spelled(fd, end));
            let mut header = header_of(parts);
            (header.msg_name, header.msg_namelen) = ((&raw mut name).cast(), len);
            // SAFETY: the caller's promise; `name` is readable for `len`.
            unsafe { door.sendmsg(fd, &header, flags) }
        }
        Opened::Kernel(_) => return None,
    })
}

/// Sends what is left of a message when the connection is there. Once bytes were taken the call
/// says how many, and raises no signal (`do_error` in `tcp_sendmsg_locked`).
///
/// # Safety
/// The parts are readable.
unsafe fn send_rest(
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

/// The rest of the part in which byte `skip` is, and the parts behind that.
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

fn header_of(parts: &[iovec]) -> msghdr {
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
