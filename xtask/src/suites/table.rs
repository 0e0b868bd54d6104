//! The results as an entry of JSON for each suite, and as the table of `docs/suites.md`.
//!
//! A host with other work runs one suite at a time. `--merge FILE` combines the entries of such
//! runs: entries of the suites that were run now replace those in the file. The table and the exit
//! status cover all of them. Each entry names the code that was tested.
//!
//! A suite may be run in parts, one after the other. Each test is in one [`Part`]. The table has
//! one row for all parts of a suite, and names missing parts.

use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::process::Command;
use std::str::FromStr;

use serde_json::{Value, json};

use super::run::{Outcome, Results};
use super::{Row, SUITES};
use crate::root;

/// The part of the tree that a suite runs under.
const CODE: &str = "crates";

/// A part of a suite's programs: of each `of` that follow each other, the one at `number`, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    number: usize,
    of: usize,
}

impl Part {
    const WHOLE: Part = Part { number: 1, of: 1 };

    /// The elements of this part.
    pub(super) fn of<T>(self, all: Vec<T>) -> Vec<T> {
        let elements = all.into_iter().skip(self.number - 1);
        elements.step_by(self.of).collect()
    }

    /// The part of an entry; the whole suite if the entry names none.
    fn of_entry(entry: &Value) -> Part {
        let part = entry["part"].as_str().and_then(|part| part.parse().ok());
        part.unwrap_or(Part::WHOLE)
    }
}

impl FromStr for Part {
    type Err = String;

