//! ICMP (RFC 792), ICMPv6 (RFC 4443) and neighbour discovery (RFC 4861), as far as a host needs
//! them.

use super::checksum::Sum;
use super::ethernet::MacAddress;
use super::ip::{self, Address, PROTOCOL_ICMP_V6};
use super::{Malformed, put_u32, u16_at, u32_at};

pub(crate) const HEADER_BYTES: usize = 8;
/// Neighbour solicitation and advertisement: header, target, one link-layer address option.
pub(crate) const NEIGHBOUR_BYTES: usize = 32;

const V4_ECHO_REPLY: u8 = 0;
const V4_UNREACHABLE: u8 = 3;
const V4_ECHO: u8 = 8;
const V4_TIME_EXCEEDED: u8 = 11;
const V6_UNREACHABLE: u8 = 1;
const V6_TOO_BIG: u8 = 2;
const V6_TIME_EXCEEDED: u8 = 3;
const V6_ECHO: u8 = 128;
const V6_ECHO_REPLY: u8 = 129;
const V6_SOLICITATION: u8 = 135;
const V6_ADVERTISEMENT: u8 = 136;
const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;
/// Neighbour advertisement flags.
const SOLICITED: u32 = 0x4000_0000;
const OVERRIDE: u32 = 0x2000_0000;

/// The problem that an error message reports about one of our packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// The path takes no packet larger than `mtu` bytes.
    TooBig { mtu: u32 },
    /// The host is unreachable: a soft error (RFC 9293 section 3.9.2.2), like the next two.
    Unreachable,
    /// The network is unreachable.
    NoRoute,
    /// The destination is administratively forbidden.
    Forbidden,
    /// The port or protocol is not served: a hard error before a connection exists (RFC 5461).
    Refused,
}

/// A message that a host acts upon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message<'a> {
    /// An echo request: identifier, sequence number and data, to be sent back.
    Echo { body: &'a [u8] },
    /// An error about one of our packets; `quoted` is the packet's beginning.
    Error { trouble: Trouble, quoted: &'a [u8] },
    /// "Who has `target`?"
    Solicitation {
        target: Address,
        source_mac: Option<MacAddress>,
    },
    /// "`target` is at `mac`": replaces a known address, or (without `overrides`) only fills in an
    /// unknown one.
    Advertisement {
        target: Address,
        mac: Option<MacAddress>,
        overrides: bool,
    },
    /// A correct message that needs no action.
    Other,
}

impl<'a> Message<'a> {
    pub(crate) fn parse(packet: &ip::Packet<'a>) -> Result<Self, Malformed> {
        let bytes = packet.payload;
        let is_v4 = packet.source.is_v4();
        let pseudo = if is_v4 {
            Sum::ZERO
        } else {
            ip::pseudo_header(
                packet.source,
                packet.destination,
                PROTOCOL_ICMP_V6,
                bytes.len(),
            )
        };
        if bytes.len() < HEADER_BYTES || !pseudo.bytes(bytes).is_intact() {
            return Err(Malformed::Icmp);
        }
        let (kind, code) = (bytes[0], bytes[1]);
        let quoted = &bytes[HEADER_BYTES..];
        let error = |trouble| Self::Error { trouble, quoted };
        Ok(match (is_v4, kind, code) {
            (true, V4_ECHO, _) | (false, V6_ECHO, _) => Self::Echo { body: &bytes[4..] },
            // RFC 1191 section 4: the next-hop MTU is in the low half of the unused word.
            (true, V4_UNREACHABLE, 4) => error(Trouble::TooBig {
                mtu: u32::from(u16_at(bytes, 6)),
            }),
            // RFC 1122 section 4.2.3.9: codes 2 to 4 are hard errors.
            (true, V4_UNREACHABLE, 2 | 3) => error(Trouble::Refused),
            // Which other codes are about the network follows Linux: icmp_err_convert, tcp_v4_err,
            // icmpv6_err_convert.
            (true, V4_UNREACHABLE, 0 | 6 | 9 | 11) => error(Trouble::NoRoute),
            (true, V4_UNREACHABLE, _) | (true, V4_TIME_EXCEEDED, _) => error(Trouble::Unreachable),
            (false, V6_TOO_BIG, _) => error(Trouble::TooBig {
                mtu: u32_at(bytes, 4),
            }),
            (false, V6_UNREACHABLE, 0) => error(Trouble::NoRoute),
            (false, V6_UNREACHABLE, 1 | 5 | 6) => error(Trouble::Forbidden),
            (false, V6_UNREACHABLE, 4) => error(Trouble::Refused),
            (false, V6_UNREACHABLE | V6_TIME_EXCEEDED, _) => error(Trouble::Unreachable),
            (false, V6_SOLICITATION | V6_ADVERTISEMENT, 0) => neighbour(packet, kind)?,
            //= RFC 9293#3.9.2.2
            //# TCP implementations MUST silently discard any received ICMP Source Quench messages
            //# (MUST-55).
            _ => Self::Other,
        })
    }
}

fn neighbour<'a>(packet: &ip::Packet<'a>, kind: u8) -> Result<Message<'a>, Malformed> {
    // RFC 4861 sections 7.1.1 and 7.1.2: a hop limit other than 255 means that a router has
    // forwarded the packet.
    let bytes = packet.payload;
    if packet.hop_limit != 255 || bytes.len() < 24 {
        return Err(Malformed::Icmp);
    }
    let word = |at| u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4));
    let target = Address([word(8), word(16)]);
    let wanted = if kind == V6_SOLICITATION {
        OPTION_SOURCE_MAC
    } else {
        OPTION_TARGET_MAC
    };
    let mac = neighbour_mac(&bytes[24..], wanted)?;
    Ok(if kind == V6_SOLICITATION {
        Message::Solicitation {
            target,
            source_mac: mac,
        }
    } else {
        Message::Advertisement {
            target,
            mac,
            overrides: u32_at(bytes, 4) & OVERRIDE != 0,
        }
    })
}

