//! Makes a connection that was not accepted again through the kernel: a new socket, and the bytes.

use core::sync::atomic::Ordering;

use toehold_channel::layout::CAPACITY_LOG2_MAX;
use toehold_channel::ring::stretches;
use toehold_channel::table::{FLAG_SHUT_TX, Mode};
use toehold_stream::end::End;

use super::{destinations, turns};
use crate::connection::Connection;
use crate::system::sys;

/// The time that the kernel may take to connect, and to take the bytes. On one host both are
/// immediate, unless the listener's queue is full.
const LIMIT_NS: u64 = 1_000_000_000;

/// The program has closed a connection that was not accepted. Its bytes must still arrive.
pub(super) fn deliver(carrier: &Connection) {
    let Some(end) = carrier.end() else { return };
    if sent(carrier, &end) > 0
        && let Some(socket) = connect(carrier, &end)
    {
        sys::close(socket);
    }
}

/// Bytes that the program has sent in this turn.
pub(super) fn sent(connection: &Connection, end: &End<'_>) -> u64 {
    let began_at = connection.local.express.began_at.load(Ordering::Relaxed);
    end.entry.tx_ring.load(Ordering::Relaxed).shown() - began_at
}

/// Makes a new connection to the address of this one, and sends its bytes. `None` when that is not
/// possible: the peer has accepted the connection after all, or no program listens, or some bytes
/// were sent on the carrier.
pub(super) fn connect(connection: &Connection, end: &End<'_>) -> Option<i32> {
    let (entry, words) = (connection.entry, &connection.local.express);
    let turn = turns::turn_of(entry)?;
    if !turns::is_unaccepted(connection, end)
        || end.turns().is_waiting(turn) && !end.turns().give_up(turn)
        || connection.is_shared()
        || connection.local.attachment.is_used()
    {
        return None;
    }
    let on_carrier = entry.tx_carrier.load(Ordering::Relaxed);
    let doorbells = u64::from(entry.doorbells.load(Ordering::Relaxed));
    let is_shut = entry.flags.load(Ordering::Relaxed) & FLAG_SHUT_TX != 0;
    let data = on_carrier.wrapping_sub(doorbells);
    if data != words.carrier_began_at.load(Ordering::Relaxed)
        || end.tx_mode() != Mode::Ring && !is_shut
    {
        return None;
    }
    let number = words.destination.load(Ordering::Relaxed);
    let socket = destinations::connect(number, connection.fd, LIMIT_NS)?;
    let is_complete = send_again(connection, end, socket);
    if !is_complete {
        sys::close(socket);
        return None;
    }
    if is_shut {
        sys::shutdown(socket, libc::SHUT_WR);
    }
    Some(socket)
}

/// Sends the bytes of our ring on `socket`.
fn send_again(connection: &Connection, end: &End<'_>, socket: i32) -> bool {
    let began_at = connection.local.express.began_at.load(Ordering::Relaxed);
    let log2 = connection.entry.tx_capacity_log2.load(Ordering::Relaxed);
    let bytes = sent(connection, end) as usize;
    if bytes > 1 << log2.capped(CAPACITY_LOG2_MAX) {
        return false;
    }
    for (offset, len) in stretches(began_at, bytes, log2) {
        let mut done = 0;
        while done < len {
            let from = end.ring_out().wrapping_add(offset + done);
            // SAFETY: a stretch lies inside our ring.
            match unsafe { sys::send_shared_now(socket, from, len - done) } {
                sent @ 1.. => done += sent as usize,
                error if error == -(libc::EAGAIN as isize) => {
                    if sys::poll_for(socket, libc::POLLOUT, LIMIT_NS) & libc::POLLOUT == 0 {
                        return false;
                    }
                }
                _ => return false,
            }
        }
    }
    true
}
