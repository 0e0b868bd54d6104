//! Epoll instances with accelerated members.
//!
//! An epoll instance stays the kernel's. While a member has a channel its kernel registration is
//! replaced by one of ours: edge-triggered, watching only for doorbells and the carrier's end, with
//! a tag instead of the program's data. What the program registered is kept here and answered from
//! shared memory:
//!
//! ```text
//!   peers mark bits ──► ready bitmaps ──(sweep)──► ready list ──(look at each)──► events
//!   kernel events   ──► tagged: onto the ready list; others: straight to the program
//! ```
//!
//! The ready list is the kernel's own algorithm (fs/eventpoll.c): a level-triggered member that was
//! reported goes back to its tail, an edge-triggered one leaves it until news arrives. Cost is by
//! members with news, not by members.
//!
//! Here is the instance. [`registration`] is what a program registered, [`control`](mod@control)
//! changes it, [`membership`] says who answers it, [`early`] knows it before there is a connection,
//! [`lists`] threads it, [`nested`] sees it from outside, [`orphans`] outlive their descriptors,
//! [`waiting`] is `epoll_wait`.

mod control;
mod early;
mod lists;
mod membership;
mod nested;
mod orphans;
mod registration;
mod waiting;

use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::{
    EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, epoll_event,
};
use toehold_channel::doorbell::{WakeWord, mark};
use toehold_channel::layout::READY_BITMAPS;
use toehold_channel::sync::fence;
use toehold_channel::table::Mode;

use crate::chunks::Chunks;
use crate::connection::{Connection, HINT_LOOK};
use crate::epoll::early::{EARLY_LOCK, forget_early};
use crate::epoll::lists::{pop_ready, push_ready};
use crate::epoll::membership::{believe_kernel, is_anothers, set_home_wake};
use crate::epoll::nested::{NESTED_MAX, Nested, forget_nested};
use crate::epoll::registration::{
    EARLY, FREE_LOCK, HELD, NEXT_UNUSED, ONCE, PLAIN, POLLED, Registration, TAG, each_registration,
    free_registration, registration, tag, unlink, untag,
};
use crate::epoll::waiting::{fetch_lines, polled_has_news};
use crate::offload::awaiting;
use crate::pairs::Pair;
use crate::wait::SpinHistory;
use crate::{descriptors, doorbells, errno, lock, process, ready, sleepers, sys};

pub(crate) use control::control;
pub(crate) use early::{adopt, unconnected_closing};
pub(crate) use membership::{
    answered, descriptor_closing, hand_back, hold, holds_down, leaving_program, materialise,
    outlives_exec, virtualise,
};
pub(crate) use nested::{has_news, has_ready, set_observed};
pub(crate) use orphans::moved;
pub(crate) use waiting::{after_kernel_wait, begin_kernel_wait, end_kernel_wait, wait};

/// Epoll instances known at a time; others stay the kernel's alone, with their members on the host
/// path.
const EPOLLS_MAX: usize = 512;
/// Peer processes whose ready bitmaps one instance sweeps; members of further ones are looked at
/// one by one.
const PAIRS_MAX: usize = 1024;
/// Members without a ready bitmap that one sleep can arm.
const POLLED_MAX: usize = 512;
/// Members looked at per turn.
const BATCH: usize = 64;
const READINESS: u32 = (EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLERR | EPOLLHUP) as u32;
const EDGE: u32 = EPOLLET as u32;
const ONESHOT: u32 = EPOLLONESHOT as u32;
/// What the kernel watches on a carrier for us.
const CARRIER_EVENTS: u32 = (EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET) as u32;
/// What the kernel watches on a carrier whose engine has not answered.
const ANSWER_EVENTS: u32 = (EPOLLPRI | EPOLLRDHUP) as u32;

