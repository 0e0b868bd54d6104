//! A plan in a TOML file of [arms](super::arm) and blocks. New experiments on sockets need no code.
//!
//! ```toml
//! name = "my-latency"
//! about = "How long a small message takes here."
//!
//! [[arm]]                 # the first arm is the base of every comparison
//! name = "kernel"
//! path = "host"
//!
//! [[arm]]
//! name = "direct, polling"
//! path = "direct"
//! wait = "poll"
//!
//! [[block]]
//! title = "ping-pong"
//! metric = "latency-p50"
//! pattern = "ping-pong"
//! sweep = { factor = "message", values = [1, 64, 4096] }
//! ```

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::application::{Application, Staged, Tier};
use super::arm::{Arm, ArmPath, Family, Link};
use super::headline::Headline;
use super::tool::Tool;
use crate::error::LabError;
use crate::generator::{Arrivals, Load, Pattern};
use crate::published::published_with;

/// An experiment: blocks of loads, each run by every arm.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PlanFile {
    /// The name by which the user starts the plan.
    pub name: String,
    /// The question of the experiment, in one sentence.
    pub about: String,
    /// The series that the plan belongs to.
    #[serde(default)]
    pub series: Option<Series>,
    /// The experiments that the plan repeats, as the published data names them.
    #[serde(default)]
    pub published: Vec<String>,
    /// Rounds that are measured.
    #[serde(default = "rounds")]
    pub rounds: usize,
    /// Warm-up rounds, which are discarded.
    #[serde(default = "warmup_rounds")]
    pub warmup_rounds: usize,
    /// Measured seconds of a sample.
    #[serde(default = "seconds")]
    pub seconds: f64,
    /// The settings that are compared. The first arm is the base.
    #[serde(rename = "arm")]
    pub arms: Vec<Arm>,
    /// The work of each arm.
    #[serde(rename = "block")]
    pub blocks: Vec<Block>,
    /// Applications of real programs that blocks ask for.
    #[serde(default, rename = "application")]
    pub applications: Vec<Application>,
    /// Servers of these applications.
    #[serde(default, rename = "tier")]
    pub tiers: Vec<Tier>,
    /// Whether system calls, doorbells, frames and simulated cache misses are counted, too.
    #[serde(default)]
    pub crossings: bool,
    /// Whether the costs of each process, and the connections in shared memory, are told, too.
    #[serde(default)]
    pub processes: bool,
    /// Most connections in shared memory (`toehold adapter --max-connections`), where that is not
    /// the adapter's own number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<usize>,
    /// Sentences for the report, for example about missing measurements and the reasons.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A series of plans: the key `series` of a plan names its.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Series {
    /// Micro-experiments, by our own generator and within one process.
    #[serde(rename = "paper")]
    Paper,
    /// Applications of real programs.
    #[serde(rename = "paper-applications")]
    Applications,
}

/// A load, and the factor that changes from point to point.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Block {
    /// Its name in the report.
    pub title: String,
    /// The metric that its figure shows and its conclusion is about.
    pub metric: Headline,
    /// The traffic pattern.
    pub pattern: Pattern,
    /// Bytes of a message.
    #[serde(default = "message")]
    pub message: usize,
    /// Bytes of a response.
    pub response: Option<usize>,
    /// Another load generator, in place of our own.
    pub program: Option<Tool>,
    /// The application that is measured, in place of our own generator.
    pub application: Option<String>,
    /// Connections.
    #[serde(default = "streams")]
    pub streams: usize,
    /// Ports of the link; each carries `streams` streams.
    #[serde(default = "ports")]
    pub ports: usize,
    /// Data are written anew and read.
    #[serde(default)]
    pub touch: bool,
    /// Streams are sent by sendfile.
    #[serde(default)]
    pub sendfile: bool,
    /// Requests in a second: an open loop.
    pub rate: Option<f64>,
    /// When they are due.
    #[serde(default)]
    pub arrivals: Arrivals,
    /// Requests that each connection makes before the warm-up.
    #[serde(default)]
    pub prior: usize,
    /// Connections that make requests after that, at most; the others stay open and idle.
    pub active: Option<usize>,
    /// The factor that changes; without it there is one point.
    pub sweep: Option<Sweep>,
    /// Published numbers that belong to this load.
    #[serde(default)]
    pub published: Vec<Beside>,
}

