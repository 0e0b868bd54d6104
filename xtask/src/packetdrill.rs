//! Runs packetdrill's scripts against the engine, through the shared library in
//! `tests/packetdrill`.
//!
//! Neither packetdrill nor its scripts are part of this project: the caller gives paths to both.
//! `tests/packetdrill/scripts.txt` has the expected result of each script: it passes; or it fails
//! because it tests a choice of Linux where the RFCs leave one; or it does not test TCP on the
//! wire. If a script is expected to fail and passes, that is a finding, too.
//!
//! Each script runs in its own network namespace, where its `sysctl` commands are harmless.

mod normal;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use self::normal::Without;
use crate::steps::Steps;
use crate::{root, target};

const EXPECTATIONS: &str = "tests/packetdrill/scripts.txt";
/// Virtual time does not wait: a script that takes longer than this hangs.
const SCRIPT_TIME_MAX: Duration = Duration::from_secs(60);
/// A kernel timer with ticks of 10 ms expires up to two ticks late: times may differ by this much
/// if a script's line allows it. packetdrill's own tolerance is 4 ms.
const TICKS_US: u32 = 20_000;
/// The ways in which each script is run. IPv6 headers are longer: with this MTU the MSS is the one
/// that scripts expect.
const VERSIONS: [(&str, &str); 3] = [
    ("ipv4", ""),
    ("ipv6", ",mtu=1520"),
    ("ipv4-mapped-ipv6", ""),
];
/// The namespace's devices, and then packetdrill with its arguments. Some scripts set a queueing
/// discipline on the device that packetdrill would have made.
const INSIDE: &str = "ip link set lo up; \
    ip link add tun0 type veth peer name tun1 2>/dev/null; ip link set tun0 up; \
    export LD_PRELOAD=\"$1\"; shift; ulimit -s 512; exec \"$@\"";

/// The expected result of a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Pass,
    Differs,
    NotApplicable,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Differs => "differs",
            Self::NotApplicable => "n/a",
        })
    }
}

/// A line of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Expectation {
    outcome: Outcome,
    /// The link cuts large frames up (the usual case), or the engine sends each segment by itself.
    segmentation: bool,
    /// The script names its IP version, or has addresses of it.
    only: Option<&'static str>,
    /// The script sets the MTU of a device that does not exist here.
    mtu: Option<u16>,
    /// The script's times are those of a kernel's timers, which expire at whole ticks.
    ticks: bool,
    /// Choices of Linux that the script also asserts.
    without: Without,
    reason: String,
}

/// The required programs, and their paths.
struct Setup {
    binary: PathBuf,
    scripts: PathBuf,
}

impl Setup {
    /// From arguments, or else the environment.
    fn find(arguments: &[String]) -> Result<Self, String> {
        let value = |flag: &str, variable: &str| {
            let at = arguments.iter().position(|argument| argument == flag);
            let given = at.and_then(|at| arguments.get(at + 1).cloned());
            given
                .or_else(|| std::env::var(variable).ok())
                .filter(|value| !value.is_empty())
        };
        let binary = value("--binary", "PACKETDRILL").or_else(|| in_path("packetdrill"));
        let scripts = value("--scripts", "PACKETDRILL_SCRIPTS");
        let (Some(binary), Some(scripts)) = (binary, scripts) else {
            return Err(
                "give a packetdrill binary and a folder of scripts (its gtests/net/tcp, or Linux's \
                 tools/testing/selftests/net/packetdrill), which are not part of Toehold: \
                 make packetdrill PACKETDRILL=... PACKETDRILL_SCRIPTS=..."
                    .to_owned(),
            );
        };
        let absolute =
            |path: String| std::fs::canonicalize(&path).map_err(|error| format!("{path}: {error}"));
        Ok(Self {
            binary: absolute(binary)?,
            scripts: absolute(scripts)?,
        })
    }
}

/// The step of a full test; reported as skipped if there is no packetdrill.
pub(crate) fn add(steps: &mut Steps) {
    match Setup::find(&[]) {
        Ok(_) => steps.check("packetdrill", || run(&[])),
        Err(reason) => steps.skip("packetdrill", &reason),
    }
}

