//! The features of the receive path, each alone, none, and all: `cargo xtask bench-switches`.
//!
//! One adapter over a TAP device receives bulk. Between two samples its switches are thrown
//! (`toehold adapter --set`), so all samples are of the same process, and each round has every
//! combination once, in another order.

use std::process::Stdio;

use serde_json::{Value, json};
use toehold_measure::procfs::HostTimes;
use toehold_measure::stats::{self, Ratio};

use super::network::{FAR_BY_ENGINE, NEAR_ENGINE, Network};
use super::{Link, output, wait_for};
use crate::adapter::Adapter;
use crate::target;

/// Every switch that a combination is about, as it is where the combination does not say.
const OFF: [&str; 5] = [
    "split-headers=off",
    "copy-engine=off",
    "lro=off",
    "checksum=off",
    "coalesce=0",
];
/// A combination's name, and what is different from [`OFF`]. The first is the base of all ratios.
/// LRO needs checksums left to the link.
const COMBINATIONS: [(&str, &[&str]); 7] = [
    ("none", &[]),
    ("split-headers", &["split-headers=on"]),
    ("copy-engine=worker", &["copy-engine=worker"]),
    ("checksum", &["checksum=on"]),
    ("checksum, lro", &["checksum=on", "lro=on"]),
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
/// Bytes of one write: messages as the papers have them, small and large.
const SIZES: [&str; 4] = ["16K", "128K", "1M", "8M"];
const COPYBREAK: &str = "4096";
const PORT: &str = "5301";
const SECONDS: &str = "1";
const USAGE: &str = "\
Usage: cargo xtask bench-switches [--rounds N] [--json FILE]

Bulk to the engine over a TAP device with each feature of the receive path alone, with none, and
with all, for writes of 16 KB, 128 KB, 1 MB and 8 MB. Needs root, ip, ethtool and iperf3 (make
deps). N rounds of one second each, 5 by default.";

/// One run.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Gbit/s.
    rate: f64,
    /// Seconds of all cores for a gigabyte, helpers' included.
    cpu: f64,
}

/// Measures and prints the table. False when something could not be measured.
pub(crate) fn run(arguments: &[String]) -> bool {
    let (mut rounds, mut file) = (5usize, None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--rounds" => rounds = rest.next().and_then(|n| n.parse().ok()).unwrap_or(0),
            "--json" => file = rest.next(),
            _ => rounds = 0,
        }
    }
    if rounds == 0 {
        eprintln!("{USAGE}");
        return false;
    }
    let written = measure(rounds).and_then(|report| match file {
        Some(file) => std::fs::write(file, format!("{report:#}\n"))
            .map_err(|error| format!("cannot write {file}: {error}")),
        None => Ok(()),
    });
    if let Err(reason) = &written {
        eprintln!("not measured: {reason}");
    }
    written.is_ok()
}

fn measure(rounds: usize) -> Result<Value, String> {
    let toehold = target().join("release/toehold");
    if !toehold.is_file() {
        let path = toehold.display();
        return Err(format!("{path} is not there; run make build"));
    }
    let network = Network::new()?;
    let runtime = super::private_directory()?;
    let (link, address) = (network.link(Link::Tap), format!("{NEAR_ENGINE}/24"));
    let options = ["--link", &link, "--address", &address];
    let options = [&options[..], &["--copybreak", COPYBREAK]].concat();
    let program = network.near(&toehold.to_string_lossy());
    let log = Stdio::null();
    let adapter = Adapter::start_with(program, &options, &toehold, runtime.path(), None, log)?;
    wait_for("the engine", || {
        let status = adapter.status();
        status.is_some_and(|status| status["engine"]["mtu"].is_u64())
    })?;
    network.bring_up(Link::Tap, true)?;
    let mut server = network.far("iperf3");
    server.args(["-s", "-p", PORT]).stdin(Stdio::null());
    let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut server = server.map_err(|error| format!("iperf3: {error}"))?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    let set = |setting: &str| {
        let mut command = std::process::Command::new(&toehold);
        command
            .args(["adapter", "--runtime-dir"])
            .arg(runtime.path());
        output(command.args(["--set", setting])).map(drop)
    };
    let sample = |size: &str| {
        let mut client = network.near(&toehold.to_string_lossy());
        client.args(["run", "--path", "offload", "--runtime-dir"]);
        client.arg(runtime.path()).args(["--", "iperf3", "-c"]);
        client.args([
            FAR_BY_ENGINE,
            "-p",
            PORT,
            "-t",
            SECONDS,
            "-l",
            size,
            "-R",
            "-J",
        ]);
        sample_of(|| output(&mut client))
    };
    let mut samples = vec![vec![Vec::new(); COMBINATIONS.len()]; SIZES.len()];
    let measured = (0..rounds).try_for_each(|round| {
        for at in 0..COMBINATIONS.len() {
            // Each round begins with another combination.
            let at = (at + round) % COMBINATIONS.len();
            for setting in OFF.iter().chain(COMBINATIONS[at].1) {
                set(setting)?;
            }
            for (size, samples) in SIZES.iter().zip(&mut samples) {
                samples[at].push(sample(size)?);
            }
        }
        Ok(())
    });
    let _ = server.kill();
    let _ = server.wait();
    measured.map(|()| report(&samples))
}

fn sample_of(load: impl FnOnce() -> Result<String, String>) -> Result<Sample, String> {
    let busy = || HostTimes::now().map(|times| times.busy());
    let before = busy().map_err(|error| format!("/proc/stat: {error}"))?;
    let said = load()?;
    let after = busy().map_err(|error| format!("/proc/stat: {error}"))?;
    let said: Value = serde_json::from_str(&said).map_err(|error| error.to_string())?;
    let sum = &said["end"]["sum_received"];
    match (sum["bits_per_second"].as_f64(), sum["bytes"].as_f64()) {
        (Some(rate), Some(bytes)) if bytes > 0.0 => Ok(Sample {
            rate: rate / 1e9,
            cpu: (after - before) / (bytes / 1e9),
        }),
        _ => Err(format!("iperf3 moved nothing: {said}")),
    }
}

/// Prints one table for each size of messages. The relative benefit of a time b that became a is
/// (b - a) / b, as the papers have it.
fn report(samples: &[Vec<Vec<Sample>>]) -> Value {
    let mut all = Vec::new();
    for (size, of_size) in SIZES.iter().zip(samples) {
        println!("\n| {size} | Gbit/s | against none | CPU s/GB | relative benefit in CPU |");
        println!("|---|---|---|---|---|");
        let base = &of_size[0];
        for ((name, _), samples) in COMBINATIONS.iter().zip(of_size) {
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
            all.push(json!({ "write": size, "switches": name, "samples": samples }));
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
