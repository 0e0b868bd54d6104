//! Published numbers beside those of a run: in the plots, and in a table.

use std::collections::BTreeSet;

use toehold_measure::metric::Better;
use toehold_measure::page;
use toehold_measure::plot::{Line, Point};
use toehold_measure::text::prefixed;

use super::headline::Headline;
use super::plan_file::{Beside, Block};
use super::record::Record;
use crate::published::{Published, Value, published_of, published_with};

/// The published points of a drawing, in its unit.
pub(super) fn lines(block: &Block, metric: Headline) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for beside in &block.published {
        let is_shown = beside.over.is_none() && beside.metric.unwrap_or(block.metric) == metric;
        let result = published_with(&beside.id).filter(|_| is_shown);
        let Some((result, (low, high))) = result.and_then(|result| {
            let bounds = value_of(&result, metric)?;
            Some((result, bounds))
        }) else {
            continue;
        };
        let name = format!("published: {}, {}", result.system, result.figure);
        let point = Point {
            x: place(block, beside),
            y: (low + high) / 2.0,
            bounds: (low, high),
        };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name,
                points: vec![point],
                is_published: true,
            }),
        }
    }
    lines
}

/// The table of everything that was published about the plan's experiments, with this run's
/// counterparts.
pub(super) fn table(record: &Record) -> String {
    let rows = rows(record);
    if rows.is_empty() {
        return String::new();
    }
    let head = [
        "experiment",
        "where",
        "systems",
        "what",
        "published",
        "here",
        "conditions; why the two differ",
    ];
    format!(
        "<h2>Published, on the machines of the time, and measured here</h2>\n{}",
        page::table(&head, &rows)
    )
}

fn rows(record: &Record) -> Vec<Vec<String>> {
    let plan = &record.plan;
    let mut listed = BTreeSet::new();
    let mut rows = Vec::new();
    for (at, block) in plan.blocks.iter().enumerate() {
        for beside in &block.published {
            let Some(result) = published_with(&beside.id) else {
                continue;
            };
            listed.insert(result.id.clone());
            let here = here(record, at, beside).unwrap_or_else(|| "not measured".to_owned());
            rows.push(row(&result, here, &beside.note));
        }
    }
    let others = plan.published.iter().flat_map(|id| published_of(id));
    for result in others.filter(|result| !listed.contains(&result.id)) {
        rows.push(row(&result, "-".to_owned(), ""));
    }
    rows
}

fn row(result: &Published, here: String, note: &str) -> Vec<String> {
    let parts = [result.conditions.as_str(), note];
    let remarks: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    vec![
        result.experiment.clone(),
        result.figure.clone(),
        result.system.clone(),
        result.metric.clone(),
        format!("{} {}", result.value, result.unit),
        here,
        remarks.join("; "),
    ]
}

/// This run's counterpart: the arm's median, or its benefit over the other arm.
fn here(record: &Record, at: usize, beside: &Beside) -> Option<String> {
    let block = &record.plan.blocks[at];
    let metric = beside.metric.unwrap_or(block.metric);
    let x = place(block, beside);
    let own = record.samples(at, x, &beside.arm, metric);
    if own.is_empty() {
        return None;
    }
    let Some(over) = &beside.over else {
        let name = metric.label();
        let unit = name.rsplit_once(", ").map_or("", |(_, unit)| unit);
        return Some(format!(
            "{} {unit} ({})",
            prefixed(own.median()),
            beside.arm
        ));
    };
    let ratio = own.ratio_to(&record.samples(at, x, over, metric))?;
    // The papers' benefit is (b - a) / b of a cost, and (a - b) / b of a speed.
    let benefit = |ratio: f64| match metric.better() {
        Better::Lower => (1.0 - ratio) * 100.0,
        _ => (ratio - 1.0) * 100.0,
    };
    let (one, other) = (benefit(ratio.low), benefit(ratio.high));
    Some(format!(
        "{:.1} % [{:.1}, {:.1}] of {} ({} over {over})",
        benefit(ratio.value),
        one.min(other),
        one.max(other),
        metric.label(),
        beside.arm
    ))
}

fn place(block: &Block, beside: &Beside) -> f64 {
    let last = block.points().last().copied();
    beside.x.or(last).unwrap_or_default()
}

/// The bounds of a published value in a metric's unit; `None` if it is not such a number.
fn value_of(result: &Published, metric: Headline) -> Option<(f64, f64)> {
    let factor = match (metric, result.unit.as_str()) {
        (Headline::LatencyP50 | Headline::LatencyP99 | Headline::LatencyP999, "us") => 1.0,
        (Headline::Throughput, "Gbps") => 1.0,
        (Headline::Throughput, "Mbps") => 1e-3,
        _ => return None,
    };
    let number = |value: &Value| match value {
        Value::Number(number) => Some(number * factor),
        _ => None,
    };
    match &result.value {
        Value::List(values) => Some((number(values.first()?)?, number(values.last()?)?)),
        value => number(value).map(|number| (number, number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values_are_drawn_in_the_unit_of_the_drawing() {
        let result = |id| published_with(id).expect("it is in the data");
        assert_eq!(
            value_of(&result("P001"), Headline::Throughput),
            Some((5.635, 5.635))
        );
        assert_eq!(
            value_of(&result("P113"), Headline::Throughput),
            Some((7.1, 7.6))
        );
        assert_eq!(value_of(&result("P004"), Headline::Throughput), None);
        assert_eq!(value_of(&result("P099"), Headline::Throughput), None);
    }
}
