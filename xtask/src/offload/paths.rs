//! The engine beside the kernel on long paths, and against it at a bottleneck:
//! `cargo xtask bench-paths`.
//!
//! ```text
//!   near ── kernel ──┐                       delay, rate, queue
//!   near ── engine ──┴── v0 ══ path ══ v1 ── far
//! ```
//!
//! Both ends of `v0` use one device and one path, so frames of the kernel and of the engine meet in
//! one queue. The engine has a packet socket there.

use std::path::{Path as FilePath, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use toehold_measure::stats;
use toehold_network::Namespace;

use super::output;
use super::path::{Path, Shape};
use crate::adapter::Adapter;
use crate::target;

const NEAR_KERNEL: &str = "10.85.0.2";
const NEAR_ENGINE: &str = "10.85.0.3";
const FAR: &str = "10.85.0.1";
const PORTS: [&str; 2] = ["5301", "5302"];
/// The round trips over which windows are compared.
const ROUND_TRIPS_MS: [u64; 3] = [10, 40, 100];
/// Congestion control of all streams for which nothing else is said.
const DEFAULT: &str = "cubic";
/// The bottleneck of the comparison of shares, with a queue of one bandwidth-delay product.
const BOTTLENECK_MBIT: f64 = 100.0;
const BOTTLENECK_ROUND_TRIP: Duration = Duration::from_millis(40);
/// Congestion controls that meet: the engine's, and the kernel's beside it.
const MEETINGS: [(&str, &str); 4] = [
    ("cubic", "cubic"),
    ("bbr", "bbr"),
    ("bbr", "cubic"),
    ("cubic", "bbr"),
];
/// A server takes one test at a time, and its end has to travel.
const PAUSE: Duration = Duration::from_secs(1);
const USAGE: &str = "\
Usage: cargo xtask bench-paths [--rounds N] [--seconds N] [--json FILE] [windows|shares]

windows: one stream over a path of 10, 40 and 100 ms, in both directions, by the near kernel and by
the engine in turns. shares: two streams at once through a bottleneck of 100 Mbit/s with a queue of
one bandwidth-delay product (40 ms): the engine's beside the kernel's, and two of the kernel's. The
path is in user space. Needs root, ip, ethtool and iperf3 (make deps). N rounds, 3 by default;
streams of N seconds: 6 for windows, 20 for shares.";

/// Measures and prints the tables. False when something could not be measured.
pub(crate) fn run(arguments: &[String]) -> bool {
    let (mut rounds, mut seconds, mut file, mut only) = (3, None, None, None);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut number = || rest.next().and_then(|n| n.parse().ok()).unwrap_or(0);
        match argument.as_str() {
            "--rounds" => rounds = number(),
            "--seconds" => seconds = Some(number()),
            "--json" => file = rest.next(),
            "windows" | "shares" => only = Some(argument.as_str()),
            _ => rounds = 0,
        }
    }
    if rounds == 0 || seconds == Some(0) {
        eprintln!("{USAGE}");
        return false;
    }
    let measured = measure(rounds, seconds, only);
    let written = measured.and_then(|report| match file {
        Some(file) => std::fs::write(file, format!("{report:#}\n"))
            .map_err(|error| format!("cannot write {file}: {error}")),
        None => Ok(()),
    });
    if let Err(reason) = &written {
        eprintln!("not measured: {reason}");
    }
    written.is_ok()
}

fn measure(rounds: u32, seconds: Option<u32>, only: Option<&str>) -> Result<Value, String> {
    let toehold = target().join("release/toehold");
    if !toehold.is_file() {
        let path = toehold.display();
        return Err(format!("{path} is not there; run make build"));
    }
    let mut report = json!({});
    if only != Some("shares") {
        report["windows"] = windows(&toehold, rounds, seconds.unwrap_or(6))?;
    }
    if only != Some("windows") {
        report["shares"] = shares(&toehold, rounds, seconds.unwrap_or(20))?;
    }
    Ok(report)
}

