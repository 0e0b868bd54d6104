//! Locks for state that a fork family shares, and for our own.
//!
//! A family lock names its owner: the process in the upper bits, a fingerprint of the thread in the
//! lower. If the owning process is dead, another process takes the lock over. A process may be
//! killed between any two stores, and when any system call returns, so the new owner repairs the
//! data that the lock guards:
//!
//! - the locks of a connection's directions: see [`crate::direction::takeover`], which also takes
//!   these locks;
//! - the wake lock: no store under it leaves a sleeper without its doorbell, so there is nothing to
//!   repair. A sleeper is counted before it asks for a doorbell, and a request is taken back only
//!   if no other thread sleeps. A leftover request costs one doorbell.
//!
//! A living owner keeps the lock, whatever its user is. It may have lost its processor in the
//! middle of a copy; the rest of that copy would overwrite bytes that a second owner has published,
//! and no check could undo that.
//!
//! The fingerprint has ten bits, so two threads of a process may have the same. A thread that finds
//! its own fingerprint in a lock holds that lock only if it is in a section of the library, and no
//! other thread with that fingerprint is ([`is_by_this_thread`]).
//!
//! A member of the family may belong to another user by now, and can write anything into a lock. So
//! no thread waits for ever: after [`WAIT_NS_MAX`] the caller gives up its operation. Then it
//! either changes nothing that the lock guards, or a comment says why the change is harmless.
//!
//! A lock that is held across system calls is a [`mutex`].

pub(crate) mod mutex;

use core::sync::atomic::{AtomicUsize, Ordering};

use toehold_channel::sync::AtomicU32;

use crate::process;
use crate::system::deferral::{self, Section};
use crate::system::{errno, sys};

/// Bits of the thread's fingerprint in an owner word; process numbers need at most 22.
const THREAD_BITS: u32 = 10;

/// This thread as an owner, never 0.
fn owner_word() -> u32 {
    owner_word_of(errno::thread())
}

#[inline(always)]
fn owner_word_of(thread: usize) -> u32 {
    let fingerprint = (thread >> 6) as u32 ^ (thread >> 16) as u32;
    process::pid() << THREAD_BITS | fingerprint & ((1 << THREAD_BITS) - 1)
}

/// The ordering with which a family lock is opened. Release pairs with the Acquire in [`try_lock`].
pub(crate) const UNLOCK_RELEASE: Ordering = Ordering::Release;

/// A held family lock; released on drop.
pub(crate) struct Held<'a> {
    word: &'a AtomicU32,
    /// After the lock is open: signals that came meanwhile are delivered when this is dropped.
    _section: Section,
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.word.store(0, UNLOCK_RELEASE);
    }
}

/// The thread that has kept locks ([`Held::keep`]); 0 for none. Relaxed everywhere: a thread looks
/// for itself.
static KEPT_BY: AtomicUsize = AtomicUsize::new(0);

impl Held<'_> {
    /// Leaves the lock taken, for the program that this process is about to execute
    /// ([`crate::process::handover`]). The section ends, so signal handlers run; their calls that
    /// need the lock fail after a short time.
    pub(crate) fn keep(mut self) {
        KEPT_BY.store(errno::thread(), Ordering::Relaxed);
        let section = self._section.take();
        core::mem::forget(self);
        drop(section);
    }
}

/// The program was not executed, and the kept locks are open again.
pub(crate) fn keeps_none() {
    KEPT_BY.store(0, Ordering::Relaxed);
}

/// Takes `word` if it is free.
#[inline(always)]
pub(crate) fn try_lock(word: &AtomicU32) -> Option<Held<'_>> {
    let thread = errno::thread();
    // Before the lock is taken: a handler in between would find it held by its own thread.
    let section = deferral::enter_as(thread);
    if word
        // Acquire pairs with the store by [`UNLOCK_RELEASE`] in `Held::drop`. Release pairs with
        // the Acquire load in `wait_for`: a thread that sees the owner sees its section, too.
        .compare_exchange(
            0,
            owner_word_of(thread),
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_err()
    {
        return None;
    }
    Some(Held {
        word,
        _section: section,
    })
}

/// Takes `word`. `None` when this thread holds it already (a signal handler that [`deferral`] could
/// not defer has interrupted the holder), and when its owner does not release it within
/// [`WAIT_NS_MAX`].
#[inline]
pub(crate) fn lock(word: &AtomicU32) -> Option<Held<'_>> {
    match try_lock(word) {
        Some(held) => Some(held),
        None => wait_for(word, WAIT_NS_MAX).map(|waited| waited.held),
    }
}

/// A lock for which the caller had to wait.
pub(crate) struct Waited<'a> {
    pub(crate) held: Held<'a>,
    /// The last owner was killed while it held the lock, so the new owner must repair the data.
    pub(crate) is_inherited: bool,
}

