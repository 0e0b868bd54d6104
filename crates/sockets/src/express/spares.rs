//! Spare sockets: `connect` has replaced them with carriers, and `socket` gives them to the program
//! again.
//!
//! For the kernel, making and destroying a TCP socket costs ten times as much as all other calls of
//! a connection on a used carrier. So the socket that a carrier replaces is kept, if the program
//! has done nothing with it, and the next `socket` call returns it. The socket is in its initial
//! state: it has no name, no option, no registration and no duplicate, and no other process has it.
//!
//! The kernel gives a socket the user, the control group and the security label of its maker. So
//! each socket belongs to an *epoch*, which ends when the user changes, or after some seconds. At
//! the end of an epoch, and before a fork, all kept sockets are closed; sockets of an earlier epoch
//! are not kept. When the user changes, the carriers with which this process connects end, too.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::carriers::{self, Role};
use super::{LOCK, may_act};
use crate::process::descriptors::{
    self, FRESH_CLOEXEC, FRESH_KEEPALIVE, FRESH_NODELAY, FRESH_NONBLOCK, FRESH_V6, Kind,
};
use crate::system::{errno, sys};

/// The most sockets that are kept at a time. Each thread between its `connect` and its next
/// `socket` needs one.
const KEPT_MAX: usize = 16;
/// At most one socket is kept for this many carriers that may be parked.
const PARKED_SHARE: u32 = 8;
/// The longest time of an epoch: as long as a carrier lives.
const EPOCH_NS: u64 = 10_000_000_000;
/// A socket that was kept for this long is closed.
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

/// A kept socket as a word: its `FRESH_*` bits in the upper half, one more than its descriptor
/// (which belongs to the library) in the lower half.
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

    /// Closes the socket instead of keeping it.
    pub(super) fn close(self) {
        if descriptors::kind(self.fd()) == Kind::Own {
            descriptors::close_own(self.fd());
        }
    }

    /// Keeps the socket for the next `socket` call. No other descriptor of it is left.
    pub(super) fn keep(self) {
        if self.has(FRESH_NODELAY) {
            sys::setsockopt_int(self.fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 0);
        }
        KEPT_AT_NS.store(sys::now_ns(), Ordering::Relaxed);
        // Release pairs with the Acquire exchange in `take_kept`: everything that was done to the
        // socket is visible.
        let (told, seen) = (Ordering::Release, Ordering::Relaxed);
        let is_kept = KEPT
            .iter()
            .any(|place| place.compare_exchange(0, self.0, told, seen).is_ok());
        if !is_kept {
            self.close();
        } else if !is_of_epoch(self.epoch()) {
            // The epoch has ended meanwhile, and the thread that ended it may not have seen this
            // socket.
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

/// The epoch of a socket that this thread makes now. A new epoch begins if the user has changed.
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

/// True for the current epoch, whose sockets belong to [`user`].
pub(super) fn is_of_epoch(epoch_of: u64) -> bool {
    epoch_of == epoch()
}

/// The effective user of this epoch.
pub(super) fn user() -> u32 {
    USER.load(Ordering::Relaxed)
}

/// Duplicates the program's fresh socket at `fd`, so that it can be kept when a carrier has taken
/// its number. `None` when the program has done anything with it, or enough sockets are kept.
pub(super) fn hold(fd: i32, fresh: u64, now: u64) -> Option<Spare> {
    begin_epoch(now);
    let is_untouched = fresh as u32 == 0
        && fresh & FRESH_KEEPALIVE == 0
        && is_of_epoch(descriptors::epoch_of(fresh));
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

/// True when this thread's user is the epoch's user. Another user begins a new epoch with its next
/// socket.
fn is_users() -> bool {
    user() == sys::effective_user()
}

/// Ends the epoch: sockets that were made before are not kept any more, because another user may
/// have made them.
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

/// Closes all kept sockets. True when there was any.
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

/// Closes sockets that were kept for some time without use.
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

/// `socket` with a kept socket, if there is a suitable one. `None`: the kernel must make one.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Option<c_int> {
    let bits = descriptors::fresh_bits(domain, kind, protocol).filter(|_| are_any())?;
    if !may_act() {
        return None;
    }
    errno::keep(|| {
        let spare = take_kept(bits & FRESH_V6 != 0)?;
        carriers::fetch_next_to_claim();
        let is_current =
            is_of_epoch(spare.epoch()) && is_users() && descriptors::kind(spare.fd()) == Kind::Own;
        let number = is_current.then(|| give(spare, bits));
        spare.close();
        number?
    })
}

/// Moves a kept socket to the lowest free descriptor number, as the kernel would choose it.
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
        // The program has closed our descriptor without our knowledge, and has its number now.
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
