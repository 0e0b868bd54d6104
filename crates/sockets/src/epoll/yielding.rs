//! A thread that always finds events yields to a peer that waits for its processor.
//!
//! A client of two servers may find events of one server for a long time. If the other server has
//! yielded to the client (sched_yield(2)), it is ready to run and needs no doorbell, but it waits
//! for the rest of the client's time slice. So a thread publishes its processor before it yields. A
//! thread that has been busy for some time looks for a peer that is on the same processor, does not
//! sleep, and has not looked at its news. Such a peer cannot be running.
//!
//! With only one peer this is not needed, because a busy thread runs out of events by itself. A
//! lying peer makes us yield once in [`BUSY_NS`], as it can make a spin yield with a false
//! processor number.

use core::sync::atomic::Ordering;

use toehold_channel::layout::ReadyBitmap;
use toehold_channel::untrusted::Word64;

use crate::epoll::instance::Epoll;
use crate::memory::pairs::Pair;
use crate::system::sys;

/// The time that a thread is busy before it yields, and before it yields again. A turn of another
/// thread costs two context switches.
const BUSY_NS: u64 = 100_000;
/// The most peers that are looked at. Each look may fetch a cache line from another processor.
const PEERS_MAX: usize = 16;
/// Only the first ready bitmap of a peer is looked at, which a program with one event loop uses. A
/// look at another one may allocate a page of the pair that is not needed.
const FIRST: u32 = 0;

impl Epoll {
    /// Yields, and first publishes to the peers on which processor this thread waits.
    pub(super) fn give_away(&self) {
        let here = sys::processor() + 1;
        for (pair, index) in self.known_pairs() {
            let Some(bitmap) = pair.ours(index) else {
                continue;
            };
            // Stored only when it changes: the peer has this line in its cache. Relaxed: a hint.
            if !bitmap.waits_on.load(Ordering::Relaxed).is(here) {
                bitmap.waits_on.store(here, Ordering::Relaxed);
            }
        }
        sys::yield_now();
        self.runs_since_ns.store(sys::now_ns(), Ordering::Relaxed);
    }

    /// Called when this thread does not sleep, at `now`. If it has been busy for long, it yields to
    /// a peer that waits for its processor.
    #[inline]
    pub(super) fn yield_to_peers(&self, now: u64) {
        let has_several = self.pair_count.load(Ordering::Relaxed) > 1;
        let busy_ns = now.saturating_sub(self.runs_since_ns.load(Ordering::Relaxed));
        if has_several && busy_ns >= BUSY_NS && self.has_peer_behind() {
            self.give_away();
        }
    }

    #[cold]
    fn has_peer_behind(&self) -> bool {
        let here = sys::processor() + 1;
        self.known_pairs().take(PEERS_MAX).any(|(pair, _)| {
            let slots = pair.slots_used.load(Ordering::Relaxed) as usize;
            pair.theirs(FIRST)
                .is_some_and(|bitmap| waits_behind(bitmap, slots, here))
        })
    }

    /// The pairs that this instance sweeps, with the index of the ready bitmap of ours.
    fn known_pairs(&self) -> impl Iterator<Item = (&'static Pair, u32)> {
        let count = self.pair_count.load(Ordering::Relaxed) as usize;
        let places = self.pairs.iter().zip(&self.bitmaps).take(count);
        places.filter_map(|(pair, index)| {
            // SAFETY: as in `sweep`.
            let pair = unsafe { pair.load(Ordering::Relaxed).as_ref() }?;
            Some((pair, index.load(Ordering::Relaxed)))
        })
    }
}

/// True when the owner of `bitmap` last yielded on processor `here` (its number plus one), and has
/// not looked at its bits since they were marked. The first `slots` bits are in use. Relaxed: all
/// of these are hints, and an unnecessary yield costs little.
fn waits_behind(bitmap: &ReadyBitmap, slots: usize, here: u32) -> bool {
    let is_here = bitmap.waits_on.load(Ordering::Relaxed).is(here);
    let is_awake = || bitmap.sleeping.load(Ordering::Relaxed).is(0);
    let mut words = bitmap.bits.iter().take(slots.div_ceil(64));
    let is_marked = |word: &Word64| !word.load(Ordering::Relaxed).is(0);
    is_here && is_awake() && words.any(is_marked)
}

#[cfg(test)]
mod tests {
    use toehold_channel::doorbell::mark;

    use super::*;

    const HERE: u32 = 3;

    fn bitmap(waits_on: u32, sleeping: u32, slot: Option<u32>) -> Box<ReadyBitmap> {
        let bitmap = Box::<ReadyBitmap>::default();
        bitmap.waits_on.store(waits_on, Ordering::Relaxed);
        bitmap.sleeping.store(sleeping, Ordering::Relaxed);
        if let Some(slot) = slot {
            mark(&bitmap, slot);
        }
        bitmap
    }

    #[test]
    fn peer_that_waits_here_with_news_is_behind_us() {
        assert!(waits_behind(&bitmap(HERE, 0, Some(0)), 1, HERE));
        assert!(waits_behind(&bitmap(HERE, 0, Some(64)), 65, HERE));
    }

    #[test]
    fn peer_that_sleeps_or_is_elsewhere_or_has_no_news_is_not() {
        assert!(!waits_behind(&bitmap(HERE, 1, Some(0)), 1, HERE));
        assert!(!waits_behind(&bitmap(HERE + 1, 0, Some(0)), 1, HERE));
        assert!(!waits_behind(&bitmap(0, 0, Some(0)), 1, HERE));
        assert!(!waits_behind(&bitmap(HERE, 0, None), 64, HERE));
    }
}
