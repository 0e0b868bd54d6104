//! `poll` and `select`: the library looks at accelerated descriptors in shared memory, the kernel
//! at the others, and a sleep watches both.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, nfds_t, pollfd, sigset_t, timespec,
};
use toehold_channel::doorbell::Doorbell;

use crate::connection::{self, Connection, HINT_URGENT};
use crate::epoll::sleeping::{OutOfMemory, Watch};
use crate::epoll::{first_wait, nested, news};
use crate::memory::pieces::{PIECE_BYTES, Piece};
use crate::offload::awaiting::{self, Answer};
use crate::process::descriptors::{self, Kind};
use crate::process::pair_doorbells::{self, Claim, PairSleep, SLEEP_MAX_NS};
use crate::waiting::arming::Armed;
use crate::waiting::ready::POLLRDNORM;
use crate::waiting::spin::{self, ENDLESS_NS};
use toehold_freestanding::memory;

use crate::adapter::requests;
use crate::connection::settings;
use crate::direction::doorbells;
use crate::system::{cancellation, deferral, errno, real, sys};
use crate::waiting::{ready, seen_waits, sleepers};
use crate::{express, lock};

/// Places handled on the stack.
const INLINE: usize = 16;
/// With more descriptors than this, a call sleeps on the carriers only.
const ON_PAIRS_MAX: usize = 64;

/// Time between two questions about ordinary descriptors while accelerated ones are always ready.
const KERNEL_DESCRIPTORS_NS: u64 = 50_000;
/// When a call last asked and found nothing, and about which descriptors.
static KERNEL_SEEN_NS: AtomicU64 = AtomicU64::new(0);
static KERNEL_SEEN_SET: AtomicU64 = AtomicU64::new(0);

/// Facts about the descriptors of one call.
pub(crate) struct Survey {
    /// The library is needed for the answer about one of them.
    pub(crate) concerns: bool,
    /// One of those looked at is a connection.
    pub(crate) has_connection: bool,
}

/// Looks at `fds` until one needs the library.
#[inline]
pub(crate) fn survey(fds: impl Iterator<Item = i32>) -> Survey {
    let mut survey = Survey {
        concerns: false,
        has_connection: false,
    };
    for fd in fds {
        // Most descriptors of most programs are not tracked, and cost one look each.
        let kind = descriptors::kind(fd);
        if fd < 0 || kind == Kind::Foreign {
            continue;
        }
        survey.has_connection |= kind == Kind::Connection;
        if accelerated(fd) || kind == Kind::Connection && awaiting::is_waiting(fd) {
            survey.concerns = true;
            break;
        }
    }
    survey
}

#[inline]
pub(crate) fn accelerated(fd: i32) -> bool {
    if fd < 0 {
        return false;
    }
    match descriptors::kind(fd) {
        Kind::Connection => connection::at(fd).is_some_and(|c| {
            seen_waits::seen(&c);
            c.local.attachment.has_region()
        }),
        // Even an instance without accelerated members, because it may get some while the program
        // sleeps.
        Kind::Epoll => true,
        _ => false,
    }
}

/// Room for a copy of the program's array, for the place of the doorbells of pairs behind it, and
/// for the armed connections.
struct Copy {
    inline: [pollfd; INLINE],
    inline_armed: [MaybeUninit<Option<Armed>>; INLINE],
    outside: ArrayMemory,
    /// Without the place of the doorbells.
    len: usize,
}

/// An element that is passed over.
const NONE: pollfd = pollfd {
    fd: -1,
    events: 0,
    revents: 0,
};

/// Memory for the two arrays when they are too long for the stack.
enum ArrayMemory {
    Nowhere,
    Piece(Piece),
    Mapped(*mut pollfd),
}

/// Bytes of both arrays for one descriptor.
const PLACE_BYTES: usize = size_of::<pollfd>() + size_of::<Option<Armed>>();

impl Copy {
    #[inline]
    fn new(len: usize) -> Option<Copy> {
        let outside = match len {
            0..INLINE => ArrayMemory::Nowhere,
            _ => ArrayMemory::with_room(len + 1)?,
        };
        Some(Copy {
            inline: [NONE; INLINE],
            inline_armed: [const { MaybeUninit::uninit() }; INLINE],
            outside,
            len,
        })
    }

