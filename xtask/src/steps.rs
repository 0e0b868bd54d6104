//! Commands one after the other, with a count at the end.
//!
//! A step that fails does not stop the next one, so one run finds all faults. Tests are counted
//! from the lines that the test runner prints; a step without tests counts as one test. A skipped
//! test counts as skipped, not as passed.
//!
//! Tests that fail while others run are run once more, one at a time. A test that passes then is
//! *unsteady*: the summary names it and shows its first output. It depends on the time that a busy
//! host gives it, or on another test. That is a fault of the test or of the code. More than
//! [`UNSTEADY_MAX`] of them in a step are failures.
//!
//! Some steps only compute: compilers, model checkers. They run *beside* the others, most of them
//! on processor time that nobody else wants ([`Steps::run_beside`]). Other steps mostly wait. They
//! run in *lanes*: the lanes run side by side, and the steps of a lane one after the other
//! ([`Steps::run_lanes`]).
//!
//! A step in a lane that is silent for [`SILENCE_MAX`] hangs. Its processes are shown and killed,
//! so that the run ends, and tells where it hung. The step has failed then.
//!
//! Processor time bounds a run with lanes, so the table shows that of each step, and the closing
//! lines show how busy the processors were.

mod failures;
mod hung;
mod output;
mod processors;
mod seen;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::failures::{Failure, Failures};
use self::output::{Next, Output};
use self::processors::{Ticks, wait};
use self::seen::Seen;
use crate::root;
use crate::skips::{self, Skip};

/// Parts of a step that take less time have no line of their own in the table, unless they failed.
const PART_SHOWN_SECONDS: f64 = 5.0;
/// The number of failures of a step that may turn out to be unsteady tests.
const UNSTEADY_MAX: usize = 3;
/// A step in a lane that says nothing for as long hangs. Compilers and the slowest tests need less.
const SILENCE_MAX: Duration = Duration::from_secs(360);
/// Steps that run one after the other, beside other lanes.
pub(crate) type Lane<'a> = Box<dyn FnOnce(&mut Steps) + Send + 'a>;

/// The processor time that commands beside the steps get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A step waits for them: as much as the steps get.
    Awaited,
    /// Only time that nobody else wants: they are in the idle class (`SCHED_IDLE`), so that a
    /// step that wants a processor gets it at once.
    Idle,
}

/// The results of a run of steps so far.
#[derive(Debug)]
pub(crate) struct Steps {
    begun: Instant,
    /// The host's ticks when it began.
    ticks: Ticks,
    shown: Shown,
    /// Whether other steps run at the same time.
    is_lane: bool,
    done: Vec<Step>,
    /// The steps that run beside the others.
    beside: Vec<JoinHandle<Vec<Step>>>,
}

/// The place of the steps' output.
#[derive(Debug)]
enum Shown {
    /// Our own output, as it arrives.
    Now,
    /// The steps of a lane: each output is kept until its step has ended.
    AtEnd(Vec<u8>),
    /// For tests, whose output is read as the results of tests itself.
    #[cfg(test)]
    Nowhere,
}

impl Shown {
    /// The place for the output of the lane with this number.
    fn of_lane(&self, number: usize) -> Shown {
        match self {
            #[cfg(test)]
            Shown::Nowhere => Shown::Nowhere,
            _ if number == 0 => Shown::Now,
            _ => Shown::AtEnd(Vec::new()),
        }
    }
}

impl Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Shown::Now => io::stdout().write(bytes),
            Shown::AtEnd(kept) => kept.write(bytes),
            #[cfg(test)]
            Shown::Nowhere => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Shown::Now => io::stdout().flush(),
            Shown::AtEnd(kept) => {
                let shown = io::stdout().lock().write_all(kept);
                kept.clear();
                shown
            }
            #[cfg(test)]
            Shown::Nowhere => Ok(()),
        }
    }
}

