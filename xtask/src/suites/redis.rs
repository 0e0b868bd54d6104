//! Redis's own test suite: the servers that are installed, and Tcl clients.
//!
//! Source and servers must be of one version.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::run::{Outcome, Program, Reading};
use super::source;

/// Longer than any single test takes.
const PATIENCE: Duration = Duration::from_secs(240);
/// Units with many tests for their time. All units take an hour; those with replicas, which take
/// minutes each, are not among these.
const UNITS: [&str; 19] = [
    "unit/auth",
    "unit/protocol",
    "unit/keyspace",
    "unit/type/string",
    "unit/type/incr",
    "unit/type/list",
    "unit/type/set",
    "unit/type/zset",
    "unit/type/hash",
    "unit/type/stream",
    "unit/bitfield",
    "unit/acl",
    "unit/functions",
    "unit/multi",
    "unit/quit",
    "unit/pubsub",
    "unit/pubsubshard",
    "unit/tracking",
    "integration/redis-cli",
];
/// The programs that the suite expects to have been built.
const PROGRAMS: [&str; 5] = [
    "redis-server",
    "redis-cli",
    "redis-benchmark",
    "redis-check-aof",
    "redis-check-rdb",
];

/// A program for each unit; none is quick.
pub(super) fn programs(is_quick: bool) -> Result<Vec<Program>, String> {
    if is_quick {
        return Ok(Vec::new());
    }
    let programs = PROGRAMS.map(|name| source::in_path(name).ok_or(name));
    let programs: Result<Vec<_>, _> = programs.into_iter().collect();
    let programs = programs.map_err(|name| format!("{name} is not installed"))?;
    if source::in_path("tclsh").is_none() {
        return Err("Tcl is not installed".to_owned());
    }
    let source = source::of_package("redis")?;
    let (suite, server) = (version_of_source(&source), version_of_server(&programs[0]));
    if suite.is_none() || suite != server {
        return Err(format!("the source is {suite:?} and the server {server:?}"));
    }
    let work = source::cache().join("redis-work");
    prepare(&source, &programs, &work).map_err(|error| format!("{}: {error}", work.display()))?;
    let units = UNITS.map(|unit| Program {
        name: unit.to_owned(),
        command: words(unit).map(Into::into).to_vec(),
        dir: work.clone(),
        // Without colours.
        environment: vec![("TERM", "dumb".into())],
        reading: Reading::Lines(read),
        patience: PATIENCE,
    });
    Ok(units.to_vec())
}

/// Its command, without the tests that Redis itself marks as slow.
fn words(unit: &str) -> [&str; 7] {
    [
        "./runtest",
        "--clients",
        "1",
        "--tags",
        "-slow",
        "--single",
        unit,
    ]
}

/// `[ok]: SET and GET an item (0 ms)`
fn read(line: &str) -> Option<(String, Outcome)> {
    let (word, said) = line.strip_prefix('[')?.split_once("]: ")?;
    let outcome = match word {
        "ok" => Outcome::Passed,
        "err" | "exception" | "timeout" => Outcome::Failed,
        "skip" | "ignore" => Outcome::Skipped,
        _ => return None,
    };
    // How long it took differs, and what an error is about comes after " in ".
    let test = said.rsplit_once(" (").map_or(said, |(test, _)| test);
    let test = match outcome {
        Outcome::Failed => test.split_once(" in tests/").map_or(test, |(test, _)| test),
        _ => test,
    };
    Some((test.to_owned(), outcome))
}

/// A folder in which the suite may write, with the installed programs where it looks for them.
fn prepare(from: &Path, programs: &[PathBuf], work: &Path) -> std::io::Result<()> {
    if work.exists() {
        std::fs::remove_dir_all(work)?;
    }
    std::fs::create_dir_all(work.join("src"))?;
    for (name, program) in PROGRAMS.iter().zip(programs) {
        std::os::unix::fs::symlink(program, work.join("src").join(name))?;
    }
    // `tests` holds what a run leaves behind; of the rest the suite only reads.
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "src" || name == "tests" {
            continue;
        }
        std::os::unix::fs::symlink(entry.path(), work.join(name))?;
    }
    source::copy_tree(&from.join("tests"), &work.join("tests"))
}

/// `#define REDIS_VERSION "7.0.15"`.
fn version_of_source(source: &Path) -> Option<String> {
    let header = std::fs::read_to_string(source.join("src/version.h")).ok()?;
    let line = header
        .lines()
        .find(|line| line.contains("REDIS_VERSION "))?;
    Some(line.split('"').nth(1)?.to_owned())
}

/// `Redis server v=7.0.15 sha=...`.
fn version_of_server(server: &Path) -> Option<String> {
    let output = Command::new(server).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let word = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="))?;
    Some(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_known_by_their_names_whatever_they_took() {
        let passed = read("[ok]: SET and GET (a) item (12 ms)");
        assert_eq!(
            passed,
            Some(("SET and GET (a) item".to_owned(), Outcome::Passed))
        );
        let failed = read("[err]: SET and GET in tests/unit/type/string.tcl");
        assert_eq!(failed, Some(("SET and GET".to_owned(), Outcome::Failed)));
        assert_eq!(read("[1/1 done]: unit/auth (2 seconds)"), None);
    }
}
