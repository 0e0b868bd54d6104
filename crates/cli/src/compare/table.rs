//! The comparison as a table for a terminal.

use std::fmt::Write;

use toehold_measure::stats::{ROUNDS_FOR_INTERVAL, ROUNDS_FOR_SEPARATION};
use toehold_measure::text::{change, change_between, prefixed};

use super::report::{ArmMetric, ArmReport, Group, MetricReport, Report, Verdict};

/// Renders the table.
pub(crate) fn render(report: &Report) -> String {
    let mut out = String::new();
    let plan = &report.plan;
    let base = report.arms.first().map_or("", |arm| arm.label.as_str());
    for banner in report.banners() {
        put(&mut out, &format!("*** {banner} ***"));
    }
    put(&mut out, &format!("date    {}", report.environment.date));
    put(&mut out, &format!("server  {}", plan.server));
    put(&mut out, &format!("client  {}", plan.client));
    put(
        &mut out,
        &format!("host    {}", report.environment.sentence()),
    );
    put(
        &mut out,
        &format!(
            "rounds  {} of each path, interleaved, after {} warm-up; {}; wait {}",
            plan.rounds,
            plan.warmups,
            placement(report),
            plan.wait.word()
        ),
    );
    let client = plan.client_tool.unwrap_or("the clock");
    let bounds = if plan.rounds < ROUNDS_FOR_INTERVAL {
        "least to most"
    } else {
        "95 % interval"
    };
    let ratio = format!("against {base} [{bounds}]");
    let width = report
        .metrics
        .iter()
        .map(|metric| name_of(metric).len())
        .fold(NAME_WIDTH_MIN, usize::max);
    for (group, title) in [
        (Group::Results, format!("Reported by {client}")),
        (Group::Costs, "Costs".to_owned()),
    ] {
        let of_group = || report.metrics.iter().filter(|metric| metric.group == group);
        if of_group().next().is_none() {
            // No round succeeded.
            continue;
        }
        put(&mut out, "");
        put(
            &mut out,
            &row(width, [&title, "path", "median", "spread", &ratio]),
        );
        for metric in of_group() {
            put_metric(&mut out, width, metric);
        }
    }
    put(&mut out, "");
    for note in notes(report) {
        put(&mut out, &format!("note: {note}"));
    }
    out
}

/// Notes that a reader of the numbers needs; the HTML page has them too.
pub(crate) fn notes(report: &Report) -> Vec<String> {
    let mut notes = vec![
        "spread is the distance between the quartiles; a comparison is the median of the ratios \
         within rounds, its interval exact by order statistics"
            .to_owned(),
    ];
    let floors: Vec<f64> = report
        .metrics
        .iter()
        .filter_map(|metric| metric.noise_floor)
        .collect();
    if let Some(floor) = report.metrics.first().and_then(|metric| metric.noise_floor) {
        notes.push(format!(
            "noise floor, from the same path run twice: {:.1} % for {}; {} metrics have one of \
            their own",
            floor * 100.0,
            report.metrics[0].name,
            floors.len()
        ));
    }
    if report.plan.rounds < ROUNDS_FOR_SEPARATION {
        notes.push(format!(
            "a difference can be shown from {ROUNDS_FOR_SEPARATION} rounds on; ten are better \
            (--rounds)"
        ));
    }
    let compared = report
        .metrics
        .iter()
        .filter(|metric| metric.arms.len() > 1)
        .count();
    if compared >= METRICS_MANY {
        notes.push(format!(
            "{compared} metrics are tested, each at 5 %: about {} would differ by chance even if \
             the paths were equal",
            (compared as f64 * 0.05).ceil()
        ));
    }
    match &report.syscalls_not_counted {
        Some(reason) => notes.push(format!("system calls not counted: {reason}")),
        None => notes.push(
            "system calls were counted in one extra round of each path, because counting slows them"
                .to_owned(),
        ),
    }
    notes.extend(report.arms.iter().flat_map(arm_notes));
    notes.extend(report.warnings.iter().cloned());
    notes
}

/// Notes about an arm's connections and its failed rounds.
fn arm_notes(arm: &ArmReport) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(seen) = &arm.connections {
        let mut text = format!(
            "{}: ends of connections seen in the extra round: {} direct, {} offload, {} host",
            arm.label, seen.direct, seen.offload, seen.host
        );
        if !seen.reasons.is_empty() {
            let _ = write!(text, " ({})", seen.reasons.join("; "));
        }
        notes.push(text);
    }
    if let Some(moved) = arm.counting.as_ref().and_then(|round| round.moved) {
        notes.push(format!(
            "{}: connections in the extra round: {}",
            arm.label,
            moved.words()
        ));
    }
    if let Some(failure) = arm.failures.first() {
        let failed = arm.failures.len();
        notes.push(format!(
            "{}: {failed} rounds failed and are left out; first: {failure}",
            arm.label
        ));
    }
    notes
}

/// The placement of the two sides, in words.
pub(crate) fn placement(report: &Report) -> String {
    let cores = |cores: &Option<Vec<usize>>| match cores {
        None => "any core".to_owned(),
        Some(cores) => {
            let list: Vec<String> = cores.iter().map(usize::to_string).collect();
            format!("core {}", list.join(","))
        }
    };
    let placement = &report.plan.placement;
    format!(
        "server on {}, client on {}",
        cores(&placement.server),
        cores(&placement.client)
    )
}

