//! The findings of an experiment.

use serde::Serialize;
use toehold_measure::environment::Environment;
use toehold_measure::stats::Samples;

use crate::published::Published;

/// An experiment's result, and its JSON form.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The plan's name.
    pub plan: &'static str,
    /// The question that the plan answers.
    pub about: &'static str,
    /// The form of this report; it changes when readers must change.
    pub schema: &'static str,
    /// The machine and the time.
    pub environment: Environment,
    /// Rounds that were taken.
    pub rounds: usize,
    /// This host's measurements.
    pub rows: Vec<Row>,
    /// The claims, and whether they hold.
    pub claims: Vec<Claim>,
    /// Published numbers of this experiment, from other machines.
    pub published: Vec<Published>,
    /// Further notes for the reader.
    pub notes: Vec<String>,
}

/// An aim of the experiment, and its result.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Claim {
    /// The aim.
    pub wanted: String,
    /// The result.
    pub found: String,
    /// Whether the result meets the aim.
    pub verdict: ClaimStatus,
}

/// The samples' verdict on an aim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimStatus {
    /// The aim is reached by the whole interval.
    Holds,
    /// The samples do not decide.
    Undecided,
    /// The aim is missed, or was not measured.
    Missed,
}

impl ClaimStatus {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            ClaimStatus::Holds => "holds",
            ClaimStatus::Undecided => "undecided",
            ClaimStatus::Missed => "does not hold",
        }
    }
}

/// One metric of one case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The part of the experiment.
    pub group: &'static str,
    /// The measured engine or system.
    pub series: String,
    /// The position on the group's axis.
    pub x: f64,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The median of the samples.
    pub median: f64,
    /// Half the distance of the quartiles, as a part of the median.
    pub spread: f64,
    /// The samples, in the order of the rounds.
    pub samples: Samples,
}

impl Report {
    /// Every sample, a line each.
    pub fn csv(&self) -> String {
        let mut out = String::from("group,series,x,metric,unit,round,value\n");
        for row in &self.rows {
            for (round, sample) in row.samples.rounds().iter().enumerate() {
                let value = sample.map_or(String::new(), |sample| sample.to_string());
                out.push_str(&format!(
                    "\"{}\",\"{}\",{},\"{}\",\"{}\",{},{value}\n",
                    row.group,
                    row.series,
                    row.x,
                    row.metric,
                    row.unit,
                    round + 1
                ));
            }
        }
        out
    }

    /// The rows of a group's metric.
    pub fn rows_of<'a>(
        &'a self,
        group: &'a str,
        metric: &'a str,
    ) -> impl Iterator<Item = &'a Row> + 'a {
        self.rows
            .iter()
            .filter(move |row| row.group == group && row.metric == metric)
    }

    /// The median of one cell, if it was measured.
    pub fn median(&self, group: &str, series: &str, metric: &str, x: f64) -> Option<f64> {
        self.rows_of(group, metric)
            .find(|row| row.series == series && row.x == x)
            .map(|row| row.median)
    }
}
