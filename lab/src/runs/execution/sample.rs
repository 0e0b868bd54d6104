//! One sample: a server and a client with the settings of an arm and a load.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use toehold_measure::process::{self, Launch, Program};
use toehold_measure::procfs::HostTimes;
use toehold_measure::ready::Ready;

use super::Scene;
use crate::generator::{Arrivals, Load, Outcome, PRIOR_TIMEOUT, Pattern};
use crate::runs::application::Staged;
use crate::runs::arm::{Arm, ArmPath, Family, Wait};
use crate::runs::plan_file::{Block, PlanFile};
use crate::runs::tool::{Site, Tool};

pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(20);
pub(super) const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
/// The port of servers in a namespace of their own.
const SERVER_PORT: u16 = 5400;
const SIMULATION: [&str; 4] = [
    "valgrind",
    "--tool=cachegrind",
    "--cache-sim=yes",
    "--cachegrind-out-file=/dev/null",
];

impl Scene {
    pub(super) fn sample(&self, job: &Job<'_>) -> Result<Outcome, String> {
        if let Some(application) = &job.application {
            return self.sample_of(application, job);
        }
        if job.has_processes {
            return self.sample_with_processes(job);
        }
        let Job {
            arm,
            load,
            ports,
            tool,
            ..
        } = job;
        let (ports, tool) = (*ports, *tool);
        let load_words = load_words(load);
        if matches!(arm.path, ArmPath::Limit | ArmPath::OneCopy) {
            let mut words = self.words(&["lab", "limit", "--json"]);
            let is_one_copy = arm.path == ArmPath::OneCopy;
            words.extend(is_one_copy.then(|| "--one-copy".to_owned()));
            words.extend(load_words);
            return self.outcome(&words, None, load, None);
        }
        let network = self.network.as_ref();
        let wire = network.and_then(|network| Some((network, network.wire_of(arm)?)));
        let place = match wire {
            Some((network, at)) => Place {
                listen: format!("0.0.0.0:{SERVER_PORT}"),
                connect: network.server_addresses(at, ports, SERVER_PORT),
                ready: None,
            },
            None => self.place(arm.family)?,
        };
        let mut ready = place.ready;
        let engine = wire.filter(|_| arm.path == ArmPath::Offload);
        let engine = engine.map(|(_, at)| at);
        let mut server = self.under(arm, server_path(arm), engine);
        let mut client = self.under(arm, arm.path, engine);
        if let Some(log) = &self.counting.simulation {
            client.extend(SIMULATION.map(str::to_owned));
            client.push(format!("--log-file={}", log.display()));
        }
        match tool {
            Some(tool) => {
                let site = Site {
                    ports: [free_port()?, free_port()?],
                    folder: self.scratch.path(),
                };
                let words = tool.server(load, &site);
                server.extend(words.map_err(|error| format!("no settings for a server: {error}"))?);
                client.extend(tool.client(load, &site));
                ready = Some(Ready::TcpPort(tool.port(&site)));
            }
            None => {
                server.extend(self.words(&["lab", "server", "--listen", &place.listen]));
                client.extend(self.words(&["lab", "client", &place.connect, "--json"]));
                client.extend(load_words);
            }
        }
        if let Some((network, _)) = wire {
            server.splice(0..0, network.far());
            client.splice(0..0, network.near());
        }
        if let (ArmPath::Sockmap, Some(Ok(sockmap))) = (arm.path, &self.sockmap) {
            server.splice(0..0, sockmap.words());
            client.splice(0..0, sockmap.words());
        }
        let mut server = self.start("server", &server, self.placement.server.as_deref())?;
        match ready {
            Some(ready) => ready.wait(&mut server, READY_TIMEOUT)?,
            None => wait_for_words(&mut server)?,
        }
        let outcome = self.outcome(&client, self.placement.client.as_deref(), load, tool)?;
        if let Ok(mut calls) = self.calls.lock() {
            calls.1 = server.syscalls();
        }
        if let Some(ended) = server.poll() {
            return Err(format!(
                "the server {}: {}",
                ended.words(),
                server.last_words()
            ));
        }
        server.stop();
        Ok(outcome)
    }

