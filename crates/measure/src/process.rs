//! Starts, waits for and ends the programs of a comparison, each with its descendants.
//!
//! Every program begins its own session, so that its descendants can be found. It dies with this
//! process, so that nothing outlives an interrupted comparison. Its output goes to a file, so that
//! an error message can quote it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cpus;
use crate::procfs::{self, Process, Usage};
use crate::syscalls::{Counter, Tracepoint};

/// A program to start, and its surroundings.
pub struct Launch<'a> {
    /// The program and its arguments.
    pub words: &'a [String],
    /// The cores it may use; `None` for all.
    pub cores: Option<&'a [usize]>,
    /// The base name of its output files: `NAME.out` and `NAME.err`.
    pub output: PathBuf,
    /// The tracepoint that counts its system calls, if they are counted.
    pub tracepoint: Option<Tracepoint>,
}

/// A running program with its descendants; they are ended when this value is dropped.
pub struct Program {
    pid: libc::pid_t,
    pidfd: OwnedFd,
    output: PathBuf,
    counter: Option<Counter>,
    started: Instant,
    ended: Option<Ended>,
}

/// The end of a program.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The status of `wait(2)`.
    status: libc::c_int,
    /// From its start to its end.
    pub elapsed: Duration,
    /// The resources that the program and its finished descendants used.
    pub usage: Usage,
}

impl Ended {
    /// Whether it exited with zero.
    pub fn succeeded(&self) -> bool {
        libc::WIFEXITED(self.status) && libc::WEXITSTATUS(self.status) == 0
    }

    /// The status in words: "exited with status 1", "was killed by signal 11".
    pub fn words(&self) -> String {
        if libc::WIFSIGNALED(self.status) {
            format!("was killed by signal {}", libc::WTERMSIG(self.status))
        } else {
            format!("exited with status {}", libc::WEXITSTATUS(self.status))
        }
    }
}

impl Program {
    /// Starts a program.
    ///
    /// # Errors
    ///
    /// When it cannot be executed, or its output files cannot be created.
    pub fn start(launch: &Launch<'_>) -> io::Result<Program> {
        let mut command = Command::new(&launch.words[0]);
        command
            .args(&launch.words[1..])
            .stdin(Stdio::null())
            .stdout(File::create(launch.output.with_extension("out"))?)
            .stderr(File::create(launch.output.with_extension("err"))?);
        let cores = launch.cores.map(cpus::set_of);
        let parent = std::process::id() as libc::pid_t;
        let gate = launch.tracepoint.map(Gate::new).transpose()?;
        let passage = gate.as_ref().map(Gate::passage);
        let prepare = move || {
            // SAFETY: setsid, prctl and getppid touch no memory and are async-signal-safe, as a
            // child between fork and exec needs; it leads no process group, so setsid succeeds.
            unsafe {
                libc::setsid();
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() != parent {
                    return Err(io::ErrorKind::Interrupted.into());
                }
            }
            if let Some(set) = &cores {
                // SAFETY: `set` is a complete cpu_set_t and its size is given.
                let result = unsafe { libc::sched_setaffinity(0, mem::size_of_val(set), set) };
                if result != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            passage.map_or(Ok(()), Passage::pass)
        };
        // SAFETY: the closure only makes async-signal-safe system calls and allocates nothing.
        unsafe { command.pre_exec(prepare) };
        let started = Instant::now();
        // The child is waited for by its id below: std's own wait would not report its usage.
        let (child, counter) = match gate {
            None => (command.spawn()?, None),
            Some(gate) => gate.spawn(&mut command)?,
        };
        let pid = child.id() as libc::pid_t;
        // SAFETY: pidfd_open takes plain integers; the child is not reaped yet, so its id is its
        // own.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if pidfd < 0 {
            let error = io::Error::last_os_error();
            signal(-pid, libc::SIGKILL);
            reap(pid, true);
            return Err(error);
        }
        // SAFETY: the call returned a new descriptor that nothing else owns.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as i32) };
        let output = launch.output.clone();
        Ok(Program {
            pid,
            pidfd,
            output,
            counter,
            started,
            ended: None,
        })
    }

