//! One thread that answers the messages of many connections.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::socket::{Stream, check};
use super::wire::{self, Header};

/// The side of the thread that other threads may use.
pub(super) struct EventLoop {
    epoll: OwnedFd,
    connections: Mutex<HashMap<RawFd, Connection>>,
}

struct Connection {
    stream: Stream,
    header: Header,
    /// Bytes of the message that is being received.
    have: usize,
    /// Bytes of responses that are not sent yet.
    owed: usize,
    waits_for_room: bool,
}

impl EventLoop {
    pub(super) fn start() -> io::Result<Arc<EventLoop>> {
        let event_loop = Arc::new(EventLoop {
            epoll: epoll()?,
            connections: Mutex::default(),
        });
        let own = Arc::clone(&event_loop);
        thread::spawn(move || own.run());
        Ok(event_loop)
    }

    pub(super) fn add(&self, stream: Stream, header: Header) -> io::Result<()> {
        stream.set_nonblocking()?;
        let fd = stream.fd();
        let connection = Connection {
            stream,
            header,
            have: 0,
            owed: 0,
            waits_for_room: false,
        };
        let mut connections = self.lock();
        connections.insert(fd, connection);
        control(
            self.epoll.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            fd,
            libc::EPOLLIN,
        )
    }

    fn run(&self) {
        let mut scratch = vec![0; SCRATCH_BYTES];
        let mut response = vec![0; SCRATCH_BYTES];
        wire::fill(&mut response);
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        loop {
            let Ok(count) = wait(self.epoll.as_raw_fd(), &mut events, -1) else {
                return;
            };
            let mut connections = self.lock();
            for event in &events[..count] {
                let fd = event.u64 as RawFd;
                let Some(connection) = connections.get_mut(&fd) else {
                    continue;
                };
                let is_over = match connection.serve(&mut scratch, &response) {
                    Ok(is_open) => !is_open,
                    Err(_) => true,
                };
                if is_over || connection.watch(self.epoll.as_raw_fd()).is_err() {
                    // Closing its only descriptor ends its registration.
                    connections.remove(&fd);
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RawFd, Connection>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Reads the available bytes and answers; false at the end of the stream.
    fn serve(&mut self, scratch: &mut [u8], response: &[u8]) -> io::Result<bool> {
        let count = match self.stream.read(scratch) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        if self.header.touch {
            std::hint::black_box(wire::sum(&scratch[..count]));
        }
        self.have += count;
        self.owed += self.have / self.header.message * self.header.response;
        self.have %= self.header.message;
        while self.owed > 0 {
            match self
                .stream
                .write(&response[..self.owed.min(response.len())])
            {
                Ok(count) => self.owed -= count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Waits for room in the socket only while there are bytes to send.
    fn watch(&mut self, epoll: RawFd) -> io::Result<()> {
        let waits = self.owed > 0;
        if waits == self.waits_for_room {
            return Ok(());
        }
        self.waits_for_room = waits;
        // While a client does not read, we do not read from it either.
        let events = if waits { libc::EPOLLOUT } else { libc::EPOLLIN };
        control(epoll, libc::EPOLL_CTL_MOD, self.stream.fd(), events)
    }
}

pub(super) fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: takes an integer.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    check(fd)?;
    // SAFETY: the call returned a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Watches for bytes to read; events carry `data`.
pub(super) fn add(epoll: RawFd, fd: RawFd, data: u64) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: data,
    };
    // SAFETY: `event` is complete; the kernel only reads it.
    check(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) })
}

pub(super) fn control(
    epoll: RawFd,
    operation: libc::c_int,
    fd: RawFd,
    events: libc::c_int,
) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: events as u32,
        u64: fd as u64,
    };
    // SAFETY: `event` is complete; the kernel only reads it.
    check(unsafe { libc::epoll_ctl(epoll, operation, fd, &mut event) })
}

/// The number of events; waits at most `timeout` milliseconds for them.
pub(super) fn wait(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    millis: libc::c_int,
) -> io::Result<usize> {
    let room = libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX);
    // SAFETY: `events` has room for so many.
    let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), room, millis) };
    match usize::try_from(count) {
        Ok(count) => Ok(count),
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            error => Err(error),
        },
    }
}

pub(super) const EVENTS: usize = 256;
const SCRATCH_BYTES: usize = 64 << 10;
