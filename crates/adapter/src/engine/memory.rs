//! The memory for the bytes of connections: the adapter's own rings for bytes on a carrier, the
//! program's rings for bytes of a channel.
//!
//! The program's bytes stay in its ring until the remote has acknowledged them: they are
//! retransmitted from there, and there is no other copy. The remote's bytes are stored as they
//! arrive, also behind gaps, and stay until the program has taken them.
//!
//! Rings of the adapter's own have a budget (`rings`). When it is used up, bytes of remotes are
//! dropped, and bytes of programs wait in their sockets. Bytes behind a gap are then discarded to
//! make room (`runner::pruning`).

use std::ops::Range;

use toehold_tcp::{ConnectionId, Expected, Memory, NoRoom};

use super::copying::Copying;
use super::endpoint::{Endpoint, Part, Room};
use super::rings::{Asker, Exhausted, Program, RING_BYTES_MIN, Ring, Rings};

/// Stretches a payload can lie in: two in each of two rings.
pub(super) const PARTS_MAX: usize = 4;

/// The streams of all connections, by their slot in the engine.
#[derive(Debug)]
pub(super) struct Streams {
    /// Copies under way to programs' rings. Declared before the rings, so that it is dropped first.
    pub(super) copying: Copying,
    slots: Vec<Option<Duplex>>,
    rings: Rings,
}

#[derive(Debug)]
struct Duplex {
    /// The connection that owns the slot, because slots are used again.
    owner: ConnectionId,
    /// Its rings count against the share of this program.
    program: Program,
    sending: Option<Ring>,
    receiving: Option<Ring>,
    /// Bytes of the receiving stream that the program, or its socket, has.
    taken: u64,
    /// The end of the stored bytes, including those behind gaps.
    placed: u64,
    /// The carrier is full: the program does not read.
    is_stuck: bool,
    /// The receive ring could not become larger.
    is_cramped: bool,
    endpoint: Option<Endpoint>,
}

/// The size of a connection's entry here.
#[cfg(test)]
pub(super) const DUPLEX_BYTES: usize = size_of::<Option<Duplex>>();

impl Streams {
    /// No streams yet, and a budget for rings of our own.
    pub(super) fn new(budget_bytes: usize) -> Streams {
        Streams {
            copying: Copying::default(),
            slots: Vec::new(),
            rings: Rings::new(budget_bytes),
        }
    }

    /// Whether a connection's receive ring could not become larger since the last call.
    #[inline]
    pub(super) fn take_cramped(&mut self, id: ConnectionId) -> bool {
        let duplex = self.slots.get_mut(id.index()).and_then(Option::as_mut);
        let duplex = duplex.filter(|duplex| duplex.owner == id);
        duplex.is_some_and(|duplex| std::mem::take(&mut duplex.is_cramped))
    }

    /// The rings of our own, and their budget.
    pub(super) fn rings(&mut self) -> &mut Rings {
        &mut self.rings
    }

    /// A program has a connection from now on.
    pub(super) fn belongs_to(&mut self, id: ConnectionId, program: Program) {
        let duplex = Self::duplex(&mut self.slots, &mut self.rings, id);
        for ring in [&mut duplex.sending, &mut duplex.receiving] {
            ring.iter_mut()
                .for_each(|ring| self.rings.count_for(ring, program));
        }
        if duplex.is_stuck {
            self.rings.count_full_carrier(duplex.program, false);
            self.rings.count_full_carrier(program, true);
        }
        duplex.program = program;
    }

    /// The channel beside a connection's carrier, if there is one.
    #[inline]
    pub(super) fn endpoint(&mut self, id: ConnectionId) -> Option<&mut Endpoint> {
        let duplex = self.slots.get_mut(id.index())?.as_mut()?;
        duplex.endpoint.as_mut().filter(|_| duplex.owner == id)
    }

    /// Puts a channel beside a carrier, or takes it away.
    pub(super) fn set_endpoint(&mut self, id: ConnectionId, endpoint: Option<Endpoint>) {
        self.copying.finish(id);
        Self::duplex(&mut self.slots, &mut self.rings, id).endpoint = endpoint;
    }