/// A ratio and its verdict in words.
pub(crate) fn conclusion(base: &ArmMetric, arm: &ArmMetric) -> String {
    let Some(verdict) = arm.verdict else {
        return String::new();
    };
    match (&arm.ratio, verdict) {
        (Some(ratio), verdict) => {
            let text = format!("{}  {}", change_between(ratio), verdict.words());
            text.trim_end().to_owned()
        }
        (None, Verdict::NotComparable) => match (&base.summary, &arm.summary) {
            (Some(base), Some(arm)) if base.median > 0.0 => change(arm.median / base.median),
            _ => "-".to_owned(),
        },
        (None, verdict) => verdict.words().to_owned(),
    }
}

fn put_metric(out: &mut String, width: usize, metric: &MetricReport) {
    let Some(base) = metric.arms.first() else {
        return;
    };
    for (at, arm) in metric.arms.iter().enumerate() {
        let name = match at {
            0 => name_of(metric),
            1 => format!("  {}", metric.better.words()),
            _ => String::new(),
        };
        let (median, spread) = match &arm.summary {
            Some(summary) if summary.rounds > 1 => {
                (prefixed(summary.median), prefixed(summary.spread()))
            }
            Some(summary) => (prefixed(summary.median), "-".to_owned()),
            None => ("-".to_owned(), "-".to_owned()),
        };
        put(
            out,
            &row(
                width,
                [&name, &arm.label, &median, &spread, &conclusion(base, arm)],
            ),
        );
    }
}

fn name_of(metric: &MetricReport) -> String {
    format!("{}, {}", metric.name, metric.unit)
}

fn row(width: usize, [name, path, median, spread, ratio]: [&str; 5]) -> String {
    let line = format!("{name:<width$}  {path:<11} {median:>10} {spread:>10}   {ratio}");
    line.trim_end().to_owned()
}

fn put(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

/// The narrowest column of names.
const NAME_WIDTH_MIN: usize = 36;

/// From this many metrics on, a chance difference is likely enough to be mentioned.
const METRICS_MANY: usize = 10;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::compare::connections::{ConnectionsSeen, Moved};
    use crate::compare::report::{self, Plan, SCHEMA, tests::arm};
    use crate::options::{PathChoice, WaitChoice};
    use toehold_measure::cpus::{Pin, Placement};
    use toehold_measure::environment::Environment;

    /// A finished comparison of two arms with these rates.
    pub(crate) fn sample(host: &[f64], direct: &[f64]) -> Report {
        let arms = vec![arm("host", host), arm("direct", direct)];
        Report {
            schema: SCHEMA,
            command: "toehold compare".to_owned(),
            plan: Plan {
                server: "serve <it>".to_owned(),
                client: "ask".to_owned(),
                client_tool: Some("wrk"),
                ready: "listens".to_owned(),
                wait: WaitChoice::Adaptive,
                pin: Pin::None,
                placement: Placement::default(),
                warmups: 1,
                rounds: host.len(),
                seed: 1,
            },
            environment: Environment::capture(),
            metrics: report::metrics(&arms, false),
            syscalls_not_counted: None,
            interruption: None,
            warnings: Vec::new(),
            arms,
        }
    }

    #[test]
    fn equal_samples_say_so() {
        let text = render(&sample(
            &[100.0, 101.0, 99.0, 100.0, 99.0, 101.0],
            &[99.0, 100.0, 101.0, 100.5, 101.0, 99.5],
        ));
        assert!(text.contains("no detectable difference"), "{text}");
        assert!(
            text.contains("higher is better") && text.contains("lower is better"),
            "{text}"
        );
        assert!(!text.contains("NaN"), "{text}");
    }

    #[test]
    fn a_ratio_stands_with_its_interval() {
        let text = render(&sample(&[100.0; 4], &[250.0; 4]));
        assert!(
            text.contains("2.50x higher (least to most 2.50x, 2.50x)  better"),
            "{text}"
        );
    }

    #[test]
    fn a_single_round_has_a_ratio_without_interval() {
        let text = render(&sample(&[100.0], &[250.0]));
        assert!(text.contains("2.50x higher (one round)"), "{text}");
        assert!(text.contains("from 4 rounds on"), "{text}");
    }

    #[test]
    fn an_arm_that_never_left_the_kernel_is_reported() {
        let mut report = sample(&[100.0; 4], &[100.0; 4]);
        report.arms[1].path = PathChoice::Direct;
        report.arms[1].connections = Some(ConnectionsSeen {
            host: 2,
            reasons: vec!["no partner".to_owned()],
            ..ConnectionsSeen::default()
        });
        let has_moved = |report: &mut Report, moved: Moved| {
            for round in report.arms[1].rounds.iter_mut().flatten() {
                round.moved = Some(moved);
            }
        };
        has_moved(&mut report, Moved::default());
        let text = render(&report);
        assert!(
            text.contains("kernel with itself") && text.contains("(no partner)"),
            "{text}"
        );
        // Connections that are too short to be seen.
        let moved = Moved {
            channels: 1,
            used_carriers: 2960,
            engine: 0,
        };
        has_moved(&mut report, moved);
        let text = render(&report);
        assert!(!text.contains("kernel with itself"), "{text}");
    }
}
