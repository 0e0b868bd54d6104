//! The number of times that each call came to the door, for tests.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// By the call's number.
pub(crate) type Counts = [AtomicU64; COUNTS_LEN];
/// Calls with this number or higher are not counted.
pub(crate) const COUNTS_LEN: usize = 512;

/// The counts, which the launcher reads.
pub(crate) static COUNTS: Counts = [const { AtomicU64::new(0) }; COUNTS_LEN];

/// Set when the counts are wanted: counting takes longer than the rest of the door, and concurrent
/// threads slow each other down.
static ARE_COUNTED: AtomicBool = AtomicBool::new(false);

/// Calls are counted from now on.
pub(crate) fn begin() {
    ARE_COUNTED.store(true, Ordering::Relaxed); // No memory depends on it, here and below.
}

pub(super) fn count(number: isize) {
    if !ARE_COUNTED.load(Ordering::Relaxed) {
        return;
    }
    if let Some(counter) = COUNTS.get(number as usize) {
        counter.fetch_add(1, Ordering::Relaxed); // A statistic.
    }
}
