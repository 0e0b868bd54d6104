//! Rules that limit how many of their connections have channels (`max-connections`).
//!
//! The rule that applies to a connection counts it while it has a channel. Two ends without room
//! wait in the registry, like ends that a rule keeps on the kernel. When a counted channel ends,
//! all waiting ends are considered again, but at most once per [`RETRY_INTERVAL`]: otherwise a
//! channel that ends each millisecond would cause thousands of looks each time.

use super::Daemon;
use crate::registry::{ChannelId, End};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use toehold_channel::table::Reason;

/// The daemon's count of channels, by rule.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    /// The rule that has counted each channel, by its index among the rules.
    counted: BTreeMap<ChannelId, usize>,
    used: BTreeMap<usize, usize>,
    /// True when some ends wait for room.
    is_wanted: bool,
    /// When waiting ends are considered again, because there is room.
    due: Option<Instant>,
    considered: Option<Instant>,
}

impl Budgets {
    /// When to look again without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    fn has_room(&self, (place, most): (usize, usize)) -> bool {
        self.used.get(&place).copied().unwrap_or(0) < most
    }

    fn count(&mut self, channel: ChannelId, place: usize) {
        self.counted.insert(channel, place);
        *self.used.entry(place).or_default() += 1;
    }

    /// A channel has ended.
    pub(super) fn forget(&mut self, channel: ChannelId) {
        let Some(place) = self.counted.remove(&channel) else {
            return;
        };
        *self.used.get_mut(&place).expect("it was counted") -= 1;
        if self.is_wanted && self.due.is_none() {
            let soonest = self.considered.map(|last| last + RETRY_INTERVAL);
            let now = Instant::now();
            self.due = Some(soonest.map_or(now, |soonest| soonest.max(now)));
        }
    }
}

impl Daemon {
    /// Whether the applicable rule has room for another connection with these ends. True without
    /// such a rule.
    pub(super) fn has_budget(&mut self, ends: [End; 2]) -> bool {
        let has_room = self
            .budget(ends)
            .is_none_or(|budget| self.budgets.has_room(budget));
        self.budgets.is_wanted |= !has_room;
        has_room
    }

    /// Counts a channel that was made.
    pub(super) fn count_in_budget(&mut self, channel: ChannelId, ends: [End; 2]) {
        if let Some((place, _)) = self.budget(ends) {
            self.budgets.count(channel, place);
        }
    }

    /// Considers waiting ends again, when it is time.
    pub(super) fn follow_budgets(&mut self) {
        let now = Instant::now();
        if self.budgets.due.is_some_and(|due| now >= due) {
            self.budgets.due = None;
            self.budgets.considered = Some(now);
            self.budgets.is_wanted = false;
            self.registry.reconsider();
        }
    }

    /// Counts all channels again, by new rules. The newest channels beyond a rule's limit go back
    /// to their carriers and give up their regions.
    pub(super) fn recount_budgets(&mut self) {
        self.budgets = Budgets::default();
        let channels: Vec<_> = self.registry.channels().collect();
        let mut surplus = Vec::new();
        for (channel, ends) in channels {
            let Some(budget) = self.budget(ends) else {
                continue;
            };
            if !self.budgets.has_room(budget) {
                surplus.extend(ends);
            }
            self.budgets.count(channel, budget.0);
        }
        self.tables.set_evict(surplus.into_iter());
    }

    /// The rule that had no room for an end, in words.
    pub(super) fn describe_budget_rule(&self, end: End) -> Option<String> {
        let refusal = self.tables.current(end)?.refusal.load(Ordering::Relaxed);
        if refusal != Reason::OverBudget as u32 {
            return None;
        }
        let other = self.registry.met(end)?;
        let (place, _) = self.budget([end, other])?;
        let rule = self.options.rules.at(place)?;
        Some(format!("{}: {}", Reason::OverBudget.words(), rule.origin()))
    }

    fn budget(&self, ends: [End; 2]) -> Option<(usize, usize)> {
        let rules = &self.options.rules;
        if !rules.has_budget_rule() || self.is_engines(ends) {
            return None;
        }
        rules.budget(&self.sides(ends))
    }
}

/// Time between two looks at all ends that wait.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
