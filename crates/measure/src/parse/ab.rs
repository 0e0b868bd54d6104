//! ApacheBench. Its percentiles are whole milliseconds, so its latencies say little on one host.

use super::{ParseError, Tool, number_after};
use crate::metric::{MICROSECONDS, Metric, Reading, Work};

pub(super) fn read(output: &str) -> Result<Reading, ParseError> {
    let missing = |what| ParseError::missing(Tool::Ab, what);
    let rate = number_after(output, "Requests per second:")
        .ok_or_else(|| missing("requests per second"))?;
    let requests =
        number_after(output, "Complete requests:").ok_or_else(|| missing("count of requests"))?;
    let mut metrics = vec![Metric::higher("requests", rate, "requests/s")];
    // The first of two such lines is the mean for one client.
    if let Some(milliseconds) = number_after(output, "Time per request:") {
        metrics.push(Metric::lower(
            "latency average",
            milliseconds * 1000.0,
            MICROSECONDS,
        ));
    }
    let failed = number_after(output, "Failed requests:").unwrap_or(0.0)
        + number_after(output, "Non-2xx responses:").unwrap_or(0.0);
    metrics.push(Metric::lower("failed requests", failed, "requests"));
    Ok(Reading {
        metrics,
        work: Work {
            amount: requests,
            unit: "request",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_report() {
        let reading = read(include_str!("../../tests/data/ab.txt")).expect("a report");
        assert_eq!(
            reading.metrics[0],
            Metric::higher("requests", 146_140.08, "requests/s")
        );
        assert_eq!(
            reading.metrics[1],
            Metric::lower("latency average", 137.0, "us")
        );
        assert_eq!(reading.metrics[2].value, 0.0);
        assert_eq!(
            reading.work,
            Work {
                amount: 20_000.0,
                unit: "request"
            }
        );
    }
}
