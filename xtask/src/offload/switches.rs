//! Measures the features of the receive path, each alone, none, and all, and segmentation offload:
//! `cargo xtask bench-switches`.
//!
//! One adapter over a TAP device receives bulk data, then sends it. Its switches are changed
//! between samples (`toehold adapter --set`), so all samples come from one process. Each round has
//! every combination once, in a new order. The number of receive queues is fixed at the adapter's
//! start, so each round has an adapter for each number.

use std::borrow::Borrow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use toehold_measure::stats::{self, Ratio};

use super::network::{FAR_BY_ENGINE, NEAR_ENGINE, Network};
use super::{Link, output, wait_for};
use crate::adapter::Adapter;
use crate::target;

/// The default of every switch that combinations change.
const OFF: [&str; 6] = [
    "split-headers=off",
    "copy-engine=off",
    "lro=off",
    "lso=off",
    "checksum=off",
    "coalesce=0",
];
/// A combination's name, and its differences from [`OFF`]. The first of a table is the base of all
/// its ratios.
type Combination = (&'static str, &'static [&'static str]);
/// LRO requires that checksums are offloaded to the link.
const RECEIVING: [Combination; 9] = [
    ("none", &[]),
    ("split-headers", &["split-headers=on"]),
    ("copy-engine=worker", &["copy-engine=worker"]),
    ("checksum", &["checksum=on"]),
    ("checksum, lro", &["checksum=on", "lro=on"]),
    (
        "checksum, lro, split-headers",
        &["checksum=on", "lro=on", "split-headers=on"],
    ),
    (
        "checksum, lro, copy-engine=worker",
        &["checksum=on", "lro=on", "copy-engine=worker"],
    ),
    ("coalesce=50", &["coalesce=50"]),
    (
        "all",
        &[
            "split-headers=on",
            "copy-engine=worker",
            "checksum=on",
            "lro=on",
            "coalesce=50",
        ],
    ),
];
/// LSO requires that checksums are offloaded to the link, too.
const SENDING: [Combination; 3] = [
    ("none", &[]),
    ("checksum", &["checksum=on"]),
    ("checksum, lso", &["checksum=on", "lso=on"]),
];
/// Receive queues: a name, and the adapter's option.
const QUEUES: [(&str, &str); 2] = [("1 queue", "1"), ("2 queues", "2")];
/// Flows that are spread over them.
const STREAMS: u32 = 4;
/// Bytes of one message, as the papers have them, small and large.
const SIZES: [&str; 4] = ["16K", "128K", "1M", "8M"];
const COPYBREAK: &str = "4096";
const PORT: &str = "5301";
const SECONDS: &str = "1";
/// Counting begins on request, so the start of the adapter is not counted.
const SIMULATOR: [&str; 4] = [
    "valgrind",
    "--tool=callgrind",
    "--cache-sim=yes",
    "--instr-atstart=no",
];
const USAGE: &str = "\
Usage: cargo xtask bench-switches [--rounds N] [--cache] [--json FILE]

Bulk to the engine over a TAP device with each feature of the receive path alone, with none, and
with all, for messages of 16 KB, 128 KB, 1 MB and 8 MB, of which the program reads every byte; bulk
from the engine with and without segmentation offload; and four streams over one receive queue and
over two. Needs root, ip and ethtool (make deps). N rounds of one second each, 5 by default. With
--cache, what the adapter misses in a simulated cache instead, by valgrind.";

/// The direction of bulk data, and the number of connections.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// A pattern of the generator.
    pattern: &'static str,
    streams: u32,
}

const TO_ENGINE: Load = Load {
    pattern: "to-client",
    streams: 1,
};
const FROM_ENGINE: Load = Load {
    pattern: "to-server",
    streams: 1,
};

/// One run.
#[derive(Clone, Copy, Debug)]
struct Sample {
    bytes: f64,
    /// Gbit/s.
    rate: f64,
    /// Seconds of all cores for a gigabyte, helpers' included.
    cpu: f64,
}

/// The arguments.
#[derive(Debug)]
struct Wish {
    rounds: usize,
    counts_misses: bool,
    file: Option<String>,
}

fn parse(arguments: &[String]) -> Option<Wish> {
    let mut wish = Wish {
        rounds: 5,
        counts_misses: false,
        file: None,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--rounds" => wish.rounds = rest.next()?.parse().ok().filter(|rounds| *rounds > 0)?,
            "--json" => wish.file = Some(rest.next()?.clone()),
            "--cache" => wish.counts_misses = true,
            _ => return None,
        }
    }
    Some(wish)
}

