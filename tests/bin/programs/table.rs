//! The results of all runs, for a terminal, for `docs/programs.md` and for a program.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use toehold_measure::stats::median;

use crate::case::Case;
use crate::run::Outcome;

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    what: String,
    versions: Vec<String>,
    came: Came,
}

#[derive(Debug)]
enum Came {
    Skipped(String),
    /// The programs do not work here on the kernel: the other ways cannot be judged.
    Broken(String),
    Differs(String),
    Same(Same),
}

/// Four ways, one result.
#[derive(Debug)]
struct Same {
    direct: usize,
    reasons: BTreeMap<String, usize>,
    host: Vec<f64>,
    both: Vec<f64>,
}

impl Row {
    pub(crate) fn skipped(case: &Case, why: String) -> Row {
        Row::of(case, Came::Skipped(why))
    }

    /// From the runs on the kernel, with both ends accelerated, and with the server or the client
    /// alone.
    pub(crate) fn new(
        case: &Case,
        host: &[Outcome],
        both: &[Outcome],
        one_sided: &[Outcome],
    ) -> Row {
        let oracle = &host[0];
        if !oracle.success {
            let said = format!("{}\n{}", oracle.result, oracle.errors);
            return Row::of(case, Came::Broken(said));
        }
        let runs = || host.iter().chain(both).chain(one_sided);
        if let Some(other) = runs().find(|run| run.result != oracle.result) {
            let ways = |run: &Outcome| {
                let index = |runs: &[Outcome]| runs.iter().position(|one| std::ptr::eq(one, run));
                let sides = ["with the server alone", "with the client alone"];
                match (index(both), index(one_sided)) {
                    (Some(_), _) => "with both ends accelerated",
                    (_, Some(at)) => sides[at],
                    _ => "on the kernel, the second time",
                }
            };
            return Row::of(
                case,
                Came::Differs(format!(
                    "{}: {}instead of {}{}",
                    ways(other),
                    other.result,
                    oracle.result,
                    other.errors
                )),
            );
        }
        let mut reasons = BTreeMap::new();
        for (reason, count) in both.iter().flat_map(|run| &run.seen.reasons) {
            let most = reasons.entry(reason.clone()).or_default();
            *most = (*count).max(*most);
        }
        let seconds = |runs: &[Outcome]| runs.iter().map(|run| run.took.as_secs_f64()).collect();
        Row::of(
            case,
            Came::Same(Same {
                // `toehold status` shows both ends of a connection.
                direct: both
                    .iter()
                    .map(|run| run.seen.direct)
                    .max()
                    .unwrap_or(0)
                    .div_ceil(2),
                reasons,
                host: seconds(host),
                both: seconds(both),
            }),
        )
    }

    fn of(case: &Case, came: Came) -> Row {
        Row {
            name: case.name.clone(),
            what: case.what.clone(),
            versions: case.versions(),
            came,
        }
    }

    /// Whether the programs gave the kernel's results, or were not run.
    pub(crate) fn is_well(&self) -> bool {
        matches!(self.came, Came::Skipped(_) | Came::Same(_))
    }

    /// One line with the result of the case.
    pub(crate) fn verdict(&self) -> String {
        match &self.came {
            Came::Skipped(why) => format!("SKIPPED: {why}"),
            Came::Broken(_) => "FAILED on the kernel".to_owned(),
            Came::Differs(how) => format!("DIFFERS {}", how.lines().next().unwrap_or("")),
            Came::Same(same) => format!("same; {}; {}", same.path(), same.times()),
        }
    }
}

impl Same {
    /// The paths of the bytes while both ends were accelerated.
    fn path(&self) -> String {
        let most = self.reasons.iter().max_by_key(|(_, count)| **count);
        match (self.direct, most) {
            (0, None) => "kernel (no connection was seen)".to_owned(),
            (0, Some((reason, _))) => format!("kernel ({reason})"),
            (1, _) => "shared memory".to_owned(),
            (count, _) => format!("shared memory ({count} at a time)"),
        }
    }

