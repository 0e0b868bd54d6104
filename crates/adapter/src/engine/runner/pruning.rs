//! Makes room when the budget is used up: discards bytes that have arrived ahead of a gap.
//!
//! Such bytes count by the memory that they occupy, which is the connection's whole ring, not by
//! their number: a remote chooses their places, and one byte in each page occupies the whole ring.
//! Discarding is legal, because the remote sends all bytes again that were not acknowledged
//! cumulatively (RFC 2018 section 8). Linux does the same (`tcp_prune_ofo_queue`).
//!
//! Rings with few early bytes come first. Other rings follow only when new connections would find
//! no room. Bytes in order are acknowledged and stay. No program loses early bytes for a program
//! that holds more memory.

use std::collections::BTreeSet;
use std::time::Instant as Clock;

use super::Runner;
use crate::engine::rings::{Program, Rings};

/// A ring with less than this part of it filled by early bytes is wasted.
const FILLED_PART_MIN: u64 = 4;
/// A search may take at most this fraction (one part in `TIME_PARTS`) of the time since the last
/// search.
const TIME_PARTS: u32 = 8;

/// When and where the search for early bytes goes on.
#[derive(Debug, Default)]
pub(super) struct Pruning {
    not_before: Option<Clock>,
    /// The slot where the next search begins.
    next: usize,
    /// Connections whose early bytes were discarded.
    pub(super) pruned: u64,
}

/// Which early bytes are discarded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PruneScope {
    /// Early bytes that fill a small part of their ring.
    Wasteful,
    All,
}

impl Runner {
    /// Makes room for programs whose share is full.
    pub(super) fn prune(&mut self) {
        let programs = self.streams.rings().take_wanting();
        if !programs.is_empty() {
            self.find_early(programs);
        }
    }

    #[cold]
    fn find_early(&mut self, programs: BTreeSet<Program>) {
        let began = Clock::now();
        if self.pruning.not_before.is_some_and(|at| began < at) {
            return;
        }
        for program in programs {
            self.prune_until(program, PruneScope::Wasteful, |rings| {
                rings.is_ample(program)
            });
            self.prune_until(program, PruneScope::All, |rings| !rings.is_scarce(program));
        }
        self.pruning.not_before = Some(Clock::now() + began.elapsed() * TIME_PARTS);
    }

    fn prune_until(
        &mut self,
        program: Program,
        which: PruneScope,
        is_enough: impl Fn(&Rings) -> bool,
    ) {
        let count = self.flows.len();
        for _ in 0..count {
            if is_enough(self.streams.rings()) {
                return;
            }
            let slot = self.pruning.next % count;
            self.pruning.next = slot + 1;
            self.prune_one(slot, program, which);
        }
    }

    fn prune_one(&mut self, slot: usize, program: Program, which: PruneScope) {
        let Some(flow) = self.flows[slot].as_ref() else {
            return;
        };
        let (id, holder) = (flow.id, Some(flow.holder.client));
        if !self.streams.rings().holds_as_much(holder, program) {
            return;
        }
        let early_bytes = self.engine.early_bytes(id);
        let ring_bytes = self.streams.receiving_bytes(id) as u64;
        let is_wasteful = early_bytes * FILLED_PART_MIN < ring_bytes;
        if early_bytes == 0 || ring_bytes == 0 || which == PruneScope::Wasteful && !is_wasteful {
            return;
        }
        let Some(info) = self.engine.info(id) else {
            return;
        };
        if self.engine.discard_early(id).is_ok() {
            self.streams.discard_early(id, info.received);
            self.pruning.pruned += 1;
        }
    }
}
