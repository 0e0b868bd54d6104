//! Pairs of processes, whose ready bitmaps serve many channels.
//!
//! A pair maps 132 KB of ready bitmaps and 544 KB for the tables that map bits to registrations;
//! the table of all pairs has 4096 places in 320 KB. This is address space: a page uses memory only
//! once it is touched, and with a few channels that is a page or two for each side. The look-up for
//! a bit is one addition. `mlockall(2)` leaves these mappings out ([`crate::memory::mlockall`]).

use core::ptr::NonNull;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use toehold_freestanding::fd::{BorrowedFd, OwnedFd};
use toehold_freestanding::memory;

use toehold_channel::layout::{
    PAIR_BYTES, PAIR_MAGIC, PairHeader, READY_BITMAPS, READY_BITMAPS_OFFSET, READY_BITS,
    ReadyBitmap, ReadyBitmaps, SLAB_SLOTS,
};
use toehold_channel::memfd;
use toehold_channel::table::LAYOUT_VERSION;
use toehold_stream::express::{Popper, Pusher};

use crate::process::pair_doorbells::{self, PairDoorbells};

/// Two processes and the ready bitmaps between them, as this process maps them. A pair is kept as
/// long as a channel uses it.
pub(crate) struct Pair {
    id: u64,
    base: *mut u8,
    /// Our side.
    side: usize,
    /// Channels of ours that use it; 0 is a free place.
    pub(crate) channels: AtomicU32,
    /// Epoll object (plus one) served by each of our ready bitmaps.
    pub(crate) epolls: [AtomicU32; READY_BITMAPS],
    /// One more than the highest slot in use.
    pub(crate) slots_used: AtomicU32,
    /// The registration of each slot, for our ready bitmaps.
    pub(crate) registrations: *mut AtomicU32,
    /// The slabs by index, see [`crate::memory::slabs`]; in memory behind the registrations.
    slabs: *mut AtomicU32,
    /// For each slot, one more than the entry of its parked carrier, if we have accepted it; in
    /// memory behind the slabs.
    carriers: *mut AtomicU32,
    /// Connections that we have queued in all for the peer to accept.
    pushed: AtomicU32,
    /// Connections that we have taken in all out of the peer's queue.
    popped: AtomicU32,
    /// See [`Pair::may_call`].
    called: AtomicU64,
    pub(crate) doorbells: PairDoorbells,
}

/// The most doorbells for one request of the adapter that both processes have to follow. One is
/// enough if it wakes a thread, but a connection may ask for a doorbell although no thread sleeps
/// on it.
const CALLS_MAX: u32 = 4;

/// Places for registrations, and for slabs.
const PLACES: usize = 2 * READY_BITS + READY_BITS / SLAB_SLOTS as usize;
const PLACES_BYTES: usize = PLACES * size_of::<AtomicU32>();

impl Pair {
    fn bitmap_at(&self, side: usize, index: u32) -> Option<&ReadyBitmap> {
        if index as usize >= READY_BITMAPS {
            return None;
        }
        // SAFETY: `base` maps PAIR_BYTES while the pair is in use; both sides' ready bitmaps lie
        // inside; all atomics.
        let bitmaps = unsafe {
            &*self
                .base
                .add(READY_BITMAPS_OFFSET)
                .cast::<ReadyBitmaps>()
                .add(side)
        };
        bitmaps.bitmaps.get(index as usize)
    }

    /// One of our ready bitmaps: we sleep on it and sweep it.
    #[inline]
    pub(crate) fn ours(&self, index: u32) -> Option<&ReadyBitmap> {
        self.bitmap_at(self.side, index)
    }

    /// One of the peer's ready bitmaps: we mark it.
    #[inline]
    pub(crate) fn theirs(&self, index: u32) -> Option<&ReadyBitmap> {
        self.bitmap_at(1 - self.side, index)
    }

