//! Short messages on a connection whose two directions are rings: one function for a send, one for
//! a receive.
//!
//! Both do what [`crate::transfer::send`] and [`crate::transfer::receive`] would do, in the most
//! frequent case: a blocking or non-blocking transfer of at most [`SHORT_BYTES`], a free lock, room
//! or bytes in the ring, and no wish to move a direction. In any other case they change nothing and
//! return `None`, and the general code starts from the beginning.

use core::sync::atomic::Ordering;

use toehold_channel::table::Mode;
use toehold_freestanding::guarded;
use toehold_stream::end::End;

use crate::connection::pending_errors;
use crate::connection::{self, Connection};
use crate::direction::{self, notifier, switching};
use crate::direction::{SHORT_BYTES, fetch_lines};
use crate::epoll::news;
use crate::lock;
use crate::offload::endings;
use crate::pairing::leaving;
use crate::system::errno;
use crate::transfer::buffers;

/// Flags of a send that have no effect when there is room: the ring delays no bytes, and a signal
/// comes only with an error.
pub(super) const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
/// Flags of a receive that have no effect when there are bytes.
pub(super) const RECEIVE_FLAGS: i32 =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;

const _: () = assert!(SHORT_BYTES <= guarded::SHORT_BYTES);

/// Sends all of a short message. `None`: nothing was sent. Callers have seen a region, which only
/// saves time: without one the lock is taken in vain.
///
/// # Safety
/// Nobody writes `len` bytes at `bytes`.
#[inline]
pub(crate) unsafe fn send(
    connection: &Connection,
    bytes: *const u8,
    len: usize,
    flags: i32,
) -> Option<isize> {
    let entry = connection.entry;
    // The length 0 wraps to the largest number, so an empty message is excluded, too.
    if len.wrapping_sub(1) >= SHORT_BYTES || flags & !SEND_FLAGS != 0 {
        return None;
    }
    let held = lock::try_lock(&entry.tx_lock)?;
    let end = simple_end(connection)?;
    let hints = entry.rx_hints.load(Ordering::Relaxed);
    if !switching::has_no_request(connection, &end, hints) || pending_errors::is_in(hints) {
        return None;
    }
    let sender = end.sender();
    if sender
        .credit_known()
        .is_none_or(|credit| credit < len as u64)
    {
        return None;
    }
    let [(offset, first), (_, rest)] = sender.reserve(len);
    fetch_lines(connection, &end, offset);
    let ring = end.ring_out();
    // SAFETY: `len` is within the credit, so the stretches are ours to write; `bytes` by the
    // caller's promise.
    let copied = unsafe {
        guarded::try_to_shared_short(bytes, ring.wrapping_add(offset), first).and_then(|()| {
            match rest {
                0 => Ok(()),
                _ => guarded::try_to_shared_short(bytes.wrapping_add(first), ring, rest),
            }
        })
    };
    if copied.is_err() {
        drop(held);
        return Some(errno::bad_pointer());
    }
    sender.publish(len);
    direction::count_call(&entry.tx_calls);
    let notified = notifier::notify(connection, &end);
    drop(held);
    match notified {
        Ok(()) => Some(len as isize),
        Err(error) => Some(failed(connection, error)),
    }
}

/// Receives the available bytes of a short message. `None`: nothing was taken. Callers have seen a
/// region, as for [`send`].
///
/// # Safety
/// `len` bytes at `bytes` are this call's.
#[inline]
pub(crate) unsafe fn receive(
    connection: &Connection,
    bytes: *mut u8,
    len: usize,
    flags: i32,
) -> Option<isize> {
    let entry = connection.entry;
    // The kernel refuses some lengths, even if few bytes are there.
    if flags & !RECEIVE_FLAGS != 0
        || len > buffers::CALL_BYTES_MAX
        || entry.rx_low_water.load(Ordering::Relaxed) > 1
        || entry.tx_mode.load(Ordering::Relaxed) != Mode::Ring as u32
        || connection::commanded(entry)
    {
        return None;
    }
    let held = lock::try_lock(&entry.rx_lock)?;
    let end = simple_end(connection)?;
    if end.rx_mode() != Mode::Ring || end.records_pending() {
        return None;
    }
    let receiver = end.receiver();
    let filled = receiver.available().ok()?;
    let len = len.min(filled.len as usize);
    if len.wrapping_sub(1) >= SHORT_BYTES {
        return None;
    }
    let [(offset, first), (_, rest)] = receiver.peek(0, len, filled);
    let ring = end.ring_in();
    // SAFETY: `available` checked that these bytes are inside the ring; `bytes` by the caller's
    // promise.
    let copied = unsafe {
        guarded::try_from_shared_short(ring.wrapping_add(offset), bytes, first).and_then(|()| {
            match rest {
                0 => Ok(()),
                _ => guarded::try_from_shared_short(ring, bytes.wrapping_add(first), rest),
            }
        })
    };
    if copied.is_err() {
        drop(held);
        return Some(errno::bad_pointer());
    }
    let crossed = receiver.consume(len, filled);
    direction::count_call(&entry.rx_calls);
    entry.rx_empty.store(0, Ordering::Relaxed);
    if len < filled.len as usize {
        news::note_left(connection);
    }
    if crossed && end.is_asked_for_credit() {
        switching::notify_of_credit(connection, &end, held);
    }
    Some(len as isize)
}

/// The end of a connection that the descriptor still names. The caller holds a direction's lock.
#[inline(always)]
fn simple_end(connection: &Connection) -> Option<End<'static>> {
    connection.end().filter(|_| connection.is_current())
}

/// The peer's words were wrong, and the channel has ended.
#[cold]
fn failed(connection: &Connection, error: i32) -> isize {
    if connection.entry.tx_mode.load(Ordering::Relaxed) == Mode::Carrier as u32 {
        errno::keep(|| leaving::finish(connection));
    }
    errno::result(Err(endings::send_error(connection, error)))
}
