//! Gives a channel back for good, while its connection goes on.
//!
//! A detached connection is back on its carrier, but its region would stay mapped at both ends. So
//! both ends leave the channel ([`toehold_stream::leaving`]): at once when regions are short,
//! otherwise after a while ([`LEAVE_AFTER_NS`]), because the operator may attach it again. If a
//! packet capture is the reason, the channel stays, because captures are short. The end that sees
//! that both have left frees the pages, replaces its mapping and tells the adapter
//! ([`Kind::Withdraw`](toehold_channel::rendezvous::Kind::Withdraw)), which drops the descriptor. A
//! later upgrade begins again with a request for pairing. A sleeping peer keeps one page of the
//! region.
//!
//! Another thread may still hold an [`End`] of the region. So the region's address range is not
//! given up but replaced by empty private memory, in which every look finds nothing. The
//! connection's next region uses the range again.
//!
//! [`crate::adapter::requests`] serves connections that no call uses.

use core::ptr::NonNull;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use toehold_channel::layout::{CONTROL_BYTES, RING_BYTES};
use toehold_channel::rendezvous::GOES_ON;
use toehold_channel::table::{COMMAND_YIELD, FLAG_ASKED, FLAG_ATTACHED, Mode};
use toehold_freestanding::memory;
use toehold_stream::end::{End, Incoming};
use toehold_stream::leaving::Refusal;

use crate::connection::Connection;
use crate::connection::{pending_errors, release, settings};
use crate::direction::doorbells;
use crate::epoll::membership;
use crate::memory::slabs;
use crate::process::holders;
use crate::system::{errno, sys};
use crate::{adapter, lock};

/// The time that a channel may be paused before it is given up.
const LEAVE_AFTER_NS: u64 = 100_000_000;

/// True when a channel has been paused long enough to give it up.
fn is_over(connection: &Connection, end: &End<'_>) -> bool {
    let since = &connection.local.over_since_ns;
    match end.refusal() {
        Refusal::Over => true,
        Refusal::None => {
            since.store(0, Ordering::Relaxed);
            false
        }
        Refusal::Paused if is_yielding(connection) => false,
        Refusal::Paused => {
            let now = sys::now_ns();
            let before = since.load(Ordering::Relaxed);
            if before == 0 {
                since.store(now, Ordering::Relaxed);
            }
            before != 0 && now.saturating_sub(before) >= LEAVE_AFTER_NS
        }
    }
}

/// True while a packet capture keeps the connection on its carrier.
fn is_yielding(connection: &Connection) -> bool {
    connection.entry.command.load(Ordering::Relaxed) == COMMAND_YIELD
}

/// Declares that this end has left the channel, when it is over and everything in it has been
/// carried out. True when it has left.
pub(crate) fn declare(connection: &Connection, end: &End<'_>) -> bool {
    let entry = connection.entry;
    let wake = &end.ours().wake;
    if !entry
        .tx_mode
        .load(Ordering::Relaxed)
        .is(Mode::Carrier as u32)
        || !is_over(connection, end)
        || !wake.abandoned.load(Ordering::Relaxed).is(0)
        || pending_errors::is_there(connection)
    {
        return false;
    }
    let (Some(_rx), Some(_tx)) = (
        lock::try_lock(&entry.rx_lock),
        lock::try_lock(&entry.tx_lock),
    ) else {
        return false;
    };
    let Some(end) = connection.end().filter(|_| connection.is_current()) else {
        return false;
    };
    is_drained(connection, &end) && end.try_leave() == Ok(true)
}

/// True when both directions are on the carrier and both ends know; the caller holds both locks.
fn is_drained(connection: &Connection, end: &End<'_>) -> bool {
    let next = doorbells::incoming_behind(connection, end);
    matches!(next, Ok(Incoming::Carrier { .. })) && end.is_drained() == Ok(true)
}

