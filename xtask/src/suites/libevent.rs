//! libevent's own tests, each in a process of its own, with each of libevent's backends.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use super::run::{Outcome, Program, Reading};
use super::source;

const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Backends, and the variables that disable all others, as in libevent's own script.
const BACKENDS: [(&str, &[&str]); 3] = [
    ("epoll", &["EVENT_NOPOLL", "EVENT_NOSELECT"]),
    ("poll", &["EVENT_NOEPOLL", "EVENT_NOSELECT"]),
    ("select", &["EVENT_NOEPOLL", "EVENT_NOPOLL"]),
];
/// A program for each test and backend. None is in the quick selection: only the tests of HTTP use
/// TCP, and they take minutes; the others use pairs of Unix sockets.
pub(crate) fn programs(is_quick: bool) -> Result<Vec<Program>, String> {
    if is_quick {
        return Ok(Vec::new());
    }
    let source = source::of_package("libevent")?;
    let build = source.join("build-toehold");
    let regress = build.join("bin/regress");
    if !regress.is_file() {
        let dir = build.to_string_lossy();
        source::build(
            &source,
            &[
                "cmake",
                "-S",
                ".",
                "-B",
                &dir,
                "-DEVENT__DISABLE_OPENSSL=ON",
                "-DEVENT__DISABLE_MBEDTLS=ON",
                "-DEVENT__LIBRARY_TYPE=STATIC",
            ],
        )?;
        source::build(
            &source,
            &["cmake", "--build", &dir, "-j2", "--target", "regress"],
        )?;
    }
    let list = Command::new(&regress).arg("--list-tests").output();
    let list = list.map_err(|error| error.to_string())?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let tests: Vec<&str> = list
        .split_whitespace()
        .filter(|test| test.contains('/') && !test.starts_with('['))
        .collect();
    if tests.is_empty() {
        return Err("regress tells of no test".to_owned());
    }
    let mut programs = Vec::new();
    for (backend, without) in BACKENDS {
        for test in &tests {
            programs.push(Program {
                name: format!("{backend}/{test}"),
                command: vec![regress.clone().into(), "--verbose".into(), (*test).into()],
                dir: build.clone(),
                environment: without
                    .iter()
                    .map(|name| (*name, OsString::from("1")))
                    .collect(),
                reading: Reading::Whole(judge),
                time_limit: TIME_LIMIT,
            });
        }
    }
    Ok(programs)
}

fn judge(said: &str, success: bool) -> Outcome {
    match success {
        true if said.contains("SKIPPED") || said.contains("DISABLED") => Outcome::Skipped,
        true => Outcome::Passed,
        false => Outcome::Failed,
    }
}
