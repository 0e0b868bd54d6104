//! When to look at shared memory again, and when to sleep in the kernel.
//!
//! A wake-up from the kernel costs 3 to 50 us; looking costs a core. So each place that waits keeps
//! a short history. Its level rises when looking found something, or when a sleep was so short that
//! looking would have. A long sleep lowers it. At level 0 a place does not look at all, so an idle
//! program costs nothing.
//!
//! ```text
//!   look, pause ... look, pause     PAUSE_NS long, unless others want this processor
//!   look, yield ... look, yield     until the budget is used up
//! ```
//!
//! On a crowded processor, or when the peer runs on this very one, [`spin`] gives the processor
//! away from the beginning. Time that others used then does not count against the budget.

use toehold_channel::sync::{AtomicU32, Ordering, spin_hint};
use toehold_channel::table::WaitMode;

/// Spin budgets by level, in nanoseconds.
const BUDGET_NS: [u64; 5] = [0, 4_000, 12_000, 30_000, 60_000];
/// The level of a place without a history.
const LEVEL_FRESH: u32 = 3;
/// A sleep shorter than this would have been better spent looking.
const SHORT_SLEEP_NS: u64 = 120_000;
/// Pause this long before giving the processor away between looks.
const PAUSE_NS: u64 = 20_000;
/// A yield that took longer than this let somebody else run.
const CROWDED_NS: u64 = 3_000;
/// However much of it others used, a spin ends after this long beyond its budget.
const GIVEN_NS_MAX: u64 = 500_000;
/// So many sleeps in a row that the kernel's own news ended lower the level by one.
const KERNEL_NEWS: u32 = 8;
/// Looks per reading of the clock.
const LOOKS: u32 = 8;

/// The budget of a place that looks for ever ([`WaitMode::Poll`]).
pub const ENDLESS_NS: u64 = u64::MAX;

/// The processor that a thread runs on, as far as waiting needs it.
pub trait Processor {
    /// A monotonic clock in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Lets others run (sched_yield(2)).
    fn give_away(&self);
}

/// How waiting has gone recently at one place. All zeroes is a history at level 0. Threads that
/// share one may lose each other's updates, which costs a wake-up or a spin at most.
#[derive(Debug, Default)]
pub struct History {
    /// Index into [`BUDGET_NS`].
    level: AtomicU32,
    /// 1 when others recently wanted this processor.
    crowded: AtomicU32,
    /// Sleeps in a row that the kernel's own news ended.
    by_kernel: AtomicU32,
}

impl History {
    /// Forgets what was.
    pub fn reset(&self) {
        self.level.store(LEVEL_FRESH, Ordering::Relaxed);
        self.crowded.store(0, Ordering::Relaxed);
        self.by_kernel.store(0, Ordering::Relaxed);
    }

    /// How long to look now, in nanoseconds; [`ENDLESS_NS`] in poll mode.
    #[inline]
    pub fn budget_ns(&self, mode: WaitMode) -> u64 {
        match mode {
            WaitMode::Poll => ENDLESS_NS,
            WaitMode::Event => 0,
            WaitMode::Adaptive => BUDGET_NS[self.level()],
        }
    }

    /// Looking found something.
    #[inline]
    pub fn paid(&self) {
        let level = self.level();
        if level + 1 < BUDGET_NS.len() {
            self.level.store(level as u32 + 1, Ordering::Relaxed);
        }
        if self.by_kernel.load(Ordering::Relaxed) != 0 {
            self.by_kernel.store(0, Ordering::Relaxed);
        }
    }

    /// A sleep ended for what no look at shared memory would have found: news of the kernel's own.
    /// However short it was, looking would not have paid. One such sleep says little, because a
    /// place may wait for both in turns: [`KERNEL_NEWS`] of them in a row lower the level.
    pub fn slept_for_kernel(&self) {
        let by_kernel = self.by_kernel.load(Ordering::Relaxed) + 1;
        self.by_kernel
            .store(by_kernel % KERNEL_NEWS, Ordering::Relaxed);
        let level = self.level() as u32;
        if by_kernel >= KERNEL_NEWS && level > 0 {
            self.level.store(level - 1, Ordering::Relaxed);
        }
    }