fn neighbour_mac(mut options: &[u8], wanted: u8) -> Result<Option<MacAddress>, Malformed> {
    while let [kind, units, ..] = *options {
        // RFC 4861 section 4.6: an option of length zero must be discarded (and would loop for
        // ever).
        let length = usize::from(units) * 8;
        let Some((option, rest)) = options.split_at_checked(length).filter(|_| length != 0) else {
            return Err(Malformed::Icmp);
        };
        if kind == wanted
            && let [_, _, a, b, c, d, e, f] = *option
        {
            return Ok(Some(MacAddress([a, b, c, d, e, f])));
        }
        options = rest;
    }
    Ok(None)
}

/// Writes the answer to an echo request with this body.
pub(crate) fn write_echo_reply(out: &mut [u8], header: &ip::Header, body: &[u8]) {
    let length = 4 + body.len();
    out[0] = if header.source.is_v4() {
        V4_ECHO_REPLY
    } else {
        V6_ECHO_REPLY
    };
    out[1..4].fill(0);
    out[4..length].copy_from_slice(body);
    complete(&mut out[..length], header);
}

/// The type of a message about a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NeighbourMessage {
    Solicitation,
    /// The answer to a solicitation, or (not solicited) an announcement to all.
    Advertisement {
        is_solicited: bool,
    },
}

/// Writes a neighbour solicitation or advertisement for `target` from `mac`.
pub(crate) fn write_neighbour(
    out: &mut [u8],
    header: &ip::Header,
    target: Address,
    mac: MacAddress,
    message: NeighbourMessage,
) {
    let (advertise, flags) = match message {
        NeighbourMessage::Solicitation => (false, 0),
        NeighbourMessage::Advertisement { is_solicited: true } => (true, SOLICITED | OVERRIDE),
        NeighbourMessage::Advertisement { .. } => (true, OVERRIDE),
    };
    out[0] = if advertise {
        V6_ADVERTISEMENT
    } else {
        V6_SOLICITATION
    };
    out[1..4].fill(0);
    put_u32(out, 4, flags);
    out[8..16].copy_from_slice(&target.0[0].to_be_bytes());
    out[16..24].copy_from_slice(&target.0[1].to_be_bytes());
    out[24] = if advertise {
        OPTION_TARGET_MAC
    } else {
        OPTION_SOURCE_MAC
    };
    out[25] = 1;
    out[26..32].copy_from_slice(&mac.0);
    complete(&mut out[..NEIGHBOUR_BYTES], header);
}

fn complete(message: &mut [u8], header: &ip::Header) {
    let pseudo = if header.source.is_v4() {
        Sum::ZERO
    } else {
        ip::pseudo_header(
            header.source,
            header.destination,
            PROTOCOL_ICMP_V6,
            message.len(),
        )
    };
    let checksum = pseudo.bytes(message).checksum();
    message[2..4].copy_from_slice(&checksum);
}