    /// The command words that run a program on a path with an arm's settings.
    pub(super) fn under(&self, arm: &Arm, path: ArmPath, engine: Option<usize>) -> Vec<String> {
        let path = match path {
            ArmPath::Direct => "direct",
            ArmPath::Offload => "offload",
            _ => "host",
        };
        let wait = match arm.wait {
            Wait::Adaptive => "adaptive",
            Wait::Poll => "poll",
            Wait::Event => "event",
        };
        let express = if arm.express { "on" } else { "off" };
        let mut words = self.words(&["run", "--path", path, "--wait", wait, "--express", express]);
        words.extend(["--runtime-dir".to_owned(), self.runtime_dir(engine)]);
        words.push("--".to_owned());
        words
    }

    pub(super) fn outcome(
        &self,
        words: &[String],
        cores: Option<&[usize]>,
        load: &Load,
        tool: Option<Tool>,
    ) -> Result<Outcome, String> {
        let before = HostTimes::now().ok();
        let mut client = self.start("client", words, cores)?;
        let mut limit = Duration::from_secs_f64(load.seconds + load.warmup) + CLIENT_TIMEOUT;
        if load.prior > 0 {
            limit += PRIOR_TIMEOUT;
        }
        let Some(ended) = client.wait_until(Instant::now() + limit) else {
            return Err("the client did not end in time".to_owned());
        };
        if let Ok(mut calls) = self.calls.lock() {
            calls.0 = client.syscalls();
        }
        if !ended.succeeded() {
            return Err(format!(
                "the client {}: {}",
                ended.words(),
                client.last_words()
            ));
        }
        if let Some(tool) = tool {
            let spent = HostTimes::now().ok().zip(before);
            let cpu = spent.map(|(after, before)| after - before);
            let cpu = cpu.map(|spent| (spent.busy(), spent.softirq));
            let outcome = tool.outcome(&client.output(), load, cpu);
            return outcome.ok_or_else(|| "the client's output has no throughput".to_owned());
        }
        serde_json::from_str(&client.output())
            .map_err(|error| format!("the client's outcome cannot be read: {error}"))
    }

    pub(super) fn start(
        &self,
        role: &str,
        words: &[String],
        cores: Option<&[usize]>,
    ) -> Result<Program, String> {
        let launch = Launch {
            words,
            cores,
            output: self.scratch.path().join(role),
            tracepoint: self.counting.tracepoint,
        };
        Program::start(&launch).map_err(|error| format!("cannot start the {role}: {error}"))
    }

    /// A free address of this host.
    pub(super) fn place(&self, family: Family) -> Result<Place, String> {
        match family {
            Family::Tcp => {
                let port = free_port()?;
                let address = format!("127.0.0.1:{port}");
                Ok(Place {
                    listen: address.clone(),
                    connect: address,
                    ready: Some(Ready::TcpPort(port)),
                })
            }
            Family::Unix => {
                let path = self.scratch.path().join("socket");
                let _ = fs::remove_file(&path);
                let address = format!("unix:{}", path.display());
                Ok(Place {
                    listen: address.clone(),
                    connect: address,
                    ready: Some(Ready::Unix(path)),
                })
            }
        }
    }

    /// Whether the combination is possible. Between bare threads connections have no limit; an
    /// engine has one port; one-copy transfer has one stream; sockmap and one-copy transfer may be
    /// unavailable; other projects' tools support only some loads, over TCP.
    pub(super) fn is_possible(&self, job: &Job<'_>) -> bool {
        let Job {
            arm, load, tool, ..
        } = job;
        if let Some(application) = &job.application {
            return self.can_run(application, arm);
        }
        if job.beyond_descriptors(self.descriptors).is_some() {
            return false;
        }
        let pattern = load.pattern;
        let is_bare = matches!(arm.path, ArmPath::Limit | ArmPath::OneCopy);
        let is_apart = is_bare || arm.family == Family::Unix;
        if tool.is_some_and(|tool| is_apart || !tool.makes(load)) {
            return false;
        }
        match arm.path {
            ArmPath::OneCopy => {
                let is_known = matches!(pattern, Pattern::PingPong | Pattern::ToServer);
                is_known && load.streams == 1 && self.one_copy.is_none()
            }
            ArmPath::Limit => !pattern.is_short(),
            ArmPath::Offload => job.ports == 1,
            ArmPath::Sockmap => matches!(self.sockmap, Some(Ok(_))),
            ArmPath::Host | ArmPath::Direct => true,
        }
    }
}

