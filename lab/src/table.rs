//! A report as text.

use std::fmt::Write as _;

use toehold_measure::text::number;

use crate::plan::Figure;
use crate::report::{Report, Row};

/// Every figure as a table with a column for each series, then published numbers, then the notes.
pub(crate) fn render(report: &Report, figures: &[Figure]) -> String {
    let mut text = format!(
        "{}: {}\n{}\n",
        report.plan,
        report.about,
        report.environment.sentence()
    );
    let _ = writeln!(text, "medians of {} interleaved rounds", report.rounds);
    for figure in figures {
        let _ = write!(text, "\n{}\n", figure.title);
        text.push_str(&table(report, figure));
    }
    for claim in &report.claims {
        let verdict = claim.verdict.words();
        let _ = write!(text, "\n{}: {verdict}: {}", claim.wanted, claim.found);
    }
    text.push('\n');
    text.push_str(&published(report));
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// Published numbers in one column, and this host's in the next.
fn published(report: &Report) -> String {
    if report.published.is_empty() {
        return String::new();
    }
    let rows: Vec<[String; 3]> = report
        .published
        .iter()
        .map(|p| {
            [
                format!("{} {} ({})", p.figure, p.metric, p.system),
                format!("{} {}, {}", p.value, p.unit, p.conditions),
                p.here.clone().unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    let head = ["", "published, on the machines of the time", "here"].map(str::to_owned);
    let width = |at: usize| {
        let cells = rows.iter().chain([&head]);
        cells.map(|row| row[at].chars().count()).max().unwrap_or(0)
    };
    let (first, second) = (width(0), width(1));
    let mut text = String::from("\n");
    for [what, there, here] in [&head].into_iter().chain(&rows) {
        let _ = writeln!(text, "  {what:<first$}  {there:<second$}  {here}");
    }
    text
}

fn table(report: &Report, figure: &Figure) -> String {
    let rows: Vec<&Row> = figure
        .metrics
        .iter()
        .flat_map(|metric| report.rows_of(figure.group, metric))
        .collect();
    let mut columns: Vec<(String, &str)> = Vec::new();
    let mut points: Vec<f64> = Vec::new();
    for row in &rows {
        let column = (column_name(figure, row), row.unit.as_str());
        if !columns.contains(&column) {
            columns.push(column);
        }
        if !points.contains(&row.x) {
            points.push(row.x);
        }
    }
    points.sort_by(f64::total_cmp);
    let widths: Vec<usize> = columns
        .iter()
        .map(|(name, unit)| (name.len() + unit.len() + 1).max(10))
        .collect();
    let mut text = format!("  {:>10}", figure.x.label);
    for ((name, unit), width) in columns.iter().zip(&widths) {
        let _ = write!(text, "  {:>width$}", format!("{name} {unit}"));
    }
    text.push('\n');
    for x in points {
        let _ = write!(text, "  {:>10}", number(x, figure.x.is_bytes));
        for ((name, _), width) in columns.iter().zip(&widths) {
            let cell = rows
                .iter()
                .find(|row| row.x == x && column_name(figure, row) == *name);
            let cell = cell.map_or("-".to_owned(), |row| number(row.median, false));
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    text
}

/// A column is a series, and a metric where the figure has several.
pub(crate) fn column_name(figure: &Figure, row: &Row) -> String {
    match figure.metrics.len() {
        1 => row.series.clone(),
        _ => format!("{} {}", row.series, row.metric),
    }
}
