//! What the copy engine is meant to reach, and what these rows say.

use crate::report::Claim;
use crate::report::{Report, Row};
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
        never_far_behind(
            "for a caller that waits, the automatic choice is within 5 % of the best engine",
            &contests(report, "waiting"),
        ),
        never_far_behind(
            "for a caller with other work, the automatic choice is within 5 % of the best engine",
            &contests(report, "job"),
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

/// The automatic choice against the best of the others, at one length and temperature.
struct Contest {
    place: String,
    /// Of the ratios within each round.
    median: f64,
    interval: (f64, f64),
}

fn contests(report: &Report, group: &str) -> Vec<Contest> {
    let autos = report.rows_of(group, "auto");
    autos
        .filter_map(|auto| {
            let is_rival = |row: &&Row| {
                row.group == group
                    && row.series == auto.series
                    && row.x == auto.x
                    && row.metric != auto.metric
            };
            let best = report
                .rows
                .iter()
                .filter(is_rival)
                .min_by(|a, b| a.median.total_cmp(&b.median))?;
            let ratios = auto.samples.ratios_to(&best.samples);
            Some(Contest {
                place: format!("{}, {}, {}", auto.series, number(auto.x, true), best.metric),
                median: ratios.median(),
                interval: ratios.median_interval(),
            })
        })
        .collect()
}

/// A point misses when its whole interval is beyond the limit, and is undecided when only the
/// median is.
fn never_far_behind(wanted: &str, contests: &[Contest]) -> Claim {
    const LIMIT: f64 = 1.05;
    let tell = |contest: &Contest| {
        let Contest {
            place,
            median,
            interval: (low, high),
        } = contest;
        format!("{median:.2} x [{low:.2}, {high:.2}] ({place})")
    };
    let list = |found: &[&Contest]| {
        let told: Vec<String> = found.iter().map(|contest| tell(contest)).collect();
        told.join(", ")
    };
    let (missed, other): (Vec<&Contest>, Vec<&Contest>) = contests
        .iter()
        .partition(|contest| contest.interval.0 > LIMIT);
    let undecided: Vec<&Contest> = other.into_iter().filter(|c| c.median > LIMIT).collect();
    let worst = contests.iter().max_by(|a, b| a.median.total_cmp(&b.median));
    let found = match worst {
        None => "not measured".to_owned(),
        Some(worst) if missed.is_empty() && undecided.is_empty() => {
            format!("at worst {}", tell(worst))
        }
        Some(_) => {
            let of = contests.len();
            let mut parts = vec![format!("missed at {} of {of} points", missed.len())];
            if !missed.is_empty() {
                parts.push(format!(": {}", list(&missed)));
            }
            if !undecided.is_empty() {
                parts.push(format!(
                    "; undecided at {}: {}",
                    undecided.len(),
                    list(&undecided)
                ));
            }
            parts.concat()
        }
    };
    Claim {
        wanted: wanted.to_owned(),
        found,
        holds: missed.is_empty() && worst.is_some(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn contest(median: f64, low: f64, high: f64) -> Contest {
        Contest {
            place: "hot, 1K, cpu".to_owned(),
            median,
            interval: (low, high),
        }
    }

    #[test]
    fn a_point_misses_only_with_its_whole_interval() {
        let judged = |contests: &[Contest]| never_far_behind("w", contests);
        let fine = judged(&[contest(1.01, 0.98, 1.07), contest(0.9, 0.8, 1.0)]);
        assert!(fine.holds);
        assert_eq!(fine.found, "at worst 1.01 x [0.98, 1.07] (hot, 1K, cpu)");
        let open = judged(&[contest(1.07, 1.04, 1.1), contest(1.0, 1.0, 1.0)]);
        assert!(open.holds);
        assert_eq!(
            open.found,
            "missed at 0 of 2 points; undecided at 1: 1.07 x [1.04, 1.10] (hot, 1K, cpu)"
        );
        let missed = judged(&[contest(1.07, 1.06, 1.1)]);
        assert!(!missed.holds);
        assert_eq!(
            missed.found,
            "missed at 1 of 1 points: 1.07 x [1.06, 1.10] (hot, 1K, cpu)"
        );
        assert!(!judged(&[]).holds);
    }
}
