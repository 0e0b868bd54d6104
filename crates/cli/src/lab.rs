//! `toehold lab`: the experiments, and the generator behind them.

mod applications;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use toehold_lab::generator::{self, Address, Arrivals, Gate, Load, Outcome, Pattern, Server};
use toehold_lab::runs::{self, Form, PlanFile, Series};
use toehold_lab::{Entry, LabError, Listed, RunRequest, catalogue, list, run_plan};
use toehold_measure::output::tell_line;
use toehold_measure::text::prefixed;

use self::applications::{FilesArgs, FilterArgs, GuardArgs, HttpArgs, PollArgs, ViewArgs};
use crate::failure::Failure;
use crate::library;
use crate::output::{print, print_json};

/// Options of `toehold lab`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct LabArgs {
    /// The lab's command
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand, Debug)]
enum LabCommand {
    /// List the experiments
    List(ListArgs),
    /// Show an experiment: its arms, its loads and its duration
    Show(ShowArgs),
    /// Carry out an experiment: conclusions, tables, and the published figures beside them
    Run(RunArgs),
    /// Finish a run that was interrupted; its finished rounds are kept
    Resume(ResumeArgs),
    /// Print the report of a run again, or write its page
    Report(ReportArgs),
    /// Show two runs of an experiment beside each other
    Compare(CompareArgs),
    /// Serve loads of `toehold lab client` until it is ended
    Server(ServerArgs),
    /// Send a load to a `toehold lab server` and print the measurements
    Client(ClientArgs),
    /// Move the bytes of a load between two threads without sockets: the limit of this machine
    Limit(LimitArgs),
    /// Request files from a web server and print the measurements
    Http(HttpArgs),
    /// Make files for servers; a seed determines sizes and bytes
    Files(FilesArgs),
    /// Poll many servers in turn, with a connection for each, and print the measurements
    Poll(PollArgs),
    /// Serve as a filter of a stream of blocks until it is ended
    Filter(FilterArgs),
    /// Request regions from the last filter of a stream and print the measurements
    View(ViewArgs),
    /// End the programs of a run that was killed; a run starts it
    #[command(hide = true)]
    Guard(GuardArgs),
}

#[derive(Args, Debug)]
#[command(after_help = LIST_EXAMPLES)]
struct ListArgs {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = RUN_EXAMPLES)]
struct RunArgs {
    /// The experiment: a name of `toehold lab list`, or a plan of your own, PATH.toml
    plan: String,

    /// Rounds: how often each case is sampled, in changing order [default: those of the plan, which
    /// `toehold lab show` shows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,

    /// Print the plan and its estimated duration, and run nothing
    #[arg(long)]
    dry_run: bool,

    /// Fewer rounds and points: a trial of the plan, not a result to quote
    #[arg(long)]
    quick: bool,

    /// Print the whole report as JSON instead of the tables
    #[arg(long)]
    json: bool,

    /// Print every sample as a line of CSV instead of the tables
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Keep the run and its page in this directory (else below $XDG_STATE_HOME/toehold/lab)
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    out: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct ShowArgs {
    /// The experiment: a name of `toehold lab list`, or a plan of your own, PATH.toml
    plan: String,

    /// Print the plan as JSON, with the keys of its file
    #[arg(long)]
    json: bool,
}

/// The format in which a run is printed.
#[derive(Args, Debug)]
struct OutputArgs {
    /// Print the run as JSON instead of the tables
    #[arg(long)]
    json: bool,

    /// Print every sample as a line of CSV instead of the tables
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

impl OutputArgs {
    fn form(&self) -> Form {
        form(self.json, self.csv)
    }
}

#[derive(Args, Debug)]
struct ResumeArgs {
    /// The run's directory
    #[arg(value_hint = clap::ValueHint::DirPath)]
    run: PathBuf,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct ReportArgs {
    /// The run's directory, finished or not
    #[arg(value_hint = clap::ValueHint::DirPath)]
    run: PathBuf,

    #[command(flatten)]
    output: OutputArgs,

    /// Write the self-contained page there
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct CompareArgs {
    /// The directory of the first run
    #[arg(value_hint = clap::ValueHint::DirPath)]
    a: PathBuf,

    /// The directory of the second run
    #[arg(value_hint = clap::ValueHint::DirPath)]
    b: PathBuf,

    /// Compare runs of different machines, too
    #[arg(long)]
    any_machine: bool,

    /// Print both medians of every point and arm as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ServerArgs {
    /// Where to listen: HOST:PORT, several with commas between, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5400")]
    listen: Address,
}

#[derive(Args, Debug)]
struct ClientArgs {
    /// Where the server listens: HOST:PORT, several with commas between, or unix:PATH
    #[arg(value_name = "ADDRESS", default_value = "127.0.0.1:5400")]
    to: Address,

    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Args, Debug)]
struct LimitArgs {
    /// Between two processes, the receiver copying straight from the sender's memory
    /// (process_vm_readv), instead of two threads with a ring; patterns ping-pong and to-server
    #[arg(long)]
    one_copy: bool,

