//! A thread that sleeps on an instance announces that to all threads and peers that may have to
//! wake it.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use toehold_channel::doorbell::{SLEEPS_NOT, SLEEPS_ON_CARRIER, SLEEPS_ON_PAIR, WAKE_SEQ_CST};
use toehold_channel::sync::fence;
use toehold_freestanding::memory;

use crate::epoll::instance::{Counted, EPOLLS_MAX, Epoll, POLLED_MAX, epoll};
use crate::epoll::registration::{Registration, registration};
use crate::memory::pieces::{PIECE_BYTES, Piece};
use crate::system::sys;
use crate::waiting::arming::Armed;

impl Epoll {
    /// Counts a sleeping thread, and sets the sleep words of all ready bitmaps.
    pub(super) fn begin_sleep(&self) -> Counted {
        let _held = self.lock.lock();
        let counted = self.sleepers.enter();
        self.set_sleeping(Asleep::OnCarrier);
        counted
    }

    /// As [`Epoll::begin_sleep`], of a thread that takes the doorbells of pairs. False when other
    /// threads sleep on this instance, too: they need its carriers.
    pub(super) fn begin_sleep_on_pairs(&self) -> (Counted, bool) {
        let _held = self.lock.lock();
        let is_alone = !self.sleepers.any();
        let counted = self.sleepers.enter();
        self.set_sleeping(match is_alone {
            true => Asleep::OnPairs,
            false => Asleep::OnCarrier,
        });
        (counted, is_alone)
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
            self.set_sleeping(match others {
                true => Asleep::OnCarrier,
                false => Asleep::Not,
            });
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
            self.set_sleeping(Asleep::OnCarrier);
        }
        // As in `end_sleep`. Pairs with the notifier's exchange in `doorbell::mark`.
        fence(Ordering::SeqCst);
        self.sweep();
    }

    /// Sets or clears the sleep words of all ready bitmaps. The caller holds the lock.
    fn set_sleeping(&self, asleep: Asleep) {
        for place in 0..self.pair_count.load(Ordering::Relaxed) as usize {
            // SAFETY: as in `sweep`.
            let Some(pair) = (unsafe { self.pairs[place].load(Ordering::Relaxed).as_ref() }) else {
                continue;
            };
            if let Some(bitmap) = pair.ours(self.bitmaps[place].load(Ordering::Relaxed)) {
                let sleeping = match asleep {
                    Asleep::Not => SLEEPS_NOT,
                    Asleep::OnPairs if pair.has_doorbell() => SLEEPS_ON_PAIR,
                    Asleep::OnPairs | Asleep::OnCarrier => SLEEPS_ON_CARRIER,
                };
                bitmap.sleeping.store(sleeping, WAKE_SEQ_CST);
            }
        }
    }
}

/// Whether a thread sleeps on an instance, and for which doorbells.
#[derive(Clone, Copy)]
enum Asleep {
    Not,
    OnCarrier,
    /// Those of the pairs that have one, and the carriers.
    OnPairs,
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
    many: Option<MappedMembers>,
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
            many: None,
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

    /// A sleep on what `epoll` has: its polled members and the instances in it.
    ///
    /// # Errors
    /// As [`Watch::begin`].
    pub(super) fn begin_inside(&mut self, epoll: &Epoll) -> Result<(), OutOfMemory> {
        // Relaxed: the caller has counted itself in under the lock. A member that is linked after
        // that finds a sleeper, and this finds each one that was linked before.
        if epoll.polled.load(Ordering::Relaxed) != 0 {
            let first = self.member_count;
            let lists = self.lists()?;
            let numbers = &mut lists.numbers[..POLLED_MAX - first];
            match epoll.polled_members(numbers) {
                Some(numbers) => {
                    self.member_count += arm_members(numbers, &mut lists.members[first..])
                }
                None => {
                    let many = MappedMembers::armed(epoll, &mut self.many).ok_or(OutOfMemory)?;
                    self.many = Some(many);
                }
            }
        }
        for inner in epoll.known_nested() {
            self.begin(inner.number.load(Ordering::Relaxed))?;
        }
        Ok(())
    }

