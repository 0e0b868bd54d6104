//! A socket as a program sees it: its options, the positions in its stream, and the calls that
//! would block.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::SocketAddr;

use toehold_tcp::{CloseReason, ConnectionId, Duration, Instant, Keepalive, ListenerId};

use crate::descriptors::Descriptor;
use crate::stack::{Stack, errno_of};

/// The longest time for which a cork holds back a segment that is not full.
const CORK: Duration = Duration::from_millis(200);

/// A socket.
#[derive(Debug)]
pub(crate) struct Socket {
    /// `AF_INET` or `AF_INET6`: the format of its addresses.
    pub(crate) family: c_int,
    pub(crate) is_nonblocking: bool,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) wishes: Wishes,
    pub(crate) role: Role,
}

/// Options set on a socket; accepted sockets inherit them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) nodelay: bool,
    pub(crate) corked: bool,
    /// `SO_SNDBUF`, doubled as the kernel does.
    pub(crate) send_bytes: Option<u32>,
    pub(crate) receive_bytes: Option<u32>,
    /// `TCP_NOTSENT_LOWAT`; zero means the namespace's value.
    pub(crate) unsent_bytes_max: u32,
    pub(crate) mss_max: Option<u16>,
    pub(crate) user_timeout: Option<Duration>,
    pub(crate) keepalive: bool,
    pub(crate) keepalive_times: Option<Keepalive>,
    /// `SO_LINGER` with a time of zero: close sends a reset.
    pub(crate) close_resets: bool,
}

#[derive(Debug)]
pub(crate) enum Role {
    Fresh,
    Listener(Listener),
    Stream(Stream),
}

#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) ready: VecDeque<ConnectionId>,
    pub(crate) arrivals: u64,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: ConnectionId,
    pub(crate) is_connected: bool,
    pub(crate) received: u64,
    pub(crate) read: u64,
    pub(crate) published: u64,
    pub(crate) acknowledged: u64,
    pub(crate) remote_finished: bool,
    pub(crate) closed: Option<CloseReason>,
    /// The error that no call has returned yet.
    pub(crate) error: Option<c_int>,
    pub(crate) reads_end: bool,
    pub(crate) writes_end: bool,
    /// A writer found no space, and is waiting for an event when there is some.
    pub(crate) wants_room: bool,
    pub(crate) edges_in: u64,
    pub(crate) edges_out: u64,
    pub(crate) received_at: Instant,
    /// The time at which the cork releases its bytes.
    pub(crate) uncork_at: Option<Instant>,
    room_bytes: u64,
}

impl Stream {
    pub(crate) fn new(id: ConnectionId, is_connected: bool, room_bytes: u32, now: Instant) -> Self {
        Self {
            id,
            is_connected,
            received: 0,
            read: 0,
            published: 0,
            acknowledged: 0,
            remote_finished: false,
            closed: None,
            error: None,
            reads_end: false,
            writes_end: false,
            wants_room: false,
            edges_in: 0,
            edges_out: 0,
            received_at: now,
            uncork_at: None,
            room_bytes: u64::from(room_bytes),
        }
    }

    pub(crate) fn set_room(&mut self, bytes: u32) {
        self.room_bytes = u64::from(bytes);
    }

    pub(crate) fn end(&mut self, reason: CloseReason) {
        self.closed = Some(reason);
        self.error = errno_of(reason);
        self.edges_in += 1;
        self.edges_out += 1;
        self.uncork_at = None;
    }

    pub(crate) fn acknowledge(&mut self, acknowledged: u64) {
        self.acknowledged = acknowledged;
        if self.wants_room && self.is_roomy() {
            self.wants_room = false;
            self.edges_out += 1;
        }
    }

    fn queued(&self) -> u64 {
        self.published - self.acknowledged
    }

    /// Whether one more segment may be queued: the kernel checks before each segment, not once for
    /// all.
    fn has_room(&self) -> bool {
        self.queued() < self.room_bytes
    }

