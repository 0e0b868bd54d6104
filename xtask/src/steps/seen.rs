//! The results of a step's tests, from the lines that the test runner prints.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::failures::Failures;
use super::{Counts, Part, Step};
use crate::skips::Skip;

/// The number of last lines that are shown again for a step that failed without the name of a test.
const LAST_LINES: usize = 10;

/// The meaning of a step's output.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) parts: Vec<Part>,
    pub(super) skips: Vec<Skip>,
    /// Tests that were ignored, and that no other command runs.
    pub(super) ignored: Vec<Skip>,
    /// The test whose captured output follows.
    test: Option<String>,
    pub(super) failures: Failures,
    last: VecDeque<String>,
    /// Its processes that hung, in lines.
    pub(super) hung: Vec<String>,
    /// The processor time of its processes.
    pub(super) computed: Duration,
}

impl Seen {
    /// A step's output, after examination.
    #[cfg(test)]
    pub(super) fn of(output: &str) -> Seen {
        let mut seen = Seen::default();
        output.lines().for_each(|line| seen.look_at(line));
        seen
    }

    /// The step, which succeeded or failed.
    pub(super) fn step(self, name: &'static str, started: Instant, success: bool) -> Step {
        let counts = self.outcome(success);
        Step {
            name,
            took: started.elapsed(),
            computed: self.computed,
            counts,
            parts: self.parts,
            skips: [self.skips, self.ignored].concat(),
            failures: self.failures.found,
            unsteady: Vec::new(),
            last: self.last,
            hung: self.hung,
            again: None,
        }
    }

    /// The tests by their results, for a step that succeeded or failed.
    pub(super) fn outcome(&self, success: bool) -> Counts {
        let mut counts = Counts::default();
        for part in &self.parts {
            counts.passed += part.counts.passed;
            counts.failed += part.counts.failed;
        }
        let has_summary = counts.passed + counts.failed > 0;
        match (has_summary, success) {
            (false, true) => counts.passed = 1,
            (false, false) => counts.failed = 1,
            // A process of the step died without counts. That must not look like a success, nor be
            // hidden by the failure of a test.
            (true, false) => {
                let died = self.parts.iter().filter(|part| !part.has_ended).count();
                counts.failed = (counts.failed + died as u64).max(1);
            }
            (true, true) => {}
        }
        // The test runner has no skips: it counts such a test as passed.
        counts.skipped = self.skips.len() as u64;
        counts.passed = counts.passed.saturating_sub(counts.skipped);
        counts.skipped += self.ignored.len() as u64;
        counts
    }

    pub(super) fn look_at(&mut self, line: &str) {
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
        self.failures
            .look_at(line, self.parts.len().saturating_sub(1));
        if let Some(program) = program_of(line) {
            self.test = None;
            self.parts.push(Part::begun(program));
        } else if let Some((counts, seconds)) = result_of(line) {
            self.test = None;
            // Some programs print such a line themselves, without cargo.
            if self.parts.is_empty() {
                self.parts.push(Part::begun(String::new()));
            }
            let part = self.parts.last_mut().expect("just made sure");
            part.counts.passed += counts.passed;
            part.counts.failed += counts.failed;
            part.seconds += seconds;
            part.has_ended = true;
        } else if let Some(skip) = Skip::ignored(line) {
            // The test runner does not count it as passed.
            self.ignored.push(skip);
        } else if let Some(test) = line.strip_prefix("---- ") {
            self.test = test.strip_suffix(" stdout ----").map(str::to_owned);
        } else if let Some(skip) = Skip::parse(line, self.test.as_deref()) {
            let is_known = self.skips.iter().any(|known| known.what == skip.what);
            let part = self.parts.last_mut();
            if let Some(part) = part.filter(|_| !is_known) {
                part.counts.skipped += 1;
            }
            if !is_known {
                self.skips.push(skip);
            }
        }
    }
}

/// The test program that cargo says it runs now: `Running tests/a.rs (target/debug/deps/a-0123)`.
fn program_of(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(package) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{package}: documentation"));
    }
    let (source, program) = line.strip_prefix("Running ")?.split_once(" (")?;
    let program = program.strip_suffix(')')?.rsplit('/').next()?;
    let name = program.rsplit_once('-').map_or(program, |(name, _)| name);
    Some(match source.strip_prefix("unittests ") {
        Some(_) => format!("{name}: unit tests"),
        None => name.to_owned(),
    })
}

