//! The programs of one comparison, and the resources that they used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;
use toehold_measure::procfs::HostTimes;

use super::account::{self, Account, Ends};
use super::network::{FAR_BY_ENGINE, FAR_BY_KERNEL, NEAR_ENGINE, NEAR_KERNEL, Network};
use super::{Case, Link, Work, output, wait_for};

/// The path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    Kernel,
    /// The kernel a second time: its difference from itself is the noise floor.
    Again,
    Engine,
}

/// One run. CPU time is in seconds of one core per unit of work: a gigabyte, or a request.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    /// Gbit/s, or thousand requests a second.
    pub(super) rate: f64,
    /// Microseconds.
    pub(super) latency_p50: Option<f64>,
    pub(super) latency_p99: Option<f64>,
    /// CPU time of all cores.
    pub(super) cpu_all: f64,
    /// CPU time of the near end: its program, and the adapter if it is on the path.
    pub(super) cpu_near: f64,
    /// CPU time of the adapter alone.
    pub(super) cpu_adapter: f64,
}

/// A client's measurements of its own run.
struct Outcome {
    /// Gigabytes, or requests.
    units: f64,
    /// As [`Sample::rate`].
    rate: f64,
    /// Latencies in microseconds: the median and the 99th percentile.
    latencies: Option<(f64, f64)>,
}

/// The parts that stay while the arms take turns: servers and the adapter. They end when dropped.
pub(super) struct Scene<'n> {
    network: &'n Network,
    toehold: PathBuf,
    case: Case,
    runtime: TempDir,
    adapter: Program,
    /// The server of the kernel's arm, and the server of the engine's arm. At the far end they are
    /// one server.
    servers: Vec<Program>,
}

/// A process of ours, ended when dropped.
struct Program(Child);

/// The load of a redis-benchmark.
#[derive(Clone, Copy)]
struct Redis {
    clients: u32,
    near_serves: bool,
    /// Whether each client keeps one connection; otherwise each request uses a new one.
    keeps_connections: bool,
    requests: u32,
}

impl Redis {
    /// The load of a row, unless it is bulk.
    fn of(work: Work) -> Option<Redis> {
        match work {
            Work::Bulk { .. } => None,
            Work::Requests {
                clients,
                near_serves,
            } => Some(Redis {
                clients,
                near_serves,
                keeps_connections: true,
                requests: requests_for(clients),
            }),
            Work::Connections { near_serves } => Some(Redis {
                clients: 50,
                near_serves,
                keeps_connections: false,
                requests: CONNECTIONS,
            }),
        }
    }
}

const BULK_SECONDS: &str = "2";
const BULK_PORT: &str = "5301";
/// Enough requests to make the resolution of the CPU clock irrelevant.
const REQUESTS: u32 = 150_000;
const REQUESTS_OF_ONE: u32 = 40_000;
/// The engine uses a port for a destination again after a minute.
const CONNECTIONS: u32 = 5_000;
/// The least requests per client, so that the connection set-up does not dominate.
const REQUESTS_EACH_MIN: u32 = 400;

