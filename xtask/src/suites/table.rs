//! The results as an entry of JSON for each suite, and as the table of `docs/suites.md`.
//!
//! A host with other work runs one suite at a time. `--merge FILE` puts the entries of such runs
//! together: those of the suites that were run now replace those that the file has, and the table
//! and the exit status are of them all. Each entry says of which code it is.

use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::process::Command;

use serde_json::{Value, json};

use super::run::{Outcome, Results};
use super::{Row, SUITES};
use crate::root;

/// The part of the tree that a suite runs under.
const CODE: &str = "crates";

/// The commit that last changed Toehold, with `+` where there are changes since.
pub(super) fn code() -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).current_dir(root()).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["log", "-1", "--format=%h", "--", CODE]);
    let changes = git(&["status", "--porcelain", "--", CODE]);
    match (commit, changes) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => commit + "+",
        (None, _) => "unknown".to_owned(),
    }
}

/// The entry of a suite that was run with `code`.
pub(super) fn entry(row: &Row, code: &str) -> Value {
    let counts = |results: &Results| {
        json!({
            "passed": results.count(Outcome::Passed),
            "failed": results.count(Outcome::Failed),
            "hung": results.count(Outcome::Hung),
            "skipped": results.count(Outcome::Skipped),
        })
    };
    let differences = row.differences.iter().map(|one| {
        json!({
            "test": one.test,
            "plain": format!("{:?}", one.plain),
            "accelerated": format!("{:?}", one.accelerated),
            "differing_runs": one.bad,
            "runs": one.runs,
            "accepted": one.accepted,
        })
    });
    json!({
        "suite": row.suite,
        "code": code,
        "good": row.is_good(),
        "plain": counts(&row.plain),
        "accelerated": counts(&row.accelerated),
        "upgraded_ends_seen": row.accelerated.upgraded,
        "channels": row.accelerated.channels,
        "differences": differences.collect::<Vec<_>>(),
        "unsteady": row.unsteady,
        "seconds": row.seconds.round(),
    })
}

/// The entries of a file, if it exists, with those of `now` in their places; in the order of the
/// suites.
pub(super) fn merged(path: &str, now: Vec<Value>) -> Result<Vec<Value>, String> {
    let earlier = match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map_err(|error| error.to_string())?,
        Err(error) if error.kind() == ErrorKind::NotFound => Value::Null,
        Err(error) => return Err(error.to_string()),
    };
    Ok(in_order(&earlier, &now))
}

/// Of each suite the entry of `now`, or else that of `earlier`.
fn in_order(earlier: &Value, now: &[Value]) -> Vec<Value> {
    let earlier = earlier["suites"].as_array().map_or(&[][..], Vec::as_slice);
    let entry = |suite: &str| {
        let mut both = now.iter().chain(earlier);
        both.find(|entry| entry["suite"] == suite).cloned()
    };
    let suites = SUITES.iter();
    suites.filter_map(|suite| entry(suite.name)).collect()
}

/// The table of `docs/suites.md`, and a line that says of which code it is.
pub(super) fn markdown(entries: &[Value]) -> String {
    let mut text = String::from(
        "| suite | passed plain | passed accelerated | skipped | failed plain | \
         channels | unsteady | differences |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let (mut codes, mut total) = (Vec::new(), 0);
    for entry in entries {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let list = |name: &str| entry[name].as_array().map_or(&[][..], Vec::as_slice);
        let named = list("differences").iter().map(|one| {
            let test = one["test"].as_str().unwrap_or("?");
            match one["accepted"].is_string() {
                true => format!("{test} (accepted)"),
                false => format!("**{test}**"),
            }
        });
        let named: Vec<String> = named.collect();
        let named = if named.is_empty() {
            "none".to_owned()
        } else {
            named.join(", ")
        };
        let plain = &entry["plain"];
        let passed = number(&entry["accelerated"]["passed"]);
        let _ = writeln!(
            text,
            "| {} | {} | {passed} | {} | {} | {} | {} | {named} |",
            entry["suite"].as_str().unwrap_or("?"),
            number(&plain["passed"]),
            number(&plain["skipped"]),
            number(&plain["failed"]) + number(&plain["hung"]),
            number(&entry["channels"]),
            list("unsteady").len(),
        );
        total += passed;
        let code = entry["code"].as_str().unwrap_or("unknown");
        if !codes.contains(&code) {
            codes.push(code);
        }
    }
    if codes.is_empty() {
        return text;
    }
    let _ = writeln!(
        text,
        "\n{total} tests passed accelerated. State of `{CODE}`: {}.",
        codes.join(", ")
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(suite: &str, code: &str, passed: u64) -> Value {
        let counts = json!({"passed": passed, "failed": 1, "hung": 1, "skipped": 3});
        json!({
            "suite": suite, "code": code, "good": true, "channels": 4,
            "plain": counts, "accelerated": counts, "unsteady": ["x"],
            "differences": [{"test": "a", "accepted": null}, {"test": "b", "accepted": "why"}],
        })
    }

    #[test]
    fn a_suite_that_is_run_again_replaces_its_entry() {
        let earlier = json!({"suites": [entry("redis", "old", 1), entry("curl", "old", 2)]});
        let all = in_order(&earlier, &[entry("redis", "new", 5)]);
        assert_eq!(all, [entry("curl", "old", 2), entry("redis", "new", 5)]);
        assert_eq!(in_order(&Value::Null, &all), all);
    }

    #[test]
    fn the_table_names_differences_and_each_code_once() {
        let table = markdown(&[entry("curl", "old", 2), entry("redis", "old", 5)]);
        assert!(table.contains("| curl | 2 | 2 | 3 | 2 | 4 | 1 | **a**, b (accepted) |\n"));
        assert!(table.ends_with("7 tests passed accelerated. State of `crates`: old.\n"));
    }
}