    /// Whether to wake a sleeping writer: a third of the buffer is free (`sk_stream_is_writeable`).
    pub(crate) fn is_roomy(&self) -> bool {
        self.room_bytes.saturating_sub(self.queued()) >= self.queued() / 2
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.read < self.received || self.is_at_end() || self.closed.is_some()
    }

    fn is_at_end(&self) -> bool {
        self.remote_finished || self.reads_end
    }
}

/// A call that may have to wait.
#[derive(Debug)]
pub(crate) enum Call {
    Accept {
        fd: c_int,
    },
    Connect {
        fd: c_int,
    },
    Read {
        fd: c_int,
        bytes: usize,
        flags: c_int,
    },
    Write {
        fd: c_int,
        bytes: Vec<u8>,
        written: usize,
        flags: c_int,
    },
    Poll {
        /// Descriptors and the events of interest.
        watched: Vec<(c_int, u32)>,
        deadline: Option<Instant>,
    },
    EpollWait {
        fd: c_int,
        events_max: usize,
        deadline: Option<Instant>,
    },
}

impl Call {
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Poll { deadline, .. } | Self::EpollWait { deadline, .. } => *deadline,
            _ => None,
        }
    }
}

/// The result of a call.
#[derive(Debug)]
pub(crate) enum Answer {
    Number(usize),
    Accepted(c_int),
    Bytes(Vec<u8>),
    /// The events of each watched descriptor.
    Ready(Vec<u32>),
    Events(Vec<(u32, u64)>),
}

pub(crate) type Outcome = Result<Answer, c_int>;

impl Stack {
    /// Tries a call once; `None` if the call has to wait.
    pub(crate) fn attempt(&mut self, call: &mut Call) -> Option<Outcome> {
        match call {
            Call::Accept { fd } => self.attempt_accept(*fd).transpose(),
            Call::Connect { fd } => self.attempt_connect(*fd).transpose(),
            Call::Read { fd, bytes, flags } => self.attempt_read(*fd, *bytes, *flags).transpose(),
            Call::Write {
                fd,
                bytes,
                written,
                flags,
            } => self.attempt_write(*fd, bytes, written, *flags),
            Call::Poll { watched, deadline } => {
                let ready: Vec<u32> = watched
                    .iter()
                    .map(|&(fd, interest)| self.poll_bits(fd, interest))
                    .collect();
                let is_over = deadline.is_some_and(|at| at <= self.now());
                (is_over || ready.iter().any(|&bits| bits != 0)).then_some(Ok(Answer::Ready(ready)))
            }
            Call::EpollWait {
                fd,
                events_max,
                deadline,
            } => {
                let events = match self.epoll_events(*fd, *events_max) {
                    Ok(events) => events,
                    Err(errno) => return Some(Err(errno)),
                };
                let is_over = deadline.is_some_and(|at| at <= self.now());
                (is_over || !events.is_empty()).then_some(Ok(Answer::Events(events)))
            }
        }
    }

    fn attempt_accept(&mut self, fd: c_int) -> Result<Option<Answer>, c_int> {
        let socket = self.descriptors.socket_mut(fd)?;
        let (family, wishes, local) = (socket.family, socket.wishes, socket.local);
        let Role::Listener(listener) = &mut socket.role else {
            return Err(libc::EINVAL);
        };
        let Some(id) = listener.ready.pop_front() else {
            return Ok(None);
        };
        let listener = listener.id;
        let next = self.engine().accept(listener);
        if let Role::Listener(ours) = &mut self.descriptors.socket_mut(fd)?.role {
            ours.ready.extend(next);
        }
        let stream = Stream::new(id, true, self.room_for(&wishes), self.now());
        let accepted = Socket {
            family,
            is_nonblocking: false,
            local,
            wishes,
            role: Role::Stream(stream),
        };
        let accepted = self.descriptors.add(Descriptor::Socket(Box::new(accepted)));
        self.catch_up(accepted);
        Ok(Some(Answer::Accepted(accepted)))
    }

    /// Applies the events that a connection had before it had a descriptor.
    fn catch_up(&mut self, fd: c_int) {
        let Ok(stream) = self.stream(fd) else { return };
        let id = stream.id;
        let Some(info) = self.engine().info(id) else {
            return;
        };
        if let Ok(stream) = self.stream(fd) {
            stream.received = info.received;
            stream.remote_finished = info.remote_finished;
        }
    }

