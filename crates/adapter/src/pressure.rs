//! Which channels give their regions back when memory runs out: those that have moved nothing for
//! longest.
//!
//! Memory is counted in *shares* of a megabyte; a channel has one, and more when its rings have
//! grown. Pressure begins when seven eighths of the shares are in use and ends at three quarters.
//! In between, the caller samples how much each channel has moved, at its own pace; a channel whose
//! count stood still for [`IDLE_SAMPLES_MIN`] samples may be chosen. One that is used again before
//! it has given its region back keeps that, and may be chosen another time. Without pressure
//! nothing is kept and nothing is sampled.

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

/// A channel at the moment of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampled {
    /// A count that grows with the bytes that the channel moves.
    pub(crate) activity: u64,
    /// Its part of the memory.
    pub(crate) shares: usize,
    /// Whether one of its ends is told to give it back, and has not kept it.
    pub(crate) is_told: bool,
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

    /// Takes a sample of every channel. Answers which to take back, the longest idle first; each is
    /// named once, unless it is used after that.
    pub(crate) fn sample(
        &mut self,
        channels: impl Iterator<Item = (ChannelId, Sampled)>,
    ) -> Vec<ChannelId> {
        let before = std::mem::take(&mut self.seen);
        self.seen = channels
            .map(|(id, sampled)| (id, Seen::next(before.get(&id), &sampled)))
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
    fn next(before: Option<&Seen>, sampled: &Sampled) -> Seen {
        let &Sampled {
            activity,
            shares,
            is_told,
        } = sampled;
        let was_chosen = before.is_some_and(|seen| seen.chosen);
        // One that was kept was used, even if no byte of the ring moved: it is not idle.
        let is_kept = was_chosen && !is_told;
        let still = before.filter(|seen| seen.activity == activity && !is_kept);
        Seen {
            activity,
            shares,
            idle_samples: still.map_or(0, |seen| seen.idle_samples.saturating_add(1)),
            // One that was chosen and still moves may be on its way back to its carrier.
            chosen: is_told && was_chosen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample of channels that keep nothing which they are told to give back.
    fn sample(pressure: &mut Pressure, activities: &[(u64, u64)]) -> Vec<u64> {
        let channels = activities
            .iter()
            .map(|&(id, moved)| channel(id, moved, 1, true));
        pressure.sample(channels).iter().map(|id| id.0).collect()
    }

    fn channel(id: u64, activity: u64, shares: usize, is_told: bool) -> (ChannelId, Sampled) {
        let sampled = Sampled {
            activity,
            shares,
            is_told,
        };
        (ChannelId(id), sampled)
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
                channel(1, 0, 1, true),
                channel(2, 0, 8, true),
                channel(3, 0, 7, true),
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
    fn a_channel_that_was_kept_is_chosen_again_when_it_is_idle_again() {
        let mut pressure = Pressure::default();
        assert!(pressure.is_on(1, 1));
        let mut chosen = |activity, is_told| {
            let chosen = pressure.sample([channel(1, activity, 1, is_told)].into_iter());
            (chosen.len(), pressure.wants_more())
        };
        for _ in 0..IDLE_SAMPLES_MIN {
            assert_eq!(chosen(5, false), (0, true));
        }
        assert_eq!(chosen(5, false), (1, false));
        assert_eq!(chosen(5, true), (0, false), "told once");
        for _ in 0..IDLE_SAMPLES_MIN {
            assert_eq!(chosen(6, false), (0, true), "used, and kept");
        }
        assert_eq!(chosen(6, false), (1, false));
        for _ in 0..IDLE_SAMPLES_MIN {
            assert_eq!(chosen(6, false), (0, true), "kept, although no byte moved");
        }
        assert_eq!(chosen(6, false), (1, false));
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
