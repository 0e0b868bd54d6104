//! Netlink messages (netlink(7)) and their attributes. An attribute has a kind and a content, which
//! may consist of attributes.

/// The messages of a datagram, each with its header.
pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
        let message = rest
            .get(..length)
            .filter(|_| length >= MESSAGE_HEADER_BYTES)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// `struct nlmsghdr`.
pub(crate) const MESSAGE_HEADER_BYTES: usize = 16;

/// The attributes of a message or of another attribute: their kinds and contents.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.get(..ATTRIBUTE_HEADER_BYTES)?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & KIND_MASK;
        let content = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, content))
    })
}

pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut all = attributes(bytes);
    all.find_map(|(kind, content)| (kind == wanted).then_some(content))
}

/// The number in an attribute; nftables has them in network order.
pub(crate) fn number(bytes: &[u8], wanted: u16) -> Option<u32> {
    let content = attribute(bytes, wanted)?;
    Some(u32::from_be_bytes(content.try_into().ok()?))
}

const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const KIND_MASK: u16 = 0x3fff;
