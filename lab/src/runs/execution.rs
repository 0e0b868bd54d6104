//! Carries out a plan: a server and a client for each sample, arms next to each other, in an order
//! that changes from round to round, with a checkpoint after each round.

mod counts;
mod processes;
mod sample;
mod tiers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use counts::Counting;
use sample::{Job, load_words};
use serde_json::Value;
use toehold_measure::cpus::{self, Pin, Placement};
use toehold_measure::output::tell_line;
use toehold_measure::process::{self, Program};
use toehold_measure::procfs::HostTimes;
use toehold_measure::rng::Rng;

use super::arm::{Arm, ArmPath};
use super::guard::Guard;
use super::network::{self, Network};
use super::plan_file::PlanFile;
use super::record::{Missing, Record, Sample, again};
use super::scratch::{Scratch, clean_up_after_others};
use super::sockmap::Sockmap;
use super::summary::OTHER_BYTES;
use super::tool::Tool;
use crate::error::LabError;
use crate::generator::{Load, raise_descriptor_limit};

/// Runs the missing parts of a run. Finished rounds are kept in any case.
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
        tell_line(format!("\"{}\" is left out: {}", missing.arm, missing.why));
    }
    record.save(folder)?;
    let first = record.rounds_done;
    if first < record.plan.rounds {
        for warmup in 0..record.plan.warmup_rounds {
            let rounds = record.plan.warmup_rounds - warmup + record.plan.rounds - first;
            let left = approximate(rounds as f64 * record.plan.round_duration());
            tell_line(format!(
                "warm-up {} of {} (about {left} left)",
                warmup + 1,
                record.plan.warmup_rounds
            ));
            record.stayed = scene.warm_up(record)?;
        }
        if record.plan.crossings && record.crossings.is_empty() {
            tell_line("counting crossings");
            record.crossings = scene.crossings(record)?;
        }
    }
    let started = Instant::now();
    while record.rounds_done < record.plan.rounds {
        let round = record.rounds_done;
        let left = time_left(record, started, first);
        tell_line(format!(
            "round {} of {} (about {left} left)",
            round + 1,
            record.plan.rounds
        ));
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
        (rounds - first) as f64 * record.plan.round_duration()
    } else {
        started.elapsed().as_secs_f64() / done as f64 * (rounds - record.rounds_done) as f64
    };
    approximate(seconds)
}

