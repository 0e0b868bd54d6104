//! Parked carriers: the state of each, the order in which they were parked, and how they are
//! retired.

use core::sync::atomic::{AtomicU32, Ordering};

use toehold_channel::express::Event;
use toehold_channel::table::{Entry, FLAG_ACCEPTED, FLAG_OFFLOAD, FLAG_PARKED};
use toehold_freestanding::prefetch;

use super::carrier_words::Words;
use super::{published, reconnecting, sudden_end, turns};
use crate::connection::release;
use crate::connection::{self, Connection, HINT_LOOK, Local};
use crate::epoll::orphans;
use crate::memory::pairs::Pair;
use crate::process::descriptors;
use crate::system::sys;

/// The role of our end of a parked carrier.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// We claim the carrier.
    Connecting = 0,
    /// The peer claims the carrier.
    Accepting = 1,
}

/// Parked carriers in the order in which they were parked.
struct List {
    /// Entry, plus one.
    head: AtomicU32,
    tail: AtomicU32,
    count: AtomicU32,
}

static LISTS: [List; 2] = [const {
    List {
        head: AtomicU32::new(0),
        tail: AtomicU32::new(0),
        count: AtomicU32::new(0),
    }
}; 2];

/// The most parked carriers of a process, in each role, whatever its limit of descriptors is.
pub(super) const PARKED_MAX: u32 = 256;
/// Parked carriers may use at most this share (one in `NUMBERS_SHARE`) of the process's
/// descriptors, in each role.
const NUMBERS_SHARE: usize = 8;
/// The most carriers that may be parked, by the limit of descriptors that was last read.
static MOST: AtomicU32 = AtomicU32::new(0);
static ASKED: AtomicU32 = AtomicU32::new(0);
/// The limit is read once for this many parked carriers.
const BETWEEN_LIMITS: u32 = 256;
/// A carrier is parked for at most this long: its other end may be gone, and the firewall's rules
/// must be asked again.
const IDLE_NS: u64 = 2_000_000_000;
/// The greatest age of a carrier.
const AGE_NS: u64 = 10_000_000_000;

/// The reason why a carrier is retired.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RetireReason {
    /// The carrier has been parked for long enough.
    Idle,
    /// The other end is gone, or the adapter wants the channel back.
    Ended,
    /// No further connections may use the carriers, but a connection that already waits for
    /// `accept` is accepted.
    Unproved,
    /// All carriers must be retired.
    All,
}

impl RetireReason {
    /// True when a connection for which the peer has already claimed the carrier goes on.
    fn spares_claimed(self) -> bool {
        matches!(self, RetireReason::Idle | RetireReason::Unproved)
    }
}

fn list(role: Role) -> &'static List {
    &LISTS[role as usize]
}

/// True when any carrier is parked.
#[inline]
pub(super) fn are_any() -> bool {
    LISTS
        .iter()
        .any(|list| list.count.load(Ordering::Relaxed) != 0)
}

/// The number of carriers that may be parked in a role, by the last reading of the limit.
pub(super) fn most() -> u32 {
    MOST.load(Ordering::Relaxed)
}

/// True when one more may be parked.
pub(super) fn is_room(role: Role) -> bool {
    let asked = ASKED.fetch_add(1, Ordering::Relaxed);
    if asked.is_multiple_of(BETWEEN_LIMITS) {
        let numbers = descriptors::descriptor_limit() / NUMBERS_SHARE;
        let most = PARKED_MAX.min(u32::try_from(numbers).unwrap_or(PARKED_MAX));
        MOST.store(most, Ordering::Relaxed);
    }
    list(role).count.load(Ordering::Relaxed) < MOST.load(Ordering::Relaxed)
}

/// True when a carrier is not too old for another turn.
pub(super) fn is_young(words: &Words, now: u64) -> bool {
    now.saturating_sub(words.made_ns.load(Ordering::Relaxed)) < AGE_NS
}

/// A carrier, by its own number.
pub(super) fn carrier(index: u32) -> Option<Connection> {
    let (entry, local) = connection::words(index)?;
    Some(Connection {
        fd: local.express.high()?,
        index,
        generation: entry.generation.load(Ordering::Relaxed),
        entry,
        local,
    })
}

