//! `toehold status`: am I accelerated, and if not, why not?

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use toehold_adapter::{client, runtime_dir};

use crate::failure::Failure;

/// Options of `toehold status`.
#[derive(Args, Debug)]
#[command(after_help = COLUMNS)]
pub(crate) struct StatusArgs {
    /// Print everything the adapter knows as JSON
    #[arg(long)]
    json: bool,

    /// Only this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// Where the adapter is met
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const COLUMNS: &str = "\
Columns:
  path         how bytes travel: direct (shared memory), host (kernel TCP), offload (the adapter's
               engine); sending/receiving where the two differ
  fast, host   bytes through rings and through the kernel, both directions together
  up/down      times the connection moved to a ring and back
  bells        wake-ups sent to the other end, and those that were not needed
  wakes        times the program was woken
  spins        waits that ended without sleeping, of those that tried
  saved        system calls avoided
  why          the reason, for a connection on the host path";

/// Asks and prints.
pub(crate) fn run(args: &StatusArgs) -> Result<(), Failure> {
    let dir = args
        .runtime_dir
        .clone()
        .unwrap_or_else(runtime_dir::default_path);
    let json = client::status(&dir).map_err(|error| Failure::new(error.to_string()))?;
    let text = if args.json && args.pid.is_none() {
        json + "\n"
    } else if args.json {
        let mut report: serde_json::Value = parse(&json)?;
        if let Some(processes) = report
            .get_mut("processes")
            .and_then(|list| list.as_array_mut())
        {
            processes.retain(|process| process["pid"].as_u64() == args.pid.map(u64::from));
        }
        format!("{report:#}\n")
    } else {
        let mut status: Status = parse(&json)?;
        status
            .processes
            .retain(|process| args.pid.is_none_or(|pid| process.pid == pid));
        render(&status)
    };
    // A reader that left early (`| head`) is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// The adapter's answer, or as much of it as this version knows.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Status {
    /// Processes that use the library.
    #[serde(default)]
    pub(crate) processes: Vec<Process>,
    /// The adapter's TCP engine, where it has one.
    #[serde(default)]
    pub(crate) engine: Option<Engine>,
    /// Why there is none, where one was wanted.
    #[serde(default)]
    pub(crate) no_engine: Option<String>,
}

/// What the TCP engine has done.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Engine {
    link: String,
    link_manner: Option<String>,
    addresses: Vec<String>,
    mtu: u64,
    connections: u64,
    listeners: u64,
    listeners_refused: u64,
    listeners_of_one_max: u64,
    listeners_max: u64,
    segments_received: u64,
    segments_sent: u64,
    bytes_received: u64,
    bytes_sent: u64,
    retransmissions: u64,
    frames_malformed: u64,
    frames_malformed_by_reason: BTreeMap<String, u64>,
    frames_passed_on: u64,
    frames_lost: u64,
    link_gone: bool,
    threads: Vec<Engine>,
}

/// One process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Process {
    pid: u32,
    program: String,
    uid: u32,
    wait: String,
    /// Its connections.
    pub(crate) connections: Vec<Connection>,
}

/// One connection.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Connection {
    fd: i64,
    local: String,
    remote: String,
    /// How its bytes travel.
    pub(crate) path: String,
    tx_path: String,
    rx_path: String,
    /// Why it is on the host path.
    pub(crate) reason: String,
    bytes_host_tx: u64,
    bytes_host_rx: u64,
    bytes_ring_tx: u64,
    bytes_ring_rx: u64,
    upgrades: u64,
    downgrades: u64,
    doorbells_rung: u64,
    doorbells_suppressed: u64,
    wakeups: u64,
    spins_paid: u64,
    spins_failed: u64,
    syscalls_avoided: u64,
}

impl Status {
    /// Asks the adapter of a runtime directory; `None` when there is no usable answer.
    pub(crate) fn ask(runtime_dir: &std::path::Path) -> Option<Status> {
        serde_json::from_str(&client::status(runtime_dir).ok()?).ok()
    }
}

fn parse<T: serde::de::DeserializeOwned>(json: &str) -> Result<T, Failure> {
    serde_json::from_str(json)
        .map_err(|error| Failure::new(format!("the adapter's answer is not understood: {error}")))
}

