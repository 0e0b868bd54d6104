//! An observer on every link that checks TCP independently of the engine. It parses frames with its
//! own parser, and records for each connection the segments that each side may send next.
//!
//! Checks of every segment sent:
//! - it is no larger than the link and the remote's MSS allow, and its checksums are right;
//! - payload is byte for byte that of the stream, also in a retransmission;
//! - it leaves no gap in sequence space, and stays inside the window the remote has offered
//!   (RFC 9293 section 3.8.6);
//! - it acknowledges only what was sent, and never less than before, unless the connection was
//!   reset or given up and then restarted by a SYN cookie;
//! - the right edge of its window never moves left (by more than the rounding of the scale);
//! - its timestamp is not older than a former one (RFC 7323); its SACK blocks are of data that was
//!   sent.

use core::hash::{BuildHasherDefault, Hash, Hasher};
use core::net::{IpAddr, SocketAddr};
use std::collections::HashMap;

use super::pattern;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

/// A segment, parsed without the engine's code.
#[derive(Clone, Debug)]
pub struct Packet<'a> {
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Control bits, without AE.
    pub flags: u8,
    /// The bit AE of RFC 9768.
    pub has_ae: bool,
    /// The window field.
    pub window: u16,
    /// Maximum segment size option.
    pub mss: Option<u16>,
    /// Window scale option.
    pub scale: Option<u8>,
    /// Timestamps option.
    pub timestamps: Option<(u32, u32)>,
    /// SACK blocks.
    pub sack: Vec<(u32, u32)>,
    /// Counters of the AccECN option in wire order: first and second.
    pub ecn_counters: Option<(u32, u32)>,
    /// The cookie of the Fast Open option (RFC 7413).
    pub fast_open: Option<&'a [u8]>,
    /// Bytes of options.
    pub options_bytes: usize,
    /// Offset of the TCP header in the packet.
    pub tcp_at: usize,
    /// The payload.
    pub payload: &'a [u8],
}

/// Reads an IP packet with a TCP segment in it; `None` for anything else.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Packet<'_>> {
    let (source, destination, tcp_at, end): (IpAddr, IpAddr, _, _) = match packet.first()? >> 4 {
        4 if packet.get(9) == Some(&6) => {
            let ip = |at: usize| {
                <[u8; 4]>::try_from(&packet[at..at + 4])
                    .ok()
                    .map(IpAddr::from)
            };
            let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            (ip(12)?, ip(16)?, usize::from(packet[0] & 15) * 4, total)
        }
        6 if packet.get(6) == Some(&6) => {
            let ip = |at: usize| {
                <[u8; 16]>::try_from(&packet[at..at + 16])
                    .ok()
                    .map(IpAddr::from)
            };
            let total = 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            (ip(8)?, ip(24)?, 40, total)
        }
        _ => return None,
    };
    let tcp = packet.get(tcp_at..end)?;
    let u16_at = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let u32_of = |bytes: &[u8]| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let both_of = |bytes: &[u8]| (u32_of(bytes), u32_of(&bytes[4..]));
    let data_at = usize::from(tcp.get(12)? >> 4) * 4;
    let mut options = tcp.get(20..data_at)?;
    let mut read = Packet {
        source: SocketAddr::new(source, u16_at(0)),
        destination: SocketAddr::new(destination, u16_at(2)),
        seq: u32_of(&tcp[4..]),
        ack: u32_of(&tcp[8..]),
        flags: tcp[13],
        has_ae: tcp[12] & 1 != 0,
        window: u16_at(14),
        mss: None,
        scale: None,
        timestamps: None,
        sack: Vec::new(),
        ecn_counters: None,
        fast_open: None,
        options_bytes: options.len(),
        tcp_at,
        payload: &tcp[data_at..],
    };
    while let [kind, rest @ ..] = options {
        if *kind == 1 {
            options = rest;
            continue;
        }
        let Some(&length) = rest.first().filter(|_| *kind != 0) else {
            break;
        };
        let body = options.get(2..usize::from(length))?;
        match (*kind, body) {
            (2, [high, low]) => read.mss = Some(u16::from_be_bytes([*high, *low])),
            (3, [shift]) => read.scale = Some(*shift),
            (5, blocks) => {
                let (blocks, _) = blocks.as_chunks::<8>();
                read.sack = blocks.iter().map(|b| both_of(b)).collect();
            }
            (172, [a, b, c, d, e, f, ..]) => {
                let counter = |high, middle, low| u32::from_be_bytes([0, high, middle, low]);
                read.ecn_counters = Some((counter(*a, *b, *c), counter(*d, *e, *f)));
            }
            (34, cookie) => read.fast_open = Some(cookie),
            (8, both @ [_, _, _, _, _, _, _, _]) => read.timestamps = Some(both_of(both)),
            // Perhaps an option that was damaged on its way.
            _ => {}
        }
        options = &options[usize::from(length)..];
    }
    Some(read)
}

