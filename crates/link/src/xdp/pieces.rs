//! Frames that are longer than a chunk of memory: in rings they are several descriptors, of which
//! all but the last say that more follow (XDP_PKT_CONTD, Linux 6.6).
//!
//! Here such a frame is put together, and taken apart, by a copy each: whoever reads and writes
//! frames sees them in one piece.

use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::error::MTU_IN_PIECES_MAX;
use super::rings::Consumer;
use super::umem::Umem;

/// Whether this is a frame's last piece.
pub(super) fn is_last(piece: XdpDesc) -> bool {
    !piece.options.contains(XdpDescOptions::XDP_PKT_CONTD)
}

/// Memory for two long frames.
#[derive(Debug)]
pub(super) struct Pieces {
    /// The oldest frame that has come, if that is in several pieces.
    arrived: Vec<u8>,
    /// And how many these are; zero when it is not.
    count: u32,
    /// Room for a frame of ours.
    leaving: Box<[u8]>,
}

impl Pieces {
    pub(super) fn new() -> Self {
        Self {
            arrived: Vec::new(),
            count: 0,
            leaving: vec![0; FRAME_BYTES_MAX].into(),
        }
    }

    /// Puts the oldest frame together. False, and then nothing has happened, when its last piece is
    /// not there yet.
    pub(super) fn put_together(&mut self, ring: &mut Consumer<XdpDesc>, umem: &Umem) -> bool {
        ring.look();
        self.arrived.clear();
        for ahead in 0.. {
            let Some(piece) = ring.peek_at(ahead) else {
                break;
            };
            // SAFETY: the kernel has given this chunk to us, and gets it back when the frame is
            // released.
            let bytes = unsafe { umem.slice(piece.addr, piece.len as usize) };
            self.arrived.extend_from_slice(bytes);
            if is_last(piece) {
                self.count = ahead + 1;
                return true;
            }
        }
        false
    }

    /// The frame that was put together last, until it is released.
    pub(super) fn arrived(&self) -> Option<&[u8]> {
        (self.count > 0).then_some(&self.arrived)
    }

    /// The oldest frame is released; in so many pieces it came.
    pub(super) fn take_count(&mut self) -> u32 {
        std::mem::take(&mut self.count).max(1)
    }

    /// Room for a frame of ours.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.leaving
    }

    /// The parts of a frame of ours, with whether each is the last.
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

/// The longest frame, with its Ethernet header.
pub(super) const FRAME_BYTES_MAX: usize = MTU_IN_PIECES_MAX as usize + 18;
