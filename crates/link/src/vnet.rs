//! `struct virtio_net_hdr` (VIRTIO 1.2, section 5.1.6; `linux/virtio_net.h`): ten bytes before a
//! frame that say which work on the frame is left.
//!
//! ```text
//!  0      1         2         4         6           8            10
//!  | flags| gso type| hdr len | gso size| csum start| csum offset|      in native byte order
//! ```

use toehold_tcp::{ChecksumWork, ReceiveOffload, TransmitOffload};

const NEEDS_CHECKSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// The metadata of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VnetHeader {
    flags: u8,
    gso_type: u8,
    header_bytes: u16,
    segment_bytes: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl VnetHeader {
    /// The header of a frame whose checksum a kernel of this machine has left out.
    pub(crate) const UNFINISHED: Self = Self {
        flags: NEEDS_CHECKSUM,
        gso_type: GSO_NONE,
        header_bytes: 0,
        segment_bytes: 0,
        checksum_start: 0,
        checksum_offset: 0,
    };
    /// The header's length in bytes.
    pub const BYTES: usize = 10;

    /// The header for the work that the engine leaves to the link. The caller must have completed a
    /// [`ChecksumWork::Payload`] before: the link takes that checksum for finished.
    #[must_use]
    pub const fn for_transmit(offload: &TransmitOffload) -> Self {
        let (flags, checksum_start, checksum_offset) = match offload.checksum {
            ChecksumWork::Link { start, at } => (NEEDS_CHECKSUM, start, at),
            _ => (0, 0, 0),
        };
        let gso_type = match (offload.segment_bytes, offload.is_v6) {
            (0, _) => GSO_NONE,
            (_, false) => GSO_TCP_V4,
            (_, true) => GSO_TCP_V6,
        };
        let ecn = if offload.has_cwr && gso_type != GSO_NONE {
            GSO_ECN
        } else {
            0
        };
        Self {
            flags,
            gso_type: gso_type | ecn,
            header_bytes: offload.header_bytes,
            segment_bytes: offload.segment_bytes,
            checksum_start,
            checksum_offset,
        }
    }

    /// The meaning of a received frame's header for the engine. A frame that needs a checksum comes
    /// from a kernel on this machine that has not computed it. Such a frame has not crossed a wire
    /// that could damage it.
    #[must_use]
    pub const fn receive_offload(&self) -> ReceiveOffload {
        ReceiveOffload {
            checksum_verified: self.flags & (NEEDS_CHECKSUM | DATA_VALID) != 0,
        }
    }

    /// True when the frame's checksum has never been computed, so it cannot be verified.
    #[must_use]
    pub const fn lacks_checksum(&self) -> bool {
        self.flags & NEEDS_CHECKSUM != 0
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        bytes[2..4].copy_from_slice(&self.header_bytes.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.segment_bytes.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.checksum_start.to_ne_bytes());
        bytes[8..10].copy_from_slice(&self.checksum_offset.to_ne_bytes());
        bytes
    }

    /// Reads a header.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [flags, gso_type, h0, h1, s0, s1, c0, c1, o0, o1] = bytes;
        Self {
            flags,
            gso_type,
            header_bytes: u16::from_ne_bytes([h0, h1]),
            segment_bytes: u16::from_ne_bytes([s0, s1]),
            checksum_start: u16::from_ne_bytes([c0, c1]),
            checksum_offset: u16::from_ne_bytes([o0, o1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_segment_asks_for_cutting_and_checksums() {
        let header = VnetHeader::for_transmit(&TransmitOffload {
            checksum: ChecksumWork::Link { start: 34, at: 16 },
            segment_bytes: 1_448,
            header_bytes: 66,
            is_v6: false,
            has_cwr: true,
        });
        let bytes = header.to_bytes();
        assert_eq!(bytes[..2], [NEEDS_CHECKSUM, GSO_TCP_V4 | GSO_ECN]);
        assert_eq!(u16::from_ne_bytes([bytes[4], bytes[5]]), 1_448);
        assert_eq!(VnetHeader::from_bytes(bytes), header);
        assert!(header.receive_offload().checksum_verified);
    }

    #[test]
    fn a_frame_without_metadata_is_verified_by_the_engine() {
        assert!(!VnetHeader::default().receive_offload().checksum_verified);
    }
}
