//! The part of express's state that is read without its lock, and changes only under it: the
//! listener that parked carriers serve, the listener's queues, and whether a parked carrier has
//! ended.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use toehold_channel::express::{ENTRIES_MAX, Event};

use crate::memory::pairs::Pair;
use crate::process::table;

/// The descriptor of the listener that parked carriers serve, plus one; 0 for none.
pub(super) static FD: AtomicI32 = AtomicI32::new(0);
pub(super) static BACKLOG: AtomicU32 = AtomicU32::new(0);
/// The registration of that listener.
pub(super) static REGISTRATION: AtomicU32 = AtomicU32::new(0);
/// The epoll instance of that listener.
pub(super) static INSTANCE: AtomicU32 = AtomicU32::new(0);
/// This process has had a listener that it uses in a way that the library cannot answer.
pub(super) static IS_OVER: AtomicBool = AtomicBool::new(false);

/// The most peer processes that can have waiting connections at a time.
pub(super) const PAIRS_MAX: usize = 64;
/// The most connections of all peers that can wait at a time.
pub(super) const WAITING_MAX: usize = PAIRS_MAX * ENTRIES_MAX;
pub(super) static PAIRS: [AtomicPtr<Pair>; PAIRS_MAX] =
    [const { AtomicPtr::new(null_mut()) }; PAIRS_MAX];
pub(super) static COUNT: AtomicU32 = AtomicU32::new(0);
/// The queue that is asked first.
pub(super) static ROUND: AtomicU32 = AtomicU32::new(0);

/// A connection that was taken out of a queue, but for which there was no free descriptor: its
/// pair, and its slot (upper half) and turn (lower half).
pub(super) static KEPT: (AtomicPtr<Pair>, AtomicU64) =
    (AtomicPtr::new(null_mut()), AtomicU64::new(0));
/// Registration of the carrier that was parked last.
pub(super) static LAST_PARKED: AtomicU32 = AtomicU32::new(0);

/// A parked carrier's other end has ended.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);
/// Every connection is to become a carrier.
static ALL: AtomicBool = AtomicBool::new(false);

/// True when `fd` is the listener that parked carriers serve.
#[inline]
pub(crate) fn is_served(fd: i32) -> bool {
    FD.load(Ordering::Relaxed) == fd.wrapping_add(1) && fd >= 0
}

/// The peers that have a queue.
pub(super) fn pairs() -> &'static [AtomicPtr<Pair>] {
    &PAIRS[..(COUNT.load(Ordering::Relaxed) as usize).min(PAIRS_MAX)]
}

/// True when a peer has a queue.
pub(super) fn is_announced(pair: &Pair) -> bool {
    pairs()
        .iter()
        .any(|known| core::ptr::eq(known.load(Ordering::Relaxed), pair))
}

/// No channel uses the pair, and it is about to be unmapped.
pub(crate) fn forget_pair(pair: &Pair) {
    let count = COUNT.load(Ordering::Relaxed) as usize;
    let is_it = |known: &AtomicPtr<Pair>| core::ptr::eq(known.load(Ordering::Relaxed), pair);
    if let Some(place) = pairs().iter().position(is_it) {
        let last = PAIRS[count - 1].load(Ordering::Relaxed);
        PAIRS[place].store(last, Ordering::Relaxed);
        COUNT.store(count as u32 - 1, Ordering::Relaxed);
    }
    if is_it(&KEPT.0) {
        KEPT.0.store(null_mut(), Ordering::Relaxed);
    }
}

/// False when no peer has a queue, so that no connection waits for `accept`.
pub(super) fn has_queue() -> bool {
    COUNT.load(Ordering::Relaxed) != 0 || !KEPT.0.load(Ordering::Relaxed).is_null()
}

/// True when a connection waits for `accept`.
pub(crate) fn has_any() -> bool {
    let is_kept = !KEPT.0.load(Ordering::Relaxed).is_null();
    is_kept
        || pairs().iter().any(|pair| {
            // SAFETY: places of the pair table are never released, and pairs leave this list before
            // they are unmapped.
            let pair = unsafe { pair.load(Ordering::Relaxed).as_ref() };
            pair.is_some_and(|pair| pair.acceptable().waiting().is_ok_and(|waiting| waiting > 0))
        })
}

/// Registration of the carrier that was parked last.
pub(crate) fn last_parked() -> u32 {
    LAST_PARKED.load(Ordering::Relaxed)
}

/// Records that the end of a parked carrier was seen: the carrier must be retired.
pub(crate) fn note_end() {
    HAS_ENDED.store(true, Ordering::Relaxed);
}

/// True when [`note_end`] was called.
#[inline]
pub(crate) fn has_ended() -> bool {
    HAS_ENDED.load(Ordering::Relaxed)
}

/// As [`has_ended`], and clears the mark.
pub(super) fn take_ended() -> bool {
    HAS_ENDED.swap(false, Ordering::Relaxed)
}

/// Makes every connection a seed, even after seeds have failed.
pub(super) fn choose_all() {
    ALL.store(true, Ordering::Relaxed);
}

/// True when [`choose_all`] was called.
pub(super) fn are_all_chosen() -> bool {
    ALL.load(Ordering::Relaxed)
}

/// Counts for the operator.
pub(super) fn count(event: Event) {
    count_more(event, 1);
}

/// As [`count`], for `count` events at once.
pub(super) fn count_more(event: Event, count: u64) {
    if let Some(table) = table::table() {
        table.header().express.add(event, count);
    }
}

/// Returns `is_so`; if it is false, counts the reason `otherwise`.
pub(super) fn holds(is_so: bool, otherwise: Event) -> bool {
    if !is_so {
        count(otherwise);
    }
    is_so
}
