//! A client of web servers: requests on kept connections, by one thread, in a closed or an open
//! loop.
//!
//! First every path is fetched once. These responses make the digest of the outcome, with which
//! runs on different paths are compared. Every later response must be equal to them, byte by byte.
//!
//! A server may close a kept connection at any time. If a request finds its connection closed,
//! without a byte of a response, it is sent again on a new connection (RFC 9112, 9.3.1), and its
//! latency is measured from the first attempt.
//!
//! Supported: `GET` of HTTP/1.1, responses with status 200 and a length. Not supported: chunked
//! responses, pipelining, TLS.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use toehold_measure::rng::Rng;

use super::alarm::Alarm;
use super::event_loop::{self, EVENTS};
use super::latency::Latencies;
use super::requests::Due;
use super::session::{self, Span, Totals};
use super::socket::{Address, Stream};
use super::{Load, Outcome};

/// The requests of a client.
#[derive(Clone, PartialEq, Debug)]
pub struct Requests {
    /// Paths, the most popular one first.
    pub paths: Vec<String>,
    /// The exponent of Zipf's law: path `n` is requested in proportion to `1 / n^alpha`. With zero
    /// all paths are requested equally often.
    pub alpha: f64,
    /// The part of the requests that each path has, in place of Zipf's law; empty without one.
    pub weights: Vec<f64>,
    /// The mean of the pause between a response and the next request of its connection, in a closed
    /// loop: an emulated browser thinks. Pauses are exponential, ten times the mean at most.
    pub think: f64,
    /// Decides the order of the requests.
    pub seed: u64,
    /// Connections, their time, and the rate of an open loop.
    pub load: Load,
}

/// Runs the requests.
///
/// # Errors
///
/// A sentence: the load cannot be, a socket failed, a response is wrong, or nothing was measured.
pub fn run(address: &Address, requests: &Requests) -> Result<Outcome, String> {
    if requests.paths.is_empty() || !requests.alpha.is_finite() {
        return Err("a client asks for one path at least, by a finite alpha".to_owned());
    }
    let is_weight = |weight: &f64| weight.is_finite() && *weight >= 0.0;
    let count = requests.weights.len();
    let is_mix =
        requests.weights.iter().all(is_weight) && requests.weights.iter().sum::<f64>() > 0.0;
    if count > 0 && (count != requests.paths.len() || !is_mix) {
        return Err("a mix has one weight for each path, and one above zero".to_owned());
    }
    if !(0.0..=THINK_MAX).contains(&requests.think) {
        return Err(format!("a browser thinks for 0 to {THINK_MAX} seconds"));
    }
    if requests.think > 0.0 && requests.load.rate.is_some() {
        return Err("browsers that think are a closed loop, without a rate".to_owned());
    }
    let mut load = requests.load.clone();
    load.pattern = super::Pattern::Requests;
    load.check()?;
    super::client::raise_descriptor_limit();
    let failed = |error: io::Error| format!("requests to {address}: {error}");
    let mut sources = Vec::new();
    let mut digest = Digest::default();
    for path in &requests.paths {
        let source = Source::fetch(address, path).map_err(failed)?;
        digest.add(path.as_bytes());
        digest.add(&source.body);
        sources.push(source);
    }
    load.message = sources[0].request.len();
    load.response = Some(sources[0].body.len().max(1));
    let totals = Client::open(address, requests, sources).and_then(|client| client.run(&load));
    let mut outcome = totals.map_err(failed)?.outcome(&load)?;
    outcome.digest = Some(digest.text());
    Ok(outcome)
}

/// FNV-1a of 64 bits: not against malice, but a changed byte changes it.
pub(super) struct Digest(u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Bytes, and their end.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64).to_le_bytes();
        for byte in bytes.iter().chain(&length) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub(super) fn text(&self) -> String {
        format!("{:016x}", self.0)
    }
}

/// A path with its request and its response.
struct Source {
    request: Vec<u8>,
    body: Vec<u8>,
}

