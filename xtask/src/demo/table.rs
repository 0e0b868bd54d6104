//! The one table at the end.

use std::fmt::Write as _;

use serde_json::Value;

use super::cases::Case;

/// One line of the table.
pub(crate) struct Row {
    title: &'static str,
    result: Result<Numbers, String>,
}

/// A report's numbers about its most telling metric.
struct Numbers {
    unit: String,
    host: f64,
    direct: f64,
    /// The improvement: above 1 is better than the kernel, both for metrics where more is better
    /// and for those where less is better.
    times: f64,
    low: f64,
    high: f64,
    verdict: String,
    /// CPU time of all cores per unit of work, against the kernel.
    cpu: Option<f64>,
    /// The report's warnings.
    warnings: Vec<String>,
    /// Connections seen on shared memory, and on the kernel.
    connections: Option<(u64, u64)>,
}

impl Row {
    /// The line for a case, from its report or from the reason why there is none.
    pub(crate) fn new(case: &Case, report: Result<Value, String>) -> Row {
        let result = report.and_then(|report| {
            Numbers::from_report(&report, case.metric)
                .ok_or_else(|| "the report lacks its numbers".to_owned())
        });
        Row {
            title: case.title,
            result,
        }
    }

    /// False when there is only a reason.
    pub(crate) fn is_measured(&self) -> bool {
        self.result.is_ok()
    }
}

impl Numbers {
    fn from_report(report: &Value, name: &str) -> Option<Numbers> {
        let metrics = report["metrics"].as_array()?;
        let find = |name: &str| metrics.iter().find(|metric| metric["name"] == name);
        let metric = find(name)?;
        let direct = arm(metric, "direct")?;
        let value = |arm: &Value| arm["summary"]["median"].as_f64();
        let ratio = |field: &str| direct["ratio"][field].as_f64();
        // With very few rounds there is no interval; the medians still have a ratio.
        let medians = value(direct)? / value(arm(metric, "host")?)?;
        let times = ratio("value").unwrap_or(medians);
        let (low, high) = (
            ratio("low").unwrap_or(0.0),
            ratio("high").unwrap_or(f64::INFINITY),
        );
        let lower_is_better = metric["better"] == "lower";
        let (times, low, high) = if lower_is_better {
            (1.0 / times, 1.0 / high, 1.0 / low)
        } else {
            (times, low, high)
        };
        let cpu =
            find("CPU, all cores").and_then(|cpu| arm(cpu, "direct")?["ratio"]["value"].as_f64());
        let warnings = report["warnings"].as_array()?.iter();
        let arms = report["arms"].as_array()?;
        let seen = arms
            .iter()
            .find(|arm| arm["label"] == "direct")
            .map(|arm| &arm["connections"]);
        Some(Numbers {
            unit: metric["unit"].as_str()?.to_owned(),
            host: value(arm(metric, "host")?)?,
            direct: value(direct)?,
            times,
            low,
            high,
            verdict: direct["verdict"].as_str()?.replace('_', " "),
            cpu,
            warnings: warnings
                .filter_map(|warning| Some(warning.as_str()?.to_owned()))
                .collect(),
            connections: seen
                .and_then(|seen| Some((seen["direct"].as_u64()?, seen["host"].as_u64()?))),
        })
    }
}

fn arm<'a>(metric: &'a Value, label: &str) -> Option<&'a Value> {
    let arms = metric["arms"].as_array()?;
    arms.iter().find(|arm| arm["label"] == label)
}