    /// Takes the doorbells of the pair: `own` wakes this process, and `peers` its peer. The caller
    /// holds the adapter's lock.
    pub(crate) fn take_doorbells(&self, own: OwnedFd, peers: OwnedFd) {
        // Two different pairs may hold what is used up: a pair may have one doorbell only.
        for _ in 0..2 {
            // A peer that has ended, perhaps. If not, its carriers are rung.
            let is_idle = |pair: &Pair| pair.channels.load(Ordering::Relaxed) == 0;
            let makes_room = |pair: &Pair| is_idle(pair) && pair.doorbells.hold_what_is_used_up();
            if pair_doorbells::has_room() {
                break;
            }
            if let Some(idle) = known().find(|&pair| makes_room(pair)) {
                idle.doorbells.close();
            }
        }
        self.doorbells.keep(own, peers);
    }

    /// True when the peer can wake this process by the pair's doorbell.
    #[inline]
    pub(crate) fn has_doorbell(&self) -> bool {
        self.doorbells.is_heard()
    }

    /// The registration for a bit of our ready bitmaps.
    #[inline]
    pub(crate) fn registration(&self, slot: u32) -> Option<&AtomicU32> {
        if slot as usize >= READY_BITS {
            return None;
        }
        // SAFETY: the array has READY_BITS places and lives as long as the pair.
        Some(unsafe { &*self.registrations.add(slot as usize) })
    }

    /// Counts a doorbell for the adapter's request with this number, on any connection of the pair.
    /// True while the count is within [`CALLS_MAX`].
    pub(crate) fn may_call(&self, request: u32) -> bool {
        let next = |called: u64| {
            let is_first = (called >> 32) as u32 != request;
            let count = if is_first { 0 } else { called as u32 };
            (count < CALLS_MAX).then(|| u64::from(request) << 32 | u64::from(count + 1))
        };
        // Relaxed: a bound, which orders nothing.
        (self.called)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }

    fn header(&self) -> &PairHeader {
        // SAFETY: `base` maps PAIR_BYTES while the pair is in use, and begins with the header; all
        // atomics.
        unsafe { &*self.base.cast::<PairHeader>() }
    }

    /// The queue of our connections for the peer to accept.
    pub(crate) fn to_accept(&self) -> Pusher<'_> {
        Pusher {
            words: &self.header().queues[1 - self.side],
            pushed: &self.pushed,
        }
    }

    /// The queue of the peer's connections for us to accept.
    pub(crate) fn acceptable(&self) -> Popper<'_> {
        Popper {
            words: &self.header().queues[self.side],
            popped: &self.popped,
        }
    }

    /// The parked carrier of a slot.
    pub(crate) fn carrier(&self, slot: u32) -> Option<&AtomicU32> {
        if slot as usize >= READY_BITS {
            return None;
        }
        // SAFETY: the array has READY_BITS places and lives as long as the pair.
        Some(unsafe { &*self.carriers.add(slot as usize) })
    }

    /// The word that holds the slab with that index.
    pub(crate) fn slab(&self, index: u32) -> Option<&AtomicU32> {
        if index as usize >= READY_BITS / SLAB_SLOTS as usize {
            return None;
        }
        // SAFETY: the array has that many places and lives as long as the pair.
        Some(unsafe { &*self.slabs.add(index as usize) })
    }
}

/// Pairs this process can be part of at a time.
const PAIRS_MAX: usize = 4096;
const PAIRS_BYTES: usize = PAIRS_MAX * size_of::<Pair>();
static PAIRS: AtomicPtr<Pair> = AtomicPtr::new(null_mut());

fn pairs() -> Option<&'static [Pair]> {
    // Acquire pairs with the Release store below, in `pairs`.
    let mut base = PAIRS.load(Ordering::Acquire);
    if base.is_null() {
        base = memfd::map_private(PAIRS_BYTES).ok()?.as_ptr().cast();
        // Release pairs with the Acquire load above, in `pairs`.
        PAIRS.store(base, Ordering::Release);
    }
    // SAFETY: zeroes are valid `Pair`s (null pointers, zero atomics); the reservation is never
    // released.
    Some(unsafe { core::slice::from_raw_parts(base, PAIRS_MAX) })
}

/// The address and length of each mapping here. Callers hold the adapter's lock.
pub(crate) fn mapped() -> impl Iterator<Item = (usize, usize)> {
    // Acquire pairs with the Release store in `pairs`.
    let base = PAIRS.load(Ordering::Acquire);
    let table = (base as usize, PAIRS_BYTES);
    let parts = known().flat_map(|pair| {
        [
            (pair.base as usize, PAIR_BYTES),
            (pair.registrations as usize, PLACES_BYTES),
        ]
    });
    (!base.is_null()).then_some(table).into_iter().chain(parts)
}

