//! One run of a case: servers, client, and the output of `toehold status` meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use toehold_e2e::process::{Running, TIME_LIMIT, ending};
use toehold_e2e::{Path, Sides, Toehold, wait_until};

use crate::case::{self, Case};

/// Ports that a case may use: `PORT`, `PORT2`, ...
const PORTS: usize = 4;
/// The number of attempts: a port that was free may be taken before the server asks for it. Any
/// other reason that keeps a server from starting is a failure at once.
const STARTS_MAX: usize = 2;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The client's exit status, and everything that it wrote to its standard output.
    pub(crate) result: String,
    pub(crate) success: bool,
    /// From the client's start to its end.
    pub(crate) took: Duration,
    /// The case's connections, as `toehold status` showed them.
    pub(crate) seen: Seen,
    /// The standard errors, for a person who reads a failure.
    pub(crate) errors: String,
}

/// The connections that `toehold status` showed while the client ran.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The most connections in rings at one time.
    pub(crate) direct: usize,
    /// The reasons why others were not in rings, and the most connections for each reason.
    pub(crate) reasons: BTreeMap<String, usize>,
}

/// Runs a case once; ends everything that it started.
pub(crate) fn run(case: &Case, sides: Sides) -> Outcome {
    let mut starts = 0;
    loop {
        starts += 1;
        let ports = free_ports();
        match attempt(case, sides, &ports) {
            Ok(outcome) => return outcome,
            Err(_) if starts < STARTS_MAX && ports.iter().any(is_taken) => {}
            Err(errors) => {
                return Outcome {
                    result: "the server did not come up".to_owned(),
                    success: false,
                    took: Duration::ZERO,
                    seen: Seen::default(),
                    errors,
                };
            }
        }
    }
}

/// Whether a program listens on a port; everything that we started has ended.
fn is_taken(port: &u16) -> bool {
    let bound = TcpListener::bind(("127.0.0.1", *port));
    bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

/// As [`run`]; an error, with the programs' output, when the server does not start.
fn attempt(case: &Case, sides: Sides, ports: &[u16]) -> Result<Outcome, String> {
    let toehold = toehold(case, sides);
    let stage = |path: Path, name: &str| {
        let mut command = toehold.command(path, "bash");
        command.arg(script("stage")).arg(&case.file).arg(name);
        settle(&mut command, &toehold, ports);
        Running::start(command, name, toehold.dir())
    };
    let outcome = (|| {
        must(stage(Path::Host, "prepare"))?;
        let mut server = stage(sides.server, "server");
        let mut ready = stage(Path::Host, "ready");
        wait_until(TIME_LIMIT, || {
            ready.ended().is_some() || server.ended().is_some()
        });
        if !ready.ended().is_some_and(|status| status.success()) {
            return Err(server.outputs() + &ready.outputs());
        }
        let started = Instant::now();
        let mut client = stage(sides.client, "client");
        let (seen, status) = watch(&toehold, sides, &mut client);
        let took = started.elapsed();
        let outcome = Outcome {
            result: match status {
                Some(status) => format!("{}\n{}", ending(status), client.stdout()),
                None => format!("did not end in {} s", TIME_LIMIT.as_secs()),
            },
            success: status.is_some_and(|status| status.success()),
            took,
            seen,
            errors: client.outputs() + &server.outputs(),
        };
        server.stop();
        Ok(outcome)
    })();
    drop(toehold);
    end_strays();
    outcome
}

fn toehold(case: &Case, sides: Sides) -> Toehold {
    // A case that root runs as root needs no change of user.
    match case.user.as_deref().filter(|user| *user != "root") {
        Some(user) if sides == Sides::HOST => Toehold::absent_as(user),
        Some(user) => Toehold::start_as(user),
        None if sides == Sides::HOST => Toehold::absent(),
        None if case.becomes_others => Toehold::start_for_all_users(),
        None => Toehold::start(),
    }
}

/// The folder in which a stage runs, and its environment.
fn settle(command: &mut Command, toehold: &Toehold, ports: &[u16]) {
    let (program, library) = toehold.files();
    command
        .current_dir(toehold.dir())
        .env("HOME", toehold.dir())
        .env("BUILT", case::built())
        .env("TOEHOLD", program)
        .env("TOEHOLD_LIB", library);
    for (at, port) in ports.iter().enumerate() {
        let name = match at {
            0 => "PORT".to_owned(),
            _ => format!("PORT{}", at + 1),
        };
        command.env(name, port.to_string());
    }
    // These variables are Cargo's, and must not reach the programs under test.
    command
        .env_remove("LD_LIBRARY_PATH")
        .env("LC_ALL", "C.UTF-8");
}

/// Waits for a stage that must succeed.
fn must(mut stage: Running) -> Result<(), String> {
    match stage.wait(TIME_LIMIT) {
        Some(status) if status.success() => Ok(()),
        _ => Err(stage.outputs()),
    }
}

/// Waits for the client and meanwhile records the state of its connections.
fn watch(toehold: &Toehold, sides: Sides, client: &mut Running) -> (Seen, Option<ExitStatus>) {
    if !sides.pair_up() {
        return (Seen::default(), client.wait(TIME_LIMIT));
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            let mut seen = Seen::default();
            while !done.load(Ordering::Relaxed) {
                seen.look(toehold);
                std::thread::sleep(LOOK_AGAIN);
            }
            seen
        });
        let status = client.wait(TIME_LIMIT);
        done.store(true, Ordering::Relaxed);
        (looker.join().expect("it only looks"), status)
    })
}

impl Seen {
    fn look(&mut self, toehold: &Toehold) {
        let connections = toehold.connections();
        let mut now: BTreeMap<String, usize> = BTreeMap::new();
        let mut direct = 0;
        for connection in &connections {
            match connection.value["reason"].as_str() {
                _ if connection.is_direct() => direct += 1,
                Some(reason) if !reason.is_empty() => {
                    *now.entry(reason.to_owned()).or_default() += 1;
                }
                _ => {}
            }
        }
        self.direct = self.direct.max(direct);
        for (reason, count) in now {
            let most = self.reasons.entry(reason).or_default();
            *most = count.max(*most);
        }
    }
}

/// Daemons leave the process group in which they were started. By then they are our children (see
/// `adopt_strays`).
fn end_strays() {
    loop {
        let children = format!("/proc/self/task/{}/children", std::process::id());
        let children = fs::read_to_string(children).unwrap_or_default();
        let mut children = children.split_whitespace().peekable();
        if children.peek().is_none() {
            return;
        }
        for pid in children.filter_map(|pid| pid.parse().ok()) {
            // SAFETY: no pointers but to a local. They are children of ours that nobody has waited
            // for, so the numbers are theirs.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// Makes orphans among our descendants our children.
pub(crate) fn adopt_strays() {
    // SAFETY: takes numbers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

fn free_ports() -> Vec<u16> {
    let bind = || TcpListener::bind("127.0.0.1:0").expect("the loopback interface has ports");
    let held: Vec<TcpListener> = (0..PORTS).map(|_| bind()).collect();
    let port = |listener: &TcpListener| listener.local_addr().expect("it is bound").port();
    held.iter().map(port).collect()
}

fn script(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(name)
}
