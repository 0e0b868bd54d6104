//! Checksums of TCP: whose work they are.

use std::str::FromStr;

use toehold_link::VnetHeader;
use toehold_tcp::ReceiveOffload;

/// The work with checksums that is the link's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// None: ours are computed here, and those that arrive are verified here.
    Off,
    /// The link computes ours. Where it says that one that arrived is right, that is believed.
    #[default]
    On,
    /// The link computes ours. Those that arrive are verified here, whatever it says.
    Verify,
    /// The link computes ours. Nobody verifies those that arrive.
    Trust,
}

impl Checksum {
    const ALL: [Checksum; 4] = [
        Checksum::On,
        Checksum::Verify,
        Checksum::Trust,
        Checksum::Off,
    ];

    /// As the settings spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Checksum::Off => "off",
            Checksum::On => "on",
            Checksum::Verify => "verify",
            Checksum::Trust => "trust",
        }
    }

    /// Whether the link computes ours, where it can.
    #[must_use]
    pub fn is_by_link(self) -> bool {
        self != Checksum::Off
    }

    /// A frame's header, as far as it is believed. Nobody can verify a checksum that was never
    /// computed.
    #[inline]
    pub(in crate::engine) fn believed(self, header: VnetHeader) -> ReceiveOffload {
        let checksum_verified = match self {
            Checksum::Off | Checksum::Verify => header.lacks_checksum(),
            Checksum::On => header.lacks_checksum() || header.receive_offload().checksum_verified,
            Checksum::Trust => true,
        };
        ReceiveOffload { checksum_verified }
    }
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(value: &str) -> Result<Checksum, String> {
        let mut all = Checksum::ALL.into_iter();
        let names = || Checksum::ALL.map(Checksum::name).join(", ");
        all.find(|one| one.name() == value)
            .ok_or_else(|| format!("`{value}` is no way with checksums: {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_believes_as_much_as_it_says() {
        // `struct virtio_net_hdr`: the flags come first. VIRTIO_NET_HDR_F_NEEDS_CSUM, and
        // VIRTIO_NET_HDR_F_DATA_VALID.
        let header = |flags: u8| {
            let mut bytes = [0; VnetHeader::BYTES];
            bytes[0] = flags;
            VnetHeader::from_bytes(bytes)
        };
        let all = [0, 1, 2].map(header);
        let believed = |way: Checksum| all.map(|header| way.believed(header).checksum_verified);
        assert_eq!(believed(Checksum::Off), [false, true, false]);
        assert_eq!(believed(Checksum::Verify), [false, true, false]);
        assert_eq!(believed(Checksum::On), [false, true, true]);
        assert_eq!(believed(Checksum::Trust), [true; 3]);
        for way in Checksum::ALL {
            assert_eq!(way.name().parse(), Ok(way));
        }
    }
}
