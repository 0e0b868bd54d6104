//! Requests and responses on many connections, by one thread.
//!
//! In a closed loop each connection has one request in flight, and the next request follows the
//! response. Requests that a real user would have sent meanwhile are not measured. In an open loop
//! requests are due at times that do not depend on responses. A latency is measured from the time
//! at which the request was *due*, so that a server that stalls is charged for all requests that
//! were due meanwhile.

use std::collections::VecDeque;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use toehold_measure::procfs;
use toehold_measure::rng::Rng;

use super::alarm::Alarm;
use super::event_loop::{self, EVENTS};
use super::latency::Latencies;
use super::session::{Span, Totals};
use super::socket::{Address, Stream};
use super::wire::{self, Job};
use super::{Arrivals, Gate, Load, session};

/// Runs the pattern.
///
/// # Errors
///
/// Returns the error of a socket.
pub(super) fn run(address: &Address, load: &Load) -> io::Result<Totals> {
    let before = procfs::memory_available();
    let mut loop_ = Loop::open(address, load)?;
    loop_.make_prior_requests(load)?;
    pass(load)?;
    let mut span = None;
    let start = Instant::now();
    (loop_.begin, loop_.end) = session::measured(load, start);
    let mut cpu = None;
    let mut due = load.rate.map(|rate| Due::new(start, rate, load.arrivals));
    if due.is_none() {
        for at in 0..loop_.active {
            loop_.send(at, start)?;
        }
    }
    loop {
        let now = Instant::now();
        if span.is_none() && now >= loop_.begin {
            span = Some(Span::now());
        }
        // Before the check for the end: a client that had no processor until then still has to send
        // the requests that were due.
        if let Some(due) = &mut due {
            while due.next <= now && due.next < loop_.end {
                let at = loop_.turn % loop_.active;
                loop_.turn += 1;
                loop_.send(at, due.next)?;
                due.advance();
            }
        }
        if now >= loop_.end {
            cpu = cpu.or_else(|| span.as_mut().and_then(Span::cpu));
            let is_late = now >= loop_.end + GRACE;
            if due.is_none() || is_late || loop_.outstanding() == 0 {
                break;
            }
        }
        let next = due
            .as_ref()
            .map_or(loop_.end, |due| due.next.min(loop_.end + GRACE));
        loop_.receive(next, load.polling)?;
    }
    let memory = before.zip(procfs::memory_available());
    pass(load)?;
    let unanswered = if load.rate.is_some() {
        loop_.outstanding()
    } else {
        0
    };
    let operations = loop_.latencies.count();
    Ok(Totals {
        seconds: load.seconds,
        operations,
        bytes: operations * (load.message + load.response_bytes()) as u64,
        unanswered,
        latencies: Some(loop_.latencies),
        cpu,
        memory: memory.map(|(before, after)| before.cast_signed() - after.cast_signed()),
    })
}

/// Waits at the load's gate, if it has one.
fn pass(load: &Load) -> io::Result<()> {
    load.gate.as_ref().map_or(Ok(()), Gate::pass)
}

/// Sends one request after the other, each at the time at which it is due if the load has a rate.
/// `ask` returns the bytes of an answer. A latency counts from the time at which its request was
/// due.
pub(super) fn one_by_one<E>(
    load: &Load,
    mut ask: impl FnMut() -> Result<u64, E>,
) -> Result<Totals, E> {
    let start = Instant::now();
    let (begin, end) = session::measured(load, start);
    let mut due = load.rate.map(|rate| Due::new(start, rate, load.arrivals));
    let (mut span, mut bytes, mut latencies) = (None, 0, Latencies::new());
    loop {
        let mut from = Instant::now();
        if let Some(due) = &mut due {
            thread::sleep(due.next.saturating_duration_since(from));
            from = due.next;
            due.advance();
        }
        if from >= end {
            break;
        }
        if span.is_none() && from >= begin {
            span = Some(Span::now());
        }
        let seen = ask()?;
        if from >= begin {
            latencies.add(from.elapsed());
            bytes += seen;
        }
    }
    Ok(Totals {
        seconds: begin.elapsed().as_secs_f64(),
        operations: latencies.count(),
        bytes,
        unanswered: 0,
        cpu: span.as_mut().and_then(Span::cpu),
        latencies: Some(latencies),
        memory: None,
    })
}

/// The time at which the next request is due.
pub(super) struct Due {
    pub(super) next: Instant,
    mean: f64,
    arrivals: Arrivals,
    random: Rng,
}

impl Due {
    pub(super) fn new(start: Instant, rate: f64, arrivals: Arrivals) -> Due {
        Due {
            next: start,
            mean: 1.0 / rate,
            arrivals,
            random: Rng::new(1),
        }
    }

