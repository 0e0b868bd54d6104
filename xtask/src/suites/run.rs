//! Runs one test program until it ends or exceeds our time limit.
//!
//! ```text
//!   way ── plain ─────────────────────────────────────► PROGRAM
//!      └── accelerated ───► toehold run --pair-after 1 ► PROGRAM
//! ```
//!
//! Everything of a suite runs in one [`Namespace`] of its own: its fixed ports are free, and it
//! cannot reach other networks. All of a suite's processes end with this program: see
//! [`leftovers`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::leftovers::{self, Folder};
use super::source;
use crate::adapter::{Adapter, as_user};
use crate::target;
use toehold_network::Namespace;

/// The interval between checks of running programs.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The interval between questions to the adapter about connections.
const ASK_EVERY: Duration = Duration::from_millis(150);
/// The number of times that a program is started again after one of its tests hung.
const STARTS_MAX: usize = 40;

/// Larger output is not kept: memcached's programs print all their measurements.
const KEPT_BYTES_MAX: u64 = 4 << 20;

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// The test found no fault.
    Passed,
    /// The test refused to run here.
    Skipped,
    /// The test found a fault, or died.
    Failed,
    /// The test had not ended within our time limit.
    Hung,
}

/// A program of a suite, which runs one test or many.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Unique in its suite; the name of the test if there is only one.
    pub(crate) name: String,
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// The folder in which it is started.
    pub(crate) dir: PathBuf,
    /// Variables added to its environment.
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// The way in which its tests are distinguished.
    pub(crate) reading: Reading,
    /// The time for which it may run without news of a test.
    pub(crate) time_limit: Duration,
}

/// The way in which the outcome of tests is read from a program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reading {
    /// One test: judged by the program's output and exit status.
    Whole(fn(&str, bool) -> Outcome),
    /// Many tests: by the lines that the program wrote.
    Lines(fn(&str) -> Option<(String, Outcome)>),
    /// Many tests: judged by lines `begin TEST`, `passed TEST`, `failed TEST`, `skipped TEST` in
    /// the file that `TOEHOLD_SUITE_JOURNAL` names. When the program is started again, it omits
    /// tests that had begun.
    Journal,
}

/// The outcomes of a suite's tests in one way.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// Each test's outcome, by the name `PROGRAM/TEST`.
    pub(crate) outcomes: BTreeMap<String, Outcome>,
    /// Connection ends that were seen in shared memory. Those that live for less than [`ASK_EVERY`]
    /// are mostly missed.
    pub(crate) upgraded: usize,
    /// Connections that the adapter gave a channel: exact, unlike `upgraded`.
    pub(crate) channels: u64,
    /// The time that each program took.
    pub(crate) seconds: BTreeMap<String, f64>,
}

/// The way in which a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Unchanged.
    Plain,
    /// Under `toehold run`, with each connection paired at its first call.
    Accelerated,
}

/// The environments of a suite: as many as its programs run at the same time.
#[derive(Debug)]
pub(crate) struct Grounds(Vec<Ground>);

impl Grounds {
    /// Prepares `count` grounds for a suite, whose programs run as `user`.
    pub(crate) fn new(
        suite: &'static str,
        user: Option<&'static str>,
        count: usize,
    ) -> Result<Grounds, String> {
        let grounds = (0..count).map(|_| Ground::new(suite, user));
        Ok(Grounds(grounds.collect::<Result<_, _>>()?))
    }

    /// Runs programs, one at a time on each ground.
    pub(crate) fn run(&self, programs: &[Program], way: Way) -> Results {
        let queue = Mutex::new(programs.iter());
        let next = || queue.lock().expect("nobody panics with it").next();
        let mut all = Results::default();
        std::thread::scope(|scope| {
            let next = &next;
            let runs = self
                .0
                .iter()
                .map(|ground| scope.spawn(move || ground.run(next, way)));
            for run in runs.collect::<Vec<_>>() {
                let results = run.join().expect("a run does not panic");
                all.outcomes.extend(results.outcomes);
                all.seconds.extend(results.seconds);
                all.upgraded += results.upgraded;
                all.channels += results.channels;
            }
        });
        all
    }
}