/// Runs the scripts, and prints their results.
pub(crate) fn run(arguments: &[String]) -> bool {
    let setup = match Setup::find(arguments) {
        Ok(setup) => setup,
        Err(reason) => {
            eprintln!("packetdrill: {reason}");
            return false;
        }
    };
    let filter = arguments.first().filter(|first| !first.starts_with("--"));
    let list = std::fs::read_to_string(root().join(EXPECTATIONS)).unwrap_or_default();
    let expectations = match parse(&list) {
        Ok(expectations) => expectations,
        Err(reason) => {
            eprintln!("{EXPECTATIONS}: {reason}");
            return false;
        }
    };
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "-p", "toehold-packetdrill", "--quiet"]);
    if !build
        .current_dir(root())
        .status()
        .is_ok_and(|status| status.success())
    {
        return false;
    }
    let mut scripts = Vec::new();
    collect(&setup.scripts, &mut scripts);
    scripts.retain(|script| filter.is_none_or(|part| script.to_string_lossy().contains(part)));
    scripts.sort();
    let jobs = jobs(&setup, &scripts, &expectations);
    let done = run_all(&setup, &jobs);
    report(&setup, &scripts, &expectations, &done)
}

/// One run of one script.
struct Job {
    script: PathBuf,
    key: String,
    version: &'static str,
    flags: String,
    ticks: bool,
    without: Without,
    expected: Option<Outcome>,
}

/// The result of a script: the last lines of its output if it failed.
struct Done {
    key: String,
    version: &'static str,
    expected: Option<Outcome>,
    failure: Option<String>,
}

fn jobs(
    setup: &Setup,
    scripts: &[PathBuf],
    expectations: &BTreeMap<String, Expectation>,
) -> Vec<Job> {
    let mut jobs = Vec::new();
    for script in scripts {
        let key = key(&setup.scripts, script);
        let expectation = lookup(expectations, &key);
        if expectation.is_some_and(|expectation| expectation.outcome == Outcome::NotApplicable) {
            continue;
        }
        let without = expectation.map(|expectation| expectation.without);
        let without = without.unwrap_or_default();
        let segmentation = expectation.is_none_or(|expectation| expectation.segmentation);
        let segmentation = segmentation && without.frames_of.is_none();
        let only = expectation.and_then(|expectation| expectation.only);
        let mtu = expectation.and_then(|expectation| expectation.mtu);
        let mtu = mtu.map_or(String::new(), |mtu| format!(",mtu={mtu}"));
        for (version, more) in VERSIONS {
            if only.is_some_and(|only| only != version) {
                continue;
            }
            jobs.push(Job {
                script: script.clone(),
                key: key.clone(),
                version,
                flags: format!(
                    "{}{}{mtu}{more}",
                    if segmentation {
                        "segmentation"
                    } else {
                        "plain"
                    },
                    if without.frames_of.is_some() {
                        ",no-push"
                    } else {
                        ""
                    }
                ),
                ticks: expectation.is_some_and(|expectation| expectation.ticks),
                without,
                expected: expectation.map(|expectation| expectation.outcome),
            });
        }
    }
    jobs
}

/// Runs jobs on all processors.
fn run_all(setup: &Setup, jobs: &[Job]) -> Vec<Done> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                // Relaxed: each index is handed out once, and nothing else depends on it.
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = Done {
                        key: job.key.clone(),
                        version: job.version,
                        expected: job.expected,
                        failure: run_one(setup, job).err(),
                    };
                    done.lock().expect("no worker panics").push(outcome);
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no worker panics");
    done.sort_by(|a, b| (&a.key, a.version).cmp(&(&b.key, b.version)));
    done
}

