//! The kind of each descriptor number in this process.
//!
//! ```text
//!   fds[fd]  ──►  a connection (crate::connection)
//!            ──►  an epoll instance (crate::epoll)
//!            ──►  a descriptor of our own that the program must not close
//!            ──►  a socket that is no connection yet, of which something is known
//! ```
//!
//! The table grows as descriptors are used ([`crate::memory::chunks`]), without a heap.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use toehold_channel::table::GENERATION_BITS;

use crate::memory::chunks::Chunks;
use crate::process;
use crate::system::sys;

/// Descriptors beyond this one are never tracked.
const FDS_MAX: usize = 1 << 20;
/// Eight pages of words.
const FDS_CHUNK_LOG2: u32 = 12;
/// The library's own descriptors have numbers from here on, because programs expect the lowest
/// numbers for their own.
const OWN_FD_MIN: usize = 700;
/// The ordering with which a word of the table is stored, after the state that it names was filled
/// in. Pairs with the loads by [`SLOT_ACQUIRE`], in `connection_at` and similar functions.
const SLOT_RELEASE: Ordering = Ordering::Release;
/// The ordering with which a word is loaded, before the state that it names is read. Pairs with the
/// stores by [`SLOT_RELEASE`], in `note` and similar functions.
const SLOT_ACQUIRE: Ordering = Ordering::Acquire;
/// The ordering with which a word is replaced when the former word may name something:
/// [`SLOT_RELEASE`] and [`SLOT_ACQUIRE`] in one. Pairs with both, in `note` and `connection_at`.
const SLOT_ACQ_REL: Ordering = Ordering::AcqRel;
static FDS: Chunks<AtomicU64, FDS_CHUNK_LOG2, { FDS_MAX >> FDS_CHUNK_LOG2 }> = Chunks::new();
/// The highest number that was ever recorded.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// The kind of a descriptor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A descriptor that the library does not track.
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

/// The whole record of a descriptor: its kind, and its number within that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// A connection, by number and generation.
    Connection(u32, u32),
    /// An epoll instance, by number.
    Epoll(u32),
    /// Not a connection, but something is recorded about it.
    Unconnected(Unconnected),
    /// Nothing is recorded, or the descriptor is the library's own.
    Nothing,
}

/// The record of a descriptor that is not a connection, or was not one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unconnected {
    /// First of its epoll registrations, or 0.
    pub(crate) registration: u32,
    /// The program waits for the descriptor in a way that the library does not see.
    pub(crate) is_unseen: bool,
    /// The file has another descriptor, too.
    pub(crate) is_duplicated: bool,
}

impl Recorded {
    #[inline]
    fn of(word: u64) -> Recorded {
        match word >> KIND_SHIFT {
            1 => {
                let (index, generation) = connection_in(word);
                Recorded::Connection(index, generation)
            }
            2 => Recorded::Epoll(word as u32),
            0 if word != 0 => Recorded::Unconnected(Unconnected {
                registration: word as u32,
                is_unseen: word & UNSEEN != 0,
                is_duplicated: word & DUPLICATED != 0,
            }),
            _ => Recorded::Nothing,
        }
    }
}

#[inline]
fn slot(fd: i32) -> Option<&'static AtomicU64> {
    FDS.get(fd as u32 as usize)
}

/// As [`slot`], for a number about which something is going to be recorded.
pub(crate) fn slot_to_note(fd: i32) -> Option<&'static AtomicU64> {
    if !process::is_started() {
        return None;
    }
    FDS.get_or_map(fd as u32 as usize)
}

/// Notes what `fd` stands for, a word of [`Kind`].
fn note(fd: i32, word: u64) {
    if let Some(slot) = slot_to_note(fd) {
        // Raised before the word is stored, so that a walk up to `HIGHEST` misses no open
        // descriptor.
        HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
        slot.store(word, SLOT_RELEASE);
    }
}

/// The kind of `fd`.
#[inline]
pub(crate) fn kind(fd: i32) -> Kind {
    match slot(fd).map_or(0, |slot| slot.load(SLOT_ACQUIRE) >> KIND_SHIFT) {
        1 => Kind::Connection,
        2 => Kind::Epoll,
        3 => Kind::Own,
        _ => Kind::Foreign,
    }
}

/// Everything noted of `fd`.
pub(crate) fn noted(fd: i32) -> Recorded {
    slot(fd).map_or(Recorded::Nothing, |slot| {
        Recorded::of(slot.load(SLOT_ACQUIRE))
    })
}

