//! Wire formats: reads frames from a link, and writes frames for a link.
//!
//! Readers take bytes from the network and return a checked view or the reason why the bytes are
//! invalid ([`Malformed`]); no input makes them panic. Writers fill slices whose size the caller
//! has checked.

pub(crate) mod arp;
pub(crate) mod checksum;
pub(crate) mod ethernet;
pub(crate) mod icmp;
pub(crate) mod ip;
pub(crate) mod tcp;

/// The reason why bytes from a link are invalid. Every reason has its own counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum Malformed {
    /// The frame ends inside its link header.
    EthernetTruncated,
    /// The frame is neither IPv4, IPv6 nor ARP.
    EtherTypeUnknown,
    /// An ARP packet that is too short, or not for IPv4 over Ethernet.
    Arp,
    /// The packet ends inside its IP header, or the header's lengths contradict the frame's.
    IpTruncated,
    /// The version nibble contradicts the link's type field.
    IpVersion,
    /// The IPv4 header's checksum is wrong.
    IpChecksum,
    /// A source address that no host may have (multicast, broadcast, unspecified).
    IpSource,
    /// An IPv6 extension header that is truncated, unknown or forbidden here.
    IpExtension,
    /// Fragments that overlap, exceed 64 KiB or have an impossible length.
    Fragment,
    /// The segment ends inside its TCP header, or its data offset is below 5.
    TcpTruncated,
    /// The TCP checksum is wrong.
    TcpChecksum,
    /// A TCP option's length exceeds the header or is less than two. The segment is used without
    /// that option and the options after it.
    TcpOption,
    /// A source or destination port of zero, or a combination of flags that no state accepts.
    TcpFlags,
    /// An ICMP message that is too short or fails its checksum.
    Icmp,
}

impl Malformed {
    /// Every reason.
    pub const ALL: [Self; Self::Icmp as usize + 1] = [
        Self::EthernetTruncated,
        Self::EtherTypeUnknown,
        Self::Arp,
        Self::IpTruncated,
        Self::IpVersion,
        Self::IpChecksum,
        Self::IpSource,
        Self::IpExtension,
        Self::Fragment,
        Self::TcpTruncated,
        Self::TcpChecksum,
        Self::TcpOption,
        Self::TcpFlags,
        Self::Icmp,
    ];
    /// The number of reasons.
    pub(crate) const COUNT: usize = Self::ALL.len();
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::EthernetTruncated => "truncated Ethernet header",
            Self::EtherTypeUnknown => "neither IP nor ARP",
            Self::Arp => "bad ARP packet",
            Self::IpTruncated => "truncated IP packet",
            Self::IpVersion => "wrong IP version",
            Self::IpChecksum => "wrong IPv4 header checksum",
            Self::IpSource => "impossible source address",
            Self::IpExtension => "bad IPv6 extension header",
            Self::Fragment => "impossible fragment",
            Self::TcpTruncated => "truncated TCP header",
            Self::TcpChecksum => "wrong TCP checksum",
            Self::TcpOption => "bad TCP option",
            Self::TcpFlags => "impossible ports or flags",
            Self::Icmp => "bad ICMP message",
        })
    }
}

const _: () = {
    let mut at = 0;
    while at < Malformed::COUNT {
        assert!(
            Malformed::ALL[at] as usize == at,
            "in order of their numbers"
        );
        at += 1;
    }
};

/// Reads a big-endian `u16`. The caller has checked the length.
#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(*bytes[at..].first_chunk().expect("the caller has checked"))
}

/// Reads a big-endian `u32`. The caller has checked the length.
#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    // Read at once, even when the caller uses only a part.
    u32::from_be_bytes(*bytes[at..].first_chunk().expect("the caller has checked"))
}

/// Writes a big-endian `u16`.
#[inline]
pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes a big-endian `u32`.
#[inline]
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Writes a big-endian `u64`.
#[inline]
pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}