/// The time to wait for a living holder, which copies at most a ring's worth of bytes. A holder
/// that takes longer is stopped by a signal or a debugger, or the word is forged.
pub(crate) const WAIT_NS_MAX: u64 = 10_000_000_000;

/// As [`lock`], but gives up after `wait_ns_max`, and tells whether the lock was inherited.
#[cold]
pub(crate) fn wait_for(word: &AtomicU32, wait_ns_max: u64) -> Option<Waited<'_>> {
    /// If this thread seems to be the holder for this long, it is. Another holder with its
    /// fingerprint is in a section all the time; a thread in another section is not.
    const REENTRY_NS: u64 = 20_000_000;
    let me = owner_word();
    let (mut since, mut began) = (0u64, 0u64);
    let mut wait = Wait::default();
    loop {
        // Acquire pairs with the Release in `try_lock`, for `is_by_this_thread`.
        let owner = word.load(Ordering::Acquire);
        if owner == 0 {
            if let Some(held) = try_lock(word) {
                return Some(Waited {
                    held,
                    is_inherited: false,
                });
            }
        }
        if !wait.turn() {
            continue;
        }
        let now = sys::now_ns();
        if began == 0 {
            began = now;
        }
        if now - began > wait_ns_max {
            return None;
        }
        if owner == me && is_by_this_thread() {
            if since == 0 {
                since = now;
            } else if now - since > REENTRY_NS {
                return None;
            }
        } else {
            since = 0;
        }
        if let Some(inherited) = inherit_from(word, owner) {
            return Some(inherited);
        }
    }
}

/// True when no other thread with this thread's fingerprint is in a section: then a lock with that
/// fingerprint is held by this thread, or was released just now.
#[cold]
fn is_by_this_thread() -> bool {
    let me = errno::thread();
    let has_our_fingerprint = |thread| owner_word_of(thread) == owner_word_of(me);
    KEPT_BY.load(Ordering::Relaxed) == me
        || !deferral::is_outside()
            && !deferral::is_one_inside(|thread| thread != me && has_our_fingerprint(thread))
}

/// True when a lock's word names another process as its owner, alive or dead.
#[inline]
pub(crate) fn is_anothers(owner: u32) -> bool {
    owner != 0 && owner >> THREAD_BITS != process::pid()
}

/// Takes `word` over if its owner is dead.
#[cold]
pub(crate) fn inherit(word: &AtomicU32) -> Option<Waited<'_>> {
    inherit_from(word, word.load(Ordering::Relaxed))
}

fn inherit_from(word: &AtomicU32, owner: u32) -> Option<Waited<'_>> {
    let pid = owner >> THREAD_BITS;
    if !is_anothers(owner) || pid != 0 && sys::process_exists(pid) {
        return None;
    }
    let section = deferral::enter();
    // Acquire pairs with the store by [`UNLOCK_RELEASE`] in `Held::drop` of the last owner who let
    // go; the dead one is gone, and the kernel has said so.
    let taken = word.compare_exchange(owner, owner_word(), Ordering::Acquire, Ordering::Relaxed);
    taken.ok()?;
    Some(Waited {
        held: Held {
            word,
            _section: section,
        },
        is_inherited: true,
    })
}

/// A thread's wait for a lock: it spins, then yields, then sleeps.
///
/// It must sleep: `sched_yield` lets only threads of the same priority run, so a real-time thread
/// that yields for ever would keep the holder off the processor until the kernel throttles it
/// (`sched_rt_runtime_us`, sched(7)), one second for a lock that is held for a microsecond. It
/// sleeps for a time and not on a futex. With a futex each holder would have to open the lock with
/// an exchange, which costs more in every uncontended send than the few sleeps save.
#[derive(Default)]
pub(crate) struct Wait {
    turns: u32,
}

impl Wait {
    /// Waits a little, except at the first call. Returns the time since the first sleep; `began` is
    /// 0 before the first call.
    pub(crate) fn turn_ns(&mut self, began: &mut u64) -> u64 {
        if self.turns == 0 {
            self.turns = 1;
            return 0;
        }
        if !self.turn() {
            return 0;
        }
        let now = sys::now_ns();
        if *began == 0 {
            *began = now;
        }
        now - *began
    }

    /// Waits a little; true when it slept.
    fn turn(&mut self) -> bool {
        /// Number of pauses before the first yield: the holder copies at most one ring.
        const SPINS: u32 = 200;
        const YIELDS: u32 = 256;
        const SLEEP_NS_MIN: u64 = 20_000;
        /// Doublings of it.
        const DOUBLINGS_MAX: u32 = 5;
        self.turns = self.turns.saturating_add(1);
        match self.turns {
            ..=SPINS => {
                core::hint::spin_loop();
                return false;
            }
            turn if turn <= SPINS + YIELDS => {
                sys::yield_now();
                return false;
            }
            turn => sys::sleep(SLEEP_NS_MIN << (turn - SPINS - YIELDS - 1).min(DOUBLINGS_MAX)),
        }
        true
    }
}

