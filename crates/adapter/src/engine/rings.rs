//! Rings of the adapter's own, for what a carrier brings and takes: address space of which pages
//! come as they are touched.
//!
//! They are mapped, not allocated: an allocator that gives out a large piece of memory again clears
//! all of it first, and then all of its pages are there.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of one ring: what one connection can have in flight, each way. Untouched pages cost
/// nothing.
pub(super) const RING_BYTES: usize = 1 << 20;
const _: () = assert!(RING_BYTES.is_power_of_two());
/// Rings mapped in one go.
const SLAB_RINGS: usize = 16;
/// Rings that keep their pages for the next connections.
const WARM_MAX: usize = 64;

/// A ring's memory; zeroes, or what a connection before left there.
#[derive(Debug)]
pub(super) struct Ring(NonNull<u8>);

// SAFETY: plain memory, which one `Ring` has to itself.
unsafe impl Send for Ring {}

impl Deref for Ring {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped by `Rings::map` for as long as the ring is there, initialised by the
        // kernel, and nobody else's.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), RING_BYTES) }
    }
}

impl DerefMut for Ring {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), RING_BYTES) }
    }
}

impl Ring {
    /// Gives the pages back; what was in them is gone.
    fn cool(&mut self) {
        // SAFETY: private memory of ours, which is zeroes from here on. Should the kernel refuse,
        // the pages stay.
        unsafe { libc::madvise(self.0.as_ptr().cast(), RING_BYTES, libc::MADV_DONTNEED) };
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: whole pages of a mapping, and every reference to them borrows from `self`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), RING_BYTES) };
    }
}

/// Rings that no connection has.
#[derive(Debug, Default)]
pub(super) struct Rings {
    warm: Vec<Ring>,
    cold: Vec<Ring>,
}

impl Rings {
    /// A ring for a connection.
    pub(super) fn take(&mut self) -> Ring {
        if self.warm.is_empty() && self.cold.is_empty() {
            self.map();
        }
        let ring = self.warm.pop().or_else(|| self.cold.pop());
        ring.expect("just mapped")
    }

    /// A connection is done with a ring.
    pub(super) fn put(&mut self, mut ring: Ring) {
        if self.warm.len() < WARM_MAX {
            return self.warm.push(ring);
        }
        ring.cool();
        self.cold.push(ring);
    }

    fn map(&mut self) {
        let len = SLAB_RINGS * RING_BYTES;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping of our own.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        let base = NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED);
        let Some(base) = base else {
            let layout = std::alloc::Layout::new::<[u8; RING_BYTES]>();
            std::alloc::handle_alloc_error(layout);
        };
        // A ring of which little is used would have a large page all the same. A kernel without
        // such pages says no, which is as good. SAFETY: the mapping just made.
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_NOHUGEPAGE) };
        // SAFETY: inside the mapping.
        let ring = |at: usize| Ring(unsafe { base.add(at * RING_BYTES) });
        self.cold.extend((0..SLAB_RINGS).rev().map(ring));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of a ring that are there.
    fn pages(ring: &Ring) -> usize {
        // SAFETY: plain system call.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mut present = vec![0u8; RING_BYTES / page];
        // SAFETY: one byte for each page of a mapping.
        let asked =
            unsafe { libc::mincore(ring.0.as_ptr().cast(), RING_BYTES, present.as_mut_ptr()) };
        assert_eq!(asked, 0);
        present.iter().filter(|byte| **byte & 1 != 0).count()
    }

    #[test]
    fn a_ring_has_the_pages_that_were_touched() {
        let mut rings = Rings::default();
        let mut taken: Vec<Ring> = (0..2 * WARM_MAX).map(|_| rings.take()).collect();
        for ring in &mut taken {
            ring[0] = 1;
            ring[RING_BYTES - 1] = 1;
            assert_eq!(pages(ring), 2);
        }
        taken.into_iter().for_each(|ring| rings.put(ring));
        let again: Vec<Ring> = (0..2 * WARM_MAX).map(|_| rings.take()).collect();
        let kept: usize = again.iter().map(pages).sum();
        assert_eq!(
            kept,
            2 * WARM_MAX,
            "of the warm ones, and nothing was cleared"
        );
    }

    #[test]
    fn no_two_connections_have_the_same_memory() {
        let mut rings = Rings::default();
        let mut taken: Vec<Ring> = (0..=SLAB_RINGS).map(|_| rings.take()).collect();
        for (number, ring) in taken.iter_mut().enumerate() {
            ring.fill(number as u8);
        }
        for (number, ring) in taken.iter().enumerate() {
            assert!(ring.iter().all(|byte| *byte == number as u8));
        }
    }
}
