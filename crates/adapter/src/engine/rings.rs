//! Rings of the adapter's own, for what a carrier brings and takes: address space of which pages
//! come as they are touched.
//!
//! A connection begins with a small ring and gets a larger one when it needs it, as long as the
//! budget allows. The budget counts whole rings, touched or not: remotes decide where in a ring
//! bytes come to lie, and one byte occupies a page. It also counts the state of every connection.
//! Shares of the budget:
//!
//! ```text
//!   0 ........ 1/2 ............ 7/8 .. 15/16 .. 1
//!   larger rings                               connections with much keep out nobody who begins
//!   first rings, carrier full                  programs that do not read keep out nobody who does
//!   first rings, bytes ahead of a gap          nor do remotes that leave gaps
//!   state of new connections                   connections that do nothing stop no other
//!   first rings, bytes in order, carrier free
//! ```
//!
//! Bytes of the last kind are on the carrier, and their ring is free again, at the end of the turn
//! in which they arrive. A remote whose next byte in order was dropped would wait for longer each
//! time that it tries.
//!
//! A full carrier holds bytes in the kernel. They count against those connections that are in the
//! same state, and against no other.
//!
//! They are mapped, not allocated: an allocator that gives out a large piece of memory again clears
//! all of it first, and then all of its pages are there.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a connection's first ring, each way.
pub(super) const RING_BYTES_MIN: usize = 1 << LOG2_MIN;
/// Bytes of the largest: what one connection can have in flight, each way.
pub(super) const RING_BYTES_MAX: usize = RING_BYTES_MIN << (STEP_LOG2 * (SIZES - 1) as u32);
const LOG2_MIN: u32 = 14;
/// Each size is so much larger than the one before.
pub(super) const STEP_LOG2: u32 = 2;
const SIZES: usize = 7;
/// The memory of a connection's state: the engine's, the flow's, and what they allocate.
pub(super) const CONNECTION_BYTES: usize = 4 << 10;
/// The memory of the kernel for a full carrier: bytes that were not sent (`TCP_NOTSENT_LOWAT`), and
/// the receive buffer of a program that has not read yet.
const FULL_CARRIER_BYTES: usize = 128 << 10;
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
    /// Connections, each with [`CONNECTION_BYTES`] of state.
    connections: usize,
    /// Connections whose carrier is full, each with [`FULL_CARRIER_BYTES`] in the kernel.
    full_carriers: usize,
    bytes_max: usize,
    /// How often the budget had no room.
    refused: u64,
    /// The budget had no room since it was last asked about that.
    is_wanting: bool,
}

/// The connection that asks for a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A connection whose carrier takes bytes, or may, and whose next byte has arrived.
    Flowing,
    /// One whose bytes have arrived ahead of a gap.
    Early,
    /// One whose carrier is full: its program does not read.
    Stuck,
}

impl Rings {
    pub(super) fn new(bytes_max: usize) -> Rings {
        Rings {
            warm: Default::default(),
            cold: Default::default(),
            warm_bytes: 0,
            held_bytes: 0,
            connections: 0,
            full_carriers: 0,
            bytes_max,
            refused: 0,
            is_wanting: false,
        }
    }

    /// Another budget. Connections keep what they have.
    pub(super) fn set_budget(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Whether the budget has room for the state of another connection.
    pub(super) fn has_room_for_connection(&mut self) -> bool {
        let has_room = self.used_bytes() + CONNECTION_BYTES <= self.bytes_max / 16 * 15;
        self.note(has_room);
        has_room
    }

    /// Another connection is there, or one is gone.
    pub(super) fn count_connection(&mut self, is_there: bool) {
        count(&mut self.connections, is_there);
    }

    /// Another carrier is full, or one is not any more.
    pub(super) fn count_full_carrier(&mut self, is_full: bool) {
        count(&mut self.full_carriers, is_full);
    }

    /// A connection's first ring.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub(super) fn take(&mut self, asker: Asker) -> Result<Ring, Exhausted> {
        let (kernel_bytes, bytes_max) = match asker {
            Asker::Flowing => (0, self.bytes_max),
            Asker::Early => (0, self.bytes_max / 8 * 7),
            Asker::Stuck => (self.carrier_bytes(), self.bytes_max / 8 * 7),
        };
        // Some rings are for those that are stuck, however many there are.
        let kernel_bytes = kernel_bytes.min(self.bytes_max / 2);
        self.take_within(0, bytes_max - kernel_bytes)
    }

    /// A ring of at least `bytes` instead of one that a connection has.
    ///
    /// # Errors
    /// [`Exhausted`]; also where no ring is so large.
    pub(super) fn take_larger(&mut self, bytes: usize) -> Result<Ring, Exhausted> {
        self.take_within(size_for(bytes)?, self.bytes_max / 2)
    }

    /// A ring of at least `bytes`, for what is there already; at most [`RING_BYTES_MAX`].
    pub(super) fn take_anyway(&mut self, bytes: usize) -> Ring {
        self.give(size_for(bytes).unwrap_or(SIZES - 1))
    }

    fn take_within(&mut self, size: usize, bytes_max: usize) -> Result<Ring, Exhausted> {
        let has_room = self.used_bytes() + bytes_of(size) <= bytes_max;
        self.note(has_room);
        has_room.then(|| self.give(size)).ok_or(Exhausted)
    }

