//! The statistics of a comparison: medians, spreads, and ratios with an interval.
//!
//! Rounds are interleaved, so round `i` of one path ran next to round `i` of the other and shared
//! whatever the machine was doing then. The interval of a ratio therefore resamples *rounds*, not
//! samples: each draw takes the same rounds from both paths (a paired percentile bootstrap of the
//! ratio of medians). It is seeded: the same samples always give the same interval.
//!
//! With few rounds such an interval is too narrow (three rounds fall on one side of one by chance
//! one time in four), so a difference also has to pass a test that is exact for any number of
//! rounds: see [`is_different`].

use serde::Serialize;

use crate::rng::Rng;

/// What the samples of one metric on one path say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many rounds are in it.
    pub rounds: usize,
    /// The middle value.
    pub median: f64,
    /// Lower bound of the median's 95 % bootstrap interval.
    pub median_low: f64,
    /// Upper bound of the median's 95 % bootstrap interval.
    pub median_high: f64,
    /// The quarter of the values below.
    pub quartile_low: f64,
    /// The quarter of the values above.
    pub quartile_high: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl Summary {
    /// The distance between the quartiles: the spread the table shows.
    pub fn spread(&self) -> f64 {
        self.quartile_high - self.quartile_low
    }
}

/// A ratio of two medians with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The ratio of the medians.
    pub value: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl Ratio {
    /// Whether one is a plausible value: the samples do not tell the two paths apart.
    pub fn includes_one(&self) -> bool {
        self.low <= 1.0 && self.high >= 1.0
    }

    /// How far from one this ratio's interval reaches: for two runs of the same path, the noise
    /// floor below which no difference between paths can be believed.
    pub fn reach_from_one(&self) -> f64 {
        (self.low - 1.0).abs().max((self.high - 1.0).abs())
    }
}

/// Summarizes the samples of one path.
pub fn summarize(samples: &[f64], seed: u64) -> Option<Summary> {
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
pub fn ratio(rounds: &[(f64, f64)], seed: u64) -> Option<Ratio> {
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

/// Whether the rounds tell the two paths apart at the 5 % level; `None` when there are too few of
/// them to do so whatever their values.
///
/// From six rounds on this is the Wilcoxon signed-rank test of the paired ratios: under the null
/// hypothesis each ratio is as likely above one as below. Four or five rounds can only be told
/// apart when the two paths do not overlap at all, which has a probability of 2 / C(8, 4) = 2.9 %
/// or less.
pub fn is_different(rounds: &[(f64, f64)]) -> Option<bool> {
    match rounds.len() {
        0..ROUNDS_FOR_SEPARATION => None,
        ROUNDS_FOR_SEPARATION..ROUNDS_FOR_RANKS => Some(are_separate(rounds)),
        _ => Some(signed_rank_p(rounds) <= LEVEL),
    }
}

/// Whether every value of one side is beyond every value of the other.
fn are_separate(rounds: &[(f64, f64)]) -> bool {
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), value| {
            (value.min(min), value.max(max))
        })
    };
    let (base_min, base_max) = range(&mut rounds.iter().map(|round| round.0));
    let (path_min, path_max) = range(&mut rounds.iter().map(|round| round.1));
    path_min > base_max || path_max < base_min
}

/// The two-sided p-value of the Wilcoxon signed-rank test on the logarithms of the ratios; exact,
/// ties included, up to [`ROUNDS_EXACT_MAX`] rounds.
fn signed_rank_p(rounds: &[(f64, f64)]) -> f64 {
    let mut logs: Vec<f64> = rounds
        .iter()
        .map(|(base, path)| (path / base).ln())
        .filter(|log| log.is_finite() && *log != 0.0)
        .collect();
    if logs.is_empty() {
        return 1.0;
    }
    logs.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    // Doubled ranks are whole numbers even where ties share their mean rank.
    let mut ranks = vec![0usize; logs.len()];
    let mut from = 0;
    while from < logs.len() {
        let to = (from..logs.len())
            .take_while(|at| logs[*at].abs() == logs[from].abs())
            .count()
            + from;
        ranks[from..to].fill(from + 1 + to);
        from = to;
    }
    let total: usize = ranks.iter().sum();
    let above: usize = ranks
        .iter()
        .zip(&logs)
        .filter(|(_, log)| **log > 0.0)
        .map(|(rank, _)| rank)
        .sum();
    let smaller = above.min(total - above);
    if logs.len() > ROUNDS_EXACT_MAX {
        let variance = ranks.iter().map(|rank| (rank * rank) as f64).sum::<f64>() / 4.0;
        return normal_tails((total as f64 / 2.0 - smaller as f64) / variance.sqrt());
    }
    // Each rank falls on either side with probability one half: the distribution of their sum.
    let mut chance = vec![0.0; total + 1];
    chance[0] = 1.0;
    for rank in &ranks {
        for sum in (0..=total).rev() {
            let with = if sum >= *rank {
                chance[sum - rank]
            } else {
                0.0
            };
            chance[sum] = (chance[sum] + with) / 2.0;
        }
    }
    (2.0 * chance[..=smaller].iter().sum::<f64>()).min(1.0)
}

