//! Resets: how a fault of the peer causes one, and how the program sees it.

use core::sync::atomic::Ordering;

use toehold_channel::ring::Fault;
use toehold_channel::table::{FLAG_OFFLOAD, Reason};
use toehold_stream::end::End;

use crate::connection::Connection;
use crate::connection::carrier::Carrier;
use crate::connection::pending_errors;
use crate::system::sys;

/// A word of the peer failed its check: this channel ends, as if the peer had reset the connection.
#[cold]
pub(crate) fn fault_of_peer(connection: &Connection, fault: Fault) -> i32 {
    let _ = fault;
    end_for(connection, Reason::PeerFault)
}

/// The peer's program has sent bytes past its library while the direction was in the ring. Their
/// place in the stream is lost: the connection ends, rather than go on without them.
#[cold]
pub(crate) fn bytes_past_peers_library(connection: &Connection) -> i32 {
    end_for(connection, Reason::CountsDisagree)
}

/// Ends a connection through a fault of the peer's.
fn end_for(connection: &Connection, reason: Reason) -> i32 {
    connection.entry.faults.fetch_add(1, Ordering::Relaxed);
    connection.pin(reason);
    // SAFETY: plain system call.
    unsafe {
        sys::raw(
            libc::SYS_shutdown,
            connection.number() as usize,
            libc::SHUT_RDWR as usize,
            0,
            0,
            0,
            0,
        )
    };
    libc::ECONNRESET
}

/// True when the reset that the kernel reports answers nothing but a doorbell: without us the
/// connection would have ended in order. A peer whose words were wrong has none that are believed.
#[cold]
pub(crate) fn was_closed_cleanly(connection: &Connection, end: &End<'_>) -> bool {
    let entry = connection.entry;
    let is_engine = entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0;
    entry.faults.load(Ordering::Relaxed) == 0 && end.is_reset_by_doorbell(!is_engine)
}

/// The program has sent to an end whose turn is over. The peer's kernel would have answered with a
/// reset at once, after a FIN (tcp_reset, `TCP_CLOSE_WAIT`). The peer has parked the carrier, and
/// may not look at it for long: so the carrier ends here. The caller holds the send lock.
#[cold]
pub(crate) fn answer_of_ended_turn(connection: &Connection) {
    let number = connection.number();
    sys::disconnect_unreported(number);
    // Also of a closed socket the kernel notes that both directions are shut (inet_shutdown).
    sys::shutdown(number, libc::SHUT_RDWR);
    pending_errors::keep(connection, libc::EPIPE);
}

/// True when the program wants its close to be a reset (`SO_LINGER` of no time).
pub(crate) fn are_wanted(connection: &Connection) -> bool {
    if !Carrier::of(connection).has_linger() {
        return false;
    }
    sys::getsockopt::<[i32; 2]>(connection.number(), libc::SOL_SOCKET, libc::SO_LINGER)
        .is_ok_and(|[on, seconds]| on != 0 && seconds == 0)
}

/// Tells the peer whether the end of this process, however it comes, is to be a reset.
pub(crate) fn publish(connection: &Connection) {
    if let Some(end) = connection.inside() {
        (end.ours().wake.resets).store(u32::from(are_wanted(connection)), Ordering::Relaxed);
    }
}
