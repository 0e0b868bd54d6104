//! How a thread that sleeps on an instance says so, to all who may have to wake it.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::WAKING;
use toehold_channel::sync::fence;

use crate::arming::{arm, disarm};
use crate::epoll::instance::{BOOKS, Epoll};
use crate::epoll::registration::{Registration, registration};

impl Epoll {
    /// One more thread sleeps on this instance: says so on all its ready bitmaps.
    pub(super) fn begin_sleep(&self) {
        let _held = self.lock.lock();
        self.sleepers.fetch_add(1, BOOKS);
        self.set_sleeping(1);
    }

    /// One less. The notifier of this wake-up took the ready bitmaps' sleep words: for threads that
    /// still sleep they are set again, and what was marked in between is taken by us.
    pub(super) fn end_sleep(&self) {
        let others = {
            let _held = self.lock.lock();
            let others = self.sleepers.fetch_sub(1, BOOKS) > 1;
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

    /// Polled members, as many as one sleep can arm.
    pub(super) fn polled_members(&self, out: &mut [u32]) -> usize {
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
}

/// A sleeper waits for member `n`, or no longer (`on` is false).
pub(super) fn arm_member(n: u32, on: bool) {
    if let Some(connection) = registration(n).and_then(Registration::behind) {
        if let Some(end) = connection.inside() {
            if on {
                arm(&connection, &end)
            } else {
                disarm(&connection, &end)
            }
        }
    }
}
