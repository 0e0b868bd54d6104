//! One round: a fresh server, the client, and the resources used between the client's start and its
//! end.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use toehold_measure::cpus::Placement;
use toehold_measure::metric::{Metric, Reading, Work};
use toehold_measure::parse::Tool;
use toehold_measure::process::{self, Launch, Program};
use toehold_measure::procfs::{HostTimes, Snapshot, Usage};
use toehold_measure::ready::Ready;
use toehold_measure::syscalls::Tracepoint;

use super::connections::Moved;
use crate::options::{PathChoice, WaitChoice};
use crate::status::Status;

/// The parameters that all rounds share.
pub(crate) struct Setup {
    /// This program, which starts the others.
    pub(crate) toehold: PathBuf,
    /// The server's words.
    pub(crate) server: Vec<String>,
    /// The client's words.
    pub(crate) client: Vec<String>,
    /// The client's command as the user gave it.
    pub(crate) client_command: String,
    /// The tool that reads the client's output.
    pub(crate) tool: Option<Tool>,
    /// When the server is ready.
    pub(crate) ready: Ready,
    /// The wait mode of accelerated programs.
    pub(crate) wait: WaitChoice,
    /// The cores of each side.
    pub(crate) placement: Placement,
    /// The longest times for the server to become ready, and for the client to end.
    pub(crate) timeouts: Timeouts,
    /// The directory for output and the runtime directory.
    pub(crate) scratch: PathBuf,
    /// The adapter's process, if one runs for this comparison.
    pub(crate) adapter: Option<Program>,
}

/// Bounds on waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For the server to be ready.
    pub(crate) server: Duration,
    /// For the client to end.
    pub(crate) client: Duration,
}

/// The measurements of one round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    /// The client's wall time.
    pub(crate) seconds: f64,
    /// The client's report, when its output is understood.
    pub(crate) reading: Option<Reading>,
    /// All cores, from the client's start to its end.
    pub(crate) host: HostTimes,
    /// The server's family in that time.
    pub(crate) server: Usage,
    /// The client's family.
    pub(crate) client: Usage,
    /// The adapter in that time.
    pub(crate) adapter: Option<Usage>,
    /// System calls of the server's and the client's families, in a counting round.
    pub(crate) syscalls: Option<SyscallCounts>,
    /// The connections that left kernel TCP; `None` on the host path, and without an answer of the
    /// adapter's.
    pub(crate) moved: Option<Moved>,
}

/// System calls of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SyscallCounts {
    /// Of the server, while the client ran.
    pub(crate) server: u64,
    /// Of the client, from its start to its end.
    pub(crate) client: u64,
}

impl Setup {
    /// Runs one round on `path`; counts system calls when a tracepoint is given, which slows them.
    ///
    /// # Errors
    ///
    /// A sentence that says which side failed and how.
    pub(crate) fn run(
        &self,
        path: PathChoice,
        tracepoint: Option<Tracepoint>,
    ) -> Result<Round, String> {
        self.ready.check_free()?;
        let mut server = self.start("server", &self.server, path, tracepoint)?;
        self.ready.wait(&mut server, self.timeouts.server)?;
        // Let the server finish the work it does after it begins to listen.
        thread::sleep(SETTLE);
        let moved_before = self.moved(path);
        let adapter_before = self.adapter_snapshot();
        let server_before = Snapshot::of(&server.family());
        let calls_before = server.syscalls();
        let host_before =
            HostTimes::now().map_err(|error| format!("cannot read /proc/stat: {error}"))?;

        let mut client = self.start("client", &self.client, path, tracepoint)?;
        let ended = client.wait_until(Instant::now() + self.timeouts.client);

        let host_after =
            HostTimes::now().map_err(|error| format!("cannot read /proc/stat: {error}"))?;
        let calls_after = server.syscalls();
        let server_after = Snapshot::of(&server.family());
        let adapter_after = self.adapter_snapshot();
        // The server's counts end with it.
        let moved = self.moved(path);
        let Some(ended) = ended else {
            if process::interrupted() {
                return Err("interrupted".to_owned());
            }
            return Err(format!(
                "the client did not end within {} s (see --timeout); its last words:\n  {}",
                self.timeouts.client.as_secs(),
                client.last_words()
            ));
        };
        if let Some(early) = server.poll() {
            let words = server.last_words();
            return Err(format!(
                "the server {} while the client ran:\n  {words}",
                early.words()
            ));
        }
        if !ended.succeeded() {
            return Err(format!(
                "the client {}:\n  {}",
                ended.words(),
                client.last_words()
            ));
        }
        let reading =
            match self.tool {
                Some(tool) => Some(tool.read(&self.client_command, &client.output()).map_err(
                    |error| format!("{error}; its last words:\n  {}", client.last_words()),
                )?),
                None => None,
            };
        server.stop();
        let syscalls = match (calls_before, calls_after, client.syscalls()) {
            (Some(before), Some(after), Some(client)) => Some(SyscallCounts {
                server: after.saturating_sub(before),
                client,
            }),
            _ => None,
        };
        Ok(Round {
            seconds: ended.elapsed.as_secs_f64(),
            reading,
            host: host_after - host_before,
            server: server_after.since(&server_before),
            client: ended.usage,
            adapter: adapter_before
                .zip(adapter_after)
                .map(|(before, after)| after.since(&before)),
            syscalls,
            moved: moved
                .zip(moved_before)
                .map(|(after, before)| after.since(before)),
        })
    }

