//! The adapter's process: one thread around an epoll loop, with no timer while nothing needs one.
//! While there are channels, packet captures are looked for ([`observation`]).
//!
//! It receives messages of clients, passes them to the [`Registry`], and carries out the answers.
//! It never waits for a client: messages that a client's socket does not take are kept, up to a
//! bound, until it does. A client that exceeds its bounds or sends invalid messages is dropped, and
//! keeps the channels that it has.
//!
//! Two things have to come together before a process counts as gone: its socket is closed (a forked
//! child may still hold it, and the connections with it), and the process itself has ended (a
//! program may have closed a descriptor that it did not know to be ours).

mod adoptions;
mod budgets;
mod calls;
mod connection;
mod connections;
mod doorbells;
mod family;
mod foreign;
mod introductions;
mod log;
mod manager;
mod observation;
mod offload;
mod operator;
mod poller;
mod privileges;
mod proving;
mod rules;
mod survivors;
mod tick;
mod user_quotas;

use crate::aside::Aside;
use crate::descriptors;
use crate::diag::Diag;
use crate::engine::Engine;
use crate::engine::settings::Settings;
use crate::entropy;
use crate::epoll::EVENTS_PER_TURN;
use crate::firewall::Firewall;
use crate::listener::{Hidden, ListenError, Listener, Watch};
use crate::pressure::Pressure;
use crate::regions::Regions;
use crate::registry::{ClientId, Limits, Policy, Registry, UserLimits};
use crate::rules::{Observability, Rules};
use crate::runtime_dir::{RuntimeDir, RuntimeDirError};
use crate::tables::Tables;
use crate::unserved;
use adoptions::Adoptions;
use budgets::Budgets;
use calls::Calls;
use connection::Connection;
use foreign::Foreign;
use log::Log;
use manager::Manager;
use observation::Observation;
use poller::{Event, Poller, Source};
use proving::Proving;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use survivors::Found;
use tick::Tick;

pub use poller::Stopper;

/// The options of the adapter.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory in which clients find it.
    pub runtime_dir: PathBuf,
    /// Whether events are reported on standard error.
    pub foreground: bool,
    /// The adapter ends after this long without a client; never when `None`.
    pub idle_exit: Option<Duration>,
    /// The most channels at a time. Each has a region, of which only the used pages cost memory.
    /// There are fewer channels if their descriptors (one for each pair of programs, and one for
    /// each eight channels of a pair) would exceed three quarters of our limit, or one quarter with
    /// an engine.
    pub regions_max: usize,
    /// Which processes may be introduced to each other.
    pub policy: Policy,
    /// Whether this is the system adapter, which serves all users from a directory that all may
    /// enter.
    pub is_system: bool,
    /// Whether connections between network namespaces, and across address translation, are paired
    /// if the kernel's facts prove them. Only the system adapter can do that.
    pub across_namespaces: bool,
    /// Time between two looks at every channel while regions are running out.
    pub sample_interval: Duration,
    /// Whether connections whose packets a capture would see go through the kernel during the
    /// capture.
    pub observability: Observability,
    /// The TCP engine, if there is to be one.
    pub engine: Option<Settings>,
    /// Whether an engine that does not start is an error. Otherwise the adapter does without.
    pub engine_required: bool,
    /// Reads the engine's settings again at `SIGHUP`.
    pub reload: Option<Reload>,
    /// The operator's rules about connections.
    pub rules: Rules,
    /// Reads the rules again at `SIGHUP`. Without this and `reload` the signal is not caught.
    pub reload_rules: Option<ReloadRules>,
}

/// Reads the operator's rules again. Returns the rules, or a sentence about what is wrong with
/// them.
#[derive(Clone)]
pub struct ReloadRules(Arc<ReadRules>);

type ReadRules = dyn Fn() -> Result<Rules, String> + Send + Sync;

impl ReloadRules {
    /// Rules by calling `read`.
    pub fn by(read: impl Fn() -> Result<Rules, String> + Send + Sync + 'static) -> ReloadRules {
        ReloadRules(Arc::new(read))
    }
}

impl fmt::Debug for ReloadRules {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ReloadRules")
    }
}

