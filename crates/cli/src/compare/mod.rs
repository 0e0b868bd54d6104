//! `toehold compare`: measures whether Toehold helps a given program.
//!
//! Runs the user's own server and client on each path, round after round, and reports the
//! differences and their certainty. These rules keep the comparison honest:
//!
//! - rounds of the paths are interleaved in a shuffled, mirrored order, each with a fresh server;
//! - a ratio is the median of the ratios within rounds; it has an exact interval, and an interval
//!   that includes 1 means "no detectable difference";
//! - `--aa` runs the base path twice: any difference between the two is noise;
//! - the CPU time of *all* cores counts, kernel and helpers included, per unit of the client's
//!   work;
//! - both paths run under `toehold run`, so its start-up time counts on both sides.

mod arm;
mod connections;
mod html;
mod report;
mod round;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use tempfile::TempDir;
use toehold_adapter::client;
use toehold_measure::cpus::{self, Placement};
use toehold_measure::environment::Environment;
use toehold_measure::output::tell_line;
use toehold_measure::parse::Tool;
use toehold_measure::process::{self, Launch, Program};
use toehold_measure::ready::Ready;
use toehold_measure::syscalls::Tracepoint;
use toehold_measure::{schedule, shell, stats, text};

use self::arm::Arm;
use self::connections::ConnectionsSeen;
use self::report::{ArmReport, Plan, Report};
use self::round::{Round, Setup, Timeouts};
use crate::failure::Failure;
use crate::library;
use crate::options::{PathChoice, PinChoice, WaitChoice};
use crate::output::print;
use crate::status::Status;

/// Options of `toehold compare`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompareArgs {
    /// The server's command, quoted; it has to stay in the foreground
    #[arg(long, value_name = "COMMAND")]
    server: String,

    /// The client's command, quoted; it has to end by itself
    ///
    /// The output of redis-benchmark, iperf3 -J, sockperf, wrk, pgbench, memtier_benchmark and ab
    /// is understood; any other client is measured by its run time.
    #[arg(long, value_name = "COMMAND")]
    client: String,

    /// Measured rounds of each path
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    rounds: u32,

    /// Rounds of each path before the measured ones, not counted
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(0..=100)
    )]
    warmup: u32,

    /// Paths to compare, separated by commas [default: host,direct]; host,host shows the noise of
    /// the machine
    #[arg(
        long,
        value_name = "PATHS",
        value_enum,
        value_delimiter = ',',
        default_values = ["host", "direct"],
        hide_default_value = true
    )]
    paths: Vec<PathChoice>,

    /// When a fresh server can be measured
    ///
    /// listens: some process of the server listens on a TCP port, or for half a second on a Unix
    /// socket and on no TCP port. tcp:PORT: this port is listened on. tcp:HOST:PORT and unix:PATH:
    /// a connection succeeds. cmd:COMMAND: this command succeeds. sleep:SECONDS: this time has
    /// passed.
    #[arg(long, value_name = "PROBE", default_value = "listens")]
    ready: Ready,

    /// Settings of the adapter's TCP engine, for the offload path (see `toehold adapter --config`)
    #[arg(long, value_name = "FILE")]
    engine: Option<PathBuf>,

    /// How accelerated programs wait for bytes
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: WaitChoice,

    /// Where the two sides run: on one core, on separate halves of the cores, or anywhere
    #[arg(long, value_enum, default_value = "none")]
    pin: PinChoice,

    /// Run the base path twice in every round: smaller differences than between these two runs are
    /// noise
    #[arg(long)]
    aa: bool,

    /// Longest time a client may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = bound())]
    timeout: u64,

    /// Longest time a server may take to be ready, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = bound())]
    ready_timeout: u64,

    /// Seed of the rounds' order and of the intervals
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Leave out the extra round of each path in which system calls are counted
    #[arg(long)]
    no_syscalls: bool,

    /// Print all measurements as JSON instead of the table
    #[arg(long)]
    json: bool,

    /// Write a self-contained page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  Redis, 50 clients:
    toehold compare --server 'redis-server --port 7000 --save \"\"' \\
                    --client 'redis-benchmark -p 7000 -t get -n 500000 -c 50 --csv'
  Bulk transfer, with plots:
    toehold compare --server 'iperf3 -s -p 7001' --client 'iperf3 -c 127.0.0.1 -p 7001 -t 3 -J' \\
                    --html report.html
  A network, by the kernel and by the adapter's engine:
    toehold compare --paths host,offload --engine engine.conf --ready sleep:1 \\
                    --server 'ip netns exec far iperf3 -s' \\
                    --client 'iperf3 -c 10.84.0.1 -t 3 -J'
  How noisy is this machine?
    toehold compare --paths host,host --server ... --client ...

