//! Child processes that cannot outlive their test, and waits that cannot last.
//!
//! A test ends normally or by panic; in both cases every process it started is gone afterwards.
//! Each [`Running`] leads its own process group, so that workers and forked children end with it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::evidence;

/// Longer than any step of any test takes on a loaded two-core machine.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Copies a program that will be executed.
///
/// Another process writes the copy. If this process wrote it, children that other threads fork
/// meanwhile would have it open for writing, and it could not be executed (`ETXTBSY`).
///
/// # Panics
/// If there is no copy afterwards.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").args([from, to]).status();
    let copied = copied.is_ok_and(|status| status.success());
    assert!(copied, "no copy at {}", to.display());
}

/// Asks `ready` again and again until it says yes or `time_limit` is over; says which. The time in
/// which the host stops this process does not count.
pub fn wait_until(time_limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
    /// More than a look and the sleep behind it take, as a rule.
    const LOOK_MAX: Duration = Duration::from_secs(1);
    let (mut waited, mut last) = (Duration::ZERO, Instant::now());
    while !ready() {
        if waited > time_limit {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
        let now = Instant::now();
        waited += (now - last).min(LOOK_MAX);
        last = now;
    }
    true
}

/// Waits for the end of a child.
///
/// # Panics
/// When it does not end in time; then it is killed.
pub fn end_of(child: &mut Child, time_limit: Duration) -> ExitStatus {
    let mut status = None;
    let has_ended = wait_until(time_limit, || {
        status = child.try_wait().expect("the child is ours to wait for");
        status.is_some()
    });
    if !has_ended {
        let places = whereabouts(child.id());
        // An error means that it has just ended.
        let _ = child.kill();
        panic!("process {} does not end:\n{places}", child.id());
    }
    status.expect("it has ended")
}

/// A child process with its output in files; killed, with its process group, when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    stdout: PathBuf,
    stderr: PathBuf,
    status: Option<ExitStatus>,
}

impl Running {
    /// Starts `command` in its own process group, output going to `NAME.out` and `NAME.err` in
    /// `dir`.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn start(mut command: Command, name: &str, dir: &Path) -> Running {
        command.stdin(Stdio::null());
        Running::start_fed(command, name, dir)
    }

    /// As [`Running::start`], with the standard input that `command` has been given.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn start_fed(mut command: Command, name: &str, dir: &Path) -> Running {
        let (stdout, stderr) = (
            dir.join(format!("{name}.out")),
            dir.join(format!("{name}.err")),
        );
        let create = |path| File::create(path).expect("the scratch directory is writable");
        command
            .stdout(create(&stdout))
            .stderr(create(&stderr))
            .process_group(0);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Running {
            child,
            name: name.to_owned(),
            stdout,
            stderr,
            status: None,
        }
    }

    /// The process id, which is also its process group's.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has ended, and how.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self
                .child
                .try_wait()
                .expect("the child is ours to wait for");
        }
        self.status
    }

    /// Waits at most `time_limit` for the process to end by itself.
    pub fn wait(&mut self, time_limit: Duration) -> Option<ExitStatus> {
        wait_until(time_limit, || self.ended().is_some());
        self.status
    }

    /// Waits for a successful end and returns what the process wrote to its standard output.
    ///
    /// # Panics
    /// When the process does not end in time, or ends badly; with its output and its wait channel.
    pub fn success(mut self, time_limit: Duration) -> String {
        match self.wait(time_limit) {
            Some(status) if status.success() => self.stdout(),
            Some(status) => panic!("{} ended with {status}\n{}", self.name, self.outputs()),
            None => panic!(
                "{} is stuck in {}\n{}{}",
                self.name,
                self.whereabouts(),
                self.evidence(),
                self.outputs()
            ),
        }
    }

    /// Sends `signal` to the process alone.
    pub fn signal(&self, signal: i32) {
        if self.status.is_none() {
            // SAFETY: kill takes no pointers. The child has not been reaped while `status` is
            // `None`, so the number is still this process's.
            unsafe { libc::kill(self.child.id().cast_signed(), signal) };
        }
    }

    /// Asks the process to end, then insists; returns how it ended.
    pub fn stop(&mut self) -> Option<ExitStatus> {
        self.signal(libc::SIGTERM);
        if self.wait(Duration::from_secs(10)).is_none() {
            self.kill_group();
        }
        self.wait(Duration::from_secs(10))
    }

    /// The process's standard output so far.
    pub fn stdout(&self) -> String {
        text(&self.stdout)
    }

    /// The process's standard error so far.
    pub fn stderr(&self) -> String {
        text(&self.stderr)
    }

    /// Both outputs, labelled, for a failure message.
    pub fn outputs(&self) -> String {
        let (name, out, err) = (&self.name, self.stdout(), self.stderr());
        format!(
            "--- {name} stdout\n{}--- {name} stderr\n{}",
            last_lines(&out),
            last_lines(&err)
        )
    }

    /// Where the process's threads wait in the kernel: the first question about a stuck one.
    pub fn whereabouts(&self) -> String {
        whereabouts(self.child.id())
    }

    /// The kernel's information about the process and its group.
    pub fn evidence(&self) -> String {
        evidence::of_group(self.pid())
    }

    fn kill_group(&self) {
        kill_group(self.child.id());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill_group();
        if self.status.is_none() {
            let _ = self.child.wait();
        }
    }
}