/// The ones' complement sum of RFC 1071, in a simple way: all words, then the carries. Two words at
/// a time, in the host's byte order until the end: its sections 2 (B) and (C) permit both.
fn sum(bytes: &[u8], start: u32) -> u32 {
    let (pairs, rest) = bytes.as_chunks();
    let pairs = pairs
        .iter()
        .map(|&pair| u64::from(u32::from_ne_bytes(pair)));
    let swapped = fold(pairs.sum()) as u16;
    let (words, odd) = rest.as_chunks();
    let words = words
        .iter()
        .map(|&word| u64::from(u16::from_be_bytes(word)));
    let odd = odd.first().map_or(0, |&byte| u64::from(byte) << 8);
    fold(u64::from(start) + u64::from(u16::from_be(swapped)) + words.sum::<u64>() + odd)
}

fn fold(mut sum: u64) -> u32 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u32
}

/// The sum of any bytes.
pub(super) fn plain_sum(bytes: &[u8], start: u32) -> u16 {
    sum(bytes, (start & 0xffff) + (start >> 16)) as u16
}

/// The checksum of the segment at `tcp_at`, the checksum field included.
pub(super) fn tcp_sum(packet: &[u8], tcp_at: usize) -> u16 {
    let length = packet.len() - tcp_at;
    let addresses = if packet[0] >> 4 == 4 {
        &packet[12..20]
    } else {
        &packet[8..40]
    };
    let pseudo = sum(addresses, 6 + length as u32);
    sum(&packet[tcp_at..], (pseudo & 0xffff) + (pseudo >> 16)) as u16
}

/// The checksum of an IPv4 header, the checksum field included.
pub(super) fn ip_sum(packet: &[u8]) -> u16 {
    sum(&packet[..20], 0) as u16
}

/// One side's sequence numbers and windows so far. Positions count from its SYN.
#[derive(Debug, Default)]
struct Side {
    isn: Option<u32>,
    /// One beyond the highest position that this side has sent.
    sent_end: u64,
    /// The highest acknowledgement that this side has sent.
    acked: u64,
    /// The right edge of the window that this side has offered.
    edge: u64,
    /// The highest right edge of the other side's windows that has reached this side.
    may_send_to: u64,
    scale: Option<u8>,
    mss: Option<u16>,
    timestamp: Option<u32>,
    fin_at: Option<u64>,
    /// Several SYN cookies with different sequence numbers are in use; the checker cannot know
    /// which of them the remote will answer.
    is_ambiguous: bool,
    /// This side has sent a reset or has given up, and has no state.
    is_forgotten: bool,
}

impl Side {
    /// The position of a sequence number of this side, near `near`.
    fn position(&self, seq: u32, near: u64) -> Option<u64> {
        let isn = self.isn?;
        let distance = seq.wrapping_sub(isn).wrapping_sub(near as u32) as i32;
        Some(near.wrapping_add_signed(i64::from(distance)))
    }
}

