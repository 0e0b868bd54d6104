//! epoll for the engine's thread: the link, the relay, commands, and the sockets of relayed
//! connections.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::epoll::Epoll;

/// The subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Frames wait on the link.
    Link,
    /// Something about the link has changed.
    LinkChange,
    /// Programs wait at the relay.
    Relay,
    /// Silent programs at the relay have sent bytes.
    Late,
    /// Commands of the daemon wait.
    Command,
    /// Channels are offered.
    Offers,
    /// A relayed connection's socket: its slot, and the serial number under which it was
    /// registered.
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
pub(super) struct Poller(Epoll);

impl Poller {
    pub(super) fn new() -> io::Result<Poller> {
        Epoll::new().map(Poller)
    }

    /// Reports whenever `fd` is readable.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        self.0.add(fd, token_of(source), libc::EPOLLIN)
    }

    /// Reports each change of a socket once. Closing the socket ends it.
    pub(super) fn watch_changes(&self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        let news = libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP;
        let all = news | libc::EPOLLOUT | libc::EPOLLET;
        self.0.add(fd, token_of(source), all)
    }

    /// Reports nothing of `fd` any more.
    pub(super) fn unwatch(&self, fd: BorrowedFd<'_>) {
        self.0.remove(fd);
    }

    /// Waits for events; returns without any when interrupted or out of time.
    pub(super) fn wait(
        &mut self,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let found = self.0.wait(timeout)?;
        events.extend(found.map(|(token, bits)| Event {
            source: source_of(token),
            bits,
        }));
        Ok(())
    }
}

impl AsFd for Poller {
    /// Readable when there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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
