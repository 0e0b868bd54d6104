//! Which channels give their regions back when memory runs out: those that have moved nothing for
//! longest.
//!
//! Memory is counted in *shares* of a megabyte; a channel has one, and more when its rings have
//! grown. Pressure begins when seven eighths of the shares are in use and ends at three quarters.
//! In between, the caller samples how much each channel has moved, at its own pace; a channel whose
//! count stood still for [`IDLE_SAMPLES_MIN`] samples may be chosen. Without pressure nothing is
//! kept and nothing is sampled.

use crate::registry::ChannelId;
use std::collections::BTreeMap;

/// Activity of channels while there is pressure.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    is_on: bool,
    /// Shares to take back until the pressure ends.
    wanted: usize,
    seen: BTreeMap<ChannelId, Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    activity: u64,
    shares: usize,
    idle_samples: u32,
    chosen: bool,
}

/// Samples over which a channel must have moved nothing.
pub(crate) const IDLE_SAMPLES_MIN: u32 = 2;

impl Pressure {
    /// Takes note of how many shares are in use. Whether there is pressure.
    pub(crate) fn is_on(&mut self, shares: usize, shares_max: usize) -> bool {
        let high_water = shares_max - shares_max / 8;
        let low_water = shares_max - shares_max.div_ceil(4);
        self.is_on = shares > low_water && (self.is_on || shares >= high_water);
        self.wanted = shares.saturating_sub(low_water);
        if !self.is_on {
            self.seen.clear();
        }
        self.is_on
    }

    /// Takes a sample of every channel: what it has moved, and its shares. Answers which to take
    /// back, the longest idle first; each is named once.
    pub(crate) fn sample(
        &mut self,
        channels: impl Iterator<Item = (ChannelId, u64, usize)>,
    ) -> Vec<ChannelId> {
        let before = std::mem::take(&mut self.seen);
        self.seen = channels
            .map(|(id, activity, shares)| (id, Seen::next(before.get(&id), activity, shares)))
            .collect();
        let mut missing = self.missing();
        let idle = |seen: &Seen| !seen.chosen && seen.idle_samples >= IDLE_SAMPLES_MIN;
        let mut candidates: Vec<_> = self
            .seen
            .iter_mut()
            .filter(|(_, seen)| idle(seen))
            .collect();
        // Stable, so that of equally idle channels the oldest comes first.
        candidates.sort_by_key(|(_, seen)| std::cmp::Reverse(seen.idle_samples));
        let mut chosen = Vec::new();
        for (&id, seen) in candidates {
            if missing == 0 {
                break;
            }
            seen.chosen = true;
            missing = missing.saturating_sub(seen.shares);
            chosen.push(id);
        }
        chosen
    }

    /// Whether another sample may find channels that are still wanted.
    pub(crate) fn wants_more(&self) -> bool {
        self.is_on && self.missing() > 0
    }

    fn missing(&self) -> usize {
        let chosen = self.seen.values().filter(|seen| seen.chosen);
        let shares: usize = chosen.map(|seen| seen.shares).sum();
        self.wanted.saturating_sub(shares)
    }
}

impl Seen {
    fn next(before: Option<&Seen>, activity: u64, shares: usize) -> Seen {
        match before {
            Some(seen) if seen.activity == activity => Seen {
                shares,
                idle_samples: seen.idle_samples.saturating_add(1),
                ..*seen
            },
            // One that was chosen and still moves is on its way back to its carrier.
            other => Seen {
                activity,
                shares,
                idle_samples: 0,
                chosen: other.is_some_and(|seen| seen.chosen),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pressure: &mut Pressure, activities: &[(u64, u64)]) -> Vec<u64> {
        let channels = activities
            .iter()
            .map(|&(id, moved)| (ChannelId(id), moved, 1));
        pressure.sample(channels).iter().map(|id| id.0).collect()
    }

    #[test]
    fn pressure_begins_at_high_water_and_ends_at_low_water() {
        let mut pressure = Pressure::default();
        assert!(!pressure.is_on(13, 16));
        assert!(pressure.is_on(14, 16));
        assert!(pressure.is_on(13, 16));
        assert!(!pressure.is_on(12, 16));
        assert!(!pressure.is_on(13, 16));
    }

    #[test]
    fn a_single_region_can_be_taken_back() {
        let mut pressure = Pressure::default();
        assert!(!pressure.is_on(0, 1));
        assert!(pressure.is_on(1, 1));
        for _ in 0..IDLE_SAMPLES_MIN {
            assert!(sample(&mut pressure, &[(1, 5)]).is_empty());
        }
        assert_eq!(sample(&mut pressure, &[(1, 5)]), [1]);
    }

    #[test]
    fn the_longest_idle_are_chosen_once_and_no_more_than_wanted() {
        let mut pressure = Pressure::default();
        assert!(pressure.is_on(8, 8), "two are wanted");
        let moved = |step: u64, id: u64| match id {
            3 => 0,
            5 if step > 1 => 1,
            5 | 7 => step.min(1),
            _ => step,
        };
        let mut chosen = Vec::new();
        for step in 0..8 {
            let activities: Vec<_> = (0..8).map(|id| (id, moved(step, id))).collect();
            chosen.extend(sample(&mut pressure, &activities));
        }
        assert_eq!(chosen, [3, 5]);
        assert!(!pressure.wants_more());
    }

    #[test]
    fn channels_with_large_rings_count_for_what_they_hold() {
        let mut pressure = Pressure::default();
        assert!(pressure.is_on(16, 16), "four are wanted");
        let channels = || {
            [
                (ChannelId(1), 0, 1),
                (ChannelId(2), 0, 8),
                (ChannelId(3), 0, 7),
            ]
        };
        let mut chosen = Vec::new();
        for _ in 0..=IDLE_SAMPLES_MIN {
            chosen = pressure.sample(channels().into_iter());
        }
        assert_eq!(chosen, [ChannelId(1), ChannelId(2)]);
        assert!(!pressure.wants_more());
    }

    #[test]
    fn busy_channels_are_left_alone_but_watched() {
        let mut pressure = Pressure::default();
        assert!(pressure.is_on(4, 4));
        for step in 0..10 {
            let activities: Vec<_> = (0..4).map(|id| (id, step)).collect();
            assert!(sample(&mut pressure, &activities).is_empty());
            assert!(pressure.wants_more());
        }
    }
}