/// One stream at a time: how fast each of the two stacks is over a path of each length.
fn windows(toehold: &FilePath, rounds: u32, seconds: u32) -> Result<Value, String> {
    println!("| round trip | | kernel | engine | ratio |\n|---|---|---|---|---|");
    let mut all = Vec::new();
    for milliseconds in ROUND_TRIPS_MS {
        let shape = Shape {
            delay: Duration::from_millis(milliseconds) / 2,
            bottleneck: None,
            large: true,
        };
        let scene = Scene::set(toehold, shape, DEFAULT)?;
        for (direction, option) in [("to the far end", None), ("from the far end", Some("-R"))] {
            let mut pairs = Vec::new();
            for round in 0..rounds {
                let mut arms = [false, true];
                if round % 2 == 1 {
                    arms.reverse();
                }
                let mut rates = [0.0; 2];
                for by_engine in arms {
                    let mut client = scene.client(by_engine, PORTS[0], seconds, DEFAULT);
                    client.args(option);
                    rates[usize::from(by_engine)] = rate_of(&output(&mut client)?)?;
                    std::thread::sleep(PAUSE);
                }
                pairs.push((rates[0], rates[1]));
            }
            let median = |get: fn(&(f64, f64)) -> f64| {
                stats::median(&pairs.iter().map(get).collect::<Vec<f64>>())
            };
            let ratio = stats::ratio(&pairs).ok_or("nothing was moved")?;
            println!(
                "| {milliseconds} ms | {direction} | {:.0} Mbit/s | {:.0} Mbit/s | {:.2}x [{:.2}, \
                 {:.2}] |",
                median(|pair| pair.0),
                median(|pair| pair.1),
                ratio.value,
                ratio.low,
                ratio.high
            );
            all.push(json!({
                "round_trip_ms": milliseconds,
                "direction": direction,
                "kernel_and_engine_mbit": pairs,
            }));
        }
    }
    Ok(all.into())
}

/// Two streams at once: the part of the bottleneck that the first one gets.
fn shares(toehold: &FilePath, rounds: u32, seconds: u32) -> Result<Value, String> {
    println!("\n| first stream | second stream | both | share of the first |\n|---|---|---|---|");
    let bytes_per_second = BOTTLENECK_MBIT * 1e6 / 8.0;
    let queue_bytes = bytes_per_second * BOTTLENECK_ROUND_TRIP.as_secs_f64();
    let shape = Shape {
        delay: BOTTLENECK_ROUND_TRIP / 2,
        bottleneck: Some((bytes_per_second, queue_bytes)),
        large: false,
    };
    let mut all = Vec::new();
    for by_engine in [true, false] {
        for (first, second) in MEETINGS {
            let scene = Scene::set(toehold, shape, first)?;
            let mut samples = Vec::new();
            for _ in 0..rounds {
                let clients = [
                    scene.client(by_engine, PORTS[0], seconds, first),
                    scene.client(false, PORTS[1], seconds, second),
                ];
                let mut started = Vec::new();
                for mut client in clients {
                    client.stdin(Stdio::null()).stdout(Stdio::piped());
                    started.push(client.spawn().map_err(|error| error.to_string())?);
                }
                let mut rates = Vec::new();
                for client in started {
                    let done = client.wait_with_output();
                    let done = done.map_err(|error| error.to_string())?;
                    rates.push(rate_of(&String::from_utf8_lossy(&done.stdout))?);
                }
                samples.push((rates[0], rates[1]));
                std::thread::sleep(PAUSE);
            }
            let sums: Vec<f64> = samples.iter().map(|(a, b)| a + b).collect();
            let parts: Vec<f64> = samples.iter().map(|(a, b)| 100.0 * a / (a + b)).collect();
            let of = if by_engine { "engine" } else { "kernel" };
            let spread = stats::median_interval(&parts).ok_or("no round")?;
            println!(
                "| {of}, {first} | kernel, {second} | {:.0} Mbit/s | {:.0} % [{:.0}, {:.0}] |",
                stats::median(&sums),
                stats::median(&parts),
                spread.low,
                spread.high
            );
            all.push(json!({
                "first": format!("{of}, {first}"),
                "second": format!("kernel, {second}"),
                "mbit": samples,
            }));
        }
    }
    Ok(all.into())
}