/// The probability that a standard normal variable is at least this far from zero (Abramowitz and
/// Stegun 7.1.26, whose error is below 2e-7).
fn normal_tails(distance: f64) -> f64 {
    let x = distance / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let poly = [
        1.061_405_429,
        -1.453_152_027,
        1.421_413_741,
        -0.284_496_736,
        0.254_829_592,
    ]
    .iter()
    .fold(0.0, |sum, coefficient| sum * t + coefficient);
    poly * t * (-x * x).exp()
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
pub const ROUNDS_FOR_INTERVAL: usize = 3;

/// Below this many rounds no outcome is improbable enough to show a difference.
pub const ROUNDS_FOR_SEPARATION: usize = 4;

/// From this many rounds on the signed-rank test can reach the 5 % level: 2 / 2^6 = 3.1 %.
const ROUNDS_FOR_RANKS: usize = 6;

/// Up to this many rounds the exact distribution is computed; beyond, the normal one is as good.
const ROUNDS_EXACT_MAX: usize = 60;

/// How often equal paths may be called different.
const LEVEL: f64 = 0.05;

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

    /// Ratios of `above` rounds beyond one and `below` rounds under it, no two alike.
    fn ratios(above: u32, below: u32) -> Vec<(f64, f64)> {
        let up = (1..=above).map(|i| (1.0, 1.0 + f64::from(i) / 100.0));
        let down = (1..=below).map(|i| (1.0, 1.0 / (1.0 + f64::from(i) / 97.0)));
        up.chain(down).collect()
    }

    #[test]
    fn three_rounds_tell_nothing_and_four_only_when_separate() {
        assert_eq!(is_different(&ratios(3, 0)), None);
        assert_eq!(is_different(&ratios(4, 0)), Some(true));
        let overlapping = [(1.0, 1.1), (1.2, 1.3), (1.1, 1.2), (1.0, 1.1)];
        assert_eq!(is_different(&overlapping), Some(false));
    }

    #[test]
    fn the_signed_rank_test_has_its_tabled_values() {
        // All of n on one side: 2 / 2^n.
        for n in [6, 10] {
            assert!((signed_rank_p(&ratios(n, 0)) - 2.0 / 2f64.powi(n as i32)).abs() < 1e-12);
        }
        // n = 10: rank sums up to 8 are significant at 5 % (two-sided), 9 and more are not.
        let with_rank_sum = |below: &[u32]| -> Vec<(f64, f64)> {
            (1..=10u32)
                .map(|rank| {
                    let distance = 1.0 + f64::from(rank) / 100.0;
                    if below.contains(&rank) {
                        (distance, 1.0)
                    } else {
                        (1.0, distance)
                    }
                })
                .collect()
        };
        assert!(signed_rank_p(&with_rank_sum(&[8])) <= 0.05);
        assert!(signed_rank_p(&with_rank_sum(&[9])) > 0.05);
        assert_eq!(signed_rank_p(&[(1.0, 1.0); 8]), 1.0);
    }

    #[test]
    fn the_normal_tail_joins_the_exact_one() {
        assert!((normal_tails(1.959_964) - 0.05).abs() < 1e-5);
        let exact = signed_rank_p(&ratios(36, 24));
        let normal = signed_rank_p(&ratios(37, 24));
        assert!((exact - normal).abs() < 0.05, "{exact} {normal}");
    }

    #[test]
    fn equal_paths_are_called_different_about_as_often_as_promised() {
        let mut rng = Rng::new(11);
        let mut noise = || (0..12).map(|_| rng.below(1000) as f64).sum::<f64>() / 6000.0 + 1.0;
        let trials = 2000;
        for rounds in [4, 6, 10] {
            let wrong = (0..trials)
                .filter(|_| {
                    let rounds: Vec<(f64, f64)> = (0..rounds).map(|_| (noise(), noise())).collect();
                    is_different(&rounds) == Some(true)
                })
                .count();
            assert!(
                wrong < trials * 6 / 100,
                "{rounds} rounds: {wrong} of {trials}"
            );
        }
    }

    #[test]
    fn two_rounds_or_a_zero_base_have_no_interval() {
        assert_eq!(ratio(&[(1.0, 2.0), (1.0, 2.0)], 1), None);
        assert_eq!(ratio(&[(0.0, 2.0), (0.0, 2.0), (0.0, 2.0)], 1), None);
    }
}