    /// A sleep ended after `slept_ns`.
    pub fn slept(&self, slept_ns: u64) {
        let level = self.level();
        if slept_ns < SHORT_SLEEP_NS {
            self.paid();
        } else if level > 0 {
            self.level.store(level as u32 - 1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn level(&self) -> usize {
        (self.level.load(Ordering::Relaxed) as usize).min(BUDGET_NS.len() - 1)
    }
}

/// Calls `look` until it finds something or `budget_ns` is used up; true when it found something.
/// `is_shared` tells, when the first looks found nothing, whether the peer needs this processor.
#[inline]
pub fn spin(
    history: &History,
    budget_ns: u64,
    is_shared: impl FnOnce() -> bool,
    processor: &impl Processor,
    mut look: impl FnMut() -> bool,
) -> bool {
    if budget_ns == 0 {
        return false;
    }
    // Before the first look at the clock: most of what comes soon comes now.
    if look_repeatedly(&mut look) {
        return true;
    }
    let gives_away = is_shared() || history.crowded.load(Ordering::Relaxed) != 0;
    spin_by_clock(history, budget_ns, gives_away, processor, look)
}

/// As [`spin`], for looks that are not cheap and a peer that needs this processor: gives it away
/// before each look.
pub fn spin_giving_away(
    history: &History,
    budget_ns: u64,
    processor: &impl Processor,
    look: impl FnMut() -> bool,
) -> bool {
    budget_ns != 0 && spin_by_clock(history, budget_ns, true, processor, look)
}

fn spin_by_clock(
    history: &History,
    budget_ns: u64,
    mut gives_away: bool,
    processor: &impl Processor,
    mut look: impl FnMut() -> bool,
) -> bool {
    let start = processor.now_ns();
    let mut now = start;
    let mut given = 0;
    loop {
        if gives_away {
            processor.give_away();
            let after = processor.now_ns();
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
            if look_repeatedly(&mut look) {
                return true;
            }
            now = processor.now_ns();
        }
        let spent = now - start;
        if spent - given >= budget_ns || spent >= budget_ns.saturating_add(GIVEN_NS_MAX) {
            return false;
        }
        gives_away = gives_away || spent > PAUSE_NS;
    }
}

#[inline]
fn look_repeatedly(look: &mut impl FnMut() -> bool) -> bool {
    for _ in 0..LOOKS {
        if look() {
            return true;
        }
        spin_hint();
    }
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// A clock that goes on by a step with each reading, and by a longer one when given away.
    struct Clock {
        now_ns: Cell<u64>,
        yield_ns: u64,
        yields: Cell<u32>,
    }

    impl Clock {
        fn new(yield_ns: u64) -> Clock {
            Clock {
                now_ns: Cell::new(1),
                yield_ns,
                yields: Cell::new(0),
            }
        }
    }

    impl Processor for Clock {
        fn now_ns(&self) -> u64 {
            self.now_ns.set(self.now_ns.get() + 100);
            self.now_ns.get()
        }

        fn give_away(&self) {
            self.now_ns.set(self.now_ns.get() + self.yield_ns);
            self.yields.set(self.yields.get() + 1);
        }
    }

    fn budget(history: &History) -> u64 {
        history.budget_ns(WaitMode::Adaptive)
    }

    #[test]
    fn short_sleeps_that_the_kernel_ends_stop_the_looking() {
        let history = History::default();
        history.reset();
        let before = history.level();
        for _ in 0..KERNEL_NEWS - 1 {
            history.slept_for_kernel();
        }
        assert_eq!(history.level(), before);
        for _ in 0..KERNEL_NEWS * before as u32 {
            history.slept_for_kernel();
        }
        assert_eq!(history.budget_ns(WaitMode::Adaptive), 0);
        history.slept_for_kernel();
        assert_eq!(history.level(), 0);
    }

    #[test]
    fn a_place_that_waits_for_both_in_turns_goes_on_looking() {
        let history = History::default();
        history.reset();
        for _ in 0..100 {
            history.slept_for_kernel();
            history.slept(1_000);
        }
        assert_eq!(history.level(), BUDGET_NS.len() - 1);
    }

    #[test]
    fn an_idle_place_does_not_look() {
        let history = History::default();
        history.reset();
        assert!(budget(&history) > 0);
        for _ in 0..BUDGET_NS.len() {
            history.slept(1_000_000_000);
        }
        assert_eq!(budget(&history), 0);
        let clock = Clock::new(0);
        assert!(!spin(&history, 0, || false, &clock, || panic!("looked")));
        assert!(!spin_giving_away(&history, 0, &clock, || panic!("looked")));
    }

    #[test]
    fn a_short_sleep_raises_the_budget_and_a_long_one_lowers_it() {
        let history = History::default();
        for expected in BUDGET_NS {
            assert_eq!(budget(&history), expected);
            history.slept(SHORT_SLEEP_NS - 1);
        }
        assert_eq!(budget(&history), BUDGET_NS[BUDGET_NS.len() - 1]);
        history.slept(SHORT_SLEEP_NS);
        assert_eq!(budget(&history), BUDGET_NS[BUDGET_NS.len() - 2]);
    }

    #[test]
    fn modes_other_than_adaptive_know_no_history() {
        let history = History::default();
        assert_eq!(history.budget_ns(WaitMode::Poll), ENDLESS_NS);
        assert_eq!(history.budget_ns(WaitMode::Event), 0);
    }

    #[test]
    fn what_comes_at_once_costs_no_look_at_the_clock() {
        let clock = Clock::new(0);
        let history = History::default();
        assert!(spin(&history, 1, || panic!("asked"), &clock, || true));
        assert_eq!(clock.now_ns.get(), 1);
    }

    #[test]
    fn a_spin_ends_with_its_budget() {
        for is_shared in [false, true] {
            let clock = Clock::new(500);
            let history = History::default();
            assert!(!spin(&history, 30_000, || is_shared, &clock, || false));
            let spent = clock.now_ns.get();
            assert!((30_000..35_000).contains(&spent), "{spent}");
            // The second half of a budget, at the latest, is for others as well.
            assert!(clock.yields.get() > 0);
        }
    }

    #[test]
    fn time_that_others_used_does_not_count_up_to_a_bound() {
        let clock = Clock::new(100_000);
        let history = History::default();
        assert!(!spin_giving_away(&history, 4_000, &clock, || false));
        assert_eq!(clock.yields.get(), 6, "five are within the bound");
        // The next spin of this place gives way at once.
        let clock = Clock::new(100_000);
        let mut looks = 0;
        spin(
            &history,
            4_000,
            || false,
            &clock,
            || {
                looks += 1;
                false
            },
        );
        assert_eq!(looks, LOOKS + clock.yields.get());
    }

    #[test]
    fn a_level_that_was_overwritten_stays_within_bounds() {
        let history = History::default();
        history.level.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(budget(&history), BUDGET_NS[BUDGET_NS.len() - 1]);
        history.paid();
        assert_eq!(budget(&history), BUDGET_NS[BUDGET_NS.len() - 1]);
    }
}