fn run_one(setup: &Setup, job: &Job) -> Result<(), String> {
    let library = target().join("release/libtoehold_packetdrill.so");
    let (script, _rewritten) = script_of(job)?;
    let mut output = tempfile::tempfile().map_err(|error| error.to_string())?;
    let to_output = |file: &std::fs::File| file.try_clone().map_err(|error| error.to_string());
    let mut command = Command::new("unshare");
    // SAFETY: geteuid cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        // packetdrill would set real-time priority, for a clock that it does not read here.
        command.args([
            "--net",
            "setpriv",
            "--bounding-set=-sys_nice",
            "--inh-caps=-sys_nice",
        ]);
    } else {
        command.args(["--user", "--map-root-user", "--net"]);
    }
    command
        .args(["sh", "-c", INSIDE, "packetdrill"])
        .arg(&library)
        .arg(&setup.binary)
        .arg(format!("--so_filename={}", library.display()))
        .arg(format!("--so_flags={}", job.flags))
        .arg(format!("--ip_version={}", job.version))
        .args(job.ticks.then(|| format!("--tolerance_usecs={TICKS_US}")))
        .arg(script)
        .current_dir(job.script.parent().expect("a script has a folder"))
        .stdin(std::process::Stdio::null())
        .stdout(to_output(&output)?)
        .stderr(to_output(&output)?);
    let mut child = command
        .spawn()
        .map_err(|error| format!("unshare: {error}"))?;
    let passed = wait(&mut child);
    // Scripts leave this file behind; each command above replaces the process, so the number is
    // packetdrill's.
    let _ = std::fs::remove_file(format!("/tmp/sysctl_restore_{}.sh", child.id()));
    if passed {
        return Ok(());
    }
    let mut text = String::new();
    let _ = output
        .rewind()
        .and_then(|()| output.read_to_string(&mut text));
    let mut lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("sysctl:"))
        .collect();
    lines.drain(..lines.len().saturating_sub(4));
    Err(lines.join("\n    "))
}

/// The script that packetdrill is given: the file itself, or one that lives as long as the second
/// value. Commands in it are relative to the folder of the original.
fn script_of(job: &Job) -> Result<(PathBuf, Option<tempfile::NamedTempFile>), String> {
    if job.without.is_nothing() {
        let name = job.script.file_name().expect("a script has a name");
        return Ok((name.into(), None));
    }
    let text = std::fs::read_to_string(&job.script).map_err(|error| error.to_string())?;
    let file = tempfile::Builder::new().suffix(".pkt").tempfile();
    let file = file.map_err(|error| error.to_string())?;
    let written = std::fs::write(file.path(), normal::rewrite(&text, job.without));
    written.map_err(|error| error.to_string())?;
    Ok((file.path().to_owned(), Some(file)))
}

fn wait(child: &mut Child) -> bool {
    let until = Instant::now() + SCRIPT_TIME_MAX;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}

fn report(
    setup: &Setup,
    scripts: &[PathBuf],
    expectations: &BTreeMap<String, Expectation>,
    done: &[Done],
) -> bool {
    let mut surprises = 0;
    for one in done {
        let surprise = match (&one.expected, &one.failure) {
            (Some(Outcome::Pass), Some(failure)) => format!("FAILED\n    {failure}"),
            (Some(Outcome::Differs), None) => "passes, although it is listed to differ".to_owned(),
            (None, Some(failure)) => format!("is not in the list, and fails\n    {failure}"),
            (None, None) => "is not in the list, and passes".to_owned(),
            _ => continue,
        };
        // A script may differ only in one IP version.
        let differs_elsewhere = one.expected == Some(Outcome::Differs)
            && done
                .iter()
                .any(|other| other.key == one.key && other.failure.is_some());
        if !differs_elsewhere {
            surprises += 1;
            println!("{} ({}) {surprise}", one.key, one.version);
        }
    }
    let mut reasons: BTreeMap<(String, &str), usize> = BTreeMap::new();
    let mut counts = [0; 3];
    for script in scripts {
        if let Some(expectation) = lookup(expectations, &key(&setup.scripts, script)) {
            counts[expectation.outcome as usize] += 1;
            if expectation.outcome != Outcome::Pass {
                let reason = (expectation.outcome.to_string(), expectation.reason.as_str());
                *reasons.entry(reason).or_default() += 1;
            }
        }
    }
    for ((outcome, reason), count) in reasons {
        println!("{count:>4} {outcome:<8} {reason}");
    }
    let passed = done.iter().filter(|one| one.failure.is_none()).count();
    println!(
        "packetdrill: {} scripts: {} pass, {} differ by policy, {} not applicable; \
         {passed} of {} runs passed; {surprises} not as expected",
        scripts.len(),
        counts[Outcome::Pass as usize],
        counts[Outcome::Differs as usize],
        counts[Outcome::NotApplicable as usize],
        done.len(),
    );
    surprises == 0
}