/// Measures and prints the table. False when something could not be measured.
pub(crate) fn run(arguments: &[String]) -> bool {
    let Some(wish) = parse(arguments) else {
        eprintln!("{USAGE}");
        return false;
    };
    let report = if wish.counts_misses {
        count_misses()
    } else {
        measure(wish.rounds)
    };
    let written = report.and_then(|report| match wish.file {
        Some(file) => std::fs::write(&file, format!("{report:#}\n"))
            .map_err(|error| format!("cannot write {file}: {error}")),
        None => Ok(()),
    });
    if let Err(reason) = &written {
        eprintln!("not measured: {reason}");
    }
    written.is_ok()
}

/// An adapter over a TAP device, and the generator's server at the far end.
struct Scene {
    network: Network,
    /// Ended before the network is removed.
    adapter: Adapter,
    server: Child,
    toehold: PathBuf,
}

impl Scene {
    /// `simulator` is a command that the adapter runs under, or nothing; `queues` is a number.
    fn new(runtime: &Path, simulator: &[&str], queues: &str) -> Result<Scene, String> {
        let toehold = target().join("release/toehold");
        if !toehold.is_file() {
            let path = toehold.display();
            return Err(format!("{path} is not there; run make build"));
        }
        let network = Network::new()?;
        let (link, address) = (network.link(Link::Tap), format!("{NEAR_ENGINE}/24"));
        let options = ["--link", &link, "--address", &address];
        let more = ["--copybreak", COPYBREAK, "--threads", queues];
        let options = [&options[..], &more].concat();
        let program = toehold.to_string_lossy();
        let words = [simulator, &[&program]].concat();
        let mut command = network.near(words[0]);
        command.args(&words[1..]);
        let log = Stdio::null();
        let adapter = Adapter::start_with(command, &options, &toehold, runtime, None, log)?;
        wait_for("the engine", || {
            let status = adapter.status();
            status.is_some_and(|status| status["engine"]["mtu"].is_u64())
        })?;
        network.bring_up(Link::Tap, true)?;
        let mut server = network.far(&toehold.to_string_lossy());
        server.args(["lab", "server", "--listen"]);
        server.arg(format!("{FAR_BY_ENGINE}:{PORT}"));
        let server = server.stdin(Stdio::null()).stdout(Stdio::null());
        let server = server.stderr(Stdio::null()).spawn();
        let server = server.map_err(|error| format!("the generator: {error}"))?;
        std::thread::sleep(Duration::from_millis(300));
        Ok(Scene {
            network,
            adapter,
            server,
            toehold,
        })
    }

    /// Sets the switches of a combination.
    fn set(&self, switches: &[&str]) -> Result<(), String> {
        for setting in OFF.iter().chain(switches) {
            let mut command = Command::new(&self.toehold);
            command.args(["adapter", "--runtime-dir"]);
            command.arg(self.adapter.runtime());
            output(command.args(["--set", setting]))?;
        }
        Ok(())
    }

    /// One second of messages of `size` bytes.
    fn sample(&self, load: Load, size: &str) -> Result<Sample, String> {
        let mut client = self.network.near(&self.toehold.to_string_lossy());
        client.args(["run", "--path", "offload", "--runtime-dir"]);
        client.arg(self.adapter.runtime()).arg("--");
        client.arg(&self.toehold);
        client.args(["lab", "client", "--pattern", load.pattern, "--touch"]);
        client.args(["--streams", &load.streams.to_string()]);
        client.args(["--message", size, "--seconds", SECONDS, "--json"]);
        client.arg(format!("{FAR_BY_ENGINE}:{PORT}"));
        sample_of(&output(&mut client)?)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        self.adapter.end();
    }
}

