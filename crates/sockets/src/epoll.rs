//! Epoll instances with accelerated members.
//!
//! An epoll instance stays the kernel's. While a member has a channel its kernel registration is replaced by one of ours: edge-triggered,
//! watching only for doorbells and the carrier's end, with a tag instead of the program's data. What the program registered is
//! kept here and answered from shared memory:
//!
//! ```text
//!   peers mark bits ──► boards ──(sweep)──► ready list ──(look at each)──► the program's events
//!   kernel events   ──► tagged: onto the ready list; others: straight to the program
//! ```
//!
//! The ready list is the kernel's own algorithm (fs/eventpoll.c): a level-triggered member that was reported goes back to its tail, an
//! edge-triggered one leaves it until news arrives. Cost is by members with news, not by members.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::{
    EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI,
    EPOLLRDHUP, epoll_event,
};
use toehold_channel::doorbell::{WakeWord, mark};
use toehold_channel::layout::{BOARDS, CAPACITY_LOG2_MIN};
use toehold_channel::sync::fence;
use toehold_channel::table::{EntryState, Mode, Reason};
use toehold_copy::prefetch;

use crate::offload::opening;
use crate::pairs::Pair;
use crate::receive::{HINT_LOOK, arm, disarm, drain_doorbells, set_wake};
use crate::state::{self, Connection, Kind};
use crate::wait::{KERNEL_LOOK_NS, SpinHistory};
use crate::{errno, leaving, lock, ready, sys, wait};

/// Epoll instances known at a time; others stay the kernel's alone, with their members on the host path.
const EPOLLS_MAX: usize = 512;
/// Registrations of tracked connections at a time.
const REGISTRATIONS_MAX: usize = 1 << 17;
/// Peer processes whose boards one instance sweeps; members of further ones are looked at one by one.
const PAIRS_MAX: usize = 1024;
/// Members without a board that one sleep can arm.
const UNBOARDED_MAX: usize = 512;
/// Epoll instances inside one.
const NESTED_MAX: usize = 8;
/// Members looked at per turn.
const BATCH: usize = 64;
/// Doorbells left on a carrier before they are taken off.
const WAKEUPS_PER_DRAIN: u32 = 16;
/// While shared memory keeps us busy, the kernel's own members are asked this often.
const KERNEL_MEMBERS_NS: u64 = 50_000;
const READINESS: u32 = (EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLERR | EPOLLHUP) as u32;
const EDGE: u32 = EPOLLET as u32;
const ONESHOT: u32 = EPOLLONESHOT as u32;
/// What the kernel watches on a carrier for us.
const CARRIER_EVENTS: u32 = (EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET) as u32;

/// One `epoll_ctl(ADD)` of a tracked connection. All zeroes is a free one.
#[derive(Default)]
struct Registration {
    /// Connection number plus one; 0 is free.
    connection: AtomicU32,
    generation: AtomicU32,
    fd: AtomicI32,
    /// Epoll number.
    epoll: AtomicU32,
    /// The program's events.
    events: AtomicU32,
    /// The program's data.
    data: AtomicU64,
    state: AtomicU32,
    /// Next registration of the same connection, or next free one.
    next: AtomicU32,
    ready_next: AtomicU32,
    on_ready: AtomicU32,
    unboarded_next: AtomicU32,
    /// Edge-triggered: what was reported last, and the peer's position then.
    edge_mask: AtomicU32,
    edge_tail: AtomicU64,
    /// Edge-triggered: report whatever holds at the next look (a new registration, a modified one, news from the kernel).
    rearmed: AtomicU32,
}

// States of a registration. They change under the instance's lock, save BOARDED to PARKED, which is one exchange; and what the kernel has
// changes under the connection's `membership` lock, too.

/// Being taken out of the books.
const GONE: u32 = 0;
/// The kernel has the program's events and data.
const PLAIN: u32 = 1;
/// The kernel has ours; a board reports it.
const BOARDED: u32 = 2;
/// The kernel has ours; it is looked at every time.
const UNBOARDED: u32 = 3;
/// Of a socket that is not connected yet: the kernel has the program's events and data, and no connection has it on its list.
const EARLY: u32 = 6;
/// The program removed it; the kernel still has ours, because programs that remove often add again.
const PARKED: u32 = 4;
/// The kernel has ours until the engine has answered; then the program's own.
const HELD: u32 = 5;
/// What the kernel watches on a carrier whose engine has not answered.
const ANSWER_EVENTS: u32 = (EPOLLPRI | EPOLLRDHUP) as u32;

/// One epoll instance. All zeroes is a free one.
#[repr(C, align(128))]
struct Epoll {
    lock: lock::Private,
    /// The descriptor plus one; 0 is free.
    fd: AtomicI32,
    descriptors: AtomicU32,
    /// Registrations that are ours to answer.
    virtuals: AtomicU32,
    ready_head: AtomicU32,
    ready_tail: AtomicU32,
    unboarded: AtomicU32,
    sleepers: AtomicU32,
    pair_count: AtomicU32,
    nested_count: AtomicU32,
    spin: SpinHistory,
    kernel_seen_ns: AtomicU64,
    last_peer_processor: AtomicU32,
    pairs: [AtomicPtr<Pair>; PAIRS_MAX],
    boards: [AtomicU32; PAIRS_MAX],
    nested: [Nested; NESTED_MAX],
}

/// An epoll instance registered in another.
struct Nested {
    number: AtomicU32,
    fd: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
}

static EPOLLS: AtomicPtr<Epoll> = AtomicPtr::new(null_mut());
static REGISTRATIONS: AtomicPtr<Registration> = AtomicPtr::new(null_mut());
static FREE_LOCK: lock::Private = lock::Private::new();
static FREE_HEAD: AtomicU32 = AtomicU32::new(0);
static NEXT_UNUSED: AtomicU32 = AtomicU32::new(1);
/// Upper half of our tags; a program whose own data begins with it keeps the kernel's epoll.
static TAG: AtomicU32 = AtomicU32::new(0);

/// Reserves the tables. Once, at start.
pub(crate) fn reserve_pool() -> bool {
    let epolls = state::reserve(EPOLLS_MAX * size_of::<Epoll>());
    let registrations = state::reserve(REGISTRATIONS_MAX * size_of::<Registration>());
    EPOLLS.store(epolls.cast(), Ordering::Relaxed);
    REGISTRATIONS.store(registrations.cast(), Ordering::Relaxed);
    TAG.store(sys::random_u32() | 0x8000_0001, Ordering::Relaxed);
    !epolls.is_null() && !registrations.is_null()
}

fn epoll(number: u32) -> Option<&'static Epoll> {
    let base = EPOLLS.load(Ordering::Relaxed);
    if base.is_null() || number as usize >= EPOLLS_MAX {
        return None;
    }
    // SAFETY: in bounds; the reservation lasts as long as the process; zeroes are valid.
    Some(unsafe { &*base.add(number as usize) })
}

fn registration(number: u32) -> Option<&'static Registration> {
    if number == 0 || number as usize >= REGISTRATIONS_MAX {
        return None;
    }
    // SAFETY: in bounds; reserved at start for as long as the process lives; zeroes are valid.
    Some(unsafe { &*REGISTRATIONS.load(Ordering::Relaxed).add(number as usize) })
}

fn tag(number: u32) -> u64 {
    u64::from(TAG.load(Ordering::Relaxed)) << 32 | u64::from(number)
}