    /// Takes the channel away from beside a carrier, which goes on without the connection.
    pub(super) fn take_endpoint(&mut self, id: ConnectionId) -> Option<Endpoint> {
        self.copying.finish(id);
        Self::duplex(&mut self.slots, &mut self.rings, id)
            .endpoint
            .take()
    }

    /// Moves the remote's stream to the channel from its beginning: bytes that are already stored
    /// in our ring go there, too, also those behind gaps. False when the channel has no room.
    pub(super) fn move_up(&mut self, id: ConnectionId) -> bool {
        let duplex = Self::duplex(&mut self.slots, &mut self.rings, id);
        let (Some(ring), Some(endpoint)) = (&duplex.receiving, &duplex.endpoint) else {
            return true;
        };
        let mut at = duplex.taken;
        for part in stretches(ring, at, (duplex.placed - at) as usize) {
            let Some(room) = endpoint.room_for(at, part.len()) else {
                return false;
            };
            Endpoint::store(room, part);
            at += part.len() as u64;
        }
        let ring = duplex.receiving.take();
        ring.into_iter().for_each(|ring| self.rings.put(ring));
        true
    }

    /// The place for a payload that continues a stream, if it goes to the program's ring.
    pub(super) fn room(&mut self, expected: Expected) -> Option<[Room; 2]> {
        let duplex = self.slots.get_mut(expected.connection.index())?.as_mut()?;
        let endpoint = duplex.endpoint.as_mut()?;
        if endpoint.wants_wider() {
            endpoint.try_widen(duplex.placed);
        }
        let is_up = duplex.owner == expected.connection && endpoint.is_up();
        is_up.then(|| endpoint.room(expected.offset)).flatten()
    }

    /// Records that `len` bytes were stored in [`Streams::room`].
    pub(super) fn note_placed(&mut self, expected: Expected, len: usize) {
        let duplex = Self::duplex(&mut self.slots, &mut self.rings, expected.connection);
        duplex.placed = duplex.placed.max(expected.offset + len as u64);
    }

    /// The free parts of the send ring, when `end` bytes were published and `acknowledged` of them
    /// are acknowledged; at most `limit` bytes.
    pub(super) fn free_to_send(
        &mut self,
        id: ConnectionId,
        end: u64,
        acknowledged: u64,
        limit: u64,
    ) -> [&mut [u8]; 2] {
        let duplex = Self::duplex(&mut self.slots, &mut self.rings, id);
        // Programs are less dangerous than remotes: `quota` limits how many rings they have.
        let program = duplex.program;
        let first_ring = || self.rings.take_anyway(RING_BYTES_MIN, program);
        let ring = duplex.sending.get_or_insert_with(first_ring);
        let free = (ring.len() as u64 - (end - acknowledged)).min(limit) as usize;
        let at = place_of(ring, end);
        let first = free.min(ring.len() - at);
        let (start, rest) = ring.split_at_mut(at);
        [&mut rest[..first], &mut start[..free - first]]
    }

    /// Makes a full send ring larger, up to `bytes_max`, when `end` bytes were published and
    /// `acknowledged` of them are acknowledged. False when that is not possible.
    pub(super) fn grow_to_send(
        &mut self,
        id: ConnectionId,
        (acknowledged, end): (u64, u64),
        bytes_max: usize,
    ) -> bool {
        let duplex = Self::duplex(&mut self.slots, &mut self.rings, id);
        let bytes = duplex.sending.as_ref().map_or(0, |ring| ring.len());
        let held = acknowledged..end;
        bytes < bytes_max && {
            let rings = (&mut self.rings, Asker::Flowing, duplex.program);
            enlarge(&mut duplex.sending, rings, held, bytes + 1).is_ok()
        }
    }

    /// The remote has acknowledged all bytes of the sending stream.
    pub(super) fn sent_all(&mut self, id: ConnectionId) {
        let duplex = Self::duplex(&mut self.slots, &mut self.rings, id);
        let is_short = self.rings.is_short(duplex.program);
        if is_short && let Some(ring) = duplex.sending.take() {
            self.rings.put(ring);
        }
    }

