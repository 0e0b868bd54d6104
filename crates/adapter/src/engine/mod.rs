//! The offload path's engine: our own TCP on its own link, which programs use through their
//! sockets.
//!
//! ```text
//!   program ── carrier (kernel, loopback) ── Flow ── toehold_tcp::Engine ── Link ── any remote
//! ```
//!
//! - *Active*: the library connects the program's socket to the relay and sends a preamble with the
//!   destination and the client token. The answer is one urgent byte on the carrier.
//! - *Passive*: the library says that the program listens; the engine listens on its addresses as
//!   well, and for each connection it accepts a carrier is connected to the program's own listener.
//!   Accept, backlog, epoll and fork are the kernel's. A carrier may serve further connections.
//!
//! Once a connection has had some traffic, the engine asks its own adapter, like any client, for a
//! channel beside the carrier. Program and engine are then peers, like two programs.
//!
//! The engine has one thread, or several: each has its own TCP, its own queue of the link, and its
//! own connections. A thread sleeps in epoll, so an engine without work costs nothing. Carriers
//! have `SO_LINGER` 0 while they are in use: if the adapter dies, the kernel resets them. Then the
//! program sees an error, as for a failed network interface, instead of an end of file that no
//! remote has sent.
//!
//! - [`settings`]: the operator's settings. No I/O but reading a file.
//! - `runner`: a thread; in it `connections` (connections come and go) and `orders` (the daemon's
//!   commands).
//! - `flow`, `relay`: one connection and its bytes; `advance`: one step of it. `memory`,
//!   `endpoint`, `rings`: where the bytes are; `copying`: a copy engine brings them there.
//!   `channels`: channels and ready bitmaps.
//! - `carriers`: carriers that serve one connection after another.
//! - `receiver`, `transmitter`: frames from and to the link.
//! - `outgoing`: the ports of the host's own addresses that connections go out from. `ports`: those
//!   that the kernel gives out, and those of carriers.
//! - `listeners`: programs that listen. `loopback_aliases`: loopback addresses that stand for ours.
//!   `tcp_config`: the TCP's configuration from the settings.
//! - `arrivals`: programs at the relay; `silent`: those that have not sent their preamble;
//!   `tokens`: how the engine knows whose a carrier is.
//! - `common`: what the threads share. `clients`: the programs. `inbox`, `passing`: commands and
//!   frames from other threads. `report`: counters for `toehold status`.
//! - `captures`: frames of the link, for those who ask.
//! - `spinning`: when to look for more work, and when to sleep.
//! - `link`, `device`, `poller`, `sys`: the operating system. `together`: sockets that the threads
//!   open together. `host`: the kernel's tables, where it has the engine's addresses as well.

mod advance;
mod arrivals;
mod captures;
mod carrier;
mod carriers;
mod channels;
mod clients;
mod common;
mod copying;
mod device;
mod endpoint;
mod flow;
mod host;
mod inbox;
mod link;
mod listeners;
mod loopback_aliases;
mod memory;
mod outgoing;
mod passing;
mod poller;
mod ports;
mod receiver;
mod relay;
mod report;
mod rings;
mod runner;
pub mod settings;
mod silent;
mod spinning;
mod sys;
mod tcp_config;
mod together;
mod tokens;
mod transmitter;

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::num::NonZeroU8;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::memfd::MapError;
use toehold_channel::preamble::{ClientToken, ConnectPreamble};
use toehold_link::{PacketError, PortError, TapError, XdpError};
use toehold_tcp::{Keepalive, Random, Share};

use crate::entropy;
use crate::regions::SharedFd;
use crate::registry::{ClientId, TableId};
pub(crate) use captures::Filter;
use captures::Wanted;
use channels::Channels;
use common::Common;
use host::Resolved;
use inbox::Inbox;
use link::Link;
pub(crate) use listeners::Listening;
pub(crate) use report::Report;
use runner::{Own, Runner};
use settings::Settings;

