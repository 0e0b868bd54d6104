//! Reading what [`Capture`](super::Capture) writes: one section, one interface, this machine's byte
//! order, microseconds.

use std::io::{self, Read};

use super::{
    BYTE_ORDER_MAGIC, Direction, ENHANCED_PACKET, INTERFACE_STATISTICS, OPTION_COMMENT,
    OPTION_INTERFACE_DROPPED, OPTION_PACKET_DROPPED, OPTION_PACKET_FLAGS, SECTION_HEADER,
};

/// The longest block: a frame of 64 KiB, headers, a comment.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// Reads the blocks of a capture.
#[derive(Debug)]
pub struct CaptureReader<R> {
    input: R,
    has_begun: bool,
}

/// One complete block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    kind: u32,
    bytes: Vec<u8>,
}

/// A frame that was captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Microseconds since the Unix epoch.
    pub micros: u64,
    /// The frame's direction, if the capture has it.
    pub direction: Option<Direction>,
    /// The captured bytes: the frame or its beginning.
    pub bytes: &'a [u8],
    /// The frame's length on the link, in bytes.
    pub length: usize,
    /// Frames lost to the capture just before it.
    pub lost: u64,
    /// The frame's comment.
    pub comment: &'a str,
}

impl<R: Read> CaptureReader<R> {
    /// A reader of a capture that begins with the next byte of `input`.
    pub fn new(input: R) -> Self {
        Self {
            input,
            has_begun: false,
        }
    }

    /// The input.
    pub fn get_ref(&self) -> &R {
        &self.input
    }

    /// The next block; `None` at the end. A capture that was cut off ends with its last whole
    /// block.
    ///
    /// # Errors
    /// `InvalidData` if the input is not a capture, or a capture of another byte order; otherwise
    /// the input's errors.
    pub fn next_block(&mut self) -> io::Result<Option<Block>> {
        let mut bytes = vec![0; 12];
        if !self.fill(&mut bytes)? {
            return Ok(None);
        }
        let kind = u32_at(&bytes, 0).unwrap_or(0);
        if !std::mem::replace(&mut self.has_begun, true)
            && (kind != SECTION_HEADER || u32_at(&bytes, 8) != Some(BYTE_ORDER_MAGIC))
        {
            return Err(invalid("not a pcapng capture in this machine's byte order"));
        }
        let total = u32_at(&bytes, 4).unwrap_or(0) as usize;
        if !(12..=BLOCK_BYTES_MAX).contains(&total) || !total.is_multiple_of(4) {
            return Err(invalid("a block of impossible length"));
        }
        bytes.resize(total, 0);
        if !self.fill(&mut bytes[12..])? {
            return Ok(None);
        }
        if u32_at(&bytes, total - 4) != Some(total as u32) {
            return Err(invalid("a block whose two lengths differ"));
        }
        Ok(Some(Block { kind, bytes }))
    }

    /// False when the input ends first.
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        match self.input.read_exact(bytes) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Block {
    /// The block's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The frame in this block, if it holds one.
    pub fn packet(&self) -> Option<Packet<'_>> {
        if self.kind != ENHANCED_PACKET {
            return None;
        }
        let kept = u32_at(&self.bytes, 20)? as usize;
        let length = u32_at(&self.bytes, 24)? as usize;
        let bytes = self.bytes.get(28..28usize.checked_add(kept)?)?;
        let options = self.options(28 + kept.next_multiple_of(4));
        let mut packet = Packet {
            micros: self.micros()?,
            direction: None,
            bytes,
            length,
            lost: 0,
            comment: "",
        };
        for (code, value) in options {
            match code {
                OPTION_PACKET_FLAGS => {
                    packet.direction = match u32_at(value, 0)? & 3 {
                        1 => Some(Direction::In),
                        2 => Some(Direction::Out),
                        _ => None,
                    };
                }
                OPTION_PACKET_DROPPED => packet.lost = u64_at(value)?,
                OPTION_COMMENT => packet.comment = std::str::from_utf8(value).unwrap_or_default(),
                _ => {}
            }
        }
        Some(packet)
    }

    /// The total of frames lost to the capture, if this is the statistics block.
    pub fn lost_in_all(&self) -> Option<u64> {
        if self.kind != INTERFACE_STATISTICS {
            return None;
        }
        let mut options = self.options(20);
        let (_, value) = options.find(|(code, _)| *code == OPTION_INTERFACE_DROPPED)?;
        u64_at(value)
    }

    fn micros(&self) -> Option<u64> {
        let high = u64::from(u32_at(&self.bytes, 12)?);
        Some(high << 32 | u64::from(u32_at(&self.bytes, 16)?))
    }

    /// Options from `at` to the length at the block's end.
    fn options(&self, mut at: usize) -> impl Iterator<Item = (u16, &[u8])> {
        let bytes = &self.bytes[..self.bytes.len() - 4];
        std::iter::from_fn(move || {
            let code = u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?);
            let len = u16::from_ne_bytes(bytes.get(at + 2..at + 4)?.try_into().ok()?);
            let value = bytes.get(at + 4..at + 4 + usize::from(len))?;
            at += 4 + usize::from(len).next_multiple_of(4);
            (code != 0).then_some((code, value))
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

fn u64_at(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?))
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::super::{Capture, Frame};
    use super::*;

    const FRAME: Frame<'_> = Frame {
        micros: 1 << 33,
        direction: Direction::In,
        parts: &[b"abc", b"de"],
        length: 70,
        lost: 0,
        comment: "a retransmission",
    };

    fn written() -> Vec<u8> {
        let mut capture = Capture::new(Vec::new(), "tap:toe0").unwrap();
        capture.frame(&FRAME).unwrap();
        let other = Frame {
            direction: Direction::Out,
            parts: &[],
            lost: 3,
            comment: "",
            ..FRAME
        };
        capture.frame(&other).unwrap();
        capture.statistics(5, 7).unwrap();
        capture.finish().unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let whole = written();
        let mut reader = CaptureReader::new(&whole[..]);
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block().unwrap() {
            blocks.push(block);
        }
        let [_, _, first, second, statistics] = &blocks[..] else {
            panic!("{blocks:?}");
        };
        let packet = first.packet().unwrap();
        assert_eq!((packet.bytes, packet.length), (&b"abcde"[..], 70));
        assert_eq!(packet.micros, FRAME.micros);
        assert_eq!(packet.direction, Some(Direction::In));
        assert_eq!(packet.comment, FRAME.comment);
        let packet = second.packet().unwrap();
        assert_eq!((packet.bytes, packet.lost), (&b""[..], 3));
        assert_eq!(packet.direction, Some(Direction::Out));
        assert_eq!(statistics.lost_in_all(), Some(7));
        let all: Vec<u8> = blocks.iter().flat_map(Block::as_bytes).copied().collect();
        assert_eq!(all, whole, "blocks are passed on as they are");
    }

    #[test]
    fn cut_off_capture_ends_with_its_last_whole_block() {
        let whole = written();
        for length in 0..whole.len() {
            let mut reader = CaptureReader::new(&whole[..length]);
            while reader.next_block().unwrap().is_some() {}
        }
    }

    #[test]
    fn nonsense_is_refused_and_never_read_beyond() {
        let whole = written();
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let mut reader = CaptureReader::new(&bytes[..]);
                while let Ok(Some(block)) = reader.next_block() {
                    let _ = (block.packet(), block.lost_in_all());
                }
            }
        }
        let mut reader = CaptureReader::new(&b"\xd4\xc3\xb2\xa1, an old pcap file"[..]);
        assert!(reader.next_block().is_err());
    }
}
