//! Large rings, for bulk.
//!
//! What a sender has just written is *modified* in its processor's own cache, and a reader on another processor has to have it handed
//! over line by line. Bytes written longer ago than that cache is large have moved on to the shared cache by themselves, and are read
//! from there several times faster (`docs/decisions/0009-large-rings.md`). So a connection that keeps filling an ample ring gets one that is
//! larger than a processor's own cache. A few in a family at a time: many of them would not fit the shared cache either.

use core::sync::atomic::Ordering;

use toehold_channel::layout::{CAPACITY_LOG2_AMPLE, CAPACITY_LOG2_MAX};
use toehold_channel::table::{Entry, FLAG_OFFLOAD};

use crate::state;

/// Large rings of one family: 32 MB, what processors of today share among a few cores.
const LARGE_RINGS_MAX: u32 = 8;

/// The ring was found full: lets it grow beyond ample, if there is one left for it. The caller holds the send lock.
pub(crate) fn want(entry: &Entry) {
    let is_ample = entry.tx_capacity_log2.load(Ordering::Relaxed) == CAPACITY_LOG2_AMPLE;
    // An engine reads at its remote's pace, in place: nothing is gained there.
    let is_offloaded = entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0;
    if is_ample && !is_offloaded && entry.tx_capacity_max_log2.load(Ordering::Relaxed) == 0 {
        take(entry);
    }
}

#[cold]
fn take(entry: &Entry) {
    let Some(table) = state::table() else { return };
    let large_rings = &table.header().large_rings;
    let one_more = |count| (count < LARGE_RINGS_MAX).then_some(count + 1);
    let taken = large_rings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
    if taken.is_ok() {
        entry
            .tx_capacity_max_log2
            .store(CAPACITY_LOG2_MAX, Ordering::Relaxed);
    }
}

/// The connection has no ring any more.
pub(crate) fn give_back(entry: &Entry) {
    if entry.tx_capacity_max_log2.swap(0, Ordering::Relaxed) != 0 {
        if let Some(table) = state::table() {
            table.header().large_rings.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
