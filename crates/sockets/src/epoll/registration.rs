//! The registrations of a program: one record for each, in one table.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::{EPOLLET, EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, epoll_event};
use toehold_channel::table::EntryState;
pub(super) use toehold_stream::interest::bits::{EDGE, ONESHOT, READABLE, READINESS, WRITABLE};
pub(super) use toehold_stream::interest::{Interest, State, armed};

use crate::connection::{self, Connection};
use crate::lock;
use crate::memory::chunks::Chunks;
use crate::process::{self, descriptors};

/// The events that the kernel watches on a carrier for us.
pub(super) const CARRIER_EVENTS: u32 = (EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET) as u32;
/// The events that the kernel watches on a carrier whose engine has not answered.
pub(super) const ANSWER_EVENTS: u32 = (EPOLLPRI | EPOLLRDHUP) as u32;

/// Registrations of tracked connections at a time.
const REGISTRATIONS_MAX: usize = 1 << NUMBER_BITS;
const CHUNK_LOG2: u32 = 8;
const NUMBER_BITS: u32 = 17;
/// A tag has a registration's number in its lowest bits, and above it the number of the one-shot's
/// arming, 0 for none.
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const ARMINGS_MAX: u32 = (1 << (32 - NUMBER_BITS)) - 1;

/// The ordering with which a registration is made visible (`Local::registrations`, its own
/// `connection`), after its words were filled in. Pairs with the loads by [`LINK_ACQUIRE`].
pub(super) const LINK_RELEASE: Ordering = Ordering::Release;
/// The ordering with which those links are loaded, before the registration's own words. Pairs with
/// the stores by [`LINK_RELEASE`].
const LINK_ACQUIRE: Ordering = Ordering::Acquire;

/// One `epoll_ctl(ADD)` of a tracked connection. All zeroes is a free one.
#[derive(Default)]
pub(super) struct Registration {
    /// Connection number plus one; 0 is free.
    pub(super) connection: AtomicU32,
    pub(super) generation: AtomicU32,
    /// The descriptor by which the program knows it.
    pub(super) fd: AtomicI32,
    /// The library's duplicate by which the kernel knows it, plus one, after the program's
    /// descriptor was closed ([`super::orphans`]); 0 while the kernel knows it by `fd`.
    pub(super) duplicate: AtomicI32,
    /// Epoll number.
    pub(super) epoll: AtomicU32,
    /// The program's registration, its owner, and the events that were reported.
    interest: Interest,
    /// Next registration of the same connection, or next free one.
    pub(super) next: AtomicU32,
    pub(super) ready_next: AtomicU32,
    pub(super) on_ready: AtomicU32,
    pub(super) polled_next: AtomicU32,
    /// [`process::forks`] when it was made.
    pub(super) forks: AtomicU32,
    /// 1 when the duplicate is the carrier's own descriptor ([`crate::express`]), which is not
    /// closed with the registration.
    pub(super) is_borrowed: AtomicU32,
}

impl core::ops::Deref for Registration {
    type Target = Interest;

    #[inline]
    fn deref(&self) -> &Interest {
        &self.interest
    }
}

static REGISTRATIONS: Chunks<Registration, CHUNK_LOG2, { REGISTRATIONS_MAX >> CHUNK_LOG2 }> =
    Chunks::new();
pub(super) static FREE_LOCK: lock::Private = lock::Private::new();
static FREE_HEAD: AtomicU32 = AtomicU32::new(0);
static NEXT_UNUSED: AtomicU32 = AtomicU32::new(1);
/// Upper half of our tags; a program whose own data begins with it keeps the kernel's epoll.
pub(super) static TAG: AtomicU32 = AtomicU32::new(0);

#[inline]
pub(super) fn registration(number: u32) -> Option<&'static Registration> {
    if number == 0 {
        return None;
    }
    REGISTRATIONS.get(number as usize)
}

/// All registrations that were ever made, with their numbers, including those that are gone.
pub(super) fn all() -> impl Iterator<Item = (u32, &'static Registration)> {
    (1..NEXT_UNUSED.load(Ordering::Relaxed)).map_while(|n| Some((n, registration(n)?)))
}

