//! The end of a connection: at the last close, the library does for rings and channels what the
//! kernel does for its own buffers.

use core::ptr::NonNull;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use toehold_channel::doorbell::WakeWord;
use toehold_channel::rendezvous::{Kind, Message};
use toehold_channel::table::{EntryState, FLAG_ACCEPTED, FLAG_ASKED, FLAG_OFFLOAD, Mode};
use toehold_stream::end::{End, Incoming};

use crate::connection::carrier::Carrier;
use crate::connection::orderings::{LAST_USER_ACQ_REL, STATE_RELEASE};
use crate::connection::resets;
use crate::connection::{self, Connection, Local};
use crate::direction::{self, doorbells, notifier, takeover};
use crate::express::turns;
use crate::memory::slabs;
use crate::pairing::shown_socket;
use crate::process::{self, holders};
use crate::system::sys;
use crate::waiting::sleepers;
use crate::{adapter, lock};

/// The last descriptor of this process that referred to `connection` is being closed. Afterwards
/// the entry and this process's words may be another connection's.
pub(crate) fn release(connection: &Connection) {
    let (entry, local) = (connection.entry, connection.local);
    // From `holders::leave` on, another member of the family may free the entry. Relaxed: `leave`
    // stores with Release after this, so a thread that finds the entry free sees the count.
    local.leavers.fetch_add(1, Ordering::Relaxed);
    sleepers::part(connection);
    let last = holders::leave(entry);
    if !last {
        holders::show_another(entry);
    }
    let asked = last && entry.flags.load(Ordering::Relaxed) & FLAG_ASKED != 0;
    if let (true, Some(end)) = (last, connection.end()) {
        end_channel(connection, &end);
    }
    // Acquire pairs with the Release store in `leaving::frees`.
    let region = NonNull::new(local.offered.load(Ordering::Acquire));
    if last {
        shown_socket::closing(connection);
    }
    // Before the adapter hears of it: the next connection's region may be in the same place.
    let left = region.map_or(Left::Empty, |region| leave_region(connection, region));
    local.parked.store(null_mut(), Ordering::Relaxed);
    if left != Left::NotAtAll && (asked || local.slab.load(Ordering::Relaxed) != 0) {
        let _held = adapter::lock();
        if asked {
            withdraw(connection, 0);
        }
        slabs::leave(local);
    }
    local.express.close_number();
    // The last use of the words here. Release pairs with the Acquire load in `hold_entry`.
    local.leavers.fetch_sub(1, Ordering::Release);
    if last {
        // A thread that is still inside counts itself out in this connection's words: they become
        // no other's.
        let state = match left {
            Left::Empty => EntryState::Free,
            Left::WithThreads | Left::NotAtAll => EntryState::Ended,
        };
        entry.state.store(state as u32, STATE_RELEASE);
    }
}

/// This process ends and with it its hold on `connection`; nothing is unmapped, other threads may
/// still be inside.
pub(crate) fn holder_ends(connection: &Connection) {
    sleepers::part(connection);
    let last = holders::leave(connection.entry);
    if last {
        if let Some(end) = connection.end() {
            end_channel(connection, &end);
        }
        // The entry's number may have become another file's.
        let is_named = |at: Connection| at.index == connection.index;
        if connection::at(connection.fd).is_some_and(is_named) {
            shown_socket::closing(connection);
        }
        connection
            .entry
            .pid
            .store(process::pid(), Ordering::Relaxed);
        connection
            .entry
            .state
            .store(EntryState::Ended as u32, STATE_RELEASE);
    }
}

