//! Runs simulations: `toehold-sim --seeds 1000`, or one in detail: `toehold-sim --seed 42 --trace`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use toehold_tcp::sim;

const USAGE: &str = "\
Usage: toehold-sim [--first N] [--seeds N]    run N seeds from the first on (default 0, 1000)
       toehold-sim --seed N [--trace]         run one seed; with --trace, print every packet";

/// For the panic hook: the seed that is being run.
static CURRENT: AtomicU64 = AtomicU64::new(0);

struct Arguments {
    first: u64,
    seeds: u64,
    trace: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        first: 0,
        seeds: 1_000,
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
        // Relaxed: the hook runs on the thread that stored it.
        let seed = CURRENT.load(Ordering::Relaxed);
        eprintln!(
            "seed {seed} failed; replay it with\n    \
             cargo run --release -p toehold-tcp --bin toehold-sim -- --seed {seed} --trace"
        );
    }));
    let began = Instant::now();
    let mut total = sim::Report::default();
    for seed in arguments.first..arguments.first + arguments.seeds {
        CURRENT.store(seed, Ordering::Relaxed);
        let report = sim::run(seed, arguments.trace);
        total.connections += report.connections;
        total.finished += report.finished;
        total.simultaneous += report.simultaneous;
        total.connection_time = total.connection_time + report.connection_time;
        total.virtual_time = total.virtual_time + report.virtual_time;
        total.packets += report.packets;
        total.impaired += report.impaired;
        total.bytes += report.bytes;
        total.retransmissions += report.retransmissions;
    }
    println!(
        "{} seeds passed in {:.1} s: {} connections ({} finished by both sides, {} of these \
        opened by both), {:.1} connection \
         hours, {} packets ({} impaired), {} retransmissions, {:.1} MB compared",
        arguments.seeds,
        began.elapsed().as_secs_f64(),
        total.connections,
        total.finished,
        total.simultaneous,
        total.connection_time.as_secs_f64() / 3_600.0,
        total.packets,
        total.impaired,
        total.retransmissions,
        total.bytes as f64 / 1e6,
    );
    ExitCode::SUCCESS
}
