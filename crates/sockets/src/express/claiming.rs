//! `connect`: a parked carrier takes the place of the program's socket.

use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use libc::{epoll_event, sockaddr, socklen_t};
use toehold_channel::doorbell::WakeWord;
use toehold_channel::express::Event;
use toehold_channel::layout::CAPACITY_LOG2_MIN;
use toehold_channel::preamble::ConnectPreamble;
use toehold_channel::table::{Entry, FLAG_NONBLOCK, FLAG_OFFLOAD, FLAG_RESULT_UNREPORTED};
use toehold_stream::end::End;
use toehold_stream::express::{Push, Queued, Turn};

use super::carriers::{self, Role};
use super::destinations::Destination;
use super::{
    LOCK, carrier_words, listening, may_act, parking, published, returning, seeds, spares, turns,
    unread_watch,
};
use crate::connection::settings;
use crate::connection::{self, Connection, Local};
use crate::direction::{doorbells, notifier, takeover};
use crate::epoll::{early, membership, parked};
use crate::memory::pairs::Pair;
use crate::offload::awaiting;
use crate::process::descriptors::{
    self, FRESH_CLOEXEC, FRESH_KEEPALIVE, FRESH_NODELAY, FRESH_NONBLOCK, FRESH_V6,
};
use crate::system::{errno, sys};
use crate::{lock, process, uring};

/// `connect` on `fd`, whose state is `fresh`, if a carrier to that address is parked. `None`: the
/// kernel must connect. The caller has checked that this process may use express.
///
/// # Safety
/// `address` is readable for `len`.
pub(crate) unsafe fn connect(
    fd: c_int,
    fresh: u64,
    address: *const sockaddr,
    len: socklen_t,
) -> Option<c_int> {
    if !carriers::are_any() {
        published::count(Event::NoneParked);
        return None;
    }
    // SAFETY: the caller's promise.
    let destination = unsafe { Destination::of(address, len) }?;
    if destination.is_v6() != (fresh & FRESH_V6 != 0) {
        return None;
    }
    errno::keep(|| claim(fd, fresh, destination, None))?;
    if fresh & FRESH_NONBLOCK != 0 {
        errno::set(libc::EINPROGRESS);
        return Some(-1);
    }
    Some(0)
}

/// For a connection on a used carrier whose `connect` has returned EINPROGRESS: true once, for the
/// next `connect`, which returns success. Later calls return EISCONN (`__inet_stream_connect` in
/// net/ipv4/af_inet.c).
pub(crate) fn claim_success(fd: c_int) -> bool {
    connection::at(fd).is_some_and(|connection| {
        let flags = &connection.entry.flags;
        let is_ours =
            |flags| flags & (FLAG_RESULT_UNREPORTED | FLAG_OFFLOAD) == FLAG_RESULT_UNREPORTED;
        is_ours(flags.load(Ordering::Relaxed))
            && is_ours(flags.fetch_and(!FLAG_RESULT_UNREPORTED, Ordering::Relaxed))
    })
}

/// As [`connect`], for a connection through the engine: the carrier leads to the relay, and the
/// preamble has the destination. `None`: a new carrier is needed.
pub(crate) fn connect_by_engine(
    fd: c_int,
    fresh: u64,
    preamble: &ConnectPreamble,
) -> Option<Connection> {
    let destination = Destination::by_engine(preamble.remote, fresh & FRESH_V6 != 0);
    claim(fd, fresh, destination, Some(preamble))
}

/// The program has made a socket.
pub(crate) fn made(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    let Some(bits) = descriptors::fresh_bits(domain, kind, protocol) else {
        return;
    };
    if !may_act() || descriptors::kind(fd) != descriptors::Kind::Foreign {
        return;
    }
    descriptors::note_fresh(fd, bits, errno::keep(spares::epoch_of_new));
}

/// Puts a parked carrier that leads to `destination` in the place of the program's socket.
fn claim(
    fd: c_int,
    fresh: u64,
    destination: Destination,
    preamble: Option<&ConnectPreamble>,
) -> Option<Connection> {
    let (connection, end) = {
        let _held = LOCK.lock();
        if descriptors::fresh(fd) != Some(fresh) {
            // Another thread has closed or connected the socket. From now on such a thread waits
            // for the lock.
            return None;
        }
        if !spares::is_of_epoch(descriptors::epoch_of(fresh)) {
            // A different user than that of the carriers may have made the socket.
            return None;
        }
        let now = sys::now_ns();
        let (carrier, turn) = take(destination, now)?;
        begin(fd, fresh, &carrier, turn, preamble, now)?
    };
    // Called without the lock, because it may wake the peer, which may take this processor.
    wake_peer(&connection, &end);
    Some(connection)
}

