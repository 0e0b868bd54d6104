//! The doorbells that wake this process by pairs ([`toehold_channel::doorbell::Doorbell::Pair`]).
//!
//! ```text
//!   peer 1 ── eventfd ──► adapter's instance ──┐
//!   peer 2 ── eventfd ──► adapter's instance ──┼──► library's instance ──► one sleeping thread
//!   peer 3 ── eventfd ──► adapter's instance ──┘
//! ```
//!
//! Each peer has an `eventfd` of its own, and this process has only an epoll instance that watches
//! it. So neither can reach what the other writes to: a hostile process cannot make the write wait
//! (`O_NONBLOCK` and the count belong to the file). All registrations are edge-triggered: nobody
//! reads an `eventfd`.
//!
//! The doorbells of all pairs wake one thread at a time, which has *claimed* them. It looks at all
//! of its members after it has taken the events, so events that were for an earlier sleeper do no
//! harm. Other threads sleep on their carriers meanwhile.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use toehold_channel::doorbell::Doorbell;
use toehold_freestanding::fd::{BorrowedFd, OwnedFd};

use crate::process::{self, descriptors};
use crate::system::sys;
use crate::waiting::sleep;

/// The instance's descriptor, or one of the values below.
static INSTANCE: AtomicI32 = AtomicI32::new(NOT_YET);
/// This process has no doorbells so far.
const NOT_YET: i32 = -1;
/// This process does without: the instance was lost, or doorbells have rung for nothing too often.
const NEVER: i32 = -2;
/// A thread waits for doorbells, or is about to.
static IS_CLAIMED: AtomicBool = AtomicBool::new(false);
/// One more than the number of the epoll instance on which that thread sleeps; otherwise 0, also
/// when it sleeps on something else.
static SLEEPS_ON: AtomicU32 = AtomicU32::new(0);
/// One more than a duplicate of a descriptor of that instance which another thread has closed
/// meanwhile; otherwise 0.
static LEFT_BEHIND: AtomicI32 = AtomicI32::new(0);
/// Peers whose doorbells this process may ring.
static RUNG: AtomicU32 = AtomicU32::new(0);
/// Peers whose doorbells wake this process.
static HEARD: AtomicU32 = AtomicU32::new(0);
/// Rises with each doorbell for nothing and falls with each sleep.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// Each peer that this process rings takes a descriptor; the others are rung by their carriers.
pub(crate) const PEERS_MAX: u32 = 64;
/// Each peer that rings this process takes another. A server may have many clients, so these are as
/// many as a part of the limit of descriptors, at most so many.
const HEARD_MAX: usize = 1024;
const HEARD_PARTS: usize = 16;
/// With fewer numbers than this, all of them are the program's.
const DESCRIPTOR_LIMIT_MIN: usize = 256;
/// A doorbell may come for nothing once in so many sleeps.
const VAIN_WEIGHT: u32 = 16;
/// More doorbells for nothing than this: a peer rings without need.
const VAIN_MAX: u32 = 1000;

/// Lets `own` wake this process until it is closed. False when that cannot be. The caller holds the
/// adapter's lock.
fn listen_to(own: BorrowedFd<'_>) -> bool {
    let Some(instance) = instance_or_new() else {
        return false;
    };
    let edges = (libc::EPOLLIN | libc::EPOLLET) as u32;
    sys::epoll_ctl(instance, libc::EPOLL_CTL_ADD, own.as_raw_fd(), edges, 0) == 0
}

fn instance_or_new() -> Option<i32> {
    match INSTANCE.load(Ordering::Relaxed) {
        NOT_YET if may_have_descriptors() => {
            let made = descriptors::own(sys::epoll_create()?);
            INSTANCE.store(made, Ordering::Relaxed);
            Some(made)
        }
        NOT_YET | NEVER => None,
        known => Some(known),
    }
}

