//! The adapter: introduces peers to each other, decides by policy, and keeps the state of
//! connections.
//!
//! - [`daemon`]: the process, one thread around an epoll loop.
//! - [`engine`]: the offload path: our TCP implementation on its own link.
//! - [`registry`]: its core, which decides and does no I/O; `pressure`: which regions to take back.
//! - `proof`, `facts`: proofs by sockets that clients show, and facts that only the kernel knows.
//! - `tables`, `regions`, `slots`: memory that it reads, memory that it makes, slots of a pair.
//! - [`client`]: requests of the command line.
//! - [`rules`]: the operator's rules about connections; `operator_file`: reads a file of them, or
//!   of settings.
//! - [`runtime_dir`], `listener`: the directory in which clients find it; its lock and its socket
//!   there.
//! - [`memfd`]: shared memory files with the types of `std`.
//! - `status`, [`unserved`]: the state of programs, with and without an adapter.
//! - `unseen`: code in programs that makes socket calls past the library.
//! - [`services`]: which processes of systemd's services have the library.
//! - [`wire`]: one message and its descriptors, each way.
//! - `diag`, `attributes`, `firewall`, `shaping`: the kernel's answers about sockets, messages of
//!   netlink, rules of the firewall, traffic control.
//! - `aside`: threads for questions about processes that may delay the answers.
//! - `descriptors`, `proc`, `entropy`, `epoll`, `printable`: how many descriptors it may have,
//!   `/proc`, random bits, epoll(7), text of other users.

// Only the log prints, because it limits the rate.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

mod aside;
mod attributes;
pub mod client;
pub mod daemon;
mod descriptors;
mod diag;
pub mod engine;
mod entropy;
mod epoll;
mod facts;
mod firewall;
mod listener;
pub mod memfd;
mod operator_file;
mod pressure;
mod printable;
mod proc;
mod proof;
mod regions;
pub mod registry;
pub mod rules;
pub mod runtime_dir;
pub mod services;
mod shaping;
mod slots;
mod status;
mod tables;
mod unseen;
pub mod unserved;
pub mod wire;

pub use printable::printable;
