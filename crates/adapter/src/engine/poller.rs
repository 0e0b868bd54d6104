//! epoll for the engine's thread: the link, the relay, commands, and the sockets of relayed connections.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::listener::{check, owned};

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Frames wait on the link.
    Link,
    /// Something about the link has changed.
    LinkChange,
    /// Programs wait at the relay.
    Relay,
    /// Programs that said nothing at the relay now speak.
    Late,
    /// The daemon has something to say.
    Command,
    /// Channels are offered.
    Offers,
    /// A relayed connection's socket: its slot, and which of the slot's connections it was registered for.
    Flow(u32, u32),
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) source: Source,
    /// `EPOLL*`.
    pub(super) bits: u32,
}

#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    /// Room for what the kernel tells.
    told: Box<[libc::epoll_event]>,
}

impl Poller {
    pub(super) fn new() -> io::Result<Poller> {
        // SAFETY: no memory is involved.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let told = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_PER_TURN].into();
        Ok(Poller { epoll, told })
    }

    /// Reports whenever `fd` is readable.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        self.add(fd, source, libc::EPOLLIN)
    }

    /// Reports each change of a socket once. Closing the socket ends it.
    pub(super) fn watch_changes(&self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        let all = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        self.add(fd, source, all)
    }

    /// Reports nothing of `fd` any more.
    pub(super) fn unwatch(&self, fd: BorrowedFd<'_>) {
        let (epoll, fd) = (self.epoll.as_raw_fd(), fd.as_raw_fd());
        // It fails only when `fd` is not watched, which is what is wanted.
        // SAFETY: no memory is involved.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    fn add(&self, fd: BorrowedFd<'_>, source: Source, bits: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: bits as u32,
            u64: token_of(source),
        };
        let (epoll, fd) = (self.epoll.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: `event` is valid for the call.
        check(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) })
    }

    /// Waits for events; returns without any when interrupted or out of time.
    pub(super) fn wait(
        &mut self,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        // Rounded up: waking just before a deadline would spin until it.
        let timeout_ms = timeout.map_or(-1, |timeout| {
            libc::c_int::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(libc::c_int::MAX)
        });
        // SAFETY: `told` has room for the number of events given.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                self.told.as_mut_ptr(),
                EVENTS_PER_TURN as libc::c_int,
                timeout_ms,
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            let interrupted = error.kind() == io::ErrorKind::Interrupted;
            return if interrupted { Ok(()) } else { Err(error) };
        }
        events.extend(self.told[..count as usize].iter().map(|event| Event {
            source: source_of(event.u64),
            bits: event.events,
        }));
        Ok(())
    }
}

impl AsFd for Poller {
    /// Readable when there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn token_of(source: Source) -> u64 {
    match source {
        Source::Link => 0,
        Source::LinkChange => 1,
        Source::Relay => 2,
        Source::Command => 3,
        Source::Offers => 4,
        Source::Late => 5,
        Source::Flow(slot, serial) => FLOW | u64::from(serial) << 32 | u64::from(slot),
    }
}

fn source_of(token: u64) -> Source {
    match token {
        0 => Source::Link,
        1 => Source::LinkChange,
        2 => Source::Relay,
        3 => Source::Command,
        4 => Source::Offers,
        5 => Source::Late,
        _ => Source::Flow(token as u32, (token >> 32) as u32 & SERIAL_MASK),
    }
}

/// Most events handled between two waits.
pub(super) const EVENTS_PER_TURN: usize = 256;
/// A connection's serial number has 31 bits.
pub(super) const SERIAL_MASK: u32 = u32::MAX >> 1;
const FLOW: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_their_sources() {
        for source in [
            Source::Link,
            Source::LinkChange,
            Source::Relay,
            Source::Command,
            Source::Offers,
            Source::Late,
            Source::Flow(0, 0),
            Source::Flow(u32::MAX, SERIAL_MASK),
        ] {
            assert_eq!(source_of(token_of(source)), source);
        }
    }
}
