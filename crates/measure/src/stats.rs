//! The statistics of every measurement: medians, spreads, and ratios with an interval.
//!
//! Rounds are interleaved, so round `i` of one arm ran next to round `i` of the other, under equal
//! conditions of the machine. A comparison is therefore only the median of the ratios *within*
//! rounds: a drift of the machine cancels.
//!
//! The interval of a median lies between two of the sorted samples. For any distribution, each
//! sample is below the true median with probability 1/2. So the probability that the interval
//! misses the median is a binomial sum. The interval is exact, needs no resampling, and covers the
//! median in at least 95 of 100 cases. Fewer than [`ROUNDS_FOR_INTERVAL`] samples have no such
//! interval. Then the report shows the minimum and the maximum and marks them as such
//! ([`Kind::Range`]).

use serde::{Deserialize, Serialize};

/// The meaning of an interval's two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An exact interval of at least 95 % confidence.
    Confidence,
    /// Too few samples for an interval: the minimum and maximum.
    Range,
}

/// The interval of a median.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
    /// The meaning of the bounds.
    pub kind: Kind,
}

/// The statistics of one metric's samples on one arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The number of rounds.
    pub rounds: usize,
    /// The middle value.
    pub median: f64,
    /// Lower bound of the median.
    pub median_low: f64,
    /// Upper bound of the median.
    pub median_high: f64,
    /// The meaning of these bounds.
    pub interval: Kind,
    /// The lower quartile.
    pub quartile_low: f64,
    /// The upper quartile.
    pub quartile_high: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl Summary {
    /// The distance between the quartiles, which the table shows as the spread.
    pub fn spread(&self) -> f64 {
        self.quartile_high - self.quartile_low
    }
}

/// The median of the ratios within rounds, with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The median.
    pub value: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
    /// The meaning of the bounds.
    pub interval: Kind,
    /// The number of rounds with samples of both sides.
    pub rounds: usize,
}

impl Ratio {
    /// Whether 1 is inside the interval: the samples do not distinguish the two arms.
    pub fn includes_one(&self) -> bool {
        self.low <= 1.0 && self.high >= 1.0
    }

    /// The largest distance of the interval's ends from 1. For two runs of the same arm, this is
    /// the noise floor: smaller differences between arms are not credible.
    pub fn reach_from_one(&self) -> f64 {
        (self.low - 1.0).abs().max((self.high - 1.0).abs())
    }
}

/// Summarizes the samples of one arm.
pub fn summarize(samples: &[f64]) -> Option<Summary> {
    let interval = median_interval(samples)?;
    Some(Summary {
        rounds: samples.len(),
        median: median(samples),
        median_low: interval.low,
        median_high: interval.high,
        interval: interval.kind,
        quartile_low: quantile(samples, 0.25),
        quartile_high: quantile(samples, 0.75),
        min: quantile(samples, 0.0),
        max: quantile(samples, 1.0),
    })
}

/// The median over rounds of the second value divided by the first.
///
/// `None` without rounds, or when the ratio is not a number because the base is zero.
pub fn ratio(rounds: &[(f64, f64)]) -> Option<Ratio> {
    let ratios: Vec<f64> = rounds.iter().map(|(base, arm)| arm / base).collect();
    if ratios.iter().any(|ratio| !ratio.is_finite()) {
        return None;
    }
    let interval = median_interval(&ratios)?;
    Some(Ratio {
        value: median(&ratios),
        low: interval.low,
        high: interval.high,
        interval: interval.kind,
        rounds: ratios.len(),
    })
}

/// Whether the rounds distinguish the two arms at the 5 % level; `None` when there are too few
/// rounds.
///
/// From six rounds on the exact interval decides: the arms differ if 1 lies outside the interval.
/// Four or five rounds show a difference only if the two arms do not overlap at all. Between equal
/// arms this has a probability of at most 2 / C(8, 4) = 2.9 %.
pub fn is_different(rounds: &[(f64, f64)]) -> Option<bool> {
    match rounds.len() {
        0..ROUNDS_FOR_SEPARATION => None,
        ROUNDS_FOR_SEPARATION..ROUNDS_FOR_INTERVAL => are_separate(rounds).then_some(true),
        _ => ratio(rounds).map(|ratio| !ratio.includes_one()),
    }
}

