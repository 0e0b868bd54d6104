//! `toehold status`: am I accelerated, and if not, why not?

mod answer;
mod bare;
mod count;
mod engine;
pub(crate) mod explain;
mod express;
mod flow;
pub(crate) mod metrics;
mod table;

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::Value;
use toehold_adapter::client::{self, ClientError};
use toehold_adapter::unserved::{Found, Search};

use crate::failure::Failure;
use crate::meeting::Meeting;
use crate::options::AdapterChoice;
use crate::output::print;
pub(crate) use answer::{Engine, Process, Status};
use table::{Earlier, View};

/// Options of `toehold status`.
#[derive(Args, Debug)]
#[command(after_help = COLUMNS)]
pub(crate) struct StatusArgs {
    /// Print the adapter's whole answer as JSON
    #[arg(long, conflicts_with_all = ["watch", "program", "path", "sort", "counters", "all"])]
    json: bool,

    /// Only this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// Only programs whose name contains this
    #[arg(long, value_name = "NAME", value_hint = clap::ValueHint::CommandName)]
    program: Option<String>,

    /// Only connections on this path
    #[arg(long, value_name = "PATH")]
    path: Option<PathShown>,

    /// Order of the connections of a program
    #[arg(long, value_name = "KEY", default_value = "fd")]
    sort: SortKey,

    /// Show the counters of each connection too
    #[arg(long)]
    counters: bool,

    /// Show every socket: also those that are not connected, and more than 20 of a program
    #[arg(long)]
    all: bool,

    /// Repeat at this interval (2 seconds without a number), with rates; ^C ends it
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    watch: Option<u32>,

    /// Which adapter is asked
    #[arg(long, value_enum, default_value = "auto", value_name = "WHOSE")]
    #[arg(conflicts_with = "runtime_dir")]
    adapter: AdapterChoice,

    /// The adapter's runtime directory
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    runtime_dir: Option<PathBuf>,
}

/// Which connections are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PathShown {
    /// Shared memory in at least one direction
    Direct,
    /// The adapter's engine
    Offload,
    /// Kernel TCP
    Host,
    /// No connection at the moment: a carrier that waits for the next one
    Parked,
}

impl PathShown {
    /// The adapter's word for it.
    fn word(self) -> &'static str {
        match self {
            PathShown::Direct => "direct",
            PathShown::Offload => "offload",
            PathShown::Host => "host",
            PathShown::Parked => "parked",
        }
    }
}

/// The key that sorts a program's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SortKey {
    /// The descriptor's number
    Fd,
    /// The bytes that it carried, the most first
    Bytes,
    /// The remote address
    Remote,
}

