//! Parts of hosts in tests: their addresses, and rings without an end.

use toehold_tcp::{
    ChecksumSum, ConnectionId, InterfaceAddress, MacAddress, Medium, Memory, NoRoom,
};

/// An address on a link: of 256 IPv4 addresses, or of an IPv6 subnet.
pub(crate) fn on_link(text: &str) -> InterfaceAddress {
    InterfaceAddress {
        address: text.parse().expect("address"),
        prefix_bits: if text.contains(':') { 64 } else { 24 },
    }
}

/// Ethernet whose neighbours the engine finds itself.
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
    /// How much of the stream there is room for.
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

/// A segment with timestamps from 10.0.0.2 to port 80 of 10.0.0.1, as Ethernet brings it to the
/// host made by [`ethernet`]`(1)`. Its checksum is not computed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Segment<'a> {
    pub(crate) port: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) clock: u32,
    /// Behind the timestamps, padded.
    pub(crate) options: &'a [u8],
    pub(crate) payload: &'a [u8],
}

impl Segment<'_> {
    pub(crate) fn frame(&self) -> Vec<u8> {
        let tcp_bytes = 32 + self.options.len();
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        frame.extend(((20 + tcp_bytes + self.payload.len()) as u16).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
        let sum = ChecksumSum::ZERO.bytes(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&sum);
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
