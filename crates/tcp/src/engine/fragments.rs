//! Reassembly of fragmented packets (RFC 791 section 3.2, RFC 8200 section 4.5), within bounds.
//!
//! If fragments overlap, their packet is dropped: RFC 5722 requires that for IPv6, and no honest
//! sender produces overlapping fragments for IPv4 either.
//!
//! When the store is full, the newest packet replaces the oldest, as in FreeBSD (`ip_reass`) and
//! lwIP (`IP_REASS_FREE_OLDEST`). Fragments of one packet follow each other closely, so an honest
//! packet is complete before a flood has displaced it. If the newest packet were refused instead, a
//! few first fragments without their rest could stop reassembly for [`LIFETIME`].

use std::collections::BTreeMap;

use crate::time::{Duration, Instant};
use crate::wire::Malformed;
use crate::wire::ip::{Address, Ecn, FragmentPlace, Packet};

/// The most incomplete packets, and the most bytes they may hold.
const PACKETS_MAX: usize = 64;
const BYTES_MAX: usize = 1 << 20;
/// The most pieces of a packet: 64 KiB divided at the smallest IPv4 MTU.
const PIECES_MAX: usize = 128;
const PACKET_BYTES_MAX: usize = 65_535;
/// RFC 8200 section 4.5: 60 seconds; IPv4 hosts use 30. The time bounds the memory.
const LIFETIME: Duration = Duration::from_secs(30);

type Key = (Address, Address, u32, u8);

#[derive(Debug)]
struct Partial {
    bytes: Vec<u8>,
    /// Sorted and disjoint ranges.
    pieces: Vec<(usize, usize)>,
    total: Option<usize>,
    /// Order of arrival of the first piece, also for pieces of one instant.
    serial: u64,
    expires_at: Instant,
    is_given_up: bool,
    /// Some piece was marked; some piece was not ECN-capable.
    is_marked: bool,
    is_incapable: bool,
}

/// The range of a fragment's payload in its packet.
struct Piece {
    start: usize,
    end: usize,
    is_last: bool,
}

impl Piece {
    fn of(packet: &Packet<'_>, place: FragmentPlace) -> Result<Piece, Malformed> {
        let bytes = packet.payload.len();
        let piece = Piece {
            start: place.offset_bytes,
            end: place.offset_bytes + bytes,
            is_last: !place.more,
        };
        // RFC 8200 section 4.5: all fragments except the last have a multiple of eight bytes.
        let is_whole_words = piece.is_last || bytes.is_multiple_of(8);
        if piece.end > PACKET_BYTES_MAX || bytes == 0 || !is_whole_words {
            return Err(Malformed::Fragment);
        }
        Ok(piece)
    }
}

impl Partial {
    fn new(serial: u64, expires_at: Instant) -> Partial {
        Partial {
            bytes: Vec::new(),
            pieces: Vec::new(),
            total: None,
            serial,
            expires_at,
            is_given_up: false,
            is_marked: false,
            is_incapable: false,
        }
    }

    /// The index at which to insert a piece; `None` if it overlaps another piece or contradicts the
    /// packet's known length.
    fn place_for(&self, piece: &Piece) -> Option<usize> {
        let (start, end) = (piece.start, piece.end);
        let at = self.pieces.partition_point(|other| other.0 < start);
        let overlaps = at > 0 && self.pieces[at - 1].1 > start
            || self.pieces.get(at).is_some_and(|next| next.0 < end);
        let contradicts = self.total.is_some_and(|total| end > total || piece.is_last)
            || (piece.is_last && self.pieces.last().is_some_and(|last| last.1 > end));
        (!overlaps && !contradicts).then_some(at)
    }

    fn insert(&mut self, at: usize, piece: &Piece, packet: &Packet<'_>) {
        self.pieces.insert(at, (piece.start, piece.end));
        self.bytes.resize(self.bytes.len().max(piece.end), 0);
        self.bytes[piece.start..piece.end].copy_from_slice(packet.payload);
        self.is_marked |= packet.ecn == Ecn::CongestionExperienced;
        self.is_incapable |= packet.ecn == Ecn::NotCapable;
        if piece.is_last {
            self.total = Some(piece.end);
        }
    }

    fn is_whole(&self) -> bool {
        let held: usize = self.pieces.iter().map(|piece| piece.1 - piece.0).sum();
        self.total == Some(held)
    }

    /// Gives up the packet, whose further pieces are refused. Returns the number of its pieces.
    fn give_up(&mut self) -> u64 {
        self.is_given_up = true;
        self.bytes = Vec::new();
        core::mem::take(&mut self.pieces).len() as u64
    }

