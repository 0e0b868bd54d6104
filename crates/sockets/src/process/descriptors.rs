//! The kind of each descriptor number in this process.
//!
//! ```text
//!   fds[fd]  ──►  a connection (crate::connection)
//!            ──►  an epoll instance (crate::epoll)
//!            ──►  a descriptor of our own that the program must not close
//!            ──►  a socket that is no connection yet, of which something is known
//! ```
//!
//! All of it is in a table that grows as descriptors are used ([`crate::memory::chunks`]), without
//! a heap.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use toehold_channel::table::GENERATION_BITS;

use crate::memory::chunks::Chunks;
use crate::process;
use crate::system::sys;

/// Descriptors beyond this one are never tracked.
const FDS_MAX: usize = 1 << 20;
/// Eight pages of words.
const FDS_CHUNK_LOG2: u32 = 12;
/// Our own descriptors are moved up to here, out of the way of programs that expect the lowest
/// numbers.
const OWN_FD_MIN: usize = 700;
/// How a word of the table is stored, after what it leads to was filled in. Pairs with the loads by
/// [`SEEN`], in `connection_at` and its like.
const NOTED: Ordering = Ordering::Release;
/// How a word is loaded, before what it leads to is looked at. Pairs with the stores by [`NOTED`],
/// in `note` and its like.
const SEEN: Ordering = Ordering::Acquire;
/// How a word is replaced by one of our own, where the former leads to something: [`NOTED`] and
/// [`SEEN`] in one. Pairs with both, in `note` and `connection_at`.
const REPLACED: Ordering = Ordering::AcqRel;
static FDS: Chunks<AtomicU64, FDS_CHUNK_LOG2, { FDS_MAX >> FDS_CHUNK_LOG2 }> = Chunks::new();
/// No number above this one has ever stood for anything.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// The kind of a descriptor number.
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
/// A generation has 30 bits here.
pub(crate) const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;

/// Everything noted of a descriptor, with the number that tells it from others of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// A connection, by number and generation.
    Connection(u32, u32),
    /// An epoll instance, by number.
    Epoll(u32),
    /// No connection, but something is known of it.
    Unconnected(Unconnected),
    /// Nothing is known, or it is ours.
    Nothing,
}

/// Notes on a descriptor that is no connection, or was none before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unconnected {
    /// First of its epoll registrations, or 0.
    pub(crate) registration: u32,
    /// The program waits for the descriptor where we do not see it.
    pub(crate) is_unseen: bool,
    /// The file has another number.
    pub(crate) is_duplicated: bool,
}

impl Noted {
    #[inline]
    fn of(word: u64) -> Noted {
        match word >> KIND_SHIFT {
            1 => {
                let (index, generation) = connection_in(word);
                Noted::Connection(index, generation)
            }
            2 => Noted::Epoll(word as u32),
            0 if word != 0 => Noted::Unconnected(Unconnected {
                registration: word as u32,
                is_unseen: word & UNSEEN != 0,
                is_duplicated: word & DUPLICATED != 0,
            }),
            _ => Noted::Nothing,
        }
    }
}

#[inline]
fn slot(fd: i32) -> Option<&'static AtomicU64> {
    FDS.get(fd as u32 as usize)
}

/// As [`slot`], for a number of which something is to be noted.
pub(crate) fn slot_to_note(fd: i32) -> Option<&'static AtomicU64> {
    if !process::is_started() {
        return None;
    }
    FDS.get_or_map(fd as u32 as usize)
}

/// Notes what `fd` stands for, a word of [`Kind`].
fn note(fd: i32, word: u64) {
    if let Some(slot) = slot_to_note(fd) {
        // Before the word: whoever walks up to it finds what it left out already closed.
        HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
        slot.store(word, NOTED);
    }
}

/// The kind of `fd`.
#[inline]
pub(crate) fn kind(fd: i32) -> Kind {
    match slot(fd).map_or(0, |slot| slot.load(SEEN) >> KIND_SHIFT) {
        1 => Kind::Connection,
        2 => Kind::Epoll,
        3 => Kind::Own,
        _ => Kind::Foreign,
    }
}

/// Everything noted of `fd`.
pub(crate) fn noted(fd: i32) -> Noted {
    slot(fd).map_or(Noted::Nothing, |slot| Noted::of(slot.load(SEEN)))
}

/// True when something can be noted of `fd`: its place is mapped now.
pub(crate) fn has_place(fd: i32) -> bool {
    slot_to_note(fd).is_some()
}

/// Number and generation of the connection behind `fd`.
#[inline]
pub(crate) fn connection_at(fd: i32) -> Option<(u32, u32)> {
    let word = slot(fd)?.load(SEEN);
    (word >> KIND_SHIFT == 1).then(|| connection_in(word))
}

