//! Impairments by links and routers: they divide, mark and damage packets, and report errors.

use core::net::{IpAddr, SocketAddr};

use super::checker;
use crate::{ChecksumWork, Random, TransmitOffload};

/// A frame that a link with segmentation and checksum offload divides into packets.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    header_bytes: usize,
    /// Offset of the TCP header; `None`: the engine has done all the work.
    tcp_at: Option<usize>,
    /// Payload bytes of all packets except the last.
    size: usize,
    count: usize,
}

impl Cut {
    /// `link_bytes` bytes were removed from the frame's beginning.
    pub(super) fn new(frame: &[u8], offload: TransmitOffload, link_bytes: usize) -> Self {
        let ChecksumWork::Link { start, .. } = offload.checksum else {
            return Self {
                header_bytes: frame.len(),
                tcp_at: None,
                size: 0,
                count: 1,
            };
        };
        let header_bytes = usize::from(offload.header_bytes) - link_bytes;
        let payload_bytes = frame.len() - header_bytes;
        let size = if offload.segment_bytes == 0 {
            payload_bytes.max(1)
        } else {
            usize::from(offload.segment_bytes)
        };
        Self {
            header_bytes,
            tcp_at: Some(usize::from(start) - link_bytes),
            size,
            count: payload_bytes.div_ceil(size).max(1),
        }
    }

    pub(super) fn count(self) -> usize {
        self.count
    }

    /// Writes packet `index` of the frame into an empty buffer.
    pub(super) fn write(self, frame: &[u8], index: usize, packet: &mut Vec<u8>) {
        let (header, payload) = frame.split_at(self.header_bytes);
        packet.extend_from_slice(header);
        let Some(tcp_at) = self.tcp_at else {
            return;
        };
        let (start, end) = (index * self.size, (index + 1) * self.size);
        packet.extend_from_slice(&payload[start..end.min(payload.len())]);
        let seq = packet[tcp_at + 4..].first_chunk().expect("it has a header");
        let seq = u32::from_be_bytes(*seq).wrapping_add(start as u32);
        packet[tcp_at + 4..tcp_at + 8].copy_from_slice(&seq.to_be_bytes());
        if index + 1 < self.count {
            packet[tcp_at + 13] &= !0x09; // FIN and PSH belong to the last.
        }
        if index > 0 {
            packet[tcp_at + 13] &= !0x80; // CWR belongs to the first.
        }
        let length = packet.len();
        if packet[0] >> 4 == 4 {
            packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        } else {
            packet[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        }
        complete(packet, tcp_at);
    }
}

/// Sets the checksums of a packet.
pub(super) fn complete(packet: &mut [u8], tcp_at: usize) {
    if packet[0] >> 4 == 4 {
        packet[10..12].fill(0);
        let checksum = !checker::ip_sum(packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
    packet[tcp_at + 16..tcp_at + 18].fill(0);
    let checksum = !checker::tcp_sum(packet, tcp_at);
    packet[tcp_at + 16..tcp_at + 18].copy_from_slice(&checksum.to_be_bytes());
}

/// The fragments that a network with a small MTU makes of a packet (RFC 791 section 3.2, RFC 8200
/// section 4.5), in random order. A packet that is too small stays whole.
pub(super) fn fragments(packet: &[u8], identification: u32, random: &mut Random) -> Vec<Vec<u8>> {
    let is_v4 = packet[0] >> 4 == 4;
    let (header, payload) = packet.split_at(if is_v4 { 20 } else { 40 });
    let units = (payload.len() as u64 - 1) / 8;
    if units == 0 {
        return vec![packet.to_vec()];
    }
    let cuts = random.between(1, 3);
    let mut edges: Vec<usize> = (0..cuts)
        .map(|_| 8 * random.between(1, units) as usize)
        .chain([0, payload.len()])
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let mut pieces: Vec<Vec<u8>> = edges
        .windows(2)
        .map(|edges| {
            let (start, end) = (edges[0], edges[1]);
            let more = u16::from(end < payload.len());
            let part = &payload[start..end];
            let mut piece = header.to_vec();
            if is_v4 {
                piece[2..4].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
                piece[4..6].copy_from_slice(&(identification as u16).to_be_bytes());
                let place = more << 13 | (start / 8) as u16;
                piece[6..8].copy_from_slice(&place.to_be_bytes());
                piece[10..12].fill(0);
                let checksum = !checker::ip_sum(&piece);
                piece[10..12].copy_from_slice(&checksum.to_be_bytes());
            } else {
                piece[4..6].copy_from_slice(&(8 + part.len() as u16).to_be_bytes());
                let next = std::mem::replace(&mut piece[6], 44);
                piece.extend([next, 0]);
                piece.extend((start as u16 | more).to_be_bytes());
                piece.extend(identification.to_be_bytes());
            }
            piece.extend_from_slice(part);
            piece
        })
        .collect();
    for last in (1..pieces.len()).rev() {
        pieces.swap(last, random.below(last as u64 + 1) as usize);
    }
    pieces
}

/// A SYN with an MSS of 1460 and SACK permitted.
pub(super) fn syn(source: SocketAddr, destination: SocketAddr, seq: u32) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend_from_slice(&source.port().to_be_bytes());
    tcp.extend_from_slice(&destination.port().to_be_bytes());
    tcp.extend_from_slice(&seq.to_be_bytes());
    tcp.extend_from_slice(&[0, 0, 0, 0, 7 << 4, 2, 0xff, 0xff, 0, 0, 0, 0]);
    tcp.extend_from_slice(&[2, 4, 5, 0xb4, 1, 1, 4, 2]);
    let mut packet = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, 0, 0, 20 + tcp.len() as u8];
            header.extend_from_slice(&[0, 0, 0x40, 0, 64, 6, 0, 0]);
            [&header[..], &source.octets(), &destination.octets()].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = [0x60, 0, 0, 0, 0, tcp.len() as u8, 6, 64];
            [&header[..], &source.octets(), &destination.octets()].concat()
        }
        _ => unreachable!("both ends have addresses of one version"),
    };
    let tcp_at = packet.len();
    packet.extend_from_slice(&tcp);
    complete(&mut packet, tcp_at);
    packet
}