/// One epoll instance. All zeroes is a free one.
#[repr(C, align(128))]
struct Epoll {
    lock: lock::Private,
    /// One of its descriptors, plus one; 0 is free. It is open in this process.
    fd: AtomicI32,
    /// How many this process has.
    descriptors: AtomicU32,
    /// Registrations that are ours to answer.
    virtuals: AtomicU32,
    ready_head: AtomicU32,
    ready_tail: AtomicU32,
    polled: AtomicU32,
    /// Threads that sleep in the kernel on this instance, or are about to: through us or, before it
    /// had accelerated members, past us.
    sleepers: AtomicU32,
    pair_count: AtomicU32,
    nested_count: AtomicU32,
    spin: SpinHistory,
    /// When the kernel was last asked for ordinary members while rings had news; 0: ask at once.
    kernel_seen_ns: AtomicU64,
    /// When an ordinary member last had news.
    kernel_news_ns: AtomicU64,
    last_peer_processor: AtomicU32,
    pairs: [AtomicPtr<Pair>; PAIRS_MAX],
    bitmaps: [AtomicU32; PAIRS_MAX],
    nested: [Nested; NESTED_MAX],
    /// 1 when an ordinary member has been registered that the kernel tells of once: edge-triggered,
    /// or one-shot.
    tells_once: AtomicU32,
}

/// What a look at a ready member came to.
#[derive(Clone, Copy, Default)]
struct Look {
    /// Of the registration, when the look began.
    version: u32,
    /// What the connection is ready for, as `POLL*` bits.
    all: u16,
    /// Those of them that the program asked for.
    ready: u16,
}

static EPOLLS: Chunks<Epoll, 0, EPOLLS_MAX> = Chunks::new();

/// Once, at start.
pub(crate) fn start() {
    TAG.store(sys::random_u32() | 0x8000_0001, Ordering::Relaxed);
}

#[inline]
fn epoll(number: u32) -> Option<&'static Epoll> {
    EPOLLS.get(number as usize)
}

/// A new epoll instance at `fd`.
pub(crate) fn created(fd: i32) {
    if !process::is_started() {
        return;
    }
    for number in 0..EPOLLS_MAX {
        // Numbers are given out from the lowest: those below one that is mapped are mapped.
        let Some(epoll) = EPOLLS.get_or_map(number) else {
            return;
        };
        let number = number as u32;
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
                &epoll.polled,
                &epoll.sleepers,
                &epoll.pair_count,
                &epoll.nested_count,
                &epoll.tells_once,
            ] {
                word.store(0, Ordering::Relaxed);
            }
            epoll.spin.reset();
            epoll.kernel_seen_ns.store(0, Ordering::Relaxed);
            epoll.kernel_news_ns.store(0, Ordering::Relaxed);
            descriptors::note_epoll(fd, number);
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

/// Descriptor `fd` of instance `number` is being closed, and stands for nothing any more.
pub(crate) fn closing(number: u32, fd: i32) {
    let Some(epoll) = epoll(number) else { return };
    if epoll.descriptors.fetch_sub(1, Ordering::AcqRel) != 1 {
        if epoll.fd.load(Ordering::Relaxed) == fd + 1 {
            // What we ask of the kernel must not go to the file that has this number next.
            if let Some(other) = descriptors::descriptor_of_epoll(number) {
                epoll.fd.store(other + 1, Ordering::Relaxed);
            }
        }
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
                if !is_anothers(&connection, one) {
                    set_home_wake(&connection, WakeWord::None);
                }
            }
            free_registration(n);
        }
    }
    let held = epoll.lock.lock();
    for place in 0..epoll.pair_count.load(Ordering::Relaxed) as usize {
        let pair = epoll.pairs[place].load(Ordering::Relaxed);
        // SAFETY: places of the pair table are never released.
        if let Some(pair) = unsafe { pair.as_ref() } {
            let bitmap = epoll.bitmaps[place].load(Ordering::Relaxed) as usize;
            pair.epolls[bitmap.min(READY_BITMAPS - 1)].store(0, Ordering::Relaxed);
        }
    }
    epoll.pair_count.store(0, Ordering::Relaxed);
    drop(held);
    forget_nested(number);
    epoll.fd.store(0, Ordering::Release);
}

/// After fork the ready bitmaps are the parent's: the child looks at its members one by one.
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
        epoll.polled.store(0, Ordering::Relaxed);
        for n in 1..NEXT_UNUSED.load(Ordering::Relaxed) {
            let Some(one) = registration(n) else { break };
            if one.epoll.load(Ordering::Relaxed) == number && one.is_virtual() {
                epoll.link_polled(one, n);
            }
        }
    }
}