fn measure(rounds: usize) -> Result<Value, String> {
    let runtime = super::private_directory()?;
    let scene = Scene::new(runtime.path(), &[], "1")?;
    let receiving = throw_switches(&scene, rounds, TO_ENGINE, &RECEIVING)?;
    let sending = throw_switches(&scene, rounds, FROM_ENGINE, &SENDING)?;
    drop(scene);
    let queues = vary_queues(runtime.path(), rounds)?;
    Ok(json!({
        "receiving": report("To the engine", &RECEIVING.map(|(name, _)| name), &receiving),
        "sending": report("From the engine", &SENDING.map(|(name, _)| name), &sending),
        "queues": report("Four streams to the engine", &QUEUES.map(|(name, _)| name), &queues),
    }))
}

/// Samples by size of messages and by combination.
type Samples = Vec<Vec<Vec<Sample>>>;

fn throw_switches(
    scene: &Scene,
    rounds: usize,
    load: Load,
    combinations: &[Combination],
) -> Result<Samples, String> {
    take_turns(rounds, load, combinations.len(), |at| {
        scene.set(combinations[at].1).map(|()| scene)
    })
}

fn vary_queues(runtime: &Path, rounds: usize) -> Result<Samples, String> {
    let load = Load {
        streams: STREAMS,
        ..TO_ENGINE
    };
    take_turns(rounds, load, QUEUES.len(), |at| {
        Scene::new(runtime, &[], QUEUES[at].1)
    })
}

/// Takes samples of all sizes from each of `count` scenes, which `prepare` makes or changes.
fn take_turns<S: Borrow<Scene>>(
    rounds: usize,
    load: Load,
    count: usize,
    prepare: impl Fn(usize) -> Result<S, String>,
) -> Result<Samples, String> {
    let mut samples = vec![vec![Vec::new(); count]; SIZES.len()];
    for round in 0..rounds {
        for at in 0..count {
            // Each round begins with another combination.
            let at = (at + round) % count;
            let scene = prepare(at)?;
            for (size, samples) in SIZES.iter().zip(&mut samples) {
                samples[at].push(scene.borrow().sample(load, size)?);
            }
        }
    }
    Ok(samples)
}

/// Prints the adapter's misses in a simulated cache, per received megabyte.
///
/// The kernel's work is not included: neither the `readv` that receives a frame, nor the far end.
fn count_misses() -> Result<Value, String> {
    let runtime = super::private_directory()?;
    let outcome = format!(
        "--callgrind-out-file={}",
        runtime.path().join("out").display()
    );
    let simulator = [&SIMULATOR[..], &[&outcome]].concat();
    let scene = Scene::new(runtime.path(), &simulator, "1")?;
    let pid = scene.adapter.pid().to_string();
    let control = |what: &[&str]| {
        let mut command = Command::new("callgrind_control");
        output(command.args(what).arg(&pid)).map(drop)
    };
    control(&["-i", "on"])?;
    println!("| message | switches | instructions, k/MB | D1 misses/MB | last level misses/MB |");
    println!("|---|---|---|---|---|");
    let (mut all, mut dumps) = (Vec::new(), 0);
    for size in SIZES {
        for (name, switches) in RECEIVING {
            scene.set(switches)?;
            control(&["-z"])?;
            let megabytes = scene.sample(TO_ENGINE, size)?.bytes / 1e6;
            control(&["-d"])?;
            dumps += 1;
            let counts = Counts::read(&runtime.path().join(format!("out.{dumps}")))?;
            let of = |count: u64| count as f64 / megabytes;
            println!(
                "| {size} | {name} | {:.0} | {:.0} | {:.1} |",
                of(counts.instructions) / 1e3,
                of(counts.first_level),
                of(counts.last_level)
            );
            all.push(json!({
                "message": size,
                "switches": name,
                "instructions_per_mb": of(counts.instructions),
                "first_level_misses_per_mb": of(counts.first_level),
                "last_level_misses_per_mb": of(counts.last_level),
            }));
        }
    }
    Ok(all.into())
}