/// The reason why there is no engine. The adapter does without, and everything stays on the host
/// path.
#[derive(Debug)]
pub enum Error {
    /// The TAP device cannot be opened.
    Tap(TapError),
    /// The packet socket cannot be made.
    Packet(PacketError),
    /// The AF_XDP sockets cannot be made.
    Xdp(XdpError),
    /// Ports of a shared address cannot be kept from the kernel.
    Ports(PortError),
    /// None of the addresses can be used, for these reasons.
    NoAddress(Vec<String>),
    /// The namespace of the device cannot be entered.
    Namespace(String, io::Error),
    /// No MTU was given, and the device does not report one.
    NoMtu,
    /// The page shown to clients cannot be mapped.
    RoutingPage(MapError),
    /// The copy engine cannot be used, for this reason.
    CopyEngine(String),
    /// The operating system refused.
    Os(&'static str, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Tap(error) => error.fmt(out),
            Error::Packet(error) => error.fmt(out),
            Error::Xdp(error) => error.fmt(out),
            Error::Ports(error) => error.fmt(out),
            Error::NoAddress(complaints) => out.write_str(&complaints.join("; ")),
            Error::Namespace(name, error) => write!(
                out,
                "cannot enter the network namespace {name} ({error}); this needs CAP_SYS_ADMIN, \
                and `ip netns add {name}`"
            ),
            Error::NoMtu => write!(out, "the MTU of the link is unknown; give one with --mtu"),
            Error::RoutingPage(error) => {
                write!(out, "cannot map what clients are shown: {error:?}")
            }
            Error::CopyEngine(cause) => out.write_str(cause),
            Error::Os(action, error) => write!(out, "cannot {action}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// A command to a thread: from the daemon, or from another thread.
#[derive(Debug)]
enum Command {
    /// Connect a carrier to its destination, on this thread.
    Open(ActiveOpen),
    /// A program listens.
    Listen(Arc<ForAll<Listening>>),
    /// A program may have stopped listening.
    LookAtListeners,
    /// A program has changed its liveness settings for a remote.
    SetLiveness(LivenessChange),
    /// The operator has changed the settings.
    Reconfigure(Arc<ForAll<Settings>>),
    /// A client is gone: its token is valid only for carriers that wait at the relay by now. Sent
    /// to [`RELAY_THREAD`].
    TakeBackToken(ClientToken),
    /// Send the counts.
    Report(SyncSender<Report>),
    /// End.
    Stop,
}

/// The thread that accepts the carriers of programs at the relay.
const RELAY_THREAD: usize = 0;

/// A command to all threads that tells when all of them have followed it.
#[derive(Debug)]
struct ForAll<T> {
    order: T,
    /// Threads that have not followed yet.
    left: AtomicUsize,
}

impl<T> ForAll<T> {
    fn new(order: T, threads: usize) -> Arc<ForAll<T>> {
        let left = AtomicUsize::new(threads);
        Arc::new(ForAll { order, left })
    }

    /// Called by each thread that has followed; true for the last.
    fn is_followed_by_all(&self) -> bool {
        // AcqRel pairs with the `fetch_sub` of the others: what they did to follow happened before
        // the last one says so to programs.
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// An active open, for the thread that makes it.
#[derive(Debug)]
struct ActiveOpen {
    request: Request,
    carrier: TcpStream,
    /// Number of threads that could not make it.
    refusals: usize,
}

/// The holder of a connection or a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The process that made it.
    pub(crate) client: ClientId,
    /// The table of its fork family; any process of the family may hold it now.
    pub(crate) family: TableId,
}

/// A program's liveness settings for the remote of one of its connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LivenessChange {
    /// The family of the program.
    pub(crate) family: TableId,
    /// The addresses of the connection, as the program sees them.
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) keepalive: Option<Keepalive>,
    pub(crate) user_timeout: Option<toehold_tcp::Duration>,
}

/// A program's request to connect.
#[derive(Clone, Copy, Debug)]
struct Request {
    holder: Holder,
    /// The program's end of the carrier.
    carrier: SocketAddr,
    remote: SocketAddr,
    /// The local port it bound to; 0 for any.
    local_port: u16,
    /// Its carrier is to serve further connections.
    is_seed: bool,
    /// A message of the program opens the connection: the SYN may carry it.
    is_fast_open: bool,
    /// That message comes later: the SYN may wait for it.
    is_deferred: bool,
    connect_timeouts: ConnectTimeouts,
}

/// The time that a program waits for the remote's first answer, as it was set before the connect.
#[derive(Clone, Copy, Debug, Default)]
struct ConnectTimeouts {
    user_timeout: Option<toehold_tcp::Duration>,
    syn_retries_max: Option<NonZeroU8>,
}

impl ConnectTimeouts {
    fn of(preamble: &ConnectPreamble) -> ConnectTimeouts {
        let user_timeout = preamble.user_timeout_ms.map(|ms| u64::from(ms.get()));
        ConnectTimeouts {
            user_timeout: user_timeout.map(toehold_tcp::Duration::from_millis),
            syn_retries_max: preamble.syn_retries_max,
        }
    }
}

/// A running engine: one or several threads.
#[derive(Debug)]
pub(crate) struct Engine {
    threads: Vec<JoinHandle<()>>,
    common: Arc<Common>,
    routing_page: SharedFd,
    /// The current settings.
    settings: Settings,
    /// Sentences about settings that could not be applied.
    complaints: Vec<String>,
    /// The threads' connections to the adapter, for the daemon to serve.
    clients: Vec<OwnedFd>,
}

impl Engine {
    /// Opens the link and starts the threads.
    ///
    /// # Errors
    /// See [`Error`].
    pub(crate) fn start(settings: &Settings) -> Result<Engine, Error> {
        let wanted = settings;
        let settings = &calibrated(wanted).map_err(Error::CopyEngine)?;
        let count = settings.threads;
        let os = |action| move |error| Error::Os(action, error);
        let Resolved {
            mut settings,
            mut complaints,
        } = Link::resolve(settings)?;
        if settings.addresses.is_empty() {
            return Err(Error::NoAddress(complaints));
        }
        let outgoing = Link::take_outgoing(&settings).unwrap_or_else(|complaint| {
            complaints.push(complaint);
            settings.outgoing = None;
            None
        });
        complaints.extend(host::ports_in_use(&settings, |_, _| false));
        let settings = &settings;
        let entropy = entropy::bits().map_err(os("get random numbers"))?;
        let mut random = Random::from_entropy(entropy);
        let shares = Share::among(count as u32, &mut random);
        let links = Link::open_all(settings, shares[0].spread())?;
        let mtu = settings.mtu.or_else(|| links[0].mtu());
        let mtu = mtu.ok_or(Error::NoMtu)?;
        let inboxes = (0..count).map(|_| Inbox::new());
        let inboxes: Vec<Inbox> = inboxes
            .collect::<Result<_, _>>()
            .map_err(os("make an event"))?;
        let doors = inboxes.iter().map(Inbox::door).collect();
        let (common, singles) = Common::new(settings, outgoing, doors, &mut random)?;
        let mut engine = Engine {
            threads: Vec::new(),
            common: Arc::new(common),
            routing_page: SharedFd::new(singles.routing_page),
            settings: wanted.clone(),
            complaints,
            clients: Vec::new(),
        };
        let mut arrivals = Some(singles.arrivals);
        for ((share, link), inbox) in shares.into_iter().zip(links).zip(inboxes) {
            let (channels, client) = Channels::new().map_err(os("make a table for the engine"))?;
            engine.clients.push(client);
            let own = Own {
                share,
                link,
                inbox,
                channels,
                arrivals: arrivals.take(),
            };
            let mut runner = Runner::new(settings, engine.common.clone(), own, mtu)?;
            let thread = thread::Builder::new().name(thread_name(share.index()));
            let thread = without_signals(|| thread.spawn(move || runner.run()));
            engine.threads.push(thread.map_err(os("start a thread"))?);
        }
        Ok(engine)
    }

    /// The sockets over which the threads are clients. Returned only once.
    pub(crate) fn take_clients(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.clients)
    }

    /// The page shown to clients.
    pub(crate) fn routing_page(&self) -> SharedFd {
        self.routing_page.clone()
    }

    /// The token that a client's carriers have to show; nothing when the kernel has no random
    /// numbers.
    pub(crate) fn give_token(&self, holder: Holder) -> ClientToken {
        self.common.tokens.give(holder).unwrap_or_default()
    }

    /// A client is gone.
    pub(crate) fn revoke_token(&self, client: ClientId) {
        if let Some(token) = self.common.tokens.leave(client) {
            self.common.doors[RELAY_THREAD].send_command(Command::TakeBackToken(token));
        }
    }

    /// A program listens. When all threads listen for it, the last of them sends a
    /// [`toehold_channel::rendezvous::Kind::Listening`].
    pub(crate) fn listen(&self, wanted: Listening) {
        let wanted = ForAll::new(wanted, self.threads.len());
        self.send_to_all(|| Command::Listen(wanted.clone()));
    }

    /// A program reports its liveness settings for a remote.
    pub(crate) fn set_liveness(&self, change: LivenessChange) {
        self.send_to_all(|| Command::SetLiveness(change));
    }

    /// A program may have stopped listening.
    pub(crate) fn look_at_listeners(&self) {
        self.send_to_all(|| Command::LookAtListeners);
    }

    /// Begins a capture; the descriptor it is to be read from.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn capture(&self, kept_max: usize, filter: Filter) -> io::Result<OwnedFd> {
        let (stream, theirs) = UnixStream::pair()?;
        let wanted = Wanted {
            stream,
            kept_max,
            filter,
        };
        let (captures, link) = (&self.common.captures, &self.common.link);
        without_signals(|| captures.begin(link, wanted));
        Ok(theirs.into())
    }

