//! The end of a turn: the program closes its last descriptor of a connection, and the carrier is
//! parked.
//!
//! A turn ends here only if all its bytes were read. In all other cases (unread bytes, `SO_LINGER`,
//! a direction that was shut) the kernel does the close: the carrier is closed with its connection.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::WakeWord;
use toehold_channel::express::Event;
use toehold_channel::table::{
    FLAG_ACCEPTED, FLAG_CONNECTING, FLAG_INHERITED, FLAG_NONBLOCK, FLAG_OFFLOAD, FLAG_PARKED,
    FLAG_PINNED, FLAG_REFUSED, FLAG_RESULT_UNREPORTED, FLAG_SHUT_RX, FLAG_SHUT_TX, Mode,
};
use toehold_stream::end::End;

use super::carrier_words::Words;
use super::carriers::{self, Role};
use super::{LOCK, evidence, is_on, listener, published, seeds, spares, turns, unread_watch};
use crate::connection::carrier::Carrier;
use crate::connection::release;
use crate::connection::{self, Connection, HINT_EOF};
use crate::direction::{doorbells, notifier, takeover};
use crate::epoll::parked::{self, KeptRegistration};
use crate::epoll::{membership, orphans};
use crate::lock;
use crate::process::descriptors;
use crate::process::descriptors::GENERATION_MASK;
use crate::system::sys;
use crate::waiting::seen_waits;

/// A connection with any of these flags ends together with its carrier.
const NOT_PARKED: u32 =
    FLAG_PINNED | FLAG_SHUT_TX | FLAG_SHUT_RX | FLAG_INHERITED | FLAG_CONNECTING | FLAG_REFUSED;

/// The program closes its last descriptor of `connection`. True when the carrier is parked: then
/// the connection has ended, and the caller only has to close the descriptor. The caller has
/// checked that memory is not borrowed.
pub(crate) fn park(connection: &Connection) -> bool {
    let words = &connection.local.express;
    let flags = connection.entry.flags.load(Ordering::Relaxed);
    let role = match flags & FLAG_ACCEPTED {
        0 => Role::Connecting,
        _ => Role::Accepting,
    };
    if !is_on() {
        return false;
    }
    seeds::connection_ends(role);
    if !words.is_carrier() {
        evidence::ordinary_ends(connection);
    }
    let may_park = words.may_park.load(Ordering::Relaxed) != 0;
    let has_no_option = words.is_odd.load(Ordering::Relaxed) == 0;
    if !published::holds(may_park, Event::NotPaired)
        || !published::holds(has_no_option, Event::OddOption)
    {
        return false;
    }
    let _held = LOCK.lock();
    if !is_on() {
        // A rule has ended it meanwhile.
        return false;
    }
    carriers::look_after();
    let instance = match role {
        Role::Connecting => None,
        Role::Accepting => listener::instance(),
    };
    if !is_wanted(words, role, instance.is_some()) {
        return false;
    }
    let Some(end) = connection.end() else {
        return false;
    };
    if !is_fit(connection, &end) {
        if was_left_to_kernel(connection, &end) {
            evidence::turn_unseen(connection, role);
        }
        return false;
    }
    if !is_seen(connection, role, &end) {
        return false;
    }
    let Some(high) = words.give_number(connection.fd) else {
        return false;
    };
    let Some(parked) = end_turn(connection, &end) else {
        published::count(Event::InUse);
        return false;
    };
    // From now on no descriptor leads to the connection, and no thread finds it.
    descriptors::forget(connection.fd);
    connection.local.descriptors.store(0, Ordering::Relaxed);
    if park_registrations(&parked, role, instance, high) {
        report_turn_end(&parked, &end);
    }
    true
}

/// True when the carrier can be used again, and there is room.
fn is_wanted(words: &Words, role: Role, has_instance: bool) -> bool {
    let has_listener = role == Role::Connecting || has_instance;
    published::holds(has_listener, Event::NoListener)
        && published::holds(carriers::is_room(role), Event::NoRoom)
        && published::holds(is_current(words, role), Event::TooOld)
}

/// True when the program was seen waiting for this connection and for similar ones.
fn is_seen(connection: &Connection, role: Role, end: &End<'_>) -> bool {
    let is_seen = is_known(connection, end);
    if !is_seen {
        evidence::turn_unseen(connection, role);
    }
    let may_go_on = is_seen && (evidence::suffices(connection) || published::are_all_chosen());
    published::holds(may_go_on, Event::Unseen)
}

