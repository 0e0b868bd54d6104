//! Reads `/proc`: the times of the host's cores, and trees of processes.
//!
//! Uses neither control groups nor tracing, which may be absent or need privileges. The kernel
//! scales a process's times by its exact run time and reports them in ticks of 10 ms, so rounds of
//! at least a second are resolved to about one percent.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::ops::Sub;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// Times of all cores together since boot, in seconds, and context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HostTimes {
    /// In programs.
    pub user: f64,
    /// In the kernel, for programs.
    pub system: f64,
    /// In soft interrupts: here the kernel's loopback device receives.
    pub softirq: f64,
    /// In interrupt handlers.
    pub irq: f64,
    /// Taken by the hypervisor: time in which this host was ready to run and could not.
    pub steal: f64,
    /// Idle, waiting for disks included.
    pub idle: f64,
    /// Switches from one task to another.
    pub context_switches: f64,
}

impl HostTimes {
    /// The host's times now.
    ///
    /// # Errors
    ///
    /// When `/proc/stat` cannot be read.
    pub fn now() -> io::Result<HostTimes> {
        parse_stat(&fs::read_to_string("/proc/stat")?)
            .ok_or_else(|| io::Error::other("/proc/stat has no cpu line"))
    }

    /// The time in which cores were not idle.
    pub fn busy(&self) -> f64 {
        self.user + self.system + self.softirq + self.irq
    }
}

/// Bytes of the host's memory that are available to programs (`MemAvailable` of proc_meminfo(5)).
pub fn memory_available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

/// Bytes in the buffers of all TCP sockets of this network namespace (`/proc/net/sockstat`).
pub fn socket_buffers() -> Option<u64> {
    let pages = parse_sockstat(&fs::read_to_string("/proc/net/sockstat").ok()?)?;
    // SAFETY: `sysconf` has no preconditions.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page_bytes).ok()?)
}

/// The memory of one or several processes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Resident pages. A page that several processes map counts fully in each.
    pub resident: u64,
    /// Resident pages. A page that several processes map counts proportionally in each.
    pub proportional: u64,
    /// Page tables.
    pub page_tables: u64,
}

impl ProcessMemory {
    /// The memory of the members of `family`; `None` when the kernel reports none.
    pub fn of(family: &[Process]) -> Option<ProcessMemory> {
        let each = family.iter().filter_map(|process| {
            let read = |name| fs::read_to_string(format!("/proc/{}/{name}", process.pid)).ok();
            parse_memory(&read("smaps_rollup")?, &read("status")?)
        });
        each.reduce(|one, other| ProcessMemory {
            resident: one.resident + other.resident,
            proportional: one.proportional + other.proportional,
            page_tables: one.page_tables + other.page_tables,
        })
    }
}

impl Sub for HostTimes {
    type Output = HostTimes;

    fn sub(self, before: HostTimes) -> HostTimes {
        HostTimes {
            user: self.user - before.user,
            system: self.system - before.system,
            softirq: self.softirq - before.softirq,
            irq: self.irq - before.irq,
            steal: self.steal - before.steal,
            idle: self.idle - before.idle,
            context_switches: self.context_switches - before.context_switches,
        }
    }
}

/// The resources that a set of processes used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Usage {
    /// Seconds in programs.
    pub user: f64,
    /// Seconds in the kernel.
    pub system: f64,
    /// The number of times that a task gave up its core to wait.
    pub switches_voluntary: f64,
    /// The number of times that a task lost its core to another task.
    pub switches_involuntary: f64,
}

impl Usage {
    /// Seconds of CPU.
    pub fn cpu(&self) -> f64 {
        self.user + self.system
    }
}

/// One process, as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its parent's id.
    pub parent: i32,
    /// The process's session.
    pub session: i32,
    /// When it started, in ticks since boot: with `pid`, its identity.
    pub start: u64,
    /// Whether it has ended and is a zombie.
    pub ended: bool,
    user: f64,
    system: f64,
}

/// The resources that a family of processes has used up to one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    user: f64,
    system: f64,
    /// Voluntary and involuntary switches of each thread, by its id.
    switches: HashMap<i32, (f64, f64)>,
}

impl Snapshot {
    /// The resources that the members of `family` have used, with their finished children.
    pub fn of(family: &[Process]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for process in family {
            snapshot.user += process.user;
            snapshot.system += process.system;
            for thread in numbers_in(&format!("/proc/{}/task", process.pid)) {
                let status = format!("/proc/{}/task/{thread}/status", process.pid);
                if let Some(switches) = fs::read_to_string(status)
                    .ok()
                    .as_deref()
                    .and_then(parse_switches)
                {
                    snapshot.switches.insert(thread, switches);
                }
            }
        }
        snapshot
    }

    /// CPU time and switches since `before`. Times include processes that ended in between, because
    /// their parents inherit the times. The switches of threads that ended are lost.
    pub fn since(&self, before: &Snapshot) -> Usage {
        let mut usage = Usage {
            user: (self.user - before.user).max(0.0),
            system: (self.system - before.system).max(0.0),
            ..Usage::default()
        };
        for (thread, (voluntary, involuntary)) in &self.switches {
            let earlier = before.switches.get(thread).copied().unwrap_or_default();
            usage.switches_voluntary += (voluntary - earlier.0).max(0.0);
            usage.switches_involuntary += (involuntary - earlier.1).max(0.0);
        }
        usage
    }
}

