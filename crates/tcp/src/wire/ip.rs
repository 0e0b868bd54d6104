//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers, and one address type for both.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum::Sum;
use super::{Malformed, put_u16, put_u32, u16_at, u32_at};

pub(crate) const V4_HEADER_BYTES: usize = 20;
pub(crate) const V6_HEADER_BYTES: usize = 40;
/// A protocol of IP (IANA).
pub const PROTOCOL_ICMP: u8 = 1;
/// A protocol of IP (IANA).
pub const PROTOCOL_TCP: u8 = 6;
/// A protocol of IP (IANA).
pub const PROTOCOL_ICMP_V6: u8 = 58;
const PROTOCOL_V6_FRAGMENT: u8 = 44;
const PROTOCOL_V6_NONE: u8 = 59;
/// Hop-by-hop options, routing, destination options.
const V6_SKIPPABLE: [u8; 3] = [0, 43, 60];
/// An IPv6 packet with more extension headers than this is refused.
const V6_EXTENSIONS_MAX: usize = 6;
const V4_DONT_FRAGMENT: u16 = 0x4000;
const V4_MORE_FRAGMENTS: u16 = 0x2000;

/// An IPv4 or IPv6 address in two words; IPv4 as a mapped address of RFC 4291 section 2.5.5.2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Address(pub(crate) [u64; 2]);

const V4_MAPPED: u64 = 0xffff_0000_0000;

impl Address {
    #[inline]
    pub(crate) const fn v4(bits: u32) -> Self {
        Self([0, V4_MAPPED | bits as u64])
    }

    #[inline]
    pub(crate) const fn is_v4(self) -> bool {
        self.0[0] == 0 && self.0[1] >> 32 == V4_MAPPED >> 32
    }

    /// The last 32 bits: the whole address for IPv4.
    #[inline]
    pub(crate) const fn low(self) -> u32 {
        self.0[1] as u32
    }

    fn v6_at(bytes: &[u8], at: usize) -> Self {
        let word = |at| u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4));
        Self([word(at), word(at + 8)])
    }

    fn put_v6(self, out: &mut [u8], at: usize) {
        out[at..at + 8].copy_from_slice(&self.0[0].to_be_bytes());
        out[at + 8..at + 16].copy_from_slice(&self.0[1].to_be_bytes());
    }

    /// Whether this may be the address of a connection's remote (RFC 9293 section 3.9.2.3, MUST-57:
    /// a SYN to or from a multicast or broadcast address is discarded).
    #[inline]
    pub(crate) fn is_unicast(self) -> bool {
        if self.is_v4() {
            let first = self.low() >> 24;
            first != 0 && first != 127 && first < 224
        } else {
            self.0[0] >> 56 != 0xff && self.0 != [0, 0] && self.0 != [0, 1]
        }
    }

    /// The sum of the address's bytes, for a pseudo-header.
    #[inline]
    pub(crate) fn sum(self) -> Sum {
        if self.is_v4() {
            Sum::ZERO.bytes(&self.low().to_be_bytes())
        } else {
            Sum::ZERO
                .bytes(&self.0[0].to_be_bytes())
                .bytes(&self.0[1].to_be_bytes())
        }
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::v4(u32::from(v4)),
            IpAddr::V6(v6) => {
                let bits = u128::from(v6);
                Self([(bits >> 64) as u64, bits as u64])
            }
        }
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> Self {
        if address.is_v4() {
            Self::V4(Ipv4Addr::from(address.low()))
        } else {
            let [high, low] = address.0;
            Self::V6(Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)))
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        IpAddr::from(*self).fmt(f)
    }
}

/// The two ECN bits of an IP header (RFC 3168 section 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Ecn {
    #[default]
    NotCapable,
    /// ECT(0).
    Ect0,
    /// ECT(1).
    Ect1,
    CongestionExperienced,
}