/// Reads the engine's settings again. Returns the settings, or a sentence about what is wrong with
/// them.
#[derive(Clone)]
pub struct Reload(Arc<ReadSettings>);

type ReadSettings = dyn Fn() -> Result<Option<Settings>, String> + Send + Sync;

impl Reload {
    /// Settings by calling `read`.
    pub fn by(
        read: impl Fn() -> Result<Option<Settings>, String> + Send + Sync + 'static,
    ) -> Reload {
        Reload(Arc::new(read))
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Reload")
    }
}

impl Options {
    /// For a service manager or a terminal: reports on standard error, and never ends by itself.
    pub fn foreground(runtime_dir: PathBuf) -> Options {
        Options {
            runtime_dir,
            foreground: true,
            idle_exit: None,
            regions_max: REGIONS_MAX_DEFAULT,
            policy: Policy::SameUser,
            is_system: false,
            across_namespaces: true,
            sample_interval: SAMPLE_INTERVAL_DEFAULT,
            observability: Observability::Yield,
            engine: None,
            engine_required: false,
            reload: None,
            rules: Rules::default(),
            reload_rules: None,
        }
    }

    /// For the whole host: serves every user, pairs across users, and keeps each user within a
    /// quota.
    pub fn system(runtime_dir: PathBuf) -> Options {
        Options {
            policy: Policy::AnyUser,
            is_system: true,
            ..Options::foreground(runtime_dir)
        }
    }

    /// For `toehold run`: silent, and ends after [`IDLE_EXIT_DEFAULT`] without a client.
    pub fn background(runtime_dir: PathBuf) -> Options {
        Options {
            foreground: false,
            idle_exit: Some(IDLE_EXIT_DEFAULT),
            ..Options::foreground(runtime_dir)
        }
    }
}

/// The time that an adapter in the background stays without a client.
pub const IDLE_EXIT_DEFAULT: Duration = Duration::from_secs(60);
/// Channels an adapter serves unless told otherwise.
pub const REGIONS_MAX_DEFAULT: usize = 32_768;
/// Time between two looks at every channel while regions are running out, unless told otherwise.
pub const SAMPLE_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

/// The reason why the adapter does not run.
#[derive(Debug)]
pub enum Error {
    /// Its directory was refused.
    RuntimeDir(RuntimeDirError),
    /// Another one serves this directory.
    AlreadyRunning {
        /// The directory.
        runtime_dir: PathBuf,
        /// Its process id, when known.
        pid: Option<u32>,
        /// It does not make room for a service manager's adapter.
        stays: bool,
    },
    /// The TCP engine does not start, and [`Options::engine_required`] asks for it.
    Engine(String),
    /// The operating system refused.
    Os {
        /// The attempted action.
        action: &'static str,
        /// The directory it was tried for.
        runtime_dir: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::RuntimeDir(error) => error.fmt(out),
            Error::Engine(why) => write!(out, "no TCP engine: {why}"),
            Error::AlreadyRunning {
                runtime_dir,
                pid,
                stays,
            } => {
                write!(
                    out,
                    "an adapter is already running for {}",
                    runtime_dir.display()
                )?;
                pid.map_or(Ok(()), |pid| write!(out, ", pid {pid}"))?;
                match stays {
                    true => out.write_str("; it does not leave (has it a TCP engine?): end it"),
                    false => Ok(()),
                }
            }
            Error::Os {
                action,
                runtime_dir,
                source,
            } => write!(out, "cannot {action} {}: {source}", runtime_dir.display()),
        }
    }
}

impl std::error::Error for Error {}

/// Runs the adapter until it is told to stop (`SIGTERM`, `SIGINT`) or has been idle for long
/// enough.
///
/// # Errors
/// When the runtime directory is refused, another adapter serves it, or the operating system does
/// not let us. A system adapter also needs to be root.
pub fn run(options: Options) -> Result<(), Error> {
    let is_system = options.is_system;
    let runtime_dir = options.runtime_dir.clone();
    let os = |action| {
        let runtime_dir = runtime_dir.clone();
        move |source| Error::Os {
            action,
            runtime_dir,
            source,
        }
    };
    poller::give_up_privileges();
    descriptors::raise_limit();
    let mut proving = match is_system {
        true => Proving::load(),
        false => Proving::default(),
    };
    // This needs a capability that the system adapter gives up later. Most users may not listen.
    let firewall = Firewall::open().ok();
    if is_system {
        privileges::keep_needed().map_err(os("give up capabilities for"))?;
        proving.check();
    }
    let mut daemon = Daemon::bind_with(options, proving, firewall)?;
    daemon.catch_signals()?;
    daemon.hail();
    if is_system {
        daemon
            .guard_against_waits()
            .map_err(os("make a timer or threads for"))?;
        privileges::filter_calls().map_err(os("filter system calls for"))?;
    }
    daemon.serve()
}

