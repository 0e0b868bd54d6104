//! The client: runs a load against a server and reports its measurements.

use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use super::session::{Span, Totals, header, joined, open, seconds};
use super::socket::{Address, Stream};
use super::streams;
use super::wire::{Header, Job};
use super::{Load, Outcome, Pattern, connect, newcomers, ping_pong, requests};

/// Runs a load.
///
/// # Errors
///
/// A sentence: the load cannot be, a socket failed, or nothing was measured.
pub fn run(address: &Address, load: &Load) -> Result<Outcome, String> {
    load.check()?;
    let limit = raise_descriptor_limit();
    let needed = load.streams + DESCRIPTORS_SPARE;
    if load.pattern == Pattern::Requests && needed > limit {
        return Err(format!(
            "{} connections need {needed} descriptors, and this process may have {limit} \
             (ulimit -Hn)",
            load.streams
        ));
    }
    let totals = match load.pattern {
        Pattern::PingPong => ping_pong::run(address, load),
        Pattern::Requests => requests::run(address, load),
        Pattern::Connect | Pattern::Empty => connect::run(address, load),
        Pattern::Newcomers => newcomers::run(address, load),
        Pattern::ToServer | Pattern::ToClient | Pattern::Both => stream(address, load),
    };
    let totals =
        totals.map_err(|error| format!("{} to {address}: {error}", load.pattern.name()))?;
    totals.outcome(load)
}

/// Streams in one or both directions. Bytes count from the end of the warm-up to the end of the
/// last stream, acknowledged.
fn stream(address: &Address, load: &Load) -> io::Result<Totals> {
    let jobs: &[Job] = match load.pattern {
        Pattern::ToServer => &[Job::Sink],
        Pattern::ToClient => &[Job::Source],
        _ => &[Job::Sink, Job::Source],
    };
    // All connections first: a source begins with its header.
    let mut ends: Vec<(Header, Option<Stream>)> = Vec::new();
    for job in jobs.iter().cycle().take(jobs.len() * load.streams) {
        let header = header(load, *job);
        let stream = (*job == Job::Sink)
            .then(|| open(address, &header))
            .transpose()?;
        ends.push((header, stream));
    }
    let barrier = Barrier::new(ends.len() + 1);
    let counted: Vec<AtomicU64> = ends.iter().map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = ends
            .into_iter()
            .zip(&counted)
            .map(|((header, stream), counted)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let stream = match stream {
                        Some(stream) => stream,
                        None => open(address, &header)?,
                    };
                    one_stream(&stream, &header, load, counted)
                })
            })
            .collect();
        barrier.wait();
        let mut span = Span::after(load.warmup);
        let begin = Instant::now();
        // Relaxed: the counter publishes no other data.
        let before: u64 = counted
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum();
        let mut bytes = 0;
        for thread in threads {
            bytes += joined(thread.join())?;
        }
        let cpu = span.cpu();
        let bytes = bytes - before;
        Ok(Totals {
            seconds: begin.elapsed().as_secs_f64(),
            operations: bytes / load.message as u64,
            bytes,
            cpu,
            ..Totals::default()
        })
    })
}

fn one_stream(
    stream: &Stream,
    header: &Header,
    load: &Load,
    counted: &AtomicU64,
) -> io::Result<u64> {
    if header.job == Job::Source {
        let seen = streams::drain(stream, header, |bytes| {
            counted.store(bytes, Ordering::Relaxed)
        })?;
        // The server's source sends whole messages.
        streams::verify(
            header,
            seen.bytes - seen.bytes % header.message as u64,
            seen,
        )?;
        return Ok(seen.bytes);
    }
    let end = Instant::now() + seconds(load.warmup + load.seconds);
    let sent = streams::source(stream, header, |sent| {
        counted.store(sent, Ordering::Relaxed);
        Instant::now() < end
    })?;
    streams::end(stream, header, sent)?;
    Ok(sent)
}

/// Raises the limit of descriptors for thousands of connections. Returns the new limit.
pub(crate) fn raise_descriptor_limit() -> usize {
    // SAFETY: zeros are a valid rlimit; the calls are given a complete one.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        }
        usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
    }
}

/// Descriptors of a client or a server that are not connections: its own and those of the library.
pub(crate) const DESCRIPTORS_SPARE: usize = 64;