/// True for a carrier by which the engine connects.
pub(super) fn leads_to_relay(connection: &Connection) -> bool {
    let flags = connection.entry.flags.load(Ordering::Relaxed);
    flags & (FLAG_OFFLOAD | FLAG_ACCEPTED) == FLAG_OFFLOAD
}

/// The pair of processes that a carrier is between.
pub(super) fn pair_of(local: &Local) -> Option<&'static Pair> {
    // SAFETY: places of the pair table are never released, and a connection's pair stays mapped
    // until its release.
    unsafe { local.pair.load(Ordering::Relaxed).as_ref() }
}

/// Appends a carrier to its list.
pub(super) fn enter(role: Role, connection: &Connection) {
    let (list, words) = (list(role), &connection.local.express);
    let number = connection.index + 1;
    words.parked_ns.store(sys::now_ns(), Ordering::Relaxed);
    let tail = list.tail.swap(number, Ordering::Relaxed);
    words.previous.store(tail, Ordering::Relaxed);
    words.next.store(0, Ordering::Relaxed);
    match tail.checked_sub(1).and_then(connection::local) {
        Some(before) => before.express.next.store(number, Ordering::Relaxed),
        None => list.head.store(number, Ordering::Relaxed),
    }
    list.count.fetch_add(1, Ordering::Relaxed);
    if role == Role::Accepting {
        sudden_end::parked(connection);
    }
}

/// Fetches the cache lines that the next claim will probably need first, so that they come while
/// the program's system calls run. The peer has written some of them when it closed.
pub(super) fn fetch_next_to_claim() {
    let head = list(Role::Connecting).head.load(Ordering::Relaxed);
    let Some(index) = head.checked_sub(1) else {
        return;
    };
    if let Some((entry, _)) = connection::words(index) {
        prefetch::for_read(&raw const entry.rx_hints);
    }
    if let Some(end) = carrier(index).and_then(|carrier| carrier.end()) {
        let (phase, theirs) = end.turns().lines_of_claim();
        prefetch::for_write(phase);
        prefetch::for_read(theirs);
        prefetch::for_read(&raw const end.theirs().wake);
    }
}

/// Takes a carrier off its list.
pub(super) fn leave(role: Role, local: &Local) {
    let (list, words) = (list(role), &local.express);
    let (next, previous) = (
        words.next.swap(0, Ordering::Relaxed),
        words.previous.swap(0, Ordering::Relaxed),
    );
    match previous.checked_sub(1).and_then(connection::local) {
        Some(before) => before.express.next.store(next, Ordering::Relaxed),
        None => list.head.store(next, Ordering::Relaxed),
    }
    match next.checked_sub(1).and_then(connection::local) {
        Some(after) => after.express.previous.store(previous, Ordering::Relaxed),
        None => list.tail.store(previous, Ordering::Relaxed),
    }
    list.count.fetch_sub(1, Ordering::Relaxed);
    sudden_end::undo(words);
}

/// A parked carrier counts as parked just now.
fn renew(role: Role, index: u32) {
    if let Some(connection) = carrier(index) {
        leave(role, connection.local);
        enter(role, &connection);
    }
}

/// Calls `each` with the parked carriers of a role, beginning with the one that was parked first,
/// until `each` returns false. `each` may take the carrier off the list.
pub(super) fn each(role: Role, mut each: impl FnMut(u32, &'static Entry, &'static Local) -> bool) {
    let mut number = list(role).head.load(Ordering::Relaxed);
    while let Some((entry, local)) = number.checked_sub(1).and_then(connection::words) {
        let index = number - 1;
        number = local.express.next.load(Ordering::Relaxed);
        if !each(index, entry, local) {
            return;
        }
    }
}