/// True when something can be noted of `fd`: its place is mapped now.
pub(crate) fn has_place(fd: i32) -> bool {
    slot_to_note(fd).is_some()
}

/// Number and generation of the connection behind `fd`.
#[inline]
pub(crate) fn connection_at(fd: i32) -> Option<(u32, u32)> {
    let word = slot(fd)?.load(SLOT_ACQUIRE);
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
    let word = slot(fd)?.load(SLOT_ACQUIRE);
    (word >> KIND_SHIFT == 2).then_some(word as u32)
}

/// First epoll registration of an unconnected `fd`, or 0.
pub(crate) fn early_registrations(fd: i32) -> u32 {
    let word = slot(fd).map_or(0, |slot| slot.load(SLOT_ACQUIRE));
    if word >> KIND_SHIFT == 0 {
        word as u32
    } else {
        0
    }
}

/// Replaces the value of [`early_registrations`]. False when `fd` has become something else.
pub(crate) fn set_early_registrations(fd: i32, was: u32, number: u32) -> bool {
    let replaced = |word: u64| {
        let is_it = word >> KIND_SHIFT == 0 && word as u32 == was;
        is_it.then(|| word & !u64::from(u32::MAX) | u64::from(number))
    };
    slot_to_note(fd).is_some_and(|slot| {
        slot.fetch_update(SLOT_ACQ_REL, Ordering::Relaxed, replaced)
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

/// Records that `fd` is a new connection, and returns the former record.
pub(crate) fn begin_connection(fd: i32, index: u32, generation: u32) -> Recorded {
    let Some(slot) = slot(fd) else {
        return Recorded::Nothing;
    };
    HIGHEST.fetch_max(fd as u32, Ordering::Relaxed);
    Recorded::of(slot.swap(connection_word(index, generation), SLOT_ACQ_REL))
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

/// Forgets a descriptor of that connection. False when `fd` has become something else: another
/// thread has closed it, or has put another socket in its place.
pub(crate) fn forget_connection(fd: i32, index: u32, generation: u32) -> bool {
    replace_connection(fd, index, generation, 0)
}

/// Another socket is about to take the place of the connection at `fd`. Until then `fd` is recorded
/// as a socket that is not connected yet. False as for [`forget_connection`].
pub(crate) fn hold_for_replacement(fd: i32, index: u32, generation: u32) -> bool {
    replace_connection(fd, index, generation, FRESH | FRESH_CUSTOMIZED)
}

fn replace_connection(fd: i32, index: u32, generation: u32, word: u64) -> bool {
    let was = connection_word(index, generation);
    let replaced =
        |slot: &AtomicU64| slot.compare_exchange(was, word, SLOT_ACQ_REL, Ordering::Relaxed);
    slot(fd).is_some_and(|slot| replaced(slot).is_ok())
}

/// Forgets a descriptor that is not a connection, and returns its record. `None` when it has become
/// something else.
pub(crate) fn forget_unconnected(fd: i32) -> Option<Unconnected> {
    let forgotten = |word: u64| (word >> KIND_SHIFT == 0).then_some(0);
    let before = slot(fd)?.fetch_update(SLOT_ACQ_REL, Ordering::Relaxed, forgotten);
    match Recorded::of(before.ok()?) {
        Recorded::Unconnected(socket) => Some(socket),
        _ => None,
    }
}

/// A foreign descriptor that listens. The lower half would be the number of an early registration;
/// a listener has no early registrations, so it is always 0.
const LISTENER: u64 = 1 << 32;

/// Records that `fd` listens, and that the adapter was told. Returns the first of its early epoll
/// registrations, which are forgotten: a listener is never connected, so only the kernel has to
/// know them.
#[must_use]
pub(crate) fn note_listener(fd: i32) -> u32 {
    let Some(slot) = slot_to_note(fd) else {
        return 0;
    };
    match Recorded::of(slot.swap(LISTENER, SLOT_ACQ_REL)) {
        Recorded::Unconnected(before) => before.registration,
        _ => 0,
    }
}

/// A foreign descriptor that is registered with an epoll instance which the library does not know.
const UNSEEN: u64 = 1 << 33;

/// Records that the program waits for the unconnected `fd` in a way that the library does not see.
/// When `fd` is connected, the connection stays on the kernel.
pub(crate) fn note_unseen(fd: i32) {
    if !sys::may_connect(fd) {
        return;
    }
    if let Some(slot) = slot_to_note(fd) {
        let unseen = |word: u64| (word >> KIND_SHIFT == 0).then_some(word | UNSEEN);
        let _ = slot.fetch_update(SLOT_ACQ_REL, Ordering::Relaxed, unseen);
    }
}

/// A foreign descriptor that was duplicated. If it were connected, the library would know only one
/// of its numbers.
const DUPLICATED: u64 = 1 << 34;

/// Records that the unconnected `from` and `to` are one socket. When it is connected, it stays on
/// the kernel, because bytes could move by the number that the library does not know.
pub(crate) fn note_duplicated(from: i32, to: i32) {
    if !sys::may_connect(from) {
        return;
    }
    for slot in [from, to].into_iter().filter_map(slot_to_note) {
        let duplicated = |word: u64| (word >> KIND_SHIFT == 0).then_some(word | DUPLICATED);
        let _ = slot.fetch_update(SLOT_ACQ_REL, Ordering::Relaxed, duplicated);
    }
}

/// A TCP socket that the program has made. The bits below describe everything about it that matters
/// to a connection.
const FRESH: u64 = 1 << 35;
/// Calls on the socket do not block.
pub(crate) const FRESH_NONBLOCK: u64 = 1 << 36;
/// The descriptor is close-on-exec.
pub(crate) const FRESH_CLOEXEC: u64 = 1 << 37;
/// The socket is of IPv6.
pub(crate) const FRESH_V6: u64 = 1 << 38;
/// `TCP_NODELAY` is set.
pub(crate) const FRESH_NODELAY: u64 = 1 << 39;
/// The socket has an option or a name that a used carrier does not have.
pub(crate) const FRESH_CUSTOMIZED: u64 = 1 << 40;
/// Keepalive options were set; they are copied to a carrier.
pub(crate) const FRESH_KEEPALIVE: u64 = 1 << 41;

/// Bits of the epoch (`express::spares`) in which a fresh socket was made.
pub(crate) const EPOCH_BITS: u32 = 16;
pub(crate) const EPOCH_MASK: u64 = (1 << EPOCH_BITS) - 1;
const EPOCH_SHIFT: u32 = 42;
const _: () = assert!(EPOCH_SHIFT + EPOCH_BITS <= KIND_SHIFT);

/// The bits of a socket that `socket` makes with these arguments. `None` if it is not a TCP socket.
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

/// Records that `fd` is a fresh TCP socket, made in that epoch.
pub(crate) fn note_fresh(fd: i32, bits: u64, epoch: u64) {
    note(fd, FRESH | bits | (epoch & EPOCH_MASK) << EPOCH_SHIFT);
}

/// As [`note_fresh`], for tests in which the library does not serve the process.
#[cfg(test)]
pub(crate) fn note_fresh_in_test(fd: i32) {
    let slot = FDS.get_or_map(fd as usize).expect("memory");
    slot.store(FRESH, SLOT_RELEASE);
}

/// The epoch in the bits of a fresh socket.
pub(crate) fn epoch_of(fresh: u64) -> u64 {
    fresh >> EPOCH_SHIFT & EPOCH_MASK
}

/// Sets or clears a bit of a fresh socket. Other descriptors do not have these bits.
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
    let _ = slot.fetch_update(SLOT_ACQ_REL, Ordering::Relaxed, changed);
}

/// Records that an exec closes the descriptors from `first` to `last`.
pub(crate) fn close_fresh_on_exec(first: u32, last: u32) {
    for fd in first..=last.min(HIGHEST.load(Ordering::Relaxed)) {
        change_fresh(fd as i32, FRESH_CLOEXEC, true);
    }
}

/// The receiver of copies of this process's descriptors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recipient {
    /// A forked child, which gets all of them.
    Child,
    /// A program that a child executes, which gets those that are not close-on-exec.
    Program,
}

/// Records that another process gets the fresh sockets, too. They count as duplicated, because
/// bytes could move by a number that the library does not know.
pub(crate) fn share_fresh(whom: Recipient) {
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) as i32 {
        let Some(slot) = slot(fd) else { continue };
        let shared = |word: u64| {
            let is_passed = whom == Recipient::Child || word & FRESH_CLOEXEC == 0;
            let is_it = word >> KIND_SHIFT == 0 && word & FRESH != 0 && is_passed;
            is_it.then_some(word | DUPLICATED)
        };
        if shared(slot.load(Ordering::Relaxed)).is_some() {
            let _ = slot.fetch_update(SLOT_ACQ_REL, Ordering::Relaxed, shared);
        }
    }
}

/// As [`share_fresh`], for one socket that is passed on under another number.
pub(crate) fn share_one(fd: i32) {
    change_fresh(fd, DUPLICATED, true);
}

/// The bits of a fresh socket, if it can become any connection.
pub(crate) fn fresh(fd: i32) -> Option<u64> {
    let word = slot(fd)?.load(SLOT_ACQUIRE);
    let is_plain = word & (LISTENER | UNSEEN | DUPLICATED | FRESH_CUSTOMIZED) == 0;
    (word >> KIND_SHIFT == 0 && word & FRESH != 0 && is_plain).then_some(word)
}

/// True for a TCP socket that the program has made and not connected, even if it has changed the
/// socket.
pub(crate) fn may_be_replaced(fd: i32) -> bool {
    let word = slot(fd).map_or(0, |slot| slot.load(Ordering::Relaxed));
    word >> KIND_SHIFT == 0 && word & FRESH != 0
}

/// True when `fd` is not a connection, but something is recorded about it: registrations, a
/// listener, a duplicate, or unseen waits.
#[inline]
pub(crate) fn is_noted(fd: i32) -> bool {
    let word = slot(fd).map_or(0, |slot| slot.load(Ordering::Relaxed));
    word != 0 && word >> KIND_SHIFT == 0
}

/// True when `fd` was noted to listen.
pub(crate) fn is_listener(fd: i32) -> bool {
    let word = slot(fd).map_or(0, |slot| slot.load(SLOT_ACQUIRE));
    word >> KIND_SHIFT == 0 && word & LISTENER != 0
}

/// Every tracked descriptor from `first` to `last`, in order.
pub(crate) fn for_each(first: u32, last: u32, mut each: impl FnMut(i32, Kind)) {
    for_each_noted(first, last, |fd, kind| {
        if kind != Kind::Foreign {
            each(fd, kind);
        }
    });
}

/// As [`for_each`], but also with descriptors that have a record and are not connections.
pub(crate) fn for_each_noted(first: u32, last: u32, mut each: impl FnMut(i32, Kind)) {
    // The current limit does not matter, because descriptors stay open when the limit is lowered.
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

/// Moves a descriptor of the library to a high number and marks it. Returns the new number.
pub(crate) fn own(fd: i32) -> i32 {
    let moved = duplicate_high(fd);
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

/// Duplicates `fd` to a high number that programs do not expect; if the limit of descriptors is
/// low, to the highest free number.
fn duplicate_high(fd: i32) -> Option<i32> {
    /// Numbers below the limit that are tried at once.
    const STEP: usize = 8;
    let limit = descriptor_limit();
    let mut least = OWN_FD_MIN.min(limit);
    loop {
        // Above the limit this fails with EINVAL; above the highest free number it fails with
        // EMFILE.
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

/// Makes a duplicate of `fd` for the library.
pub(crate) fn duplicate_for_us(fd: i32) -> Option<i32> {
    duplicate_for_us_near(fd, 0)
}

/// As [`duplicate_for_us`], but at the number `near` or just above, if `near` is not 0. `near` is a
/// number that the library has given up.
pub(crate) fn duplicate_for_us_near(fd: i32, near: i32) -> Option<i32> {
    let again = match near {
        1.. => i32::try_from(sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, near as usize)).ok(),
        _ => None,
    };
    let ours = again.filter(|&number| number >= 0);
    let ours = ours.or_else(|| duplicate_high(fd))?;
    note(ours, 3 << KIND_SHIFT);
    (kind(ours) == Kind::Own).then_some(ours)
}

/// Moves a descriptor of the library to another number. The old number stays open but is not marked
/// any more. Returns the new number, if there is one.
pub(crate) fn move_away(fd: i32) -> Option<i32> {
    let moved = duplicate_high(fd);
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
pub(crate) fn close_own(fd: i32) {
    forget(fd);
    sys::close(fd);
}

/// One more than the highest descriptor number that the kernel gives out now. Higher descriptors
/// may be open from before the limit was lowered.
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
        assert_eq!(noted(FD), Recorded::Nothing);
    }
}
