//! Bytes that were unread in a ring when the library left ([`crate::process::confinement`]), and
//! the calls that find them here.
//!
//! ```text
//!   stream:   ── kept bytes ──►◄── carrier ──
//!              this module       the program's own calls
//! ```
//!
//! This module makes no system calls. Once a connection's kept bytes are read, only the kernel
//! serves it.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::{epoll_event, iovec, pollfd};
use toehold_freestanding::guarded;

use crate::system::errno;

/// The most descriptors whose bytes can be kept. A further connection is reset rather than
/// continued with a gap.
const KEPT_MAX: usize = 256;
/// The most epoll instances that are recorded for one of them.
const INSTANCES_MAX: usize = 4;
/// More than a full ring and the bytes that may precede it on the carrier.
pub(crate) const BYTES_MAX: usize = 8 << 20;
/// Where the bytes begin.
pub(crate) const BYTES_OFFSET: usize = 4096;

/// The first page of a connection's kept bytes. Children share the mapping, so that no byte is read
/// twice. A child that is another user by now may write any value: [`Kept::bounds`] reads them.
pub(crate) struct Kept {
    taken: AtomicU64,
    pub(crate) len: AtomicU64,
    /// The error that ended the stream while it was read: reported once, after the bytes.
    pub(crate) error: AtomicI32,
}

impl Kept {
    /// How many bytes were taken, and how many there are in all: `taken <= len <= BYTES_MAX`.
    fn bounds(&self) -> (u64, u64) {
        // Relaxed: the bytes were there before `enter` and never change.
        let len = self.len.load(Ordering::Relaxed).min(BYTES_MAX as u64);
        (self.taken.load(Ordering::Relaxed).min(len), len)
    }
}

/// An epoll instance with which a kept descriptor is registered, and the registration.
struct Membership {
    /// The instance's descriptor, plus one; 0: free; [`CLAIMED`]: a thread is filling it.
    instance: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
}

/// Set in a member's events when they were reported and are not reported again; no event of
/// epoll(7).
const REPORTED: u32 = 1 << 27;
/// Set in a member's events when they are reported once more although no byte is kept.
const AGAIN: u32 = 1 << 26;

