//! Socket semantics over a carrier with a channel beside it.
//!
//! Every descriptor stays a kernel socket (the *carrier*). This crate keeps, beside it, what is
//! needed to move its bytes through shared memory and still behave as the kernel would: [`api`] has
//! one function for each libc call, with its contract.
//!
//! ```text
//!   api ─► descriptors, connection, tracking, closing    which descriptors are ours
//!       ─► process, lifecycle, table, family, holders    this process and its fork family
//!       ─► fast_path                   short messages where nothing changes
//!       ─► receive, send, transfer     bytes: carrier, ring, and the switches between
//!       ─► direction, service          our direction: credit, up and down
//!       ─► notice                      telling the peer of news
//!       ─► lock, takeover              locks of a fork family, and what heirs of one repair
//!       ─► carrier, unix             TCP and Unix sockets, and how they differ
//!       ─► ahead, peek_offset          looking at bytes without taking them
//!       ─► overflow                    when a ring is too small
//!       ─► doorbells, pending          bytes on the carrier that are no data; errors
//!       ─► express   carriers that serve one connection after another
//!       ─► offload   connections that the adapter's TCP engine carries
//!       ─► poll, epoll, ready          readiness
//!       ─► wait, sleep, sleepers, arming     spin or sleep
//!       ─► cancellation                what a thread takes back that is cancelled in its sleep
//!       ─► waits                       whether we see how the program waits
//!       ─► pairing, offers, pairs, adapter, namespace    how a connection comes by its channel
//!       ─► leaving, attention          how it gives it up again
//!       ─► release, handover           how it ends, or goes on in another program
//! ```
//!
//! It lives inside other people's programs: no heap on any path, no thread, no signal of its own,
//! errno untouched on success.

#![cfg_attr(not(test), no_std)]
#![allow(clippy::collapsible_if)]

mod adapter;
mod ahead;
pub mod api;
mod arming;
mod attention;
mod buffers;
mod cancellation;
mod carrier;
mod chunks;
mod closing;
mod confinement;
mod connection;
mod control_messages;
mod counts;
pub mod deferral;
mod descriptors;
mod direction;
mod doorbells;
mod epoll;
mod errno;
mod express;
mod family;
mod fast_path;
pub mod faults;
mod going_on;
mod handover;
mod holders;
mod kept;
mod kernel_waits;
mod leaving;
mod lifecycle;
mod lock;
mod locking;
mod looking;
mod mutex;
mod namespace;
mod notice;
mod offers;
mod offload;
mod options;
mod orderings;
mod overflow;
mod pairing;
mod pairs;
mod peek_offset;
mod pending;
mod poll;
mod process;
mod ready;
pub mod real;
mod receive;
mod release;
mod resend;
mod resets;
mod send;
mod service;
mod settings;
mod showing;
mod slabs;
mod sleep;
mod sleepers;
mod sys;
mod table;
mod table_room;
mod takeover;
mod tracking;
mod transfer;
mod unix;
mod uring;
mod wait;
mod waits;

pub use adapter::{set_runtime_directory, trust_adapter_of};
pub use confinement::{
    confine, is_allowed, is_confined, leave_network_namespace, leave_to_namespaces,
};
pub use express::want_express;
pub use handover::{
    Departure, before_exec, before_spawn, before_vfork, exec_failed, holds_connections,
    share_sockets, take_over_from,
};
pub use lifecycle::{after_fork_in_child, after_fork_in_parent, before_fork, ending, start};
pub use offload::liveness::say_what_is_set;
pub use offload::routing::{want_offload, want_offload_by_rule};
pub use pairing::set_calls_before_pairing;
pub use process::is_started;