/// A lock private to this process, for tables that are never held across a sleep.
#[derive(Default)]
pub(crate) struct Private(AtomicU32);

/// A held [`Private`] lock.
pub(crate) struct PrivateHeld<'a> {
    // Opened before the section ends, because fields are dropped in order.
    _lock: PrivateHeldWithin<'a>,
    /// As in [`Held`].
    _section: Section,
}

/// A held [`Private`] lock that was taken while the thread held another one.
pub(crate) struct PrivateHeldWithin<'a> {
    lock: &'a Private,
}

impl Private {
    /// An open lock. All zeroes also means open.
    pub(crate) const fn new() -> Private {
        Private(AtomicU32::new(0))
    }

    /// Takes it.
    #[inline]
    pub(crate) fn lock(&self) -> PrivateHeld<'_> {
        // The waiting part is a separate function, so that this one saves fewer registers.
        match self.try_lock() {
            Some(held) => held,
            None => self.wait_for(),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_for(&self) -> PrivateHeld<'_> {
        let mut wait = Wait::default();
        loop {
            wait.turn();
            if let Some(held) = self.try_lock() {
                return held;
            }
        }
    }

    /// Takes the lock. `None` when its holder does not open it within about `limit_ns`.
    pub(crate) fn lock_within_ns(&self, limit_ns: u64) -> Option<PrivateHeld<'_>> {
        let (mut wait, mut began) = (Wait::default(), 0);
        loop {
            if let Some(held) = self.try_lock() {
                return Some(held);
            }
            if wait.turn_ns(&mut began) >= limit_ns {
                return None;
            }
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<PrivateHeld<'_>> {
        let section = deferral::enter();
        self.take().map(|lock| PrivateHeld {
            _lock: lock,
            _section: section,
        })
    }