impl Membership {
    /// True when the caller must report the bytes. With `EPOLLET` or `EPOLLONESHOT`, only one
    /// thread reports them, once.
    fn claim_report(&self, wanted: u32) -> bool {
        const ONCE: u32 = (libc::EPOLLET | libc::EPOLLONESHOT) as u32;
        let reported = wanted & !AGAIN | REPORTED;
        wanted & ONCE == 0
            || (self.events)
                .compare_exchange(wanted, reported, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// The last kept byte was taken. A program with `EPOLLET` takes a receive that leaves room in
    /// its buffer as the end of what has arrived, and waits for the next edge. The edge of the
    /// bytes on the carrier may have been reported before. So the program is told once more.
    fn bytes_are_over(&self) {
        const ONCE: u32 = (libc::EPOLLET | libc::EPOLLONESHOT) as u32;
        let wanted = self.events.load(Ordering::Relaxed);
        if wanted & ONCE == libc::EPOLLET as u32 && wanted & REPORTED != 0 {
            let again = wanted & !REPORTED | AGAIN;
            self.events.store(again, Ordering::Relaxed);
        }
    }

    /// True when there is something to report; `is_ready` when there are kept bytes.
    fn is_due(&self, is_ready: bool) -> bool {
        let wanted = self.events.load(Ordering::Relaxed);
        wanted & libc::EPOLLIN as u32 != 0
            && wanted & REPORTED == 0
            && (is_ready || wanted & AGAIN != 0)
    }
}

/// A descriptor with kept bytes.
pub(crate) struct KeptDescriptor {
    /// The descriptor's number, plus one; 0: free; [`CLAIMED`]: a thread is filling it.
    fd: AtomicI32,
    kept: AtomicPtr<Kept>,
    /// An exec closes the descriptor. Recorded here, because the question may be forbidden.
    closes_on_exec: AtomicBool,
    members: [Membership; INSTANCES_MAX],
}

/// Not a valid value of a descriptor plus one.
const CLAIMED: i32 = -1;

/// Claims a free word. The caller fills in the related words and then stores the descriptor.
fn claim(word: &AtomicI32) -> bool {
    // Pairs with the Release in `KeptDescriptor::leave`: the former owner's writes come before.
    word.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

static DESCRIPTORS: [KeptDescriptor; KEPT_MAX] = [const { KeptDescriptor::new() }; KEPT_MAX];
/// Elements of [`DESCRIPTORS`] in use.
static USED: AtomicU32 = AtomicU32::new(0);

/// True when some descriptor may have kept bytes.
#[inline]
pub(crate) fn has_any() -> bool {
    USED.load(Ordering::Relaxed) != 0
}

/// Records `kept` as the bytes of `fd`, which an exec closes or not. `None` when there is no room
/// for another descriptor.
pub(crate) fn enter(
    fd: i32,
    kept: *mut Kept,
    closes_on_exec: bool,
) -> Option<&'static KeptDescriptor> {
    let descriptor = DESCRIPTORS
        .iter()
        .find(|descriptor| claim(&descriptor.fd))?;
    for member in &descriptor.members {
        member.instance.store(0, Ordering::Relaxed);
    }
    descriptor.kept.store(kept, Ordering::Relaxed);
    (descriptor.closes_on_exec).store(closes_on_exec, Ordering::Relaxed);
    // Release pairs with the Acquire load in `find`.
    descriptor.fd.store(fd + 1, Ordering::Release);
    USED.fetch_add(1, Ordering::Relaxed);
    Some(descriptor)
}

fn find(fd: i32) -> Option<&'static KeptDescriptor> {
    // Acquire pairs with the Release store in `enter`.
    DESCRIPTORS
        .iter()
        .find(|descriptor| descriptor.fd.load(Ordering::Acquire) == fd.wrapping_add(1))
        .filter(|_| fd >= 0)
}

impl KeptDescriptor {
    const fn new() -> KeptDescriptor {
        KeptDescriptor {
            fd: AtomicI32::new(0),
            kept: AtomicPtr::new(null_mut()),
            closes_on_exec: AtomicBool::new(false),
            members: [const {
                Membership {
                    instance: AtomicI32::new(0),
                    events: AtomicU32::new(0),
                    data: AtomicU64::new(0),
                }
            }; INSTANCES_MAX],
        }
    }

    fn kept(&self) -> &'static Kept {
        // SAFETY: mapped by `confinement::read_all`. Nobody unmaps it: that would be a call.
        unsafe { &*self.kept.load(Ordering::Relaxed) }
    }

    fn is_ready(&self) -> bool {
        self.unread() > 0 || self.kept().error.load(Ordering::Relaxed) != 0
    }

    /// Bytes that were not read yet.
    fn unread(&self) -> u64 {
        let (taken, len) = self.kept().bounds();
        len - taken
    }

    /// Bytes were taken.
    fn went_on(&self) {
        if self.unread() == 0 {
            self.members.iter().for_each(Membership::bytes_are_over);
        }
    }

