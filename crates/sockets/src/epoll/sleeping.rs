//! How a thread that sleeps on an instance says so, to all who may have to wake it.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use toehold_channel::doorbell::WAKING;
use toehold_channel::sync::fence;

use crate::epoll::instance::{Counted, EPOLLS_MAX, Epoll, POLLED_MAX, epoll};
use crate::epoll::registration::{Registration, registration};
use crate::waiting::arming::Armed;

impl Epoll {
    /// One more thread sleeps on this instance: says so on all its ready bitmaps.
    pub(super) fn begin_sleep(&self) -> Counted {
        let _held = self.lock.lock();
        let counted = self.sleepers.enter();
        self.set_sleeping(1);
        counted
    }

    /// One less. The notifier of this wake-up took the ready bitmaps' sleep words: for threads that
    /// still sleep they are set again, and what was marked in between is taken by us.
    pub(super) fn end_sleep(&self, counted: Counted) {
        let others = {
            let _held = self.lock.lock();
            let Some(others) = self.sleepers.leave(counted) else {
                return;
            };
            self.set_sleeping(others.into());
            others
        };
        if others {
            // Pairs with the notifier's exchange in `doorbell::mark`: it sees the sleep words, or
            // we see its bit.
            fence(Ordering::SeqCst);
            self.sweep();
        }
    }

    /// A thread that only looked has taken from the kernel what was to wake one that sleeps, whose
    /// notifier has taken the sleep words: they are set again, and what was marked in between is on
    /// the ready list. The caller shares it.
    pub(super) fn sleep_on(&self) {
        if !self.sleepers.any() {
            return;
        }
        {
            let _held = self.lock.lock();
            if !self.sleepers.any() {
                return;
            }
            self.set_sleeping(1);
        }
        // As in `end_sleep`. Pairs with the notifier's exchange in `doorbell::mark`.
        fence(Ordering::SeqCst);
        self.sweep();
    }

    /// Sets or clears the sleep words of all ready bitmaps. The caller holds the lock.
    fn set_sleeping(&self, sleeping: u32) {
        for place in 0..self.pair_count.load(Ordering::Relaxed) as usize {
            // SAFETY: as in `sweep`.
            let Some(pair) = (unsafe { self.pairs[place].load(Ordering::Relaxed).as_ref() }) else {
                continue;
            };
            if let Some(bitmap) = pair.ours(self.bitmaps[place].load(Ordering::Relaxed)) {
                bitmap.sleeping.store(sleeping, WAKING);
            }
        }
    }
}

/// Polled members that one sleep has armed, and instances inside others that it watches.
///
/// Both may change meanwhile: members come and go, and get a region; an instance is closed, and its
/// place becomes another's. The sleep ends on those on which it began.
pub(crate) struct Watch {
    members: [MaybeUninit<Armed>; POLLED_MAX],
    member_count: usize,
    /// Numbers of instances.
    instances: [MaybeUninit<(u32, Counted)>; EPOLLS_MAX],
    instance_count: usize,
}

impl Watch {
    /// Nothing yet.
    pub(crate) fn new() -> Watch {
        Watch {
            members: [const { MaybeUninit::uninit() }; POLLED_MAX],
            member_count: 0,
            instances: [const { MaybeUninit::uninit() }; EPOLLS_MAX],
            instance_count: 0,
        }
    }

    /// A sleep on instance `number` by somebody who watches its descriptor from outside.
    pub(crate) fn begin(&mut self, number: u32) {
        let (Some(epoll), true) = (epoll(number), self.instance_count < EPOLLS_MAX) else {
            return;
        };
        self.instances[self.instance_count].write((number, epoll.begin_sleep()));
        self.instance_count += 1;
        self.begin_inside(epoll);
    }

    /// A sleep on what `epoll` has: its polled members, as many as one sleep can arm, and the
    /// instances in it.
    pub(super) fn begin_inside(&mut self, epoll: &Epoll) {
        let mut numbers = [const { MaybeUninit::uninit() }; POLLED_MAX];
        let room = POLLED_MAX - self.member_count;
        for &n in epoll.polled_members(&mut numbers[..room]) {
            if let Some(member) = arm_member(n) {
                self.members[self.member_count].write(member);
                self.member_count += 1;
            }
        }
        for inner in epoll.known_nested() {
            self.begin(inner.number.load(Ordering::Relaxed));
        }
    }

    /// The sleep is over.
    pub(crate) fn end(&self) {
        for member in &self.members[..self.member_count] {
            // SAFETY: `begin_inside` has written those below the count.
            unsafe { member.assume_init_read() }.end(|_, _| {});
        }
        for instance in &self.instances[..self.instance_count] {
            // SAFETY: `begin` has written those below the count.
            let (number, counted) = unsafe { instance.assume_init_read() };
            if let Some(epoll) = epoll(number) {
                epoll.end_sleep(counted);
            }
        }
    }
}

impl Epoll {
    /// Writes the numbers of polled members to `out`, as many as it takes.
    fn polled_members<'a>(&self, out: &'a mut [MaybeUninit<u32>]) -> &'a [u32] {
        let _held = self.lock.lock();
        let mut count = 0;
        let mut n = self.polled.load(Ordering::Relaxed);
        while let (Some(one), true) = (registration(n), count < out.len()) {
            out[count].write(n);
            count += 1;
            n = one.polled_next.load(Ordering::Relaxed);
        }
        // SAFETY: the first `count` were just written.
        unsafe { core::slice::from_raw_parts(out.as_ptr().cast(), count) }
    }
}

/// A sleeper waits for member `n`. `None` when it has no region, and the sleeper is not counted.
fn arm_member(n: u32) -> Option<Armed> {
    let connection = registration(n).and_then(Registration::behind)?;
    let end = connection.inside()?;
    Some(Armed::begin(&connection, &end))
}
