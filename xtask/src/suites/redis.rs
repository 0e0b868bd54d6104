//! Redis's own test suite: the installed servers, and Tcl clients.
//!
//! Source and servers must have one version.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::run::{Outcome, Program, Reading};
use super::source;

/// Longer than any single test takes.
const TIME_LIMIT: Duration = Duration::from_secs(240);
/// Tests that are left out, with the reasons.
const LEFT_OUT: [(&str, &str); 5] = [
    (
        "integration/corrupt-dump-fuzzer",
        "feeds a server random bytes of its own, for as long as it is told, and uses no network",
    ),
    (
        "integration/psync2-reg",
        "draws by lot how often it cuts a replica off, and each time counts as a test",
    ),
    (
        "integration/psync2",
        "draws by lot how many steps it has, and how its servers are connected",
    ),
    (
        "cluster/03-failover-loop",
        "draws by lot how many steps it has",
    ),
    (
        "cluster/04-resharding",
        "writes for minutes while slots move, and draws by lot which",
    ),
];
/// The suites of many servers, and the programs that run them.
const CLUSTERS: [(&str, &str); 2] = [
    ("cluster", "./runtest-cluster"),
    ("sentinel", "./runtest-sentinel"),
];
/// The programs that the suite expects to have been built.
const PROGRAMS: [&str; 5] = [
    "redis-server",
    "redis-cli",
    "redis-benchmark",
    "redis-check-aof",
    "redis-check-rdb",
];

/// A program for each unit; none is in the quick selection.
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
    let list = source.join("tests/test_helper.tcl");
    let list =
        std::fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
    let mut tests: Vec<(String, Vec<OsString>, Reading)> = units(&list)
        .into_iter()
        .filter(|unit| is_run(unit))
        .map(|unit| {
            let command = words(unit).map(Into::into).to_vec();
            (unit.to_owned(), command, Reading::Lines(read))
        })
        .collect();
    for (suite, runner) in CLUSTERS {
        for test in of_cluster(&source, suite).map_err(|error| error.to_string())? {
            if !is_run(&format!("{suite}/{test}")) {
                continue;
            }
            let command = [runner, "--single", &test].map(Into::into).to_vec();
            let name = format!("{suite}/{test}");
            tests.push((name, command, Reading::Lines(read_cluster)));
        }
    }
    let work = source::cache().join("redis-work");
    let prepared = if work.exists() {
        std::fs::remove_dir_all(&work)
    } else {
        Ok(())
    };
    prepared.map_err(|error| format!("{}: {error}", work.display()))?;
    let mut all = Vec::new();
    for (number, (name, command, reading)) in tests.into_iter().enumerate() {
        // A run begins by removing everything in its folder for files. The path of a Unix socket in
        // that folder has at most 107 bytes: names of tests are too long.
        let dir = work.join(number.to_string());
        prepare(&source, &programs, &dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        all.push(Program {
            name,
            command,
            dir,
            // Without colours.
            environment: vec![("TERM", "dumb".into())],
            reading,
            time_limit: TIME_LIMIT,
        });
    }
    Ok(all)
}

/// The units that Redis's own runner runs: the words of `set ::all_tests { ... }`.
fn units(list: &str) -> Vec<&str> {
    let rest = list
        .split_once("set ::all_tests {")
        .map_or("", |(_, rest)| rest);
    let units = rest.split_once('}').map_or("", |(units, _)| units);
    units.split_whitespace().collect()
}

fn is_run(test: &str) -> bool {
    !LEFT_OUT.iter().any(|(name, _)| *name == test)
}

/// The tests of a suite of many servers, by the names of their files.
fn of_cluster(source: &Path, suite: &str) -> std::io::Result<Vec<String>> {
    let mut tests = Vec::new();
    for entry in std::fs::read_dir(source.join("tests").join(suite).join("tests"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        tests.extend(name.strip_suffix(".tcl").map(str::to_owned));
    }
    tests.sort();
    Ok(tests)
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
    // The duration varies, and the detail of an error follows " in ".
    let test = said.rsplit_once(" (").map_or(said, |(test, _)| test);
    let test = match outcome {
        Outcome::Failed => test.split_once(" in tests/").map_or(test, |(test, _)| test),
        _ => test,
    };
    Some((test.to_owned(), outcome))
}

/// Reads `14:07:31> Cluster should be writable: OK`. A test's own output may come before the end of
/// its line, or on lines after it.
fn read_cluster(line: &str) -> Option<(String, Outcome)> {
    let (time, said) = line.split_once("> ")?;
    if time.len() != 8 || !time.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let (test, end) = said.split_once(": ")?;
    let outcome = match end {
        _ if end.contains("FAILED") => Outcome::Failed,
        _ if end.ends_with("OK") => Outcome::Passed,
        _ => return None,
    };
    Some((without_numbers(test), outcome))
}

/// The choice of the master is random, and names of tests contain its port.
fn without_numbers(test: &str) -> String {
    let mut name = String::new();
    for letter in test.chars() {
        match letter {
            '0'..='9' if name.ends_with('N') => {}
            '0'..='9' => name.push('N'),
            _ => name.push(letter),
        }
    }
    name
}

/// A folder in which the suite may write, with the installed programs in the places where the suite
/// expects them.
fn prepare(from: &Path, programs: &[PathBuf], work: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(work.join("src"))?;
    for (name, program) in PROGRAMS.iter().zip(programs) {
        std::os::unix::fs::symlink(program, work.join("src").join(name))?;
    }
    // A server with this name is a sentinel.
    std::os::unix::fs::symlink(&programs[0], work.join("src/redis-sentinel"))?;
    // A run writes only into `tests`; the suite only reads the rest.
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
    fn a_line_of_a_cluster_has_a_time_before_the_test() {
        let passed = read_cluster("14:07:31> Cluster is up: OK");
        assert_eq!(passed, Some(("Cluster is up".to_owned(), Outcome::Passed)));
        let master = read_cluster("14:07:31> Master 127.0.0.1:30001 is up: OK");
        let master = master.map(|(name, _)| name);
        assert_eq!(master.as_deref(), Some("Master N.N.N.N:N is up"));
        let failed = read_cluster("14:07:31> Cluster is up: FAILED: assertion: no");
        assert_eq!(failed, Some(("Cluster is up".to_owned(), Outcome::Failed)));
        assert_eq!(read_cluster("Starting redis #0 at port 30000"), None);
    }

    #[test]
    fn units_are_those_of_the_list_in_the_source() {
        let list =
            "set ::host 1\nset ::all_tests {\n    unit/auth\n    unit/tls\n}\nset ::x {\n y\n}";
        assert_eq!(units(list), ["unit/auth", "unit/tls"]);
        assert!(units("set ::host 1").is_empty());
        assert!(is_run("unit/auth") && !is_run("integration/psync2"));
    }

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
