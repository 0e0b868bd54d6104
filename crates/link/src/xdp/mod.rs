//! AF_XDP (`Documentation/networking/af_xdp.rst`): the frames of an interface that are for the
//! engine's addresses, in memory that is ours, and frames of ours out. All else stays with the
//! kernel, on the same interface.
//!
//! ```text
//!              ┌ steering, in the driver ┐   ┌ XdpSocket, one for each receive queue ────────┐
//!   interface ──► for one of our addresses ├───► receive ring ─► peek, release ─► fill ring      │
//!              │ else: to the kernel      │   │                                               │
//!   interface ◄┴──────────────────────────┴───◄ transmit ring ◄─ publish, room ◄─ completion    │
//!                                             └───────────────────────────────────────────────┘
//! ```
//!
//! Receiving takes no system call, sending one for many frames. Frames are whole and complete, both
//! ways: nobody cuts segments, computes checksums or says which are right (`partial` sees where the
//! kernel of this machine has left them out).
//!
//! - [`XdpSteering`]: the program and its maps. `program` is what it says, [`crate::bpf`] how.
//!   Where the kernel has the engine's addresses as well, it is that of `crate::ports`.
//! - [`XdpSocket`], in `socket`: `umem` is its memory, `rings` what it shares with the kernel.
//! - `interface`: what the interface tells of itself; `error`: why its frames cannot be had.
//! - `pieces`: frames that are longer than a chunk of that memory (XDP_USE_SG, Linux 6.6).
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
