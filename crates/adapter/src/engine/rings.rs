//! The adapter's own rings, for bytes that come from or go to carriers. A ring is address space
//! whose pages use memory once they are touched.
//!
//! A connection begins with a small ring and gets a larger one when it needs it, as long as the
//! budget allows. The budget counts whole rings, touched or not, because remotes decide at which
//! places of a ring bytes are stored, and one byte uses a page. It also counts the state of every
//! connection.
//!
//! Each program has a share: three quarters of the memory that the others leave. So a single
//! program may take most of the budget, and another program still finds a share of its own. The
//! parts of a share:
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
//! Bytes of the last kind go to the carrier in the turn in which they arrive, and then their ring
//! is free again. If a remote's next byte in order were dropped, the remote would wait longer and
//! longer between its tries.
//!
//! A full carrier holds bytes in the kernel. They count only against other connections of its
//! program with full carriers.
//!
//! Rings are mapped, not allocated: an allocator clears a large piece of memory before it gives it
//! out again, which would touch all of its pages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::registry::ClientId;

/// Bytes of a connection's first ring, each way.
pub(super) const RING_BYTES_MIN: usize = 1 << LOG2_MIN;
/// Bytes of the largest: what one connection can have in flight, each way.
pub(super) const RING_BYTES_MAX: usize = RING_BYTES_MIN << (STEP_LOG2 * (SIZES - 1) as u32);
const LOG2_MIN: u32 = 14;
/// Each size is this much larger than the one before, as a power of two.
pub(super) const STEP_LOG2: u32 = 2;
const SIZES: usize = 7;
/// The memory of a connection's state: the engine's, the flow's, and what they allocate.
pub(super) const CONNECTION_BYTES: usize = 4 << 10;
/// The memory of the kernel for a full carrier: bytes that were not sent (`TCP_NOTSENT_LOWAT`), and
/// the receive buffer of a program that has not read yet.
const FULL_CARRIER_BYTES: usize = 128 << 10;
/// The part of the remaining budget that a program may hold.
const SHARE_OF: (usize, usize) = (3, 4);
/// Bytes that are mapped in one go, but at least some rings.
const SLAB_BYTES: usize = 4 << 20;
const SLAB_RINGS_MIN: usize = 4;
/// Bytes of rings that keep their pages for the next connections.
const WARM_BYTES_MAX: usize = 64 << 20;

/// A program with connections; `None` for connections that no program has accepted yet.
pub(super) type Program = Option<ClientId>;

/// A ring's memory: zeroes, or bytes that a former connection has left.
#[derive(Debug)]
pub(super) struct Ring {
    base: NonNull<u8>,
    /// The ring counts against the share of this program.
    program: Program,
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
    /// Gives the pages back; their contents are lost.
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

/// The memory and carriers of one program's connections.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Holding {
    /// Bytes of rings.
    ring_bytes: usize,
    /// Connections, each with [`CONNECTION_BYTES`] of state.
    connections: usize,
    /// Connections whose carrier is full, each with [`FULL_CARRIER_BYTES`] in the kernel.
    full_carriers: usize,
}

impl Holding {
    /// Bytes that count against the budget.
    fn used_bytes(&self) -> usize {
        self.ring_bytes + self.connections * CONNECTION_BYTES
    }

    fn carrier_bytes(&self) -> usize {
        self.full_carriers * FULL_CARRIER_BYTES
    }
}

/// Rings that no connection has, and the budget for those that connections have.
#[derive(Debug)]
pub(super) struct Rings {
    warm: [Vec<Ring>; SIZES],
    cold: [Vec<Ring>; SIZES],
    warm_bytes: usize,
    /// The memory of each program that holds any.
    held: BTreeMap<Program, Holding>,
    /// The sum of `held`.
    all: Holding,
    bytes_max: usize,
    /// The number of times that the budget had no room.
    refused: u64,
    /// Programs whose share had no room since the last call.
    wanting: BTreeSet<Program>,
}

/// The connection that asks for a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A connection whose carrier takes bytes, or may, and whose next byte has arrived.
    Flowing,
    /// A connection whose bytes have arrived behind a gap.
    Early,
    /// A connection whose carrier is full: its program does not read.
    Stuck,
}