    pub(super) fn advance(&mut self) {
        let distance = match self.arrivals {
            Arrivals::Constant => self.mean,
            Arrivals::Poisson => {
                // Uniform in (0, 1]: its logarithm is finite.
                let uniform = (self.random.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
                -self.mean * uniform.ln()
            }
        };
        self.next += Duration::from_secs_f64(distance);
    }
}

struct Connection {
    stream: Stream,
    /// The times at which the requests in flight were due, oldest first.
    due: VecDeque<Instant>,
    /// Bytes of requests that are not sent yet.
    unsent: usize,
    /// Bytes of the response that is being received.
    have: usize,
    waits_for_room: bool,
}

struct Loop {
    alarm: Alarm,
    connections: Vec<Connection>,
    /// The number of connections that stay active after the prior requests: the first ones.
    active: usize,
    /// Connections by descriptor.
    places: Vec<usize>,
    request: Vec<u8>,
    scratch: Vec<u8>,
    response: usize,
    is_closed: bool,
    touch: bool,
    turn: usize,
    begin: Instant,
    end: Instant,
    latencies: Latencies,
}

impl Loop {
    fn open(address: &Address, load: &Load) -> io::Result<Loop> {
        let header = session::header(load, Job::Echo);
        let alarm = Alarm::new()?;
        let mut connections = Vec::new();
        let mut places = Vec::new();
        for at in 0..load.streams {
            let stream = session::open(address, &header)?;
            stream.set_nonblocking()?;
            let fd = stream.fd();
            event_loop::control(alarm.epoll(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN)?;
            let place = fd as usize;
            places.resize(places.len().max(place + 1), usize::MAX);
            places[place] = at;
            connections.push(Connection {
                stream,
                due: VecDeque::new(),
                unsent: 0,
                have: 0,
                waits_for_room: false,
            });
        }
        // One request after the other: if a send was cut, the rest follows.
        let mut request = vec![0; load.message];
        wire::fill(&mut request);
        let now = Instant::now();
        Ok(Loop {
            alarm,
            connections,
            active: load.active.unwrap_or(load.streams),
            places,
            request,
            scratch: vec![0; SCRATCH_BYTES.max(load.response_bytes())],
            response: load.response_bytes(),
            is_closed: load.rate.is_none(),
            touch: load.touch,
            turn: 0,
            begin: now,
            end: now,
            latencies: Latencies::new(),
        })
    }

    /// Each connection makes the load's prior requests, which are not measured. There are two
    /// pauses, in which the adapter makes and offers the channels that the first half has asked
    /// for. So these channels exist before the second half.
    fn make_prior_requests(&mut self, load: &Load) -> io::Result<()> {
        let give_up = Instant::now() + PRIOR_TIMEOUT;
        let pause = PRIOR_PAUSE * u32::try_from(load.streams).unwrap_or(u32::MAX);
        for made in 0..load.prior {
            if made == load.prior / 2 || made == load.prior * 3 / 4 {
                thread::sleep(pause);
            }
            let now = Instant::now();
            for at in 0..self.connections.len() {
                self.send(at, now)?;
            }
            while self.outstanding() > 0 {
                if Instant::now() > give_up {
                    let sentence = "prior requests were not answered in time";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, sentence));
                }
                self.receive(give_up, load.polling)?;
            }
        }
        Ok(())
    }

    fn outstanding(&self) -> u64 {
        self.connections
            .iter()
            .map(|one| one.due.len() as u64)
            .sum()
    }

    fn send(&mut self, at: usize, due: Instant) -> io::Result<()> {
        let connection = &mut self.connections[at];
        connection.due.push_back(due);
        connection.unsent += self.request.len();
        self.push(at)
    }

    fn push(&mut self, at: usize) -> io::Result<()> {
        let connection = &mut self.connections[at];
        while connection.unsent > 0 {
            let rest = match connection.unsent % self.request.len() {
                0 => self.request.len(),
                rest => rest,
            };
            let from = self.request.len() - rest;
            match connection.stream.write(&self.request[from..]) {
                Ok(count) => connection.unsent -= count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let waits = connection.unsent > 0;
        if waits != connection.waits_for_room {
            connection.waits_for_room = waits;
            let events = if waits {
                libc::EPOLLIN | libc::EPOLLOUT
            } else {
                libc::EPOLLIN
            };
            let fd = connection.stream.fd();
            event_loop::control(self.alarm.epoll(), libc::EPOLL_CTL_MOD, fd, events)?;
        }
        Ok(())
    }

    /// Takes responses until `until`, or until some have arrived.
    fn receive(&mut self, until: Instant, polling: bool) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // A polling client does not sleep.
        let until = if polling { Instant::now() } else { until };
        for event in self.alarm.wait(&mut events, until)? {
            let at = self.places[event.u64 as usize];
            if event.events & libc::EPOLLOUT as u32 != 0 {
                self.push(at)?;
            }
            self.take(at)?;
        }
        Ok(())
    }

    fn take(&mut self, at: usize) -> io::Result<()> {
        let connection = &mut self.connections[at];
        let count = match connection.stream.read(&mut self.scratch) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        if self.touch {
            std::hint::black_box(wire::sum(&self.scratch[..count]));
        }
        connection.have += count;
        let now = Instant::now();
        let mut done = 0;
        while connection.have >= self.response {
            connection.have -= self.response;
            let Some(due) = connection.due.pop_front() else {
                return Err(io::Error::other("a response without a request"));
            };
            // A closed loop counts responses, so that requests in flight at the beginning balance
            // those in flight at the end.
            let counts_from = if self.is_closed { now } else { due };
            if counts_from >= self.begin && counts_from < self.end {
                self.latencies.add(now.saturating_duration_since(due));
            }
            done += 1;
        }
        if self.is_closed && now < self.end {
            for _ in 0..done {
                self.send(at, now)?;
            }
        }
        Ok(())
    }
}

/// The time for which an open loop waits for its last responses.
const GRACE: Duration = Duration::from_secs(1);
/// The longest time for prior requests: the kernel answers at least 20,000 per second.
pub(crate) const PRIOR_TIMEOUT: Duration = Duration::from_secs(240);
/// The pause for each connection. The adapter makes a channel in a third of this time.
const PRIOR_PAUSE: Duration = Duration::from_micros(100);
const SCRATCH_BYTES: usize = 64 << 10;
