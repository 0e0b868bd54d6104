//! Unread bytes of a ring that go once more, by the carrier: [`toehold_stream::resend`].

use core::sync::atomic::Ordering;

use toehold_stream::end::{End, Unread};

use crate::connection::Connection;
use crate::connection::{resets, unix};
use crate::system::sys;

/// Sends what the peer has not read on the carrier: as much as the kernel takes at once, because a
/// non-blocking call never waits. Where that is not all, the connection is reset. The caller holds
/// the send lock and has just brought the direction down.
#[cold]
pub(crate) fn send(connection: &Connection, end: &End<'_>, unread: Unread) {
    let stretches = match end.unread(unread) {
        Ok(stretches) => stretches,
        Err(fault) => {
            resets::fault_of_peer(connection, fault);
            return;
        }
    };
    for (at, len) in stretches {
        if !send_all(connection, end, end.ring_out().wrapping_add(at), len) {
            sys::disconnect(connection.number());
            return;
        }
    }
    end.unread_is_sent();
}

/// Sends `len` bytes of the ring at `from`; false when the kernel does not take all at once.
fn send_all(connection: &Connection, end: &End<'_>, from: *mut u8, len: usize) -> bool {
    let mut done = 0;
    while done < len {
        let sent = unix::counted(connection, end, || {
            let (fd, from) = (connection.number(), from.wrapping_add(done));
            // SAFETY: inside our ring, by `End::unread`.
            let result = unsafe { sys::send_shared_now(fd, from, len - done) };
            let count = &connection.entry.tx_carrier;
            count.fetch_add(result.max(0) as u64, Ordering::Relaxed);
            result
        });
        match sent {
            1.. => done += sent as usize,
            _ => return false,
        }
    }
    true
}