Ratios are medians of those within rounds, against kernel TCP (the host path). An interval that
includes 1 is reported as \"no detectable difference\". With fewer than six rounds there is no 95 %
interval: the report shows the least and the greatest ratio, and a difference only between paths
whose results do not overlap.

^C ends the comparison early, with a report about the rounds that every path has finished.

Exit status: 0 when every round succeeded, 1 when one failed or after ^C, 2 for a wrong command
line.";

/// The values of a bound on waiting, in seconds.
fn bound() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=BOUND_SECONDS_MAX)
}

/// Runs the comparison and prints its report.
pub(crate) fn run(args: &CompareArgs) -> Result<(), Failure> {
    let placement = Placement::new(args.pin.pin(), &cpus::allowed())
        .ok_or_else(|| Failure::usage("--pin split needs two cores; this process may use one"))?;
    for (option, command) in [("--server", &args.server), ("--client", &args.client)] {
        if command.trim().is_empty() {
            return Err(Failure::usage(format!(
                "{option} is empty; quote a command"
            )));
        }
    }
    let arms = arm::arms(&args.paths, args.aa);
    let offloads = arms.iter().any(|arm| arm.path == PathChoice::Offload);
    if offloads && args.engine.is_none() {
        return Err(Failure::usage(
            "the offload path needs an engine: give its settings with --engine FILE",
        ));
    }
    let accelerated = arms.iter().any(|arm| arm.path != PathChoice::Host);
    if accelerated {
        // Without the library every path would silently be the host path, and the report would be
        // wrong.
        library::find().map_err(|error| Failure::new(error.to_string()))?;
    }
    if let Some(path) = &args.html {
        check_writable(path).map_err(|error| cannot_write(path, &error))?;
    }
    process::take_charge();
    let scratch = scratch_directory()?;
    let environment = Environment::capture();
    let mut setup = setup(args, placement, &scratch)?;
    if accelerated {
        setup.adapter = Some(start_adapter(&setup, args.engine.as_deref())?);
    }
    let report = Comparison {
        args,
        arms: &arms,
        setup: &setup,
        environment,
    }
    .run()?;
    publish(args, &report)?;
    if let Some(interruption) = &report.interruption {
        let rounds = report.plan.rounds;
        return Err(Failure::new(format!(
            "{interruption}; the report is about the rounds that every path has finished: {rounds}"
        )));
    }
    match report
        .arms
        .iter()
        .map(|arm| arm.failures.len())
        .sum::<usize>()
    {
        0 => Ok(()),
        1 => Err(Failure::new("one round failed; see the notes")),
        failed => Err(Failure::new(format!(
            "{failed} rounds failed; see the notes"
        ))),
    }
}

/// A comparison in progress.
struct Comparison<'a> {
    args: &'a CompareArgs,
    arms: &'a [Arm],
    setup: &'a Setup,
    environment: Environment,
}

