//! The finished comparison: every sample, the conclusions and the environment.

use serde::Serialize;
use toehold_measure::cpus::{Pin, Placement};
use toehold_measure::environment::Environment;
use toehold_measure::metric::{Better, Metric};
use toehold_measure::stats::{self, Ratio, Summary};
pub(crate) use toehold_measure::verdict::Verdict;

use super::arm::Arm;
use super::connections::{ConnectionsSeen, Moved};
use super::round::Round;
use crate::options::{PathChoice, WaitChoice};

/// A whole comparison, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The name and version of the document's format.
    pub(crate) schema: &'static str,
    /// The options of the command line.
    pub(crate) plan: Plan,
    /// The command that repeats the comparison.
    pub(crate) command: String,
    /// The host on which it ran.
    pub(crate) environment: Environment,
    /// Metrics in the order of the table.
    pub(crate) metrics: Vec<MetricReport>,
    /// The reason why system calls were not counted, when they were not.
    pub(crate) syscalls_not_counted: Option<String>,
    /// A sentence if the user interrupted the comparison. Then only the rounds count that every arm
    /// has finished.
    pub(crate) interruption: Option<String>,
    /// Warnings that a reader needs to judge the numbers.
    pub(crate) warnings: Vec<String>,
    /// The samples, round by round.
    pub(crate) arms: Vec<ArmReport>,
}

/// The question of the comparison.
#[derive(Debug, Serialize)]
pub(crate) struct Plan {
    /// The server's command.
    pub(crate) server: String,
    /// The client's command.
    pub(crate) client: String,
    /// The tool whose format the client's output has; `None` for wall time.
    pub(crate) client_tool: Option<&'static str>,
    /// The way by which the server's readiness was detected.
    pub(crate) ready: String,
    /// The wait mode of accelerated programs.
    pub(crate) wait: WaitChoice,
    /// The placement of the two sides.
    pub(crate) pin: Pin,
    /// The cores that resulted from `pin`.
    pub(crate) placement: Placement,
    /// Warm-up runs of each arm, which are discarded.
    pub(crate) warmups: usize,
    /// Measured rounds of each arm.
    pub(crate) rounds: usize,
    /// Seed of the order and of the intervals.
    pub(crate) seed: u64,
}

/// One arm's rounds.
#[derive(Debug, Serialize)]
pub(crate) struct ArmReport {
    /// Its name.
    pub(crate) label: String,
    /// Its path.
    pub(crate) path: PathChoice,
    /// Its rounds by number; `None` where one failed.
    pub(crate) rounds: Vec<Option<Round>>,
    /// The errors of the failed rounds.
    pub(crate) failures: Vec<String>,
    /// The round in which system calls were counted; its times are not used.
    pub(crate) counting: Option<Round>,
    /// Paths of the connections seen while the client ran in the counting round.
    pub(crate) connections: Option<ConnectionsSeen>,
}

impl Report {
    /// Sentences at the top of the report: about arms that compare the kernel with itself, and arms
    /// that measure how fast a server fails.
    pub(crate) fn banners(&self) -> Vec<String> {
        let mut banners: Vec<String> = self.interruption.iter().cloned().collect();
        banners.extend(self.kernel_with_itself());
        banners.extend(self.arms.iter().filter_map(ArmReport::of_failures));
        banners
    }

    fn kernel_with_itself(&self) -> Vec<String> {
        let stayed = self.arms.iter().filter(|arm| arm.has_stayed());
        let banner = |arm: &ArmReport| {
            format!(
                "{}: no connection left kernel TCP, so this arm compares the kernel with itself",
                arm.label
            )
        };
        stayed.map(banner).collect()
    }

    /// Every sample, one per line.
    pub(crate) fn csv(&self) -> String {
        let mut out = String::from("metric,unit,arm,round,value\n");
        for metric in &self.metrics {
            for arm in &metric.arms {
                for (round, sample) in arm.samples.iter().enumerate() {
                    let value = sample.map_or(String::new(), |sample| sample.to_string());
                    out.push_str(&format!(
                        "\"{}\",\"{}\",\"{}\",{},{value}\n",
                        metric.name,
                        metric.unit,
                        arm.label,
                        round + 1
                    ));
                }
            }
        }
        out
    }
}

