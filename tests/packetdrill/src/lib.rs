//! The engine behind packetdrill's interface for shared libraries (`--so_filename`).
//!
//! packetdrill interprets a script of socket calls and packets. Here the calls reach a small socket
//! layer over [`toehold_tcp::Engine`], and the packets are the engine's frames. The clock is
//! virtual: it advances only when the script waits, and then immediately. So a script of ten
//! minutes takes no longer than a script of one second, and every run gives an equal result.
//!
//! ```text
//!   packetdrill ── socket calls ──> [calls] ──> [socket] ──┐
//!               ── netdev_send ───────────────> [stack] ───┼── Engine
//!               <─ netdev_receive ────────────  [stack] ───┘
//!               ── usleep, gettimeofday ──────> virtual time
//! ```
//!
//! [`interface`] is the C side, [`shared`] lets two threads use the stack, [`descriptors`] numbers
//! sockets, and [`info`] has their options.
//!
//! The engine uses the kernel's settings: scripts begin with `sysctl`, and [`settings`] reads the
//! values back. Some of packetdrill's own calls (`getsockopt` for its Python assertions) bypass the
//! interface. Therefore the runner also preloads this library, which answers them for its own
//! descriptors.
//!
//! The socket layer is for tests: rings without a bound, no fork, no urgent data, no error queue.
//!
//! packetdrill and its scripts are not part of this project: `cargo xtask packetdrill` takes the
//! path of both.

mod calls;
mod descriptors;
mod info;
mod interface;
mod settings;
mod shared;
mod socket;
mod stack;

pub use interface::{Interface, close, getsockopt, packetdrill_interface_init};
