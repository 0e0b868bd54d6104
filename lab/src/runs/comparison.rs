//! Two runs of one plan beside each other, as text and as JSON.

use std::fmt::Write as _;

use serde::Serialize;
use toehold_measure::text::{change, prefixed};

use super::record::Record;
use super::summary::point;

/// Two runs. Their rounds were not interleaved: medians, no verdicts.
#[derive(Serialize)]
pub(crate) struct Comparison<'a> {
    a: ComparedRun<'a>,
    b: ComparedRun<'a>,
    blocks: Vec<ComparedBlock<'a>>,
}

#[derive(Serialize)]
struct ComparedRun<'a> {
    date: &'a str,
    machine: String,
}

#[derive(Serialize)]
struct ComparedBlock<'a> {
    title: &'a str,
    metric: &'static str,
    /// `None` when the second run has no such block.
    rows: Option<Vec<ComparedRow>>,
}

#[derive(Serialize)]
struct ComparedRow {
    #[serde(skip)]
    point: String,
    /// The factor's value.
    at: f64,
    arm: String,
    /// Medians.
    a: f64,
    b: f64,
}

impl<'a> Comparison<'a> {
    pub(crate) fn of(a: &'a Record, b: &'a Record) -> Comparison<'a> {
        let run = |record: &'a Record| ComparedRun {
            date: &record.environment.date,
            machine: record.environment.fingerprint(),
        };
        let blocks = a.plan.blocks.iter().enumerate();
        let blocks = blocks.map(|(at, block)| {
            let mut others = b.plan.blocks.iter();
            let other = others.position(|other| other.title == block.title);
            ComparedBlock {
                title: &block.title,
                metric: block.metric.label(),
                rows: other.map(|other| compared(a, b, [at, other])),
            }
        });
        Comparison {
            a: run(a),
            b: run(b),
            blocks: blocks.collect(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for (name, run) in [("A", &self.a), ("B", &self.b)] {
            let _ = writeln!(out, "{name}: {} ({})", run.date, run.machine);
        }
        for block in &self.blocks {
            let Some(rows) = &block.rows else {
                let _ = writeln!(out, "\n{}: only in A", block.title);
                continue;
            };
            let _ = writeln!(out, "\n{}: {}", block.title, block.metric);
            for row in rows {
                let _ = writeln!(
                    out,
                    "  {:>8}  {:<24} {:>10} {:>10}  {}",
                    row.point,
                    row.arm,
                    prefixed(row.a),
                    prefixed(row.b),
                    change(row.b / row.a)
                );
            }
        }
        out.push_str(
            "\nnote: the rounds of two runs are not interleaved; a difference may be the day's\n",
        );
        out
    }
}

/// The points and arms that both runs have measured, of a block that has these places in them.
fn compared(a: &Record, b: &Record, at: [usize; 2]) -> Vec<ComparedRow> {
    let block = &a.plan.blocks[at[0]];
    let mut rows = Vec::new();
    for x in block.points() {
        for arm in a.arms() {
            let old = a.samples(at[0], x, &arm, block.metric);
            let new = b.samples(at[1], x, &arm, block.metric);
            if old.is_empty() || new.is_empty() {
                continue;
            }
            rows.push(ComparedRow {
                point: point(block, x),
                at: x,
                arm,
                a: old.median(),
                b: new.median(),
            });
        }
    }
    rows
}