/// Sets CE on an ECN-capable packet.
pub(super) fn mark_congestion(packet: &mut [u8]) {
    if packet[0] >> 4 == 4 && packet[1] & 3 != 0 {
        packet[1] |= 3;
        packet[10..12].fill(0);
        let checksum = !checker::ip_sum(packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else if packet[0] >> 4 == 6 && packet[1] >> 4 & 3 != 0 {
        packet[1] |= 0x30;
    }
}

/// Shrinks the window of a packet, like a remote that takes back a window that it has offered.
pub(super) fn shrink_window(packet: &mut [u8], random: &mut Random) {
    let Some(read) = checker::parse(packet) else {
        return;
    };
    let (tcp_at, window) = (read.tcp_at, read.window);
    let smaller = random.below(u64::from(window) + 1) as u16;
    packet[tcp_at + 14..tcp_at + 16].copy_from_slice(&smaller.to_be_bytes());
    complete(packet, tcp_at);
}

/// Changes the acknowledgement number of a segment.
pub(super) fn set_acknowledgement(packet: &mut [u8], tcp_at: usize, ack: u32) {
    packet[tcp_at + 8..tcp_at + 12].copy_from_slice(&ack.to_be_bytes());
    complete(packet, tcp_at);
}

/// Changes the window of a segment.
pub(super) fn set_window(packet: &mut [u8], tcp_at: usize, window: u16) {
    packet[tcp_at + 14..tcp_at + 16].copy_from_slice(&window.to_be_bytes());
    complete(packet, tcp_at);
}

/// Flips one bit that a checksum protects: an IPv6 header has no checksum.
pub(super) fn flip_bit(packet: &mut [u8], random: &mut Random) {
    let first = if packet[0] >> 4 == 6 { 40 } else { 0 };
    let bit = random.below((packet.len() as u64 - first) * 8);
    packet[(first + bit / 8) as usize] ^= 1 << (bit % 8);
}

/// RFC 792 and RFC 1191, RFC 4443 section 3.2: a router's report that a packet is too big.
pub(super) fn too_big(packet: &[u8], mtu: u16) -> Vec<u8> {
    let is_v4 = packet[0] >> 4 == 4;
    let (header_bytes, addresses) = if is_v4 { (20, 12..20) } else { (40, 8..40) };
    let half = addresses.len() / 2;
    let quoted = &packet[..packet.len().min(header_bytes + 8)];
    let mut answer = packet[..header_bytes].to_vec();
    let (source, destination) = answer[addresses].split_at_mut(half);
    source.swap_with_slice(destination);
    let mut icmp = vec![
        if is_v4 { 3 } else { 2 },
        if is_v4 { 4 } else { 0 },
        0,
        0,
        0,
        0,
    ];
    icmp.extend_from_slice(&mtu.to_be_bytes());
    icmp.extend_from_slice(quoted);
    if is_v4 {
        answer[9] = 1;
        let total = (header_bytes + icmp.len()) as u16;
        answer[2..4].copy_from_slice(&total.to_be_bytes());
        answer[10..12].fill(0);
        let checksum = !checker::ip_sum(&answer);
        answer[10..12].copy_from_slice(&checksum.to_be_bytes());
        let checksum = !checker::plain_sum(&icmp, 0);
        icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    } else {
        answer[6] = 58;
        answer[4..6].copy_from_slice(&(icmp.len() as u16).to_be_bytes());
        let pseudo = checker::plain_sum(&answer[8..40], 58 + icmp.len() as u32);
        let checksum = !checker::plain_sum(&icmp, u32::from(pseudo));
        icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    answer.extend_from_slice(&icmp);
    answer
}