    /// The number of bytes that a socket may queue.
    pub(crate) fn room_for(&mut self, wishes: &Wishes) -> u32 {
        // Without `SO_SNDBUF` the kernel lets the buffer grow with the window.
        wishes.send_bytes.unwrap_or(self.settings().send_bytes_max)
    }

    fn attempt_connect(&mut self, fd: c_int) -> Result<Option<Answer>, c_int> {
        let stream = self.stream(fd)?;
        if stream.is_connected {
            return Ok(Some(Answer::Number(0)));
        }
        if stream.closed.is_some() {
            return Err(stream.error.take().unwrap_or(libc::ECONNABORTED));
        }
        Ok(None)
    }

    fn attempt_read(
        &mut self,
        fd: c_int,
        bytes: usize,
        flags: c_int,
    ) -> Result<Option<Answer>, c_int> {
        let stream = self.stream(fd)?;
        let available = (stream.received - stream.read) as usize;
        if available == 0 || bytes == 0 {
            if let Some(error) = stream.error.take() {
                return Err(error);
            }
            if stream.is_at_end() || stream.closed.is_some() || bytes == 0 {
                return Ok(Some(Answer::Bytes(Vec::new())));
            }
            return Ok(None);
        }
        let (id, start) = (stream.id, stream.read as usize);
        let end = start + available.min(bytes);
        let taken = self.ring(id).incoming[start..end].to_vec();
        if flags & libc::MSG_PEEK == 0 {
            self.stream(fd)?.read = end as u64;
            // The connection may be closed, and then has no window to open.
            let _ = self.engine().take(id, end as u64);
        }
        Ok(Some(Answer::Bytes(taken)))
    }

    fn attempt_write(
        &mut self,
        fd: c_int,
        bytes: &[u8],
        written: &mut usize,
        flags: c_int,
    ) -> Option<Outcome> {
        let before = *written;
        let outcome = self.try_write(fd, bytes, written, flags);
        match outcome {
            Ok(()) if *written == bytes.len() => Some(Ok(Answer::Number(*written))),
            Ok(()) => None,
            // If bytes were moved before an error, the call returns their number.
            Err(_) if before > 0 => Some(Ok(Answer::Number(before))),
            Err(errno) => Some(Err(errno)),
        }
    }

    /// Queues as many bytes as there is space for.
    fn try_write(
        &mut self,
        fd: c_int,
        bytes: &[u8],
        written: &mut usize,
        flags: c_int,
    ) -> Result<(), c_int> {
        let now = self.now();
        let wishes = self.descriptors.socket(fd)?.wishes;
        let stream = self.stream(fd).map_err(|errno| match errno {
            libc::ENOTCONN => libc::EPIPE,
            errno => errno,
        })?;
        if let Some(error) = stream.error.take() {
            return Err(error);
        }
        if stream.closed.is_some() || stream.writes_end {
            return Err(libc::EPIPE);
        }
        if !stream.is_connected {
            return Ok(());
        }
        let id = stream.id;
        let Some(info) = self.engine().info(id) else {
            return Err(libc::EPIPE);
        };
        // The kernel fills segments one by one, and checks for space before each.
        let chunk = usize::from(info.mss);
        let start = *written;
        let stream = self.stream(fd)?;
        while *written < bytes.len() && stream.has_room() {
            let step = chunk.min(bytes.len() - *written);
            *written += step;
            stream.published += step as u64;
        }
        stream.wants_room = *written < bytes.len();
        let (end, fresh) = (stream.published, &bytes[start..*written]);
        let corked = wishes.corked || flags & libc::MSG_MORE != 0;
        stream.uncork_at = corked.then(|| stream.uncork_at.unwrap_or(now + CORK));
        self.ring(id).outgoing.extend_from_slice(fresh);
        let engine = self.engine();
        let _ = engine.set_coalescing(now, id, wishes.nodelay, corked);
        let _ = engine.publish(id, end);
        Ok(())
    }

