//! What this process knows about its descriptors.
//!
//! ```text
//!   fds[fd]  ──►  Connection: entry in the family's table (shared over fork)
//!                 + Local (this process: mappings, sleepers)
//!            ──►  an epoll instance (crate::epoll)
//!            ──►  a descriptor of our own that the program must not close
//! ```
//!
//! All of it is in tables that grow as descriptors are used ([`crate::chunks`]), without a heap.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use toehold_channel::memfd;
use toehold_channel::table::{
    Entry, EntryState, FLAG_ACCEPTED, FLAG_NONBLOCK, Reason, TABLE_BYTES, WaitMode,
};
use toehold_stream::end::End;

use crate::chunks::Chunks;
use crate::pairs::Pair;
use crate::table::Table;
use crate::{adapter, holders, lock, offload, release, sys, table};

pub(crate) use crate::table::{entry, fd as table_fd, table};

/// Descriptors beyond this one are never tracked.
const FDS_MAX: usize = 1 << 20;
/// Eight pages of words.
const FDS_CHUNK_LOG2: u32 = 12;
/// Our own descriptors are moved up to here, out of the way of programs that expect the lowest
/// numbers.
const OWN_FD_MIN: usize = 700;

/// Set once, when the library is started for this process.
static ENABLED: AtomicBool = AtomicBool::new(false);
static PID: AtomicU32 = AtomicU32::new(0);
static WAIT: AtomicU32 = AtomicU32::new(0);
/// How often this process, and those that it descends from, have forked.
static FORKS: AtomicU32 = AtomicU32::new(0);
static FDS: Chunks<AtomicU64, FDS_CHUNK_LOG2, { FDS_MAX >> FDS_CHUNK_LOG2 }> = Chunks::new();
/// No number above this one has ever stood for anything.
static HIGHEST: AtomicU32 = AtomicU32::new(0);
static LOCALS: Chunks<Local, { table::CHUNK_LOG2 }, { table::CHUNKS }> = Chunks::new();
static TABLE_LOCK: lock::Private = lock::Private::new();

/// What a descriptor number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not ours to know.
    Foreign,
    /// A tracked connection.
    Connection,
    /// An epoll instance.
    Epoll,
    /// A descriptor of the library's own.
    Own,
}

const KIND_SHIFT: u32 = 62;
const GENERATION_SHIFT: u32 = 32;
const GENERATION_MASK: u64 = (1 << 30) - 1;

/// This process's view of a connection. All zeroes is a fresh one.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Local {
    /// The mapped region, null while the connection is on the host path only.
    pub(crate) region: AtomicPtr<u8>,
    /// The pair of processes the channel belongs to.
    pub(crate) pair: AtomicPtr<Pair>,
    /// An offer's region that could not be attached yet.
    pub(crate) offered: AtomicPtr<u8>,
    /// Address range of a region that was left, for the next one.
    pub(crate) parked: AtomicPtr<u8>,
    /// The slab that its first region is in, by number; 0 for none.
    pub(crate) slab: AtomicU32,
    /// Since when the channel has been drained and refused, nanoseconds; 0 when it is not.
    pub(crate) over_since_ns: AtomicU64,
    /// Threads of this process that sleep in the kernel for this connection.
    pub(crate) sleepers: AtomicU32,
    /// Those of them that wait for bytes only.
    pub(crate) readers: AtomicU32,
    /// Descriptors of this process that refer to it.
    pub(crate) descriptors: AtomicU32,
    /// First of its epoll registrations, 0 for none.
    pub(crate) registrations: AtomicU32,
    /// Held while that list, or which of its members are ours to answer, changes.
    pub(crate) membership: lock::Private,
    /// Generation of the adapter connection over which pairing was asked for.
    pub(crate) asked_epoch: AtomicU32,
    /// Recent success of spinning, see [`crate::wait`].
    pub(crate) spin: crate::wait::SpinHistory,
    /// When the carrier was last looked at for an end of file, nanoseconds.
    pub(crate) carrier_seen_ns: AtomicU64,
    /// Threads at work on the mapping outside the direction locks.
    pub(crate) users: AtomicU32,
    /// Whether the program has been seen waiting for it, see [`crate::waits`].
    pub(crate) waits: AtomicU32,
}