    /// Removes `fd`. An element that belongs to another descriptor by now stays.
    fn leave(&self, fd: i32) {
        // Pairs with the Acquire in `claim`.
        let left = (self.fd).compare_exchange(fd + 1, 0, Ordering::Release, Ordering::Relaxed);
        if left.is_ok() {
            USED.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// `fd` is registered with that instance.
    pub(crate) fn register(&self, instance: i32, events: u32, data: u64) {
        let mut members = self.members.iter();
        if let Some(member) = members.find(|member| claim(&member.instance)) {
            member.events.store(events, Ordering::Relaxed);
            member.data.store(data, Ordering::Relaxed);
            // Pairs with the Acquire load in `KeptDescriptor::member`.
            member.instance.store(instance + 1, Ordering::Release);
        }
    }

    fn member(&self, instance: i32) -> Option<&Membership> {
        self.members.iter().find(|member| {
            // Pairs with the Release in `KeptDescriptor::register`.
            member.instance.load(Ordering::Acquire) == instance + 1
        })
    }
}

/// True when a receive on `fd` finds something here.
#[cold]
pub(crate) fn has(fd: i32) -> bool {
    find(fd).is_some_and(KeptDescriptor::is_ready)
}

/// The number of bytes kept for `fd`.
#[cold]
pub(crate) fn unread(fd: i32) -> u64 {
    find(fd).map_or(0, KeptDescriptor::unread)
}

/// A receive that took kept bytes went on in the kernel, and `error` ended it: the next call
/// reports the error.
pub(crate) fn keep_error(fd: i32, error: i32) {
    if let Some(descriptor) = find(fd) {
        descriptor.kept().error.store(error, Ordering::Relaxed);
    }
}

/// Drops the kept bytes of `fd`. False when there were none.
#[cold]
pub(crate) fn drop_unread(fd: i32) -> bool {
    let Some(descriptor) = find(fd) else {
        return false;
    };
    let kept = descriptor.kept();
    let (_, len) = kept.bounds();
    descriptor.leave(fd);
    kept.taken.swap(len, Ordering::Relaxed) < len
}

/// All descriptors with kept bytes, and whether an exec closes each.
#[cold]
pub(crate) fn each(mut each: impl FnMut(i32, bool)) {
    for descriptor in &DESCRIPTORS {
        // Acquire pairs with the Release store in `enter`.
        let fd = descriptor.fd.load(Ordering::Acquire) - 1;
        if fd >= 0 && descriptor.is_ready() {
            each(fd, descriptor.closes_on_exec.load(Ordering::Relaxed));
        }
    }
}

/// The program has set whether an exec closes `fd`.
#[cold]
pub(crate) fn set_close_on_exec(fd: i32, closes: bool) {
    if let Some(descriptor) = find(fd) {
        // Relaxed: only the word itself is used.
        descriptor.closes_on_exec.store(closes, Ordering::Relaxed);
    }
}

/// An exec closes all from `first` to `last`.
#[cold]
pub(crate) fn close_range_on_exec(first: u32, last: u32) {
    for descriptor in &DESCRIPTORS {
        let fd = descriptor.fd.load(Ordering::Relaxed) - 1;
        if u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd)) {
            set_close_on_exec(fd, true);
        }
    }
}

/// Gives up to `len` kept bytes to `write`, which returns how many of them it took. `None`: as for
/// [`receive`].
#[cold]
pub(crate) fn take_by(
    fd: i32,
    len: usize,
    write: impl FnOnce(*const u8, usize) -> Result<usize, i32>,
) -> Option<isize> {
    let descriptor = find(fd)?;
    let kept = descriptor.kept();
    let bytes = descriptor.kept.load(Ordering::Relaxed).cast::<u8>();
    let (_, all) = kept.bounds();
    let end_of = |taken: u64| all.min(taken.saturating_add(len as u64));
    // Relaxed, here and below: as in `Kept::bounds`.
    let claim = |taken: u64| (taken < all).then(|| end_of(taken));
    let claimed = (kept.taken).fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim);
    let Ok(first) = claimed else {
        return report_end(descriptor, fd);
    };
    let end = end_of(first);
    let from = bytes.wrapping_add(BYTES_OFFSET + first as usize);
    let written = write(from, (end - first) as usize);
    let next = first + written.unwrap_or(0) as u64;
    // The file took fewer bytes. If another thread has read on meanwhile, nobody can say which of
    // the two calls was first.
    let _ = (kept.taken).compare_exchange(end, next, Ordering::Relaxed, Ordering::Relaxed);
    descriptor.went_on();
    Some(errno::result(written))
}

/// No byte is left of `descriptor`, which is `fd`: its error, if it has one.
fn report_end(descriptor: &KeptDescriptor, fd: i32) -> Option<isize> {
    let error = descriptor.kept().error.swap(0, Ordering::Relaxed);
    if error != 0 {
        return Some(errno::result(Err(error)));
    }
    descriptor.leave(fd);
    None
}

