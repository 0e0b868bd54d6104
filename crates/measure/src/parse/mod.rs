//! Reads the output of common load generators.
//!
//! Any other client is measured only by its wall time. Each reader takes the numbers that the tool
//! itself reports, converts latencies to microseconds, and returns the amount of work, because
//! costs are only comparable per unit of work.

mod ab;
mod iperf3;
mod memtier;
mod pgbench;
mod redis_benchmark;
mod sockperf;
mod wrk;

use std::fmt;
use std::path::Path;

use crate::metric::{Metric, Reading};

/// A load generator whose output is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// `redis-benchmark`, plain, `-q` or `--csv`.
    RedisBenchmark,
    /// `iperf3 -J`.
    Iperf3,
    /// `sockperf ping-pong`, `under-load` or `throughput`.
    Sockperf,
    /// `wrk`, with or without `--latency`.
    Wrk,
    /// `pgbench`.
    Pgbench,
    /// `memtier_benchmark`.
    Memtier,
    /// ApacheBench.
    Ab,
}

impl Tool {
    /// The load generator that a client command runs, also after `env`, `taskset`, `sh -c` and
    /// similar commands.
    pub fn of(command: &str) -> Option<Tool> {
        command.split_whitespace().find_map(|word| {
            let word = word.trim_matches(['\'', '"', ';', '(', ')']);
            let name = Path::new(word).file_name()?.to_str()?;
            TOOLS
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, tool)| *tool)
        })
    }

    /// The name of the tool's command.
    pub fn name(self) -> &'static str {
        TOOLS
            .iter()
            .find(|(_, tool)| *tool == self)
            .map_or("", |(name, _)| *name)
    }

    /// Reads the tool's output.
    ///
    /// # Errors
    ///
    /// When the output lacks the numbers that this tool prints at its end, or when it did no work:
    /// some tools exit successfully even then, and print zeros.
    pub fn read(self, command: &str, output: &str) -> Result<Reading, ParseError> {
        let reading = self.read_numbers(command, output)?;
        let first = reading.metrics.first();
        let is_positive = |value: f64| value.is_finite() && value > 0.0;
        // A tool that makes several tests has a rate for each.
        let is_of_first = |metric: &&Metric| first.is_some_and(|first| first.unit == metric.unit);
        let mut rates = reading.metrics.iter().filter(is_of_first);
        let has_rates = first.is_some() && rates.all(|metric| is_positive(metric.value));
        match has_rates && is_positive(reading.work.amount) {
            true => Ok(reading),
            false => Err(ParseError(format!(
                "{} has measured nothing: by its output no {} was completed",
                self.name(),
                reading.work.unit
            ))),
        }
    }

    fn read_numbers(self, command: &str, output: &str) -> Result<Reading, ParseError> {
        match self {
            Tool::RedisBenchmark => redis_benchmark::read(command, output),
            Tool::Iperf3 => iperf3::read(output),
            Tool::Sockperf => sockperf::read(output),
            Tool::Wrk => wrk::read(output),
            Tool::Pgbench => pgbench::read(output),
            Tool::Memtier => memtier::read(output),
            Tool::Ab => ab::read(output),
        }
    }
}

const TOOLS: [(&str, Tool); 7] = [
    ("redis-benchmark", Tool::RedisBenchmark),
    ("iperf3", Tool::Iperf3),
    ("sockperf", Tool::Sockperf),
    ("wrk", Tool::Wrk),
    ("pgbench", Tool::Pgbench),
    ("memtier_benchmark", Tool::Memtier),
    ("ab", Tool::Ab),
];

/// Output without the expected numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError(String);

impl ParseError {
    fn missing(tool: Tool, what: &str) -> ParseError {
        ParseError(format!("the output of {} has no {what}", tool.name()))
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for ParseError {}

/// The number at the start of `text`, spaces aside: `"  12.5 usec"` is 12.5.
fn leading_number(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e')))
        .unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The number right after the first occurrence of `label`.
fn number_after(text: &str, label: &str) -> Option<f64> {
    leading_number(&text[text.find(label)? + label.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_is_found_behind_wrappers() {
        assert_eq!(
            Tool::of("redis-benchmark -t get"),
            Some(Tool::RedisBenchmark)
        );
        assert_eq!(Tool::of("/usr/bin/iperf3 -c ::1 -J"), Some(Tool::Iperf3));
        assert_eq!(
            Tool::of("setpriv --reuid 5 /usr/bin/pgbench -S"),
            Some(Tool::Pgbench)
        );
        assert_eq!(Tool::of("sh -c 'wrk http://localhost/'"), Some(Tool::Wrk));
        assert_eq!(Tool::of("curl http://localhost/wrk.html"), None);
    }

    #[test]
    fn garbage_is_an_error_for_every_tool() {
        for (name, tool) in TOOLS {
            for output in [
                "",
                "\n\n",
                "Segmentation fault",
                "{}",
                "[",
                "\u{fffd},\"",
                "nan nan",
            ] {
                assert!(tool.read(name, output).is_err(), "{name}: {output:?}");
            }
        }
    }

    #[test]
    fn a_tool_that_completed_nothing_is_an_error() {
        let wrk = "  Latency     0.00us    0.00us   0.00us    -nan%\n  0 requests in 1.00s, 0.00B \
            read\n  Socket errors: connect 0, read 0, write 0, timeout 10\n\
            Requests/sec:      0.00\n";
        let pgbench = "number of transactions actually processed: 0\ntps = 0.000000 (without \
            initial connection time)\n";
        let redis = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"90000.00\",\"0.2\"\n\
            \"GET\",\"0.00\",\"0.000\"\n";
        let ab = "Complete requests:      0\nRequests per second:    0.00 [#/sec] (mean)\n";
        let sockperf = "sockperf: [Total Run] RunTime=1.000 sec; SentMessages=0; \
            ReceivedMessages=0\n\
            sockperf: Summary: Latency is 0.000 usec\n";
        for (tool, output) in [
            (Tool::Wrk, wrk),
            (Tool::Pgbench, pgbench),
            (Tool::RedisBenchmark, redis),
            (Tool::Ab, ab),
            (Tool::Sockperf, sockperf),
        ] {
            let error = tool.read(tool.name(), output).expect_err("no work");
            let sentence = error.to_string();
            assert!(sentence.contains("measured nothing"), "{sentence}");
        }
    }

    #[test]
    fn numbers_stop_at_their_unit() {
        assert_eq!(leading_number("  12.5usec"), Some(12.5));
        assert_eq!(leading_number("usec"), None);
        assert_eq!(number_after("p50=0.191 msec", "p50="), Some(0.191));
    }
}
