//! A run on disk: its plan, its environment, and every sample. Written after each round, so that an
//! interrupted run can be resumed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toehold_measure::environment::Environment;
use toehold_measure::stats::Samples;

use super::headline::Headline;
use super::plan_file::PlanFile;
use crate::error::LabError;
use crate::generator::Outcome;

/// A run, finished or not, and its JSON form.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Names this form of the document.
    pub schema: String,
    /// The plan, as it was run.
    pub plan: PlanFile,
    /// The command that began it.
    pub command: String,
    /// The machine and the time.
    pub environment: Environment,
    /// The seed of the order of the samples.
    pub seed: u64,
    /// Rounds that are finished.
    pub rounds_done: usize,
    /// Every sample.
    pub samples: Vec<Sample>,
    /// Arms whose connections all stayed on the kernel, although they should not have.
    pub stayed: Vec<String>,
    /// Part of the measured time that other programs or the hypervisor took, round by round.
    pub steal: Vec<f64>,
    /// Arms that are not possible on this machine or for this user.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// Crossings of each operation, where the plan asks.
    #[serde(default)]
    pub crossings: Vec<Crossing>,
}

/// An arm without samples.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Missing {
    /// Its name.
    pub arm: String,
    /// One sentence.
    pub why: String,
}

/// One sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Counted from zero.
    pub round: usize,
    /// Which block of the plan.
    pub block: usize,
    /// The level of its factor.
    pub x: f64,
    /// The arm's name.
    pub arm: String,
    /// The generator's measurements.
    pub outcome: Option<Outcome>,
    /// The reason if there is no value.
    pub failure: Option<String>,
}

/// Counts of one arm at the first point of a block.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Crossing {
    /// Which block of the plan.
    pub block: usize,
    /// The arm's name.
    pub arm: String,
    /// Operations that were counted.
    pub operations: u64,
    /// System calls of the client.
    pub calls_client: Option<u64>,
    /// System calls of the server.
    pub calls_server: Option<u64>,
    /// Doorbells that both ends rang, for each operation.
    pub doorbells: Option<f64>,
    /// Frames on the link, in both directions.
    pub frames: Option<u64>,
    /// Misses of the client in a simulated first-level data cache, and in the last level, for each
    /// operation.
    pub misses: Option<(f64, f64)>,
}

impl Record {
    /// The values of a metric on one arm at one point, by round.
    pub fn samples(&self, block: usize, x: f64, arm: &str, metric: Headline) -> Samples {
        let mut samples = Samples::default();
        for sample in &self.samples {
            if sample.block == block && sample.x == x && sample.arm == arm {
                let value = sample
                    .outcome
                    .as_ref()
                    .and_then(|outcome| metric.of(outcome));
                samples.set(sample.round, value);
            }
        }
        samples
    }

    /// The names of all arms, the base's second one included.
    pub fn arms(&self) -> Vec<String> {
        let again = again(&self.plan);
        let mut names: Vec<String> = self.plan.arms.iter().map(|arm| arm.name.clone()).collect();
        names.push(again);
        names
    }

    /// Every sample, a line each.
    pub fn csv(&self) -> String {
        let mut out = String::from("block,x,arm,round,metric,value\n");
        for sample in &self.samples {
            let Some(outcome) = &sample.outcome else {
                continue;
            };
            for metric in Headline::ALL {
                if let Some(value) = metric.of(outcome) {
                    out.push_str(&format!(
                        "\"{}\",{},\"{}\",{},\"{}\",{value}\n",
                        self.plan.blocks[sample.block].title,
                        sample.x,
                        sample.arm,
                        sample.round + 1,
                        metric.label()
                    ));
                }
            }
        }
        out
    }

    /// Whether all rounds are there.
    pub fn is_finished(&self) -> bool {
        self.rounds_done >= self.plan.rounds
    }

    /// Writes a new file, then renames it over the old one: a full disk leaves the old file.
    ///
    /// # Errors
    ///
    /// One sentence.
    pub fn save(&self, folder: &Path) -> Result<(), LabError> {
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(folder)?;
            let next = folder.join("run.json.next");
            let mut file = fs::File::create(&next)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.sync_all()?;
            fs::rename(next, folder.join(FILE))
        };
        write().map_err(|error| {
            LabError::new(format!(
                "cannot keep the run in {}: {error}; its last checkpoint has the rounds before",
                folder.display()
            ))
        })
    }

    /// Reads a run from its folder or file.
    ///
    /// # Errors
    ///
    /// One sentence.
    pub fn load(place: &Path) -> Result<Record, LabError> {
        let file: PathBuf = if place.is_dir() {
            place.join(FILE)
        } else {
            place.to_owned()
        };
        let text = fs::read_to_string(&file)
            .map_err(|error| LabError::usage(format!("cannot read {}: {error}", file.display())))?;
        let record: Record = serde_json::from_str(&text).map_err(|error| {
            LabError::usage(format!(
                "{} is not a run of the lab: {error}",
                file.display()
            ))
        })?;
        if record.schema != SCHEMA {
            return Err(LabError::usage(format!(
                "{} has the form {}, and this program reads {SCHEMA}",
                file.display(),
                record.schema
            )));
        }
        Ok(record)
    }
}

/// The base's second arm, for the noise floor.
pub(crate) fn again(plan: &PlanFile) -> String {
    format!("{} again", plan.arms[0].name)
}

/// The form of a [`Record`].
pub(crate) const SCHEMA: &str = "toehold-lab-run/1";

const FILE: &str = "run.json";
