//! The events on which the daemon's loop sleeps: epoll, signals and the stop event.

use crate::epoll::Epoll;
use crate::listener::owned;
use crate::registry::ClientId;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The epoll instance that the loop sleeps in, with its events.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: Epoll,
    stop: OwnedFd,
    signals: Option<OwnedFd>,
    reload: Option<OwnedFd>,
}

/// Where an event comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A client's socket.
    Client(ClientId),
    /// A client's process, by its pidfd.
    Process(ClientId),
    /// The listening socket.
    Listener,
    /// A signal or a [`Stopper`].
    Stop,
    /// A signal: the settings may have changed.
    Reload,
    /// Firewall rules have changed.
    Firewall,
    /// Traffic control has changed.
    Shaping,
    /// Something has come to the runtime directory.
    Directory,
    /// A search for survivors has ended.
    Found,
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) source: Source,
    /// There is something to read, a hang-up included.
    pub(super) readable: bool,
    pub(super) writable: bool,
}

/// Ends a daemon's [`super::Daemon::serve`].
#[derive(Debug)]
pub struct Stopper(OwnedFd);

impl Stopper {
    /// Ends the daemon, now or as soon as it begins to serve.
    pub fn stop(&self) {
        let one = 1u64.to_ne_bytes();
        // An eventfd refuses the write only at 2^64 - 2.
        let _ = rustix::io::write(&self.0, &one);
    }
}

impl Poller {
    /// Watches a listening socket.
    pub(super) fn new(listener: BorrowedFd<'_>) -> io::Result<Poller> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let poller = Poller {
            epoll: Epoll::new()?,
            stop,
            signals: None,
            reload: None,
        };
        poller.watch(listener, Source::Listener)?;
        poller.watch(poller.stop.as_fd(), Source::Stop)?;
        Ok(poller)
    }

    /// Turns `SIGTERM` and `SIGINT` into [`Source::Stop`].
    pub(super) fn catch_signals(&mut self) -> io::Result<()> {
        let signals = caught(&[libc::SIGTERM, libc::SIGINT])?;
        self.watch(signals.as_fd(), Source::Stop)?;
        self.signals = Some(signals);
        Ok(())
    }

    /// Turns `SIGHUP` into [`Source::Reload`].
    pub(super) fn catch_reload(&mut self) -> io::Result<()> {
        let signals = caught(&[libc::SIGHUP])?;
        self.watch(signals.as_fd(), Source::Reload)?;
        self.reload = Some(signals);
        Ok(())
    }

    /// Takes all signals that have come, because the settings are read only once for them.
    pub(super) fn clear_reload(&self) {
        let Some(signals) = &self.reload else { return };
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        // The descriptor does not block.
        while rustix::io::read(signals, &mut info).is_ok_and(|count| count > 0) {}
    }
}

/// Blocks signals for the calling thread, and returns a signalfd for them.
fn caught(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` is valid for writes, initialised by the first call and only read by the last.
    let signals = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    owned(signals)
}

impl Poller {
    pub(super) fn stopper(&self) -> io::Result<Stopper> {
        Ok(Stopper(self.stop.try_clone()?))
    }

    /// Begins to report when `fd` is readable.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        self.epoll.add(fd, token_of(source), libc::EPOLLIN)
    }

    /// Reports nothing of `fd` any more.
    pub(super) fn unwatch(&self, fd: BorrowedFd<'_>) {
        self.epoll.remove(fd);
    }

    /// Reports, or no longer reports, when `fd` is writable as well.
    pub(super) fn watch_writable(
        &self,
        fd: BorrowedFd<'_>,
        source: Source,
        writable: bool,
    ) -> io::Result<()> {
        let extra = if writable { libc::EPOLLOUT } else { 0 };
        self.epoll
            .change(fd, token_of(source), libc::EPOLLIN | extra)
    }

    /// Waits for events; returns without any when interrupted or out of time.
    pub(super) fn wait(
        &mut self,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let found = self.epoll.wait(timeout)?;
        events.extend(found.map(|(token, bits)| Event {
            source: source_of(token),
            readable: bits & (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0,
            writable: bits & libc::EPOLLOUT as u32 != 0,
        }));
        Ok(())
    }
}

/// Gives up, for good, the privileges that a later `exec` could bring. A user's adapter needs none.
pub(super) fn give_up_privileges() {
    // This cannot fail on a kernel that has it; an older kernel has no alternative.
    let _ = rustix::thread::set_no_new_privs(true);
}

fn token_of(source: Source) -> u64 {
    match source {
        Source::Client(id) => id.0 << 2 | TAG_CLIENT,
        Source::Process(id) => id.0 << 2 | TAG_PROCESS,
        Source::Listener => TAG_LISTENER,
        Source::Stop => TAG_STOP,
        Source::Reload => 1 << 2 | TAG_STOP,
        Source::Firewall => 2 << 2 | TAG_STOP,
        Source::Directory => 3 << 2 | TAG_STOP,
        Source::Shaping => 4 << 2 | TAG_STOP,
        Source::Found => 5 << 2 | TAG_STOP,
    }
}

fn source_of(token: u64) -> Source {
    let id = ClientId(token >> 2);
    match token & 3 {
        TAG_CLIENT => Source::Client(id),
        TAG_PROCESS => Source::Process(id),
        TAG_LISTENER => Source::Listener,
        _ if id.0 == 1 => Source::Reload,
        _ if id.0 == 2 => Source::Firewall,
        _ if id.0 == 3 => Source::Directory,
        _ if id.0 == 4 => Source::Shaping,
        _ if id.0 == 5 => Source::Found,
        _ => Source::Stop,
    }
}

const TAG_CLIENT: u64 = 0;
const TAG_PROCESS: u64 = 1;
const TAG_LISTENER: u64 = 2;
const TAG_STOP: u64 = 3;