/// The table, then the cases in which the kernel is better, then notes about the numbers.
pub(crate) fn render(rows: &[Row]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<36} {:>10} {:>10} {:<12} {:>7}  {:<18} {:>8}",
        "", "host", "direct", "", "times", "95 % interval", "CPU/work"
    );
    for row in rows {
        match &row.result {
            Ok(numbers) => line(&mut out, row.title, numbers),
            Err(reason) => {
                let _ = writeln!(out, "{:<36} not measured: {reason}", row.title);
            }
        }
    }
    out.push_str(
        "\nhost: kernel TCP. direct: the same programs under toehold run. Medians. times: how \
        much better direct is\n\
         (throughput, or latency the other way round). CPU/work: time of all cores per unit of \
         work, against host.\n",
    );
    let measured = || {
        rows.iter()
            .filter_map(|row| Some((row.title, row.result.as_ref().ok()?)))
    };
    for (title, numbers) in measured().filter(|(_, numbers)| numbers.verdict == "worse") {
        let _ = writeln!(out, "The kernel wins: {title} ({:.2}x).", numbers.times);
    }
    for (title, numbers) in
        measured().filter(|(_, numbers)| numbers.cpu.is_some_and(|cpu| cpu > 1.0))
    {
        let cpu = numbers.cpu.unwrap_or(1.0);
        let _ = writeln!(
            out,
            "The kernel needs less CPU per unit of work: {title} (direct takes {cpu:.2}x)."
        );
    }
    for (title, _) in measured().filter(|(_, numbers)| stayed_on_host(numbers)) {
        let _ = writeln!(out, "No connection was seen on shared memory: {title}.");
    }
    let mut listed: Vec<&str> = Vec::new();
    for warning in measured().flat_map(|(_, numbers)| &numbers.warnings) {
        // The load and the share of others differ from case to case by a digit.
        let kind = warning
            .split(|c: char| c.is_ascii_digit())
            .next()
            .unwrap_or("");
        if !listed.contains(&kind) {
            listed.push(kind);
            let _ = writeln!(out, "Note: {warning}.");
        }
    }
    out
}

fn stayed_on_host(numbers: &Numbers) -> bool {
    numbers
        .connections
        .is_some_and(|(direct, host)| direct == 0 && host > 0)
}

fn line(out: &mut String, title: &str, numbers: &Numbers) {
    let interval = format!("[{}, {}]", factor(numbers.low), factor(numbers.high));
    let times = format!("{}x", factor(numbers.times));
    let cpu = numbers
        .cpu
        .map_or("-".to_owned(), |cpu| format!("{cpu:.2}x"));
    let verdict = match numbers.verdict.as_str() {
        "better" => "",
        verdict => verdict,
    };
    let _ = writeln!(
        out,
        "{title:<36} {:>10} {:>10} {:<12} {times:>7}  {interval:<18} {cpu:>8}  {verdict}",
        scaled(numbers.host),
        scaled(numbers.direct),
        numbers.unit,
    );
}

fn factor(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.1}")
    }
}

/// `101.7 k`
fn scaled(value: f64) -> String {
    match value {
        1e6.. => format!("{:.2} M", value / 1e6),
        1e3.. => format!("{:.1} k", value / 1e3),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report(verdict: &str, ratio: f64) -> Value {
        json!({
            "warnings": ["load average 1.5: noisy"],
            "arms": [{"label": "direct", "connections": {"direct": 2, "host": 0}}],
            "metrics": [
                {"name": "latency p50", "unit": "us", "better": "lower", "arms": [
                    {"label": "host", "summary": {"median": 20.0}},
                    {"label": "direct", "summary": {"median": 20.0 * ratio}, "verdict": verdict,
                     "ratio": {"value": ratio, "low": ratio / 2.0, "high": ratio * 2.0}}]},
                {"name": "CPU, all cores", "arms": [
                    {"label": "direct", "ratio": {"value": 1.5}}]},
            ],
        })
    }

    fn row(report: Result<Value, String>) -> Row {
        Row {
            title: "a case",
            result: report.and_then(|report| {
                Numbers::from_report(&report, "latency p50").ok_or_else(|| "numbers".to_owned())
            }),
        }
    }

    #[test]
    fn lower_latency_is_a_factor_above_one() {
        let row = row(Ok(report("better", 0.1)));
        let numbers = row.result.as_ref().expect("complete");
        assert!((numbers.times - 10.0).abs() < 1e-9);
        assert!(numbers.low < numbers.times && numbers.times < numbers.high);
    }

    #[test]
    fn where_the_kernel_wins_is_said() {
        let text = render(&[row(Ok(report("worse", 2.0)))]);
        assert!(text.contains("The kernel wins: a case (0.50x)"), "{text}");
        assert!(text.contains("less CPU"), "{text}");
    }

    #[test]
    fn a_case_without_numbers_is_not_measured() {
        let missing = row(Ok(json!({"metrics": [], "warnings": [], "arms": []})));
        assert!(!missing.is_measured());
        let text = render(&[missing, row(Err("wrk is not installed".to_owned()))]);
        assert!(
            text.contains("not measured: wrk is not installed"),
            "{text}"
        );
    }
}