    /// Takes the lock while this thread holds `outer`, which already defers signal handlers.
    #[inline]
    pub(crate) fn lock_within<'a>(&'a self, _outer: &'a PrivateHeld<'_>) -> PrivateHeldWithin<'a> {
        let mut wait = Wait::default();
        loop {
            if let Some(held) = self.take() {
                return held;
            }
            wait.turn();
        }
    }

    #[inline(always)]
    fn take(&self) -> Option<PrivateHeldWithin<'_>> {
        // Acquire pairs with the Release store in `PrivateHeldWithin::drop`.
        let taken = self
            .0
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        // Made only when taken: dropping one opens the lock.
        taken.ok().map(|_| PrivateHeldWithin { lock: self })
    }

    /// True when the lock is held at this moment.
    pub(crate) fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Opens the lock in a forked child, whose only thread is not the holder.
    pub(crate) fn reset(&self) {
        // Relaxed: there is no other thread.
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Drop for PrivateHeldWithin<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the Acquire in `Private::take`.
        self.lock.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    const SHORT_NS: u64 = 50_000_000;

    #[test]
    fn no_owner_is_waited_for_for_ever() {
        // A forged word: our process, but none of its threads.
        let forged = AtomicU32::new(owner_word() ^ 1);
        assert!(wait_for(&forged, SHORT_NS).is_none());
        let by_init = AtomicU32::new(1 << THREAD_BITS | 1);
        assert!(wait_for(&by_init, SHORT_NS).is_none());
    }

    /// Runs `test` on a thread that is in no section. A thread of another test may have ended
    /// inside one; the next thread with its pointer counts as inside. All threads tried live on
    /// until the end, so each has a pointer of its own.
    fn outside(test: &(dyn Fn() + Sync)) {
        if deferral::is_outside() {
            return test();
        }
        let ended = std::thread::scope(|scope| scope.spawn(|| outside(test)).join());
        ended.expect("the test passes");
    }

    #[test]
    fn another_thread_with_our_fingerprint_is_waited_for() {
        outside(&|| {
            let word = AtomicU32::new(owner_word());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(60));
                    word.store(0, UNLOCK_RELEASE);
                });
                assert!(lock(&word).is_some());
            });
        });
    }

    /// As before, of a thread that holds another lock. The other thread is one of the process's
    /// that holds this one.
    #[test]
    fn another_thread_with_our_fingerprint_is_waited_for_under_another_lock() {
        // These bits cancel each other out in the fingerprint.
        let other = errno::thread() ^ (1 << 6 | 1 << 16);
        assert_eq!(owner_word_of(other), owner_word());
        let outer = AtomicU32::new(0);
        let _held = lock(&outer).expect("it is free");
        let word = AtomicU32::new(0);
        let section = deferral::enter_as(other);
        word.store(owner_word_of(other), Ordering::Release);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(60));
                word.store(0, UNLOCK_RELEASE);
                drop(section);
            });
            assert!(lock(&word).is_some());
        });
    }

    #[test]
    fn the_thread_that_has_a_lock_does_not_wait_for_it_long() {
        let word = AtomicU32::new(0);
        let _held = lock(&word).expect("it is free");
        assert!(wait_for(&word, WAIT_NS_MAX).is_none());
    }

    #[test]
    fn a_kept_lock_stays_taken_and_its_section_ends() {
        outside(&|| {
            let word = AtomicU32::new(0);
            lock(&word).expect("it is free").keep();
            assert!(deferral::is_outside());
            assert!(wait_for(&word, WAIT_NS_MAX).is_none());
            word.store(0, UNLOCK_RELEASE);
            keeps_none();
            assert!(try_lock(&word).is_some());
        });
    }

    /// The owner lives, so it may be in the middle of a copy.
    #[test]
    fn a_living_owner_of_another_user_keeps_its_lock_and_a_dead_one_does_not() {
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED: only root can start a process of another user");
            return;
        }
        let (mut says, changed_user) = std::io::pipe().expect("a pipe");
        // SAFETY: the child makes system calls only, and is ended below.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; the byte is readable.
            unsafe {
                libc::setuid(65_534);
                libc::write(changed_user.as_raw_fd(), c"".as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
        }
        says.read_exact(&mut [0])
            .expect("the child says that it is ready");
        let owner = (child as u32) << THREAD_BITS | 1;
        let word = AtomicU32::new(owner);
        let taken_from_the_living = wait_for(&word, 10 * SHORT_NS).is_some();
        // SAFETY: a child of ours.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
        }
        assert!(!taken_from_the_living);
        assert_eq!(word.load(Ordering::Relaxed), owner);
        assert!(wait_for(&word, u64::MAX).is_some());
    }

    /// Nanoseconds that this thread has run.
    fn processor_time_ns() -> u64 {
        // SAFETY: zeroes are a valid time, and it is writable.
        unsafe {
            let mut time: libc::timespec = core::mem::zeroed();
            libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        }
    }

    /// Pins this thread to processor `on` and sets its policy; false when that is not permitted.
    fn schedule(on: usize, policy: i32, priority: i32) -> bool {
        // SAFETY: zeroes are an empty set and a valid parameter; both are live.
        unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            libc::CPU_SET(on, &mut set);
            let mut parameter: libc::sched_param = core::mem::zeroed();
            parameter.sched_priority = priority;
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) == 0
                && libc::sched_setscheduler(0, policy, &parameter) == 0
        }
    }

    /// A real-time thread waits for a lock that an ordinary one holds on the same processor.
    /// Returns how long it ran meanwhile.
    fn waiting_time_ns(
        lock: impl Fn() + Sync,
        is_locked: &AtomicBool,
        unlock: impl Fn(),
    ) -> Option<u64> {
        let on = usize::try_from(sys::processor()).expect("a small number");
        let waits = AtomicBool::new(false);
        std::thread::scope(|scope| {
            assert!(schedule(on, libc::SCHED_OTHER, 0));
            let waiter = scope.spawn(|| {
                if !schedule(on, libc::SCHED_FIFO, 1) {
                    waits.store(true, Ordering::SeqCst);
                    return None;
                }
                let before = processor_time_ns();
                waits.store(true, Ordering::SeqCst);
                lock();
                Some(processor_time_ns() - before)
            });
            while !waits.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert!(is_locked.load(Ordering::SeqCst));
            unlock();
            waiter.join().expect("the waiter does not panic")
        })
    }

    /// Far more time than a sleeping waiter ever runs, and far less than the kernel gives to one
    /// that does not sleep.
    const RUN_NS_MAX: u64 = 100_000_000;

    #[test]
    fn real_time_waiter_lets_an_ordinary_holder_run() {
        let private = Private::new();
        let held = std::cell::Cell::new(Some(private.lock()));
        let locked = AtomicBool::new(true);
        let ran = waiting_time_ns(|| drop(private.lock()), &locked, || drop(held.take()));
        let word = AtomicU32::new(0);
        let held = std::cell::Cell::new(lock(&word));
        let family = waiting_time_ns(|| drop(lock(&word)), &locked, || drop(held.take()));
        let (Some(ran), Some(family)) = (ran, family) else {
            eprintln!("SKIPPED: no right to real-time scheduling (RLIMIT_RTPRIO)");
            return;
        };
        assert!(
            ran < RUN_NS_MAX,
            "waited for a private lock for {ran} ns of its own"
        );
        assert!(
            family < RUN_NS_MAX,
            "waited for a family lock for {family} ns of its own"
        );
    }
}