/// Two endpoints that talk to each other.
#[derive(Debug, Default)]
struct Conversation {
    /// The side of the lower endpoint comes first.
    sides: [Side; 2],
    /// The names of the streams that the sides send.
    names: [Option<u64>; 2],
    /// One side has sent a segment other than a reset.
    has_begun: bool,
}

impl Conversation {
    /// A side, and the other one.
    fn both(&mut self, side: usize) -> (&mut Side, &mut Side) {
        let [lower, higher] = &mut self.sides;
        if side == 0 {
            (lower, higher)
        } else {
            (higher, lower)
        }
    }
}

/// The two endpoints of a conversation, the lower one first.
#[derive(Debug, PartialEq, Eq)]
struct Ends([(u128, u16); 2]);

impl Ends {
    /// Also returns the index of `from` among the two.
    fn new(from: SocketAddr, to: SocketAddr) -> (Self, usize) {
        let [from, to] = [from, to].map(|end| (number(end.ip()), end.port()));
        if from < to {
            (Self([from, to]), 0)
        } else {
            (Self([to, from]), 1)
        }
    }
}

/// An address as a number, unique for each address.
fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// Hashes two words only: each packet needs two look-ups, and the simulation has no attacker who
/// chooses colliding endpoints.
impl Hash for Ends {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for (ip, port) in self.0 {
            state.write_u64((ip as u64) << 16 ^ u64::from(port));
        }
    }
}

#[derive(Default)]
struct Folding(u64);