/// A finished step.
#[derive(Debug)]
struct Step {
    name: &'static str,
    took: Duration,
    /// The processor time of its processes, without those for which nobody waited.
    computed: Duration,
    counts: Counts,
    parts: Vec<Part>,
    skips: Vec<Skip>,
    failures: Vec<Failure>,
    /// Tests that failed beside others and passed alone.
    unsteady: Vec<Failure>,
    /// Its last lines.
    last: VecDeque<String>,
    /// Its processes that hung, in lines.
    hung: Vec<String>,
    /// Runs its failed tests once more, if that may help.
    again: Option<Command>,
}

/// A test program of a step.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    name: String,
    counts: Counts,
    seconds: f64,
    /// True when the program printed its counts. A program that dies prints none.
    has_ended: bool,
}

impl Part {
    fn begun(name: String) -> Part {
        Part {
            name,
            counts: Counts::default(),
            seconds: 0.0,
            has_ended: false,
        }
    }
}

/// Tests by their ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Default for Steps {
    fn default() -> Steps {
        Steps {
            begun: Instant::now(),
            ticks: Ticks::now(),
            shown: Shown::Now,
            is_lane: false,
            done: Vec::new(),
            beside: Vec::new(),
        }
    }
}

impl Steps {
    /// Runs `command` from the top of the tree and passes its output on.
    pub(crate) fn run(&mut self, name: &'static str, command: &mut Command) {
        self.say(&format!("\n==> {name}: {}", words(command)));
        let started = Instant::now();
        let silence_max = self.is_lane.then_some(SILENCE_MAX);
        let (seen, success) = watch(command, &mut self.shown, silence_max);
        let _ = self.shown.flush();
        self.done.push(seen.step(name, started, success));
    }

    /// Writes a line to the output.
    fn say(&mut self, line: &str) {
        // A reader of ours that has gone away must not stop the step.
        let _ = writeln!(self.shown, "{line}");
    }