fn untag(data: u64) -> Option<u32> {
    let tag = TAG.load(Ordering::Relaxed);
    (tag != 0 && (data >> 32) as u32 == tag).then_some(data as u32)
}

impl Registration {
    fn behind(&self) -> Option<Connection> {
        let index = self.connection.load(Ordering::Acquire).checked_sub(1)?;
        let connection = Connection {
            fd: self.fd.load(Ordering::Relaxed),
            index,
            generation: self.generation.load(Ordering::Relaxed),
            entry: state::entry(index)?,
            local: state::local(index)?,
        };
        (connection.is_current()
            && connection.entry.state.load(Ordering::Relaxed) == EntryState::Live as u32)
            .then_some(connection)
    }

    /// Edge-triggered: whether `ready` is more than what was reported before, or new bytes came since. `consume` remembers it as reported.
    fn is_new_edge(&self, connection: &Connection, ready: u32, consume: bool) -> bool {
        let tail = connection
            .end()
            .map_or(0, |end| end.theirs().publish.tail.load(Ordering::Relaxed));
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

    /// One step from a state to another; false when it was in a third.
    fn moves(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    fn is_virtual(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), BOARDED | UNBOARDED)
    }
}

fn allocate_registration() -> Option<u32> {
    let _held = FREE_LOCK.lock();
    let head = FREE_HEAD.load(Ordering::Relaxed);
    if let Some(free) = registration(head) {
        FREE_HEAD.store(free.next.load(Ordering::Relaxed), Ordering::Relaxed);
        return Some(head);
    }
    let next = NEXT_UNUSED.load(Ordering::Relaxed);
    if next as usize >= REGISTRATIONS_MAX {
        return None;
    }
    NEXT_UNUSED.store(next + 1, Ordering::Relaxed);
    Some(next)
}

fn free_registration(number: u32) {
    let Some(gone) = registration(number) else {
        return;
    };
    gone.connection.store(0, Ordering::Release);
    gone.state.store(0, Ordering::Relaxed);
    let _held = FREE_LOCK.lock();
    gone.next
        .store(FREE_HEAD.load(Ordering::Relaxed), Ordering::Relaxed);
    FREE_HEAD.store(number, Ordering::Relaxed);
}

/// A new epoll instance at `fd`.
pub(crate) fn created(fd: i32) {
    for number in 0..EPOLLS_MAX as u32 {
        let Some(epoll) = epoll(number) else { return };
        if epoll
            .fd
            .compare_exchange(0, fd + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            epoll.descriptors.store(1, Ordering::Relaxed);
            for word in [
                &epoll.virtuals,
                &epoll.ready_head,
                &epoll.ready_tail,
                &epoll.unboarded,
                &epoll.sleepers,
                &epoll.pair_count,
                &epoll.nested_count,
            ] {
                word.store(0, Ordering::Relaxed);
            }
            epoll.spin.reset();
            state::note_epoll(fd, number);
            return;
        }
    }
}

/// One more descriptor refers to instance `number`.
pub(crate) fn duplicated(number: u32) {
    if let Some(epoll) = epoll(number) {
        epoll.descriptors.fetch_add(1, Ordering::Relaxed);
    }
}

/// A descriptor of instance `number` is being closed.
pub(crate) fn closing(number: u32) {
    let Some(epoll) = epoll(number) else { return };
    if epoll.descriptors.fetch_sub(1, Ordering::AcqRel) != 1 {
        return;
    }
    for n in 1..NEXT_UNUSED.load(Ordering::Relaxed) {
        let Some(one) = registration(n) else { break };
        if one.state.load(Ordering::Relaxed) == EARLY && one.epoll.load(Ordering::Relaxed) == number
        {
            let _held = EARLY_LOCK.lock();
            if one.state.load(Ordering::Relaxed) == EARLY {
                forget_early(n);
                continue;
            }
        }
        if one.connection.load(Ordering::Relaxed) != 0
            && one.epoll.load(Ordering::Relaxed) == number
        {
            if let Some(connection) = one.behind() {
                let _members = connection.local.membership.lock();
                unlink(&connection, n);
                set_home_wake(&connection, WakeWord::None);
            }
            free_registration(n);
        }
    }
    let _held = epoll.lock.lock();
    for place in 0..epoll.pair_count.load(Ordering::Relaxed) as usize {
        let pair = epoll.pairs[place].load(Ordering::Relaxed);
        // SAFETY: places of the pair table are never released.
        if let Some(pair) = unsafe { pair.as_ref() } {
            let board = epoll.boards[place].load(Ordering::Relaxed) as usize;
            pair.epolls[board.min(BOARDS - 1)].store(0, Ordering::Relaxed);
        }
    }
    epoll.pair_count.store(0, Ordering::Relaxed);
    epoll.fd.store(0, Ordering::Release);
}

/// After fork the boards are the parent's: the child looks at its members one by one.
pub(crate) fn forked() {
    FREE_LOCK.reset();
    EARLY_LOCK.reset();
    for number in 0..EPOLLS_MAX as u32 {
        let Some(epoll) = epoll(number) else { return };
        if epoll.fd.load(Ordering::Relaxed) == 0 {
            continue;
        }
        epoll.lock.reset();
        epoll.sleepers.store(0, Ordering::Relaxed);
        if epoll.virtuals.load(Ordering::Relaxed) == 0 {
            continue;
        }
        epoll.pair_count.store(0, Ordering::Relaxed);
        epoll.unboarded.store(0, Ordering::Relaxed);
        for n in 1..NEXT_UNUSED.load(Ordering::Relaxed) {
            let Some(one) = registration(n) else { break };
            if one.epoll.load(Ordering::Relaxed) == number && one.is_virtual() {
                epoll.link_unboarded(one, n);
            }
        }
    }
}

/// A pair is about to be unmapped: no channel uses it, so no board of it matters.
pub(crate) fn forget_pair(pair: *mut Pair) {
    for number in 0..EPOLLS_MAX as u32 {
        let Some(epoll) = epoll(number) else { return };
        if epoll.pair_count.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let _held = epoll.lock.lock();
        let count = epoll.pair_count.load(Ordering::Relaxed) as usize;
        if let Some(place) = epoll.pairs[..count]
            .iter()
            .position(|known| known.load(Ordering::Relaxed) == pair)
        {
            let last = count - 1;
            epoll.pairs[place].store(epoll.pairs[last].load(Ordering::Relaxed), Ordering::Relaxed);
            epoll.boards[place].store(
                epoll.boards[last].load(Ordering::Relaxed),
                Ordering::Relaxed,
            );
            epoll.pair_count.store(last as u32, Ordering::Relaxed);
        }
    }
}