/// Claims the carrier to an address that was parked first. The caller holds the lock of express.
fn take(destination: Destination, now: u64) -> Option<(Connection, Turn)> {
    carriers::look_after();
    let mut connect_failure = Event::NoneParked;
    let Some(number) = destination.number() else {
        published::count(connect_failure);
        return None;
    };
    let (mut claimed, mut busy) = (None, 0);
    let mut look = |pair: Option<*mut Pair>| {
        carriers::each(Role::Connecting, |index, entry, local| {
            let leads_to = local.express.destination.load(Ordering::Relaxed);
            let is_wanted = |pair| local.pair.load(Ordering::Relaxed) == pair;
            if leads_to != number || !pair.is_none_or(is_wanted) {
                return true;
            }
            match try_claim(index, entry, local, now) {
                Claim::Taken(carrier, turn) => {
                    claimed = Some((carrier, turn));
                    return false;
                }
                Claim::NotParked => {
                    connect_failure = Event::PeerBusy;
                    busy += 1;
                    return busy != BUSY_MAX || may_look_on(now);
                }
                Claim::Full => connect_failure = Event::QueueFull,
                Claim::Dead => carriers::retire(Role::Connecting, index),
            }
            true
        });
        claimed.is_some()
    };
    let pair = least_busy(number);
    let is_claimed = look(pair) || pair.is_some() && look(None);
    if !is_claimed {
        published::count(connect_failure);
    }
    let (carrier, turn) = claimed?;
    LAST_PAIR.store(
        carrier.local.pair.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    Some((carrier, turn))
}

/// The pair of the last claim. It is only compared.
static LAST_PAIR: AtomicPtr<Pair> = AtomicPtr::new(null_mut());
/// A queue as short as this is emptied sooner than a sleeping worker would wake.
const SHORT_QUEUE: u32 = 4;
/// The most parked carriers that are looked at.
const LOOKED_AT_MAX: u32 = 16;
/// After this many carriers whose last connections the peer has not closed yet, the other carriers
/// are looked at only from time to time. They were parked later, so the peer has probably not
/// closed their connections either.
const BUSY_MAX: u32 = 16;
const BETWEEN_LOOKS_NS: u64 = 200_000;
static LOOKED_ON_NS: AtomicU64 = AtomicU64::new(0);

/// True when it is time to look at more carriers, after the first [`BUSY_MAX`] could not be
/// claimed.
fn may_look_on(now: u64) -> bool {
    let before = LOOKED_ON_NS.load(Ordering::Relaxed);
    let may = now.saturating_sub(before) >= BETWEEN_LOOKS_NS;
    if may {
        LOOKED_ON_NS.store(now, Ordering::Relaxed);
    }
    may
}

/// Chooses one of several workers of a server for the next connection, and returns our pair with
/// it: the last chosen worker while its queue is short, otherwise the worker with the shortest
/// queue. `None` when there is no choice. (A worker that does not run delays the connections in its
/// queue.)
fn least_busy(number: u32) -> Option<*mut Pair> {
    let last = LAST_PAIR.load(Ordering::Relaxed);
    let (mut best, mut shortest, mut others) = (null_mut(), u32::MAX, false);
    let mut looked_at = 0;
    carriers::each(Role::Connecting, |_, _, local| {
        looked_at += 1;
        let place = local.pair.load(Ordering::Relaxed);
        let leads_to = local.express.destination.load(Ordering::Relaxed);
        if leads_to == number && place != best {
            let waiting = carriers::pair_of(local).map(|pair| pair.to_accept().waiting());
            let Some(Ok(waiting)) = waiting else {
                return true;
            };
            if place == last && waiting <= SHORT_QUEUE {
                (best, others) = (place, true);
                return false;
            }
            others |= !best.is_null();
            if waiting < shortest {
                (best, shortest) = (place, waiting);
            }
        }
        looked_at < LOOKED_AT_MAX
    });
    others.then_some(best)
}

enum Claim {
    /// The carrier was claimed for this turn. Its rings are empty.
    Taken(Connection, Turn),
    /// The peer has not closed the last turn yet.
    NotParked,
    /// The peer's queue has no place.
    Full,
    /// The carrier serves no further connection.
    Dead,
}

fn try_claim(index: u32, entry: &'static Entry, local: &'static Local, now: u64) -> Claim {
    let (Some(carrier), Some(pair)) = (carriers::carrier(index), carriers::pair_of(local)) else {
        return Claim::Dead;
    };
    let (Some(end), Some(turn)) = (carrier.end(), turns::turn_of(entry)) else {
        return Claim::Dead;
    };
    let turns = end.turns();
    let is_free = !carriers::leads_to_relay(&carrier) || turns.is_freed_by_peer(turn);
    if !turns.is_parked(turn) || !is_free {
        return Claim::NotParked;
    }
    match pair.to_accept().room() {
        Ok(0) => return Claim::Full,
        Ok(_) => {}
        Err(_) => return Claim::Dead,
    }
    let is_fit = published::holds(!crate::connection::commanded(entry), Event::OnKernel)
        && published::holds(carriers::is_young(&local.express, now), Event::TooOld)
        && published::holds(end.are_rings_empty(), Event::Unread)
        && published::holds(is_alive(&carrier), Event::PeerEnded)
        && published::holds(is_its_listener(&carrier, now), Event::OtherListener);
    if !is_fit {
        return Claim::Dead;
    }
    match end.turns().try_claim(turn) {
        Ok(turn) => Claim::Taken(carrier, turn),
        Err(_) => Claim::Dead,
    }
}

/// True when the carrier leads to the process to which the kernel would connect. A program of our
/// own user is trusted when it says that it listens. A program of another user may have listened at
/// that address only for a moment, so the listener that the adapter has found must still listen.
fn is_its_listener(carrier: &Connection, now: u64) -> bool {
    let words = &carrier.local.express;
    let number = words.destination.load(Ordering::Relaxed);
    // The relay belongs to the adapter.
    carriers::leads_to_relay(carrier)
        || words.is_of_one_user()
        || words
            .listener()
            .is_some_and(|its| listening::inode_at(number, now) == Some(its))
}

/// Takes doorbells off the carrier. True when the carrier is still alive then. A peer that rings
/// without end gets no further connection.
fn is_alive(carrier: &Connection) -> bool {
    const TAKES_MAX: usize = 64;
    let Some(_held) = lock::try_lock(&carrier.entry.rx_lock) else {
        return false;
    };
    let mut takes = (0..TAKES_MAX).map(|_| doorbells::take(carrier, u64::MAX));
    takes.find(|taken| !matches!(taken, Ok(1..))) == Some(Err(libc::EAGAIN))
}

/// The most registrations of an unconnected socket that move to the carrier.
const EARLY_MAX: usize = 4;

/// Puts a claimed carrier in the place of the program's socket. `None` when the peer does not
/// listen any more.
fn begin(
    fd: c_int,
    fresh: u64,
    carrier: &Connection,
    turn: Turn,
    preamble: Option<&ConnectPreamble>,
    now: u64,
) -> Option<(Connection, End<'static>)> {
    let (end, pair) = (carrier.end()?, carriers::pair_of(carrier.local)?);
    let slot = carriers::slot_of(carrier.entry);
    let is_queued =
        prepare(fresh, carrier, &end, preamble) && enqueue(&end, pair, Queued { slot, turn });
    let replaced = is_queued
        .then(|| replace(fd, fresh, carrier, now))
        .flatten();
    let Some(replaced) = replaced else {
        published::count(Event::QueueFull);
        published::count(Event::NoListener);
        end.turns().give_up(turn);
        carriers::close(Role::Connecting, carrier);
        return None;
    };
    let connection = begin_turn(fd, fresh, carrier, preamble, &replaced);
    Some((connection, end))
}

/// Resets a claimed carrier to the state of a new connection. False when that fails.
fn prepare(
    fresh: u64,
    carrier: &Connection,
    end: &End<'_>,
    preamble: Option<&ConnectPreamble>,
) -> bool {
    let (entry, words) = (carrier.entry, &carrier.local.express);
    end.reopen();
    let began_at = entry.tx_ring.load(Ordering::Relaxed).shown();
    words.began_at.store(began_at, Ordering::Relaxed);
    let on_carrier = entry.tx_carrier.load(Ordering::Relaxed);
    let doorbells = u64::from(entry.doorbells.load(Ordering::Relaxed));
    let data = on_carrier.wrapping_sub(doorbells);
    words.carrier_began_at.store(data, Ordering::Relaxed);
    // The ring is empty. All bytes that the program sends before the peer accepts must stay in the
    // ring, because the connection may go back to the kernel.
    if end.sender().shrink(CAPACITY_LOG2_MIN).is_err() {
        return false;
    }
    let nonblock = fresh & FRESH_NONBLOCK != 0;
    if nonblock != (entry.flags.load(Ordering::Relaxed) & FLAG_NONBLOCK != 0) {
        parking::set_nonblocking(carrier, nonblock);
    }
    // The peer rings until it is known how this program waits.
    membership::set_resting_wake(carrier, WakeWord::None);
    let wake = &end.ours().wake.wake;
    wake.store(WakeWord::Bell.to_word(), Ordering::Relaxed);
    if let Some(preamble) = preamble {
        end.turns().request(&preamble.to_bytes());
    }
    true
}

/// Puts the connection into the peer's queue. False when the peer does not listen any more, or has
/// no room.
fn enqueue(end: &End<'_>, pair: &Pair, queued: Queued) -> bool {
    let turn = queued.turn;
    match pair.to_accept().push(queued) {
        Ok(Push::Queued) => true,
        // The connection was accepted just before, or refused: the carrier's state tells which.
        Ok(Push::ClosedMeanwhile) => !end.turns().give_up(turn) && !end.turns().is_waiting(turn),
        _ => false,
    }
}

/// The program's socket as it was before a carrier took its place.
struct Replaced {
    early: [(u32, epoll_event); EARLY_MAX],
    early_count: usize,
    /// Options of keepalive, if it or the carrier has any.
    keepalive: Option<carrier_words::Keepalive>,
}

/// Gives the number of the program's socket to a carrier.
fn replace(fd: c_int, fresh: u64, carrier: &Connection, now: u64) -> Option<Replaced> {
    let (early, early_count) = take_early(fd);
    let cloexec = match fresh & FRESH_CLOEXEC {
        0 => 0,
        _ => libc::O_CLOEXEC,
    };
    uring::closing(fd);
    // The program's socket has the options with which the turn begins.
    let is_kept = fresh & FRESH_KEEPALIVE != 0 || carrier.local.express.begins_with_keepalive();
    let keepalive = is_kept.then(|| carrier_words::keepalive_of(fd));
    let spare = match early_count {
        0 => spares::hold(fd, fresh, now),
        _ => None,
    };
    if sys::dup3(carrier.fd, fd, cloexec) < 0 {
        if let Some(spare) = spare {
            spare.close();
        }
        return None;
    }
    if let Some(spare) = spare {
        spare.keep();
    }
    Some(Replaced {
        early,
        early_count,
        keepalive,
    })
}

/// The connection begins, on a carrier that has the program's number.
fn begin_turn(
    fd: c_int,
    fresh: u64,
    carrier: &Connection,
    preamble: Option<&ConnectPreamble>,
    replaced: &Replaced,
) -> Connection {
    let (entry, words) = (carrier.entry, &carrier.local.express);
    carriers::leave(Role::Connecting, carrier.local);
    let options = match fresh & FRESH_NODELAY {
        0 => 0,
        _ => settings::USER_NODELAY,
    };
    let connection = parking::begin_turn(carrier, fd, options);
    entry.pid.store(process::pid(), Ordering::Relaxed);
    if fresh & FRESH_NONBLOCK != 0 && preamble.is_none() {
        entry
            .flags
            .fetch_or(FLAG_RESULT_UNREPORTED, Ordering::Relaxed);
    }
    let keepalive = replaced.keepalive.as_ref();
    let is_kept_alive =
        keepalive.is_some_and(|options| words.take_keepalive(connection.fd, options));
    if let Some(preamble) = preamble {
        if is_kept_alive {
            unread_watch::watch_liveness(&connection);
        }
        awaiting::begin_on_used(&connection, preamble.remote);
    }
    descriptors::begin_connection(fd, connection.index, connection.generation);
    parked::serve(&connection, fd);
    for (number, event) in &replaced.early[..replaced.early_count] {
        returning::register(*number, fd, event);
    }
    seeds::carrier_serves(Role::Connecting);
    published::count(Event::Connected);
    connection
}

/// Wakes the peer, so that it looks into its queue. The connection has just begun, so neither end
/// is leaving the channel.
fn wake_peer(connection: &Connection, end: &End<'_>) {
    if let Some(_held) = takeover::lock_sending(connection) {
        let _ = notifier::notify(connection, end);
    }
}

/// Takes the registrations of the program's socket, which would end with the socket.
fn take_early(fd: c_int) -> ([(u32, epoll_event); EARLY_MAX], usize) {
    let mut early = [(0, epoll_event { events: 0, u64: 0 }); EARLY_MAX];
    let count = early::take_all(fd, &mut early);
    (early, count)
}