    /// Follows other settings while it runs.
    ///
    /// # Errors
    /// A sentence about what cannot be changed without a restart; then nothing is.
    pub(crate) fn reconfigure(&mut self, settings: &Settings) -> Result<(), String> {
        let (before, after) = (&self.settings, settings);
        let refused = |cause: &str| Err(cause.to_owned());
        if before.device != after.device {
            return refused("another link needs another adapter");
        }
        if before.threads != after.threads {
            return refused("another number of engine threads needs another adapter");
        }
        if before.shares.is_empty() != after.shares.is_empty() {
            return refused("shared addresses in place of its own need another adapter");
        }
        if before.outgoing != after.outgoing {
            return refused("other ports to go out from need another adapter");
        }
        let mut resolved =
            Link::resolve(&calibrated(settings)?).map_err(|error| error.to_string())?;
        if resolved.settings.addresses.is_empty() {
            return Err(resolved.complaints.join("; "));
        }
        if self.common.outgoing.is_none() {
            resolved.settings.outgoing = None;
        }
        self.complaints = resolved.complaints;
        let shared = self.report().map_or(Vec::new(), |report| report.shared);
        let is_ours = |ip: IpAddr, port| {
            let address = ip.to_string();
            let mut shared = shared.iter();
            shared.any(|shared| shared.address == address && shared.in_use.contains(&port))
        };
        let ports_in_use = host::ports_in_use(&resolved.settings, is_ours);
        self.complaints.extend(ports_in_use);
        let change = ForAll::new(resolved.settings, after.threads);
        self.send_to_all(|| Command::Reconfigure(change.clone()));
        self.settings = settings.clone();
        Ok(())
    }

