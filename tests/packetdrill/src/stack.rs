//! The engine, its rings, the link to the script, and the clock.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;

use toehold_tcp::{
    CloseReason, ConnectionId, Duration, Engine, Event, Instant, Memory, NoRoom, Random,
    ReceiveOffload,
};

use crate::descriptors::{Descriptor, Descriptors};
use crate::settings::Settings;
use crate::socket::{Call, Outcome, Role, Stream};

/// The start of the clock: late enough for a script that subtracts times.
const EPOCH: Instant = Instant::from_micros(1_000_000_000);
/// If a frame is not sent by then, it will never be sent.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Room for headers and the largest payload of one frame.
const FRAME_BYTES_MAX: usize = 68_000;

/// The complete state behind the interface.
#[derive(Debug)]
pub(crate) struct Stack {
    flags: String,
    /// Made with the first socket, after the script has set its settings.
    made: Option<Made>,
    now: Instant,
    wire: VecDeque<(Instant, Vec<u8>)>,
    rings: Rings,
    pub(crate) descriptors: Descriptors,
    pub(crate) waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Made {
    engine: Engine,
    settings: Settings,
}

/// A call that sleeps. The script has at most one such call.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) call: Call,
    /// The time at which the call ended, and its result.
    pub(crate) ended: Option<(Instant, Outcome)>,
}

impl Stack {
    pub(crate) fn new(flags: &str) -> Self {
        Self {
            flags: flags.to_owned(),
            made: None,
            now: EPOCH,
            wire: VecDeque::new(),
            rings: Rings::default(),
            descriptors: Descriptors::default(),
            waiting: None,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    fn made(&mut self) -> &mut Made {
        self.made.get_or_insert_with(|| {
            let settings = Settings::read(&self.flags);
            Made {
                engine: Engine::new(settings.config(), Random::new(1)),
                settings,
            }
        })
    }

    pub(crate) fn engine(&mut self) -> &mut Engine {
        &mut self.made().engine
    }

    pub(crate) fn settings(&mut self) -> &Settings {
        &self.made().settings
    }

    /// The bytes that a connection has received, and those that it sends, from the first byte.
    pub(crate) fn ring(&mut self, id: ConnectionId) -> &mut Ring {
        self.rings.0.entry(id).or_default()
    }

    /// A packet from the script.
    pub(crate) fn deliver(&mut self, packet: &[u8]) {
        let now = self.now;
        let mut rings = std::mem::take(&mut self.rings);
        self.engine()
            .handle_frame(now, packet, ReceiveOffload::default(), &mut rings);
        self.rings = rings;
        self.settle();
    }

    /// The engine's next packet, with its time. Waits as long as a timer may produce a packet.
    pub(crate) fn next_packet(&mut self) -> Option<(Instant, Vec<u8>)> {
        let until = self.now + TIME_LIMIT;
        loop {
            if let Some(sent) = self.wire.pop_front() {
                return Some(sent);
            }
            let next = self.next_timer().filter(|&at| at <= until)?;
            self.advance_to(next);
        }
    }

    /// Moves the clock, and handles each timer at its time.
    pub(crate) fn advance_to(&mut self, until: Instant) {
        while let Some(at) = self.next_timer().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            let now = self.now;
            if let Some(made) = &mut self.made {
                made.engine.handle_timeout(now);
            }
            self.uncork_due();
            self.settle();
        }
        self.now = self.now.max(until);
    }

    /// The time of the next timer.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let engine = self
            .made
            .as_ref()
            .and_then(|made| made.engine.poll_timeout());
        let call = self
            .waiting
            .as_ref()
            .and_then(|waiting| waiting.call.deadline().filter(|_| waiting.ended.is_none()));
        let corked = self.streams().filter_map(|stream| stream.uncork_at).min();
        [engine, call, corked].into_iter().flatten().min()
    }

    fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.descriptors
            .sockets()
            .filter_map(|socket| match &socket.role {
                Role::Stream(stream) => Some(stream),
                _ => None,
            })
    }

    /// A cork holds data back for at most 200 ms, as tcp(7) says.
    pub(crate) fn uncork_due(&mut self) {
        let now = self.now;
        let due: Vec<(ConnectionId, bool)> = self
            .descriptors
            .sockets_mut()
            .filter_map(|socket| match &mut socket.role {
                Role::Stream(stream) if stream.uncork_at.is_some_and(|at| at <= now) => {
                    stream.uncork_at = None;
                    Some((stream.id, socket.wishes.nodelay))
                }
                _ => None,
            })
            .collect();
        for (id, nodelay) in due {
            let engine = self.engine();
            // Send the bytes that are held back, then set the cork again.
            let _ = engine.set_coalescing(now, id, nodelay, false);
            self.settle_frames();
            let _ = self.engine().set_coalescing(now, id, nodelay, true);
        }
    }

    /// Takes the engine's frames and events, and lets a sleeping call try again.
    pub(crate) fn settle(&mut self) {
        if self.made.is_none() {
            return;
        }
        loop {
            self.settle_frames();
            while let Some(event) = self.engine().poll_event() {
                self.note(event);
            }
            let Some(mut waiting) = self.waiting.take_if(|waiting| waiting.ended.is_none()) else {
                return;
            };
            waiting.ended = self
                .attempt(&mut waiting.call)
                .map(|outcome| (self.now, outcome));
            let is_over = waiting.ended.is_some();
            self.waiting = Some(waiting);
            if !is_over {
                self.settle_frames();
                return;
            }
        }
    }

    fn settle_frames(&mut self) {
        let now = self.now;
        let mut frame = vec![0; FRAME_BYTES_MAX];
        let mut rings = std::mem::take(&mut self.rings);
        while let Some((length, _)) = self.engine().poll_frame(now, &mut rings, &mut frame) {
            let mut packet = frame[..length].to_vec();
            if self.settings().no_push {
                clear_push(&mut packet);
            }
            self.wire.push_back((now, packet));
        }
        self.rings = rings;
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Acceptable(listener) => {
                let next = self.engine().accept(listener);
                for socket in self.descriptors.sockets_mut() {
                    if let Role::Listener(ours) = &mut socket.role
                        && ours.id == listener
                    {
                        ours.ready.extend(next);
                        ours.arrivals += 1;
                    }
                }
            }
            Event::Connected(id) => self.with_stream(id, |stream, now| {
                stream.is_connected = true;
                stream.received_at = now;
                stream.edges_out += 1;
            }),
            Event::Progress {
                connection,
                received,
                acknowledged,
                remote_finished,
            } => self.with_stream(connection, |stream, now| {
                if received > stream.received || remote_finished != stream.remote_finished {
                    stream.edges_in += 1;
                    stream.received_at = now;
                }
                stream.received = received;
                stream.remote_finished = remote_finished;
                stream.acknowledge(acknowledged);
            }),
            Event::Closed { connection, reason } => self.with_stream(connection, |stream, _| {
                stream.end(reason);
            }),
            _ => {}
        }
    }

    fn with_stream(&mut self, id: ConnectionId, act: impl FnOnce(&mut Stream, Instant)) {
        let now = self.now;
        let found = self
            .descriptors
            .sockets_mut()
            .find_map(|socket| match &mut socket.role {
                Role::Stream(stream) if stream.id == id => Some(stream),
                _ => None,
            });
        if let Some(stream) = found {
            act(stream, now);
        }
    }

    /// The socket's stream, or the error for a call on any other descriptor.
    pub(crate) fn stream(&mut self, fd: c_int) -> Result<&mut Stream, c_int> {
        match self.descriptors.get_mut(fd)? {
            Descriptor::Socket(socket) => match &mut socket.role {
                Role::Stream(stream) => Ok(stream),
                _ => Err(libc::ENOTCONN),
            },
            Descriptor::Epoll(_) => Err(libc::ENOTSOCK),
        }
    }
}

