//! epoll(7), with tokens: the daemon and the engine's threads sleep in it.
//!
//! It uses libc, because rustix's events contain a pointer and so cannot be passed between threads.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::listener::{check, owned};

/// Most events handled between two waits.
pub(crate) const EVENTS_PER_TURN: usize = 256;

/// An epoll instance.
#[derive(Debug)]
pub(crate) struct Epoll {
    epoll: OwnedFd,
    /// Room for the kernel's events.
    events: Box<[libc::epoll_event]>,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: no memory is involved.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_PER_TURN].into();
        Ok(Epoll { epoll, events })
    }

    /// Begins to report `bits` (`EPOLL*`) of `fd`, under a token. Closing all duplicates of it ends
    /// that.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u64, bits: libc::c_int) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, bits)
    }

    /// Reports other bits of `fd` from now on.
    pub(crate) fn change(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        bits: libc::c_int,
    ) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, bits)
    }

    /// Stops reporting `fd`. Closing it is not enough if another process may have a duplicate:
    /// epoll watches open file descriptions, and would report this one for ever.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // This fails only if `fd` is not watched; then nothing is to be done.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Waits for events, as tokens and bits; there are none when interrupted or out of time.
    pub(crate) fn wait(
        &mut self,
        timeout: Option<Duration>,
    ) -> io::Result<impl Iterator<Item = (u64, u32)>> {
        // Rounded up: waking just before a deadline would spin until it.
        let timeout_ms = timeout.map_or(-1, |timeout| {
            libc::c_int::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(libc::c_int::MAX)
        });
        let (epoll, room) = (self.epoll.as_raw_fd(), self.events.len() as libc::c_int);
        // SAFETY: `events` has room for the number of events given.
        let count = unsafe { libc::epoll_wait(epoll, self.events.as_mut_ptr(), room, timeout_ms) };
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => 0,
                error => return Err(error),
            },
        };
        let events = self.events[..count].iter();
        Ok(events.map(|event| (event.u64, event.events)))
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: BorrowedFd<'_>,
        token: u64,
        bits: libc::c_int,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: bits as u32,
            u64: token,
        };
        let (epoll, fd) = (self.epoll.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: `event` is valid for the call.
        check(unsafe { libc::epoll_ctl(epoll, operation, fd, &mut event) })
    }
}

impl AsFd for Epoll {
    /// Readable when there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl From<Epoll> for OwnedFd {
    fn from(epoll: Epoll) -> OwnedFd {
        epoll.epoll
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn nothing_is_heard_of_a_closed_socket_that_others_have_duplicated() {
        let mut epoll = Epoll::new().expect("epoll");
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let _duplicate = ours.try_clone().expect("dup");
        epoll.add(ours.as_fd(), 7, libc::EPOLLIN).expect("watched");
        drop(theirs);
        let mut heard = || {
            let events = epoll.wait(Some(Duration::ZERO)).expect("waited");
            events.map(|(token, _)| token).collect::<Vec<u64>>()
        };
        assert_eq!(heard(), [7], "it is heard of while it is watched");
        epoll.remove(ours.as_fd());
        drop(ours);
        let events = epoll.wait(Some(Duration::ZERO)).expect("waited");
        assert_eq!(events.count(), 0);
    }
}