/// Does the kernel's work at the last close, for the bytes that are not in the kernel.
fn end_channel(connection: &Connection, end: &End<'_>) {
    if !end.ours().wake.abandoned.load(Ordering::Relaxed).is(0) {
        // The channel was abandoned: another process holds the socket, which lives on as a plain
        // socket.
        return;
    }
    sleepers::set_wake(end, WakeWord::None);
    // Without the lock nobody looks, and nothing is taken off the carrier: the kernel resets when
    // something is left there, and the peer is not told that all was read.
    let left = takeover::lock_receiving(connection).map(|_held| look_at_unread(connection, end));
    // A thread that cannot have this lock says all the same that it ends. The word is stored by
    // nobody else at the last close, and a peer that finds it too early is not told that the end is
    // clean.
    let tx = takeover::lock_sending(connection);
    if tx.is_some() {
        direction::settle(connection, end);
    }
    let clean =
        left == Some(UnreadPlace::Nothing) && tx.is_some() && !resets::are_wanted(connection);
    end.close(clean);
    if left == Some(UnreadPlace::InRing) && Carrier::of(connection).has_linger() {
        // RFC 1122, 4.2.2.13: closing with received data pending sends a reset, "to show that data
        // was lost".
        sys::set_linger(connection.number(), [1, 0]);
    }
    if clean {
        leave_no_trace(connection, end);
    }
    notifier::notify_of_end(connection, end);
}

/// The carrier of an accepted connection is about to be closed in order, and the peer's program has
/// closed before, but its library or the engine keeps the carrier. On the kernel nothing of the
/// connection would be left here. An ordinary close would keep the listener's port in use until the
/// peer's end of the carrier is closed, and then for a minute (TIME_WAIT): a new server without
/// `SO_REUSEADDR` could not have the port. So the close is a reset, which no program sees.
///
/// If the peer is an engine, only its remote has finished, and may still read. A reset would drop
/// the bytes that are on the carrier; bytes in the ring are safe.
pub(crate) fn leave_no_trace(connection: &Connection, end: &End<'_>) {
    let flags = connection.entry.flags.load(Ordering::Relaxed);
    let may_be_read = flags & FLAG_OFFLOAD != 0 && end.tx_mode() != Mode::Ring;
    if flags & FLAG_ACCEPTED != 0 && !may_be_read && turns::is_over(connection, end) {
        sys::set_linger(connection.number(), [1, 0]);
    }
}

/// Where bytes of the peer's are left unread at the last close.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnreadPlace {
    Nothing,
    InRing,
    OnCarrier,
}

/// Looks for such bytes, and takes doorbells off the carrier. One may come between two looks,
/// behind bytes that have been read: it is no rest. One that comes later is known for what it is
/// ([`End::is_reset_by_doorbell`]). The caller holds the receive lock.
fn look_at_unread(connection: &Connection, end: &End<'_>) -> UnreadPlace {
    const LOOKS_MAX: usize = 4;
    for _ in 0..LOOKS_MAX {
        if leaves_unread(connection, end) {
            return UnreadPlace::InRing;
        }
        if sys::bytes_waiting(connection.number()) <= 0 {
            return UnreadPlace::Nothing;
        }
    }
    UnreadPlace::OnCarrier
}

/// True when bytes in the ring are left unread. When not, takes doorbells off the carrier: nobody
/// waits for them and they are no data, but left there they would turn this close into a reset. The
/// caller holds the receive lock.
fn leaves_unread(connection: &Connection, end: &End<'_>) -> bool {
    loop {
        match end.incoming() {
            Ok(Incoming::Ring(filled)) if filled.len > 0 => return true,
            // They were to come once more, and have not.
            Ok(Incoming::Ring(_)) if end.rx_mode() == Mode::Resend => {
                return end.receiver().looks_filled();
            }
            Ok(Incoming::Ring(_)) => {
                doorbells::discard(connection, end);
                return false;
            }
            Ok(Incoming::Skip { bytes }) if doorbells::skip(connection, bytes) > 0 => {}
            _ => return false,
        }
    }
}

/// Tells the adapter that this end has no channel any more, and whether the connection
/// [`GOES_ON`](toehold_channel::rendezvous::GOES_ON). The caller holds the adapter's lock.
pub(crate) fn withdraw(connection: &Connection, goes_on: u32) {
    if let Some(adapter) = adapter::connected() {
        let mut message = Message::new(Kind::Withdraw);
        message.entry = connection.index;
        message.generation = connection.channel_generation();
        message.pid = process::pid();
        message.side = goes_on;
        if !adapter::send(adapter, &message, None) {
            adapter::forget_socket(adapter);
        }
    }
}