    fn start(
        &self,
        role: &str,
        words: &[String],
        path: PathChoice,
        tracepoint: Option<Tracepoint>,
    ) -> Result<Program, String> {
        let cores = match role {
            "server" => self.placement.server.as_deref(),
            _ => self.placement.client.as_deref(),
        };
        let words = under_run(
            &self.toehold,
            path,
            self.wait,
            &runtime_dir(&self.scratch),
            words,
        );
        let output = self.scratch.join(role);
        Program::start(&Launch {
            words: &words,
            cores,
            output,
            tracepoint,
        })
        .map_err(|error| format!("cannot start the {role}: {error}"))
    }

    fn moved(&self, path: PathChoice) -> Option<Moved> {
        match path {
            PathChoice::Host => None,
            _ => Status::ask(&runtime_dir(&self.scratch)).map(|status| Moved::of(&status)),
        }
    }

    fn adapter_snapshot(&self) -> Option<Snapshot> {
        self.adapter
            .as_ref()
            .map(|adapter| Snapshot::of(&adapter.family()))
    }
}

impl Round {
    /// The work done: as the client reported it, otherwise one run.
    pub(crate) fn work(&self) -> Work {
        match &self.reading {
            Some(reading) => reading.work.clone(),
            None => Work {
                amount: 1.0,
                unit: "run",
            },
        }
    }

    /// The client's numbers, or its wall time.
    pub(crate) fn results(&self) -> Vec<Metric> {
        match &self.reading {
            Some(reading) => reading.metrics.clone(),
            None => vec![Metric::lower("run time", self.seconds, "s")],
        }
    }

    /// The costs of the round per unit of work.
    pub(crate) fn costs(&self) -> Vec<Metric> {
        let work = self.work();
        // Costs are in microseconds per request, and in seconds per gigabyte or run.
        let (scale, second) = match work.unit {
            "GB" | "run" => (1.0, "s"),
            _ => (1e6, "us"),
        };
        let cpu = |name: &str, seconds: f64| {
            Metric::lower(
                name,
                seconds * scale / work.amount,
                &format!("{second} per {}", work.unit),
            )
        };
        let switches = |name: &str, count: f64| {
            Metric::lower(name, count / work.amount, &format!("per {}", work.unit))
        };
        let mut costs = vec![
            cpu("CPU, all cores", self.host.busy()),
            cpu("CPU, server", self.server.cpu()),
            cpu("CPU, client", self.client.cpu()),
            cpu("CPU, soft interrupts", self.host.softirq),
        ];
        if let Some(adapter) = &self.adapter {
            costs.push(cpu("CPU, adapter", adapter.cpu()));
        }
        let (server, client) = (&self.server, &self.client);
        costs.push(switches(
            "context switches, voluntary",
            server.switches_voluntary + client.switches_voluntary,
        ));
        costs.push(switches(
            "context switches, involuntary",
            server.switches_involuntary + client.switches_involuntary,
        ));
        costs.push(Metric::neutral(
            "cores busy",
            self.host.busy() / self.seconds,
            "cores",
        ));
        costs
    }
}

