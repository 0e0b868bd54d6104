//! The offload path's engine: a TCP of its own on a link of its own, for programs that reach it by their sockets.
//!
//! ```text
//!   program ── carrier (kernel, loopback) ── Flow ── toehold_tcp::Engine ── Tap ── any remote
//! ```
//!
//! - *Active*: the library connects the program's socket to the relay and says, in the first bytes on it, where it is to lead and by whose
//!   leave. The answer is one urgent byte on the carrier.
//! - *Passive*: the library says that the program listens; the engine listens on its addresses as well, and for each connection it accepts
//!   a carrier is connected to the program's own listener. Accept, backlog, epoll and fork are the kernel's.
//!
//! Once a connection has seen some traffic the engine asks its own adapter, like any client, for a channel beside the carrier; program and
//! engine are then peers as two programs are.
//!
//! One thread serves it all: it sleeps in epoll, and an engine without work costs nothing. Carriers have `SO_LINGER` 0 while they
//! are in use: should we die, the kernel resets them, and the program sees what it would see of a failed network interface, instead of
//! an end of file that nobody sent.
//!
//! - [`settings`]: what the operator says. No I/O but reading a file.
//! - `runner`: the thread, and in it `connections`, that come and go, and `orders`, from the daemon; `flow`, `relay`: one connection and its
//!   bytes; `memory`, `lane`: where those are; `channels`: channels and boards; `listeners`: programs that listen; `stand_ins`: our addresses
//!   on loopback; `told`: settings in the TCP's words; `arrivals`: programs at the relay, `silent` those that say nothing, `passes` what they
//!   are known by; `patience`: when to sleep.
//! - `captures`: what passes on the link, to whoever asked.
//! - `link`, `poller`, `sys`: the operating system.

mod arrivals;
mod captures;
mod channels;
mod flow;
mod intake;
mod lane;
mod link;
mod listeners;
mod memory;
mod outlet;
mod passes;
mod patience;
mod poller;
mod relay;
mod runner;
pub mod settings;
mod silent;
mod stand_ins;
mod sys;
mod told;

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::Serialize;
use toehold_channel::memfd::MapError;
use toehold_channel::opening::Pass;
use toehold_link::TapError;

use crate::listener::owned;
use crate::regions::SharedFd;
use crate::registry::ClientId;
pub(crate) use captures::Filter;
use captures::Wanted;
use channels::Channels;
pub(crate) use listeners::Listening;
use passes::Passes;
use runner::Runner;
use settings::Settings;

