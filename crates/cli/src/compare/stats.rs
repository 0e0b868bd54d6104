//! The statistics of a comparison: medians, spreads, and ratios with an interval.
//!
//! Rounds are interleaved, so round `i` of one path ran next to round `i` of the other and shared
//! whatever the machine was doing then. The interval of a ratio therefore resamples *rounds*, not
//! samples: each draw takes the same rounds from both paths (a paired percentile bootstrap of the
//! ratio of medians). It is seeded: the same samples always give the same interval.

use serde::Serialize;

use super::rng::Rng;

/// What the samples of one metric on one path say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// How many rounds are in it.
    pub(crate) rounds: usize,
    /// The middle value.
    pub(crate) median: f64,
    /// Lower bound of the median's 95 % bootstrap interval.
    pub(crate) median_low: f64,
    /// Upper bound of the median's 95 % bootstrap interval.
    pub(crate) median_high: f64,
    /// The quarter of the values below.
    pub(crate) quartile_low: f64,
    /// The quarter of the values above.
    pub(crate) quartile_high: f64,
    /// Smallest value.
    pub(crate) min: f64,
    /// Largest value.
    pub(crate) max: f64,
}

impl Summary {
    /// The distance between the quartiles: the spread the table shows.
    pub(crate) fn spread(&self) -> f64 {
        self.quartile_high - self.quartile_low
    }
}

/// A ratio of two medians with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Ratio {
    /// The ratio of the medians.
    pub(crate) value: f64,
    /// Lower bound.
    pub(crate) low: f64,
    /// Upper bound.
    pub(crate) high: f64,
}

impl Ratio {
    /// Whether one is a plausible value: the samples do not tell the two paths apart.
    pub(crate) fn includes_one(&self) -> bool {
        self.low <= 1.0 && self.high >= 1.0
    }

    /// How far from one this ratio's interval reaches: for two runs of the same path, the noise
    /// floor below which no difference between paths can be believed.
    pub(crate) fn reach_from_one(&self) -> f64 {
        (self.low - 1.0).abs().max((self.high - 1.0).abs())
    }
}

/// Summarizes the samples of one path.
pub(crate) fn summarize(samples: &[f64], seed: u64) -> Option<Summary> {
    if samples.is_empty() {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut rng = Rng::new(seed);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let mut draw: Vec<f64> = (0..samples.len())
                .map(|_| samples[rng.below(samples.len())])
                .collect();
            median(&mut draw)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    Some(Summary {
        rounds: sorted.len(),
        median: quantile(&sorted, 0.5),
        median_low: quantile(&medians, INTERVAL_TAIL),
        median_high: quantile(&medians, 1.0 - INTERVAL_TAIL),
        quartile_low: quantile(&sorted, 0.25),
        quartile_high: quantile(&sorted, 0.75),
        min: sorted[0],
        max: sorted[sorted.len() - 1],
    })
}

/// The ratio of `path` to `base`, from rounds in which both were measured.
///
/// `None` when there are fewer than [`ROUNDS_FOR_INTERVAL`] such rounds, or when the base's median
/// is zero: there is no honest interval then.
pub(crate) fn ratio(rounds: &[(f64, f64)], seed: u64) -> Option<Ratio> {
    if rounds.len() < ROUNDS_FOR_INTERVAL {
        return None;
    }
    let ratio_of = |base: &mut Vec<f64>, path: &mut Vec<f64>| median(path) / median(base);
    let mut base: Vec<f64> = rounds.iter().map(|round| round.0).collect();
    let mut path: Vec<f64> = rounds.iter().map(|round| round.1).collect();
    let value = ratio_of(&mut base, &mut path);
    if !value.is_finite() {
        return None;
    }
    let mut rng = Rng::new(seed);
    let mut draws: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            for at in 0..rounds.len() {
                (base[at], path[at]) = rounds[rng.below(rounds.len())];
            }
            ratio_of(&mut base, &mut path)
        })
        .filter(|draw| draw.is_finite())
        .collect();
    draws.sort_by(f64::total_cmp);
    Some(Ratio {
        value,
        low: quantile(&draws, INTERVAL_TAIL),
        high: quantile(&draws, 1.0 - INTERVAL_TAIL),
    })
}

/// The middle of `values`, which are reordered.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(values, 0.5)
}

/// The value at `fraction` of sorted values, interpolated between neighbours.
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let position = fraction * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = position.ceil() as usize;
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

/// Fewer rounds than this have no interval worth printing.
pub(crate) const ROUNDS_FOR_INTERVAL: usize = 3;

/// Draws of each bootstrap: the bounds move by less than a percent of their distance beyond this.
const RESAMPLES: usize = 2000;

/// Each side of a 95 % interval.
const INTERVAL_TAIL: f64 = 0.025;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_quartiles_interpolate() {
        let summary = summarize(&[4.0, 1.0, 3.0, 2.0], 1).expect("samples");
        assert_eq!(summary.median, 2.5);
        assert_eq!((summary.quartile_low, summary.quartile_high), (1.75, 3.25));
        assert_eq!((summary.min, summary.max), (1.0, 4.0));
        assert_eq!(summary.spread(), 1.5);
    }

    #[test]
    fn no_samples_have_no_summary() {
        assert_eq!(summarize(&[], 1), None);
    }

    #[test]
    fn equal_paths_are_not_told_apart() {
        let rounds: Vec<(f64, f64)> = (0..10)
            .map(|i| (100.0 + f64::from(i % 3), 100.0 + f64::from((i + 1) % 3)))
            .collect();
        let ratio = ratio(&rounds, 1).expect("enough rounds");
        assert!(ratio.includes_one(), "{ratio:?}");
        assert!(ratio.reach_from_one() < 0.03);
    }

    #[test]
    fn a_clear_difference_has_an_interval_away_from_one() {
        let rounds: Vec<(f64, f64)> = (0..8)
            .map(|i| (10.0 + f64::from(i) * 0.1, 20.0 - f64::from(i) * 0.1))
            .collect();
        let ratio = ratio(&rounds, 1).expect("enough rounds");
        assert!(!ratio.includes_one(), "{ratio:?}");
        assert!(ratio.low <= ratio.value && ratio.value <= ratio.high);
        assert!((1.7..2.1).contains(&ratio.value));
    }

    #[test]
    fn a_drift_shared_by_both_paths_cancels() {
        // The machine slows to a quarter over the run; the paths differ by a tenth throughout.
        let rounds: Vec<(f64, f64)> = (0..12)
            .map(|i| {
                let speed = 1.0 - f64::from(i) / 16.0;
                (100.0 * speed, 110.0 * speed)
            })
            .collect();
        let ratio = ratio(&rounds, 1).expect("enough rounds");
        assert!(
            (ratio.low - 1.1).abs() < 1e-9 && (ratio.high - 1.1).abs() < 1e-9,
            "{ratio:?}"
        );
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let rounds = [(1.0, 2.0), (1.5, 2.5), (1.2, 3.0), (0.9, 1.7)];
        assert_eq!(ratio(&rounds, 5), ratio(&rounds, 5));
    }

    #[test]
    fn two_rounds_or_a_zero_base_have_no_interval() {
        assert_eq!(ratio(&[(1.0, 2.0), (1.0, 2.0)], 1), None);
        assert_eq!(ratio(&[(0.0, 2.0), (0.0, 2.0), (0.0, 2.0)], 1), None);
    }
}
