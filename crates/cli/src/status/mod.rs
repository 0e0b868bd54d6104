//! `toehold status`: am I accelerated, and if not, why not?

mod answer;
mod count;
mod engine;
mod table;

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use toehold_adapter::client;

use crate::failure::Failure;
use crate::meeting::Meeting;
use crate::options::AdapterChoice;
pub(crate) use answer::Status;
use table::{Earlier, View};

/// Options of `toehold status`.
#[derive(Args, Debug)]
#[command(after_help = COLUMNS)]
pub(crate) struct StatusArgs {
    /// Print everything the adapter knows as JSON
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

    /// Repeat every so many seconds, with rates; ^C ends it
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    watch: Option<u32>,

    /// Which adapter is asked
    #[arg(long, value_enum, default_value = "auto", value_name = "WHOSE")]
    #[arg(conflicts_with = "runtime_dir")]
    adapter: AdapterChoice,

    /// Where the adapter is met
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
}

impl PathShown {
    /// How the adapter spells it.
    fn word(self) -> &'static str {
        match self {
            PathShown::Direct => "direct",
            PathShown::Offload => "offload",
            PathShown::Host => "host",
        }
    }
}

/// What a program's connections are sorted by.
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
  path        how bytes travel: direct (shared memory), host (kernel TCP), offload (the adapter's
              engine); sending/receiving where the two differ
  rings       bytes through shared memory, both directions together
  kernel      bytes through the kernel, both directions together
  why         the reason, for a connection on the host path
With --watch:
  rings/s, kernel/s   bytes in a second since the last look
With --counters:
  up, down    times the connection moved to a ring, and back
  rung        wake-ups sent to the other end
  quiet       wake-ups that were not needed, because the other end was awake
  woken       times the program was woken
  spins       waits that ended without sleeping, of those that tried
  saved       system calls avoided

Exit status: 0, or 1 when no adapter answers.";

/// Asks and prints.
pub(crate) fn run(args: &StatusArgs) -> Result<(), Failure> {
    let meeting = Meeting::of(args.runtime_dir.as_deref(), args.adapter);
    let dir = meeting.dir();
    if args.json {
        return print(&json(dir, args.pid)?).map(|_| ());
    }
    let Some(seconds) = args.watch else {
        return print(&table::render(&ask(dir)?, &view(args, None))).map(|_| ());
    };
    watch(dir, args, Duration::from_secs(seconds.into()))
}

/// Prints again and again, until the reader or the adapter is gone.
fn watch(dir: &Path, args: &StatusArgs, period: Duration) -> Result<(), Failure> {
    let mut earlier: Option<(Instant, Earlier)> = None;
    loop {
        let status = ask(dir)?;
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

/// The adapter's answer.
fn ask(dir: &Path) -> Result<Status, Failure> {
    let json = client::status(dir).map_err(|error| Failure::new(error.to_string()))?;
    answer::parse(&json)
}

/// The adapter's answer as it is, or the part about one process.
fn json(dir: &Path, pid: Option<u32>) -> Result<String, Failure> {
    let json = client::status(dir).map_err(|error| Failure::new(error.to_string()))?;
    let Some(pid) = pid else {
        return Ok(json + "\n");
    };
    let mut report: serde_json::Value = answer::parse(&json)?;
    let processes = report.get_mut("processes");
    if let Some(processes) = processes.and_then(|list| list.as_array_mut()) {
        processes.retain(|process| process["pid"].as_u64() == Some(pid.into()));
    }
    Ok(format!("{report:#}\n"))
}

/// Writes to standard output; `false` when its reader has left (`| head`), which is no failure.
fn print(text: &str) -> Result<bool, Failure> {
    let mut out = std::io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(format!("cannot write: {error}"))),
    }
}

/// ECMA-48: cursor to the first place, then erase the display.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";
