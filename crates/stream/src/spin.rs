//! When to look at shared memory again, and when to sleep in the kernel.
//!
//! A wake-up from the kernel costs 3 to 50 us; spinning keeps a core busy. So each place that waits
//! keeps a short history. Its level rises when a spin finds something. A spin in vain or a long
//! sleep lowers the level. At level 0 a place does not spin at all, so an idle program costs
//! nothing. The place tries again when sleeps were so short that spinning might have paid: at first
//! after one short sleep, then after more and more of them if the tries are in vain.
//!
//! ```text
//!   look, pause ... look, pause     a moment, then one yield: does another thread want it?
//!   look, pause ... look, pause     no: PAUSE_NS long, then another yield, and so on
//!   look, yield ... look, yield     yes: until the budget is used up
//! ```
//!
//! On a crowded processor, or when the peer runs on this processor, [`spin`] yields from the
//! beginning. The time that other threads use does not count against the budget, but each of their
//! turns costs us two context switches. A spin that cost more than a sleep counts as in vain, even
//! if it found something: the scheduler prefers a sleeper that is woken to a spinner that has used
//! its time.

use toehold_channel::sync::{AtomicU32, Ordering, spin_hint};
use toehold_channel::table::WaitMode;

/// Spin budgets by level, in nanoseconds.
const BUDGET_NS: [u64; 5] = [0, 4_000, 12_000, 30_000, 60_000];
/// The level of a place without a history.
const LEVEL_FRESH: u32 = 3;
/// A sleep shorter than this would have been cheaper as a spin, if no other thread wants the
/// processor.
const SHORT_SLEEP_NS: u64 = 120_000;
/// After this long one yield asks whether others want the processor.
const ASK_NS: u64 = 2_000;
/// Pause this long before the next yield, while no other thread wants the processor. Tried without
/// success: to yield between all looks after that time. Two Go programs with two threads each then
/// shared one processor for a long time while the other was idle: a thread that yields is always
/// ready to run, so the scheduler does not move it.
const PAUSE_NS: u64 = 20_000;
/// A yield that took longer than this let another thread run. It is also the cost of such a turn
/// for us: two context switches, and cache lines that the other thread has evicted.
const TURN_NS: u64 = 3_000;
/// A yield that took longer than this let a thread run that does not wait for us. As a sleeper we
/// would have been woken earlier.
const HOGGED_NS: u64 = 1_000_000;
/// The cost of a sleep on both sides: the calls, the doorbell, the wake-up of an awake processor,
/// caches. Tried: with 7 us, two programs on one processor (Redis, 50 connections) lost a third;
/// with 16 us, eight pairs on two processors 12 %, and 6 % with this.
const SLEEP_NS: u64 = 30_000;
/// A spin ends at the latest this long after its budget, even if other threads used all of the
/// time.
const GIVEN_NS_MAX: u64 = 500_000;
/// The level falls by one after this many sleeps in a row that news of the kernel ended.
const KERNEL_NEWS: u32 = 8;
/// The level at which a place looks again after short sleeps.
const LEVEL_TRIED: u32 = BUDGET_NS.len() as u32 - 1;
/// Instead of a count of short sleeps: the place has just spun in vain.
const LOOKED: u32 = u32::MAX;
/// The most short sleeps that a place waits for before it looks again.
const PATIENCE_MAX: u32 = 64;
/// Looks between two readings of the clock.
const LOOKS: u32 = 8;

/// The budget of a place that spins for ever ([`WaitMode::Poll`]).
pub const ENDLESS_NS: u64 = u64::MAX;

/// The two things that waiting needs of the processor: a clock and a yield.
pub trait Processor {
    /// A monotonic clock in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Lets others run (sched_yield(2)).
    fn give_away(&self);
}

/// The recent results of waiting at one place. All zeroes is a history at level 0. Threads that
/// share a history may lose each other's updates, which costs at most one wake-up or spin.
#[derive(Debug, Default)]
pub struct History {
    /// Index into [`BUDGET_NS`].
    level: AtomicU32,
    /// 1 when other threads recently wanted this processor.
    crowded: AtomicU32,
    /// Sleeps in a row that news of the kernel ended.
    by_kernel: AtomicU32,
    /// Short sleeps in a row without a spin before, or [`LOOKED`].
    short: AtomicU32,
    /// Number of short sleeps after which the place spins again, at least 1. Each spin in vain
    /// doubles it, each spin that paid halves it.
    patience: AtomicU32,
}