/// A network, an adapter in it, and a folder for the files that programs write.
#[derive(Debug)]
struct Ground {
    suite: &'static str,
    /// `None` without privileges.
    network: Option<Namespace>,
    adapter: Adapter,
    work: Folder,
    /// The user of the adapter and of the programs, if it is not the user that runs this program.
    user: Option<&'static str>,
    toehold: PathBuf,
    library: PathBuf,
}

impl Ground {
    /// Prepares the ground for a suite.
    fn new(suite: &'static str, user: Option<&'static str>) -> Result<Ground, String> {
        // SAFETY: takes nothing, cannot fail.
        let user = user.filter(|_| unsafe { libc::geteuid() } == 0);
        let network = Namespace::new().ok();
        let work = Folder::new(network.as_ref()).map_err(|error| error.to_string())?;
        let (mut toehold, mut library) = (
            target().join("release/toehold"),
            target().join("release/libtoehold.so"),
        );
        if let Some(user) = user {
            // The user may not be allowed to look into the build directory.
            for file in [&mut toehold, &mut library] {
                let copy = work
                    .path()
                    .join(file.file_name().expect("a file has a name"));
                fs::copy(&*file, &copy).map_err(|error| error.to_string())?;
                *file = copy;
            }
            give(user, work.path())?;
        }
        let mut command = within(network.as_ref(), user, &toehold);
        end_with_us(&mut command);
        let log =
            File::create(work.path().join("adapter.log")).map_err(|error| error.to_string())?;
        let runtime = work.path().join("runtime");
        let adapter = Adapter::start(command, &toehold, &runtime, user, log.into())?;
        Ok(Ground {
            suite,
            network,
            adapter,
            work,
            user,
            toehold,
            library,
        })
    }

    /// The folder in which a program is started. If the program runs as another user, that user
    /// gets a copy, made for each start.
    fn folder_of(&self, program: &Program) -> Result<PathBuf, String> {
        let Some(user) = self.user else {
            return Ok(program.dir.clone());
        };
        let copy = self.work.path().join("copy");
        let _ = fs::remove_dir_all(&copy);
        source::copy_tree(&program.dir, &copy).map_err(|error| error.to_string())?;
        give(user, &copy)?;
        Ok(copy)
    }