#[inline]
fn connection_in(word: u64) -> (u32, u32) {
    let generation = word >> GENERATION_SHIFT & GENERATION_MASK;
    (word as u32, generation as u32)
}

/// Number of the epoll object behind `fd`.
#[inline]
pub(crate) fn epoll_number(fd: i32) -> Option<u32> {
    let word = slot(fd)?.load(SEEN);
    (word >> KIND_SHIFT == 2).then_some(word as u32)
}

/// First of the epoll registrations of `fd`, of which only these are known, or 0.
pub(crate) fn early_registrations(fd: i32) -> u32 {
    let word = slot(fd).map_or(0, |slot| slot.load(SEEN));
    if word >> KIND_SHIFT == 0 {
        word as u32
    } else {
        0
    }
}

/// Replaces what [`early_registrations`] says. False when `fd` has come to stand for something
/// else.
pub(crate) fn set_early_registrations(fd: i32, was: u32, number: u32) -> bool {
    let replaced = |word: u64| {
        let is_it = word >> KIND_SHIFT == 0 && word as u32 == was;
        is_it.then(|| word & !u64::from(u32::MAX) | u64::from(number))
    };
    slot_to_note(fd).is_some_and(|slot| {
        slot.fetch_update(REPLACED, Ordering::Relaxed, replaced)
            .is_ok()
    })
}

/// Notes what `fd` stands for.
pub(crate) fn note_epoll(fd: i32, number: u32) {
    note(fd, 2 << KIND_SHIFT | u64::from(number));
}

/// Notes that `fd` stands for a connection.
pub(crate) fn note_connection(fd: i32, index: u32, generation: u32) {
    note(fd, connection_word(index, generation));
}

/// Notes that `fd` stands for a new connection; what it stood for before.
pub(crate) fn begin_connection(fd: i32, index: u32, generation: u32) -> Noted {
    let Some(slot) = slot(fd) else {
        return Noted::Nothing;
    };
    HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
    Noted::of(slot.swap(connection_word(index, generation), REPLACED))
}

fn connection_word(index: u32, generation: u32) -> u64 {
    1 << KIND_SHIFT | u64::from(generation) << GENERATION_SHIFT | u64::from(index)
}

/// Forgets what `fd` stands for.
pub(crate) fn forget(fd: i32) {
    if let Some(slot) = slot(fd) {
        // Relaxed: 0 leads to nothing.
        slot.store(0, Ordering::Relaxed);
    }
}

/// Forgets a descriptor of that connection. False when it stands for something else by now: another
/// thread closes it, or puts another socket in its place.
pub(crate) fn forget_connection(fd: i32, index: u32, generation: u32) -> bool {
    replace_connection(fd, index, generation, 0)
}

/// Another socket is about to take the place of the connection at `fd`: until that has happened it
/// is noted as one that is no connection yet. False as for [`forget_connection`].
pub(crate) fn hold_for_replacement(fd: i32, index: u32, generation: u32) -> bool {
    replace_connection(fd, index, generation, FRESH | FRESH_ODD)
}

fn replace_connection(fd: i32, index: u32, generation: u32, word: u64) -> bool {
    let was = connection_word(index, generation);
    let replaced = |slot: &AtomicU64| slot.compare_exchange(was, word, REPLACED, Ordering::Relaxed);
    slot(fd).is_some_and(|slot| replaced(slot).is_ok())
}

/// Forgets a descriptor that stands for no connection: what was known of it. `None` when it has
/// come to stand for something else.
pub(crate) fn forget_unconnected(fd: i32) -> Option<Unconnected> {
    let forgotten = |word: u64| (word >> KIND_SHIFT == 0).then_some(0);
    let before = slot(fd)?.fetch_update(REPLACED, Ordering::Relaxed, forgotten);
    match Noted::of(before.ok()?) {
        Noted::Unconnected(socket) => Some(socket),
        _ => None,
    }
}

/// A foreign descriptor of which we know that it listens. The lower half is for the number of an
/// early registration, which it has none of.
const LISTENER: u64 = 1 << 32;

/// Notes that `fd` listens, and that the adapter was told. The first of its epoll registrations,
/// which are forgotten: it will not be connected, so the kernel alone has them.
#[must_use]
pub(crate) fn note_listener(fd: i32) -> u32 {
    let Some(slot) = slot_to_note(fd) else {
        return 0;
    };
    match Noted::of(slot.swap(LISTENER, REPLACED)) {
        Noted::Unconnected(before) => before.registration,
        _ => 0,
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
        let _ = slot.fetch_update(REPLACED, Ordering::Relaxed, unseen);
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
        let _ = slot.fetch_update(REPLACED, Ordering::Relaxed, duplicated);
    }
}

