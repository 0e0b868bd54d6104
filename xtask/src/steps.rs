//! Commands one after the other, with a count at the end.
//!
//! A step that fails does not stop the next: one run tells everything that is wrong. Tests are counted from
//! the lines that the test runner prints; a step without tests counts as one.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::root;

/// What a run of steps has come to so far.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<Step>,
    skips: Vec<String>,
}

/// A finished step.
#[derive(Debug)]
struct Step {
    name: &'static str,
    took: Duration,
    passed: u64,
    failed: u64,
}

impl Steps {
    /// Runs `command` from the top of the tree and passes its output on.
    pub(crate) fn run(&mut self, name: &'static str, command: &mut Command) {
        println!("\n==> {name}: {}", words(command));
        let started = Instant::now();
        let seen = Mutex::new(Seen::default());
        let success = tee(command.current_dir(root()), &seen);
        let seen = seen.into_inner().expect("no reader panicked");
        let (passed, failed) = seen.outcome(success);
        self.skips.extend(seen.skips);
        self.finished(name, started, passed, failed);
    }

    /// Runs a check of our own, which prints what it finds.
    pub(crate) fn check(&mut self, name: &'static str, check: impl FnOnce() -> bool) {
        println!("\n==> {name}");
        let started = Instant::now();
        let success = check();
        self.finished(name, started, success.into(), (!success).into());
    }

    /// Notes, loudly, that something was not run.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        println!("\n==> {name}\nSKIPPED: {name}: {reason}");
        self.skips.push(format!("SKIPPED: {name}: {reason}"));
    }

    /// Prints the table, the skips and the closing line; true when nothing failed.
    pub(crate) fn conclude(self) -> bool {
        println!();
        for step in &self.done {
            let verdict = if step.failed == 0 { "ok" } else { "FAILED" };
            println!(
                "{:<28} {:>6} passed {:>4} failed {:>6.0} s  {verdict}",
                step.name,
                step.passed,
                step.failed,
                step.took.as_secs_f64()
            );
        }
        for skip in &self.skips {
            println!("{skip}");
        }
        let passed: u64 = self.done.iter().map(|step| step.passed).sum();
        let failed: u64 = self.done.iter().map(|step| step.failed).sum();
        println!("{passed} passed, {failed} failed");
        failed == 0
    }

    fn finished(&mut self, name: &'static str, started: Instant, passed: u64, failed: u64) {
        self.done.push(Step {
            name,
            took: started.elapsed(),
            passed,
            failed,
        });
    }
}

/// What a step's output said.
#[derive(Debug, Default)]
struct Seen {
    passed: u64,
    failed: u64,
    skips: Vec<String>,
}

impl Seen {
    /// Passed and failed, for a step that ended in success or not.
    fn outcome(&self, success: bool) -> (u64, u64) {
        match (self.passed + self.failed, success) {
            (0, true) => (1, 0),
            (0, false) => (0, 1),
            (_, true) => (self.passed, self.failed),
            // A process of the step died without a count: it must not look like a success.
            (_, false) => (self.passed, self.failed.max(1)),
        }
    }

    fn look_at(&mut self, line: &str) {
        if let Some((passed, failed)) = counts(line) {
            self.passed += passed;
            self.failed += failed;
        } else if line.starts_with("SKIPPED") || line.starts_with("skipped: ") {
            self.skips.push(line.to_owned());
        }
    }
}

/// The counts of `test result: ok. 4 passed; 0 failed; …`.
fn counts(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut fields = counts.split("; ");
    let mut next = |word: &str| fields.next()?.strip_suffix(word)?.trim().parse().ok();
    Some((next("passed")?, next("failed")?))
}

/// Runs a command, shows its output as it comes and looks at each line; true when it succeeded.
fn tee(command: &mut Command, seen: &Mutex<Seen>) -> bool {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            eprintln!("cannot run {}: {error}", words(command));
            return false;
        }
    };
    let outputs = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(|| pass_on(outputs.0, &mut std::io::stdout(), seen));
        scope.spawn(|| pass_on(outputs.1, &mut std::io::stderr(), seen));
    });
    child.wait().is_ok_and(|status| status.success())
}

fn pass_on(from: Option<impl Read>, to: &mut impl Write, seen: &Mutex<Seen>) {
    let Some(from) = from else { return };
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // A reader of ours that has gone away must not stop the step.
        let _ = to.write_all(&line);
        let text = String::from_utf8_lossy(&line);
        seen.lock()
            .expect("no reader panicked")
            .look_at(text.trim_end());
        line.clear();
    }
}

/// A command as one would type it.
fn words(command: &Command) -> String {
    let environment = command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_string_lossy();
        let quote = if value.contains(' ') { "'" } else { "" };
        Some(format!("{}={quote}{value}{quote}", name.to_string_lossy()))
    });
    let rest = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = environment
        .chain(rest.map(|word| word.to_string_lossy().into_owned()))
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_runner_s_line() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 1 filtered out; finished in 2.00s";
        assert_eq!(counts(line), Some((12, 3)));
        assert_eq!(counts("test worker::model ... ok"), None);
    }

    /// What a step with this output and this end comes to.
    fn outcome(output: &str, success: bool) -> (u64, u64) {
        let mut seen = Seen::default();
        output.lines().for_each(|line| seen.look_at(line));
        seen.outcome(success)
    }

    #[test]
    fn a_step_that_dies_after_its_tests_has_failed() {
        let output = "test result: ok. 2 passed; 0 failed; 0 ignored";
        assert_eq!(outcome(output, true), (2, 0));
        assert_eq!(outcome(output, false), (2, 1));
    }

    #[test]
    fn a_step_without_tests_counts_as_one() {
        assert_eq!(outcome("all is well", true), (1, 0));
        assert_eq!(outcome("", false), (0, 1));
    }

    #[test]
    fn skips_are_kept_for_the_end() {
        let mut seen = Seen::default();
        seen.look_at("SKIPPED: x: y");
        assert_eq!(seen.skips, ["SKIPPED: x: y"]);
    }
}