fn render(status: &Status) -> String {
    let mut out = status.engine.as_ref().map_or(String::new(), engine_lines);
    if let Some(why) = &status.no_engine {
        let _ = writeln!(out, "no TCP engine: {why}");
    }
    if status.processes.is_empty() {
        out.push_str("no accelerated program is running; start one with: toehold run -- PROGRAM\n");
        return out;
    }
    for process in &status.processes {
        let _ = writeln!(out, "{}", heading(process));
        if process.connections.is_empty() {
            continue;
        }
        let mut rows = vec![TITLES.map(str::to_owned)];
        rows.extend(process.connections.iter().map(cells));
        out.push_str(&columns(&rows));
    }
    out
}

fn engine_lines(engine: &Engine) -> String {
    let mut out = format!(
        "TCP engine on {} ({}), MTU {}: {} connections, {} listeners\n  \
         in {}B ({} segments), out {}B ({} segments), {} retransmitted, {} malformed frames\n",
        engine.link,
        engine.addresses.join(", "),
        engine.mtu,
        engine.connections,
        engine.listeners,
        count(engine.bytes_received),
        count(engine.segments_received),
        count(engine.bytes_sent),
        count(engine.segments_sent),
        engine.retransmissions,
        engine.frames_malformed,
    );
    if !engine.frames_malformed_by_reason.is_empty() {
        let reasons = engine.frames_malformed_by_reason.iter();
        let reasons = reasons.map(|(reason, number)| format!("{} {reason}", count(*number)));
        let _ = writeln!(
            out,
            "  malformed: {}",
            reasons.collect::<Vec<_>>().join(", ")
        );
    }
    if let Some(manner) = &engine.link_manner {
        let _ = writeln!(out, "  AF_XDP {manner}");
    }
    if engine.link_gone {
        out.push_str("  its interface does not exist; it is opened when it comes back\n");
    }
    if engine.frames_lost > 0 {
        let lost = count(engine.frames_lost);
        let _ = writeln!(out, "  {lost} frames lost, for want of room to keep them");
    }
    if engine.listeners_refused > 0 {
        let _ = writeln!(
            out,
            "  {} listeners are the kernel's alone: one program may have {} here, and all \
            together {}",
            count(engine.listeners_refused),
            engine.listeners_of_one_max,
            engine.listeners_max,
        );
    }
    if !engine.threads.is_empty() {
        let of_each = engine.threads.iter();
        let of_each = of_each.map(|thread| thread.connections.to_string());
        let _ = writeln!(
            out,
            "  {} threads, with {} connections; {} frames passed from one to another",
            engine.threads.len(),
            of_each.collect::<Vec<_>>().join(" + "),
            count(engine.frames_passed_on),
        );
    }
    out
}

fn heading(process: &Process) -> String {
    let count = |path: &str| {
        process
            .connections
            .iter()
            .filter(|one| one.path == path)
            .count()
    };
    let counts: Vec<String> = ["direct", "offload", "host"]
        .iter()
        .filter(|path| count(path) > 0)
        .map(|path| format!("{} {path}", count(path)))
        .collect();
    let counts = if counts.is_empty() {
        "no connections".to_owned()
    } else {
        counts.join(", ")
    };
    let program = if process.program.is_empty() {
        "?"
    } else {
        &process.program
    };
    format!(
        "{program}, pid {}, user {}, wait {}: {counts}",
        process.pid, process.uid, process.wait
    )
}

const TITLES: [&str; 11] = [
    "fd",
    "local",
    "remote",
    "path",
    "fast",
    "host",
    "up/down",
    "bells",
    "wakes",
    "spins",
    "saved  why",
];

fn cells(one: &Connection) -> [String; 11] {
    let path = if one.tx_path == one.rx_path || one.tx_path.is_empty() {
        one.path.clone()
    } else {
        format!("{}/{}", one.tx_path, one.rx_path)
    };
    let fallback = |text: &str| {
        if text.is_empty() {
            "?".to_owned()
        } else {
            text.to_owned()
        }
    };
    [
        one.fd.to_string(),
        fallback(&one.local),
        fallback(&one.remote),
        path,
        count(one.bytes_ring_tx + one.bytes_ring_rx),
        count(one.bytes_host_tx + one.bytes_host_rx),
        format!("{}/{}", count(one.upgrades), count(one.downgrades)),
        format!(
            "{} -{}",
            count(one.doorbells_rung),
            count(one.doorbells_suppressed)
        ),
        count(one.wakeups),
        format!(
            "{}/{}",
            count(one.spins_paid),
            count(one.spins_paid + one.spins_failed)
        ),
        format!("{}  {}", count(one.syscalls_avoided), one.reason),
    ]
}