    /// RFC 3168 section 5.3: "Reassembly of a fragmented packet MUST NOT lose indications of
    /// congestion": a mark on one piece marks the whole packet. That "MUST NOT occur if any of the
    /// other fragments ... carries the Not-ECT codepoint": then the packet is dropped, which also
    /// indicates congestion (as on Linux, `ip_frag_ecn_table`).
    fn ecn(&self) -> Option<Ecn> {
        match (self.is_marked, self.is_incapable) {
            (true, true) => None,
            (true, false) => Some(Ecn::CongestionExperienced),
            (false, true) => Some(Ecn::NotCapable),
            (false, false) => Some(Ecn::Ect0),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Fragments {
    packets: BTreeMap<Key, Partial>,
    /// Invariant: the sum of `bytes.len()` over `packets`, at most [`BYTES_MAX`].
    held_bytes: usize,
    /// The serial number of the next packet.
    serial: u64,
    /// Pieces that were given up with their packets and are not yet [counted](Self::take_given_up).
    given_up: u64,
}

/// The result of a fragment.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The packet's payload is complete; the codepoint combines those of its pieces.
    Whole(Vec<u8>, Ecn),
    /// Fragments are still missing.
    Pending,
    /// The packet has too many pieces, or cannot be reassembled.
    Dropped,
}

impl Fragments {
    /// Takes a fragment (`packet.fragment` is set).
    pub(crate) fn take(&mut self, now: Instant, packet: &Packet<'_>) -> Result<Outcome, Malformed> {
        let Some(place) = packet.fragment else {
            return Ok(Outcome::Pending);
        };
        let piece = Piece::of(packet, place)?;
        self.expire(now);
        let key = (
            packet.source,
            packet.destination,
            place.identification,
            packet.protocol,
        );
        let held = self.packets.get(&key);
        if held.is_some_and(|partial| partial.is_given_up) {
            return Ok(Outcome::Dropped);
        }
        self.make_room(&key, piece.end);
        let serial = &mut self.serial;
        let partial = self.packets.entry(key).or_insert_with(|| {
            *serial += 1;
            Partial::new(*serial, now + LIFETIME)
        });
        let bytes_before = partial.bytes.len();
        if partial.pieces.len() >= PIECES_MAX {
            return Ok(Outcome::Dropped);
        }
        if partial.pieces.contains(&(piece.start, piece.end)) {
            return Ok(Outcome::Pending); // An exact copy is no attack.
        }
        let Some(at) = partial.place_for(&piece) else {
            self.given_up += partial.give_up();
            self.held_bytes -= bytes_before;
            return Err(Malformed::Fragment);
        };
        partial.insert(at, &piece, packet);
        self.held_bytes += partial.bytes.len() - bytes_before;
        if !partial.is_whole() {
            return Ok(Outcome::Pending);
        }
        let whole = self.packets.remove(&key).expect("it was just updated");
        self.held_bytes -= whole.bytes.len();
        Ok(match whole.ecn() {
            Some(ecn) => Outcome::Whole(whole.bytes, ecn),
            None => Outcome::Dropped,
        })
    }

    /// The number of pieces given up since the last call: their packets expired, or were replaced
    /// by newer ones.
    pub(crate) fn take_given_up(&mut self) -> u64 {
        core::mem::take(&mut self.given_up)
    }

    /// Evicts the oldest packets until the one of `key` can be `end` bytes long.
    fn make_room(&mut self, key: &Key, end: usize) {
        loop {
            let held = self.packets.get(key);
            let growth = end.saturating_sub(held.map_or(0, |partial| partial.bytes.len()));
            let is_one_more = usize::from(held.is_none());
            let fits = self.held_bytes + growth <= BYTES_MAX
                && self.packets.len() + is_one_more <= PACKETS_MAX;
            let others = self.packets.iter().filter(|(other, _)| *other != key);
            let oldest = others.min_by_key(|(_, partial)| partial.serial);
            let Some((&oldest, _)) = oldest.filter(|_| !fits) else {
                return;
            };
            let partial = self.packets.remove(&oldest).expect("it was just found");
            self.held_bytes -= partial.bytes.len();
            self.given_up += partial.pieces.len() as u64;
        }
    }

    fn expire(&mut self, now: Instant) {
        let (held_bytes, given_up) = (&mut self.held_bytes, &mut self.given_up);
        self.packets.retain(|_, partial| {
            let is_alive = now < partial.expires_at;
            if !is_alive {
                *held_bytes -= partial.bytes.len();
                *given_up += partial.pieces.len() as u64;
            }
            is_alive
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ip::Ecn;

    fn fragment(payload: &[u8], offset_bytes: usize, more: bool) -> Packet<'_> {
        Packet {
            source: Address::v4(1 << 24),
            destination: Address::v4(2 << 24),
            protocol: 6,
            ecn: Ecn::NotCapable,
            hop_limit: 64,
            fragment: Some(FragmentPlace {
                identification: 7,
                offset_bytes,
                more,
            }),
            payload,
        }
    }

    #[test]
    fn pieces_in_any_order_make_the_whole() {
        let data: Vec<u8> = (0..100).collect();
        let pieces = [(0, 40, true), (40, 80, true), (80, 100, false)];
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]] {
            let mut fragments = Fragments::default();
            let mut whole = None;
            for index in order {
                let (start, end, more) = pieces[index];
                let packet = fragment(&data[start..end], start, more);
                if let Outcome::Whole(bytes, _) = fragments.take(Instant::ZERO, &packet).unwrap() {
                    whole = Some(bytes);
                }
            }
            assert_eq!(whole.as_deref(), Some(&data[..]));
            assert_eq!(fragments.held_bytes, 0);
        }
    }

    #[test]
    fn a_mark_on_one_piece_is_one_on_the_whole() {
        use Ecn::{CongestionExperienced as Marked, Ect0 as Capable, NotCapable};
        for (marks, expected) in [
            ([Capable, Capable], Some(Capable)),
            ([NotCapable, NotCapable], Some(NotCapable)),
            ([Marked, Capable], Some(Marked)),
            ([Capable, Marked], Some(Marked)),
            ([Marked, NotCapable], None),
            ([NotCapable, Marked], None),
        ] {
            let mut fragments = Fragments::default();
            let data = [0; 16];
            let mut first = fragment(&data[..8], 0, true);
            let mut second = fragment(&data[8..], 8, false);
            (first.ecn, second.ecn) = (marks[0], marks[1]);
            fragments.take(Instant::ZERO, &first).unwrap();
            let ecn = match fragments.take(Instant::ZERO, &second).unwrap() {
                Outcome::Whole(_, ecn) => Some(ecn),
                _ => None,
            };
            assert_eq!(ecn, expected, "{marks:?}");
            assert_eq!((fragments.packets.len(), fragments.held_bytes), (0, 0));
        }
    }

    #[test]
    fn an_overlap_condemns_the_packet() {
        let mut fragments = Fragments::default();
        let data = [0; 64];
        fragments
            .take(Instant::ZERO, &fragment(&data[..32], 0, true))
            .unwrap();
        let overlap = fragments.take(Instant::ZERO, &fragment(&data[..32], 24, true));
        assert_eq!(overlap.unwrap_err(), Malformed::Fragment);
        let rest = fragments.take(Instant::ZERO, &fragment(&data[..32], 32, false));
        assert!(matches!(rest, Ok(Outcome::Dropped)));
        assert_eq!((fragments.held_bytes, fragments.take_given_up()), (0, 1));
    }

    #[test]
    fn the_store_is_bounded_and_forgets() {
        let mut fragments = Fragments::default();
        let data = [0; 1_024];
        for identification in 0..1_000 {
            let mut packet = fragment(&data, 8, true);
            packet.fragment.as_mut().unwrap().identification = identification;
            fragments.take(Instant::ZERO, &packet).unwrap();
        }
        assert_eq!(fragments.packets.len(), PACKETS_MAX);
        let evicted = 1_000 - PACKETS_MAX as u64;
        assert_eq!(fragments.take_given_up(), evicted);
        let later = Instant::ZERO + LIFETIME;
        fragments.take(later, &fragment(&data, 0, true)).unwrap();
        assert_eq!((fragments.packets.len(), fragments.held_bytes), (1, 1_024));
        assert_eq!(fragments.take_given_up(), PACKETS_MAX as u64);
    }

    #[test]
    fn a_flood_of_first_fragments_does_not_stop_reassembly() {
        let data = [0; 64];
        // By number, and by bytes.
        for at in [0, 60_000] {
            let mut fragments = Fragments::default();
            for identification in 100..200 {
                let mut packet = fragment(&data, at, true);
                packet.fragment.as_mut().unwrap().identification = identification;
                fragments.take(Instant::ZERO, &packet).unwrap();
            }
            assert!(fragments.packets.len() <= PACKETS_MAX && fragments.held_bytes <= BYTES_MAX);
            let first = fragment(&data[..32], 0, true);
            fragments.take(Instant::ZERO, &first).unwrap();
            let rest = fragment(&data[32..], 32, false);
            let whole = fragments.take(Instant::ZERO, &rest).unwrap();
            assert!(matches!(whole, Outcome::Whole(bytes, _) if bytes == data));
        }
    }

    #[test]
    fn a_packet_does_not_give_way_to_its_own_rest() {
        let data = [0; 1_024];
        let mut fragments = Fragments::default();
        fragments
            .take(Instant::ZERO, &fragment(&data, 0, true))
            .unwrap();
        for identification in 100..200 {
            let mut packet = fragment(&data, 60_000, true);
            packet.fragment.as_mut().unwrap().identification = identification;
            fragments.take(Instant::ZERO, &packet).unwrap();
            let held = fragments
                .packets
                .values()
                .map(|partial| partial.bytes.len());
            assert_eq!(held.sum::<usize>(), fragments.held_bytes);
            assert!(fragments.held_bytes <= BYTES_MAX);
        }
        // A packet that grows may itself be the oldest.
        let oldest = fragments.packets.iter().min_by_key(|(_, held)| held.serial);
        let identification = oldest.unwrap().0.2;
        let mut packet = fragment(&data, 0, true);
        packet.fragment.as_mut().unwrap().identification = identification;
        fragments.take(Instant::ZERO, &packet).unwrap();
        packet = fragment(&data[..1_000], 61_024, false);
        packet.fragment.as_mut().unwrap().identification = identification;
        fragments.take(Instant::ZERO, &packet).unwrap();
        assert!(fragments.packets.keys().any(|key| key.2 == identification));
    }
}
