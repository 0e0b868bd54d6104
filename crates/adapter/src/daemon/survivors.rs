//! The search for a living process of a dead client's family: a process that the family's table
//! names and that has the table mapped.
//!
//! The client writes the numbers. A process that it names can delay the kernel's answer
//! ([`Aside`](crate::aside::Aside)), so the system adapter searches on another thread, and does not
//! wait. Until the answer is there, the ends of the dead client go on, as they would with a
//! survivor.

use crate::proc::mappings;
use crate::regions::RegionKey;
use crate::registry::ClientId;
use crate::tables::FileKey;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// One search.
#[derive(Debug)]
pub(super) struct Search {
    /// The processes, by our numbers.
    pub(super) pids: BTreeSet<u32>,
    /// The table.
    pub(super) file: FileKey,
}

impl Search {
    /// The survivor, if there is one.
    pub(super) fn run(self) -> Option<u32> {
        // The client controls the numbers, and how many mappings each process has, so the reading
        // is limited.
        let mut bytes_left = MAPPINGS_BYTES_MAX;
        let has_table = |pid: &u32| mappings::has_mapped_within(*pid, self.file, &mut bytes_left);
        self.pids.into_iter().find(has_table)
    }
}

/// The result of work on another thread.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Of a search for a dead client.
    Survivor(ClientId, Option<u32>),
    /// Pages of a region were given back.
    GaveBack(RegionKey),
}

/// Results, for the daemon's thread.
#[derive(Clone, Debug)]
pub(super) struct Found(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    found: Mutex<Vec<Outcome>>,
    /// Readable while there are results.
    event: OwnedFd,
}

impl Found {
    /// None yet.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub(super) fn new() -> io::Result<Found> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let found = Mutex::default();
        Ok(Found(Arc::new(Shared { found, event })))
    }

    pub(super) fn add(&self, outcome: Outcome) {
        let found = self.0.found.lock();
        found.unwrap_or_else(PoisonError::into_inner).push(outcome);
        // An eventfd refuses the write only at 2^64 - 2.
        let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
    }

    pub(super) fn take(&self) -> Vec<Outcome> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0.event, &mut count);
        let found = self.0.found.lock();
        std::mem::take(&mut *found.unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for Found {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

/// The most bytes of `/proc/PID/maps` that are read for one ended client: about 20,000 mappings.
const MAPPINGS_BYTES_MAX: u64 = 2 << 20;
