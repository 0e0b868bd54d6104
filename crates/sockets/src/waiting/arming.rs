//! How a sleeper asks the peer for a doorbell, and takes that back.
//!
//! A sleep that names descriptors ([`Armed`]) ends on the connections on which it began. Meanwhile
//! another thread may have given a number to another connection, or a connection its region. A
//! sleeper that was not counted must not be counted out: that would be another thread's count, and
//! nobody would wake that thread.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::{WAKING, WakeWord};
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

/// A connection that a sleep has armed.
#[derive(Clone, Copy)]
pub(crate) struct Armed {
    fd: i32,
    index: u32,
    generation: u32,
}

impl Armed {
    /// A sleeper waits for `connection`, in whose region the caller is.
    pub(crate) fn begin(connection: &Connection, end: &End<'_>) -> Armed {
        arm(connection, end);
        Armed {
            fd: connection.fd,
            index: connection.index,
            generation: connection.generation,
        }
    }

    /// The sleeper waits no longer. `after` looks at what woke it, if there is a region still.
    pub(crate) fn end(self, after: impl FnOnce(&Connection, &End<'_>)) {
        let Some(connection) = connection::numbered(self.fd, self.index, self.generation) else {
            return;
        };
        if !connection.is_current() {
            // Its counts went with it.
            return;
        }
        match connection.inside() {
            Some(end) => {
                disarm(&connection, &end);
                after(&connection, &end);
            }
            // It has left its region meanwhile: there is no wake word to set, but a sleeper less.
            None => {
                let _held = lock::lock(&connection.entry.wake_lock);
                sleepers::leave(&connection);
            }
        }
    }
}
