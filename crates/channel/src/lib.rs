//! The memory that the two ends of a connection share. The kernel socket beside it works without
//! it.
//!
//! - [`ring`]: one direction: cursors, credit, checks on what the peer wrote.
//! - [`doorbell`]: waking a peer that sleeps, and only then.
//! - [`table`]: what a fork family shares about its connections, and shows to the adapter.
//! - [`layout`]: the shared words of a channel and of the ready bitmaps between two processes.
//! - [`untrusted`]: words that another process can write, and the checks that open them.
//! - [`express`]: shared memory of a carrier that serves several connections, one after another.
//! - [`sync`]: atomics and fences: the machine's own, or loom's.
//! - [`rendezvous`]: the messages between the library and the adapter.
//! - [`offload`]: the page that an adapter with a TCP engine shows to its clients.
//! - [`preamble`]: the first bytes that the library sends on a carrier to that engine.
//! - [`liveness`]: keepalive and user timeout, for a silent remote of that engine's.
//! - [`memfd`]: making, verifying and mapping the memory behind them.
//!
//! The first seven modules need nothing but `core`. The others make system calls, or describe
//! things that need system calls; the feature `host`, which is on by default, adds them.

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