    /// Changes one setting while it runs.
    ///
    /// # Errors
    /// A sentence about the word or the value.
    pub(crate) fn change(&mut self, word: &str, value: &str) -> Result<(), String> {
        let mut settings = self.settings.clone();
        let changed = settings.change(word, value);
        changed.map_err(|error| error.to_string())?;
        self.reconfigure(&settings)
    }

    /// Sentences about settings that could not be applied.
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// The engine's counts; nothing when a thread does not answer soon.
    pub(crate) fn report(&self) -> Option<Report> {
        let asked = self.common.doors.iter().map(|door| {
            let (answer, report) = mpsc::sync_channel(1);
            door.send_command(Command::Report(answer));
            report
        });
        let asked: Vec<_> = asked.collect();
        let deadline = Instant::now() + REPORT_TIMEOUT;
        let reports = asked.into_iter().map(|report| {
            let left = deadline.saturating_duration_since(Instant::now());
            report.recv_timeout(left).ok()
        });
        let mut report = Report::together(reports.collect::<Option<_>>()?)?;
        report.complaints = self.complaints.clone();
        Some(report)
    }

    /// Each thread gets the commands in the same order, and no thread waits for another one.
    fn send_to_all(&self, command: impl Fn() -> Command) {
        for door in &self.common.doors {
            door.send_command(command());
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.send_to_all(|| Command::Stop);
        for thread in self.threads.drain(..) {
            // If the thread has panicked, that was already reported.
            let _ = thread.join();
        }
    }
}

/// The settings, with a calibrated copybreak; or the reason why the copy engine cannot be used.
fn calibrated(settings: &Settings) -> Result<Settings, String> {
    let mut settings = settings.clone();
    if let Some(cause) = settings.copy_engine.missing() {
        return Err(cause);
    }
    if settings.copy_engine.is_on() && settings.copybreak.is_none() {
        let (calibration, _) = toehold_copy::Calibration::of_this_machine();
        settings.copybreak = Some(calibration.copybreak_in.awake);
    }
    Ok(settings)
}

fn thread_name(index: usize) -> String {
    match index {
        0 => "engine".into(),
        index => format!("engine-{index}"),
    }
}

/// Calls `start` with all signals blocked, so that the threads that it makes get none: signals are
/// for the daemon, which may begin to catch them later.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both are valid for writes; the first call initialises `all`, which the second reads.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let started = start();
    // SAFETY: `before` was filled in above; the call cannot fail with these arguments.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    started
}

/// The time that `toehold status` waits for a busy engine.
const REPORT_TIMEOUT: Duration = Duration::from_millis(200);
