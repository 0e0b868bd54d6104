//! A process that ends a run's programs when the run is killed.
//!
//! If a run is killed, the kernel kills the programs that the run has started, but not the workers
//! of these programs. The guard reads the process numbers of the run's programs from a pipe, which
//! closes when the run ends, for any reason. Then it kills every process in the sessions of these
//! programs, and every process with the run's mark in its environment, and removes the run's
//! directory.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use toehold_measure::procfs;

use crate::error::LabError;

/// The run's side: told of every program, and of its end.
pub(super) struct Guard {
    pipe: Option<ChildStdin>,
    child: Child,
}

impl Guard {
    /// Starts the guard of a run.
    ///
    /// # Errors
    ///
    /// When no process can be started.
    pub(super) fn start(toehold: &Path, owner: &str, folder: &Path) -> io::Result<Guard> {
        let mut command = Command::new(toehold);
        command.args(["lab", "guard", owner]).arg(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // A ^C at the terminal concerns only the run.
        command.process_group(0);
        let mut child = command.spawn()?;
        Ok(Guard {
            pipe: child.stdin.take(),
            child,
        })
    }

    /// A program has been started.
    pub(super) fn holds(&mut self, leader: i32) {
        self.tell(&format!("+{leader}\n"));
    }

    /// A program has ended with its whole family.
    pub(super) fn lets_go(&mut self, leader: i32) {
        self.tell(&format!("-{leader}\n"));
    }

    fn tell(&mut self, line: &str) {
        // If the guard was killed, the run continues without it.
        let _ = self
            .pipe
            .as_mut()
            .map(|pipe| pipe.write_all(line.as_bytes()));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.child.wait();
    }
}

/// The guard itself: returns when the run of `owner` has ended and all its processes are gone.
///
/// # Errors
///
/// One sentence: its input cannot be read.
pub fn guard(owner: &str, folder: &Path) -> Result<(), LabError> {
    let mut leaders: BTreeSet<i32> = BTreeSet::new();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| LabError::new(format!("cannot read: {error}")))?;
        match (
            line.get(..1),
            line.get(1..).and_then(|text| text.parse().ok()),
        ) {
            (Some("+"), Some(leader)) => {
                leaders.insert(leader);
            }
            (Some("-"), Some(leader)) => {
                leaders.remove(&leader);
            }
            _ => return Err(LabError::usage("`toehold lab guard` belongs to `lab run`")),
        }
    }
    let mark = format!("{MARK}={owner}");
    for _ in 0..PASSES {
        let left = left_behind(&leaders, &mark);
        if left.is_empty() {
            break;
        }
        for pid in left {
            // SAFETY: `kill` touches no memory.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        thread::sleep(PAUSE);
    }
    let _ = fs::remove_dir_all(folder);
    Ok(())
}

/// Living processes of the run, except this one.
fn left_behind(leaders: &BTreeSet<i32>, mark: &str) -> Vec<i32> {
    let me = std::process::id() as i32;
    let all = procfs::processes().into_iter();
    let others = all.filter(|process| process.pid != me && !process.ended);
    let ours = others.filter(|process| {
        let environment = fs::read(format!("/proc/{}/environ", process.pid));
        let environment = environment.unwrap_or_default();
        let mut words = environment.split(|byte| *byte == 0);
        leaders.contains(&process.session) || words.any(|word| word == mark.as_bytes())
    });
    ours.map(|process| process.pid).collect()
}

/// The variable that marks the programs of a run.
pub(super) const MARK: &str = "TOEHOLD_LAB_RUN";

/// A process that forks while it is killed needs a second pass.
const PASSES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);