    /// Waits until the program ends, at most until `deadline`. `None` when it is still running
    /// then, or when the comparison was interrupted.
    pub fn wait_until(&mut self, deadline: Instant) -> Option<Ended> {
        while self.ended.is_none() && !interrupted() {
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.poll_end(left) && left.is_zero() {
                break;
            }
        }
        self.ended
    }

    /// Ends the program and its descendants: first with SIGTERM, after a while with SIGKILL.
    pub fn stop(&mut self) -> Option<Ended> {
        let family = self.family();
        signal(-self.pid, libc::SIGTERM);
        let deadline = Instant::now() + TERM_TIMEOUT;
        while self.ended.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.poll_end(left) && left.is_zero() {
                break;
            }
        }
        while family.iter().any(is_alive) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        // The family may have grown since.
        let rest: Vec<Process> = self
            .family()
            .into_iter()
            .chain(family.iter().copied())
            .filter(is_alive)
            .collect();
        for member in &rest {
            signal(member.pid, libc::SIGKILL);
        }
        if self.ended.is_none() {
            signal(-self.pid, libc::SIGKILL);
            while !self.poll_end(Duration::from_secs(1)) {}
        }
        // Only a process that is stuck in the kernel is still alive then; waiting longer would not
        // help.
        let deadline = Instant::now() + KILL_TIMEOUT;
        while rest.iter().any(is_alive) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        // Orphans of the family are our children now (we are their subreaper): none must stay a
        // zombie.
        for member in family
            .iter()
            .chain(&rest)
            .filter(|member| member.pid != self.pid)
        {
            reap(member.pid, false);
        }
        self.ended
    }

    /// The process number, which is also the number of its session.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The program's living family.
    pub fn family(&self) -> Vec<Process> {
        procfs::family(&procfs::processes(), self.pid)
    }

    /// The number of system calls of the program and its descendants so far, if they are counted.
    pub fn syscalls(&self) -> Option<u64> {
        self.counter.as_ref()?.read().ok()
    }

    /// The program's end, if it has ended.
    pub fn poll(&mut self) -> Option<Ended> {
        self.poll_end(Duration::ZERO);
        self.ended
    }

    /// The base name of output files beside this program's own, for a program of another role.
    pub(crate) fn output_beside(&self, role: &str) -> PathBuf {
        self.output.with_file_name(role)
    }

    /// The program's standard output.
    pub fn output(&self) -> String {
        read_lossy(&self.output.with_extension("out"))
    }

    /// The last lines of what it wrote to both streams, for an error message.
    pub fn last_words(&self) -> String {
        let error = read_lossy(&self.output.with_extension("err"));
        let text = if error.trim().is_empty() {
            self.output()
        } else {
            error
        };
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let tail = &lines[lines.len().saturating_sub(LAST_LINES)..];
        if tail.is_empty() {
            "it printed nothing".to_owned()
        } else {
            tail.join("\n  ")
        }
    }

    /// Waits at most `timeout` for the end and records it; returns whether the program has ended.
    fn poll_end(&mut self, timeout: Duration) -> bool {
        if self.ended.is_some() {
            return true;
        }
        let mut entry = libc::pollfd {
            fd: self.pidfd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let milliseconds = timeout.as_micros().div_ceil(1000).min(POLL_MS_MAX) as libc::c_int;
        // SAFETY: `entry` is one valid pollfd. An interruption by a signal reads as "not yet".
        let ready = unsafe { libc::poll(&mut entry, 1, milliseconds) };
        if ready <= 0 {
            return false;
        }
        let elapsed = self.started.elapsed();
        if let Some((status, usage)) = reap(self.pid, true) {
            self.ended = Some(Ended {
                status,
                elapsed,
                usage,
            });
        }
        self.ended.is_some()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.ended.is_none() {
            self.stop();
        }
    }
}

/// Stops a child between fork and exec until its counter is open.
struct Gate {
    tracepoint: Tracepoint,
    announce: (OwnedFd, OwnedFd),
    admit: (OwnedFd, OwnedFd),
}

