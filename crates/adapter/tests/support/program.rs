//! Other processes for tests: the test program itself, with its role in the environment.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::becomes_readable;

/// Another process. The test program needs a test named `role` that plays this process. `role` is
/// ignored otherwise: run by itself, it would pass without having tested anything.
pub(crate) struct Program {
    pub(crate) child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(role: &str, dir: &Path, port: u16) -> Program {
        let own = std::env::current_exe().expect("own path");
        let mut child = Command::new(own)
            .args([
                "--ignored",
                "--exact",
                "role",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("TOEHOLD_TEST_ROLE", role)
            .env("TOEHOLD_TEST_DIR", dir)
            .env("TOEHOLD_TEST_PORT", port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawned");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Program { child, output }
    }

    /// Waits until the process plays its role.
    pub(crate) fn wait_until_ready(&mut self) {
        let mut line = String::new();
        while !line.trim_end().ends_with("ready") {
            line.clear();
            self.wait_for_output();
            let read = self.output.read_line(&mut line).expect("read");
            assert_ne!(read, 0, "ended before it was ready");
        }
    }

    /// Waits until the process has written something, or has ended.
    fn wait_for_output(&self) {
        if !self.output.buffer().is_empty() {
            return;
        }
        assert!(
            becomes_readable(self.output.get_ref()),
            "the process is not ready, and does not end"
        );
    }

    /// Sends `SIGKILL`, and waits until the process is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This process's role, and its runtime directory.
///
/// # Panics
/// When no [`Program`] has started this process.
pub(crate) fn role() -> (String, PathBuf) {
    let role = std::env::var("TOEHOLD_TEST_ROLE").expect("a test starts this process");
    let dir = std::env::var_os("TOEHOLD_TEST_DIR").expect("set with the role");
    (role, dir.into())
}

/// The port that the test has given this process.
pub(crate) fn port() -> u16 {
    let port = std::env::var("TOEHOLD_TEST_PORT").expect("set with the role");
    port.parse().expect("a port")
}

/// Says that the role is played, and stays until the test ends this process.
pub(crate) fn stay() {
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}