/// Calls `each` with the words of the parked carriers of a role, beginning with the one that was
/// parked last, until `each` returns false.
pub(super) fn each_from_last(role: Role, mut each: impl FnMut(&'static Words) -> bool) {
    let mut number = list(role).tail.load(Ordering::Relaxed);
    while let Some(local) = number.checked_sub(1).and_then(connection::local) {
        number = local.express.previous.load(Ordering::Relaxed);
        if !each(&local.express) {
            return;
        }
    }
}

/// Retires carriers that have been parked for too long, that have ended, or whose channels the
/// adapter wants back.
pub(super) fn look_after() {
    let now = sys::now_ns();
    let has_ended = published::take_ended();
    for role in [Role::Connecting, Role::Accepting] {
        each(role, |index, entry, local| {
            let since = local.express.parked_ns.load(Ordering::Relaxed);
            let is_idle = now.saturating_sub(since) >= IDLE_NS;
            let is_over = entry.rx_hints.load(Ordering::Relaxed) & HINT_LOOK != 0
                || connection::commanded(entry);
            if is_over {
                published::count(Event::PeerEnded);
                retire_for(role, index, RetireReason::Ended);
            } else if is_idle {
                retire_for(role, index, RetireReason::Idle);
            }
            if is_idle && entry.flags.load(Ordering::Relaxed) & FLAG_PARKED != 0 {
                // It waits for `accept`. At the head of its list it would end each sleep of this
                // process at once ([`next_retirement_ns`]).
                renew(role, index);
            }
            // The carriers behind it are younger.
            is_idle || has_ended || is_over
        });
    }
}

/// When the next parked carrier is to be retired, in nanoseconds from now.
pub(crate) fn next_retirement_ns() -> Option<u64> {
    let heads = LISTS.iter().filter_map(|list| {
        let head = list.head.load(Ordering::Relaxed).checked_sub(1)?;
        let words = &connection::local(head)?.express;
        Some(words.parked_ns.load(Ordering::Relaxed) + IDLE_NS)
    });
    heads.min().map(|due| due.saturating_sub(sys::now_ns()))
}

/// Retires all carriers that are not claimed. True when there was any.
pub(super) fn retire_all() -> bool {
    let had_any = are_any();
    retire_role(Role::Connecting);
    retire_role(Role::Accepting);
    had_any
}

/// As [`retire_all`], of one role.
pub(super) fn retire_role(role: Role) {
    each(role, |index, _, _| {
        retire_for(role, index, RetireReason::All);
        true
    });
}

/// Retires the unclaimed carriers of a role, because the program now waits in a different way than
/// before.
pub(super) fn retire_unclaimed(role: Role) {
    each(role, |index, _, _| {
        retire_for(role, index, RetireReason::Unproved);
        true
    });
}

/// A parked carrier serves no further connection.
pub(super) fn retire(role: Role, index: u32) {
    retire_for(role, index, RetireReason::Ended);
}

fn retire_for(role: Role, index: u32, why: RetireReason) {
    let Some(connection) = carrier(index) else {
        return;
    };
    let (Some(end), Some(turn)) = (connection.end(), turns::turn_of(connection.entry)) else {
        return close(role, &connection);
    };
    if role == Role::Connecting && !why.spares_claimed() && turns::is_unaccepted(&connection, &end)
    {
        // The program has already closed the connection, but the bytes that it has sent must
        // arrive.
        reconnecting::deliver(&connection);
    }
    if let Some(next) = end.turns().retire(turn) {
        // The peer has claimed it.
        let is_queued = || {
            let slot = slot_of(connection.entry);
            pair_of(connection.local).is_some_and(|pair| pair.acceptable().has(slot) == Ok(true))
        };
        if why.spares_claimed() || why == RetireReason::Ended && is_queued() {
            // It will be accepted.
            return;
        }
        end.turns().give_up(next);
    }
    match why {
        RetireReason::Idle => published::count(Event::Idle),
        RetireReason::Ended => {}
        RetireReason::Unproved | RetireReason::All => published::count(Event::Retired),
    }
    close(role, &connection);
}

/// The process is about to end, and the kernel will close its carriers.
pub(super) fn ending() {
    each(Role::Accepting, |index, _, _| {
        if let Some(connection) = carrier(index)
            && let (Some(end), Some(turn)) = (connection.end(), turns::turn_of(connection.entry))
            && end.turns().retire(turn).is_none()
        {
            release::leave_no_trace(&connection, &end);
        }
        true
    });
}

/// Closes a carrier after the peer has withdrawn the connection for which it had claimed the
/// carrier.
pub(super) fn close(role: Role, connection: &Connection) {
    let (entry, local) = (connection.entry, connection.local);
    leave(role, local);
    forget_slot(entry, local);
    entry.flags.fetch_and(!FLAG_PARKED, Ordering::Relaxed);
    orphans::descriptor_closing(connection, true);
    release::release(connection);
}

/// Detaches the bits of the carrier's slot.
fn forget_slot(entry: &Entry, local: &Local) {
    let slot = slot_of(entry);
    if let Some(pair) = pair_of(local) {
        let words = [pair.carrier(slot), pair.registration(slot)];
        for word in words.into_iter().flatten() {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// A carrier's number in its pair of processes.
pub(super) fn slot_of(entry: &Entry) -> u32 {
    let slot = entry.slot.load(Ordering::Relaxed);
    slot.capped(toehold_channel::layout::READY_BITS as u32 - 1)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use toehold_channel::layout::{Control, REGION_BYTES};
    use toehold_channel::memfd;
    use toehold_channel::table::EntryState;
    use toehold_stream::express::{Carrier, Turn};

    use crate::connection::orderings::STATE_ACQUIRE;
    use crate::process::{family, holders};

    use super::*;

    /// A carrier whose two ends have closed their first turn, and both ends' views of its turns.
    fn parked_carrier(index: u32) -> (Connection, [Carrier<'static>; 2]) {
        family::table_or_new().expect("memory");
        let (entry, local) = connection::hold_entry(index).expect("memory");
        let region = memfd::map_private(REGION_BYTES).expect("memory").as_ptr();
        local.attachment.put(region);
        local.express.number_in_test(i32::MAX - 1);
        // SAFETY: just mapped, all atomics, and never unmapped.
        let control: &'static Control = unsafe { &*region.cast() };
        let ends = [0, 1].map(|side| Carrier::new(&control.turns, side));
        ends.iter().for_each(|end| end.end(Turn::FIRST));
        entry.flags.store(FLAG_PARKED, Ordering::Relaxed);
        let carrier = Connection {
            fd: i32::MAX - 1,
            index,
            generation: 0,
            entry,
            local,
        };
        (carrier, ends)
    }

    /// Another thread may begin a connection as soon as the entry is free. The number would then be
    /// forgotten and stay open, or it would be the next connection's.
    #[test]
    fn entry_that_is_free_has_no_number_of_the_connection_before() {
        for _ in 0..1000 {
            let ending = Connection::of_a_test(-1);
            let live = EntryState::Live as u32;
            ending.entry.state.store(live, Ordering::Relaxed);
            holders::begin(ending.entry);
            ending.local.express.number_in_test(i32::MAX - 1);
            let seen = thread::scope(|scope| {
                let next = scope.spawn(|| {
                    while ending.entry.state.load(STATE_ACQUIRE) == live {
                        core::hint::spin_loop();
                    }
                    (
                        ending.local.express.high(),
                        ending.local.leavers.load(Ordering::Relaxed),
                    )
                });
                release::release(&ending);
                next.join().expect("no panic")
            });
            assert_eq!(seen, (None, 0));
        }
    }

    /// Its program may not accept the connection for a long time.
    #[test]
    fn carrier_that_the_peer_has_claimed_does_not_end_sleeps_when_its_time_is_over() {
        let (carrier, [_, peers]) = parked_carrier(300);
        enter(Role::Accepting, &carrier);
        assert!(next_retirement_ns().is_some_and(|due| due > 0));
        let parked_ns = &carrier.local.express.parked_ns;
        parked_ns.store(sys::now_ns() - IDLE_NS, Ordering::Relaxed);
        assert!(peers.try_claim(Turn::FIRST).is_ok());
        look_after();
        assert!(next_retirement_ns().is_some_and(|due| due > 0));
        leave(Role::Accepting, carrier.local);
        assert_eq!(next_retirement_ns(), None);
    }
}