/// `epoll_ctl` on a known instance. `Some` is the answer; `None`: the kernel's own call does it all.
pub(crate) fn control(
    number: u32,
    epoll_fd: i32,
    operation: i32,
    fd: i32,
    event: Option<epoll_event>,
) -> Option<Result<(), i32>> {
    let epoll = epoll(number)?;
    if let (Some(event), libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD) = (event, operation) {
        if untag(event.u64).is_some() {
            // One in four thousand million: this program's data looks like our tags. Its epolls stay the kernel's.
            TAG.store(0, Ordering::Relaxed);
        }
    }
    match state::kind(fd) {
        Kind::Epoll => {
            control_nested(epoll, operation, fd, event);
            return None;
        }
        Kind::Connection => {}
        Kind::Foreign => return control_early(number, epoll_fd, operation, fd, event),
        Kind::Own => return None,
    }
    let connection = state::connection(fd)?;
    let known = find(&connection, number, fd);
    match operation {
        libc::EPOLL_CTL_ADD => add(&connection, number, epoll_fd, known, event?),
        libc::EPOLL_CTL_MOD => {
            let one = registration(known?)?;
            if one.state.load(Ordering::Relaxed) == PARKED {
                return Some(Err(libc::ENOENT));
            }
            let event = event?;
            if one.state.load(Ordering::Relaxed) == HELD {
                one.events.store(event.events, Ordering::Relaxed);
                one.data.store(event.u64, Ordering::Relaxed);
                return Some(Ok(()));
            }
            if !one.is_virtual() {
                one.events.store(event.events, Ordering::Relaxed);
                one.data.store(event.u64, Ordering::Relaxed);
                return None;
            }
            // epoll_ctl(2): an exclusive registration cannot be modified, nor an ordinary one made exclusive.
            if (event.events | one.events.load(Ordering::Relaxed)) & EPOLLEXCLUSIVE as u32 != 0 {
                return Some(Err(libc::EINVAL));
            }
            one.events.store(event.events, Ordering::Relaxed);
            one.data.store(event.u64, Ordering::Relaxed);
            one.rearmed.store(1, Ordering::Relaxed);
            look_soon(epoll, known?, epoll_fd, fd);
            Some(Ok(()))
        }
        libc::EPOLL_CTL_DEL => {
            let one = registration(known?)?;
            if one.moves(BOARDED, PARKED) {
                epoll.virtuals.fetch_sub(1, Ordering::Relaxed);
                return Some(Ok(()));
            }
            if one.state.load(Ordering::Relaxed) == PARKED {
                return Some(Err(libc::ENOENT));
            }
            let _members = connection.local.membership.lock();
            leave(epoll, &connection, find(&connection, number, fd)?);
            None
        }
        _ => None,
    }
}

fn add(
    connection: &Connection,
    number: u32,
    epoll_fd: i32,
    known: Option<u32>,
    event: epoll_event,
) -> Option<Result<(), i32>> {
    let epoll = epoll(number)?;
    if let Some(one) = known.and_then(registration) {
        if one.state.load(Ordering::Relaxed) == PARKED && unpark(epoll, connection, known?, &event)
        {
            look_soon(epoll, known?, epoll_fd, connection.fd);
            return Some(Ok(()));
        }
    }
    let _members = connection.local.membership.lock();
    if find(connection, number, connection.fd).is_some() {
        return Some(Err(libc::EEXIST));
    }
    let is_held = opening::is_connecting(connection) && TAG.load(Ordering::Relaxed) != 0;
    let n = allocate_registration();
    let is_attached = !connection.local.region.load(Ordering::Acquire).is_null()
        && TAG.load(Ordering::Relaxed) != 0;
    let (events, data) = match n {
        Some(n) if is_held => (ANSWER_EVENTS, tag(n)),
        // Ours from the start: a thread that sleeps on the instance must not meet the member twice, as the kernel's and as ours.
        Some(n) if is_attached => (CARRIER_EVENTS, tag(n)),
        _ => (event.events, event.u64),
    };
    let result = sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_ADD, connection.fd, events, data);
    if result < 0 {
        if let Some(n) = n {
            free_registration(n);
        }
        return Some(Err(-result as i32));
    }
    let Some(n) = n else {
        connection.pin(Reason::NoResources);
        return Some(Ok(()));
    };
    let one = registration(n)?;
    one.generation
        .store(connection.generation, Ordering::Relaxed);
    one.fd.store(connection.fd, Ordering::Relaxed);
    one.epoll.store(number, Ordering::Relaxed);
    one.events.store(event.events, Ordering::Relaxed);
    one.data.store(event.u64, Ordering::Relaxed);
    one.on_ready.store(0, Ordering::Relaxed);
    one.rearmed.store(1, Ordering::Relaxed);
    one.state
        .store(if is_held { HELD } else { PLAIN }, Ordering::Relaxed);
    if is_held {
        epoll.virtuals.fetch_add(1, Ordering::Relaxed);
    }
    one.next.store(
        connection.local.registrations.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    one.connection
        .store(connection.index + 1, Ordering::Release);
    connection.local.registrations.store(n, Ordering::Release);
    if is_held && !opening::is_connecting(connection) {
        // Another thread has taken the answer meanwhile.
        answered(connection);
    }
    if !connection.local.region.load(Ordering::Acquire).is_null() {
        virtualise_members(connection);
        // A thread may sleep in the kernel on an instance that had no accelerated member until now.
        kick(epoll_fd, connection.fd, n);
    }
    Some(Ok(()))
}

/// Held while the list of an unconnected socket's registrations changes.
static EARLY_LOCK: lock::Private = lock::Private::new();

/// `epoll_ctl` on what is no connection. A stream socket may become one: many programs register first and connect then.
fn control_early(
    number: u32,
    epoll_fd: i32,
    operation: i32,
    fd: i32,
    event: Option<epoll_event>,
) -> Option<Result<(), i32>> {
    let first = state::early_registrations(fd);
    match operation {
        libc::EPOLL_CTL_ADD => {
            let event = event?;
            if !sys::may_connect(fd) {
                return None;
            }
            let result = sys::epoll_ctl(epoll_fd, operation, fd, event.events, event.u64);
            if result < 0 {
                return Some(Err(-result as i32));
            }
            let _held = EARLY_LOCK.lock();
            let first = state::early_registrations(fd);
            if let Some((n, one)) =
                allocate_registration().and_then(|n| Some((n, registration(n)?)))
            {
                one.fd.store(fd, Ordering::Relaxed);
                one.epoll.store(number, Ordering::Relaxed);
                one.events.store(event.events, Ordering::Relaxed);
                one.data.store(event.u64, Ordering::Relaxed);
                one.on_ready.store(0, Ordering::Relaxed);
                one.rearmed.store(1, Ordering::Relaxed);
                one.next.store(first, Ordering::Relaxed);
                one.state.store(EARLY, Ordering::Relaxed);
                if !state::set_early_registrations(fd, first, n) {
                    free_registration(n);
                }
            }
            Some(Ok(()))
        }
        libc::EPOLL_CTL_MOD if first != 0 => {
            let _held = EARLY_LOCK.lock();
            let event = event?;
            let one = registration(find_early(number, fd)?)?;
            one.events.store(event.events, Ordering::Relaxed);
            one.data.store(event.u64, Ordering::Relaxed);
            None
        }
        libc::EPOLL_CTL_DEL if first != 0 => {
            let _held = EARLY_LOCK.lock();
            forget_early(find_early(number, fd)?);
            None
        }
        _ => None,
    }
}

fn find_early(number: u32, fd: i32) -> Option<u32> {
    let mut n = state::early_registrations(fd);
    while let Some(one) = registration(n) {
        if one.epoll.load(Ordering::Relaxed) == number {
            return Some(n);
        }
        n = one.next.load(Ordering::Relaxed);
    }
    None
}

/// Takes registration `gone` off its socket's list. The caller holds [`EARLY_LOCK`].
fn forget_early(gone: u32) {
    let Some(leaver) = registration(gone) else {
        return;
    };
    let fd = leaver.fd.load(Ordering::Relaxed);
    let after = leaver.next.load(Ordering::Relaxed);
    if !state::set_early_registrations(fd, gone, after) {
        let mut n = state::early_registrations(fd);
        while let Some(one) = registration(n) {
            n = one.next.load(Ordering::Relaxed);
            if n == gone {
                one.next.store(after, Ordering::Relaxed);
            }
        }
    }
    free_registration(gone);
}

