//! How a sleeper asks the peer for a doorbell, and takes that back.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::{WAKING, WakeWord};
use toehold_channel::sync::fence;
use toehold_stream::end::End;

use crate::connection::Connection;
use crate::epoll::news;
use crate::{lock, sleepers};

/// Registers a sleeper and asks the peer to ring. Every call is followed by [`disarm`].
pub(crate) fn arm(connection: &Connection, end: &End<'_>) {
    {
        let held = lock::lock(&connection.entry.wake_lock);
        if held.is_none() {
            sleepers::wake_by_carrier(connection, end);
        }
        sleepers::enter(connection);
        sleepers::set_wake(end, WakeWord::Bell);
    }
    // Pairs with the barrier in `Sender::publish` and `Receiver::consume`, see
    // `toehold_channel::doorbell`.
    fence(Ordering::SeqCst);
}

/// Takes back what [`arm`] did.
pub(crate) fn disarm(connection: &Connection, end: &End<'_>) {
    let entry = connection.entry;
    let rung = {
        let held = lock::lock(&entry.wake_lock);
        if held.is_none() {
            sleepers::wake_by_carrier(connection, end);
        }
        // While others still sleep they keep the doorbell.
        let word = match sleepers::leave(connection) {
            true => sleepers::resting(connection),
            false => WakeWord::Bell.to_word().into(),
        };
        (end.ours().wake.wake.swap(word, WAKING)).is(WakeWord::None.to_word())
    };
    if rung {
        // The doorbell stood for news that an epoll instance would have found on its ready bitmap,
        // and we may have taken it off the carrier before the kernel showed it to that instance.
        news::nudge(connection);
    }
}
