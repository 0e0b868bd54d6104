//! Pairs of processes, whose ready bitmaps serve many channels.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use toehold_channel::layout::{
    PAIR_BYTES, PAIR_MAGIC, PairHeader, READY_BITMAPS, READY_BITMAPS_OFFSET, READY_BITS,
    ReadyBitmap, ReadyBitmaps, SLAB_SLOTS,
};
use toehold_channel::memfd;
use toehold_channel::table::LAYOUT_VERSION;

use crate::sys;

/// Two processes and the ready bitmaps between them, as this process maps them. Kept for as long as
/// a channel uses it.
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
    /// Registration by slot, for our ready bitmaps.
    pub(crate) registrations: *mut AtomicU32,
    /// Slab by number, see [`crate::slabs`]; behind the registrations.
    slabs: *mut AtomicU32,
}

/// Places for registrations, and for slabs.
const PLACES: usize = READY_BITS + READY_BITS / SLAB_SLOTS as usize;

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

    /// The registration that a bit of our ready bitmaps stands for.
    #[inline]
    pub(crate) fn registration(&self, slot: u32) -> Option<&AtomicU32> {
        if slot as usize >= READY_BITS {
            return None;
        }
        // SAFETY: the array has READY_BITS places and lives as long as the pair.
        Some(unsafe { &*self.registrations.add(slot as usize) })
    }

    /// Where the slab of that index is to be found.
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
static PAIRS: AtomicPtr<Pair> = AtomicPtr::new(null_mut());

fn pairs() -> Option<&'static [Pair]> {
    // Acquire pairs with the Release store below, in `pairs`.
    let mut base = PAIRS.load(Ordering::Acquire);
    if base.is_null() {
        base = sys::map_memory(PAIRS_MAX * size_of::<Pair>()).cast();
        if base.is_null() {
            return None;
        }
        // Release pairs with the Acquire load above, in `pairs`.
        PAIRS.store(base, Ordering::Release);
    }
    // SAFETY: zeroes are valid `Pair`s (null pointers, zero atomics); the reservation is never
    // released.
    Some(unsafe { core::slice::from_raw_parts(base, PAIRS_MAX) })
}

/// A pair that this process has mapped already.
pub(crate) fn find_pair(id: u64, side: usize) -> Option<&'static Pair> {
    pairs()?
        .iter()
        .take_while(|pair| !pair.base.is_null())
        .find(|pair| pair.id == id && pair.side == side)
}

/// A pair's memfd, mapped and verified; the caller holds the adapter's lock. If the place was
/// another pair's, `forget` takes that out of all that names it, before it is unmapped.
pub(crate) fn map_pair(
    id: u64,
    side: usize,
    fd: BorrowedFd<'_>,
    forget: impl FnOnce(&Pair),
) -> Option<&'static Pair> {
    adopt_pair(id, side, memfd::map(fd, PAIR_BYTES).ok()?, forget)
}

/// A program that talks to itself is both sides of one pair, whose memfd comes once: map the same
/// pages again. `forget` as for [`map_pair`].
pub(crate) fn map_other_side(
    id: u64,
    side: usize,
    forget: impl FnOnce(&Pair),
) -> Option<&'static Pair> {
    let known = find_pair(id, 1 - side)?;
    // SAFETY: an old size of zero duplicates a shared mapping (mremap(2)); the known one stays.
    let base = unsafe { libc::mremap(known.base.cast(), 0, PAIR_BYTES, libc::MREMAP_MAYMOVE) };
    if base == libc::MAP_FAILED {
        return None;
    }
    adopt_pair(id, side, NonNull::new(base.cast())?, forget)
}

fn adopt_pair(
    id: u64,
    side: usize,
    base: NonNull<u8>,
    forget: impl FnOnce(&Pair),
) -> Option<&'static Pair> {
    // SAFETY: just mapped, page-aligned, all atomics.
    let header = unsafe { &*base.as_ptr().cast::<PairHeader>() };
    let registrations = sys::map_memory(PLACES * size_of::<AtomicU32>()).cast::<AtomicU32>();
    // An unused place before an idle one: the adapter may still name the pair that stands there.
    let place = pairs()?.iter().position(|pair| pair.base.is_null());
    let place = place.or_else(|| {
        pairs()?
            .iter()
            .position(|pair| pair.channels.load(Ordering::Relaxed) == 0)
    });
    let Some(place) = place.filter(|_| {
        header.magic.load(Ordering::Relaxed).is(PAIR_MAGIC)
            && header.version.load(Ordering::Relaxed).is(LAYOUT_VERSION)
            && !registrations.is_null()
    }) else {
        // SAFETY: mapped by our callers with this length and not shown to anybody.
        unsafe { memfd::unmap(base, PAIR_BYTES) };
        return None;
    };
    let pair = PAIRS.load(Ordering::Relaxed).wrapping_add(place);
    // SAFETY: `place` is inside the reservation; no channel uses this place (its count is 0) and we
    // hold the adapter's lock, under which places are given out.
    unsafe {
        if !(*pair).base.is_null() {
            forget(&*pair);
            memfd::unmap(NonNull::new_unchecked((*pair).base), PAIR_BYTES);
            libc::munmap(
                (*pair).registrations.cast(),
                PLACES * size_of::<AtomicU32>(),
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
        });
        Some(&*pair)
    }
}