/// A tracked connection behind a descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    /// The descriptor it was reached by: the carrier.
    pub(crate) fd: i32,
    pub(crate) index: u32,
    pub(crate) generation: u32,
    /// What the family shares.
    pub(crate) entry: &'static Entry,
    /// What this process knows.
    pub(crate) local: &'static Local,
}

/// A thread at work on a region outside the direction locks.
pub(crate) struct Inside {
    end: End<'static>,
    local: &'static Local,
}

impl core::ops::Deref for Inside {
    type Target = End<'static>;

    #[inline]
    fn deref(&self) -> &End<'static> {
        &self.end
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        self.local.users.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Connection {
    /// Our end of its channel, when one is attached in this process.
    #[inline]
    pub(crate) fn end(&self) -> Option<End<'static>> {
        let region = self.local.region.load(Ordering::Acquire);
        if region.is_null() {
            return None;
        }
        let side = self.entry.side.load(Ordering::Relaxed) as usize & 1;
        // SAFETY: a region is given up only by `release::release` and `leaving::finish`, under both
        // direction locks and while `users` and `sleepers` are zero. It stays mapped then, or its
        // addresses do, but may become another connection's: callers hold one of those locks or are
        // [`Connection::inside`] while they write.
        Some(unsafe { End::at(self.entry, region, side) })
    }

    /// Our end of its channel, which stays this connection's until the guard is dropped.
    #[inline]
    pub(crate) fn inside(&self) -> Option<Inside> {
        // Before the look at the region: whoever gives it up takes it away first, and looks at the
        // count then.
        self.local.users.fetch_add(1, Ordering::SeqCst);
        let end = self.end().filter(|_| self.is_current());
        let local = self.local;
        let Some(end) = end else {
            local.users.fetch_sub(1, Ordering::SeqCst);
            return None;
        };
        Some(Inside { end, local })
    }

    /// True when the descriptor still names this connection.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.entry.generation.load(Ordering::Acquire) == self.generation
    }

    /// True when the program asked for non-blocking calls on it; known once there is a channel.
    #[inline]
    pub(crate) fn nonblocking(&self) -> bool {
        self.entry.flags.load(Ordering::Relaxed) & FLAG_NONBLOCK != 0
    }

    /// Finds out whether calls on it block. From then on our `fcntl` and `ioctl` follow what the
    /// program makes of it.
    pub(crate) fn learn_nonblocking(&self) {
        let learn = |flags: u32| {
            // Asked anew when another thread has changed it meanwhile: it may have told us before,
            // or after, it told the kernel.
            Some(if sys::is_nonblocking(self.fd) {
                flags | FLAG_NONBLOCK
            } else {
                flags & !FLAG_NONBLOCK
            })
        };
        let flags = &self.entry.flags;
        let _ = flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, learn);
    }

    /// True when another process of the family, alive, holds it too.
    pub(crate) fn is_shared(&self) -> bool {
        holders::are_others(self.entry)
    }

    /// Keeps the connection on the host path for good.
    pub(crate) fn pin(&self, reason: Reason) {
        self.entry
            .flags
            .fetch_or(toehold_channel::table::FLAG_PINNED, Ordering::Relaxed);
        self.entry.reason.store(reason as u32, Ordering::Relaxed);
    }
}

/// Starts the library in this process. Called once, from the constructor, with one thread.
pub fn start(wait: WaitMode) {
    crate::epoll::start();
    WAIT.store(wait as u32, Ordering::Relaxed);
    PID.store(sys::getpid(), Ordering::Relaxed);
    // SAFETY: the handlers are functions without captured state that live as long as the library.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork_in_child)) };
    ENABLED.store(true, Ordering::Release);
}

/// True once the library serves this process.
#[inline]
pub(crate) fn is_started() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// This process as it was started or forked. In a `vfork` child it is the parent.
#[inline]
pub(crate) fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// Changes with each child that inherits what we have mapped.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// How to wait.
#[inline]
pub(crate) fn wait_mode() -> WaitMode {
    WaitMode::from_word(WAIT.load(Ordering::Relaxed)).unwrap_or(WaitMode::Adaptive)
}

#[inline]
fn slot(fd: i32) -> Option<&'static AtomicU64> {
    FDS.get(fd as u32 as usize)
}

