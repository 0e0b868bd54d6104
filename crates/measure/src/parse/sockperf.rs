//! `sockperf`: ping-pong and under-load give latencies (one way, as the tool defines them), and
//! throughput gives rates.

use super::{ParseError, Tool, number_after};
use crate::metric::{MICROSECONDS, Metric, Reading, Work};

pub(super) fn read(output: &str) -> Result<Reading, ParseError> {
    if let Some(average) = number_after(output, "Summary: Latency is ") {
        return read_latency(output, average);
    }
    if let Some(rate) = number_after(output, "Summary: Message Rate is ") {
        return read_throughput(output, rate);
    }
    Err(ParseError::missing(Tool::Sockperf, "summary"))
}

fn read_latency(output: &str, average: f64) -> Result<Reading, ParseError> {
    let mut metrics = Vec::new();
    for (name, label) in [
        ("latency p50", "percentile 50.000 ="),
        ("latency p99", "percentile 99.000 ="),
        ("latency p99.9", "percentile 99.900 ="),
        ("latency max", "<MAX> observation ="),
    ] {
        if let Some(latency) = number_after(output, label) {
            metrics.push(Metric::lower(name, latency, MICROSECONDS));
        }
    }
    // The average comes second: one stall changes it, while the median is typical for messages.
    let at = metrics.len().min(1);
    metrics.insert(at, Metric::lower("latency average", average, MICROSECONDS));
    for (name, label) in [
        ("messages dropped", "# dropped messages ="),
        ("messages duplicated", "# duplicated messages ="),
        ("messages out of order", "# out-of-order messages ="),
    ] {
        // On a stream each of these indicates a bug, so a round with one is invalid.
        if number_after(output, label).is_some_and(|count| count > 0.0) {
            return Err(ParseError(format!("sockperf reports {name}")));
        }
    }
    let total = &output[output.find("[Total Run]").unwrap_or(0)..];
    let messages = number_after(total, "SentMessages=")
        .ok_or_else(|| ParseError::missing(Tool::Sockperf, "count of messages"))?;
    Ok(Reading {
        metrics,
        work: Work {
            amount: messages,
            unit: "message",
        },
    })
}

fn read_throughput(output: &str, rate: f64) -> Result<Reading, ParseError> {
    let messages = number_after(output, "Total of ")
        .ok_or_else(|| ParseError::missing(Tool::Sockperf, "count of messages"))?;
    let mut metrics = vec![Metric::higher("messages", rate, "messages/s")];
    if let Some(megabytes) = number_after(output, "BandWidth is ") {
        metrics.push(Metric::higher("bandwidth", megabytes, "MB/s"));
    }
    Ok(Reading {
        metrics,
        work: Work {
            amount: messages,
            unit: "message",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ping_pong() {
        let output = include_str!("../../tests/data/sockperf-ping-pong.txt");
        let reading = read(output).expect("a summary");
        assert_eq!(
            reading.metrics[0],
            Metric::lower("latency p50", 33.359, "us")
        );
        assert_eq!(
            reading.metrics[1],
            Metric::lower("latency average", 32.586, "us")
        );
        assert_eq!(
            reading.metrics[2],
            Metric::lower("latency p99", 49.329, "us")
        );
        assert_eq!(
            reading.work,
            Work {
                amount: 28_697.0,
                unit: "message"
            }
        );
    }

    #[test]
    fn reads_under_load() {
        let output = include_str!("../../tests/data/sockperf-under-load.txt");
        let reading = read(output).expect("a summary");
        assert_eq!(reading.metrics[0].value, 20.697);
        assert_eq!(reading.work.amount, 5003.0);
    }

    #[test]
    fn reads_throughput() {
        let output = include_str!("../../tests/data/sockperf-throughput.txt");
        let reading = read(output).expect("a summary");
        assert_eq!(
            reading.metrics[0],
            Metric::higher("messages", 3_267_002.0, "messages/s")
        );
        assert_eq!(reading.metrics[1].value, 199.402);
        assert_eq!(reading.work.amount, 3_268_651.0);
    }

    #[test]
    fn a_lost_message_spoils_the_round() {
        let output = include_str!("../../tests/data/sockperf-ping-pong.txt")
            .replace("# dropped messages = 0", "# dropped messages = 1");
        assert!(read(&output).unwrap_err().to_string().contains("dropped"));
    }
}
