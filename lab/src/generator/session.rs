//! The common part of all patterns: connections with their header sent, totals, the CPU time of a
//! span.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use toehold_measure::procfs::HostTimes;

use super::latency::Latencies;
use super::socket::{Address, Stream};
use super::wire::{Header, Job};
use super::{Load, Outcome, Pattern, SCHEMA};

/// The totals of a pattern.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) seconds: f64,
    pub(super) operations: u64,
    pub(super) bytes: u64,
    pub(super) unanswered: u64,
    pub(super) latencies: Option<Latencies>,
    /// The CPU time of all cores, and of soft interrupts.
    pub(super) cpu: Option<(f64, f64)>,
    /// Bytes.
    pub(super) memory: Option<i64>,
}

impl Totals {
    /// The outcome of a load.
    ///
    /// # Errors
    ///
    /// A sentence: nothing was measured. On a busy host one operation may last from the warm-up to
    /// past the end, and no rate follows from that. Requests of an open loop that were due and had
    /// no response are a measurement.
    pub(super) fn outcome(self, load: &Load) -> Result<Outcome, String> {
        if self.operations == 0 && self.unanswered == 0 {
            return Err(format!(
                "nothing was measured: no operation was completed within {} s after {} s of \
                 warm-up; measure for longer (--seconds), or on a host with less work",
                load.seconds, load.warmup
            ));
        }
        let kind = match load.pattern {
            Pattern::Requests if load.rate.is_some() => "open loop",
            Pattern::Requests | Pattern::PingPong => "closed loop",
            Pattern::Connect | Pattern::Empty | Pattern::Newcomers => "connections",
            Pattern::ToServer | Pattern::ToClient | Pattern::Both => "stream",
        };
        Ok(Outcome {
            schema: SCHEMA.to_owned(),
            load: load.clone(),
            kind: kind.to_owned(),
            seconds: self.seconds,
            operations: self.operations,
            bytes: self.bytes,
            unanswered: self.unanswered,
            latency: self.latencies.and_then(|latencies| latencies.finish()),
            cpu_all: self.cpu.map(|(all, _)| all),
            cpu_softirq: self.cpu.map(|(_, softirq)| softirq),
            memory: self.memory,
            digest: None,
            tiers: Vec::new(),
            standing: None,
        })
    }
}

/// The CPU time of the measured span.
pub(super) struct Span(Option<HostTimes>);

impl Span {
    /// Begins the span when the warm-up is over.
    pub(super) fn after(warmup: f64) -> Span {
        thread::sleep(seconds(warmup));
        Span::now()
    }

    pub(super) fn now() -> Span {
        Span(HostTimes::now().ok())
    }

    /// The CPU time of all cores since then, and the part of it in soft interrupts.
    pub(super) fn cpu(&mut self) -> Option<(f64, f64)> {
        let spent = HostTimes::now().ok()? - self.0?;
        Some((spent.busy(), spent.softirq))
    }
}

/// The times at which measuring begins and ends, for a load that starts at `start`.
pub(super) fn measured(load: &Load, start: Instant) -> (Instant, Instant) {
    let begin = start + seconds(load.warmup);
    (begin, begin + seconds(load.seconds))
}

pub(super) fn header(load: &Load, job: Job) -> Header {
    let millis = (load.warmup + load.seconds) * 1e3;
    Header {
        job,
        polling: load.polling,
        touch: load.touch,
        sendfile: load.sendfile,
        shared: matches!(load.pattern, Pattern::Requests | Pattern::Newcomers),
        message: load.message,
        response: load.response_bytes(),
        socket_buffer: load.socket_buffer.unwrap_or(0),
        millis: millis as u32,
    }
}

/// A connection with its header sent.
pub(super) fn open(address: &Address, header: &Header) -> io::Result<Stream> {
    let stream = Stream::connect(address)?;
    if header.socket_buffer > 0 {
        stream.set_buffers(header.socket_buffer)?;
    }
    stream.write_all(&header.encode())?;
    if header.polling && header.job != Job::Connect {
        stream.set_nonblocking()?;
    }
    Ok(stream)
}

/// The result of a thread; a panic becomes an error.
pub(super) fn joined<T>(result: thread::Result<io::Result<T>>) -> io::Result<T> {
    result.unwrap_or_else(|_| Err(io::Error::other("a thread of the generator failed")))
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}