impl Ecn {
    #[inline]
    const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotCapable,
            3 => Self::CongestionExperienced,
            1 => Self::Ect1,
            _ => Self::Ect0,
        }
    }

    #[inline]
    const fn bits(self) -> u8 {
        match self {
            Self::NotCapable => 0,
            Self::Ect0 => 2,
            Self::Ect1 => 1,
            Self::CongestionExperienced => 3,
        }
    }
}

/// The place of a fragment in its original packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FragmentPlace {
    pub(crate) identification: u32,
    pub(crate) offset_bytes: usize,
    pub(crate) more: bool,
}

/// A packet whose header is consistent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) protocol: u8,
    pub(crate) ecn: Ecn,
    pub(crate) hop_limit: u8,
    pub(crate) fragment: Option<FragmentPlace>,
    pub(crate) payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads an IPv4 packet; `verify` is false when the link has checked the header's checksum.
    #[inline]
    pub(crate) fn parse_v4(bytes: &'a [u8], verify: bool) -> Result<Self, Malformed> {
        let Some(header) = bytes.first_chunk::<V4_HEADER_BYTES>() else {
            return Err(Malformed::IpTruncated);
        };
        if header[0] >> 4 != 4 {
            return Err(Malformed::IpVersion);
        }
        //= RFC 9293#3.9.2
        //# When received options are passed up to TCP from the IP layer, a TCP implementation MUST
        //# ignore options that it does not understand (MUST-50).
        let header_bytes = usize::from(header[0] & 0xf) * 4;
        let total_bytes = usize::from(u16_at(header, 2));
        if header_bytes < V4_HEADER_BYTES || total_bytes < header_bytes {
            return Err(Malformed::IpTruncated);
        }
        // Ethernet pads short frames: bytes beyond the packet's own length are not part of it.
        let Some((header_slice, payload)) = bytes
            .get(..total_bytes)
            .and_then(|packet| packet.split_at_checked(header_bytes))
        else {
            return Err(Malformed::IpTruncated);
        };
        if verify && !Sum::ZERO.bytes(header_slice).is_intact() {
            return Err(Malformed::IpChecksum);
        }
        let source = Address::v4(u32_at(header, 12));
        if !source.is_unicast() {
            return Err(Malformed::IpSource);
        }
        let fragment_word = u16_at(header, 6);
        let fragment = if fragment_word & !V4_DONT_FRAGMENT & 0x7fff == 0 {
            None
        } else {
            Some(FragmentPlace {
                identification: u32::from(u16_at(header, 4)),
                offset_bytes: usize::from(fragment_word & 0x1fff) * 8,
                more: fragment_word & V4_MORE_FRAGMENTS != 0,
            })
        };
        Ok(Self {
            source,
            destination: Address::v4(u32_at(header, 16)),
            protocol: header[9],
            ecn: Ecn::of(header[1]),
            hop_limit: header[8],
            fragment,
            payload,
        })
    }

    /// Reads an IPv6 packet and walks its extension headers.
    pub(crate) fn parse_v6(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let Some(header) = bytes.first_chunk::<V6_HEADER_BYTES>() else {
            return Err(Malformed::IpTruncated);
        };
        if header[0] >> 4 != 6 {
            return Err(Malformed::IpVersion);
        }
        let payload_bytes = usize::from(u16_at(header, 4));
        let Some(payload) = bytes[V6_HEADER_BYTES..].get(..payload_bytes) else {
            return Err(Malformed::IpTruncated);
        };
        let source = Address::v6_at(header, 8);
        // An unspecified source is legitimate only in neighbour discovery, whose code checks it.
        if source.0[0] >> 56 == 0xff || source.is_v4() {
            return Err(Malformed::IpSource);
        }
        let mut packet = Self {
            source,
            destination: Address::v6_at(header, 24),
            protocol: header[6],
            ecn: Ecn::of(header[1] >> 4),
            hop_limit: header[7],
            fragment: None,
            payload,
        };
        packet.skip_extensions()?;
        Ok(packet)
    }

    /// RFC 8200 section 4.1: destination options may follow the fragment header. They are part of
    /// the whole packet, which must not be a fragment of another one.
    pub(crate) fn skip_extensions_of_whole(&mut self) -> Result<(), Malformed> {
        if !self.source.is_v4() {
            self.skip_extensions()?;
        }
        match self.fragment {
            None => Ok(()),
            Some(_) => Err(Malformed::Fragment),
        }
    }

    fn skip_extensions(&mut self) -> Result<(), Malformed> {
        for _ in 0..V6_EXTENSIONS_MAX {
            let extension = self.payload;
            let header_bytes = match self.protocol {
                PROTOCOL_V6_FRAGMENT => 8,
                kind if V6_SKIPPABLE.contains(&kind) => match extension.get(1) {
                    Some(&units) => 8 + usize::from(units) * 8,
                    None => return Err(Malformed::IpExtension),
                },
                PROTOCOL_V6_NONE => return Err(Malformed::IpExtension),
                _ => return Ok(()),
            };
            let Some((header, rest)) = extension.split_at_checked(header_bytes) else {
                return Err(Malformed::IpExtension);
            };
            if self.protocol == PROTOCOL_V6_FRAGMENT {
                let word = u16_at(header, 2);
                // RFC 6946: an "atomic" fragment is a whole packet.
                if word & !6 != 0 {
                    self.fragment = Some(FragmentPlace {
                        identification: u32_at(header, 4),
                        offset_bytes: usize::from(word & 0xfff8),
                        more: word & 1 != 0,
                    });
                }
            } else if self.protocol == 43 && header[3] != 0 {
                // RFC 8200 section 4.4: there are segments left to visit, and we do not route.
                return Err(Malformed::IpExtension);
            }
            self.protocol = header[0];
            self.payload = rest;
            if self.fragment.is_some() {
                return Ok(()); // The rest of the headers may be in another fragment.
            }
        }
        Err(Malformed::IpExtension)
    }
}

