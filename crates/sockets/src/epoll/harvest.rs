//! From marked bits to events: finds the events of ready members.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use libc::{EPOLLERR, EPOLLHUP, EPOLLRDHUP, epoll_event};
use toehold_channel::doorbell::WAKE_SEQ_CST;
use toehold_channel::layout::CAPACITY_LOG2_MIN;
use toehold_channel::table::Mode;
use toehold_freestanding::prefetch;
use toehold_stream::interest::Look;

use crate::connection::Connection;
use crate::epoll::instance::{BATCH, Epoll, MEMBERS_SEQ_CST};
use crate::epoll::lists::{pop_ready, push_news, push_ready, remove_ready};
use crate::epoll::nested::ReportedInstances;
use crate::epoll::parked::{listener_events, wake_one};
use crate::epoll::registration::{EDGE, READINESS, Registration, peer_tail, registration};
use crate::system::sys;
use crate::waiting::ready;

/// Members taken off the ready list for one harvest.
struct Batch {
    /// The instance's generation when the call began, so that a member of the next instance is not
    /// harvested.
    generation: u32,
    // Not zeroed, because most waits use only a few of the 64 places.
    numbers: [MaybeUninit<u32>; BATCH],
    count: usize,
}

impl Batch {
    #[inline(always)]
    fn new(generation: u32) -> Batch {
        Batch {
            generation,
            numbers: [const { MaybeUninit::uninit() }; BATCH],
            count: 0,
        }
    }

    /// Takes at most `most` members. The caller holds the lock.
    #[inline(always)]
    fn take(&mut self, epoll: &Epoll, most: usize) {
        if epoll.generation() != self.generation {
            return;
        }
        while self.count < BATCH.min(most) {
            let Some(number) = pop_ready(epoll) else {
                break;
            };
            self.numbers[self.count].write(number);
            self.count += 1;
        }
    }

    #[inline]
    fn members(&self) -> &[u32] {
        // SAFETY: the first `count` were written; a number and its place in memory look the same.
        unsafe { core::slice::from_raw_parts(self.numbers.as_ptr().cast(), self.count) }
    }
}

impl Epoll {
    /// Moves marked bits and polled members with news onto the ready list. True when the list
    /// has anything.
    pub(super) fn sweep(&self) -> bool {
        let _held = self.lock.lock();
        self.sweep_held()
    }

