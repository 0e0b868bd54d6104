//! Carries out a plan: a server and a client for each sample, arms next to each other, in an order
//! that changes from round to round, with a checkpoint after each round.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use toehold_measure::cpus::{self, Pin, Placement};
use toehold_measure::process::{self, Launch, Program};
use toehold_measure::procfs::{self, HostTimes};
use toehold_measure::ready::Ready;
use toehold_measure::rng::Rng;

use super::plan_file::{Arm, ArmPath, Family, OVERHEAD_SECONDS, Wait};
use super::record::{Record, Sample, again};
use crate::error::LabError;
use crate::generator::{Arrivals, Load, Outcome, Pattern};

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
    record.save(folder)?;
    let started = Instant::now();
    let first = record.rounds_done;
    if first < record.plan.rounds {
        for warmup in 0..record.plan.warmup_rounds {
            eprintln!("warm-up {} of {}", warmup + 1, record.plan.warmup_rounds);
            record.stayed = scene.warm_up(record)?;
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

/// What stands while samples are taken: a private directory and an adapter. Gone when dropped; its
/// programs die with this process however that ends.
struct Scene {
    toehold: PathBuf,
    scratch: Scratch,
    placement: Placement,
    adapter: Option<Program>,
}

impl Scene {
    fn set(toehold: PathBuf, record: &Record) -> Result<Scene, LabError> {
        let scratch = Scratch::create()?;
        let placement = Placement::new(Pin::Split, &cpus::allowed()).unwrap_or_default();
        let mut scene = Scene {
            toehold,
            scratch,
            placement,
            adapter: None,
        };
        if record
            .plan
            .arms
            .iter()
            .any(|arm| arm.path == ArmPath::Direct)
        {
            scene.start_adapter()?;
        }
        Ok(scene)
    }

    fn start_adapter(&mut self) -> Result<(), LabError> {
        let words = self.words(&["adapter", "--runtime-dir", &self.runtime_dir()]);
        let mut adapter = self.start("adapter", &words, None).map_err(LabError::new)?;
        let deadline = Instant::now() + ADAPTER_TIMEOUT;
        while self.status().is_none() {
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
        self.adapter = Some(adapter);
        Ok(())
    }

    /// One sample of each arm at the first point of each block, thrown away; meanwhile the adapter
    /// is asked which paths the connections take. Returns the arms that stayed on the kernel.
    fn warm_up(&mut self, record: &Record) -> Result<Vec<String>, LabError> {
        let plan = &record.plan;
        let mut stayed = BTreeSet::new();
        for block in &plan.blocks {
            let x = block.points()[0];
            for arm in plan
                .arms
                .iter()
                .filter(|arm| is_possible(arm, block.pattern))
            {
                let done = AtomicBool::new(false);
                let load = block.load(x, arm, plan.seconds);
                let is_watched = arm.path == ArmPath::Direct && !arm.control;
                let scene = &*self;
                let (outcome, moved) = thread::scope(|scope| {
                    let watch = || {
                        let mut moved = 0;
                        // Relaxed: the flag stands for itself.
                        while !done.load(Ordering::Relaxed) {
                            moved = moved.max(scene.connections_moved());
                            thread::sleep(LOOK_INTERVAL);
                        }
                        moved
                    };
                    let watcher = is_watched.then(|| scope.spawn(watch));
                    let outcome = scene.sample(arm, &load);
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
                let is_short = block.pattern == Pattern::Connect;
                if moved == Some(0) && !is_short {
                    stayed.insert(format!("{} ({})", arm.name, block.title));
                }
            }
        }
        Ok(stayed.into_iter().collect())
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
        let mut samples = Vec::new();
        for (at, x) in points {
            random.shuffle(&mut arms);
            for (arm, name) in &arms {
                let load = plan.blocks[at].load(x, arm, plan.seconds);
                if !is_possible(arm, load.pattern) {
                    continue;
                }
                let taken = self.sample(arm, &load);
                interrupted(record)?;
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
        Ok(samples)
    }

    fn sample(&self, arm: &Arm, load: &Load) -> Result<Outcome, String> {
        let load_words = load_words(load);
        if arm.path == ArmPath::Limit {
            let mut words = self.words(&["lab", "limit", "--json"]);
            words.extend(load_words);
            return self.outcome(&words, None, load);
        }
        let (address, ready) = self.address(arm.family)?;
        let under = |path: ArmPath| {
            let path = if path == ArmPath::Direct {
                "direct"
            } else {
                "host"
            };
            let wait = match arm.wait {
                Wait::Adaptive => "adaptive",
                Wait::Poll => "poll",
                Wait::Event => "event",
            };
            let mut words = self.words(&["run", "--path", path, "--wait", wait, "--runtime-dir"]);
            words.extend([self.runtime_dir(), "--".to_owned()]);
            words.extend(self.words(&["lab"]));
            words
        };
        let mut server = under(arm.server_path.unwrap_or(arm.path));
        server.extend(["server".to_owned(), "--listen".to_owned(), address.clone()]);
        let mut server = self.start("server", &server, self.placement.server.as_deref())?;
        ready.wait(&mut server, READY_TIMEOUT)?;
        let mut client = under(arm.path);
        client.extend(["client".to_owned(), address, "--json".to_owned()]);
        client.extend(load_words);
        let outcome = self.outcome(&client, self.placement.client.as_deref(), load)?;
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

    fn outcome(
        &self,
        words: &[String],
        cores: Option<&[usize]>,
        load: &Load,
    ) -> Result<Outcome, String> {
        let mut client = self.start("client", words, cores)?;
        let limit = Duration::from_secs_f64(load.seconds + load.warmup) + CLIENT_TIMEOUT;
        let Some(ended) = client.wait_until(Instant::now() + limit) else {
            return Err("the client did not end in time".to_owned());
        };
        if !ended.succeeded() {
            return Err(format!(
                "the client {}: {}",
                ended.words(),
                client.last_words()
            ));
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
            output: self.scratch.0.join(role),
            tracepoint: None,
        };
        Program::start(&launch).map_err(|error| format!("cannot start the {role}: {error}"))
    }

    /// A free address, and how to tell that somebody listens there.
    fn address(&self, family: Family) -> Result<(String, Ready), String> {
        match family {
            Family::Tcp => {
                let free = std::net::TcpListener::bind("127.0.0.1:0")
                    .and_then(|listener| listener.local_addr())
                    .map_err(|error| format!("no free port: {error}"))?;
                Ok((free.to_string(), Ready::TcpPort(free.port())))
            }
            Family::Unix => {
                let path = self.scratch.0.join("socket");
                let _ = fs::remove_file(&path);
                Ok((format!("unix:{}", path.display()), Ready::Unix(path)))
            }
        }
    }

    fn words(&self, words: &[&str]) -> Vec<String> {
        let program = self.toehold.to_string_lossy();
        let all = std::iter::once(&*program).chain(words.iter().copied());
        all.map(str::to_owned).collect()
    }

    fn runtime_dir(&self) -> String {
        self.scratch.0.join("run").to_string_lossy().into_owned()
    }

    fn status(&self) -> Option<Value> {
        let mut command = Command::new(&self.toehold);
        command.args(["status", "--json", "--runtime-dir", &self.runtime_dir()]);
        let output = command.output().ok()?;
        output.status.success().then_some(())?;
        serde_json::from_slice(&output.stdout).ok()
    }

    fn connections_moved(&self) -> usize {
        let Some(status) = self.status() else {
            return 0;
        };
        let processes = status["processes"].as_array().cloned().unwrap_or_default();
        let connections = processes
            .iter()
            .filter_map(|process| process["connections"].as_array());
        connections
            .flatten()
            .filter(|connection| connection["path"] == "direct")
            .count()
    }
}

/// Connections have no limit between bare threads.
fn is_possible(arm: &Arm, pattern: Pattern) -> bool {
    arm.path != ArmPath::Limit || pattern != Pattern::Connect
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
        return Err(LabError::new(format!(
            "interrupted; {} of {} rounds are kept",
            record.rounds_done, record.plan.rounds
        )));
    }
    Ok(())
}

/// A private directory, removed at the end. Its name tells whose it is, so that a later run can
/// remove what a killed one left.
struct Scratch(PathBuf);

impl Scratch {
    fn create() -> Result<Scratch, LabError> {
        let me = std::process::id() as i32;
        let start = start_of(me).unwrap_or(0);
        let path = std::env::temp_dir().join(format!("{SCRATCH}{me}-{start}"));
        // `create` fails on anything that exists, a link included: nobody else can prepare it.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| LabError::new(format!("cannot create {}: {error}", path.display())))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes directories of runs that were killed. Their programs have died with them.
fn clean_up_after_others() {
    for entry in fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(SCRATCH)?.split_once('-'));
        let Some((pid, start)) = owner else {
            continue;
        };
        let lives = pid
            .parse()
            .ok()
            .and_then(start_of)
            .is_some_and(|now| now.to_string() == start);
        if !lives {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// When a process began, in ticks since boot.
fn start_of(pid: i32) -> Option<u64> {
    let found = procfs::processes()
        .into_iter()
        .find(|process| process.pid == pid)?;
    Some(found.start)
}

const SCRATCH: &str = "toehold-lab-";
const ADAPTER_TIMEOUT: Duration = Duration::from_secs(10);
const READY_TIMEOUT: Duration = Duration::from_secs(20);
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_removed_and_a_living_one_s_is_not() {
        let mine = Scratch::create().expect("room");
        let left = std::env::temp_dir().join(format!("{SCRATCH}{}-1", std::process::id()));
        fs::create_dir(&left).expect("room");
        clean_up_after_others();
        assert!(mine.0.is_dir() && !left.exists());
    }
}
