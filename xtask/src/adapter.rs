//! An adapter for the time of a measurement or of a suite.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than an adapter takes to start on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A running adapter; ended when dropped.
#[derive(Debug)]
pub(crate) struct Adapter {
    child: Child,
    toehold: PathBuf,
    runtime: PathBuf,
    user: Option<&'static str>,
}

impl Adapter {
    /// Starts an adapter, and waits until it answers. `command` runs the program `toehold` as
    /// `user`, possibly in another network; the adapter's output goes to `log`.
    pub(crate) fn start(
        command: Command,
        toehold: &Path,
        runtime: &Path,
        user: Option<&'static str>,
        log: Stdio,
    ) -> Result<Adapter, String> {
        Adapter::start_with(command, &[], toehold, runtime, user, log)
    }

    /// As [`Adapter::start`], with these options.
    pub(crate) fn start_with(
        mut command: Command,
        options: &[&str],
        toehold: &Path,
        runtime: &Path,
        user: Option<&'static str>,
        log: Stdio,
    ) -> Result<Adapter, String> {
        command.args(["adapter", "--runtime-dir"]).arg(runtime);
        command.args(options);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let adapter = Adapter {
            child: command.spawn().map_err(|error| error.to_string())?,
            toehold: toehold.to_owned(),
            runtime: runtime.to_owned(),
            user,
        };
        let begun = Instant::now();
        while adapter.status().is_none() {
            if begun.elapsed() > TIME_LIMIT {
                return Err("the adapter does not answer".to_owned());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(adapter)
    }

    /// The adapter's runtime directory.
    pub(crate) fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// The adapter's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The answer of `toehold status --json`.
    pub(crate) fn status(&self) -> Option<Value> {
        // An adapter answers its own user.
        let mut command = as_user(self.user, &self.toehold);
        command.args(["status", "--json", "--runtime-dir"]);
        let output = command.arg(&self.runtime).output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Ends the adapter now. A second call has no effect.
    pub(crate) fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.end();
    }
}

/// A command that runs a program, as `user` if given. The program dies with the thread that starts
/// it.
pub(crate) fn as_user(user: Option<&str>, program: &Path) -> Command {
    let Some(user) = user else {
        return Command::new(program);
    };
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    // A change of the user clears an earlier request for that signal.
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command.env_remove("XDG_RUNTIME_DIR");
    command
}
