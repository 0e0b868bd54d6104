//! A sleeper asks the peer for a doorbell, and withdraws the request.
//!
//! A sleep on several descriptors ([`Armed`]) must end with exactly those connections with which it
//! began. Meanwhile another connection may have got one of the descriptors, or a connection may
//! have got a region. A sleeper that was not counted must not be counted out: otherwise another
//! thread's count would be missing, and that thread would not be woken.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::{WAKE_SEQ_CST, WakeWord};
use toehold_channel::sync::fence;
use toehold_stream::end::End;

use crate::connection::{self, Connection};
use crate::direction::takeover;
use crate::epoll::news;
use crate::lock;
use crate::waiting::sleepers;

/// Registers a sleeper and asks the peer to ring. Every call is followed by [`disarm`]. Neither
/// lock of a direction is held.
pub(crate) fn arm(connection: &Connection, end: &End<'_>) {
    takeover::look(connection);
    if end.is_silent()
        && let Some(_held) = takeover::lock_receiving(connection)
    {
        end.ask_if_silent();
    }
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

/// Undoes [`arm`].
pub(crate) fn disarm(connection: &Connection, end: &End<'_>) {
    let entry = connection.entry;
    let rung = {
        let held = lock::lock(&entry.wake_lock);
        if held.is_none() {
            sleepers::wake_by_carrier(connection, end);
        }
        // While others still sleep, the wake word still asks for a doorbell.
        let word = match sleepers::leave(connection) {
            true => sleepers::resting(connection),
            false => WakeWord::Bell.to_word().into(),
        };
        (end.ours().wake.wake.swap(word, WAKE_SEQ_CST)).is(WakeWord::None.to_word())
    };
    if rung {
        // The doorbell announced news that an epoll instance would find in its ready bitmap. We may
        // have taken the doorbell off the carrier before the kernel reported it to that instance.
        news::push_ready_and_wake(connection);
    }
}

/// A connection that a sleep has armed.
#[derive(Clone, Copy)]
pub(crate) struct Armed {
    fd: i32,
    index: u32,
    generation: u32,
}

impl Armed {
    /// Counts a sleeper that waits for `connection`. The caller is inside its region.
    pub(crate) fn begin(connection: &Connection, end: &End<'_>) -> Armed {
        arm(connection, end);
        Armed {
            fd: connection.fd,
            index: connection.index,
            generation: connection.generation,
        }
    }

    /// Counts the sleeper out. `after` looks at the cause of the wake-up, if there still is a
    /// region.
    pub(crate) fn end(self, after: impl FnOnce(&Connection, &End<'_>)) {
        let Some(connection) = connection::numbered(self.fd, self.index, self.generation) else {
            return;
        };
        if !connection.is_current() {
            // The connection has ended, and its counts with it.
            return;
        }
        match connection.inside() {
            Some(end) => {
                disarm(&connection, &end);
                after(&connection, &end);
            }
            // The connection has left its region meanwhile: there is no wake word to set, but the
            // sleeper is counted out.
            None => {
                let _held = lock::lock(&connection.entry.wake_lock);
                sleepers::leave(&connection);
            }
        }
    }
}
