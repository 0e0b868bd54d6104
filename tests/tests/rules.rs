//! `toehold.conf`: a rule keeps some connections on the kernel, `toehold status` names the rule,
//! all other connections are accelerated, and connections follow when the rules change. Other rules
//! limit the connections in memory, or change how programs wait.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use toehold_e2e::process::copy_program;
use toehold_e2e::toehold::Path as Way;
use toehold_e2e::{Crowd, Running, Toehold, host, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_crowd");
const EXPRESS: &str = "express.py";
const TIME_LIMIT: Duration = Duration::from_secs(120);
const COUNT: usize = 10;

/// An adapter with a file of rules.
struct Ruled {
    toehold: Toehold,
    scratch: TempDir,
}

impl Ruled {
    fn start(rules: &str) -> Ruled {
        let scratch = tempfile::tempdir().expect("a directory");
        let file = scratch.path().join("toehold.conf");
        std::fs::write(&file, rules).expect("scratch");
        let file = file.to_str().expect("text").to_owned();
        let toehold = Toehold::start_in(&[], &["--rules", &file]);
        Ruled { toehold, scratch }
    }

    fn file(&self) -> PathBuf {
        self.scratch.path().join("toehold.conf")
    }

    /// Replaces the rules and has the adapter read them.
    fn change(&mut self, rules: &str) {
        std::fs::write(self.file(), rules).expect("scratch");
        self.toehold.adapter().signal(libc::SIGHUP);
    }

    fn crowd(&self, program: &Path) -> Crowd {
        let program = program.to_str().expect("text");
        Crowd::start(
            &self.toehold,
            program,
            &[&COUNT.to_string(), "light"],
            TIME_LIMIT,
        )
    }

    fn are_direct(&self, crowd: &mut Crowd) -> bool {
        let port = crowd.port();
        wait_until(TIME_LIMIT, || {
            crowd.order("around 50");
            let all = self.toehold.connections();
            let all = all.iter().filter(|one| one.has_port(port));
            all.filter(|one| one.is_direct()).count() == 2 * COUNT
        })
    }

    /// Whether all of a crowd's connections are on the kernel because of the rule on `line`.
    fn are_ruled(&self, crowd: &mut Crowd, line: usize) -> bool {
        let port = crowd.port();
        let reason = format!(
            "a rule keeps it on the kernel: {}, line {line}",
            self.file().display()
        );
        wait_until(TIME_LIMIT, || {
            crowd.order("around 50");
            let all = self.toehold.connections();
            let all = all.iter().filter(|one| one.has_port(port));
            let ruled = all.filter(|one| {
                let value = |key: &str| one.value[key].as_str() == Some("host");
                let is_host = value("path") && value("tx_path") && value("rx_path");
                is_host && one.value["reason"] == *reason
            });
            ruled.count() == 2 * COUNT
        })
    }

    /// Whether this many of a crowd's connections come to be in memory, while the others report
    /// that the first rule allows no more.
    fn are_bounded(&self, crowd: &mut Crowd, most: usize) -> bool {
        let reason = format!(
            "as many connections are in memory as a rule allows: {}, line 1",
            self.file().display()
        );
        wait_until(TIME_LIMIT, || {
            crowd.order("around 50");
            let all = self.toehold.connections();
            let (direct, others): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.is_direct());
            direct.len() == 2 * most
                && others.len() == 2 * (COUNT - most)
                && others.iter().all(|one| one.value["reason"] == *reason)
        })
    }

    /// Whether both programs of a crowd come to wait in a mode, by the rule on a line. They report
    /// the mode, and the client's blocking receives sleep or spin accordingly. A server that sleeps
    /// in `epoll_wait` is woken by the pair.
    fn waits(&self, crowd: &mut Crowd, mode: &str, line: Option<usize>) -> bool {
        let rule = line.map(|line| format!("{}, line {line}", self.file().display()));
        wait_until(TIME_LIMIT, || {
            let before = self.toehold.status();
            crowd.order("around 1");
            let after = self.toehold.status();
            let processes = after["processes"].as_array().expect("a list");
            let are_told = processes
                .iter()
                .all(|one| one["wait"] == mode && one["wait_rule"].as_str() == rule.as_deref());
            let grown = |key: &str| sum(&after, key) - sum(&before, key);
            are_told
                && match mode {
                    "poll" => grown("wakeups") == 0,
                    "event" => {
                        grown("wakeups") > 0
                            && grown("spins_failed") == 0
                            && grown("doorbells_by_pair") > 0
                    }
                    _ => true,
                }
        })
    }

    /// Connections of all programs that came by used carriers.
    fn connected(&self) -> u64 {
        let status = self.toehold.status();
        let processes = status["processes"].as_array().expect("a list");
        let counts = processes.iter().map(|one| &one["express"]["connected"]);
        counts.filter_map(serde_json::Value::as_u64).sum()
    }

    fn whereabouts(&self) -> String {
        let all = self.toehold.connections();
        let all = all.iter().map(|one| {
            let text = |key: &str| one.value[key].to_string();
            let (local, remote) = (text("local"), text("remote"));
            format!("{local} {remote} {} {}", text("path"), text("reason"))
        });
        all.collect::<Vec<_>>().join("\n")
    }
}

