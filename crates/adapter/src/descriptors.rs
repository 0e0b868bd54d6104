//! How many descriptors the adapter may have, and for what.
//!
//! A client needs two, its table one more with the system adapter, a pair of processes one, each
//! eight of its channels one, and each connection of an engine one for its carrier. Channels and
//! carriers come by the thousand, carriers also because remotes connect. Each kind has its part, so
//! that the adapter still answers its programs.

use rustix::fs::fcntl_get_seals;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::os::fd::BorrowedFd;

/// Whether `close` of a descriptor from elsewhere asks nobody, so that it does not wait, or only as
/// long as no signal comes: a socket, or a file in memory. Neither question reaches the file's
/// owner.
pub(crate) fn closes_at_once(descriptor: BorrowedFd<'_>) -> bool {
    crate::listener::number_of(descriptor, libc::SO_TYPE).is_ok()
        || fcntl_get_seals(descriptor).is_ok()
}

/// Takes all that the process may have.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With fewer descriptors we serve fewer clients, and say so when it comes to that.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// How many of them the memory of pairs and channels may take.
pub(crate) fn memory_max(has_engine: bool) -> usize {
    let most = most();
    if has_engine {
        most / 4
    } else {
        most - most / 4
    }
}

/// How many carriers of an engine they allow for. A program may have three quarters of them: 10,000
/// connections with 20,000 descriptors.
pub(crate) fn carriers_max() -> usize {
    most() / 10 * 7
}

fn most() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX)
}