fn may_have_descriptors() -> bool {
    descriptors::descriptor_limit() >= DESCRIPTOR_LIMIT_MIN
}

/// Whether this process may keep both doorbells of one more pair.
pub(crate) fn has_room() -> bool {
    may_ring_more() && may_hear_more()
}

fn may_ring_more() -> bool {
    RUNG.load(Ordering::Relaxed) < PEERS_MAX
}

fn may_hear_more() -> bool {
    (HEARD.load(Ordering::Relaxed) as usize) < heard_max()
}

fn heard_max() -> usize {
    (descriptors::descriptor_limit() / HEARD_PARTS).min(HEARD_MAX)
}

/// The two doorbells of a pair, in this process. 0 stands for none.
pub(crate) struct PairDoorbells {
    /// An epoll instance, which is ready when the peer has rung.
    own: AtomicI32,
    /// An `eventfd` that wakes the peer.
    peers: AtomicI32,
}

impl PairDoorbells {
    /// None yet.
    pub(crate) const fn none() -> PairDoorbells {
        PairDoorbells {
            own: AtomicI32::new(0),
            peers: AtomicI32::new(0),
        }
    }

    /// Whether this process can wake the peer.
    pub(crate) fn is_kept(&self) -> bool {
        self.peers.load(Ordering::Relaxed) > 0
    }

    /// Whether the peer can wake this process.
    #[inline]
    pub(crate) fn is_heard(&self) -> bool {
        self.own.load(Ordering::Relaxed) > 0
    }

    /// Whether these doorbells are of a kind of which this process may keep no more.
    pub(crate) fn hold_what_is_used_up(&self) -> bool {
        self.is_kept() && !may_ring_more() || self.is_heard() && !may_hear_more()
    }

    /// Keeps each of them, unless this process has enough such doorbells. The caller holds the
    /// adapter's lock.
    pub(crate) fn keep(&self, own: OwnedFd, peers: OwnedFd) {
        if !may_have_descriptors() {
            return;
        }
        if may_hear_more() && listen_to(own.as_fd()) {
            HEARD.fetch_add(1, Ordering::Relaxed);
            let own = descriptors::own(own.into_raw_fd());
            self.own.store(own, Ordering::Relaxed);
        }
        if may_ring_more() {
            RUNG.fetch_add(1, Ordering::Relaxed);
            let peers = descriptors::own(peers.into_raw_fd());
            self.peers.store(peers, Ordering::Relaxed);
        }
    }

    /// Wakes the peer. False when its carrier has to do that.
    #[inline]
    pub(crate) fn ring(&self) -> bool {
        let number = self.peers.load(Ordering::Relaxed);
        // EAGAIN: this process and its children have rung some 2^64 times.
        number > 0 && matches!(sys::ring(number), 8 | EAGAIN)
    }

    /// The pair ends. The caller holds the adapter's lock.
    pub(crate) fn close(&self) {
        self.stop_listening();
        let number = self.peers.swap(0, Ordering::Relaxed);
        if number > 0 {
            RUNG.fetch_sub(1, Ordering::Relaxed);
            descriptors::close_own(number);
        }
    }

    /// The peer cannot wake this process any more. Uses no allocation and no lock.
    pub(crate) fn stop_listening(&self) {
        let number = self.own.swap(0, Ordering::Relaxed);
        if number > 0 {
            HEARD.fetch_sub(1, Ordering::Relaxed);
            descriptors::close_own(number);
        }
    }

