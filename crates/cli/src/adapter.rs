//! `toehold adapter`: runs the adapter in the foreground, or starts it in the background.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::mem;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use toehold_adapter::client;
use toehold_adapter::daemon::{self, Options, Reload, ReloadRules};
use toehold_adapter::engine::settings::{Draft, Settings, SettingsError};
use toehold_adapter::rules::{self, Observability, Rules};
use toehold_adapter::runtime_dir::{self, RuntimeDir};

use crate::failure::Failure;
use crate::meeting::Meeting;
use crate::options::AdapterChoice;
use crate::output::warn;
use crate::preload;
use crate::reaper;
use crate::status::Status;

/// Options of `toehold adapter`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AdapterArgs {
    /// The adapter's runtime directory
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,

    /// Serve all users of this host, and pair across users; for root, in /run/toehold
    #[arg(long, conflicts_with_all = ["background", "detached", "link", "config", "idle_exit"])]
    system: bool,

    /// Whether the system adapter pairs connections between network namespaces, and through address
    /// translation, where the kernel proves them
    #[arg(
        long,
        value_name = "all|own",
        default_value = "all",
        requires_if("own", "system")
    )]
    namespaces: NamespacesChoice,

    /// Start the adapter in the background, and return when it answers; it ends when it is idle
    #[arg(long)]
    background: bool,

    /// End after this time without a program; 0 is never [default: 60 with --background, else 0]
    #[arg(long, value_name = "SECONDS")]
    idle_exit: Option<u64>,

    /// Most connections in shared memory at a time; one whose rings have grown counts once for each
    /// megabyte
    #[arg(long, value_name = "N", default_value_t = daemon::REGIONS_MAX_DEFAULT)]
    max_connections: usize,

    /// While a packet capture or a new firewall rule would see connections, or the loopback device
    /// has traffic control: move the connections to the kernel, or ignore the capture
    #[arg(long, value_name = "yield|ignore", default_value = "yield")]
    observability: ObservabilityChoice,

    /// A file with rules about connections, in place of the files of the system and of the user;
    /// after SIGHUP the adapter reads it again
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    rules: Option<PathBuf>,

    #[command(flatten)]
    engine: EngineArgs,

    /// Change a setting of the running adapter, and end: lso, lro, checksum, split-headers,
    /// copy-engine, copybreak, coalesce, batch, quota, memory, window, congestion, ecn, pacing,
    /// initial-window, keepalive or fast-open; may be repeated
    #[arg(long, value_name = "NAME=VALUE", conflicts_with_all = ["background", "detached",
        "system", "EngineArgs", "require_engine", "idle_exit", "rules"])]
    set: Vec<String>,

    /// Fail when the TCP engine does not start, instead of serving this host's programs without it
    #[arg(long)]
    require_engine: bool,

    /// Print nothing, and end when idle: --background starts it with this option
    #[arg(long, hide = true, conflicts_with = "background")]
    detached: bool,
}

/// `--namespaces`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NamespacesChoice {
    /// Also connections between network namespaces and through address translation
    All,
    /// Connections within one network namespace
    Own,
}

/// `--observability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ObservabilityChoice {
    /// tcpdump and Wireshark see the connections: meanwhile they go by the kernel
    Yield,
    /// Connections stay in shared memory, where captures miss them
    Ignore,
}

impl ObservabilityChoice {
    /// The choice's word on the command line.
    fn word(self) -> &'static str {
        match self {
            ObservabilityChoice::Yield => "yield",
            ObservabilityChoice::Ignore => "ignore",
        }
    }
}

impl From<ObservabilityChoice> for Observability {
    fn from(choice: ObservabilityChoice) -> Observability {
        match choice {
            ObservabilityChoice::Yield => Observability::Yield,
            ObservabilityChoice::Ignore => Observability::Ignore,
        }
    }
}

