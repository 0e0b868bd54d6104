//! The aims of the copy engine, and the verdict of these rows on each.

use toehold_measure::stats::{Kind, median_interval};
use toehold_measure::text::number;

use crate::report::{Claim, ClaimStatus, Report, Row};

/// Each aim with the measured result.
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

/// A value and the place where it was found.
struct Cell {
    place: String,
    x: f64,
    value: f64,
    /// The confidence interval; the least and the most with too few samples.
    bounds: (f64, f64),
    is_interval: bool,
}

fn cells(report: &Report, group: &str, metric: &str, series: &[&str]) -> Vec<Cell> {
    report
        .rows_of(group, metric)
        .filter(|row| series.contains(&row.series.as_str()))
        .filter_map(|row| {
            let interval = median_interval(&row.samples.values())?;
            Some(Cell {
                place: row.series.clone(),
                x: row.x,
                value: row.median,
                bounds: (interval.low, interval.high),
                is_interval: interval.kind == Kind::Confidence,
            })
        })
        .collect()
}

/// The ratio of the first time to each of the others.
fn ratios(report: &Report, group: &str, metric: &str, slow: &str, fast: &[&str]) -> Vec<Cell> {
    let row = |series: &str, x: f64| {
        let mut rows = report.rows_of(group, metric);
        rows.find(|row| row.series == series && row.x == x)
    };
    let ratio = |cell: Cell| {
        let (slow, fast) = (row(slow, cell.x)?, row(&cell.place, cell.x)?);
        let ratio = slow.samples.ratio_to(&fast.samples)?;
        Some(Cell {
            value: ratio.value,
            bounds: (ratio.low, ratio.high),
            is_interval: ratio.interval == Kind::Confidence,
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
    /// Computed from the ratios within each round.
    median: f64,
    interval: (f64, f64),
    /// False with too few rounds: then the bounds are the least and the most.
    is_interval: bool,
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
            let ratio = auto.samples.ratio_to(&best.samples)?;
            Some(Contest {
                place: format!("{}, {}, {}", auto.series, number(auto.x, true), best.metric),
                median: ratio.value,
                interval: (ratio.low, ratio.high),
                is_interval: ratio.interval == Kind::Confidence,
            })
        })
        .collect()
}

/// A point misses the aim when its whole interval is beyond the limit. The point holds when the
/// whole interval is within the limit, and is undecided otherwise.
fn never_far_behind(wanted: &str, contests: &[Contest]) -> Claim {
    const LIMIT: f64 = 1.05;
    let tell = |contest: &Contest| {
        let Contest {
            place,
            median,
            interval: (low, high),
            ..
        } = contest;
        format!("{median:.2} x [{low:.2}, {high:.2}] ({place})")
    };
    let list = |found: &[&Contest]| {
        let texts: Vec<String> = found.iter().map(|contest| tell(contest)).collect();
        texts.join(", ")
    };
    let (missed, other): (Vec<&Contest>, Vec<&Contest>) = contests
        .iter()
        .partition(|contest| contest.interval.0 > LIMIT);
    let undecided: Vec<&Contest> = other
        .into_iter()
        .filter(|contest| contest.interval.1 > LIMIT || !contest.is_interval)
        .collect();
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
        verdict: match (worst, missed.is_empty(), undecided.is_empty()) {
            (Some(_), true, true) => ClaimStatus::Holds,
            (Some(_), true, false) => ClaimStatus::Undecided,
            _ => ClaimStatus::Missed,
        },
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

/// Judges by the worst of the cells, and names every cell that misses the aim.
fn judge(wanted: &str, unit: &str, cells: Vec<Cell>, excess: impl Fn(f64) -> f64) -> Claim {
    let worst = cells
        .iter()
        .max_by(|a, b| excess(a.value).total_cmp(&excess(b.value)));
    let Some(worst) = worst else {
        return Claim {
            wanted: wanted.to_owned(),
            found: "not measured".to_owned(),
            verdict: ClaimStatus::Missed,
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
    let ends = |cell: &Cell| {
        let (a, b) = (excess(cell.bounds.0), excess(cell.bounds.1));
        (a.min(b), a.max(b))
    };
    let list = |cells: &[&Cell]| {
        let texts: Vec<String> = cells.iter().take(8).map(|cell| tell(cell)).collect();
        texts.join(", ")
    };
    let (misses, other): (Vec<&Cell>, Vec<&Cell>) =
        cells.iter().partition(|cell| ends(cell).0 > 0.0);
    let undecided: Vec<&Cell> = other
        .into_iter()
        .filter(|cell| ends(cell).1 > 0.0 || !cell.is_interval)
        .collect();
    let of = cells.len();
    let (verdict, found) = match (misses.len(), undecided.len()) {
        (0, 0) => (ClaimStatus::Holds, format!("at worst {}", tell(worst))),
        (0, open) => (
            ClaimStatus::Undecided,
            format!("undecided at {open} of {of} points: {}", list(&undecided)),
        ),
        (missed, _) => (
            ClaimStatus::Missed,
            format!("missed at {missed} of {of} points: {}", list(&misses)),
        ),
    };
    Claim {
        wanted: wanted.to_owned(),
        found,
        verdict,
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
            is_interval: true,
        }
    }

    #[test]
    fn a_point_misses_only_with_its_whole_interval() {
        let judged = |contests: &[Contest]| never_far_behind("w", contests);
        let fine = judged(&[contest(1.01, 0.98, 1.04), contest(0.9, 0.8, 1.0)]);
        assert_eq!(fine.verdict, ClaimStatus::Holds);
        assert_eq!(fine.found, "at worst 1.01 x [0.98, 1.04] (hot, 1K, cpu)");
        let open = judged(&[contest(1.07, 1.04, 1.1), contest(1.0, 1.0, 1.0)]);
        assert_eq!(open.verdict, ClaimStatus::Undecided);
        assert_eq!(
            open.found,
            "missed at 0 of 2 points; undecided at 1: 1.07 x [1.04, 1.10] (hot, 1K, cpu)"
        );
        let missed = judged(&[contest(1.07, 1.06, 1.1)]);
        assert_eq!(missed.verdict, ClaimStatus::Missed);
        assert_eq!(
            missed.found,
            "missed at 1 of 1 points: 1.07 x [1.06, 1.10] (hot, 1K, cpu)"
        );
        assert_eq!(judged(&[]).verdict, ClaimStatus::Missed);
        let mut few = contest(1.0, 1.0, 1.0);
        few.is_interval = false;
        assert_eq!(judged(&[few]).verdict, ClaimStatus::Undecided);
    }
}
