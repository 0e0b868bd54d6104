//! Closing a socket of which the adapter has a duplicate.
//!
//! A request for a partner carries a duplicate of the socket. The kernel ends a connection when its
//! last duplicate is closed. If the program closes its descriptor before the adapter has looked at
//! the duplicate, the end would be delayed until the adapter runs. So before its last close this
//! process makes the kernel do what the close would have done:
//!
//! ```text
//!   asked ──► the adapter looks, closes its duplicate, answers ──► nothing to do
//!     └─────► last close of the program: reset, or shut both directions down; then close
//! ```
//!
//! The adapter answers by a refusal or an offer, and closes its duplicate before. If another thread
//! is inside a call on the socket, or waits for it in `poll`, a close does not end the connection
//! in the kernel either, because that call holds the file. A shutdown would end that call, so none
//! is made then.

use core::sync::atomic::Ordering;

use toehold_channel::table::{FLAG_INHERITED, FLAG_PINNED, Reason};
use toehold_stream::calls::Calls;

use crate::connection::Connection;
use crate::connection::carrier::Carrier;
use crate::system::sys;
use crate::transfer::host_call;
use crate::waiting::kernel_waits;

/// The words that [`begin`] overwrites, for [`take_back`].
pub(crate) struct Before {
    refusal: u32,
    shown_at: u32,
}

/// Called before the socket is sent to the adapter.
pub(crate) fn begin(connection: &Connection) -> Before {
    let entry = connection.entry;
    let shown_at = &connection.local.shown_at;
    let before = Before {
        refusal: entry.refusal.load(Ordering::Relaxed),
        shown_at: shown_at.load(Ordering::Relaxed),
    };
    // The refusal stored before was the answer to another request.
    entry.refusal.store(Reason::None as u32, Ordering::Relaxed);
    let offers = entry.offer.load(Ordering::Relaxed);
    shown_at.store(offers.wrapping_add(1).max(1), Ordering::Relaxed);
    before
}

/// The socket could not be sent: restores the words.
pub(crate) fn take_back(connection: &Connection, before: Before) {
    let (refusal, shown_at) = (&connection.entry.refusal, &connection.local.shown_at);
    refusal.store(before.refusal, Ordering::Relaxed);
    shown_at.store(before.shown_at, Ordering::Relaxed);
}

/// True while the adapter may have a duplicate of the socket, or the message with it is under way.
fn is_under_way(connection: &Connection) -> bool {
    let entry = connection.entry;
    let shown_at = connection.local.shown_at.load(Ordering::Relaxed);
    // Relaxed: an answer that is seen too late costs one shutdown before a close.
    shown_at != 0
        && entry.refusal.load(Ordering::Relaxed) == Reason::None as u32
        && entry.offer.load(Ordering::Relaxed).wrapping_add(1).max(1) == shown_at
}

/// This process is the last holder of the connection, and is about to close its last descriptor.
pub(crate) fn closing(connection: &Connection) {
    let (entry, fd) = (connection.entry, connection.fd);
    if !is_under_way(connection) {
        return;
    }
    // A process that the library does not count may go on with the connection.
    let is_elsewhere = entry.flags.load(Ordering::Relaxed) & (FLAG_PINNED | FLAG_INHERITED) != 0;
    let local = connection.local;
    let in_calls = [&local.rx_in_flight, &local.tx_in_flight];
    let are_over = |calls: &&Calls| host_call::are_over(connection, calls);
    let is_used = !in_calls.iter().all(are_over) || kernel_waits::is_any();
    if is_elsewhere || is_used {
        return;
    }
    if Carrier::of(connection) == Carrier::Unix && sys::bytes_waiting(fd) > 0 {
        // The kernel makes the reset when the adapter closes its duplicate.
        return;
    }
    let linger = sys::getsockopt::<[i32; 2]>(fd, libc::SOL_SOCKET, libc::SO_LINGER);
    let resets = Carrier::of(connection).has_linger()
        && linger.is_ok_and(|[is_on, seconds]| is_on != 0 && seconds == 0);
    // RFC 1122, 4.2.2.13, as in `release::end_channel`.
    if resets || sys::bytes_waiting(fd) > 0 {
        sys::disconnect(fd);
    } else {
        sys::shutdown(fd, libc::SHUT_RDWR);
    }
}