/// Every process this one may see.
pub fn processes() -> Vec<Process> {
    numbers_in("/proc")
        .into_iter()
        .filter_map(|pid| parse_process(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        .collect()
}

/// The members of the family of `leader`: its session, and every descendant of a member in any
/// session.
pub fn family(processes: &[Process], leader: i32) -> Vec<Process> {
    let mut members: HashSet<i32> = HashSet::new();
    loop {
        let before = members.len();
        for process in processes {
            let belongs = process.pid == leader
                || process.session == leader
                || members.contains(&process.parent);
            if belongs {
                members.insert(process.pid);
            }
        }
        // Each pass adds at least one generation, so the number of processes limits the passes.
        if members.len() == before {
            break;
        }
    }
    processes
        .iter()
        .filter(|process| members.contains(&process.pid))
        .copied()
        .collect()
}

/// Inodes of the TCP sockets that listen in this network namespace, with their ports.
pub fn listening_sockets() -> HashMap<u64, u16> {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| table.lines().filter_map(parse_listener).collect::<Vec<_>>())
        .collect()
}

/// Inodes of the Unix stream sockets that listen in this network namespace.
pub fn listening_unix_sockets() -> HashSet<u64> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    table.lines().filter_map(parse_unix_listener).collect()
}

/// The inode, if the line of `/proc/net/unix` is of a stream socket that listens: slot, references,
/// protocol, flags, type, state, inode, and the name (`unix_seq_show` in net/unix/af_unix.c).
fn parse_unix_listener(line: &str) -> Option<u64> {
    let fields: Vec<&str> = line.split_ascii_whitespace().take(7).collect();
    let &[_, _, _, flags, kind, _, inode] = &fields[..] else {
        return None;
    };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let kind = i32::from_str_radix(kind, 16).ok()?;
    let is_listener = flags & SO_ACCEPTCON != 0 && kind == libc::SOCK_STREAM;
    is_listener.then(|| inode.parse().ok())?
}

/// `__SO_ACCEPTCON` in include/uapi/linux/net.h.
const SO_ACCEPTCON: u32 = 1 << 16;

/// Inodes of the sockets a process holds.
pub fn socket_inodes(pid: i32) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let target = fs::read_link(entry.ok()?.path()).ok()?;
            target
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')?
                .parse()
                .ok()
        })
        .collect()
}

/// The entries of a directory whose names are numbers.
fn numbers_in(directory: &str) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// Ticks per second, the unit of all times in `/proc`.
fn ticks_per_second() -> f64 {
    static TICKS: OnceLock<f64> = OnceLock::new();
    *TICKS.get_or_init(|| {
        // SAFETY: `sysconf` has no preconditions.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        if ticks > 0 { ticks as f64 } else { 100.0 }
    })
}

fn parse_stat(text: &str) -> Option<HostTimes> {
    let cpu: Vec<f64> = text
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))?
        .split_whitespace()
        .map(|word| word.parse().unwrap_or(0.0) / ticks_per_second())
        .collect();
    let at = |index: usize| cpu.get(index).copied().unwrap_or(0.0);
    let context_switches = text
        .lines()
        .find_map(|line| line.strip_prefix("ctxt "))
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0.0);
    // proc(5): user nice system idle iowait irq softirq steal; guest time is within user.
    Some(HostTimes {
        user: at(0) + at(1),
        system: at(2),
        idle: at(3) + at(4),
        irq: at(5),
        softirq: at(6),
        steal: at(7),
        context_switches,
    })
}

pub(crate) fn parse_process(text: &str) -> Option<Process> {
    // The name in parentheses may contain any character, even a parenthesis.
    let (pid, rest) = text.split_once(" (")?;
    let fields: Vec<&str> = rest
        .get(rest.rfind(')')? + 1..)?
        .split_whitespace()
        .collect();
    // proc(5) counts from one and begins with pid and name; `fields` begins with the third field,
    // state.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let seconds = |field: usize| Some(number(field)? as f64 / ticks_per_second());
    Some(Process {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        ended: matches!(*fields.first()?, "Z" | "X"),
        user: seconds(14)? + seconds(16)?,
        system: seconds(15)? + seconds(17)?,
        start: number(22)?,
    })
}

/// The number of pages in the TCP line.
fn parse_sockstat(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"))?;
    let mut words = line.split_whitespace().skip_while(|word| *word != "mem");
    words.nth(1)?.parse().ok()
}

fn parse_memory(rollup: &str, status: &str) -> Option<ProcessMemory> {
    let bytes = |text: &str, name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes << 10)
    };
    Some(ProcessMemory {
        resident: bytes(rollup, "Rss:")?,
        proportional: bytes(rollup, "Pss:")?,
        page_tables: bytes(status, "VmPTE:")?,
    })
}