/// The counts and the seconds of `test result: ok. 4 passed; 0 failed; …; finished in 0.01s`.
fn result_of(line: &str) -> Option<(Counts, f64)> {
    let (_, summary) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut fields = summary.split("; ");
    let mut next = |word: &str| fields.next()?.strip_suffix(word)?.trim().parse().ok();
    let counts = Counts {
        passed: next("passed")?,
        failed: next("failed")?,
        skipped: 0,
    };
    let seconds = summary
        .rsplit_once("finished in ")
        .and_then(|(_, seconds)| {
            let seconds = seconds.trim_end().strip_suffix('s')?;
            seconds.parse().ok()
        });
    Some((counts, seconds.unwrap_or(0.0)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::counts;
    use super::*;

    #[test]
    fn counts_are_read_from_the_runner_s_line() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; \
                    1 filtered out; finished in 2.00s";
        assert_eq!(result_of(line), Some((counts(12, 3, 0), 2.0)));
        assert_eq!(result_of("test worker::model ... ok"), None);
    }

    #[test]
    fn a_step_that_dies_after_its_tests_has_failed() {
        let seen = Seen::of("test result: ok. 2 passed; 0 failed; 0 ignored");
        assert_eq!(seen.outcome(true), counts(2, 0, 0));
        assert_eq!(seen.outcome(false), counts(2, 1, 0));
    }

    #[test]
    fn a_program_that_dies_does_not_hide_behind_a_failed_test() {
        let seen = Seen::of(
            "     Running tests/a.rs (target/debug/deps/a-0a1b)\n\
             test x ... FAILED\n\
             \x20    Running tests/b.rs (target/debug/deps/b-0a1b)\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; finished in 9.00s",
        );
        assert_eq!(seen.outcome(false), counts(1, 2, 0));
    }

    #[test]
    fn a_step_without_tests_counts_as_one() {
        assert_eq!(Seen::of("all is well").outcome(true), counts(1, 0, 0));
        assert_eq!(Seen::of("").outcome(false), counts(0, 1, 0));
    }

    #[test]
    fn skipped_tests_have_not_passed() {
        let seen = Seen::of(
            "SKIPPED: x: y\n\
             test z ... SKIPPED: z: no tool\n\
             SKIPPED: x: y, once more\n\
             test result: ok. 5 passed; 0 failed; 0 ignored; finished in 1.00s",
        );
        assert_eq!(seen.outcome(true), counts(3, 0, 2));
    }

    #[test]
    fn skips_in_shown_output_are_recognized_by_the_name_of_their_test() {
        let seen = Seen::of(
            "successes:\n\n---- worker stdout ----\nSKIPPED: only root may\n\n\
             test result: ok. 1 passed; 0 failed; 0 ignored",
        );
        assert_eq!(seen.skips[0].what, "worker");
        assert_eq!(seen.skips[0].reason, "only root may");
    }

    #[test]
    fn ignored_tests_are_skipped_unless_something_else_runs_them() {
        let seen = Seen::of(
            "test role ... ignored, run by the tests of this file, in another process\n\
             test slow ... ignored, takes hours\n\
             test result: ok. 1 passed; 0 failed; 2 ignored",
        );
        assert_eq!(seen.outcome(true), counts(1, 0, 1));
        assert_eq!(seen.ignored[0].what, "slow");
    }

    #[test]
    fn each_test_program_is_a_part() {
        let seen = Seen::of(
            "     Running unittests src/lib.rs (target/debug/deps/toehold_copy-0a1b)\n\
             test result: ok. 4 passed; 0 failed; 0 ignored; finished in 0.50s\n\
             \x20    Running tests/fork.rs (target/debug/deps/fork-0a1b)\n\
             test result: ok. 1 passed; 1 failed; 0 ignored; finished in 9.00s",
        );
        let names: Vec<&str> = seen.parts.iter().map(|part| &*part.name).collect();
        assert_eq!(names, ["toehold_copy: unit tests", "fork"]);
        assert_eq!(seen.parts[1].counts, counts(1, 1, 0));
        assert_eq!(seen.parts[1].seconds, 9.0);
    }
}
