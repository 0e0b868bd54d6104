//! The metrics of a round.

use serde::Serialize;

/// Which direction is an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better: throughput.
    Higher,
    /// Less is better: time, cost.
    Lower,
    /// It describes how something was done, not how well.
    Neither,
}

impl Better {
    /// The words of the table.
    pub fn words(self) -> &'static str {
        match self {
            Better::Higher => "higher is better",
            Better::Lower => "lower is better",
            Better::Neither => "neither is better",
        }
    }
}

/// One number of one round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    /// The metric's name. It is equal on every path, so that rounds can be joined by it.
    pub name: String,
    /// The unit of the value.
    pub unit: String,
    /// The value.
    pub value: f64,
    /// Which direction is an improvement.
    pub better: Better,
}

impl Metric {
    /// A metric for which more is better.
    pub fn higher(name: impl Into<String>, value: f64, unit: &str) -> Metric {
        Metric {
            name: name.into(),
            unit: unit.to_owned(),
            value,
            better: Better::Higher,
        }
    }

    /// A metric for which less is better.
    pub fn lower(name: impl Into<String>, value: f64, unit: &str) -> Metric {
        Metric {
            name: name.into(),
            unit: unit.to_owned(),
            value,
            better: Better::Lower,
        }
    }
}

impl Metric {
    /// A metric that describes how something was done.
    pub fn neutral(name: impl Into<String>, value: f64, unit: &str) -> Metric {
        Metric {
            name: name.into(),
            unit: unit.to_owned(),
            value,
            better: Better::Neither,
        }
    }
}

/// The amount of work of the client in a round: the denominator of every cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Work {
    /// The number of units. Invariant: above 0; output without work is rejected.
    pub amount: f64,
    /// One unit of work: "request", "GB", "message", "run".
    pub unit: &'static str,
}

/// The numbers in a client's output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// The numbers, the most important one first.
    pub metrics: Vec<Metric>,
    /// The work that was done.
    pub work: Work,
}

/// Microseconds, the one unit of every latency here.
pub const MICROSECONDS: &str = "us";