/// The name of a script in the list. Linux's copies have one folder and longer names:
/// `tcp_close_no_rst.pkt` is `close/no_rst.pkt`.
fn key(scripts: &Path, script: &Path) -> String {
    let name = script.strip_prefix(scripts).unwrap_or(script);
    let name = name.with_extension("");
    let name = name.to_string_lossy().replace('/', "_");
    name.trim_start_matches("tcp_").to_owned()
}

/// The line for a script: its own, or that of the longest prefix that ends in `*`.
fn lookup<'a>(
    expectations: &'a BTreeMap<String, Expectation>,
    key: &str,
) -> Option<&'a Expectation> {
    expectations.get(key).or_else(|| {
        expectations
            .iter()
            .filter(|(name, _)| {
                name.strip_suffix('*')
                    .is_some_and(|part| key.starts_with(part))
            })
            .max_by_key(|(name, _)| name.len())
            .map(|(_, expectation)| expectation)
    })
}

/// Reads the list: `name outcome[,option] reason` in each line, `#` for comments.
fn parse(list: &str) -> Result<BTreeMap<String, Expectation>, String> {
    let mut expectations = BTreeMap::new();
    for (number, line) in (1..).zip(list.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.splitn(3, char::is_whitespace);
        let name = words.next().unwrap_or_default();
        let rest = line[name.len()..].trim_start();
        let (how, reason) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let mut how = how.split(',');
        let outcome = match how.next() {
            Some("pass") => Outcome::Pass,
            Some("differs") => Outcome::Differs,
            Some("n/a") => Outcome::NotApplicable,
            _ => return Err(format!("line {number}: pass, differs or n/a")),
        };
        let mut expectation = Expectation {
            outcome,
            segmentation: true,
            only: None,
            mtu: None,
            ticks: false,
            without: Without::default(),
            reason: reason.trim().to_owned(),
        };
        for option in how {
            match option {
                "plain" => expectation.segmentation = false,
                "v4" => expectation.only = Some("ipv4"),
                "v6" => expectation.only = Some("ipv6"),
                "ticks" => expectation.ticks = true,
                "mtu9000" => expectation.mtu = Some(9_000),
                "frames1000" => expectation.without.frames_of = Some(1_000),
                "frames974" => expectation.without.frames_of = Some(974),
                "no-reordering" => expectation.without.reordering = true,
                _ => return Err(format!("line {number}: {option} is not an option")),
            }
        }
        if outcome != Outcome::Pass && expectation.reason.is_empty() {
            return Err(format!("line {number}: why?"));
        }
        expectations.insert(name.to_owned(), expectation);
    }
    Ok(expectations)
}

fn collect(folder: &Path, scripts: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, scripts);
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            scripts.push(path);
        }
    }
}

fn in_path(name: &str) -> Option<String> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .map(|file| file.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_readable_and_gives_reasons() {
        let list = std::fs::read_to_string(root().join(EXPECTATIONS)).expect("the list is there");
        let expectations = parse(&list).expect("every line is in order");
        assert!(
            expectations
                .values()
                .any(|one| one.outcome == Outcome::Pass)
        );
    }

    #[test]
    fn both_sources_name_a_script_alike() {
        let google = key(Path::new("/g"), Path::new("/g/close/close-on-syn-sent.pkt"));
        let linux = key(
            Path::new("/l"),
            Path::new("/l/tcp_close_close-on-syn-sent.pkt"),
        );
        assert_eq!(google, "close_close-on-syn-sent");
        assert_eq!(google, linux);
        let google = key(Path::new("/g"), Path::new("/g/tcp_info/tcp-info-last.pkt"));
        let linux = key(
            Path::new("/l"),
            Path::new("/l/tcp_tcp_info_tcp-info-last.pkt"),
        );
        assert_eq!(google, linux);
    }

    #[test]
    fn the_most_specific_line_counts() {
        let expectations = parse("a_* n/a another subject\na_b pass\n").unwrap();
        assert_eq!(lookup(&expectations, "a_b").unwrap().outcome, Outcome::Pass);
        assert_eq!(
            lookup(&expectations, "a_c").unwrap().reason,
            "another subject"
        );
        assert!(parse("a differs").is_err());
    }
}