impl Source {
    fn fetch(address: &Address, path: &str) -> io::Result<Source> {
        let host = match address {
            Address::Tcp(text) => text.as_str(),
            _ => "localhost",
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        let stream = Stream::connect(address)?;
        stream.set_timeout(Some(FETCH_TIMEOUT))?;
        stream.write_all(&request)?;
        let mut bytes = Vec::new();
        let mut buffer = vec![0; READ_BYTES];
        let head = loop {
            if let Some(head) = Head::parse(&bytes)? {
                break head;
            }
            take(&stream, &mut buffer, &mut bytes)?;
        };
        let all = head.bytes + head.body;
        while bytes.len() < all {
            take(&stream, &mut buffer, &mut bytes)?;
        }
        if bytes.len() > all {
            return Err(wrong("more bytes than its length says"));
        }
        bytes.drain(..head.bytes);
        Ok(Source {
            request,
            body: bytes,
        })
    }
}

fn take(stream: &Stream, buffer: &mut [u8], bytes: &mut Vec<u8>) -> io::Result<()> {
    match stream.read(buffer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            bytes.extend_from_slice(&buffer[..count]);
            Ok(())
        }
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::other(format!("a response has {what}"))
}

/// The head of a response.
struct Head {
    /// Its own length.
    bytes: usize,
    /// The length of the body.
    body: usize,
    /// Whether the server closes the connection after the response.
    closes: bool,
}

impl Head {
    /// `None` while the end of the head has not arrived.
    fn parse(bytes: &[u8]) -> io::Result<Option<Head>> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            if bytes.len() > HEAD_BYTES_MAX {
                return Err(wrong("a head without end"));
            }
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&bytes[..end]);
        let mut lines = text.split("\r\n");
        let status = lines.next().unwrap_or("");
        if status.split(' ').nth(1) != Some("200") {
            return Err(wrong(&format!("the status line \"{status}\"")));
        }
        let (mut body, mut closes) = (None, false);
        for line in lines {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            match name.to_ascii_lowercase().as_str() {
                "content-length" => body = value.trim().parse().ok(),
                "connection" => closes = value.trim().eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        Ok(Some(Head {
            bytes: end + 4,
            body: body.ok_or_else(|| wrong("no length"))?,
            closes,
        }))
    }
}

/// Chooses the path of the next request.
struct Choice {
    /// The sums of the weights up to each path.
    sums: Vec<f64>,
    random: Rng,
}

impl Choice {
    fn zipf(paths: usize, alpha: f64, seed: u64) -> Choice {
        Choice::mix((1..=paths).map(|rank| (rank as f64).powf(-alpha)), seed)
    }

    fn mix(weights: impl Iterator<Item = f64>, seed: u64) -> Choice {
        let mut sum = 0.0;
        let sums = weights.map(|weight| {
            sum += weight;
            sum
        });
        Choice {
            sums: sums.collect(),
            random: Rng::new(seed),
        }
    }

    fn next(&mut self) -> usize {
        let last = self.sums.len() - 1;
        let wanted = self.part() * self.sums[last];
        self.sums.partition_point(|sum| *sum <= wanted).min(last)
    }

    /// An exponential pause.
    fn pause(&mut self, mean: f64) -> Duration {
        let times = -(1.0 - self.part()).ln();
        Duration::from_secs_f64(mean * times.min(PAUSE_TIMES_MAX))
    }

    /// A number from 0 to below 1.
    fn part(&mut self) -> f64 {
        self.random.below(1 << 53) as f64 / (1u64 << 53) as f64
    }
}

struct Connection {
    stream: Stream,
    /// The request in flight: its path, and the time at which it was due.
    now: Option<(usize, Instant)>,
    unsent: usize,
    /// The part of the response head that has arrived.
    head: Vec<u8>,
    /// The bytes of the body received so far, once the head is complete.
    body: Option<usize>,
    closes: bool,
    /// Whether the connection has carried a response.
    is_kept: bool,
}

impl Connection {
    fn new(address: &Address) -> io::Result<Connection> {
        let stream = Stream::connect(address)?;
        stream.set_nonblocking()?;
        Ok(Connection {
            stream,
            now: None,
            unsent: 0,
            head: Vec::new(),
            body: None,
            closes: false,
            is_kept: false,
        })
    }