    fn slice(&mut self) -> &mut [pollfd] {
        self.parts().0
    }

    fn parts(&mut self) -> (&mut [pollfd], &mut [MaybeUninit<Option<Armed>>]) {
        let len = self.len;
        let (copy, armed) = self.whole();
        (&mut copy[..len], armed)
    }

    /// The copy with `place` behind it.
    fn with_place(&mut self, place: pollfd) -> &mut [pollfd] {
        let (copy, _) = self.whole();
        copy[copy.len() - 1] = place;
        copy
    }

    /// The place behind the copy, as the kernel left it.
    fn place_behind(&mut self) -> pollfd {
        let (copy, _) = self.whole();
        copy[copy.len() - 1]
    }

    /// The copy and the place behind it; the armed connections.
    fn whole(&mut self) -> (&mut [pollfd], &mut [MaybeUninit<Option<Armed>>]) {
        const { assert!(align_of::<Option<Armed>>() <= align_of::<pollfd>()) };
        let base = match &mut self.outside {
            ArrayMemory::Nowhere => {
                let (copy, armed) = (&mut self.inline, &mut self.inline_armed);
                return (&mut copy[..=self.len], &mut armed[..self.len]);
            }
            ArrayMemory::Piece(piece) => piece.places::<pollfd>().as_mut_ptr().cast(),
            ArrayMemory::Mapped(base) => *base,
        };
        // SAFETY: `with_room` has made room for `len + 1` elements of both, ours until drop, and
        // numbers are all that is in the first. The second array begins where the first one ends,
        // and wants no stricter alignment.
        unsafe {
            (
                core::slice::from_raw_parts_mut(base, self.len + 1),
                core::slice::from_raw_parts_mut(base.add(self.len + 1).cast(), self.len),
            )
        }
    }
}

impl ArrayMemory {
    /// Room for `len` descriptors. `None`: there is no memory.
    #[cold]
    fn with_room(len: usize) -> Option<ArrayMemory> {
        if len <= PIECE_BYTES / PLACE_BYTES {
            return Piece::take().map(ArrayMemory::Piece);
        }
        let base: *mut pollfd = sys::map_memory(len * PLACE_BYTES).cast();
        (!base.is_null()).then_some(ArrayMemory::Mapped(base))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let ArrayMemory::Mapped(base) = self.outside {
            // SAFETY: mapped by `with_room` for as many.
            unsafe { memory::unmap(base.cast(), (self.len + 1) * PLACE_BYTES) };
        }
    }
}

/// The events among `interest` that `fd` is ready for, when it is accelerated.
fn look(fd: i32, interest: i16) -> Option<i16> {
    match descriptors::kind(fd) {
        Kind::Connection => with_connection(fd, |connection, end| {
            let ready = ready::named_events(connection, end, interest);
            if ready != 0 {
                news::note_known(connection);
            }
            ready
        }),
        Kind::Epoll => {
            first_wait::note_at(fd);
            // fs/eventpoll.c: EPOLLIN | EPOLLRDNORM.
            let wanted = interest & (POLLIN | POLLRDNORM);
            (wanted != 0 && nested::has_news(descriptors::epoll_number(fd)?)).then_some(wanted)
        }
        _ => None,
    }
}