impl Hasher for Folding {
    fn write(&mut self, _: &[u8]) {
        unreachable!("ends are words");
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Follows all connections of a simulation.
#[derive(Debug, Default)]
pub struct Checker {
    conversations: HashMap<Ends, Conversation, BuildHasherDefault<Folding>>,
    /// The largest packet.
    mtu: usize,
}

impl Checker {
    pub(crate) fn new(mtu: usize) -> Self {
        Self {
            mtu,
            ..Self::default()
        }
    }

    /// Tells the checker which stream a side will send.
    pub(crate) fn name(&mut self, from: SocketAddr, to: SocketAddr, stream: u64) {
        let (ends, side) = Ends::new(from, to);
        self.conversations.entry(ends).or_default().names[side] = Some(stream);
    }

    /// Checks a packet that a host has sent.
    pub(crate) fn sent(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.mtu, "a packet of {} bytes", bytes.len());
        let Some(packet) = parse(bytes) else { return };
        assert_eq!(
            tcp_sum(bytes, packet.tcp_at),
            0xffff,
            "TCP checksum of {packet:?}"
        );
        if bytes[0] >> 4 == 4 {
            assert_eq!(ip_sum(bytes), 0xffff, "IP checksum");
        }
        if packet.flags & RST != 0 {
            self.given_up(packet.source, packet.destination);
            return;
        }
        let (ends, from) = Ends::new(packet.source, packet.destination);
        let conversation = self.conversations.entry(ends).or_default();
        conversation.has_begun = true;
        let name = conversation.names[from];
        let (side, other) = conversation.both(from);
        if packet.flags & SYN != 0 && side.isn != Some(packet.seq) {
            // A new incarnation of this side or (without ACK) of the connection.
            let is_ambiguous = packet.flags & ACK != 0 && side.isn.is_some();
            *side = Side {
                isn: Some(packet.seq),
                mss: packet.mss,
                scale: packet.scale,
                is_ambiguous,
                ..Side::default()
            };
            // Both endpoints of a simultaneous open have the same port.
            let is_simultaneous = packet.source.port() == packet.destination.port();
            if packet.flags & ACK == 0 && !is_simultaneous {
                *other = Side::default();
            } else {
                // The window that reached this side came in a SYN, before this side had a sequence
                // number.
                side.may_send_to = other.edge_of_syn();
            }
        }
        if packet.flags & SYN != 0 {
            // A repeated SYN may have another MSS after the link has changed; either SYN may have
            // arrived.
            side.mss = side.mss.max(packet.mss);
        }
        if !side.is_ambiguous && !other.is_ambiguous {
            check(name, side, other, &packet);
        }
    }

    /// One end has given up its connection without telling the other end.
    pub(crate) fn given_up(&mut self, local: SocketAddr, remote: SocketAddr) {
        let (ends, side) = Ends::new(local, remote);
        if let Some(conversation) = self.conversations.get_mut(&ends)
            && conversation.has_begun
        {
            conversation.sides[side].is_forgotten = true;
        }
    }

    /// A packet has reached its destination intact.
    pub(crate) fn delivered(&mut self, bytes: &[u8]) {
        let Some(packet) = parse(bytes).filter(|packet| packet.flags & RST == 0) else {
            return;
        };
        let (ends, to) = Ends::new(packet.destination, packet.source);
        let Some(conversation) = self.conversations.get_mut(&ends) else {
            return;
        };
        if !conversation.has_begun {
            return;
        }
        let (receiver, sender) = conversation.both(to);
        let (scale, other_fin_at) = (sender.scale, sender.fin_at);
        let begins = |side: &Side, at: u32| side.isn.is_some_and(|isn| isn.wrapping_add(1) == at);
        let is_first = packet.flags & (SYN | ACK) == ACK && begins(sender, packet.seq);
        if receiver.is_forgotten && is_first && begins(receiver, packet.ack) {
            receiver.begin_again();
        }
        let scales = scale.is_some() && receiver.scale.is_some();
        let shift = if scales && packet.flags & SYN == 0 {
            scale.unwrap_or(0)
        } else {
            0
        };
        if packet.flags & ACK != 0
            && let Some(ack) = receiver.position(packet.ack, receiver.sent_end)
            && ack <= receiver.sent_end
        {
            let edge = ack + (u64::from(packet.window) << shift);
            receiver.may_send_to = receiver.may_send_to.max(edge);
            let is_finished = receiver.fin_at.is_some_and(|fin_at| ack > fin_at);
            let has_heard = other_fin_at.is_some_and(|fin_at| receiver.acked > fin_at);
            // RFC 9293, 3.10.7.4: the end that finished last forgets the connection at once.
            receiver.is_forgotten |= is_finished && has_heard;
        } else if packet.flags & SYN != 0 {
            receiver.may_send_to = receiver.may_send_to.max(1 + u64::from(packet.window));
        }
    }
}

/// Checks a segment of the side that sends the stream `name`.
fn check(name: Option<u64>, side: &mut Side, other: &Side, packet: &Packet<'_>) {
    let Some(start) = side.position(packet.seq, side.sent_end) else {
        return;
    };
    let has_syn = u64::from(packet.flags & SYN != 0);
    let has_fin = u64::from(packet.flags & FIN != 0);
    let data_end = start + has_syn + packet.payload.len() as u64;
    let end = data_end + has_fin;
    let context = || format!("{packet:?}\nside {side:?}\nother {other:?}");
    if packet.payload.is_empty() && has_syn + has_fin == 0 {
        // RFC 9293 section 3.8.4: a probe carries SND.NXT-1.
        assert!(
            start <= side.sent_end,
            "SEQ beyond what was sent: {}",
            context()
        );
    } else {
        assert!(
            start <= side.sent_end,
            "a gap in sequence space: {}",
            context()
        );
        assert!(
            has_syn != 0 || data_end <= side.may_send_to.max(side.sent_end),
            "payload beyond the offered window: {}",
            context()
        );
    }
    if let Some(fin_at) = side.fin_at {
        let is_after = !packet.payload.is_empty() && data_end > fin_at;
        assert!(!is_after, "payload after the FIN: {}", context());
    }
    if has_fin != 0 {
        assert!(
            side.fin_at.is_none_or(|at| at == data_end),
            "the FIN moved: {}",
            context()
        );
        side.fin_at = Some(data_end);
    }
    side.sent_end = side.sent_end.max(end);
    if let Some(mss) = other.mss {
        let taken = packet.payload.len() + packet.options_bytes;
        assert!(
            packet.payload.is_empty() || taken <= usize::from(mss),
            "a segment larger than the MSS of {mss}"
        );
    }
    // A probe of a window that closed before the first byte has the sequence number of the SYN.
    let offset = (start + has_syn).checked_sub(1);
    if let (Some(name), Some(offset)) = (name, offset)
        && let Some(at) = pattern::first_difference(name, offset, packet.payload)
    {
        let (byte, offset) = (packet.payload[at], offset + at as u64);
        let expected = pattern::byte(name, offset);
        panic!("byte {offset} of the stream is {byte:#x}, not {expected:#x}");
    }
    if let Some((value, _)) = packet.timestamps {
        let older = has_syn == 0
            && side
                .timestamp
                .is_some_and(|last| (value.wrapping_sub(last) as i32) < 0);
        assert!(!older, "a timestamp that runs backwards: {packet:?}");
        side.timestamp = Some(value);
    }
    // A SYN-ACK may carry a cookie. The sender of a cookie has no state, not even of a connection
    // that the cookie opened before.
    if packet.flags & ACK != 0
        && has_syn == 0
        && let Some(ack) = other.position(packet.ack, other.sent_end)
    {
        check_acknowledgement(side, other, packet, ack);
    }
}

impl Side {
    /// A late copy of the segment that returned a SYN cookie returns the cookie again. The host
    /// does not remember that the cookie's connection was reset, given up or ended: the connection
    /// begins again, with the same sequence numbers. (A cookie is valid for two minutes, on Linux
    /// as well.) Data sent before stays sent.
    fn begin_again(&mut self) {
        (self.acked, self.edge, self.fin_at) = (0, 0, None);
        self.is_forgotten = false;
    }