const COLUMNS: &str = "\
Columns:
  path        direct (shared memory), host (kernel TCP), offload (the adapter's engine), parked
              (a carrier that waits for its next connection: --express); sending/receiving where
              the two differ
  rings       bytes through shared memory, both directions together
  kernel      bytes through the kernel, both directions together
  why         the reason, for a connection on the host path; how many connections a parked
              carrier has served
With --watch:
  rings/s, kernel/s   bytes in a second since the last look
With --counters:
  up, down    times the connection moved to a ring, and back
  rung        wake-ups sent to the other end
  quiet       wake-ups that were not needed, because the other end was awake
  woken       times the program was woken
  spins       waits that ended without sleeping, of those that tried
  saved       system calls avoided
  below the program's name, the reasons why its connections did not use carriers again
  (--express); below an offloaded connection, its congestion control, round trip and windows

Without an adapter, status reads the connection tables of the programs that this user may inspect.
Exit status: 0, or 1 when no adapter answers.";

/// Asks and prints.
pub(crate) fn run(args: &StatusArgs) -> Result<(), Failure> {
    let meeting = Meeting::to_look_at(args.runtime_dir.as_deref(), args.adapter);
    let dir = meeting.dir();
    if args.json {
        let (report, missing) = report(dir)?;
        print(json(report, args.pid))?;
        return missing.map_or(Ok(()), Err);
    }
    let Some(seconds) = args.watch else {
        let (report, missing) = report(dir)?;
        print(table::render(&understood(report)?, &view(args, None)))?;
        return missing.map_or(Ok(()), Err);
    };
    watch(dir, args, Duration::from_secs(seconds.into()))
}

/// Prints again and again, until the reader or the adapter is gone.
fn watch(dir: &Path, args: &StatusArgs, period: Duration) -> Result<(), Failure> {
    let mut earlier: Option<(Instant, Earlier)> = None;
    loop {
        let (report, missing) = report(dir)?;
        if let Some(missing) = missing {
            return Err(missing);
        }
        let status = understood(report)?;
        let now = Instant::now();
        let since = earlier
            .as_ref()
            .map(|(at, earlier)| (now.duration_since(*at), earlier));
        let text = table::render(&status, &view(args, since));
        let text = if std::io::stdout().is_terminal() {
            format!("{CLEAR_SCREEN}{text}")
        } else {
            text + "\n"
        };
        if !print(&text)? {
            return Ok(());
        }
        earlier = Some((now, Earlier::of(&status)));
        thread::sleep(period);
    }
}

fn view<'a>(args: &'a StatusArgs, since: Option<(Duration, &'a Earlier)>) -> View<'a> {
    View {
        pid: args.pid,
        program: args.program.as_deref(),
        path: args.path.map(PathShown::word),
        sort: args.sort,
        counters: args.counters,
        all: args.all,
        rates: args.watch.is_some(),
        since,
    }
}

/// The adapter's answer, joined by the tables of programs that it does not know: it may have been
/// started after them. Without an adapter only the latter, and the failure to end with.
fn report(dir: &Path) -> Result<(Value, Option<Failure>), Failure> {
    let answer = client::status(dir);
    let search = Search::begin();
    let (mut report, missing) = match answer {
        Ok(json) => (answer::parse(&json)?, None),
        Err(error) => {
            let is_told_nothing = matches!(error, ClientError::NoAnswer);
            let is_gone = matches!(
                error,
                ClientError::NoAdapter(_) | ClientError::StaleSocket(_)
            );
            let failure = Failure::new(error.to_string());
            if !is_told_nothing && !is_gone {
                return Err(failure);
            }
            let found = search.find(dir, &BTreeSet::new());
            let Some(json) = &found.status else {
                return Err(failure);
            };
            let mut report: Value = answer::parse(json)?;
            tell_bare(&mut report, found, &search);
            return Ok((report, is_gone.then_some(failure)));
        }
    };
    let known = processes(&mut report)
        .iter()
        .filter_map(|process| process["pid"].as_u64()?.try_into().ok())
        .collect();
    let found = search.find(dir, &known);
    if let Some(json) = &found.status {
        let mut others: Value = answer::parse(json)?;
        let others = std::mem::take(processes(&mut others)).into_iter();
        // The adapter knows a member of their family that has connections, if one has.
        let has_connections = |process: &Value| {
            let connections = process["connections"].as_array();
            connections.is_some_and(|all| !all.is_empty())
        };
        let is_new = |process: &Value| {
            let pid = process["pid"].as_u64().and_then(|pid| pid.try_into().ok());
            pid.is_none_or(|pid| !known.contains(&pid))
        };
        let all = processes(&mut report);
        all.extend(others.filter(|one| is_new(one) && has_connections(one)));
        all.sort_by_key(|process| process["pid"].as_u64());
    }
    tell_bare(&mut report, found, &search);
    Ok((report, missing))
}

/// Adds the programs without the library, and those whose calls it does not all see. A connection
/// of these may have had more traffic than the library has counted; the adapter knows so of TCP.
fn tell_bare(report: &mut Value, found: Found, search: &Search) {
    let unseen = found.bare.iter().filter(|one| one.unpatched.is_some());
    let unseen: BTreeSet<u64> = unseen.map(|one| one.pid.into()).collect();
    let is_unseen = |process: &&mut Value| {
        let pid = process["pid"].as_u64();
        pid.is_some_and(|pid| unseen.contains(&pid))
    };
    for process in processes(report).iter_mut().filter(is_unseen) {
        let connections = process["connections"].as_array_mut();
        for one in connections.into_iter().flatten() {
            if one["reason"] == LITTLE_TRAFFIC {
                one["reason"] = LITTLE_TRAFFIC_SEEN.into();
            }
        }
    }
    let explained = bare::explained(found.bare, search);
    report["without_library"] = serde_json::to_value(explained).unwrap_or_default();
    report["not_shown"] = found.not_shown.into();
}

/// The adapter's words (`Reason::FewBytes`).
const LITTLE_TRAFFIC: &str = "too little traffic so far";
const LITTLE_TRAFFIC_SEEN: &str = "too little traffic that the library sees";

/// The list of processes in a report, made if need be.
fn processes(report: &mut Value) -> &mut Vec<Value> {
    let list = &mut report["processes"];
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    list.as_array_mut().expect("made above")
}

/// A report as this version knows it.
fn understood(report: Value) -> Result<Status, Failure> {
    serde_json::from_value(report)
        .map_err(|error| Failure::new(format!("cannot understand the adapter's answer: {error}")))
}

/// A report as it is, or the part about one process.
fn json(mut report: Value, pid: Option<u32>) -> String {
    if let Some(pid) = pid {
        for list in ["processes", "without_library"] {
            if let Some(list) = report[list].as_array_mut() {
                list.retain(|process| process["pid"].as_u64() == Some(pid.into()));
            }
        }
        return format!("{report:#}\n");
    }
    format!("{report}\n")
}

/// ECMA-48: cursor to the first place, then erase the display.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";
