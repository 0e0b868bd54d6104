//! Runs the test suites of other projects twice: unchanged, and with every connection accelerated
//! from its first call on if possible. Each difference is a fault, or is listed in [`differences`]
//! with a reason that a user would accept.
//!
//! - [`run`]: runs one test program until it ends or exceeds our time limit.
//! - [`leftovers`]: cleans up after runs that were ended by a signal.
//! - [`source`]: sources of other projects, fetched once.
//! - [`python`], [`go`], [`libuv`], [`libevent`], [`memcached`], [`redis`], [`curl`],
//!   [`postgres`], [`apache`], [`vtc`]: the selected tests of each project.
//! - [`differences`]: the accepted differences.
//! - [`table`]: prints the results, also of several runs together.

mod apache;
mod curl;
mod differences;
mod go;
mod leftovers;
mod libevent;
mod libuv;
mod memcached;
mod postgres;
mod python;
mod redis;
mod run;
mod source;
mod table;
mod vtc;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

use self::run::{Grounds, Outcome, Program, Results, Way};
use self::table::Part;
use crate::root;

/// The number of repetitions of a differing test, each way, before it is reported.
const REPEATS: usize = 4;
/// The number of a suite's programs that are reported with their times.
const SLOWEST_SHOWN: usize = 5;

/// A suite.
struct Suite {
    name: &'static str,
    about: &'static str,
    /// The number of its programs that run at one time, each in its own network. It is one if the
    /// programs share files.
    at_once: usize,
    /// The user that runs the suite's programs when root runs the suites.
    user: Option<&'static str>,
    /// Its programs; only the quick ones where the flag is set. Builds them first, if necessary.
    programs: fn(is_quick: bool) -> Result<Vec<Program>, String>,
}

/// All suites, in starting order: long suites first.
const SUITES: [Suite; 12] = [
    Suite {
        name: "python",
        about: "CPython 3.11: sockets, selectors, TLS, internet protocols, processes",
        at_once: 3,
        user: None,
        programs: python::programs,
    },
    Suite {
        name: "asyncio",
        about: "CPython 3.11: all of test_asyncio",
        at_once: 3,
        user: None,
        programs: python::asyncio,
    },
    Suite {
        name: "curl",
        about: "curl: the tool and its library, against servers of its own",
        at_once: 1,
        user: None,
        programs: curl::programs,
    },
    Suite {
        name: "varnish",
        about: "Varnish: its own tests, and those of its modules",
        at_once: 3,
        // When root starts a server, the server gives its connections to workers of another user.
        // These workers may not pair with connections of root.
        user: Some("varnish"),
        programs: vtc::varnish,
    },
    Suite {
        name: "apache",
        about: "Apache httpd: its Perl tests, with every module that Debian has",
        at_once: 2,
        // As for Varnish.
        user: Some("www-data"),
        programs: apache::programs,
    },
    Suite {
        name: "haproxy",
        about: "HAProxy's tests, run by varnishtest",
        at_once: 3,
        user: None,
        programs: vtc::haproxy,
    },
    Suite {
        name: "go",
        about: "Go's standard library: sockets, HTTP, TLS, the poller",
        at_once: 2,
        user: None,
        programs: go::programs,
    },
    Suite {
        name: "postgres",
        about: "PostgreSQL 15: regression and isolation tests, over TCP",
        at_once: 2,
        user: Some("postgres"),
        programs: postgres::programs,
    },
    Suite {
        name: "memcached",
        about: "memcached: its Perl tests, over TCP",
        at_once: 2,
        user: None,
        programs: memcached::programs,
    },
    Suite {
        name: "libuv",
        about: "libuv: each of its tests in a process of its own",
        at_once: 1,
        user: None,
        programs: libuv::programs,
    },
    Suite {
        name: "libevent",
        about: "libevent's regress, over epoll, poll and select",
        at_once: 4,
        user: None,
        programs: libevent::programs,
    },
    Suite {
        name: "redis",
        about: "Redis: units, replication, cluster and sentinel, by its Tcl client",
        at_once: 3,
        user: None,
        programs: redis::programs,
    },
];