/// Why there is no engine. The adapter does without, and everything stays on the host path.
#[derive(Debug)]
pub enum Error {
    /// The TAP device cannot be had.
    Tap(TapError),
    /// The namespace of the device cannot be entered.
    Namespace(String, io::Error),
    /// No MTU was given, and the device does not tell.
    NoMtu,
    /// What clients are shown cannot be mapped.
    Outlook(MapError),
    /// The operating system refused.
    Os(&'static str, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Tap(error) => error.fmt(out),
            Error::Namespace(name, error) => write!(
                out,
                "cannot enter the network namespace {name} ({error}); this needs CAP_SYS_ADMIN, and `ip netns add {name}`"
            ),
            Error::NoMtu => write!(out, "the link does not tell its MTU; give one with --mtu"),
            Error::Outlook(error) => write!(out, "cannot map what clients are shown: {error:?}"),
            Error::Os(action, error) => write!(out, "cannot {action}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// What the daemon tells the engine.
#[derive(Debug)]
enum Command {
    /// A program listens.
    Listen(Listening),
    /// A program may have stopped listening.
    LookAtListeners,
    /// Somebody wants to see the frames.
    Capture(Wanted),
    /// The operator has changed the settings.
    Reconfigure(Box<Settings>),
    /// Say what has happened so far.
    Report(SyncSender<Report>),
    /// End.
    Stop,
}

/// A program's wish to connect.
#[derive(Clone, Copy, Debug)]
struct Request {
    client: ClientId,
    /// The program's end of the carrier.
    carrier: SocketAddr,
    remote: SocketAddr,
    /// The local port it bound to; 0 for any.
    local_port: u16,
}

/// What the engine has done, for `toehold status`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) link: String,
    pub(crate) addresses: Vec<String>,
    pub(crate) mtu: u16,
    pub(crate) connections: usize,
    /// Those with a channel beside the carrier.
    pub(crate) channels: usize,
    pub(crate) listeners: usize,
    /// Captures that run.
    pub(crate) captures: usize,
    pub(crate) frames_received: u64,
    pub(crate) frames_sent: u64,
    pub(crate) frames_malformed: u64,
    pub(crate) segments_received: u64,
    pub(crate) segments_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) retransmissions: u64,
    pub(crate) timeouts: u64,
    pub(crate) resets_sent: u64,
    pub(crate) resets_received: u64,
    pub(crate) connections_opened: u64,
    pub(crate) connections_accepted: u64,
    /// Connections reset because their program was gone.
    pub(crate) programs_gone: u64,
    /// Carriers reset because they did not say, or not in time, what they are for, or by nobody's leave.
    pub(crate) carriers_refused: u64,
    /// Requests and connections refused because a program was at its quota.
    pub(crate) over_quota: u64,
    /// Frames the link did not take.
    pub(crate) frames_refused: u64,
    /// Payloads that the link put into a program's ring with no copy between.
    pub(crate) payloads_in_place: u64,
    /// Times the settings were changed while it ran.
    pub(crate) reconfigured: u64,
    /// Times the thread slept.
    pub(crate) sleeps: u64,
}

/// A running engine.
#[derive(Debug)]
pub(crate) struct Engine {
    commands: Sender<Command>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    outlook: SharedFd,
    passes: Arc<Passes>,
    /// What it was told last.
    settings: Settings,
    /// The engine's connection to the adapter, for the daemon to serve.
    client: Option<OwnedFd>,
}

impl Engine {
    /// Opens the link and starts the thread.
    ///
    /// # Errors
    /// See [`Error`].
    pub(crate) fn start(settings: &Settings) -> Result<Engine, Error> {
        // SAFETY: no memory is involved.
        let bell = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) });
        let bell = Arc::new(bell.map_err(|error| Error::Os("make an event", error))?);
        let (commands, inbox) = mpsc::channel();
        let inbox = Inbox {
            commands: inbox,
            bell: bell.clone(),
        };
        let (channels, client) =
            Channels::new().map_err(|error| Error::Os("make a table for the engine", error))?;
        let passes = Arc::new(Passes::default());
        let (mut runner, outlook) = Runner::new(settings, inbox, channels, passes.clone())?;
        let thread = thread::Builder::new().name("engine".into());
        let thread = without_signals(|| thread.spawn(move || runner.run()));
        Ok(Engine {
            commands,
            bell,
            thread: Some(thread.map_err(|error| Error::Os("start a thread", error))?),
            outlook: SharedFd::new(outlook),
            passes,
            settings: settings.clone(),
            client: Some(client),
        })
    }

    /// The socket by which the engine is a client; once.
    pub(crate) fn take_client(&mut self) -> Option<OwnedFd> {
        self.client.take()
    }

    /// What clients are shown.
    pub(crate) fn outlook(&self) -> SharedFd {
        self.outlook.clone()
    }

    /// What a client's carriers have to show to lead anywhere; nothing when the kernel has no random numbers.
    pub(crate) fn give_pass(&self, client: ClientId) -> Pass {
        self.passes.give(client).unwrap_or_default()
    }

    /// A client is gone.
    pub(crate) fn take_pass_back(&self, client: ClientId) {
        self.passes.take_back(client);
    }

    /// A program listens.
    pub(crate) fn listen(&self, wanted: Listening) {
        self.tell(Command::Listen(wanted));
    }

    /// A program may have stopped listening.
    pub(crate) fn look_at_listeners(&self) {
        self.tell(Command::LookAtListeners);
    }

    /// Begins a capture; the descriptor it is to be read from.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn capture(&self, kept_max: usize, filter: Filter) -> io::Result<OwnedFd> {
        let (stream, theirs) = UnixStream::pair()?;
        self.tell(Command::Capture(Wanted {
            stream,
            kept_max,
            filter,
        }));
        Ok(theirs.into())
    }

    /// Follows other settings while it runs.
    ///
    /// # Errors
    /// A sentence about what cannot be changed without a restart; then nothing is.
    pub(crate) fn reconfigure(&mut self, settings: &Settings) -> Result<(), &'static str> {
        let (before, after) = (&self.settings, settings);
        if before.device != after.device {
            return Err("another link needs another adapter");
        }
        if (before.lso, before.lro, before.checksum) != (after.lso, after.lro, after.checksum) {
            return Err("other offloads of the link need another adapter");
        }
        self.tell(Command::Reconfigure(Box::new(settings.clone())));
        self.settings = settings.clone();
        Ok(())
    }

    /// What it has done; nothing when it does not answer soon.
    pub(crate) fn report(&self) -> Option<Report> {
        let (answer, report) = mpsc::sync_channel(1);
        self.tell(Command::Report(answer));
        report.recv_timeout(REPORT_PATIENCE).ok()
    }

    fn tell(&self, command: Command) {
        // It fails only when the thread is gone: then there is nobody to tell, and carriers die by themselves.
        if self.commands.send(command).is_ok() {
            ring(&self.bell);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // Should it have panicked, that was said already.
            let _ = thread.join();
        }
    }
}

/// The engine's side of the commands.
#[derive(Debug)]
struct Inbox {
    commands: Receiver<Command>,
    bell: Arc<OwnedFd>,
}

impl Inbox {
    fn bell(&self) -> std::os::fd::BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Silences the bell; the commands themselves are taken afterwards.
    fn silence(&self) {
        let mut count = [0u8; 8];
        // SAFETY: `count` is writable for its length.
        unsafe {
            libc::read(
                self.bell.as_raw_fd(),
                count.as_mut_ptr().cast(),
                count.len(),
            )
        };
    }

    /// Has the thread look at the commands in its next turn.
    fn ring(&self) {
        ring(&self.bell);
    }

    fn next(&self) -> Option<Command> {
        self.commands.try_recv().ok()
    }
}

fn ring(bell: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` is valid for its length. An eventfd takes it unless it holds 2^64 - 2 already.
    unsafe { libc::write(bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Has `start` make a thread, and threads of that thread's, to which no signal of the process goes: they are the daemon's, which may begin
/// to catch them later.
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

/// How long `toehold status` waits for a busy engine.
const REPORT_PATIENCE: Duration = Duration::from_millis(200);
