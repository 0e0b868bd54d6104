//! Frames whose TCP checksum has never been computed. XDP does not mark such frames.
//!
//! A kernel writes only the pseudo-header's sum into the checksum field (CHECKSUM_PARTIAL), and
//! leaves the rest to the device; a veth never completes it. Such a frame is recognised by exactly
//! this sum. A finished checksum equals this sum once in 65,536 frames. So the risk of accepting a
//! damaged frame is that of a checksum that is right by chance.

use toehold_tcp::ChecksumSum;
use toehold_tcp::numbers::{PROTOCOL_TCP, TYPE_IPV4, TYPE_IPV6};

/// Whether an Ethernet frame carries a TCP segment whose checksum field is the pseudo-header's sum
/// (RFC 9293, section 3.1; RFC 8200, section 8.1).
pub(super) fn lacks_checksum(frame: &[u8]) -> bool {
    pseudo_header(frame).is_some_and(|(sum, checksum)| sum.partial() == checksum)
}

/// The sum over the pseudo-header, and the bytes of the checksum field.
fn pseudo_header(frame: &[u8]) -> Option<(ChecksumSum, [u8; 2])> {
    let (ethernet, packet) = frame.split_at_checked(14)?;
    let (addresses, segment) = match u16::from_be_bytes([ethernet[12], ethernet[13]]) {
        TYPE_IPV4 => {
            let header = packet.first_chunk::<20>()?;
            let header_bytes = usize::from(header[0] & 0x0f) * 4;
            let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            if header[9] != PROTOCOL_TCP || is_fragment {
                return None;
            }
            let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
            (&header[12..20], packet.get(header_bytes..total)?)
        }
        TYPE_IPV6 => {
            let header = packet.first_chunk::<40>()?;
            if header[6] != PROTOCOL_TCP {
                return None;
            }
            let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
            (&header[8..40], packet.get(40..40 + payload)?)
        }
        _ => return None,
    };
    let checksum = segment.get(16..18)?;
    let sum = ChecksumSum::ZERO
        .bytes(addresses)
        .word(u16::from(PROTOCOL_TCP))
        .word(segment.len() as u16);
    Some((sum, [checksum[0], checksum[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with a TCP segment of `payload` zeros and an unfinished checksum, and the offset of
    /// that checksum.
    fn unfinished(is_v6: bool, options: usize, payload: usize) -> (Vec<u8>, usize) {
        let mut frame = vec![2; 12];
        let segment_bytes = 20 + payload;
        let pair: &[u8] = if is_v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((segment_bytes as u16).to_be_bytes());
            frame.extend([6, 64]);
            &[0xfd; 32]
        } else {
            frame.extend([8, 0, 0x45 + (options / 4) as u8, 0]);
            frame.extend(((20 + options + segment_bytes) as u16).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
            &[10, 84, 0, 1, 10, 84, 0, 2]
        };
        frame.extend(pair);
        frame.resize(frame.len() + options, 1);
        let at = frame.len() + 16;
        frame.resize(frame.len() + segment_bytes, 0);
        let sum = ChecksumSum::ZERO
            .bytes(pair)
            .word(6)
            .word(segment_bytes as u16);
        frame[at..at + 2].copy_from_slice(&sum.partial());
        (frame, at)
    }

    #[test]
    fn unfinished_checksums_are_known() {
        for (is_v6, options, payload) in [(false, 0, 0), (false, 12, 7), (true, 0, 1000)] {
            let (mut frame, at) = unfinished(is_v6, options, payload);
            assert!(lacks_checksum(&frame));
            // Ethernet pads short frames.
            frame.resize(frame.len() + 6, 0);
            assert!(lacks_checksum(&frame));
            frame[at] ^= 1;
            assert!(!lacks_checksum(&frame));
        }
    }

    #[test]
    fn nothing_is_made_of_other_frames() {
        let (frame, _) = unfinished(false, 0, 10);
        for length in 0..frame.len() {
            assert!(!lacks_checksum(&frame[..length]), "{length} bytes");
        }
        let changed = |at: usize, byte: u8| {
            let mut frame = frame.clone();
            frame[at] = byte;
            frame
        };
        assert!(!lacks_checksum(&changed(14 + 6, 0x20)), "a fragment");
        assert!(!lacks_checksum(&changed(14 + 9, 17)), "UDP");
        assert!(!lacks_checksum(&changed(12, 9)), "no IP");
        assert!(!lacks_checksum(&changed(14, 0x40)), "headers of no length");
    }
}
