//! Spinning: [`toehold_stream::spin`] keeps the history of each place that waits; this file adds
//! the clock, the processor and the program's wait mode.

use toehold_stream::spin::{self, Processor};

use crate::process;
use crate::system::sys;

pub(crate) use toehold_stream::spin::{ENDLESS_NS, History as SpinHistory};

/// Time between two questions to the kernel while a thread spins in poll mode.
const KERNEL_LOOK_NS: u64 = 20_000;

/// The processor of this thread, and how it yields.
struct ThisProcessor<F>(F);

impl<F: Fn()> Processor for ThisProcessor<F> {
    #[inline]
    fn now_ns(&self) -> u64 {
        sys::now_ns()
    }

    #[inline]
    fn give_away(&self) {
        (self.0)();
    }
}

/// The time to spin now; [`ENDLESS_NS`] in poll mode.
#[inline]
pub(crate) fn budget_ns(history: &SpinHistory) -> u64 {
    history.budget_ns(process::wait_mode())
}

/// The time to spin with this budget before the kernel is asked, or before the thread sleeps.
///
/// Three places have a loop around this: `poll`, `epoll_wait` and blocking transfers
/// ([`crate::transfer::spinning`]). They share only this function and [`spin`], because they
/// differ:
///
/// - The kernel is asked for a carrier's events, for ordinary descriptors of the caller's array, or
///   for an instance's ordinary members, and each answer goes to another place.
/// - A signal handler always ends `poll` and `epoll_wait`, but a transfer only if the handler was
///   installed without `SA_RESTART`.
/// - The time-out of `poll` and `epoll_wait` shortens a slice. The time-out of a transfer is a
///   socket option, which is read only after the first slice.
/// - A transfer sleeps outside of its loop, and asks for its budget once. The others sleep inside
///   their loops, and ask again after each sleep.
#[inline]
pub(crate) fn slice_ns(budget_ns: u64) -> u64 {
    match budget_ns {
        ENDLESS_NS => KERNEL_LOOK_NS,
        budget_ns => budget_ns,
    }
}

/// Calls `look` until it finds something or the budget is used up; true when it found something.
/// `peer_processor` is the processor on which the peer last waited, plus one, or 0.
#[inline]
pub(crate) fn spin(
    history: &SpinHistory,
    budget_ns: u64,
    peer_processor: u32,
    look: impl FnMut() -> bool,
) -> bool {
    spin_yielding(history, budget_ns, peer_processor, look, sys::yield_now)
}

/// As [`spin`]; `give_away` yields.
#[inline]
pub(crate) fn spin_yielding(
    history: &SpinHistory,
    budget_ns: u64,
    peer_processor: u32,
    look: impl FnMut() -> bool,
    give_away: impl Fn(),
) -> bool {
    let is_shared = || peer_processor != 0 && peer_processor == sys::processor() + 1;
    spin::spin(
        history,
        budget_ns,
        is_shared,
        &ThisProcessor(give_away),
        look,
    )
}
