//! Telling the peer of news: a mark in its ready bitmap, a doorbell, or nothing where it looks by
//! itself ([`toehold_channel::doorbell`]).

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::{
    self, DOORBELL, Doorbell, SLEEPS_NOT, SLEEPS_ON_CARRIER, WAKE_SEQ_CST, WakeWord,
};
use toehold_channel::layout::SIDE_ACQUIRE;
use toehold_channel::table::Mode;
use toehold_stream::end::End;

use crate::connection::resets::fault_of_peer;
use crate::connection::{Connection, HINT_LOOK};
use crate::connection::{pending_errors, unix};
use crate::direction;
use crate::epoll::news;
use crate::process::table;
use crate::system::sys;

/// Makes the peer notice what was just published. The caller holds the send lock and has passed a
/// full barrier. Afterwards the direction may be on the carrier.
#[inline(always)]
pub(crate) fn notify(connection: &Connection, end: &End<'_>) -> Result<(), i32> {
    let entry = connection.entry;
    if let Some(doorbell) = due(connection, end)? {
        if !ring_pair(connection, doorbell) {
            ring_or_move_down(connection, end);
        }
    } else {
        let suppressed = entry.doorbells_suppressed.load(Ordering::Relaxed);
        entry
            .doorbells_suppressed
            .store(suppressed.wrapping_add(1), Ordering::Relaxed);
    }
    if connection.local.expects_room.load(Ordering::Relaxed) != 0 {
        news::sent_on_unix(connection);
    }
    Ok(())
}

/// Rings the pair's doorbell. False when the carrier has to be rung.
fn ring_pair(connection: &Connection, doorbell: Doorbell) -> bool {
    let pair = connection.local.pair.load(Ordering::Relaxed);
    // SAFETY: as in `due`.
    let pair = unsafe { pair.as_ref() };
    let is_rung = doorbell == Doorbell::Pair && pair.is_some_and(|pair| pair.doorbells.ring());
    if is_rung {
        let rung = &connection.entry.pair_doorbells;
        rung.fetch_add(1, Ordering::Relaxed);
    }
    is_rung
}

/// As [`ring`]. A peer that may not be rung any more has its news by the carrier.
#[cold]
fn ring_or_move_down(connection: &Connection, end: &End<'_>) {
    if ring(connection, end) {
        return;
    }
    let is_asked = end.is_asked_to_resend();
    direction::go_down(connection, end);
    if is_asked {
        return;
    }
    // Threads that sleep for the ready bitmap are not woken here: the other connections' notifiers
    // must still wake them.
    if let Ok(WakeWord::Bitmap { bitmap, .. }) =
        WakeWord::from_untrusted(end.theirs().wake.wake.load(WAKE_SEQ_CST))
    {
        let pair = connection.local.pair.load(Ordering::Relaxed);
        // SAFETY: as in `due`.
        if let Some(bitmap) = unsafe { pair.as_ref() }.and_then(|pair| pair.theirs(bitmap)) {
            bitmap.sleeping.store(SLEEPS_ON_CARRIER, WAKE_SEQ_CST);
        }
    }
}

/// Marks the peer's ready bitmap. Returns the doorbell that has to follow.
#[inline(always)]
pub(crate) fn due(connection: &Connection, end: &End<'_>) -> Result<Option<Doorbell>, i32> {
    let pair = connection.local.pair.load(Ordering::Relaxed);
    // SAFETY: a connection's pair stays mapped until its release, which takes the send lock first.
    let pair = unsafe { pair.as_ref() };
    doorbell::due(&end.theirs().wake, |bitmap| {
        pair.and_then(|pair| pair.theirs(bitmap))
    })
    .map_err(|fault| fault_of_peer(connection, fault))
}

/// As [`ring`], unless the peer's direction has ended, or the carrier has. Such a peer waits for no
/// credit and has nothing to bring down, and if it has closed, the doorbell would provoke the
/// reset, or be told the error, that is for what the program sends next.
#[cold]
pub(crate) fn ring_if_open(connection: &Connection, end: &End<'_>) {
    if is_open(connection, end) {
        let _ = ring(connection, end);
    }
}

/// As [`ring_if_open`], for the news of somebody else.
#[cold]
pub(crate) fn ring_or_move_down_if_open(connection: &Connection, end: &End<'_>) {
    if is_open(connection, end) {
        ring_or_move_down(connection, end);
    }
}

