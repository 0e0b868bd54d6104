//! Waiting: the history of each place that waits is [`toehold_stream::spin`]'s; the clock, the
//! processor and the program's choice of a mode are ours.

use toehold_stream::spin::{self, Processor};

use crate::{process, sys};

pub(crate) use toehold_stream::spin::History as SpinHistory;

/// How often a spinner in poll mode looks at the kernel, too.
pub(crate) const KERNEL_LOOK_NS: u64 = 20_000;

struct ThisProcessor;

impl Processor for ThisProcessor {
    #[inline]
    fn now_ns(&self) -> u64 {
        sys::now_ns()
    }

    #[inline]
    fn give_away(&self) {
        sys::yield_now();
    }
}

/// How long to spin now; `u64::MAX` in poll mode.
#[inline]
pub(crate) fn budget_ns(history: &SpinHistory) -> u64 {
    history.budget_ns(process::wait_mode())
}

/// Calls `look` until it finds something or the budget is used up; true when it found something.
/// `peer_processor` is where the peer last waited, plus one, or 0.
#[inline]
pub(crate) fn spin(
    history: &SpinHistory,
    budget_ns: u64,
    peer_processor: u32,
    look: impl FnMut() -> bool,
) -> bool {
    let is_shared = || peer_processor != 0 && peer_processor == sys::processor() + 1;
    spin::spin(history, budget_ns, is_shared, &ThisProcessor, look)
}
