//! Measures the engine beside the kernel on long paths, and against the kernel at a bottleneck:
//! `cargo xtask bench-paths`.
//!
//! ```text
//!   near ── kernel ──┐                       delay, rate, queue
//!   near ── engine ──┴── v0 ══ path ══ v1 ── far
//! ```
//!
//! Both ends of `v0` use one device and one path, so frames of the kernel and of the engine share
//! one queue. The engine uses a packet socket there.

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
/// The congestion control of all streams, unless a measurement sets another.
const DEFAULT: &str = "cubic";
/// The bottleneck of the comparison of shares, with a queue of one bandwidth-delay product.
const BOTTLENECK_MBIT: f64 = 100.0;
const BOTTLENECK_ROUND_TRIP: Duration = Duration::from_millis(40);
/// Pairs of congestion controls: the engine's, and the kernel's beside it.
const MEETINGS: [(&str, &str); 4] = [
    ("cubic", "cubic"),
    ("bbr", "bbr"),
    ("bbr", "cubic"),
    ("cubic", "bbr"),
];
/// A server runs one test at a time, and the end of a test takes time to travel.
const PAUSE: Duration = Duration::from_secs(1);
/// A shell that starts the rest of its words when its input ends.
const HELD: [&str; 4] = ["sh", "-c", "read line; exec \"$@\"", "sh"];
/// The time in which both shells have started. Without them the engine's stream would start later
/// by the time in which `toehold run` starts a program, and BBR's first version leaves little to a
/// stream that starts a few round trips later.
const START: Duration = Duration::from_millis(500);
const USAGE: &str = "\
Usage: cargo xtask bench-paths [--rounds N] [--seconds N] [--json FILE] [--pair FIRST,SECOND]
                               [windows|shares]

windows: one stream over a path of 10, 40 and 100 ms, in both directions, by the near kernel and by
the engine in turns. shares: two streams at once through a bottleneck of 100 Mbit/s with a queue of
one bandwidth-delay product (40 ms): the engine's beside the kernel's, and two of the kernel's. The
path is in user space. Needs root, ip, ethtool and iperf3 (make deps). N rounds, 3 by default;
streams of N seconds: 6 for windows, 20 for shares. --pair bbr,cubic: only the shares of the
engine's BBR beside the kernel's CUBIC, and of the kernel's BBR there. One pair takes a little more
than rounds x 2 x seconds. Each round is told on standard error when it is over.";

/// The parsed command line.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Plan<'a> {
    rounds: u32,
    seconds: Option<u32>,
    file: Option<&'a str>,
    only: Option<&'a str>,
    meetings: Vec<(&'a str, &'a str)>,
}

impl<'a> Plan<'a> {
    /// `None` when an argument is invalid.
    fn of(arguments: &'a [String]) -> Option<Self> {
        let mut plan = Plan {
            rounds: 3,
            ..Plan::default()
        };
        let mut rest = arguments.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            let mut number = || rest.next()?.parse().ok().filter(|&number| number > 0);
            match argument {
                "--rounds" => plan.rounds = number()?,
                "--seconds" => plan.seconds = Some(number()?),
                "--json" => plan.file = Some(rest.next()?),
                "--pair" => plan.meetings.push(rest.next()?.split_once(',')?),
                "windows" | "shares" => plan.only = Some(argument),
                _ => return None,
            }
        }
        if plan.meetings.is_empty() {
            plan.meetings.extend(MEETINGS);
        } else if plan.only.replace("shares") == Some("windows") {
            return None;
        }
        Some(plan)
    }
}

