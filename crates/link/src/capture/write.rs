//! Writing.

use std::io::{self, Write};

use super::{
    BYTE_ORDER_MAGIC, Direction, ENHANCED_PACKET, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS,
    LINK_TYPE_ETHERNET, OPTION_COMMENT, OPTION_INTERFACE_DROPPED, OPTION_INTERFACE_NAME,
    OPTION_PACKET_DROPPED, OPTION_PACKET_FLAGS, SECTION_HEADER,
};

/// A frame to be written.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Microseconds since the Unix epoch.
    pub micros: u64,
    /// The frame's direction.
    pub direction: Direction,
    /// The bytes to write, as the concatenation of these parts: the frame or its beginning.
    pub parts: &'a [&'a [u8]],
    /// The frame's length on the link, in bytes.
    pub length: usize,
    /// Frames lost to the capture between the frame written before and this one.
    pub lost: u64,
    /// A comment on the frame; none when empty.
    pub comment: &'a str,
}

/// Writes Ethernet frames to a capture.
#[derive(Debug)]
pub struct Capture<W> {
    out: W,
    block: Vec<u8>,
}

impl<W: Write> Capture<W> {
    /// Begins a capture on `out` of the link `name`.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn new(out: W, name: &str) -> io::Result<Self> {
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
        put_option(&mut interface, OPTION_INTERFACE_NAME, name.as_bytes());
        interface.extend_from_slice(&[0; 4]);
        capture.write(INTERFACE_DESCRIPTION, &interface)?;
        Ok(capture)
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn frame(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let kept: usize = frame.parts.iter().map(|part| part.len()).sum();
        let mut body = Vec::with_capacity(kept + 64 + frame.comment.len());
        body.extend_from_slice(&0u32.to_ne_bytes());
        put_time(&mut body, frame.micros);
        body.extend_from_slice(&(kept as u32).to_ne_bytes());
        body.extend_from_slice(&(frame.length as u32).to_ne_bytes());
        frame
            .parts
            .iter()
            .for_each(|part| body.extend_from_slice(part));
        pad(&mut body);
        let way: u32 = if frame.direction == Direction::In {
            1
        } else {
            2
        };
        put_option(&mut body, OPTION_PACKET_FLAGS, &way.to_ne_bytes());
        if frame.lost > 0 {
            put_option(&mut body, OPTION_PACKET_DROPPED, &frame.lost.to_ne_bytes());
        }
        if !frame.comment.is_empty() {
            // An option's length has 16 bits.
            let longest = frame.comment.len().min(4_096);
            let end = (0..=longest).rfind(|&at| frame.comment.is_char_boundary(at));
            put_option(
                &mut body,
                OPTION_COMMENT,
                &frame.comment.as_bytes()[..end.unwrap_or(0)],
            );
        }
        body.extend_from_slice(&[0; 4]); // End of options.
        self.write(ENHANCED_PACKET, &body)
    }

    /// Writes the total of frames that were lost to the capture.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn statistics(&mut self, micros: u64, lost: u64) -> io::Result<()> {
        let mut body = 0u32.to_ne_bytes().to_vec();
        put_time(&mut body, micros);
        put_option(&mut body, OPTION_INTERFACE_DROPPED, &lost.to_ne_bytes());
        body.extend_from_slice(&[0; 4]);
        self.write(INTERFACE_STATISTICS, &body)
    }

    /// The output.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
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

    /// Ends the capture and returns the output.
    ///
    /// # Errors
    /// When the buffered bytes cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Microseconds are the default unit of an interface.
fn put_time(body: &mut Vec<u8>, micros: u64) {
    body.extend_from_slice(&((micros >> 32) as u32).to_ne_bytes());
    body.extend_from_slice(&(micros as u32).to_ne_bytes());
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
