//! Tests in the language of Varnish: HAProxy's and Varnish's own, against the installed servers.
//! `varnishtest` runs the clients and servers of a test as threads, and starts the server under
//! test.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::run::{Outcome, Program, Reading};
use super::source;

/// The seconds that `varnishtest` gives a test. Few tests take more than ten.
const SECONDS: &str = "60";
/// Longer than the limit of HAProxy's own runner.
const TIME_LIMIT: Duration = Duration::from_secs(90);
/// The folder of Debian's servers, which is not in an ordinary user's `PATH`.
const SERVERS: &str = "/usr/sbin";
/// Folders of HAProxy's tests that take a second: the selection for `make test`.
const QUICK: [&str; 6] = [
    "cache",
    "compression",
    "http-rules",
    "seamless-reload",
    "stick-table",
    "stream",
];

/// A program for each of HAProxy's tests that the installed HAProxy was built for.
pub(super) fn haproxy(is_quick: bool) -> Result<Vec<Program>, String> {
    let server = installed("haproxy")?;
    installed("socat")?;
    let runner = installed("varnishtest")?;
    let source = source::of_package("haproxy")?;
    let list = choose(&source, &server)?;
    let mut tests: Vec<&str> = chosen(&list).collect();
    tests.sort_unstable();
    if tests.is_empty() {
        return Err(format!("its script chooses no test:\n{list}"));
    }
    let is_wanted = |test: &&&str| {
        let folder = test.split('/').nth(1);
        !is_quick || folder.is_some_and(|folder| QUICK.contains(&folder))
    };
    let program = |test: &&str| Program {
        name: test.trim_start_matches("reg-tests/").to_owned(),
        // As in its own script; bodies of two megabytes need room.
        command: words(&[
            &runner.to_string_lossy(),
            "-b",
            "2097152",
            "-t",
            SECONDS,
            test,
        ]),
        dir: source.clone(),
        environment: vec![
            ("HAPROXY_PROGRAM", server.clone().into()),
            ("HAPROXY_ARGS", "-dM".into()),
        ],
        reading: Reading::Whole(judge),
        time_limit: TIME_LIMIT,
    };
    Ok(tests.iter().filter(is_wanted).map(program).collect())
}

/// Makes HAProxy's script list the tests that the installed HAProxy can run, without running them:
/// the script's own folder for files would make the names of Unix sockets too long.
fn choose(source: &Path, server: &Path) -> Result<String, String> {
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut command = Command::new("sh");
    command
        .arg("scripts/run-regtests.sh")
        .current_dir(source)
        .env("VTEST_PROGRAM", "/bin/true")
        .env("HAPROXY_PROGRAM", server)
        .env("TMPDIR", scratch.path());
    let output = command.output().map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The tests that the script adds: `  Add test: reg-tests/ssl/ssl_dh.vtc`.
fn chosen(list: &str) -> impl Iterator<Item = &str> {
    list.lines()
        .filter_map(|line| line.trim().strip_prefix("Add test: "))
        .map(|test| test.trim_start_matches("./"))
}

/// A program for each of Varnish's tests; none is in the quick selection.
pub(super) fn varnish(is_quick: bool) -> Result<Vec<Program>, String> {
    if is_quick {
        return Ok(Vec::new());
    }
    installed("varnishd")?;
    let runner = installed("varnishtest")?;
    let source = source::of_package("varnish")?;
    let mut programs = Vec::new();
    // Each starts in the folder of its test and reads nothing outside: the user that runs it has a
    // copy of its folder, made for each start.
    for folder in ["bin/varnishtest/tests", "vmod/tests"] {
        let dir = source.join(folder);
        let tests = tests(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        programs.extend(tests.into_iter().map(|test| Program {
            command: words(&[&runner.to_string_lossy(), "-t", SECONDS, &test]),
            name: test,
            dir: dir.clone(),
            environment: vec![("PATH", path())],
            reading: Reading::Whole(judge),
            time_limit: TIME_LIMIT,
        }));
    }
    if programs.is_empty() {
        return Err("its source has no tests".to_owned());
    }
    Ok(programs)
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(Into::into).collect()
}

/// The path of a program from a separate package.
fn installed(name: &str) -> Result<PathBuf, String> {
    let server = Path::new(SERVERS).join(name);
    let found = source::in_path(name).or_else(|| server.is_file().then_some(server));
    found.ok_or_else(|| format!("{name} is not installed"))
}

fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(SERVERS);
    path
}

/// The names of the tests in a folder.
fn tests(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".vtc") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Reads the result line: `#    top  TEST a00000.vtc passed (0.1)`.
fn judge(said: &str, success: bool) -> Outcome {
    let is_skipped = |line: &str| line.contains("  TEST ") && line.contains(" skipped");
    match success {
        _ if said.lines().any(is_skipped) => Outcome::Skipped,
        true => Outcome::Passed,
        false => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_the_script_skips_are_not_chosen() {
        let list = "  Add test: reg-tests/a.vtc\n  Skip reg-tests/b.vtc because of its type\n";
        assert_eq!(chosen(list).collect::<Vec<_>>(), ["reg-tests/a.vtc"]);
    }

    #[test]
    fn a_skipped_test_is_no_failure() {
        let skipped = "#    top  TEST h00001.vtc skipped (0.0)\n";
        assert_eq!(judge(skipped, false), Outcome::Skipped);
        assert_eq!(
            judge("#    top  TEST a.vtc passed (0.1)\n", true),
            Outcome::Passed
        );
        assert_eq!(
            judge("#    top  TEST a.vtc FAILED (0.1)\n", false),
            Outcome::Failed
        );
    }
}
