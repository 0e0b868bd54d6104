//! The adapter: introduces peers, decides policy, keeps the books.

pub mod runtime_dir;
