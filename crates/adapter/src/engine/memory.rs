//! The streams of relayed connections: two rings each, in the adapter's own memory.
//!
//! What the program sends stays in its ring until the remote has acknowledged it: it is retransmitted from there, and nowhere else is
//! a copy. What the remote sends is placed as it arrives, ahead of gaps too, and stays until the program's socket has taken it.

use toehold_tcp::{ConnectionId, Memory, NoRoom};

/// Bytes of one ring: what one connection can have in flight, each way. Untouched pages cost nothing.
pub(super) const RING_BYTES: usize = 1 << 20;
/// Rings kept for the next connections.
const SPARE_MAX: usize = 64;

/// The streams of all connections, by their slot in the engine.
#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: Vec<Option<Duplex>>,
    spare: Vec<Box<[u8]>>,
}

#[derive(Debug)]
struct Duplex {
    /// Slots are used again.
    owner: ConnectionId,
    sending: Option<Box<[u8]>>,
    receiving: Option<Box<[u8]>>,
    /// Bytes of the receiving stream that the program's socket has.
    taken: u64,
}

impl Streams {
    /// The parts of the send ring that are free, when `end` bytes were published and `acknowledged` of them are done with.
    pub(super) fn free_to_send(
        &mut self,
        id: ConnectionId,
        end: u64,
        acknowledged: u64,
    ) -> [&mut [u8]; 2] {
        let free = RING_BYTES - (end - acknowledged) as usize;
        let duplex = Self::duplex(&mut self.slots, id);
        let ring = duplex.sending.get_or_insert_with(|| fresh(&mut self.spare));
        let at = place_of(end);
        let first = free.min(RING_BYTES - at);
        let (start, rest) = ring.split_at_mut(at);
        [&mut rest[..first], &mut start[..free - first]]
    }

    /// Published bytes, for the link.
    pub(super) fn sent(&self, id: ConnectionId, offset: u64, len: usize) -> [&[u8]; 2] {
        let duplex = self.slots.get(id.index()).and_then(Option::as_ref);
        let ring = duplex.filter(|duplex| duplex.owner == id);
        let ring = ring.and_then(|duplex| duplex.sending.as_deref());
        let ring = ring.expect("the engine asks for published bytes only");
        stretches(ring, offset, len)
    }

    /// Bytes that arrived, from where the program's socket has them to `received`.
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

    /// The program's socket has the receiving stream up to `taken`.
    pub(super) fn take(&mut self, id: ConnectionId, taken: u64) {
        Self::duplex(&mut self.slots, id).taken = taken;
    }

    /// The connection is over.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        let Some(place) = self.slots.get_mut(id.index()) else {
            return;
        };
        if let Some(duplex) = place.take_if(|duplex| duplex.owner == id) {
            Self::recycle(&mut self.spare, duplex);
        }
    }

    /// A slot's streams; those of a connection that had it before are forgotten.
    fn duplex(slots: &mut Vec<Option<Duplex>>, id: ConnectionId) -> &mut Duplex {
        if slots.len() <= id.index() {
            slots.resize_with(id.index() + 1, || None);
        }
        let place = &mut slots[id.index()];
        if place.as_ref().is_none_or(|duplex| duplex.owner != id) {
            *place = None;
        }
        place.get_or_insert(Duplex {
            owner: id,
            sending: None,
            receiving: None,
            taken: 0,
        })
    }

    fn recycle(spare: &mut Vec<Box<[u8]>>, duplex: Duplex) {
        let rings = [duplex.sending, duplex.receiving];
        let room = SPARE_MAX.saturating_sub(spare.len());
        spare.extend(rings.into_iter().flatten().take(room));
    }
}

impl Memory for Streams {
    fn place(&mut self, id: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        let duplex = Self::duplex(&mut self.slots, id);
        if offset + bytes.len() as u64 > duplex.taken + RING_BYTES as u64 {
            return Err(NoRoom);
        }
        let ring = duplex
            .receiving
            .get_or_insert_with(|| fresh(&mut self.spare));
        let at = place_of(offset);
        let first = bytes.len().min(RING_BYTES - at);
        ring[at..at + first].copy_from_slice(&bytes[..first]);
        ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        Ok(())
    }

    fn gather(&mut self, id: ConnectionId, offset: u64, target: &mut [u8]) {
        let [first, second] = self.sent(id, offset, target.len());
        target[..first.len()].copy_from_slice(first);
        target[first.len()..].copy_from_slice(second);
    }
}

fn fresh(spare: &mut Vec<Box<[u8]>>) -> Box<[u8]> {
    spare
        .pop()
        .unwrap_or_else(|| vec![0; RING_BYTES].into_boxed_slice())
}

fn place_of(offset: u64) -> usize {
    offset as usize & (RING_BYTES - 1)
}

fn stretches(ring: &[u8], offset: u64, len: usize) -> [&[u8]; 2] {
    let at = place_of(offset);
    let first = len.min(RING_BYTES - at);
    [&ring[at..at + first], &ring[..len - first]]
}

const _: () = assert!(RING_BYTES.is_power_of_two());