    #[command(flatten)]
    load: LoadArgs,
}

/// The traffic pattern.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PatternChoice {
    /// A message to the server and a message back, in turns; with several streams a hot spot
    PingPong,
    /// Streams to the server, each acknowledged at its end: one-way, fan-in
    ToServer,
    /// Streams from the server: fan-out
    ToClient,
    /// As many streams in each direction
    Both,
    /// Requests and responses by one thread; open loop with --rate, else closed
    Requests,
    /// Connections that carry one byte each way
    Connect,
    /// Connections that carry nothing: the client opens and closes each
    Empty,
    /// Many new clients at once, each timed from its connect to its first response
    Newcomers,
}

/// When the requests of an open loop are due.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ArrivalsChoice {
    /// At equal distances
    Constant,
    /// At exponentially distributed distances, as independent users send them
    Poisson,
}

/// The load of `client` and `limit`.
#[derive(Args, Debug)]
struct LoadArgs {
    /// The traffic pattern
    #[arg(long, value_enum, default_value = "ping-pong")]
    pattern: PatternChoice,

    /// Size of a message or request, in bytes (4K and 1M are understood)
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = bytes)]
    message: usize,

    /// Size of a response; as large as the message when not given
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    response: Option<usize>,

    /// Connections; with the pattern `both` in each direction
    #[arg(long, value_name = "N", default_value_t = 1)]
    streams: usize,

    /// Measured time
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,

    /// Time before it that is not measured
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2)]
    warmup: f64,

    /// Poll at both ends instead of sleeping in the kernel
    #[arg(long)]
    polling: bool,

    /// Write new bytes into every message, and read every byte that arrives
    #[arg(long)]
    touch: bool,

    /// Send streams by sendfile, from memory
    #[arg(long)]
    sendfile: bool,

    /// Size of the sockets' buffers at both ends
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    socket_buffer: Option<usize>,

    /// Requests in a second, of all connections: an open loop
    #[arg(long, value_name = "N")]
    rate: Option<f64>,

    /// When the requests of an open loop are due
    #[arg(long, value_enum, default_value = "constant")]
    arrivals: ArrivalsChoice,

    /// Requests that each connection makes first, before the warm-up
    #[arg(long, value_name = "N", default_value_t = 0)]
    prior: usize,

    /// Connections that make requests after that; all when not given. The others stay open and idle
    #[arg(long, value_name = "N")]
    active: Option<usize>,

    /// Wait before the warm-up, and again before the connections are closed: connect to this Unix
    /// socket, and go on when it closes the connection
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    gate: Option<PathBuf>,

    /// Print the outcome as JSON, with the whole histogram
    #[arg(long)]
    json: bool,
}

const LIST_EXAMPLES: &str = "\
Examples:
  toehold lab list
  toehold lab list --json

With --json: `plans`, each with `name`, `about` and `minutes` (null if the duration is not fixed);
`series`, each with `name`, `minutes` and the names of its `plans`; `experiments` of the papers,
each with `id`, `source`, `figure` and `place`: the plans that repeat the experiment, or the reason
why there is none.";

const RUN_EXAMPLES: &str = "\
Examples:
  toehold lab run quick                   which path helps here? Under five minutes
  toehold lab run quick --dry-run         how long would it take?
  toehold lab run ./my-plan.toml --out my-run

^C keeps the finished rounds: `toehold lab resume DIR` goes on.";

const EXAMPLES: &str = "\
Examples:
  toehold lab list
  toehold lab run quick                   which path helps here? Under five minutes
  toehold lab run ioat-multistream --out reports/multistream
  toehold lab resume reports/multistream  after ^C
  toehold run -- toehold lab server       and in another terminal:
  toehold run -- toehold lab client --pattern to-server --message 128K
  toehold lab limit --pattern to-server --message 128K
                                          the same bytes between two threads without sockets";