/// Threads for work that a client can delay, and the results.
#[derive(Debug)]
struct Elsewhere {
    /// Questions about processes, by user.
    threads: Aside,
    /// Pages of slabs that are given back, by pair.
    givers: Aside,
    found: Found,
}

/// An adapter that listens.
#[derive(Debug)]
pub struct Daemon {
    options: Options,
    poller: Poller,
    /// Reports that a service manager may have replaced our socket with its own.
    watch: Option<Watch>,
    /// A spare descriptor that is given up when there are no others, so that a client can still be
    /// rejected.
    spare: Option<File>,
    /// A descriptor that is reserved for the next one that a client sends.
    room: Option<File>,
    engine: Option<Engine>,
    /// The reason why there is no engine, if one was wanted.
    no_engine: Option<String>,
    /// The engine's threads, which are clients, too.
    engine_clients: BTreeSet<ClientId>,
    registry: Registry,
    /// Without this socket no connection can be proved, and no ends are introduced.
    diag: Option<Diag>,
    proving: Proving,
    tables: Tables,
    calls: Calls,
    regions: Regions,
    /// Added to the numbers of pairs, so that they differ from those of other adapters: programs
    /// outlive this adapter and keep its pairs.
    pair_numbers: u64,
    clients: BTreeMap<ClientId, Connection>,
    client_next: u64,
    /// Messages handled in this turn, by user. Only the system adapter counts them.
    heard: BTreeMap<u32, usize>,
    foreign: Foreign,
    adoptions: Adoptions,
    /// Does what a client can delay. A user's own adapter does it on its own thread.
    aside: Option<Elsewhere>,
    /// Ends waits that a client can cause. A user's own adapter does not need it.
    tick: Option<Tick>,
    /// Clients whose socket will take more when the kernel has fewer descriptors in flight.
    throttled: BTreeSet<ClientId>,
    pressure: Pressure,
    observation: Observation,
    budgets: Budgets,
    doorbell_quotas: doorbells::Quotas,
    idle_since: Instant,
    /// Earliest next look at how active the channels are.
    sample_due: Option<Instant>,
    /// When to wake for that look; `None` when the look is not needed.
    sample_next: Option<Instant>,
    /// When it was last measured how much memory channels hold, and how much that was beyond one
    /// share for each.
    weighed: Option<Instant>,
    shares_beyond_one: usize,
    log: Log,
    /// Dropped last: the next adapter takes the lock, and must then find that our clients have lost
    /// us.
    listener: Listener,
}

impl Daemon {
    /// Takes the runtime directory and listens in it. Clients can connect from now on;
    /// [`Daemon::serve`] serves them.
    ///
    /// # Errors
    /// When the runtime directory is refused, another adapter serves it, or the operating system
    /// does not let us.
    pub fn bind(options: Options) -> Result<Daemon, Error> {
        let proving = match options.is_system {
            true => Proving::load(),
            false => Proving::default(),
        };
        Daemon::bind_with(options, proving, Firewall::open().ok())
    }