    /// The edge to which the window field of a SYN lets the other side send.
    fn edge_of_syn(&self) -> u64 {
        // The field is not stored. Assuming the largest value does not weaken later checks, because
        // the first acknowledgement after it gives the real window.
        u64::from(u16::MAX) + 1
    }
}

fn check_acknowledgement(side: &mut Side, other: &Side, packet: &Packet<'_>, ack: u64) {
    assert!(
        ack <= other.sent_end,
        "acknowledges what was not sent: {packet:?}"
    );
    assert!(
        ack >= side.acked,
        "acknowledges less than before: {packet:?}\nside {side:?}"
    );
    side.acked = ack;
    let scales = side.scale.is_some() && other.scale.is_some();
    let shift = if scales && packet.flags & SYN == 0 {
        side.scale.unwrap_or(0)
    } else {
        0
    };
    let edge = ack + (u64::from(packet.window) << shift);
    let is_closing = other.fin_at.is_some_and(|fin_at| ack > fin_at);
    assert!(
        edge + (1 << shift) > side.edge || is_closing,
        "the window's right edge moved left: {packet:?}\nside {side:?}"
    );
    side.edge = side.edge.max(edge);
    for &(start, end) in &packet.sack {
        let (Some(start), Some(end)) = (
            other.position(start, other.sent_end),
            other.position(end, other.sent_end),
        ) else {
            continue;
        };
        // The block is before the first sequence number: the receiver may have received a late
        // segment of an earlier connection of these endpoints twice (RFC 2883).
        let is_earlier = end > i64::MAX as u64;
        assert!(
            is_earlier || start < end && end <= other.sent_end,
            "a SACK block of nothing sent: {packet:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::impair::syn;

    /// A trace also prints packets that were damaged on their way.
    #[test]
    fn damaged_options_are_no_options() {
        let ends = ["10.0.0.1:1", "10.0.0.2:2"].map(|end| end.parse().expect("it is an address"));
        let packet = syn(ends[0], ends[1], 7);
        let (sack, timestamps) = (5, 8);
        for kind in [sack, timestamps] {
            let mut packet = packet.clone();
            packet[40] = kind;
            let read = parse(&packet).expect("it has a header");
            assert!(read.sack.is_empty() && read.timestamps.is_none());
        }
    }
}
