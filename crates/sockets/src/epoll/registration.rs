//! What a program registered, one record each, in one table.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::{
    EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, epoll_event,
};
use toehold_channel::table::EntryState;

use crate::chunks::Chunks;
use crate::connection::{self, Connection};
use crate::{descriptors, lock, process, table};

pub(super) const READINESS: u32 =
    (EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLERR | EPOLLHUP) as u32;
pub(super) const EDGE: u32 = EPOLLET as u32;
pub(super) const ONESHOT: u32 = EPOLLONESHOT as u32;
/// What the kernel watches on a carrier for us.
pub(super) const CARRIER_EVENTS: u32 = (EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET) as u32;
/// What the kernel watches on a carrier whose engine has not answered.
pub(super) const ANSWER_EVENTS: u32 = (EPOLLPRI | EPOLLRDHUP) as u32;

/// Registrations of tracked connections at a time.
const REGISTRATIONS_MAX: usize = 1 << NUMBER_BITS;
const CHUNK_LOG2: u32 = 8;
const NUMBER_BITS: u32 = 17;
/// A tag has a registration's number in its lower half, and above that which arming of a one-shot
/// it is; 0 is none.
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const ARMINGS_MAX: u32 = (1 << (32 - NUMBER_BITS)) - 1;

/// How a registration is put where others find it (`Local::registrations`, its own `connection`),
/// after its words were filled in. Pairs with the loads by [`FOLLOWED`].
pub(super) const LINKED: Ordering = Ordering::Release;
/// How those words are loaded, before the registration's own. Pairs with the stores by [`LINKED`].
const FOLLOWED: Ordering = Ordering::Acquire;

/// One `epoll_ctl(ADD)` of a tracked connection. All zeroes is a free one.
#[derive(Default)]
pub(super) struct Registration {
    /// Connection number plus one; 0 is free.
    pub(super) connection: AtomicU32,
    pub(super) generation: AtomicU32,
    /// By which the program knows it.
    pub(super) fd: AtomicI32,
    /// By which the kernel does, plus one, when that is closed ([`super::orphans`]); 0 while it is
    /// the same.
    pub(super) duplicate: AtomicI32,
    /// Epoll number.
    pub(super) epoll: AtomicU32,
    /// The program's events as [`armed`]; without any readiness when a one-shot registration has
    /// fired.
    pub(super) events: AtomicU32,
    /// The program's data.
    pub(super) data: AtomicU64,
    /// Changes whenever `events` and `data` are set anew, but not when a one-shot is told. It is
    /// never reset, so that a look which began before such a change can be recognised, even by
    /// another registration in the same place.
    pub(super) version: AtomicU32,
    pub(super) state: AtomicU32,
    /// Next registration of the same connection, or next free one.
    pub(super) next: AtomicU32,
    pub(super) ready_next: AtomicU32,
    pub(super) on_ready: AtomicU32,
    pub(super) polled_next: AtomicU32,
    /// Edge-triggered: what was reported last, and the peer's position then.
    pub(super) edge_mask: AtomicU32,
    pub(super) edge_tail: AtomicU64,
    /// Edge-triggered: report whatever holds at the next look (a new registration, a modified one,
    /// news from the kernel).
    pub(super) rearmed: AtomicU32,
    /// [`process::forks`] when it was made.
    pub(super) forks: AtomicU32,
    /// One-shot: how often it was armed in the kernel. Changes under the instance's lock.
    pub(super) armings: AtomicU32,
}

// States of a registration. They change under the instance's lock, save IN_BITMAP to PARKED, which
// is one exchange; and what the kernel has changes under the connection's `membership` lock, too.

/// Being taken out of the books.
pub(super) const GONE: u32 = 0;
/// The kernel has the program's events and data.
pub(super) const PLAIN: u32 = 1;
/// The kernel has ours; a ready bitmap reports it.
pub(super) const IN_BITMAP: u32 = 2;
/// The kernel has ours; it is looked at every time.
pub(super) const POLLED: u32 = 3;
/// The kernel has the program's events and our tag: it tells once, and whoever answers next must
/// know whether it has.
pub(super) const ONCE: u32 = 7;
/// Of a socket that is not connected yet: the kernel has what it has of [`PLAIN`] or [`ONCE`], and
/// no connection has it on its list.
pub(super) const EARLY: u32 = 6;
/// The program removed it; the kernel still has ours, because programs that remove often add again.
pub(super) const PARKED: u32 = 4;
/// The kernel has ours until the engine has answered; then the program's own.
pub(super) const HELD: u32 = 5;
static REGISTRATIONS: Chunks<Registration, CHUNK_LOG2, { REGISTRATIONS_MAX >> CHUNK_LOG2 }> =
    Chunks::new();