    fn bind_with(
        options: Options,
        proving: Proving,
        firewall: Option<Firewall>,
    ) -> Result<Daemon, Error> {
        let os = |action| os_error_of(&options, action);
        let listener = take_place(&options)?;
        let poller = Poller::new(listener.as_fd()).map_err(os("watch"))?;
        // Only root can replace the system adapter's socket, and its system calls are filtered.
        let watch = listener.watch().filter(|_| !options.is_system);
        if let Some(watch) = &watch {
            let watched = poller.watch(watch.as_fd(), Source::Directory);
            watched.map_err(os("watch"))?;
        }
        let random = entropy::bits().map_err(os("get random numbers for"))?;
        let [pair_numbers, ..] = random;
        let mut log = Log::new(options.foreground);
        let (engine, no_engine) = start_engine(&options, &mut log)?;
        let diag = Diag::open();
        log_unpairable(&diag, &proving, &mut log);
        let descriptors_max = descriptors::memory_max(engine.is_some());
        let observation = Observation::new(diag.as_ref().ok().map(Diag::namespace), firewall);
        for (changes, source) in observation.sources() {
            let watched = poller.watch(changes, source);
            watched.map_err(os("watch firewall rules and traffic control for"))?;
        }
        let mut daemon = Daemon {
            poller,
            watch,
            spare: spare_descriptor(),
            room: spare_descriptor(),
            engine,
            no_engine,
            engine_clients: BTreeSet::new(),
            registry: Registry::new(limits_of(&options, descriptors_max), options.policy),
            diag: diag.ok(),
            proving,
            tables: match options.is_system {
                true => Tables::of_strangers(),
                false => Tables::default(),
            },
            calls: Calls::default(),
            regions: Regions::new(descriptors_max),
            pair_numbers,
            clients: BTreeMap::new(),
            client_next: 1,
            heard: BTreeMap::new(),
            foreign: Foreign::default(),
            adoptions: Adoptions::default(),
            aside: None,
            tick: None,
            throttled: BTreeSet::new(),
            pressure: Pressure::default(),
            observation,
            budgets: Budgets::default(),
            doorbell_quotas: doorbells::Quotas::default(),
            idle_since: Instant::now(),
            sample_due: None,
            sample_next: None,
            weighed: None,
            shares_beyond_one: 0,
            log,
            listener,
            options,
        };
        daemon.admit_engine();
        Ok(daemon)
    }

    /// Ends [`Daemon::serve`], from any thread.
    ///
    /// # Errors
    /// When there is no descriptor left for it.
    pub fn stopper(&self) -> io::Result<Stopper> {
        self.poller.stopper()
    }

    /// Makes `SIGTERM` and `SIGINT` end [`Daemon::serve`], and `SIGHUP` reload the settings, if
    /// that is possible. Blocks them for the calling thread.
    ///
    /// # Errors
    /// When the operating system does not let us.
    pub fn catch_signals(&mut self) -> Result<(), Error> {
        let mut caught = self.poller.catch_signals();
        if self.options.reload.is_some() || self.options.reload_rules.is_some() {
            caught = caught.and_then(|()| self.poller.catch_reload());
        }
        caught.map_err(|source| self.os_error("catch signals for", source))
    }

    /// Serves clients until stopped or idle for long enough. The socket is gone when the daemon is
    /// dropped.
    ///
    /// # Errors
    /// When waiting for events fails, which only a broken kernel does.
    pub fn serve(&mut self) -> Result<(), Error> {
        if self.options.is_system {
            let guarded = self.guard_against_waits();
            guarded.map_err(|source| self.os_error("make a timer or threads for", source))?;
        }
        let dir = &self.options.runtime_dir;
        self.log
            .log_limited("state", || format!("listening in {}", dir.display()));
        let manager = Manager::of(self.options.foreground);
        manager.ready(self.no_engine.as_deref());
        let served = self.serve_clients();
        manager.stopping();
        served
    }

    /// From now on waits that a client causes are cut short on this thread, or are another
    /// thread's.
    fn guard_against_waits(&mut self) -> io::Result<()> {
        if self.tick.is_none() {
            self.tick = Some(Tick::new()?);
        }
        if self.aside.is_none() {
            let found = Found::new()?;
            self.poller.watch(found.as_fd(), Source::Found)?;
            self.aside = Some(Elsewhere {
                threads: Aside::start()?,
                givers: Aside::start()?,
                found,
            });
            self.regions.give_back_later();
        }
        Ok(())
    }

    /// Asks programs that an earlier adapter has served to connect to this one.
    fn hail(&mut self) {
        let count = unserved::hail(&self.options.runtime_dir, self.options.is_system);
        if count > 0 {
            let text = || format!("{count} families of programs used an earlier adapter here");
            self.log.log_limited("hail", text);
        }
    }

