//! The verdict of a comparison, from its rounds.

use serde::{Deserialize, Serialize};

use crate::metric::Better;
use crate::stats::{self, Ratio};

/// The verdict on a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better than the base.
    Better,
    /// Worse than the base.
    Worse,
    /// The samples do not distinguish the two.
    NoDetectableDifference,
    /// The samples differ, but the base differs from itself by as much.
    WithinNoise,
    /// Too few rounds to tell.
    TooFewRounds,
    /// There is no ratio because the base is zero, or neither direction is an improvement.
    NotComparable,
}

impl Verdict {
    /// The verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::NoDetectableDifference => "no detectable difference",
            Verdict::WithinNoise => "within the noise floor",
            Verdict::TooFewRounds => "too few rounds to tell",
            Verdict::NotComparable => "",
        }
    }

    /// The verdict: a difference needs an interval that does not contain 1, and must exceed the
    /// noise floor.
    pub fn of(
        rounds: &[(f64, f64)],
        ratio: Option<&Ratio>,
        better: Better,
        noise_floor: Option<f64>,
    ) -> Verdict {
        let Some(ratio) = ratio.filter(|_| better != Better::Neither) else {
            return Verdict::NotComparable;
        };
        match stats::is_different(rounds) {
            None => return Verdict::TooFewRounds,
            Some(false) => return Verdict::NoDetectableDifference,
            Some(true) => {}
        }
        // A factor and its inverse are at the same distance from 1.
        let distance = ratio.value.max(1.0 / ratio.value) - 1.0;
        if noise_floor.is_some_and(|floor| distance <= floor) {
            return Verdict::WithinNoise;
        }
        if (ratio.value > 1.0) == (better == Better::Higher) {
            Verdict::Better
        } else {
            Verdict::Worse
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(ratios: &[f64], better: Better, floor: Option<f64>) -> Verdict {
        let rounds: Vec<(f64, f64)> = ratios.iter().map(|&ratio| (1.0, ratio)).collect();
        Verdict::of(&rounds, stats::ratio(&rounds).as_ref(), better, floor)
    }

    #[test]
    fn a_difference_is_judged_by_its_direction_and_its_noise() {
        let higher = [2.0, 2.1, 1.9, 2.0, 2.2, 2.0];
        assert_eq!(verdict(&higher, Better::Higher, None), Verdict::Better);
        assert_eq!(verdict(&higher, Better::Lower, None), Verdict::Worse);
        assert_eq!(
            verdict(&higher, Better::Neither, None),
            Verdict::NotComparable
        );
        assert_eq!(
            verdict(&higher, Better::Higher, Some(1.5)),
            Verdict::WithinNoise
        );
        assert_eq!(
            verdict(&higher[..3], Better::Higher, None),
            Verdict::TooFewRounds
        );
        let even = [0.9, 1.1, 1.0, 0.95, 1.05, 1.2];
        assert_eq!(
            verdict(&even, Better::Higher, None),
            Verdict::NoDetectableDifference
        );
    }

    #[test]
    fn a_twentieth_is_no_noise_however_wide_the_floor_below_two() {
        let lower = [0.05; 6];
        assert_eq!(verdict(&lower, Better::Lower, Some(1.2)), Verdict::Better);
    }
}
