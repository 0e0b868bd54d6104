//! Captures in pcapng, which Wireshark reads (draft-ietf-opsawg-pcapng): a section header, one
//! interface, then enhanced packet blocks, each with a direction and an optional comment. Each
//! block counts the frames that the capture lost just before its frame. An interface statistics
//! block counts all lost frames.

mod read;
mod write;

pub use read::{Block, CaptureReader, Packet};
pub use write::{Capture, Frame};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINK_TYPE_ETHERNET: u32 = 1;
const OPTION_COMMENT: u16 = 1;
/// Of an interface description.
const OPTION_INTERFACE_NAME: u16 = 2;
/// Of a packet.
const OPTION_PACKET_FLAGS: u16 = 2;
/// Of a packet.
const OPTION_PACKET_DROPPED: u16 = 4;
/// Of interface statistics.
const OPTION_INTERFACE_DROPPED: u16 = 5;

/// Which way a frame went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the link to us.
    In,
    /// From us to the link.
    Out,
}