    /// The library's descriptor `from` is `to` now; negative when it is gone.
    pub(crate) fn moved(&self, from: i32, to: i32) {
        let to = to.max(0);
        let replace = |number: &AtomicI32| {
            number
                .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        // The registration of `own` stays: it belongs to the file.
        if replace(&self.own) && to == 0 {
            HEARD.fetch_sub(1, Ordering::Relaxed);
        }
        if replace(&self.peers) && to == 0 {
            RUNG.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

const EAGAIN: isize = -(libc::EAGAIN as isize);

/// The library's descriptor `from` is `to` now; negative when it is gone.
pub(crate) fn moved(from: i32, to: i32) {
    let to = if to < 0 { NEVER } else { to };
    let _ = INSTANCE.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
}

/// This process is a child: the instance is its parent's, and doorbells wake the parent. Uses no
/// allocation and no lock.
pub(crate) fn forked() {
    let parents = INSTANCE.swap(NOT_YET, Ordering::Relaxed);
    if parents >= 0 {
        descriptors::close_own(parents);
    }
    IS_CLAIMED.store(false, Ordering::Relaxed);
    SLEEPS_ON.store(0, Ordering::Relaxed);
    IN_VAIN.store(0, Ordering::Relaxed);
}

/// The doorbells of this process, claimed by a thread that is about to sleep. They are released
/// when this is dropped after the sleep. A thread that is cancelled in its sleep drops nothing, and
/// releases them by [`Claim::release_for_ended`].
pub(crate) struct Claim {
    instance: i32,
    cause: Cell<Cause>,
}

/// The cause that has ended a sleep on doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The time is over, or a signal came; or the thread did not sleep.
    Nothing,
    /// A doorbell.
    Doorbell,
    /// The program's instance, and no doorbell.
    Instance,
}

/// Claims the doorbells for a sleep, on epoll instance `number` if there is one. `None` when there
/// are none, or when another thread has them.
#[inline]
pub(crate) fn claim(number: Option<u32>) -> Option<Claim> {
    let instance = INSTANCE.load(Ordering::Relaxed);
    // Acquire pairs with the Release in `Claim::release`: events that the former thread has taken
    // are not seen again.
    if instance < 0 || IS_CLAIMED.swap(true, Ordering::Acquire) {
        return None;
    }
    let claim = Claim {
        instance,
        cause: Cell::new(Cause::Nothing),
    };
    // A child that shares our memory, or has a copy that it got past the library, has its parent's
    // instance.
    if process::borrowed_memory() || INSTANCE.load(Ordering::Relaxed) != instance {
        return None;
    }
    SLEEPS_ON.store(number.map_or(0, |number| number + 1), Ordering::Relaxed);
    let in_vain = IN_VAIN.load(Ordering::Relaxed);
    IN_VAIN.store(in_vain.saturating_sub(1), Ordering::Relaxed);
    Some(claim)
}

/// The doorbells that a sleeper with this claim takes.
#[inline]
pub(crate) fn taken_with(claim: Option<&Claim>) -> Doorbell {
    match claim {
        Some(_) => Doorbell::Pair,
        None => Doorbell::Carrier,
    }
}

/// The claim, if it `is_used` by this sleep; otherwise the doorbells are free for other threads.
#[inline]
pub(crate) fn kept_if(claim: Option<Claim>, is_used: bool) -> Option<Claim> {
    claim.filter(|_| is_used)
}

/// The longest sleep on the doorbells of pairs. After that, the call sleeps on its carriers: should
/// the program have closed or replaced a descriptor of the library's in a way that the library does
/// not see, its news comes late and is not lost.
pub(crate) const SLEEP_MAX_NS: u64 = 1_000_000_000;

/// The end of a call's last sleep on the doorbells of pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PairSleep {
    /// There was none, or something else has ended it.
    #[default]
    None,
    /// A doorbell has ended it.
    Rung,
    /// An event of an ordinary member has ended it, but another thread or process has taken that.
    PassedOver,
    /// It took as long as it may.
    TooLong,
    /// The kernel refused it, because the doorbells' place is one more than a call may have
    /// (`RLIMIT_NOFILE`).
    Refused,
}

impl PairSleep {
    /// The doorbells for the call's next sleep, as by [`claim`].
    #[inline]
    pub(crate) fn claim_next(self, number: Option<u32>) -> Option<Claim> {
        match self {
            PairSleep::TooLong | PairSleep::Refused => None,
            PairSleep::Rung => claim(number)?.after_vain(),
            PairSleep::None | PairSleep::PassedOver => claim(number),
        }
    }
}

impl Claim {
    /// A place of `poll` that reports doorbells.
    pub(crate) fn place(&self) -> libc::pollfd {
        sleep::place(self.instance, libc::POLLIN)
    }

    /// Takes the doorbells that `poll` has reported in `place`. True when there were any.
    pub(crate) fn take_from(&self, place: libc::pollfd) -> bool {
        if place.revents & libc::POLLIN != 0 {
            self.take();
            return true;
        }
        if place.revents != 0 {
            self.lose();
        }
        false
    }

    /// The cause that has ended the sleep.
    pub(crate) fn cause(&self) -> Cause {
        self.cause.get()
    }

    /// The program's instance has ended the sleep.
    pub(crate) fn note_instance(&self) {
        self.cause.set(Cause::Instance);
    }

    /// Takes the events that have ended the sleep. The thread looks at its members afterwards.
    fn take(&self) {
        const BATCH: usize = 16;
        /// More than all peers that may ring.
        const BATCHES_MAX: usize = 4096 / BATCH;
        self.cause.set(Cause::Doorbell);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        for _ in 0..BATCHES_MAX {
            if sys::epoll_look(self.instance, &mut events) < BATCH {
                return;
            }
        }
    }

    /// The program has closed or replaced the instance, past the library.
    #[cold]
    fn lose(&self) {
        give_up(self.instance);
    }

    /// A doorbell has woken this thread for nothing before. A peer may ring as often as it likes,
    /// even if no connection is left. If that happens too often, this process does without these
    /// doorbells: then `None`, and they are released.
    #[cold]
    pub(crate) fn after_vain(self) -> Option<Claim> {
        let in_vain = IN_VAIN.load(Ordering::Relaxed);
        IN_VAIN.store(in_vain + VAIN_WEIGHT, Ordering::Relaxed);
        if in_vain < VAIN_WEIGHT * VAIN_MAX {
            return Some(self);
        }
        // Nobody else waits for the instance, because the doorbells are ours.
        if give_up(self.instance) {
            descriptors::close_own(self.instance);
        }
        None
    }

    /// A descriptor of the instance, if another thread has closed one of the program's during this
    /// sleep.
    #[cold]
    pub(crate) fn left_behind(&self) -> Option<LeftBehind> {
        let left = LEFT_BEHIND.swap(0, Ordering::Relaxed);
        (left > 0).then(|| LeftBehind(left - 1))
    }

    /// Releases them for a thread that ends in its sleep: this claim is never dropped.
    #[cold]
    pub(crate) fn release_for_ended(&self) {
        self.release();
    }

    #[inline]
    fn release(&self) {
        SLEEPS_ON.store(0, Ordering::Relaxed);
        if LEFT_BEHIND.load(Ordering::Relaxed) != 0 {
            drop(self.left_behind());
        }
        // Release pairs with the Acquire in `claim`.
        IS_CLAIMED.store(false, Ordering::Release);
    }
}

impl Drop for Claim {
    #[inline]
    fn drop(&mut self) {
        self.release();
    }
}

/// Does without the doorbells from now on. False when the instance has another number already.
fn give_up(instance: i32) -> bool {
    INSTANCE
        .compare_exchange(instance, NEVER, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

/// A descriptor of an instance of which the program has closed one.
pub(crate) struct LeftBehind(i32);

impl LeftBehind {
    /// Its number.
    pub(crate) fn descriptor(&self) -> i32 {
        self.0
    }
}

impl Drop for LeftBehind {
    fn drop(&mut self) {
        descriptors::close_own(self.0);
    }
}

/// Descriptor `fd` of epoll instance `number` is going to be closed. In the kernel, a thread that
/// sleeps there still gets the events of the instance. `ppoll` looks at descriptors by their
/// numbers, so a duplicate wakes a thread that sleeps on doorbells.
pub(crate) fn closing(number: u32, fd: i32) {
    if SLEEPS_ON.load(Ordering::Relaxed) == number + 1
        && let Some(duplicate) = descriptors::duplicate_for_us(fd)
    {
        let instance = INSTANCE.load(Ordering::Relaxed);
        let events = libc::EPOLLIN as u32;
        let _ = sys::epoll_ctl(instance, libc::EPOLL_CTL_ADD, duplicate, events, 0);
        let before = LEFT_BEHIND.swap(duplicate + 1, Ordering::Relaxed);
        if before > 0 {
            drop(LeftBehind(before - 1));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    const NUMBER: u32 = 3;

    /// The doorbells are those of the process, so their tests take turns.
    pub(crate) fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An instance that watches an `eventfd`, and that `eventfd`, as the adapter makes them.
    pub(crate) fn doorbell() -> (OwnedFd, OwnedFd) {
        let own = sys::epoll_create().expect("an instance");
        // SAFETY: plain system call.
        let rung = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let edges = (libc::EPOLLIN | libc::EPOLLET) as u32;
        assert_eq!(sys::epoll_ctl(own, libc::EPOLL_CTL_ADD, rung, edges, 0), 0);
        // SAFETY: both are ours.
        unsafe { (OwnedFd::from_raw_fd(own), OwnedFd::from_raw_fd(rung)) }
    }

    /// The number of peers that this process may still ring, and the number that may still ring it.
    pub(crate) fn room() -> [u32; 2] {
        let heard = heard_max() as u32 - HEARD.load(Ordering::Relaxed);
        [PEERS_MAX - RUNG.load(Ordering::Relaxed), heard]
    }

    /// Counts peers that do not exist.
    pub(crate) fn count_peers(rung: u32, heard: u32) {
        RUNG.fetch_add(rung, Ordering::Relaxed);
        HEARD.fetch_add(heard, Ordering::Relaxed);
    }

    pub(crate) fn uncount_peers(rung: u32, heard: u32) {
        RUNG.fetch_sub(rung, Ordering::Relaxed);
        HEARD.fetch_sub(heard, Ordering::Relaxed);
    }

    fn pollable(claim: &Claim) -> bool {
        sys::poll_now(claim.instance, libc::POLLIN) != 0
    }

    #[test]
    fn doorbells_wake_one_sleeper_until_they_ring_for_nothing_too_often() {
        let _turn = turn();
        let peers = [const { PairDoorbells::none() }; 2];
        for peer in &peers {
            assert!(!peer.ring(), "it was not given out yet");
            // Here the process is its own peer.
            let (own, rung) = doorbell();
            peer.keep(own, rung);
            assert!(peer.is_heard() && peer.is_kept());
        }
        let held = claim(Some(NUMBER)).expect("nobody else has them");
        assert!(claim(Some(NUMBER)).is_none(), "they are one thread's");
        for rounds in 1..=2 {
            assert!(!pollable(&held), "nobody rang, {rounds}");
            assert!(peers.iter().all(PairDoorbells::ring) && pollable(&held));
            held.take();
            assert_eq!(held.cause(), Cause::Doorbell);
        }
        assert!(!pollable(&held));
        peers[0].stop_listening();
        assert!(
            peers[0].ring() && !pollable(&held),
            "a child's parent has rung"
        );

        drop(held);

        assert!(kept_if(claim(Some(NUMBER)), false).is_none());
        let mut held = claim(Some(NUMBER));
        for _ in 0..VAIN_MAX {
            held = held.expect("one time in a row less").after_vain();
        }
        let held = held.expect("the last time").after_vain();
        assert!(held.is_none() && claim(Some(NUMBER)).is_none());
        peers.iter().for_each(PairDoorbells::close);
        assert!(!peers[0].ring(), "the pair is over");
    }
}