/// Whether all values of one side are above, or all are below, the values of the other.
fn are_separate(rounds: &[(f64, f64)]) -> bool {
    let (base, arm): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
    let ends = |values: &[f64]| (quantile(values, 0.0), quantile(values, 1.0));
    let ((base_min, base_max), (arm_min, arm_max)) = (ends(&base), ends(&arm));
    arm_min > base_max || arm_max < base_min
}

/// The samples between which the true median lies; `None` without samples.
pub fn median_interval(samples: &[f64]) -> Option<Interval> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let outside = outside(sorted.len());
    Some(Interval {
        low: sorted[outside.unwrap_or(0)],
        high: sorted[last - outside.unwrap_or(0)],
        kind: if outside.is_some() {
            Kind::Confidence
        } else {
            Kind::Range
        },
    })
}

/// The number of `count` samples that can be left out at each end of a 95 % interval; `None` when
/// even all samples are too few.
fn outside(count: usize) -> Option<usize> {
    // The probability that exactly `at` samples are below the median, and that at most `at` are.
    let mut chance = 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let (mut at, mut tail) = (0, chance);
    let mut best = None;
    while tail <= TAIL && 2 * at < count {
        best = Some(at);
        chance *= (count - at) as f64 / (at + 1) as f64;
        tail += chance;
        at += 1;
    }
    best
}