    /// As [`Epoll::sweep`]; the caller holds the lock.
    #[inline(always)]
    fn sweep_held(&self) -> bool {
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
                if word.load(Ordering::Relaxed).is(0) {
                    continue;
                }
                // A full barrier: what the marker published before it set the bit is seen when the
                // member is looked at.
                // Any bits will do: each stands for a slot that is looked up.
                let mut bits = word.swap(0, WAKE_SEQ_CST).capped(u64::MAX);
                while bits != 0 {
                    let slot = w as u32 * 64 + bits.trailing_zeros();
                    bits &= bits - 1;
                    if let Some(number) = pair.registration(slot) {
                        push_news(self, number.load(Ordering::Relaxed));
                    }
                }
            }
        }
        let mut n = self.polled.load(Ordering::Relaxed);
        while let Some(one) = registration(n) {
            if one.on_ready.load(Ordering::Relaxed) == 0 && has_news(one) {
                push_news(self, n);
            }
            n = one.polled_next.load(Ordering::Relaxed);
        }
        self.ready_head.load(Ordering::Relaxed) != 0
    }

    /// Looks at ready members and writes the events that the program asked for. `consume` is false
    /// when nothing may change.
    ///
    /// The looks are made without the lock, which must not be held over a system call, so two
    /// threads may be looking at one member. The events to report, and the member's state after the
    /// report, are then decided in one step under the lock, as fs/eventpoll.c does it under
    /// `ep->mtx`: only one of them reports a one-shot or an edge.
    pub(super) fn harvest(&self, generation: u32, out: &mut [epoll_event], consume: bool) -> usize {
        let held = self.lock.lock();
        let mut batch = Batch::new(generation);
        batch.take(self, out.len());
        drop(held);
        self.report_batch(&batch, out, consume)
    }

    /// [`Epoll::sweep`] and [`Epoll::harvest`] under one lock.
    pub(super) fn sweep_and_harvest(&self, generation: u32, out: &mut [epoll_event]) -> usize {
        let mut batch = Batch::new(generation);
        match self.sweep_and_take(&mut batch, out.len()) {
            true => self.report_batch(&batch, out, true),
            false => 0,
        }
    }

    /// As [`Epoll::sweep_and_harvest`], with events of nested instances. Those are recorded in
    /// `told`.
    #[inline]
    pub(super) fn sweep_and_harvest_all(
        &self,
        generation: u32,
        out: &mut [epoll_event],
        told: &mut ReportedInstances,
    ) -> usize {
        match self.nested_count.load(Ordering::Relaxed) {
            0 => self.sweep_and_harvest(generation, out),
            _ => self.harvest_beside_nested(generation, out, told),
        }
    }

    /// [`Epoll::sweep`] and the first half of [`Epoll::harvest`], of at most `most` members. On
    /// true the caller goes on with [`Epoll::report_batch`], with room for `most` events.
    #[inline(always)]
    fn sweep_and_take(&self, batch: &mut Batch, most: usize) -> bool {
        let _held = self.lock.lock();
        let has_any = self.sweep_held();
        if has_any {
            batch.take(self, most);
        }
        has_any
    }

    /// The second half of a harvest. The caller does not hold the lock.
    fn report_batch(&self, batch: &Batch, out: &mut [epoll_event], consume: bool) -> usize {
        let members = batch.members();
        if members.len() > 1 {
            // For a single member a prefetch gains nothing.
            fetch_lines(members);
        }
        let processor = sys::processor() + 1;
        let mut looks = [const { MaybeUninit::<(u32, Look)>::uninit() }; BATCH];
        let mut found = 0;
        for &number in members {
            if let Some(look) = self.look(number, processor) {
                looks[found].write((number, look));
                found += 1;
            }
        }
        let mut written = 0;
        if found > 0 {
            let _held = self.lock.lock();
            // If the instance was closed meanwhile, the numbers may belong to members of the next
            // instance.
            let found = match self.generation() == batch.generation {
                true => found,
                false => 0,
            };
            for look in &looks[..found] {
                // SAFETY: the first `found` were written above.
                let (number, look) = unsafe { look.assume_init_ref() };
                if let Some(event) = self.report(*number, look, consume) {
                    out[written] = event;
                    written += 1;
                }
            }
        }
        self.share();
        written
    }

    /// The events that `number` is ready for, if the program asked for any of them.
    #[inline(always)]
    fn look(&self, number: u32, processor: u32) -> Option<Look> {
        let one = registration(number)?;
        one.look(|interest| match one.behind() {
            Some(connection) => Some(self.look_at(&connection, interest, processor)),
            None => listener_events(one),
        })
    }

    /// The event for `look`, unless another thread has reported it or the registration has changed
    /// since. The caller holds the lock.
    #[inline(always)]
    fn report(&self, number: u32, look: &Look, consume: bool) -> Option<epoll_event> {
        let one = registration(number)?;
        if one.epoll.load(Ordering::Relaxed) != self.number.load(Ordering::Relaxed) {
            return None;
        }
        let mut is_by_carrier = false;
        let report = one.report(look, consume, || {
            let connection = one.behind()?;
            let end = connection.end();
            is_by_carrier = end.is_some_and(|end| end.rx_mode() != Mode::Ring);
            Some(peer_tail(&connection))
        })?;
        if report.stays {
            push_ready(self, number);
        }
        if is_by_carrier && consume {
            // The kernel has an event for these bytes, too. This call takes it, so that it is not
            // an edge of the next call.
            self.kernel_seen_ns.store(0, Ordering::Relaxed);
        }
        Some(epoll_event {
            events: report.events,
            u64: report.data,
        })
    }

    /// Called when a thread has taken its part of the ready list. Wakes a sleeping thread for the
    /// rest, as `ep_done_scan` does (fs/eventpoll.c): no peer rings for the rest, because it has
    /// already rung once. Not to be called with the lock held.
    #[inline]
    pub(super) fn share(&self) {
        let mut left = self.ready_head.load(MEMBERS_SEQ_CST);
        while left != 0 && self.sleepers.any() {
            if left == self.listener.load(Ordering::Relaxed) {
                return wake_one(self);
            }
            if self.kick(left) {
                return;
            }
            // Another thread takes this member off the list, under the lock.
            let _held = self.lock.lock();
            left = self.ready_head.load(Ordering::Relaxed);
            if registration(left).is_some_and(|one| !one.is_ours()) {
                // A fork has cut that thread off in this process.
                remove_ready(self, left);
                left = self.ready_head.load(Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn look_at(&self, connection: &Connection, events: u32, processor: u32) -> u32 {
        let Some(end) = connection.inside() else {
            return 0;
        };
        let theirs = end.exchange_processors(processor);
        self.last_peer_processor.store(theirs, Ordering::Relaxed);
        // Poll and epoll share these bits (include/uapi/linux/eventpoll.h).
        ready::named_events(connection, &end, (events & READINESS) as i16) as u16 as u32
    }
}

/// Prefetches the words and bytes of all members with news, which are in another core's cache.
pub(super) fn fetch_lines(batch: &[u32]) {
    for connection in batch
        .iter()
        .filter_map(|&n| registration(n))
        .filter_map(Registration::behind)
    {
        if let Some(end) = connection.end() {
            prefetch::for_read(&raw const end.theirs().publish.tail);
            // This is right for a ring that has its first capacity. For a ring that grew, the
            // prefetch is useless but harmless.
            let offset = connection
                .entry
                .rx_ring
                .load(Ordering::Relaxed)
                .masked((1 << CAPACITY_LOG2_MIN) - 1);
            prefetch::for_read(end.ring_in().wrapping_add(offset as usize).cast_const());
        }
    }
}

/// True when a look at the registration would report something.
pub(super) fn has_news(one: &Registration) -> bool {
    let Some(connection) = one.behind() else {
        return false;
    };
    let wanted = one.events();
    if wanted & READINESS == 0 {
        return false;
    }
    let all = connection.inside().map_or(0, |end| {
        let interest = wanted & READINESS | EPOLLRDHUP as u32;
        ready::named_events(&connection, &end, interest as i16) as u16 as u32
    });
    let ready = all & (wanted | (EPOLLERR | EPOLLHUP) as u32);
    ready != 0 && (wanted & EDGE == 0 || one.is_new_edge(all, peer_tail(&connection), false))
}
