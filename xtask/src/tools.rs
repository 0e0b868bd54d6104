//! Every program that the tests start is one that `scripts/deps.sh` installs for them.
//!
//! A tool that only exists on the machine where a test was written makes that test fail, or be
//! skipped, on a fresh machine. The names are read from the sources of the tests: the program of
//! `Command::new("…")`, of the helpers in `tests/src/host.rs`, and of the calls that start a
//! program beside the product or in a namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Programs of every Debian system (essential packages), and the programs that started this one.
const ALWAYS_THERE: [&str; 16] = [
    "/bin/cat",
    "/bin/true",
    "apt-get",
    "bash",
    "cargo",
    "chown",
    "cp",
    "env",
    "false",
    "md5sum",
    "rustc",
    "sh",
    "sha256sum",
    "sleep",
    "true",
    "unshare",
];

/// Programs that no test starts, but commands for developers.
const NOT_FOR_TESTS: [&str; 5] = [
    "callgrind_control",
    "dpkg-query",
    "packetdrill",
    "perf",
    "valgrind",
];

/// Calls whose first string is a program's name.
const CALLS: [&str; 8] = [
    "Command::new(\"",
    "host::program(\"",
    "in_path(\"",
    "network.near(\"",
    "network.far(\"",
    "near.command(\"",
    "far.command(\"",
    "namespace.command(\"",
];

/// Calls with an expression before the name of the program.
const LATER: [&str; 1] = [".command("];

/// The folders that contain tests.
const PLACES: [&str; 4] = ["tests", "crates", "lab/src", "xtask/src"];

/// Checks that deps.sh installs every program that the tests use; prints missing ones.
pub(crate) fn check(root: &Path) -> bool {
    let deps = std::fs::read_to_string(root.join("scripts/deps.sh")).unwrap_or_default();
    let installed = installed(&deps);
    let mut used = BTreeMap::new();
    for place in PLACES {
        look_into(&root.join(place), &mut used);
    }
    assert!(
        used.len() > 20,
        "the sources of the tests are not where they were"
    );
    let mut complete = true;
    for (program, file) in used {
        let is_known = installed.contains(&*program)
            || ALWAYS_THERE.contains(&&*program)
            || NOT_FOR_TESTS.contains(&&*program);
        if !is_known {
            complete = false;
            println!("{file} starts {program}, which scripts/deps.sh does not install for tests");
        }
    }
    complete
}

/// The programs of the groups `demo`, `test`, `page`, `suites` and `deb` of deps.sh, each written
/// `PROGRAM:PACKAGE`.
fn installed(deps: &str) -> BTreeSet<&str> {
    let groups = ["demo=(", "test=(", "page=(", "suites=(", "deb=("]
        .into_iter()
        .filter_map(|group| {
            let (_, rest) = deps.split_once(&format!("\n{group}"))?;
            Some(rest.split_once(')')?.0)
        });
    let words = groups.flat_map(str::split_whitespace);
    words
        .filter_map(|word| Some(word.split_once(':')?.0))
        .collect()
}

fn look_into(dir: &Path, used: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            look_into(&path, used);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with(file!())
        {
            let source = std::fs::read_to_string(&path).unwrap_or_default();
            for program in programs(&source) {
                used.entry(program)
                    .or_insert_with(|| path.display().to_string());
            }
        }
    }
}

/// The programs that a source file names.
fn programs(source: &str) -> Vec<String> {
    // Calls may span several lines.
    let lines = source.lines().map(str::trim);
    let source: String = lines.filter(|line| !line.starts_with("//")).collect();
    let source = source.replace(", ", ",");
    let mut found = Vec::new();
    for call in CALLS {
        for (at, _) in source.match_indices(call) {
            found.extend(string(&source[at + call.len()..]));
        }
    }
    for call in LATER {
        for (at, _) in source.match_indices(call) {
            // The argument after the next comma, where it is a string.
            let rest = &source[at + call.len()..];
            let arguments = rest.split([';', '{']).next().unwrap_or_default();
            let second = arguments.split_once(",\"").map(|(_, second)| second);
            found.extend(second.and_then(string));
        }
    }
    for (at, _) in source.match_indices("require([") {
        let rest = &source[at + "require([".len()..];
        let names = rest.split(']').next().unwrap_or_default();
        found.extend(
            names
                .split(',')
                .filter_map(|name| string(name.strip_prefix('"')?)),
        );
    }
    // A part of a format string, a number or an address does not name a program.
    found.retain(|name| {
        name.starts_with(|first: char| first.is_ascii_lowercase() || first == '/')
            && !name.contains(['{', ' ', '=', '\\'])
            && !name.starts_with("/nonexistent")
    });
    found
}

/// The rest of a string literal that has begun.
fn string(rest: &str) -> Option<String> {
    Some(rest.split_once('"')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_every_call_that_starts_one() {
        let source = r#"
            let a = Command::new("one").arg("not");
            let b = host::require(["two", "three"]);
            let ethtool = network.near.command("four");
            toehold.command(sides.server, "five");
            // Command::new("not")
            Command::new(program);
        "#;
        let mut found = programs(source);
        found.sort();
        assert_eq!(found, ["five", "four", "one", "three", "two"]);
    }

    #[test]
    fn groups_of_the_tests_count() {
        let deps = "x=1\ndemo=(cc:gcc\n  a:b)\ntest=(\"${demo[@]}\" c:d)\nbench=(e:f)\n";
        assert_eq!(installed(deps), BTreeSet::from(["a", "c", "cc"]));
    }
}
