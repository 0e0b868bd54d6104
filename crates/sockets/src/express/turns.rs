//! The questions that transfers ask about a turn.

use core::sync::atomic::Ordering;

use toehold_channel::table::{
    Entry, FLAG_ACCEPTED, FLAG_NONBLOCK, FLAG_OFFLOAD, FLAG_SHUT_TX, FLAG_UNSEEN,
};
use toehold_stream::end::End;
use toehold_stream::express::Turn;

use crate::connection::Connection;

/// The turn of a carrier.
pub(crate) fn turn_of(entry: &Entry) -> Option<Turn> {
    Turn::numbered(entry.turn())
}

/// True when the peer has ended this turn in order: the bytes that it sent before are in the ring,
/// and nothing follows. This stays so when the peer closes the carrier afterwards; until then no
/// FIN comes on it.
#[cold]
pub(crate) fn is_over(connection: &Connection, end: &End<'_>) -> bool {
    turn_of(connection.entry).is_some_and(|turn| end.turns().is_ended_by_peer(turn))
}

/// True when an engine has ended this turn: its remote has sent a FIN, which has not come on the
/// carrier.
#[cold]
pub(crate) fn has_remote_finished(connection: &Connection, end: &End<'_>) -> bool {
    connection.entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0 && is_over(connection, end)
}

/// The error of a reset after an engine's end of the turn. The FIN of its remote has not come on
/// the carrier, so the kernel says `ECONNRESET` where it would say `EPIPE` (tcp_reset,
/// `TCP_CLOSE_WAIT`).
#[cold]
pub(crate) fn error_after_turn(connection: &Connection, error: i32) -> i32 {
    let has_finished =
        || (connection.end()).is_some_and(|end| has_remote_finished(connection, &end));
    match error {
        libc::ECONNRESET if has_finished() => libc::EPIPE,
        error => error,
    }
}

/// True when the program has shut its sending half and the peer has ended the turn. On the kernel
/// such a socket is closed, although no FIN comes on the carrier.
#[cold]
pub(crate) fn are_both_over(connection: &Connection) -> bool {
    connection.entry.flags.load(Ordering::Relaxed) & FLAG_SHUT_TX != 0
        && (connection.inside()).is_some_and(|end| is_over(connection, &end))
}

/// True when the connection is not accepted: we have claimed its carrier, and the peer's program
/// does not know of it, and perhaps never will.
#[cold]
pub(crate) fn is_unaccepted(connection: &Connection, end: &End<'_>) -> bool {
    connection.entry.flags.load(Ordering::Relaxed) & FLAG_ACCEPTED == 0
        && turn_of(connection.entry).is_some_and(|turn| end.turns().is_unaccepted(turn))
}

/// True when a connection on our parked carrier waits for the program's `accept`.
pub(crate) fn awaits_accept(carrier: &Connection, end: &End<'_>) -> bool {
    turn_of(carrier.entry).is_some_and(|turn| end.turns().is_next_waiting(turn))
}

/// Records for both ends that the program was seen waiting for its connection.
#[cold]
pub(crate) fn note_seen(connection: &Connection) {
    let entry = connection.entry;
    if entry.flags.load(Ordering::Relaxed) & FLAG_UNSEEN != 0 {
        entry.flags.fetch_and(!FLAG_UNSEEN, Ordering::Relaxed);
    }
    if connection.local.express.is_carrier()
        && let (Some(turn), Some(end)) = (turn_of(entry), connection.inside())
    {
        end.turns().note_seen(turn);
    }
}

/// Records that it is unknown how the program will wait. A program with blocking calls will
/// presumably wait in those calls.
pub(crate) fn note_unseen(entry: &Entry) {
    match entry.flags.load(Ordering::Relaxed) & FLAG_NONBLOCK {
        0 => entry.flags.fetch_and(!FLAG_UNSEEN, Ordering::Relaxed),
        _ => entry.flags.fetch_or(FLAG_UNSEEN, Ordering::Relaxed),
    };
}

/// True when the program may wait past the library, and its calls do not block.
#[inline]
pub(crate) fn is_unseen(connection: &Connection) -> bool {
    connection.entry.flags.load(Ordering::Relaxed) & FLAG_UNSEEN != 0
}

/// True when the peer's program has been seen waiting for the connection.
pub(crate) fn is_peer_seen(connection: &Connection, end: &End<'_>) -> bool {
    turn_of(connection.entry).is_some_and(|turn| end.turns().is_peer_seen(turn))
}