/// The middle of the samples; NaN without samples.
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// The quantile for `part`: linear between neighbouring samples, NaN without samples.
pub fn quantile(samples: &[f64], part: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = part.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

/// The samples of one metric in the order of the rounds; a failed round leaves a gap.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Samples(Vec<Option<f64>>);

impl Samples {
    /// Stores the sample of a round.
    pub fn set(&mut self, round: usize, value: Option<f64>) {
        if self.0.len() <= round {
            self.0.resize(round + 1, None);
        }
        self.0[round] = value.filter(|value| value.is_finite());
    }

    /// The existing samples.
    pub fn values(&self) -> Vec<f64> {
        self.0.iter().flatten().copied().collect()
    }

    /// One entry for each round, `None` for gaps.
    pub fn rounds(&self) -> &[Option<f64>] {
        &self.0
    }

    /// The number of existing samples.
    pub fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// True when there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The median; NaN without samples.
    pub fn median(&self) -> f64 {
        median(&self.values())
    }

    /// Pairs of both samples, of rounds in which both arms were measured.
    pub fn pairs(&self, arm: &Samples) -> Vec<(f64, f64)> {
        let rounds = self.0.iter().zip(&arm.0);
        rounds.filter_map(|(base, arm)| (*base).zip(*arm)).collect()
    }

    /// The ratio of these samples to the base's, within rounds.
    pub fn ratio_to(&self, base: &Samples) -> Option<Ratio> {
        ratio(&base.pairs(self))
    }

    /// Half the distance between the quartiles, relative to the median: about two thirds of a
    /// standard deviation, and not affected by a few outliers.
    pub fn spread(&self) -> f64 {
        let values = self.values();
        let middle = median(&values);
        if middle == 0.0 {
            return 0.0;
        }
        ((quantile(&values, 0.75) - quantile(&values, 0.25)) / 2.0 / middle).abs()
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Samples {
        Samples(values.into_iter().map(Some).collect())
    }
}

/// With fewer rounds no outcome is improbable enough to show a difference.
pub const ROUNDS_FOR_SEPARATION: usize = 4;

/// With at least this many samples a median has an exact 95 % interval: 2 / 2^6 = 3.1 %.
pub const ROUNDS_FOR_INTERVAL: usize = 6;

/// The probability on each side of a 95 % interval.
const TAIL: f64 = 0.025;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn median_and_quartiles_interpolate() {
        let summary = summarize(&[4.0, 1.0, 3.0, 2.0]).expect("samples");
        assert_eq!(summary.median, 2.5);
        assert_eq!((summary.quartile_low, summary.quartile_high), (1.75, 3.25));
        assert_eq!((summary.min, summary.max), (1.0, 4.0));
        assert_eq!(summary.spread(), 1.5);
        assert_eq!(summarize(&[]), None);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn the_interval_of_a_median_leaves_out_what_a_coin_would() {
        let of = |count: i32| {
            let samples: Vec<f64> = (1..=count).map(f64::from).collect();
            let Interval { low, high, kind } = median_interval(&samples).expect("samples");
            (low, high, kind)
        };
        // In 15 trials, at most 3 samples are on one side in 1.8 % of all cases, at most 4 in 5.9
        // %.
        assert_eq!(of(15), (4.0, 12.0, Kind::Confidence));
        // In 8 trials, none in 0.4 %, at most one in 3.5 %.
        assert_eq!(of(8), (1.0, 8.0, Kind::Confidence));
        assert_eq!(of(9), (2.0, 8.0, Kind::Confidence));
        assert_eq!(of(6), (1.0, 6.0, Kind::Confidence));
    }

    #[test]
    fn below_six_samples_an_interval_is_called_least_to_most() {
        for count in 1..ROUNDS_FOR_INTERVAL {
            let samples: Vec<f64> = (0..count).map(|at| at as f64).collect();
            let interval = median_interval(&samples).expect("samples");
            assert_eq!(interval.kind, Kind::Range);
            assert_eq!((interval.low, interval.high), (0.0, count as f64 - 1.0));
        }
        assert_eq!(median_interval(&[]), None);
    }

    #[test]
    fn equal_arms_are_not_distinguished() {
        let rounds: Vec<(f64, f64)> = (0..10)
            .map(|i| (100.0 + f64::from(i % 3), 100.0 + f64::from((i + 1) % 3)))
            .collect();
        let ratio = ratio(&rounds).expect("enough rounds");
        assert!(ratio.includes_one(), "{ratio:?}");
        assert!(ratio.reach_from_one() < 0.03);
    }

    #[test]
    fn a_drift_shared_by_both_arms_cancels() {
        // The machine slows down to a quarter during the run; the arms always differ by a tenth.
        let rounds: Vec<(f64, f64)> = (0..12)
            .map(|i| {
                let speed = 1.0 - f64::from(i) / 16.0;
                (100.0 * speed, 110.0 * speed)
            })
            .collect();
        let ratio = ratio(&rounds).expect("enough rounds");
        assert!((ratio.low - 1.1).abs() < 1e-9 && (ratio.high - 1.1).abs() < 1e-9);
    }

    #[test]
    fn three_rounds_tell_nothing_and_four_only_when_separate() {
        let above = |count: i32| -> Vec<(f64, f64)> {
            (1..=count).map(|i| (1.0, 1.0 + f64::from(i))).collect()
        };
        assert_eq!(is_different(&above(3)), None);
        assert_eq!(is_different(&above(4)), Some(true));
        let overlapping = [(1.0, 1.1), (1.2, 1.3), (1.1, 1.2), (1.0, 1.1)];
        assert_eq!(is_different(&overlapping), None);
        assert_eq!(is_different(&above(6)), Some(true));
    }

    #[test]
    fn equal_arms_are_called_different_about_as_often_as_promised() {
        let mut rng = Rng::new(11);
        let mut noise = || (0..12).map(|_| rng.below(1000) as f64).sum::<f64>() / 6000.0 + 1.0;
        let trials = 2000;
        for rounds in [4, 6, 10, 15] {
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
    fn a_zero_base_has_no_ratio() {
        assert_eq!(ratio(&[(0.0, 2.0), (0.0, 2.0), (0.0, 2.0)]), None);
        assert_eq!(ratio(&[]), None);
    }

    #[test]
    fn a_gap_takes_its_pair_out_of_the_ratio() {
        let mut base: Samples = [1.0, 10.0, 2.0].into_iter().collect();
        let arm: Samples = [2.0, 20.0, 6.0].into_iter().collect();
        assert_eq!(arm.ratio_to(&base).expect("pairs").value, 2.0);
        base.set(1, None);
        let ratio = arm.ratio_to(&base).expect("pairs");
        assert_eq!((ratio.low, ratio.high, ratio.rounds), (2.0, 3.0, 2));
        base.set(4, Some(f64::NAN));
        assert_eq!((base.len(), base.rounds().len()), (2, 5));
    }

    #[test]
    fn one_wild_sample_does_not_move_the_spread() {
        let calm: Samples = [10.0, 11.0, 10.0, 9.0, 10.0, 10.0, 11.0]
            .into_iter()
            .collect();
        let wild: Samples = [10.0, 11.0, 10.0, 9.0, 10.0, 10.0, 9999.0]
            .into_iter()
            .collect();
        assert!((calm.spread() - wild.spread()).abs() < 0.05);
    }
}
