//! The offload path against kernel TCP between the same two network namespaces:
//! `make bench-offload`.
//!
//! ```text
//!   near ── v0 ══ veth ══ v1 ── far         the kernel's path
//!   near ── engine ══ TAP ══ toe0 ── far    the engine's, over a device of its own
//!   near ── engine ── v0 ══ veth ══ v1 ── far    or by a packet socket over the kernel's veth
//!   near ── engine ── x0 ══ veth ══ x1 ── far    or by AF_XDP over a veth of its own
//! ```
//!
//! The arms of a row run in turn, in the same minutes, against the same kernel at the far end. The
//! kernel's arm runs twice, for the noise floor. Ratios are computed between runs that are adjacent
//! in time. CPU time is that of all cores, and that of each program as the kernel accounts it.

mod account;
mod load;
mod network;
mod path;
pub(crate) mod paths;
pub(crate) mod switches;
mod table;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::load::{Arm, Sample, Scene};
use self::network::Network;
use self::table::Row;
use crate::target;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// iperf3, from the near end or to it.
    Bulk { to_near: bool },
    /// redis-benchmark GET of three bytes with this many clients; the server is at the near or at
    /// the far end.
    Requests { clients: u32, near_serves: bool },
    /// As `Requests` with fifty clients, which make a connection for each.
    Connections { near_serves: bool },
}

/// The kind of the engine's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Tap,
    Packet,
    Xdp,
}

const LINKS: [(&str, Link); 3] = [
    ("tap", Link::Tap),
    ("packet", Link::Packet),
    ("xdp", Link::Xdp),
];

/// One comparison.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) work: Work,
    /// Whether links cut and gather segments (TSO, GRO; LSO, LRO), on both paths.
    pub(crate) large: bool,
    pub(crate) link: Link,
}

const BULK: [Case; 4] = [
    bulk(true, false),
    bulk(true, true),
    bulk(false, false),
    bulk(false, true),
];
const REQUESTS: [Case; 6] = [
    requests(1, true),
    requests(50, true),
    requests(1000, true),
    requests(1, false),
    requests(50, false),
    requests(1000, false),
];
const CONNECTIONS: [Case; 2] = [connections(true), connections(false)];

const fn bulk(large: bool, to_near: bool) -> Case {
    Case {
        work: Work::Bulk { to_near },
        large,
        link: Link::Tap,
    }
}

const fn requests(clients: u32, near_serves: bool) -> Case {
    Case {
        work: Work::Requests {
            clients,
            near_serves,
        },
        large: true,
        link: Link::Tap,
    }
}

const fn connections(near_serves: bool) -> Case {
    Case {
        work: Work::Connections { near_serves },
        large: true,
        link: Link::Tap,
    }
}

const USAGE: &str = "\
Usage: cargo xtask bench-offload [--rounds N] [--json FILE] [--link tap|packet|xdp]
                                 [bulk|requests|connections]

The offload path against kernel TCP between two network namespaces of its own: the kernels over a
veth; the engine over a TAP device, over that veth by a packet socket, and over another veth by
AF_XDP, or over one of them. Needs root, ip, ethtool, iperf3 and Redis (make deps). Where perf is
installed, the CPU time of the near end is also counted with receiving where it belongs. N rounds of
each row, in turns; 5 by default. FILE is written after each row; rows that it has already, of as
many rounds, are kept.";

