//! Messages that open their connection (`MSG_FASTOPEN`, RFC 7413).
//!
//! ```text
//!   sendto ─► has the remote given a cookie? ── no ──► as `connect`, then as `send`
//!                       │ yes
//!                       ▼
//!             carrier to the relay, preamble and payload in one send ─► the SYN takes them along
//! ```
//!
//! Without a cookie no byte of the message leaves before the answer: a non-blocking call returns
//! `EINPROGRESS`, as on Linux (`tcp_sendmsg_fastopen` in net/ipv4/tcp.c). With a cookie, a
//! non-blocking call returns how many bytes were taken.
//!
//! After `connect` on a socket with `TCP_FASTOPEN_CONNECT`, if the remote has given a cookie, the
//! first bytes are such a message ([`opening`]). The connection is *deferred* until then.
//!
//! The remote may have got the bytes that were taken, even if the connection fails. So from then on
//! the kernel cannot connect instead, and the death of the adapter is an error
//! (`awaiting::SILENCE`).

use libc::{sockaddr, socklen_t};
use toehold_channel::table::{FLAG_DEFERRED, FLAG_OFFLOAD, FLAG_REFUSED};

use crate::connection::orderings::OFFLOAD_ACQUIRE;
use crate::connection::{self, tracking};
use crate::offload::active_open::{self, Opened, OpeningCall};
use crate::offload::{addresses, routing};
use crate::process;
use crate::system::real::Door;
use crate::system::{errno, sys};
use crate::transfer::send::opening::{self, Message};

/// A send with `MSG_FASTOPEN`, if the engine serves the destination. `None`: the kernel must make
/// the call.
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
    /// Flags that only the kernel can serve.
    const KERNELS: i32 = libc::MSG_OOB | libc::MSG_ZEROCOPY;
    if flags & KERNELS != 0 || !process::is_started() {
        return None;
    }
    // SAFETY: the caller's promise.
    let remote = unsafe { addresses::read(address, len) };
    let known = connection::at(fd);
    if let Some(known) = &known {
        let state = known.entry.flags.load(OFFLOAD_ACQUIRE);
        let is_refused_first = !address.is_null() && remote.is_none();
        if state & (FLAG_OFFLOAD | FLAG_REFUSED) == 0 || is_refused_first {
            return None;
        }
        if state & FLAG_DEFERRED != 0 {
            // These are sent like any other first bytes.
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
            let by = OpeningCall::Message(parts);
            match errno::keep(|| active_open::begin(fd, remote, &by)) {
                Ok(begun) => {
                    taken = begun.payload;
                    match waits {
                        true => active_open::finish(&begun.connection),
                        // On Linux the answer never comes before the call ends.
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
            unsafe { opening::send_rest(door, &connection, rest, taken) }
        }
        Opened::Done(_) if taken > 0 && is_late() => {
            if let Some(connection) = connection::at(fd) {
                // The connection is still being made.
                let _ = active_open::in_progress(&connection);
            }
            taken as isize
        }
        Opened::Done(_) => -1,
        Opened::Failed(error) => errno::result(Err(error)),
        Opened::Beside(end) => {
            let (mut name, len) = errno::keep(|| addresses::sockaddr_for(fd, end));
            let mut header = opening::header_of(parts);
            (header.msg_name, header.msg_namelen) = ((&raw mut name).cast(), len);
            // SAFETY: the caller's promise; `name` is readable for `len`.
            unsafe { door.sendmsg(fd, &header, flags) }
        }
        Opened::Kernel(_) => return None,
    })
}