    /// The kernel's time, and the speedup with both ends accelerated: median, least and most of the
    /// rounds.
    fn times(&self) -> String {
        let (least, ratio, most) = self.ratio();
        let host = median(&self.host);
        format!("{host:.2} s, {ratio:.2}x [{least:.2}, {most:.2}]")
    }

    fn ratio(&self) -> (f64, f64, f64) {
        let ratios: Vec<f64> = self
            .host
            .iter()
            .zip(&self.both)
            .map(|(host, both)| host / both.max(Duration::from_millis(1).as_secs_f64()))
            .collect();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        (least, median(&ratios), most)
    }
}

/// The table, then the details of failures and skips.
pub(crate) fn plain(rows: &[Row]) -> String {
    let mut out = String::new();
    for row in rows {
        let _ = writeln!(out, "{:<16} {}", row.name, row.verdict());
    }
    out.push_str(
        "\nsame: exit codes and outputs as on the kernel, with both ends under `toehold run` and \
        with each alone. Times: the client's, on the\n\
         kernel, and how many times faster with both ends accelerated (median, least and most of \
         the rounds).\n",
    );
    for row in rows {
        if let Came::Broken(said) | Came::Differs(said) = &row.came {
            let _ = write!(out, "\n==> {}: {}\n{said}\n", row.name, row.what);
        }
    }
    let count = |which: fn(&Came) -> bool| rows.iter().filter(|row| which(&row.came)).count();
    let _ = writeln!(
        out,
        "{} the same, {} different, {} failed on the kernel, {} skipped",
        count(|came| matches!(came, Came::Same(_))),
        count(|came| matches!(came, Came::Differs(_))),
        count(|came| matches!(came, Came::Broken(_))),
        count(|came| matches!(came, Came::Skipped(_))),
    );
    out
}

/// The table of `docs/programs.md`; with times when there are several rounds to compare.
pub(crate) fn markdown(rows: &[Row], rounds: usize) -> String {
    let with_times = rounds > 1;
    let mut out = "| what | versions | both ends accelerated |".to_owned();
    out.push_str(if with_times {
        " kernel, s | times faster |\n|---|---|---|---|---|\n"
    } else {
        "\n|---|---|---|\n"
    });
    for row in rows {
        let (path, times) = match &row.came {
            Came::Same(same) => {
                let (least, ratio, most) = same.ratio();
                let host = median(&same.host);
                let times = format!(" {host:.2} | {ratio:.2} [{least:.2}, {most:.2}] |");
                (same.path(), times)
            }
            _ => (row.verdict(), " | |".to_owned()),
        };
        let times = if with_times { times.as_str() } else { "" };
        let versions = row.versions.join(", ");
        let _ = writeln!(out, "| {} | {versions} | {path} |{times}", row.what);
    }
    out
}

/// All data.
pub(crate) fn json(rows: &[Row], rounds: usize) -> String {
    let row = |row: &Row| -> Value {
        let mut value = json!({"name": row.name, "what": row.what, "versions": row.versions});
        let more = match &row.came {
            Came::Skipped(why) => json!({"result": "skipped", "reason": why}),
            Came::Broken(said) => json!({"result": "failed on the kernel", "reason": said}),
            Came::Differs(how) => json!({"result": "different", "reason": how}),
            Came::Same(same) => json!({
                "result": "same",
                "direct_connections_max": same.direct,
                "host_connections_max_by_reason": same.reasons,
                "seconds": {"host": same.host, "direct": same.both},
            }),
        };
        if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
            value.extend(more);
        }
        value
    };
    let rows: Vec<Value> = rows.iter().map(row).collect();
    format!("{:#}\n", json!({"rounds": rounds, "programs": rows}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_rounds() {
        let same = Same {
            direct: 1,
            reasons: BTreeMap::new(),
            host: vec![1.0, 4.0, 3.0],
            both: vec![1.0, 2.0, 1.0],
        };
        assert_eq!(same.ratio(), (1.0, 2.0, 3.0));
        assert_eq!(same.times(), "3.00 s, 2.00x [1.00, 3.00]");
        assert_eq!(same.path(), "shared memory");
    }
}
