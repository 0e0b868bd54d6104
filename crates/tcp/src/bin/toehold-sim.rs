//! Runs simulations: `toehold-sim --seeds 1000`, or one in detail: `toehold-sim --seed 42 --trace`.
//!
//! The first seed that fails ends the run, with the command that replays it.

use std::cell::Cell;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use toehold_tcp::sim;

const USAGE: &str = "\
Usage: toehold-sim [--first N] [--seeds N] [--jobs N]
                                         run N seeds from the first on (default 0, 1000), so many
                                         at a time (default 1)
       toehold-sim --seed N [--trace]    run one seed; with --trace, print every packet";

thread_local! {
    /// For the panic hook: the seed that is being run.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

struct Arguments {
    first: u64,
    seeds: u64,
    jobs: u64,
    trace: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        first: 0,
        seeds: 1_000,
        jobs: 1,
        trace: false,
    };
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments
                .next()
                .ok_or(format!("{argument} needs a number"))?;
            value
                .parse::<u64>()
                .map_err(|_| format!("{argument} needs a number, not `{value}`"))
        };
        match argument.as_str() {
            "--first" => parsed.first = number()?,
            "--seeds" => parsed.seeds = number()?,
            "--jobs" => parsed.jobs = number()?.max(1),
            "--seed" => {
                parsed.first = number()?;
                parsed.seeds = 1;
            }
            "--trace" => parsed.trace = true,
            _ => return Err(format!("unknown argument `{argument}`")),
        }
    }
    Ok(parsed)
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("toehold-sim: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default_hook(info);
        let seed = CURRENT.get();
        eprintln!(
            "seed {seed} failed; replay it with\n    \
             cargo run --release -p toehold-tcp --bin toehold-sim -- --seed {seed} --trace"
        );
    }));
    let began = Instant::now();
    let sums = run(&arguments);
    println!(
        "{} seeds passed in {:.1} s: {} connections ({} finished by both sides, {} of these \
        opened by both), {:.1} connection \
         hours, {} packets ({} impaired), {} retransmissions, {:.1} MB compared",
        arguments.seeds,
        began.elapsed().as_secs_f64(),
        sums.connections,
        sums.finished,
        sums.simultaneous,
        sums.connection_time.as_secs_f64() / 3_600.0,
        sums.packets,
        sums.impaired,
        sums.retransmissions,
        sums.bytes as f64 / 1e6,
    );
    ExitCode::SUCCESS
}

/// Runs all seeds, several at a time; the sums of their reports.
fn run(arguments: &Arguments) -> sim::Report {
    let next = AtomicU64::new(arguments.first);
    let end = arguments.first + arguments.seeds;
    let work = || {
        let mut sums = sim::Report::default();
        loop {
            // Relaxed: each seed is handed out once, and nothing else depends on the number.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return sums;
            }
            CURRENT.set(seed);
            add(&mut sums, &sim::run(seed, arguments.trace));
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..arguments.jobs).map(|_| scope.spawn(work)).collect();
        let mut all = sim::Report::default();
        for worker in workers {
            add(&mut all, &worker.join().expect("no seed has failed"));
        }
        all
    })
}

fn add(sums: &mut sim::Report, report: &sim::Report) {
    sums.connections += report.connections;
    sums.finished += report.finished;
    sums.simultaneous += report.simultaneous;
    sums.connection_time = sums.connection_time + report.connection_time;
    sums.virtual_time = sums.virtual_time + report.virtual_time;
    sums.packets += report.packets;
    sums.impaired += report.impaired;
    sums.bytes += report.bytes;
    sums.retransmissions += report.retransmissions;
}