    fn send(&mut self, sources: &[Source]) -> io::Result<()> {
        let Some((path, _)) = self.now else {
            return Ok(());
        };
        let request = &sources[path].request;
        while self.unsent > 0 {
            match self.stream.write(&request[request.len() - self.unsent..]) {
                Ok(count) => self.unsent -= count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The next read reports that the server has closed the connection.
                Err(_) if self.is_kept => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes bytes of a response; returns whether the response is complete.
    fn accept(&mut self, mut bytes: &[u8], sources: &[Source]) -> io::Result<bool> {
        let Some((path, _)) = self.now else {
            return Err(io::Error::other("a server sent something unasked"));
        };
        let expected = &sources[path].body;
        if self.body.is_none() {
            let before = self.head.len();
            self.head.extend_from_slice(bytes);
            let Some(head) = Head::parse(&self.head)? else {
                return Ok(false);
            };
            if head.body != expected.len() {
                return Err(wrong("another length than the first one of its path"));
            }
            bytes = &bytes[head.bytes - before..];
            self.closes = head.closes;
            self.body = Some(0);
        }
        let seen = self.body.unwrap_or(0);
        if expected.get(seen..seen + bytes.len()) != Some(bytes) {
            return Err(wrong("other bytes than the first one of its path"));
        }
        self.body = Some(seen + bytes.len());
        Ok(seen + bytes.len() == expected.len())
    }
}

struct Client<'a> {
    address: &'a Address,
    sources: Vec<Source>,
    choice: Choice,
    alarm: Alarm,
    connections: Vec<Connection>,
    /// Connections without a request.
    idle: Vec<usize>,
    /// Requests that are due and wait for a connection.
    waiting: VecDeque<Instant>,
    /// The times at which thinking browsers send their next requests.
    thinking: BinaryHeap<Reverse<Instant>>,
    think: f64,
    is_closed: bool,
    begin: Instant,
    end: Instant,
    bytes: u64,
    latencies: Latencies,
    buffer: Vec<u8>,
}

impl<'a> Client<'a> {
    fn open(
        address: &'a Address,
        requests: &Requests,
        sources: Vec<Source>,
    ) -> io::Result<Client<'a>> {
        let choice = if requests.weights.is_empty() {
            Choice::zipf(sources.len(), requests.alpha, requests.seed)
        } else {
            Choice::mix(requests.weights.iter().copied(), requests.seed)
        };
        let now = Instant::now();
        let mut client = Client {
            address,
            sources,
            choice,
            alarm: Alarm::new()?,
            connections: Vec::new(),
            idle: Vec::new(),
            waiting: VecDeque::new(),
            thinking: BinaryHeap::new(),
            think: requests.think,
            is_closed: requests.load.rate.is_none(),
            begin: now,
            end: now,
            bytes: 0,
            latencies: Latencies::new(),
            buffer: vec![0; READ_BYTES],
        };
        for at in 0..requests.load.streams {
            let connection = Connection::new(address)?;
            client.watch(at, &connection)?;
            client.connections.push(connection);
            client.idle.push(at);
        }
        Ok(client)
    }

    fn watch(&self, at: usize, connection: &Connection) -> io::Result<()> {
        let fd = connection.stream.fd();
        event_loop::add(self.alarm.epoll(), fd, at as u64)
    }

    fn run(mut self, load: &Load) -> io::Result<Totals> {
        let start = Instant::now();
        (self.begin, self.end) = session::measured(load, start);
        let mut due = load.rate.map(|rate| Due::new(start, rate, load.arrivals));
        if self.is_closed {
            for _ in 0..load.streams {
                self.ask_after(start);
            }
        }
        let (mut span, mut cpu) = (None, None);
        loop {
            let now = Instant::now();
            if span.is_none() && now >= self.begin {
                span = Some(Span::now());
            }
            while let Some(next) = due.as_mut().filter(|due| due.next <= now.min(self.end)) {
                self.waiting.push_back(next.next);
                next.advance();
            }
            while let Some(Reverse(due)) = self.thinking.peek().filter(|next| next.0 <= now) {
                self.waiting.push_back(*due);
                self.thinking.pop();
            }
            self.start_waiting()?;
            if now >= self.end {
                cpu = cpu.or_else(|| span.as_mut().and_then(Span::cpu));
                let is_late = now >= self.end + GRACE;
                if self.is_closed || is_late || self.outstanding() == 0 {
                    break;
                }
            }
            let next = due.as_ref().map_or(self.end, |due| {
                if due.next < self.end {
                    due.next
                } else {
                    self.end + GRACE
                }
            });
            let thought = self.thinking.peek().map_or(next, |thinks| thinks.0);
            self.receive(next.min(thought))?;
        }
        let unanswered = if self.is_closed {
            0
        } else {
            self.outstanding()
        };
        Ok(Totals {
            seconds: load.seconds,
            operations: self.latencies.count(),
            bytes: self.bytes,
            unanswered,
            latencies: Some(self.latencies),
            cpu,
            memory: None,
        })
    }

    /// The next request of a connection in a closed loop: at once, or after thinking.
    fn ask_after(&mut self, now: Instant) {
        if self.think > 0.0 {
            let due = now + self.choice.pause(self.think);
            self.thinking.push(Reverse(due));
        } else {
            self.waiting.push_back(now);
        }
    }

    fn outstanding(&self) -> u64 {
        (self.waiting.len() + self.connections.len() - self.idle.len()) as u64
    }

    /// Gives requests that are due to idle connections.
    fn start_waiting(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            let Some(at) = self.idle.pop() else {
                break;
            };
            let due = self.waiting.pop_front().unwrap_or(self.begin);
            let path = self.choice.next();
            let connection = &mut self.connections[at];
            connection.now = Some((path, due));
            self.send_again(at)?;
        }
        Ok(())
    }