/// Does what was asked for.
pub(crate) fn run(args: &LabArgs) -> Result<(), Failure> {
    match &args.command {
        LabCommand::List(args) if args.json => print_json(&Lists::all()),
        LabCommand::List(_) => print(Lists::all().text()).map(drop),
        LabCommand::Show(args) => match plan(&args.plan)? {
            Some(plan) if args.json => print_json(&plan),
            Some(plan) => print(plan.describe()).map(drop),
            None => Err(Failure::usage(format!(
                "`{}` has no plan file to show; `toehold lab list` lists the plans",
                args.plan
            ))),
        },
        LabCommand::Run(args) => run_one(args),
        LabCommand::Resume(args) => runs::resume(&args.run, args.output.form()).map_err(failure),
        LabCommand::Report(args) => {
            runs::report(&args.run, args.html.as_deref(), args.output.form()).map_err(failure)
        }
        LabCommand::Compare(args) => {
            runs::compare(&args.a, &args.b, args.any_machine, args.json).map_err(failure)
        }
        LabCommand::Server(args) => {
            let server = Server::bind(&args.listen).map_err(Failure::new)?;
            if let Ok(address) = server.address() {
                tell_line(format!("listening on {address}"));
            }
            server.serve().map_err(Failure::new)
        }
        LabCommand::Client(args) => {
            let load = args.load.load()?;
            let outcome = generator::run(&args.to, &load).map_err(Failure::new)?;
            show(&outcome, args.load.json)
        }
        LabCommand::Limit(args) => {
            let load = args.load.load()?;
            let outcome = if args.one_copy {
                generator::one_copy::run(&load)
            } else {
                generator::bare::run(&load)
            };
            let outcome = outcome.map_err(Failure::new)?;
            show(&outcome, args.load.json)
        }
        LabCommand::Http(args) => args.run(),
        LabCommand::Files(args) => args.run(),
        LabCommand::Poll(args) => args.run(),
        LabCommand::Filter(args) => args.run(),
        LabCommand::View(args) => args.run(),
        LabCommand::Guard(args) => args.run(),
    }
}

/// All that `toehold lab list` lists.
#[derive(Serialize)]
struct Lists {
    plans: Vec<Listed>,
    series: Vec<ListedSeries>,
    experiments: Vec<Entry>,
}

/// Plans that run one after the other.
#[derive(Serialize)]
struct ListedSeries {
    name: &'static str,
    minutes: f64,
    plans: Vec<String>,
}