impl Round {
    /// The number of cores that programs outside the comparison kept busy, as a lower bound: where
    /// the kernel charges soft interrupts to programs, the real number is higher.
    pub(crate) fn cores_elsewhere(&self) -> f64 {
        let adapter = self.adapter.map_or(0.0, |adapter| adapter.cpu());
        let ours = self.server.cpu() + self.client.cpu() + adapter;
        let programs = self.host.user + self.host.system;
        ((programs - ours) / self.seconds).max(0.0)
    }
}

/// The runtime directory of a comparison, within its scratch directory.
pub(crate) fn runtime_dir(scratch: &Path) -> PathBuf {
    scratch.join("run")
}

/// The command `words` run on `path`.
fn under_run(
    toehold: &Path,
    path: PathChoice,
    wait: WaitChoice,
    runtime_dir: &Path,
    words: &[String],
) -> Vec<String> {
    let mut all = vec![toehold.to_string_lossy().into_owned(), "run".to_owned()];
    for (option, value) in [("--path", path.word()), ("--wait", wait.word())] {
        all.extend([option.to_owned(), value.to_owned()]);
    }
    all.extend([
        "--runtime-dir".to_owned(),
        runtime_dir.to_string_lossy().into_owned(),
    ]);
    all.push("--".to_owned());
    all.extend_from_slice(words);
    all
}

const SETTLE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn round(reading: Option<Reading>) -> Round {
        Round {
            seconds: 2.0,
            reading,
            host: HostTimes {
                user: 1.0,
                system: 2.0,
                softirq: 0.5,
                ..HostTimes::default()
            },
            server: Usage {
                user: 1.0,
                switches_voluntary: 30.0,
                ..Usage::default()
            },
            client: Usage {
                system: 0.5,
                switches_voluntary: 10.0,
                ..Usage::default()
            },
            adapter: None,
            syscalls: None,
            moved: None,
        }
    }

    fn value(metrics: &[Metric], name: &str) -> (f64, String) {
        let metric = metrics
            .iter()
            .find(|metric| metric.name == name)
            .expect(name);
        (metric.value, metric.unit.clone())
    }

    #[test]
    fn costs_are_per_unit_of_work() {
        let work = Work {
            amount: 100.0,
            unit: "request",
        };
        let costs = round(Some(Reading {
            metrics: Vec::new(),
            work,
        }))
        .costs();
        assert_eq!(
            value(&costs, "CPU, all cores"),
            (35_000.0, "us per request".to_owned())
        );
        assert_eq!(
            value(&costs, "CPU, server"),
            (10_000.0, "us per request".to_owned())
        );
        assert_eq!(
            value(&costs, "context switches, voluntary"),
            (0.4, "per request".to_owned())
        );
        assert_eq!(value(&costs, "cores busy"), (1.75, "cores".to_owned()));
    }

    #[test]
    fn an_unknown_client_is_measured_by_its_wall_time() {
        let round = round(None);
        assert_eq!(round.results(), [Metric::lower("run time", 2.0, "s")]);
        assert_eq!(
            value(&round.costs(), "CPU, all cores"),
            (3.5, "s per run".to_owned())
        );
    }

    #[test]
    fn work_of_others_is_what_ours_does_not_explain() {
        // Three seconds in programs, one and a half of them ours, over two seconds.
        assert_eq!(round(None).cores_elsewhere(), 0.75);
    }

    #[test]
    fn both_sides_run_under_toehold() {
        let words = under_run(
            Path::new("/bin/toehold"),
            PathChoice::Direct,
            WaitChoice::Event,
            Path::new("/r"),
            &["a".to_owned(), "--b".to_owned()],
        );
        let line = "/bin/toehold run --path direct --wait event --runtime-dir /r -- a --b";
        assert_eq!(words.join(" "), line);
    }
}
