//! A report as one HTML file that needs nothing else.

use std::fmt::Write as _;

use toehold_measure::page::{self, escape};
use toehold_measure::plot::{self, Line, Point};
use toehold_measure::stats::median_interval;
use toehold_measure::text::{capitalized, number};

use crate::plan::Figure;
use crate::report::{Report, Row};
use crate::table::column_name;

/// The conclusion, then plots, then published numbers beside measured ones, then all numbers.
pub(crate) fn render(report: &Report, figures: &[Figure]) -> String {
    let mut body = format!(
        "<h1>{}</h1>\n<p>{}</p>\n",
        escape(report.plan),
        escape(report.about)
    );
    if !report.claims.is_empty() {
        let rows: Vec<Vec<String>> = report
            .claims
            .iter()
            .map(|claim| {
                let verdict = claim.verdict.words().to_owned();
                vec![claim.wanted.clone(), verdict, claim.found.clone()]
            })
            .collect();
        body.push_str(&page::table(&["wanted", "verdict", "found"], &rows));
    }
    body.push_str("<div class=grid>");
    for figure in figures {
        let lines = lines(report, figure);
        if let Some(svg) = plot::lines(figure.title, figure.x, figure.y, &lines) {
            let _ = write!(
                body,
                "<figure><figcaption><b>{}</b></figcaption>{svg}<p class=said>{}</p></figure>",
                escape(figure.title),
                escape(&conclusion(figure, &lines))
            );
        }
    }
    body.push_str("</div>\n");
    if !report.published.is_empty() {
        body.push_str("<h2>Published, on the machines of the time, and found here</h2>\n");
        body.push_str(&published(report));
    }
    body.push_str("<h2>Environment</h2>\n");
    let facts: Vec<(&str, String)> = report
        .environment
        .facts()
        .into_iter()
        .map(|(name, value)| (name, escape(&value)))
        .collect();
    body.push_str(&page::facts(&facts));
    body.push_str("<h2>Notes</h2>\n");
    let mut notes = vec![format!(
        "a point is the median of {} interleaved rounds; its bar reaches as far as the rounds \
         allow",
        report.rounds
    )];
    notes.extend(report.notes.iter().cloned());
    body.push_str(&page::list(&notes));
    body.push_str("<h2>Measured</h2>\n");
    body.push_str(&measured(report, figures));
    let samples = page::download("samples.csv", "text/csv", &report.csv());
    let _ = write!(body, "<p>Every sample: {samples}</p>");
    page::page(report.plan, &body)
}

/// One sentence for a figure: how each line changes from its first point to its last.
fn conclusion(figure: &Figure, lines: &[Line]) -> String {
    let unit = figure.y.label.rsplit(", ").next().unwrap_or_default();
    let parts = lines.iter().filter_map(|line| {
        let (first, last) = (line.points.first()?, line.points.last()?);
        let at = |point: &Point| {
            format!(
                "{} {unit} at {}",
                number(point.y, false),
                number(point.x, figure.x.is_bytes)
            )
        };
        Some(if line.points.len() == 1 {
            format!("{}: {}", line.name, at(first))
        } else {
            format!("{}: {}, {}", line.name, at(first), at(last))
        })
    });
    let parts: Vec<String> = parts.collect();
    capitalized(&parts.join("; ")) + "."
}

fn lines(report: &Report, figure: &Figure) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let rows = figure
        .metrics
        .iter()
        .flat_map(|metric| report.rows_of(figure.group, metric));
    for row in rows {
        let name = column_name(figure, row);
        let Some(interval) = median_interval(&row.samples.values()) else {
            continue;
        };
        let point = Point {
            x: row.x,
            y: row.median,
            bounds: (interval.low, interval.high),
        };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                name,
                points: vec![point],
                is_published: false,
            }),
        }
    }
    for line in &mut lines {
        line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    lines
}

fn published(report: &Report) -> String {
    let head = [
        "where",
        "what",
        "published",
        "here",
        "conditions",
        "systems",
        "kind",
    ];
    let rows: Vec<Vec<String>> = report
        .published
        .iter()
        .map(|result| {
            vec![
                result.figure.clone(),
                result.metric.clone(),
                format!("{} {}", result.value, result.unit),
                result.here.clone().unwrap_or_else(|| "-".to_owned()),
                result.conditions.clone(),
                result.system.clone(),
                result.kind.clone(),
            ]
        })
        .collect();
    page::table(&head, &rows)
}

fn measured(report: &Report, figures: &[Figure]) -> String {
    let head = [
        "group", "series", "#at", "metric", "#median", "unit", "#spread", "#samples",
    ];
    let cells = |row: &Row| {
        let is_bytes = figures
            .iter()
            .any(|figure| figure.group == row.group && figure.x.is_bytes);
        vec![
            row.group.to_owned(),
            row.series.clone(),
            number(row.x, is_bytes),
            row.metric.clone(),
            number(row.median, false),
            row.unit.clone(),
            format!("{:.1} %", row.spread * 100.0),
            row.samples.len().to_string(),
        ]
    };
    page::table(&head, &report.rows.iter().map(cells).collect::<Vec<_>>())
}
