//! Frames that are longer than a chunk of memory. In a ring such a frame is several descriptors.
//! All of them but the last have the flag XDP_PKT_CONTD (Linux 6.6).
//!
//! This module copies the pieces of a received frame together, and copies a frame to be sent into
//! pieces. So the engine sees each frame in one piece.

use std::collections::VecDeque;
use std::ops::Range;

use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::error::MTU_IN_PIECES_MAX;
use super::rings::Consumer;
use super::umem::Umem;

/// Whether this is a frame's last piece.
fn is_last(piece: XdpDesc) -> bool {
    !piece.options.contains(XdpDescOptions::XDP_PKT_CONTD)
}

/// Received frames, and memory for frames that are longer than a chunk.
#[derive(Debug)]
pub(super) struct Pieces {
    /// The oldest frames, up to the last that was looked at.
    arrived: VecDeque<Arrived>,
    /// The bytes of the long frames among them, one frame behind the other.
    together: Vec<u8>,
    /// Room for a frame of ours.
    leaving: Box<[u8]>,
}

/// A received frame.
#[derive(Debug)]
struct Arrived {
    /// The number of the frame's entries in the ring.
    pieces: u32,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// The frame is one piece, and stays in its chunk.
    Chunk(XdpDesc),
    /// The frame is in the memory for long frames.
    Together(Range<usize>),
}

impl Pieces {
    pub(super) fn new() -> Self {
        Self {
            arrived: VecDeque::new(),
            together: Vec::new(),
            leaving: vec![0; FRAME_BYTES_MAX].into(),
        }
    }

    /// Looks at the oldest frames, up to `most`, and puts the long frames together. Returns the
    /// number of known frames. A last frame with missing pieces waits for a later call.
    pub(super) fn gather(
        &mut self,
        ring: &mut Consumer<XdpDesc>,
        umem: &Umem,
        most: usize,
    ) -> usize {
        if self.arrived.is_empty() {
            self.together.clear();
            if !self.gather_next(ring, umem, 0) {
                // The rest of the frame may have arrived since.
                ring.look();
                self.gather_next(ring, umem, 0);
            }
        }
        let mut behind = self.arrived.iter().map(|frame| frame.pieces).sum();
        while (1..most).contains(&self.arrived.len())
            && self.together.len() < TOGETHER_BYTES_MAX
            && self.gather_next(ring, umem, behind)
        {
            behind += self.arrived.back().map_or(0, |frame| frame.pieces);
        }
        self.arrived.len().min(most)
    }

    /// Looks at the frame that begins `behind` entries behind the oldest. False, without any
    /// effect, if its last piece has not arrived.
    fn gather_next(&mut self, ring: &Consumer<XdpDesc>, umem: &Umem, behind: u32) -> bool {
        let pieces = || (behind..).map_while(|ahead| ring.peek_at(ahead));
        let Some(others) = pieces().position(is_last) else {
            return false;
        };
        let count = others as u32 + 1;
        let place = match ring.peek_at(behind) {
            Some(piece) if count == 1 => Place::Chunk(piece),
            _ => {
                let start = self.together.len();
                for piece in pieces().take(count as usize) {
                    // SAFETY: the kernel has given this chunk to us, and gets it back when the
                    // frame is released.
                    let bytes = unsafe { umem.slice(piece.addr, piece.len as usize) };
                    self.together.extend_from_slice(bytes);
                }
                Place::Together(start..self.together.len())
            }
        };
        self.arrived.push_back(Arrived {
            pieces: count,
            place,
        });
        true
    }

    /// The frame that is `ahead` frames behind the oldest, if [`Pieces::gather`] has looked at it.
    pub(super) fn frame<'a>(&'a self, ahead: usize, umem: &'a Umem) -> Option<&'a [u8]> {
        Some(match &self.arrived.get(ahead)?.place {
            Place::Together(range) => &self.together[range.clone()],
            // SAFETY: the kernel has given this chunk to us, and gets it back when it is released.
            Place::Chunk(piece) => unsafe { umem.slice(piece.addr, piece.len as usize) },
        })
    }

    /// Releases the oldest frame and returns the number of its pieces. `None` when no frame was
    /// looked at.
    pub(super) fn release(&mut self) -> Option<u32> {
        self.arrived.pop_front().map(|frame| frame.pieces)
    }

    /// Room for a frame of ours.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.leaving
    }

    /// The parts of a frame of ours. The flag marks the last part.
    pub(super) fn parts(
        &self,
        frame_bytes: usize,
        chunk_bytes: usize,
    ) -> impl Iterator<Item = (&[u8], bool)> {
        let parts = self.leaving[..frame_bytes].chunks(chunk_bytes);
        let last = parts.len().saturating_sub(1);
        parts.enumerate().map(move |(at, part)| (part, at == last))
    }
}

/// The longest frame, Ethernet header included.
pub(super) const FRAME_BYTES_MAX: usize = MTU_IN_PIECES_MAX as usize + 18;
/// When this many bytes are put together, no further frame is added, so that the copies stay in the
/// cache until they are read.
const TOGETHER_BYTES_MAX: usize = 256 * 1024;