impl History {
    /// Resets the history.
    pub fn reset(&self) {
        self.level.store(LEVEL_FRESH, Ordering::Relaxed);
        for count in [&self.crowded, &self.by_kernel, &self.short, &self.patience] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// The time to look now, in nanoseconds; [`ENDLESS_NS`] in poll mode.
    #[inline]
    pub fn budget_ns(&self, mode: WaitMode) -> u64 {
        match mode {
            WaitMode::Poll => ENDLESS_NS,
            WaitMode::Event => 0,
            WaitMode::Adaptive => BUDGET_NS[self.level()],
        }
    }

    /// A spin found something and cost less than a sleep.
    #[inline]
    fn paid(&self) {
        let level = self.level();
        if level + 1 < BUDGET_NS.len() {
            self.level.store(level as u32 + 1, Ordering::Relaxed);
        }
        if self.by_kernel.load(Ordering::Relaxed) != 0 {
            self.by_kernel.store(0, Ordering::Relaxed);
        }
        let patience = self.patience.load(Ordering::Relaxed);
        if patience != 0 {
            self.patience.store(patience / 2, Ordering::Relaxed);
        }
    }

    /// A spin found nothing, or cost more than a sleep.
    fn lost(&self) {
        let patience = self.patience.load(Ordering::Relaxed);
        let more = (patience * 2).clamp(1, PATIENCE_MAX);
        self.patience.store(more, Ordering::Relaxed);
        self.short.store(LOOKED, Ordering::Relaxed);
        self.lower();
    }

    fn lower(&self) {
        let level = self.level() as u32;
        self.level.store(level.saturating_sub(1), Ordering::Relaxed);
    }

    /// A sleep ended because of news of the kernel, which no look at shared memory would have
    /// found. So a spin would not have paid, however short the sleep was. One such sleep says
    /// little, because a place may wait for both kinds of news: [`KERNEL_NEWS`] of them in a row
    /// lower the level.
    pub fn slept_for_kernel(&self) {
        let by_kernel = self.by_kernel.load(Ordering::Relaxed) + 1;
        self.by_kernel
            .store(by_kernel % KERNEL_NEWS, Ordering::Relaxed);
        if by_kernel >= KERNEL_NEWS {
            self.lower();
        }
    }

    /// A sleep ended after `slept_ns`, which includes the spin before it.
    pub fn slept(&self, slept_ns: u64) {
        let short = self.short.load(Ordering::Relaxed);
        let mut more = 0;
        if short == LOOKED {
            // The spin before this sleep has already changed the level.
        } else if slept_ns >= SHORT_SLEEP_NS {
            self.lower();
        } else if short >= self.patience.load(Ordering::Relaxed) {
            self.level.store(LEVEL_TRIED, Ordering::Relaxed);
        } else {
            more = short + 1;
        }
        self.short.store(more, Ordering::Relaxed);
    }

    #[inline]
    fn level(&self) -> usize {
        (self.level.load(Ordering::Relaxed) as usize).min(BUDGET_NS.len() - 1)
    }
}

/// Calls `look` until it finds something or `budget_ns` is used up; true when it found something.
/// Updates the history. `is_shared` is called when the first looks found nothing, and tells whether
/// the peer needs this processor.
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
    // Before the first reading of the clock: most news that comes soon comes now.
    if look_repeatedly(&mut look) {
        history.paid();
        return true;
    }
    let gives_away = is_shared() || history.crowded.load(Ordering::Relaxed) != 0;
    spin_by_clock(history, budget_ns, gives_away, processor, look)
}

/// As [`spin`], for looks that are not cheap and a peer that needs this processor: yields before
/// each look.
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
    gives_away: bool,
    processor: &impl Processor,
    mut look: impl FnMut() -> bool,
) -> bool {
    let mut turns = Turns::new(processor);
    loop {
        let asks = match turns.asked_ns {
            None => turns.now_ns - turns.start_ns >= ASK_NS.min(budget_ns),
            Some(asked_ns) => turns.now_ns - asked_ns > PAUSE_NS,
        };
        let found = if gives_away || turns.were_taken() || asks {
            turns.give_away(history, processor);
            look()
        } else {
            let found = look_repeatedly(&mut look);
            turns.now_ns = processor.now_ns();
            found
        };
        if found || turns.are_over(budget_ns) {
            turns.conclude(history, found);
            return found;
        }
    }
}

/// The times of one spin: in all, and used by other threads.
struct Turns {
    start_ns: u64,
    now_ns: u64,
    /// When the last yield ended. A yield shows whether other threads want the processor.
    asked_ns: Option<u64>,
    /// Time that other threads used, minus the cost of their turns for us.
    given_ns: u64,
    /// The longest turn of another thread, in nanoseconds; 0 when none has run.
    longest_ns: u64,
}

impl Turns {
    fn new(processor: &impl Processor) -> Turns {
        let now_ns = processor.now_ns();
        Turns {
            start_ns: now_ns,
            now_ns,
            asked_ns: None,
            given_ns: 0,
            longest_ns: 0,
        }
    }

    /// True when another thread has run.
    fn were_taken(&self) -> bool {
        self.longest_ns != 0
    }