/// One channel less in its pair.
pub(crate) fn leave_pair(local: &Local) {
    let pair = local.pair.swap(null_mut(), Ordering::Relaxed);
    if !pair.is_null() {
        // SAFETY: places of the pair table are never released.
        unsafe { (*pair).channels.fetch_sub(1, LAST_USER_ACQ_REL) };
    }
}

/// The way in which a region was left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Nobody here is inside any more.
    Empty,
    /// A thread that sleeps on the closed descriptor has other memory in its place.
    WithThreads,
    /// As before, but the kernel had no other memory: the region must not become another
    /// connection's.
    NotAtAll,
}

/// The threads of this process that are in a region.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Nobody,
    /// All of them sleep.
    Asleep,
    Running,
}

/// Waits for threads that were inside a call when the descriptor was closed. A thread that sleeps
/// may have been woken just before, or may sleep for long. On busy processors a turn lasts as long
/// as other programs run, so the turns are no limit for it.
fn await_exit(inside: impl Fn() -> Inside, yield_now: impl Fn(), now_ns: impl Fn() -> u64) {
    const TURNS_MAX: u32 = 1000;
    const ASLEEP_NS_MAX: u64 = 20_000_000;
    let mut since_ns = None;
    for _ in 0..TURNS_MAX {
        match inside() {
            Inside::Nobody => return,
            Inside::Running => {}
            Inside::Asleep => {
                let now = now_ns();
                if now - *since_ns.get_or_insert(now) >= ASLEEP_NS_MAX {
                    return;
                }
            }
        }
        yield_now();
    }
}

/// Ends this process's use of a region once nobody here is inside it.
fn leave_region(connection: &Connection, region: NonNull<u8>) -> Left {
    let (entry, local) = (connection.entry, connection.local);
    let rx = takeover::lock_receiving(connection);
    let tx = takeover::lock_sending(connection);
    // A thread that publishes its way of waiting looks for the region under this lock.
    let wake = lock::lock(&entry.wake_lock);
    // A lock that we do not have may be held by a thread of this process that is in the region.
    let has_all = rx.is_some() && tx.is_some() && wake.is_some();
    local.attachment.take();
    drop(wake);
    drop(rx);
    drop(tx);
    let inside = || {
        if !has_all || local.attachment.is_running() {
            Inside::Running
        } else if local.attachment.is_used() {
            Inside::Asleep
        } else {
            Inside::Nobody
        }
    };
    await_exit(inside, sys::yield_now, sys::now_ns);
    local.offered.store(null_mut(), Ordering::Relaxed);
    leave_pair(local);
    if inside() != Inside::Nobody {
        // It gets memory in which it can do no harm, for as long as the process lives.
        local.slab.store(0, Ordering::Relaxed);
        return if slabs::replace(connection, region) {
            Left::WithThreads
        } else {
            Left::NotAtAll
        };
    }
    if !local.parked.load(Ordering::Relaxed).is_null() {
        // Mapped for this connection alone, in a hole of its slab.
        slabs::replace(connection, region);
    }
    Left::Empty
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// Waits while `inside`, where each turn lasts 4 ms. Returns the turns.
    fn turns_of(inside: Inside) -> u64 {
        const TURN_NS: u64 = 4_000_000;
        let turns = Cell::new(0);
        let turn = || turns.set(turns.get() + 1);
        await_exit(|| inside, turn, || turns.get() * TURN_NS);
        turns.get()
    }

    #[test]
    fn close_on_busy_processors_does_not_wait_long_for_a_sleeper() {
        assert_eq!(turns_of(Inside::Nobody), 0);
        assert_eq!(turns_of(Inside::Asleep), 5);
        assert_eq!(turns_of(Inside::Running), 1000);
    }
}