    fn serve_clients(&mut self) -> Result<(), Error> {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        // The other socket may have come before we watched.
        if self.watch.is_some() && self.must_be_replaced() {
            return Ok(());
        }
        loop {
            let timeout = self.timeout();
            let waited = self.poller.wait(&mut events, timeout);
            waited.map_err(|source| self.os_error("wait for clients of", source))?;
            let has_events = !events.is_empty();
            if let Some(tick) = &self.tick {
                tick.begin();
            }
            for event in events.drain(..) {
                match event.source {
                    Source::Stop => {
                        self.log
                            .log_limited("stop", || "stopped by a command: ending".into());
                        return Ok(());
                    }
                    Source::Reload => self.handle_reload(),
                    Source::Firewall => self.handle_firewall(),
                    Source::Shaping => self.handle_shaping(),
                    Source::Directory if self.must_be_replaced() => return Ok(()),
                    Source::Directory => {}
                    Source::Listener => self.handle_arrivals(),
                    Source::Client(id) => self.handle_client(id, event),
                    Source::Process(id) => self.handle_process_end(id),
                    Source::Found => self.handle_found(),
                }
            }
            self.settle();
            match &self.tick {
                Some(tick) if has_events => tick.end(),
                Some(tick) => tick.stop(),
                None => {}
            }
            if self.is_idle_for_long() && self.can_leave() {
                self.log
                    .log_limited("idle", || "no client for a long time: ending".into());
                return Ok(());
            }
        }
    }

    /// Number of ticks so far. If the number changes during some work, that work takes long.
    fn ticks(&self) -> u32 {
        self.tick.as_ref().map_or(0, Tick::count)
    }

    /// Called at the end of each turn: does the work that events have made possible.
    fn settle(&mut self) {
        self.heard.clear();
        for id in std::mem::take(&mut self.throttled) {
            self.flush(id);
        }
        self.call_families();
        self.release_regions();
        self.follow_budgets();
        self.regions.cool(Instant::now());
        self.introduce_held_back();
        self.settle_doubts();
        self.settle_adoptions();
        self.forget_unclaimed();
        self.relieve_pressure();
        self.observe();
        self.give_back_pages();
    }

    fn handle_reload(&mut self) {
        self.poller.clear_reload();
        self.reload_rules();
        self.reload_engine();
    }

    fn handle_client(&mut self, id: ClientId, event: Event) {
        if event.writable {
            self.flush(id);
        }
        if event.readable {
            self.handle_messages(id);
        }
    }