/// A published number and its counterpart in this plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Beside {
    /// Its name in the published data.
    pub id: String,
    /// The level of the factor at which the number was measured; the last level by default.
    pub x: Option<f64>,
    /// Our arm that represents the published system.
    pub arm: String,
    /// For a benefit: the arm over which it is a benefit.
    pub over: Option<String>,
    /// The metric, if it is not the block's.
    pub metric: Option<Headline>,
    /// The reason why the two differ.
    #[serde(default)]
    pub note: String,
}

/// A factor and its levels.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sweep {
    /// The factor.
    pub factor: Factor,
    /// Its levels.
    pub values: Vec<f64>,
    /// Its label on the axis, if it is not the factor's value.
    pub label: Option<String>,
}

impl Sweep {
    /// Its name on an axis.
    pub fn label(&self) -> &str {
        self.label.as_deref().unwrap_or(self.factor.label())
    }
}

/// Settings of a load that a sweep may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Factor {
    /// Bytes of a message.
    Message,
    /// Connections.
    Streams,
    /// Ports of the link.
    Ports,
    /// Bytes of the sockets' buffers.
    SocketBuffer,
    /// Requests in a second.
    Rate,
    /// Bytes of a response.
    Response,
    /// A number of an application's own: the word `{x}` in its commands.
    Level,
}

impl Factor {
    /// Its name on an axis.
    pub fn label(self) -> &'static str {
        match self {
            Factor::Message => "message, bytes",
            Factor::Streams => "connections",
            Factor::Ports => "ports",
            Factor::SocketBuffer => "socket buffer, bytes",
            Factor::Rate => "requests/s",
            Factor::Response => "response, bytes",
            Factor::Level => "level",
        }
    }

    /// Whether its levels are lengths.
    pub fn is_bytes(self) -> bool {
        matches!(
            self,
            Factor::Message | Factor::SocketBuffer | Factor::Response
        )
    }
}

