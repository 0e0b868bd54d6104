//! The adapter: introduces peers, decides policy, keeps the books.
//!
//! - [`registry`]: its core, which decides and does no I/O.
//! - [`runtime_dir`]: where it and its clients meet.

pub mod registry;
pub mod runtime_dir;
mod slots;
