//! A Debian 12 that is booted for the tour: systemd is the first process of new namespaces.

use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::{root, target};

/// Longer than the start takes on a busy host.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// Longer than any command takes.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The prefix of a line that follows the output of a command, with its exit status.
const END: &str = "@@@ ended with ";

/// A running system. It ends when this is dropped, or when this process ends for any reason.
#[derive(Debug)]
pub(super) struct Machine {
    /// `scripts/boot.sh`, and then `unshare`, which waits for the first process.
    boot: Child,
    /// The first process, by this host's process numbers.
    init: u32,
}

impl Machine {
    /// The reason why this host cannot boot a system, if it cannot.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn can_boot() -> Result<(), String> {
        let output = boot("--can".as_ref())?.output();
        let output = output.map_err(|error| format!("cannot start scripts/boot.sh: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            Ok(())
        } else {
            Err(said.trim().replace('\n', "; "))
        }
    }

    /// Boots the system in this directory, which is not changed, and waits until it has started.
    ///
    /// # Errors
    /// The step that failed, and why.
    pub(super) fn boot(directory: &Path) -> Result<Machine, String> {
        let mut command = boot(directory)?;
        let mut errors = tempfile::tempfile().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // `unshare` also writes there when the system has been ended.
        command.stderr(errors.try_clone().map_err(|error| error.to_string())?);
        let child = command.spawn();
        let mut machine = Machine {
            boot: child.map_err(|error| format!("cannot start scripts/boot.sh: {error}"))?,
            init: 0,
        };
        let begun = Instant::now();
        let mut state = String::new();
        while begun.elapsed() < BOOT_LIMIT {
            std::thread::sleep(LOOK_EVERY);
            if let Ok(Some(status)) = machine.boot.try_wait() {
                let mut said = String::new();
                let _ = errors.rewind();
                let _ = errors.read_to_string(&mut said);
                return Err(format!("scripts/boot.sh: {status}: {said}"));
            }
            // Until then, these are commands of the script.
            let child = child_of(machine.boot.id());
            let Some(init) = child.filter(|child| name_of(*child) == "systemd") else {
                continue;
            };
            machine.init = init;
            let output = machine.within(&["systemctl", "is-system-running"]).output();
            let output = output.map_err(|error| error.to_string())?;
            state = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if matches!(&*state, "running" | "degraded") {
                return Ok(machine);
            }
        }
        Err(format!("the system has not started: {state}"))
    }

    /// A command in the system, as root.
    pub(super) fn within(&self, words: &[&str]) -> Command {
        let mut command = enter(self.init, "--all");
        command.args(["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]);
        command.args(["HOME=/root", "LC_ALL=C.UTF-8"]);
        command.args(["DEBIAN_FRONTEND=noninteractive"]).args(words);
        command.stdin(Stdio::null());
        command
    }

    /// The output of a command that succeeds.
    ///
    /// # Errors
    /// Its errors, when it fails.
    pub(super) fn says(&self, words: &[&str]) -> Result<String, String> {
        let output = self.within(words).output();
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}: {}: {said}", words.join(" "), output.status))
    }

    /// The system's network, for programs of this host.
    pub(super) fn network(&self) -> Network {
        Network { init: self.init }
    }

    /// A file of the system as this host sees it.
    pub(super) fn file(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }

    /// Writes a file of the system, and the directory that it is in.
    ///
    /// # Errors
    /// The step that failed, and why.
    pub(super) fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Result<(), String> {
        let file = self.file(path);
        let made = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&file, content))
            .map_err(|error| format!("{path}: {error}"))
    }

    /// Whether any program of the system has the library.
    pub(super) fn has_library_mapped(&self) -> Result<bool, String> {
        let script = "grep -l libtoehold /proc/[0-9]*/maps 2>/dev/null; true";
        Ok(!self.says(&["sh", "-c", script])?.is_empty())
    }

    /// A terminal of the system's.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn terminal(&self) -> Result<Terminal, String> {
        let mut command = self.within(&["bash"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().map_err(|error| error.to_string())?;
        let input = shell.stdin.take().expect("piped");
        let output = BufReader::new(shell.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .all(|line| sender.send(line).is_ok())
        });
        let mut terminal = Terminal {
            shell,
            input,
            lines,
        };
        terminal.run("cd")?;
        Ok(terminal)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // When the first process ends, the kernel ends all others of its namespace.
        if self.init != 0 {
            // SAFETY: takes no pointers. `boot` has not been waited for, so that its child's number
            // is still that child's.
            unsafe { libc::kill(self.init.cast_signed(), libc::SIGKILL) };
        } else {
            let _ = self.boot.kill();
        }
        let _ = self.boot.wait();
        // Removes the control group.
        let _ = boot("--can".as_ref()).map(|mut command| command.output());
    }
}

/// The network of a system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    init: u32,
}

impl Network {
    /// A program of this host, run in the system's network.
    pub(super) fn command(self, program: &str) -> Command {
        let mut command = enter(self.init, "--net");
        command.arg(program);
        command
    }
}

/// A shell of the system that runs one command after the other.
#[derive(Debug)]
pub(super) struct Terminal {
    shell: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Terminal {
    /// Runs a command; returns its output and its exit status.
    ///
    /// # Errors
    /// When it does not end in time, or the shell ends.
    pub(super) fn run(&mut self, command: &str) -> Result<(String, String), String> {
        let lost = |error: &dyn std::fmt::Display| format!("{command}: {error}");
        let script = format!("{{ {command}\n}} </dev/null 2>&1; printf '\\n{END}%s\\n' $?\n");
        let written = self.input.write_all(script.as_bytes());
        written.map_err(|error| lost(&error))?;
        let mut output = String::new();
        let begun = Instant::now();
        loop {
            let left = COMMAND_LIMIT.saturating_sub(begun.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => match line.strip_prefix(END) {
                    Some(status) => return Ok((output, status.to_owned())),
                    None => output = output + &line + "\n",
                },
                Err(RecvTimeoutError::Timeout) => return Err(lost(&"does not end")),
                Err(RecvTimeoutError::Disconnected) => return Err(lost(&"the shell has ended")),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// A command in namespaces of a process.
fn enter(pid: u32, which: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid.to_string(), which, "--"]);
    command
}

/// `scripts/boot.sh`, which ends with this process. It mounts over a directory, which stays empty:
/// the mounts are in a namespace of the script's.
fn boot(what: &Path) -> Result<Command, String> {
    let scratch = target().join("tour/scratch");
    let made = std::fs::create_dir_all(&scratch);
    made.map_err(|error| format!("{}: {error}", scratch.display()))?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command.arg(root().join("scripts/boot.sh"));
    command.arg(what).arg(scratch);
    Ok(command)
}

/// The one child of a process.
fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.ok()?.split_whitespace().next()?.parse().ok()
}

fn name_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.unwrap_or_default().trim().to_owned()
}