/// Turns the `result` of a send or receive through the channel into the program's answer, with the
/// error that `error_of` gives. `None`: the connection has left the channel, so the call begins
/// again.
#[inline]
pub(crate) fn after_transfer(
    connection: &Connection,
    result: Result<usize, i32>,
    error_of: fn(&Connection, i32) -> i32,
) -> Option<isize> {
    if connection.entry.tx_mode.load(Ordering::Relaxed) == Mode::Carrier as u32 {
        errno::keep(|| finish(connection));
    }
    if result == Err(errno::LEFT_CHANNEL) {
        return None;
    }
    Some(errno::result(
        result.map_err(|error| error_of(connection, error)),
    ))
}

/// Frees the region when both ends have left it. Called where no call of this thread is on the
/// connection.
pub(crate) fn finish(connection: &Connection) {
    finish_by(connection, adapter::try_lock);
}

/// As [`finish`], but waits a little for the adapter's lock. False when it was in vain.
pub(crate) fn finish_soon(connection: &Connection) -> bool {
    let mut is_in_vain = false;
    finish_by(connection, || {
        let held = adapter::lock_soon();
        is_in_vain = held.is_none();
        held
    });
    !is_in_vain
}

fn finish_by(
    connection: &Connection,
    lock_adapter: impl FnOnce() -> Option<lock::PrivateHeld<'static>>,
) {
    if hand_back(connection) {
        frees(connection, lock_adapter);
    }
}

/// Gives the registrations back to the kernel when this end has left the channel. True when the
/// peer has left, too.
fn hand_back(connection: &Connection) -> bool {
    // Another thread may close the connection meanwhile. The words must not become another
    // connection's.
    let Some(end) = connection.inside() else {
        return false;
    };
    if !declare(connection, &end) {
        return false;
    }
    if settings::low_water(connection) > 1 && !end.has_peer_left() {
        // Between `hand_back` and the end of the region, the kernel's registrations report every
        // byte. So wait until the peer has left, which makes that time short.
        return false;
    }
    // The kernel gets the registrations first, because without the region the library does not
    // answer them.
    membership::hand_back(connection, &end);
    end.has_peer_left()
}

fn frees(
    connection: &Connection,
    lock_adapter: impl FnOnce() -> Option<lock::PrivateHeld<'static>>,
) -> bool {
    let (entry, local) = (connection.entry, connection.local);
    if holders::are_others(entry) {
        // Other members of the family have the region mapped and would go on using it.
        return false;
    }
    // Before the direction locks, as in `pairing`.
    let Some(_adapter) = lock_adapter() else {
        return false;
    };
    let (Some(_rx), Some(_tx)) = (
        lock::try_lock(&entry.rx_lock),
        lock::try_lock(&entry.tx_lock),
    ) else {
        return false;
    };
    // The entry may be another connection's by now, with a region of its own.
    let Some(end) = connection.end().filter(|_| connection.is_current()) else {
        return false;
    };
    if !end.has_left() || !end.has_peer_left() || !is_drained(connection, &end) {
        return false;
    }
    // A call that finds no region meanwhile uses the carrier. With the region it would do that,
    // too: both directions are on the carrier, and neither end goes up in this region again.
    let Some(region) = local.attachment.take_unused() else {
        return false;
    };
    if !empty(connection, region) {
        local.attachment.put(region);
        return false;
    }
    local.parked.store(region, Ordering::Relaxed);
    release::leave_pair(local);
    settings::restore_carrier(connection);
    forget_positions(connection);
    release::withdraw(connection, GOES_ON);
    // Another thread may have registered the connection since `hand_back`. No thread is in the
    // region, so none waits for a direction lock while it holds the lock of an epoll instance.
    membership::give_to_kernel(connection);
    connection.entry.resting_wake.store(0, Ordering::Relaxed);
    // Until this store, a thread that closes the connection waits for the locks. After it, the
    // entry may become another connection's at once. Release pairs with the Acquire load in
    // `release`.
    local.offered.store(null_mut(), Ordering::Release);
    true
}

