//! Connections that are opened, carry one byte in each direction or none, and are closed.

use std::io;
use std::thread;
use std::time::Instant;

use super::latency::Latencies;
use super::session::{Span, Totals, seconds};
use super::socket::{Address, Stream};
use super::wire::{Header, Job};
use super::{Load, Pattern, session};

/// Runs the pattern.
///
/// # Errors
///
/// Returns the error of a socket.
pub(super) fn run(address: &Address, load: &Load) -> io::Result<Totals> {
    let header = session::header(load, Job::Connect);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..load.streams)
            .map(|_| scope.spawn(|| one(address, &header, load)))
            .collect();
        let mut span = Span::after(load.warmup);
        thread::sleep(seconds(load.seconds));
        let cpu = span.cpu();
        let mut latencies = Latencies::new();
        for thread in threads {
            latencies.join(&session::joined(thread.join())?);
        }
        Ok(Totals {
            seconds: load.seconds,
            operations: latencies.count(),
            bytes: if load.pattern == Pattern::Empty {
                0
            } else {
                2 * latencies.count()
            },
            latencies: Some(latencies),
            cpu,
            ..Totals::default()
        })
    })
}

fn one(address: &Address, header: &Header, load: &Load) -> io::Result<Latencies> {
    let mut latencies = Latencies::new();
    let start = Instant::now();
    let (begin, end) = session::measured(load, start);
    let mut before = start;
    while before < end {
        if load.pattern == Pattern::Empty {
            empty(address)?;
        } else {
            with_a_byte(address, header)?;
        }
        let now = Instant::now();
        if before >= begin {
            latencies.add(now - before);
        }
        before = now;
    }
    Ok(latencies)
}

fn with_a_byte(address: &Address, header: &Header) -> io::Result<()> {
    let stream = session::open(address, header)?;
    if !stream.read_all(&mut [0; 1])? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// The client sends no request and does not wait: the server accepts the connections later.
fn empty(address: &Address) -> io::Result<()> {
    Stream::connect(address).map(drop)
}