impl Rings {
    pub(super) fn new(bytes_max: usize) -> Rings {
        Rings {
            warm: Default::default(),
            cold: Default::default(),
            warm_bytes: 0,
            held: BTreeMap::new(),
            all: Holding::default(),
            bytes_max,
            refused: 0,
            wanting: BTreeSet::new(),
        }
    }

    /// Sets another budget. Connections keep their rings.
    pub(super) fn set_budget(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Whether a program's share has room for the state of another connection.
    pub(super) fn has_room_for_connection(&mut self, program: Program) -> bool {
        let has_room = self.has_room(program, CONNECTION_BYTES, self.share(program) / 16 * 15);
        self.note(program, has_room);
        has_room
    }

    /// Counts a new connection of a program, or counts one off.
    pub(super) fn count_connection(&mut self, program: Program, is_there: bool) {
        self.change(program, |holding| {
            count(&mut holding.connections, is_there);
        });
    }

    /// Counts a full carrier of a program, or counts one off.
    pub(super) fn count_full_carrier(&mut self, program: Program, is_full: bool) {
        self.change(program, |holding| {
            count(&mut holding.full_carriers, is_full);
        });
    }

    /// A connection's first ring.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub(super) fn take(&mut self, asker: Asker, program: Program) -> Result<Ring, Exhausted> {
        let share = self.share(program);
        let bytes_max = match asker {
            Asker::Flowing => share,
            Asker::Early => share / 8 * 7,
            // Some rings are always left for stuck connections, however many there are.
            Asker::Stuck => share / 8 * 7 - self.held_by(program).carrier_bytes().min(share / 2),
        };
        self.take_within(0, program, bytes_max)
    }

    /// A ring of at least `bytes` instead of one that a connection has.
    ///
    /// # Errors
    /// [`Exhausted`]; also where no ring is so large.
    pub(super) fn take_larger(
        &mut self,
        bytes: usize,
        program: Program,
    ) -> Result<Ring, Exhausted> {
        self.take_within(size_for(bytes)?, program, self.share(program) / 2)
    }

    /// A ring of at least `bytes`, regardless of the budget, for bytes that already exist; at most
    /// [`RING_BYTES_MAX`].
    pub(super) fn take_anyway(&mut self, bytes: usize, program: Program) -> Ring {
        self.give(size_for(bytes).unwrap_or(SIZES - 1), program)
    }

    fn take_within(
        &mut self,
        size: usize,
        program: Program,
        bytes_max: usize,
    ) -> Result<Ring, Exhausted> {
        let has_room = self.has_room(program, bytes_of(size), bytes_max);
        self.note(program, has_room);
        has_room.then(|| self.give(size, program)).ok_or(Exhausted)
    }

    fn note(&mut self, program: Program, has_room: bool) {
        if !has_room {
            self.refused += 1;
            self.wanting.insert(program);
        }
    }

    /// A program's share, with the bytes that it holds: a part of all that the others leave.
    fn share(&self, program: Program) -> usize {
        let others = self.used_bytes() - self.held_by(program).used_bytes();
        self.bytes_max.saturating_sub(others) / SHARE_OF.1 * SHARE_OF.0
    }

    fn has_room(&self, program: Program, bytes: usize, bytes_max: usize) -> bool {
        self.held_by(program).used_bytes() + bytes <= bytes_max
    }

    fn held_by(&self, program: Program) -> Holding {
        self.held.get(&program).copied().unwrap_or_default()
    }

    fn change(&mut self, program: Program, change: impl Fn(&mut Holding)) {
        let holding = self.held.entry(program).or_default();
        change(holding);
        if *holding == Holding::default() {
            self.held.remove(&program);
        }
        change(&mut self.all);
    }

    fn give(&mut self, size: usize, program: Program) -> Ring {
        self.change(program, |holding| holding.ring_bytes += bytes_of(size));
        let mut ring = self.ready(size);
        ring.program = program;
        while self.used_bytes() + self.warm_bytes > self.bytes_max && self.cool_one() {}
        ring
    }

