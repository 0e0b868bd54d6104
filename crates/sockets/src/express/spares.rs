//! Sockets in whose place `connect` has put a carrier: `socket` gives them to the program again.
//!
//! To make a TCP socket and to destroy it costs the kernel ten times as much as all other calls of
//! a connection on a used carrier. So the socket that a carrier replaces is kept, if the program
//! has done nothing with it, and is the next one that the program makes. It is as new: no name, no
//! option, no registration, no other number, and no other process has it.
//!
//! A socket is of the user, the control group and the label of its making. So each is of an
//! *epoch*, which ends with another user, and after some seconds. All that is kept is closed then,
//! and before a fork, and sockets of an earlier epoch are not kept any more. With a user end the
//! carriers, too, by which this process connects.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::carriers::{self, Role};
use super::{LOCK, may_act};
use crate::process::descriptors::{
    self, FRESH_CLOEXEC, FRESH_KEPT, FRESH_NODELAY, FRESH_NONBLOCK, FRESH_V6, Kind,
};
use crate::system::{errno, sys};

/// So many are kept at a time. Between `connect` and `socket` a thread has one.
const KEPT_MAX: usize = 16;
/// And one for so many carriers that may be parked.
const PARKED_SHARE: u32 = 8;
/// An epoch lasts so long at most: as long as a carrier.
const EPOCH_NS: u64 = 10_000_000_000;
/// One that was kept for so long is not wanted.
const IDLE_NS: u64 = 2_000_000_000;

/// Words of [`Spare`]; 0 for none.
static KEPT: [AtomicU64; KEPT_MAX] = [const { AtomicU64::new(0) }; KEPT_MAX];
static EPOCH: AtomicU32 = AtomicU32::new(0);
static EPOCH_BEGAN_NS: AtomicU64 = AtomicU64::new(0);
/// The effective user of this epoch.
static USER: AtomicU32 = AtomicU32::new(0);
/// When the last one was kept.
static KEPT_AT_NS: AtomicU64 = AtomicU64::new(0);
/// The number of the last one.
static LAST_FD: AtomicI32 = AtomicI32::new(0);

/// A socket that is kept: its bits as a fresh one, above one more than its number, which is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spare(u64);

const NUMBER_MASK: u64 = u32::MAX as u64;

impl Spare {
    fn of(fd: i32, fresh: u64) -> Spare {
        Spare(fresh & !NUMBER_MASK | u64::from(fd as u32 + 1))
    }

    fn from_word(word: u64) -> Option<Spare> {
        (word != 0).then_some(Spare(word))
    }

    fn fd(self) -> i32 {
        (self.0 as u32 - 1) as i32
    }

    fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    fn epoch(self) -> u64 {
        descriptors::epoch_of(self.0)
    }

    /// The socket is not kept: the program has it, or nobody.
    pub(super) fn close(self) {
        if descriptors::kind(self.fd()) == Kind::Own {
            descriptors::disown(self.fd());
        }
    }

    /// Nobody else has it any more: the next `socket` may.
    pub(super) fn keep(self) {
        if self.has(FRESH_NODELAY) {
            sys::setsockopt_int(self.fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 0);
        }
        KEPT_AT_NS.store(sys::now_ns(), Ordering::Relaxed);
        // Release pairs with the Acquire exchange in `take_kept`: all that was done to the socket.
        let (told, seen) = (Ordering::Release, Ordering::Relaxed);
        let is_kept = KEPT
            .iter()
            .any(|place| place.compare_exchange(0, self.0, told, seen).is_ok());
        if !is_kept {
            self.close();
        } else if !is_of_epoch(self.epoch()) {
            // It has ended meanwhile, and who ended it may not have seen this one.
            close_all();
        }
    }
}

/// True when `fd` is a TCP socket that neither listens nor is, or begins to be, connected.
fn is_unconnected(fd: i32) -> bool {
    /// `TCP_CLOSE` (include/net/tcp_states.h).
    const TCP_CLOSE: u8 = 7;
    // The first byte of `struct tcp_info` is the state.
    sys::getsockopt::<u8>(fd, libc::IPPROTO_TCP, libc::TCP_INFO) == Ok(TCP_CLOSE)
}

fn epoch() -> u64 {
    u64::from(EPOCH.load(Ordering::Relaxed)) & descriptors::EPOCH_MASK
}

/// The epoch of a socket that this thread makes now. With another user than before it is a new one.
pub(super) fn epoch_of_new() -> u64 {
    if !is_users() {
        let _held = LOCK.lock();
        carriers::retire_role(Role::Connecting);
        end_epoch();
        // Read again by each thread that makes a socket: threads may be of several users.
        USER.store(sys::effective_user(), Ordering::Relaxed);
    }
    epoch()
}

/// True for the epoch that lasts: its sockets are of [`user`].
pub(super) fn is_of_epoch(epoch_of: u64) -> bool {
    epoch_of == epoch()
}

/// The effective user of this epoch.
pub(super) fn user() -> u32 {
    USER.load(Ordering::Relaxed)
}

