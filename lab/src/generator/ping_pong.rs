//! A message to the server, and a message back: one thread for each stream.

use std::io;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use super::latency::Latencies;
use super::session::{Span, Totals, seconds};
use super::socket::{Address, Stream};
use super::wire::{self, Header, Job};
use super::{Load, session};

/// Runs the pattern.
///
/// # Errors
///
/// Returns the error of a socket.
pub(super) fn run(address: &Address, load: &Load) -> io::Result<Totals> {
    let header = session::header(load, Job::Echo);
    let streams: Vec<Stream> = (0..load.streams)
        .map(|_| session::open(address, &header))
        .collect::<io::Result<_>>()?;
    let barrier = Barrier::new(load.streams + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter()
            .map(|stream| scope.spawn(|| one(stream, &header, load, &barrier)))
            .collect();
        barrier.wait();
        let mut span = Span::after(load.warmup);
        thread::sleep(seconds(load.seconds));
        let cpu = span.cpu();
        let mut latencies = Latencies::new();
        for thread in threads {
            latencies.join(&session::joined(thread.join())?);
        }
        let operations = latencies.count();
        Ok(Totals {
            seconds: load.seconds,
            operations,
            bytes: operations * (load.message + load.response_bytes()) as u64,
            latencies: Some(latencies),
            cpu,
            ..Totals::default()
        })
    })
}

fn one(stream: &Stream, header: &Header, load: &Load, barrier: &Barrier) -> io::Result<Latencies> {
    let mut message = vec![0; load.message];
    let mut response = vec![0; load.response_bytes()];
    wire::fill(&mut message);
    let mut latencies = Latencies::new();
    barrier.wait();
    let start = Instant::now();
    let (begin, end) = session::measured(load, start);
    let mut before = start;
    while before < end {
        if header.touch {
            wire::fill(&mut message);
        }
        stream.write_all(&message)?;
        if !stream.read_all(&mut response)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if header.touch {
            std::hint::black_box(wire::sum(&response));
        }
        let now = Instant::now();
        if before >= begin {
            // One way is half of the round trip.
            latencies.add((now - before) / 2);
        }
        before = now;
    }
    Ok(latencies)
}