fn with_connection<T>(
    fd: i32,
    work: impl FnOnce(&Connection, &toehold_stream::end::End<'static>) -> T,
) -> Option<T> {
    let connection = connection::at(fd)?;
    seen_waits::seen(&connection);
    let end = connection.inside()?;
    Some(work(&connection, &end))
}

/// Looks at every accelerated descriptor; returns how many are ready.
fn look_at_all(fds: &mut [pollfd]) -> i32 {
    let mut count = 0;
    for one in fds {
        one.revents = if one.fd >= 0 {
            look(one.fd, one.events).unwrap_or(0)
        } else {
            0
        };
        count += i32::from(one.revents != 0);
    }
    count
}

/// Takes back the requests for doorbells of connections without news. The thread made them when a
/// non-blocking call found nothing, because it was unknown how it would wait. It waits here.
fn take_requests_back(fds: &[pollfd]) {
    let waiting = fds.iter().filter(|one| one.fd >= 0 && one.revents == 0);
    for one in waiting.filter(|one| descriptors::kind(one.fd) == Kind::Connection) {
        with_connection(one.fd, sleepers::take_request_back);
    }
}

/// `poll` over descriptors of which at least one is accelerated. `kernel` is `ppoll` with the
/// program's signal mask: it gets the array and the time-out in nanoseconds (`None`: no limit).
pub(crate) fn poll(
    fds: &mut [pollfd],
    timeout_ns: Option<u64>,
    mut kernel: impl FnMut(&mut [pollfd], Option<u64>) -> i32,
) -> i32 {
    let Some(mut copy) = Copy::new(fds.len()) else {
        errno::set(libc::ENOMEM);
        return -1;
    };
    let ordinary = fds.iter().any(|one| one.fd >= 0 && !accelerated(one.fd));
    let history = fds
        .iter()
        .filter(|one| one.fd >= 0)
        .find_map(|one| connection::at(one.fd))
        .map(|c| c.local);
    let handlers = deferral::handlers();
    let mut started = 0u64;
    // Spinning saw a sign of news, but there was none. Then a sleep must follow, because signals
    // can end it.
    let mut is_misled = false;
    let mut pair_sleep = PairSleep::None;
    loop {
        let found = look_at_all(fds);
        let now = sys::now_ns();
        if found > 0 || timeout_ns == Some(0) {
            // While shared memory alone keeps the program busy, the kernel is asked about ordinary
            // descriptors only from time to time.
            if found > 0 && (!ordinary || timeout_ns != Some(0) && were_just_asked(fds, now)) {
                take_requests_back(fds);
                return found;
            }
            let added = merge(fds, copy.slice(), &mut kernel);
            KERNEL_SEEN_SET.store(fingerprint(fds), Ordering::Relaxed);
            KERNEL_SEEN_NS.store(if added > 0 { 0 } else { now }, Ordering::Relaxed);
            return found + added.max(if found > 0 { 0 } else { added });
        }
        if started == 0 {
            started = now;
        }
        // Between two sleeps of the call.
        if pair_sleep != PairSleep::None && handlers.end_a_wait() {
            errno::set(libc::EINTR);
            return -1;
        }
        let left = timeout_ns.map(|limit| limit.saturating_sub(now - started));
        if let Some(local) = history {
            let budget = spin::budget_ns(&local.spin);
            let endless = budget == ENDLESS_NS;
            let slice = spin::slice_ns(budget).min(left.unwrap_or(u64::MAX));
            if slice > 0 {
                let sees_news = || {
                    fds.iter()
                        .any(|one| one.fd >= 0 && looks_ready(one.fd, one.events))
                };
                is_misled =
                    !is_misled && spin::spin(&local.spin, slice, peer_processor(fds), sees_news);
                if is_misled {
                    // A program whose spinning always pays never sleeps.
                    requests::follow();
                    continue;
                }
                if handlers.end_a_wait() {
                    errno::set(libc::EINTR);
                    return -1;
                }
                if endless {
                    requests::follow();
                    let more = merge(fds, copy.slice(), &mut kernel);
                    if more != 0 {
                        return more;
                    }
                    continue;
                }
            }
        }
        if requests::follow_before_sleep() {
            // Between two slices of work for the adapter the program's own events come first.
            let more = merge(fds, copy.slice(), &mut kernel);
            if more != 0 || is_over(timeout_ns, started) {
                return more;
            }
            if handlers.end_a_wait() {
                errno::set(libc::EINTR);
                return -1;
            }
            continue;
        }
        let claim = match history {
            Some(_) if fds.len() <= ON_PAIRS_MAX => pair_sleep.claim_next(None),
            _ => None,
        };
        let (result, slept) = sleep(fds, &mut copy, left, claim, &mut kernel);
        pair_sleep = slept;
        if let Some(local) = history {
            local.spin.slept(sys::now_ns() - now);
        }
        if result != 0 {
            return result;
        }
        if is_over(timeout_ns, started) {
            return look_at_all(fds);
        }
    }
}

/// True when a time-out that began at `started` has passed.
fn is_over(timeout_ns: Option<u64>, started: u64) -> bool {
    timeout_ns.is_some_and(|limit| sys::now_ns() - started >= limit)
}

/// Whether the kernel has just found nothing among the same descriptors. (Two threads that ask at
/// the same time may use each other's answers for this short time.)
fn were_just_asked(fds: &[pollfd], now: u64) -> bool {
    now - KERNEL_SEEN_NS.load(Ordering::Relaxed) < KERNEL_DESCRIPTORS_NS
        && KERNEL_SEEN_SET.load(Ordering::Relaxed) == fingerprint(fds)
}

/// A hash of the descriptors and their wanted events (FNV-1a by whole elements).
fn fingerprint(fds: &[pollfd]) -> u64 {
    fds.iter().fold(0xcbf2_9ce4_8422_2325, |hash, one| {
        let element = u64::from(one.fd as u32) << 16 | u64::from(one.events as u16);
        (hash ^ element).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The processor on which the peer of the first accelerated descriptor last waited, plus one. Tells
/// our processor to the peer.
fn peer_processor(fds: &[pollfd]) -> u32 {
    let here = sys::processor() + 1;
    let first = fds
        .iter()
        .find(|one| one.fd >= 0 && descriptors::kind(one.fd) == Kind::Connection);
    first
        .and_then(|one| with_connection(one.fd, |_, end| end.exchange_processors(here)))
        .unwrap_or(0)
}

/// A cheap look for spinning: bytes, or a switch.
fn looks_ready(fd: i32, interest: i16) -> bool {
    match descriptors::kind(fd) {
        Kind::Connection if interest & (POLLIN | POLLRDNORM) != 0 => {
            with_connection(fd, |connection, end| {
                if settings::low_water(connection) > 1 {
                    return look(fd, interest).unwrap_or(0) != 0;
                }
                end.reads_ring() && end.receiver().looks_filled()
                    || end.is_record_due()
                    || connection.entry.rx_hints.load(Ordering::Relaxed) & !HINT_URGENT != 0
            })
            .unwrap_or(false)
        }
        Kind::Connection => look(fd, interest).unwrap_or(0) != 0,
        Kind::Epoll => descriptors::epoll_number(fd).is_some_and(nested::has_ready),
        _ => false,
    }
}

/// Asks the kernel about the ordinary descriptors without waiting and adds its answers; returns how
/// many it added.
fn merge(
    fds: &mut [pollfd],
    copy: &mut [pollfd],
    kernel: &mut impl FnMut(&mut [pollfd], Option<u64>) -> i32,
) -> i32 {
    for (to, from) in copy.iter_mut().zip(fds.iter()) {
        let skip = accelerated(from.fd);
        *to = pollfd {
            fd: if skip || !has_answer(from.fd) {
                -1
            } else {
                from.fd
            },
            events: from.events,
            revents: 0,
        };
    }
    let result = kernel(copy, Some(0));
    if result <= 0 {
        return result;
    }
    let mut added = 0;
    for (to, from) in fds.iter_mut().zip(copy.iter()) {
        if from.revents != 0 {
            to.revents = from.revents;
            added += 1;
        }
    }
    added
}

/// False while `fd` waits for the engine's answer. Takes the answer when it has come.
fn has_answer(fd: i32) -> bool {
    if !awaiting::is_waiting(fd) {
        return true;
    }
    errno::keep(|| connection::at(fd).is_none_or(|c| awaiting::look(&c) != Answer::Pending))
}

/// Arms each descriptor, for a sleep that takes these doorbells. Sets `rings_pair` when a peer may
/// ring its pair's. On an error, some instances are not watched, because there is no memory for
/// them.
fn arm_all(
    fds: &[pollfd],
    copy: &mut Copy,
    watch: &mut Watch,
    takes: Doorbell,
    rings_pair: &mut bool,
) -> Result<(), OutOfMemory> {
    let (copy, armed) = copy.parts();
    let mut result = Ok(());
    for ((to, from), armed) in copy.iter_mut().zip(fds).zip(armed) {
        *to = *from;
        to.revents = 0;
        armed.write(None);
        if from.fd < 0 {
            continue;
        }
        match descriptors::kind(from.fd) {
            Kind::Connection if awaiting::is_waiting(from.fd) => to.events = libc::POLLPRI,
            Kind::Connection => {
                // Armed before the guard is dropped, because a region with sleepers is not
                // unmapped.
                with_connection(from.fd, |connection, end| {
                    let (one, doorbell) = Armed::begin_for(connection, end, takes);
                    armed.write(Some(one));
                    *rings_pair |= doorbell == Doorbell::Pair;
                    to.events = ready::kernel_interest(
                        connection,
                        end,
                        from.events | ready::alias(from.events),
                    );
                });
            }
            Kind::Epoll => {
                if let (Some(number), Ok(())) = (descriptors::epoll_number(from.fd), &result) {
                    result = watch.begin(number);
                }
            }
            _ => {}
        }
    }
    result
}

/// True when a peer has rung for one of them.
fn disarm_all(copy: &mut Copy) -> bool {
    let (copy, armed) = copy.parts();
    let mut is_rung = false;
    for (kernel, armed) in copy.iter().zip(armed) {
        // SAFETY: `arm_all` has written each.
        let Some(armed) = (unsafe { armed.assume_init_read() }) else {
            continue;
        };
        is_rung |= armed.end(|connection, end, is_rung| {
            let entry = connection.entry;
            if kernel.revents != 0 || is_rung {
                entry.wakeups.fetch_add(1, Ordering::Relaxed);
            }
            let hints = connection::hints_of(kernel.revents as u32);
            if hints != 0 {
                entry.rx_hints.fetch_or(hints, Ordering::Relaxed);
            }
            if kernel.revents & POLLIN != 0 {
                if let Some(_held) = lock::try_lock(&entry.rx_lock) {
                    doorbells::drain(connection, end);
                }
            }
        });
    }
    is_rung
}

/// Sleeps in the kernel with every accelerated descriptor armed. Returns the number ready among the
/// ordinary ones, plus accelerated ones if there are such; 0 means: look again. `claim` ends with
/// the sleep.
fn sleep(
    fds: &mut [pollfd],
    copy: &mut Copy,
    left: Option<u64>,
    claim: Option<Claim>,
    kernel: &mut impl FnMut(&mut [pollfd], Option<u64>) -> i32,
) -> (i32, PairSleep) {
    let mut watch = Watch::new();
    let takes = pair_doorbells::taken_with(claim.as_ref());
    let mut rings_pair = false;
    let watches = arm_all(fds, copy, &mut watch, takes, &mut rings_pair);
    let claim = pair_doorbells::kept_if(claim, rings_pair);
    let doorbells = claim.as_ref();
    let early = look_at_all(fds);
    let is_express = express::is_on();
    let mut left = match is_express {
        true => express::limit(left),
        false => left,
    };
    let is_longest = doorbells.is_some() && left.is_none_or(|left| left > SLEEP_MAX_NS);
    if is_longest {
        left = Some(SLEEP_MAX_NS);
    }
    if early > 0 {
        left = Some(0);
    }
    let place: *mut Copy = copy;
    let undo = || {
        // SAFETY: the sleep is over, and nothing else uses the copy any more.
        unsafe {
            disarm_all(&mut *place);
            watch.end();
            if let Some(claim) = doorbells {
                claim.release_for_ended();
            }
            place.drop_in_place();
        }
    };
    let mut result = cancellation::sleeping(undo, || match (watches, doorbells) {
        (Ok(()), None) => kernel(copy.slice(), left),
        (Ok(()), Some(doorbells)) => kernel(copy.with_place(doorbells.place()), left),
        (Err(OutOfMemory), _) => {
            errno::set(libc::ENOMEM);
            -1
        }
    });
    let error = errno::get();
    let mut pair_sleep = PairSleep::None;
    if doorbells.is_some() && result < 0 && error == libc::EINVAL {
        // The program must not be refused because of a place that the library adds.
        (result, pair_sleep) = (0, PairSleep::Refused);
    } else if let (Some(doorbells), 0..) = (doorbells, result) {
        if doorbells.take_from(copy.place_behind()) {
            pair_sleep = PairSleep::Rung;
        } else if result == 0 && is_longest && early == 0 {
            pair_sleep = PairSleep::TooLong;
        }
    }
    if disarm_all(copy) && pair_sleep == PairSleep::Rung {
        // It was not in vain.
        pair_sleep = PairSleep::None;
    }
    watch.end();
    drop(claim);
    if is_express {
        express::look_after();
    }
    if result < 0 && early == 0 {
        errno::set(error);
        return (result, pair_sleep);
    }
    let mut count = look_at_all(fds);
    for (to, from) in fds.iter_mut().zip(copy.slice().iter()) {
        let is_answer = from.events == libc::POLLPRI && to.events != from.events;
        if from.revents != 0 && is_answer && !accelerated(to.fd) {
            // The event is for the library, not for the program: after the answer was taken, the
            // next look is an ordinary one.
            has_answer(to.fd);
        } else if from.revents != 0 && !accelerated(to.fd) {
            to.revents = from.revents;
            count += 1;
        }
    }
    (count, pair_sleep)
}

/// The poll events that set a descriptor's bit in a `select` set (fs/select.c: POLLIN_SET and so
/// on).
const READ_SET: i16 = POLLIN | POLLHUP | POLLERR;
const WRITE_SET: i16 = POLLOUT | POLLERR;
const EXCEPT_SET: i16 = POLLPRI;

/// A `select` set seen as words.
pub(crate) struct Set(*mut libc::fd_set);

impl Set {
    /// # Safety
    /// `set` is null or valid for the descriptors that will be asked for.
    pub(crate) unsafe fn new(set: *mut libc::fd_set) -> Set {
        Set(set)
    }

    fn word(&self, fd: i32) -> Option<*mut u64> {
        (!self.0.is_null()).then(|| self.0.cast::<u64>().wrapping_add(fd as usize / 64))
    }

    pub(crate) fn has(&self, fd: i32) -> bool {
        // SAFETY: `new`'s caller promises room for this descriptor. Programs may allocate larger
        // sets than `fd_set`.
        self.word(fd)
            .is_some_and(|word| unsafe { word.read() } >> (fd % 64) & 1 != 0)
    }

    fn clear_all(&self, count: i32) {
        for fd in (0..count).step_by(64) {
            if let Some(word) = self.word(fd) {
                // SAFETY: as in `has`.
                unsafe { word.write(0) };
            }
        }
    }

    pub(crate) fn put(&self, fd: i32) {
        if let Some(word) = self.word(fd) {
            // SAFETY: as in `has`.
            unsafe { word.write(word.read() | 1 << (fd % 64)) };
        }
    }
}

/// `select` through [`poll`].
pub(crate) fn select(
    count: i32,
    [read, write, except]: &[Set; 3],
    timeout_ns: Option<u64>,
    kernel: impl FnMut(&mut [pollfd], Option<u64>) -> i32,
) -> i32 {
    let used = (0..count)
        .filter(|&fd| read.has(fd) || write.has(fd) || except.has(fd))
        .count();
    let Some(mut copy) = Copy::new(used) else {
        errno::set(libc::ENOMEM);
        return -1;
    };
    let fds = copy.slice();
    let mut at = 0;
    for fd in 0..count {
        let mut events = 0;
        if read.has(fd) {
            events |= POLLIN;
        }
        if write.has(fd) {
            events |= POLLOUT;
        }
        if except.has(fd) {
            events |= POLLPRI;
        }
        if events != 0 && at < fds.len() {
            fds[at] = pollfd {
                fd,
                events,
                revents: 0,
            };
            at += 1;
        }
    }
    // Another thread of the program may change the sets meanwhile.
    fds[at..].fill(NONE);
    let result = poll(fds, timeout_ns, kernel);
    if result < 0 {
        return result;
    }
    if fds.iter().any(|one| one.revents & POLLNVAL != 0) {
        errno::set(libc::EBADF);
        return -1;
    }
    for set in [read, write, except] {
        set.clear_all(count);
    }
    let mut total = 0;
    for one in fds.iter() {
        for (set, wanted, bits) in [
            (read, POLLIN, READ_SET),
            (write, POLLOUT, WRITE_SET),
            (except, POLLPRI, EXCEPT_SET),
        ] {
            if one.events & wanted != 0 && one.revents & bits != 0 {
                set.put(one.fd);
                total += 1;
            }
        }
    }
    total
}

/// The kernel's own wait, with that signal mask.
pub(crate) fn kernel_poll(mask: *const sigset_t) -> impl FnMut(&mut [pollfd], Option<u64>) -> i32 {
    move |fds, limit| {
        let time = limit.map(sys::timespec);
        let time = time
            .as_ref()
            .map_or(core::ptr::null(), |time| time as *const timespec);
        // SAFETY: the slice is valid; the mask is the program's own.
        unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as nfds_t, time, mask) }
    }
}