fn parse_switches(status: &str) -> Option<(f64, f64)> {
    let count = |label: &str| -> Option<f64> {
        status
            .lines()
            .find_map(|line| line.strip_prefix(label))?
            .trim()
            .parse()
            .ok()
    };
    Some((
        count("voluntary_ctxt_switches:")?,
        count("nonvoluntary_ctxt_switches:")?,
    ))
}

/// Reads a line of `/proc/net/tcp` or `tcp6`: the inode and port of a listening socket.
fn parse_listener(line: &str) -> Option<(u64, u16)> {
    const STATE_LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    if *fields.get(3)? != STATE_LISTEN {
        return None;
    }
    let port = u16::from_str_radix(fields[1].rsplit_once(':')?.1, 16).ok()?;
    Some((fields.get(9)?.parse().ok()?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, session: i32) -> Process {
        Process {
            pid,
            parent,
            session,
            start: 0,
            ended: false,
            user: 0.0,
            system: 0.0,
        }
    }

    #[test]
    fn cpu_line_is_read_in_the_order_of_the_manual() {
        let text = "cpu  100 200 300 400 500 600 700 800 0 0\ncpu0 1 1 1 1\nctxt 12345\n";
        let times = parse_stat(text).expect("a cpu line");
        let tick = 1.0 / ticks_per_second();
        assert_eq!(times.user, 300.0 * tick);
        assert_eq!(times.idle, 900.0 * tick);
        assert_eq!(
            (times.irq, times.softirq, times.steal),
            (600.0 * tick, 700.0 * tick, 800.0 * tick)
        );
        assert_eq!(times.context_switches, 12345.0);
        assert_eq!(times.busy(), (300.0 + 300.0 + 600.0 + 700.0) * tick);
    }

    #[test]
    fn memory_is_read_in_kilobytes_and_in_pages() {
        let rollup = "55d8-7ffd ---p 00000000 00:00 0 [rollup]\nRss:  2048 kB\nPss:  1024 kB\n\
            Pss_Dirty:  7 kB\n";
        let status = "VmRSS:\t    2048 kB\nVmPTE:\t      64 kB\n";
        let memory = parse_memory(rollup, status).expect("three numbers");
        let kilobytes = [memory.resident, memory.proportional, memory.page_tables];
        assert_eq!(kilobytes.map(|bytes| bytes >> 10), [2048, 1024, 64]);
        assert_eq!(parse_memory(rollup, ""), None);
        let sockstat = "sockets: used 16\nTCP: inuse 2 orphan 0 tw 2 alloc 2 mem 12\n\
            UDP: inuse 0 mem 5\n";
        assert_eq!(parse_sockstat(sockstat), Some(12));
        assert_eq!(parse_sockstat("UDP: inuse 0 mem 5"), None);
    }

    #[test]
    fn a_name_may_hold_parentheses_and_spaces() {
        let text = "42 (a) b (c) S 7 41 40 0 -1 0 0 0 0 0 11 12 13 14 20 0 1 0 999 0 0";
        let process = parse_process(text).expect("a process");
        assert_eq!((process.pid, process.parent, process.session), (42, 7, 40));
        let tick = 1.0 / ticks_per_second();
        assert_eq!(process.user, (11.0 + 13.0) * tick);
        assert_eq!(process.system, (12.0 + 14.0) * tick);
        assert_eq!(process.start, 999);
    }

    #[test]
    fn a_family_is_a_session_and_all_descendants() {
        let all = [
            process(9, 5, 9), // A daemon's grandchild that began its own session, listed first.
            process(1, 0, 1),
            process(3, 1, 3),
            process(4, 3, 3),
            process(5, 1, 3), // Its parent ended; the session remains.
            process(6, 1, 6),
        ];
        let mut members: Vec<i32> = family(&all, 3).iter().map(|process| process.pid).collect();
        members.sort_unstable();
        assert_eq!(members, [3, 4, 5, 9]);
    }

    #[test]
    fn only_listeners_count() {
        let listener = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 \
            00:00000000 00000000     0        0 4242 1 0";
        assert_eq!(parse_listener(listener), Some((4242, 8080)));
        assert_eq!(parse_listener(&listener.replace(" 0A ", " 01 ")), None);
        assert_eq!(parse_listener("  sl  local_address rem_address   st"), None);
    }

    #[test]
    fn usage_is_the_difference_of_two_snapshots() {
        let before = Snapshot {
            user: 1.0,
            system: 1.0,
            switches: [(7, (10.0, 1.0))].into(),
        };
        let after = Snapshot {
            user: 3.0,
            system: 1.5,
            switches: [(7, (15.0, 1.0)), (8, (2.0, 3.0))].into(),
        };
        let usage = after.since(&before);
        assert_eq!(usage.cpu(), 2.5);
        assert_eq!(
            (usage.switches_voluntary, usage.switches_involuntary),
            (7.0, 3.0)
        );
    }

    #[test]
    fn this_process_is_among_its_own_family() {
        let me = std::process::id() as i32;
        let found = family(&processes(), me);
        assert!(found.iter().any(|process| process.pid == me));
        assert!(!Snapshot::of(&found).switches.is_empty());
    }
}