    fn give_away(&mut self, history: &History, processor: &impl Processor) {
        processor.give_away();
        let after_ns = processor.now_ns();
        let turn_ns = after_ns - self.now_ns;
        self.now_ns = after_ns;
        self.asked_ns = Some(after_ns);
        if turn_ns > TURN_NS {
            self.given_ns += turn_ns - TURN_NS;
            self.longest_ns = self.longest_ns.max(turn_ns);
            history.crowded.store(1, Ordering::Relaxed);
        } else if history.crowded.load(Ordering::Relaxed) != 0 {
            history.crowded.store(0, Ordering::Relaxed);
        }
    }

    /// The spin's cost to us, in nanoseconds.
    fn cost_ns(&self) -> u64 {
        self.now_ns - self.start_ns - self.given_ns
    }

    fn are_over(&self, budget_ns: u64) -> bool {
        let spent_ns = self.now_ns - self.start_ns;
        // A spin that was too short for a yield ends with one.
        self.asked_ns.is_some() && self.cost_ns() >= budget_ns
            || spent_ns >= budget_ns.saturating_add(GIVEN_NS_MAX)
    }

    fn conclude(&self, history: &History, found: bool) {
        if self.longest_ns > HOGGED_NS {
            history.patience.store(PATIENCE_MAX, Ordering::Relaxed);
            history.level.store(0, Ordering::Relaxed);
        } else if found && !(self.were_taken() && self.cost_ns() > SLEEP_NS) {
            history.paid();
        } else {
            history.lost();
        }
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

    /// A clock that advances by a step with each reading, and by a longer step with each yield.
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

    /// A spin in vain.
    fn spin_in_vain(history: &History) {
        let clock = Clock::new(0);
        assert!(!spin(history, 4_000, || false, &clock, || false));
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
    fn a_short_sleep_is_reason_to_look_and_a_long_one_to_look_less() {
        let history = History::default();
        history.slept(SHORT_SLEEP_NS - 1);
        assert_eq!(budget(&history), BUDGET_NS[BUDGET_NS.len() - 1]);
        history.slept(SHORT_SLEEP_NS);
        assert_eq!(budget(&history), BUDGET_NS[BUDGET_NS.len() - 2]);
    }

    #[test]
    fn looks_in_vain_become_rare_although_the_sleeps_are_short() {
        let history = History::default();
        let mut looks = 0;
        for _ in 0..10_000 {
            if budget(&history) > 0 {
                looks += 1;
                spin_in_vain(&history);
            }
            history.slept(SHORT_SLEEP_NS - 1);
        }
        // A try is one look at each level.
        assert!(
            looks < 10_000 / PATIENCE_MAX * BUDGET_NS.len() as u32,
            "{looks}"
        );
        assert!(looks > 100, "{looks}: it goes on trying");
    }

    #[test]
    fn looks_that_pay_again_are_made_each_time() {
        let history = History::default();
        history.reset();
        for _ in 0..100 {
            spin_in_vain(&history);
        }
        assert_eq!(budget(&history), 0);
        for _ in 0..=PATIENCE_MAX + 1 {
            history.slept(SHORT_SLEEP_NS - 1);
        }
        for _ in 0..100 {
            assert!(budget(&history) > 0);
            let clock = Clock::new(0);
            assert!(spin(&history, budget(&history), || false, &clock, || true));
        }
        // One spin in vain changes little.
        spin_in_vain(&history);
        assert!(budget(&history) > 0);
    }

    #[test]
    fn looks_that_cost_more_than_a_sleep_are_in_vain() {
        let find_after = |history: &History, yields: u32, turn_ns: u64| {
            let clock = Clock::new(turn_ns);
            let found = spin(
                history,
                60_000,
                || true,
                &clock,
                || clock.yields.get() >= yields,
            );
            assert!(found);
        };
        for (yields, turn_ns, pays) in [
            (1, TURN_NS * 2, true),
            (2, TURN_NS * 20, true),
            (11, TURN_NS * 2, false),
            // Yields that let no other thread run cost nothing.
            (20, 500, true),
            // A thread that does not wait for us had a whole time slice.
            (1, HOGGED_NS * 2, false),
        ] {
            let history = History::default();
            history.reset();
            find_after(&history, yields, turn_ns);
            assert_eq!(
                history.level() as u32 > LEVEL_FRESH,
                pays,
                "{yields} yields of {turn_ns} ns"
            );
        }
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
            // In the second half of a budget, at the latest, the spin yields.
            assert!(clock.yields.get() > 0);
        }
    }

    #[test]
    fn a_processor_that_nobody_else_wants_is_offered_now_and_then() {
        let clock = Clock::new(500);
        let history = History::default();
        assert!(!spin(&history, 60_000, || false, &clock, || false));
        assert_eq!(clock.yields.get(), 3, "after 2 us, and each 20 us since");
    }

    #[test]
    fn time_that_others_used_does_not_count_up_to_a_bound() {
        let clock = Clock::new(100_000);
        let history = History::default();
        assert!(!spin_giving_away(&history, 60_000, &clock, || false));
        assert_eq!(clock.yields.get(), 6, "five are within the bound");
        // The next spin of this place yields at once.
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
        assert_eq!(clock.yields.get(), 2, "each turn of others has its price");
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