/// The child's side of a [`Gate`].
#[derive(Clone, Copy)]
struct Passage {
    announce: libc::c_int,
    admit: libc::c_int,
}

impl Gate {
    fn new(tracepoint: Tracepoint) -> io::Result<Gate> {
        Ok(Gate {
            tracepoint,
            announce: pipe()?,
            admit: pipe()?,
        })
    }

    fn passage(&self) -> Passage {
        Passage {
            announce: self.announce.1.as_raw_fd(),
            admit: self.admit.0.as_raw_fd(),
        }
    }

    /// Spawns `command`, whose preparation ends with [`Passage::pass`], and opens its counter.
    fn spawn(self, command: &mut Command) -> io::Result<(std::process::Child, Option<Counter>)> {
        let Gate {
            tracepoint,
            announce,
            admit,
        } = self;
        let mut announced = File::from(announce.0);
        let mut admitting = File::from(admit.1);
        // `spawn` returns after exec, so another thread serves the gate.
        thread::scope(|scope| {
            let keeper = scope.spawn(move || -> io::Result<Counter> {
                let mut pid = [0u8; 4];
                announced.read_exact(&mut pid)?;
                let counter = Counter::open(tracepoint, libc::pid_t::from_ne_bytes(pid));
                admitting.write_all(&[1])?;
                counter
            });
            let child = command.spawn();
            // If fork itself failed, closing this end makes the keeper read end-of-file.
            drop(announce.1);
            let counter = keeper
                .join()
                .map_err(|_| io::Error::other("the keeper failed"));
            Ok((child?, counter?.ok()))
        })
    }
}