    fn note(&mut self, has_room: bool) {
        self.refused += u64::from(!has_room);
        self.is_wanting |= !has_room;
    }

    fn give(&mut self, size: usize) -> Ring {
        self.held_bytes += bytes_of(size);
        let ring = self.ready(size);
        while self.used_bytes() + self.warm_bytes > self.bytes_max && self.cool_one() {}
        ring
    }

    /// Gives the pages of a warm ring back; false without one.
    fn cool_one(&mut self) -> bool {
        let Some(mut ring) = self.warm.iter_mut().rev().find_map(Vec::pop) else {
            return false;
        };
        self.warm_bytes -= ring.len();
        ring.cool();
        self.cold[ring.size].push(ring);
        true
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
        if self.warm_bytes + bytes <= WARM_BYTES_MAX.min(self.bytes_max / 4) {
            self.warm_bytes += bytes;
            return self.warm[size].push(ring);
        }
        ring.cool();
        self.cold[size].push(ring);
    }

    /// Bytes of rings that connections have.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Bytes that count against the budget: rings and connections.
    pub(super) fn used_bytes(&self) -> usize {
        self.held_bytes + self.connections * CONNECTION_BYTES
    }

    /// Bytes that full carriers hold in the kernel.
    pub(super) fn carrier_bytes(&self) -> usize {
        self.full_carriers * FULL_CARRIER_BYTES
    }

    /// How often the budget had no room.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether the budget had no room since this was last asked.
    pub(super) fn was_wanting(&mut self) -> bool {
        std::mem::take(&mut self.is_wanting)
    }

    /// Whether so much is in use that rings are refused, or soon will be.
    pub(super) fn is_short(&self) -> bool {
        self.used_bytes() > self.bytes_max / 4
    }

    /// Whether more than seven eighths of the budget are in use: new connections are next.
    pub(super) fn is_scarce(&self) -> bool {
        self.used_bytes() > self.bytes_max / 8 * 7
    }

    /// Whether larger rings have room again, and some of it to spare.
    pub(super) fn is_ample(&self) -> bool {
        self.has_room_to_spare(0)
    }

    /// Whether there is room for a larger ring of so many bytes, and some of it to spare.
    pub(super) fn has_room_to_spare(&self, bytes: usize) -> bool {
        self.used_bytes() + bytes <= self.bytes_max / 8 * 3
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

fn count(number: &mut usize, is_more: bool) {
    *number = match is_more {
        true => *number + 1,
        false => number.saturating_sub(1),
    };
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
        let first: Vec<Ring> = std::iter::from_fn(|| rings.take(Asker::Flowing).ok()).collect();
        assert_eq!(rings.held_bytes(), 8 << 20);
        assert_eq!(first.len(), (4 << 20) / RING_BYTES_MIN);
        assert_eq!(rings.refused(), 2);
        assert!(rings.was_wanting() && !rings.was_wanting());
        large
            .into_iter()
            .chain(first)
            .for_each(|ring| rings.put(ring));
        assert_eq!(rings.held_bytes(), 0);
        rings.set_budget(2 * RING_BYTES_MAX);
        assert!(rings.take_larger(RING_BYTES_MAX).is_ok());
        assert!(rings.take_larger(RING_BYTES_MAX + 1).is_err());
    }

    #[test]
    fn programs_that_do_not_read_leave_room_for_those_that_do() {
        let mut rings = Rings::new(8 << 20);
        let mut taken = Vec::new();
        while let Ok(ring) = rings.take(Asker::Stuck) {
            taken.push(ring);
            rings.count_connection(true);
            rings.count_full_carrier(true);
        }
        assert!(rings.held_bytes() > 0 && rings.used_bytes() <= (8 << 20) / 8 * 7);
        assert!(rings.has_room_for_connection());
        assert!(rings.take(Asker::Flowing).is_ok());
        for ring in taken {
            rings.put(ring);
            rings.count_connection(false);
            rings.count_full_carrier(false);
        }
        assert_eq!((rings.carrier_bytes(), rings.connections), (0, 0));
    }

    /// Neither connections that do nothing nor gaps, whichever come first.
    #[test]
    fn a_connection_that_flows_finds_room_whatever_others_hold() {
        for gaps_first in [true, false] {
            let mut rings = Rings::new(8 << 20);
            let mut taken = Vec::new();
            for is_gaps_turn in [gaps_first, !gaps_first] {
                if is_gaps_turn {
                    taken.extend(std::iter::from_fn(|| rings.take(Asker::Early).ok()));
                } else {
                    while rings.has_room_for_connection() {
                        rings.count_connection(true);
                    }
                }
            }
            assert!(rings.connections > 0 && gaps_first != taken.is_empty());
            for _ in 0..(8 << 20) / 16 / RING_BYTES_MIN {
                taken.push(rings.take(Asker::Flowing).expect("kept for it"));
            }
            assert!(rings.used_bytes() <= 8 << 20);
        }
    }

    #[test]
    fn warm_rings_are_within_the_budget() {
        let mut rings = Rings::new(8 << 20);
        let warm: Vec<Ring> = std::iter::from_fn(|| rings.take_larger(LARGE).ok()).collect();
        warm.into_iter().for_each(|ring| rings.put(ring));
        assert_eq!(rings.warm_bytes, 2 << 20);
        while rings.take(Asker::Flowing).is_ok() {}
        assert_eq!(rings.warm_bytes, 0);
    }
}