/// A socket that was registered before it was connected is a connection now; `first` is its first registration.
pub(crate) fn adopt(connection: &Connection, first: u32) {
    let _members = connection.local.membership.lock();
    let _held = EARLY_LOCK.lock();
    let mut n = first;
    while let Some(one) = registration(n) {
        one.generation
            .store(connection.generation, Ordering::Relaxed);
        one.state.store(PLAIN, Ordering::Relaxed);
        one.connection
            .store(connection.index + 1, Ordering::Release);
        n = one.next.load(Ordering::Relaxed);
    }
    connection
        .local
        .registrations
        .store(first, Ordering::Release);
}

/// A socket that never became a connection is being closed.
pub(crate) fn unconnected_closing(first: u32) {
    let _held = EARLY_LOCK.lock();
    let mut n = first;
    while let Some(one) = registration(n) {
        let next = one.next.load(Ordering::Relaxed);
        free_registration(n);
        n = next;
    }
}

/// A parked registration is added again. False when it is on its way out of the books.
fn unpark(epoll: &Epoll, connection: &Connection, n: u32, event: &epoll_event) -> bool {
    let Some(one) = registration(n) else {
        return false;
    };
    let _held = epoll.lock.lock();
    if one.state.load(Ordering::Relaxed) != PARKED {
        return false;
    }
    one.events.store(event.events, Ordering::Relaxed);
    one.data.store(event.u64, Ordering::Relaxed);
    one.rearmed.store(1, Ordering::Relaxed);
    epoll.virtuals.fetch_add(1, Ordering::Relaxed);
    if is_only_member(connection) {
        one.state.store(BOARDED, Ordering::Relaxed);
    } else {
        epoll.link_unboarded(one, n);
    }
    true
}

/// True when at most one instance has the connection: more cannot share its one wake word.
fn is_only_member(connection: &Connection) -> bool {
    registration(connection.local.registrations.load(Ordering::Acquire))
        .is_none_or(|one| one.next.load(Ordering::Relaxed) == 0)
}

fn control_nested(epoll: &Epoll, operation: i32, fd: i32, event: Option<epoll_event>) {
    let Some(child) = state::epoll_number(fd) else {
        return;
    };
    let _held = epoll.lock.lock();
    let count = epoll.nested_count.load(Ordering::Relaxed) as usize;
    let place = epoll.nested[..count]
        .iter()
        .position(|n| n.number.load(Ordering::Relaxed) == child);
    match (operation, place, event) {
        (libc::EPOLL_CTL_ADD, None, Some(event)) if count < NESTED_MAX => {
            let nested = &epoll.nested[count];
            nested.number.store(child, Ordering::Relaxed);
            nested.fd.store(fd, Ordering::Relaxed);
            nested.events.store(event.events, Ordering::Relaxed);
            nested.data.store(event.u64, Ordering::Relaxed);
            epoll
                .nested_count
                .store(count as u32 + 1, Ordering::Relaxed);
        }
        (libc::EPOLL_CTL_MOD, Some(place), Some(event)) => {
            epoll.nested[place]
                .events
                .store(event.events, Ordering::Relaxed);
            epoll.nested[place].data.store(event.u64, Ordering::Relaxed);
        }
        (libc::EPOLL_CTL_DEL, Some(place), _) => {
            let last = &epoll.nested[count - 1];
            let gone = &epoll.nested[place];
            gone.number
                .store(last.number.load(Ordering::Relaxed), Ordering::Relaxed);
            gone.fd
                .store(last.fd.load(Ordering::Relaxed), Ordering::Relaxed);
            gone.events
                .store(last.events.load(Ordering::Relaxed), Ordering::Relaxed);
            gone.data
                .store(last.data.load(Ordering::Relaxed), Ordering::Relaxed);
            epoll
                .nested_count
                .store(count as u32 - 1, Ordering::Relaxed);
        }
        _ => {}
    }
}

fn find(connection: &Connection, number: u32, fd: i32) -> Option<u32> {
    let mut n = connection.local.registrations.load(Ordering::Acquire);
    while let Some(one) = registration(n) {
        if one.epoll.load(Ordering::Relaxed) == number && one.fd.load(Ordering::Relaxed) == fd {
            return Some(n);
        }
        n = one.next.load(Ordering::Relaxed);
    }
    None
}

fn each_registration(connection: &Connection, mut each: impl FnMut(u32, &'static Registration)) {
    let mut n = connection.local.registrations.load(Ordering::Acquire);
    while let Some(one) = registration(n) {
        let next = one.next.load(Ordering::Relaxed);
        each(n, one);
        n = next;
    }
}

fn unlink(connection: &Connection, number: u32) {
    let mut place = &connection.local.registrations;
    while let Some(one) = registration(place.load(Ordering::Relaxed)) {
        if place.load(Ordering::Relaxed) == number {
            place.store(one.next.load(Ordering::Relaxed), Ordering::Release);
            return;
        }
        place = &one.next;
    }
}

/// Removes a registration from our books altogether. The caller holds the connection's `membership` lock.
fn leave(epoll: &Epoll, connection: &Connection, number: u32) {
    let Some(one) = registration(number) else {
        return;
    };
    {
        let _held = epoll.lock.lock();
        if one.is_virtual() || one.state.load(Ordering::Relaxed) == HELD {
            epoll.virtuals.fetch_sub(1, Ordering::Relaxed);
        }
        remove_ready(epoll, number);
        remove_unboarded(epoll, number);
    }
    unlink(connection, number);
    free_registration(number);
    if connection.local.registrations.load(Ordering::Relaxed) == 0 {
        set_home_wake(connection, WakeWord::None);
    }
}

/// A descriptor of a tracked connection is being closed. Registrations live as long as the description (epoll(7), questions 6 and 7):
/// while `another` descriptor is left, they go on under it.
pub(crate) fn descriptor_closing(connection: &Connection, another: Option<i32>) {
    if connection.local.registrations.load(Ordering::Relaxed) == 0 {
        return;
    }
    let _members = connection.local.membership.lock();
    each_registration(connection, |n, one| {
        if let Some(another) = another {
            if one.fd.load(Ordering::Relaxed) == connection.fd {
                one.fd.store(another, Ordering::Relaxed);
            }
            return;
        }
        let number = one.epoll.load(Ordering::Relaxed);
        if let Some(epoll) = epoll(number) {
            if one.state.load(Ordering::Relaxed) != PLAIN {
                let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
                sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_DEL, connection.fd, 0, 0);
            }
            leave(epoll, connection, n);
        }
    });
}

/// True when an instance that the connection is registered with stays open over an exec: the new program will have the kernel's events
/// of it, and those must be right.
pub(crate) fn outlives_exec(connection: &Connection) -> bool {
    let mut any = false;
    each_registration(connection, |_, one| {
        let epoll_fd = epoll(one.epoll.load(Ordering::Relaxed))
            .map_or(-1, |epoll| epoll.fd.load(Ordering::Relaxed) - 1);
        let flags = sys::fcntl(epoll_fd, libc::F_GETFD, 0);
        any |= flags >= 0 && flags as i32 & libc::FD_CLOEXEC == 0;
    });
    any
}

/// The connection has a channel: its registrations become ours to answer.
pub(crate) fn virtualise(connection: &Connection) {
    let _members = connection.local.membership.lock();
    virtualise_members(connection);
}

