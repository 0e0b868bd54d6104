//! The memory that two ends of a connection share, beside a kernel socket that works without it.
//!
//! - [`ring`]: one direction: cursors, credit, checks on what the peer wrote.
//! - [`doorbell`]: waking a peer that sleeps, and only then.
//! - [`table`]: what a fork family shares about its connections, and shows to the adapter.
//! - [`layout`]: the shared words of a channel and of the ready bitmaps between two processes.
//! - [`untrusted`]: words that another process can write, and the checks that open them.
//! - [`express`]: what a carrier that serves one connection after another has in shared memory.
//! - [`sync`]: atomics and fences: the machine's own, or loom's.
//! - [`rendezvous`]: what the library and the adapter say to each other.
//! - [`offload`]: what an adapter with a TCP engine shows its clients.
//! - [`preamble`]: what the library says first on a carrier to that engine.
//! - [`liveness`]: keepalive and user timeout, for a silent remote of that engine's.
//! - [`memfd`]: making, verifying and mapping the memory behind them.
//!
//! The first seven need nothing but `core`. The others make system calls, or speak of what needs
//! them; the feature `host`, which is on unless it is refused, adds them.

#![cfg_attr(not(any(loom, test)), no_std)]

pub mod doorbell;
pub mod express;
pub mod layout;
#[cfg(all(feature = "host", not(loom)))]
pub mod liveness;
#[cfg(all(feature = "host", not(loom)))]
pub mod memfd;
#[cfg(all(feature = "host", not(loom)))]
pub mod offload;
#[cfg(all(feature = "host", not(loom)))]
pub mod preamble;
#[cfg(feature = "host")]
pub mod rendezvous;
pub mod ring;
pub mod sync;
pub mod table;
pub mod untrusted;