    /// Sets or clears a cork. `push` sends the bytes that the cork holds back and keeps the cork.
    pub(crate) fn set_cork(&mut self, fd: c_int, push: bool) {
        let Ok(wishes) = self.descriptors.socket(fd).map(|socket| socket.wishes) else {
            return;
        };
        let now = self.now();
        if let Ok(stream) = self.stream(fd) {
            let id = stream.id;
            if !wishes.corked {
                stream.uncork_at = None;
            } else if push {
                stream.uncork_at = Some(now);
                self.uncork_due();
                return;
            }
            let _ = self
                .engine()
                .set_coalescing(now, id, wishes.nodelay, wishes.corked);
        }
    }

    /// The event bits that poll(2) reports.
    fn poll_bits(&mut self, fd: c_int, interest: u32) -> u32 {
        self.readiness(fd) & (interest | (libc::EPOLLERR | libc::EPOLLHUP) as u32)
    }

    /// The readiness of a descriptor, as epoll bits.
    pub(crate) fn readiness(&mut self, fd: c_int) -> u32 {
        let Ok(socket) = self.descriptors.socket(fd) else {
            return libc::POLLNVAL as u32;
        };
        let (id, wishes) = match &socket.role {
            Role::Fresh => return (libc::EPOLLOUT | libc::EPOLLHUP) as u32,
            Role::Listener(listener) if listener.ready.is_empty() => return 0,
            Role::Listener(_) => return libc::EPOLLIN as u32,
            Role::Stream(stream) => (stream.id, socket.wishes),
        };
        let unsent_max = match wishes.unsent_bytes_max {
            0 => self.settings().unsent_bytes_max,
            wish => wish,
        };
        let sent = self.engine().info(id).map_or(u64::MAX, |info| info.sent);
        let Ok(stream) = self.stream(fd) else {
            return 0;
        };
        let mut bits = 0;
        if stream.is_readable() {
            bits |= libc::EPOLLIN | libc::EPOLLRDNORM;
        }
        if stream.is_at_end() {
            bits |= libc::EPOLLRDHUP;
        }
        let is_over = stream.closed.is_some();
        let unsent = stream.published.saturating_sub(sent);
        if stream.is_connected && stream.is_roomy() && unsent < u64::from(unsent_max)
            || is_over
            || stream.writes_end
        {
            bits |= libc::EPOLLOUT | libc::EPOLLWRNORM;
        } else if stream.is_connected {
            stream.wants_room = true;
        }
        if stream.error.is_some() {
            bits |= libc::EPOLLERR;
        }
        if is_over || stream.is_at_end() && stream.writes_end {
            bits |= libc::EPOLLHUP;
        }
        bits as u32
    }

    fn epoll_events(&mut self, fd: c_int, events_max: usize) -> Result<Vec<(u32, u64)>, c_int> {
        let watches = self.descriptors.epoll_mut(fd)?.watches.clone();
        let mut events = Vec::new();
        for (member, mut watch) in watches {
            let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
            let bits = self.readiness(member) & (watch.interest | always);
            let edges = self.edges(member);
            let is_edge_triggered = watch.interest & libc::EPOLLET as u32 != 0;
            let is_news = !is_edge_triggered || watch.edges_told != Some(edges);
            if bits == 0 || watch.is_spent || !is_news || events.len() == events_max {
                continue;
            }
            watch.edges_told = Some(edges);
            watch.is_spent = watch.interest & libc::EPOLLONESHOT as u32 != 0;
            events.push((bits, watch.data));
            self.descriptors
                .epoll_mut(fd)?
                .watches
                .insert(member, watch);
        }
        Ok(events)
    }

    /// The counts that an edge-triggered watcher compares.
    fn edges(&self, fd: c_int) -> (u64, u64) {
        match self.descriptors.socket(fd).map(|socket| &socket.role) {
            Ok(Role::Stream(stream)) => (stream.edges_in, stream.edges_out),
            Ok(Role::Listener(listener)) => (listener.arrivals, 0),
            _ => (0, 0),
        }
    }
}
