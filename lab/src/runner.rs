//! Takes a plan's samples: every case once per round, in a new order each round. After each round
//! the samples can be stored in a file, from which an interrupted run continues.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toehold_measure::environment::Environment;
use toehold_measure::rng::Rng;
use toehold_measure::stats::Samples;

use crate::error::LabError;
use crate::plan::{Case, Plan, Reading};
use crate::published::published_of;
use crate::report::{Report, Row};

/// The settings with which a plan is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rounds. At least one.
    pub rounds: usize,
    /// Fewer points.
    pub quick: bool,
    /// The seed of the order of the cases.
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

/// Runs a plan. Continues from the file `kept`, if it exists and belongs to an equal run.
/// `progress` is called after every round.
///
/// # Errors
///
/// One sentence: the file cannot be written.
pub(crate) fn run(
    plan: &mut dyn Plan,
    options: Options,
    kept: Option<&Path>,
    mut progress: impl FnMut(usize, usize),
) -> Result<Report, LabError> {
    let rounds = options.rounds.max(1);
    let cases = plan.cases(options.quick);
    let mut state = kept
        .and_then(|file| Progress::load(file, plan.name(), options))
        .unwrap_or_else(|| Progress::new(plan.name(), options));
    for round in state.rounds_done..rounds {
        // Resumed rounds have the order that an uninterrupted run would have had.
        let mut order: Vec<usize> = (0..cases.len()).collect();
        Rng::new(options.seed.wrapping_add(round as u64)).shuffle(&mut order);
        for at in order {
            match plan.sample(&cases[at]) {
                Ok(readings) => {
                    for (column, reading) in readings.into_iter().enumerate() {
                        state.add(round, (at, column), &reading);
                    }
                }
                Err(why) => {
                    state.failures.entry(at).or_insert(why);
                }
            }
        }
        state.rounds_done = round + 1;
        if let Some(file) = kept {
            state.save(file)?;
        }
        progress(round + 1, rounds);
    }
    Ok(report(plan, &cases, state))
}

fn report(plan: &dyn Plan, cases: &[Case], state: Progress) -> Report {
    let mut notes = plan.notes();
    notes.extend(state.failures.iter().map(|(&at, why)| {
        let Case { group, series, x } = &cases[at];
        format!("{group}, {series}, {x}: {why}")
    }));
    let mut report = Report {
        plan: plan.name(),
        about: plan.about(),
        schema: "toehold-lab/1",
        environment: state.environment,
        rounds: state.rounds_done,
        rows: state
            .cells
            .into_iter()
            .map(|cell| cell.into_row(cases))
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

/// An unfinished or finished run, and the form of its file.
#[derive(Serialize, Deserialize)]
struct Progress {
    schema: String,
    plan: String,
    quick: bool,
    seed: u64,
    environment: Environment,
    rounds_done: usize,
    cells: Vec<Cell>,
    failures: BTreeMap<usize, String>,
}

impl Progress {
    fn new(plan: &str, options: Options) -> Progress {
        Progress {
            schema: SCHEMA.to_owned(),
            plan: plan.to_owned(),
            quick: options.quick,
            seed: options.seed,
            environment: Environment::capture(),
            rounds_done: 0,
            cells: Vec::new(),
            failures: BTreeMap::new(),
        }
    }

    /// `None` if the file is missing, or belongs to another run.
    fn load(file: &Path, plan: &str, options: Options) -> Option<Progress> {
        let state: Progress = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
        let is_one = state.schema == SCHEMA && state.plan == plan;
        let is_alike = (state.quick, state.seed) == (options.quick, options.seed);
        (is_one && is_alike).then_some(state)
    }

    /// Writes a new file, then renames it over the old one: a full disk leaves the old file.
    fn save(&self, file: &Path) -> Result<(), LabError> {
        let write = || -> std::io::Result<()> {
            if let Some(folder) = file.parent() {
                fs::create_dir_all(folder)?;
            }
            let next = file.with_extension("next");
            fs::write(&next, serde_json::to_vec(self)?)?;
            fs::rename(next, file)
        };
        write().map_err(|error| {
            LabError::new(format!(
                "cannot keep the run in {}: {error}",
                file.display()
            ))
        })
    }

    fn add(&mut self, round: usize, (case, column): (usize, usize), reading: &Reading) {
        let place = |cell: &Cell| (cell.case, cell.column).cmp(&(case, column));
        let at = match self.cells.binary_search_by(place) {
            Ok(at) => at,
            Err(at) => {
                let cell = Cell {
                    case,
                    column,
                    metric: reading.metric.to_owned(),
                    unit: reading.unit.to_owned(),
                    samples: Samples::default(),
                };
                self.cells.insert(at, cell);
                at
            }
        };
        let cell = &mut self.cells[at];
        assert_eq!(
            cell.metric, reading.metric,
            "a case's metrics keep their order"
        );
        cell.samples.set(round, Some(reading.value));
    }
}

/// The samples of one metric of a case.
#[derive(Serialize, Deserialize)]
struct Cell {
    case: usize,
    column: usize,
    metric: String,
    unit: String,
    samples: Samples,
}

impl Cell {
    fn into_row(self, cases: &[Case]) -> Row {
        let case = &cases[self.case];
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

/// The form of a [`Progress`].
const SCHEMA: &str = "toehold-lab-progress/1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Figure;

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
    fn every_case_is_sampled_once_a_round_and_a_failing_one_is_reported() {
        let mut plan = Counting { taken: Vec::new() };
        let options = Options {
            rounds: 5,
            ..Options::default()
        };
        let report = run(&mut plan, options, None, |_, _| ()).expect("nothing is kept");
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
            None,
            |_, _| (),
        )
        .expect("nothing is kept");
        let rounds: Vec<&[f64]> = plan.taken[6..].chunks(2).collect();
        assert!(rounds.iter().any(|round| round != &rounds[0]));
    }

    #[test]
    fn a_run_that_was_cut_short_goes_on_from_its_file() {
        let folder = tempfile::tempdir().expect("room");
        let file = folder.path().join("kept.json");
        let of = |rounds| Options {
            rounds,
            ..Options::default()
        };
        let mut plan = Counting { taken: Vec::new() };
        run(&mut plan, of(2), Some(&file), |_, _| ()).expect("room");
        // A second process, which has taken no sample.
        let mut plan = Counting { taken: Vec::new() };
        let report = run(&mut plan, of(5), Some(&file), |_, _| ()).expect("room");
        assert_eq!((report.rounds, plan.taken.len()), (5, 9));
        assert_eq!(report.rows[0].samples.len(), 5);
        // The second process reports a failure of the first one.
        assert!(report.notes.contains(&"all, s1, 1: gone".to_owned()));
        let other = Options { seed: 2, ..of(1) };
        let mut plan = Counting { taken: Vec::new() };
        run(&mut plan, other, Some(&file), |_, _| ()).expect("room");
        assert_eq!(plan.taken.len(), 3, "the file is of another run");
        fs::create_dir(file.with_extension("next")).expect("room");
        let error = run(&mut plan, of(1), Some(&file), |_, _| ()).expect_err("no place");
        assert!(error.sentence.contains("cannot keep"), "{error:?}");
    }
}
