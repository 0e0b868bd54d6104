//! Crowds of new clients in one thread: each connects and sends a request, without waiting for the
//! others. A latency is the time from a client's `connect` to its first answer. When all have been
//! answered, all close. The next crowd comes as soon as [`RATE_MAX`] allows.

use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use super::Load;
use super::event_loop::{self, EVENTS};
use super::latency::Latencies;
use super::session::{self, Span, Totals};
use super::socket::{Address, Stream};
use super::wire::{self, Job};

/// A client, from its `connect` to its first answer.
struct Newcomer {
    stream: Stream,
    came_at: Instant,
    /// Bytes of the answer received so far.
    have: usize,
}

/// Runs the pattern. Only complete crowds that came after the warm-up count.
///
/// # Errors
///
/// Returns the error of a socket.
pub(super) fn run(address: &Address, load: &Load) -> io::Result<Totals> {
    let mut first_bytes = session::header(load, Job::Echo).encode().to_vec();
    let request_at = first_bytes.len();
    first_bytes.resize(request_at + load.message, 0);
    wire::fill(&mut first_bytes[request_at..]);
    let (begin, end) = session::measured(load, Instant::now());
    let mut latencies = Latencies::new();
    let mut measured = None;
    loop {
        let now = Instant::now();
        if now >= end && measured.is_some() {
            break;
        }
        if measured.is_none() && now >= begin {
            measured = Some((now, Span::now()));
        }
        let of_crowd = crowd(address, load, &first_bytes)?;
        if measured.is_some() {
            latencies.join(&of_crowd);
        }
        thread::sleep(between(load).saturating_sub(now.elapsed()));
    }
    let operations = latencies.count();
    let (since, cpu) = match measured {
        Some((since, mut span)) => (since, span.cpu()),
        None => (begin, None),
    };
    Ok(Totals {
        seconds: since.elapsed().as_secs_f64(),
        operations,
        bytes: operations * (load.message + load.response_bytes()) as u64,
        latencies: Some(latencies),
        cpu,
        ..Totals::default()
    })
}

/// The least time from one crowd to the next.
fn between(load: &Load) -> Duration {
    session::seconds(load.streams as f64 / RATE_MAX)
}

/// One crowd: all clients connect, are answered, and close.
fn crowd(address: &Address, load: &Load, first_bytes: &[u8]) -> io::Result<Latencies> {
    let epoll = event_loop::epoll()?;
    let mut latencies = Latencies::new();
    let mut scratch = vec![0; load.response_bytes()];
    let mut newcomers = Vec::with_capacity(load.streams);
    for at in 0..load.streams {
        let came_at = Instant::now();
        let stream = Stream::connect(address)?;
        stream.write_all(first_bytes)?;
        stream.set_nonblocking()?;
        event_loop::add(epoll.as_raw_fd(), stream.fd(), at as u64)?;
        newcomers.push(Newcomer {
            stream,
            came_at,
            have: 0,
        });
    }
    let give_up = Instant::now() + TIMEOUT;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
    while latencies.count() < load.streams as u64 {
        if Instant::now() > give_up {
            let sentence = "new clients were not answered in time";
            return Err(io::Error::new(io::ErrorKind::TimedOut, sentence));
        }
        let count = event_loop::wait(epoll.as_raw_fd(), &mut events, WAIT_MILLIS)?;
        for event in &events[..count] {
            let newcomer = &mut newcomers[event.u64 as usize];
            if newcomer.is_answered(&mut scratch)? {
                latencies.add(newcomer.came_at.elapsed());
            }
        }
    }
    Ok(latencies)
}

impl Newcomer {
    /// Reads the available bytes; true when they complete the answer.
    fn is_answered(&mut self, scratch: &mut [u8]) -> io::Result<bool> {
        match self.stream.read(&mut scratch[self.have..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.have += count;
                Ok(self.have == scratch.len())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The most new clients per second. Each client closes first, so its port is in TIME_WAIT, and
/// Linux uses the port again after a second (`tcp_tw_reuse`). `connect` uses every second port of
/// the usual range: 14,116 ports. When all of them are in TIME_WAIT, it tries each of them in vain
/// before it takes one of the other ports: that costs 0.3 to 0.5 ms for each client.
const RATE_MAX: f64 = 10_000.0;
const TIMEOUT: Duration = Duration::from_secs(25);
const WAIT_MILLIS: libc::c_int = 100;