impl Passage {
    /// Runs in the child: sends its process number and waits for permission to continue.
    fn pass(self) -> io::Result<()> {
        // SAFETY: getpid has no preconditions.
        let pid = unsafe { libc::getpid() }.to_ne_bytes();
        // SAFETY: `pid` is four readable bytes; the descriptor was inherited from the parent.
        if unsafe { libc::write(self.announce, pid.as_ptr().cast(), pid.len()) } != 4 {
            return Err(io::Error::last_os_error());
        }
        let mut byte = 0u8;
        // SAFETY: `byte` is one writable byte; the descriptor was inherited from the parent.
        match unsafe { libc::read(self.admit, (&raw mut byte).cast(), 1) } {
            1 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Makes this process the parent of its programs' orphans, and turns SIGINT, SIGTERM and SIGHUP
/// into a flag, so that an interrupted comparison leaves no process behind. A SIGHUP that nohup(1)
/// has ignored stays ignored.
pub fn take_charge() {
    extern "C" fn note(_signal: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    // SAFETY: prctl with this option only sets an attribute of our process.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all zeros is a valid sigaction: no flags (so waiting calls return), empty mask.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        // SAFETY: the kernel writes the present action to a valid one.
        unsafe { libc::sigaction(number, std::ptr::null(), &mut action) };
        if number == libc::SIGHUP && action.sa_sigaction == libc::SIG_IGN {
            continue;
        }
        // SAFETY: as above.
        action = unsafe { mem::zeroed() };
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::sigaction(number, &action, std::ptr::null_mut()) };
    }
}

/// Whether the user asked to stop.
pub fn interrupted() -> bool {
    // Relaxed: the flag stands for itself and publishes nothing else.
    INTERRUPTED.load(Ordering::Relaxed)
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn is_alive(process: &Process) -> bool {
    let path = format!("/proc/{}/stat", process.pid);
    let Ok(text) = fs::read_to_string(path) else {
        return false;
    };
    // The start time distinguishes the process from a later one with the same id.
    procfs::parse_process(&text).is_some_and(|now| now.start == process.start && !now.ended)
}

fn signal(target: libc::pid_t, number: libc::c_int) {
    // SAFETY: `kill` touches no memory; a target that is gone already needs no signal.
    unsafe { libc::kill(target, number) };
}

/// Reaps an ended child and returns its usage; `None` when it is not our child or is still running.
fn reap(pid: libc::pid_t, wait: bool) -> Option<(libc::c_int, Usage)> {
    let mut status = 0;
    // SAFETY: all zeros is a valid rusage.
    let mut rusage: libc::rusage = unsafe { mem::zeroed() };
    let options = if wait { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: both out-pointers are valid for the call.
        let result = unsafe { libc::wait4(pid, &mut status, options, &mut rusage) };
        if result == pid {
            break;
        }
        if result == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let usage = Usage {
        user: seconds(rusage.ru_utime),
        system: seconds(rusage.ru_stime),
        switches_voluntary: rusage.ru_nvcsw as f64,
        switches_involuntary: rusage.ru_nivcsw as f64,
    };
    Some((status, usage))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned two new descriptors that nothing else owns.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

fn read_lossy(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // The output of a program that prints without end is cut off; no tool here prints a tenth
        // of this.
        let _ = file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The time that a program may take to end by itself: PostgreSQL's shutdown needs a second.
const TERM_TIMEOUT: Duration = Duration::from_secs(4);

/// The time that the kernel may take to end a killed process.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest single wait, after which the interruption flag is checked again.
const POLL_MS_MAX: u128 = 500;

/// The part of a program's output that is read.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// The number of lines of output that an error message quotes.
const LAST_LINES: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::{TempDir, tempdir};

    /// Starts a shell whose output goes to `folder`.
    fn launch(folder: &TempDir, script: &str) -> Program {
        let words = ["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let launch = Launch {
            words: &words,
            cores: None,
            output: folder.path().join("shell"),
            tracepoint: None,
        };
        Program::start(&launch).expect("a shell")
    }

    fn finish(program: &mut Program) -> Ended {
        program
            .wait_until(Instant::now() + Duration::from_secs(20))
            .expect("ends by itself")
    }

    #[test]
    fn output_and_status_are_kept() {
        let folder = tempdir().expect("a folder");
        let mut program = launch(&folder, "echo out; echo err >&2; exit 3");
        let ended = finish(&mut program);
        assert!(!ended.succeeded());
        assert_eq!(ended.words(), "exited with status 3");
        assert_eq!(program.output(), "out\n");
        assert_eq!(program.last_words(), "err");
    }

    #[test]
    fn stopping_ends_the_whole_family() {
        take_charge();
        // A grandchild in its own session, which ignores SIGTERM.
        let script = "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo ready; wait";
        let folder = tempdir().expect("a folder");
        let mut program = launch(&folder, script);
        while !program.output().contains("ready") || program.family().len() < 2 {
            thread::yield_now();
        }
        let family = program.family();
        let ended = program.stop().expect("ended");
        assert_eq!(ended.words(), "was killed by signal 15");
        assert!(family.iter().all(|member| !is_alive(member)), "{family:?}");
    }

    #[test]
    fn usage_includes_finished_children() {
        let folder = tempdir().expect("a folder");
        let mut program = launch(
            &folder,
            "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'",
        );
        let ended = finish(&mut program);
        assert!(ended.usage.cpu() > 0.0);
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let folder = tempdir().expect("a folder");
        let words = ["/nonexistent/program".to_owned()];
        let launch = Launch {
            words: &words,
            cores: None,
            output: folder.path().join("program"),
            tracepoint: None,
        };
        let error = Program::start(&launch).err().expect("nothing to execute");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn system_calls_are_counted_where_allowed() {
        let tracepoint = match Tracepoint::find() {
            Ok(tracepoint) => tracepoint,
            Err(reason) => {
                eprintln!("SKIPPED: {reason}");
                return;
            }
        };
        let folder = tempdir().expect("a folder");
        // dd makes one read and one write for each of 5000 blocks, in a grandchild of ours.
        let script = "dd if=/dev/zero of=/dev/null bs=1 count=5000 2>/dev/null; true";
        let words = ["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let launch = Launch {
            words: &words,
            cores: None,
            output: folder.path().join("program"),
            tracepoint: Some(tracepoint),
        };
        let mut program = Program::start(&launch).expect("a shell");
        assert!(finish(&mut program).succeeded());
        let calls = program.syscalls().expect("counted");
        assert!((10_000..20_000).contains(&calls), "{calls}");
    }
}
