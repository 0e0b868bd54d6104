//! A summary of a frame: ends, flags, numbers. It is meant for captures: only lengths are checked.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use toehold_tcp::numbers::{
    PROTOCOL_ICMP, PROTOCOL_ICMP_V6, PROTOCOL_TCP, TYPE_ARP, TYPE_IPV4, TYPE_IPV6,
};

/// The content of an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketSummary {
    /// A TCP segment, not a later fragment of one.
    Tcp(TcpSummary),
    /// Another IP packet: its ends and protocol.
    Ip(IpAddr, IpAddr, u8),
    /// An ARP packet.
    Arp,
    /// Something else, or too short to tell.
    Other,
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSummary {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// FIN, SYN, RST, PSH, ACK, URG, ECE, CWR, from the lowest bit.
    pub flags: u8,
    /// The window field, not scaled.
    pub window: u16,
    /// Bytes of payload, by the length in the IP header.
    pub payload_bytes: usize,
}

impl TcpSummary {
    /// The FIN bit.
    pub const FIN: u8 = 1;
    /// The SYN bit.
    pub const SYN: u8 = 2;
    /// The RST bit.
    pub const RST: u8 = 4;
    /// The ACK bit.
    pub const ACK: u8 = 16;

    /// Whether any of these bits is set.
    pub fn has(&self, bits: u8) -> bool {
        self.flags & bits != 0
    }
}

impl PacketSummary {
    /// Summarises an Ethernet frame. The payload of its segment may be cut off.
    pub fn of(frame: &[u8]) -> PacketSummary {
        let rest = frame.get(14..).unwrap_or_default();
        let summary = match u16_at(frame, 12) {
            Some(TYPE_IPV4) => Self::v4(rest),
            Some(TYPE_IPV6) => Self::v6(rest),
            Some(TYPE_ARP) => Some(PacketSummary::Arp),
            _ => None,
        };
        summary.unwrap_or(PacketSummary::Other)
    }

    fn v4(packet: &[u8]) -> Option<PacketSummary> {
        let header = usize::from(packet.first()? & 15) * 4;
        let total = usize::from(u16_at(packet, 2)?);
        let is_later_fragment = u16_at(packet, 6)? & 0x1fff != 0;
        let protocol = *packet.get(9)?;
        let address = |at: usize| -> Option<IpAddr> {
            let four: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
            Some(four.into())
        };
        let ends = (address(12)?, address(16)?);
        let segment = packet
            .get(header..)
            .filter(|_| protocol == PROTOCOL_TCP && !is_later_fragment);
        let tcp = segment.and_then(|segment| Self::tcp(segment, ends, total.checked_sub(header)?));
        Some(tcp.unwrap_or(PacketSummary::Ip(ends.0, ends.1, protocol)))
    }

    fn v6(packet: &[u8]) -> Option<PacketSummary> {
        let length = usize::from(u16_at(packet, 4)?);
        let protocol = *packet.get(6)?;
        let address = |at: usize| -> Option<IpAddr> {
            let sixteen: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
            Some(Ipv6Addr::from(sixteen).into())
        };
        let ends = (address(8)?, address(24)?);
        let segment = packet.get(40..).filter(|_| protocol == PROTOCOL_TCP);
        let tcp = segment.and_then(|segment| Self::tcp(segment, ends, length));
        Some(tcp.unwrap_or(PacketSummary::Ip(ends.0, ends.1, protocol)))
    }

    fn tcp(segment: &[u8], ends: (IpAddr, IpAddr), length: usize) -> Option<PacketSummary> {
        let header = usize::from(*segment.get(12)? >> 4) * 4;
        Some(PacketSummary::Tcp(TcpSummary {
            source: SocketAddr::new(ends.0, u16_at(segment, 0)?),
            destination: SocketAddr::new(ends.1, u16_at(segment, 2)?),
            seq: u32_at(segment, 4)?,
            ack: u32_at(segment, 8)?,
            flags: *segment.get(13)?,
            window: u16_at(segment, 14)?,
            payload_bytes: length.checked_sub(header)?,
        }))
    }
}

impl fmt::Display for PacketSummary {
    /// In tcpdump's format, with absolute sequence numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PacketSummary::Tcp(tcp) => tcp.fmt(f),
            PacketSummary::Ip(from, to, protocol) => {
                let name = match *protocol {
                    PROTOCOL_TCP => "TCP fragment",
                    PROTOCOL_ICMP => "ICMP",
                    PROTOCOL_ICMP_V6 => "ICMPv6",
                    other => return write!(f, "{from} > {to} IP protocol {other}"),
                };
                write!(f, "{from} > {to} {name}")
            }
            PacketSummary::Arp => f.write_str("ARP"),
            PacketSummary::Other => f.write_str("not IP"),
        }
    }
}

impl fmt::Display for TcpSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {} [", self.source, self.destination)?;
        for (bit, letter) in "FSRP.UEW".chars().enumerate() {
            if self.flags & 1 << bit != 0 {
                write!(f, "{letter}")?;
            }
        }
        write!(f, "] seq {}", self.seq)?;
        if self.has(Self::ACK) {
            write!(f, " ack {}", self.ack)?;
        }
        write!(f, " win {} len {}", self.window, self.payload_bytes)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes(two.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(four.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 SYN of 40 bytes behind an Ethernet header.
    fn syn() -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00]);
        frame.extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
        frame.extend([10, 84, 0, 1, 10, 84, 0, 2]);
        frame.extend([0x1f, 0x90, 0, 80, 0, 0, 0, 7, 0, 0, 0, 0]);
        frame.extend([0x50, TcpSummary::SYN, 0xff, 0xff, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn segment_is_described_in_a_line() {
        let line = "10.84.0.1:8080 > 10.84.0.2:80 [S] seq 7 win 65535 len 0";
        assert_eq!(PacketSummary::of(&syn()).to_string(), line);
    }

    #[test]
    fn no_length_is_too_short() {
        let whole = syn();
        for length in 0..whole.len() {
            let _ = PacketSummary::of(&whole[..length]);
        }
        assert_eq!(PacketSummary::of(&[]), PacketSummary::Other);
        for first in 0..=255 {
            let mut frame = whole.clone();
            frame[14] = first;
            let _ = PacketSummary::of(&frame);
        }
    }
}
