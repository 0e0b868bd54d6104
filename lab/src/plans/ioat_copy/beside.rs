//! This host's results beside the paper's.

use toehold_measure::text::number;

use crate::published::Published;
use crate::report::Report;

/// This host's result for a published one, if it was measured.
pub(super) fn of(published: &Published, report: &Report) -> Option<String> {
    match (published.metric.as_str(), published.system.as_str()) {
        ("crossover size", _) => crossover(report),
        (metric, _) if metric.starts_with("overlap") => {
            let overlap = report.median("copy", "worker cold", "overlap", LEN)?;
            Some(format!(
                "{} % (worker, cold, {})",
                number(overlap, false),
                number(LEN, true)
            ))
        }
        (_, "DMA-copy vs copy-cache") => {
            span(report, ("worker hot", "total"), ("cpu hot", "total"), 1.0)
                .map(|span| format!("the worker takes {span} times as long"))
        }
        (_, "DMA-overhead vs memcpy") => {
            // Nanoseconds against microseconds.
            span(
                report,
                ("cpu cold", "total"),
                ("worker cold", "start-up"),
                1e3,
            )
            .map(|span| format!("a cold copy takes {span} times as long as start-up"))
        }
        _ => None,
    }
}

/// The length from which the worker alone is faster than a cold `memcpy`.
fn crossover(report: &Report) -> Option<String> {
    let mut lens = lens(report);
    lens.reverse();
    let wins = |len: &f64| {
        let time = |series| report.median("copy", series, "total", *len);
        Some(time("worker cold")? < time("cpu cold")?)
    };
    let won: Vec<f64> = lens
        .into_iter()
        .take_while(|len| wins(len) == Some(true))
        .collect();
    Some(match won.last() {
        Some(len) => format!(
            "worker faster than a cold memcpy from {}",
            number(*len, true)
        ),
        None => "worker slower than a cold memcpy at the longest length".to_owned(),
    })
}

/// The least and greatest ratio of two series over all lengths, after conversion of the first
/// series' unit to the second's.
fn span(
    report: &Report,
    (above, above_metric): (&str, &str),
    (below, below_metric): (&str, &str),
    unit: f64,
) -> Option<String> {
    let ratio = |len: f64| {
        let above = report.median("copy", above, above_metric, len)? * unit;
        let below = report.median("copy", below, below_metric, len)?;
        (below > 0.0).then_some(above / below)
    };
    let ratios: Vec<f64> = lens(report).into_iter().filter_map(ratio).collect();
    let least = ratios.iter().copied().min_by(f64::total_cmp)?;
    let most = ratios.iter().copied().max_by(f64::total_cmp)?;
    Some(format!(
        "{} to {}",
        number(least, false),
        number(most, false)
    ))
}

fn lens(report: &Report) -> Vec<f64> {
    let rows = report.rows_of("copy", "total");
    let mut lens: Vec<f64> = rows.map(|row| row.x).collect();
    lens.sort_by(f64::total_cmp);
    lens.dedup();
    lens
}

/// The length for which the paper gives its overlap.
const LEN: f64 = 65536.0;