/// The program's fresh socket at `fd`, as one that may be kept once a carrier has its number.
/// `None` when the program has done anything with it, or enough are kept.
pub(super) fn hold(fd: i32, fresh: u64, now: u64) -> Option<Spare> {
    begin_epoch(now);
    let is_untouched =
        fresh as u32 == 0 && fresh & FRESH_KEPT == 0 && is_of_epoch(descriptors::epoch_of(fresh));
    let is_kept = |place: &&AtomicU64| place.load(Ordering::Relaxed) != 0;
    let most = KEPT_MAX.min((carriers::most() / PARKED_SHARE) as usize);
    let is_room = || KEPT.iter().filter(is_kept).count() < most;
    if !is_untouched || !is_room() {
        return None;
    }
    let near = LAST_FD.load(Ordering::Relaxed);
    let held = descriptors::duplicate_for_us_near(fd, near)?;
    LAST_FD.store(held, Ordering::Relaxed);
    Some(Spare::of(held, fresh))
}

/// A new epoch, if the last one has lasted for long.
fn begin_epoch(now: u64) {
    if now.saturating_sub(EPOCH_BEGAN_NS.load(Ordering::Relaxed)) >= EPOCH_NS {
        EPOCH_BEGAN_NS.store(now, Ordering::Relaxed);
        end_epoch();
    }
}

/// True in the epoch's user. Another one begins an epoch of its own with the next socket.
fn is_users() -> bool {
    user() == sys::effective_user()
}

/// Sockets that were made before are not kept any more: they may be of another user's making.
pub(crate) fn end_epoch() {
    // Relaxed: a socket that is made at the same time may be of either.
    EPOCH.fetch_add(1, Ordering::Relaxed);
    close_all();
}

/// True when any is kept.
#[inline]
pub(crate) fn are_any() -> bool {
    KEPT.iter().any(|kept| kept.load(Ordering::Relaxed) != 0)
}

/// Closes what is kept. True when there was any.
pub(super) fn close_all() -> bool {
    let mut had_any = false;
    for place in &KEPT {
        // Acquire pairs with the Release exchange in `keep`.
        if let Some(spare) = Spare::from_word(place.swap(0, Ordering::Acquire)) {
            spare.close();
            had_any = true;
        }
    }
    had_any
}

/// Closes what nobody has wanted for some time.
pub(super) fn look_after(now: u64) {
    if now.saturating_sub(KEPT_AT_NS.load(Ordering::Relaxed)) >= IDLE_NS {
        close_all();
    }
}

/// When [`look_after`] has something to do, in nanoseconds from now.
pub(super) fn due_in_ns() -> Option<u64> {
    let due = || KEPT_AT_NS.load(Ordering::Relaxed) + IDLE_NS;
    are_any().then(|| due().saturating_sub(sys::now_ns()))
}

fn take_kept(is_v6: bool) -> Option<Spare> {
    KEPT.iter().find_map(|place| {
        let word = place.load(Ordering::Relaxed);
        let spare = Spare::from_word(word).filter(|spare| spare.has(FRESH_V6) == is_v6)?;
        // Acquire pairs with the Release exchange in `keep`.
        let (seen, told) = (Ordering::Acquire, Ordering::Relaxed);
        let is_ours = place.compare_exchange(word, 0, seen, told).is_ok();
        is_ours.then_some(spare)
    })
}

/// `socket`, if one is kept that is as a new one. `None`: the kernel is to make one.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Option<c_int> {
    let bits = descriptors::fresh_bits(domain, kind, protocol).filter(|_| are_any())?;
    if !may_act() {
        return None;
    }
    errno::keep(|| {
        let spare = take_kept(bits & FRESH_V6 != 0)?;
        let is_current =
            is_of_epoch(spare.epoch()) && is_users() && descriptors::kind(spare.fd()) == Kind::Own;
        let number = is_current.then(|| give(spare, bits));
        spare.close();
        number?
    })
}

/// The lowest free number, as the kernel would choose it, for a socket that was kept.
fn give(spare: Spare, bits: u64) -> Option<c_int> {
    let command = match bits & FRESH_CLOEXEC {
        0 => libc::F_DUPFD,
        _ => libc::F_DUPFD_CLOEXEC,
    };
    let fd = i32::try_from(sys::fcntl(spare.fd(), command, 0)).ok()?;
    if fd < 0 {
        return None;
    }
    if !is_unconnected(fd) {
        // Our number was closed behind our back, and is the program's.
        descriptors::forget(spare.fd());
        sys::close(fd);
        return None;
    }
    let nonblock = bits & FRESH_NONBLOCK != 0;
    if nonblock != spare.has(FRESH_NONBLOCK) {
        let mode = libc::O_RDWR | if nonblock { libc::O_NONBLOCK } else { 0 };
        sys::fcntl(fd, libc::F_SETFL, mode as usize);
    }
    if descriptors::kind(fd) == Kind::Foreign {
        descriptors::note_fresh(fd, bits, spare.epoch());
    }
    Some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_all_of_a_spare() {
        for fd in [0, 1021, i32::MAX - 1] {
            for bits in [0, FRESH_V6, FRESH_NONBLOCK, FRESH_V6 | FRESH_NONBLOCK] {
                let spare = Spare::of(fd, bits);
                assert_eq!(Spare::from_word(spare.0), Some(spare));
                assert_eq!(spare.fd(), fd);
                assert_eq!(spare.has(FRESH_V6), bits & FRESH_V6 != 0);
                assert_eq!(spare.has(FRESH_NONBLOCK), bits & FRESH_NONBLOCK != 0);
                assert_eq!(spare.epoch(), 0);
            }
        }
        assert_eq!(Spare::of(0, u64::MAX).epoch(), descriptors::EPOCH_MASK);
        assert_eq!(Spare::from_word(0), None);
    }
}