pub(super) fn tag(number: u32) -> u64 {
    u64::from(TAG.load(Ordering::Relaxed)) << 32 | u64::from(number)
}

/// The tag of an instance inside another one: no registration has number 0. `None`: there are no
/// tags.
pub(super) fn tag_nested(id: u32) -> Option<u64> {
    (TAG.load(Ordering::Relaxed) != 0).then(|| tag(0) | u64::from(id) << NUMBER_BITS)
}

/// The instance that [`tag_nested`] stands for.
pub(super) fn untag_nested(data: u64) -> Option<u32> {
    (untag(data) == Some(0)).then_some((data as u32) >> NUMBER_BITS)
}

pub(super) fn untag(data: u64) -> Option<u32> {
    let tag = TAG.load(Ordering::Relaxed);
    (tag != 0 && (data >> 32) as u32 == tag).then_some((data & NUMBER_MASK) as u32)
}

/// True when the kernel reports a registration for `events` only once.
pub(super) fn is_reported_once(events: u32) -> bool {
    events & (EDGE | ONESHOT) != 0
}

impl Registration {
    /// The descriptor by which the kernel knows it.
    pub(super) fn carrier(&self) -> i32 {
        match self.duplicate.load(Ordering::Relaxed) {
            0 => self.fd.load(Ordering::Relaxed),
            duplicate => duplicate - 1,
        }
    }

    /// The events that the kernel watches on the carrier while the library answers the
    /// registration. If the program asks for room, they include room in the kernel's buffer,
    /// because the buffer may be full already.
    pub(super) fn carrier_events(&self) -> u32 {
        match self.events() & WRITABLE {
            0 => CARRIER_EVENTS,
            _ => CARRIER_EVENTS | EPOLLOUT as u32,
        }
    }

    pub(super) fn behind(&self) -> Option<Connection> {
        let index = self.connection.load(LINK_ACQUIRE).checked_sub(1)?;
        let generation = self.generation.load(Ordering::Relaxed);
        let connection = connection::numbered(self.carrier(), index, generation)?;
        (connection.is_current()
            && connection.entry.state.load(Ordering::Relaxed) == EntryState::Live as u32)
            .then_some(connection)
    }

    /// True while this is a registration of `connection` with instance `epoll`. Registrations are
    /// used again. A thread that has found one without a lock asks again under the lock that keeps
    /// it: the connection's `membership` lock, or that instance's for one that the library answers.
    pub(super) fn is_of(&self, connection: &Connection, epoll: u32) -> bool {
        // Relaxed: the caller holds the lock.
        self.connection.load(Ordering::Relaxed) == connection.index + 1
            && self.generation.load(Ordering::Relaxed) == connection.generation
            && self.epoll.load(Ordering::Relaxed) == epoll
    }

    /// True when the process has forked since: another process may have the registration, in the
    /// same kernel instance.
    pub(super) fn is_inherited(&self) -> bool {
        self.forks.load(Ordering::Relaxed) != process::forks()
    }

    /// True when the kernel answers it, as the program has registered it.
    pub(super) fn is_kernels(&self) -> bool {
        self.state().is_kernels()
    }

    /// Stores `event`. Returns the data for the kernel, and the new state. `is_waited_on` says
    /// whether the program waits on the instance through the library: a program that waits past it
    /// would not understand a tag. Callers hold the instance's lock, or are the only ones that know
    /// the registration, number `n`.
    pub(super) fn arm(&self, n: u32, event: &epoll_event, is_waited_on: bool) -> (u64, State) {
        self.set(event.events, event.u64);
        let has_tag = is_waited_on && TAG.load(Ordering::Relaxed) != 0;
        if event.events & ONESHOT == 0 || !has_tag {
            return (event.u64, State::Plain);
        }
        let armings = self.arm_once(ARMINGS_MAX);
        (tag(n) | u64::from(armings) << NUMBER_BITS, State::Once)
    }

    /// The kernel's `event` in the program's terms, once: `None` when it was reported before.
    /// Callers hold the instance's lock.
    pub(super) fn report_once(&self, event: &epoll_event) -> Option<epoll_event> {
        let arming = (event.u64 as u32) >> NUMBER_BITS;
        self.interest.tell_once(arming).then(|| epoll_event {
            events: event.events,
            u64: self.data(),
        })
    }

