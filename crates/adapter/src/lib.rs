//! The adapter: introduces peers, decides policy, keeps the books.
//!
//! - [`daemon`]: the process, one thread around an epoll loop.
//! - [`engine`]: the offload path: a TCP of our own on a link of its own.
//! - [`registry`]: its core, which decides and does no I/O.
//! - [`client`]: what the command line asks of it.
//! - [`rules`]: what the operator wants of which connections.
//! - [`runtime_dir`]: where it and its clients meet.
//! - [`memfd`]: shared memory files with the types of `std`.
//! - [`unserved`]: what programs' tables say where no adapter does.
//! - [`services`]: which processes of systemd's services have the library.
//! - [`wire`]: one message and its descriptors, each way.

// The log alone speaks: it limits how often.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

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
mod pressure;
mod printable;
mod proc;
mod proof;
mod regions;
pub mod registry;
pub mod rules;
pub mod runtime_dir;
pub mod services;
mod slots;
mod status;
mod tables;
pub mod unserved;
pub mod wire;

pub use printable::printable;
