//! How a thread that sleeps on an instance says so, to all who may have to wake it.

use core::sync::atomic::Ordering;

use toehold_channel::doorbell::WAKING;
use toehold_channel::sync::fence;

use crate::arming::{arm, disarm};
use crate::epoll::instance::{BOOKS, Epoll};
use crate::epoll::registration::{Registration, registration};
use crate::{lock, sleepers};

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

/// A sleeper waits for member `n`. False when it has no region, and the sleeper is not counted.
pub(super) fn arm_member(n: u32) -> bool {
    let behind = registration(n).and_then(Registration::behind);
    let Some(connection) = behind else {
        return false;
    };
    let end = connection.inside();
    if let Some(end) = &end {
        arm(&connection, end);
    }
    end.is_some()
}

/// A sleeper that [`arm_member`] has counted waits for member `n` no longer.
pub(super) fn disarm_member(n: u32) {
    let Some(connection) = registration(n).and_then(Registration::behind) else {
        return;
    };
    match connection.inside() {
        Some(end) => disarm(&connection, &end),
        // It has left its region meanwhile: there is no wake word to set, but a sleeper less.
        None => {
            let _held = lock::lock(&connection.entry.wake_lock);
            sleepers::leave(&connection);
        }
    }
}