/// True when the peer had to ring for bytes in this turn, and then left the program's waits to the
/// kernel ([`unread_watch`]).
fn was_left_to_kernel(connection: &Connection, end: &End<'_>) -> bool {
    let entry = connection.entry;
    entry.flags.load(Ordering::Relaxed) & NOT_PARKED == 0
        && !connection::commanded(entry)
        && end.rx_mode() == Mode::Carrier
        && !is_known(connection, end)
}

/// Adds a carrier to the parked ones; from now on `high` is its descriptor. False when it cannot be
/// registered with the listener's `instance`: then the carrier has ended.
fn park_registrations(parked: &Connection, role: Role, instance: Option<u32>, high: i32) -> bool {
    let keeps = match (instance, carriers::leads_to_relay(parked)) {
        (Some(instance), _) => KeptRegistration::Of(instance),
        (None, false) => KeptRegistration::Any,
        // The program does not get the next connection before the engine has answered.
        (None, true) => KeptRegistration::None,
    };
    let is_registered = parked::park_registrations(parked, high, keeps);
    if role == Role::Accepting && !(is_registered && listener::serve(parked)) {
        let flags = &parked.entry.flags;
        flags.fetch_and(!FLAG_PARKED, Ordering::Relaxed);
        orphans::descriptor_closing(parked, true);
        release::release(parked);
        return false;
    }
    if role == Role::Connecting {
        membership::set_resting_wake(parked, WakeWord::None);
    }
    let number = u32::try_from(high).unwrap_or(0);
    parked.entry.fd.store(number, Ordering::Relaxed);
    carriers::enter(role, parked);
    true
}

/// True when a carrier is not too old for another turn, and equals a new connection: it belongs to
/// the current user (connecting end), or has the listener's current options (accepting end).
fn is_current(words: &Words, role: Role) -> bool {
    let is_as_new = match role {
        Role::Connecting => words.user.load(Ordering::Relaxed) == spares::user(),
        Role::Accepting => words.listener_options.load(Ordering::Relaxed) == listener::options(),
    };
    is_as_new && carriers::is_young(words, sys::now_ns())
}

/// True when the carrier may be parked, as far as that can be seen without a lock.
fn is_fit(connection: &Connection, end: &End<'_>) -> bool {
    let (entry, local) = (connection.entry, connection.local);
    let is_over = turns::is_over(connection, end);
    // If the peer has ended the turn, the hints do not come from the carrier.
    let is_quiet = entry.rx_hints.load(Ordering::Relaxed) == 0 || is_over;
    let wake = &end.theirs().wake;
    let flags = entry.flags.load(Ordering::Relaxed);
    let is_ours_alone = Carrier::of(connection) == Carrier::Tcp
        && flags & NOT_PARKED == 0
        && !connection.is_shared()
        && !local.attachment.is_used();
    let has_nothing_left = is_quiet
        && !crate::connection::pending_errors::is_there(connection)
        && entry.rx_low_water.load(Ordering::Relaxed) <= 1
        && entry.rx_peek.load(Ordering::Relaxed) == 0;
    let is_in_rings = !connection::commanded(entry)
        && end.tx_mode() == Mode::Ring
        && end.rx_mode() == Mode::Ring
        && end.all_acknowledged() == Ok(true);
    let is_open = wake.refuse.load(Ordering::Relaxed).is(0)
        && !end.is_asked_to_resend()
        && wake.abandoned.load(Ordering::Relaxed).is(0)
        && !end.has_closed_carrier();
    published::holds(is_ours_alone, Event::InUse)
        && published::holds(has_nothing_left, Event::Unread)
        && published::holds(is_in_rings, Event::OnKernel)
        && published::holds(is_open, Event::PeerEnded)
}

/// True when the program was seen waiting for the connection, or there was nothing to wait for.
/// Then it will not miss the bytes of a similar connection.
fn is_known(connection: &Connection, end: &End<'_>) -> bool {
    let (entry, words) = (connection.entry, &connection.local.express);
    let received = entry.rx_ring.load(Ordering::Relaxed).shown()
        != words.rx_began_at.load(Ordering::Relaxed)
        || entry.turn() == 0 && entry.rx_carrier.load(Ordering::Relaxed) != 0;
    let came_to_end = entry.rx_hints.load(Ordering::Relaxed) & HINT_EOF != 0;
    let has_waited_in_calls = !connection.nonblocking() && (received || came_to_end);
    let had_nothing_to_wait_for = !received && !turns::is_over(connection, end);
    seen_waits::is_seen(connection.local) || has_waited_in_calls || had_nothing_to_wait_for
}