impl<'n> Scene<'n> {
    pub(super) fn set(
        toehold: &Path,
        network: &'n Network,
        case: Case,
    ) -> Result<Scene<'n>, String> {
        let runtime = tempfile::Builder::new().prefix("toehold-").tempdir();
        let runtime = runtime.map_err(|error| format!("no private directory: {error}"))?;
        let mut adapter = network.near(&toehold.to_string_lossy());
        adapter.args(["adapter", "--link", &network.link(case.link)]);
        adapter.args(["--address", &format!("{NEAR_ENGINE}/24")]);
        // Over a packet socket the kernel segments for the engine as for itself, in software. Over
        // AF_XDP there is no segmentation.
        if !case.large && case.link == Link::Tap {
            adapter.args(["--no-lso", "--no-lro"]);
        }
        let mut scene = Scene {
            network,
            toehold: toehold.to_owned(),
            case,
            adapter: Program::start(adapter.env("XDG_RUNTIME_DIR", runtime.path()))?,
            runtime,
            servers: Vec::new(),
        };
        wait_for("the adapter", || scene.engine("mtu").is_some())?;
        network.bring_up(case.link, case.large)?;
        scene.start_servers()?;
        Ok(scene)
    }

    fn start_servers(&mut self) -> Result<(), String> {
        let redis = |mut command: Command, port: &str| {
            command.args(["--save", "", "--protected-mode", "no", "--bind", "0.0.0.0"]);
            command.args(["--daemonize", "no", "--port", port]);
            Program::start(&mut command)
        };
        match Redis::of(self.case.work) {
            None => {
                let mut server = self.network.far("iperf3");
                server.args(["-s", "-p", BULK_PORT]);
                self.servers.push(Program::start(&mut server)?);
            }
            Some(load) if load.near_serves => {
                let listeners = self.engine("listeners");
                let kernel = redis(self.network.near("redis-server"), "6391")?;
                let engine = redis(self.run("redis-server"), "6392")?;
                self.servers = vec![kernel, engine];
                wait_for("a listener", || self.engine("listeners") > listeners)?;
            }
            Some(_) => {
                let server = redis(self.network.far("redis-server"), "6391")?;
                self.servers.push(server);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        Ok(())
    }

    /// Runs the load once.
    pub(super) fn sample(&self, arm: Arm) -> Result<Sample, String> {
        let load = Redis::of(self.case.work);
        let mut client = self.client(arm);
        let before = self.cpu_now(arm)?;
        let children = children_cpu();
        let said = output(&mut client)?;
        let client_cpu = children_cpu() - children;
        let after = self.cpu_now(arm)?;
        let Outcome {
            units,
            rate,
            latencies,
        } = match load {
            None => bulk_of(&said)?,
            Some(load) => requests_of(&said, load.requests)?,
        };
        let [all, server, adapter] = [0, 1, 2].map(|at| (after[at] - before[at]) / units);
        let client_is_near = load.is_none_or(|load| !load.near_serves);
        let program = if client_is_near {
            client_cpu / units
        } else {
            server
        };
        Ok(Sample {
            rate,
            latency_p50: latencies.map(|(p50, _)| p50),
            latency_p99: latencies.map(|(_, p99)| p99),
            cpu_all: all,
            cpu_near: program + adapter,
            cpu_adapter: adapter,
        })
    }

    /// Runs the load once more, while every processor is sampled. Returns the near end's seconds
    /// for each unit, with receiving attributed to the end that receives.
    pub(super) fn account(&self, arm: Arm) -> Result<Account, String> {
        let load = Redis::of(self.case.work);
        let near_serves = load.is_some_and(|load| load.near_serves);
        let client = self.client(arm);
        let perf = match near_serves {
            true => self.network.far("perf"),
            false => self.network.near("perf"),
        };
        let file = self.runtime.path().join("samples");
        let said = account::sampled(perf, &client, &file)?;
        let units = match load {
            None => bulk_of(&said)?.units,
            Some(load) => requests_of(&said, load.requests)?.units,
        };
        let servers: Vec<u32> = self.servers.iter().map(|server| server.0.id()).collect();
        let adapter = self.adapter.0.id();
        let (near, far) = match near_serves {
            true => ([servers, vec![adapter]].concat(), Vec::new()),
            false => (vec![adapter], servers),
        };
        let ends = Ends {
            near: near.into_iter().collect(),
            far: far.into_iter().collect(),
            client: match load {
                Some(_) => "redis-benchmark",
                None => "iperf3",
            },
            client_is_near: !near_serves,
            has_carriers: arm == Arm::Engine,
        };
        let account = account::read(&file, &ends)?;
        Ok(Account {
            near: account.near / units,
            unknown: account.unknown / units,
        })
    }

    /// CPU seconds so far: of all cores, of the arm's server, of the adapter if the arm uses it.
    fn cpu_now(&self, arm: Arm) -> Result<[f64; 3], String> {
        let server = match arm {
            Arm::Kernel | Arm::Again => self.servers.first(),
            Arm::Engine => self.servers.last(),
        };
        let server = server.expect("started with the scene").cpu()?;
        let adapter = match arm {
            Arm::Kernel | Arm::Again => 0.0,
            Arm::Engine => self.adapter.cpu()?,
        };
        let all = HostTimes::now().map_err(|error| format!("/proc/stat: {error}"))?;
        Ok([all.busy(), server, adapter])
    }

    fn client(&self, arm: Arm) -> Command {
        let Some(load) = Redis::of(self.case.work) else {
            let (mut command, host) = self.near_client(arm, "iperf3");
            command.args(["-c", host, "-p", BULK_PORT, "-t", BULK_SECONDS, "-J"]);
            let is_to_near = self.case.work == Work::Bulk { to_near: true };
            command.args(is_to_near.then_some("-R"));
            return command;
        };
        let (mut command, host, port) = match (load.near_serves, arm) {
            (true, Arm::Kernel | Arm::Again) => {
                (self.network.far("redis-benchmark"), NEAR_KERNEL, "6391")
            }
            (true, Arm::Engine) => (self.network.far("redis-benchmark"), NEAR_ENGINE, "6392"),
            (false, arm) => {
                let (command, host) = self.near_client(arm, "redis-benchmark");
                (command, host, "6391")
            }
        };
        command.args(["-h", host, "-p", port, "-t", "get", "--csv"]);
        command.args(["-c", &load.clients.to_string()]);
        command.args(["-n", &load.requests.to_string()]);
        command.args(["-k", if load.keeps_connections { "1" } else { "0" }]);
        command
    }

    fn near_client(&self, arm: Arm, program: &str) -> (Command, &'static str) {
        match arm {
            Arm::Kernel | Arm::Again => (self.network.near(program), FAR_BY_KERNEL),
            Arm::Engine => (self.run(program), FAR_BY_ENGINE),
        }
    }

    /// `program` on the offload path.
    fn run(&self, program: &str) -> Command {
        let mut command = self.network.near(&self.toehold.to_string_lossy());
        command.args(["run", "--path", "offload", "--", program]);
        command.env("XDG_RUNTIME_DIR", self.runtime.path());
        command
    }

    /// One of the engine's counters.
    fn engine(&self, key: &str) -> Option<u64> {
        let mut command = Command::new(&self.toehold);
        command.args(["status", "--json"]);
        command.env("XDG_RUNTIME_DIR", self.runtime.path());
        let report: Value = serde_json::from_str(&output(&mut command).ok()?).ok()?;
        report["engine"][key].as_u64()
    }
}

impl Program {
    fn start(command: &mut Command) -> Result<Program, String> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let started = command.spawn();
        let started = started.map_err(|error| format!("cannot run {command:?}: {error}"))?;
        Ok(Program(started))
    }

    /// The seconds for which all its threads have run.
    fn cpu(&self) -> Result<f64, String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id()));
        let tasks = tasks.map_err(|error| format!("a program has ended: {error}"))?;
        let of_one = |path: PathBuf| -> Option<f64> {
            let text = fs::read_to_string(path.join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<f64>().ok()
        };
        let nanos: f64 = tasks.flatten().filter_map(|task| of_one(task.path())).sum();
        Ok(nanos / 1e9)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: our child, which has not been waited for.
        unsafe { libc::kill(self.0.id().cast_signed(), libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

fn requests_for(clients: u32) -> u32 {
    if clients == 1 {
        REQUESTS_OF_ONE
    } else {
        REQUESTS.max(clients * REQUESTS_EACH_MIN)
    }
}

fn bulk_of(said: &str) -> Result<Outcome, String> {
    let report: Value =
        serde_json::from_str(said).map_err(|error| format!("iperf3 said {said}: {error}"))?;
    let sum = &report["end"]["sum_received"];
    match (sum["bytes"].as_f64(), sum["bits_per_second"].as_f64()) {
        (Some(bytes), Some(rate)) if bytes > 0.0 => Ok(Outcome {
            units: bytes / 1e9,
            rate: rate / 1e9,
            latencies: None,
        }),
        _ => Err(format!("iperf3 moved nothing: {said}")),
    }
}

fn requests_of(said: &str, count: u32) -> Result<Outcome, String> {
    let fields = said.lines().rfind(|line| line.starts_with("\"GET\""));
    let fields: Vec<f64> = fields.map_or(Vec::new(), |line| {
        let numbers = line.split(',').skip(1);
        let number = |field: &str| field.trim_matches('"').parse().ok();
        numbers.filter_map(number).collect()
    });
    // "GET",rps,avg,min,p50,p95,p99,max; milliseconds.
    match fields[..] {
        [rate, _, _, p50, _, p99, _] => Ok(Outcome {
            units: f64::from(count),
            rate: rate / 1e3,
            latencies: Some((p50 * 1e3, p99 * 1e3)),
        }),
        _ => Err(format!("redis-benchmark said {said}")),
    }
}

/// The seconds for which finished children have run.
fn children_cpu() -> f64 {
    // SAFETY: zeroes are a value of this plain structure, which the call fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_s_last_line_is_read() {
        let said = "\"test\",\"rps\"\n\
            \"GET\",\"98039.22\",\"0.261\",\"0.040\",\"0.255\",\"0.359\",\"0.503\",\"1.375\"\n";
        let outcome = requests_of(said, 1000).expect("complete");
        assert!((outcome.units - 1000.0).abs() < 1e-9);
        assert!((outcome.rate - 98.039_22).abs() < 1e-9);
        let (p50, p99) = outcome.latencies.expect("both");
        assert!((p50 - 255.0).abs() < 1e-9 && (p99 - 503.0).abs() < 1e-9);
        assert!(requests_of("Could not connect", 1000).is_err());
    }

    #[test]
    fn iperf_that_moved_nothing_is_an_error() {
        let said = r#"{"end": {"sum_received": {"bytes": 2e9, "bits_per_second": 8e9}}}"#;
        assert!(bulk_of(said).is_ok());
        assert!(bulk_of(r#"{"error": "unable to connect"}"#).is_err());
    }
}