    /// `2/4`
    fn from_str(text: &str) -> Result<Part, String> {
        let numbers = text.split_once('/').and_then(|(number, of)| {
            let (number, of) = (number.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&number).then_some(Part { number, of })
        });
        numbers.ok_or_else(|| format!("{text} is not the number of a part, such as 2/4"))
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

/// The last commit that changed Toehold, with `+` if there are uncommitted changes.
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

/// The entry of a suite, or of a part of it, that was run with `code`.
pub(super) fn entry(row: &Row, code: &str, part: Option<Part>) -> Value {
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
        "part": part.map(|part| part.to_string()),
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

/// The entries of a file, if it exists, updated with those of `now`; in the order of the suites.
pub(super) fn merged(path: &str, now: Vec<Value>) -> Result<Vec<Value>, String> {
    let earlier = match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map_err(|error| error.to_string())?,
        Err(error) if error.kind() == ErrorKind::NotFound => Value::Null,
        Err(error) => return Err(error.to_string()),
    };
    Ok(in_order(&earlier, &now))
}

/// For each suite the entries of `now`, and those of `earlier` that are other parts of the same
/// division.
fn in_order(earlier: &Value, now: &[Value]) -> Vec<Value> {
    let earlier = earlier["suites"].as_array().map_or(&[][..], Vec::as_slice);
    let of_suite = |suite: &str| {
        let is_of = |entry: &&Value| entry["suite"] == suite;
        let mut entries: Vec<Value> = now.iter().filter(is_of).cloned().collect();
        let is_new = !entries.is_empty();
        for entry in earlier.iter().filter(is_of) {
            let part = Part::of_entry(entry);
            let mut parts = entries.iter().map(Part::of_entry);
            let replaced = parts.any(|new| new.of != part.of || new == part);
            if !is_new || !replaced {
                entries.push(entry.clone());
            }
        }
        entries.sort_by_key(|entry| Part::of_entry(entry).number);
        entries
    };
    let suites = SUITES.iter();
    suites.flat_map(|suite| of_suite(suite.name)).collect()
}

/// The name of a suite in the table, with the parts that `entries` has of it if some are missing.
fn title(suite: &str, entries: &[&Value]) -> String {
    let parts: Vec<Part> = entries.iter().map(|entry| Part::of_entry(entry)).collect();
    let of = parts.first().map_or(1, |part| part.of);
    if parts.len() == of {
        return suite.to_owned();
    }
    let numbers: Vec<String> = parts.iter().map(|part| part.number.to_string()).collect();
    let word = if numbers.len() == 1 { "part" } else { "parts" };
    format!("{suite} ({word} {} of {of})", numbers.join(", "))
}

/// The table of `docs/suites.md`, and a line that names the tested code.
pub(super) fn markdown(entries: &[Value]) -> String {
    let mut text = String::from(
        "| suite | passed plain | passed accelerated | skipped | failed plain | \
         channels | unsteady | differences |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let (mut codes, mut total) = (Vec::new(), 0);
    for suite in SUITES.iter().map(|suite| suite.name) {
        let is_of = |entry: &&Value| entry["suite"] == suite;
        let entries: Vec<&Value> = entries.iter().filter(is_of).collect();
        if entries.is_empty() {
            continue;
        }
        let sum = |of: &dyn Fn(&Value) -> &Value| -> u64 {
            let numbers = entries.iter().map(|entry| of(entry).as_u64().unwrap_or(0));
            numbers.sum()
        };
        let list = |name: &str| -> Vec<&Value> {
            let lists = entries.iter().filter_map(|entry| entry[name].as_array());
            lists.flatten().collect()
        };
        let named = list("differences").into_iter().map(|one| {
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
        let passed = sum(&|entry| &entry["accelerated"]["passed"]);
        let _ = writeln!(
            text,
            "| {} | {} | {passed} | {} | {} | {} | {} | {named} |",
            title(suite, &entries),
            sum(&|entry| &entry["plain"]["passed"]),
            sum(&|entry| &entry["plain"]["skipped"]),
            sum(&|entry| &entry["plain"]["failed"]) + sum(&|entry| &entry["plain"]["hung"]),
            sum(&|entry| &entry["channels"]),
            list("unsteady").len(),
        );
        total += passed;
        for entry in entries {
            let code = entry["code"].as_str().unwrap_or("unknown");
            if !codes.contains(&code) {
                codes.push(code);
            }
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
    fn each_element_is_in_one_part() {
        let parts = ["1/3", "2/3", "3/3"].map(|part| part.parse::<Part>().expect("it is a part"));
        let all = parts.map(|part| part.of(vec!['a', 'b', 'c', 'd']));
        assert_eq!(all, [vec!['a', 'd'], vec!['b'], vec!['c']]);
        for wrong in ["0/3", "4/3", "3", "a/b", "1/0"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn parts_of_a_suite_add_up_to_one_row() {
        let part = |part: &str, passed| {
            let mut entry = entry("curl", "c", passed);
            entry["part"] = part.into();
            entry
        };
        let first = in_order(&Value::Null, &[part("2/2", 5)]);
        assert!(markdown(&first).contains("| curl (part 2 of 2) | 5 | 5 |"));
        let both = in_order(&json!({"suites": first}), &[part("1/2", 2)]);
        assert_eq!(both, [part("1/2", 2), part("2/2", 5)]);
        assert!(markdown(&both).contains("| curl | 7 | 7 | 6 | 4 | 8 | 2 | **a**"));
        let again = in_order(&json!({"suites": both}), &[part("2/2", 6)]);
        assert_eq!(again, [part("1/2", 2), part("2/2", 6)]);
        let whole = entry("curl", "c", 9);
        let replaced = in_order(&json!({"suites": again}), std::slice::from_ref(&whole));
        assert_eq!(replaced, [whole]);
    }

    #[test]
    fn the_table_names_differences_and_each_code_once() {
        let table = markdown(&[entry("curl", "old", 2), entry("redis", "old", 5)]);
        assert!(table.contains("| curl | 2 | 2 | 3 | 2 | 4 | 1 | **a**, b (accepted) |\n"));
        assert!(table.ends_with("7 tests passed accelerated. State of `crates`: old.\n"));
    }
}
