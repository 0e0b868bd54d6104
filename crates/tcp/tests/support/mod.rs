//! What hosts in tests are made of: where they stand, and rings without an end.

use toehold_tcp::{ConnectionId, InterfaceAddress, MacAddress, Medium, Memory, NoRoom};

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

/// What arrived, and a send stream whose byte n is n.
#[derive(Default)]
pub(crate) struct Rings {
    pub(crate) received: Vec<u8>,
}

impl Memory for Rings {
    fn place(&mut self, _: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        let end = offset as usize + bytes.len();
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
