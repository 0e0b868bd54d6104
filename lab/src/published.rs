//! Published results of others: the data file, and the rows of one experiment.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// One published result.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
pub struct Published {
    /// The result's number in the data file.
    pub id: String,
    /// The experiment that the result belongs to.
    #[serde(default)]
    pub experiment: String,
    /// The place in the paper.
    #[serde(default)]
    pub figure: String,
    /// The systems that were compared.
    #[serde(default)]
    pub system: String,
    /// The measured quantity.
    #[serde(default)]
    pub metric: String,
    /// The unit.
    #[serde(default)]
    pub unit: String,
    /// A number, a list, or a short text.
    pub value: Value,
    /// The conditions of the measurement.
    #[serde(default)]
    pub conditions: String,
    /// A measurement, a claim, an ordering...
    #[serde(default)]
    pub kind: String,
    /// This host's result. Not in the data file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub here: Option<String>,
}

/// A published value with its published precision.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A number.
    Number(f64),
    /// Words: an ordering, a trend.
    Text(String),
    /// A range or a set.
    List(Vec<Value>),
    /// Yes or no.
    Truth(bool),
    /// Parts with names.
    Named(std::collections::BTreeMap<String, Value>),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => f.write_str(text),
            Value::Truth(truth) => write!(f, "{truth}"),
            Value::List(values) => {
                let parts: Vec<String> = values.iter().map(|value| value.to_string()).collect();
                f.write_str(&parts.join(", "))
            }
            Value::Named(values) => {
                let parts: Vec<String> = values
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}"))
                    .collect();
                f.write_str(&parts.join(", "))
            }
        }
    }
}

/// The published numbers of this experiment, in the order of the data file.
pub fn published_of(experiment: &str) -> Vec<Published> {
    let results = FILE.results.iter();
    let results = results.filter(|result| result.experiment == experiment);
    results.cloned().collect()
}

/// The published number with this name.
pub(crate) fn published_with(id: &str) -> Option<Published> {
    let mut results = FILE.results.iter();
    results.find(|result| result.id == id).cloned()
}

/// A text of the literature.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(crate) struct Source {
    /// Its name in the data file.
    pub(crate) id: String,
    /// The title as published.
    pub(crate) title: String,
    /// Their family names, or who publishes it.
    pub(crate) authors: String,
    /// The conference or journal, and the year.
    #[serde(rename = "where")]
    pub(crate) place: String,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}; {})", self.title, self.authors, self.place)
    }
}

/// An experiment of the literature.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Experiment {
    /// Its name in the data file.
    pub id: String,
    /// [`Source::id`].
    pub source: String,
    /// The place in the paper.
    pub figure: String,
    /// The workload that was measured.
    pub workload: String,
}

/// Every experiment of the papers, in their order.
pub fn experiments() -> Vec<Experiment> {
    FILE.experiments.clone()
}

/// Each text that has experiments or numbers here.
pub(crate) fn sources() -> Vec<Source> {
    FILE.sources.clone()
}

/// For experiments without a plan here: where they are, or the reason why they are missing.
pub fn elsewhere() -> Vec<(String, String)> {
    let file: std::collections::BTreeMap<String, String> =
        toml::from_str(ELSEWHERE).expect("the file is read by a test");
    file.into_iter().collect()
}

/// The data file, read once.
static FILE: LazyLock<File> =
    LazyLock::new(|| serde_yaml_ng::from_str(DATA).expect("the data file is read by a test"));

#[derive(Deserialize)]
struct File {
    sources: Vec<Source>,
    experiments: Vec<Experiment>,
    results: Vec<Published>,
}

const ELSEWHERE: &str = include_str!("../data/elsewhere.toml");

const DATA: &str = include_str!("../data/published.yaml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_file_is_read_whole() {
        let file: File = serde_yaml_ng::from_str(DATA).unwrap();
        assert_eq!(file.results.len(), DATA.matches("\n- id: P").count());
    }

    #[test]
    fn figure_6_is_there() {
        let rows = published_of("IOAT-COPY");
        let overlap = rows.iter().find(|row| row.id == "P026").unwrap();
        assert_eq!(overlap.value, Value::Number(93.0));
        assert_eq!(overlap.conditions, "64 KB");
    }
}