/// Measures and prints the tables. False when something could not be measured.
pub(crate) fn run(arguments: &[String]) -> bool {
    let Some(plan) = Plan::of(arguments) else {
        eprintln!("{USAGE}");
        return false;
    };
    let file = plan.file;
    let measured = measure(&plan);
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

fn measure(plan: &Plan) -> Result<Value, String> {
    let toehold = target().join("release/toehold");
    if !toehold.is_file() {
        let path = toehold.display();
        return Err(format!("{path} is not there; run make build"));
    }
    let mut report = json!({});
    if plan.only != Some("shares") {
        report["windows"] = windows(&toehold, plan.rounds, plan.seconds.unwrap_or(6))?;
    }
    if plan.only != Some("windows") {
        report["shares"] = shares(&toehold, plan)?;
    }
    Ok(report)
}

/// One stream at a time: the rate of each stack over paths of different delay.
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
                    let mut client = scene.client(by_engine, &[], PORTS[0], seconds, DEFAULT);
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

/// Two streams at once: the share of the bottleneck that the first one gets.
fn shares(toehold: &FilePath, plan: &Plan) -> Result<Value, String> {
    println!("\n| first stream | second stream | both | share of the first |\n|---|---|---|---|");
    let bytes_per_second = BOTTLENECK_MBIT * 1e6 / 8.0;
    let queue_bytes = bytes_per_second * BOTTLENECK_ROUND_TRIP.as_secs_f64();
    let shape = Shape {
        delay: BOTTLENECK_ROUND_TRIP / 2,
        bottleneck: Some((bytes_per_second, queue_bytes)),
        large: false,
    };
    let seconds = plan.seconds.unwrap_or(20);
    let mut all = Vec::new();
    for &(first, second) in &plan.meetings {
        let scene = Scene::set(toehold, shape, first)?;
        let arms = [true, false].map(|by_engine| if by_engine { "engine" } else { "kernel" });
        let mut samples = arms.map(|_| Vec::new());
        for round in 1..=plan.rounds {
            for (of, samples) in arms.iter().zip(&mut samples) {
                let sample = scene.meeting(*of == "engine", seconds, (first, second))?;
                samples.push(sample);
                eprintln!(
                    "round {round} of {}: {of}, {first} {:.0} Mbit/s; kernel, {second} {:.0} \
                     Mbit/s",
                    plan.rounds, sample.0, sample.1
                );
            }
        }
        for (of, samples) in arms.iter().zip(samples) {
            let sums: Vec<f64> = samples.iter().map(|(a, b)| a + b).collect();
            let parts: Vec<f64> = samples.iter().map(|(a, b)| 100.0 * a / (a + b)).collect();
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

/// Two namespaces, the path between them, the engine at the near end, servers at the far end.
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
        // iperf3 does not report when it listens.
        std::thread::sleep(Duration::from_millis(300));
        Ok(scene)
    }

    /// The rates of two streams at once: the first by the engine or by the kernel, the second by
    /// the kernel.
    fn meeting(
        &self,
        by_engine: bool,
        seconds: u32,
        (first, second): (&str, &str),
    ) -> Result<(f64, f64), String> {
        let clients = [
            self.client(by_engine, &HELD, PORTS[0], seconds, first),
            self.client(false, &HELD, PORTS[1], seconds, second),
        ];
        let mut started = Vec::new();
        for mut client in clients {
            client.stdin(Stdio::piped()).stdout(Stdio::piped());
            started.push(client.spawn().map_err(|error| error.to_string())?);
        }
        std::thread::sleep(START);
        for client in &mut started {
            // The end of its input releases the shell.
            drop(client.stdin.take());
        }
        let mut rates = [0.0; 2];
        for (client, rate) in started.into_iter().zip(&mut rates) {
            let done = client.wait_with_output();
            let done = done.map_err(|error| error.to_string())?;
            *rate = rate_of(&String::from_utf8_lossy(&done.stdout))?;
        }
        std::thread::sleep(PAUSE);
        Ok((rates[0], rates[1]))
    }

    /// A client of the near end, by the engine or by the kernel, behind the words of another
    /// program. The congestion control is that of the kernels' sockets.
    fn client(
        &self,
        by_engine: bool,
        behind: &[&str],
        port: &str,
        seconds: u32,
        congestion: &str,
    ) -> Command {
        let words = [behind, &["iperf3"]].concat();
        let mut command = if by_engine {
            let mut command = self.near.command(&self.toehold);
            command.args(["run", "--path", "offload", "--runtime-dir"]);
            command.arg(self.runtime.path()).arg("--").args(words);
            command
        } else {
            let mut command = self.near.command(words[0]);
            command.args(&words[1..]);
            command
        };
        // These are the kernel's sockets: the far kernel's, too, when the far end sends.
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

/// The engine has started when the adapter reports the engine's MTU.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_pair_is_measured_alone() {
        let line = words("--rounds 2 --pair bbr,cubic --json out");
        let plan = Plan::of(&line).expect("it is understood");
        assert_eq!(plan.meetings, [("bbr", "cubic")]);
        assert_eq!(
            (plan.only, plan.rounds, plan.file),
            (Some("shares"), 2, Some("out"))
        );
        let plan = Plan::of(&[]).expect("nothing has to be said");
        assert_eq!((plan.meetings, plan.only), (MEETINGS.to_vec(), None));
    }

    #[test]
    fn nonsense_is_not_measured() {
        for line in [
            "--rounds 0",
            "--rounds",
            "--seconds x",
            "--json",
            "--pair bbr",
            "--pair bbr,bbr windows",
            "windows --pair bbr,bbr",
            "both",
        ] {
            assert_eq!(Plan::of(&words(line)), None, "{line}");
        }
    }
}