    /// The sleep is over. Nothing is watched any more, and the memory is given back.
    pub(crate) fn end(&mut self) {
        while let Some(mut many) = self.many.take() {
            many.disarm();
            self.many = many.take_before();
        }
        let Some(mut piece) = self.piece.take() else {
            return;
        };
        // SAFETY: as in `lists`.
        let lists = unsafe { piece.places::<Lists>()[0].assume_init_ref() };
        // SAFETY: `begin_inside` has written those below the count.
        unsafe { disarm_members(&lists.members[..self.member_count]) };
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

/// Armed members of an instance that has more of them than there is room for in [`Lists`]. They lie
/// in memory of their own, mapped for one sleep:
///
/// ```text
///   those of another instance, if any │ armed members, `count` of `room` │ `room` numbers
/// ```
struct MappedMembers {
    base: NonNull<Option<MappedMembers>>,
    room: usize,
    count: usize,
}

impl MappedMembers {
    /// Arms the members of `epoll`, and keeps those of `before`. `None`: there is no memory, and
    /// `before` stays where it is.
    #[cold]
    fn armed(epoll: &Epoll, before: &mut Option<MappedMembers>) -> Option<MappedMembers> {
        let mut room = 2 * POLLED_MAX;
        loop {
            let mut many = MappedMembers::with_room(room)?;
            let (members, numbers) = many.parts();
            if let Some(numbers) = epoll.polled_members(numbers) {
                many.count = arm_members(numbers, members);
                // SAFETY: mapped, aligned, and ours alone; nothing is there that wants a drop.
                unsafe { many.base.write(before.take()) };
                return Some(many);
            }
            // The number of registrations is bounded, so this loop ends.
            room *= 2;
        }
    }

    fn with_room(room: usize) -> Option<MappedMembers> {
        let base = NonNull::new(sys::map_memory(MappedMembers::bytes(room)).cast())?;
        let count = 0;
        // SAFETY: mapped, page-aligned, and ours alone.
        unsafe { base.write(None) };
        Some(MappedMembers { base, room, count })
    }

    fn bytes(room: usize) -> usize {
        size_of::<Option<MappedMembers>>() + room * (size_of::<Armed>() + size_of::<u32>())
    }

    fn parts(&mut self) -> (&mut [MaybeUninit<Armed>], &mut [MaybeUninit<u32>]) {
        const { assert!(align_of::<Armed>() <= align_of::<Option<MappedMembers>>()) };
        const { assert!(align_of::<u32>() <= align_of::<Armed>()) };
        // SAFETY: `with_room` has mapped as many of both behind the first word, and any bytes are
        // valid for them. The second array begins where the first one ends.
        unsafe {
            let members: *mut MaybeUninit<Armed> = self.base.as_ptr().add(1).cast();
            let numbers = members.add(self.room).cast();
            (
                core::slice::from_raw_parts_mut(members, self.room),
                core::slice::from_raw_parts_mut(numbers, self.room),
            )
        }
    }

    /// Disarms the members: the sleep is over.
    fn disarm(&mut self) {
        let count = self.count;
        // SAFETY: `armed` has written those below the count.
        unsafe { disarm_members(&self.parts().0[..count]) };
    }

    /// Takes the list of the instance before out of this one.
    fn take_before(&mut self) -> Option<MappedMembers> {
        // SAFETY: written by `with_room`, in a mapping that is ours alone.
        unsafe { self.base.as_mut() }.take()
    }
}

impl Drop for MappedMembers {
    /// Unmaps the memory. Its members are no longer armed, or never were.
    fn drop(&mut self) {
        // SAFETY: mapped by `with_room`, with this size, and used by nothing else.
        unsafe { memory::unmap(self.base.as_ptr().cast(), MappedMembers::bytes(self.room)) };
    }
}

impl Epoll {
    /// Writes the numbers of polled members to `out`. `None`: it is too short.
    fn polled_members<'a>(&self, out: &'a mut [MaybeUninit<u32>]) -> Option<&'a [u32]> {
        let _held = self.lock.lock();
        let mut count = 0;
        let mut n = self.polled.load(Ordering::Relaxed);
        while let Some(one) = registration(n) {
            out.get_mut(count)?.write(n);
            count += 1;
            n = one.polled_next.load(Ordering::Relaxed);
        }
        // SAFETY: the first `count` were just written.
        Some(unsafe { core::slice::from_raw_parts(out.as_ptr().cast(), count) })
    }
}

/// A sleeper waits for each of these members that has a region. They are written to `out`, which
/// has room for all of them: how many they are.
fn arm_members(numbers: &[u32], out: &mut [MaybeUninit<Armed>]) -> usize {
    let mut count = 0;
    for member in numbers.iter().filter_map(|&n| arm_member(n)) {
        out[count].write(member);
        count += 1;
    }
    count
}

/// The sleeper waits for none of these any more.
///
/// # Safety
/// They are written, and read this once.
unsafe fn disarm_members(members: &[MaybeUninit<Armed>]) {
    for member in members {
        // SAFETY: the caller's promise.
        unsafe { member.assume_init_read() }.end(|_, _, _| {});
    }
}

/// Counts a sleeper that waits for member `n`. `None` when the member has no region; then no
/// sleeper is counted.
fn arm_member(n: u32) -> Option<Armed> {
    let connection = registration(n).and_then(Registration::behind)?;
    let end = connection.inside()?;
    Some(Armed::begin(&connection, &end))
}