    /// Published bytes, for the link. The program can change the contents of bytes in a channel,
    /// but not their place.
    pub(super) fn sent(&self, id: ConnectionId, offset: u64, len: usize) -> [Part; PARTS_MAX] {
        let duplex = self.slots.get(id.index()).and_then(Option::as_ref);
        let duplex = duplex.filter(|duplex| duplex.owner == id);
        let duplex = duplex.expect("the engine asks for published bytes only");
        let mut parts = [(std::ptr::null(), 0); PARTS_MAX];
        let channel = duplex.endpoint.as_ref();
        let channel = channel.and_then(|endpoint| Some((endpoint, endpoint.ring_begins()?)));
        let own = match channel {
            Some((_, begins)) => (begins.saturating_sub(offset) as usize).min(len),
            None => len,
        };
        if own > 0 {
            let ring = duplex.sending.as_deref();
            let ring = ring.expect("what came by the carrier is in our ring");
            for (part, stretch) in parts.iter_mut().zip(stretches(ring, offset, own)) {
                *part = (stretch.as_ptr(), stretch.len());
            }
        }
        if let Some((endpoint, _)) = channel.filter(|_| own < len) {
            let in_channel = endpoint.sent(offset + own as u64, len - own);
            parts[2..].copy_from_slice(&in_channel);
        }
        parts
    }

    /// Bytes in our ring that the program's socket has not taken yet, up to `received`.
    pub(super) fn arrived(&self, id: ConnectionId, received: u64) -> [&[u8]; 2] {
        let duplex = self.slots.get(id.index()).and_then(Option::as_ref);
        let Some(duplex) = duplex.filter(|duplex| duplex.owner == id) else {
            return [&[], &[]];
        };
        let Some(ring) = duplex.receiving.as_deref() else {
            return [&[], &[]];
        };
        stretches(ring, duplex.taken, (received - duplex.taken) as usize)
    }

    /// Records that the program, or its socket, has taken the receiving stream up to `taken`.
    pub(super) fn take(&mut self, id: ConnectionId, taken: u64) {
        let duplex = Self::duplex(&mut self.slots, &mut self.rings, id);
        duplex.taken = taken;
        if duplex.receiving.is_none() {
            return;
        }
        // The bytes of a channel are in its own ring. If rings are short, an empty one is given to
        // others.
        let is_up = (duplex.endpoint.as_ref()).is_some_and(Endpoint::is_up);
        if is_up || taken >= duplex.placed && self.rings.is_short(duplex.program) {
            duplex
                .receiving
                .take()
                .into_iter()
                .for_each(|ring| self.rings.put(ring));
        }
    }

    /// Records that the carrier is full, or takes bytes again.
    pub(super) fn set_stuck(&mut self, id: ConnectionId, is_stuck: bool) {
        let duplex = Self::duplex(&mut self.slots, &mut self.rings, id);
        if duplex.is_stuck != is_stuck {
            duplex.is_stuck = is_stuck;
            self.rings.count_full_carrier(duplex.program, is_stuck);
        }
    }

    /// Length of our own receive ring; zero without one.
    pub(super) fn receiving_bytes(&self, id: ConnectionId) -> usize {
        let duplex = self.slots.get(id.index()).and_then(Option::as_ref);
        let duplex = duplex.filter(|duplex| duplex.owner == id);
        let ring = duplex.and_then(|duplex| duplex.receiving.as_ref());
        ring.map_or(0, |ring| ring.len())
    }

    /// Discards the bytes behind a gap that begins at `received`, and makes the ring as small as
    /// possible.
    pub(super) fn discard_early(&mut self, id: ConnectionId, received: u64) {
        let duplex = Self::duplex(&mut self.slots, &mut self.rings, id);
        duplex.placed = received;
        let Some(ring) = duplex.receiving.take() else {
            return;
        };
        let held = duplex.taken..received.max(duplex.taken);
        let bytes = (held.end - held.start) as usize;
        if bytes > 0 {
            let mut rest = self.rings.take_anyway(bytes, duplex.program);
            copy(&ring, &mut rest, held);
            duplex.receiving = Some(rest);
        }
        self.rings.put(ring);
    }