/// As [`slot`], for a number of which something is to be noted.
fn slot_to_note(fd: i32) -> Option<&'static AtomicU64> {
    if !is_started() {
        return None;
    }
    FDS.get_or_map(fd as u32 as usize)
}

/// Notes what `fd` stands for, a word of [`Kind`].
fn note(fd: i32, word: u64) {
    if let Some(slot) = slot_to_note(fd) {
        // Before the word: whoever walks up to it finds what it left out already closed.
        HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
        slot.store(word, Ordering::Release);
    }
}

/// What `fd` stands for.
#[inline]
pub(crate) fn kind(fd: i32) -> Kind {
    match slot(fd).map_or(0, |slot| slot.load(Ordering::Acquire) >> KIND_SHIFT) {
        1 => Kind::Connection,
        2 => Kind::Epoll,
        3 => Kind::Own,
        _ => Kind::Foreign,
    }
}

/// The connection behind `fd`, if it is tracked.
#[inline]
pub(crate) fn connection(fd: i32) -> Option<Connection> {
    let word = slot(fd)?.load(Ordering::Acquire);
    if word >> KIND_SHIFT != 1 {
        return None;
    }
    connection_of_word(fd, word)
}

#[inline]
fn connection_of_word(fd: i32, word: u64) -> Option<Connection> {
    let index = word as u32;
    Some(Connection {
        fd,
        index,
        generation: (word >> GENERATION_SHIFT & GENERATION_MASK) as u32,
        entry: entry(index)?,
        local: local(index)?,
    })
}

/// Number of the epoll object behind `fd`.
#[inline]
pub(crate) fn epoll_number(fd: i32) -> Option<u32> {
    let word = slot(fd)?.load(Ordering::Acquire);
    (word >> KIND_SHIFT == 2).then_some(word as u32)
}

/// First of the epoll registrations of `fd`, of which only these are known, or 0.
pub(crate) fn early_registrations(fd: i32) -> u32 {
    let word = slot(fd).map_or(0, |slot| slot.load(Ordering::Acquire));
    if word >> KIND_SHIFT == 0 {
        word as u32
    } else {
        0
    }
}

