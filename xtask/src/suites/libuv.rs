//! libuv's own tests, each in a process of its own.

use std::process::Command;
use std::time::Duration;

use super::run::{Outcome, Program, Reading};
use super::source;

/// One and a half times the limit of libuv's own runner.
const TIME_LIMIT: Duration = Duration::from_secs(90);

/// The runner of the tests that has libuv in it. It is compiled alone: the other one, for a shared
/// libuv, would compile the library and each test once more.
const RUNNER: &str = "uv_run_tests_a";
/// Without it the runner refuses to run as root.
const AS_ROOT: &str = "UV_RUN_AS_ROOT";
/// Parts of the names of tests that use sockets and take seconds: the selection for `make test`.
const QUICK: [&str; 6] = [
    "tcp_",
    "pipe_",
    "ipc_",
    "poll_",
    "socket_",
    "callback_order",
];
/// Tests among them that take longer.
const SLOW: [&str; 4] = ["multiple_listen", "many", "writealot", "keepalive"];

/// A program for each test.
pub(crate) fn programs(is_quick: bool) -> Result<Vec<Program>, String> {
    let source = source::of_package("libuv1")?;
    let build = source.join("build-toehold");
    let runner = build.join(RUNNER);
    if !runner.is_file() {
        let dir = build.to_string_lossy();
        let configure = ["cmake", "-S", ".", "-B", &dir, "-DBUILD_TESTING=ON"];
        source::build(&source, &configure)?;
        let compile = ["cmake", "--build", &dir, "--target", RUNNER, "-j2"];
        source::build(&source, &compile)?;
    }
    let mut list = Command::new(&runner);
    let list = list.arg("--list").env(AS_ROOT, "1").output();
    let list = list.map_err(|error| error.to_string())?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let is_wanted = |test: &&str| {
        !is_quick
            || QUICK.iter().any(|part| test.starts_with(part))
                && SLOW.iter().all(|part| !test.contains(part))
    };
    let tests = names(&list).filter(is_wanted);
    let programs: Vec<Program> = tests
        .map(|test| Program {
            name: test.to_owned(),
            command: vec![runner.clone().into(), test.into()],
            dir: source.clone(),
            environment: vec![(AS_ROOT, "1".into())],
            reading: Reading::Whole(judge),
            time_limit: TIME_LIMIT,
        })
        .collect();
    if programs.is_empty() {
        return Err("the runner tells of no test".to_owned());
    }
    Ok(programs)
}

/// The tests of the runner's list: `NAME`, or `NAME  (helpers: NAME ...)`.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines()
        .filter_map(|line| line.split_whitespace().next())
}

/// By the Test Anything Protocol. After `ok 1 - NAME # SKIP reason` the runner's exit status is a
/// failure.
fn judge(said: &str, success: bool) -> Outcome {
    let skipped = |line: &str| line.starts_with("ok ") && line.contains("# SKIP");
    match success {
        _ if said.lines().any(skipped) => Outcome::Skipped,
        true => Outcome::Passed,
        false => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_of_a_test_are_no_tests() {
        let list = "active\ntcp_open                  (helpers: tcp4_echo_server)\n";
        assert_eq!(names(list).collect::<Vec<_>>(), ["active", "tcp_open"]);
    }

    #[test]
    fn a_skipped_test_is_no_failure() {
        let said = "ok 1 - tty # SKIP Cannot open /dev/tty as read-only\n";
        assert_eq!(judge(said, false), Outcome::Skipped);
        assert_eq!(judge("not ok 1 - tty\n", false), Outcome::Failed);
    }
}
