//! What the copy engine is meant to reach, and what these rows say.

use crate::plan::Claim;
use crate::report::Report;
use crate::table::number;

/// Each aim with what was found.
pub(super) fn of(report: &Report) -> Vec<Claim> {
    vec![
        at_most(
            "submitting to the worker, doorbell included, takes at most 60 ns",
            60.0,
            "ns",
            cells(report, "batch", "caller per copy", &["worker"]),
        ),
        at_least(
            "the worker overlaps at least 90 % from 64 KB on",
            90.0,
            "%",
            from(
                64 << 10,
                cells(report, "copy", "overlap", &["worker hot", "worker cold"]),
            ),
        ),
        at_least(
            "cpu-nt is at least 1.2 times as fast as a cold memcpy from 256 KB on",
            1.2,
            "x",
            from(
                256 << 10,
                ratios(report, "copy", "total", "cpu cold", &["cpu-nt cold"]),
            ),
        ),
        at_most(
            "for a caller that waits, the automatic choice is within 5 % of the best engine",
            1.05,
            "x",
            against_best(report, "copy", "total", "auto-waiting", &["cpu", "cpu-nt"]),
        ),
        at_most(
            "for a caller with other work, the automatic choice is within 5 % of the best engine",
            1.05,
            "x",
            against_best(report, "job", "job", "auto", &["cpu", "cpu-nt", "worker"]),
        ),
    ]
}

/// A value and where it was found.
struct Cell {
    place: String,
    x: f64,
    value: f64,
}

fn cells(report: &Report, group: &str, metric: &str, series: &[&str]) -> Vec<Cell> {
    report
        .rows_of(group, metric)
        .filter(|row| series.contains(&row.series.as_str()))
        .map(|row| Cell {
            place: row.series.clone(),
            x: row.x,
            value: row.median,
        })
        .collect()
}

/// How much longer the first takes than each of the others.
fn ratios(report: &Report, group: &str, metric: &str, slow: &str, fast: &[&str]) -> Vec<Cell> {
    let ratio = |cell: Cell| {
        let slow = report.median(group, slow, metric, cell.x)?;
        Some(Cell {
            value: slow / cell.value,
            ..cell
        })
    };
    cells(report, group, metric, fast)
        .into_iter()
        .filter_map(ratio)
        .collect()
}

/// How much longer it takes than the best of the others, hot and cold.
fn against_best(
    report: &Report,
    group: &str,
    metric: &str,
    name: &str,
    others: &[&str],
) -> Vec<Cell> {
    let mut found = Vec::new();
    for heat in ["hot", "cold"] {
        for cell in cells(report, group, metric, &[&format!("{name} {heat}")]) {
            let best = others
                .iter()
                .filter_map(|other| {
                    report.median(group, &format!("{other} {heat}"), metric, cell.x)
                })
                .min_by(f64::total_cmp);
            if let Some(best) = best {
                found.push(Cell {
                    value: cell.value / best,
                    ..cell
                });
            }
        }
    }
    found
}

fn from(least: usize, cells: Vec<Cell>) -> Vec<Cell> {
    cells
        .into_iter()
        .filter(|cell| cell.x >= least as f64)
        .collect()
}

fn at_most(wanted: &str, limit: f64, unit: &str, cells: Vec<Cell>) -> Claim {
    judge(wanted, unit, cells, |value| value - limit)
}

fn at_least(wanted: &str, limit: f64, unit: &str, cells: Vec<Cell>) -> Claim {
    judge(wanted, unit, cells, |value| limit - value)
}

/// By the worst of the cells, naming every one that misses.
fn judge(wanted: &str, unit: &str, cells: Vec<Cell>, excess: impl Fn(f64) -> f64) -> Claim {
    let worst = cells
        .iter()
        .max_by(|a, b| excess(a.value).total_cmp(&excess(b.value)));
    let Some(worst) = worst else {
        return Claim {
            wanted: wanted.to_owned(),
            found: "not measured".to_owned(),
            holds: false,
        };
    };
    let tell = |cell: &Cell| {
        format!(
            "{} {unit} ({}, {})",
            number(cell.value, false),
            cell.place,
            number(cell.x, true)
        )
    };
    let misses: Vec<&Cell> = cells
        .iter()
        .filter(|cell| excess(cell.value) > 0.0)
        .collect();
    let found = match misses.len() {
        0 => format!("at worst {}", tell(worst)),
        count => {
            let told: Vec<String> = misses.iter().take(8).map(|cell| tell(cell)).collect();
            format!(
                "missed at {count} of {} points: {}",
                cells.len(),
                told.join(", ")
            )
        }
    };
    Claim {
        wanted: wanted.to_owned(),
        found,
        holds: misses.is_empty(),
    }
}