    /// A program accepts the connection that has a ring: the ring counts for that program from now
    /// on.
    pub(super) fn count_for(&mut self, ring: &mut Ring, program: Program) {
        let bytes = ring.len();
        self.change(ring.program, |holding| holding.ring_bytes -= bytes);
        self.change(program, |holding| holding.ring_bytes += bytes);
        ring.program = program;
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

    /// A connection gives a ring back.
    pub(super) fn put(&mut self, mut ring: Ring) {
        let (size, bytes) = (ring.size, ring.len());
        self.change(ring.program, |holding| holding.ring_bytes -= bytes);
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
        self.all.ring_bytes
    }

    /// Bytes that count against the budget: rings and connections.
    pub(super) fn used_bytes(&self) -> usize {
        self.all.used_bytes()
    }

    /// Bytes that full carriers hold in the kernel.
    pub(super) fn carrier_bytes(&self) -> usize {
        self.all.carrier_bytes()
    }

    /// The number of times that the budget had no room.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Programs whose share had no room since the last call.
    #[inline]
    pub(super) fn take_wanting(&mut self) -> BTreeSet<Program> {
        std::mem::take(&mut self.wanting)
    }

    /// Whether a program holds so much that rings are refused, or soon will be.
    pub(super) fn is_short(&self, program: Program) -> bool {
        !self.has_room(program, 0, self.share(program) / 4)
    }

    /// Whether a program holds more than seven eighths of its share: new connections are next.
    pub(super) fn is_scarce(&self, program: Program) -> bool {
        !self.has_room(program, 0, self.share(program) / 8 * 7)
    }

    /// Whether a program's larger rings have room again, and some of it to spare.
    pub(super) fn is_ample(&self, program: Program) -> bool {
        self.has_room_to_spare(0, program)
    }

    /// Whether there is room for a larger ring of `bytes` bytes, and some more to spare.
    pub(super) fn has_room_to_spare(&self, bytes: usize, program: Program) -> bool {
        self.has_room(program, bytes, self.share(program) / 8 * 3)
    }

    /// Whether a program holds as much as another one, or more.
    pub(super) fn holds_as_much(&self, program: Program, other: Program) -> bool {
        self.held_by(program).used_bytes() >= self.held_by(other).used_bytes()
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
            program: None,
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

    const ONE: Program = Some(ClientId(1));
    const OTHER: Program = Some(ClientId(2));
    const PLENTY: usize = 1 << 30;
    const LARGE: usize = 1 << 20;
    /// A budget of which one program may hold 8 MiB.
    const OF_8_MB: usize = (8 << 20) / SHARE_OF.0 * SHARE_OF.1 + SHARE_OF.1;
    const WARM_MAX: usize = WARM_BYTES_MAX / LARGE;

    #[test]
    fn a_ring_has_the_pages_that_were_touched() {
        let mut rings = Rings::new(PLENTY);
        let take = |rings: &mut Rings| rings.take_larger(LARGE, ONE).expect("within the budget");
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
            .map(|number| rings.take_larger(RING_BYTES_MIN << (number % 5 * 2), ONE))
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
        let mut rings = Rings::new(OF_8_MB);
        let large: Vec<Ring> = std::iter::from_fn(|| rings.take_larger(LARGE, ONE).ok()).collect();
        assert_eq!((large.len(), rings.held_bytes()), (4, 4 << 20));
        let first: Vec<Ring> =
            std::iter::from_fn(|| rings.take(Asker::Flowing, ONE).ok()).collect();
        assert_eq!(rings.held_bytes(), 8 << 20);
        assert_eq!(first.len(), (4 << 20) / RING_BYTES_MIN);
        assert_eq!(rings.refused(), 2);
        assert_eq!(rings.take_wanting(), BTreeSet::from([ONE]));
        assert!(rings.take_wanting().is_empty());
        large
            .into_iter()
            .chain(first)
            .for_each(|ring| rings.put(ring));
        assert_eq!(rings.held_bytes(), 0);
        rings.set_budget(2 * RING_BYTES_MAX / 3 * 4 + 4);
        assert!(rings.take_larger(RING_BYTES_MAX, ONE).is_ok());
        assert!(rings.take_larger(RING_BYTES_MAX + 1, ONE).is_err());
    }

    #[test]
    fn programs_that_do_not_read_leave_room_for_those_that_do() {
        let mut rings = Rings::new(OF_8_MB);
        let mut taken = Vec::new();
        while let Ok(ring) = rings.take(Asker::Stuck, ONE) {
            taken.push(ring);
            rings.count_connection(ONE, true);
            rings.count_full_carrier(ONE, true);
        }
        assert!(rings.held_bytes() > 0 && rings.used_bytes() <= (8 << 20) / 8 * 7);
        assert!(rings.has_room_for_connection(ONE));
        assert!(rings.take(Asker::Flowing, ONE).is_ok());
        for ring in taken {
            rings.put(ring);
            rings.count_connection(ONE, false);
            rings.count_full_carrier(ONE, false);
        }
        assert_eq!((rings.carrier_bytes(), rings.all.connections), (0, 0));
    }

    /// Neither idle connections nor gaps keep others out, whichever come first.
    #[test]
    fn a_connection_that_flows_finds_room_whatever_others_hold() {
        for gaps_first in [true, false] {
            let mut rings = Rings::new(OF_8_MB);
            let mut taken = Vec::new();
            for is_gaps_turn in [gaps_first, !gaps_first] {
                if is_gaps_turn {
                    taken.extend(std::iter::from_fn(|| rings.take(Asker::Early, ONE).ok()));
                } else {
                    while rings.has_room_for_connection(ONE) {
                        rings.count_connection(ONE, true);
                    }
                }
            }
            assert!(rings.all.connections > 0 && gaps_first != taken.is_empty());
            for _ in 0..(8 << 20) / 16 / RING_BYTES_MIN {
                taken.push(rings.take(Asker::Flowing, ONE).expect("kept for it"));
            }
            assert!(rings.used_bytes() <= 8 << 20);
        }
    }

    #[test]
    fn warm_rings_are_within_the_budget() {
        let mut rings = Rings::new(OF_8_MB);
        let warm: Vec<Ring> = std::iter::from_fn(|| rings.take_larger(LARGE, ONE).ok()).collect();
        warm.into_iter().for_each(|ring| rings.put(ring));
        assert_eq!(rings.warm_bytes, 2 << 20);
        for program in [ONE, OTHER] {
            while rings.take(Asker::Flowing, program).is_ok() {}
        }
        assert!(rings.warm_bytes < 2 << 20);
        assert!(rings.used_bytes() + rings.warm_bytes <= OF_8_MB);
    }

    /// All that a program can hold: connections whose programs do not read, gaps, and the rest.
    fn take_all(rings: &mut Rings, program: Program) -> Vec<Ring> {
        let mut taken = Vec::new();
        while let Ok(ring) = rings.take(Asker::Stuck, program) {
            taken.push(ring);
            rings.count_full_carrier(program, true);
        }
        taken.extend(std::iter::from_fn(|| {
            rings.take(Asker::Early, program).ok()
        }));
        while rings.has_room_for_connection(program) {
            rings.count_connection(program, true);
        }
        taken.extend(std::iter::from_fn(|| {
            rings.take(Asker::Flowing, program).ok()
        }));
        taken
    }

    #[test]
    fn however_much_a_program_takes_others_have_a_share() {
        let bytes_max = 64 << 20;
        let mut rings = Rings::new(bytes_max);
        for id in 1..=4 {
            let program = Some(ClientId(id));
            let left = bytes_max - rings.used_bytes();
            let larger = rings.take_larger(left / 16, program).expect("a share");
            rings.put(larger);
            let kinds = [Asker::Stuck, Asker::Early, Asker::Flowing];
            for asker in kinds {
                let ring = rings.take(asker, program).expect("a share");
                rings.put(ring);
            }
            assert!(rings.has_room_for_connection(program) && rings.is_ample(program));
            let taken = take_all(&mut rings, program);
            let held = rings.held_by(program).used_bytes();
            assert!(held > left / 2 && held <= left / 4 * 3, "{held} of {left}");
            assert!(rings.is_scarce(program) && !taken.is_empty());
        }
        assert!(rings.used_bytes() <= bytes_max);
    }

    #[test]
    fn a_ring_counts_for_the_program_that_takes_its_connection_in() {
        let mut rings = Rings::new(OF_8_MB);
        let mut ring = rings.take(Asker::Flowing, None).expect("plenty");
        rings.count_for(&mut ring, ONE);
        assert_eq!(rings.held_by(None), Holding::default());
        assert_eq!(rings.held_by(ONE).ring_bytes, RING_BYTES_MIN);
        rings.put(ring);
        assert!(rings.held.is_empty() && rings.all == Holding::default());
    }
}