/// A pair is about to be unmapped: no channel uses it, so no ready bitmap of it matters.
pub(crate) fn forget_pair(pair: &Pair) {
    for number in 0..EPOLLS_MAX as u32 {
        let Some(epoll) = epoll(number) else { return };
        if epoll.pair_count.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let _held = epoll.lock.lock();
        let count = epoll.pair_count.load(Ordering::Relaxed) as usize;
        if let Some(place) = epoll.pairs[..count]
            .iter()
            .position(|known| core::ptr::eq(known.load(Ordering::Relaxed), pair))
        {
            let last = count - 1;
            epoll.pairs[place].store(epoll.pairs[last].load(Ordering::Relaxed), Ordering::Relaxed);
            epoll.bitmaps[place].store(
                epoll.bitmaps[last].load(Ordering::Relaxed),
                Ordering::Relaxed,
            );
            epoll.pair_count.store(last as u32, Ordering::Relaxed);
        }
    }
}

/// Wakes a thread that sleeps in the kernel on this instance: a carrier is practically always
/// writable.
fn kick(epoll_fd: i32, fd: i32, number: u32) {
    sys::epoll_ctl(
        epoll_fd,
        libc::EPOLL_CTL_MOD,
        fd,
        CARRIER_EVENTS | EPOLLOUT as u32,
        tag(number),
    );
}

/// True when waits on this instance need us: it has accelerated members, or ready bitmaps by which
/// those that are parked may come back, or other instances that may get some.
#[inline]
pub(crate) fn is_virtual(number: u32) -> bool {
    epoll(number).is_some_and(|epoll| {
        // SeqCst: `begin_kernel_wait` looks here after it has counted its sleeper.
        epoll.virtuals.load(Ordering::SeqCst) != 0
            || epoll.pair_count.load(Ordering::SeqCst) != 0
            || epoll.nested_count.load(Ordering::Relaxed) != 0
    })
}