impl ArmReport {
    /// Whether all connections stayed on kernel TCP, although they should not have.
    fn has_stayed(&self) -> bool {
        let rounds = self.rounds.iter().flatten().chain(&self.counting);
        let mut counts = rounds.filter_map(|round| round.moved).peekable();
        let is_counted = counts.peek().is_some();
        self.path != PathChoice::Host && is_counted && counts.all(Moved::is_none)
    }

    /// A warning when more than a hundredth of this arm's requests failed: the rate of a server
    /// that answers with errors is not the rate of its real work.
    fn of_failures(&self) -> Option<String> {
        let of_round = |round: &Round| {
            let work = round.work().amount;
            let results = round.results();
            let failed = results.iter().find(|one| one.name.starts_with("failed "))?;
            Some((failed.value / work, failed.value, work, round.work().unit))
        };
        let rounds = self.rounds.iter().flatten().filter_map(of_round);
        let (share, failed, work, unit) = rounds.max_by(|a, b| a.0.total_cmp(&b.0))?;
        (share > FAILED_SHARE_MAX).then(|| {
            format!(
                "{}: {failed:.0} of {work:.0} {unit}s failed in one round, so its numbers are \
                 those of failures",
                self.label
            )
        })
    }

    /// An arm before its first round.
    pub(crate) fn new(arm: &Arm) -> ArmReport {
        ArmReport {
            label: arm.label.clone(),
            path: arm.path,
            rounds: Vec::new(),
            failures: Vec::new(),
            counting: None,
            connections: None,
        }
    }
}

/// The source of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Group {
    /// The client's own report.
    Results,
    /// The costs of the work on the host.
    Costs,
}

/// One metric on all arms.
#[derive(Debug, Serialize)]
pub(crate) struct MetricReport {
    /// The source of the metric.
    pub(crate) group: Group,
    /// The metric's name.
    pub(crate) name: String,
    /// The unit that it counts.
    pub(crate) unit: String,
    /// Which direction is an improvement.
    pub(crate) better: Better,
    /// Smaller differences from the base are noise: the difference between the base's two arms.
    pub(crate) noise_floor: Option<f64>,
    /// Its values on each arm.
    pub(crate) arms: Vec<ArmMetric>,
}

/// One metric on one arm.
#[derive(Debug, Serialize)]
pub(crate) struct ArmMetric {
    /// The arm's name.
    pub(crate) label: String,
    /// Its samples by round; `None` where there is none.
    pub(crate) samples: Vec<Option<f64>>,
    /// Their statistics.
    pub(crate) summary: Option<Summary>,
    /// The ratio to the base; `None` for the base itself, or when there is no ratio.
    pub(crate) ratio: Option<Ratio>,
    /// The conclusion; `None` for the base itself.
    pub(crate) verdict: Option<Verdict>,
}

/// Joins the rounds of all arms metric by metric. The first arm is the base; with `control`, the
/// last one is the base again and gives the noise floor.
pub(crate) fn metrics(arms: &[ArmReport], control: bool) -> Vec<MetricReport> {
    let mut reports = Vec::new();
    for (group, of) in [
        (Group::Results, Round::results as fn(&Round) -> Vec<Metric>),
        (Group::Costs, Round::costs as fn(&Round) -> Vec<Metric>),
    ] {
        let tables: Vec<Vec<Option<Vec<Metric>>>> = arms
            .iter()
            .map(|arm| {
                arm.rounds
                    .iter()
                    .map(|round| round.as_ref().map(of))
                    .collect()
            })
            .collect();
        for known in names(&tables) {
            let samples: Vec<Vec<Option<f64>>> = tables
                .iter()
                .map(|rounds| {
                    rounds
                        .iter()
                        .map(|round| sample(round.as_deref(), &known.name))
                        .collect()
                })
                .collect();
            reports.push(metric_report(group, &known, arms, samples, control));
        }
    }
    reports.extend(counted(arms));
    reports
}