/// As [`virtualise`]; the caller holds the connection's `membership` lock.
fn virtualise_members(connection: &Connection) {
    let several = !is_only_member(connection);
    each_registration(connection, |n, one| {
        let number = one.epoll.load(Ordering::Relaxed);
        let Some(epoll) = epoll(number) else { return };
        let plain = one.state.load(Ordering::Relaxed) == PLAIN;
        if plain && !kernel_has_ours(connection, epoll, one, n) {
            return;
        }
        let _held = epoll.lock.lock();
        if plain {
            epoll.virtuals.fetch_add(1, Ordering::Relaxed);
            let board = if several {
                None
            } else {
                give_board(epoll, number, connection, n)
            };
            match board {
                Some(word) => {
                    one.state.store(BOARDED, Ordering::Relaxed);
                    set_home_wake(connection, word);
                }
                None => {
                    epoll.link_unboarded(one, n);
                    set_home_wake(connection, WakeWord::None);
                }
            }
            push_ready(epoll, n);
        } else if several && one.moves(BOARDED, UNBOARDED) {
            epoll.link_unboarded(one, n);
            set_home_wake(connection, WakeWord::None);
            push_ready(epoll, n);
        }
    });
}

/// Puts our events and tag in place of the program's in the kernel. False when that cannot be: the connection stays on its carrier.
fn kernel_has_ours(connection: &Connection, epoll: &Epoll, one: &Registration, n: u32) -> bool {
    if TAG.load(Ordering::Relaxed) == 0 {
        connection.pin(Reason::Unsupported);
        return false;
    }
    let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
    let fd = one.fd.load(Ordering::Relaxed);
    if sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_MOD, fd, CARRIER_EVENTS, tag(n)) >= 0 {
        return true;
    }
    // EPOLLEXCLUSIVE registrations cannot be modified: take the old one out, put ours in.
    sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_DEL, fd, 0, 0);
    if sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_ADD, fd, CARRIER_EVENTS, tag(n)) >= 0 {
        return true;
    }
    connection.pin(Reason::NoResources);
    false
}

/// The engine has answered: the kernel has the program's registrations, and reports what holds now.
pub(crate) fn answered(connection: &Connection) {
    each_registration(connection, |_, one| {
        let held = one.moves(HELD, PLAIN);
        let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)) else {
            return;
        };
        if held {
            epoll.virtuals.fetch_sub(1, Ordering::Relaxed);
            sys::epoll_ctl(
                epoll.fd.load(Ordering::Relaxed) - 1,
                libc::EPOLL_CTL_MOD,
                one.fd.load(Ordering::Relaxed),
                one.events.load(Ordering::Relaxed),
                one.data.load(Ordering::Relaxed),
            );
        }
    });
}

/// The connection is back on the carrier for good: the kernel answers the program's registrations again.
pub(crate) fn materialise(connection: &Connection) {
    let _members = connection.local.membership.lock();
    each_registration(connection, |n, one| {
        let number = one.epoll.load(Ordering::Relaxed);
        let Some(epoll) = epoll(number) else { return };
        let epoll_fd = epoll.fd.load(Ordering::Relaxed) - 1;
        let fd = one.fd.load(Ordering::Relaxed);
        let was = {
            let _held = epoll.lock.lock();
            let was = one.state.load(Ordering::Relaxed);
            match was {
                BOARDED | UNBOARDED => {
                    // A program may park it at this very moment: then it is gone, as if it had been before.
                    let was = one.state.swap(PLAIN, Ordering::Relaxed);
                    if was == PARKED {
                        one.state.store(GONE, Ordering::Relaxed);
                    } else {
                        epoll.virtuals.fetch_sub(1, Ordering::Relaxed);
                    }
                    remove_ready(epoll, n);
                    remove_unboarded(epoll, n);
                    was
                }
                PARKED => {
                    one.state.store(GONE, Ordering::Relaxed);
                    was
                }
                _ => was,
            }
        };
        match was {
            BOARDED | UNBOARDED => {
                let events = one.events.load(Ordering::Relaxed);
                sys::epoll_ctl(
                    epoll_fd,
                    libc::EPOLL_CTL_MOD,
                    fd,
                    events,
                    one.data.load(Ordering::Relaxed),
                );
            }
            PARKED => {
                sys::epoll_ctl(epoll_fd, libc::EPOLL_CTL_DEL, fd, 0, 0);
                leave(epoll, connection, n);
            }
            _ => {}
        }
    });
    // Should the peer move up again before we notice, its first byte must ring.
    set_home_wake(connection, WakeWord::Bell);
}

fn set_home_wake(connection: &Connection, word: WakeWord) {
    let _held = connection.local.arming.lock();
    connection
        .local
        .home_wake
        .store(word.to_word(), Ordering::Relaxed);
    if connection.local.sleepers.load(Ordering::SeqCst) == 0 {
        if let Some(end) = connection.end() {
            set_wake(&end, word);
        }
    }
}

