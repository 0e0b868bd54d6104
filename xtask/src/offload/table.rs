//! Samples as a table, and as JSON.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toehold_measure::stats::{self, Ratio};

use super::account::Account;
use super::load::{Arm, Sample};
use super::{Case, Link, Work};

/// All samples of one comparison.
pub(super) struct Row {
    case: Case,
    samples: Samples,
}

/// The samples of each arm, by round.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
struct Samples {
    kernel: Vec<Sample>,
    again: Vec<Sample>,
    engine: Vec<Sample>,
    /// The near end's CPU time, with receiving counted where it belongs.
    #[serde(default)]
    kernel_account: Vec<Account>,
    #[serde(default)]
    engine_account: Vec<Account>,
}

/// A row in the file of a run.
#[derive(Serialize, Deserialize)]
struct Kept {
    name: String,
    #[serde(flatten)]
    samples: Samples,
}

impl Row {
    pub(super) fn new(case: Case) -> Row {
        Row {
            case,
            samples: Samples::default(),
        }
    }

    pub(super) fn add(&mut self, arm: Arm, sample: Sample) {
        match arm {
            Arm::Kernel => self.samples.kernel.push(sample),
            Arm::Again => self.samples.again.push(sample),
            Arm::Engine => self.samples.engine.push(sample),
        }
    }

    pub(super) fn account(&mut self, arm: Arm, account: Account) {
        match arm {
            Arm::Kernel | Arm::Again => self.samples.kernel_account.push(account),
            Arm::Engine => self.samples.engine_account.push(account),
        }
    }

    /// The row of a case that an earlier run has measured in `rounds` rounds.
    pub(super) fn kept(report: &Value, case: Case, rounds: usize) -> Option<Row> {
        let rows = report["rows"].as_array()?;
        let found = rows.iter().find(|row| row["name"] == title(case))?;
        let kept: Kept = serde_json::from_value(found.clone()).ok()?;
        let Samples {
            kernel,
            again,
            engine,
            ..
        } = &kept.samples;
        let is_whole = [kernel, again, engine]
            .iter()
            .all(|arm| arm.len() == rounds);
        is_whole.then_some(Row {
            case,
            samples: kept.samples,
        })
    }

    /// The ratio engine / kernel of the value that `get` takes from a sample: the median of the
    /// rounds.
    fn ratio(&self, get: impl Fn(&Sample) -> f64) -> Option<Ratio> {
        ratio(&self.samples.kernel, &self.samples.engine, get)
    }

    /// Work per CPU second of the near end, engine / kernel; and the share of both near ends' time
    /// in which either end may have been receiving.
    fn fair(&self) -> String {
        let (kernel, engine) = (&self.samples.kernel_account, &self.samples.engine_account);
        let sum = |get: fn(&Account) -> f64| kernel.iter().chain(engine).map(get).sum::<f64>();
        let unknown = sum(|account| account.unknown) / sum(|account| account.near);
        let ratio = ratio(kernel, engine, |account| 1.0 / account.near);
        ratio.map_or(String::new(), |ratio| {
            let spread = spread(Some(ratio));
            match unknown {
                unknown if unknown < 0.01 => spread,
                unknown => format!("{spread} ({:.0} % unknown)", unknown * 100.0),
            }
        })
    }

    /// The difference of the kernel's rate from itself.
    fn floor(&self) -> Option<f64> {
        let ratio = ratio(&self.samples.kernel, &self.samples.again, |sample| {
            sample.rate
        });
        ratio.map(|ratio| ratio.reach_from_one())
    }
}

fn ratio<T>(base: &[T], other: &[T], get: impl Fn(&T) -> f64) -> Option<Ratio> {
    let rounds = base.iter().zip(other);
    let rounds: Vec<(f64, f64)> = rounds
        .map(|(base, other)| (get(base), get(other)))
        .collect();
    stats::ratio(&rounds)
}

pub(super) fn title(case: Case) -> String {
    let over = match case.link {
        Link::Tap => "over TAP",
        Link::Packet => "over packet",
        Link::Xdp => "over xdp",
    };
    format!("{}, {over}", title_of_work(case))
}

fn title_of_work(case: Case) -> String {
    match case.work {
        Work::Bulk { to_near } => format!(
            "bulk {} the near end, {}",
            if to_near { "to" } else { "from" },
            if case.large {
                "large segments"
            } else {
                "MTU 1500, nothing offloaded"
            }
        ),
        Work::Requests {
            clients,
            near_serves,
        } => format!(
            "Redis GET, {clients} client{}, {} near",
            if clients == 1 { "" } else { "s" },
            if near_serves { "server" } else { "client" }
        ),
        Work::Connections { near_serves } => format!(
            "a connection for each Redis GET, 50 clients, {} near",
            if near_serves { "server" } else { "client" }
        ),
    }
}

