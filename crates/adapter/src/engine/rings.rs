//! Rings of the adapter's own, for what a carrier brings and takes: address space of which pages
//! come as they are touched.
//!
//! A connection begins with a small ring and gets a larger one when it needs it, as long as the
//! budget allows. The budget counts whole rings, touched or not: remotes decide where in a ring
//! bytes come to lie, and one byte occupies a page. Half of the budget is for first rings alone, so
//! that connections with much do not keep out those that begin.
//!
//! They are mapped, not allocated: an allocator that gives out a large piece of memory again clears
//! all of it first, and then all of its pages are there.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a connection's first ring, each way.
pub(super) const RING_BYTES_MIN: usize = 1 << LOG2_MIN;
/// Bytes of the largest: what one connection can have in flight, each way. The kernel's own bounds
/// are about as large (`tcp_rmem`, `tcp_wmem`).
pub(super) const RING_BYTES_MAX: usize = RING_BYTES_MIN << (STEP_LOG2 * (SIZES - 1) as u32);
const LOG2_MIN: u32 = 14;
/// Each size is so much larger than the one before.
const STEP_LOG2: u32 = 2;
const SIZES: usize = 5;
/// Bytes that are mapped in one go, but at least some rings.
const SLAB_BYTES: usize = 4 << 20;
const SLAB_RINGS_MIN: usize = 4;
/// Bytes of rings that keep their pages for the next connections.
const WARM_BYTES_MAX: usize = 64 << 20;

/// A ring's memory; zeroes, or what a connection before left there.
#[derive(Debug)]
pub(super) struct Ring {
    base: NonNull<u8>,
    /// Which of [`SIZES`].
    size: usize,
}

// SAFETY: plain memory, which one `Ring` has to itself.
unsafe impl Send for Ring {}

impl Deref for Ring {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped by `Rings::map` for as long as the ring is there, initialised by the
        // kernel, and nobody else's.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), bytes_of(self.size)) }
    }
}

impl DerefMut for Ring {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), bytes_of(self.size)) }
    }
}

