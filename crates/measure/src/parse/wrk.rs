//! `wrk`, with percentiles if `--latency` was given. It is a closed loop: its latencies do not
//! include the time in which a request should have been sent but the connection was waiting.

use super::{ParseError, Tool, leading_number, number_after};
use crate::metric::{MICROSECONDS, Metric, Reading, Work};

pub(super) fn read(output: &str) -> Result<Reading, ParseError> {
    let missing = |what| ParseError::missing(Tool::Wrk, what);
    let rate = number_after(output, "Requests/sec:").ok_or_else(|| missing("Requests/sec"))?;
    let requests = output
        .lines()
        .find(|line| line.contains(" requests in "))
        .and_then(leading_number)
        .ok_or_else(|| missing("count of requests"))?;
    let mut metrics = vec![Metric::higher("requests", rate, "requests/s")];
    if let Some(at) = output.find("Latency Distribution") {
        for line in output[at..].lines().skip(1) {
            let mut words = line.split_whitespace();
            let (Some(percentile), Some(latency)) = (words.next(), words.next()) else {
                break;
            };
            let Some(percentile) = percentile.strip_suffix('%') else {
                break;
            };
            if let Some(microseconds) = microseconds(latency) {
                let name = format!("latency p{percentile}");
                metrics.push(Metric::lower(name, microseconds, MICROSECONDS));
            }
        }
    } else if let Some(average) = average_latency(output) {
        metrics.push(Metric::lower("latency average", average, MICROSECONDS));
    }
    let errors =
        socket_errors(output) + number_after(output, "Non-2xx or 3xx responses:").unwrap_or(0.0);
    metrics.push(Metric::lower("failed requests", errors, "requests"));
    Ok(Reading {
        metrics,
        work: Work {
            amount: requests,
            unit: "request",
        },
    })
}

/// `    Latency   383.40us  264.28us   4.76ms   96.23%`
fn average_latency(output: &str) -> Option<f64> {
    let line = output
        .lines()
        .find(|line| line.trim_start().starts_with("Latency "))?;
    microseconds(line.split_whitespace().nth(1)?)
}

/// `  Socket errors: connect 0, read 2, write 0, timeout 1`
fn socket_errors(output: &str) -> f64 {
    let line = output
        .lines()
        .find(|line| line.contains("Socket errors:"))
        .unwrap_or("");
    line.split([':', ','])
        .filter_map(|part| leading_number(part.split_whitespace().nth(1)?))
        .sum()
}

/// `309.00us`, `1.20ms`, `2.00s`, `1.50m` or `1.00h`.
fn microseconds(text: &str) -> Option<f64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let factor = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        "h" => 3600e6,
        _ => return None,
    };
    Some(leading_number(text)? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rate_and_average() {
        let reading = read(include_str!("../../tests/data/wrk.txt")).expect("a report");
        assert_eq!(
            reading.metrics[0],
            Metric::higher("requests", 135_042.0, "requests/s")
        );
        assert_eq!(
            reading.metrics[1],
            Metric::lower("latency average", 383.4, "us")
        );
        assert_eq!(
            reading.metrics[2],
            Metric::lower("failed requests", 0.0, "requests")
        );
        assert_eq!(
            reading.work,
            Work {
                amount: 135_084.0,
                unit: "request"
            }
        );
    }

    #[test]
    fn reads_percentiles() {
        let reading = read(include_str!("../../tests/data/wrk-lat.txt")).expect("a report");
        let names: Vec<&str> = reading.metrics.iter().map(|m| m.name.as_str()).collect();
        let expected = [
            "requests",
            "latency p50",
            "latency p75",
            "latency p90",
            "latency p99",
            "failed requests",
        ];
        assert_eq!(names, expected);
        assert_eq!(reading.metrics[4].value, 602.0);
    }

    #[test]
    fn counts_errors() {
        let output = include_str!("../../tests/data/wrk.txt").to_owned()
            + "  Socket errors: connect 1, read 20, write 300, timeout 4000\n\
               \x20 Non-2xx or 3xx responses: 7\n";
        let reading = read(&output).expect("a report");
        assert_eq!(reading.metrics.last().expect("errors").value, 4328.0);
    }

    #[test]
    fn every_unit_of_time() {
        assert_eq!(microseconds("1.20ms"), Some(1200.0));
        assert_eq!(microseconds("2.00s"), Some(2e6));
        assert_eq!(microseconds("1.50m"), Some(90e6));
        assert_eq!(microseconds("1.5 parsecs"), None);
    }
}
