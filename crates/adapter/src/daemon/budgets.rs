//! Rules that bound how many of their connections are in memory (`max-connections`).
//!
//! A connection is counted while it has a channel, by the rule that decided for it. Two ends for
//! which there is no room wait in the registry as those do that a rule keeps on the kernel. When a
//! counted channel ends, all ends that wait are considered again, [`RETRY_INTERVAL`] apart: one
//! that ends each millisecond would have thousands looked at each time.

use super::Daemon;
use crate::registry::{ChannelId, End};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use toehold_channel::table::Reason;

/// The daemon's count of channels, by rule.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    /// The rule of each channel that one has counted, by its place among the rules.
    counted: BTreeMap<ChannelId, usize>,
    used: BTreeMap<usize, usize>,
    /// Some ends wait for room.
    is_wanted: bool,
    /// When ends that wait are considered again, because there is room.
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
    /// Whether a rule has room for a connection more with these ends. Without such a rule it has.
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

    /// Considers ends again that wait for room, when it is time to.
    pub(super) fn follow_budgets(&mut self) {
        let now = Instant::now();
        if self.budgets.due.is_some_and(|due| now >= due) {
            self.budgets.due = None;
            self.budgets.considered = Some(now);
            self.budgets.is_wanted = false;
            self.registry.reconsider();
        }
    }

    /// Counts all channels anew, by other rules. Those beyond a rule's number, the newest, go back
    /// to their carriers and give up their regions.
    pub(super) fn recount_budgets(&mut self) {
        self.budgets = Budgets::default();
        let channels: Vec<_> = self.registry.channels().collect();
        for (channel, ends) in channels {
            let Some(budget) = self.budget(ends) else {
                continue;
            };
            if !self.budgets.has_room(budget) {
                for end in ends {
                    self.tables.set_evict(end);
                }
            }
            self.budgets.count(channel, budget.0);
        }
    }

    /// The rule for which there was no room for an end.
    pub(super) fn said_of_budget(&self, end: End) -> Option<String> {
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
        if !rules.speak_of_budgets() || self.is_engines(ends) {
            return None;
        }
        rules.budget(&self.sides(ends))
    }
}

/// Time between two looks at all ends that wait.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