/// [`Command::output`] with a limit.
pub trait OutputInTime {
    /// Like [`Command::output`], for a command without standard input.
    ///
    /// # Errors
    /// As [`Command::output`].
    ///
    /// # Panics
    /// When the command does not end in time, or a process that it has started keeps one of its
    /// outputs open; then all of them are killed.
    fn output_in_time(&mut self) -> io::Result<Output>;
}

impl OutputInTime for Command {
    fn output_in_time(&mut self) -> io::Result<Output> {
        self.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = self.stderr(Stdio::piped()).process_group(0).spawn()?;
        let pid = child.id();
        let (tell, told) = mpsc::channel();
        // It ends when the command does, or is killed.
        thread::spawn(move || tell.send(child.wait_with_output()));
        let mut output = None;
        let has_ended = wait_until(TIME_LIMIT, || {
            output = told.recv_timeout(Duration::from_millis(100)).ok();
            output.is_some()
        });
        if !has_ended {
            let places = evidence::of_group(pid);
            kill_group(pid);
            panic!("{self:?} does not end:\n{places}");
        }
        output.expect("it has ended")
    }
}

fn kill_group(leader: u32) {
    // SAFETY: kill takes no pointers. The group is the one that this child was made leader of; it
    // cannot have been given to anyone else while one of its members lives, and if none does the
    // call fails harmlessly.
    unsafe { libc::kill(-leader.cast_signed(), libc::SIGKILL) };
}

/// Runs `command` to its end, bounded, and returns its standard output.
///
/// # Panics
/// As [`Running::success`].
pub fn output(command: Command, name: &str, dir: &Path) -> String {
    Running::start(command, name, dir).success(TIME_LIMIT)
}

/// The costs of a process; zeroes when it has ended.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// KiB of memory; of pages that several processes have, each has its share.
    pub proportional: u64,
    /// KiB of page tables.
    pub page_tables: u64,
    /// The number.
    pub mappings: u64,
    /// The number that are open.
    pub descriptors: u64,
}

impl Cost {
    /// That of this process, from proc(5).
    pub fn of(pid: u32) -> Cost {
        let proc = format!("/proc/{pid}");
        let proc = Path::new(&proc);
        let maps = fs::read_to_string(proc.join("maps")).unwrap_or_default();
        let descriptors = fs::read_dir(proc.join("fd"));
        Cost {
            proportional: number_of(&proc.join("smaps_rollup"), "Pss:"),
            page_tables: number_of(&proc.join("status"), "VmPTE:"),
            mappings: maps.lines().count() as u64,
            descriptors: descriptors.map_or(0, Iterator::count) as u64,
        }
    }
}

/// The number after a name in a file of /proc.
fn number_of(file: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

/// The threads of a process: a line for each, with its name, its state, the number of its system
/// call and, for root, its kernel stack from the innermost function on.
pub fn whereabouts(pid: u32) -> String {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return "nowhere (it is gone)".into();
    };
    let places = tasks.flatten().map(|task| {
        let of = |name: &str| text(&task.path().join(name));
        let status = of("status");
        let state = status.lines().find_map(|it| it.strip_prefix("State:"));
        let call = of("syscall");
        format!(
            "{} ({}), system call {}: {}",
            of("comm").trim(),
            state.unwrap_or("?").trim(),
            call.split_whitespace().next().unwrap_or("?"),
            functions(&of("stack")).unwrap_or_else(|| of("wchan"))
        )
    });
    places.collect::<Vec<_>>().join("\n")
}

/// The functions in a stack of the kernel's (proc(5)).
fn functions(stack: &str) -> Option<String> {
    let names = stack.lines().filter_map(|line| {
        let function = line.split_whitespace().nth(1)?;
        function.split('+').next()
    });
    let names: Vec<&str> = names.collect();
    (!names.is_empty()).then(|| names.join(" < "))
}

/// The likely causes when a process is late: how busy the host is, and all threads that wait
/// in the kernel and cannot be interrupted.
pub fn host_whereabouts() -> String {
    let mut said = format!("load {}", text(Path::new("/proc/loadavg")));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|it| it.file_name().to_str()?.parse::<u32>().ok());
    for pid in numbers {
        let threads = whereabouts(pid);
        for line in threads.lines().filter(|it| it.contains("(D ")) {
            said += &format!("{pid}: {line}\n");
        }
    }
    said
}

/// The end of a file that a program has written.
pub fn tail(file: &Path) -> String {
    last_lines(&text(file))
}

/// Says in words how a process ended.
pub fn ending(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit {}", status.code().unwrap_or(-1)),
    }
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path) {
        let _ = file.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last part of a long text: failures are at the end.
fn last_lines(text: &str) -> String {
    const LINES_MAX: usize = 60;
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(LINES_MAX);
    lines[from..]
        .iter()
        .map(|line| format!("{line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_a_command_and_of_its_children_are_returned() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo no >&2; (echo two) & exit 3"]);
        let output = command.output_in_time().expect("a shell");
        assert_eq!(output.stdout, b"one\ntwo\n");
        assert_eq!(
            (output.stderr, output.status.code()),
            (b"no\n".to_vec(), Some(3))
        );
    }
}
