//! Where and when something was measured: what a reader needs to doubt it properly.

use std::fs;

use serde::Serialize;

/// The machine and its state.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// Seconds since 1970.
    pub unix_time: u64,
    /// The processor's name.
    pub processor: String,
    /// Processors this process may use.
    pub processors: usize,
    /// Sizes of the caches of the first processor.
    pub caches: Vec<String>,
    /// The kernel's release.
    pub kernel: String,
    /// How frequencies are chosen, if that can be known.
    pub governor: Option<String>,
    /// The state of transparent huge pages.
    pub huge_pages: Option<String>,
    /// True in a virtual machine, as far as the processor tells.
    pub is_virtual: bool,
    /// Load average over the last minute, when the run began.
    pub load: f64,
    /// The clock that times the samples.
    pub clock: Option<String>,
}

impl Environment {
    /// Looks around.
    pub fn capture() -> Environment {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Environment {
            unix_time: now.map_or(0, |now| now.as_secs()),
            processor: field("model name").unwrap_or_else(|| "unknown".to_owned()),
            processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
            caches: caches(),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            huge_pages: line("/sys/kernel/mm/transparent_hugepage/enabled"),
            is_virtual: field("flags").is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
            load: load
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(f64::NAN),
            clock: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        }
    }

    /// In one line.
    pub fn summary(&self) -> String {
        let virtual_machine = if self.is_virtual {
            ", a virtual machine"
        } else {
            ""
        };
        format!(
            "{} ({} processors; {}{virtual_machine}), Linux {}, load {:.2} at the start",
            self.processor,
            self.processors,
            self.caches.join(", "),
            self.kernel,
            self.load
        )
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

fn line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}
