//! The tests of Go's standard library that use sockets: a program for each package.
//!
//! Go's programs make their system calls without libc, so these tests check the patched calls.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::run::{Outcome, Program, Reading};
use super::source;

/// Longer than any test is silent.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Packages that make connections or use the poller.
const PACKAGES: [&str; 10] = [
    "net/http",
    "net",
    "crypto/tls",
    "net/http/httputil",
    "net/rpc",
    "net/smtp",
    "net/textproto",
    "log/syslog",
    "internal/poll",
    "os/exec",
];

/// A program for each package; none is in the quick selection.
pub(crate) fn programs(is_quick: bool) -> Result<Vec<Program>, String> {
    if is_quick {
        return Ok(Vec::new());
    }
    let root = PathBuf::from(variable("GOROOT")?);
    // Programs built by another version are built again.
    let built = source::cache().join("go").join(variable("GOVERSION")?);
    fs::create_dir_all(&built).map_err(|error| format!("{}: {error}", built.display()))?;
    let program = |package: &&str| program(&root, &built, package);
    PACKAGES.iter().map(program).collect()
}

fn program(root: &Path, built: &Path, package: &str) -> Result<Program, String> {
    let tests = built.join(package.replace('/', "."));
    if !tests.is_file() {
        go(&["test", "-c", "-o", &tests.to_string_lossy(), package])?;
    }
    if !tests.is_file() {
        return Err(format!("this Go has no tests of its package {package}"));
    }
    let dir = root.join("src").join(package);
    Ok(Program {
        name: package.to_owned(),
        // The long tests ask servers on the internet.
        command: vec![tests.into(), "-test.short".into(), "-test.v".into()],
        // A shell would set it, and os/exec compares it.
        environment: vec![("PWD", dir.clone().into())],
        dir,
        reading: Reading::Lines(read),
        time_limit: TIME_LIMIT,
    })
}

/// A variable of Go's environment.
fn variable(name: &str) -> Result<String, String> {
    Ok(go(&["env", name])?.trim().to_owned())
}

fn go(arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("go");
    let answer = command.args(arguments).output();
    let answer = answer.map_err(|error| format!("{command:?}: {error}"))?;
    if !answer.status.success() {
        let why = String::from_utf8_lossy(&answer.stderr);
        return Err(format!("{command:?}: {}\n{why}", answer.status));
    }
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}

/// Lines such as `    --- PASS: TestDial/IPv4 (0.01s)`.
fn read(line: &str) -> Option<(String, Outcome)> {
    let (outcome, test) = line.trim_start().strip_prefix("--- ")?.split_once(": ")?;
    let outcome = match outcome {
        "PASS" => Outcome::Passed,
        "SKIP" => Outcome::Skipped,
        "FAIL" => Outcome::Failed,
        _ => return None,
    };
    let (test, _) = test.rsplit_once(" (")?;
    Some((test.to_owned(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_and_their_parts_are_read_by_name() {
        let passed = ("TestDial/IPv4".to_owned(), Outcome::Passed);
        assert_eq!(read("    --- PASS: TestDial/IPv4 (0.01s)"), Some(passed));
        let failed = ("TestSendfile".to_owned(), Outcome::Failed);
        assert_eq!(read("--- FAIL: TestSendfile (2.13s)"), Some(failed));
        assert_eq!(read("=== RUN   TestDial/IPv4"), None);
        assert_eq!(read("PASS"), None);
    }
}