impl Ring {
    /// Gives the pages back; what was in them is gone.
    fn cool(&mut self) {
        // SAFETY: private memory of ours, which is zeroes from here on. Should the kernel refuse,
        // the pages stay.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len(), libc::MADV_DONTNEED) };
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: whole pages of a mapping, and every reference to them borrows from `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len()) };
    }
}

/// The budget has no room for a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

/// Rings that no connection has, and the budget for those that connections have.
#[derive(Debug)]
pub(super) struct Rings {
    warm: [Vec<Ring>; SIZES],
    cold: [Vec<Ring>; SIZES],
    warm_bytes: usize,
    /// Bytes of rings that connections have.
    held_bytes: usize,
    held_bytes_max: usize,
    /// How often the budget had no room.
    refused: u64,
}

impl Rings {
    pub(super) fn new(held_bytes_max: usize) -> Rings {
        Rings {
            warm: Default::default(),
            cold: Default::default(),
            warm_bytes: 0,
            held_bytes: 0,
            held_bytes_max,
            refused: 0,
        }
    }

    /// Another budget. Connections keep what they have.
    pub(super) fn set_budget(&mut self, held_bytes_max: usize) {
        self.held_bytes_max = held_bytes_max;
    }

    /// A connection's first ring.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub(super) fn take(&mut self) -> Result<Ring, Exhausted> {
        self.take_within(0, self.held_bytes_max)
    }

    /// A ring of at least `bytes` instead of one that a connection has.
    ///
    /// # Errors
    /// [`Exhausted`]; also where no ring is so large.
    pub(super) fn take_larger(&mut self, bytes: usize) -> Result<Ring, Exhausted> {
        self.take_within(size_for(bytes)?, self.held_bytes_max / 2)
    }

    /// A ring of at least `bytes`, for what is there already; at most [`RING_BYTES_MAX`].
    pub(super) fn take_anyway(&mut self, bytes: usize) -> Ring {
        let size = size_for(bytes).unwrap_or(SIZES - 1);
        self.held_bytes += bytes_of(size);
        self.ready(size)
    }

    fn take_within(&mut self, size: usize, held_bytes_max: usize) -> Result<Ring, Exhausted> {
        if self.held_bytes + bytes_of(size) > held_bytes_max {
            self.refused += 1;
            return Err(Exhausted);
        }
        self.held_bytes += bytes_of(size);
        Ok(self.ready(size))
    }

    fn ready(&mut self, size: usize) -> Ring {
        if let Some(ring) = self.warm[size].pop() {
            self.warm_bytes -= ring.len();
            return ring;
        }
        if self.cold[size].is_empty() {
            self.map(size);
        }
        self.cold[size].pop().expect("just mapped")
    }

    /// A connection is done with a ring.
    pub(super) fn put(&mut self, mut ring: Ring) {
        let (size, bytes) = (ring.size, ring.len());
        self.held_bytes -= bytes;
        if self.warm_bytes + bytes <= WARM_BYTES_MAX.min(self.held_bytes_max / 4) {
            self.warm_bytes += bytes;
            return self.warm[size].push(ring);
        }
        ring.cool();
        self.cold[size].push(ring);
    }

    /// Bytes of rings that connections have.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// How often the budget had no room.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether so much is in use that rings are refused, or soon will be.
    pub(super) fn is_short(&self) -> bool {
        self.held_bytes > self.held_bytes_max / 4
    }

    fn map(&mut self, size: usize) {
        let bytes = bytes_of(size);
        let count = (SLAB_BYTES / bytes).max(SLAB_RINGS_MIN);
        let len = count * bytes;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping of our own.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        let base = NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED);
        let Some(base) = base else {
            let layout = std::alloc::Layout::new::<[u8; RING_BYTES_MAX]>();
            std::alloc::handle_alloc_error(layout);
        };
        // A ring of which little is used would have a large page all the same. A kernel without
        // such pages says no, which is as good. SAFETY: the mapping just made.
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_NOHUGEPAGE) };
        let ring = |at: usize| Ring {
            // SAFETY: inside the mapping.
            base: unsafe { base.add(at * bytes) },
            size,
        };
        self.cold[size].extend((0..count).rev().map(ring));
    }
}

const fn bytes_of(size: usize) -> usize {
    RING_BYTES_MIN << (STEP_LOG2 * size as u32)
}

fn size_for(bytes: usize) -> Result<usize, Exhausted> {
    let size = (0..SIZES).find(|size| bytes <= bytes_of(*size));
    size.ok_or(Exhausted)
}

const _: () = assert!(bytes_of(SIZES - 1) == RING_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of a ring that are there.
    fn pages(ring: &Ring) -> usize {
        // SAFETY: plain system call.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mut present = vec![0u8; ring.len() / page];
        let base = ring.base.as_ptr().cast();
        // SAFETY: one byte for each page of a mapping.
        let asked = unsafe { libc::mincore(base, ring.len(), present.as_mut_ptr()) };
        assert_eq!(asked, 0);
        present.iter().filter(|byte| **byte & 1 != 0).count()
    }

    const PLENTY: usize = 1 << 30;
    const LARGE: usize = 1 << 20;
    const WARM_MAX: usize = WARM_BYTES_MAX / LARGE;

    #[test]
    fn a_ring_has_the_pages_that_were_touched() {
        let mut rings = Rings::new(PLENTY);
        let take = |rings: &mut Rings| rings.take_larger(LARGE).expect("within the budget");
        let mut taken: Vec<Ring> = (0..2 * WARM_MAX).map(|_| take(&mut rings)).collect();
        for ring in &mut taken {
            ring[0] = 1;
            ring[LARGE - 1] = 1;
            assert_eq!(pages(ring), 2);
        }
        taken.into_iter().for_each(|ring| rings.put(ring));
        let again: Vec<Ring> = (0..2 * WARM_MAX).map(|_| take(&mut rings)).collect();
        let kept: usize = again.iter().map(pages).sum();
        assert_eq!(
            kept,
            2 * WARM_MAX,
            "of the warm ones, and nothing was cleared"
        );
    }

    #[test]
    fn no_two_connections_have_the_same_memory() {
        let mut rings = Rings::new(PLENTY);
        let mut taken: Vec<Ring> = (0..40)
            .map(|number| rings.take_larger(RING_BYTES_MIN << (number % 5 * 2)))
            .collect::<Result<_, _>>()
            .expect("within the budget");
        for (number, ring) in taken.iter_mut().enumerate() {
            ring.fill(number as u8);
        }
        for (number, ring) in taken.iter().enumerate() {
            assert!(ring.iter().all(|byte| *byte == number as u8));
        }
    }

    #[test]
    fn the_budget_bounds_what_connections_have_and_keeps_room_for_new_ones() {
        let mut rings = Rings::new(8 << 20);
        let large: Vec<Ring> = std::iter::from_fn(|| rings.take_larger(LARGE).ok()).collect();
        assert_eq!((large.len(), rings.held_bytes()), (4, 4 << 20));
        let first: Vec<Ring> = std::iter::from_fn(|| rings.take().ok()).collect();
        assert_eq!(rings.held_bytes(), 8 << 20);
        assert_eq!(first.len(), (4 << 20) / RING_BYTES_MIN);
        assert_eq!(rings.refused(), 2);
        large
            .into_iter()
            .chain(first)
            .for_each(|ring| rings.put(ring));
        assert_eq!(rings.held_bytes(), 0);
        assert!(rings.take_larger(RING_BYTES_MAX).is_ok());
        assert!(rings.take_larger(RING_BYTES_MAX + 1).is_err());
    }
}