/// The result of a suite.
struct Row {
    suite: &'static str,
    plain: Results,
    accelerated: Results,
    /// Each test whose result differed under Toehold, every time that the test passed on the
    /// kernel.
    differences: Vec<Difference>,
    /// Tests whose results on the kernel vary.
    unsteady: Vec<String>,
    seconds: f64,
}

struct Difference {
    test: String,
    plain: Outcome,
    accelerated: Outcome,
    /// The number of runs under Toehold that did not pass.
    bad: usize,
    runs: usize,
    accepted: Option<&'static str>,
}

/// Runs the suites named, or all; true when no difference is unexplained and every suite had
/// connections in shared memory.
pub(crate) fn run(arguments: &[String]) -> bool {
    let value = |option: &str| {
        let at = arguments.iter().position(|argument| argument == option)?;
        arguments.get(at + 1)
    };
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let only = value("--only").map(String::as_str);
    let part = match value("--part").map(|part| part.parse::<Part>()) {
        None => None,
        Some(Ok(part)) => Some(part),
        Some(Err(why)) => {
            eprintln!("--part: {why}");
            return false;
        }
    };
    if value("--merge").is_some() && (is_quick || only.is_some()) {
        eprintln!("--merge takes whole suites or parts by --part, not --only and --quick");
        return false;
    }
    let mut named: Vec<&str> = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" | "--merge" | "--markdown" | "--only" | "--part" | "--jobs" => {
                words.next();
            }
            "--quick" => {}
            "--list" => {
                for suite in &SUITES {
                    println!("{:<10} {}", suite.name, suite.about);
                }
                return true;
            }
            name => named.push(name),
        }
    }
    if let Some(unknown) = named
        .iter()
        .find(|name| SUITES.iter().all(|suite| suite.name != **name))
    {
        eprintln!("no suite is called {unknown}; cargo xtask suites --list");
        return false;
    }
    if !is_built() {
        return false;
    }
    let jobs = match value("--jobs").map(|jobs| jobs.parse()) {
        None => thread::available_parallelism().map_or(1, usize::from),
        Some(Ok(jobs)) if jobs > 0 => jobs,
        Some(_) => {
            eprintln!("--jobs takes a number of suites that run at the same time");
            return false;
        }
    };
    let code = table::code();
    leftovers::sweep();
    leftovers::watch_signals();
    let wanted = |suite: &&Suite| named.is_empty() || named.contains(&suite.name);
    let wanted: Vec<&Suite> = SUITES.iter().filter(wanted).collect();
    let choice = Choice {
        is_quick,
        only,
        part,
    };
    let (rows, mut complete) = run_all(&wanted, jobs, choice);
    let entry = |row: &Row| table::entry(row, &code, part);
    let mut entries: Vec<Value> = rows.iter().map(entry).collect();
    if let Some(path) = value("--merge") {
        match table::merged(path, entries) {
            Ok(all) => entries = all,
            Err(why) => {
                eprintln!("{path}: {why}");
                return false;
            }
        }
    }
    let text = table::markdown(&entries);
    println!("{text}");
    if let Some(path) = value("--markdown") {
        complete &= write(path, &text);
    }
    for path in [value("--json"), value("--merge")].into_iter().flatten() {
        complete &= write(path, &format!("{:#}\n", json!({ "suites": entries })));
    }
    // In the test runner's format, for the closing table of a full test.
    let passed: usize = rows
        .iter()
        .map(|row| row.accelerated.count(Outcome::Passed))
        .sum();
    let faults = rows.iter().flat_map(|row| &row.differences);
    let faults = faults.filter(|one| one.accepted.is_none()).count();
    let is_good = complete && entries.iter().all(|entry| entry["good"] == true);
    let verdict = if is_good { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {faults} failed; 0 ignored");
    is_good
}

/// The selection of a suite's programs.
#[derive(Clone, Copy)]
struct Choice<'a> {
    is_quick: bool,
    /// Only programs with this in their names.
    only: Option<&'a str>,
    part: Option<Part>,
}