/// A counter of all connections together.
fn sum(status: &serde_json::Value, key: &str) -> u64 {
    sum_of(status, |_| true, key)
}

/// The sum over the connections of these processes.
fn sum_of(status: &serde_json::Value, is_meant: impl Fn(u64) -> bool, key: &str) -> u64 {
    let processes = status["processes"].as_array().expect("a list").iter();
    let meant = processes.filter(|one| one["pid"].as_u64().is_some_and(&is_meant));
    let connections = meant.flat_map(|one| one["connections"].as_array().expect("a list"));
    connections
        .map(|one| one[key].as_u64().expect("a count"))
        .sum()
}

#[test]
fn a_rule_about_a_port_keeps_its_connections_on_the_kernel_and_no_others() {
    let mut ruled = Ruled::start("");
    let mut one = ruled.crowd(PROGRAM.as_ref());
    let mut other = ruled.crowd(PROGRAM.as_ref());
    assert!(ruled.are_direct(&mut one), "{}", ruled.whereabouts());
    assert!(ruled.are_direct(&mut other), "{}", ruled.whereabouts());
    ruled.change(&format!("# by the kernel\nport {} path host\n", one.port()));
    assert!(ruled.are_ruled(&mut one, 2), "{}", ruled.whereabouts());
    assert!(ruled.are_direct(&mut other), "{}", ruled.whereabouts());
    // A wrong file changes nothing.
    ruled.change("port 0 path host\n");
    let refused = format!(
        "rules are unchanged: {}, line 1: `0` is not a port: expected",
        ruled.file().display()
    );
    let is_said = wait_until(TIME_LIMIT, || {
        ruled.toehold.adapter().stderr().contains(&refused)
    });
    assert!(is_said, "{}", ruled.toehold.adapter().outputs());
    one.order("around 200");
    assert!(ruled.are_ruled(&mut one, 2), "{}", ruled.whereabouts());
    ruled.change("");
    assert!(ruled.are_direct(&mut one), "{}", ruled.whereabouts());
    one.end();
    other.end();
}

#[test]
fn a_rule_about_a_program_holds_from_its_first_connection_and_costs_no_channel() {
    let mut ruled = Ruled::start("program audited role accepts path host\n");
    let audited = ruled.scratch.path().join("audited");
    copy_program(PROGRAM.as_ref(), &audited);
    let mut quiet = ruled.crowd(&audited);
    let mut loud = ruled.crowd(PROGRAM.as_ref());
    assert!(ruled.are_direct(&mut loud), "{}", ruled.whereabouts());
    assert!(ruled.are_ruled(&mut quiet, 1), "{}", ruled.whereabouts());
    let status = ruled.toehold.status();
    assert_eq!(status["channels_made"], COUNT, "{status}");
    // An earlier rule is an exception, for existing connections, too.
    let exception = format!("port {} path auto\n", quiet.port());
    ruled.change(&format!("{exception}program audited path host\n"));
    assert!(ruled.are_direct(&mut quiet), "{}", ruled.whereabouts());
    quiet.end();
    loud.end();
}

/// Servers name their threads, and often only the named threads use sockets.
#[test]
fn a_rule_finds_a_program_whose_threads_have_names_of_their_own() {
    let Some(python) = host::python() else {
        return;
    };
    let ruled = Ruled::start("program io-worker wait poll\nprogram python* wait event\n");
    let program = "
import ctypes, signal, socket, threading

def connect():
    PR_SET_NAME = 15
    ctypes.CDLL(None).prctl(PR_SET_NAME, b'io-worker', 0, 0, 0)
    listener = socket.create_server(('127.0.0.1', 0))
    ends.append(socket.create_connection(listener.getsockname()))
    ends.append(listener.accept()[0])

ends = []
thread = threading.Thread(target=connect)
thread.start()
thread.join()
signal.pause()
";
    let mut command = ruled.toehold.command(Way::Direct, &python);
    command.args([host::PYTHON_ALONE, "-c", program]);
    let running = Running::start(command, "named threads", ruled.scratch.path());
    let mut status = ruled.toehold.status();
    let is_listed = wait_until(TIME_LIMIT, || {
        status = ruled.toehold.status();
        status["processes"][0]["connections"].is_array()
    });
    assert!(is_listed, "{}", running.outputs());
    let name = status["processes"][0]["program"].as_str().expect("text");
    assert!(name.starts_with("python"), "{status}");
    assert_eq!(status["processes"][0]["wait"], "event", "{status}");
}

