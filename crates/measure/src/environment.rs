//! The environment of a measurement: every number belongs to this host, on this day.

use std::fs;

use serde::Serialize;

use crate::cpus;

/// The host, as far as it bears on the measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Environment {
    /// Version of this program.
    pub toehold: &'static str,
    /// Kernel release.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Frequency governor, when the host has one.
    pub governor: Option<String>,
    /// Whether the processor says that it is virtual.
    pub virtual_machine: bool,
    /// TCP congestion control of new connections.
    pub congestion_control: String,
    /// Whether the kernel joins small writes.
    pub tcp_autocorking: Option<bool>,
    /// Load average of the last minute before the first round.
    pub load_before: Option<f64>,
    /// Seconds since 1970.
    pub unix_time: u64,
}

impl Environment {
    /// Looks around.
    pub fn capture() -> Environment {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Environment {
            toehold: env!("CARGO_PKG_VERSION"),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
            cpu: field(&cpuinfo, "model name")
                .unwrap_or("unknown")
                .to_owned(),
            cores: cpus::allowed().len(),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            congestion_control: line("/proc/sys/net/ipv4/tcp_congestion_control")
                .unwrap_or_else(|| "unknown".to_owned()),
            tcp_autocorking: line("/proc/sys/net/ipv4/tcp_autocorking").map(|value| value == "1"),
            load_before: line("/proc/loadavg")
                .and_then(|load| load.split_whitespace().next()?.parse().ok()),
            unix_time: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        }
    }

    /// One line for people.
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

    /// What here makes the numbers worse than they need to be.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(load) = self.load_before.filter(|load| *load > LOAD_QUIET) {
            warnings.push(format!(
                "other work was running before the first round (load average {load}): expect \
                wider intervals"
            ));
        }
        if self.congestion_control == "bbr" {
            warnings.push(
                "congestion control is bbr, which paces: the kernel's bulk throughput on loopback \
                is \
                 about half of what it is with reno or cubic"
                    .to_owned(),
            );
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

/// A load average beyond which a second program must have been busy.
const LOAD_QUIET: f64 = 0.7;

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
        environment.governor = None;
        assert_eq!(environment.warnings().len(), 2);
        environment.congestion_control = "cubic".to_owned();
        environment.load_before = Some(0.1);
        assert!(environment.warnings().is_empty());
    }
}