pub(super) static FREE_LOCK: lock::Private = lock::Private::new();
static FREE_HEAD: AtomicU32 = AtomicU32::new(0);
pub(super) static NEXT_UNUSED: AtomicU32 = AtomicU32::new(1);
/// Upper half of our tags; a program whose own data begins with it keeps the kernel's epoll.
pub(super) static TAG: AtomicU32 = AtomicU32::new(0);

/// What `epoll_ctl` makes of the program's events: errors and hang-ups are always among them.
pub(super) fn armed(events: u32) -> u32 {
    events | (libc::EPOLLERR | libc::EPOLLHUP) as u32
}

pub(super) fn registration(number: u32) -> Option<&'static Registration> {
    if number == 0 {
        return None;
    }
    REGISTRATIONS.get(number as usize)
}

pub(super) fn tag(number: u32) -> u64 {
    u64::from(TAG.load(Ordering::Relaxed)) << 32 | u64::from(number)
}

pub(super) fn untag(data: u64) -> Option<u32> {
    let tag = TAG.load(Ordering::Relaxed);
    (tag != 0 && (data >> 32) as u32 == tag).then_some((data & NUMBER_MASK) as u32)
}

impl Registration {
    /// The descriptor by which the kernel knows it.
    pub(super) fn carrier(&self) -> i32 {
        match self.duplicate.load(Ordering::Relaxed) {
            0 => self.fd.load(Ordering::Relaxed),
            duplicate => duplicate - 1,
        }
    }

    /// What the kernel is to watch on the carrier while the registration is ours to answer. Room,
    /// too, if the program asks for it: that may be the kernel's buffer's, and one that is full
    /// already is filled by no send of ours.
    pub(super) fn carrier_events(&self) -> u32 {
        CARRIER_EVENTS | self.events.load(Ordering::Relaxed) & EPOLLOUT as u32
    }

    pub(super) fn behind(&self) -> Option<Connection> {
        let index = self.connection.load(FOLLOWED).checked_sub(1)?;
        let connection = Connection {
            fd: self.carrier(),
            index,
            generation: self.generation.load(Ordering::Relaxed),
            entry: table::entry(index)?,
            local: connection::local(index)?,
        };
        (connection.is_current()
            && connection.entry.state.load(Ordering::Relaxed) == EntryState::Live as u32)
            .then_some(connection)
    }

    /// Edge-triggered: whether `ready` is more than what was reported before, or new bytes came
    /// since. `consume` remembers it as reported.
    pub(super) fn is_new_edge(&self, connection: &Connection, ready: u32, consume: bool) -> bool {
        let tail = connection.end().map_or(0, |end| {
            end.theirs().publish.tail.load(Ordering::Relaxed).shown()
        });
        let new = self.rearmed.load(Ordering::Relaxed) != 0
            || ready & !self.edge_mask.load(Ordering::Relaxed) != 0
            || tail != self.edge_tail.load(Ordering::Relaxed);
        if consume {
            self.rearmed.store(0, Ordering::Relaxed);
            self.edge_mask.store(ready, Ordering::Relaxed);
            self.edge_tail.store(tail, Ordering::Relaxed);
        }
        new
    }

    /// Notes what the program registered: whoever is looking by the former interest has nothing to
    /// report. Callers hold the instance's lock, or have shown the registration to nobody.
    pub(super) fn set(&self, events: u32, data: u64) {
        self.events.store(events, Ordering::Relaxed);
        self.data.store(data, Ordering::Relaxed);
        let version = self.version.load(Ordering::Relaxed);
        // Release pairs with the Acquire load in `Epoll::look`, which then loads the new events.
        self.version
            .store(version.wrapping_add(1), Ordering::Release);
    }

    /// True when a fork came after it: another process may have it, in the same instance of the
    /// kernel's.
    pub(super) fn is_inherited(&self) -> bool {
        self.forks.load(Ordering::Relaxed) != process::forks()
    }