/// The library's descriptor `from` is `to` now; negative when it is gone.
pub(crate) fn doorbell_moved(from: i32, to: i32) {
    known().for_each(|pair| pair.doorbells.moved(from, to));
}

/// This process is a child: the doorbells of these pairs wake its parent. Uses no allocation and no
/// lock.
pub(crate) fn forked() {
    known().for_each(|pair| pair.doorbells.stop_listening());
}

/// The pairs that were mapped so far.
fn known() -> impl Iterator<Item = &'static Pair> {
    // Acquire pairs with the Release store in `pairs`.
    let base = PAIRS.load(Ordering::Acquire);
    let known: &[Pair] = match base.is_null() {
        true => &[],
        // SAFETY: as in `pairs`.
        false => unsafe { core::slice::from_raw_parts(base, PAIRS_MAX) },
    };
    known.iter().take_while(|pair| !pair.base.is_null())
}

/// A pair that this process has already mapped.
pub(crate) fn find_pair(id: u64, side: usize) -> Option<&'static Pair> {
    known().find(|pair| pair.id == id && pair.side == side)
}

/// A pair's memfd, mapped and verified; the caller holds the adapter's lock. If another pair had
/// the place, `forget` first removes all references to it, and then it is unmapped.
pub(crate) fn map_pair(
    id: u64,
    side: usize,
    fd: BorrowedFd<'_>,
    forget: impl FnOnce(&Pair),
) -> Option<&'static Pair> {
    adopt_pair(id, side, memfd::map(fd, PAIR_BYTES).ok()?, forget)
}

/// A process that is connected with itself is both sides of one pair, but the pair's memfd comes
/// only once. So these pages are mapped a second time. `forget` as for [`map_pair`].
pub(crate) fn map_other_side(
    id: u64,
    side: usize,
    forget: impl FnOnce(&Pair),
) -> Option<&'static Pair> {
    let known = find_pair(id, 1 - side)?;
    // SAFETY: an old size of zero duplicates a shared mapping (mremap(2)); the known one stays.
    let base =
        unsafe { memory::remap(known.base, 0, PAIR_BYTES, libc::MREMAP_MAYMOVE, null_mut()) };
    adopt_pair(id, side, NonNull::new(base.ok()?)?, forget)
}

fn adopt_pair(
    id: u64,
    side: usize,
    base: NonNull<u8>,
    forget: impl FnOnce(&Pair),
) -> Option<&'static Pair> {
    // SAFETY: just mapped, page-aligned, all atomics.
    let header = unsafe { &*base.as_ptr().cast::<PairHeader>() };
    let registrations = memfd::map_private(PLACES_BYTES);
    // An unused place is preferred to an idle pair's place, because the adapter may still name the
    // idle pair.
    let place = pairs()?.iter().position(|pair| pair.base.is_null());
    let place = place.or_else(|| {
        pairs()?
            .iter()
            .position(|pair| pair.channels.load(Ordering::Relaxed) == 0)
    });
    let is_pair = header.magic.load(Ordering::Relaxed).is(PAIR_MAGIC)
        && header.version.load(Ordering::Relaxed).is(LAYOUT_VERSION);
    let (Some(place), Ok(registrations)) = (place.filter(|_| is_pair), &registrations) else {
        // SAFETY: mapped by our callers, and above, with these lengths and not shown to anybody.
        unsafe {
            memfd::unmap(base, PAIR_BYTES);
            if let Ok(registrations) = registrations {
                memfd::unmap(registrations, PLACES_BYTES);
            }
        }
        return None;
    };
    let registrations = registrations.as_ptr().cast::<AtomicU32>();
    let pair = PAIRS.load(Ordering::Relaxed).wrapping_add(place);
    // SAFETY: `place` is inside the reservation; no channel uses this place (its count is 0) and we
    // hold the adapter's lock, under which places are given out.
    unsafe {
        if !(*pair).base.is_null() {
            forget(&*pair);
            (*pair).doorbells.close();
            memfd::unmap(NonNull::new_unchecked((*pair).base), PAIR_BYTES);
            memfd::unmap(
                NonNull::new_unchecked((*pair).registrations.cast()),
                PLACES_BYTES,
            );
        }
        pair.write(Pair {
            id,
            base: base.as_ptr(),
            side,
            channels: AtomicU32::new(0),
            epolls: [const { AtomicU32::new(0) }; READY_BITMAPS],
            slots_used: AtomicU32::new(0),
            registrations,
            slabs: registrations.add(READY_BITS),
            carriers: registrations.add(PLACES - READY_BITS),
            pushed: AtomicU32::new(0),
            popped: AtomicU32::new(0),
            called: AtomicU64::new(0),
            doorbells: PairDoorbells::none(),
        });
        Some(&*pair)
    }
}

