//! AF_XDP (`Documentation/networking/af_xdp.rst`): receives the frames for the engine's addresses
//! on an interface into our memory, and sends our frames. All other frames of the interface stay
//! with the kernel.
//!
//! ```text
//!              ┌ steering, in the driver ┐   ┌ XdpSocket, one for each receive queue ────────┐
//!   interface ──► for one of our addresses ├───► receive ring ─► peek, release ─► fill ring      │
//!              │ else: to the kernel      │   │                                               │
//!   interface ◄┴──────────────────────────┴───◄ transmit ring ◄─ publish, room ◄─ completion    │
//!                                             └───────────────────────────────────────────────┘
//! ```
//!
//! Receiving takes no system call; sending takes one for many frames. Frames are complete in both
//! directions: neither the kernel nor the interface cuts segments, computes checksums or reports
//! correct ones. `partial` detects frames whose checksum the kernel of this machine has left out.
//!
//! - [`XdpSteering`]: the BPF program and its maps. `program` has the instructions, and
//!   [`crate::bpf`] the assembler. For addresses that are shared with the kernel the program of
//!   `crate::ports` is used.
//! - [`XdpSocket`], in `socket`: `umem` is the socket's memory, and `rings` are the queues between
//!   the socket and the kernel.
//! - `interface`: properties of the interface; `error`: why an AF_XDP link cannot be opened.
//! - `pieces`: frames that are longer than a chunk of the socket's memory (XDP_USE_SG, Linux 6.6).
//!
//! Deliberately absent: memory shared by several sockets, busy polling (SO_PREFER_BUSY_POLL).

mod error;
mod interface;
mod partial;
mod pieces;
pub(crate) mod program;
mod rings;
mod socket;
mod steering;
mod umem;

pub use error::XdpError;
pub use socket::{XdpOptions, XdpSocket, XdpStatistics};
pub use steering::{XdpMode, XdpSteering};