/// Two namespaces, the path between them, the engine at the near end, servers at the far one.
struct Scene {
    toehold: PathBuf,
    runtime: TempDir,
    servers: Vec<Child>,
    _adapter: Adapter,
    near: Namespace,
    _far: Namespace,
    _path: Path,
}

impl Scene {
    fn set(toehold: &FilePath, shape: Shape, congestion: &str) -> Result<Scene, String> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        let path = Path::lay(&near, &far, shape)?;
        near.ip(&format!("addr add {NEAR_KERNEL}/24 dev v0"))?;
        far.ip(&format!("addr add {FAR}/24 dev v1"))?;
        if !shape.large {
            for (namespace, device) in [(&near, "v0"), (&far, "v1")] {
                let mut ethtool = namespace.command("ethtool");
                output(ethtool.args(["-K", device, "gso", "off", "tso", "off"]))?;
            }
        }
        let runtime = super::private_directory()?;
        let address = format!("{NEAR_ENGINE}/24");
        let options = ["--link", "packet:v0", "--address", &address];
        let options = [&options[..], &["--congestion", congestion]].concat();
        let adapter = start_adapter(near.command(toehold), &options, toehold, runtime.path())?;
        let mut scene = Scene {
            toehold: toehold.to_owned(),
            runtime,
            servers: Vec::new(),
            _adapter: adapter,
            near,
            _far: far,
            _path: path,
        };
        for port in PORTS {
            let mut server = scene._far.command("iperf3");
            server.args(["-s", "-p", port]).stdin(Stdio::null());
            let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            scene
                .servers
                .push(server.map_err(|error| format!("iperf3: {error}"))?);
        }
        // iperf3 does not say when it listens.
        std::thread::sleep(Duration::from_millis(300));
        Ok(scene)
    }

    /// A client of the near end, by the engine or by the kernel. The congestion control is that of
    /// the kernels' sockets.
    fn client(&self, by_engine: bool, port: &str, seconds: u32, congestion: &str) -> Command {
        let mut command = if by_engine {
            let mut command = self.near.command(&self.toehold);
            command.args(["run", "--path", "offload", "--runtime-dir"]);
            command.arg(self.runtime.path()).args(["--", "iperf3"]);
            command
        } else {
            self.near.command("iperf3")
        };
        // Of the kernel's sockets: of the far one, too, where that one sends.
        command.args(["-C", congestion]);
        command.args(["-c", FAR, "-p", port, "-J", "-t", &seconds.to_string()]);
        command
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// The engine has begun when the adapter tells its MTU.
fn start_adapter(
    command: Command,
    options: &[&str],
    toehold: &FilePath,
    runtime: &FilePath,
) -> Result<Adapter, String> {
    let log = Stdio::null();
    let adapter = Adapter::start_with(command, options, toehold, runtime, None, log)?;
    super::wait_for("the engine", || {
        let status = adapter.status();
        status.is_some_and(|status| status["engine"]["mtu"].is_u64())
    })?;
    Ok(adapter)
}

/// Mbit/s of payload that arrived.
fn rate_of(said: &str) -> Result<f64, String> {
    let report: Value =
        serde_json::from_str(said).map_err(|error| format!("iperf3 said {said}: {error}"))?;
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64();
    let rate = rate.filter(|rate| *rate > 0.0);
    Ok(rate.ok_or_else(|| format!("iperf3 moved nothing: {said}"))? / 1e6)
}
