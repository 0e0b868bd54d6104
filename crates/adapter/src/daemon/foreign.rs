//! The system adapter does not close files of clients that are neither sockets nor memory.
//!
//! `close` of a file on FUSE waits until the program that serves the file answers, and that program
//! may be the client. No signal ends that wait, not even `SIGKILL`. The library sends no such file.
//! So a client that sends one is dropped, and the descriptor stays open until the adapter ends.
//! Clients of a user with [`KEPT_PER_USER_MAX`] such files are not served any more.

use crate::descriptors::closes_at_once;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};

/// Number of descriptors that stay open for each user.
#[derive(Debug, Default)]
pub(super) struct Foreign(BTreeMap<u32, usize>);

impl Foreign {
    /// Closes descriptors that a user's client has sent, except those whose `close` might block.
    /// False if there are such.
    pub(super) fn dispose(&mut self, uid: u32, descriptors: Vec<OwnedFd>) -> bool {
        let mut is_ordinary = true;
        for descriptor in descriptors {
            if !closes_at_once(descriptor.as_fd()) {
                let _ = descriptor.into_raw_fd();
                *self.0.entry(uid).or_default() += 1;
                is_ordinary = false;
            }
        }
        is_ordinary
    }

    /// Whether a user has sent too many. Root never has: only a process that was root before can
    /// count for root.
    pub(super) fn is_full(&self, uid: u32) -> bool {
        let kept = self.0.get(&uid).filter(|_| uid != 0);
        kept.is_some_and(|&kept| kept >= KEPT_PER_USER_MAX)
    }
}

const KEPT_PER_USER_MAX: usize = 4;