/// Options of the adapter's TCP engine.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "TCP engine (offload path)")]
struct EngineArgs {
    /// The engine's link, of this network namespace or of another: a TAP device, or a packet socket
    /// or AF_XDP on an interface that is there
    #[arg(
        long,
        value_name = "tap:NAME[@NETNS] | packet:INTERFACE[@NETNS] | xdp:INTERFACE[@NETNS]"
    )]
    link: Option<String>,

    /// An address of the engine's own on the link, with its prefix length; may be repeated
    #[arg(long, value_name = "ADDRESS/BITS")]
    address: Vec<String>,

    /// An address of the host on the link's interface, instead of --address: the engine owns the
    /// ports on which programs listen through it, and the kernel owns the others; may be repeated
    #[arg(long, value_name = "ADDRESS[:PORTS]")]
    share: Vec<String>,

    /// Source ports, at the shared addresses, for connections that programs make through the engine
    /// (without this option such connections use the kernel); ports in the kernel's own range are
    /// reserved in the kernel
    #[arg(long, value_name = "FIRST-LAST")]
    outgoing: Option<String>,

    /// The router for all other destinations; one for each address family
    #[arg(long, value_name = "ADDRESS")]
    gateway: Vec<String>,

    /// The largest packet [default: the link's own; 576 to 65535, with IPv6 from 1280]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<String>,

    /// Cut large segments in the engine instead of in the kernel
    #[arg(long)]
    no_lso: bool,

    /// Where payload of large frames is received: directly into the program's ring, separate from
    /// the headers (on), or into a buffer from which it is copied (off) [default: on]
    #[arg(long, value_name = "on|off")]
    split_headers: Option<String>,

    /// The copier of payload that was received into a buffer, while the engine takes the next
    /// frames: off (the engine itself, at once), worker (a thread), dsa or dmadev (devices)
    /// [default: off]
    #[arg(long, value_name = "NAME")]
    copy_engine: Option<String>,

    /// Shorter payload is copied at once by the engine; auto is the value that `toehold doctor
    /// --copying` shows [default: auto; 1 to 65536]
    #[arg(long, value_name = "BYTES|auto")]
    copybreak: Option<String>,

    /// Receive segments as they are on the wire, not joined (on a packet link the interface
    /// decides: ethtool -K)
    #[arg(long)]
    no_lro: bool,

    /// Checksums: on (the link computes them, and the engine trusts the link's verification),
    /// verify (the engine verifies arriving ones), trust (none is verified) or off (the engine
    /// computes and verifies them) [default: on]
    #[arg(long, value_name = "on|verify|trust|off")]
    checksum: Option<String>,

    /// Compute and verify checksums in the engine, as --checksum off; the link then neither cuts
    /// nor joins segments (an xdp link has none of the three functions)
    #[arg(long)]
    no_checksum: bool,

    /// After each wake-up, wait this long for more work: fewer wake-ups, later answers [default: 0;
    /// at most 10000]
    #[arg(long, value_name = "MICROSECONDS")]
    coalesce: Option<String>,

    /// Most frames received in a row before the programs are served [default: 256; 1 to 65536]
    #[arg(long, value_name = "FRAMES")]
    batch: Option<String>,

    /// Most connections that one program may have through the engine at a time [default: 32768; at
    /// most 1048576]
    #[arg(long, value_name = "CONNECTIONS")]
    quota: Option<String>,

    /// Most memory of the engine's own, of all connections: bytes in flight, and state [default:
    /// 1024; 64 to 1048576]
    #[arg(long, value_name = "MEGABYTES")]
    memory: Option<String>,

    /// Most bytes of one connection in flight, each way, where the round trip is long [default: 16;
    /// 1 to 64]
    #[arg(long, value_name = "MEGABYTES")]
    window: Option<String>,

    /// The congestion control of new connections: cubic, reno, dctcp or bbr [default: cubic]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,

    /// Explicit congestion notification for new connections: on, accurate (RFC 9768) or off
    /// [default: off]
    #[arg(long, value_name = "on|accurate|off")]
    ecn: Option<String>,

    /// Whether new connections spread their data over the round trip, where it takes 4 ms or more:
    /// on or off [default: on]
    #[arg(long, value_name = "on|off")]
    pacing: Option<String>,

    /// Segments that a new connection sends before the first answer [default: 10; 1 to 64]
    #[arg(long, value_name = "SEGMENTS")]
    initial_window: Option<String>,

    /// Probe a remote that is silent for this time, where the program has not set SO_KEEPALIVE
    /// [default: off; 1 to 32767]
    #[arg(long, value_name = "SECONDS|off")]
    keepalive: Option<String>,

    /// Payload of SYNs: client (of programs that use MSG_FASTOPEN or TCP_FASTOPEN_CONNECT), server
    /// (for listeners that set TCP_FASTOPEN), on for both, or off [default: off]
    #[arg(long, value_name = "off|client|server|on")]
    fast_open: Option<String>,

    /// Settings of new connections to these destinations only, in quotes: window, congestion, ecn,
    /// pacing, initial-window, keepalive, fast-open; may be repeated, and precede those of the file
    #[arg(long, value_name = "CIDR[:PORT] SETTING VALUE...")]
    to: Vec<String>,

    /// Engine threads, each with its share of the connections; a TAP device that exists already
    /// needs `multi_queue` [default: 1; at most 16]
    #[arg(long, value_name = "N")]
    threads: Option<String>,

    /// Connections to these destinations use the engine, under --path auto too; may be repeated
    #[arg(long, value_name = "CIDR[:PORT]")]
    offload: Vec<String>,

    /// Connections to these destinations do not use the engine; may be repeated, and precede
    /// --offload
    #[arg(long, value_name = "CIDR[:PORT]")]
    no_offload: Vec<String>,

    /// A file with these settings, one in a line: link, address, share, outgoing, gateway, mtu,
    /// without, lso, lro, checksum, split-headers, copy-engine, copybreak, coalesce, batch, quota,
    /// memory, window, congestion, ecn, pacing, initial-window, keepalive, fast-open, to, threads,
    /// offload, host, direct; after SIGHUP the adapter reads it again
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl EngineArgs {
    /// The settings of the options together with the file; `None` when no engine is wanted.
    fn settings(&self) -> Result<Option<Settings>, SettingsError> {
        let mut draft = Draft::default();
        let set = |draft: &mut Draft, option: &str, word: &str, value: &str| {
            let by_option = |error| match error {
                SettingsError::Value(cause) => SettingsError::Value(format!("--{option}: {cause}")),
                error => error,
            };
            draft.set(word, value).map_err(by_option)
        };
        let first = [
            ("no-offload", "direct", &self.no_offload),
            ("offload", "offload", &self.offload),
            ("to", "to", &self.to),
        ];
        for (option, word, values) in first {
            for value in values {
                set(&mut draft, option, word, value)?;
            }
        }
        if let Some(file) = &self.config {
            draft.read(file)?;
        }
        let single = [
            ("link", &self.link),
            ("outgoing", &self.outgoing),
            ("mtu", &self.mtu),
            ("checksum", &self.checksum),
            ("split-headers", &self.split_headers),
            ("copy-engine", &self.copy_engine),
            ("copybreak", &self.copybreak),
            ("coalesce", &self.coalesce),
            ("batch", &self.batch),
            ("quota", &self.quota),
            ("memory", &self.memory),
            ("window", &self.window),
            ("congestion", &self.congestion),
            ("ecn", &self.ecn),
            ("pacing", &self.pacing),
            ("initial-window", &self.initial_window),
            ("keepalive", &self.keepalive),
            ("fast-open", &self.fast_open),
            ("threads", &self.threads),
        ];
        for (word, value) in single {
            if let Some(value) = value {
                set(&mut draft, word, word, value)?;
            }
        }
        let several = [
            ("address", &self.address),
            ("share", &self.share),
            ("gateway", &self.gateway),
        ];
        for (word, values) in several {
            for value in values {
                set(&mut draft, word, word, value)?;
            }
        }
        let without = [
            (self.no_lso, "lso"),
            (self.no_lro, "lro"),
            (self.no_checksum, "checksum"),
        ];
        for (_, word) in without.into_iter().filter(|(is_off, _)| *is_off) {
            draft.set("without", word)?;
        }
        draft.finish()
    }

    /// The failure of [`EngineArgs::settings`], attributed to the command line or to the file.
    fn refused(&self, error: &SettingsError) -> Failure {
        let sentence = error.to_string();
        match error {
            SettingsError::Value(_) => Failure::usage(sentence),
            SettingsError::Whole(_) if self.config.is_none() => Failure::usage(sentence),
            SettingsError::Whole(_) | SettingsError::Line { .. } | SettingsError::File(..) => {
                Failure::new(sentence)
            }
        }
    }

    /// These options, as arguments for another process.
    fn arguments(&self) -> Vec<OsString> {
        let mut out = Vec::new();
        let mut give = |option: &str, value: &OsStr| {
            out.push(option.into());
            out.push(value.to_owned());
        };
        let lists = [
            ("--link", self.link.as_slice()),
            ("--outgoing", self.outgoing.as_slice()),
            ("--mtu", self.mtu.as_slice()),
            ("--checksum", self.checksum.as_slice()),
            ("--split-headers", self.split_headers.as_slice()),
            ("--copy-engine", self.copy_engine.as_slice()),
            ("--copybreak", self.copybreak.as_slice()),
            ("--coalesce", self.coalesce.as_slice()),
            ("--batch", self.batch.as_slice()),
            ("--quota", self.quota.as_slice()),
            ("--memory", self.memory.as_slice()),
            ("--window", self.window.as_slice()),
            ("--congestion", self.congestion.as_slice()),
            ("--ecn", self.ecn.as_slice()),
            ("--pacing", self.pacing.as_slice()),
            ("--initial-window", self.initial_window.as_slice()),
            ("--keepalive", self.keepalive.as_slice()),
            ("--fast-open", self.fast_open.as_slice()),
            ("--threads", self.threads.as_slice()),
            ("--address", &self.address),
            ("--share", &self.share),
            ("--gateway", &self.gateway),
            ("--to", &self.to),
            ("--offload", &self.offload),
            ("--no-offload", &self.no_offload),
        ];
        for (option, values) in lists {
            for value in values {
                give(option, OsStr::new(value));
            }
        }
        if let Some(file) = &self.config {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
            give("--config", file.as_os_str());
        }
        let flags = [
            (self.no_lso, "--no-lso"),
            (self.no_lro, "--no-lro"),
            (self.no_checksum, "--no-checksum"),
        ];
        let flags = flags.into_iter().filter(|(is_on, _)| *is_on);
        out.extend(flags.map(|(_, flag)| flag.into()));
        out
    }
}