/// Replaces what [`early_registrations`] says. False when `fd` has come to stand for something
/// else.
pub(crate) fn set_early_registrations(fd: i32, was: u32, number: u32) -> bool {
    slot_to_note(fd).is_some_and(|slot| {
        slot.compare_exchange(
            was.into(),
            number.into(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok()
    })
}

/// Notes what `fd` stands for.
pub(crate) fn note_epoll(fd: i32, number: u32) {
    note(fd, 2 << KIND_SHIFT | u64::from(number));
}

/// Forgets what `fd` stands for.
pub(crate) fn forget(fd: i32) {
    if let Some(slot) = slot(fd) {
        slot.store(0, Ordering::Release);
    }
}

/// This process's words of connection `index`, if it has come across it or its neighbours.
#[inline]
pub(crate) fn local(index: u32) -> Option<&'static Local> {
    LOCALS.get(index as usize)
}

/// What there is to know of connection `index`, which this process begins to hold.
pub(crate) fn meet(index: u32) -> Option<(&'static Entry, &'static Local)> {
    let entry = table()?.entry(index)?;
    Some((entry, LOCALS.get_or_map(index as usize)?))
}

/// True when this family has a table, and so something to tell the adapter of.
pub(crate) fn has_table() -> bool {
    table_or_new().is_some()
}

/// A foreign descriptor of which we know that it listens. The lower half is for the number of an
/// early registration, which it has none of.
const LISTENER: u64 = 1 << 32;

/// Notes that `fd` listens, and that the adapter was told.
pub(crate) fn note_listener(fd: i32) {
    if let Some(slot) = slot_to_note(fd) {
        let before = slot.swap(LISTENER, Ordering::AcqRel);
        if before >> KIND_SHIFT == 0 {
            // It will not be connected: the kernel alone has its registrations.
            crate::epoll::unconnected_closing(before as u32);
        }
    }
}

/// A foreign descriptor that is registered with an epoll instance which we do not know.
const UNSEEN: u64 = 1 << 33;

/// Notes that `fd`, which is no connection yet, is waited for where we do not see it: when it is
/// one, it stays on the kernel.
pub(crate) fn note_unseen(fd: i32) {
    if !sys::may_connect(fd) {
        return;
    }
    if let Some(slot) = slot_to_note(fd) {
        let unseen = |word: u64| (word >> KIND_SHIFT == 0).then_some(word | UNSEEN);
        let _ = slot.fetch_update(Ordering::AcqRel, Ordering::Relaxed, unseen);
    }
}

/// A foreign descriptor that was duplicated. Once connected, only one of its numbers would be
/// known.
const DUPLICATED: u64 = 1 << 34;

/// Notes that `from` and `to`, no connections yet, are one socket: when it is connected, it stays
/// on the kernel, because bytes would pass by the number that we do not know.
pub(crate) fn note_duplicated(from: i32, to: i32) {
    if !sys::may_connect(from) {
        return;
    }
    for slot in [from, to].into_iter().filter_map(slot_to_note) {
        let duplicated = |word: u64| (word >> KIND_SHIFT == 0).then_some(word | DUPLICATED);
        let _ = slot.fetch_update(Ordering::AcqRel, Ordering::Relaxed, duplicated);
    }
}

/// True when something is known of `fd`, which is no connection: registrations, that it listens,
/// that it has another number, or that it is waited for elsewhere.
#[inline]
pub(crate) fn is_noted(fd: i32) -> bool {
    let word = slot(fd).map_or(0, |slot| slot.load(Ordering::Relaxed));
    word != 0 && word >> KIND_SHIFT == 0
}

/// True when `fd` was noted to listen.
pub(crate) fn is_listener(fd: i32) -> bool {
    slot(fd).is_some_and(|slot| slot.load(Ordering::Acquire) == LISTENER)
}

fn table_or_new() -> Option<Table> {
    if let Some(table) = table() {
        return Some(table);
    }
    let _held = TABLE_LOCK.lock();
    if let Some(table) = table() {
        return Some(table);
    }
    use std::os::fd::{AsFd, IntoRawFd};
    let fd = memfd::create(c"toehold-table", TABLE_BYTES).ok()?;
    let header = table::map_header(fd.as_fd())?;
    let mut program = [0u8; 48];
    let len = program_name(&mut program);
    header.initialise(pid(), wait_mode(), &program[..len]);
    let table = table::open(header, own(fd.into_raw_fd()));
    holders::join_self(&table);
    table.publish();
    Some(table)
}

/// Goes on with the table of the program that had this process before; false when `fd` holds none.
pub(crate) fn adopt_table(fd: i32) -> bool {
    use std::os::fd::BorrowedFd;
    if fd < 0 || table().is_some() {
        return false;
    }
    // SAFETY: the former program left it open for us; a number that is not open maps nothing.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let Some(header) = table::map_header(file) else {
        return false;
    };
    if !header.is_valid() {
        // SAFETY: mapped above and shown to nobody.
        unsafe { table::unmap_header(header) };
        return false;
    }
    let table = table::open(header, own(fd));
    table.publish();
    holders::join_self(&table);
    if !family_alive() {
        // Nobody but us goes by the name in it.
        let mut program = [0u8; 48];
        let len = program_name(&mut program);
        header.rename(&program[..len]);
    }
    true
}

/// Notes that `fd` stands for a connection.
pub(crate) fn note_connection(fd: i32, index: u32, generation: u32) {
    note(fd, connection_word(index, generation));
}

fn connection_word(index: u32, generation: u32) -> u64 {
    1 << KIND_SHIFT | u64::from(generation) << GENERATION_SHIFT | u64::from(index)
}

/// The name in `/proc/self/comm`, written to `out`; its length.
fn program_name(out: &mut [u8]) -> usize {
    // SAFETY: PR_GET_NAME writes at most 16 bytes with a NUL.
    let mut name = [0u8; 16];
    // SAFETY: `name` is writable for 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let len = name.iter().position(|&b| b == 0).unwrap_or(16);
    out[..len].copy_from_slice(&name[..len]);
    len
}

/// Moves a descriptor of ours out of the program's way and marks it; returns its number now.
pub(crate) fn own(fd: i32) -> i32 {
    let moved = out_of_the_way(fd);
    let fd = match moved {
        Some(moved) => {
            sys::close(fd);
            moved
        }
        None => fd,
    };
    note(fd, 3 << KIND_SHIFT);
    fd
}