/// Reads kept bytes. `None`: there are none, so the kernel must make the call.
///
/// # Safety
/// `parts` are writable.
#[cold]
pub(crate) unsafe fn receive(fd: i32, parts: &[iovec], flags: i32) -> Option<isize> {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // Urgent bytes and the error queue are the kernel's.
        return None;
    }
    let descriptor = find(fd)?;
    let kept = descriptor.kept();
    let bytes = descriptor.kept.load(Ordering::Relaxed).cast::<u8>();
    for _ in 0..TRIES_MAX {
        let (taken, len) = kept.bounds();
        let mut left = (len - taken) as usize;
        if left == 0 {
            return report_end(descriptor, fd);
        }
        let mut at = BYTES_OFFSET + taken as usize;
        let mut done = 0;
        for part in parts {
            let count = part.iov_len.min(left);
            if flags & libc::MSG_TRUNC == 0 && count > 0 {
                let (from, to) = (bytes.wrapping_add(at), part.iov_base.cast::<u8>());
                // SAFETY: inside the mapping, by `Kept::bounds`; the part by the caller's promise.
                if unsafe { guarded::try_from_shared(from, to, count) }.is_err() {
                    return Some(errno::result(Err(libc::EFAULT)));
                }
            }
            (at, left, done) = (at + count, left - count, done + count);
        }
        if flags & libc::MSG_PEEK != 0 {
            return Some(done as isize);
        }
        let next = taken + done as u64;
        let moved =
            (kept.taken).compare_exchange(taken, next, Ordering::Relaxed, Ordering::Relaxed);
        if moved.is_ok() {
            descriptor.went_on();
            return Some(done as isize);
        }
    }
    Some(errno::result(Err(libc::EAGAIN)))
}

/// The most tries of one receive. Another reader that takes bytes meanwhile makes a try fail.
const TRIES_MAX: u32 = 1024;

/// `fd` is about to be closed, or another file is about to take its number.
#[cold]
pub(crate) fn closing(fd: i32) {
    if let Some(descriptor) = find(fd) {
        descriptor.leave(fd);
    }
}

/// As [`closing`], of all from `first` to `last`.
#[cold]
pub(crate) fn closing_range(first: u32, last: u32) {
    for descriptor in &DESCRIPTORS {
        let fd = descriptor.fd.load(Ordering::Relaxed) - 1;
        if u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd)) {
            descriptor.leave(fd);
        }
    }
}

/// `to` is a duplicate of `from` now, which an exec closes or not. False when there is no room for
/// another descriptor, so that the duplicate would miss the kept bytes.
#[cold]
pub(crate) fn duplicated(from: i32, to: i32, closes_on_exec: bool) -> bool {
    find(from).is_none_or(|descriptor| {
        let kept = descriptor.kept.load(Ordering::Relaxed);
        enter(to, kept, closes_on_exec).is_some()
    })
}

/// True when one of these descriptors has kept bytes, so that the kernel's answer must be
/// completed.
#[cold]
pub(crate) fn are_ready(fds: &[pollfd]) -> bool {
    fds.iter().any(|one| is_ready(one.fd, one.events))
}

fn is_ready(fd: i32, events: i16) -> bool {
    events & (libc::POLLIN | libc::POLLRDNORM) != 0
        && find(fd).is_some_and(KeptDescriptor::is_ready)
}

/// Adds descriptors with kept bytes to the kernel's answer. The kernel has looked without waiting,
/// and found `found`.
#[cold]
pub(crate) fn add_ready(fds: &mut [pollfd], found: i32) -> i32 {
    let mut count = found.max(0);
    for one in fds {
        if is_ready(one.fd, one.events) {
            if found < 0 || one.revents == 0 {
                one.revents = 0;
                count += 1;
            }
            one.revents |= one.events & (libc::POLLIN | libc::POLLRDNORM);
        }
    }
    count
}

/// True when one of the first `count` descriptors in a set for reading has kept bytes.
#[cold]
pub(crate) fn is_any_readable(count: i32, is_wanted: impl Fn(i32) -> bool) -> bool {
    (0..count).any(|fd| is_wanted(fd) && is_ready(fd, libc::POLLIN))
}

/// As [`is_any_readable`], for one descriptor.
#[cold]
pub(crate) fn is_readable(fd: i32) -> bool {
    is_ready(fd, libc::POLLIN)
}

/// The program has changed a registration.
#[cold]
pub(crate) fn control(instance: i32, operation: i32, fd: i32, event: Option<epoll_event>) {
    let Some(descriptor) = find(fd) else { return };
    if let Some(member) = descriptor.member(instance) {
        member.instance.store(0, Ordering::Relaxed);
    }
    if let (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) = (operation, event) {
        descriptor.register(instance, event.events, event.u64);
    }
}

/// True when an instance has members with kept bytes.
#[cold]
pub(crate) fn has_ready_members(instance: i32) -> bool {
    ready_members(instance).next().is_some()
}