const EXAMPLES: &str = "\
`toehold run` starts an adapter when none answers. Run an adapter in the foreground for a service
manager, or to see its messages. When the adapter ends, accelerated connections continue, and new
ones stay on kernel TCP until an adapter is back.

Examples:
  toehold adapter
  toehold adapter --background --idle-exit 600
  toehold adapter --link packet:eth0 --address 10.84.0.2/24 --gateway 10.84.0.1
  toehold adapter --link packet:eth0 --share 192.0.2.7:80,443
  toehold adapter --link packet:eth0 --share 192.0.2.7 --outgoing 61000-65535
  toehold adapter --link tap:toe0 --address 10.84.0.2/24
  toehold adapter --link tap:toe0 --address 10.84.0.2/24 --to '198.51.100.0/24 congestion bbr'
  toehold adapter --set copy-engine=worker     of the running adapter
  toehold adapter --system                     for all users of this host

The system adapter keeps three capabilities, and a filter (seccomp) allows only the system calls
that it needs. It has no TCP engine. One user may have a quarter of its clients and connections. It
pairs connections between network namespaces (containers) and through address translation, if it can
load a program into the kernel that compares two sockets (CAP_BPF and CAP_PERFMON at the start,
Linux 6.1, CONFIG_DEBUG_INFO_BTF). `toehold status` reports when it cannot load this program.

