//! Carries out a plan: a server and a client for each sample, arms next to each other, in an order
//! that changes from round to round, with a checkpoint after each round.

mod processes;
mod tiers;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use toehold_measure::cpus::{self, Pin, Placement};
use toehold_measure::process::{self, Launch, Program};
use toehold_measure::procfs::HostTimes;
use toehold_measure::ready::Ready;
use toehold_measure::rng::Rng;
use toehold_measure::syscalls::Tracepoint;

use super::application::Staged;
use super::arm::{Arm, ArmPath, Family, Wait};
use super::crossings;
use super::guard::Guard;
use super::network::{self, Network};
use super::plan_file::{Block, OVERHEAD_SECONDS, PlanFile};
use super::record::{Crossing, Missing, Record, Sample, again};
use super::scratch::{Scratch, clean_up_after_others};
use super::sockmap::Sockmap;
use super::summary::OTHER_BYTES;
use super::tool::{Site, Tool};
use crate::error::LabError;
use crate::generator::{Arrivals, Load, Outcome, PRIOR_TIMEOUT, Pattern, raise_descriptor_limit};

/// Carries out what is missing of a run. Finished rounds are kept whatever happens.
///
/// # Errors
///
/// One sentence: nothing could be started, the disk is full, or the run was interrupted.
pub(crate) fn complete(record: &mut Record, folder: &Path) -> Result<(), LabError> {
    let toehold = std::env::current_exe()
        .map_err(|error| LabError::new(format!("cannot find this program's own file: {error}")))?;
    process::take_charge();
    clean_up_after_others();
    let mut scene = Scene::set(toehold, record)?;
    record.missing = scene.missing(&record.plan);
    record.missing.extend(scene.prepare(&record.plan));
    for missing in &record.missing {
        eprintln!("\"{}\" is left out: {}", missing.arm, missing.why);
    }
    record.save(folder)?;
    let started = Instant::now();
    let first = record.rounds_done;
    if first < record.plan.rounds {
        for warmup in 0..record.plan.warmup_rounds {
            eprintln!("warm-up {} of {}", warmup + 1, record.plan.warmup_rounds);
            record.stayed = scene.warm_up(record)?;
        }
        if record.plan.crossings && record.crossings.is_empty() {
            eprintln!("counting crossings");
            record.crossings = scene.crossings(record)?;
        }
    }
    while record.rounds_done < record.plan.rounds {
        let round = record.rounds_done;
        let left = time_left(record, started, first);
        eprintln!(
            "round {} of {} (about {left} left)",
            round + 1,
            record.plan.rounds
        );
        let before = HostTimes::now().ok();
        let samples = scene.round(record, round)?;
        let spent = HostTimes::now()
            .ok()
            .zip(before)
            .map(|(after, before)| after - before);
        let steal = spent.map_or(0.0, |spent| {
            spent.steal / (spent.busy() + spent.idle + spent.steal).max(1e-9)
        });
        record.samples.extend(samples);
        record.steal.push(steal);
        record.rounds_done += 1;
        record.save(folder)?;
    }
    Ok(())
}

