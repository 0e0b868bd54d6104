//! Socket semantics over a carrier with a channel beside it.
//!
//! Every descriptor stays a kernel socket (the *carrier*). Beside it, this crate keeps the state
//! that it needs to move the bytes through shared memory and still behave as the kernel would.
//! [`api`] has one function for each libc call, with the contract of that call.
//!
//! From above to below:
//!
//! - [`api`]: the calls; a call on a descriptor that is not ours goes on to libc;
//! - `transfer`: bytes: carrier, ring, and the switches between them;
//! - `waiting`: `poll` and `select`, readiness; whether to spin or to sleep;
//! - `epoll`: instances with accelerated members; `uring`: requests of io_uring;
//! - `express`: carriers that serve one connection after another;
//! - `offload`: connections that the adapter's TCP engine carries;
//! - `direction`: the two directions: credit, up and down, notices to the peer;
//! - `pairing`: how a connection gets its channel, and gives it up again;
//! - `adapter`: messages to and from the adapter;
//! - `connection`: the state of a connection, from its first call to its last close;
//! - `process`: this process, its descriptors and its fork family; exec; leaving a program;
//! - `memory`: tables that grow, and mappings that are shared with peers;
//! - `lock`: locks of a fork family, and of this process alone;
//! - [`system`]: libc's functions, system calls, `errno`, bad pointers, signals.
//!
//! The docs of each module list its files.
//!
//! This crate runs inside other people's programs: it uses no heap on any path, no thread and no
//! signal of its own, and leaves errno untouched on success.

#![cfg_attr(not(test), no_std)]
#![allow(clippy::collapsible_if)]

mod adapter;
pub mod api;
mod connection;
mod direction;
mod epoll;
mod express;
mod lock;
mod memory;
mod offload;
mod pairing;
mod process;
pub mod system;
mod transfer;
mod uring;
mod waiting;

pub use adapter::{set_runtime_directory, trust_adapter_of};
pub use express::want_express;
pub use offload::liveness::send_liveness_settings;
pub use offload::routing::{want_offload, want_offload_by_rule};
pub use pairing::set_calls_before_pairing;
pub use process::confinement::{
    before_exec_with_kept_bytes, begin_vfork, confine, end_vfork, has_filters, is_allowed,
    is_confined, is_traced, leave_connecting_to_kernel, leave_to_namespaces,
    leave_to_own_descriptors, leave_without_descriptors, may_confine,
};
pub use process::handover::{
    Departure, before_exec, before_spawn, before_vfork, exec_failed, holds_connections,
    share_sockets, take_over_from,
};
pub use process::is_started;
pub use process::lifecycle::{
    after_fork_in_child, after_fork_in_parent, before_fork, ending, start,
};
