//! The division of the adapter's limit of descriptors.
//!
//! A client needs two descriptors, and with the system adapter one more for its table. A pair of
//! processes needs one, and one for each eight of its channels. Each connection of an engine needs
//! one for its carrier. There may be thousands of channels, and thousands of carriers, because
//! remotes connect. Each kind has a limit of its own, so that the adapter can still serve its
//! programs.

use rustix::fs::fcntl_get_seals;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::os::fd::BorrowedFd;

/// Whether closing a descriptor from another process cannot block, because the file is a socket or
/// a file in memory. The check itself does not involve the file's owner.
pub(crate) fn closes_at_once(descriptor: BorrowedFd<'_>) -> bool {
    crate::listener::number_of(descriptor, libc::SO_TYPE).is_ok()
        || fcntl_get_seals(descriptor).is_ok()
}

/// Raises the limit of descriptors to the hard limit.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // On an error the limit stays. The adapter then serves fewer clients, and reports that when it
    // happens.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The number of descriptors that the memory of pairs and channels may take.
pub(crate) fn memory_max(has_engine: bool) -> usize {
    let most = most();
    if has_engine {
        most / 4
    } else {
        most - most / 4
    }
}

/// The most carriers of an engine by this limit. One program may have three quarters of them:
/// 10,000 connections with 20,000 descriptors.
pub(crate) fn carriers_max() -> usize {
    most() / 10 * 7
}

fn most() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX)
}