impl PlanFile {
    /// Reads a plan and refuses one that cannot be run.
    ///
    /// # Errors
    ///
    /// One sentence that names the place.
    pub fn parse(text: &str, place: &str) -> Result<PlanFile, LabError> {
        let plan: PlanFile = toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .map_or(1, |span| text[..span.start].lines().count().max(1));
            let why = error.message().replace('\n', " ");
            LabError::usage(format!("{place}, line {line}: {why}"))
        })?;
        plan.check()
            .map_err(|why| LabError::usage(format!("{place}: {why}")))?;
        Ok(plan)
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    ///
    /// One sentence that names the file.
    pub fn read(path: &Path) -> Result<PlanFile, LabError> {
        let place = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| LabError::usage(format!("cannot read {place}: {error}")))?;
        PlanFile::parse(&text, &place)
    }

    fn check(&self) -> Result<(), String> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || !self.name.chars().all(is_plain) {
            return Err("a plan's name is made of a-z, 0-9 and -".to_owned());
        }
        if self.arms.is_empty() || self.blocks.is_empty() {
            return Err("a plan has an arm and a block at least".to_owned());
        }
        if !(1..=ROUNDS_MAX).contains(&self.rounds) || self.warmup_rounds > ROUNDS_MAX {
            return Err(format!("a plan has 1 to {ROUNDS_MAX} rounds"));
        }
        if self.arms[0].path == ArmPath::Limit {
            return Err("the first arm is the base, and no limit".to_owned());
        }
        for (at, arm) in self.arms.iter().enumerate() {
            if self.arms[..at].iter().any(|other| other.name == arm.name) {
                return Err(format!("two arms are called \"{}\"", arm.name));
            }
            arm.check()
                .and_then(|()| self.check_base_of(arm))
                .and_then(|()| arm.program.map_or(Ok(()), |tool| self.check_seconds(tool)))
                .map_err(|why| format!("\"{}\": {why}", arm.name))?;
        }
        let of_applications = self.applications.iter().map(|one| &one.name);
        let of_tiers = self.tiers.iter().map(|one| &one.name);
        let names = [of_applications.collect(), of_tiers.collect()];
        for names in names as [Vec<&String>; 2] {
            for (at, name) in names.iter().enumerate() {
                if names[..at].contains(name) {
                    return Err(format!("two applications or tiers are called \"{name}\""));
                }
            }
        }
        for application in &self.applications {
            Staged::new(application, &self.tiers)
                .and_then(|staged| staged.check())
                .map_err(|why| format!("application \"{}\": {why}", application.name))?;
        }
        for block in &self.blocks {
            for beside in &block.published {
                self.check_beside(block, beside)
                    .map_err(|why| format!("block \"{}\": {why}", block.title))?;
            }
            if let Some(name) = &block.application {
                let is_there = self.application_of(block).is_some();
                (is_there && block.program.is_none())
                    .then_some(())
                    .ok_or_else(|| match is_there {
                        true => format!("block \"{}\": program or application", block.title),
                        false => format!("there is no application \"{name}\""),
                    })?;
            }
            if let Some(tool) = block.program {
                self.check_program(tool)
                    .map_err(|why| format!("block \"{}\": {why}", block.title))?;
            }
            if self.processes && !self.has_processes(block) {
                return Err(format!(
                    "block \"{}\": costs of processes are those of the pattern requests, over TCP \
                     on loopback by the paths host and direct",
                    block.title
                ));
            }
            let most = PORTS_MAX;
            for x in block.points() {
                if !(1..=most).contains(&block.ports_at(x)) {
                    return Err(format!("block \"{}\": 1 to {most} ports", block.title));
                }
                for arm in &self.arms {
                    block.load(x, arm, self.seconds).check().map_err(|why| {
                        format!("block \"{}\", arm \"{}\": {why}", block.title, arm.name)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Whether the costs of each process can be reported for a block.
    fn has_processes(&self, block: &Block) -> bool {
        let is_plain = |arm: &Arm| {
            matches!(arm.path, ArmPath::Host | ArmPath::Direct)
                && arm.link == Link::Loopback
                && arm.family == Family::Tcp
                && arm.program.is_none()
        };
        block.pattern == Pattern::Requests
            && block.program.is_none()
            && block.application.is_none()
            && self.arms.iter().all(is_plain)
    }

    fn check_program(&self, tool: Tool) -> Result<(), String> {
        if self.arms.iter().any(|arm| arm.link != Link::Loopback) {
            return Err("other programs are measured over loopback alone".to_owned());
        }
        self.check_seconds(tool)
    }

    fn check_seconds(&self, tool: Tool) -> Result<(), String> {
        if self.seconds < tool.seconds_min() {
            return Err(format!(
                "samples of {} take {} seconds at least",
                tool.name(),
                tool.seconds_min()
            ));
        }
        Ok(())
    }

    /// The application of a block.
    pub(super) fn application_of(&self, block: &Block) -> Option<Staged<'_>> {
        let name = block.application.as_deref()?;
        self.staged().find(|one| one.application.name == name)
    }

    /// Every application with its tiers.
    pub(super) fn staged(&self) -> impl Iterator<Item = Staged<'_>> {
        let all = self.applications.iter();
        all.filter_map(|application| Staged::new(application, &self.tiers).ok())
    }

    /// Every program of other projects that the plan needs.
    pub(super) fn tools(&self) -> impl Iterator<Item = Tool> + '_ {
        let of_blocks = self.blocks.iter().filter_map(|block| block.program);
        of_blocks.chain(self.arms.iter().filter_map(|arm| arm.program))
    }

    fn check_beside(&self, block: &Block, beside: &Beside) -> Result<(), String> {
        if published_with(&beside.id).is_none() {
            return Err(format!("there is no published number {}", beside.id));
        }
        for name in [Some(&beside.arm), beside.over.as_ref()]
            .into_iter()
            .flatten()
        {
            if !self.arms.iter().any(|arm| arm.name == *name) {
                return Err(format!("{}: there is no arm \"{name}\"", beside.id));
            }
        }
        match beside.x {
            Some(x) if !block.points().contains(&x) => {
                Err(format!("{}: {x} is not a level of the factor", beside.id))
            }
            _ => Ok(()),
        }
    }

    fn check_base_of(&self, arm: &Arm) -> Result<(), String> {
        let Some(base) = &arm.against else {
            return Ok(());
        };
        let is_arm = |other: &Arm| other.name == *base && other.name != arm.name;
        if self.arms.iter().any(is_arm) {
            Ok(())
        } else {
            Err(format!("there is no other arm \"{base}\""))
        }
    }

    /// The arm that an arm is compared with.
    pub fn base_of(&self, arm: &str) -> &str {
        let found = self.arms.iter().find(|other| other.name == arm);
        let against = found.and_then(|arm| arm.against.as_deref());
        against.unwrap_or(&self.arms[0].name)
    }

    /// Whether the plan is about an experiment of the papers.
    pub fn repeats(&self, experiment: &str) -> bool {
        self.published.iter().any(|id| id == experiment)
    }

    /// The most ports that a load uses.
    pub fn ports(&self) -> usize {
        let all = self.blocks.iter().flat_map(|block| {
            let points = block.points().into_iter();
            points.map(|x| block.ports_at(x))
        });
        all.max().unwrap_or(1)
    }

    /// The approximate duration of a run, in seconds.
    pub fn duration(&self) -> f64 {
        let counted = if self.crossings {
            (self.blocks.len() * self.arms.len()) as f64 * COUNTING_SECONDS
        } else {
            0.0
        };
        counted + self.round_duration() * (self.rounds + self.warmup_rounds) as f64
    }

    /// The approximate duration of a round, in seconds: at each point a sample of each arm, and the
    /// base's second one.
    pub(crate) fn round_duration(&self) -> f64 {
        let mut seconds = 0.0;
        for block in &self.blocks {
            for x in block.points() {
                seconds += self.seconds + self.overhead(block, x);
            }
        }
        seconds * (self.arms.len() + 1) as f64
    }

    /// The time that a sample takes besides its measured seconds.
    fn overhead(&self, block: &Block, x: f64) -> f64 {
        let tiers = match block.application {
            Some(_) => TIERS_SECONDS,
            None => 0.0,
        };
        let load = block.load(x, &self.arms[0], self.seconds);
        OVERHEAD_SECONDS + tiers + (load.prior * load.streams) as f64 / PRIOR_RATE
    }

    /// [`PlanFile::duration`] in whole minutes, rounded up.
    pub fn minutes(&self) -> f64 {
        (self.duration() / 60.0).ceil()
    }

    /// In words, for `toehold lab show`.
    pub fn describe(&self) -> String {
        let mut out = format!("{}: {}\n", self.name, self.about);
        if !self.published.is_empty() {
            let _ = writeln!(out, "repeats {}", self.published.join(", "));
        }
        let _ = writeln!(
            out,
            "{} rounds after {} to warm up, {} samples of {} s; about {:.0} minutes\n",
            self.rounds,
            self.warmup_rounds,
            self.samples(),
            self.seconds,
            self.minutes()
        );
        for arm in &self.arms {
            let control = if arm.control { " (control)" } else { "" };
            let _ = writeln!(out, "arm    {:<24} {}{control}", arm.name, arm.describe());
        }
        for block in &self.blocks {
            let points: Vec<String> = block.points().iter().map(f64::to_string).collect();
            let factor = block.sweep.as_ref().map_or("one point", Sweep::label);
            let _ = writeln!(
                out,
                "block  {:<20} {}; {}; {factor}: {}",
                block.title,
                block.pattern.name(),
                block.metric.label(),
                points.join(", ")
            );
        }
        out
    }

    /// Whether an arm uses the library.
    pub fn needs_library(&self) -> bool {
        self.arms.iter().any(Arm::is_accelerated)
    }

    /// The number of samples that a run takes, the base's second one included.
    pub fn samples(&self) -> usize {
        let points: usize = self.blocks.iter().map(|block| block.points().len()).sum();
        points * (self.arms.len() + 1) * (self.rounds + self.warmup_rounds)
    }

    /// Fewer points and rounds: for a quick look; not to be quoted.
    pub fn hurried(mut self) -> PlanFile {
        self.rounds = self.rounds.min(6);
        let least = self.tools().map(Tool::seconds_min).fold(0.25, f64::max);
        // Operations of applications are long.
        let least = if self.applications.is_empty() {
            least
        } else {
            least.max(1.0)
        };
        self.seconds = self.seconds.min(least);
        for sweep in self
            .blocks
            .iter_mut()
            .filter_map(|block| block.sweep.as_mut())
        {
            let last = sweep.values.len().saturating_sub(1);
            let kept = [0, last / 2, last];
            let mut at = 0;
            sweep.values.retain(|_| {
                at += 1;
                kept.contains(&(at - 1))
            });
        }
        self
    }
}

impl Block {
    /// The number of ports that the load uses at a point.
    pub fn ports_at(&self, x: f64) -> usize {
        match self.sweep.as_ref().map(|sweep| sweep.factor) {
            Some(Factor::Ports) => x as usize,
            _ => self.ports,
        }
    }

    /// The levels of its factor; one point without a factor.
    pub fn points(&self) -> Vec<f64> {
        match &self.sweep {
            Some(sweep) => sweep.values.clone(),
            None => vec![self.response.unwrap_or(self.message) as f64],
        }
    }

    /// The load of an arm's client at a point.
    pub fn load(&self, x: f64, arm: &Arm, seconds: f64) -> Load {
        let mut load = Load {
            pattern: self.pattern,
            message: self.message,
            response: self.response,
            streams: self.streams,
            seconds,
            warmup: (seconds / 3.0).clamp(0.05, 0.5),
            polling: arm.polling,
            touch: self.touch,
            sendfile: self.sendfile,
            socket_buffer: arm.socket_buffer,
            rate: self.rate,
            arrivals: self.arrivals,
            prior: self.prior,
            active: None,
            gate: None,
        };
        match self.sweep.as_ref().map(|sweep| sweep.factor) {
            Some(Factor::Message) => load.message = x as usize,
            Some(Factor::Streams) => load.streams = x as usize,
            Some(Factor::Response) => load.response = Some(x as usize),
            // Set below, and by the application.
            Some(Factor::Ports | Factor::Level) => {}
            Some(Factor::SocketBuffer) => load.socket_buffer = Some(x as usize),
            Some(Factor::Rate) => load.rate = Some(x),
            None => {}
        }
        load.streams *= self.ports_at(x).max(1);
        load.active = self.active.map(|active| active.min(load.streams));
        load
    }
}

fn rounds() -> usize {
    10
}

fn warmup_rounds() -> usize {
    1
}

fn seconds() -> f64 {
    0.5
}

fn message() -> usize {
    64
}

fn streams() -> usize {
    1
}

fn ports() -> usize {
    1
}

/// Most ports of a link: virtual interfaces are cheap, but a testbed of the papers had six.
pub(super) const PORTS_MAX: usize = 8;

const ROUNDS_MAX: usize = 10_000;

/// Seconds for counting the crossings of an arm: valgrind takes most of them.
const COUNTING_SECONDS: f64 = 10.0;

/// The time that the tiers of an application take to start and to end.
const TIERS_SECONDS: f64 = 1.0;

/// The time in which a sample's programs start and end.
const OVERHEAD_SECONDS: f64 = 0.6;

/// Requests in a second that connections make before the warm-up: the kernel's rate with thousands
/// of connections, and the time in which these are made.
const PRIOR_RATE: f64 = 100_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "name = \"a\"\nabout = \"b\"\n\
        [[arm]]\nname = \"kernel\"\npath = \"host\"\n\
        [[block]]\ntitle = \"t\"\nmetric = \"latency-p50\"\npattern = \"ping-pong\"\n\
        sweep = { factor = \"message\", values = [1, 64, 256, 1024, 4096] }\n";

    fn refused(text: &str) -> String {
        let error = PlanFile::parse(text, "p.toml").expect_err("refused");
        assert!(
            error.is_usage && !error.sentence.contains('\n'),
            "{error:?}"
        );
        error.sentence
    }

    #[test]
    fn a_plan_needs_no_code() {
        let plan = PlanFile::parse(PLAN, "p.toml").expect("valid");
        assert_eq!((plan.rounds, plan.samples()), (10, 5 * 2 * 11));
        let load = plan.blocks[0].load(256.0, &plan.arms[0], 1.0);
        assert_eq!(load.message, 256);
        let hurried = plan.hurried();
        assert_eq!(hurried.blocks[0].points(), [1.0, 256.0, 4096.0]);
    }

    #[test]
    fn mistakes_are_one_sentence_with_their_line() {
        let typo = PLAN.replace("path = \"host\"", "path = \"host\"\nwiat = \"poll\"");
        let why = refused(&typo);
        assert!(
            why.starts_with("p.toml, line ") && why.contains("wiat"),
            "{why}"
        );
        assert!(refused(&PLAN.replace("\"host\"", "\"hots\"")).contains("hots"));
        assert!(refused(&PLAN.replace("[1, 64", "[0, 64")).contains("message size"));
        assert!(refused(&PLAN.replace("\"a\"", "\"../a\"")).contains("name"));
        assert!(refused("name = ").contains("line 1"));
        let twice = format!("{PLAN}[[arm]]\nname = \"kernel\"\npath = \"direct\"\n");
        assert!(refused(&twice).contains("two arms"));
    }
}