impl Comparison<'_> {
    fn run(self) -> Result<Report, Failure> {
        let mut reports: Vec<ArmReport> = self.arms.iter().map(ArmReport::new).collect();
        let interruption = self.measure(&mut reports)?;
        let rounds = reports.iter().map(|report| report.rounds.len()).min();
        let rounds = rounds.unwrap_or(0);
        if let Some(interruption) = &interruption {
            if rounds == 0 {
                return Err(Failure::new(interruption));
            }
            for report in &mut reports {
                report.rounds.truncate(rounds);
            }
        }
        let syscalls_not_counted = match interruption {
            None => self.look_closer(&mut reports),
            Some(_) => Some("the comparison was interrupted".to_owned()),
        };
        let mut warnings = self.environment.warnings();
        let commands = [&self.args.server, &self.args.client];
        if !commands
            .iter()
            .any(|command| chooses_congestion_control(command))
        {
            warnings.extend(self.environment.pacing());
        }
        warnings.extend(elsewhere(&reports));
        warnings.extend(too_short(&reports));
        if self.setup.tool.is_none() {
            warnings.push(
                "the format of the client's output is unknown, so only its run time is compared"
                    .to_owned(),
            );
        }
        Ok(Report {
            schema: report::SCHEMA,
            command: shell::own_command(),
            plan: self.plan(rounds),
            environment: self.environment,
            metrics: report::metrics(&reports, self.args.aa),
            syscalls_not_counted,
            interruption,
            warnings,
            arms: reports,
        })
    }

    /// Carries out the rounds. Returns a sentence if the user interrupted them.
    fn measure(&self, reports: &mut [ArmReport]) -> Result<Option<String>, Failure> {
        let (rounds, warmups) = (self.args.rounds as usize, self.args.warmup as usize);
        let turns = schedule::turns(self.arms.len(), warmups, rounds, self.args.seed);
        let started = Instant::now();
        for (at, turn) in turns.iter().enumerate() {
            let arm = &self.arms[turn.arm];
            let measured = self.setup.run(arm.path, None);
            if process::interrupted() {
                let all = turns.len();
                return Ok(Some(format!("interrupted after {at} of {all} runs")));
            }
            self.progress(at + 1, turns.len(), arm, &measured, started);
            let Some(_) = turn.round else {
                measured
                    .map_err(|error| Failure::new(format!("warm-up on {}: {error}", arm.label)))?;
                continue;
            };
            let report = &mut reports[turn.arm];
            match measured {
                Ok(round) => report.rounds.push(Some(round)),
                Err(error) => {
                    report.rounds.push(None);
                    report.failures.push(error);
                    if report.failures.len() >= FAILURES_MAX {
                        let first = &report.failures[0];
                        return Err(Failure::new(format!(
                            "{FAILURES_MAX} rounds on {} failed; the first: {first}",
                            arm.label
                        )));
                    }
                }
            }
        }
        Ok(None)
    }

    fn plan(&self, rounds: usize) -> Plan {
        Plan {
            server: self.args.server.clone(),
            client: self.args.client.clone(),
            client_tool: self.setup.tool.map(Tool::name),
            ready: self.args.ready.to_string(),
            wait: self.args.wait,
            pin: self.args.pin.pin(),
            placement: self.setup.placement.clone(),
            warmups: self.args.warmup as usize,
            rounds,
            seed: self.args.seed,
        }
    }

    /// One more round of each arm, in which system calls are counted and connections are listed;
    /// both would disturb a measurement. Returns the reason if calls were not counted.
    fn look_closer(&self, reports: &mut [ArmReport]) -> Option<String> {
        if self.args.no_syscalls {
            return Some(
                "--no-syscalls was given, so the paths of the connections are unknown".to_owned(),
            );
        }
        let tracepoint = Tracepoint::find();
        for (arm, report) in self.arms.iter().zip(reports) {
            let looks = tracepoint.is_ok() || arm.path != PathChoice::Host;
            if !looks || process::interrupted() {
                continue;
            }
            tell_line(format!(
                "[extra round] {}: system calls and connections",
                arm.label
            ));
            let (round, seen) = self.watched(arm, tracepoint.as_ref().ok().copied());
            report.connections = seen;
            match round {
                Ok(round) => report.counting = Some(round),
                Err(error) => {
                    return Some(format!("the extra round on {} failed: {error}", arm.label));
                }
            }
        }
        tracepoint.err()
    }

    /// A round during which the adapter is repeatedly asked for its connections. The answer with
    /// most connections counts, because connections come and go with the client.
    fn watched(
        &self,
        arm: &Arm,
        tracepoint: Option<Tracepoint>,
    ) -> (Result<Round, String>, Option<ConnectionsSeen>) {
        let runtime_dir = round::runtime_dir(&self.setup.scratch);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watcher = (arm.path != PathChoice::Host).then(|| {
                scope.spawn(|| {
                    let mut fullest: Option<ConnectionsSeen> = None;
                    // Relaxed: the flag stands for itself and publishes nothing else.
                    while !done.load(Ordering::Relaxed) {
                        if let Some(status) = Status::ask(&runtime_dir) {
                            let seen = ConnectionsSeen::of(&status);
                            if fullest
                                .as_ref()
                                .is_none_or(|best| seen.rank() >= best.rank())
                            {
                                fullest = Some(seen);
                            }
                        }
                        thread::sleep(LOOK_INTERVAL);
                    }
                    fullest
                })
            });
            let round = self.setup.run(arm.path, tracepoint);
            done.store(true, Ordering::Relaxed);
            (
                round,
                watcher.and_then(|watcher| watcher.join().ok().flatten()),
            )
        })
    }

    fn progress(
        &self,
        done: usize,
        all: usize,
        arm: &Arm,
        round: &Result<Round, String>,
        started: Instant,
    ) {
        let left = started.elapsed().as_secs_f64() / done as f64 * (all - done) as f64;
        let outcome = match round {
            Ok(round) => {
                let results = round.results();
                let first = results.first();
                first.map_or(String::new(), |metric| {
                    format!(
                        "{} {} {}",
                        metric.name,
                        text::prefixed(metric.value),
                        metric.unit
                    )
                })
            }
            // The output of the programs, which follows, is printed once: at the end.
            Err(error) => {
                let first = error.lines().next().unwrap_or_default();
                format!("failed: {}", first.trim_end_matches([':', ';']))
            }
        };
        tell_line(format!(
            "[{done}/{all}] {}: {outcome} (about {left:.0} s left)",
            arm.label
        ));
    }
}

