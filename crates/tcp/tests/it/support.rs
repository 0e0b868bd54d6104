//! Parts of hosts for tests: addresses, and rings of unlimited size.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use toehold_tcp::{
    ChecksumSum, ConnectionId, InterfaceAddress, MacAddress, Medium, Memory, NoRoom,
};

/// An address on a link: in a network of 256 IPv4 addresses, or in an IPv6 subnet.
pub(crate) fn on_link(text: &str) -> InterfaceAddress {
    InterfaceAddress {
        address: text.parse().expect("address"),
        prefix_bits: if text.contains(':') { 64 } else { 24 },
    }
}

/// Ethernet, on which the engine finds its neighbours itself.
pub(crate) fn ethernet(last: u8) -> Medium {
    Medium::Ethernet {
        mac: MacAddress([2, 0, 0, 0, 0, last]),
        resolve: true,
    }
}

/// The received bytes, and a send stream whose byte n is n.
#[derive(Default)]
pub(crate) struct Rings {
    pub(crate) received: Vec<u8>,
    /// The number of bytes of the stream for which there is room.
    pub(crate) bytes_max: Option<usize>,
}

impl Memory for Rings {
    fn place(&mut self, _: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        let end = offset as usize + bytes.len();
        if self.bytes_max.is_some_and(|most| end > most) {
            return Err(NoRoom);
        }
        self.received.resize(self.received.len().max(end), 0);
        self.received[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn gather(&mut self, _: ConnectionId, offset: u64, target: &mut [u8]) {
        for (byte, at) in target.iter_mut().zip(offset..) {
            *byte = at as u8;
        }
    }
}

/// A family of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Family {
    #[default]
    V4,
    V6,
}

impl Family {
    /// The engine's address.
    pub(crate) const fn ours(self) -> &'static str {
        match self {
            Self::V4 => "10.0.0.1",
            Self::V6 => "fd00::1",
        }
    }

    /// Port 80 of all addresses.
    pub(crate) fn anywhere(self) -> SocketAddr {
        match self {
            Self::V4 => (Ipv4Addr::UNSPECIFIED, 80).into(),
            Self::V6 => (Ipv6Addr::UNSPECIFIED, 80).into(),
        }
    }

    /// An MTU with which a full segment has 1,448 bytes, beside its timestamps.
    pub(crate) const fn mtu(self) -> u16 {
        self.tcp_at() as u16 - 14 + 32 + 1_448
    }

    /// The offset of the TCP header in an Ethernet frame.
    pub(crate) const fn tcp_at(self) -> usize {
        match self {
            Self::V4 => 34,
            Self::V6 => 54,
        }
    }

    /// The sum of a frame's TCP segment and its pseudo-header, without padding.
    pub(crate) fn tcp_sum(self, frame: &[u8]) -> ChecksumSum {
        let addresses = match self {
            Self::V4 => &frame[26..34],
            Self::V6 => &frame[22..54],
        };
        let tcp = &frame[self.tcp_at()..];
        let pseudo = ChecksumSum::ZERO.bytes(addresses).word(6);
        pseudo.word(tcp.len() as u16).bytes(tcp)
    }

    /// Ethernet and IP headers from the remote to the host made by [`ethernet`]`(1)`, for
    /// `tcp_bytes` bytes of TCP.
    fn headers(self, tcp_bytes: usize) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        match self {
            Self::V4 => {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend((20 + tcp_bytes as u16).to_be_bytes());
                frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
                let sum = ChecksumSum::ZERO.bytes(&frame[14..34]).checksum();
                frame[24..26].copy_from_slice(&sum);
            }
            Self::V6 => {
                // With a flow label, as on Linux.
                frame.extend([0x86, 0xdd, 0x60, 0x0a, 0xbc, 0xde]);
                frame.extend((tcp_bytes as u16).to_be_bytes());
                frame.extend([6, 64]);
                for last in [2, 1] {
                    let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
                    frame.extend(address.octets());
                }
            }
        }
        frame
    }
}

/// A segment with timestamps from 10.0.0.2 to port 80 of 10.0.0.1, or from fd00::2 to fd00::1, as
/// Ethernet brings it to the host made by [`ethernet`]`(1)`. Its checksum is not computed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Segment<'a> {
    pub(crate) family: Family,
    pub(crate) port: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) clock: u32,
    /// Options after the timestamps, padded.
    pub(crate) options: &'a [u8],
    pub(crate) payload: &'a [u8],
}

impl Segment<'_> {
    pub(crate) fn frame(&self) -> Vec<u8> {
        let tcp_bytes = 32 + self.options.len();
        let mut frame = self.family.headers(tcp_bytes + self.payload.len());
        frame.extend(self.port.to_be_bytes());
        frame.extend(80u16.to_be_bytes());
        frame.extend(self.seq.to_be_bytes());
        frame.extend(self.ack.to_be_bytes());
        frame.extend([(tcp_bytes as u8 / 4) << 4, self.flags]);
        frame.extend(self.window.to_be_bytes());
        frame.extend([0, 0, 0, 0, 1, 1, 8, 10]);
        frame.extend(self.clock.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(self.options);
        frame.extend(self.payload);
        frame
    }
}