/// A board for registration `n`, under the instance's lock: the one this instance has in the connection's pair, or a new one.
fn give_board(epoll: &Epoll, number: u32, connection: &Connection, n: u32) -> Option<WakeWord> {
    let pointer = connection.local.pair.load(Ordering::Relaxed);
    // SAFETY: places of the pair table are never released.
    let pair = unsafe { pointer.as_ref() }?;
    let slot = connection.entry.slot.load(Ordering::Relaxed);
    let mut board = None;
    for (index, user) in pair.epolls.iter().enumerate() {
        if user.load(Ordering::Relaxed) == number + 1 {
            board = Some(index);
            break;
        }
    }
    if board.is_none() {
        let count = epoll.pair_count.load(Ordering::Relaxed) as usize;
        if count == PAIRS_MAX {
            return None;
        }
        let index = pair.epolls.iter().position(|user| {
            user.compare_exchange(0, number + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })?;
        epoll.pairs[count].store(pointer, Ordering::Relaxed);
        epoll.boards[count].store(index as u32, Ordering::Relaxed);
        epoll.pair_count.store(count as u32 + 1, Ordering::Relaxed);
        board = Some(index);
    }
    pair.registration(slot)?.store(n, Ordering::Relaxed);
    Some(WakeWord::Board {
        board: board? as u32,
        bit: slot,
    })
}

/// Puts a registration on the ready list; the caller holds the instance's lock.
fn push_ready(epoll: &Epoll, number: u32) {
    let Some(one) = registration(number) else {
        return;
    };
    if one.on_ready.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    one.ready_next.store(0, Ordering::Relaxed);
    match registration(epoll.ready_tail.load(Ordering::Relaxed)) {
        Some(tail) => tail.ready_next.store(number, Ordering::Relaxed),
        None => epoll.ready_head.store(number, Ordering::Relaxed),
    }
    epoll.ready_tail.store(number, Ordering::Relaxed);
}

fn pop_ready(epoll: &Epoll) -> Option<u32> {
    let number = epoll.ready_head.load(Ordering::Relaxed);
    let one = registration(number)?;
    let next = one.ready_next.load(Ordering::Relaxed);
    epoll.ready_head.store(next, Ordering::Relaxed);
    if next == 0 {
        epoll.ready_tail.store(0, Ordering::Relaxed);
    }
    one.on_ready.store(0, Ordering::Relaxed);
    Some(number)
}

fn remove_ready(epoll: &Epoll, number: u32) {
    let Some(gone) = registration(number) else {
        return;
    };
    if gone.on_ready.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    let mut before = 0u32;
    let mut at = epoll.ready_head.load(Ordering::Relaxed);
    while let Some(one) = registration(at) {
        let next = one.ready_next.load(Ordering::Relaxed);
        if at == number {
            match registration(before) {
                Some(previous) => previous.ready_next.store(next, Ordering::Relaxed),
                None => epoll.ready_head.store(next, Ordering::Relaxed),
            }
            if next == 0 {
                epoll.ready_tail.store(before, Ordering::Relaxed);
            }
            return;
        }
        before = at;
        at = next;
    }
}

fn remove_unboarded(epoll: &Epoll, number: u32) {
    let mut place = &epoll.unboarded;
    while let Some(one) = registration(place.load(Ordering::Relaxed)) {
        if place.load(Ordering::Relaxed) == number {
            place.store(
                one.unboarded_next.load(Ordering::Relaxed),
                Ordering::Relaxed,
            );
            return;
        }
        place = &one.unboarded_next;
    }
}

/// A member's interest changed: look at it at the next wait, and wake a thread that sleeps already.
fn look_soon(epoll: &Epoll, number: u32, epoll_fd: i32, fd: i32) {
    {
        let _held = epoll.lock.lock();
        push_ready(epoll, number);
    }
    fence(Ordering::SeqCst);
    if epoll.sleepers.load(Ordering::SeqCst) != 0 {
        kick(epoll_fd, fd, number);
    }
}

/// Wakes a thread that sleeps in the kernel on this instance: a carrier is practically always writable.
fn kick(epoll_fd: i32, fd: i32, number: u32) {
    sys::epoll_ctl(
        epoll_fd,
        libc::EPOLL_CTL_MOD,
        fd,
        CARRIER_EVENTS | EPOLLOUT as u32,
        tag(number),
    );
}

/// True when waits on this instance need us.
#[inline]
pub(crate) fn is_virtual(number: u32) -> bool {
    epoll(number).is_some_and(|epoll| {
        epoll.virtuals.load(Ordering::Relaxed) != 0
            || (epoll.nested_count.load(Ordering::Relaxed) != 0 && nested_is_virtual(epoll))
    })
}

fn nested_is_virtual(outer: &Epoll) -> bool {
    let count = (outer.nested_count.load(Ordering::Relaxed) as usize).min(NESTED_MAX);
    outer.nested[..count]
        .iter()
        .filter_map(|nested| epoll(nested.number.load(Ordering::Relaxed)))
        .any(|inner| inner.virtuals.load(Ordering::Relaxed) != 0)
}

impl Epoll {
    /// Makes `one`, which is number `n`, a member that is looked at every time. The caller holds the lock, and it is not one yet.
    fn link_unboarded(&self, one: &Registration, n: u32) {
        one.state.store(UNBOARDED, Ordering::Relaxed);
        one.unboarded_next
            .store(self.unboarded.load(Ordering::Relaxed), Ordering::Relaxed);
        self.unboarded.store(n, Ordering::Relaxed);
    }

    /// Moves marked bits and boardless members with news onto the ready list. True when the list has anything.
    fn sweep(&self) -> bool {
        let _held = self.lock.lock();
        for place in 0..self.pair_count.load(Ordering::Relaxed) as usize {
            // SAFETY: places of the pair table are never released, and pairs leave this list before they are unmapped.
            let Some(pair) = (unsafe { self.pairs[place].load(Ordering::Relaxed).as_ref() }) else {
                continue;
            };
            let Some(board) = pair.ours(self.boards[place].load(Ordering::Relaxed)) else {
                continue;
            };
            let words = (pair.slots_used.load(Ordering::Relaxed) as usize).div_ceil(64);
            for (w, word) in board.bits[..words.min(board.bits.len())].iter().enumerate() {
                if word.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                // A full barrier: what the marker published before it set the bit is seen when the member is looked at.
                let mut bits = word.swap(0, Ordering::SeqCst);
                while bits != 0 {
                    let slot = w as u32 * 64 + bits.trailing_zeros();
                    bits &= bits - 1;
                    if let Some(number) = pair.registration(slot) {
                        push_ready(self, number.load(Ordering::Relaxed));
                    }
                }
            }
        }
        let mut n = self.unboarded.load(Ordering::Relaxed);
        while let Some(one) = registration(n) {
            if one.on_ready.load(Ordering::Relaxed) == 0 && unboarded_has_news(one) {
                push_ready(self, n);
            }
            n = one.unboarded_next.load(Ordering::Relaxed);
        }
        self.ready_head.load(Ordering::Relaxed) != 0
    }

    /// Looks at ready members and writes what the program asked for. `consume` is false for a look that must change nothing.
    fn harvest(&self, out: &mut [epoll_event], consume: bool) -> usize {
        let mut written = 0;
        let mut batch = [0u32; BATCH];
        let mut again = [0u32; BATCH];
        let mut again_count = 0;
        let mut count = 0;
        {
            let _held = self.lock.lock();
            while count < BATCH.min(out.len()) {
                let Some(number) = pop_ready(self) else { break };
                batch[count] = number;
                count += 1;
            }
        }
        fetch_lines(&batch[..count]);
        let processor = sys::processor() + 1;
        for &number in &batch[..count] {
            let Some(one) = registration(number) else {
                continue;
            };
            if !one.is_virtual() {
                continue;
            }
            let events = one.events.load(Ordering::Relaxed);
            if events & READINESS == 0 && events & ONESHOT != 0 {
                continue;
            }
            let Some(connection) = one.behind() else {
                continue;
            };
            // The stream's end is an edge even for a program that asked for bytes only: it shows in `EPOLLRDHUP`.
            let all = self.look_at(&connection, events | EPOLLRDHUP as u32, processor);
            let ready = all & (events | (EPOLLERR | EPOLLHUP) as u32);
            if ready == 0 || (events & EDGE != 0 && !one.is_new_edge(&connection, all, consume)) {
                continue;
            }
            out[written] = epoll_event {
                events: ready,
                u64: one.data.load(Ordering::Relaxed),
            };
            written += 1;
            if consume && events & ONESHOT != 0 {
                one.events.store(events & !READINESS, Ordering::Relaxed);
            } else if !consume || events & EDGE == 0 {
                again[again_count] = number;
                again_count += 1;
            }
        }
        if again_count > 0 {
            let _held = self.lock.lock();
            for &number in &again[..again_count] {
                push_ready(self, number);
            }
        }
        written
    }

    #[inline]
    fn look_at(&self, connection: &Connection, events: u32, processor: u32) -> u32 {
        connection.local.users.fetch_add(1, Ordering::SeqCst);
        let ready = match connection.end() {
            Some(end) => {
                self.last_peer_processor.store(
                    end.theirs().wake.processor.load(Ordering::Relaxed),
                    Ordering::Relaxed,
                );
                // Stored only when it changed: the peer has this line in its cache.
                if end.ours().wake.processor.load(Ordering::Relaxed) != processor {
                    end.ours()
                        .wake
                        .processor
                        .store(processor, Ordering::Relaxed);
                }
                // Poll and epoll share these bits (include/uapi/linux/eventpoll.h).
                ready::events(connection, &end, (events & READINESS) as i16) as u16 as u32
            }
            None => 0,
        };
        connection.local.users.fetch_sub(1, Ordering::SeqCst);
        ready
    }

    /// One more thread sleeps on this instance: says so on all its boards.
    fn begin_sleep(&self) {
        let _held = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.set_sleeping(1);
    }

    /// One less. The ringer of this wake-up took the boards' sleep words: for threads that still sleep they are set again, and what
    /// was marked in between is taken by us.
    fn end_sleep(&self) {
        let others = {
            let _held = self.lock.lock();
            let others = self.sleepers.fetch_sub(1, Ordering::SeqCst) > 1;
            self.set_sleeping(others.into());
            others
        };
        if others {
            fence(Ordering::SeqCst);
            self.sweep();
        }
    }

    /// Sets or clears the sleep words of all boards. The caller holds the lock.
    fn set_sleeping(&self, sleeping: u32) {
        for place in 0..self.pair_count.load(Ordering::Relaxed) as usize {
            // SAFETY: as in `sweep`.
            let Some(pair) = (unsafe { self.pairs[place].load(Ordering::Relaxed).as_ref() }) else {
                continue;
            };
            if let Some(board) = pair.ours(self.boards[place].load(Ordering::Relaxed)) {
                board.sleeping.store(sleeping, Ordering::SeqCst);
            }
        }
    }

    /// Boardless members, as many as one sleep can arm.
    fn unboarded_members(&self, out: &mut [u32]) -> usize {
        let _held = self.lock.lock();
        let mut count = 0;
        let mut n = self.unboarded.load(Ordering::Relaxed);
        while let (Some(one), true) = (registration(n), count < out.len()) {
            out[count] = n;
            count += 1;
            n = one.unboarded_next.load(Ordering::Relaxed);
        }
        count
    }

    /// Sorts out what the kernel returned: tagged events go to the ready list, the others stay. Returns how many stayed.
    fn sort_kernel_events(&self, events: &mut [epoll_event]) -> usize {
        let mut kept = 0;
        let _held = self.lock.lock();
        for at in 0..events.len() {
            let event = events[at];
            let Some(number) = untag(event.u64) else {
                events[kept] = event;
                kept += 1;
                continue;
            };
            let Some(one) = registration(number) else {
                continue;
            };
            let Some(connection) = one.behind() else {
                continue;
            };
            if one.state.load(Ordering::Relaxed) == HELD {
                errno::keep(|| opening::look(&connection));
                continue;
            }
            if event.events & (EPOLLPRI | EPOLLRDHUP | EPOLLHUP | EPOLLERR) as u32 != 0 {
                connection
                    .entry
                    .rx_hints
                    .fetch_or(HINT_LOOK, Ordering::Relaxed);
            }
            let wakeups = connection.entry.wakeups.fetch_add(1, Ordering::Relaxed);
            if wakeups % WAKEUPS_PER_DRAIN == WAKEUPS_PER_DRAIN - 1 {
                if let (Some(end), Some(_rx)) =
                    (connection.end(), lock::try_lock(&connection.entry.rx_lock))
                {
                    drain_doorbells(&connection, &end);
                }
            }
            if one.is_virtual() {
                if is_kernel_edge(&connection, event.events) {
                    one.rearmed.store(1, Ordering::Relaxed);
                }
                push_ready(self, number);
            }
        }
        kept
    }

    fn nested_events(&self, out: &mut [epoll_event]) -> usize {
        let count = (self.nested_count.load(Ordering::Relaxed) as usize).min(NESTED_MAX);
        let mut written = 0;
        for nested in &self.nested[..count] {
            if written < out.len()
                && nested.events.load(Ordering::Relaxed) & EPOLLIN as u32 != 0
                && has_ready(nested.number.load(Ordering::Relaxed))
            {
                out[written] = epoll_event {
                    events: EPOLLIN as u32,
                    u64: nested.data.load(Ordering::Relaxed),
                };
                written += 1;
            }
        }
        written
    }
}

/// True when what the kernel reported on a carrier is an edge for the program too: the bytes are the kernel's. What ends a connection is an
/// edge by itself, once, and so is room after a refusal ([`writing_blocked`], `Registration::is_new_edge`).
fn is_kernel_edge(connection: &Connection, events: u32) -> bool {
    if events & EPOLLPRI as u32 != 0 {
        return true;
    }
    if events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR) as u32 != 0 {
        return false;
    }
    let Some(end) = connection.end() else {
        return true;
    };
    events & EPOLLIN as u32 != 0 && (end.rx_mode() != Mode::Ring || end.records_pending())
}

