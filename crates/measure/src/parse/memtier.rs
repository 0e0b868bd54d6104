//! `memtier_benchmark`: the `Totals` row of its last table.

use super::{ParseError, Tool, leading_number};
use crate::metric::{MICROSECONDS, Metric, Reading, Work};

pub(super) fn read(output: &str) -> Result<Reading, ParseError> {
    let missing = |what| ParseError::missing(Tool::Memtier, what);
    // Headings contain single spaces ("Avg. Latency"), so columns are separated by at least two; a
    // row's cells contain none.
    let headings: Vec<&str> = output
        .lines()
        .rfind(|line| line.trim_start().starts_with("Type ") && line.contains("Ops/sec"))
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .ok_or_else(|| missing("table"))?;
    let totals: Vec<&str> = output
        .lines()
        .rfind(|line| line.trim_start().starts_with("Totals "))
        .map(|line| line.split_whitespace().collect())
        .ok_or_else(|| missing("Totals row"))?;
    let cell = |heading: &str| -> Option<f64> {
        let column = headings.iter().position(|cell| *cell == heading)?;
        leading_number(totals.get(column)?)
    };
    let rate = cell("Ops/sec").ok_or_else(|| missing("Ops/sec"))?;
    let mut metrics = vec![Metric::higher("operations", rate, "operations/s")];
    for (name, heading) in [
        ("latency average", "Avg. Latency"),
        ("latency average", "Latency"),
        ("latency p50", "p50 Latency"),
        ("latency p99", "p99 Latency"),
        ("latency p99.9", "p99.9 Latency"),
    ] {
        if let Some(milliseconds) = cell(heading) {
            metrics.push(Metric::lower(name, milliseconds * 1000.0, MICROSECONDS));
        }
    }
    let operations = operations(output).unwrap_or(rate);
    Ok(Reading {
        metrics,
        work: Work {
            amount: operations,
            unit: "operation",
        },
    })
}

/// Threads, connections and requests are listed above the table. A run bounded by time lists
/// seconds instead of requests; then the rate gives the work of one second.
fn operations(output: &str) -> Option<f64> {
    let count = |label: &str| {
        output
            .lines()
            .find(|line| line.trim_end().ends_with(label))
            .and_then(leading_number)
    };
    Some(count("Threads")? * count("Connections per thread")? * count("Requests per client")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not a captured run as the other samples are, because Debian 12 does not package the tool.
    /// Written after its documentation, in the layout of its source (2.x, `run_stats.cpp`:
    /// `output_table::print` and the column widths there).
    const REPORT: &str = "\
4         Threads
50        Connections per thread
10000     Requests per client


ALL STATS
============================================================================================================
Type         Ops/sec     Hits/sec   Misses/sec    Avg. Latency     p50 Latency     p99 Latency       KB/sec
------------------------------------------------------------------------------------------------------------
Sets        11763.42          ---          ---         1.54200         1.51900         3.18300       905.93
Gets       117616.51         0.00    117616.51         1.54100         1.51900         3.16700      4582.13
Waits           0.00          ---          ---             ---             ---             ---          ---
Totals     129379.93         0.00    117616.51         1.54110         1.51900         3.16700      5488.06
";

    #[test]
    fn reads_the_totals() {
        let reading = read(REPORT).expect("a report");
        assert_eq!(
            reading.metrics[0],
            Metric::higher("operations", 129_379.93, "operations/s")
        );
        assert_eq!(reading.metrics[1].name, "latency average");
        assert!((reading.metrics[1].value - 1541.1).abs() < 1e-6);
        assert!((reading.metrics[3].value - 3167.0).abs() < 1e-6);
        assert_eq!(
            reading.work,
            Work {
                amount: 2_000_000.0,
                unit: "operation"
            }
        );
    }
}
