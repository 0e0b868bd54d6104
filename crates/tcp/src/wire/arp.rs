//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use super::ethernet::{MacAddress, TYPE_IPV4};
use super::{Malformed, put_u16, u16_at};

pub(crate) const PACKET_BYTES: usize = 28;
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// An ARP packet, in the words of RFC 826.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packet {
    pub(crate) is_request: bool,
    pub(crate) sender_mac: MacAddress,
    pub(crate) sender: Ipv4Addr,
    pub(crate) target_mac: MacAddress,
    pub(crate) target: Ipv4Addr,
}

impl Packet {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let Some(bytes) = bytes.first_chunk::<PACKET_BYTES>() else {
            return Err(Malformed::Arp);
        };
        let is_ethernet_ipv4 = u16_at(bytes, 0) == 1
            && u16_at(bytes, 2) == TYPE_IPV4
            && bytes[4] == 6
            && bytes[5] == 4;
        let operation = u16_at(bytes, 6);
        if !is_ethernet_ipv4 || !matches!(operation, REQUEST | REPLY) {
            return Err(Malformed::Arp);
        }
        let mac = |at: usize| {
            let mut mac = [0; 6];
            mac.copy_from_slice(&bytes[at..at + 6]);
            MacAddress(mac)
        };
        let ip = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        Ok(Self {
            is_request: operation == REQUEST,
            sender_mac: mac(8),
            sender: ip(14),
            target_mac: mac(18),
            target: ip(24),
        })
    }

    pub(crate) fn write(&self, out: &mut [u8]) {
        put_u16(out, 0, 1);
        put_u16(out, 2, TYPE_IPV4);
        out[4] = 6;
        out[5] = 4;
        put_u16(out, 6, if self.is_request { REQUEST } else { REPLY });
        out[8..14].copy_from_slice(&self.sender_mac.0);
        out[14..18].copy_from_slice(&self.sender.octets());
        out[18..24].copy_from_slice(&self.target_mac.0);
        out[24..28].copy_from_slice(&self.target.octets());
    }
}
