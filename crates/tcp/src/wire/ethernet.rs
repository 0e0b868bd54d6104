//! Ethernet headers.

use super::{Malformed, put_u16, u16_at};

/// A hardware address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Every host on the link.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The address as a number: its bytes from the lowest to the highest.
    pub(crate) const fn to_word(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// Whether frames to this address go to more than one host.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

pub(crate) const HEADER_BYTES: usize = 14;
/// An EtherType (IEEE 802).
pub const TYPE_IPV4: u16 = 0x0800;
/// An EtherType (IEEE 802).
pub const TYPE_ARP: u16 = 0x0806;
/// An EtherType (IEEE 802).
pub const TYPE_IPV6: u16 = 0x86dd;

/// A frame's header, and what follows it.
pub(crate) struct Frame<'a> {
    pub(crate) destination: MacAddress,
    pub(crate) source: MacAddress,
    pub(crate) ether_type: u16,
    pub(crate) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    #[inline]
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Malformed::EthernetTruncated);
        };
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *header;
        Ok(Self {
            destination: MacAddress([d0, d1, d2, d3, d4, d5]),
            source: MacAddress([s0, s1, s2, s3, s4, s5]),
            ether_type: u16_at(header, 12),
            payload,
        })
    }
}

/// Writes a header at the start of `out`.
pub(crate) fn write(out: &mut [u8], destination: MacAddress, source: MacAddress, ether_type: u16) {
    out[..6].copy_from_slice(&destination.0);
    out[6..12].copy_from_slice(&source.0);
    put_u16(out, 12, ether_type);
}