/// Our direction is about to come down, as the adapter has told both ends of this connection and of
/// others. A peer that sleeps is rung, so that it follows with all of its connections: a few times
/// for all that it shares with us, because each costs a system call and a wake-up. Where it sleeps
/// on, each connection follows when the program next uses it. The caller holds the send lock.
#[cold]
pub(crate) fn call_peer(connection: &Connection, end: &End<'_>) {
    let pair = connection.local.pair.load(Ordering::Relaxed);
    // SAFETY: as in `due`.
    let Some(pair) = (unsafe { pair.as_ref() }) else {
        return;
    };
    let sleeps = match WakeWord::from_untrusted(end.theirs().wake.wake.load(WAKE_SEQ_CST)) {
        Ok(WakeWord::Bell | WakeWord::PairBell) => true,
        Ok(WakeWord::Bitmap { bitmap, .. }) => pair
            .theirs(bitmap)
            .is_some_and(|bitmap| !bitmap.sleeping.load(WAKE_SEQ_CST).is(SLEEPS_NOT)),
        Ok(WakeWord::None) | Err(_) => false,
    };
    if sleeps
        && pair.may_call(table::request())
        && is_open(connection, end)
        && let Ok(Some(doorbell)) = due(connection, end)
        && !ring_pair(connection, doorbell)
    {
        let _ = ring(connection, end);
    }
}

/// True when the peer has ended neither its direction nor the carrier, as far as can be seen.
pub(crate) fn is_open(connection: &Connection, end: &End<'_>) -> bool {
    let ended = libc::POLLRDHUP | libc::POLLERR | libc::POLLHUP;
    let closed = !end.theirs().wake.closed.load(SIDE_ACQUIRE).is(0);
    let is_open = |fd| sys::poll_now(fd, libc::POLLRDHUP) & ended == 0;
    !closed && connection.carrier().is_some_and(is_open)
}

/// As [`notify`], of a peer whose program has not been seen waiting, if `is_seen` does not say so
/// by now. Where that may wait past the library, the doorbell is late: the kernel sends it with the
/// next byte, or by itself some 0.2 s later (tcp(7), `TCP_CORK`), whatever becomes of this process.
/// That takes a fifth of the time.
pub(crate) fn notify_late(connection: &Connection, end: &End<'_>, is_seen: impl Fn() -> bool) {
    let was_bell = (end.theirs().wake.wake.load(WAKE_SEQ_CST)).is(WakeWord::Bell.to_word());
    match due(connection, end) {
        // A thread of the peer's sleeps in the library.
        Ok(Some(doorbell)) if is_seen() || !was_bell => {
            if !ring_pair(connection, doorbell) {
                let _ = ring(connection, end);
            }
        }
        Ok(_) if end.theirs().wake.closed.load(SIDE_ACQUIRE).is(0) => {
            // A turn that nobody has accepted is not lent.
            if !is_ring_to_come(connection) {
                let _ = ring_by(connection, end, sys::send_late);
            }
        }
        Ok(_) | Err(_) => {}
    }
}

/// True when the kernel still keeps a byte of the carrier, such as the late doorbell of an earlier
/// turn. It sends that byte after what we have published, and no later than a new one. To ask takes
/// a fifth of the time of a late doorbell, whose bytes wait for acknowledgements by turns.
fn is_ring_to_come(connection: &Connection) -> bool {
    connection
        .carrier()
        .is_some_and(|carrier| sys::bytes_unsent(carrier) > 0)
}

/// One byte on the carrier, unless the peer is silent: then false. The caller holds the send lock,
/// the direction is in ring mode.
#[cold]
fn ring(connection: &Connection, end: &End<'_>) -> bool {
    ring_by(connection, end, sys::send_now)
}

fn ring_by(connection: &Connection, end: &End<'_>, send: fn(i32, &[u8]) -> isize) -> bool {
    let Some(fd) = connection.carrier() else {
        return true;
    };
    end.ring(|| {
        give_doorbell(connection, end, || send(fd, &[DOORBELL]));
        connection.entry.tx_carrier.load(Ordering::Relaxed)
    })
}

fn give_doorbell(connection: &Connection, end: &End<'_>, send: impl FnOnce() -> isize) {
    let entry = connection.entry;
    let result = unix::counted(connection, end, || {
        let result = send();
        if result == 1 {
            entry.tx_carrier.fetch_add(1, Ordering::Relaxed);
        }
        result
    });
    if result == 1 {
        entry.doorbells.fetch_add(1, Ordering::Relaxed);
    } else if result == -(libc::EPIPE as isize) {
        // The connection is broken, and its error was reported: what is left to read, and its end,
        // is up to the next receive.
        entry.rx_hints.fetch_or(HINT_LOOK, Ordering::Relaxed);
    } else if result != -(libc::EAGAIN as isize) {
        pending_errors::keep(connection, -result as i32);
    }
    // EAGAIN: the carrier is full, so the peer has something to read already.
}

/// The connection has been closed ([`End::close`]): a peer that is awake should look. The caller
/// holds the send lock.
pub(crate) fn notify_of_end(connection: &Connection, end: &End<'_>) {
    if end.tx_mode() == Mode::Ring {
        let pair = connection.local.pair.load(Ordering::Relaxed);
        // A sleeping peer is woken by the carrier's own end; one that is awake by its ready bitmap.
        // SAFETY: as in `notify`.
        let pair = unsafe { pair.as_ref() };
        let _ = doorbell::due(&end.theirs().wake, |bitmap| {
            pair.and_then(|pair| pair.theirs(bitmap))
        });
    }
}