    /// The time to sleep: without limit, unless the adapter may end, or waits for something that
    /// brings no event.
    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let leave = self.options.idle_exit.filter(|_| self.has_no_client());
        // No sum of a time and a duration: the option may be any number of seconds.
        let idle_for = now.saturating_duration_since(self.idle_since);
        let leave = leave.map(|idle| idle.saturating_sub(idle_for));
        let sample = self.sample_next;
        let sample = sample.map(|due| due.saturating_duration_since(now));
        let cool = self.regions.cool_due();
        let cool = cool.map(|due| due.saturating_duration_since(now));
        let retry = (!self.throttled.is_empty()).then_some(THROTTLE_RETRY);
        let look = self.observation.due();
        let look = look.map(|due| due.saturating_duration_since(now));
        let doubt = self.proving.due();
        let doubt = doubt.map(|due| due.saturating_duration_since(now));
        let budget = self.budgets.due();
        let budget = budget.map(|due| due.saturating_duration_since(now));
        let call = self.calls.due();
        let call = call.map(|due| due.saturating_duration_since(now));
        let adoption = self.adoptions.due();
        let adoption = adoption.map(|due| due.saturating_duration_since(now));
        [
            leave, sample, cool, retry, look, doubt, budget, call, adoption,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn has_no_client(&self) -> bool {
        let mut programs = self.programs();
        !programs.any(Connection::is_open)
    }

    fn is_idle_for_long(&self) -> bool {
        let idle = self.options.idle_exit;
        idle.is_some_and(|idle| self.has_no_client() && self.idle_since.elapsed() >= idle)
    }

    /// Whether a service manager's adapter must take our place. Its socket has already replaced
    /// ours. An adapter with an engine stays: the engine's connections would end.
    fn must_be_replaced(&mut self) -> bool {
        if let Some(watch) = &self.watch {
            watch.clear();
        }
        if !self.listener.is_displaced() {
            return false;
        }
        let gives_way = self.engine.is_none();
        self.log.log_limited("place", || {
            let does = match gives_way {
                true => "leaving",
                false => {
                    "this adapter serves the connections of its TCP engine and no new \
                programs"
                }
            };
            format!("another adapter has replaced our socket: {does}")
        });
        gives_way
    }

    /// Whether the adapter can end: no client has come at the last moment. If one has come, it is
    /// accepted.
    fn can_leave(&mut self) -> bool {
        match self.listener.hide() {
            Ok(Hidden::Caller(socket)) => {
                self.idle_since = Instant::now();
                self.admit(socket, None);
                false
            }
            // If our socket has vanished, no client can find us anyway.
            Ok(Hidden::Alone) | Err(_) => true,
        }
    }

    fn os_error(&self, action: &'static str, source: io::Error) -> Error {
        os_error_of(&self.options, action)(source)
    }
}

/// Turns a failed system call of an adapter with these options into its error.
fn os_error_of(options: &Options, action: &'static str) -> impl FnOnce(io::Error) -> Error + use<> {
    let runtime_dir = options.runtime_dir.clone();
    move |source| Error::Os {
        action,
        runtime_dir,
        source,
    }
}

/// Becomes the only adapter of the runtime directory, on its socket or the service manager's.
fn take_place(options: &Options) -> Result<Listener, Error> {
    let dir = match options.is_system {
        true => RuntimeDir::open_or_create_system(&options.runtime_dir),
        false => RuntimeDir::open_or_create(&options.runtime_dir),
    };
    let dir = dir.map_err(Error::RuntimeDir)?;
    let passed = Manager::of(options.foreground).listener();
    let passed = passed.map_err(os_error_of(options, "use the service manager's socket in"))?;
    let stays = passed.is_some();
    Listener::bind(&dir, passed).map_err(|error| match error {
        ListenError::AlreadyRunning(pid) => Error::AlreadyRunning {
            runtime_dir: options.runtime_dir.clone(),
            pid,
            stays,
        },
        ListenError::Os(action, source) => os_error_of(options, action)(source),
    })
}

/// Starts the engine, if there is to be one; otherwise gives the reason why it does not start.
fn start_engine(
    options: &Options,
    log: &mut Log,
) -> Result<(Option<Engine>, Option<String>), Error> {
    match options.engine.as_ref().map(Engine::start).transpose() {
        Ok(engine) => {
            let complaints = engine.as_ref().map(Engine::complaints);
            for complaint in complaints.unwrap_or_default() {
                log.answer(complaint);
            }
            Ok((engine, None))
        }
        Err(error) if options.engine_required => Err(Error::Engine(error.to_string())),
        Err(error) => {
            // Programs run without the engine: their connections stay on the host path.
            log.log_limited("engine", || format!("no TCP engine: {error}"));
            Ok((None, Some(error.to_string())))
        }
    }
}

/// Reports which connections cannot be paired here.
fn log_unpairable(diag: &io::Result<Diag>, proving: &Proving, log: &mut Log) {
    if let Err(error) = diag {
        log.log_limited("proof", || {
            format!("cannot ask the kernel about sockets, so no connections are paired: {error}")
        });
    }
    if let Some(why) = &proving.no_witness {
        log.log_limited("proof", || {
            format!("connections are paired within one network namespace only: {why}")
        });
    }
}

/// The registry's limits, with `descriptors_max` descriptors for regions.
fn limits_of(options: &Options, descriptors_max: usize) -> Limits {
    let mut limits = Limits::with_regions(options.regions_max);
    if options.is_system {
        // A channel takes two descriptors if it is the only one of its pair.
        let in_own_pairs = descriptors_max / 2;
        limits.user = UserLimits::of_system(options.regions_max.min(in_own_pairs));
    }
    limits
}

fn spare_descriptor() -> Option<File> {
    File::open("/dev/null").ok()
}

/// The time to wait before sending again when too many descriptors are in flight. When clients take
/// them, we get no event.
const THROTTLE_RETRY: Duration = Duration::from_millis(20);
