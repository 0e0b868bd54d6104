//! The interface of an experiment: its name, its rows, its plots and its claims.

use toehold_measure::plot::Axis;

use crate::published::Published;
use crate::report::{Claim, Report};

/// An experiment, which takes one sample when asked. The runner decides how often and in which
/// order, and stores the samples.
pub trait Plan {
    /// The name by which the user starts the experiment.
    fn name(&self) -> &'static str;

    /// The question of the experiment, in one sentence.
    fn about(&self) -> &'static str;

    /// The experiment that this one repeats, as the published data names it.
    fn published_as(&self) -> Option<&'static str>;

    /// All cases that it can measure. A quick run may leave out points but no series.
    fn cases(&self, quick: bool) -> Vec<Case>;

    /// Takes one sample of a case: one value for each of its metrics.
    ///
    /// # Errors
    ///
    /// A sentence. The case then has no row, and the report has the sentence.
    fn sample(&mut self, case: &Case) -> Result<Vec<Reading>, String>;

    /// The drawings of the rows.
    fn figures(&self) -> Vec<Figure>;

    /// Notes for the reader, for example about missing measurements and the reasons.
    fn notes(&self) -> Vec<String>;

    /// Our own finding beside a published result, in a few words.
    fn beside(&self, published: &Published, report: &Report) -> Option<String> {
        let _ = (published, report);
        None
    }

    /// The aims of the experiment, and whether it reached them.
    fn claims(&self, report: &Report) -> Vec<Claim> {
        let _ = report;
        Vec::new()
    }
}

/// One case to measure: a point of a series, in a group of related series.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The part of the experiment.
    pub group: &'static str,
    /// The compared engine or system.
    pub series: String,
    /// The position on the group's axis.
    pub x: f64,
}

impl Case {
    /// A point of a series.
    pub fn new(group: &'static str, series: impl Into<String>, x: f64) -> Case {
        Case {
            group,
            series: series.into(),
            x,
        }
    }
}

/// One measured value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reading {
    /// The measured quantity.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The amount.
    pub value: f64,
}

impl Reading {
    /// A value of a metric.
    pub fn new(metric: &'static str, unit: &'static str, value: f64) -> Reading {
        Reading {
            metric,
            unit,
            value,
        }
    }
}

/// A drawing of some rows: one line per series.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// The title above the plot.
    pub title: &'static str,
    /// The rows of this group...
    pub group: &'static str,
    /// ...and of these metrics.
    pub metrics: &'static [&'static str],
    /// The axis to the right.
    pub x: Axis<'static>,
    /// The axis upwards.
    pub y: Axis<'static>,
}
