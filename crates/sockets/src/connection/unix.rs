//! Unix stream sockets as carriers.
//!
//! # The counts
//!
//! The kernel counts no bytes of a Unix socket. So each end compares what the *other* end has sent
//! with what it has received itself (`docs/decisions/0027-unix-sockets.md`). A Unix socket has no
//! wire: bytes that were sent are in the receiver's queue or were taken from it.
//!
//! ```text
//!   sender                                  receiver, under its receive lock
//!   counted := 0                            a := counted
//!   fence                                   waiting := SIOCINQ
//!   send(2), count the bytes                b := counted
//!   counted := bytes sent + 1               a == b != 0: then a - 1 == bytes received + waiting,
//!                                           or somebody moved bytes that we did not see
//! ```
//!
//! No send is under way between two equal values that are not 0: `counted` only grows. An end says
//! that it is attached when it has compared. Until then the peer's direction stays on the carrier.
//!
//! The counts are kept for as long as there is a channel. Where a member of a fork family was
//! killed, they tell how far it came ([`crate::direction::takeover`]): a receive by the peer's
//! count and what still waits; a send by our own, unless the member was killed inside.
//!
//! # The end
//!
//! An end that closes with bytes unread in its queue gives the peer `ECONNRESET`, once, behind all
//! that it sent. Bytes unread in the ring are such bytes, of which the kernel knows nothing: so the
//! peer tells its program.

use core::sync::atomic::{Ordering, fence};

use libc::{sockaddr, socklen_t};
use toehold_channel::layout::{CLOSED_ALL, SIDE_ACQUIRE, SIDE_RELEASE};
use toehold_channel::table::{FLAG_RESET_REPORTED, FLAG_SHUT_RX, FLAG_UNCOMPARED, Reason};
use toehold_stream::end::End;

use crate::connection::Connection;
use crate::connection::carrier::Carrier;
use crate::lock;
use crate::offload::addresses;
use crate::system::{faults, real, sys};

/// The connection gets a channel: tells the peer our count. The caller holds both direction locks.
pub(crate) fn begin_comparing(connection: &Connection, end: &End<'_>) {
    let flags = &connection.entry.flags;
    flags.fetch_or(FLAG_UNCOMPARED, Ordering::Relaxed);
    publish_count(connection, end);
}

fn publish_count(connection: &Connection, end: &End<'_>) {
    let sent = connection.entry.tx_carrier.load(Ordering::Relaxed);
    // Release: a peer that sees the count also sees the bytes in its queue.
    let counted = &end.ours().wake.counted;
    counted.store(sent.wrapping_add(1), SIDE_RELEASE);
}

/// A send on the carrier, which counts its bytes. The caller holds the send lock.
#[inline]
pub(crate) fn counted<T>(connection: &Connection, end: &End<'_>, send: impl FnOnce() -> T) -> T {
    if Carrier::of(connection) == Carrier::Tcp {
        return send();
    }
    end.ours().wake.counted.store(0, Ordering::Relaxed);
    // Pairs with the kernel's lock of the queue in `compare`: a peer that finds our bytes there
    // sees 0 in its second look, or the count that includes them.
    fence(Ordering::SeqCst);
    let result = send();
    publish_count(connection, end);
    result
}

/// Compares the peer's count with ours, if both are still to be compared and stand still. The
/// caller holds the send lock.
#[cold]
pub(crate) fn compare(connection: &Connection, end: &End<'_>) {
    let entry = connection.entry;
    let Some(_held) = lock::try_lock(&entry.rx_lock) else {
        return;
    };
    let Some(taken) = taken(connection, end) else {
        return;
    };
    if taken != entry.rx_carrier.load(Ordering::Relaxed) {
        return connection.pin(Reason::CountsDisagree);
    }
    entry.flags.fetch_and(!FLAG_UNCOMPARED, Ordering::Relaxed);
    end.welcome();
}

/// Bytes taken from the carrier: those that the peer has sent, less those that wait. `None` while a
/// send of the peer's may be under way. The caller holds the receive lock.
pub(crate) fn taken(connection: &Connection, end: &End<'_>) -> Option<u64> {
    let theirs = &end.theirs().wake.counted;
    let before = theirs.load(SIDE_ACQUIRE);
    let waiting = u64::try_from(sys::bytes_waiting(connection.number())).ok()?;
    // Pairs with the fence in `counted`.
    fence(Ordering::SeqCst);
    if before.is(0) || theirs.load(SIDE_ACQUIRE) != before {
        return None;
    }
    before
        .beyond((waiting + 1).into())
        .or(before.is(waiting + 1).then_some(0))
}