Rules keep connections on the kernel, or hide them from captures: toehold.conf(5). An adapter with
an invalid rule does not start. If a rule is invalid after SIGHUP, the adapter keeps its former
rules.

With a link the adapter has a TCP engine: programs under `toehold run --path offload` connect
through the engine, and listen on its addresses, which must be free addresses of the network. A
packet link works beside the kernel on its interface, and needs CAP_NET_RAW. With --share the engine
serves ports of the host's own address, and with --outgoing connections go out from this address;
both need CAP_BPF and CAP_NET_ADMIN, too. A TAP device is created if it does not exist; that needs
CAP_NET_ADMIN. With --config, SIGHUP changes addresses, gateways, rules, the MTU and most other
settings (toehold-engine(5)); connections of a removed address are reset.";

/// Runs or starts the adapter.
pub(crate) fn run(args: &AdapterArgs) -> Result<(), Failure> {
    let default = match args.system {
        true => runtime_dir::system_path,
        false => own_default,
    };
    let wanted = args.runtime_dir.clone().unwrap_or_else(default);
    let wanted = std::path::absolute(&wanted).unwrap_or(wanted);
    if !args.set.is_empty() {
        for setting in &args.set {
            let set = client::set(&wanted, setting);
            set.map_err(|error| Failure::new(format!("{setting}: {error}")))?;
        }
        return Ok(());
    }
    let engine = args.engine.settings();
    let engine = engine.map_err(|error| args.engine.refused(&error))?;
    if args.require_engine && engine.is_none() {
        let needs = "--require-engine needs an engine: give it one with --link or --config";
        return Err(Failure::usage(needs));
    }
    // An adapter that cannot follow the operator's rules does not start: programs stay on the
    // kernel.
    let read_rules = rules_of(args.rules.as_deref(), args.system);
    let rules = read_rules().map_err(Failure::new)?;
    if args.background {
        let dir =
            RuntimeDir::open_or_create(&wanted).map_err(|error| Failure::new(error.to_string()))?;
        return start(dir.path(), args);
    }
    // SAFETY: cannot fail.
    if args.system && unsafe { libc::geteuid() } != 0 {
        return Err(Failure::new(
            "--system needs root: programs of other users trust only root's adapter",
        ));
    }
    let mut options = match (args.system, args.detached) {
        (true, _) => Options::system(wanted),
        (false, true) => Options::background(wanted),
        (false, false) => Options::foreground(wanted),
    };
    options.regions_max = args.max_connections;
    options.observability = args.observability.into();
    options.across_namespaces = args.namespaces == NamespacesChoice::All;
    options.engine = engine;
    options.engine_required = args.require_engine;
    options.rules = rules;
    options.reload_rules = Some(ReloadRules::by(read_rules));
    if args.engine.config.is_some() {
        let engine = args.engine.clone();
        options.reload = Some(Reload::by(move || {
            engine.settings().map_err(|error| error.to_string())
        }));
    }
    match args.idle_exit {
        None => {}
        Some(0) => options.idle_exit = None,
        Some(seconds) => options.idle_exit = Some(Duration::from_secs(seconds)),
    }
    daemon::run(options).map_err(|error| Failure::new(error.to_string()))
}