/// Whether a command line selects a congestion control: iperf3 does with -C.
fn chooses_congestion_control(command: &str) -> bool {
    let mut words = command.split_whitespace();
    words.any(|word| matches!(word, "-C" | "--congestion") || word.starts_with("--congestion="))
}

/// A sentence about the CPU time that other programs used meanwhile, if it is significant.
fn elsewhere(reports: &[ArmReport]) -> Option<String> {
    let rounds = reports
        .iter()
        .flat_map(|report| report.rounds.iter().flatten());
    let cores: Vec<f64> = rounds.map(Round::cores_elsewhere).collect();
    let median = stats::summarize(&cores)?.median;
    (median > CORES_ELSEWHERE_QUIET).then(|| {
        format!(
            "other programs kept {median:.2} cores busy during the rounds; their time is within \
             \"CPU, all cores\""
        )
    })
}

/// Warns when rounds are too short for the resolution of CPU times.
fn too_short(reports: &[ArmReport]) -> Option<String> {
    let rounds = reports
        .iter()
        .flat_map(|report| report.rounds.iter().flatten());
    let seconds: Vec<f64> = rounds.map(|round| round.seconds).collect();
    let median = stats::summarize(&seconds)?.median;
    (median < SECONDS_SHORT).then(|| {
        format!(
            "a round took {} s: CPU times of all cores come in steps of 0.01 s, and mean little \
             in rounds of less than {SECONDS_SHORT} s",
            text::prefixed(median)
        )
    })
}