    /// Takes responses until `until`, or until some have arrived.
    fn receive(&mut self, until: Instant) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        for event in self.alarm.wait(&mut events, until)? {
            self.serve(event.u64 as usize)?;
        }
        Ok(())
    }

    fn serve(&mut self, at: usize) -> io::Result<()> {
        loop {
            let connection = &mut self.connections[at];
            let count = match connection.stream.read(&mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Ok(count) if count > 0 => count,
                _ if connection.now.is_none() => return self.replace(at),
                ended if connection.is_kept && connection.head.is_empty() => {
                    drop(ended);
                    return self.replace(at).and_then(|()| self.send_again(at));
                }
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Err(error),
            };
            if !connection.accept(&self.buffer[..count], &self.sources)? {
                continue;
            }
            let now = Instant::now();
            let (path, due) = connection.now.take().unwrap_or((0, now));
            connection.head.clear();
            connection.body = None;
            connection.is_kept = true;
            // A request of an open loop counts from the time at which it was due.
            let is_counted = if self.is_closed {
                now >= self.begin && now < self.end
            } else {
                due >= self.begin && due < self.end
            };
            if is_counted {
                self.latencies.add(now.saturating_duration_since(due));
                let source = &self.sources[path];
                self.bytes += (source.request.len() + source.body.len()) as u64;
            }
            let closes = connection.closes;
            self.idle.push(at);
            if self.is_closed {
                self.ask_after(now);
            }
            if closes {
                return self.replace(at);
            }
            return Ok(());
        }
    }

    /// The server has closed a connection: a new connection takes over its place and its request.
    fn replace(&mut self, at: usize) -> io::Result<()> {
        let mut connection = Connection::new(self.address)?;
        connection.now = self.connections[at].now;
        self.watch(at, &connection)?;
        // Closing the old one's only descriptor ends its registration.
        self.connections[at] = connection;
        Ok(())
    }

    fn send_again(&mut self, at: usize) -> io::Result<()> {
        let connection = &mut self.connections[at];
        if let Some((path, _)) = connection.now {
            connection.unsent = self.sources[path].request.len();
        }
        connection.send(&self.sources)
    }
}

const READ_BYTES: usize = 64 << 10;
const HEAD_BYTES_MAX: usize = 16 << 10;
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for which an open loop waits for late responses.
const GRACE: Duration = Duration::from_secs(1);
/// Longest mean of a pause, in seconds.
const THINK_MAX: f64 = 3600.0;
/// Longest pause, as a multiple of the mean.
const PAUSE_TIMES_MAX: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_s_law_is_kept_and_zero_asks_for_all_alike() {
        let count = |alpha: f64| {
            let mut choice = Choice::zipf(10, alpha, 1);
            let mut counts = [0u32; 10];
            for _ in 0..20_000 {
                counts[choice.next()] += 1;
            }
            counts
        };
        // The tenth harmonic number is 2.93.
        let zipf = count(1.0);
        assert!((6500..7200).contains(&zipf[0]) && (600..780).contains(&zipf[9]));
        assert!(count(0.0).iter().all(|count| (1800..2200).contains(count)));
    }

    #[test]
    fn a_mix_has_its_parts_and_pauses_their_mean() {
        let mut choice = Choice::mix([3.0, 0.0, 1.0].into_iter(), 1);
        let mut counts = [0u32; 3];
        for _ in 0..20_000 {
            counts[choice.next()] += 1;
        }
        assert!((14_600..15_400).contains(&counts[0]) && counts[1] == 0);
        let pauses: Vec<Duration> = (0..20_000).map(|_| choice.pause(0.5)).collect();
        let mean = pauses.iter().sum::<Duration>().as_secs_f64() / 20_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
        assert!(pauses.iter().all(|pause| pause.as_secs_f64() <= 5.0));
    }

    #[test]
    fn heads_of_responses_are_read_or_refused() {
        let read = |text: &str| Head::parse(text.as_bytes());
        let head = "HTTP/1.1 200 OK\r\ncontent-LENGTH: 7\r\nConnection: Close\r\n\r\nabc";
        let parsed = read(head).expect("valid").expect("complete");
        assert_eq!(
            (parsed.bytes, parsed.body, parsed.closes),
            (head.len() - 3, 7, true)
        );
        assert!(read("HTTP/1.1 200 OK\r\n").expect("valid").is_none());
        assert!(read("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n").is_err());
        assert!(read("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
    }
}
