//! The library's record of an epoll instance, and the table of these records.

use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::epoll::registration::{self, Registration, State, is_reported_once};
use crate::epoll::wake_balance::WakeBalance;
use crate::lock;
use crate::memory::chunks::Chunks;
use crate::memory::pairs::Pair;
use crate::process::descriptors;
use crate::waiting::spin::SpinHistory;

/// The most epoll instances that the library knows at a time. Members of other instances stay on
/// the host path.
pub(super) const EPOLLS_MAX: usize = 512;
/// Peer processes whose ready bitmaps one instance sweeps; members of further ones are looked at
/// one by one.
pub(super) const PAIRS_MAX: usize = 1024;
/// Members without a ready bitmap that a sleep arms without mapping memory for it.
pub(super) const POLLED_MAX: usize = 512;
/// Members looked at per turn.
pub(super) const BATCH: usize = 64;
/// Epoll instances inside one: as many as are known at all. Each descriptor of one counts.
pub(super) const NESTED_MAX: usize = EPOLLS_MAX;
/// Nested instances whose places are mapped at a time, as a power of two.
const NESTED_LOG2: u32 = 6;

/// A thread that is going to sleep on an instance counts itself in (`sleepers`), and then looks at
/// the members (`ours`, `pair_count`, `ready_head`). A thread that changes the members looks at
/// `sleepers` afterwards. The look at the members pairs with the look at `sleepers`: at least one
/// of them sees the other side's store.
pub(super) const MEMBERS_SEQ_CST: Ordering = Ordering::SeqCst;

/// In [`Epoll::reported_once`]: a file of another kind, or a connection without a registration in
/// our table.
pub(super) const ONCE_ORDINARY: u32 = 1;
/// In [`Epoll::reported_once`]: a registration of our table, which the kernel answered when it was
/// made.
pub(super) const ONCE_KNOWN: u32 = 2;

/// In [`Epoll::waits`]: the program has not waited on the instance through us.
pub(super) const NOT_YET: u32 = 0;

/// One epoll instance. All zeroes is a free one.
#[repr(C, align(128))]
pub(super) struct Epoll {
    pub(super) lock: lock::Private,
    /// Held over a call of the kernel that is right only while our table is as the caller has seen
    /// it: [`Epoll::kick`], and a look that drops events ([`super::nested`]). A thread that has
    /// changed the table passes this lock before it tells the kernel
    /// ([`Epoll::end_kernel_calls`]). No other lock is taken under this one.
    pub(super) kernel_calls: lock::Private,
    /// One of its descriptors, plus one; 0 is free. It is open in this process.
    pub(super) fd: AtomicI32,
    /// Its number in our table.
    pub(super) number: AtomicU32,
    /// The number of instances that had this number and were closed: see [`Instance`].
    pub(super) generation: AtomicU32,
    /// Whether the program waits on it through us ([`super::first_wait`]).
    pub(super) waits: AtomicU32,
    /// Number of its descriptors in this process.
    pub(super) descriptors: AtomicU32,
    /// Number of registrations that the library answers.
    pub(super) ours: AtomicU32,
    pub(super) ready_head: AtomicU32,
    pub(super) ready_tail: AtomicU32,
    pub(super) polled: AtomicU32,
    /// Threads that sleep in the kernel on this instance, or are about to: through us or, before it
    /// had accelerated members, past us.
    pub(super) sleepers: Sleepers,
    pub(super) pair_count: AtomicU32,
    pub(super) nested_count: AtomicU32,
    pub(super) spin: SpinHistory,
    /// When the kernel was last asked for ordinary members while rings had news; 0: ask at once.
    pub(super) kernel_seen_ns: AtomicU64,
    /// When an ordinary member last had news; or `KERNEL_OWED`: ask the kernel first in the next
    /// call ([`super::waiting`]).
    pub(super) kernel_news_ns: AtomicU64,
    /// When a sleep on the doorbells of pairs last ended by an event of an ordinary member that
    /// another thread or process took.
    pub(super) passed_over_ns: AtomicU64,
    pub(super) wake_balance: WakeBalance,
    /// 1 once an ordinary member was registered with `EPOLLEXCLUSIVE`. For such a member the kernel
    /// wakes one of the threads that sleep in `epoll_wait`, and all that sleep in `ppoll`.
    pub(super) has_exclusive: AtomicU32,
    pub(super) last_peer_processor: AtomicU32,
    /// When a thread that waits on it last slept, or let others run ([`super::yielding`]).
    pub(super) runs_since_ns: AtomicU64,
    pub(super) pairs: [AtomicPtr<Pair>; PAIRS_MAX],
    pub(super) bitmaps: [AtomicU32; PAIRS_MAX],
    pub(super) nested: Chunks<Nested, NESTED_LOG2, { NESTED_MAX >> NESTED_LOG2 }>,
    /// The place among the nested instances at which the next look begins.
    pub(super) nested_first: AtomicU32,
    /// Counts calls with room for one event. Nested instances and rings take turns by it.
    pub(super) nested_turn: AtomicU32,
    /// Kinds of members that the kernel reports only once, because they are edge-triggered or
    /// one-shot ([`Epoll::note_ordinary`]): [`ONCE_ORDINARY`], [`ONCE_KNOWN`].
    pub(super) reported_once: AtomicU32,
    /// The listener's registration ([`super::parked`]), 0 for none.
    pub(super) listener: AtomicU32,
    /// Counts news of accelerated members, for edge-triggered registrations of this instance in
    /// others.
    pub(super) news: AtomicU32,
    /// Counts members whose owner has changed between the kernel and the library. Changed under the
    /// lock.
    pub(super) moves: AtomicU32,
}

