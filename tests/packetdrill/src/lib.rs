//! The engine behind packetdrill's interface for shared libraries (`--so_filename`).
//!
//! packetdrill interprets a script of socket calls and packets. Here the calls reach a small socket
//! layer over [`toehold_tcp::Engine`], the packets are the engine's frames, and the clock is
//! virtual: it advances only when the script waits, and then immediately. So a ten-minute script
//! takes no longer than one of a second, and every run gives an equal result.
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
//! The settings of the engine are those of the kernel: scripts begin with `sysctl`, and
//! [`settings`] reads back what they wrote. Some of packetdrill's own calls (`getsockopt` for its
//! Python assertions) do not go through the interface; the runner therefore also preloads this
//! library, which answers them for the descriptors that are its own.
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