/// Pads every column to its widest cell.
fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let width = rows
                .iter()
                .map(|row| row[at].chars().count())
                .max()
                .unwrap_or(0);
            let _ = write!(line, "  {cell:<width$}");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A count in at most five characters: `999`, `12.3k`, `4.56M`.
fn count(value: u64) -> String {
    let value = value as f64;
    for (unit, letter) in [(1e12, 'T'), (1e9, 'G'), (1e6, 'M'), (1e3, 'k')] {
        // Rounding may carry into the next unit: 999.95 k is 1.00 M.
        if value >= unit * 0.9995 && value >= 1000.0 {
            let scaled = value / unit;
            let digits = if scaled < 9.995 {
                2
            } else if scaled < 99.95 {
                1
            } else {
                0
            };
            return format!("{scaled:.digits$}{letter}");
        }
    }
    format!("{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"{"processes":[{"pid":7,"program":"redis-server","uid":5,
"wait":"adaptive",
        "a_later_version_s_field":1,"connections":[
        {"fd":9,"local":"127.0.0.1:6379","remote":"127.0.0.1:40000","path":"direct",
"tx_path":"direct",
         "rx_path":"host","reason":"","bytes_ring_tx":1500000,"bytes_host_rx":12,"upgrades":1,
         "doorbells_rung":3,"doorbells_suppressed":4000},
        {"fd":10,"path":"host","reason":"no partner"}]}]}"#;

    #[test]
    fn connections_stand_below_their_process_with_the_reason() {
        let text = render(&parse(ANSWER).expect("an answer"));
        assert!(
            text.starts_with("redis-server, pid 7, user 5, wait adaptive: 1 direct, 1 host\n"),
            "{text}"
        );
        assert!(
            text.contains("direct/host") && text.contains("1.50M") && text.contains("3 -4.00k"),
            "{text}"
        );
        assert!(text.contains("no partner"), "{text}");
    }

    #[test]
    fn engine_stands_first() {
        let answer = r#"{"engine":{"link":"xdp:eth0","link_manner":"in the driver, zero copy",
"addresses":["10.84.0.2"],"mtu":1500,
            "bytes_received":1500000,"frames_passed_on":12,"listeners_refused":3,
"listeners_of_one_max":1024,"listeners_max":16384,
            "threads":[{"connections":3},{"connections":4}]},"processes":[]}"#;
        let text = render(&parse(answer).expect("an answer"));
        assert!(
            text.starts_with("TCP engine on xdp:eth0 (10.84.0.2), MTU 1500"),
            "{text}"
        );
        assert!(
            text.contains("  AF_XDP in the driver, zero copy\n"),
            "{text}"
        );
        let refused = "  3 listeners are the kernel's alone: one program may have 1024 here, \
            and all together 16384\n";
        assert!(text.contains(refused), "{text}");
        assert!(
            text.contains("in 1.50MB") && text.contains("toehold run"),
            "{text}"
        );
        assert!(
            text.contains("2 threads, with 3 + 4 connections; 12 frames"),
            "{text}"
        );
    }

    #[test]
    fn a_missing_engine_is_said_with_its_reason() {
        let answer = r#"{"engine":null,"no_engine":"it needs CAP_NET_ADMIN","processes":[]}"#;
        let text = render(&parse(answer).expect("an answer"));
        assert!(
            text.starts_with("no TCP engine: it needs CAP_NET_ADMIN\n"),
            "{text}"
        );
    }

    #[test]
    fn no_program_is_said_with_what_to_do() {
        assert!(render(&Status::default()).contains("toehold run"));
    }

    #[test]
    fn nonsense_is_a_failure() {
        assert!(parse::<Status>("[1").is_err());
    }

    #[test]
    fn counts_stay_short() {
        let shown = [0, 999, 1000, 12_345, 999_499, 999_950, 4_560_000, u64::MAX].map(count);
        assert_eq!(
            shown,
            [
                "0",
                "999",
                "1.00k",
                "12.3k",
                "999k",
                "1.00M",
                "4.56M",
                "18446744T"
            ]
        );
    }
}
