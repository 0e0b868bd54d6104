//! Links: frames in and out, with what the other side has done or shall do about checksums and
//! segmentation.
//!
//! [`VnetHeader`] is the one form of that metadata. [`Tap`] is a device whose other end is this
//! machine's kernel; [`PacketSocket`] and [`XdpSocket`] are on an interface that is there already,
//! and that the kernel goes on using. [`Capture`] writes what passes to a pcapng file,
//! [`CaptureReader`] reads it again; [`PacketSummary`] says in a line what a frame is. [`bpf`]
//! loads small programs into the kernel.
//!
//! - `tap`, `packet`, `xdp`: the three kinds of links; `vnet`: the metadata of a frame.
//! - `ports`: addresses that are shared with the kernel.
//! - `capture`, `summary`: pcapng files; a frame in a line.
//! - `interface`, `netlink`: what the kernel tells of an interface, and of the network around it.
//! - [`bpf`], `mapping`, `sys`: programs for the kernel, mapped memory, system calls.

pub mod bpf;
mod capture;
mod interface;
mod mapping;
mod netlink;
mod packet;
mod ports;
mod summary;
mod sys;
mod tap;
mod vnet;
mod xdp;

pub use capture::{Block, Capture, CaptureReader, Direction, Frame, Packet};
pub use interface::Interfaces;
pub use netlink::{Changed, HostChanges, HostNeighbour, HostTables, HostWay};
pub use packet::{Arrival, FRAMES_TOGETHER_MAX, Group, PacketError, PacketOptions, PacketSocket};
pub use ports::{PortError, PortSteering, PortTable, PortUse, SILENCE_MAX};
pub use summary::{PacketSummary, TcpSummary};
pub use sys::PARTS_MAX;
pub use tap::{Tap, TapError, TapOptions};
pub use vnet::VnetHeader;
pub use xdp::{XdpError, XdpMode, XdpOptions, XdpSocket, XdpStatistics, XdpSteering};
