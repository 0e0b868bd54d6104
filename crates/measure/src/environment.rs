//! The environment of a measurement: a number is valid only for this host and this day.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::procfs::HostTimes;
use crate::{cpus, text};

/// The properties of the host that affect a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Seconds since 1970.
    pub unix_time: u64,
    /// This time as a date.
    pub date: String,
    /// Version of this program.
    pub toehold: String,
    /// The commit from which it was built, if known.
    pub commit: Option<String>,
    /// Kernel release.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Sizes of the caches of the first core.
    pub caches: Vec<String>,
    /// Frequency governor, when the host has one.
    pub governor: Option<String>,
    /// Whether the processor reports a hypervisor.
    pub virtual_machine: bool,
    /// TCP congestion control of new connections.
    pub congestion_control: String,
    /// Whether the kernel coalesces small writes.
    pub tcp_autocorking: Option<bool>,
    /// Segmentation and receive offload of the loopback device, if ethtool reports them.
    pub offloads: Option<String>,
    /// The state of transparent huge pages.
    pub huge_pages: Option<String>,
    /// The clock that times the samples.
    pub clock: Option<String>,
    /// Load average of the last minute before the first round.
    pub load_before: Option<f64>,
    /// Cores that other programs kept busy in the half second before the first round. The load
    /// average covers a minute, and so includes the previous measurement.
    #[serde(default)]
    pub busy_before: Option<f64>,
    /// The part of the time since boot that the hypervisor gave to other guests.
    pub steal: Option<f64>,
    /// The cores to which this process was confined, if it may not use all.
    pub pinned_to: Option<Vec<usize>>,
}

impl Environment {
    /// Captures the environment, which takes half a second.
    pub fn capture() -> Environment {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let unix_time = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let allowed = cpus::allowed();
        let online = cpuinfo.lines().filter(|line| line.starts_with("processor"));
        let is_pinned = allowed.len() < online.count();
        Environment {
            unix_time,
            date: text::date(unix_time),
            toehold: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("TOEHOLD_COMMIT").map(str::to_owned),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
            cpu: field(&cpuinfo, "model name")
                .unwrap_or("unknown")
                .to_owned(),
            cores: allowed.len(),
            caches: caches(),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            congestion_control: line("/proc/sys/net/ipv4/tcp_congestion_control")
                .unwrap_or_else(|| "unknown".to_owned()),
            tcp_autocorking: line("/proc/sys/net/ipv4/tcp_autocorking").map(|value| value == "1"),
            offloads: offloads(),
            huge_pages: line("/sys/kernel/mm/transparent_hugepage/enabled"),
            clock: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            load_before: line("/proc/loadavg")
                .and_then(|load| load.split_whitespace().next()?.parse().ok()),
            busy_before: busy(QUIET_LOOK),
            steal: HostTimes::now()
                .ok()
                .map(|times| times.steal / (times.busy() + times.idle + times.steal).max(1.0)),
            pinned_to: is_pinned.then_some(allowed),
        }
    }

    /// One line for readers.
    pub fn sentence(&self) -> String {
        let governor = self.governor.as_deref().unwrap_or("unknown");
        let machine = if self.virtual_machine {
            " (virtual machine)"
        } else {
            ""
        };
        let cores = if self.cores == 1 { "core" } else { "cores" };
        format!(
            "Linux {}, {}{machine}, {} {cores}, governor {governor}, congestion control {}",
            self.kernel, self.cpu, self.cores, self.congestion_control
        )
    }

