//! Samples and what can be said about them.

use serde::Serialize;

/// The samples of one metric of one case, in the order in which they were taken.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds one.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The median.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The value that this part of the samples stays below: linear between neighbours, NaN without
    /// samples.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else {
            return f64::NAN;
        };
        let place = part.clamp(0.0, 1.0) * last as f64;
        let (below, above) = (place.floor() as usize, place.ceil() as usize);
        sorted[below] + (sorted[above] - sorted[below]) * place.fract()
    }

    /// Sample by sample, how many times as large these are as the others taken in the same rounds.
    pub fn ratios_to(&self, others: &Samples) -> Samples {
        self.0.iter().zip(&others.0).map(|(a, b)| a / b).collect()
    }

    /// Between which two samples the true median lies in at least 95 of 100 cases, whatever the
    /// distribution: each sample falls below it as a coin falls. Fewer than six samples cannot
    /// tell; then it is the least and the greatest.
    pub fn median_interval(&self) -> (f64, f64) {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else {
            return (f64::NAN, f64::NAN);
        };
        // The chance that exactly `outside` samples fall below, and that at most so many do.
        let mut chance = 0.5f64.powi(sorted.len() as i32);
        let (mut outside, mut tail) = (0, chance);
        loop {
            chance *= (sorted.len() - outside) as f64 / (outside + 1) as f64;
            tail += chance;
            if tail > 0.025 || 2 * (outside + 1) > last {
                return (sorted[outside], sorted[last - outside]);
            }
            outside += 1;
        }
    }

    /// Half of what lies between the quartiles, as a part of the median: about two thirds of a
    /// standard deviation, and untouched by a few wild samples.
    pub fn spread(&self) -> f64 {
        let (low, high) = (self.quantile(0.25), self.quantile(0.75));
        let median = self.median();
        if median == 0.0 {
            0.0
        } else {
            ((high - low) / 2.0 / median).abs()
        }
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Samples {
        Samples(values.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_between_neighbours() {
        let samples: Samples = [4.0, 1.0, 3.0, 2.0].into_iter().collect();
        assert_eq!(samples.median(), 2.5);
        assert_eq!(samples.quantile(0.0), 1.0);
        assert_eq!(samples.quantile(1.0), 4.0);
        assert_eq!(samples.quantile(0.25), 1.75);
        assert!(Samples::default().median().is_nan());
    }

    #[test]
    fn the_interval_of_a_median_leaves_out_what_a_coin_would() {
        // Of 15 coins at most 3 fall on one side in 1.8 % of all cases, at most 4 in 5.9 %.
        let fifteen: Samples = (1..=15).map(f64::from).collect();
        assert_eq!(fifteen.median_interval(), (4.0, 12.0));
        // Of 8, none in 0.4 %, at most one in 3.5 %.
        let eight: Samples = (1..=8).map(f64::from).collect();
        assert_eq!(eight.median_interval(), (1.0, 8.0));
        let nine: Samples = (1..=9).map(f64::from).collect();
        assert_eq!(nine.median_interval(), (2.0, 8.0));
        let one: Samples = [7.0].into_iter().collect();
        assert_eq!(one.median_interval(), (7.0, 7.0));
        assert!(Samples::default().median_interval().0.is_nan());
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let slow: Samples = [2.0, 20.0, 6.0].into_iter().collect();
        let fast: Samples = [1.0, 10.0, 2.0].into_iter().collect();
        assert_eq!(slow.ratios_to(&fast), [2.0, 2.0, 3.0].into_iter().collect());
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
