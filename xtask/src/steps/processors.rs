//! Processor time: of a command, and of the whole host.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// The time of all processors together since the host started, in ticks of `proc_stat(5)`.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    all: u64,
    idle: u64,
}

impl Ticks {
    pub(super) fn now() -> Ticks {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Ticks::parse(&stat)
    }

    /// From the first line of `/proc/stat`: `cpu USER NICE SYSTEM IDLE IOWAIT …`.
    fn parse(stat: &str) -> Ticks {
        let line = stat.lines().next().unwrap_or_default();
        let fields = line.split_whitespace().skip(1).take(8);
        let fields: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
        Ticks {
            all: fields.iter().sum(),
            idle: fields.iter().skip(3).take(2).sum(),
        }
    }

    /// The share of the time since `earlier` in which the processors had work.
    pub(super) fn busy_share_since(&self, earlier: &Ticks) -> f64 {
        let all = self.all.saturating_sub(earlier.all).max(1);
        let idle = self.idle.saturating_sub(earlier.idle);
        1.0 - idle as f64 / all as f64
    }
}

/// Waits for the end of a process. Returns whether the process succeeded, and the processor time of
/// the process and all its descendants for which their parents waited.
pub(super) fn wait(child: &Child) -> (bool, Duration) {
    let pid = child.id() as libc::pid_t;
    let mut status = 0;
    // SAFETY: all zeroes are a value of this type.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places are live. Nobody else waits for this child, so its number is not reused.
    while unsafe { libc::wait4(pid, &mut status, 0, &mut usage) } < 0 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return (false, Duration::ZERO);
        }
    }
    let time = |time: libc::timeval| {
        Duration::new(time.tv_sec as u64, 0) + Duration::from_micros(time.tv_usec as u64)
    };
    let computed = time(usage.ru_utime) + time(usage.ru_stime);
    (ExitStatus::from_raw(status).success(), computed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_processors_are_those_that_neither_idle_nor_wait_for_devices() {
        let before = Ticks::parse("cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 5 0 5 50 0 0 0 0 0 0\n");
        let now = Ticks::parse("cpu  60 5 20 130 5 0 0 0 7 0\n");
        assert_eq!(now.busy_share_since(&before), 0.65);
    }
}