    /// Whether there are bytes behind a gap that begins at `received`.
    pub(super) fn has_early(&self, id: ConnectionId, received: u64) -> bool {
        let duplex = self.slots.get(id.index()).and_then(Option::as_ref);
        duplex.is_some_and(|duplex| duplex.owner == id && duplex.placed > received)
    }

    /// The receiving stream leaves the channel at `offset`: later bytes that are already stored,
    /// also behind gaps, move to our ring.
    pub(super) fn fetch_from(&mut self, id: ConnectionId, offset: u64) {
        self.copying.finish(id);
        let duplex = Self::duplex(&mut self.slots, &mut self.rings, id);
        duplex.taken = offset;
        let Some(endpoint) = duplex.endpoint.as_ref().filter(|_| duplex.placed > offset) else {
            return;
        };
        let bytes = (duplex.placed - offset) as usize;
        let old = duplex.receiving.take_if(|ring| ring.len() < bytes);
        old.into_iter().for_each(|ring| self.rings.put(ring));
        let ring = duplex
            .receiving
            .get_or_insert_with(|| self.rings.take_anyway(bytes, duplex.program));
        endpoint.placed(offset, duplex.placed, |at, bytes| store(ring, at, bytes));
    }

    /// The connection is over.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        self.copying.finish(id);
        let Some(place) = self.slots.get_mut(id.index()) else {
            return;
        };
        if let Some(duplex) = place.take_if(|duplex| duplex.owner == id) {
            duplex.give_back(&mut self.rings);
        }
    }

    /// The streams of a slot. Those of the slot's former connection are dropped.
    #[inline]
    fn duplex<'a>(
        slots: &'a mut Vec<Option<Duplex>>,
        rings: &mut Rings,
        id: ConnectionId,
    ) -> &'a mut Duplex {
        if slots.len() <= id.index() {
            slots.resize_with(id.index() + 1, || None);
        }
        let place = &mut slots[id.index()];
        if let Some(old) = place.take_if(|duplex| duplex.owner != id) {
            old.give_back(rings);
        }
        place.get_or_insert(Duplex {
            owner: id,
            program: None,
            sending: None,
            receiving: None,
            taken: 0,
            placed: 0,
            is_stuck: false,
            is_cramped: false,
            endpoint: None,
        })
    }
}

impl Duplex {
    #[cold]
    fn give_back(self, rings: &mut Rings) {
        if self.is_stuck {
            rings.count_full_carrier(self.program, false);
        }
        let own = [self.sending, self.receiving];
        own.into_iter().flatten().for_each(|ring| rings.put(ring));
    }
}

impl Memory for Streams {
    fn place(&mut self, id: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        let duplex = Self::duplex(&mut self.slots, &mut self.rings, id);
        let end = offset + bytes.len() as u64;
        if let Some(endpoint) = duplex.endpoint.as_mut().filter(|endpoint| endpoint.is_up()) {
            if endpoint.wants_wider() {
                endpoint.try_widen(duplex.placed);
            }
            let room = endpoint.room_for(offset, bytes.len()).ok_or(NoRoom)?;
            // SAFETY: the ring is mapped as long as the endpoint exists, and copies are finished
            // before the endpoint is removed; up to the window's end the ring is ours to write.
            if !unsafe { self.copying.begin(id, offset, bytes, room) } {
                Endpoint::store(room, bytes);
            }
        } else {
            let held = duplex.taken..duplex.placed.max(duplex.taken);
            let wanted = (end - duplex.taken) as usize;
            let asker = if duplex.is_stuck {
                Asker::Stuck
            } else if offset > duplex.taken {
                // The ring is for the first byte that waits; all earlier bytes were taken.
                Asker::Early
            } else {
                Asker::Flowing
            };
            let rings = (&mut self.rings, asker, duplex.program);
            match enlarge(&mut duplex.receiving, rings, held, wanted) {
                Ok(ring) => store(ring, offset, bytes),
                Err(Exhausted) => {
                    duplex.is_cramped = true;
                    return Err(NoRoom);
                }
            }
        }
        duplex.placed = duplex.placed.max(end);
        Ok(())
    }