/// Clears the PSH bit of a packet, and corrects the checksum (RFC 1624).
fn clear_push(packet: &mut [u8]) {
    const PSH: u8 = 8;
    let tcp_at = match packet.first().map(|first| first >> 4) {
        Some(4) => usize::from(packet[0] & 15) * 4,
        _ => 40,
    };
    let Some(tcp) = packet.get_mut(tcp_at..).filter(|tcp| tcp.len() >= 20) else {
        return;
    };
    if tcp[13] & PSH == 0 {
        return;
    }
    tcp[13] &= !PSH;
    let checksum = u16::from_be_bytes([tcp[16], tcp[17]]);
    // The sum of all words is smaller by the PSH bit, so its complement is larger by the PSH bit.
    let (sum, carry) = checksum.overflowing_add(PSH.into());
    tcp[16..18].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
}

/// Both directions of a connection. All bytes are kept, because scripts are short.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    pub(crate) incoming: Vec<u8>,
    pub(crate) outgoing: Vec<u8>,
}

#[derive(Debug, Default)]
struct Rings(BTreeMap<ConnectionId, Ring>);

impl Memory for Rings {
    fn place(&mut self, connection: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom> {
        let incoming = &mut self.0.entry(connection).or_default().incoming;
        let start = offset as usize;
        let end = start + bytes.len();
        incoming.resize(incoming.len().max(end), 0);
        incoming[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn gather(&mut self, connection: ConnectionId, offset: u64, target: &mut [u8]) {
        let outgoing = &self.0.entry(connection).or_default().outgoing;
        let start = offset as usize;
        target.copy_from_slice(&outgoing[start..start + target.len()]);
    }
}

/// The error that a program sees when its connection has ended for this reason.
pub(crate) fn errno_of(reason: CloseReason) -> Option<c_int> {
    match reason {
        CloseReason::Finished | CloseReason::Aborted => None,
        CloseReason::Refused => Some(libc::ECONNREFUSED),
        CloseReason::Reset => Some(libc::ECONNRESET),
        CloseReason::TimedOut => Some(libc::ETIMEDOUT),
        CloseReason::Unreachable => Some(libc::EHOSTUNREACH),
        CloseReason::NoRoute => Some(libc::ENETUNREACH),
        CloseReason::Forbidden => Some(libc::EACCES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Answer;

    #[test]
    fn a_sleeping_call_ends_at_its_time_and_not_when_somebody_looks() {
        let mut stack = Stack::new("");
        let fd = stack.socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        let local = "192.168.0.1:8080".parse().unwrap();
        stack.bind(fd, local).unwrap();
        stack.listen(fd, 1).unwrap();
        let deadline = stack.deadline(40);
        let call = Call::Poll {
            watched: vec![(fd, libc::EPOLLIN as u32)],
            deadline,
        };
        stack.waiting = Some(Waiting { call, ended: None });
        stack.settle();
        stack.advance_to(EPOCH + Duration::from_millis(39));
        assert!(stack.waiting.as_ref().unwrap().ended.is_none());
        stack.advance_to(EPOCH + Duration::from_secs(5));
        let (at, outcome) = stack.waiting.take().unwrap().ended.unwrap();
        assert_eq!(Some(at), deadline);
        assert!(matches!(outcome, Ok(Answer::Ready(bits)) if bits == [0]));
    }

    #[test]
    fn a_packet_that_will_not_come_is_not_waited_for() {
        let mut stack = Stack::new("");
        let fd = stack.socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        assert!(stack.next_packet().is_none());
        let remote = "192.0.2.1:80".parse().unwrap();
        assert_eq!(stack.connect(fd, Some(remote)), Err(libc::EINPROGRESS));
        stack.settle();
        let sent: Vec<Instant> = (0..3)
            .filter_map(|_| stack.next_packet())
            .map(|sent| sent.0)
            .collect();
        assert_eq!(sent[0], EPOCH);
        assert!(sent[1] < sent[2], "the SYN is repeated, in virtual time");
    }
}