/// A duplicate of `fd` where programs do not expect one: high up, or, where the limit on numbers is
/// low, as high as there is a free one.
fn out_of_the_way(fd: i32) -> Option<i32> {
    /// Numbers below the limit that are tried at once.
    const STEP: usize = 8;
    let limit = descriptor_limit();
    let mut least = OWN_FD_MIN.min(limit);
    loop {
        // Above the limit there is nothing (EINVAL); above the highest free one neither (EMFILE).
        let moved = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, least);
        if moved >= 0 {
            return Some(moved as i32);
        }
        if least == 0 {
            return None;
        }
        least = least.saturating_sub(STEP);
    }
}

/// A duplicate of `fd` that is ours.
pub(crate) fn duplicate_for_us(fd: i32) -> Option<i32> {
    let ours = out_of_the_way(fd)?;
    note(ours, 3 << KIND_SHIFT);
    (kind(ours) == Kind::Own).then_some(ours)
}

/// Closes a descriptor of ours.
pub(crate) fn disown(fd: i32) {
    forget(fd);
    sys::close(fd);
}

/// The program is about to place another file at `fd`: if we live there, move. Where there is no
/// other number we go without: what has this one may be the program's from now on.
pub(crate) fn make_way(fd: i32) {
    if kind(fd) != Kind::Own {
        return;
    }
    let moved = out_of_the_way(fd);
    forget(fd);
    let moved = match moved {
        Some(moved) => {
            note(moved, 3 << KIND_SHIFT);
            moved
        }
        None => -1,
    };
    table::moved(fd, moved);
    adapter::moved(fd, moved);
    crate::epoll::moved(fd, moved);
}

/// Begins to track the new connection at `fd`. On any shortage it simply stays unknown to us.
pub(crate) fn track(fd: i32, accepted: bool) {
    let Some(slot) = slot_to_note(fd) else { return };
    let Some(table) = table_or_new() else { return };
    let Some(index) = table.allocate(fd as u32, |pid| !sys::process_exists(pid)) else {
        return;
    };
    let Some((entry, local)) = meet(index) else {
        // No memory: nobody's again.
        if let Some(entry) = table.entry(index) {
            let free = EntryState::Free as u32;
            entry.state.store(free, Ordering::Release);
        }
        return;
    };
    let generation =
        entry.generation.load(Ordering::Relaxed).wrapping_add(1) & GENERATION_MASK as u32;
    reset(entry, local);
    let flags = if accepted { FLAG_ACCEPTED } else { 0 };
    entry.flags.store(flags, Ordering::Relaxed);
    entry
        .reason
        .store(Reason::FewBytes as u32, Ordering::Relaxed);
    holders::begin(entry);
    entry.pid.store(pid(), Ordering::Relaxed);
    entry.fd.store(fd as u32, Ordering::Relaxed);
    entry.generation.store(generation, Ordering::Release);
    entry
        .state
        .store(EntryState::Live as u32, Ordering::Release);
    local.descriptors.store(1, Ordering::Relaxed);
    let word = connection_word(index, generation);
    HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
    let before = slot.swap(word, Ordering::AcqRel);
    if before >> KIND_SHIFT == 0 && before != 0 {
        if let Some(connection) = connection_of_word(fd, word) {
            if before & UNSEEN != 0 {
                connection.pin(Reason::UnseenWaits);
            } else if before & DUPLICATED != 0 {
                connection.pin(Reason::Duplicated);
            }
            crate::epoll::adopt(&connection, before as u32);
        }
    }
    adapter::say_hello_once();
}

