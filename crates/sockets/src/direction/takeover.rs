//! The locks of a connection's two directions. A member of the family that takes a lock over from a
//! dead member repairs the direction ([`toehold_stream::takeover`]).
//!
//! Callers that wait for such a lock take it here. Callers that only try a lock leave a dead
//! owner's lock alone, except where no other caller would come ([`try_lock_sending`], [`look`]).

use core::sync::atomic::Ordering;

use toehold_channel::sync::AtomicU32;
use toehold_channel::table::{COMMAND_PEER_GONE, Mode, Reason};
use toehold_stream::end::End;

use crate::connection::Connection;
use crate::connection::{counts, pending_errors};
use crate::direction::notifier;
use crate::lock::{self, Held, Waited};
use crate::system::sys;

/// Takes the send lock. `None` as for [`lock::lock`].
#[inline]
pub(crate) fn lock_sending(connection: &Connection) -> Option<Held<'static>> {
    match lock::try_lock(&connection.entry.tx_lock) {
        Some(held) => Some(held),
        None => lock_contended(&connection.entry.tx_lock, connection, sent_from),
    }
}

/// Takes the receive lock. `None` as for [`lock::lock`].
#[inline]
pub(crate) fn lock_receiving(connection: &Connection) -> Option<Held<'static>> {
    match lock::try_lock(&connection.entry.rx_lock) {
        Some(held) => Some(held),
        None => lock_contended(&connection.entry.rx_lock, connection, received_from),
    }
}

#[cold]
fn lock_contended(
    word: &'static AtomicU32,
    connection: &Connection,
    repair: fn(&Connection, Waited<'static>) -> Held<'static>,
) -> Option<Held<'static>> {
    Some(repair(connection, lock::wait_for(word, lock::WAIT_NS_MAX)?))
}

/// Takes the send lock if it is free, or its owner is dead.
#[inline]
pub(crate) fn try_lock_sending(connection: &Connection) -> Option<Held<'static>> {
    let word = &connection.entry.tx_lock;
    lock::try_lock(word).or_else(|| Some(sent_from(connection, lock::inherit(word)?)))
}

/// Called before a thread waits without taking a lock. If a dead process holds a lock, it may owe
/// the peer a doorbell for which the peer waits, so the lock is taken over. No lock is held.
#[inline]
pub(crate) fn look(connection: &Connection) {
    let entry = connection.entry;
    // Relaxed: hints.
    let [rx, tx] = [&entry.rx_lock, &entry.tx_lock].map(|word| word.load(Ordering::Relaxed));
    if lock::is_anothers(rx) || lock::is_anothers(tx) {
        look_at_owners(connection);
    }
}

#[cold]
fn look_at_owners(connection: &Connection) {
    let entry = connection.entry;
    drop(lock::inherit(&entry.rx_lock).map(|waited| received_from(connection, waited)));
    drop(lock::inherit(&entry.tx_lock).map(|waited| sent_from(connection, waited)));
}

fn sent_from(connection: &Connection, waited: Waited<'static>) -> Held<'static> {
    if waited.is_inherited
        && let Some(end) = repairable(connection)
    {
        match end.take_over_sending(counts::given(connection, &end)) {
            Ok(()) => ring_in_any_case(connection, &end),
            Err(_) => lose(connection),
        }
    }
    waited.held
}

fn received_from(connection: &Connection, waited: Waited<'static>) -> Held<'static> {
    if waited.is_inherited
        && let Some(end) = repairable(connection)
    {
        match end.take_over_receiving(counts::taken(connection, &end)) {
            Ok(()) => drop(notify_of_credit(connection, &end)),
            Err(_) => lose(connection),
        }
    }
    waited.held
}

/// Notifies a sender that asks for credit, from inside the receive lock. False if our direction is
/// not in a ring, or if the send lock stays taken for too long.
pub(crate) fn notify_of_credit(connection: &Connection, end: &End<'_>) -> bool {
    /// Far longer than another thread takes for a copy, unless it does not get a processor.
    const WAIT_NS: u64 = 20_000_000;
    if !end.is_asked_for_credit() {
        return true;
    }
    let sending = lock::wait_for(&connection.entry.tx_lock, WAIT_NS);
    let sending = sending.map(|waited| sent_from(connection, waited));
    let is_ring = sending.is_some() && end.tx_mode() == Mode::Ring;
    if is_ring {
        let _ = notifier::notify(connection, end);
    }
    is_ring
}

/// Our end of a connection that has a channel. On the host path there is nothing to repair: wrong
/// byte counts of a killed member are noticed when they are compared with the kernel's.
fn repairable(connection: &Connection) -> Option<End<'static>> {
    connection.end().filter(|_| connection.is_current())
}

/// Rings always, because the dead owner may have consumed the peer's request without ringing.
fn ring_in_any_case(connection: &Connection, end: &End<'_>) {
    let is_peer_gone = connection.entry.command.load(Ordering::Relaxed) == COMMAND_PEER_GONE;
    if end.tx_mode() == Mode::Ring && !is_peer_gone {
        // For the ready bitmap. A fault has ended the connection by now.
        let _ = notifier::due(connection, end);
        notifier::ring_or_move_down_if_open(connection, end);
    }
}

/// Ends the connection.
#[cold]
fn lose(connection: &Connection) {
    connection.pin(Reason::CountsDisagree);
    sys::disconnect(connection.number());
    pending_errors::keep(connection, libc::ECONNRESET);
}