impl Choice<'_> {
    fn of(self, suite: &Suite) -> Result<Vec<Program>, String> {
        let mut programs = (suite.programs)(self.is_quick)?;
        if let Some(only) = self.only {
            programs.retain(|program| program.name.contains(only));
        }
        Ok(match self.part {
            Some(part) => part.of(programs),
            None => programs,
        })
    }
}

/// Runs suites, `jobs` at a time. Returns their rows in the order of the suites, and whether all
/// could run.
fn run_all(suites: &[&Suite], jobs: usize, choice: Choice) -> (Vec<Row>, bool) {
    let queue = Mutex::new(suites.iter().enumerate());
    let done: Mutex<BTreeMap<usize, Result<Row, String>>> = Mutex::default();
    let work = || loop {
        let next = queue.lock().expect("nobody panics with it").next();
        let Some((number, suite)) = next else {
            break;
        };
        println!("{}: {}", suite.name, suite.about);
        let reserved = leftovers::reserve(suite.name).map_err(|error| error.to_string());
        let row = match reserved
            .as_ref()
            .map_err(String::clone)
            .and_then(|_| choice.of(suite))
        {
            Ok(programs) if programs.is_empty() => {
                println!("{}: nothing of it is chosen", suite.name);
                continue;
            }
            Ok(programs) => examine(suite, &programs),
            Err(why) => Err(why),
        };
        match &row {
            Ok(row) => println!("{}:\n{}", suite.name, row.details()),
            Err(why) => eprintln!("{}: {why}", suite.name),
        }
        done.lock()
            .expect("nobody panics with it")
            .insert(number, row);
    };
    thread::scope(|scope| {
        for _ in 0..jobs.min(suites.len()) {
            scope.spawn(work);
        }
    });
    let done = done.into_inner().expect("nobody panics with it");
    let complete = done.values().all(Result::is_ok);
    (done.into_values().flatten().collect(), complete)
}

fn write(path: &str, text: &str) -> bool {
    let written = fs::write(path, text);
    if let Err(error) = &written {
        eprintln!("{path}: {error}");
    }
    written.is_ok()
}

fn is_built() -> bool {
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--quiet"]);
    build.args(["-p", "toehold", "-p", "toehold-preload"]);
    let built = build.current_dir(root()).status();
    built.is_ok_and(|status| status.success())
}

