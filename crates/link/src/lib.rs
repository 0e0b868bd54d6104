//! Links: frames in and out, with what the other side has done or shall do about checksums and
//! segmentation.
//!
//! [`VnetHeader`] is the one form of that metadata, [`Tap`] a link that takes it as it is,
//! [`XdpSocket`] one of an interface that the kernel has, too, and
//! [`Capture`] writes what passes to a pcapng file, [`CaptureReader`] reads it again; [`Glance`] says in
//! a line what a frame is.

mod capture;
mod glance;
mod tap;
mod vnet;
mod xdp;

pub use capture::{Block, Capture, CaptureReader, Direction, Frame, Packet};
pub use glance::{Glance, TcpGlance};
pub use tap::{PARTS_MAX, Tap, TapError, TapOptions};
pub use vnet::VnetHeader;
pub use xdp::{XdpError, XdpMode, XdpOptions, XdpSocket, XdpStatistics, XdpSteering};
