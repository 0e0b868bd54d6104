//! The copy engine: asynchronous memory copies, and copies of memory that others may be writing.
//!
//! Three layers, each usable by itself:
//!
//! - [`from_shared`] and [`to_shared`] copy now, without forming a reference to memory that a peer
//!   may be writing.
//! - [`Channel::submit`] hands an [`Operation`] to an engine and returns a [`Cookie`]. It is
//!   unsafe: the caller keeps the memory alive.
//! - [`Channel::scope`] is safe: memory is lent to a scope, which does not end before the copies
//!   do.
//!
//! An engine is a [`Backend`]. [`open`] chooses one by name, or by what [`Calibration`] measured.
//!
//! ```text
//!   submit ──> ledger ──> held (fence, full queue) ──> backend ──> engine
//!                 ^                                       │
//!   watermark <───┴── processor finishes what is left <───┘ outcome
//! ```
//!
//! - `operation`, `cookie`: a piece of work, and its name; `channel`, `ledger`, `scope`, `wait`:
//!   from its submission to its end; `error`: how that goes wrong.
//! - `backend`, `open`: the interface of an engine, and its choice. The engines: `cpu`, `worker`,
//!   `auto`, [`dsa`], `dmadev`, and `fault` for tests.
//! - `buffer`, `fork`: memory that devices may use, and forks of its owner.
//! - `calibration`, `residency`: the cost of copying here, and whether memory is in a cache.
//! - `nontemporal`, `crc32c`: copies past the cache, and with a checksum.
//! - `capi`: the interface for C; `sync`: atomics, from one place.
//!
//! The crate's README describes the strengths, the weaknesses and the limits of each engine.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

mod backend;
mod channel;
mod cookie;
mod cpu;
mod crc32c;
mod error;
mod fault;
mod ledger;
mod nontemporal;
mod operation;
mod residency;
mod scope;
mod wait;

#[cfg(feature = "std")]
mod auto;
#[cfg(feature = "std")]
mod buffer;
#[cfg(feature = "std")]
mod calibration;
#[cfg(feature = "capi")]
pub mod capi;
#[cfg(feature = "dmadev")]
mod dmadev;
#[cfg(feature = "std")]
pub mod dsa;
#[cfg(feature = "std")]
mod fork;
#[cfg(feature = "std")]
mod open;
#[cfg(feature = "std")]
mod sync;
#[cfg(feature = "std")]
mod worker;

pub use backend::{Backend, Outcome, Refused};
pub use channel::{Channel, Counters, Recovery};
pub use cookie::Cookie;
pub use cpu::Cpu;
pub use crc32c::crc32c;
pub use error::{Fault, SubmitError, TimedOut};
pub use fault::{Faulty, InjectedFaults};
pub use ledger::Status;
pub use nontemporal::{CpuNt, NT_BYTES_MIN, copy_nontemporal};
pub use operation::{Flags, Kind, Operation};
pub use residency::{copy_by_residency, evict};
pub use scope::{Scope, Ticket};
pub use toehold_freestanding::{from_shared, prefetch, to_shared};
pub use wait::Waiting;

#[cfg(feature = "std")]
pub use auto::Auto;
#[cfg(feature = "std")]
pub use buffer::Buffer;
#[cfg(feature = "std")]
pub use calibration::{
    Calibration, Copybreak, Direction, Jobs, Override, OverrideError, Point, calibration_report,
};
#[cfg(feature = "dmadev")]
pub use dmadev::Dmadev;
#[cfg(feature = "std")]
pub use open::{Opened, names, open, reason_missing};
#[cfg(feature = "std")]
pub use worker::{Worker, WorkerOptions};
