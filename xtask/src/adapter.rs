//! An adapter for the time of a measurement or of a suite.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than an adapter takes to begin on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A running adapter; ended when dropped.
#[derive(Debug)]
pub(crate) struct Adapter {
    child: Child,
    toehold: PathBuf,
    runtime: PathBuf,
}

impl Adapter {
    /// Starts one, and waits until it answers. `command` runs the program `toehold`, perhaps in
    /// another network; what the adapter says goes to `log`.
    pub(crate) fn start(
        mut command: Command,
        toehold: &Path,
        runtime: &Path,
        log: Stdio,
    ) -> Result<Adapter, String> {
        command.args(["adapter", "--runtime-dir"]).arg(runtime);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let adapter = Adapter {
            child: command.spawn().map_err(|error| error.to_string())?,
            toehold: toehold.to_owned(),
            runtime: runtime.to_owned(),
        };
        let begun = Instant::now();
        while adapter.status().is_none() {
            if begun.elapsed() > PATIENCE {
                return Err("the adapter does not answer".to_owned());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(adapter)
    }

    /// Where it lives.
    pub(crate) fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// What `toehold status --json` says.
    pub(crate) fn status(&self) -> Option<Value> {
        let mut command = Command::new(&self.toehold);
        command.args(["status", "--json", "--runtime-dir"]);
        let output = command.arg(&self.runtime).output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Ends it now. Again does nothing.
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