    /// True when the kernel answers it, as the program has registered it.
    pub(super) fn is_kernels(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), PLAIN | ONCE)
    }

    /// Notes `event` and returns the data that the kernel is to have with it, and the state that
    /// makes. Callers hold the instance's lock, or have shown the registration, number `n`, to
    /// nobody.
    pub(super) fn arm(&self, n: u32, event: &epoll_event) -> (u64, u32) {
        self.set(event.events, event.u64);
        if event.events & ONESHOT == 0 || TAG.load(Ordering::Relaxed) == 0 {
            return (event.u64, PLAIN);
        }
        let armings = (self.armings.load(Ordering::Relaxed) % ARMINGS_MAX) + 1;
        self.armings.store(armings, Ordering::Relaxed);
        (tag(n) | u64::from(armings) << NUMBER_BITS, ONCE)
    }

    /// What the kernel tells by `event`, once, in the program's terms: `None` when that was told.
    /// Callers hold the instance's lock.
    pub(super) fn tell_once(&self, event: &epoll_event) -> Option<epoll_event> {
        let wanted = self.events.load(Ordering::Relaxed);
        let arming = (event.u64 as u32) >> NUMBER_BITS;
        if arming == 0 {
            // Of another time, when it was ours to answer.
            return None;
        }
        // One that was on its way when the program armed anew comes before what that will bring.
        if arming == self.armings.load(Ordering::Relaxed) {
            if wanted & READINESS == 0 {
                return None;
            }
            self.events.store(wanted & !READINESS, Ordering::Relaxed);
        }
        Some(epoll_event {
            events: event.events,
            u64: self.data.load(Ordering::Relaxed),
        })
    }

    /// One step from a state to another; false when it was in a third.
    pub(super) fn moves(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    pub(super) fn is_virtual(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), IN_BITMAP | POLLED)
    }
}

pub(super) fn allocate_registration() -> Option<u32> {
    let _held = FREE_LOCK.lock();
    let mut n = FREE_HEAD.load(Ordering::Relaxed);
    if let Some(free) = registration(n) {
        FREE_HEAD.store(free.next.load(Ordering::Relaxed), Ordering::Relaxed);
    } else {
        n = NEXT_UNUSED.load(Ordering::Relaxed);
        REGISTRATIONS.get_or_map(n as usize)?;
        NEXT_UNUSED.store(n + 1, Ordering::Relaxed);
    }
    registration(n)?
        .forks
        .store(process::forks(), Ordering::Relaxed);
    Some(n)
}

pub(super) fn free_registration(number: u32) {
    let Some(gone) = registration(number) else {
        return;
    };
    // Relaxed: 0 leads to nothing.
    gone.connection.store(0, Ordering::Relaxed);
    let duplicate = gone.duplicate.swap(0, Ordering::Relaxed);
    if duplicate != 0 {
        descriptors::disown(duplicate - 1);
    }
    gone.state.store(0, Ordering::Relaxed);
    let _held = FREE_LOCK.lock();
    gone.next
        .store(FREE_HEAD.load(Ordering::Relaxed), Ordering::Relaxed);
    FREE_HEAD.store(number, Ordering::Relaxed);
}

pub(super) fn find(connection: &Connection, number: u32, fd: i32) -> Option<u32> {
    let mut n = connection.local.registrations.load(FOLLOWED);
    while let Some(one) = registration(n) {
        if one.epoll.load(Ordering::Relaxed) == number && one.fd.load(Ordering::Relaxed) == fd {
            return Some(n);
        }
        n = one.next.load(Ordering::Relaxed);
    }
    None
}

pub(super) fn each_registration(
    connection: &Connection,
    mut each: impl FnMut(u32, &'static Registration),
) {
    let mut n = connection.local.registrations.load(FOLLOWED);
    while let Some(one) = registration(n) {
        let next = one.next.load(Ordering::Relaxed);
        each(n, one);
        n = next;
    }
}

pub(super) fn unlink(connection: &Connection, number: u32) {
    let mut place = &connection.local.registrations;
    while let Some(one) = registration(place.load(Ordering::Relaxed)) {
        if place.load(Ordering::Relaxed) == number {
            place.store(one.next.load(Ordering::Relaxed), LINKED);
            return;
        }
        place = &one.next;
    }
}

/// True when at most one instance has the connection: more cannot share its one wake word.
pub(super) fn is_only_member(connection: &Connection) -> bool {
    registration(connection.local.registrations.load(FOLLOWED))
        .is_none_or(|one| one.next.load(Ordering::Relaxed) == 0)
}
