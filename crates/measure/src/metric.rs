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
    /// It says how something was done, not how well.
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
    /// The metric's name, equal on every path, so that rounds can be joined by it.
    pub name: String,
    /// The unit that it counts.
    pub unit: String,
    /// How much.
    pub value: f64,
    /// Which direction is an improvement.
    pub better: Better,
}

impl Metric {
    /// A metric of which more is better.
    pub fn higher(name: impl Into<String>, value: f64, unit: &str) -> Metric {
        Metric {
            name: name.into(),
            unit: unit.to_owned(),
            value,
            better: Better::Higher,
        }
    }

    /// A metric of which less is better.
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
    /// A metric that says how something was done.
    pub fn neutral(name: impl Into<String>, value: f64, unit: &str) -> Metric {
        Metric {
            name: name.into(),
            unit: unit.to_owned(),
            value,
            better: Better::Neither,
        }
    }
}

/// How much the client got done in a round: the denominator of every cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Work {
    /// How many units. Invariant: above 0; an output without work is not read.
    pub amount: f64,
    /// One unit of work: "request", "GB", "message", "run".
    pub unit: &'static str,
}

/// The numbers in a client's output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// Its numbers, the most telling one first.
    pub metrics: Vec<Metric>,
    /// The work behind them.
    pub work: Work,
}

/// Microseconds, the one unit of every latency here.
pub const MICROSECONDS: &str = "us";