/// The path of an arm's server.
pub(super) fn server_path(arm: &Arm) -> ArmPath {
    let usual = match arm.path {
        ArmPath::Offload => ArmPath::Host,
        path => path,
    };
    arm.server_path.unwrap_or(usual)
}

/// One sample: its arm and its load.
#[derive(Clone)]
pub(super) struct Job<'a> {
    pub(super) arm: &'a Arm,
    pub(super) x: f64,
    pub(super) load: Load,
    pub(super) ports: usize,
    pub(super) tool: Option<Tool>,
    pub(super) application: Option<Staged<'a>>,
    /// Whether the costs of each process are reported.
    pub(super) has_processes: bool,
}

impl<'a> Job<'a> {
    pub(super) fn of(plan: &'a PlanFile, block: &'a Block, x: f64, arm: &'a Arm) -> Job<'a> {
        Job {
            arm,
            x,
            load: block.load(x, arm, plan.seconds),
            ports: block.ports_at(x),
            tool: arm.program.or(block.program),
            application: plan.application_of(block),
            has_processes: plan.processes,
        }
    }
}

/// The address of a server.
pub(super) struct Place {
    pub(super) listen: String,
    /// The address under which its clients connect.
    pub(super) connect: String,
    /// The way to detect readiness; `None` if the server reports it itself.
    pub(super) ready: Option<Ready>,
}

/// A port on which no program listens now.
pub(super) fn free_port() -> Result<u16, String> {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| format!("no free port: {error}"))
}

/// Waits until a server reports that it listens: we cannot read the tables of another namespace.
pub(super) fn wait_for_words(server: &mut Program) -> Result<(), String> {
    let deadline = Instant::now() + READY_TIMEOUT;
    while !server.last_words().contains("listening on") {
        if let Some(ended) = server.poll() {
            let words = server.last_words();
            return Err(format!("the server {}: {words}", ended.words()));
        }
        if process::interrupted() || Instant::now() > deadline {
            return Err("the server did not come up".to_owned());
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

pub(super) fn load_words(load: &Load) -> Vec<String> {
    let mut words = Vec::new();
    let mut put = |option: &str, value: String| words.extend([format!("--{option}"), value]);
    put("pattern", load.pattern.name().to_owned());
    put("message", load.message.to_string());
    put("response", load.response_bytes().to_string());
    put("streams", load.streams.to_string());
    put("seconds", load.seconds.to_string());
    put("warmup", load.warmup.to_string());
    if let Some(bytes) = load.socket_buffer {
        put("socket-buffer", bytes.to_string());
    }
    if load.prior > 0 {
        put("prior", load.prior.to_string());
    }
    if let Some(active) = load.active {
        put("active", active.to_string());
    }
    if let Some(gate) = &load.gate {
        put("gate", gate.0.to_string_lossy().into_owned());
    }
    if let Some(rate) = load.rate {
        put("rate", rate.to_string());
    }
    let arrivals = match load.arrivals {
        Arrivals::Constant => "constant",
        Arrivals::Poisson => "poisson",
    };
    put("arrivals", arrivals.to_owned());
    let flags = [
        ("--polling", load.polling),
        ("--touch", load.touch),
        ("--sendfile", load.sendfile),
    ];
    words.extend(
        flags
            .iter()
            .filter(|(_, set)| *set)
            .map(|(flag, _)| (*flag).to_owned()),
    );
    words
}