/// Measures, prints the table, and writes the samples where asked. False when something could not
/// be measured.
pub(crate) fn run(arguments: &[String]) -> bool {
    let (mut rounds, mut file, mut only) = (5, None, None);
    let mut links = LINKS.to_vec();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--rounds" => rounds = rest.next().and_then(|n| n.parse().ok()).unwrap_or(0),
            "--json" => file = rest.next(),
            "--link" => {
                let wanted = rest.next();
                links.retain(|(name, _)| wanted.is_some_and(|wanted| wanted == name));
            }
            "bulk" | "requests" | "connections" => only = Some(argument.as_str()),
            _ => rounds = 0,
        }
    }
    if rounds == 0 || links.is_empty() {
        eprintln!("{USAGE}");
        return false;
    }
    let cases: Vec<Case> = match only {
        Some("bulk") => BULK.to_vec(),
        Some("requests") => REQUESTS.to_vec(),
        Some(_) => CONNECTIONS.to_vec(),
        None => [&BULK[..], &REQUESTS, &CONNECTIONS].concat(),
    };
    let over = |case: Case| links.iter().map(move |&(_, link)| Case { link, ..case });
    let cases: Vec<Case> = cases.into_iter().flat_map(over).collect();
    match measure(&cases, rounds, file.map(Path::new)) {
        Ok(rows) => {
            println!("\n{}", table::render(&rows));
            true
        }
        Err(reason) => {
            eprintln!("not measured: {reason}");
            false
        }
    }
}

fn measure(cases: &[Case], rounds: u32, file: Option<&Path>) -> Result<Vec<Row>, String> {
    let toehold = target().join("release/toehold");
    if !toehold.is_file() {
        return Err(format!(
            "{} is not there; run make build",
            toehold.display()
        ));
    }
    let network = Network::new()?;
    let accounts = Command::new("perf").arg("--version").output().is_ok();
    if !accounts {
        println!("perf is not installed: receiving is counted where the kernel counts it, alone");
    }
    let started = Instant::now();
    let earlier = file.and_then(|file| std::fs::read_to_string(file).ok());
    let earlier = earlier.and_then(|text| serde_json::from_str(&text).ok());
    let earlier: Value = earlier.unwrap_or(Value::Null);
    let mut rows = Vec::new();
    for (number, &case) in cases.iter().enumerate() {
        if let Some(row) = Row::kept(&earlier, case, rounds as usize) {
            rows.push(row);
            continue;
        }
        let scene = Scene::set(&toehold, &network, case)?;
        println!("[{}/{}] {}", number + 1, cases.len(), table::title(case));
        let mut row = Row::new(case);
        // The first run is slower on both paths.
        for arm in [Arm::Kernel, Arm::Engine] {
            scene.sample(arm)?;
        }
        for round in 0..rounds {
            // The first arm of a round finds the last arm's memory in the caches. So the order
            // alternates.
            let mut arms = [Arm::Kernel, Arm::Engine, Arm::Again];
            arms.rotate_left(round as usize % 3);
            if round % 2 == 1 {
                arms.reverse();
            }
            for arm in arms {
                let sample: Sample = scene.sample(arm)?;
                row.add(arm, sample);
            }
        }
        if accounts {
            for arm in [Arm::Kernel, Arm::Engine] {
                row.account(arm, scene.account(arm)?);
            }
        }
        rows.push(row);
        if let Some(file) = file {
            let report = json!({ "rounds": rounds, "rows": table::report(&rows) });
            std::fs::write(file, format!("{report:#}\n"))
                .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
    }
    println!(
        "{rounds} rounds each, {} s; congestion control of all kernels: {}.",
        started.elapsed().as_secs(),
        network::CONGESTION
    );
    Ok(rows)
}

/// A directory that only its owner can enter, as an adapter requires.
fn private_directory() -> Result<tempfile::TempDir, String> {
    let mut builder = tempfile::Builder::new();
    let builder = builder
        .prefix("toehold-")
        .permissions(Permissions::from_mode(0o700));
    let made = builder.tempdir();
    made.map_err(|error| format!("no private directory: {error}"))
}

/// Runs a command to its end; its standard output.
fn output(command: &mut Command) -> Result<String, String> {
    let done = command
        .output()
        .map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if done.status.success() {
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&done.stderr);
        Err(format!("{command:?} failed: {}", said.trim()))
    }
}

/// Waits until something holds.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        if Instant::now() > deadline {
            return Err(format!("{what}: not within ten seconds"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
