//! Channels: duplex byte streams in shared memory beside a kernel socket.
//!
//! - [`channel`]: one end of a channel: its rings, and the switches between carrier and ring.
//! - [`ring`]: one direction: cursors, credit, checks on what the peer wrote.
//! - [`doorbell`]: waking a peer that sleeps, and only then.
//! - [`table`]: what a fork family shares about its connections, and shows to the adapter.
//! - [`rendezvous`]: what the library and the adapter say to each other.
//! - [`layout`]: the shared words of a channel and of the boards between two processes.
//! - [`offload`]: what an adapter with a TCP engine shows its clients.
//! - [`opening`]: what the library says first on a carrier to that engine.
//! - [`patience`]: how long a program waits for a silent remote of that engine's.
//! - [`memfd`]: making, verifying and mapping the memory behind them.

pub mod channel;
pub mod doorbell;
pub mod layout;
#[cfg(not(loom))]
pub mod memfd;
#[cfg(not(loom))]
pub mod offload;
#[cfg(not(loom))]
pub mod opening;
#[cfg(not(loom))]
pub mod patience;
pub mod rendezvous;
pub mod ring;
pub mod sync;
pub mod table;
