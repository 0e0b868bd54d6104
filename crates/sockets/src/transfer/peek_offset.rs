//! `SO_PEEK_OFF` for a connection with bytes in a ring: each look (`MSG_PEEK`) begins where the
//! last one ended. [`crate::transfer::receive`] makes the looks.
//!
//! The kernel keeps an offset from the next byte to be received. A look begins at the offset and
//! moves it forward by the number of bytes seen. A receive moves it back by the number of bytes
//! taken, but not below 0 (`sk_peek_offset` and similar functions, include/net/sock.h). A
//! connection with this option goes back to its carrier. As long as its ring has unread bytes the
//! kernel cannot count them. So the offset is kept here until the channel is given up. The kernel's
//! option is off meanwhile, because doorbells would move its offset.
//!
//! ```text
//!   unread:   ── ring ──►◄── carrier ──
//!             ▲    ▲
//!       rx_ring    rx_peek - 1        offset = rx_peek - 1 - rx_ring, at least 0
//! ```
//!
//! Because the word is a position, it need not change when bytes are taken from the ring.

use core::sync::atomic::Ordering;

use toehold_channel::untrusted::Untrusted;

use crate::connection::Connection;
use crate::direction::takeover;
use crate::system::sys;

/// The offset, if the option is on and the library keeps it.
pub(crate) fn get(connection: &Connection) -> Option<u64> {
    let position = connection.entry.rx_peek.load(Ordering::Relaxed);
    let consumed = connection.entry.rx_ring.load(Ordering::Relaxed);
    let position = Untrusted::from(position.checked_sub(1)?);
    Some(position.beyond(consumed).unwrap_or(0))
}

/// Stores a new offset. The caller holds the receive lock.
pub(crate) fn store(connection: &Connection, offset: u64) {
    let consumed = connection.entry.rx_ring.load(Ordering::Relaxed);
    // The stored position stays untrusted: `get` only compares it.
    let position = consumed.plus(offset).plus(1).shown();
    connection.entry.rx_peek.store(position, Ordering::Relaxed);
}

/// The program sets the offset; negative for off. True when the kernel must not see the call.
pub(crate) fn set(connection: &Connection, offset: i32) -> bool {
    let Some(_held) = takeover::lock_receiving(connection) else {
        return false;
    };
    // A kernel without this option for TCP refuses this, too; then the program's call goes to the
    // kernel.
    let is_ours = connection.end().is_some() && turn_off(connection);
    if is_ours {
        match u64::try_from(offset) {
            Ok(offset) => store(connection, offset),
            Err(_) => connection.entry.rx_peek.store(0, Ordering::Relaxed),
        }
    }
    is_ours
}

fn turn_off(connection: &Connection) -> bool {
    sys::setsockopt_int(connection.number(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1) >= 0
}

/// `count` bytes were taken from the carrier. The caller holds the receive lock.
pub(crate) fn taken_from_carrier(connection: &Connection, count: usize) {
    if let Some(offset) = get(connection) {
        store(connection, offset.saturating_sub(count as u64));
    }
}

/// From now on only the kernel keeps the offset.
pub(crate) fn restore(connection: &Connection) {
    if let Some(offset) = get(connection) {
        connection.entry.rx_peek.store(0, Ordering::Relaxed);
        let offset = i32::try_from(offset).unwrap_or(i32::MAX);
        sys::setsockopt_int(
            connection.number(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            offset,
        );
    }
}