/// Members with news have their peers' words and bytes in another core's cache: asks for all of them at once.
fn fetch_lines(batch: &[u32]) {
    for connection in batch
        .iter()
        .filter_map(|&n| registration(n))
        .filter_map(Registration::behind)
    {
        if let Some(end) = connection.end() {
            prefetch::for_read(&raw const end.theirs().publish.tail);
            // A ring that never filled has its first capacity; for one that grew the hint is wrong and harmless.
            let offset = connection.entry.rx_ring.load(Ordering::Relaxed) as usize
                & ((1 << CAPACITY_LOG2_MIN) - 1);
            prefetch::for_read(end.ring_in().wrapping_add(offset).cast_const());
        }
    }
}

fn unboarded_has_news(one: &Registration) -> bool {
    let Some(connection) = one.behind() else {
        return false;
    };
    let wanted = one.events.load(Ordering::Relaxed);
    connection.local.users.fetch_add(1, Ordering::SeqCst);
    let all = connection.end().map_or(0, |end| {
        let interest = wanted & READINESS | EPOLLRDHUP as u32;
        ready::events(&connection, &end, interest as i16) as u16 as u32
    });
    connection.local.users.fetch_sub(1, Ordering::SeqCst);
    let ready = all & (wanted | (EPOLLERR | EPOLLHUP) as u32);
    ready != 0 && (wanted & EDGE == 0 || one.is_new_edge(&connection, all, false))
}

/// True when a wait on instance `number` would return at once because of accelerated members; changes nothing.
pub(crate) fn has_ready(number: u32) -> bool {
    let Some(epoll) = epoll(number) else {
        return false;
    };
    let mut one = [epoll_event { events: 0, u64: 0 }; 1];
    for _ in 0..BATCH {
        if !epoll.sweep() {
            return false;
        }
        if epoll.harvest(&mut one, false) > 0 {
            return true;
        }
    }
    false
}

/// Announces or ends a sleep on instance `number` by somebody who watches its descriptor from outside.
pub(crate) fn set_observed(number: u32, observed: bool) {
    let Some(epoll) = epoll(number) else { return };
    if observed {
        epoll.begin_sleep();
    } else {
        epoll.end_sleep();
    }
    let mut members = [0u32; UNBOARDED_MAX];
    let count = epoll.unboarded_members(&mut members);
    for &n in &members[..count] {
        arm_member(n, observed);
    }
}

fn arm_member(n: u32, on: bool) {
    if let Some(connection) = registration(n).and_then(Registration::behind) {
        if let Some(end) = connection.end() {
            if on {
                arm(&connection, &end)
            } else {
                disarm(&connection, &end)
            }
        }
    }
}

