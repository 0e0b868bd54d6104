//! How many descriptors the adapter may have, and for what.
//!
//! A client needs two, a pair of processes one, each eight of its channels one, and each connection
//! of an engine one for its carrier. Channels and carriers come by the thousand, carriers also
//! because remotes connect. Each kind has its part, so that the adapter still answers its programs.

use rustix::process::{Resource, getrlimit, setrlimit};

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
