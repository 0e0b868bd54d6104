//! `pgbench`.

use super::{ParseError, Tool, number_after};
use crate::metric::{MICROSECONDS, Metric, Reading, Work};

pub(super) fn read(output: &str) -> Result<Reading, ParseError> {
    let missing = |what| ParseError::missing(Tool::Pgbench, what);
    let rate = number_after(output, "tps = ").ok_or_else(|| missing("tps"))?;
    let transactions = number_after(output, "number of transactions actually processed: ")
        .ok_or_else(|| missing("count of transactions"))?;
    let mut metrics = vec![Metric::higher("transactions", rate, "transactions/s")];
    for (name, label) in [
        ("latency average", "latency average = "),
        ("connection time", "initial connection time = "),
    ] {
        if let Some(milliseconds) = number_after(output, label) {
            metrics.push(Metric::lower(name, milliseconds * 1000.0, MICROSECONDS));
        }
    }
    if let Some(failed) = number_after(output, "number of failed transactions: ") {
        metrics.push(Metric::lower("failed transactions", failed, "transactions"));
    }
    Ok(Reading {
        metrics,
        work: Work {
            amount: transactions,
            unit: "transaction",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_report() {
        let reading = read(include_str!("../../tests/data/pgbench.txt")).expect("a report");
        assert_eq!(reading.metrics[0].value, 91_531.334_556);
        assert_eq!(
            reading.metrics[1],
            Metric::lower("latency average", 44.0, "us")
        );
        assert_eq!(
            reading.metrics[2],
            Metric::lower("connection time", 10_703.0, "us")
        );
        assert_eq!(reading.metrics[3].value, 0.0);
        assert_eq!(
            reading.work,
            Work {
                amount: 90_760.0,
                unit: "transaction"
            }
        );
    }
}
