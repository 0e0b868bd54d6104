//! Detects a program that waits past the library, at the program's own end.
//!
//! While its program was not seen waiting, an end asks for a doorbell whenever a call finds
//! nothing, as for any unknown way of waiting. If bytes come then, and a later call finds nothing
//! again, the program must have waited in between, but not through the library. So the connection
//! goes back to the kernel. Bytes of this end ring the peer, if the peer's program was not seen
//! either.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::WakeWord;
use toehold_channel::table::{Mode, Reason};
use toehold_stream::end::End;

use super::{LOCK, evidence, turns};
use crate::connection::Connection;
use crate::direction::{notifier, switching, takeover};
use crate::epoll::membership;
use crate::waiting::{seen_waits, sleepers};

/// After this many calls in a row that found nothing, the program seems to poll by itself.
const EMPTY_LOOKS_MAX: u32 = 256;

/// A non-blocking receive has found nothing, the `empty`th in a row, and the program was not seen
/// waiting. True when it may wait past the library now. No lock of the connection is held.
#[cold]
pub(crate) fn found_nothing(connection: &Connection, empty: u32) -> bool {
    let (entry, words) = (connection.entry, &connection.local.express);
    if !words.is_carrier() {
        return false;
    }
    if empty > EMPTY_LOOKS_MAX {
        seen_waits::seen(connection);
        return false;
    }
    // For a carrier that was parked, that wake word is about its listener.
    if !sleepers::own_resting(connection).is(WakeWord::None.to_word()) {
        membership::set_resting_wake(connection, WakeWord::None);
    }
    let calls = entry.rx_calls.load(Ordering::Relaxed) + 1;
    match words.fruitless_at.load(Ordering::Relaxed) {
        0 => words.fruitless_at.store(calls, Ordering::Relaxed),
        before if before == calls => {}
        _ => {
            if let Some(_held) = LOCK.try_lock() {
                evidence::waited_elsewhere(connection);
            }
            switching::retire(connection, Reason::UnseenWaits);
        }
    }
    true
}

/// Bytes were sent in a turn in which the program was not seen waiting.
#[cold]
pub(crate) fn sent(connection: &Connection, end: &End<'_>) {
    if turns::is_peer_seen(connection, end) {
        return;
    }
    if let Some(_held) = takeover::lock_sending(connection)
        && end.tx_mode() == Mode::Ring
    {
        notifier::ring_if_open(connection, end);
    }
}

/// The program has set whether calls on the connection block.
pub(crate) fn mode_was_set(connection: &Connection) {
    if connection.local.express.is_carrier() && !seen_waits::is_seen(connection.local) {
        turns::note_unseen(connection.entry);
    }
}