/// Ends the program's connection. `None` when another thread uses it, or bytes are unread; then
/// nothing has changed.
fn end_turn(connection: &Connection, end: &End<'_>) -> Option<Connection> {
    let entry = connection.entry;
    let _rx = lock::try_lock(&entry.rx_lock)?;
    let _tx = lock::try_lock(&entry.tx_lock)?;
    let is_read = !end.records_pending()
        && end
            .receiver()
            .available()
            .is_ok_and(|filled| filled.len == 0);
    if !is_read || !connection.is_current() || connection.local.attachment.is_used() {
        return None;
    }
    doorbells::take_left(connection, end);
    entry.flags.fetch_or(FLAG_PARKED, Ordering::Relaxed);
    entry.rx_hints.store(0, Ordering::Relaxed);
    entry.rx_empty.store(0, Ordering::Relaxed);
    Some(live_on(connection))
}

/// Gives an entry its next generation: a thread that looked its descriptor up before does not reach
/// it any more.
pub(super) fn live_on(connection: &Connection) -> Connection {
    let entry = connection.entry;
    let next = connection.generation.wrapping_add(1) & GENERATION_MASK as u32;
    // Release pairs with the Acquire load in `Connection::is_current`.
    entry.generation.store(next, Ordering::Release);
    let connection = Connection {
        generation: next,
        ..*connection
    };
    parked::live_on(&connection);
    connection
}

/// Tells the peer that the turn has ended. `parked` still has the program's descriptor.
fn report_turn_end(parked: &Connection, end: &End<'_>) {
    let Some(turn) = turns::turn_of(parked.entry) else {
        return;
    };
    let tx = takeover::lock_sending(parked);
    // The engine has said that its remote has finished, and waits for our end.
    let is_to_engine = parked.entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0;
    let is_last = end.turns().is_ended_by_peer(turn) && !is_to_engine;
    // No FIN wakes a program that waits past the library. An accepting program has probably not
    // reached its first wait yet, and will learn of the end there.
    let is_accepted = parked.entry.flags.load(Ordering::Relaxed) & FLAG_ACCEPTED != 0;
    let may_be_late = !is_accepted && !end.turns().is_peer_seen(turn);
    let is_heard = end.is_end_heard(turn);
    end.end_turn(turn);
    if tx.is_none() || is_last {
        // A peer that has closed the turn does not wait on the carrier: the bits of its end lead to
        // its listener.
        return;
    }
    if may_be_late {
        return notifier::notify_late(parked, end, || end.turns().is_peer_seen(turn));
    }
    let _ = notifier::notify(parked, end);
    if !is_heard {
        notifier::ring_if_open(parked, end);
    }
}

/// A parked carrier begins to serve the program's connection at `fd`.
pub(super) fn begin_turn(carrier: &Connection, fd: i32, options: u32) -> Connection {
    let (entry, local) = (carrier.entry, carrier.local);
    entry
        .flags
        .fetch_and(!(FLAG_PARKED | FLAG_RESULT_UNREPORTED), Ordering::Relaxed);
    entry.reason.store(0, Ordering::Relaxed);
    entry.tx_options.store(options, Ordering::Relaxed);
    entry.fd.store(fd as u32, Ordering::Relaxed);
    entry.asker.store(0, Ordering::Relaxed);
    local.express.is_odd.store(0, Ordering::Relaxed);
    local.express.fruitless_at.store(0, Ordering::Relaxed);
    local
        .express
        .liveness_state
        .store(unread_watch::SENT, Ordering::Relaxed);
    local.express.set_keepalive_back(carrier.fd);
    let rx_began_at = entry.rx_ring.load(Ordering::Relaxed).shown();
    (local.express.rx_began_at).store(rx_began_at, Ordering::Relaxed);
    seen_waits::begin_turn(local);
    turns::note_unseen(entry);
    unread_watch::begin(carrier.index, local);
    local.descriptors.store(1, Ordering::Relaxed);
    local.continue_nothing();
    live_on(&Connection { fd, ..*carrier })
}

/// Sets whether calls on a carrier block, as the program will find it.
pub(super) fn set_nonblocking(carrier: &Connection, on: bool) {
    let mode = libc::O_RDWR | if on { libc::O_NONBLOCK } else { 0 };
    sys::fcntl(carrier.fd, libc::F_SETFL, mode as usize);
    let flags = &carrier.entry.flags;
    match on {
        true => flags.fetch_or(FLAG_NONBLOCK, Ordering::Relaxed),
        false => flags.fetch_and(!FLAG_NONBLOCK, Ordering::Relaxed),
    };
}
