//! A sample of an application: its tiers start, its client runs, and each tier's CPU time is
//! reported.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use toehold_measure::cpus::Placement;
use toehold_measure::metric::Reading;
use toehold_measure::parse;
use toehold_measure::process::Program;
use toehold_measure::procfs::{HostTimes, Snapshot};
use toehold_measure::ready::Ready;
use toehold_measure::shell;

use super::super::application::{Staged, Tier, Words};
use super::super::arm::{Arm, ArmPath, Link};
use super::super::guard::MARK;
use super::super::network::is_installed;
use super::super::plan_file::PlanFile;
use super::super::record::Missing;
use super::super::tool;
use super::Scene;
use super::sample::{CLIENT_TIMEOUT, Job, READY_TIMEOUT, server_path};
use crate::generator::{Outcome, TierCost};

/// A running server of a tier.
struct Member<'a> {
    tier: &'a Tier,
    program: Program,
    before: Snapshot,
}

impl Scene {
    /// Prepares the data of the applications; applications for which this fails are left out.
    pub(super) fn prepare(&mut self, plan: &PlanFile) -> Vec<Missing> {
        let mut missing = Vec::new();
        for staged in plan.staged() {
            let absent = staged.programs().find(|(name, _)| !is_installed(name));
            let made = match absent {
                Some((name, package)) => Err(format!(
                    "it needs {name}, which is not installed (Debian package {package})"
                )),
                None => self.prepare_one(&staged),
            };
            if let Err(why) = made {
                let arm = staged.application.name.clone();
                self.absent.push(arm.clone());
                missing.push(Missing { arm, why });
            }
        }
        missing
    }

    fn prepare_one(&self, staged: &Staged<'_>) -> Result<(), String> {
        let words = self.places();
        let data = self.data();
        open_folder(&data)?;
        for (name, text) in &staged.application.data {
            write(&data.join(name), text)?;
        }
        for command in &staged.application.prepare {
            let words = shell::words(&words.replaced(command)?);
            let mut program = self.start("prepare", &words, None)?;
            let ended = program.wait_until(Instant::now() + PREPARE_TIMEOUT);
            let ended = ended.ok_or_else(|| format!("`{command}` did not end in time"))?;
            if !ended.succeeded() {
                let said = program.last_words();
                return Err(format!("`{command}` {}: {said}", ended.words()));
            }
        }
        Ok(())
    }

    /// Whether an arm can run an application.
    pub(super) fn can_run(&self, staged: &Staged<'_>, arm: &Arm) -> bool {
        let is_known = matches!(arm.path, ArmPath::Host | ArmPath::Direct | ArmPath::Sockmap);
        let is_there = !self.absent.contains(&staged.application.name);
        let is_open = arm.path != ArmPath::Sockmap || matches!(self.sockmap, Some(Ok(_)));
        let is_local = arm.link == Link::Loopback;
        let client = staged.client_of(arm.family);
        is_known && is_there && is_open && is_local && client.is_some()
    }

    /// One sample.
    pub(super) fn sample_of(&self, app: &Staged<'_>, job: &Job<'_>) -> Result<Outcome, String> {
        let words = self.words_of(app, job)?;
        let folder = self.scratch.path().join(FOLDER);
        let _ = fs::remove_dir_all(&folder);
        open_folder(&folder)?;
        let placement = if app.application.unpinned {
            Placement::default()
        } else {
            self.placement.clone()
        };
        let mut members = Vec::new();
        let result = self.start_tiers(app, job, &words, &placement, &mut members);
        let result =
            result.and_then(|()| self.run_client(app, job, &words, &placement, &mut members));
        // Clients of other projects end before their servers do.
        for mut member in members.into_iter().rev() {
            member.program.stop();
            self.guarded(|guard| guard.lets_go(member.program.pid()));
        }
        result
    }