/// The sum over a pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1).
#[inline]
pub(crate) fn pseudo_header(
    source: Address,
    destination: Address,
    protocol: u8,
    length: usize,
) -> Sum {
    // The length is at most 64 KiB plus headers, so its upper half is a separate word.
    let (high, low) = ((length >> 16) as u16, length as u16);
    source
        .sum()
        .join(destination.sum())
        .word(u16::from(protocol))
        .word(high)
        .word(low)
}

/// Length of the header that [`write`] produces for this family.
#[inline]
pub(crate) const fn header_bytes(is_v4: bool) -> usize {
    if is_v4 {
        V4_HEADER_BYTES
    } else {
        V6_HEADER_BYTES
    }
}

/// The content of a header, without lengths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) protocol: u8,
}

impl Header {
    /// Writes the header of a packet with `payload_bytes` of payload. The lengths and, for IPv4,
    /// the checksum are complete; [`patch`] can change them later.
    pub(crate) fn write(&self, out: &mut [u8], payload_bytes: usize, hop_limit: u8) {
        if self.source.is_v4() {
            out[..V4_HEADER_BYTES].fill(0);
            out[0] = 0x45;
            put_u16(out, 6, V4_DONT_FRAGMENT);
            out[8] = hop_limit;
            out[9] = self.protocol;
            put_u32(out, 12, self.source.low());
            put_u32(out, 16, self.destination.low());
        } else {
            put_u32(out, 0, 6 << 28);
            out[6] = self.protocol;
            out[7] = hop_limit;
            self.source.put_v6(out, 8);
            self.destination.put_v6(out, 24);
        }
        patch(out, self.source.is_v4(), payload_bytes, Ecn::NotCapable);
    }
}