/// An instance as a call found it. While the call sleeps in the kernel, another thread may close
/// the instance, and a new instance may get its number. News of the new instance is not for this
/// call.
#[derive(Clone, Copy)]
pub(crate) struct Instance {
    pub(super) epoll: &'static Epoll,
    pub(super) number: u32,
    pub(super) generation: u32,
}

impl Instance {
    /// The instance at `fd`, if it is known.
    #[inline]
    pub(crate) fn at(fd: i32) -> Option<Instance> {
        let mut number = descriptors::epoll_number(fd)?;
        loop {
            let instance = Instance::numbered(number)?;
            // If the instance was closed before the generation was read, the generation would be
            // the next instance's.
            let again = descriptors::epoll_number(fd)?;
            if again == number {
                return Some(instance);
            }
            number = again;
        }
    }

    /// The instance that has `number` now.
    #[inline]
    pub(super) fn numbered(number: u32) -> Option<Instance> {
        let epoll = epoll(number)?;
        Some(Instance {
            epoll,
            number,
            generation: epoll.generation(),
        })
    }

    /// True until its last descriptor is closed.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.epoll.generation() == self.generation
    }

    /// A current descriptor of the instance. The descriptor with which the call began may have been
    /// closed and belong to another file now, while a duplicate is still open.
    #[inline]
    pub(crate) fn descriptor(&self, fd: i32) -> i32 {
        if descriptors::epoll_number(fd) == Some(self.number) || !self.is_open() {
            return fd;
        }
        self.epoll.fd.load(Ordering::Relaxed) - 1
    }

    /// As [`needs_library`], for this instance.
    #[inline]
    pub(crate) fn needs_library(&self) -> bool {
        self.epoll.needs_library()
    }
}

/// The lower half counts the threads that sleep on an instance. The upper half counts the instances
/// that have had this place, and forks. So a thread that slept on the former instance, or in the
/// parent, is not taken for a sleeper of this one. All zeroes means no sleepers.
pub(super) struct Sleepers(AtomicU64);

/// Records that a thread was counted, with the value of the upper half.
#[derive(Clone, Copy)]
pub(super) struct Counted(u32);

impl Sleepers {
    const COUNT: u64 = (1 << 32) - 1;

    #[inline]
    pub(super) fn enter(&self) -> Counted {
        Counted((self.0.fetch_add(1, MEMBERS_SEQ_CST) >> 32) as u32)
    }

    /// Counts the thread out. True when other threads sleep. `None` when the instance on which it
    /// slept is gone.
    #[inline]
    pub(super) fn leave(&self, Counted(use_of): Counted) -> Option<bool> {
        let less = |word: u64| {
            let is_in = (word >> 32) as u32 == use_of && word & Self::COUNT != 0;
            is_in.then(|| word - 1)
        };
        let before = self
            .0
            .fetch_update(MEMBERS_SEQ_CST, Ordering::Relaxed, less)
            .ok()?;
        Some(before & Self::COUNT > 1)
    }

    #[inline]
    pub(super) fn any(&self) -> bool {
        self.0.load(MEMBERS_SEQ_CST) & Self::COUNT != 0
    }

    /// Forgets all sleepers: they sleep on the former instance, or in the parent.
    pub(super) fn forget(&self) {
        // Relaxed: nobody sleeps on the instance that begins here.
        let next = |word: u64| Some((word & !Self::COUNT).wrapping_add(Self::COUNT + 1));
        let _ = (self.0).fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}

/// An epoll instance registered in another: see [`super::nested`].
pub(super) struct Nested {
    pub(super) number: AtomicU32,
    pub(super) fd: AtomicI32,
    /// Without any readiness when a one-shot has told.
    pub(super) events: AtomicU32,
    pub(super) data: AtomicU64,
    /// Identifies it in the kernel's tag; at least 1.
    pub(super) id: AtomicU32,
    /// Edge-triggered: `Epoll::news` of the inner instance when it was last reported.
    pub(super) told: AtomicU32,
    /// [`crate::process::forks`] when it was registered.
    pub(super) forks: AtomicU32,
}

pub(super) static EPOLLS: Chunks<Epoll, 0, EPOLLS_MAX> = Chunks::new();

/// Instance `number`, known or not.
#[inline]
pub(super) fn epoll(number: u32) -> Option<&'static Epoll> {
    EPOLLS.get(number as usize)
}