/// Bytes given to the carrier. `None` when a send may have been cut short. The caller holds the
/// send lock, taken over from a dead owner.
pub(crate) fn given(connection: &Connection, end: &End<'_>) -> Option<u64> {
    let given = connection.entry.tx_carrier.load(Ordering::Relaxed);
    // Relaxed: our own word. A peer that forges it deceives itself.
    let told = end.ours().wake.counted.load(Ordering::Relaxed);
    told.is(given.wrapping_add(1)).then_some(given)
}

/// The error that comes behind the last byte, when there is one that the kernel does not know of.
pub(crate) fn error_at_end(connection: &Connection, end: &End<'_>) -> Option<i32> {
    is_reset(connection, end).then(|| told(connection))
}

/// The program is told `ECONNRESET`, which comes once: the kernel's goes with it, where the peer
/// had not read a doorbell either.
pub(crate) fn told(connection: &Connection) -> i32 {
    let flags = &connection.entry.flags;
    flags.fetch_or(FLAG_RESET_REPORTED, Ordering::Relaxed);
    let _ = sys::getsockopt::<i32>(connection.number(), libc::SOL_SOCKET, libc::SO_ERROR);
    libc::ECONNRESET
}

/// True when the peer has closed a Unix socket, or was killed, with bytes unread in its ring, and
/// the program was not told.
pub(crate) fn is_reset(connection: &Connection, end: &End<'_>) -> bool {
    let entry = connection.entry;
    if Carrier::of(connection) == Carrier::Tcp
        || entry.flags.load(Ordering::Relaxed) & FLAG_RESET_REPORTED != 0
    {
        return false;
    }
    let wake = &end.theirs().wake;
    // The peer stores `head` before `closed`.
    let closed = wake.closed.load(SIDE_ACQUIRE);
    let hung_up = || sys::poll_now(connection.number(), 0) & libc::POLLHUP != 0;
    let is_passed_on = || !wake.abandoned.load(Ordering::Relaxed).is(0);
    let is_shut_by_us = entry.flags.load(Ordering::Relaxed) & FLAG_SHUT_RX != 0;
    // One that says nothing of its end was killed.
    let is_killed = || closed.is(0) && !is_shut_by_us && !is_passed_on() && hung_up();
    let has_closed = closed.has(CLOSED_ALL) || is_killed();
    let head = end.theirs().consume.head.load(Ordering::Relaxed);
    has_closed && head != entry.tx_ring.load(Ordering::Relaxed)
}

/// True when the peer of a Unix socket is gone.
#[cold]
pub(crate) fn is_closed_by_peer(connection: &Connection) -> bool {
    Carrier::of(connection) == Carrier::Unix
        && sys::poll_now(connection.number(), 0) & libc::POLLHUP != 0
}

/// Gives a program that received bytes their source, as the kernel does it: a connected TCP socket
/// has none, a Unix socket the name of its peer, if that has one. The `end` comes from nobody.
///
/// # Errors
/// As [`addresses::write`].
///
/// # Safety
/// `address`, for `room` bytes, and `len` are the call's, if they are there.
pub(crate) unsafe fn write_source(
    connection: &Connection,
    end: bool,
    address: *mut sockaddr,
    room: socklen_t,
    len: *mut socklen_t,
) -> Result<(), i32> {
    let is_unix = Carrier::of(connection) == Carrier::Unix;
    let name = (is_unix && !end).then(|| name_of_peer(connection.number()));
    match name.flatten() {
        // SAFETY: the caller's promise.
        Some(name) => unsafe { addresses::write(name, address, room, len) },
        None if room.cast_signed() < 0 => Err(libc::EINVAL),
        // SAFETY: the caller's promise.
        None => unsafe { faults::give([0; 4].as_ptr(), len.cast(), size_of::<socklen_t>()) },
    }
}

fn name_of_peer(fd: i32) -> Option<(libc::sockaddr_storage, socklen_t)> {
    // SAFETY: zeroes are a valid `sockaddr_storage`.
    let mut storage: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of_val(&storage) as socklen_t;
    // SAFETY: `storage` is writable for `len` bytes.
    let result = unsafe { real::getpeername(fd, (&raw mut storage).cast(), &mut len) };
    let has_name = len as usize > size_of::<libc::sa_family_t>();
    (result == 0 && has_name).then_some((storage, len))
}