    fn gather(&mut self, id: ConnectionId, offset: u64, target: &mut [u8]) {
        let mut at = 0;
        for (base, len) in self.sent(id, offset, target.len()) {
            let part = &mut target[at..at + len];
            // SAFETY: `sent` names readable memory; `part` is as long.
            unsafe { toehold_copy::from_shared(base, part.as_mut_ptr(), len) };
            at += len;
        }
        // If the program changes its ring meanwhile, it must not see bytes that others have left
        // here.
        target[at..].fill(0);
    }
}

/// A connection's ring, of at least `bytes`; the stretch `held` of its stream stays in it.
fn enlarge<'a>(
    place: &'a mut Option<Ring>,
    (rings, asker, program): (&mut Rings, Asker, Program),
    held: Range<u64>,
    bytes: usize,
) -> Result<&'a mut Ring, Exhausted> {
    if place.as_ref().is_none_or(|ring| ring.len() < bytes) {
        let mut larger = if bytes <= RING_BYTES_MIN {
            rings.take(asker, program)?
        } else {
            rings.take_larger(bytes, program)?
        };
        if let Some(ring) = place.take() {
            copy(&ring, &mut larger, held);
            rings.put(ring);
        }
        *place = Some(larger);
    }
    place.as_mut().ok_or(Exhausted)
}

/// Copies a stretch of a stream to another ring.
fn copy(from: &[u8], to: &mut [u8], held: Range<u64>) {
    let mut at = held.start;
    for part in stretches(from, held.start, (held.end - held.start) as usize) {
        store(to, at, part);
        at += part.len() as u64;
    }
}

fn store(ring: &mut [u8], offset: u64, bytes: &[u8]) {
    let at = place_of(ring, offset);
    let first = bytes.len().min(ring.len() - at);
    ring[at..at + first].copy_from_slice(&bytes[..first]);
    ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
}

/// Rings are powers of two long.
fn place_of(ring: &[u8], offset: u64) -> usize {
    offset as usize & (ring.len() - 1)
}

fn stretches(ring: &[u8], offset: u64, len: usize) -> [&[u8]; 2] {
    let at = place_of(ring, offset);
    let first = len.min(ring.len() - at);
    [&ring[at..at + first], &ring[..len - first]]
}

const _: () = assert!(PARTS_MAX < toehold_link::PARTS_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use toehold_tcp::{Config, Engine, Instant, InterfaceAddress, Medium, Options, Random};

    /// Connections that have the same slot one after the other.
    fn of_one_slot() -> [ConnectionId; 2] {
        let address = InterfaceAddress {
            address: [10, 0, 0, 1].into(),
            prefix_bits: 24,
        };
        let config = Config::new(Medium::Ip, 1_500, address);
        let mut engine = Engine::new(config, Random::new(1));
        [(); 2].map(|()| {
            let remote = SocketAddr::from(([10, 0, 0, 2], 80));
            let opened = engine.connect(Instant::ZERO, None, remote, Options::default());
            let id = opened.expect("there is room");
            engine.release(Instant::ZERO, id).expect("it is there");
            while engine.poll_event().is_some() {}
            let mut header = [0; toehold_tcp::HEADER_BUFFER_BYTES];
            while engine.poll_transmit(Instant::ZERO, &mut header).is_some() {}
            id
        })
    }

    #[test]
    fn a_slot_that_is_used_again_gives_the_rings_in_it_back() {
        let [first, second] = of_one_slot();
        assert!(first != second && first.index() == second.index());
        let mut streams = Streams::new(64 << 20);
        streams.place(first, 0, b"never accepted").expect("room");
        let used = streams.rings().used_bytes();
        assert!(used > 0);
        streams.place(second, 0, b"accepted").expect("room");
        assert_eq!(streams.rings().used_bytes(), used);
        streams.forget(second);
        assert_eq!(streams.rings().used_bytes(), 0);
    }
}