    /// Runs commands one after the other beside the steps that follow, until [`Steps::join`]. Their
    /// output is shown when they have ended.
    pub(crate) fn run_beside(&mut self, urgency: Urgency, commands: Vec<(&'static str, Command)>) {
        let run = move || {
            let run = |(name, mut command): (&'static str, Command)| {
                let title = format!("\n==> {name}, beside other steps: {}\n", words(&command));
                let mut shown = title.into_bytes();
                let (mut seen, started) = (Seen::default(), Instant::now());
                let command = command.current_dir(root());
                let command = match urgency {
                    Urgency::Awaited => command,
                    Urgency::Idle => idle(command),
                };
                let success = tee(command, &mut shown, &mut seen, None);
                let _ = std::io::stdout().lock().write_all(&shown);
                seen.step(name, started, success)
            };
            commands.into_iter().map(run).collect()
        };
        self.beside.push(std::thread::spawn(run));
    }

    /// Waits for the commands that run beside the steps. Their results stand here in the table.
    pub(crate) fn join(&mut self) {
        for beside in self.beside.drain(..) {
            let steps = beside.join().expect("it does not panic");
            self.done.extend(steps);
        }
    }

    /// Runs lanes side by side. The output of the first is shown as it arrives, that of each other
    /// step when the step has ended. Failed tests run once more when all lanes have ended, so that
    /// they are alone then.
    pub(crate) fn run_lanes(&mut self, lanes: Vec<Lane>) {
        let place = &self.shown;
        let run = |(number, lane): (usize, Lane)| {
            let mut steps = Steps {
                shown: place.of_lane(number),
                is_lane: true,
                ..Steps::default()
            };
            lane(&mut steps);
            steps.done
        };
        let done: Vec<Vec<Step>> = std::thread::scope(|scope| {
            let lanes = lanes.into_iter().enumerate();
            let run = |lane| scope.spawn(move || run(lane));
            let threads: Vec<_> = lanes.map(run).collect();
            let ends = threads.into_iter().map(|thread| thread.join());
            ends.map(|end| end.expect("it does not panic")).collect()
        });
        for mut step in done.into_iter().flatten() {
            step.run_again(&mut self.shown);
            self.done.push(step);
        }
    }

    /// Runs the tests of a `cargo test` command, with options for the test programs. Failed tests
    /// run once more, one at a time.
    pub(crate) fn run_tests(
        &mut self,
        name: &'static str,
        cargo_test: impl Fn() -> Command,
        options: &[&str],
    ) {
        let mut first = cargo_test();
        self.run(name, first.arg("--").args(options));
        let step = self.done.last_mut().expect("just run");
        let failed = step.failures.len();
        // A program that died has no list of failed tests, so its failure is final.
        if failed == 0 || failed > UNSTEADY_MAX || step.counts.failed != failed as u64 {
            return;
        }
        let mut alone = cargo_test();
        alone.env("RUST_TEST_THREADS", "1").args(["--", "--exact"]);
        alone.args(step.failures.iter().map(|failure| &failure.test));
        step.again = Some(alone);
        if !self.is_lane {
            step.run_again(&mut self.shown);
        }
    }

    /// Runs a check of our own, which prints its findings.
    pub(crate) fn check(&mut self, name: &'static str, check: impl FnOnce() -> bool) {
        self.say(&format!("\n==> {name}"));
        let started = Instant::now();
        let success = check();
        self.done.push(Seen::default().step(name, started, success));
    }

    /// Records, with a message, that something was not run.
    pub(crate) fn skip(&mut self, name: &'static str, reason: &str) {
        self.say(&format!("\n==> {name}\nSKIPPED: {name}: {reason}"));
        let _ = self.shown.flush();
        self.done.push(Step {
            name,
            took: Duration::ZERO,
            computed: Duration::ZERO,
            counts: Counts {
                skipped: 1,
                ..Counts::default()
            },
            parts: Vec::new(),
            skips: vec![Skip {
                what: name.to_owned(),
                reason: reason.to_owned(),
            }],
            failures: Vec::new(),
            unsteady: Vec::new(),
            last: VecDeque::new(),
            hung: Vec::new(),
            again: None,
        });
    }

    /// Prints the failures, the table, the skips and the closing line; true when nothing failed.
    ///
    /// With `CI=true` a skip that is not in the list of [`skips`] is a failure.
    pub(crate) fn conclude(mut self) -> bool {
        self.join();
        println!();
        for step in &self.done {
            step.failures
                .iter()
                .for_each(|failure| failure.print("FAILED"));
            step.unsteady
                .iter()
                .for_each(|failure| failure.print("UNSTEADY"));
        }
        let mut total = Counts::default();
        for step in &self.done {
            let computed = step.computed.as_secs_f64();
            let seconds = step.took.as_secs_f64();
            println!("{}", row(step.name, step.counts, seconds, Some(computed)));
            let shown = |part: &&Part| part.counts.failed > 0 || part.seconds >= PART_SHOWN_SECONDS;
            // A single part is the whole step.
            for part in step
                .parts
                .iter()
                .filter(shown)
                .filter(|_| step.parts.len() > 1)
            {
                let name = format!("  {}", part.name);
                println!("{}", row(&name, part.counts, part.seconds, None));
            }
            total.passed += step.counts.passed;
            total.failed += step.counts.failed;
            total.skipped += step.counts.skipped;
        }
        let all_must_run = skips::are_failures();
        for skip in self.done.iter().flat_map(|step| &step.skips) {
            println!("SKIPPED: {}: {}", skip.what, skip.reason);
            match skip.expected() {
                Some(reason) => println!("         expected: {reason}"),
                None if all_must_run => {
                    println!("         FAILED: xtask/src/skips.rs does not expect this skip");
                    total.skipped -= 1;
                    total.failed += 1;
                }
                None => {}
            }
        }
        self.done.iter().for_each(Step::print_failures);
        let took = minutes(self.begun.elapsed());
        println!("{} steps in {took}", self.done.len());
        let computed: Duration = self.done.iter().map(|step| step.computed).sum();
        println!(
            "{:.0} s of processor time; the host's processors were busy {:.0} % of the time",
            computed.as_secs_f64(),
            100.0 * Ticks::now().busy_share_since(&self.ticks),
        );
        println!(
            "{} passed, {} failed, {} skipped",
            total.passed, total.failed, total.skipped
        );
        total.failed == 0
    }
}

impl Step {
    /// Prints the failures in a few lines each: they are the last ones of a long output.
    fn print_failures(&self) {
        for failure in &self.unsteady {
            println!(
                "UNSTEADY: {}: failed beside others, passed alone",
                failure.test
            );
            failure.print_said();
        }
        for failure in &self.failures {
            println!("FAILED: {}: {}", self.name, failure.test);
            failure.print_said();
        }
        if self.counts.failed > self.failures.len() as u64 {
            let ends = if self.last.is_empty() {
                ""
            } else {
                ", which ended with"
            };
            println!("FAILED: {}{ends}", self.name);
            self.last.iter().for_each(|line| println!("    {line}"));
        }
        for line in &self.hung {
            println!("    {line}");
        }
    }

