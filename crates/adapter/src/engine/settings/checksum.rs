//! Which side computes and verifies TCP checksums.

use std::str::FromStr;

use toehold_link::VnetHeader;
use toehold_tcp::ReceiveOffload;

/// The link's part of the work with checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// None: the engine computes the checksums of sent segments and verifies those of received
    /// segments.
    Off,
    /// The link computes the checksums of sent segments. The engine believes the link's reports
    /// that received checksums are right.
    #[default]
    On,
    /// The link computes the checksums of sent segments. The engine verifies all received
    /// checksums.
    Verify,
    /// The link computes the checksums of sent segments. Received checksums are not verified.
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

    /// Whether the link computes the checksums of sent segments, if it can.
    #[must_use]
    pub fn is_by_link(self) -> bool {
        self != Checksum::Off
    }

    /// A received frame's header with the engine's trust applied. A checksum that was never
    /// computed cannot be verified.
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
            .ok_or_else(|| format!("`{value}` is not a checksum mode: {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_checksum_setting_trusts_as_much_as_it_says() {
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