    /// All properties by name, for a report.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let commit = self.commit.as_deref().map(|commit| format!(" ({commit})"));
        let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
        vec![
            ("Date", self.date.clone()),
            (
                "Toehold",
                format!("{}{}", self.toehold, commit.unwrap_or_default()),
            ),
            ("Host", self.sentence()),
            ("Caches", self.caches.join(", ")),
            ("Loopback", known(&self.offloads)),
            ("Huge pages", known(&self.huge_pages)),
            ("Clock", known(&self.clock)),
            (
                "Load before",
                self.load_before
                    .map_or("unknown".to_owned(), |load| format!("{load:.2}")),
            ),
            (
                "Busy before",
                self.busy_before
                    .map_or("unknown".to_owned(), |cores| format!("{cores:.2} cores")),
            ),
            (
                "Stolen",
                self.steal.map_or("unknown".to_owned(), |part| {
                    format!("{:.1} % of the time since boot", part * 100.0)
                }),
            ),
        ]
    }

    /// Properties that must be equal in comparable runs: where they differ, the numbers differ.
    pub fn fingerprint(&self) -> String {
        format!(
            "{}; {} cores; Linux {}; congestion control {}",
            self.cpu, self.cores, self.kernel, self.congestion_control
        )
    }

    /// Properties of this host that make the numbers worse than necessary.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let other_work = match (self.busy_before, self.load_before) {
            (Some(cores), _) if cores > BUSY_QUIET => Some(format!("{cores:.1} cores were busy")),
            (None, Some(load)) if load > LOAD_QUIET => Some(format!("load average {load}")),
            _ => None,
        };
        if let Some(how_much) = other_work {
            warnings.push(format!(
                "other work was running before the first round ({how_much}): expect wider intervals"
            ));
        }
        if let Some(governor) = self
            .governor
            .as_deref()
            .filter(|governor| *governor == "powersave")
        {
            warnings.push(format!(
                "the frequency governor is {governor}: speeds vary with load"
            ));
        }
        warnings
    }

    /// A note about the kernel's bulk throughput, unless the programs chose another congestion
    /// control.
    pub fn pacing(&self) -> Option<String> {
        (self.congestion_control == "bbr").then(|| {
            "congestion control is bbr, which paces: the kernel's bulk throughput on loopback is \
             about half of what it is with reno or cubic"
                .to_owned()
        })
    }
}

fn caches() -> Vec<String> {
    let mut caches = Vec::new();
    for index in 0..8 {
        let file = |name| {
            line(&format!(
                "/sys/devices/system/cpu/cpu0/cache/index{index}/{name}"
            ))
        };
        let (Some(level), Some(size), Some(kind)) = (file("level"), file("size"), file("type"))
        else {
            break;
        };
        if kind != "Instruction" {
            caches.push(format!("L{level} {size}"));
        }
    }
    caches
}

fn offloads() -> Option<String> {
    let output = Command::new("ethtool").args(["-k", "lo"]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let state = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(name))?;
        line.trim_start_matches(':')
            .split_whitespace()
            .next()
            .map(str::to_owned)
    };
    let tso = state("tcp-segmentation-offload")?;
    let gso = state("generic-segmentation-offload")?;
    let gro = state("generic-receive-offload")?;
    Some(format!("tso {tso}, gso {gso}, gro {gro}"))
}

/// The first line of a file.
fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// The first value of a field of `/proc/cpuinfo`.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The time to watch for other programs.
const QUIET_LOOK: Duration = Duration::from_millis(500);
/// Cores that may be busy on a quiet host.
const BUSY_QUIET: f64 = 0.2;
/// With a higher load average another program must have been busy.
const LOAD_QUIET: f64 = 0.7;

/// The number of cores busy during `time`, while this program sleeps.
fn busy(time: Duration) -> Option<f64> {
    let before = HostTimes::now().ok()?;
    let began = Instant::now();
    thread::sleep(time);
    let passed = HostTimes::now().ok()? - before;
    Some(passed.busy() / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_cpuinfo_are_found() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nflags\t\t: fpu hypervisor\n";
        assert_eq!(field(cpuinfo, "model name"), Some("A CPU @ 2 GHz"));
        assert_eq!(field(cpuinfo, "microcode"), None);
    }

    #[test]
    fn what_spoils_numbers_is_said() {
        let mut environment = Environment::capture();
        environment.congestion_control = "bbr".to_owned();
        environment.load_before = Some(3.0);
        environment.busy_before = None;
        environment.governor = None;
        assert_eq!(environment.warnings().len(), 1);
        environment.busy_before = Some(0.05);
        assert!(environment.warnings().is_empty(), "work that has ended");
        environment.load_before = Some(0.1);
        environment.busy_before = Some(1.0);
        assert_eq!(environment.warnings().len(), 1);
        environment.busy_before = Some(0.0);
        assert!(environment.pacing().is_some());
        environment.congestion_control = "cubic".to_owned();
        assert!(environment.warnings().is_empty() && environment.pacing().is_none());
    }

    #[test]
    fn an_environment_comes_back_from_json() {
        let environment = Environment::capture();
        let json = serde_json::to_string(&environment).expect("JSON");
        let back: Environment = serde_json::from_str(&json).expect("the same");
        assert_eq!(back.fingerprint(), environment.fingerprint());
        assert!(!environment.facts().is_empty());
    }
}