/// A TCP socket that the program has made, of which everything is known that matters to a
/// connection: the bits below.
const FRESH: u64 = 1 << 35;
/// Calls on the socket do not block.
pub(crate) const FRESH_NONBLOCK: u64 = 1 << 36;
/// The descriptor is close-on-exec.
pub(crate) const FRESH_CLOEXEC: u64 = 1 << 37;
/// The socket is of IPv6.
pub(crate) const FRESH_V6: u64 = 1 << 38;
/// `TCP_NODELAY` is set.
pub(crate) const FRESH_NODELAY: u64 = 1 << 39;
/// The socket has an option or a name that a carrier in use has not.
pub(crate) const FRESH_ODD: u64 = 1 << 40;
/// Options of keepalive were set, which a carrier gets, too.
pub(crate) const FRESH_KEPT: u64 = 1 << 41;

/// When a fresh socket was made: an epoch of `express::spares`, so many bits of it.
pub(crate) const EPOCH_BITS: u32 = 16;
pub(crate) const EPOCH_MASK: u64 = (1 << EPOCH_BITS) - 1;
const EPOCH_SHIFT: u32 = 42;
const _: () = assert!(EPOCH_SHIFT + EPOCH_BITS <= KIND_SHIFT);

/// The bits of a socket that is made by `socket` with these. `None` for one of another kind than
/// TCP.
pub(crate) fn fresh_bits(domain: i32, kind: i32, protocol: i32) -> Option<u64> {
    const FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let is_tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & !FLAGS == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    let bit = |is_set, bit| if is_set { bit } else { 0 };
    is_tcp.then_some(
        bit(kind & libc::SOCK_NONBLOCK != 0, FRESH_NONBLOCK)
            | bit(kind & libc::SOCK_CLOEXEC != 0, FRESH_CLOEXEC)
            | bit(domain == libc::AF_INET6, FRESH_V6),
    )
}

/// Notes that `fd` is a TCP socket as new, made in that epoch.
pub(crate) fn note_fresh(fd: i32, bits: u64, epoch: u64) {
    note(fd, FRESH | bits | (epoch & EPOCH_MASK) << EPOCH_SHIFT);
}

/// As [`note_fresh`], where the library serves no process.
#[cfg(test)]
pub(crate) fn note_fresh_in_test(fd: i32) {
    let slot = FDS.get_or_map(fd as usize).expect("memory");
    slot.store(FRESH, NOTED);
}

/// The epoch in the bits of a fresh socket.
pub(crate) fn epoch_of(fresh: u64) -> u64 {
    fresh >> EPOCH_SHIFT & EPOCH_MASK
}

/// Sets or clears a bit of a fresh socket's. Other descriptors have none.
#[inline]
pub(crate) fn change_fresh(fd: i32, bit: u64, is_set: bool) {
    let Some(slot) = slot(fd) else { return };
    if slot.load(Ordering::Relaxed) & FRESH == 0 {
        return;
    }
    let changed = |word: u64| {
        let is_fresh = word >> KIND_SHIFT == 0 && word & FRESH != 0;
        is_fresh.then_some(if is_set { word | bit } else { word & !bit })
    };
    let _ = slot.fetch_update(REPLACED, Ordering::Relaxed, changed);
}

/// Descriptors from `first` to `last` are closed by an exec from now on.
pub(crate) fn close_fresh_on_exec(first: u32, last: u32) {
    for fd in first..=last.min(HIGHEST.load(Ordering::Relaxed)) {
        change_fresh(fd as i32, FRESH_CLOEXEC, true);
    }
}

/// Those that are about to have this process's descriptors, too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToWhom {
    /// A child of a fork: all of them.
    Child,
    /// A program that a child executes: those that are not close-on-exec.
    Program,
}

/// Every fresh socket has a number in another process from now on. It is as one that was
/// duplicated: bytes could pass by a number that we do not know.
pub(crate) fn share_fresh(whom: ToWhom) {
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) as i32 {
        let Some(slot) = slot(fd) else { continue };
        let shared = |word: u64| {
            let is_passed = whom == ToWhom::Child || word & FRESH_CLOEXEC == 0;
            let is_it = word >> KIND_SHIFT == 0 && word & FRESH != 0 && is_passed;
            is_it.then_some(word | DUPLICATED)
        };
        if shared(slot.load(Ordering::Relaxed)).is_some() {
            let _ = slot.fetch_update(REPLACED, Ordering::Relaxed, shared);
        }
    }
}

/// As [`share_fresh`], of one that is handed on under another number.
pub(crate) fn share_one(fd: i32) {
    change_fresh(fd, DUPLICATED, true);
}