/// Markdown: medians of the arms, and medians of the ratios within rounds with their intervals
/// (below six rounds: the least and the most).
pub(super) fn render(rows: &[Row]) -> String {
    let mut out = String::from(
        "| | kernel | engine | ratio | noise floor | median latency | p99 | CPU of all cores, for \
        each unit | work for a CPU second of the near end | receiving where it belongs | the \
        adapter alone |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let is_bulk = matches!(row.case.work, Work::Bulk { .. });
        let rate = |samples: &[Sample]| {
            let unit = if is_bulk { "Gbit/s" } else { "k/s" };
            format!("{:.1} {unit}", median_of(samples, |sample| sample.rate))
        };
        let latency = |get: fn(&Sample) -> Option<f64>| {
            if row
                .samples
                .kernel
                .iter()
                .all(|sample| get(sample).is_some())
            {
                spread(row.ratio(|sample| get(sample).unwrap_or(f64::NAN)))
            } else {
                String::new()
            }
        };
        let adapter = median_of(&row.samples.engine, |sample| sample.cpu_adapter);
        let adapter = if is_bulk {
            format!("{adapter:.2} s/GB")
        } else {
            format!("{:.1} us/request", adapter * 1e6)
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {adapter} |",
            title(row.case),
            rate(&row.samples.kernel),
            rate(&row.samples.engine),
            spread(row.ratio(|sample| sample.rate)),
            row.floor()
                .map_or(String::new(), |floor| format!("{:.0} %", floor * 100.0)),
            latency(|sample| sample.latency_p50),
            latency(|sample| sample.latency_p99),
            spread(row.ratio(|sample| sample.cpu_all)),
            spread(row.ratio(|sample| 1.0 / sample.cpu_near)),
            row.fair(),
        );
    }
    out
}

/// Every sample.
pub(super) fn report(rows: &[Row]) -> Value {
    let kept = rows.iter().map(|row| Kept {
        name: title(row.case),
        samples: row.samples.clone(),
    });
    json!(kept.collect::<Vec<Kept>>())
}

fn spread(ratio: Option<Ratio>) -> String {
    ratio.map_or(
        String::new(),
        |Ratio {
             value, low, high, ..
         }| { format!("{value:.2}x [{low:.2}, {high:.2}]") },
    )
}

fn median_of(samples: &[Sample], get: impl Fn(&Sample) -> f64) -> f64 {
    stats::median(&samples.iter().map(get).collect::<Vec<f64>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(rate: f64, cpu: f64) -> Sample {
        Sample {
            rate,
            latency_p50: None,
            latency_p99: None,
            cpu_all: cpu,
            cpu_near: cpu / 2.0,
            cpu_adapter: cpu / 4.0,
        }
    }

    #[test]
    fn ratios_are_of_neighbours() {
        let case = Case {
            work: Work::Bulk { to_near: false },
            large: true,
            link: Link::Tap,
        };
        let mut row = Row::new(case);
        for (kernel, engine) in [(10.0, 20.0), (1.0, 3.0), (100.0, 100.0)] {
            row.add(Arm::Kernel, sample(kernel, 1.0));
            row.add(Arm::Again, sample(kernel * 1.1, 1.0));
            row.add(Arm::Engine, sample(engine, 0.5));
        }
        let account = |near, unknown| Account { near, unknown };
        row.account(Arm::Kernel, account(4.0, 1.0));
        row.account(Arm::Engine, account(1.0, 0.0));
        let ratio = row.ratio(|sample| sample.rate).expect("rounds");
        assert_eq!((ratio.value, ratio.low, ratio.high), (2.0, 1.0, 3.0));
        let kept = json!({ "rows": report(std::slice::from_ref(&row)) });
        let again = Row::kept(&kept, case, 3).expect("all rounds are there");
        assert_eq!(again.samples, row.samples);
        assert!(Row::kept(&kept, case, 4).is_none());
        let text = render(&[row]);
        assert!(
            text.contains("| 10.0 Gbit/s | 20.0 Gbit/s | 2.00x [1.00, 3.00] | 10 % |"),
            "{text}"
        );
        assert!(
            text.contains("| 2.00x [2.00, 2.00] | 4.00x [4.00, 4.00] (20 % unknown) | 0.12 s/GB |"),
            "{text}"
        );
    }
}
