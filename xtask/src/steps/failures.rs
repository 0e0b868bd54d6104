//! The tests that failed, with their captured output, from the lines of the test runner.

/// The number of last lines of a failed test's output that are kept.
const LINES_MAX: usize = 60;

/// The number of lines of a panic in the closing list.
const SAID_MAX: usize = 10;

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Its name, as the test runner takes it.
    pub(super) test: String,
    /// The index of its test program among those of the step.
    pub(super) part: usize,
    output: Vec<String>,
}

impl Failure {
    pub(super) fn print(&self, word: &str) {
        println!("---- {word}: {} ----", self.test);
        let left_out = self.output.len().saturating_sub(LINES_MAX);
        if left_out > 0 {
            println!("({left_out} lines are left out)");
        }
        for line in &self.output[left_out..] {
            println!("{line}");
        }
    }

    /// Prints the first lines of its panic.
    pub(super) fn print_said(&self) {
        self.said().iter().for_each(|line| println!("    {line}"));
    }

    /// The first lines of its panic, or of its output if there was no panic.
    fn said(&self) -> &[String] {
        let panic = |line: &String| line.starts_with("thread '") && line.contains("panicked at");
        let begin = self.output.iter().position(panic).unwrap_or(0);
        let said = &self.output[begin..];
        let is_over =
            |line: &String| line.starts_with("stack backtrace:") || line.starts_with("--- ");
        let end = said.iter().position(is_over).unwrap_or(said.len());
        &said[..end.min(SAID_MAX)]
    }
}

/// The failures of a step so far.
#[derive(Debug, Default)]
pub(super) struct Failures {
    pub(super) found: Vec<Failure>,
    section: Section,
}

/// The subject of the test runner's lines.
#[derive(Debug, Default, PartialEq, Eq)]
enum Section {
    /// Tests as they end, or the output of tests that passed.
    #[default]
    Other,
    /// The output of failed tests.
    Output,
    /// The names of all failed tests, also of those without output.
    Names,
}

impl Failures {
    pub(super) fn look_at(&mut self, line: &str, part: usize) {
        match line {
            "failures:" if self.section == Section::Output => self.section = Section::Names,
            "failures:" => self.section = Section::Output,
            "successes:" => self.section = Section::Other,
            _ if line.starts_with("test result: ") => self.section = Section::Other,
            _ => match self.section {
                Section::Other => {}
                Section::Output => self.look_at_output(line, part),
                Section::Names => self.look_at_name(line, part),
            },
        }
    }

    fn look_at_output(&mut self, line: &str, part: usize) {
        let title = line.strip_prefix("---- ");
        if let Some(test) = title.and_then(|title| title.strip_suffix(" stdout ----")) {
            // The runner appends this to the names of tests that must panic.
            let test = test.trim_end_matches(" - should panic");
            self.add(test, part);
        } else if let Some(failure) = self.found.last_mut() {
            failure.output.push(line.to_owned());
        }
    }

    fn look_at_name(&mut self, line: &str, part: usize) {
        let Some(test) = line.strip_prefix("    ") else {
            return;
        };
        let is_known = |failure: &Failure| failure.part == part && failure.test == test;
        if !self.found.iter().any(is_known) {
            self.add(test, part);
        }
    }

    fn add(&mut self, test: &str, part: usize) {
        self.found.push(Failure {
            test: test.to_owned(),
            part,
            output: Vec::new(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_names_and_output_and_successes_do_not_count() {
        let mut failures = Failures::default();
        let output = "successes:\n\n---- good stdout ----\nfine\n\nsuccesses:\n    good\n\n\
            failures:\n\n---- bad stdout ----\nthread 'bad' panicked\n\n\
            failures:\n    bad\n    silent\n\ntest result: FAILED. 1 passed; 2 failed";
        output.lines().for_each(|line| failures.look_at(line, 4));
        let names: Vec<&str> = failures.found.iter().map(|one| &*one.test).collect();
        assert_eq!(names, ["bad", "silent"]);
        assert_eq!(failures.found[0].output[0], "thread 'bad' panicked");
        assert_eq!(failures.found[1].part, 4);
    }

    #[test]
    fn panic_is_reported_without_surrounding_text() {
        let mut failures = Failures::default();
        let output = "failures:\n\n---- bad stdout ----\n59 of 61 were upgraded\n\n\
            thread 'bad' (7) panicked at a.rs:48:5:\nleft is not right\nstack backtrace:\n  0: f\n\
            --- adapter.err\nlistening\n";
        output.lines().for_each(|line| failures.look_at(line, 0));
        let said = [
            "thread 'bad' (7) panicked at a.rs:48:5:",
            "left is not right",
        ];
        assert_eq!(failures.found[0].said(), said);
    }
}
