//! How a thread that sleeps on an instance announces that to all threads and peers that may have to
//! wake it.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use toehold_channel::doorbell::WAKING;
use toehold_channel::sync::fence;

use crate::epoll::instance::{Counted, EPOLLS_MAX, Epoll, POLLED_MAX, epoll};
use crate::epoll::registration::{Registration, registration};
use crate::memory::pieces::{PIECE_BYTES, Piece};
use crate::waiting::arming::Armed;

impl Epoll {
    /// Counts a sleeping thread, and sets the sleep words of all ready bitmaps.
    pub(super) fn begin_sleep(&self) -> Counted {
        let _held = self.lock.lock();
        let counted = self.sleepers.enter();
        self.set_sleeping(1);
        counted
    }

    /// Counts a thread out. The notifier of this wake-up has cleared sleep words: if other threads
    /// still sleep, the words are set again, and this thread takes the bits that were marked in
    /// between.
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

    /// A thread that only looked has taken a kernel event that was to wake a sleeping thread, after
    /// the notifier has cleared the sleep words. Sets the words again and puts members that were
    /// marked in between on the ready list. The caller then wakes the sleeper ([`Epoll::share`]).
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
/// Both lists may change meanwhile: members come, go and get regions; an instance may be closed and
/// its place used again. The sleep ends with exactly those members and instances with which it
/// began.
pub(crate) struct Watch {
    /// Room for [`Lists`], once there is something to watch: most sleeps have nothing.
    piece: Option<Piece>,
    member_count: usize,
    instance_count: usize,
}

/// The first places of each are written, as many as [`Watch`] counts.
struct Lists {
    members: [MaybeUninit<Armed>; POLLED_MAX],
    /// Numbers of instances.
    instances: [MaybeUninit<(u32, Counted)>; EPOLLS_MAX],
    /// Numbers of an instance's polled members, while they are armed.
    numbers: [MaybeUninit<u32>; POLLED_MAX],
}

impl Watch {
    /// Nothing yet.
    pub(crate) fn new() -> Watch {
        Watch {
            piece: None,
            member_count: 0,
            instance_count: 0,
        }
    }

    fn lists(&mut self) -> Result<&mut Lists, OutOfMemory> {
        const { assert!(size_of::<Lists>() <= PIECE_BYTES) };
        if self.piece.is_none() {
            self.piece = Piece::take();
        }
        let piece = self.piece.as_mut().ok_or(OutOfMemory)?;
        // SAFETY: any bytes are valid for it.
        Ok(unsafe { piece.places::<Lists>()[0].assume_init_mut() })
    }

    /// Begins a sleep on instance `number`, whose descriptor is watched from outside.
    ///
    /// # Errors
    /// There is no memory to record everything that must be able to end the sleep.
    pub(crate) fn begin(&mut self, number: u32) -> Result<(), OutOfMemory> {
        let at = self.instance_count;
        let (Some(epoll), true) = (epoll(number), at < EPOLLS_MAX) else {
            return Ok(());
        };
        let place = &mut self.lists()?.instances[at];
        place.write((number, epoll.begin_sleep()));
        self.instance_count += 1;
        self.begin_inside(epoll)
    }

    /// A sleep on what `epoll` has: its polled members, as many as one sleep can arm, and the
    /// instances in it.
    ///
    /// # Errors
    /// As [`Watch::begin`].
    pub(super) fn begin_inside(&mut self, epoll: &Epoll) -> Result<(), OutOfMemory> {
        // Relaxed: the caller has counted itself in under the lock. A member that is linked after
        // that finds a sleeper, and this finds each one that was linked before.
        if epoll.polled.load(Ordering::Relaxed) != 0 {
            let mut count = self.member_count;
            let lists = self.lists()?;
            for &n in epoll.polled_members(&mut lists.numbers[..POLLED_MAX - count]) {
                if let Some(member) = arm_member(n) {
                    lists.members[count].write(member);
                    count += 1;
                }
            }
            self.member_count = count;
        }
        for inner in epoll.known_nested() {
            self.begin(inner.number.load(Ordering::Relaxed))?;
        }
        Ok(())
    }

    /// The sleep is over. Nothing is watched any more, and the memory is given back.
    pub(crate) fn end(&mut self) {
        let Some(mut piece) = self.piece.take() else {
            return;
        };
        // SAFETY: as in `lists`.
        let lists = unsafe { piece.places::<Lists>()[0].assume_init_ref() };
        for member in &lists.members[..self.member_count] {
            // SAFETY: `begin_inside` has written those below the count.
            unsafe { member.assume_init_read() }.end(|_, _| {});
        }
        for instance in &lists.instances[..self.instance_count] {
            // SAFETY: `begin` has written those below the count.
            let (number, counted) = unsafe { instance.assume_init_read() };
            if let Some(epoll) = epoll(number) {
                epoll.end_sleep(counted);
            }
        }
        (self.member_count, self.instance_count) = (0, 0);
    }
}

/// There is no memory for the lists of a sleep.
#[derive(Debug)]
pub(crate) struct OutOfMemory;

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

/// Counts a sleeper that waits for member `n`. `None` when the member has no region; then no
/// sleeper is counted.
fn arm_member(n: u32) -> Option<Armed> {
    let connection = registration(n).and_then(Registration::behind)?;
    let end = connection.inside()?;
    Some(Armed::begin(&connection, &end))
}
