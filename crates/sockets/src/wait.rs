//! Waiting: look at shared memory for as long as that has recently paid, then sleep in the kernel.
//!
//! A wake-up from the kernel costs 3 to 50 us; spinning costs a core. So each place that waits keeps a short history:
//! a spin that found something, or a sleep so short that a spin would have, raises its level; a long sleep lowers it. At level 0 it does
//! not spin at all, so an idle program costs nothing. On a crowded processor, or when the peer runs on this very one, the spin gives the
//! processor away between looks instead of pausing.

use core::sync::atomic::{AtomicU32, Ordering};

use toehold_channel::table::WaitMode;

use crate::{state, sys};

/// Spin budgets by level, in nanoseconds.
const BUDGET_NS: [u64; 5] = [0, 4_000, 12_000, 30_000, 60_000];
/// A sleep shorter than this would have been better spent spinning.
const SHORT_SLEEP_NS: u64 = 120_000;
/// Pause this long before giving the processor away between looks.
const PAUSE_NS: u64 = 20_000;
/// A yield that took longer than this let somebody else run.
const CROWDED_NS: u64 = 3_000;
/// However much of it others used, a spin ends after this long beyond its budget.
const GIVEN_NS_MAX: u64 = 500_000;
/// How often a spinner in poll mode looks at the kernel, too.
pub(crate) const KERNEL_LOOK_NS: u64 = 20_000;
/// Looks per reading of the clock.
const LOOKS: u32 = 8;

/// What waiting has recently cost at one place. All zeroes is a fresh one.
#[derive(Default)]
pub(crate) struct SpinHistory {
    /// Index into [`BUDGET_NS`].
    level: AtomicU32,
    /// 1 when others recently wanted this processor.
    crowded: AtomicU32,
}

impl SpinHistory {
    pub(crate) fn reset(&self) {
        self.level.store(3, Ordering::Relaxed);
        self.crowded.store(0, Ordering::Relaxed);
    }

    /// How long to spin now; `u64::MAX` in poll mode.
    #[inline]
    pub(crate) fn budget_ns(&self) -> u64 {
        match state::wait_mode() {
            WaitMode::Poll => u64::MAX,
            WaitMode::Event => 0,
            WaitMode::Adaptive => {
                BUDGET_NS[(self.level.load(Ordering::Relaxed) as usize).min(BUDGET_NS.len() - 1)]
            }
        }
    }

    /// A spin found something.
    #[inline]
    pub(crate) fn paid(&self) {
        let level = self.level.load(Ordering::Relaxed);
        if level + 1 < BUDGET_NS.len() as u32 {
            self.level.store(level + 1, Ordering::Relaxed);
        }
    }

    /// A sleep ended after `slept_ns`.
    pub(crate) fn slept(&self, slept_ns: u64) {
        let level = self.level.load(Ordering::Relaxed);
        if slept_ns < SHORT_SLEEP_NS {
            self.paid();
        } else if level > 0 {
            self.level.store(level - 1, Ordering::Relaxed);
        }
    }
}

/// Calls `look` until it finds something or the budget is used up; true when it found something.
/// `peer_processor` is where the peer last waited, plus one, or 0.
#[inline]
pub(crate) fn spin(
    history: &SpinHistory,
    budget_ns: u64,
    peer_processor: u32,
    mut look: impl FnMut() -> bool,
) -> bool {
    if budget_ns == 0 {
        return false;
    }
    for _ in 0..LOOKS {
        if look() {
            return true;
        }
        core::hint::spin_loop();
    }
    let start = sys::now_ns();
    let mut now = start;
    let mut given = 0;
    let shared = peer_processor != 0 && peer_processor == sys::processor() + 1;
    let mut give_way = shared || history.crowded.load(Ordering::Relaxed) != 0;
    loop {
        if give_way {
            sys::yield_now();
            let after = sys::now_ns();
            let crowded = after - now > CROWDED_NS;
            history.crowded.store(crowded.into(), Ordering::Relaxed);
            if crowded {
                // Others put that time to use: it was not spent by us.
                given += after - now;
            }
            now = after;
            if look() {
                return true;
            }
        } else {
            for _ in 0..LOOKS {
                if look() {
                    return true;
                }
                core::hint::spin_loop();
            }
            now = sys::now_ns();
        }
        if now - start - given >= budget_ns || now - start >= budget_ns.saturating_add(GIVEN_NS_MAX)
        {
            return false;
        }
        give_way = give_way || now - start > PAUSE_NS;
    }
}