fn reset(entry: &Entry, local: &Local) {
    for word in [
        &entry.command,
        &entry.offer,
        &entry.verdict,
        &entry.carrier_calls,
        &entry.offers_taken,
        &entry.side,
        &entry.slot,
        &entry.rx_lock,
        &entry.rx_in_flight,
        &entry.rx_low_water,
        &entry.rx_mode,
        &entry.rx_records,
        &entry.rx_hints,
        &entry.rx_empty,
        &entry.tx_lock,
        &entry.tx_in_flight,
        &entry.tx_mode,
        &entry.tx_records,
        &entry.tx_capacity_log2,
        &entry.tx_was_full,
        &entry.tx_options,
        &entry.upgrades,
        &entry.downgrades,
        &entry.doorbells,
        &entry.doorbells_suppressed,
        &entry.wakeups,
        &entry.spins_paid,
        &entry.spins_failed,
        &entry.faults,
        &entry.true_ports,
        &entry.place,
        &entry.wake_lock,
        &entry.home_wake,
        &entry.home_pid,
    ]
    .into_iter()
    .chain(&entry.asleep)
    {
        word.store(0, Ordering::Relaxed);
    }
    for word in [
        &entry.rx_carrier,
        &entry.rx_ring,
        &entry.rx_ring_before,
        &entry.tx_ring_before,
        &entry.rx_calls,
        &entry.tx_carrier,
        &entry.tx_ring,
        &entry.tx_calls,
        &entry.tx_head_seen,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    local.region.store(null_mut(), Ordering::Relaxed);
    local.pair.store(null_mut(), Ordering::Relaxed);
    local.offered.store(null_mut(), Ordering::Relaxed);
    // `sleepers`, `readers` and `users` stay: a thread may count itself in and out through a
    // descriptor that named this entry before, whoever has it by then.
    for word in [&local.registrations, &local.asked_epoch, &local.waits] {
        word.store(0, Ordering::Relaxed);
    }
    local.spin.reset();
    local.carrier_seen_ns.store(0, Ordering::Relaxed);
    local.over_since_ns.store(0, Ordering::Relaxed);
}

/// `to` now refers to what `from` does (`dup`, `F_DUPFD`).
pub(crate) fn duplicate(from: i32, to: i32) {
    let word = slot(from).map_or(0, |slot| slot.load(Ordering::Acquire));
    match word >> KIND_SHIFT {
        1 => {
            if let Some(connection) = connection_of_word(from, word) {
                connection.local.descriptors.fetch_add(1, Ordering::Relaxed);
                note(to, word);
            }
        }
        2 => {
            crate::epoll::duplicated(word as u32);
            note(to, word);
        }
        _ => forget(to),
    }
}

/// `fd` is about to be closed, or another file is about to take its number.
pub(crate) fn closing(fd: i32) {
    let Some(slot) = slot(fd) else { return };
    let word = slot.load(Ordering::Acquire);
    match word >> KIND_SHIFT {
        1 => {
            if let Some(connection) = connection_of_word(fd, word) {
                slot.store(0, Ordering::Release);
                let last = connection.local.descriptors.load(Ordering::Relaxed) <= 1;
                crate::epoll::descriptor_closing(&connection, last);
                if connection.local.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
                    offload::active_open::closing(&connection);
                    release::release(&connection);
                }
            }
        }
        2 => {
            slot.store(0, Ordering::Release);
            crate::epoll::closing(word as u32, fd);
        }
        0 if word != 0 => {
            slot.store(0, Ordering::Release);
            crate::epoll::unconnected_closing(word as u32);
        }
        _ => {}
    }
}

/// Every tracked descriptor from `first` to `last`, in order.
pub(crate) fn for_each(first: u32, last: u32, mut each: impl FnMut(i32, Kind)) {
    // Whatever the limit is now: a number stays when the limit is lowered.
    for fd in first..=last.min(HIGHEST.load(Ordering::Relaxed)) {
        match kind(fd as i32) {
            Kind::Foreign => {}
            known => each(fd as i32, known),
        }
    }
}

/// A descriptor of epoll instance `number`.
pub(crate) fn descriptor_of_epoll(number: u32) -> Option<i32> {
    let last = HIGHEST.load(Ordering::Relaxed) as i32;
    (0..=last).find(|&fd| epoll_number(fd) == Some(number))
}

/// One more than the kernel gives out as a descriptor's number now. Those above it, from before a
/// limit was lowered, live on.
pub(crate) fn descriptor_limit() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } {
        0 => usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX),
        _ => OWN_FD_MIN,
    }
}

/// True when another process of this family is alive: only then can somebody else hold our
/// descriptors.
pub(crate) fn family_alive() -> bool {
    let Some(table) = table() else { return false };
    // A child that was killed before it could enter itself is no member, and whoever has no child
    // is waiting for none.
    if table.header().births.load(Ordering::Acquire) != 0 && sys::has_children() {
        return true;
    }
    table.header().family.iter().any(|member| {
        let member = member.load(Ordering::Relaxed);
        member != 0 && member != pid() && sys::process_exists(member)
    })
}