fn time_left(record: &Record, started: Instant, first: usize) -> String {
    let rounds = record.plan.rounds;
    let done = record.rounds_done - first;
    let seconds = if done == 0 {
        let each = record.plan.samples() / (rounds + record.plan.warmup_rounds);
        (rounds - first) as f64 * each as f64 * (record.plan.seconds + OVERHEAD_SECONDS)
    } else {
        started.elapsed().as_secs_f64() / done as f64 * (rounds - record.rounds_done) as f64
    };
    if seconds < 90.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

/// The surroundings of the samples: a private directory, adapters, namespaces with links. Gone when
/// dropped, in this order; its programs die with this process however that ends.
struct Scene {
    toehold: PathBuf,
    adapters: Vec<Program>,
    network: Option<Network>,
    /// Or why there is none; nothing where no arm asks.
    sockmap: Option<Result<Sockmap, String>>,
    /// Why there is no one-copy hand-over.
    one_copy: Option<String>,
    scratch: Scratch,
    placement: Placement,
    /// Applications that cannot be here.
    absent: Vec<String>,
    /// Descriptors that a process may have.
    descriptors: usize,
    /// Counts that the next samples take.
    counting: Counting,
    /// System calls of the last client and of the last server.
    calls: Mutex<(Option<u64>, Option<u64>)>,
    /// Ends the tiers of an application should this process be killed; the last to go.
    guard: Mutex<Option<Guard>>,
}

/// Counts that a sample takes besides its work.
#[derive(Clone, PartialEq, Eq, Default)]
struct Counting {
    tracepoint: Option<Tracepoint>,
    /// The client runs in valgrind's simulation of caches, whose summary goes there.
    simulation: Option<PathBuf>,
}

impl Scene {
    fn set(toehold: PathBuf, record: &Record) -> Result<Scene, LabError> {
        for (program, package) in record.plan.tools().flat_map(Tool::programs) {
            network::needs(program, package)?;
        }
        let scratch = Scratch::create()?;
        let placement = Placement::new(Pin::Split, &cpus::allowed()).unwrap_or_default();
        let network = Network::of(&record.plan, &scratch.owner)?;
        let mut arms = record.plan.arms.iter();
        let is_wanted = arms.any(|arm| arm.path == ArmPath::Sockmap);
        let sockmap = is_wanted.then(|| Sockmap::new(&scratch.owner));
        let mut scene = Scene {
            toehold,
            adapters: Vec::new(),
            network,
            sockmap,
            one_copy: None,
            scratch,
            placement,
            absent: Vec::new(),
            descriptors: raise_descriptor_limit(),
            counting: Counting::default(),
            calls: Mutex::default(),
            guard: Mutex::default(),
        };
        if !record.plan.applications.is_empty() {
            scene.scratch.admit().map_err(LabError::new)?;
            let guard = Guard::start(&scene.toehold, &scene.scratch.owner, scene.scratch.path());
            let guard = guard.map_err(|error| LabError::new(format!("no guard: {error}")))?;
            scene.guard = Mutex::new(Some(guard));
        }
        let asks_for = |path| record.plan.arms.iter().any(|arm| arm.path == path);
        if asks_for(ArmPath::OneCopy) {
            scene.one_copy = scene.try_one_copy();
        }
        let budget = record.plan.max_connections;
        if asks_for(ArmPath::Direct) {
            scene.start_adapter(None, budget)?;
        }
        let engines = scene.network.as_ref().map(Network::engines);
        for engine in engines.into_iter().flatten() {
            scene.start_adapter(Some(engine), budget)?;
        }
        Ok(scene)
    }

    /// The arms and the points that cannot be here, and why.
    fn missing(&self, plan: &PlanFile) -> Vec<Missing> {
        let points = plan.blocks.iter().flat_map(|block| {
            let of_base = |x| Job::of(plan, block, x, &plan.arms[0]);
            let refused = move |x| Some((x, of_base(x).beyond_descriptors(self.descriptors)?));
            let refused = block.points().into_iter().filter_map(refused);
            refused.map(|(x, why)| Missing {
                arm: format!("{}, {x}", block.title),
                why,
            })
        });
        let arms = plan.arms.iter();
        let arms = arms.filter_map(|arm| {
            let why = match arm.path {
                ArmPath::Sockmap => self.sockmap.as_ref()?.as_ref().err()?.clone(),
                ArmPath::OneCopy => self.one_copy.clone()?,
                _ => return None,
            };
            let arm = arm.name.clone();
            Some(Missing { arm, why })
        });
        arms.chain(points).collect()
    }

    /// Why this machine has no one-copy hand-over; nothing where it has.
    fn try_one_copy(&self) -> Option<String> {
        let load = Load {
            seconds: 0.01,
            warmup: 0.0,
            ..Load::default()
        };
        let mut words = self.words(&["lab", "limit", "--one-copy", "--json"]);
        words.extend(load_words(&load));
        self.outcome(&words, None, &load, None).err()
    }

    /// The adapter of the direct path, or that with the engine of a link.
    fn start_adapter(
        &mut self,
        engine: Option<usize>,
        budget: Option<usize>,
    ) -> Result<(), LabError> {
        let runtime_dir = self.runtime_dir(engine);
        let mut words = self.words(&["adapter", "--runtime-dir", &runtime_dir]);
        if let Some(most) = budget {
            words.extend(["--max-connections".to_owned(), most.to_string()]);
        }
        if let (Some(at), Some(network)) = (engine, &self.network) {
            words.splice(0..0, network.near());
            words.extend(network.engine_words(at));
        }
        let role = format!("adapter{}", self.adapters.len());
        let mut adapter = self.start(&role, &words, None).map_err(LabError::new)?;
        let deadline = Instant::now() + ADAPTER_TIMEOUT;
        while self.status(&runtime_dir).is_none() {
            if let Some(ended) = adapter.poll() {
                let why = adapter.last_words();
                return Err(LabError::new(format!(
                    "the adapter {}: {why}",
                    ended.words()
                )));
            }
            if Instant::now() > deadline {
                return Err(LabError::new("the adapter did not come up"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.adapters.push(adapter);
        if let (Some(at), Some(network)) = (engine, &self.network) {
            network.finish(at).map_err(LabError::new)?;
        }
        Ok(())
    }

    /// One sample of each arm at the first point of each block, thrown away; meanwhile the adapter
    /// is asked which paths the connections take. Returns the arms that stayed on the kernel.
    fn warm_up(&mut self, record: &Record) -> Result<Vec<String>, LabError> {
        let plan = &record.plan;
        let mut stayed = BTreeSet::new();
        for block in &plan.blocks {
            let x = block.points()[0];
            for arm in &plan.arms {
                let job = &Job::of(plan, block, x, arm);
                if !self.is_possible(job) {
                    continue;
                }
                let before = self.redirected();
                let done = AtomicBool::new(false);
                let is_watched = arm.is_accelerated() && !arm.control;
                let scene = &*self;
                let (outcome, moved) = thread::scope(|scope| {
                    let watch = || {
                        let mut moved = 0;
                        // Relaxed: the flag stands for itself.
                        while !done.load(Ordering::Relaxed) {
                            moved = moved.max(scene.connections_moved(arm));
                            thread::sleep(LOOK_INTERVAL);
                        }
                        moved
                    };
                    let watcher = is_watched.then(|| scope.spawn(watch));
                    let outcome = scene.sample(job);
                    done.store(true, Ordering::Relaxed);
                    let moved = watcher.map(|watcher| watcher.join().unwrap_or(0));
                    (outcome, moved)
                });
                interrupted(record)?;
                if let Err(why) = outcome {
                    let place = format!("{}, {}", block.title, arm.name);
                    return Err(LabError::new(format!("warm-up of {place}: {why}")));
                }
                // Connections of that pattern end before they could move.
                let is_short = block.pattern.is_short();
                let is_past_tcp = arm.path != ArmPath::Sockmap || self.redirected() > before;
                if (moved == Some(0) && !is_short) || !is_past_tcp {
                    stayed.insert(format!("{} ({})", arm.name, block.title));
                }
            }
        }
        Ok(stayed.into_iter().collect())
    }

    /// Crossings of an operation of each arm, at the first point of each block.
    fn crossings(&mut self, record: &Record) -> Result<Vec<Crossing>, LabError> {
        let plan = &record.plan;
        let mut all = Vec::new();
        for (at, block) in plan.blocks.iter().enumerate() {
            let x = block.points()[0];
            for arm in &plan.arms {
                let mut job = Job::of(plan, block, x, arm);
                job.load = block.load(x, arm, COUNTED_SECONDS);
                // Nothing is thrown away, so that every call belongs to an operation.
                job.load.warmup = 0.0;
                if self.is_possible(&job) && job.application.is_none() {
                    let counted = self.crossing(&job);
                    interrupted(record)?;
                    all.extend(counted.map(|crossing| Crossing {
                        block: at,
                        ..crossing
                    }));
                }
            }
        }
        Ok(all)
    }

    fn crossing(&mut self, job: &Job<'_>) -> Option<Crossing> {
        let arm = job.arm;
        self.counting.tracepoint = Tracepoint::find().ok();
        let frames = || {
            let network = self.network.as_ref()?;
            network.frames(network.wire_of(arm)?)
        };
        let before = frames();
        let done = AtomicBool::new(false);
        let (outcome, doorbells) = thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut seen = None;
                // Relaxed: the flag stands for itself.
                while !done.load(Ordering::Relaxed) {
                    seen = self.doorbells(arm).or(seen);
                    thread::sleep(LOOK_INTERVAL);
                }
                seen
            });
            let outcome = self.sample(job);
            done.store(true, Ordering::Relaxed);
            (outcome, watcher.join().unwrap_or(None))
        });
        let frames = frames().zip(before).map(|(after, before)| after - before);
        self.counting = Counting::default();
        let outcome = outcome.ok().filter(|outcome| outcome.operations > 0)?;
        let calls = *self.calls.lock().ok()?;
        let bytes = outcome.bytes as f64 / outcome.operations as f64;
        Some(Crossing {
            arm: arm.name.clone(),
            operations: outcome.operations,
            calls_client: calls.0,
            calls_server: calls.1,
            doorbells: doorbells.map(|(rung, moved)| rung as f64 / (moved as f64 / bytes)),
            frames,
            misses: self.misses(job),
            ..Crossing::default()
        })
    }

    /// Misses of the client for each operation: what a longer run has more than a shorter one.
    fn misses(&mut self, job: &Job<'_>) -> Option<(f64, f64)> {
        if !network::is_installed("valgrind") {
            return None;
        }
        let log = self.scratch.path().join("simulation");
        self.counting.simulation = Some(log.clone());
        let mut counted = [1.0, 3.0].into_iter().map(|times| {
            let mut job = job.clone();
            job.load.seconds *= times;
            let outcome = self.sample(&job).ok()?;
            let text = fs::read_to_string(&log).ok()?;
            Some((outcome.operations as f64, crossings::misses(&text)?))
        });
        let (short, long) = (counted.next().flatten(), counted.next().flatten());
        self.counting = Counting::default();
        let ((few, less), (many, more)) = short.zip(long)?;
        let operations = many - few;
        let each = |more: f64, less: f64| ((more - less) / operations).max(0.0);
        (operations > 0.0).then(|| (each(more.0, less.0), each(more.1, less.1)))
    }

    /// Doorbells that an arm's connections have rung so far, and the bytes that they have moved by
    /// rings meanwhile.
    fn doorbells(&self, arm: &Arm) -> Option<(u64, u64)> {
        let connections = self.connections(arm);
        let sum = |name: &str| -> u64 {
            let all = connections.iter();
            all.filter_map(|connection| connection[name].as_u64()).sum()
        };
        // A channel to the engine has one end in a program, that between two programs has two.
        let moved = match arm.path {
            ArmPath::Offload => sum("bytes_ring_tx") + sum("bytes_ring_rx"),
            _ => sum("bytes_ring_tx"),
        };
        (arm.is_accelerated() && moved > 0).then(|| (sum("doorbells_rung"), moved))
    }

    /// One sample of each arm at each point. Points are shuffled; the arms of a point stand next to
    /// each other, shuffled too.
    fn round(&mut self, record: &Record, round: usize) -> Result<Vec<Sample>, LabError> {
        let plan = &record.plan;
        // Resumed rounds have the order that they would have had.
        let mut random = Rng::new(record.seed.wrapping_add(round as u64));
        let mut points: Vec<(usize, f64)> = Vec::new();
        for (at, block) in plan.blocks.iter().enumerate() {
            points.extend(block.points().iter().map(|&x| (at, x)));
        }
        random.shuffle(&mut points);
        let mut arms: Vec<(Arm, String)> = plan
            .arms
            .iter()
            .map(|arm| (arm.clone(), arm.name.clone()))
            .collect();
        arms.push((plan.arms[0].clone(), again(plan)));
        let mut samples: Vec<Sample> = Vec::new();
        for (at, x) in points {
            random.shuffle(&mut arms);
            for (arm, name) in &arms {
                let job = Job::of(plan, &plan.blocks[at], x, arm);
                if !self.is_possible(&job) {
                    continue;
                }
                let taken = self.sample(&job);
                interrupted(record)?;
                self.check_network(record)?;
                let (outcome, failure) = match taken {
                    Ok(outcome) => (Some(outcome), None),
                    Err(why) => (None, Some(why)),
                };
                samples.push(Sample {
                    round,
                    block: at,
                    x,
                    arm: name.clone(),
                    outcome,
                    failure,
                });
            }
        }
        Scene::compare_bytes(record, &mut samples);
        Ok(samples)
    }

    /// Refuses samples whose responses are not those of the base.
    fn compare_bytes(record: &Record, samples: &mut [Sample]) {
        let base = &record.plan.arms[0].name;
        let digest = |sample: &Sample| sample.outcome.as_ref()?.digest.clone();
        let all = record.samples.iter().chain(samples.iter());
        let of_base = all.filter(|sample| sample.arm == *base);
        let known: Vec<(usize, f64, String)> = of_base
            .filter_map(|sample| Some((sample.block, sample.x, digest(sample)?)))
            .collect();
        for sample in samples {
            let place =
                |other: &&(usize, f64, String)| (other.0, other.1) == (sample.block, sample.x);
            let wanted = known.iter().find(place);
            let (Some((.., wanted)), Some(found)) = (wanted, digest(sample)) else {
                continue;
            };
            if *wanted != found {
                sample.failure = Some(format!("{OTHER_BYTES}: digest {found}, not {wanted}"));
                sample.outcome = None;
            }
        }
    }

    /// No later sample would succeed either.
    fn check_network(&self, record: &Record) -> Result<(), LabError> {
        match self.network.as_ref().and_then(Network::vanished) {
            Some(name) => Err(LabError::new(format!(
                "the network namespace {name} has vanished; {}",
                kept(record)
            ))),
            None => Ok(()),
        }
    }

    fn sample(&self, job: &Job<'_>) -> Result<Outcome, String> {
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

    /// The words before those of a program, so that it runs on a path as an arm says.
    fn under(&self, arm: &Arm, path: ArmPath, engine: Option<usize>) -> Vec<String> {
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

    fn outcome(
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

    fn start(
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
    fn place(&self, family: Family) -> Result<Place, String> {
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

    fn words(&self, words: &[&str]) -> Vec<String> {
        let program = self.toehold.to_string_lossy();
        let all = std::iter::once(&*program).chain(words.iter().copied());
        all.map(str::to_owned).collect()
    }

    /// Of the direct path's adapter, or of that with the engine of a link.
    fn runtime_dir(&self, engine: Option<usize>) -> String {
        let name = engine.map_or("run".to_owned(), |at| format!("run{at}"));
        self.scratch
            .path()
            .join(name)
            .to_string_lossy()
            .into_owned()
    }

    fn status(&self, runtime_dir: &str) -> Option<Value> {
        let mut command = Command::new(&self.toehold);
        command.args(["status", "--json", "--runtime-dir", runtime_dir]);
        let output = command.output().ok()?;
        output.status.success().then_some(())?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Connections have no limit between bare threads; an engine has one port; one-copy hand-over
    /// has one stream; sockmap and one-copy hand-over may be missing; programs of others make the
    /// loads that they know, over TCP.
    fn is_possible(&self, job: &Job<'_>) -> bool {
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

    /// How many calls have sent past TCP so far.
    fn redirected(&self) -> u64 {
        match &self.sockmap {
            Some(Ok(sockmap)) => sockmap.redirected(),
            _ => 0,
        }
    }

    /// How many connections are on the path that the arm is about.
    fn connections_moved(&self, arm: &Arm) -> usize {
        self.connections(arm).len()
    }

    /// The adapter's words about the connections on the path that the arm is about.
    fn connections(&self, arm: &Arm) -> Vec<Value> {
        let network = self.network.as_ref();
        let engine = network.and_then(|network| network.wire_of(arm));
        let Some(status) = self.status(&self.runtime_dir(engine)) else {
            return Vec::new();
        };
        let path = if arm.path == ArmPath::Offload {
            "offload"
        } else {
            "direct"
        };
        let processes = status["processes"].as_array().cloned().unwrap_or_default();
        let connections = processes
            .iter()
            .filter_map(|process| process["connections"].as_array());
        connections
            .flatten()
            .filter(|connection| connection["path"] == path)
            .cloned()
            .collect()
    }
}

/// The path of an arm's server.
fn server_path(arm: &Arm) -> ArmPath {
    let usual = match arm.path {
        ArmPath::Offload => ArmPath::Host,
        path => path,
    };
    arm.server_path.unwrap_or(usual)
}

/// One sample: of which arm, under which load.
#[derive(Clone)]
struct Job<'a> {
    arm: &'a Arm,
    x: f64,
    load: Load,
    ports: usize,
    tool: Option<Tool>,
    application: Option<Staged<'a>>,
    /// Whether the costs of each process are told.
    has_processes: bool,
}

impl<'a> Job<'a> {
    fn of(plan: &'a PlanFile, block: &'a Block, x: f64, arm: &'a Arm) -> Job<'a> {
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

/// Where a server listens.
struct Place {
    listen: String,
    /// The address under which its clients connect.
    connect: String,
    /// How to tell that it does; it says so itself where that is none.
    ready: Option<Ready>,
}

/// A port that nobody listens on now.
fn free_port() -> Result<u16, String> {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| format!("no free port: {error}"))
}

/// Waits until a server says that it listens: the tables of another namespace are not ours to see.
fn wait_for_words(server: &mut Program) -> Result<(), String> {
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

fn load_words(load: &Load) -> Vec<String> {
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

fn interrupted(record: &Record) -> Result<(), LabError> {
    if process::interrupted() {
        return Err(LabError::new(format!("interrupted; {}", kept(record))));
    }
    Ok(())
}

fn kept(record: &Record) -> String {
    let rounds = record.plan.rounds;
    format!("{} of {rounds} rounds are kept", record.rounds_done)
}

const ADAPTER_TIMEOUT: Duration = Duration::from_secs(10);
const READY_TIMEOUT: Duration = Duration::from_secs(20);
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Of servers in a namespace of their own.
const SERVER_PORT: u16 = 5400;
/// Of a sample that counts crossings.
const COUNTED_SECONDS: f64 = 0.5;
const SIMULATION: [&str; 4] = [
    "valgrind",
    "--tool=cachegrind",
    "--cache-sim=yes",
    "--cachegrind-out-file=/dev/null",
];
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
