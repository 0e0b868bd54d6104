//! The reason why a connection through the engine has ended.
//!
//! The kernel knows only that the carrier was reset: a reset is the only error that an adapter can
//! cause on a carrier. When the remote was silent, a kernel connection would end with `ETIMEDOUT`
//! or another reason. So the adapter writes the reason into the routing page.

use core::sync::atomic::Ordering;

use toehold_channel::offload::{CarrierKey, true_ends};
use toehold_channel::table::FLAG_OFFLOAD;

use crate::connection::Connection;
use crate::connection::orderings::OFFLOAD_ACQUIRE;
use crate::offload::routing;
use crate::system::{errno, sys};

/// Stores the key of this connection's carrier in the routing page.
pub(super) fn note_carrier_key(connection: &Connection, key: CarrierKey) {
    connection
        .entry
        .carrier_key
        .store(key.to_word(), Ordering::Relaxed);
}

/// The error that a receive reports when it failed with `error`. After the remote's FIN a reset is
/// reported as a broken pipe (tcp_reset).
#[cold]
pub(crate) fn receive_error(connection: &Connection, error: i32) -> i32 {
    match error {
        libc::ECONNRESET | libc::EPIPE => reason(connection).unwrap_or(error),
        _ => error,
    }
}

/// The error of a send, known before the send is made, on a connection whose direction is on the
/// carrier: the remote is silent. After the remote's FIN the kernel would report the carrier's
/// reset as a broken pipe, with a signal; but a kernel connection would report the time-out first,
/// without a signal (sk_stream_error).
pub(crate) fn silence(connection: &Connection) -> Option<i32> {
    let error = reason(connection)?;
    let pending =
        sys::getsockopt::<i32>(connection.number(), libc::SOL_SOCKET, libc::SO_ERROR).ok()?;
    matches!(pending, libc::ECONNRESET | libc::EPIPE).then_some(error)
}

/// The error that a send reports when it failed with `error`. A broken pipe is reported repeatedly,
/// and its signal was already raised.
#[cold]
pub(crate) fn send_error(connection: &Connection, error: i32) -> i32 {
    match error {
        libc::ECONNRESET => reason(connection).unwrap_or(error),
        _ => error,
    }
}

/// Passes on the result of the program's own call, and corrects errno if the call failed.
#[inline]
pub(crate) fn correct(
    connection: &Connection,
    result: isize,
    error_of: fn(&Connection, i32) -> i32,
) -> isize {
    if result < 0 {
        errno::set(error_of(connection, errno::get()));
    }
    result
}

/// `SO_ERROR`, which the kernel reports once; `None` when the adapter has noted no reason.
pub(crate) fn error_option(connection: &Connection) -> Option<i32> {
    reason(connection)?;
    let pending =
        sys::getsockopt::<i32>(connection.number(), libc::SOL_SOCKET, libc::SO_ERROR).ok()?;
    Some(receive_error(connection, pending))
}

fn reason(connection: &Connection) -> Option<i32> {
    let entry = connection.entry;
    if entry.flags.load(OFFLOAD_ACQUIRE) & FLAG_OFFLOAD == 0 {
        return None;
    }
    let key = CarrierKey::from_word(entry.carrier_key.load(Ordering::Relaxed))?;
    let (local, remote) = true_ends(entry);
    let errno = routing::known_routing_page()?.errno_of(key, local, remote)?;
    i32::try_from(errno).ok()
}