/// True in a `vfork` child (or a raw `clone` that shares memory): what it closes is its own, what
/// we know is its parent's.
#[inline]
pub(crate) fn borrowed_memory() -> bool {
    sys::getpid() != pid()
}

/// Every connection that this process holds, by number.
pub(crate) fn each_held(mut each: impl FnMut(u32, &'static Entry, &'static Local)) {
    each_used(|index, entry, local| {
        if local.descriptors.load(Ordering::Relaxed) > 0
            && entry.state.load(Ordering::Relaxed) == EntryState::Live as u32
        {
            each(index, entry, local);
        }
    });
}

/// Every entry that may have been this process's, by number.
fn each_used(mut each: impl FnMut(u32, &'static Entry, &'static Local)) {
    let Some(table) = table() else { return };
    for index in 0..table.entries_used() {
        // Those that this process has not come across are others' of its family.
        if let (Some(entry), Some(local)) = (entry(index), local(index)) {
            each(index, entry, local);
        }
    }
}

/// The process is about to end: the kernel will close what it holds. Descriptors stay known, for
/// threads that still run.
pub fn ending() {
    if !is_started() || borrowed_memory() {
        return;
    }
    each_held(|index, entry, local| {
        release::holder_ends(&held(index, entry, local));
    });
    leave_family(pid());
}

/// A connection that this process holds, by number.
pub(crate) fn held(index: u32, entry: &'static Entry, local: &'static Local) -> Connection {
    Connection {
        fd: entry.fd.load(Ordering::Relaxed) as i32,
        index,
        generation: entry.generation.load(Ordering::Relaxed),
        entry,
        local,
    }
}

/// Takes process `pid` off the family's list.
pub(crate) fn leave_family(pid: u32) {
    let Some(table) = table() else { return };
    for place in &table.header().family {
        let _ = place.compare_exchange(pid, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Fork, parent's side, before the child exists: the child will hold every connection that we hold.
/// No allocation, no lock.
pub extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if let Some(table) = table() {
        table.header().births.fetch_add(1, Ordering::AcqRel);
    }
    each_held(|_, entry, _| {
        entry.holders.fetch_add(1, Ordering::Relaxed);
    });
}

/// A fork made by number failed after [`before_fork`].
pub fn fork_failed() {
    if let Some(table) = table() {
        table.header().births.fetch_sub(1, Ordering::AcqRel);
    }
    each_held(|_, entry, _| {
        entry.holders.fetch_sub(1, Ordering::Relaxed);
    });
}

/// The program listens: it will have connections, perhaps in children that can no longer reach the
/// adapter by themselves.
pub(crate) fn prepare() {
    if is_started() && !borrowed_memory() && table_or_new().is_some() {
        adapter::say_hello_once();
    }
}

/// Fork, child's side: another process number, an adapter connection and epoll ready bitmaps that
/// are the parent's.
pub extern "C" fn after_fork_in_child() {
    PID.store(sys::getpid(), Ordering::Relaxed);
    TABLE_LOCK.reset();
    // The threads that slept or worked on a connection stayed with the parent, on connections that
    // have ended, too.
    each_held(|_, _, local| local.membership.reset());
    each_used(|_, _, local| {
        for count in [&local.sleepers, &local.readers, &local.users] {
            if count.load(Ordering::Relaxed) != 0 {
                count.store(0, Ordering::Relaxed);
            }
        }
    });
    if let Some(table) = table() {
        holders::join_self(&table);
        each_held(|_, entry, _| holders::mark(entry, holders::place()));
        table.header().births.fetch_sub(1, Ordering::AcqRel);
    }
    adapter::forked();
    crate::epoll::forked();
    crate::locking::forked();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread found the connection, counted itself in, and is about to count itself out again.
    #[test]
    fn entry_that_is_used_again_keeps_the_count_of_threads_inside() {
        let (entry, local) = (Entry::default(), Local::default());
        for count in [&local.users, &local.sleepers, &local.readers] {
            count.fetch_add(1, Ordering::SeqCst);
        }
        reset(&entry, &local);
        for count in [&local.users, &local.sleepers, &local.readers] {
            assert_eq!(count.fetch_sub(1, Ordering::SeqCst), 1);
        }
    }
}
