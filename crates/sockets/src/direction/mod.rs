//! The two directions of a connection. This file has what our own asks for: credit of the peer, and
//! the way back to the carrier.
//!
//! - [`switching`]: up, down, or down for good: who wants it, and when it is done;
//! - [`takeover`]: the locks of the directions, and what their heirs repair;
//! - [`notifier`]: telling the peer of news; [`doorbells`]: taking its doorbells off the carrier;
//! - [`overflow`]: when a ring is too small;
//! - [`resend`]: unread bytes of a ring that go once more, by the carrier.

pub(crate) mod doorbells;
pub(crate) mod notifier;
pub(crate) mod overflow;
pub(crate) mod resend;
pub(crate) mod switching;
pub(crate) mod takeover;

use core::sync::atomic::{Ordering, fence};

use toehold_channel::doorbell::WakeWord;
use toehold_channel::sync::AtomicU64;
use toehold_channel::table::{COMMAND_PEER_GONE, Mode};
use toehold_freestanding::prefetch;
use toehold_stream::credit;
use toehold_stream::end::{End, Incoming};

use crate::connection::resets::fault_of_peer;
use crate::connection::{Connection, HINT_EOF, HINT_LOOK};
use crate::epoll::news;
use crate::express::turns;
use crate::lock;
use crate::waiting::sleepers;

/// Longer messages hide the cost of the general code, and of cache misses, behind their copy.
pub(crate) const SHORT_BYTES: usize = 512;

/// The next step of a sender without credit.
pub(crate) enum Credit {
    /// There is credit after all.
    Here,
    /// None, and the peer will ring when there is.
    WillRing,
    /// The peer could not have rung: the direction is back on the carrier.
    WentDown,
}

/// One more call of the program's that the ring served. The caller holds the direction's lock.
#[inline]
pub(crate) fn count_call(calls: &AtomicU64) {
    let count = calls.load(Ordering::Relaxed);
    calls.store(count.wrapping_add(1), Ordering::Relaxed);
}

/// The lines that a short message will write are in the reader's cache: asks for all of them at
/// once, before the first is needed. Its bytes begin at `offset` in the ring. Longer ones hide the
/// transfers behind their copy.
#[inline(always)]
pub(crate) fn fetch_lines(connection: &Connection, end: &End<'_>, offset: usize) {
    prefetch::for_write(&raw const end.ours().publish.tail);
    prefetch::for_write(end.ring_out().wrapping_add(offset).cast_const());
    if let Ok(WakeWord::Bitmap { bitmap, bit }) =
        WakeWord::from_untrusted(end.theirs().wake.wake.load(Ordering::Relaxed))
    {
        let pair = connection.local.pair.load(Ordering::Relaxed);
        // SAFETY: as in `notifier::notify`.
        if let Some(bitmap) = unsafe { pair.as_ref() }.and_then(|pair| pair.theirs(bitmap)) {
            prefetch::for_write(&raw const bitmap.bits[bit as usize / 64]);
        }
    }
}

/// Asks the peer to ring for credit, if it can.
pub(crate) fn want_credit(connection: &Connection, end: &End<'_>) -> Credit {
    advance_incoming(connection, end);
    let Some(_held) = takeover::lock_sending(connection) else {
        // Nobody was asked to ring, so nobody may sleep for it. The next send says EAGAIN.
        return Credit::WentDown;
    };
    if end.tx_mode() != Mode::Ring || overflow_to_carrier(connection, end) {
        return Credit::WentDown;
    }
    let asked = end.ask_for_credit(|| Ok(end.sender().credit_fresh()? == 0));
    let ended = connection.entry.rx_hints.load(Ordering::Relaxed) & (HINT_EOF | HINT_LOOK) != 0;
    match asked {
        Ok(credit::Credit::Here) => {
            stop_wanting(connection, end);
            Credit::Here
        }
        // A program that waits past the library hears of room from the kernel alone.
        Ok(credit::Credit::WillRing)
            if !ended && !end.both_wait() && !turns::is_unseen(connection) =>
        {
            ask_for_doorbell(connection, end)
        }
        // The next receive brings it back to the kernel.
        Ok(_) if turns::is_unaccepted(connection, end) => Credit::WillRing,
        Ok(_) => {
            go_down(connection, end);
            Credit::WentDown
        }
        Err(fault) => {
            fault_of_peer(connection, fault);
            Credit::WentDown
        }
    }
}