impl Epoll {
    /// A member has become ours to answer, or its interest changed: threads that sleep already may
    /// know nothing of it. One of them is woken, and finds it. Not to be called with the lock held.
    fn show_to_sleepers(&self, n: u32, fd: i32) {
        // After the change to the books; the sleeper counts itself, then looks at them.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            kick(self.fd.load(Ordering::Relaxed) - 1, fd, n);
        }
    }

    /// Makes `one`, which is number `n`, a member that is looked at every time. The caller holds
    /// the lock, and it is not one yet.
    fn link_polled(&self, one: &Registration, n: u32) {
        one.state.store(POLLED, Ordering::Relaxed);
        one.polled_next
            .store(self.polled.load(Ordering::Relaxed), Ordering::Relaxed);
        self.polled.store(n, Ordering::Relaxed);
    }

    /// Moves marked bits and polled members with news onto the ready list. True when the list
    /// has anything.
    fn sweep(&self) -> bool {
        let _held = self.lock.lock();
        for place in 0..self.pair_count.load(Ordering::Relaxed) as usize {
            // SAFETY: places of the pair table are never released, and pairs leave this list before
            // they are unmapped.
            let Some(pair) = (unsafe { self.pairs[place].load(Ordering::Relaxed).as_ref() }) else {
                continue;
            };
            let Some(bitmap) = pair.ours(self.bitmaps[place].load(Ordering::Relaxed)) else {
                continue;
            };
            let words = (pair.slots_used.load(Ordering::Relaxed) as usize).div_ceil(64);
            for (w, word) in bitmap.bits[..words.min(bitmap.bits.len())]
                .iter()
                .enumerate()
            {
                if word.load(Ordering::Relaxed) == 0 {
                    continue;
                }
                // A full barrier: what the marker published before it set the bit is seen when the
                // member is looked at.
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
        let mut n = self.polled.load(Ordering::Relaxed);
        while let Some(one) = registration(n) {
            if one.on_ready.load(Ordering::Relaxed) == 0 && polled_has_news(one) {
                push_ready(self, n);
            }
            n = one.polled_next.load(Ordering::Relaxed);
        }
        self.ready_head.load(Ordering::Relaxed) != 0
    }

    /// Looks at ready members and writes what the program asked for. `consume` is false for a look
    /// that must change nothing.
    ///
    /// The looks are made without the lock, which must not be held over a system call, so two
    /// threads may be looking at one member. What is reported, and what that leaves of the member,
    /// is then decided in one step under the lock, as fs/eventpoll.c does it under `ep->mtx`: a
    /// one-shot or an edge is told to one of them.
    fn harvest(&self, out: &mut [epoll_event], consume: bool) -> usize {
        let mut batch = [0u32; BATCH];
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
        let mut looks = [Look::default(); BATCH];
        let mut found = 0;
        for at in 0..count {
            let number = batch[at];
            if let Some(look) = self.look(number, processor) {
                (batch[found], looks[found]) = (number, look);
                found += 1;
            }
        }
        let mut written = 0;
        if found > 0 {
            let _held = self.lock.lock();
            for (&number, look) in batch.iter().zip(&looks[..found]) {
                if let Some(event) = self.report(number, look, consume) {
                    out[written] = event;
                    written += 1;
                }
            }
        }
        self.share();
        written
    }

    /// What `number` is ready for, if anything that the program asked for.
    #[inline]
    fn look(&self, number: u32, processor: u32) -> Option<Look> {
        let one = registration(number)?;
        // Acquire pairs with the Release store in `Registration::set`: the events are those of this
        // version or of a later one, and `report` drops a look that a later one has overtaken.
        let version = one.version.load(Ordering::Acquire);
        let events = one.events.load(Ordering::Relaxed);
        if !one.is_virtual() || events & READINESS == 0 && events & ONESHOT != 0 {
            return None;
        }
        let connection = one.behind()?;
        // The stream's end is an edge even for a program that asked for bytes only: it shows in
        // `EPOLLRDHUP`.
        let all = self.look_at(&connection, events | EPOLLRDHUP as u32, processor);
        let ready = all & (events | (EPOLLERR | EPOLLHUP) as u32);
        (ready != 0).then_some(Look {
            version,
            all: all as u16,
            ready: ready as u16,
        })
    }

    /// The event that `look` comes to, if nobody has told it and nothing has changed since. The
    /// caller holds the lock.
    #[inline]
    fn report(&self, number: u32, look: &Look, consume: bool) -> Option<epoll_event> {
        let one = registration(number)?;
        // Whoever set it anew has put it on the ready list again.
        if one.version.load(Ordering::Relaxed) != look.version || !one.is_virtual() {
            return None;
        }
        let events = one.events.load(Ordering::Relaxed);
        if events & READINESS == 0 && events & ONESHOT != 0 {
            return None;
        }
        if events & EDGE != 0 && !one.is_new_edge(&one.behind()?, look.all.into(), consume) {
            return None;
        }
        if consume && events & ONESHOT != 0 {
            one.events.store(events & !READINESS, Ordering::Relaxed);
        } else if !consume || events & EDGE == 0 {
            push_ready(self, number);
        }
        Some(epoll_event {
            events: look.ready.into(),
            u64: one.data.load(Ordering::Relaxed),
        })
    }

    /// A thread has taken its part of the ready list: one that sleeps is woken for the rest, as by
    /// `ep_done_scan` (fs/eventpoll.c). No peer rings for the rest, because one has rung already
    /// for what was taken. Not to be called with the lock held.
    #[inline]
    fn share(&self) {
        let left = self.ready_head.load(Ordering::SeqCst);
        // SeqCst pairs with the count in `begin_sleep`, after which the sleeper looks at the list.
        if left != 0 && self.sleepers.load(Ordering::SeqCst) != 0 {
            if let Some(one) = registration(left) {
                kick(self.fd.load(Ordering::Relaxed) - 1, one.carrier(), left);
            }
        }
    }

    #[inline]
    fn look_at(&self, connection: &Connection, events: u32, processor: u32) -> u32 {
        let Some(end) = connection.inside() else {
            return 0;
        };
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

    /// One more thread sleeps on this instance: says so on all its ready bitmaps.
    fn begin_sleep(&self) {
        let _held = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.set_sleeping(1);
    }

    /// One less. The notifier of this wake-up took the ready bitmaps' sleep words: for threads that
    /// still sleep they are set again, and what was marked in between is taken by us.
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

    /// Sets or clears the sleep words of all ready bitmaps. The caller holds the lock.
    fn set_sleeping(&self, sleeping: u32) {
        for place in 0..self.pair_count.load(Ordering::Relaxed) as usize {
            // SAFETY: as in `sweep`.
            let Some(pair) = (unsafe { self.pairs[place].load(Ordering::Relaxed).as_ref() }) else {
                continue;
            };
            if let Some(bitmap) = pair.ours(self.bitmaps[place].load(Ordering::Relaxed)) {
                bitmap.sleeping.store(sleeping, Ordering::SeqCst);
            }
        }
    }

    /// Polled members, as many as one sleep can arm.
    fn polled_members(&self, out: &mut [u32]) -> usize {
        let _held = self.lock.lock();
        let mut count = 0;
        let mut n = self.polled.load(Ordering::Relaxed);
        while let (Some(one), true) = (registration(n), count < out.len()) {
            out[count] = n;
            count += 1;
            n = one.polled_next.load(Ordering::Relaxed);
        }
        count
    }

    /// Sorts out what the kernel returned: tagged events go to the ready list, the others stay.
    /// Returns how many stayed.
    fn sort_kernel_events(&self, events: &mut [epoll_event]) -> usize {
        take_answers(events);
        let mut kept = 0;
        let mut strange = 0;
        let held = self.lock.lock();
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
            if matches!(one.state.load(Ordering::Relaxed), ONCE | EARLY) {
                if let Some(told) = one.tell_once(&event) {
                    events[kept] = told;
                    kept += 1;
                }
                continue;
            }
            let Some(connection) = one.behind().filter(|one| one.end().is_some()) else {
                continue;
            };
            if event.events & (EPOLLPRI | EPOLLRDHUP | EPOLLHUP | EPOLLERR) as u32 != 0 {
                connection
                    .entry
                    .rx_hints
                    .fetch_or(HINT_LOOK, Ordering::Relaxed);
            }
            connection.entry.wakeups.fetch_add(1, Ordering::Relaxed);
            if let Some(end) = connection
                .inside()
                .filter(|_| event.events & EPOLLIN as u32 != 0)
            {
                doorbells::tidy(&connection, &end);
            }
            if one.is_virtual() {
                if is_kernel_edge(&connection, event.events) {
                    one.rearmed.store(1, Ordering::Relaxed);
                }
                push_ready(self, number);
            } else if one.state.load(Ordering::Relaxed) == PLAIN {
                strange = number;
            }
        }
        drop(held);
        if strange != 0 {
            believe_kernel(strange);
        }
        kept
    }
}

/// The engine's answers among `events` are taken, which gives the kernel back what waited for them.
/// No lock is held.
fn take_answers(events: &[epoll_event]) {
    let ours = events
        .iter()
        .filter_map(|event| registration(untag(event.u64)?));
    for one in ours.filter(|one| one.state.load(Ordering::Relaxed) == HELD) {
        if let Some(connection) = one.behind() {
            errno::keep(|| awaiting::look(&connection));
        }
    }
}

/// True when what the kernel reported on a carrier is an edge for the program too: the bytes are
/// the kernel's. What ends a connection is an edge by itself, once, and so is room after a refusal
/// ([`writing_blocked`], `Registration::is_new_edge`).
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

/// The program met a full kernel buffer on a connection whose direction is on the carrier: let the
/// kernel tell when there is room.
pub(crate) fn watch_kernel_writable(connection: &Connection) {
    each_registration(connection, |n, one| {
        if let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)).filter(|_| one.is_virtual()) {
            kick(epoll.fd.load(Ordering::Relaxed) - 1, one.carrier(), n);
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

/// Shows `connection` to the epoll instance that has it on a ready bitmap, and wakes a thread that
/// sleeps there: news that no peer marks, or whose doorbell somebody else has taken.
pub(crate) fn nudge(connection: &Connection) {
    let home = sleepers::home(connection);
    let Ok(WakeWord::Bitmap { bitmap, bit }) = WakeWord::from_untrusted(home) else {
        return;
    };
    // SAFETY: places of the pair table are never released.
    let pair = unsafe { connection.local.pair.load(Ordering::Relaxed).as_ref() };
    let Some((pair, bitmap)) = pair.and_then(|pair| Some((pair, pair.ours(bitmap)?))) else {
        return;
    };
    mark(bitmap, bit);
    // Another process's is woken by the doorbell, which is left to it.
    if bitmap.sleeping.load(Ordering::SeqCst) == 1 && !sleepers::is_home_anothers(connection) {
        let number = pair
            .registration(bit)
            .map_or(0, |number| number.load(Ordering::Relaxed));
        let Some(one) = registration(number) else {
            return;
        };
        if let Some(epoll) = epoll(one.epoll.load(Ordering::Relaxed)) {
            kick(epoll.fd.load(Ordering::Relaxed) - 1, one.carrier(), number);
        }
    }
}