/// The bits of a fresh socket that can become any connection.
pub(crate) fn fresh(fd: i32) -> Option<u64> {
    let word = slot(fd)?.load(SEEN);
    let is_plain = word & (LISTENER | UNSEEN | DUPLICATED | FRESH_ODD) == 0;
    (word >> KIND_SHIFT == 0 && word & FRESH != 0 && is_plain).then_some(word)
}

/// True for a TCP socket that the program has made and not connected, whatever it has done to it.
pub(crate) fn may_be_replaced(fd: i32) -> bool {
    let word = slot(fd).map_or(0, |slot| slot.load(Ordering::Relaxed));
    word >> KIND_SHIFT == 0 && word & FRESH != 0
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
    slot(fd).is_some_and(|slot| slot.load(SEEN) == LISTENER)
}

/// Every tracked descriptor from `first` to `last`, in order.
pub(crate) fn for_each(first: u32, last: u32, mut each: impl FnMut(i32, Kind)) {
    for_each_noted(first, last, |fd, kind| {
        if kind != Kind::Foreign {
            each(fd, kind);
        }
    });
}

/// As [`for_each`], with those of which something is known and which are no connections.
pub(crate) fn for_each_noted(first: u32, last: u32, mut each: impl FnMut(i32, Kind)) {
    // Whatever the limit is now: a number stays when the limit is lowered.
    for fd in first..=last.min(HIGHEST.load(Ordering::Relaxed)) {
        match kind(fd as i32) {
            Kind::Foreign if !is_noted(fd as i32) => {}
            known => each(fd as i32, known),
        }
    }
}

/// A descriptor of connection `index` of that generation.
pub(crate) fn descriptor_of_connection(index: u32, generation: u32) -> Option<i32> {
    (0..=HIGHEST.load(Ordering::Relaxed) as i32)
        .find(|&fd| connection_at(fd) == Some((index, generation)))
}

/// Every descriptor of a connection.
pub(crate) fn each_of_connection(index: u32, generation: u32, mut each: impl FnMut(i32)) {
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) as i32 {
        if connection_at(fd) == Some((index, generation)) {
            each(fd);
        }
    }
}

/// A descriptor of epoll instance `number`.
pub(crate) fn descriptor_of_epoll(number: u32) -> Option<i32> {
    let last = HIGHEST.load(Ordering::Relaxed) as i32;
    (0..=last).find(|&fd| epoll_number(fd) == Some(number))
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
    duplicate_for_us_near(fd, 0)
}

/// As [`duplicate_for_us`], at a number of ours that was given up, or just above, if it is not 0.
pub(crate) fn duplicate_for_us_near(fd: i32, near: i32) -> Option<i32> {
    let again = match near {
        1.. => i32::try_from(sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, near as usize)).ok(),
        _ => None,
    };
    let ours = again.filter(|&number| number >= 0);
    let ours = ours.or_else(|| out_of_the_way(fd))?;
    note(ours, 3 << KIND_SHIFT);
    (kind(ours) == Kind::Own).then_some(ours)
}

/// Moves a descriptor of ours to another number, and leaves the old one open, as nothing of ours:
/// the new one, if there is one.
pub(crate) fn move_away(fd: i32) -> Option<i32> {
    let moved = out_of_the_way(fd);
    forget(fd);
    if let Some(moved) = moved {
        note(moved, 3 << KIND_SHIFT);
    }
    moved
}

/// Forgets what every descriptor stands for.
pub(crate) fn forget_all() {
    (0..=HIGHEST.load(Ordering::Relaxed) as i32).for_each(forget);
}

/// Closes a descriptor of ours.
pub(crate) fn disown(fd: i32) {
    forget(fd);
    sys::close(fd);
}

/// One more than the kernel gives out as a descriptor's number now. Those above it, from before a
/// limit was lowered, live on.
pub(crate) fn descriptor_limit() -> usize {
    sys::limit(libc::RLIMIT_NOFILE).unwrap_or(OWN_FD_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_of_two_takes_a_number_from_its_connection() {
        const FD: i32 = 5001;
        note_fresh_in_test(FD);
        let _ = begin_connection(FD, 7, 3);
        assert!(!forget_connection(FD, 7, 2));
        assert!(hold_for_replacement(FD, 7, 3));
        assert!(!forget_connection(FD, 7, 3));
        assert!(may_be_replaced(FD) && fresh(FD).is_none());
        let _ = begin_connection(FD, 8, 1);
        assert_eq!(forget_unconnected(FD), None);
        assert!(forget_connection(FD, 8, 1));
        assert_eq!(noted(FD), Noted::Nothing);
    }
}
