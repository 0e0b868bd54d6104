//! Doorbells are bytes on the carrier that are no data. The reader takes them off the carrier, as
//! soon as no other sleeper needs them.
//!
//! Each function here says when it may be called, or when it stops. Each counts the doorbells that
//! it took. If the kernel reports an error to it, the error is kept for the program's next call,
//! because the kernel reports it only once. Doorbells must not stay on the carrier:
//! `docs/decisions/0008-doorbells-and-sudden-ends.md` says why.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::are_doorbells;
use toehold_channel::ring::Fault;
use toehold_channel::table::Mode;
use toehold_stream::end::{End, Incoming};
use toehold_stream::silence::Doorbells;

use crate::connection::Connection;
use crate::connection::{pending_errors, resets};
use crate::direction::takeover;
use crate::epoll::news;
use crate::lock;
use crate::system::sys;
use crate::waiting::sleepers;

/// Doorbells taken in one call.
const BATCH: usize = 256;
/// The most doorbells that may stay on a parked carrier. The kernel acknowledges unread bytes 40 ms
/// late, and a carrier's congestion window begins with ten segments. A doorbell beyond these is
/// held back until then, and its sleeper sleeps on.
const LEFT_MAX: u64 = 3;

/// Takes up to `limit` of the carrier's next bytes, which are doorbells. `Ok(0)` is the carrier's
/// end. Callers hold the receive lock.
///
/// # Errors
/// Those of the kernel's receive. `ECONNRESET` when something else came in the place of doorbells:
/// the peer's program has written past its library (by an instruction that it made at run time, for
/// example), and nobody knows where in the stream these bytes belong. The connection ends.
pub(crate) fn take(connection: &Connection, limit: u64) -> Result<usize, i32> {
    let fd = connection.carrier().ok_or(libc::EBADF)?;
    let mut scratch = [0u8; BATCH];
    let len = limit.min(BATCH as u64) as usize;
    // SAFETY: `scratch` is writable for `len` bytes.
    let result = unsafe { sys::recv(fd, scratch.as_mut_ptr(), len, libc::MSG_DONTWAIT) };
    let bytes = sys::answer(result)?;
    let taken = &connection.entry.rx_carrier;
    taken.fetch_add(bytes as u64, Ordering::Relaxed);
    match are_doorbells(&scratch[..bytes]) {
        true => Ok(bytes),
        false => Err(resets::bytes_past_peers_library(connection)),
    }
}

/// Doorbells on the carrier. Callers hold the receive lock.
fn waiting(connection: &Connection, end: &End<'_>) -> u64 {
    end.doorbells(|| {
        let waiting = connection.carrier().map_or(0, sys::bytes_waiting);
        u64::try_from(waiting).unwrap_or(0)
    })
}

/// As [`take`], on the way back to the carrier; 0 when there were none.
pub(crate) fn skip(connection: &Connection, limit: u64) -> usize {
    take(connection, limit).unwrap_or_else(|error| {
        pending_errors::keep_for_next_call(connection, error);
        0
    })
}

/// [`End::incoming`], behind the doorbells that have come and stand in between: left there they
/// would end every sleep. Callers hold the receive lock.
pub(crate) fn incoming_behind(connection: &Connection, end: &End<'_>) -> Result<Incoming, Fault> {
    /// A peer that sends more in one go sends them for nothing.
    const BATCHES_MAX: usize = 16;
    let mut next = end.incoming()?;
    for _ in 0..BATCHES_MAX {
        let Incoming::Skip { bytes } = next else {
            break;
        };
        let here = sys::bytes_waiting(connection.number()).max(0) as u64;
        if here == 0 || skip(connection, bytes.min(here)) == 0 {
            break;
        }
        next = end.incoming()?;
    }
    Ok(next)
}

/// Takes what stands on the carrier in ring mode, unless somebody sleeps. True when any were there.
/// Callers hold the receive lock.
pub(crate) fn drain(connection: &Connection, end: &End<'_>) -> bool {
    let mut any = false;
    loop {
        let waiting = waiting(connection, end);
        if waiting == 0 {
            return any;
        }
        if are_needed(connection) {
            return true;
        }
        let taken = skip(connection, waiting);
        any |= taken > 0;
        if taken == 0 || taken as u64 == waiting {
            return any;
        }
    }
}