/// Returns a function that reads the rules, now and later: those of the named file, or those of the
/// host.
fn rules_of(
    named: Option<&Path>,
    is_system: bool,
) -> impl Fn() -> Result<Rules, String> + Send + Sync + 'static {
    let files = match named {
        Some(file) => rules::named(file),
        None => rules::default_files(is_system),
    };
    move || Rules::read(&files).map_err(|error| error.to_string())
}

/// This user's own runtime directory, even within a program that uses the system adapter.
fn own_default() -> PathBuf {
    match Meeting::of(None, AdapterChoice::User) {
        Meeting::System(dir) | Meeting::User(dir) => dir,
    }
}

/// Starts an adapter for `runtime_dir`, which was checked, and waits until it answers.
///
/// The adapter must not become a child of the program that this process will become: a program that
/// waits for "any child" would find an unknown one. So an intermediate process starts the adapter
/// and ends. If this process would then inherit the orphan, a reaper inherits it instead.
///
/// # Errors
///
/// A sentence.
pub(crate) fn start_in_background(runtime_dir: &Path) -> Result<(), String> {
    match reaper::is_needed() {
        true => reaper::have_it(|| start_by_another(runtime_dir)),
        false => without_its_signal(|| start_by_another(runtime_dir)),
    }
}

/// Runs `work`, which creates a child. If SIGCHLD is blocked, the signal of the child's end is
/// removed, so that the program that this process becomes does not find it pending.
fn without_its_signal<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals are written before they are read, and nothing else is kept.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigpending(&raw mut set);
        let was_pending = libc::sigismember(&raw const set, libc::SIGCHLD) == 1;
        let done = work();
        if !was_pending {
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            let no_time: libc::timespec = mem::zeroed();
            libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const no_time);
        }
        done
    }
}

fn start_by_another(runtime_dir: &Path) -> Result<(), String> {
    let program = this_program()?;
    let mut command = Command::new(program);
    command
        .args(["adapter", "--background", "--runtime-dir"])
        .arg(runtime_dir);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start an adapter: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(words.trim().trim_start_matches("toehold: ").to_owned())
}

