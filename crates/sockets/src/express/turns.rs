//! The questions that transfers ask about a turn.

use core::sync::atomic::Ordering;

use toehold_channel::layout::{CLOSED_TURN, SIDE_SEEN};
use toehold_channel::table::{Entry, FLAG_ACCEPTED};
use toehold_stream::end::End;
use toehold_stream::express::Turn;

use crate::connection::Connection;

/// The turn of a carrier.
pub(crate) fn turn_of(entry: &Entry) -> Option<Turn> {
    Turn::numbered(entry.turn())
}

/// True when the peer has ended this turn in order: the bytes that it sent before are in the ring,
/// and nothing follows. No FIN comes on the carrier.
#[cold]
pub(crate) fn is_over(connection: &Connection, end: &End<'_>) -> bool {
    end.theirs().wake.closed.load(SIDE_SEEN).has(CLOSED_TURN)
        && turn_of(connection.entry).is_some_and(|turn| end.turns().is_ended_by_peer(turn))
}

/// True when nobody has accepted the connection: we have claimed its carrier, and the peer's
/// program knows nothing of it, perhaps never will.
#[cold]
pub(crate) fn is_unaccepted(connection: &Connection, end: &End<'_>) -> bool {
    connection.entry.flags.load(Ordering::Relaxed) & FLAG_ACCEPTED == 0
        && turn_of(connection.entry).is_some_and(|turn| end.turns().is_unaccepted(turn))
}