fn metric_report(
    group: Group,
    known: &Metric,
    arms: &[ArmReport],
    samples: Vec<Vec<Option<f64>>>,
    control: bool,
) -> MetricReport {
    let pairs_of = |arm: usize| -> Vec<(f64, f64)> {
        let rounds = samples[0].iter().zip(&samples[arm]);
        rounds
            .filter_map(|(base, path)| (*base).zip(*path))
            .collect()
    };
    let control = control
        .then(|| stats::ratio(&pairs_of(arms.len() - 1)))
        .flatten();
    let floor = control.map(|ratio| ratio.reach_from_one());
    let arm_metrics = (0..arms.len())
        .map(|arm| {
            let values: Vec<f64> = samples[arm].iter().flatten().copied().collect();
            let pairs = pairs_of(arm);
            let ratio = if arm == 0 { None } else { stats::ratio(&pairs) };
            let verdict = Verdict::of(&pairs, ratio.as_ref(), known.better, floor);
            ArmMetric {
                label: arms[arm].label.clone(),
                samples: samples[arm].clone(),
                summary: stats::summarize(&values),
                ratio,
                verdict: (arm > 0).then_some(verdict),
            }
        })
        .collect();
    MetricReport {
        group,
        name: known.name.clone(),
        unit: known.unit.clone(),
        better: known.better,
        noise_floor: floor,
        arms: arm_metrics,
    }
}

/// System calls per unit of work: counted in one round, so without an interval.
fn counted(arms: &[ArmReport]) -> Vec<MetricReport> {
    let Some(unit) = arms.iter().find_map(|arm| {
        let round = arm.counting.as_ref()?;
        round.syscalls.map(|_| round.work().unit)
    }) else {
        return Vec::new();
    };
    type Calls = fn(&Round) -> Option<u64>;
    let sides: [(&str, Calls); 2] = [
        ("system calls, server", |round| Some(round.syscalls?.server)),
        ("system calls, client", |round| Some(round.syscalls?.client)),
    ];
    let report = |(name, calls): (&str, Calls)| MetricReport {
        group: Group::Costs,
        name: name.to_owned(),
        unit: format!("per {unit}"),
        better: Better::Lower,
        noise_floor: None,
        arms: arms
            .iter()
            .enumerate()
            .map(|(at, arm)| {
                let round = arm.counting.as_ref();
                let value =
                    round.and_then(|round| Some(calls(round)? as f64 / round.work().amount));
                ArmMetric {
                    label: arm.label.clone(),
                    samples: vec![value],
                    summary: stats::summarize(value.as_slice()),
                    ratio: None,
                    verdict: (at > 0).then_some(Verdict::NotComparable),
                }
            })
            .collect(),
    };
    sides.into_iter().map(report).collect()
}

/// Every metric that occurs, in the order of its first occurrence.
fn names(tables: &[Vec<Option<Vec<Metric>>>]) -> Vec<Metric> {
    let mut known: Vec<Metric> = Vec::new();
    for metric in tables.iter().flatten().flatten().flatten() {
        if !known.iter().any(|other| other.name == metric.name) {
            known.push(metric.clone());
        }
    }
    known
}

fn sample(round: Option<&[Metric]>, name: &str) -> Option<f64> {
    let value = round?.iter().find(|metric| metric.name == name)?.value;
    value.is_finite().then_some(value)
}

/// The share of failed requests above which there is a banner.
const FAILED_SHARE_MAX: f64 = 0.01;