/// The way in which the program will wait for the credit is unknown when it neither sleeps nor has
/// the connection on a ready bitmap: ask for a doorbell.
fn ask_for_doorbell(connection: &Connection, end: &End<'_>) -> Credit {
    let entry = connection.entry;
    {
        let held = lock::lock(&entry.wake_lock);
        if held.is_none() {
            sleepers::wake_by_carrier(connection, end);
        }
        let rings_pair =
            (end.ours().wake.wake.load(Ordering::Relaxed)).is(WakeWord::PairBell.to_word());
        let is_rung = connection.local.attachment.sleepers.any() && !rings_pair;
        if is_rung || !sleepers::resting(connection).is(WakeWord::None.to_word()) {
            return Credit::WillRing;
        }
        sleepers::ask_for_unknown_wait(connection, end);
    }
    // Pairs with the barrier in `Receiver::consume`: credit that comes now rings, or is seen.
    fence(Ordering::SeqCst);
    if end.sender().credit_fresh() == Ok(0) {
        Credit::WillRing
    } else {
        Credit::Here
    }
}

/// Takes the request for credit back, unless somebody else may still rely on it. A stale one costs
/// the peer one look for each half ring, and its doorbells meet a sender that is back on the
/// carrier: should that be killed, they would make its kernel send a reset and drop what it has not
/// delivered yet, where without us it would have delivered all and ended in order. The caller holds
/// the send lock, under which requests are made.
pub(crate) fn stop_wanting(connection: &Connection, end: &End<'_>) {
    let local = connection.local;
    // A thread that has just armed and is not counted as a reader yet makes us leave the request as
    // it is, which is always right.
    if !local.attachment.sleepers.any_for_credit()
        && (local.registrations.load(Ordering::Relaxed) == 0 || end.tx_mode() != Mode::Ring)
        && !connection.is_shared()
    {
        end.stop_asking();
    }
}

/// Carries out switches of the peer that need nothing more to be read.
pub(crate) fn advance_incoming(connection: &Connection, end: &End<'_>) {
    if end.records_pending() {
        // Without the lock they wait for the next receive.
        if let Some(_held) = takeover::lock_receiving(connection) {
            if let Ok(Incoming::Ring(_)) = end.incoming() {}
        }
    }
}

/// As [`advance_incoming`], also past doorbells that came before the switch: the program may not
/// read for hours, and until then the peer could not go up again. Those that a sleeper has yet to
/// be woken by stay for it.
pub(crate) fn settle_incoming(connection: &Connection, end: &End<'_>) {
    if !end.records_pending() {
        return;
    }
    if doorbells::are_needed(connection) {
        advance_incoming(connection, end);
    } else if let Some(_held) = takeover::lock_receiving(connection) {
        // A fault is the next receive's to report.
        let _ = doorbells::incoming_behind(connection, end);
    }
}

/// Moves our direction back to the carrier. The caller holds the send lock.
pub(crate) fn go_down(connection: &Connection, end: &End<'_>) {
    if end.tx_mode() != Mode::Ring {
        return;
    }
    // A dead peer sleeps no more, and its kernel would answer a doorbell with a reset that drops
    // what it has not delivered yet.
    let peer_is_gone = connection.entry.command.load(Ordering::Relaxed) == COMMAND_PEER_GONE;
    let unread = end.go_down(|peer_sleeps| {
        if peer_sleeps && !peer_is_gone {
            notifier::ring_if_open(connection, end);
        }
    });
    if let Some(unread) = unread {
        resend::send(connection, end, unread);
    }
    stop_wanting(connection, end);
    if connection.local.registrations.load(Ordering::Relaxed) != 0 {
        news::room_is_kernels(connection);
    }
}

/// Our direction is about to end in its ring: it leaves it first if the peer, which waits by the
/// kernel, has asked for what it has not read. The caller holds the send lock.
pub(crate) fn settle(connection: &Connection, end: &End<'_>) {
    if end.tx_mode() == Mode::Ring && !end.forbid_resend() {
        go_down(connection, end);
    }
}

/// As [`go_down`], for callers without the send lock. If the lock stays taken, the direction stays
/// as it is: the next send meets the same lock, and reports the failure.
pub(crate) fn go_down_locked(connection: &Connection, end: &End<'_>) {
    if let Some(_held) = takeover::lock_sending(connection) {
        go_down(connection, end);
    }
}

/// A ring that overflows gives way to the carrier ([`overflow`]): true when it did. The caller
/// holds the send lock.
pub(crate) fn overflow_to_carrier(connection: &Connection, end: &End<'_>) -> bool {
    let is_due = overflow::is_due(connection, end) && !turns::is_unaccepted(connection, end);
    if is_due {
        go_down(connection, end);
    }
    is_due
}
