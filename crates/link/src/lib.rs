//! Links: they receive and send frames. Metadata of each frame says which work on checksums and
//! segmentation is done, and which is left to the receiver.
//!
//! [`VnetHeader`] is the only form of that metadata. [`Tap`] is a device whose other end is this
//! machine's kernel. [`PacketSocket`] and [`XdpSocket`] use an existing interface, which the kernel
//! goes on using. [`Capture`] writes frames to a pcapng file, and [`CaptureReader`] reads the file.
//! [`PacketSummary`] describes a frame in one line. [`bpf`] loads small programs into the kernel.
//!
//! - `tap`, `packet`, `xdp`: the three kinds of links; `vnet`: the metadata of a frame.
//! - `ports`: addresses that are shared with the kernel.
//! - `capture`, `summary`: pcapng files; the description of a frame in one line.
//! - `interface`, `netlink`: the kernel's answers about an interface, and about the network around
//!   it.
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
pub use netlink::{Changed, HostChanges, HostNeighbour, HostRoute, HostTables};
pub use packet::{Arrival, FRAMES_TOGETHER_MAX, Group, PacketError, PacketOptions, PacketSocket};
pub use ports::{PortError, PortSteering, PortTable, PortUse, SILENCE_MAX};
pub use summary::{PacketSummary, TcpSummary};
pub use sys::PARTS_MAX;
pub use tap::{Tap, TapError, TapOptions};
pub use vnet::VnetHeader;
pub use xdp::{XdpError, XdpMode, XdpOptions, XdpSocket, XdpStatistics, XdpSteering};
