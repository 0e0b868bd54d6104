//! `redis-benchmark`: the plain report, `-q` and `--csv`.

use super::{ParseError, Tool, leading_number, number_after};
use crate::metric::{MICROSECONDS, Metric, Reading, Work};

/// One test ("GET") of a run.
struct Test {
    name: String,
    requests_per_second: f64,
    /// (name, microseconds)
    latencies: Vec<(&'static str, f64)>,
}

pub(super) fn read(command: &str, output: &str) -> Result<Reading, ParseError> {
    // Progress is overwritten with carriage returns, so these end lines as well.
    let lines: Vec<&str> = output.split(['\n', '\r']).map(str::trim).collect();
    let mut tests = read_csv(&lines);
    if tests.is_empty() {
        tests = read_plain(&lines);
    }
    if tests.is_empty() {
        tests = lines.iter().filter_map(|line| read_quiet(line)).collect();
    }
    if tests.is_empty() {
        return Err(ParseError::missing(
            Tool::RedisBenchmark,
            "requests per second",
        ));
    }
    let work = requests_per_test(command)? * tests.len() as f64;
    let mut metrics = Vec::new();
    for test in &tests {
        metrics.push(Metric::higher(
            &test.name,
            test.requests_per_second,
            "requests/s",
        ));
    }
    for test in &tests {
        for (name, microseconds) in &test.latencies {
            let name = format!("{} latency {name}", test.name);
            metrics.push(Metric::lower(name, *microseconds, MICROSECONDS));
        }
    }
    Ok(Reading {
        metrics,
        work: Work {
            amount: work,
            unit: "request",
        },
    })
}

/// Reads lines like `"GET","136986.30","0.200","0.080","0.199","0.255","0.327","0.527"` below their
/// headings.
fn read_csv(lines: &[&str]) -> Vec<Test> {
    let cells = |line: &str| -> Vec<String> {
        line.split(',')
            .map(|cell| cell.trim().trim_matches('"').to_owned())
            .collect()
    };
    let Some(start) = lines
        .iter()
        .position(|line| line.starts_with("\"test\",\"rps\""))
    else {
        return Vec::new();
    };
    let headings = cells(lines[start]);
    let mut tests = Vec::new();
    for row in lines[start + 1..].iter().map(|line| cells(line)) {
        let cell = |name: &str| -> Option<f64> {
            let column = headings.iter().position(|heading| heading == name)?;
            row.get(column)?.parse().ok()
        };
        let Some(requests_per_second) = cell("rps") else {
            continue;
        };
        let latencies = [
            ("p50", "p50_latency_ms"),
            ("p99", "p99_latency_ms"),
            ("max", "max_latency_ms"),
        ]
        .iter()
        .filter_map(|(name, column)| Some((*name, cell(column)? * 1000.0)))
        .collect();
        tests.push(Test {
            name: row[0].clone(),
            requests_per_second,
            latencies,
        });
    }
    tests
}

/// Reads sections that begin with `====== GET ======` and end with two summaries.
fn read_plain(lines: &[&str]) -> Vec<Test> {
    let mut tests = Vec::new();
    let mut name = None;
    for (at, line) in lines.iter().enumerate() {
        if let Some(title) = line.strip_prefix("====== ") {
            name = title.strip_suffix(" ======").map(str::to_owned);
        }
        if let Some(rate) = number_after(line, "throughput summary:") {
            let name = name.clone().unwrap_or_else(|| "requests".to_owned());
            tests.push(Test {
                name,
                requests_per_second: rate,
                latencies: Vec::new(),
            });
        }
        if line.starts_with("latency summary (msec)")
            && let (Some(headings), Some(values)) = (lines.get(at + 1), lines.get(at + 2))
            && let Some(test) = tests.last_mut()
        {
            let values: Vec<&str> = values.split_whitespace().collect();
            for wanted in ["p50", "p99", "max"] {
                let column = headings
                    .split_whitespace()
                    .position(|heading| heading == wanted);
                let value = column.and_then(|column| leading_number(values.get(column)?));
                test.latencies
                    .extend(value.map(|milliseconds| (wanted, milliseconds * 1000.0)));
            }
        }
    }
    tests
}

/// `GET: 137931.03 requests per second, p50=0.191 msec`
fn read_quiet(line: &str) -> Option<Test> {
    // A test's name may contain a colon: "MSET (10 keys): ...".
    let (name, numbers) = line.rsplit_once(": ")?;
    if !numbers.contains(" requests per second") {
        return None;
    }
    let latencies =
        number_after(numbers, "p50=").map(|milliseconds| ("p50", milliseconds * 1000.0));
    Some(Test {
        name: name.to_owned(),
        requests_per_second: leading_number(numbers)?,
        latencies: latencies.into_iter().collect(),
    })
}

/// The value of `-n`, the number of requests of each test; the tool's default if it is missing.
fn requests_per_test(command: &str) -> Result<f64, ParseError> {
    let mut words = command.split_whitespace();
    if !words.any(|word| word == "-n") {
        return Ok(DEFAULT_REQUESTS);
    }
    let count = words.next().and_then(|count| count.parse().ok());
    count.ok_or_else(|| ParseError("redis-benchmark was given no number behind -n".to_owned()))
}

const DEFAULT_REQUESTS: f64 = 100_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn value(reading: &Reading, name: &str) -> f64 {
        let metric = reading.metrics.iter().find(|metric| metric.name == name);
        metric
            .unwrap_or_else(|| panic!("{name} in {reading:?}"))
            .value
    }

    #[test]
    fn a_count_that_is_no_number_is_no_default() {
        let output = include_str!("../../tests/data/redis-plain.txt");
        let refused = read("redis-benchmark -t get -n {x}", output).expect_err("refused");
        assert!(refused.to_string().contains("behind -n"), "{refused}");
        let reading = read("redis-benchmark -t get", output).expect("a report");
        assert_eq!(reading.work.amount, 100_000.0);
    }

    #[test]
    fn reads_the_plain_report() {
        let output = include_str!("../../tests/data/redis-plain.txt");
        let reading = read("redis-benchmark -t get -n 20000", output).expect("a report");
        assert_eq!(
            reading.metrics[0],
            Metric::higher("GET", 150_375.94, "requests/s")
        );
        assert_eq!(value(&reading, "GET latency p50"), 183.0);
        assert_eq!(value(&reading, "GET latency p99"), 511.0);
        assert_eq!(
            reading.work,
            Work {
                amount: 20_000.0,
                unit: "request"
            }
        );
    }

    #[test]
    fn reads_the_quiet_lines_and_not_their_progress() {
        let output = include_str!("../../tests/data/redis-q.txt");
        let reading = read("redis-benchmark -q -n 20000", output).expect("two lines");
        assert_eq!(value(&reading, "SET"), 141_843.97);
        assert_eq!(value(&reading, "GET"), 137_931.03);
        assert_eq!(value(&reading, "GET latency p50"), 191.0);
        assert_eq!(reading.work.amount, 40_000.0);
    }

    #[test]
    fn reads_csv() {
        let output = include_str!("../../tests/data/redis-csv.txt");
        let reading = read("redis-benchmark --csv", output).expect("two rows");
        assert_eq!(value(&reading, "SET"), 135_135.14);
        assert_eq!(value(&reading, "GET latency p99"), 327.0);
        assert_eq!(reading.work.amount, 200_000.0);
    }

    #[test]
    fn a_name_may_hold_a_colon() {
        let reading = read("redis-benchmark -q", "a: b: 5.00 requests per second").expect("a line");
        assert_eq!(reading.metrics[0].name, "a: b");
    }
}