/// Positions begin at zero in the next region, but the totals for `toehold status` go on.
fn forget_positions(connection: &Connection) {
    let entry = connection.entry;
    for (before, position) in [
        (&entry.rx_ring_before, &entry.rx_ring),
        (&entry.tx_ring_before, &entry.tx_ring),
    ] {
        let position = position.swap(0, Ordering::Relaxed).shown();
        before.fetch_add(position, Ordering::Relaxed);
    }
    entry.tx_head_seen.store(0, Ordering::Relaxed);
    entry.rx_records.store(0, Ordering::Relaxed);
    entry.tx_records.store(0, Ordering::Relaxed);
    for word in [
        &entry.rx_hints,
        &entry.rx_empty,
        &entry.tx_was_full,
        &entry.carrier_calls,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    entry
        .flags
        .fetch_and(!(FLAG_ATTACHED | FLAG_ASKED), Ordering::Relaxed);
    connection.local.asked_epoch.store(0, Ordering::Relaxed);
    connection.local.over_since_ns.store(0, Ordering::Relaxed);
}

/// Frees the rings' memory, for the peer as well, and replaces the region by empty private memory.
fn empty(connection: &Connection, region: *mut u8) -> bool {
    // SAFETY: both ends have left, so nobody reads or writes the rings; the control page, which the
    // peer still looks at, stays. A hostile peer that uses them all the same finds zeroes.
    unsafe {
        let rings = region.add(CONTROL_BYTES);
        memory::advise(rings, 2 * RING_BYTES, libc::MADV_REMOVE);
    }
    NonNull::new(region).is_some_and(|region| slabs::replace(connection, region))
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;

    use toehold_channel::layout::{Control, LEFT, REGION_BYTES};
    use toehold_channel::memfd;

    use super::*;

    /// Generation 1 of a connection, with a region that both ends have left; and generation 0.
    fn left_by_both() -> [Connection; 2] {
        let now = Connection {
            generation: 1,
            ..Connection::of_a_test(-1)
        };
        now.entry.generation.store(1, Ordering::Relaxed);
        let region = memfd::map_private(REGION_BYTES).expect("memory").as_ptr();
        // SAFETY: just mapped, and all atomics.
        let words: &Control = unsafe { &*region.cast() };
        for side in &words.sides {
            side.wake.attached.store(LEFT, Ordering::Relaxed);
        }
        now.local.offered.store(region, Ordering::Relaxed);
        now.local.attachment.put(region);
        let before = Connection {
            generation: 0,
            ..now
        };
        [now, before]
    }

    /// A thread has looked at a connection, and lost its processor. Meanwhile another thread has
    /// closed the connection, and the entry has become the next connection's.
    #[test]
    fn region_of_the_next_connection_in_an_entry_is_not_freed() {
        let [now, before] = left_by_both();
        assert!(!frees(&before, || Some(adapter::lock())));
        assert!(now.local.attachment.has_region());
        assert!(frees(&now, || Some(adapter::lock())), "it is the reason");
    }

    /// Without a region, another thread may close the connection, and a third one may begin the
    /// next one in the entry.
    #[test]
    fn words_of_an_entry_are_not_stored_after_its_region_is_gone() {
        for _ in 0..100 {
            let [now, _] = left_by_both();
            let entry = now.entry;
            entry.resting_wake.store(5, Ordering::Relaxed);
            entry.flags.store(FLAG_ATTACHED, Ordering::Relaxed);
            entry.tx_ring.store(7, Ordering::Relaxed);
            let words = || {
                let ring = entry.tx_ring.load(Ordering::Relaxed).shown();
                let flags = entry.flags.load(Ordering::Relaxed);
                (
                    ring,
                    flags,
                    entry.resting_wake.load(Ordering::Relaxed).shown(),
                )
            };
            let looks = AtomicBool::new(false);
            let seen = std::thread::scope(|scope| {
                let closer = scope.spawn(|| {
                    looks.store(true, Ordering::Relaxed);
                    // As in `release`.
                    while !now.local.offered.load(Ordering::Acquire).is_null() {
                        core::hint::spin_loop();
                    }
                    words()
                });
                while !looks.load(Ordering::Relaxed) {
                    core::hint::spin_loop();
                }
                assert!(frees(&now, || Some(adapter::lock())));
                closer.join().expect("no panic")
            });
            assert_eq!(seen, (0, 0, 0));
        }
    }
}