/// A descriptor of instance `number`.
pub(crate) fn descriptor(number: u32) -> Option<i32> {
    let fd = epoll(number)?.fd.load(Ordering::Relaxed) - 1;
    (fd >= 0).then_some(fd)
}

/// True when waits on this instance need the library: it has accelerated members, or ready bitmaps
/// through which parked carriers may come back, or nested instances that may get such members.
#[inline]
pub(crate) fn needs_library(number: u32) -> bool {
    epoll(number).is_some_and(Epoll::needs_library)
}

/// Forgets the ready bitmaps of a pair that is about to be unmapped. No channel uses the pair.
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

impl Epoll {
    #[inline]
    fn needs_library(&self) -> bool {
        self.ours.load(MEMBERS_SEQ_CST) != 0
            || self.pair_count.load(MEMBERS_SEQ_CST) != 0
            || self.nested_count.load(Ordering::Relaxed) != 0
    }

    /// True when the program waits on the instance through the library, or is about to do so for
    /// the first time. Until then it may wait past the library, and the kernel has the program's
    /// own data.
    #[inline]
    pub(super) fn is_waited_on(&self) -> bool {
        self.waits.load(Ordering::Relaxed) != NOT_YET
    }

    /// See [`Instance`]. It changes under the lock, before anything else of a closed instance does.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        // Relaxed: a thread that takes events of the instance looks again under its lock.
        self.generation.load(Ordering::Relaxed)
    }

    /// Makes registration `one`, number `n`, a polled member. The caller holds the lock, and `one`
    /// is not polled yet.
    pub(super) fn link_polled(&self, one: &Registration, n: u32) {
        one.become_state(State::Polled);
        one.polled_next
            .store(self.polled.load(Ordering::Relaxed), Ordering::Relaxed);
        self.polled.store(n, Ordering::Relaxed);
    }

    /// Records that a member of this `kind` is going to be registered with the kernel for `events`,
    /// if the kernel will report them only once. `is_member` is asked only if that would be new.
    pub(super) fn note_ordinary(&self, events: u32, kind: u32, is_member: impl Fn() -> bool) {
        let known = || self.reported_once.load(Ordering::Relaxed) & kind != 0;
        if is_reported_once(events) && !known() && is_member() {
            // Under this lock, so that a thread which finds the kind recorded need not wait for a
            // look that began before.
            let _held = self.kernel_calls.lock();
            self.reported_once.fetch_or(kind, Ordering::Relaxed);
        }
    }

    /// True when the kernel may have a member that it reports only once. Tracked connections that
    /// were such members may be answered by the library now.
    pub(super) fn may_have_reported_once(&self) -> bool {
        match self.reported_once.load(Ordering::Relaxed) {
            0 => false,
            ONCE_KNOWN => self
                .registrations()
                .any(|(_, one)| one.is_kernels() && is_reported_once(one.events())),
            _ => true,
        }
    }

    /// Called between a change to our table and the call that tells the kernel: when this returns,
    /// all calls of the kernel that rely on the former state are over.
    pub(super) fn end_kernel_calls(&self) {
        drop(self.kernel_calls.lock());
    }

    /// The registrations with this instance, with their numbers.
    pub(super) fn registrations(&self) -> impl Iterator<Item = (u32, &'static Registration)> {
        let number = self.number.load(Ordering::Relaxed);
        registration::all().filter(move |(_, one)| one.epoll.load(Ordering::Relaxed) == number)
    }

    /// Counts a member whose owner changes between the kernel and the library. The caller holds the
    /// lock.
    pub(super) fn note_move(&self) {
        self.moves.fetch_add(1, MEMBERS_SEQ_CST);
    }

    /// The number of times that the owner of a member has changed. If a call finds one number
    /// before its look at the rings and after the kernel's answer, no owner changed in between.
    #[inline]
    pub(super) fn moves(&self) -> u32 {
        self.moves.load(MEMBERS_SEQ_CST)
    }

    pub(super) fn known_nested(&self) -> impl DoubleEndedIterator<Item = &Nested> {
        let count = self.nested_count.load(Ordering::Relaxed) as usize;
        (0..count).filter_map(|place| self.nested.get(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeper_of_the_instance_before_is_not_counted_out() {
        let sleepers = Sleepers(AtomicU64::new(0));
        let before = sleepers.enter();
        sleepers.forget();
        assert!(!sleepers.any());
        let now = sleepers.enter();
        assert_eq!(sleepers.leave(before), None);
        assert!(sleepers.any(), "the one who sleeps now stays counted");
        assert_eq!(sleepers.leave(now), Some(false));
        assert_eq!(sleepers.leave(now), None, "nobody is left");
    }
}