    pub(super) fn is_ours(&self) -> bool {
        self.state().is_ours()
    }

    /// True when the kernel has the library's events for its carrier, so that the library may
    /// change them.
    pub(super) fn is_ours_in_kernel(&self) -> bool {
        match self.state() {
            State::Listener => false,
            state => state.is_ours() || state == State::Parked,
        }
    }

    /// From now on the kernel knows it by another number, given plus one; 0 for the program's own.
    pub(super) fn set_duplicate(&self, duplicate: i32, is_borrowed: bool) {
        let before = self.duplicate.swap(duplicate, Ordering::Relaxed);
        let was_borrowed = self.is_borrowed.swap(is_borrowed.into(), Ordering::Relaxed);
        if before != 0 && was_borrowed == 0 {
            descriptors::close_own(before - 1);
        }
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
    if gone.duplicate.load(Ordering::Relaxed) != 0 {
        gone.set_duplicate(0, false);
    }
    gone.is_borrowed.store(0, Ordering::Relaxed);
    gone.become_state(State::Gone);
    let _held = FREE_LOCK.lock();
    gone.next
        .store(FREE_HEAD.load(Ordering::Relaxed), Ordering::Relaxed);
    FREE_HEAD.store(number, Ordering::Relaxed);
}

/// The registration of a connection's descriptor with instance `number`, and its own number.
#[inline]
pub(super) fn find(
    connection: &Connection,
    number: u32,
    fd: i32,
) -> Option<(u32, &'static Registration)> {
    let mut n = connection.local.registrations.load(LINK_ACQUIRE);
    while let Some(one) = registration(n) {
        if one.epoll.load(Ordering::Relaxed) == number && one.fd.load(Ordering::Relaxed) == fd {
            return Some((n, one));
        }
        n = one.next.load(Ordering::Relaxed);
    }
    None
}

/// One of the registrations of a connection.
#[inline]
pub(super) fn first(connection: &Connection) -> Option<&'static Registration> {
    registration(connection.local.registrations.load(LINK_ACQUIRE))
}

pub(super) fn each_registration(
    connection: &Connection,
    mut each: impl FnMut(u32, &'static Registration),
) {
    let mut n = connection.local.registrations.load(LINK_ACQUIRE);
    while let Some(one) = registration(n) {
        let next = one.next.load(Ordering::Relaxed);
        each(n, one);
        n = next;
    }
}

/// Takes a registration off the connection's list. False when it is not there. The caller holds the
/// connection's `membership` lock.
pub(super) fn unlink(connection: &Connection, number: u32) -> bool {
    let mut place = &connection.local.registrations;
    while let Some(one) = registration(place.load(Ordering::Relaxed)) {
        if place.load(Ordering::Relaxed) == number {
            place.store(one.next.load(Ordering::Relaxed), LINK_RELEASE);
            return true;
        }
        place = &one.next;
    }
    false
}

/// True when at most one instance has the connection. Several instances cannot share its one wake
/// word.
pub(super) fn is_only_member(connection: &Connection) -> bool {
    first(connection).is_none_or(|one| one.next.load(Ordering::Relaxed) == 0)
}

/// The position up to which the peer has published: news for an edge.
pub(super) fn peer_tail(connection: &Connection) -> u64 {
    connection.end().map_or(0, |end| {
        end.theirs().publish.tail.load(Ordering::Relaxed).shown()
    })
}

// The core has the bits of `epoll_ctl`.
const _: () = assert!(EDGE == EPOLLET as u32 && ONESHOT == libc::EPOLLONESHOT as u32);
const _: () = assert!(
    READINESS & !(READABLE | WRITABLE)
        == (EPOLLPRI | EPOLLRDHUP | libc::EPOLLERR | libc::EPOLLHUP) as u32
        && READABLE == (EPOLLIN | libc::EPOLLRDNORM) as u32
        && WRITABLE == (EPOLLOUT | libc::EPOLLWRNORM | libc::EPOLLWRBAND) as u32
);