impl Lists {
    fn all() -> Lists {
        let series = Series::ALL.into_iter().map(|series| {
            let plans = series.plans();
            let seconds: f64 = plans.iter().map(PlanFile::duration).sum();
            ListedSeries {
                name: series.name(),
                minutes: (seconds / 60.0).ceil(),
                plans: plans.into_iter().map(|plan| plan.name).collect(),
            }
        });
        Lists {
            plans: list(),
            series: series.collect(),
            experiments: catalogue(),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for plan in &self.plans {
            let minutes = plan.minutes.map(|minutes| format!("{minutes:.0} min"));
            let minutes = minutes.unwrap_or_default();
            text.push_str(&format!("{:<18} {minutes:>7}  {}\n", plan.name, plan.about));
        }
        for series in &self.series {
            let (name, minutes, count) = (series.name, series.minutes, series.plans.len());
            text.push_str(&format!(
                "{name:<18} {minutes:>3.0} min  {count} plans, one after the other\n"
            ));
        }
        text.push_str("\nThe experiments of the papers, and the plans that repeat them:\n\n");
        let mut source = "";
        for entry in &self.experiments {
            if entry.source != source {
                let separator = if source.is_empty() { "" } else { "\n" };
                text.push_str(&format!("{separator}{}\n", entry.source));
                source = &entry.source;
            }
            let (id, figure, place) = (&entry.id, &entry.figure, &entry.place);
            text.push_str(&format!("  {id:<20} {figure:<22} {place}\n"));
        }
        text
    }
}

fn run_one(args: &RunArgs) -> Result<(), Failure> {
    let adjust = |mut plan: PlanFile| {
        if args.quick {
            plan = plan.hurried();
        }
        if let Some(rounds) = args.rounds {
            plan.rounds = rounds as usize;
        }
        plan
    };
    if let Some(series) = Series::named(&args.plan) {
        if args.dry_run {
            return print(runs::describe_series(series, adjust)).map(drop);
        }
        if args.json || args.csv {
            return Err(Failure::usage(format!(
                "`{}` is many runs: toehold lab report DIR/PLAN prints one as JSON or CSV",
                series.name()
            )));
        }
        library::find().map_err(|error| Failure::new(error.to_string()))?;
        return runs::run_series(series, args.out.as_deref(), args.quick, adjust).map_err(failure);
    }
    let Some(plan) = plan(&args.plan)? else {
        if args.dry_run {
            return Err(Failure::usage(format!(
                "`{}` has no plan file, and its duration is not fixed",
                args.plan
            )));
        }
        if args.csv {
            return Err(Failure::usage(format!(
                "`{}` has no CSV; use --json",
                args.plan
            )));
        }
        let request = RunRequest {
            plan: args.plan.clone(),
            json: args.json,
            out: args.out.clone(),
            quick: args.quick,
            rounds: args.rounds.map(|rounds| rounds as usize),
        };
        return run_plan(&request).map_err(failure);
    };
    if args.dry_run {
        return print(adjust(plan).describe()).map(drop);
    }
    // Without the library every path would silently be the host path, and the report a lie.
    if plan.needs_library() {
        library::find().map_err(|error| Failure::new(error.to_string()))?;
    }
    runs::begin(adjust(plan), args.out.as_deref(), form(args.json, args.csv)).map_err(failure)
}

/// The plan of that name or in that file; `None` for an experiment that is no plan file, or is
/// unknown.
fn plan(name: &str) -> Result<Option<PlanFile>, Failure> {
    if name.ends_with(".toml") {
        return PlanFile::read(name.as_ref()).map(Some).map_err(failure);
    }
    Ok(runs::known().into_iter().find(|plan| plan.name == name))
}

fn form(json: bool, csv: bool) -> Form {
    match (json, csv) {
        (true, _) => Form::Json,
        (_, true) => Form::Csv,
        _ => Form::Text,
    }
}

fn failure(error: LabError) -> Failure {
    if error.is_usage {
        Failure::usage(error.sentence)
    } else {
        Failure::new(error.sentence)
    }
}

impl LoadArgs {
    fn load(&self) -> Result<Load, Failure> {
        let load = Load {
            pattern: match self.pattern {
                PatternChoice::PingPong => Pattern::PingPong,
                PatternChoice::ToServer => Pattern::ToServer,
                PatternChoice::ToClient => Pattern::ToClient,
                PatternChoice::Both => Pattern::Both,
                PatternChoice::Requests => Pattern::Requests,
                PatternChoice::Connect => Pattern::Connect,
                PatternChoice::Empty => Pattern::Empty,
                PatternChoice::Newcomers => Pattern::Newcomers,
            },
            message: self.message,
            response: self.response,
            streams: self.streams,
            seconds: self.seconds,
            warmup: self.warmup,
            polling: self.polling,
            touch: self.touch,
            sendfile: self.sendfile,
            socket_buffer: self.socket_buffer,
            rate: self.rate,
            arrivals: match self.arrivals {
                ArrivalsChoice::Constant => Arrivals::Constant,
                ArrivalsChoice::Poisson => Arrivals::Poisson,
            },
            prior: self.prior,
            active: self.active,
            gate: self.gate.clone().map(Gate),
        };
        load.check().map_err(Failure::usage)?;
        Ok(load)
    }
}

fn show(outcome: &Outcome, json: bool) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string(outcome)
            .map_err(|error| Failure::new(format!("cannot write the outcome: {error}")))?;
        return print(format!("{text}\n")).map(drop);
    }
    let mut text = format!(
        "{} ({}), {} B, {} streams, {:.2} s\n",
        outcome.load.pattern.name(),
        outcome.kind,
        outcome.load.message,
        outcome.load.streams,
        outcome.seconds
    );
    let rate = outcome.operations as f64 / outcome.seconds;
    text.push_str(&format!("{}/s", prefixed(rate)));
    let gigabits = outcome.bytes as f64 * 8.0 / outcome.seconds / 1e9;
    text.push_str(&format!(", {} Gbit/s\n", prefixed(gigabits)));
    if let Some(latency) = &outcome.latency {
        let [p50, p99, p99_9, max] =
            [latency.p50, latency.p99, latency.p99_9, latency.max].map(time);
        text.push_str(&format!(
            "latency p50 {p50}, p99 {p99}, p99.9 {p99_9}, longest {max}\n"
        ));
    }
    if outcome.unanswered > 0 {
        text.push_str(&format!(
            "{} requests had no response\n",
            outcome.unanswered
        ));
    }
    if let Some(cpu) = outcome.cpu_all {
        text.push_str(&format!("{:.2} cores busy\n", cpu / outcome.seconds));
    }
    print(&text).map(drop)
}

/// Nanoseconds as people write them.
fn time(nanos: u64) -> String {
    match nanos as f64 {
        nanos if nanos >= 1e7 => format!("{:.1} ms", nanos / 1e6),
        nanos => format!("{} us", prefixed(nanos / 1e3)),
    }
}

/// A number of bytes: `4096`, `4K`, `1M`.
fn bytes(text: &str) -> Result<usize, String> {
    toehold_lab::bytes(text)
        .ok_or_else(|| format!("\"{text}\" is not a number of bytes (4096, 4K, 1M)"))
}