/// Runs programs both ways, and repeats those that differ.
fn examine(suite: &Suite, programs: &[Program]) -> Result<Row, String> {
    let begun = Instant::now();
    let ground = Grounds::new(suite.name, suite.user, suite.at_once)?;
    let plain = ground.run(programs, Way::Plain);
    let accelerated = ground.run(programs, Way::Accelerated);
    let (mut differences, mut unsteady) = (Vec::new(), Vec::new());
    let suspects = different(&plain.outcomes, &accelerated.outcomes);
    // The programs of the differing tests, again.
    let has_suspect = |program: &&Program| {
        let prefix = format!("{}/", program.name);
        suspects
            .iter()
            .any(|test| *test == program.name || test.starts_with(&prefix))
    };
    let again: Vec<Program> = programs.iter().filter(has_suspect).cloned().collect();
    let mut repeats: [Vec<BTreeMap<String, Outcome>>; 2] = Default::default();
    for _ in 0..REPEATS {
        if again.is_empty() {
            break;
        }
        repeats[0].push(ground.run(&again, Way::Plain).outcomes);
        repeats[1].push(ground.run(&again, Way::Accelerated).outcomes);
    }
    if leftovers::is_ended() {
        return Err("a signal ended it".to_owned());
    }
    for test in suspects {
        let first = [&plain, &accelerated].map(|results| outcome(&results.outcomes, &test));
        let all = [0, 1].map(|way| {
            let later = repeats[way].iter().map(|tests| outcome(tests, &test));
            let mut all = vec![first[way]];
            all.extend(later);
            all
        });
        if all[0].iter().any(|outcome| *outcome != all[0][0]) {
            unsteady.push(test);
            continue;
        }
        let bad = all[1].iter().filter(|outcome| **outcome != first[0]);
        differences.push(Difference {
            plain: first[0],
            accelerated: first[1],
            bad: bad.count(),
            runs: all[1].len(),
            accepted: differences::reason(suite.name, &test),
            test,
        });
    }
    Ok(Row {
        suite: suite.name,
        plain,
        accelerated,
        differences,
        unsteady,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// A test without a result did not run.
fn outcome(tests: &BTreeMap<String, Outcome>, test: &str) -> Outcome {
    let missing = match test.ends_with("/to its end") {
        true => Outcome::Passed,
        false => Outcome::Failed,
    };
    tests.get(test).copied().unwrap_or(missing)
}

/// The tests with different results.
fn different(
    plain: &BTreeMap<String, Outcome>,
    accelerated: &BTreeMap<String, Outcome>,
) -> Vec<String> {
    let mut tests: Vec<&String> = plain.keys().chain(accelerated.keys()).collect();
    tests.sort();
    tests.dedup();
    tests.retain(|test| outcome(plain, test) != outcome(accelerated, test));
    tests.into_iter().cloned().collect()
}

impl Results {
    fn count(&self, of: Outcome) -> usize {
        self.outcomes
            .values()
            .filter(|outcome| **outcome == of)
            .count()
    }
}

impl Row {
    /// True when no difference is unexplained, and some connection was accelerated.
    fn is_good(&self) -> bool {
        self.accelerated.channels > 0
            && self.plain.count(Outcome::Passed) > 0
            && self.differences.iter().all(|one| one.accepted.is_some())
    }

    /// The details behind the numbers of the suite's line.
    fn details(&self) -> String {
        let mut text = String::new();
        for one in &self.differences {
            let verdict = match one.accepted {
                Some(reason) => format!("accepted: {reason}"),
                None => "FAULT".to_owned(),
            };
            let _ = writeln!(
                text,
                "  {}: plain {:?}, accelerated {:?} ({} of {} runs): {verdict}",
                one.test, one.plain, one.accelerated, one.bad, one.runs
            );
        }
        for test in &self.unsteady {
            let _ = writeln!(text, "  {test}: unsteady on the kernel, too");
        }
        let ways = [("plain", &self.plain), ("accelerated", &self.accelerated)];
        for (way, results) in ways {
            for (test, outcome) in &results.outcomes {
                if matches!(outcome, Outcome::Failed | Outcome::Hung) {
                    let _ = writeln!(text, "  {test}: {outcome:?}, {way}");
                }
            }
        }
        if self.accelerated.channels == 0 {
            text.push_str("  no connection got a channel: this row shows nothing\n");
        }
        let mut slow: Vec<_> = self.plain.seconds.iter().collect();
        slow.sort_by(|a, b| b.1.total_cmp(a.1));
        for (program, plain) in slow.into_iter().take(SLOWEST_SHOWN) {
            let accelerated = self.accelerated.seconds.get(program).unwrap_or(&0.0);
            let _ = writeln!(
                text,
                "  {program}: {plain:.0} s plain, {accelerated:.0} s accelerated"
            );
        }
        let _ = writeln!(text, "  {:.0} s in all", self.seconds);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tests(list: &[(&str, Outcome)]) -> BTreeMap<String, Outcome> {
        let owned = |(test, outcome): &(&str, Outcome)| ((*test).to_owned(), *outcome);
        list.iter().map(owned).collect()
    }

    #[test]
    fn a_test_that_did_not_come_to_run_differs() {
        let plain = tests(&[("a/1", Outcome::Passed), ("a/2", Outcome::Passed)]);
        let accelerated = tests(&[("a/1", Outcome::Passed), ("a/to its end", Outcome::Hung)]);
        assert_eq!(different(&plain, &accelerated), ["a/2", "a/to its end"]);
    }

    #[test]
    fn a_row_without_accelerated_connections_is_not_good() {
        let results = |channels| Results {
            outcomes: tests(&[("a", Outcome::Passed)]),
            upgraded: 0,
            channels,
            seconds: BTreeMap::new(),
        };
        let row = |channels| Row {
            suite: "x",
            plain: results(0),
            accelerated: results(channels),
            differences: Vec::new(),
            unsteady: Vec::new(),
            seconds: 0.0,
        };
        assert!(row(2).is_good());
        assert!(!row(0).is_good());
    }
}
