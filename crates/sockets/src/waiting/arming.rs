//! A sleeper asks the peer for a doorbell, and withdraws the request.
//!
//! A sleep on several descriptors ([`Armed`]) must end with exactly those connections with which it
//! began. Meanwhile another connection may have got one of the descriptors, or a connection may
//! have got a region. A sleeper that was not counted must not be counted out: otherwise another
//! thread's count would be missing, and that thread would not be woken.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::{Doorbell, WAKE_SEQ_CST, WakeWord};
use toehold_channel::sync::fence;
use toehold_stream::end::End;

use crate::connection::{self, Connection};
use crate::direction::takeover;
use crate::epoll::news;
use crate::lock;
use crate::memory::pairs::Pair;
use crate::waiting::sleepers;

/// Registers a sleeper and asks the peer to ring the carrier. Every call is followed by [`disarm`].
/// Neither lock of a direction is held.
pub(crate) fn arm(connection: &Connection, end: &End<'_>) {
    arm_for(connection, end, Doorbell::Carrier);
}

/// As [`arm`]. With [`Doorbell::Pair`] the sleeper takes the pair's doorbell and the carrier's, and
/// has claimed the doorbells of pairs. Returns the one that the peer was asked to ring: the carrier
/// when the pair's doorbell does not wake this process, or would not wake everybody who waits.
pub(crate) fn arm_for(connection: &Connection, end: &End<'_>, takes: Doorbell) -> Doorbell {
    takeover::look(connection);
    if end.is_silent()
        && let Some(_held) = takeover::lock_receiving(connection)
    {
        end.ask_if_silent();
    }
    let doorbell = {
        let held = lock::lock(&connection.entry.wake_lock);
        if held.is_none() {
            sleepers::wake_by_carrier(connection, end);
        }
        let is_by_pair = takes == Doorbell::Pair
            && held.is_some()
            && !end.is_silent()
            && has_pairs_doorbell(connection)
            && sleepers::is_only_one(connection, end);
        sleepers::enter(connection);
        let (word, doorbell) = match is_by_pair {
            true => (WakeWord::PairBell, Doorbell::Pair),
            false => (WakeWord::Bell, Doorbell::Carrier),
        };
        sleepers::set_wake(end, word);
        doorbell
    };
    // Pairs with the barrier in `Sender::publish` and `Receiver::consume`, see
    // `toehold_channel::doorbell`.
    fence(Ordering::SeqCst);
    doorbell
}

/// Whether the peer can wake this process by the pair's doorbell.
fn has_pairs_doorbell(connection: &Connection) -> bool {
    let pair = connection.local.pair.load(Ordering::Relaxed);
    // SAFETY: places of the pair table are never released.
    unsafe { pair.as_ref() }.is_some_and(Pair::has_doorbell)
}

/// Undoes [`arm`]. True when the peer has rung.
pub(crate) fn disarm(connection: &Connection, end: &End<'_>) -> bool {
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
    rung
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
        Armed::begin_for(connection, end, Doorbell::Carrier).0
    }

    /// As [`Armed::begin`], of a sleeper that takes these doorbells: see [`arm_for`].
    pub(crate) fn begin_for(
        connection: &Connection,
        end: &End<'_>,
        takes: Doorbell,
    ) -> (Armed, Doorbell) {
        let doorbell = arm_for(connection, end, takes);
        let armed = Armed {
            fd: connection.fd,
            index: connection.index,
            generation: connection.generation,
        };
        (armed, doorbell)
    }

    /// Counts the sleeper out. `after` looks at the cause of the wake-up, if there still is a
    /// region. It and the caller are told whether the peer has rung.
    pub(crate) fn end(self, after: impl FnOnce(&Connection, &End<'_>, bool)) -> bool {
        let Some(connection) = connection::numbered(self.fd, self.index, self.generation) else {
            return false;
        };
        if !connection.is_current() {
            // The connection has ended, and its counts with it.
            return false;
        }
        match connection.inside() {
            Some(end) => {
                let is_rung = disarm(&connection, &end);
                after(&connection, &end, is_rung);
                is_rung
            }
            // The connection has left its region meanwhile: there is no wake word to set, but the
            // sleeper is counted out.
            None => {
                let _held = lock::lock(&connection.entry.wake_lock);
                sleepers::leave(&connection);
                false
            }
        }
    }
}