fn start(runtime_dir: &Path, args: &AdapterArgs) -> Result<(), Failure> {
    if client::ping(runtime_dir).is_ok() {
        return Ok(());
    }
    let mut command = command_of(runtime_dir, args)?;
    let adapter = command
        .spawn()
        .map_err(|error| Failure::new(format!("cannot start an adapter: {error}")))?;
    until_it_answers(adapter, runtime_dir)
}

/// The command that runs an adapter which outlives this process.
fn command_of(runtime_dir: &Path, args: &AdapterArgs) -> Result<Command, Failure> {
    let mut command = Command::new(this_program().map_err(Failure::new)?);
    command
        .args(["adapter", "--detached", "--runtime-dir"])
        .arg(runtime_dir);
    command.args(["--max-connections", &args.max_connections.to_string()]);
    command.args(["--observability", args.observability.word()]);
    if let Some(seconds) = args.idle_exit {
        command.args(["--idle-exit", &seconds.to_string()]);
    }
    if args.require_engine {
        command.arg("--require-engine");
    }
    if let Some(file) = &args.rules {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        command.arg("--rules").arg(file);
    }
    command.args(args.engine.arguments());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // An adapter that ends at once has told the reason there.
        .stderr(Stdio::piped());
    // When this command runs in an accelerated shell, the adapter itself must not be accelerated.
    preload::remove_acceleration(&mut command);
    // The adapter outlives us: it must not keep a directory busy, nor a terminal or a pipe.
    command.current_dir("/");
    let prepare = || {
        // The adapter will serve other programs too, so it may use all cores and not only those of
        // the first program.
        // SAFETY: plain system calls, of which one reads a set of this size. A kernel without
        // close_range leaves the descriptors open, which costs no more than that.
        unsafe {
            let cores = [u8::MAX; 1024];
            libc::syscall(libc::SYS_sched_setaffinity, 0, cores.len(), cores.as_ptr());
            libc::setsid();
            libc::syscall(
                libc::SYS_close_range,
                3,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            );
        }
        Ok(())
    };
    // SAFETY: the closure only makes async-signal-safe system calls.
    unsafe { command.pre_exec(prepare) };
    Ok(command)
}

/// Waits for the first answer of an adapter that was just started.
fn until_it_answers(mut adapter: Child, runtime_dir: &Path) -> Result<(), Failure> {
    let mut deadline = Instant::now() + START_TIMEOUT;
    let mut ended: Option<ExitStatus> = None;
    loop {
        let answer = client::ping(runtime_dir);
        match (answer, ended) {
            (Ok(_), _) => {
                warn_of_missing_engine(runtime_dir);
                return Ok(());
            }
            (Err(_), Some(status)) if Instant::now() >= deadline => {
                let mut words = String::new();
                if let Some(errors) = &mut adapter.stderr {
                    // Nobody else has the pipe's other end.
                    let _ = errors.read_to_string(&mut words);
                }
                let why = match words.trim().trim_start_matches("toehold: ") {
                    "" => status.to_string(),
                    words => words.to_owned(),
                };
                return Err(Failure::new(format!("the adapter ended at once: {why}")));
            }
            (Err(error), None) if Instant::now() >= deadline => {
                return Err(Failure::new(format!("the adapter did not start: {error}")));
            }
            _ => {}
        }
        if let (Ok(Some(status)), None) = (adapter.try_wait(), ended) {
            // It may have met another adapter that starts at the same moment; that one serves as
            // well.
            ended = Some(status);
            deadline = deadline.min(Instant::now() + OTHER_TIMEOUT);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Warns that the engine did not start: an adapter in the background cannot print the reason.
fn warn_of_missing_engine(runtime_dir: &Path) {
    if let Some(why) = Status::ask(runtime_dir).and_then(|status| status.no_engine) {
        warn(format!("no TCP engine: {why}"));
    }
}

fn this_program() -> Result<PathBuf, String> {
    env::current_exe()
        .map_err(|error: io::Error| format!("cannot find this program's own file: {error}"))
}

/// The time that an adapter that another process started at the same moment may take to answer.
const OTHER_TIMEOUT: Duration = Duration::from_millis(250);
/// The time that an adapter may take to answer for the first time.
const START_TIMEOUT: Duration = Duration::from_secs(1);