    fn start_tiers<'a>(
        &self,
        app: &Staged<'a>,
        job: &Job<'_>,
        words: &Words,
        placement: &Placement,
        members: &mut Vec<Member<'a>>,
    ) -> Result<(), String> {
        let folder = self.scratch.path().join(FOLDER);
        for &tier in &app.tiers {
            let ports = words.replaced(&format!("{{ports:{}}}", tier.name))?;
            for (index, address) in ports.split(',').enumerate() {
                let port = address.rsplit(':').next().unwrap_or("");
                let mut own = words.clone();
                own.put("port", port);
                own.put("index", index);
                own.put("socket", socket(&folder, tier).display());
                for (name, text) in &tier.files {
                    write(&folder.join(own.replaced(name)?), &own.replaced(text)?)?;
                }
                let path = if tier.plain {
                    ArmPath::Host
                } else {
                    server_path(job.arm)
                };
                let command = self.command(job.arm, path, &own.replaced(&tier.command)?);
                let ready = match &tier.ready {
                    Some(text) => own.replaced(text)?.parse::<Ready>()?,
                    None => Ready::TcpPort(port.parse().map_err(|_| "a tier has a port")?),
                };
                let role = format!("{}{index}", tier.name);
                let mut program = self.start(&role, &command, placement.server.as_deref())?;
                self.guarded(|guard| guard.holds(program.pid()));
                let is_ready = ready.wait(&mut program, READY_TIMEOUT);
                let before = Snapshot::default();
                members.push(Member {
                    tier,
                    program,
                    before,
                });
                is_ready.map_err(|why| format!("tier {}: {why}", tier.name))?;
            }
        }
        Ok(())
    }

    fn run_client(
        &self,
        app: &Staged<'_>,
        job: &Job<'_>,
        words: &Words,
        placement: &Placement,
        members: &mut [Member<'_>],
    ) -> Result<Outcome, String> {
        let command = app
            .client_of(job.arm.family)
            .ok_or("no client for this family")?;
        let command = words.replaced(command)?;
        let client = self.command(job.arm, job.arm.path, &command);
        for member in members.iter_mut() {
            member.before = Snapshot::of(&member.program.family());
        }
        let before = HostTimes::now().ok();
        let mut client = self.start("client", &client, placement.client.as_deref())?;
        self.guarded(|guard| guard.holds(client.pid()));
        let limit = job.load.seconds + job.load.warmup;
        let ended =
            client.wait_until(Instant::now() + Duration::from_secs_f64(limit) + CLIENT_TIMEOUT);
        let ended = ended.ok_or("the client did not end in time")?;
        let spent = HostTimes::now().ok().zip(before);
        let cpu = spent.map(|(after, before)| after - before);
        let cpu = cpu.map(|spent| (spent.busy(), spent.softirq));
        self.guarded(|guard| guard.lets_go(client.pid()));
        if !ended.succeeded() {
            let said = client.last_words();
            return Err(format!("the client {}: {said}", ended.words()));
        }
        let elapsed = ended.elapsed.as_secs_f64();
        let mut tiers = vec![TierCost {
            name: "client".to_owned(),
            cores: ended.usage.cpu() / elapsed,
            memory: None,
        }];
        for member in members.iter_mut() {
            if let Some(end) = member.program.poll() {
                let said = member.program.last_words();
                return Err(format!("tier {} {}: {said}", member.tier.name, end.words()));
            }
            let now = Snapshot::of(&member.program.family());
            let cores = now.since(&member.before).cpu() / elapsed;
            match tiers.iter_mut().find(|tier| tier.name == member.tier.name) {
                Some(tier) => tier.cores += cores,
                None => tiers.push(TierCost {
                    name: member.tier.name.clone(),
                    cores,
                    memory: None,
                }),
            }
        }
        let said = client.output();
        let mut outcome: Outcome = match &app.application.client.output {
            None => serde_json::from_str(&said)
                .map_err(|error| format!("the client's outcome cannot be read: {error}"))?,
            Some(name) => {
                let tool = parse::Tool::of(name).ok_or("its output is unknown")?;
                let reading: Reading = tool.read(&command, &said).map_err(|why| why.to_string())?;
                let outcome = tool::outcome_of(tool.name(), reading, &job.load, elapsed, cpu);
                let mut outcome = outcome.ok_or("the client's output has no throughput")?;
                outcome.digest = said
                    .lines()
                    .find_map(|line| line.strip_prefix(DIGEST))
                    .map(str::to_owned);
                outcome
            }
        };
        if outcome.operations == 0 {
            return Err("nothing was completed in the time".to_owned());
        }
        outcome.tiers = tiers;
        Ok(outcome)
    }

    /// The words of a program of the run, on a path.
    fn command(&self, arm: &Arm, path: ArmPath, command: &str) -> Vec<String> {
        let search = std::env::var("PATH").unwrap_or_default();
        let mut words = vec![
            "env".to_owned(),
            format!("{MARK}={}", self.scratch.owner),
            // Debian installs servers in directories that an ordinary user's PATH does not contain.
            format!("PATH={search}:/usr/sbin:/sbin"),
        ];
        if let (ArmPath::Sockmap, Some(Ok(sockmap))) = (path, &self.sockmap) {
            words.splice(0..0, sockmap.words());
        }
        words.extend(self.under(arm, path, None));
        words.extend(shell::words(command));
        words
    }

    /// Values of the words that an application's commands and files have.
    fn words_of(&self, app: &Staged<'_>, job: &Job<'_>) -> Result<Words, String> {
        let mut words = self.places();
        let load = &job.load;
        words.put("x", job.x);
        words.put("message", load.message);
        words.put("response", load.response_bytes());
        words.put("streams", load.streams);
        words.put("seconds", load.seconds);
        words.put("whole-seconds", load.seconds.ceil());
        words.put("warmup", load.warmup);
        words.put("rate", load.rate.unwrap_or(0.0));
        let mut held = Vec::new();
        for &tier in &app.tiers {
            let count = tier.count.as_deref().unwrap_or("1");
            let count: usize = words.replaced(count)?.parse().unwrap_or(0);
            if !(1..=COUNT_MAX).contains(&count) {
                return Err(format!("tier {}: 1 to {COUNT_MAX} servers", tier.name));
            }
            let mut ports = Vec::new();
            for _ in 0..count {
                // All ports are held until each server has its own.
                let listener = TcpListener::bind("127.0.0.1:0");
                let listener = listener.map_err(|error| format!("no free port: {error}"))?;
                ports.push(listener.local_addr().map_or(0, |address| address.port()));
                held.push(listener);
            }
            words.put(&format!("port:{}", tier.name), ports[0]);
            words.put("front", ports[0]);
            let all: Vec<String> = ports
                .iter()
                .map(|port| format!("127.0.0.1:{port}"))
                .collect();
            words.put(&format!("ports:{}", tier.name), all.join(","));
            let folder = self.scratch.path().join(FOLDER);
            words.put(
                &format!("socket:{}", tier.name),
                socket(&folder, tier).display(),
            );
        }
        Ok(words)
    }

    fn places(&self) -> Words {
        let mut words = Words::default();
        words.put("toehold", self.toehold.display());
        words.put("folder", self.scratch.path().join(FOLDER).display());
        words.put("data", self.data().display());
        words
    }

    fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    fn guarded(&self, tell: impl FnOnce(&mut super::Guard)) {
        if let Ok(mut guard) = self.guard.lock()
            && let Some(guard) = guard.as_mut()
        {
            tell(guard);
        }
    }
}

fn socket(folder: &Path, tier: &Tier) -> PathBuf {
    folder.join(format!("{}.sock", tier.name))
}

/// A folder that workers of another user can enter.
fn open_folder(folder: &Path) -> Result<(), String> {
    let made = fs::create_dir_all(folder)
        .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o755)));
    made.map_err(|error| format!("cannot make {}: {error}", folder.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

/// The prefix of the digest of received bytes, in the output of an application's client.
const DIGEST: &str = "digest ";
/// The folder of a sample's settings.
const FOLDER: &str = "application";
const PREPARE_TIMEOUT: Duration = Duration::from_secs(120);
/// Most servers of a tier.
const COUNT_MAX: usize = 128;