fn approximate(seconds: f64) -> String {
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
    /// The sockmap or the reason why there is none; `None` if no arm needs it.
    sockmap: Option<Result<Sockmap, String>>,
    /// The reason why one-copy transfer is not available.
    one_copy: Option<String>,
    scratch: Scratch,
    placement: Placement,
    /// Applications that are not possible here.
    absent: Vec<String>,
    /// Descriptors that a process may have.
    descriptors: usize,
    /// Counts that the next samples take.
    counting: Counting,
    /// System calls of the last client and of the last server.
    calls: Mutex<(Option<u64>, Option<u64>)>,
    /// The guard, which ends the tiers of an application if this process is killed; dropped last.
    guard: Mutex<Option<Guard>>,
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

    /// The arms and the points that are not possible here, and the reasons.
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

    /// The reason why one-copy transfer is not available on this machine; `None` if it is.
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
                let is_watched = arm.is_accelerated() && !arm.control;
                // Connections of that pattern end before they could move.
                let is_short = block.pattern.is_short();
                let mut seen = Seen::default();
                for _ in 0..WARM_UPS_MAX {
                    let outcome = match is_watched {
                        true => self.watched(job, &mut seen),
                        false => self.sample(job).map(drop),
                    };
                    interrupted(record)?;
                    if let Err(why) = outcome {
                        let place = format!("{}, {}", block.title, arm.name);
                        return Err(LabError::new(format!("warm-up of {place}: {why}")));
                    }
                    if !is_watched || is_short || seen.is_enough() {
                        break;
                    }
                }
                let has_stayed = is_watched && seen.moved == 0;
                let is_past_tcp = arm.path != ArmPath::Sockmap || self.redirected() > before;
                if (has_stayed && !is_short) || !is_past_tcp {
                    stayed.insert(format!("{} ({})", arm.name, block.title));
                }
            }
        }
        Ok(stayed.into_iter().collect())
    }

    /// Takes a sample, which is thrown away. Meanwhile looks at the paths of its connections.
    fn watched(&self, job: &Job<'_>, seen: &mut Seen) -> Result<(), String> {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Relaxed: the flag publishes no other data.
                while !done.load(Ordering::Relaxed) {
                    seen.add(&self.all_connections(job.arm), job.arm);
                    thread::sleep(LOOK_INTERVAL);
                }
            });
            let outcome = self.sample(job);
            done.store(true, Ordering::Relaxed);
            outcome.map(drop)
        })
    }

    /// One sample of each arm at each point. Points are shuffled; the arms of a point run one after
    /// another, shuffled too.
    fn round(&mut self, record: &Record, round: usize) -> Result<Vec<Sample>, LabError> {
        let plan = &record.plan;
        // Resumed rounds have the order that an uninterrupted run would have had.
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

    /// Rejects samples whose responses differ from those of the base.
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

    fn words(&self, words: &[&str]) -> Vec<String> {
        let program = self.toehold.to_string_lossy();
        let all = std::iter::once(&*program).chain(words.iter().copied());
        all.map(str::to_owned).collect()
    }

    /// The connections of the direct path's adapter, or of the adapter with a link's engine.
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

    /// The number of calls so far that were redirected past TCP.
    fn redirected(&self) -> u64 {
        match &self.sockmap {
            Some(Ok(sockmap)) => sockmap.redirected(),
            _ => 0,
        }
    }

    /// The number of connections on the path that the arm measures.
    fn connections_moved(&self, arm: &Arm) -> usize {
        self.connections(arm).len()
    }

    /// The adapter's text about the connections on the path that the arm measures.
    fn connections(&self, arm: &Arm) -> Vec<Value> {
        let mut connections = self.all_connections(arm);
        connections.retain(|connection| is_on_path(connection, arm));
        connections
    }

    /// The text of the arm's adapter about all its connections.
    fn all_connections(&self, arm: &Arm) -> Vec<Value> {
        let network = self.network.as_ref();
        let engine = network.and_then(|network| network.wire_of(arm));
        let Some(status) = self.status(&self.runtime_dir(engine)) else {
            return Vec::new();
        };
        let processes = status["processes"].as_array().cloned().unwrap_or_default();
        let connections = processes
            .iter()
            .filter_map(|process| process["connections"].as_array());
        connections.flatten().cloned().collect()
    }
}

/// True for a connection on the path that the arm measures.
fn is_on_path(connection: &Value, arm: &Arm) -> bool {
    connection["path"]
        == match arm.path {
            ArmPath::Offload => "offload",
            _ => "direct",
        }
}

/// The findings of looks at an arm's connections while samples were taken.
#[derive(Default)]
struct Seen {
    /// The looks that found connections.
    looks: u32,
    /// The most connections that were on the arm's path at one look.
    moved: usize,
}

impl Seen {
    fn add(&mut self, connections: &[Value], arm: &Arm) {
        let moved = (connections.iter()).filter(|one| is_on_path(one, arm));
        self.moved = self.moved.max(moved.count());
        self.looks += u32::from(!connections.is_empty());
    }

    /// True when the looks show whether the connections stay on the kernel. On a busy host a short
    /// sample may be over before the first look, or before its connections have moved.
    fn is_enough(&self) -> bool {
        self.moved > 0 || self.looks >= LOOKS_MIN
    }
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
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// After this many looks that found connections, none of them on the arm's path, the arm stays on
/// the kernel.
const LOOKS_MIN: u32 = 10;
/// The most samples that are taken for enough looks.
const WARM_UPS_MAX: u32 = 20;
