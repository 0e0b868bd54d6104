//! Captures in pcapng, as Wireshark reads them (draft-ietf-opsawg-pcapng): a section header, one
//! interface, then enhanced packet blocks, each with its direction and, if there is something to
//! say, a comment.

use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINK_TYPE_ETHERNET: u32 = 1;
const OPTION_COMMENT: u16 = 1;
const OPTION_PACKET_FLAGS: u16 = 2;

/// Which way a frame went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the link to us.
    In,
    /// From us to the link.
    Out,
}

/// Writes Ethernet frames to a capture.
#[derive(Debug)]
pub struct Capture<W> {
    out: W,
    block: Vec<u8>,
}

impl<W: Write> Capture<W> {
    /// Begins a capture on `out`.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn new(out: W) -> io::Result<Self> {
        let mut capture = Self {
            out,
            block: Vec::new(),
        };
        let mut section = BYTE_ORDER_MAGIC.to_ne_bytes().to_vec();
        section.extend_from_slice(&1u16.to_ne_bytes());
        section.extend_from_slice(&0u16.to_ne_bytes());
        section.extend_from_slice(&u64::MAX.to_ne_bytes()); // Length not known beforehand.
        capture.write(SECTION_HEADER, &section)?;
        let mut interface = LINK_TYPE_ETHERNET.to_ne_bytes().to_vec();
        interface.extend_from_slice(&0u32.to_ne_bytes()); // No limit on captured bytes.
        capture.write(INTERFACE_DESCRIPTION, &interface)?;
        Ok(capture)
    }

    /// Adds a frame, `micros` after the Unix epoch, whose bytes are the concatenation of `parts`.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn frame(
        &mut self,
        micros: u64,
        direction: Direction,
        parts: &[&[u8]],
        comment: &str,
    ) -> io::Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut body = Vec::with_capacity(length + 64);
        body.extend_from_slice(&0u32.to_ne_bytes());
        // Interfaces count microseconds unless they say otherwise.
        body.extend_from_slice(&((micros >> 32) as u32).to_ne_bytes());
        body.extend_from_slice(&(micros as u32).to_ne_bytes());
        body.extend_from_slice(&(length as u32).to_ne_bytes());
        body.extend_from_slice(&(length as u32).to_ne_bytes());
        parts.iter().for_each(|part| body.extend_from_slice(part));
        pad(&mut body);
        let way: u32 = if direction == Direction::In { 1 } else { 2 };
        put_option(&mut body, OPTION_PACKET_FLAGS, &way.to_ne_bytes());
        if !comment.is_empty() {
            // An option's length has 16 bits.
            let end = (0..=comment.len().min(4_096)).rfind(|&at| comment.is_char_boundary(at));
            put_option(
                &mut body,
                OPTION_COMMENT,
                &comment.as_bytes()[..end.unwrap_or(0)],
            );
        }
        body.extend_from_slice(&[0; 4]); // End of options.
        self.write(ENHANCED_PACKET, &body)
    }

    /// Writes a block in one call, so that a reader of a pipe sees whole ones.
    fn write(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let total = (body.len() + 12) as u32;
        self.block.clear();
        self.block.extend_from_slice(&kind.to_ne_bytes());
        self.block.extend_from_slice(&total.to_ne_bytes());
        self.block.extend_from_slice(body);
        self.block.extend_from_slice(&total.to_ne_bytes());
        self.out.write_all(&self.block)
    }

    /// Ends the capture; returns where it was written to.
    ///
    /// # Errors
    /// When what is buffered cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

fn put_option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend_from_slice(&code.to_ne_bytes());
    body.extend_from_slice(&(value.len() as u16).to_ne_bytes());
    body.extend_from_slice(value);
    pad(body);
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_and_aligned() {
        let mut capture = Capture::new(Vec::new()).unwrap();
        capture
            .frame(1 << 33, Direction::In, &[b"abc", b"de"], "a retransmission")
            .unwrap();
        capture.frame(2, Direction::Out, &[], "").unwrap();
        let bytes = capture.finish().unwrap();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < bytes.len() {
            let total = word(at + 4) as usize;
            assert_eq!(total % 4, 0);
            assert_eq!(word(at + total - 4) as usize, total, "both lengths agree");
            kinds.push(word(at));
            at += total;
        }
        assert_eq!(at, bytes.len());
        assert_eq!(
            kinds,
            [
                SECTION_HEADER,
                INTERFACE_DESCRIPTION,
                ENHANCED_PACKET,
                ENHANCED_PACKET
            ]
        );
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("abcde") && text.contains("a retransmission"));
    }
}