    /// Runs its failed tests once more, if there is a command for that.
    fn run_again(&mut self, shown: &mut Shown) {
        let Some(mut alone) = self.again.take() else {
            return;
        };
        let title = format!("\n==> {}, what failed, once more: ", self.name);
        let _ = writeln!(shown, "{title}{}", words(&alone));
        let started = Instant::now();
        let (again, success) = watch(&mut alone, shown, Some(SILENCE_MAX));
        self.took += started.elapsed();
        self.computed += again.computed;
        let counts = again.outcome(success);
        let failed = self.failures.len() as u64;
        // Each failed test has run again, and no program died without a test's name.
        let are_named = counts.failed == again.failures.found.len() as u64;
        if are_named && counts.skipped == 0 && counts.passed + counts.failed >= failed {
            self.passed_alone(&again.failures);
        }
    }

    /// The failed tests were run once more, alone. Those that are not in `again` passed.
    fn passed_alone(&mut self, again: &Failures) {
        let fails = |failure: &Failure| again.found.iter().any(|one| one.test == failure.test);
        let (failures, unsteady): (_, Vec<_>) = self.failures.drain(..).partition(fails);
        self.failures = failures;
        for failure in unsteady {
            if let Some(part) = self.parts.get_mut(failure.part) {
                part.counts.failed -= 1;
                part.counts.passed += 1;
            }
            self.counts.failed -= 1;
            self.counts.passed += 1;
            self.unsteady.push(failure);
        }
    }
}

/// Runs a command from the top of the tree, shows its output and examines it; true when the
/// command succeeded.
fn watch(command: &mut Command, shown: &mut Shown, silence_max: Option<Duration>) -> (Seen, bool) {
    let mut seen = Seen::default();
    let success = tee(command.current_dir(root()), shown, &mut seen, silence_max);
    (seen, success)
}

/// Lets a command have the processors only when nothing else wants them.
fn idle(command: &mut Command) -> &mut Command {
    let yield_to_all = || {
        let none = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameters are live, and the call may be made after a fork.
        match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &none) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: it makes one system call.
    unsafe { command.pre_exec(yield_to_all) }
}

/// Minutes and seconds, rounded to a second.
fn minutes(took: Duration) -> String {
    let seconds = took.as_secs_f64().round() as u64;
    format!("{} min {:02} s", seconds / 60, seconds % 60)
}

/// A line of the closing table: with the processor time, where it is known.
fn row(name: &str, counts: Counts, seconds: f64, computed: Option<f64>) -> String {
    let verdict = if counts.failed == 0 { "ok" } else { "FAILED" };
    let computed = computed.map_or(String::new(), |seconds| format!("cpu {seconds:.0} s"));
    format!(
        "{name:<44} {:>6} passed {:>4} failed {:>4} skipped {seconds:>6.0} s {computed:>10}  \
         {verdict}",
        counts.passed, counts.failed, counts.skipped
    )
}

/// Runs a command, writes its output to `shown` as it arrives and examines each line; true when it
/// succeeds. Ends it when it says nothing for as long as `silence_max`.
///
/// Both of its outputs use one pipe, so that their lines keep their order.
fn tee(
    command: &mut Command,
    shown: &mut impl Write,
    seen: &mut Seen,
    silence_max: Option<Duration>,
) -> bool {
    let child = std::io::pipe().and_then(|(reader, writer)| {
        command.stdin(Stdio::null()).stdout(writer.try_clone()?);
        Ok((command.stderr(writer).spawn()?, reader))
    });
    // Otherwise the command's copies of the pipe's end would keep the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (child, reader) = match child {
        Ok(begun) => begun,
        Err(error) => {
            eprintln!("cannot run {}: {error}", words(command));
            return false;
        }
    };
    let mut output = Output::of(&child, reader);
    let mut show = |line: &[u8]| {
        // A reader of ours that has gone away must not stop the step.
        let _ = shown.write_all(line);
    };
    loop {
        match output.next(silence_max) {
            Next::Line(line) => {
                show(&line);
                seen.look_at(String::from_utf8_lossy(&line).trim_end());
            }
            Next::Silence => {
                let report = end_hung(child.id(), silence_max.unwrap_or_default());
                report
                    .iter()
                    .for_each(|line| show(format!("{line}\n").as_bytes()));
                seen.hung.extend(report);
            }
            Next::End => break,
        }
    }
    let (success, computed) = wait(&child);
    seen.computed += computed;
    success && seen.hung.is_empty()
}

