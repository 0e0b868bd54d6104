//! Where the bytes of connections are: in rings of the adapter's own while a carrier brings and
//! takes them, in the program's while a channel does.
//!
//! What the program sends stays in its ring until the remote has acknowledged it: it is
//! retransmitted from there, and nowhere else is a copy. What the remote sends is placed as it
//! arrives, ahead of gaps too, and stays until the program has taken it.

use toehold_tcp::{ConnectionId, Expected, Memory, NoRoom};

use super::endpoint::{Endpoint, Part, Room};
use super::rings::{RING_BYTES, Ring, Rings};

/// Stretches a payload can lie in: two in each of two rings.
pub(super) const PARTS_MAX: usize = 4;

/// The streams of all connections, by their slot in the engine.
#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: Vec<Option<Duplex>>,
    rings: Rings,
}

#[derive(Debug)]
struct Duplex {
    /// Slots are used again.
    owner: ConnectionId,
    sending: Option<Ring>,
    receiving: Option<Ring>,
    /// Bytes of the receiving stream that the program, or its socket, has.
    taken: u64,
    /// The end of what was placed, gaps before it or not.
    placed: u64,
    endpoint: Option<Endpoint>,
}

impl Streams {
    /// The channel beside a connection's carrier, if there is one.
    #[inline]
    pub(super) fn endpoint(&mut self, id: ConnectionId) -> Option<&mut Endpoint> {
        let duplex = self.slots.get_mut(id.index())?.as_mut()?;
        duplex.endpoint.as_mut().filter(|_| duplex.owner == id)
    }

    /// Puts a channel beside a carrier, or takes it away.
    pub(super) fn set_endpoint(&mut self, id: ConnectionId, endpoint: Option<Endpoint>) {
        Self::duplex(&mut self.slots, id).endpoint = endpoint;
    }

    /// Where a payload that continues a stream would go, if that is the program's ring.
    pub(super) fn room(&self, expected: Expected) -> Option<[Room; 2]> {
        let duplex = self.slots.get(expected.connection.index())?.as_ref()?;
        let endpoint = duplex.endpoint.as_ref()?;
        let is_up = duplex.owner == expected.connection && endpoint.is_up();
        is_up.then(|| endpoint.room(expected.offset)).flatten()
    }

    /// So many bytes were put where [`Streams::room`] said.
    pub(super) fn note_placed(&mut self, expected: Expected, len: usize) {
        let duplex = Self::duplex(&mut self.slots, expected.connection);
        duplex.placed = duplex.placed.max(expected.offset + len as u64);
    }

    /// The parts of the send ring that are free, when `end` bytes were published and `acknowledged`
    /// of them are done with; at most `limit` bytes.
    pub(super) fn free_to_send(
        &mut self,
        id: ConnectionId,
        end: u64,
        acknowledged: u64,
        limit: u64,
    ) -> [&mut [u8]; 2] {
        let free = (RING_BYTES as u64 - (end - acknowledged)).min(limit) as usize;
        let duplex = Self::duplex(&mut self.slots, id);
        let ring = duplex.sending.get_or_insert_with(|| self.rings.take());
        let at = place_of(end);
        let first = free.min(RING_BYTES - at);
        let (start, rest) = ring.split_at_mut(at);
        [&mut rest[..first], &mut start[..free - first]]
    }

    /// Published bytes, for the link. Of those in a channel the program can change what they say,
    /// not where they are.
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

    /// Bytes that arrived in our ring, from where the program's socket has them to `received`.
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

    /// The program, or its socket, has the receiving stream up to `taken`.
    pub(super) fn take(&mut self, id: ConnectionId, taken: u64) {
        Self::duplex(&mut self.slots, id).taken = taken;
    }

    /// Whether bytes wait ahead of a gap that begins at `received`.
    pub(super) fn has_early(&self, id: ConnectionId, received: u64) -> bool {
        let duplex = self.slots.get(id.index()).and_then(Option::as_ref);
        duplex.is_some_and(|duplex| duplex.owner == id && duplex.placed > received)
    }

    /// The receiving stream leaves the channel at `published`: what was placed behind that, ahead
    /// of gaps too, comes to our ring.
    pub(super) fn fetch_unpublished(&mut self, id: ConnectionId, published: u64) {
        let duplex = Self::duplex(&mut self.slots, id);
        duplex.taken = published;
        let Some(endpoint) = duplex
            .endpoint
            .as_ref()
            .filter(|_| duplex.placed > published)
        else {
            return;
        };
        let ring = duplex.receiving.get_or_insert_with(|| self.rings.take());
        endpoint.placed(published, duplex.placed, |at, bytes| store(ring, at, bytes));
    }

    /// The connection is over.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        let Some(place) = self.slots.get_mut(id.index()) else {
            return;
        };
        if let Some(duplex) = place.take_if(|duplex| duplex.owner == id) {
            let rings = [duplex.sending, duplex.receiving];
            rings
                .into_iter()
                .flatten()
                .for_each(|ring| self.rings.put(ring));
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
            placed: 0,
            endpoint: None,
        })
    }
}

impl Memory for Streams {
    fn place(&mut self, id: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        let duplex = Self::duplex(&mut self.slots, id);
        let end = offset + bytes.len() as u64;
        if let Some(endpoint) = duplex.endpoint.as_ref().filter(|endpoint| endpoint.is_up()) {
            if !endpoint.place(offset, bytes) {
                return Err(NoRoom);
            }
        } else {
            if end > duplex.taken + RING_BYTES as u64 {
                return Err(NoRoom);
            }
            let ring = duplex.receiving.get_or_insert_with(|| self.rings.take());
            store(ring, offset, bytes);
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
        // A program that changes its ring under way gets nothing that others have left here.
        target[at..].fill(0);
    }
}

fn store(ring: &mut [u8], offset: u64, bytes: &[u8]) {
    let at = place_of(offset);
    let first = bytes.len().min(RING_BYTES - at);
    ring[at..at + first].copy_from_slice(&bytes[..first]);
    ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
}

fn place_of(offset: u64) -> usize {
    offset as usize & (RING_BYTES - 1)
}

fn stretches(ring: &[u8], offset: u64, len: usize) -> [&[u8]; 2] {
    let at = place_of(offset);
    let first = len.min(RING_BYTES - at);
    [&ring[at..at + first], &ring[..len - first]]
}

const _: () = assert!(PARTS_MAX < toehold_link::PARTS_MAX);