fn ready_members(instance: i32) -> impl Iterator<Item = &'static Membership> {
    DESCRIPTORS.iter().filter_map(move |descriptor| {
        // Acquire pairs with the Release store in `enter`.
        let is_used = descriptor.fd.load(Ordering::Acquire) > 0;
        let member = descriptor.member(instance).filter(|_| is_used)?;
        member.is_due(descriptor.is_ready()).then_some(member)
    })
}

/// Adds events of descriptors with kept bytes to the kernel's answer. The kernel has looked without
/// waiting, and written `found` events.
#[cold]
pub(crate) fn add_events(instance: i32, events: &mut [epoll_event], found: i32) -> i32 {
    let mut count = found.max(0) as usize;
    for member in ready_members(instance) {
        let data = member.data.load(Ordering::Relaxed);
        let wanted = member.events.load(Ordering::Relaxed);
        let known = events[..count].iter().position(|event| event.u64 == data);
        let Some(event) = events.get_mut(known.unwrap_or(count)) else {
            continue;
        };
        if !member.claim_report(wanted) {
            continue;
        }
        if known.is_none() {
            *event = epoll_event {
                events: 0,
                u64: data,
            };
            count += 1;
        }
        event.events |= libc::EPOLLIN as u32;
    }
    count as i32
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicUsize;

    use super::*;

    const ROUNDS: usize = 20_000;
    const FDS: [i32; 2] = [1000, 1001];

    /// Many times: runs `each` concurrently, in one thread for each of [`FDS`], and then
    /// `is_right`. Returns how often the result was wrong. (A panic in a thread would leave the
    /// others waiting.)
    fn at_once(each: impl Fn(i32) + Sync, is_right: impl Fn() -> bool + Sync) -> usize {
        let (arrived, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // The threads spin, because threads that sleep at a barrier are woken one after another.
        let hold_entry = |count: usize| {
            arrived.fetch_add(1, Ordering::AcqRel);
            let mut turns = 0u32;
            while arrived.load(Ordering::Acquire) < count * FDS.len() {
                turns += 1;
                match turns % 4096 {
                    0 => std::thread::yield_now(),
                    _ => core::hint::spin_loop(),
                }
            }
        };
        std::thread::scope(|scope| {
            for fd in FDS {
                let (wrong, hold_entry, each, is_right) = (&wrong, &hold_entry, &each, &is_right);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        hold_entry(3 * round + 1);
                        each(fd);
                        hold_entry(3 * round + 2);
                        if fd == FDS[0] && !is_right() {
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                        hold_entry(3 * round + 3);
                    }
                });
            }
        });
        wrong.into_inner()
    }

    /// Kept bytes, `len` in number.
    fn bytes(len: u64) -> *mut Kept {
        Box::leak(Box::new(Kept {
            taken: AtomicU64::new(0),
            len: AtomicU64::new(len),
            error: AtomicI32::new(0),
        }))
    }

    #[test]
    fn threads_that_duplicate_at_once_get_an_element_each() {
        let kept = bytes(0) as usize;
        let is_right = || {
            let have_elements = FDS.iter().all(|&fd| find(fd).is_some());
            closing_range(FDS[0] as u32, FDS[1] as u32);
            have_elements && FDS.iter().all(|&fd| find(fd).is_none())
        };
        let enter = |fd| {
            let _ = enter(fd, kept as *mut Kept, true);
        };
        assert_eq!(at_once(enter, is_right), 0, "descriptors lost their bytes");
    }

    #[test]
    fn threads_that_register_at_once_get_a_membership_each() {
        let descriptor = KeptDescriptor::new();
        let is_right = || {
            let are_members = FDS
                .iter()
                .all(|&instance| descriptor.member(instance).is_some());
            for member in &descriptor.members {
                member.instance.store(0, Ordering::Relaxed);
            }
            are_members
        };
        let register = |instance| descriptor.register(instance, 1, 0);
        assert_eq!(at_once(register, is_right), 0, "registrations were lost");
    }

    #[test]
    fn element_that_is_another_descriptors_by_now_stays() {
        let descriptor = KeptDescriptor::new();
        descriptor.fd.store(7 + 1, Ordering::Relaxed);
        descriptor.leave(5);
        assert_eq!(descriptor.fd.load(Ordering::Relaxed), 7 + 1);
    }

    #[test]
    fn edge_is_reported_again_behind_the_last_byte() {
        const INSTANCE: i32 = 4;
        const WANTED: u32 = (libc::EPOLLIN | libc::EPOLLET) as u32;
        let descriptor = enter(2001, bytes(5), true).expect("room");
        descriptor.register(INSTANCE, WANTED, 43);
        let mut events = [epoll_event { events: 0, u64: 0 }];
        let mut report = || add_events(INSTANCE, &mut events, 0);
        let take = |len| take_by(2001, len, |_, len| Ok(len));
        assert_eq!(report(), 1);
        assert_eq!(report(), 0);
        assert_eq!(take(4), Some(4));
        assert_eq!(
            report(),
            0,
            "bytes are left, so the program has no end seen"
        );
        assert_eq!(take(4), Some(1));
        assert_eq!(report(), 1, "the carrier may have bytes");
        assert_eq!(report(), 0);
        assert_eq!(take(4), None);
        assert!(find(2001).is_none());
    }

    #[test]
    fn bytes_that_a_full_pipe_did_not_take_stay() {
        enter(2002, bytes(5), true).expect("room");
        let take = |taken| take_by(2002, 4, move |_, _| taken);
        assert_eq!(take(Ok(3)), Some(3));
        assert_eq!(unread(2002), 2);
        assert_eq!(take(Err(libc::EAGAIN)), Some(-1));
        assert_eq!(unread(2002), 2);
        assert!(drop_unread(2002));
        assert!(!has(2002));
    }

    #[test]
    fn one_shot_is_reported_once_and_not_before_there_is_room() {
        const INSTANCE: i32 = 3;
        const WANTED: u32 = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
        let descriptor = enter(2000, bytes(1), true).expect("room");
        descriptor.register(INSTANCE, WANTED, 42);
        let mut events = [epoll_event { events: 0, u64: 0 }];
        assert_eq!(add_events(INSTANCE, &mut [], 0), 0);
        assert_eq!(add_events(INSTANCE, &mut events, 0), 1);
        assert_eq!({ events[0].u64 }, 42);
        assert_eq!(add_events(INSTANCE, &mut events, 0), 0);
        closing(2000);
        // Two threads have both seen it armed; only one reports it.
        let member = KeptDescriptor::new();
        member.register(INSTANCE, WANTED, 42);
        let member = member.member(INSTANCE).expect("registered");
        assert!(member.claim_report(WANTED));
        assert!(!member.claim_report(WANTED));
    }
    /// Kept bytes in a mapping of the usual length, and behind it another page, which is not zero.
    fn mapped() -> *mut Kept {
        const SEEN: u8 = 7;
        let len = BYTES_OFFSET + BYTES_MAX;
        let base = crate::system::sys::map_shared_memory(len + 4096);
        assert!(!base.is_null());
        // SAFETY: mapped above.
        unsafe { base.add(len).write_bytes(SEEN, 4096) };
        base.cast()
    }

    /// A child that is another user by now may write any word of the first page.
    #[test]
    fn words_beyond_the_mapping_lead_to_no_byte_behind_it() {
        const WORDS: [(u64, u64); 4] = [
            (BYTES_MAX as u64, BYTES_MAX as u64 + 16),
            (BYTES_MAX as u64, u64::MAX),
            (u64::MAX - 1, u64::MAX),
            (u64::MAX, 1),
        ];
        let kept = mapped();
        for (taken, len) in WORDS {
            enter(2003, kept, true).expect("room");
            // SAFETY: mapped, and zeroes at first.
            let words = unsafe { &*kept };
            words.taken.store(taken, Ordering::Relaxed);
            words.len.store(len, Ordering::Relaxed);
            assert_eq!(unread(2003), 0, "{taken} {len}");
            assert_eq!(take_by(2003, 8, |_, len| Ok(len)), None, "{taken} {len}");
            enter(2003, kept, true).expect("room");
            let mut target = [0u8; 8];
            let part = [iovec {
                iov_base: target.as_mut_ptr().cast(),
                iov_len: target.len(),
            }];
            // SAFETY: the part is writable.
            assert_eq!(unsafe { receive(2003, &part, 0) }, None, "{taken} {len}");
            assert_eq!(target, [0; 8], "{taken} {len}");
        }
    }
}
