//! Takes a plan's samples: every case once a round, in another order each round.

use std::collections::BTreeMap;

use toehold_measure::environment::Environment;
use toehold_measure::rng::Rng;
use toehold_measure::stats::Samples;

use crate::plan::{Case, Plan};
use crate::published::published_of;
use crate::report::{Report, Row};

/// How to run a plan.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rounds. At least one.
    pub rounds: usize,
    /// Fewer points.
    pub quick: bool,
    /// Decides the order of the cases.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            rounds: 15,
            quick: false,
            seed: 1,
        }
    }
}

impl Options {
    /// Fewer points and rounds: a look, not a measurement to publish.
    pub fn quick() -> Options {
        Options {
            rounds: 5,
            quick: true,
            ..Options::default()
        }
    }
}

/// Runs a plan. `progress` is told after every round.
pub(crate) fn run(
    plan: &mut dyn Plan,
    options: Options,
    mut progress: impl FnMut(usize, usize),
) -> Report {
    let rounds = options.rounds.max(1);
    let environment = Environment::capture();
    let cases = plan.cases(options.quick);
    let mut cells: BTreeMap<(usize, usize), Cell> = BTreeMap::new();
    let mut failures: BTreeMap<usize, String> = BTreeMap::new();
    let mut order: Vec<usize> = (0..cases.len()).collect();
    let mut random = Rng::new(options.seed);
    for round in 0..rounds {
        random.shuffle(&mut order);
        for &at in &order {
            match plan.sample(&cases[at]) {
                Ok(readings) => {
                    for (column, reading) in readings.into_iter().enumerate() {
                        let cell = cells.entry((at, column)).or_insert(Cell {
                            metric: reading.metric,
                            unit: reading.unit,
                            samples: Samples::default(),
                        });
                        assert_eq!(
                            cell.metric, reading.metric,
                            "a case's metrics keep their order"
                        );
                        cell.samples.set(round, Some(reading.value));
                    }
                }
                Err(why) => {
                    failures.entry(at).or_insert(why);
                }
            }
        }
        progress(round + 1, rounds);
    }
    let mut notes = plan.notes();
    notes.extend(failures.iter().map(|(&at, why)| {
        let Case { group, series, x } = &cases[at];
        format!("{group}, {series}, {x}: {why}")
    }));
    let mut report = Report {
        plan: plan.name(),
        about: plan.about(),
        schema: "toehold-lab/1",
        environment,
        rounds,
        rows: cells
            .into_iter()
            .map(|((at, _), cell)| cell.into_row(&cases[at]))
            .collect(),
        claims: Vec::new(),
        published: plan.published_as().map(published_of).unwrap_or_default(),
        notes,
    };
    let mut published = std::mem::take(&mut report.published);
    for result in &mut published {
        result.here = plan.beside(result, &report);
    }
    report.published = published;
    report.claims = plan.claims(&report);
    report
}

struct Cell {
    metric: &'static str,
    unit: &'static str,
    samples: Samples,
}

impl Cell {
    fn into_row(self, case: &Case) -> Row {
        Row {
            group: case.group,
            series: case.series.clone(),
            x: case.x,
            metric: self.metric,
            unit: self.unit,
            median: self.samples.median(),
            spread: self.samples.spread(),
            samples: self.samples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Figure, Reading};

    /// Counts its samples; its second case fails in the second round.
    struct Counting {
        taken: Vec<f64>,
    }

    impl Plan for Counting {
        fn name(&self) -> &'static str {
            "counting"
        }
        fn about(&self) -> &'static str {
            "Counts."
        }
        fn published_as(&self) -> Option<&'static str> {
            None
        }
        fn cases(&self, _quick: bool) -> Vec<Case> {
            (0..3)
                .map(|i| Case::new("all", format!("s{i}"), f64::from(i)))
                .collect()
        }
        fn sample(&mut self, case: &Case) -> Result<Vec<Reading>, String> {
            let earlier = self.taken.iter().filter(|&&x| x == case.x).count();
            self.taken.push(case.x);
            if case.x == 1.0 && earlier == 1 {
                return Err("gone".to_owned());
            }
            let value = case.x * 10.0 + earlier as f64;
            Ok(vec![
                Reading::new("a", "us", value),
                Reading::new("b", "%", 1.0),
            ])
        }
        fn figures(&self) -> Vec<Figure> {
            Vec::new()
        }
        fn notes(&self) -> Vec<String> {
            vec!["a note".to_owned()]
        }
    }

    #[test]
    fn every_case_is_sampled_once_a_round_and_a_failing_one_is_told() {
        let mut plan = Counting { taken: Vec::new() };
        let options = Options {
            rounds: 5,
            ..Options::default()
        };
        let report = run(&mut plan, options, |_, _| ());
        assert_eq!(plan.taken.len(), 15);
        assert_eq!(report.median("all", "s2", "a", 2.0), Some(22.0));
        let failed = &report.rows[2];
        assert_eq!((failed.series.as_str(), failed.samples.len()), ("s1", 4));
        assert_eq!(failed.samples.rounds()[1], None);
        assert_eq!(report.rows.len(), 6);
        assert_eq!(report.notes, ["a note", "all, s1, 1: gone"]);
    }

    #[test]
    fn rounds_differ_in_order() {
        let mut plan = Counting { taken: Vec::new() };
        run(
            &mut plan,
            Options {
                rounds: 8,
                ..Options::default()
            },
            |_, _| (),
        );
        let rounds: Vec<&[f64]> = plan.taken[6..].chunks(2).collect();
        assert!(rounds.iter().any(|round| round != &rounds[0]));
    }
}