    /// Runs programs one after the other, as `next` returns them.
    fn run<'a>(&self, next: impl Fn() -> Option<&'a Program>, way: Way) -> Results {
        let (done, seen) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let mut results = Results::default();
        let channels = AtomicU64::new(0);
        let note_channels = |status: &Value| {
            let made = status["channels_made"].as_u64().unwrap_or(0);
            channels.fetch_max(made, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            if way == Way::Accelerated {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let status = self.adapter.status().unwrap_or_default();
                        let mut seen = seen.lock().expect("nobody panics with it");
                        note_upgraded(&status, &mut seen);
                        drop(seen);
                        note_channels(&status);
                        std::thread::sleep(ASK_EVERY);
                    }
                });
            }
            while let Some(program) = next() {
                if leftovers::is_ended() {
                    break;
                }
                let begun = Instant::now();
                results.outcomes.extend(self.run_one(program, way));
                let seconds = begun.elapsed().as_secs_f64();
                results.seconds.insert(program.name.clone(), seconds);
            }
            done.store(true, Ordering::Relaxed);
            if way == Way::Accelerated {
                note_channels(&self.adapter.status().unwrap_or_default());
            }
        });
        results.upgraded = seen.into_inner().expect("nobody panics with it").len();
        results.channels = channels.into_inner();
        results
    }

    /// Keeps a program's output for readers: `target/suites/output/SUITE/WAY/PROGRAM`. The output
    /// of its last failure has the suffix `.failed`, because a program that fails is run again.
    fn keep(&self, program: &Program, way: Way, output: &Path, succeeded: bool) {
        let way = format!("{way:?}").to_lowercase();
        if fs::metadata(output).is_ok_and(|metadata| metadata.len() > KEPT_BYTES_MAX) {
            return;
        }
        let dir = source::cache().join("output").join(self.suite).join(way);
        let mut name = program.name.replace('/', ".");
        if !succeeded {
            name.push_str(".failed");
        }
        let kept = fs::create_dir_all(&dir).and_then(|()| fs::copy(output, dir.join(name)));
        if let Err(error) = kept {
            eprintln!("{}: {error}", dir.display());
        }
    }

    /// Runs one program, and runs it again if one of its many tests hung.
    fn run_one(&self, program: &Program, way: Way) -> BTreeMap<String, Outcome> {
        let journal = self.work.path().join("journal");
        let output = self.work.path().join("output");
        let _ = fs::remove_file(&journal);
        let (mut hung, mut unended) = (Vec::new(), Vec::new());
        let mut end = None;
        for _ in 0..STARTS_MAX {
            let status = self.run_once(program, way, &journal, &output);
            let said = String::from_utf8_lossy(&fs::read(&output).unwrap_or_default()).into_owned();
            let succeeded = status.is_some_and(|status| status.success());
            self.keep(program, way, &output, succeeded);
            match program.reading {
                Reading::Whole(judge) => {
                    let outcome = match status {
                        Some(status) => judge(&said, status.success()),
                        None => Outcome::Hung,
                    };
                    return BTreeMap::from([(program.name.clone(), outcome)]);
                }
                Reading::Lines(read) => {
                    let tests = said.lines().filter_map(read);
                    let tests: Vec<(String, Outcome)> = tests.collect();
                    let mut tests = numbered(&program.name, tests);
                    // A program whose tests failed says so by its exit status.
                    let has_failed = tests.values().any(|outcome| *outcome == Outcome::Failed);
                    let code = status.and_then(|status| status.code());
                    if code != Some(0) && !(has_failed && code == Some(1)) {
                        let end = status.map_or(Outcome::Hung, |_| Outcome::Failed);
                        tests.insert(format!("{}/to its end", program.name), end);
                    }
                    return tests;
                }
                Reading::Journal => {
                    end = match status {
                        Some(status) if status.success() => Some(Outcome::Passed),
                        Some(_) => Some(Outcome::Failed),
                        None => Some(Outcome::Hung),
                    };
                    let mut open = unfinished(&fs::read_to_string(&journal).unwrap_or_default());
                    open.retain(|test| !unended.contains(test));
                    if open.is_empty() {
                        break;
                    }
                    if status.is_none() {
                        hung.extend(open.clone());
                    }
                    unended.extend(open);
                    if leftovers::is_ended() {
                        break;
                    }
                }
            }
        }
        let journal = fs::read_to_string(&journal).unwrap_or_default();
        let mut tests = outcomes(&journal);
        for (test, outcome) in &mut tests {
            if hung.contains(test) {
                *outcome = Outcome::Hung;
            }
        }
        if let Some(end @ (Outcome::Failed | Outcome::Hung)) = end {
            tests.insert("to its end".to_owned(), end);
        }
        let named = |(test, outcome)| (format!("{}/{test}", program.name), outcome);
        tests.into_iter().map(named).collect()
    }

    /// Runs a program once; `None` when it exceeded its time limit and was ended.
    fn run_once(
        &self,
        program: &Program,
        way: Way,
        journal: &Path,
        output: &Path,
    ) -> Option<ExitStatus> {
        let mut words = program.command.iter();
        let first = words.next().expect("a program has a name");
        let within = |program: &Path| within(self.network.as_ref(), self.user, program);
        let mut command = match way {
            Way::Plain => within(Path::new(first)),
            Way::Accelerated => {
                let mut command = within(&self.toehold);
                command.args([
                    "run",
                    "--path",
                    "direct",
                    "--pair-after",
                    "1",
                    "--runtime-dir",
                ]);
                command.arg(self.adapter.runtime()).arg("--").arg(first);
                command.env("TOEHOLD_LIB", &self.library);
                command
            }
        };
        let written = File::create(output).ok()?;
        let also = written.try_clone().ok()?;
        let dir = self.folder_of(program);
        let dir = dir.inspect_err(|why| eprintln!("{}: {why}", program.name));
        command
            .args(words)
            .current_dir(dir.ok()?)
            .env(leftovers::JOURNAL, journal)
            .env("TMPDIR", self.work.path())
            .envs(program.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(written)
            .stderr(also)
            .process_group(0);
        end_with_us(&mut command);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                eprintln!("{first:?}: {error}");
                return None;
            }
        };
        let length = || {
            let of = |path| fs::metadata(path).map_or(0, |metadata| metadata.len());
            of(journal) + of(output)
        };
        let (mut news, mut since) = (length(), Instant::now());
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if since.elapsed() < program.time_limit && !leftovers::is_ended() => {}
                _ => break None,
            }
            if length() != news {
                (news, since) = (length(), Instant::now());
            }
            std::thread::sleep(LOOK_EVERY);
        };
        // SAFETY: takes no pointers. The group is the child's own; it was made its leader, and is
        // not waited for by anybody else, or has left a group that nobody else can have.
        unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
        let _ = child.wait();
        status
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.adapter.end();
        leftovers::end_those_of(self.work.path());
    }
}