/// `epoll_wait` on an instance with accelerated members. `kernel` waits on the kernel's side: it gets the buffer and the time-out in
/// nanoseconds (`None`: no limit) and returns what `epoll_wait` does.
pub(crate) fn wait(
    number: u32,
    events: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mut kernel: impl FnMut(&mut [epoll_event], Option<u64>) -> i32,
) -> i32 {
    let Some(epoll) = epoll(number) else {
        return kernel(events, timeout_ns);
    };
    let mut started = 0u64;
    loop {
        let mut found = 0;
        if epoll.sweep() {
            found = epoll.harvest(events, true);
        }
        if found == 0 && epoll.nested_count.load(Ordering::Relaxed) != 0 {
            found = epoll.nested_events(events);
        }
        if found > 0 || timeout_ns == Some(0) {
            return with_kernel_members(epoll, events, found, timeout_ns == Some(0), &mut kernel);
        }
        let now = sys::now_ns();
        if started == 0 {
            started = now;
        }
        let left = timeout_ns.map(|limit| limit.saturating_sub(now - started));
        let budget = epoll.spin.budget_ns().min(left.unwrap_or(u64::MAX));
        if budget > 0 {
            let slice = budget.min(KERNEL_LOOK_NS.max(if budget == u64::MAX { 0 } else { budget }));
            let slice = if budget == u64::MAX {
                KERNEL_LOOK_NS
            } else {
                slice
            };
            if wait::spin(
                &epoll.spin,
                slice,
                epoll.last_peer_processor.load(Ordering::Relaxed),
                || epoll.sweep(),
            ) {
                epoll.spin.paid();
                continue;
            }
            if budget == u64::MAX {
                let n = kernel(events, Some(0));
                if n != 0 {
                    let kept = epoll.sort_kernel_events(&mut events[..n.max(0) as usize]);
                    if n < 0 || kept > 0 {
                        return if n < 0 { n } else { kept as i32 };
                    }
                }
                continue;
            }
        }
        leaving::follow();
        let n = sleep(epoll, events, left, &mut kernel);
        epoll.spin.slept(sys::now_ns() - now);
        if n < 0 {
            return n;
        }
        let kept = epoll.sort_kernel_events(&mut events[..n as usize]);
        epoll.kernel_seen_ns.store(sys::now_ns(), Ordering::Relaxed);
        if kept > 0 {
            let more = if epoll.sweep() {
                epoll.harvest(&mut events[kept..], true)
            } else {
                0
            };
            return (kept + more) as i32;
        }
        if let Some(limit) = timeout_ns {
            if sys::now_ns() - started >= limit {
                return if epoll.sweep() {
                    epoll.harvest(events, true) as i32
                } else {
                    0
                };
            }
        }
    }
}

/// Adds events of ordinary members, now and then, so that a busy ring does not starve them.
fn with_kernel_members(
    epoll: &Epoll,
    events: &mut [epoll_event],
    found: usize,
    always: bool,
    kernel: &mut impl FnMut(&mut [epoll_event], Option<u64>) -> i32,
) -> i32 {
    let now = sys::now_ns();
    let due = now - epoll.kernel_seen_ns.load(Ordering::Relaxed) >= KERNEL_MEMBERS_NS;
    if found == events.len() || !(due || always) {
        return found as i32;
    }
    epoll.kernel_seen_ns.store(now, Ordering::Relaxed);
    let n = kernel(&mut events[found..], Some(0));
    if n <= 0 {
        return if found > 0 { found as i32 } else { n };
    }
    let mut kept = epoll.sort_kernel_events(&mut events[found..found + n as usize]);
    if found > 0 && epoll.nested_count.load(Ordering::Relaxed) != 0 {
        kept = without_repeats(events, found, kept);
    }
    if kept > 0 {
        // Members that stay ready are reported every time, as the kernel would.
        epoll.kernel_seen_ns.store(0, Ordering::Relaxed);
    }
    let mut total = found + kept;
    if total == 0 && epoll.sweep() {
        total = epoll.harvest(events, true);
    }
    total as i32
}

/// An instance inside this one that we found ready is ready to the kernel, too: once is enough.
fn without_repeats(events: &mut [epoll_event], found: usize, kept: usize) -> usize {
    let mut unique = 0;
    for at in found..found + kept {
        let event = events[at];
        if events[..found]
            .iter()
            .all(|known| { known.u64 } != { event.u64 })
        {
            events[found + unique] = event;
            unique += 1;
        }
    }
    unique
}

fn sleep(
    epoll: &Epoll,
    events: &mut [epoll_event],
    left: Option<u64>,
    kernel: &mut impl FnMut(&mut [epoll_event], Option<u64>) -> i32,
) -> i32 {
    let mut members = [0u32; UNBOARDED_MAX];
    let count = epoll.unboarded_members(&mut members);
    epoll.begin_sleep();
    for &n in &members[..count] {
        arm_member(n, true);
    }
    let nested = (epoll.nested_count.load(Ordering::Relaxed) as usize).min(NESTED_MAX);
    for inner in &epoll.nested[..nested] {
        set_observed(inner.number.load(Ordering::Relaxed), true);
    }
    // The other half of `toehold_channel::doorbell`: we said that we sleep, now look again.
    fence(Ordering::SeqCst);
    let news = epoll.sweep()
        || epoll.nested[..nested]
            .iter()
            .any(|inner| has_ready(inner.number.load(Ordering::Relaxed)));
    let result = kernel(events, if news { Some(0) } else { left });
    for inner in &epoll.nested[..nested] {
        set_observed(inner.number.load(Ordering::Relaxed), false);
    }
    for &n in &members[..count] {
        arm_member(n, false);
    }
    epoll.end_sleep();
    result
}

/// The program met a full kernel buffer on a connection whose direction is on the carrier: let the kernel tell when there is room.
pub(crate) fn watch_kernel_writable(connection: &Connection) {
    each_registration(connection, |n, one| {
        if let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)).filter(|_| one.is_virtual()) {
            kick(
                epoll.fd.load(Ordering::Relaxed) - 1,
                one.fd.load(Ordering::Relaxed),
                n,
            );
        }
    });
}

/// The program met a full ring: the next room in it is an edge.
pub(crate) fn writing_blocked(connection: &Connection) {
    each_registration(connection, |_, one| {
        one.edge_mask
            .fetch_and(!(EPOLLOUT as u32), Ordering::Relaxed);
    });
}

/// The kernel's own call returned `events` on an instance that got accelerated members while it slept: takes ours out and looks at
/// them. `None`: nothing is left, wait again.
pub(crate) fn after_kernel_wait(
    number: u32,
    events: &mut [epoll_event],
    returned: usize,
) -> Option<i32> {
    let epoll = epoll(number)?;
    let kept = epoll.sort_kernel_events(&mut events[..returned]);
    let more = if kept < events.len() && epoll.sweep() {
        epoll.harvest(&mut events[kept..], true)
    } else {
        0
    };
    (kept + more > 0).then_some((kept + more) as i32)
}

/// Shows `connection` to the epoll instance that has it on a board, and wakes a thread that sleeps there: news that no peer marks, or whose
/// doorbell somebody else has taken.
pub(crate) fn nudge(connection: &Connection) {
    let home = connection.local.home_wake.load(Ordering::Relaxed);
    let Ok(WakeWord::Board { board, bit }) = WakeWord::from_untrusted(home) else {
        return;
    };
    // SAFETY: places of the pair table are never released.
    let pair = unsafe { connection.local.pair.load(Ordering::Relaxed).as_ref() };
    let Some((pair, board)) = pair.and_then(|pair| Some((pair, pair.ours(board)?))) else {
        return;
    };
    mark(board, bit);
    if board.sleeping.load(Ordering::SeqCst) == 1 {
        let number = pair
            .registration(bit)
            .map_or(0, |number| number.load(Ordering::Relaxed));
        let Some(one) = registration(number) else {
            return;
        };
        if let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)) {
            kick(
                epoll.fd.load(Ordering::Relaxed) - 1,
                one.fd.load(Ordering::Relaxed),
                number,
            );
        }
    }
}