fn setup(args: &CompareArgs, placement: Placement, scratch: &TempDir) -> Result<Setup, Failure> {
    let toehold = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program's own file: {error}")))?;
    let timeouts = Timeouts {
        server: Duration::from_secs(args.ready_timeout),
        client: Duration::from_secs(args.timeout),
    };
    Ok(Setup {
        toehold,
        server: shell::words(&args.server),
        client: shell::words(&args.client),
        client_command: args.client.clone(),
        tool: Tool::of(&args.client),
        ready: args.ready.clone(),
        wait: args.wait,
        placement,
        timeouts,
        scratch: scratch.path().to_owned(),
        adapter: None,
    })
}

/// Starts a private adapter, so that neither a busy adapter nor a missing one is measured, and so
/// that its CPU time can be attributed.
fn start_adapter(setup: &Setup, engine: Option<&Path>) -> Result<Program, Failure> {
    let runtime_dir = round::runtime_dir(&setup.scratch);
    let mut words: Vec<String> = [
        setup.toehold.to_string_lossy().into_owned(),
        "adapter".to_owned(),
        "--runtime-dir".to_owned(),
        runtime_dir.to_string_lossy().into_owned(),
    ]
    .into();
    if let Some(engine) = engine {
        words.extend(["--config".to_owned(), engine.to_string_lossy().into_owned()]);
    }
    let launch = Launch {
        words: &words,
        cores: None,
        output: setup.scratch.join("adapter"),
        tracepoint: None,
    };
    let mut adapter = Program::start(&launch)
        .map_err(|error| Failure::new(format!("cannot start the adapter: {error}")))?;
    let deadline = Instant::now() + ADAPTER_TIMEOUT;
    while let Err(error) = client::ping(&runtime_dir) {
        if let Some(ended) = adapter.poll() {
            let words = adapter.last_words();
            return Err(Failure::new(format!(
                "the adapter {}:\n  {words}",
                ended.words()
            )));
        }
        if Instant::now() >= deadline {
            return Err(Failure::new(format!("the adapter did not start: {error}")));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(adapter)
}

fn publish(args: &CompareArgs, report: &Report) -> Result<(), Failure> {
    let text = if args.json {
        let json = serde_json::to_string_pretty(report)
            .map_err(|error| Failure::new(format!("cannot write the report as JSON: {error}")))?;
        json + "\n"
    } else {
        table::render(report)
    };
    // The page is written even if the text cannot be printed.
    let printed = print(text);
    if let Some(path) = &args.html {
        fs::write(path, html::render(report)).map_err(|error| cannot_write(path, &error))?;
        tell_line(format!("the page is in {}", path.display()));
    }
    printed.map(drop)
}

/// Checks before the rounds whether a page can be written. An existing page stays until the rounds
/// are over.
fn check_writable(path: &Path) -> std::io::Result<()> {
    let was_there = path.exists();
    fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)?;
    match was_there {
        true => Ok(()),
        false => fs::remove_file(path),
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot write {}: {error}", path.display()))
}

/// A private directory for outputs and for the adapter, removed at the end.
fn scratch_directory() -> Result<TempDir, Failure> {
    tempfile::Builder::new()
        .prefix("toehold-compare-")
        .tempdir()
        .map_err(|error| Failure::new(format!("cannot create a temporary directory: {error}")))
}

/// A year. Much longer times cannot be added to the present one.
const BOUND_SECONDS_MAX: u64 = 366 * 86_400;

/// Number of failures of one arm after which the comparison is given up.
const FAILURES_MAX: usize = 3;

/// The services of an idle system use less than this: a twentieth of a core.
const CORES_ELSEWHERE_QUIET: f64 = 0.05;

/// In a shorter round, one step of the CPU clock is more than 2 % of one core.
const SECONDS_SHORT: f64 = 0.5;

/// The interval at which connections are listed in the extra round.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

const ADAPTER_TIMEOUT: Duration = Duration::from_secs(5);