/// Kills the processes of a command that hangs, and reports where they were. The command itself,
/// `cargo` say, goes on with its next program unless it hangs alone.
fn end_hung(command: u32, silence: Duration) -> Vec<String> {
    let mut report = vec![format!("HUNG: silent for {} s", silence.as_secs())];
    let mut processes = hung::descendants(command);
    if processes.is_empty() {
        processes.push(command);
    }
    report.extend(processes.iter().flat_map(|&process| hung::report(process)));
    hung::end(&processes);
    report
}

/// A command as a user would type it.
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

    pub(super) fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts {
            passed,
            failed,
            skipped,
        }
    }

    #[test]
    fn a_last_second_that_is_rounded_up_makes_a_minute() {
        let minutes = |ms| minutes(Duration::from_millis(ms));
        assert_eq!(minutes(59_400), "0 min 59 s");
        assert_eq!(minutes(59_500), "1 min 00 s");
        assert_eq!(minutes(179_700), "3 min 00 s");
        assert_eq!(minutes(1_565_000), "26 min 05 s");
    }

    #[test]
    fn unsteady_tests_count_as_passed_and_keep_their_output() {
        let seen = Seen::of(
            "     Running tests/fork.rs (target/debug/deps/fork-0a1b)\n\
             failures:\n\n---- worker stdout ----\nlate\n\nfailures:\n    worker\n    other\n\n\
             test result: FAILED. 1 passed; 2 failed; 0 ignored; finished in 9.00s",
        );
        let again = Seen::of("failures:\n\nfailures:\n    other\n");
        let mut step = seen.step("tests", Instant::now(), false);
        assert_eq!(step.counts, counts(1, 2, 0));
        step.passed_alone(&again.failures);
        assert_eq!(step.counts, counts(2, 1, 0));
        assert_eq!(step.parts[0].counts, counts(2, 1, 0));
        assert_eq!(step.failures[0].test, "other");
        assert_eq!(step.unsteady[0].test, "worker");
    }

    /// A shell's command. `sh` ignores the arguments that are added to it.
    fn shell(script: &str, folder: &std::path::Path) -> Command {
        let mut command = Command::new("sh");
        let script = format!("cd {}\n{script}", folder.display());
        command.args(["-c", &script, "sh"]);
        command
    }

    #[test]
    fn lanes_run_side_by_side_and_stand_one_after_the_other_in_the_table() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        // Each waits for the other.
        let meet = |mine: &str, other: &str| {
            let wait = format!("until [ -e {other} ]; do sleep 0.01; done");
            shell(&format!("touch {mine}; {wait}"), folder)
        };
        let mut steps = Steps {
            shown: Shown::Nowhere,
            ..Steps::default()
        };
        steps.run_lanes(vec![
            Box::new(|lane| {
                lane.run("one", &mut meet("a", "b"));
                lane.run("last of one", &mut shell("exit 1", folder));
            }),
            Box::new(|lane| lane.run("other", &mut meet("b", "a"))),
        ]);
        let results = steps.done.iter().map(|step| (step.name, step.counts));
        let expected = [
            ("one", counts(1, 0, 0)),
            ("last of one", counts(0, 1, 0)),
            ("other", counts(1, 0, 0)),
        ];
        assert_eq!(results.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn failed_tests_of_a_lane_run_once_more_when_all_lanes_have_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        // `worker` fails while the other lane runs.
        let tests = "touch begun\n\
             if [ -e ended ]; then\n\
                 echo 'test result: ok. 1 passed; 0 failed; 0 ignored'\n\
             else\n\
                 printf 'failures:\\n\\n---- worker stdout ----\\nlate\\n\\nfailures:\\n'\n\
                 printf '    worker\\n\\n'\n\
                 echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'\n\
                 touch failed\n\
                 exit 1\n\
             fi";
        let other = "until [ -e failed ]; do sleep 0.01; done; sleep 0.1; touch ended";
        let mut steps = Steps {
            shown: Shown::Nowhere,
            ..Steps::default()
        };
        steps.run_lanes(vec![
            Box::new(|lane| lane.run_tests("tests", || shell(tests, folder), &[])),
            Box::new(|lane| lane.run("other", &mut shell(other, folder))),
        ]);
        assert_eq!(steps.done[0].counts, counts(2, 0, 0));
        assert_eq!(steps.done[0].unsteady.len(), 1);
        assert!(steps.done[0].failures.is_empty());
    }

    #[test]
    fn processor_time_is_that_of_all_processes_of_a_command() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'",
        ]);
        let mut seen = Seen::default();
        assert!(tee(&mut command, &mut Vec::new(), &mut seen, None));
        assert!(seen.computed > Duration::ZERO);
        let mut idle = Seen::default();
        assert!(!tee(
            Command::new("false").arg(""),
            &mut Vec::new(),
            &mut idle,
            None
        ));
        assert!(idle.computed < seen.computed);
    }

    #[test]
    fn both_outputs_are_looked_at_in_their_order() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "echo '---- a stdout ----'; echo SKIPPED: b >&2; exit 3",
        ]);
        let mut seen = Seen::default();
        let mut shown = Vec::new();
        assert!(!tee(&mut command, &mut shown, &mut seen, None));
        assert_eq!(shown, b"---- a stdout ----\nSKIPPED: b\n");
        assert_eq!(seen.skips[0].what, "a");
    }

    #[test]
    fn a_program_that_hangs_is_shown_and_ended_and_its_command_goes_on() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; sleep 1000; echo 'the next program'"]);
        let mut child = command.stdout(writer).spawn().expect("a shell");
        drop(command);
        let mut output = Output::of(&child, reader);
        assert_eq!(output.next(None), Next::Line(b"begun\n".to_vec()));
        while hung::descendants(child.id()).is_empty() {
            std::thread::yield_now();
        }
        let report = end_hung(child.id(), SILENCE_MAX);
        assert!(report[1].starts_with("process "), "{report:#?}");
        assert_eq!(
            output.next(None),
            Next::Line(b"the next program\n".to_vec())
        );
        assert_eq!(output.next(None), Next::End);
        assert!(child.wait().expect("it has ended").success());
    }

    #[test]
    fn a_command_that_hangs_alone_is_ended() {
        let mut command = Command::new("sleep");
        let (mut seen, mut shown) = (Seen::default(), Vec::new());
        let silence_max = Some(Duration::from_millis(1));
        assert!(!tee(
            command.arg("1000"),
            &mut shown,
            &mut seen,
            silence_max
        ));
        assert!(seen.hung[0].starts_with("HUNG: "), "{:#?}", seen.hung);
        assert!(shown.starts_with(b"HUNG: "));
    }
}
