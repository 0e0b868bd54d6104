//! Reassembly of fragmented packets (RFC 791 section 3.2, RFC 8200 section 4.5), within bounds.
//!
//! Fragments that overlap condemn their packet: RFC 5722 requires it for IPv6, and no honest sender
//! produces them for IPv4 either.

use std::collections::BTreeMap;

use crate::time::{Duration, Instant};
use crate::wire::Malformed;
use crate::wire::ip::{Address, Ecn, Packet};

/// Packets in pieces at a time, and the bytes they may hold.
const PACKETS_MAX: usize = 64;
const BYTES_MAX: usize = 1 << 20;
/// A packet may have no more pieces than 64 KiB has at the smallest IPv4 MTU.
const PIECES_MAX: usize = 128;
const PACKET_BYTES_MAX: usize = 65_535;
/// RFC 8200 section 4.5: 60 seconds; IPv4 hosts use 30, and memory is what this bounds.
const LIFETIME: Duration = Duration::from_secs(30);

type Key = (Address, Address, u32, u8);

#[derive(Debug)]
struct Partial {
    bytes: Vec<u8>,
    /// Sorted, disjoint.
    pieces: Vec<(usize, usize)>,
    total: Option<usize>,
    expires_at: Instant,
    is_condemned: bool,
    /// Some piece was marked; some piece's sender knows no marks.
    is_marked: bool,
    is_incapable: bool,
}

impl Partial {
    /// RFC 3168 section 5.3: "Reassembly of a fragmented packet MUST NOT lose indications of
    /// congestion": a mark on one piece is one on the whole. That "MUST NOT occur if any of the
    /// other fragments ... carries the Not-ECT codepoint": then the packet is dropped, which is an
    /// indication, too (and what Linux does, `ip_frag_ecn_table`).
    fn ecn(&self) -> Option<Ecn> {
        match (self.is_marked, self.is_incapable) {
            (true, true) => None,
            (true, false) => Some(Ecn::CongestionExperienced),
            (false, true) => Some(Ecn::NotCapable),
            (false, false) => Some(Ecn::Capable),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Fragments {
    packets: BTreeMap<Key, Partial>,
    held_bytes: usize,
}

/// What came of a fragment.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The packet's payload is whole; and what its pieces say together of congestion.
    Whole(Vec<u8>, Ecn),
    /// More is to come.
    Pending,
    /// There is no room for it, or its packet cannot be had.
    Dropped,
}

impl Fragments {
    /// Takes a fragment (`packet.fragment` is set).
    pub(crate) fn take(&mut self, now: Instant, packet: &Packet<'_>) -> Result<Outcome, Malformed> {
        let Some(place) = packet.fragment else {
            return Ok(Outcome::Pending);
        };
        let start = place.offset_bytes;
        let end = start + packet.payload.len();
        // RFC 8200 section 4.5: all but the last are multiples of eight long.
        if end > PACKET_BYTES_MAX
            || packet.payload.is_empty()
            || (place.more && !packet.payload.len().is_multiple_of(8))
        {
            return Err(Malformed::Fragment);
        }
        self.expire(now);
        let key = (
            packet.source,
            packet.destination,
            place.identification,
            packet.protocol,
        );
        if !self.packets.contains_key(&key) && self.packets.len() >= PACKETS_MAX {
            return Ok(Outcome::Dropped);
        }
        let partial = self.packets.entry(key).or_insert_with(|| Partial {
            bytes: Vec::new(),
            pieces: Vec::new(),
            total: None,
            expires_at: now + LIFETIME,
            is_condemned: false,
            is_marked: false,
            is_incapable: false,
        });
        let growth = end.saturating_sub(partial.bytes.len());
        if self.held_bytes + growth > BYTES_MAX || partial.pieces.len() >= PIECES_MAX {
            return Ok(Outcome::Dropped);
        }
        if partial.is_condemned || partial.pieces.contains(&(start, end)) {
            return Ok(Outcome::Pending); // An exact copy is no attack.
        }
        let after = partial.pieces.partition_point(|piece| piece.0 < start);
        let overlaps = after > 0 && partial.pieces[after - 1].1 > start
            || partial.pieces.get(after).is_some_and(|piece| piece.0 < end);
        let contradicts = partial
            .total
            .is_some_and(|total| end > total || !place.more)
            || (!place.more && partial.pieces.last().is_some_and(|last| last.1 > end));
        if overlaps || contradicts {
            partial.is_condemned = true;
            self.held_bytes -= partial.bytes.len();
            partial.bytes = Vec::new();
            return Err(Malformed::Fragment);
        }
        partial.pieces.insert(after, (start, end));
        partial.bytes.resize(partial.bytes.len().max(end), 0);
        partial.bytes[start..end].copy_from_slice(packet.payload);
        self.held_bytes += growth;
        partial.is_marked |= packet.ecn == Ecn::CongestionExperienced;
        partial.is_incapable |= packet.ecn == Ecn::NotCapable;
        if !place.more {
            partial.total = Some(end);
        }
        let held: usize = partial.pieces.iter().map(|piece| piece.1 - piece.0).sum();
        if partial.total == Some(held) {
            let whole = self.packets.remove(&key).expect("it was just updated");
            self.held_bytes -= whole.bytes.len();
            return Ok(match whole.ecn() {
                Some(ecn) => Outcome::Whole(whole.bytes, ecn),
                None => Outcome::Dropped,
            });
        }
        Ok(Outcome::Pending)
    }

    fn expire(&mut self, now: Instant) {
        let held_bytes = &mut self.held_bytes;
        self.packets.retain(|_, partial| {
            let is_alive = now < partial.expires_at;
            *held_bytes -= if is_alive { 0 } else { partial.bytes.len() };
            is_alive
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ip::{Ecn, FragmentPlace};

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
        use Ecn::{Capable, CongestionExperienced as Marked, NotCapable};
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
        assert!(matches!(rest, Ok(Outcome::Pending)));
        assert_eq!(fragments.held_bytes, 0);
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
        let later = Instant::ZERO + LIFETIME;
        fragments.take(later, &fragment(&data, 0, true)).unwrap();
        assert_eq!((fragments.packets.len(), fragments.held_bytes), (1, 1_024));
    }
}