#[cfg(test)]
pub(crate) mod tests {

    use super::*;

    /// A pair with an adapter's file of its own.
    pub(crate) fn pair_with_file(id: u64) -> Option<&'static Pair> {
        let file = memfd::create(c"pair", PAIR_BYTES).ok()?;
        let base = memfd::map(file.as_fd(), PAIR_BYTES).ok()?;
        // SAFETY: just mapped, page-aligned, all atomics.
        let header = unsafe { &*base.as_ptr().cast::<PairHeader>() };
        header.magic.store(PAIR_MAGIC, Ordering::Relaxed);
        header.version.store(LAYOUT_VERSION, Ordering::Relaxed);
        // SAFETY: mapped above with this length.
        unsafe { memfd::unmap(base, PAIR_BYTES) };
        let pair = map_pair(id, 0, file.as_fd(), |_| {})?;
        pair.channels.store(1, Ordering::Relaxed);
        Some(pair)
    }

    #[test]
    fn doorbell_of_a_new_peer_replaces_that_of_an_idle_one() {
        use crate::process::pair_doorbells::PEERS_MAX;
        use crate::process::pair_doorbells::tests::{doorbell, turn};

        let _turn = turn();
        let made = |id: u32| {
            let pair = pair_with_file(1000 + u64::from(id)).expect("memory");
            let (own, peers) = doorbell();
            pair.take_doorbells(own, peers);
            pair
        };
        let first: Vec<&Pair> = (0..PEERS_MAX).map(made).collect();
        assert!(first.iter().all(|pair| pair.doorbells.ring()));
        assert!(!made(PEERS_MAX).doorbells.is_kept(), "all are in use");
        first[3].channels.store(0, Ordering::Relaxed);
        let last = made(PEERS_MAX + 1);
        assert!(last.doorbells.ring() && !first[3].doorbells.ring());
        for pair in first.into_iter().chain([last]) {
            pair.doorbells.close();
        }
    }

    /// A process that has many peers wakes only some of them, but may be woken by all.
    #[test]
    fn doorbell_of_a_new_peer_replaces_that_of_an_idle_one_that_is_only_heard() {
        use crate::process::pair_doorbells::tests::{
            count_peers, doorbell, room, turn, uncount_peers,
        };

        let _turn = turn();
        let made = |id: u64| {
            let pair = pair_with_file(id).expect("memory");
            let (own, peers) = doorbell();
            pair.take_doorbells(own, peers);
            pair
        };
        let [rung, heard] = room();
        count_peers(rung, heard - 1);
        let idle = made(2000);
        assert!(idle.doorbells.is_heard() && !idle.doorbells.is_kept());
        assert!(!made(2001).doorbells.is_heard(), "all are in use");
        idle.channels.store(0, Ordering::Relaxed);
        let last = made(2002);
        assert!(last.doorbells.is_heard() && !idle.doorbells.is_heard());
        last.doorbells.close();
        uncount_peers(rung, heard - 1);
    }

    #[test]
    fn a_peer_is_called_a_few_times_for_each_request() {
        let pair = pair_with_file(77).expect("memory");
        for request in [1, 2, u32::MAX, 0] {
            let calls = (0..100).filter(|_| pair.may_call(request)).count();
            assert_eq!(calls, CALLS_MAX as usize, "request {request}");
        }
    }
}