/// Takes doorbells that a turn leaves on its carrier, when they are more than may stay there and
/// nobody needs them. The peer gives none before it has heard of the turn's end. Callers hold the
/// receive lock.
pub(crate) fn take_left(connection: &Connection, end: &End<'_>) {
    if let Doorbells::Given(left) = end.doorbells_to_take()
        && left > LEFT_MAX
        && !are_needed(connection)
    {
        skip(connection, left);
    }
}

/// True when somebody may have yet to be woken by a doorbell on the carrier.
pub(crate) fn are_needed(connection: &Connection) -> bool {
    sleepers::need_doorbell(connection) || news::awaits_doorbell(connection)
}

/// Takes all doorbells off the carrier, even if threads sleep: the connection is being closed, or
/// has ended. Callers hold the receive lock.
pub(crate) fn discard(connection: &Connection, end: &End<'_>) {
    loop {
        let waiting = waiting(connection, end);
        if waiting == 0 || skip(connection, waiting) == 0 {
            return;
        }
    }
}

/// The next act of a thread that sleeps, or an instance's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// It is woken by a doorbell, which it takes.
    Doorbell,
    /// It sees bytes that the ring has, or is rung for them.
    Look,
}

impl Awaited {
    /// The time that this may take: longer only when the thread is kept from running. It may leave
    /// bytes of the ring where they are (`SO_RCVLOWAT`).
    pub(crate) fn for_ns(self) -> u64 {
        match self {
            Awaited::Doorbell => 100_000_000,
            Awaited::Look => 2_000_000,
        }
    }
}

/// The act that is next for those who sleep. Callers hold the receive lock.
pub(crate) fn awaited(connection: &Connection, end: &End<'_>) -> Option<Awaited> {
    match end.doorbells_to_take() {
        Doorbells::Given(_) | Doorbells::UnderWay => {
            are_needed(connection).then_some(Awaited::Doorbell)
        }
        Doorbells::Taken => {
            let is_unread = end.rx_mode() == Mode::Ring && end.receiver().looks_filled();
            (is_unread && sleepers::are_there(connection)).then_some(Awaited::Look)
        }
    }
}

/// Takes all doorbells off the carrier, even if threads sleep, and also those behind unread bytes
/// of the ring. False when more are on their way. This end is silent, and callers hold the receive
/// lock.
pub(crate) fn take_all(connection: &Connection, end: &End<'_>) -> bool {
    let ended = libc::POLLRDHUP | libc::POLLERR | libc::POLLHUP;
    let has_ended = sys::poll_now(connection.number(), libc::POLLRDHUP) & ended != 0;
    discard(connection, end);
    take_ahead(connection, end) || has_ended
}

/// Takes doorbells from before a switch that is still to be carried out.
fn take_ahead(connection: &Connection, end: &End<'_>) -> bool {
    for next in end.ahead().unwrap_or_default().into_iter().flatten() {
        match next {
            Incoming::Ring(_) => {}
            Incoming::Skip { bytes } => return skip(connection, bytes) as u64 == bytes,
            // Doorbells of another ring stand behind bytes that nobody has read.
            Incoming::Carrier { .. } => return true,
        }
    }
    end.doorbells_to_take() == Doorbells::Taken
}

/// As [`drain`], if the receive lock can be had at once. Before this process gives the kernel bytes
/// to deliver: should it die then, one left unread would be answered with a reset, and the kernel
/// would drop what it has not delivered yet.
pub(crate) fn try_drain(connection: &Connection, end: &End<'_>) {
    if end.rx_mode() == Mode::Ring {
        if let Some(_held) = lock::try_lock(&connection.entry.rx_lock)
            && end.doorbells_to_take() != Doorbells::Taken
        {
            drain(connection, end);
        }
    }
}

/// Takes up to `seen` that a sleeper peeked at, if they are there still, unless somebody else
/// sleeps. Takes the receive lock.
pub(crate) fn take_seen(connection: &Connection, end: &End<'_>, seen: usize) {
    let Some(_held) = takeover::lock_receiving(connection) else {
        // They stay for the next receive.
        return;
    };
    let there = waiting(connection, end).min(seen as u64);
    if there > 0 && !are_needed(connection) {
        skip(connection, there);
    }
}