/// The form of the JSON document.
pub(crate) const SCHEMA: &str = "toehold-compare/2";

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::compare::round::SyscallCounts;
    use toehold_measure::metric::{Reading, Work};
    use toehold_measure::procfs::{HostTimes, Usage};

    fn round(rate: f64) -> Round {
        Round {
            seconds: 1.0,
            reading: Some(Reading {
                metrics: vec![Metric::higher("requests", rate, "requests/s")],
                work: Work {
                    amount: rate,
                    unit: "request",
                },
            }),
            host: HostTimes {
                user: 1.0,
                ..HostTimes::default()
            },
            server: Usage::default(),
            client: Usage::default(),
            adapter: None,
            syscalls: Some(SyscallCounts {
                server: 10,
                client: 20,
            }),
            moved: None,
        }
    }

    /// An arm whose rounds had these rates.
    pub(crate) fn arm(label: &str, rates: &[f64]) -> ArmReport {
        let mut arm = ArmReport::new(&Arm {
            label: label.to_owned(),
            path: PathChoice::Host,
        });
        arm.rounds = rates.iter().map(|rate| Some(round(*rate))).collect();
        arm.counting = Some(round(10.0));
        arm
    }

    fn verdict(report: &[MetricReport], name: &str, arm: usize) -> Option<Verdict> {
        report
            .iter()
            .find(|metric| metric.name == name)
            .expect(name)
            .arms[arm]
            .verdict
    }

    #[test]
    fn a_doubled_rate_is_better_and_so_is_its_halved_cost() {
        let arms = [
            arm("host", &[100.0, 102.0, 98.0, 101.0]),
            arm("direct", &[200.0, 203.0, 199.0, 201.0]),
        ];
        let report = metrics(&arms, false);
        assert_eq!(verdict(&report, "requests", 0), None);
        assert_eq!(verdict(&report, "requests", 1), Some(Verdict::Better));
        assert_eq!(verdict(&report, "CPU, all cores", 1), Some(Verdict::Better));
    }

    #[test]
    fn an_arm_whose_requests_fail_is_reported() {
        let mut arms = [arm("host", &[100.0; 4]), arm("direct", &[400.0; 4])];
        let fail = |arm: &mut ArmReport, requests: f64| {
            let round = arm.rounds[2].as_mut().expect("a round");
            let metrics = &mut round.reading.as_mut().expect("a reading").metrics;
            metrics.push(Metric::lower("failed requests", requests, "requests"));
        };
        fail(&mut arms[0], 1.0);
        fail(&mut arms[1], 200.0);
        assert_eq!(arms[0].of_failures(), None);
        let said = arms[1].of_failures().expect("half of them failed");
        assert!(said.starts_with("direct: 200 of 400 requests"), "{said}");
    }

    #[test]
    fn a_lower_rate_is_worse() {
        let arms = [
            arm("host", &[100.0, 102.0, 98.0, 101.0]),
            arm("direct", &[50.0, 51.0, 49.0, 50.0]),
        ];
        assert_eq!(
            verdict(&metrics(&arms, false), "requests", 1),
            Some(Verdict::Worse)
        );
    }

    #[test]
    fn a_difference_within_the_control_is_no_difference() {
        let base = [100.0, 100.1, 99.9, 100.0];
        let slightly = [103.0, 103.1, 102.9, 103.0];
        let without = metrics(&[arm("host", &base), arm("direct", &slightly)], false);
        assert_eq!(verdict(&without, "requests", 1), Some(Verdict::Better));
        let control = arm("host again", &[104.0, 104.1, 103.9, 104.0]);
        let with = metrics(
            &[arm("host", &base), arm("direct", &slightly), control],
            true,
        );
        assert_eq!(verdict(&with, "requests", 1), Some(Verdict::WithinNoise));
    }

    #[test]
    fn a_failed_round_takes_its_pair_out_of_the_ratio() {
        let mut failed = arm("direct", &[200.0, 200.0, 200.0, 200.0]);
        failed.rounds[1] = None;
        let report = metrics(&[arm("host", &[100.0, 1.0, 100.0, 100.0]), failed], false);
        let ratio = report[0].arms[1].ratio.expect("three pairs");
        assert_eq!((ratio.low, ratio.high), (2.0, 2.0));
        assert_eq!(
            report[0].arms[1].summary.as_ref().expect("samples").rounds,
            3
        );
    }

    #[test]
    fn zeros_are_not_compared() {
        let arms = [arm("host", &[1.0; 4]), arm("direct", &[1.0; 4])];
        assert_eq!(
            verdict(&metrics(&arms, false), "CPU, server", 1),
            Some(Verdict::NotComparable)
        );
    }

    #[test]
    fn calls_that_were_not_counted_have_no_row() {
        let mut only = arm("host", &[1.0; 3]);
        if let Some(round) = &mut only.counting {
            round.syscalls = None;
        }
        let report = metrics(&[only], false);
        assert!(
            report
                .iter()
                .all(|metric| !metric.name.starts_with("system calls"))
        );
    }

    #[test]
    fn system_calls_are_per_unit_of_work() {
        let report = metrics(&[arm("host", &[1.0; 3])], false);
        let calls = report
            .iter()
            .find(|metric| metric.name == "system calls, client")
            .expect("counted");
        assert_eq!(calls.arms[0].samples, [Some(2.0)]);
        assert_eq!(calls.unit, "per request");
    }
}