#[test]
fn a_rule_bounds_how_many_connections_are_in_memory() {
    let mut ruled = Ruled::start("program crowd max-connections 3\n");
    let mut crowd = ruled.crowd(PROGRAM.as_ref());
    for most in [3, 8, 2] {
        ruled.change(&format!("program crowd max-connections {most}\n"));
        let bounded = ruled.are_bounded(&mut crowd, most);
        assert!(bounded, "{most}: {}", ruled.whereabouts());
    }
    ruled.change("");
    assert!(ruled.are_direct(&mut crowd), "{}", ruled.whereabouts());
    crowd.end();
}

#[test]
fn a_rule_about_express_holds_without_the_option_and_ends_it() {
    let Some(python) = host::python() else {
        return;
    };
    let mut ruled = Ruled::start("program python* express on\n");
    let without = ["--express", "off"];
    let mut command = (ruled.toehold).command_with(Way::Direct, &without, &python);
    command.args(host::script(EXPRESS)).arg("ruled");
    let running = Running::start(command, "ruled", ruled.scratch.path());
    let is_used = wait_until(TIME_LIMIT, || ruled.connected() > 0);
    assert!(is_used, "{}\n{}", running.outputs(), ruled.toehold.status());
    let status = ruled.toehold.status();
    let line = format!("{}, line 1", ruled.file().display());
    assert_eq!(status["processes"][0]["express_rule"], *line, "{status}");
    ruled.change("program python* express off\n");
    let asked = || running.stdout().lines().count();
    let is_over = wait_until(TIME_LIMIT, || {
        let (connected, begun) = (ruled.connected(), asked());
        assert!(
            wait_until(TIME_LIMIT, || asked() > begun + 2),
            "{}",
            running.outputs()
        );
        ruled.connected() == connected
    });
    assert!(is_over, "{}", ruled.toehold.status());
}

#[test]
fn a_rule_about_waiting_holds_for_programs_that_run() {
    let mut ruled = Ruled::start("program another wait event\n");
    let mut crowd = ruled.crowd(PROGRAM.as_ref());
    assert!(ruled.are_direct(&mut crowd), "{}", ruled.whereabouts());
    assert!(ruled.waits(&mut crowd, "adaptive", None));
    ruled.change("program crowd wait poll\n");
    let never_sleeps = ruled.waits(&mut crowd, "poll", Some(1));
    assert!(never_sleeps, "{}", ruled.toehold.status());
    ruled.change("# for all\nwait event\nprogram crowd wait poll\n");
    let never_spins = ruled.waits(&mut crowd, "event", Some(2));
    assert!(never_spins, "{}", ruled.toehold.status());
    ruled.change("");
    assert!(ruled.waits(&mut crowd, "adaptive", None));
    crowd.end();
}

/// A `recv` in vain asks for a doorbell, because it is unknown how the program will wait. If it
/// finds other connections ready by `poll`, it is awake, and needs none.
#[test]
fn a_program_that_is_busy_with_other_connections_is_not_rung() {
    const ROUNDS: u64 = 200;
    let ruled = Ruled::start("wait event\n");
    let mut crowd = ruled.crowd(PROGRAM.as_ref());
    assert!(ruled.are_direct(&mut crowd), "{}", ruled.whereabouts());
    let server = u64::from(crowd.server.pid());
    let on_carriers = || {
        let status = ruled.toehold.status();
        let of = |key| sum_of(&status, |pid| pid == server, key);
        of("doorbells_rung") - of("doorbells_by_pair")
    };
    let before = on_carriers();
    crowd.order(&format!("beside {ROUNDS}"));
    let rung = on_carriers() - before;
    assert!(4 * rung < ROUNDS, "rung {rung} times");
    crowd.end();
}

/// Each message is announced by a doorbell, because both programs always sleep. A doorbell on the
/// carrier costs more than the pair's.
#[test]
fn programs_that_sleep_are_woken_by_the_pairs_doorbell_however_they_wait() {
    let ruled = Ruled::start("wait event\n");
    let mut crowd = ruled.crowd(PROGRAM.as_ref());
    assert!(ruled.are_direct(&mut crowd), "{}", ruled.whereabouts());
    for way in ["receive", "poll", "select", "try", "timer"] {
        crowd.order(&format!("wait {way}"));
        crowd.order("around 10");
        let before = ruled.toehold.status();
        crowd.order("around 100");
        let after = ruled.toehold.status();
        for pid in [crowd.server.pid(), crowd.client.pid()] {
            let of = |status, key: &str| sum_of(status, |one| one == u64::from(pid), key);
            let grown = |key: &str| of(&after, key) - of(&before, key);
            let (all, by_pair) = (grown("doorbells_rung"), grown("doorbells_by_pair"));
            assert!(
                2 * by_pair > all,
                "{way}: {pid} has rung {by_pair} of {all} by the pair: {after}"
            );
        }
    }
    crowd.end();
}
