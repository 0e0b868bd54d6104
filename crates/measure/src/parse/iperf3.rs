//! `iperf3 -J`: the receiver's rate, which counts what arrived.

use serde_json::Value;

use super::{ParseError, Tool};
use crate::metric::{Metric, Reading, Work};

pub(super) fn read(output: &str) -> Result<Reading, ParseError> {
    let missing = |what| ParseError::missing(Tool::Iperf3, what);
    // There may be warnings before the document.
    let start = output
        .find('{')
        .ok_or_else(|| missing("JSON: add -J to the client's command"))?;
    let report: Value = serde_json::from_str(&output[start..])
        .map_err(|_| missing("complete JSON: add -J to the client's command"))?;
    if let Some(error) = report.get("error").and_then(Value::as_str) {
        return Err(ParseError(format!("iperf3 reports: {error}")));
    }
    let end = report.get("end").ok_or_else(|| missing("`end` summary"))?;
    let number = |part: &str, field: &str| end.get(part)?.get(field)?.as_f64();
    // `--bidir` has a second pair of sums; the work is the data received in both directions.
    let received: Vec<&str> = ["sum_received", "sum_received_bidir_reverse"]
        .into_iter()
        .filter(|part| number(part, "bits_per_second").is_some())
        .collect();
    let sum = |field: &str| -> f64 { received.iter().filter_map(|part| number(part, field)).sum() };
    let (bits_per_second, bytes) = (sum("bits_per_second"), sum("bytes"));
    if bits_per_second <= 0.0 || bytes <= 0.0 {
        return Err(missing("received bytes"));
    }
    let mut metrics = vec![Metric::higher(
        "throughput",
        bits_per_second / 1e9,
        "Gbit/s",
    )];
    if let Some(retransmits) = number("sum_sent", "retransmits") {
        metrics.push(Metric::lower("retransmits", retransmits, "segments"));
    }
    Ok(Reading {
        metrics,
        work: Work {
            amount: bytes / 1e9,
            unit: "GB",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_arrived() {
        let output = include_str!("../../tests/data/iperf3.json");
        let reading = read(output).expect("a report");
        assert_eq!(reading.metrics[0].name, "throughput");
        assert!((reading.metrics[0].value - 21.234).abs() < 0.001);
        assert_eq!(
            reading.metrics[1],
            Metric::lower("retransmits", 4.0, "segments")
        );
        assert!((reading.work.amount - 2.655_518_720).abs() < 1e-9);
    }

    #[test]
    fn the_text_report_is_refused_with_the_remedy() {
        let error = read("[  5] 0.00-1.00 sec 2.46 GBytes 21.1 Gbits/sec receiver").unwrap_err();
        assert!(error.to_string().contains("-J"));
    }

    #[test]
    fn iperf3_s_own_error_is_passed_on() {
        let error = read(r#"{"start":{}, "end":{}, "error":"unable to connect"}"#).unwrap_err();
        assert!(error.to_string().contains("unable to connect"));
    }

    #[test]
    fn both_directions_count() {
        let output = r#"{"end":{"sum_received":{"bits_per_second":1e9,"bytes":5e8},
            "sum_received_bidir_reverse":{"bits_per_second":2e9,"bytes":1e9}}}"#;
        let reading = read(output).expect("a report");
        assert_eq!(reading.metrics[0].value, 3.0);
        assert_eq!(reading.work.amount, 1.5);
    }
}