/// The sums of one dump of callgrind.
#[derive(Debug)]
struct Counts {
    instructions: u64,
    /// Reads and writes of data that missed the first level.
    first_level: u64,
    /// The misses that missed the last-level cache, too.
    last_level: u64,
}

impl Counts {
    fn read(path: &Path) -> Result<Counts, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let words = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            let line = line.ok_or(format!("a dump of callgrind without {key}"))?;
            Ok::<Vec<&str>, String>(line.split_whitespace().collect())
        };
        let (events, totals) = (words("events:")?, words("totals:")?);
        let sum = |wanted: &[&str]| {
            let pairs = events.iter().zip(&totals);
            let counted = pairs.filter(|(event, _)| wanted.contains(event));
            counted
                .filter_map(|(_, count)| count.parse::<u64>().ok())
                .sum()
        };
        Ok(Counts {
            instructions: sum(&["Ir"]),
            first_level: sum(&["D1mr", "D1mw"]),
            last_level: sum(&["DLmr", "DLmw"]),
        })
    }
}

/// The measured values in an answer of the generator.
fn sample_of(said: &str) -> Result<Sample, String> {
    let said: Value = serde_json::from_str(said).map_err(|error| error.to_string())?;
    let (bytes, seconds) = (said["bytes"].as_f64(), said["seconds"].as_f64());
    match (bytes, seconds, said["cpu_all"].as_f64()) {
        (Some(bytes), Some(seconds), Some(cpu)) if bytes > 0.0 => Ok(Sample {
            bytes,
            rate: 8.0 * bytes / seconds / 1e9,
            cpu: cpu / (bytes / 1e9),
        }),
        _ => Err(format!("nothing was moved: {said}")),
    }
}

/// Prints one table for each size of messages. The relative benefit of a time b that became a is
/// (b - a) / b, as the papers have it.
fn report(title: &str, names: &[&str], samples: &Samples) -> Value {
    let mut all = Vec::new();
    for (size, of_size) in SIZES.iter().zip(samples) {
        let first = names[0];
        println!("\n{title}:\n");
        println!("| {size} | Gbit/s | against {first} | CPU s/GB | relative benefit in CPU |");
        println!("|---|---|---|---|---|");
        let base = &of_size[0];
        for (name, samples) in names.iter().zip(of_size) {
            let ratio = |get: fn(&Sample) -> f64| {
                let pairs = base.iter().zip(samples);
                let pairs: Vec<(f64, f64)> = pairs.map(|(b, a)| (get(b), get(a))).collect();
                stats::ratio(&pairs)
            };
            let median = |get: fn(&Sample) -> f64| {
                stats::median(&samples.iter().map(get).collect::<Vec<f64>>())
            };
            println!(
                "| {name} | {:.1} | {} | {:.3} | {} |",
                median(|sample| sample.rate),
                times(ratio(|sample| sample.rate)),
                median(|sample| sample.cpu),
                benefit(ratio(|sample| sample.cpu)),
            );
            let samples: Vec<Value> = samples
                .iter()
                .map(|sample| json!({ "gbit": sample.rate, "cpu_s_per_gb": sample.cpu }))
                .collect();
            all.push(json!({ "message": size, "switches": name, "samples": samples }));
        }
    }
    all.into()
}

fn times(ratio: Option<Ratio>) -> String {
    ratio.map_or(String::new(), |ratio| {
        format!("{:.2}x [{:.2}, {:.2}]", ratio.value, ratio.low, ratio.high)
    })
}

fn benefit(ratio: Option<Ratio>) -> String {
    let percent = |ratio: f64| 100.0 * (1.0 - ratio);
    ratio.map_or(String::new(), |ratio| {
        format!(
            "{:.0} % [{:.0}, {:.0}]",
            percent(ratio.value),
            percent(ratio.high),
            percent(ratio.low)
        )
    })
}
