//! A run as a page that needs nothing else: conclusions, drawings, tables, samples.

use std::fmt::Write as _;

use toehold_measure::page::{self, escape};
use toehold_measure::plot::{self, Axis, Line, Point, Strip};
use toehold_measure::stats::median_interval;
use toehold_measure::text::capitalized;

use super::beside;
use super::crossings;
use super::headline::Headline;
use super::plan_file::Block;
use super::record::Record;
use super::summary::{banners, conclusion, conclusions, notes, rows};
use super::tiers;

/// The run as a page.
pub(crate) fn html(record: &Record) -> String {
    let plan = &record.plan;
    let mut body = format!(
        "<h1>{}</h1>\n<p>{}</p>\n",
        escape(&plan.name),
        escape(&plan.about)
    );
    for banner in banners(record) {
        let _ = write!(body, "<p class=banner>{}</p>", escape(&banner));
    }
    for sentence in conclusions(record) {
        let _ = writeln!(body, "<p class=conclusion>{}</p>", escape(&sentence));
    }
    let base = format!("against {}", plan.arms[0].name);
    let head = [
        "metric",
        "#at",
        "arm",
        "#median",
        &base,
        "verdict",
        "#of limit",
    ];
    for (at, block) in plan.blocks.iter().enumerate() {
        let _ = writeln!(body, "<h2>{}</h2><div class=grid>", escape(&block.title));
        for metric in Headline::ALL {
            body.push_str(&figure(record, at, block, metric));
        }
        body.push_str("</div>\n");
        body.push_str(&page::table(&head, &rows(record, at, &[block.metric])));
        let others: Vec<Headline> = Headline::ALL
            .into_iter()
            .filter(|metric| *metric != block.metric)
            .collect();
        let _ = writeln!(
            body,
            "<details><summary>Every other metric</summary>{}</details>",
            page::table(&head, &rows(record, at, &others))
        );
    }
    body.push_str(&tiers::table(record));
    body.push_str(&crossings::table(record));
    body.push_str(&beside::table(record));
    body.push_str("<h2>Notes</h2>\n");
    body.push_str(&page::list(&notes(record)));
    body.push_str("<h2>Environment and command</h2>\n");
    let environment = record.environment.facts().into_iter();
    let mut facts: Vec<(&str, String)> = environment
        .map(|(name, value)| (name, escape(&value)))
        .collect();
    facts.push((
        "Command",
        format!("<code>{}</code>", escape(&record.command)),
    ));
    facts.push((
        "Rounds",
        format!("{} (seed {})", record.rounds_done, record.seed),
    ));
    body.push_str(&page::facts(&facts));
    let samples = page::download(&format!("{}.csv", plan.name), "text/csv", &record.csv());
    let _ = write!(body, "<p>Every sample: {samples}</p>");
    page::page(&plan.name, &body)
}

/// The plot of a metric: over the factor, or one strip for each arm if there is only one point.
fn figure(record: &Record, at: usize, block: &Block, metric: Headline) -> String {
    let points = block.points();
    let drawing = if points.len() > 1 {
        lines(record, at, block, metric)
    } else {
        strips(record, at, points[0], metric)
    };
    drawing.map_or(String::new(), |svg| {
        format!(
            "<figure><figcaption><b>{}</b> <span class=quiet>({})</span></figcaption>{svg}\
             <p class=said>{}</p></figure>",
            escape(metric.label()),
            metric.better().words(),
            escape(&capitalized(&conclusion(record, at, block, metric)))
        )
    })
}

fn lines(record: &Record, at: usize, block: &Block, metric: Headline) -> Option<String> {
    let mut lines: Vec<Line> = record
        .arms()
        .into_iter()
        .map(|arm| {
            let points = block.points().into_iter().filter_map(|x| {
                let samples = record.samples(at, x, &arm, metric);
                let interval = median_interval(&samples.values())?;
                Some(Point {
                    x,
                    y: samples.median(),
                    bounds: (interval.low, interval.high),
                })
            });
            Line {
                points: points.collect(),
                name: arm,
                is_published: false,
            }
        })
        .collect();
    lines.extend(beside::lines(block, metric));
    let sweep = block.sweep.as_ref()?;
    let x = Axis {
        label: sweep.label(),
        is_logarithmic: block.points().iter().all(|&x| x > 0.0),
        is_bytes: sweep.factor.is_bytes(),
    };
    let y = Axis {
        label: metric.label(),
        is_logarithmic: true,
        is_bytes: false,
    };
    plot::lines(&block.title, x, y, &lines)
}

fn strips(record: &Record, at: usize, x: f64, metric: Headline) -> Option<String> {
    let strips: Vec<Strip> = record
        .arms()
        .into_iter()
        .filter_map(|arm| {
            let samples = record.samples(at, x, &arm, metric);
            let interval = median_interval(&samples.values())?;
            Some(Strip {
                label: arm,
                median: Some((samples.median(), interval.low, interval.high)),
                samples: samples.values(),
            })
        })
        .collect();
    (!strips.is_empty()).then(|| plot::strips(metric.label(), &strips))
}