/// A command for a program, in `network` if given, as `user` if given.
fn within(network: Option<&Namespace>, user: Option<&str>, program: &Path) -> Command {
    let mut command = as_user(user, program);
    if let Some(network) = network {
        network.hold(&mut command);
    }
    command
}

/// Gives a folder and its contents to a user.
fn give(user: &str, folder: &Path) -> Result<(), String> {
    let mut command = Command::new("chown");
    let given = command
        .arg("-R")
        .arg(format!("{user}:"))
        .arg(folder)
        .status();
    match given {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Makes the kernel kill a command when this program ends, for any reason.
fn end_with_us(command: &mut Command) {
    // SAFETY: the call between fork and exec takes numbers and makes one system call.
    unsafe {
        command.pre_exec(
            || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        );
    }
}

/// Adds the ends of connections that have moved to shared memory and are not in the list yet.
fn note_upgraded(status: &Value, seen: &mut Vec<(u64, String, String)>) {
    for process in status["processes"].as_array().into_iter().flatten() {
        for connection in process["connections"].as_array().into_iter().flatten() {
            if connection["upgrades"].as_u64().unwrap_or(0) == 0 {
                continue;
            }
            let word = |name: &str| connection[name].as_str().unwrap_or_default().to_owned();
            let pid = process["pid"].as_u64().unwrap_or(0);
            let end = (pid, word("local"), word("remote"));
            if !seen.contains(&end) {
                seen.push(end);
            }
        }
    }
}

/// Tests by their names; a name that comes again gets a number.
fn numbered(program: &str, tests: Vec<(String, Outcome)>) -> BTreeMap<String, Outcome> {
    let mut named = BTreeMap::new();
    for (test, outcome) in tests {
        let mut name = format!("{program}/{test}");
        for number in 2.. {
            if !named.contains_key(&name) {
                break;
            }
            name = format!("{program}/{test} ({number})");
        }
        named.insert(name, outcome);
    }
    named
}

/// The outcome of each test in a journal. A test that began and did not end has failed.
fn outcomes(journal: &str) -> BTreeMap<String, Outcome> {
    let mut tests = BTreeMap::new();
    for line in journal.lines() {
        let Some((word, test)) = line.split_once(' ') else {
            continue;
        };
        let outcome = match word {
            "passed" => Outcome::Passed,
            "skipped" => Outcome::Skipped,
            _ => Outcome::Failed,
        };
        tests.insert(test.to_owned(), outcome);
    }
    tests
}

/// The tests of a journal that began and did not end.
fn unfinished(journal: &str) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    for line in journal.lines() {
        match line.split_once(' ') {
            Some(("begin", test)) => open.push(test.to_owned()),
            Some((_, test)) => open.retain(|begun| begun != test),
            None => {}
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_began_and_did_not_end_has_failed() {
        let journal = "begin a\npassed a\nbegin b\nbegin c\nskipped c\n";
        let all = outcomes(journal);
        assert_eq!(all["a"], Outcome::Passed);
        assert_eq!(all["b"], Outcome::Failed);
        assert_eq!(all["c"], Outcome::Skipped);
        assert_eq!(unfinished(journal), ["b"]);
    }

    #[test]
    fn only_ends_that_moved_count_and_each_once() {
        let status = serde_json::json!({"processes": [{"pid": 1, "connections": [
            {"local": "a", "remote": "b", "upgrades": 1},
            {"local": "b", "remote": "a", "upgrades": 0},
        ]}]});
        let mut seen = Vec::new();
        note_upgraded(&status, &mut seen);
        note_upgraded(&status, &mut seen);
        assert_eq!(seen.len(), 1);
    }
}