/// Completes a header for one particular packet. With DF set and no fragments, RFC 6864 section
/// 4.1 leaves the IPv4 identification free; `identification` is there for the eye of a reader.
#[inline]
pub(crate) fn patch(out: &mut [u8], is_v4: bool, payload_bytes: usize, ecn: Ecn) {
    if is_v4 {
        out[1] = ecn.bits();
        put_u16(out, 2, (V4_HEADER_BYTES + payload_bytes) as u16);
        put_u16(out, 10, 0);
        let checksum = Sum::ZERO.bytes(&out[..V4_HEADER_BYTES]).checksum();
        out[10..12].copy_from_slice(&checksum);
    } else {
        out[1] = out[1] & 0x0f | ecn.bits() << 4;
        put_u16(out, 4, payload_bytes as u16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
        let address = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        let (source, destination) = (address(source), address(destination));
        let mut bytes = vec![0; header_bytes(source.is_v4())];
        Header {
            source,
            destination,
            protocol: PROTOCOL_TCP,
        }
        .write(&mut bytes, payload.len(), 64);
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn both_families_survive_a_round_trip() {
        let mut bytes = packet("10.0.0.1", "10.0.0.2", b"hello");
        bytes.extend_from_slice(b"padding");
        let parsed = Packet::parse_v4(&bytes, true).unwrap();
        assert_eq!(parsed.payload, b"hello");
        assert_eq!(IpAddr::from(parsed.source).to_string(), "10.0.0.1");
        let bytes = packet("fd00::1", "fd00::2", b"hello");
        let parsed = Packet::parse_v6(&bytes).unwrap();
        assert_eq!(parsed.payload, b"hello");
        assert_eq!(IpAddr::from(parsed.destination).to_string(), "fd00::2");
    }

    #[test]
    fn damage_to_an_ipv4_header_is_noticed() {
        let good = packet("10.0.0.1", "10.0.0.2", b"hello");
        for bit in 0..V4_HEADER_BYTES * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Packet::parse_v4(&bytes, true).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_header_is_intact_with_every_length_and_mark() {
        let mut bytes = packet("10.0.0.1", "255.254.253.252", b"");
        for payload_bytes in 0..=usize::from(u16::MAX) - V4_HEADER_BYTES {
            for ecn in [
                Ecn::NotCapable,
                Ecn::Ect0,
                Ecn::Ect1,
                Ecn::CongestionExperienced,
            ] {
                patch(&mut bytes, true, payload_bytes, ecn);
                assert!(Sum::ZERO.bytes(&bytes).is_intact(), "{payload_bytes}");
            }
            let total = usize::from(u16_at(&bytes, 2));
            assert_eq!(total, V4_HEADER_BYTES + payload_bytes);
        }
    }

    #[test]
    fn truncations_are_refused() {
        let v4 = packet("10.0.0.1", "10.0.0.2", b"hello");
        let v6 = packet("fd00::1", "fd00::2", b"hello");
        for length in 0..v4.len() {
            assert!(Packet::parse_v4(&v4[..length], true).is_err());
        }
        for length in 0..v6.len() {
            assert!(Packet::parse_v6(&v6[..length]).is_err());
        }
    }

    #[test]
    fn ipv6_extensions_are_walked_and_bounded() {
        // Destination options of 8 bytes, then TCP.
        let mut bytes = packet("fd00::1", "fd00::2", &[6, 0, 1, 4, 0, 0, 0, 0, b'x']);
        bytes[6] = 60;
        let parsed = Packet::parse_v6(&bytes).unwrap();
        assert_eq!((parsed.protocol, parsed.payload), (PROTOCOL_TCP, &b"x"[..]));
        let mut endless = packet("fd00::1", "fd00::2", &[60, 0, 1, 4, 0, 0, 0, 0].repeat(20));
        endless[6] = 60;
        assert_eq!(
            Packet::parse_v6(&endless).unwrap_err(),
            Malformed::IpExtension
        );
    }
}
