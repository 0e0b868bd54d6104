//! Other processes for tests: the test program itself, told by the environment what to be.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Another process. The test program needs a test named `role` that plays it.
pub(crate) struct Program {
    pub(crate) child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(role: &str, dir: &Path) -> Program {
        let own = std::env::current_exe().expect("own path");
        let mut child = Command::new(own)
            .args(["--exact", "role", "--nocapture", "--test-threads=1"])
            .env("TOEHOLD_TEST_ROLE", role)
            .env("TOEHOLD_TEST_DIR", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawned");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut program = Program { child, output };
        program.wait_for("ready");
        program
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.trim_end().ends_with(word) {
            line.clear();
            let read = self.output.read_line(&mut line).expect("read");
            assert_ne!(read, 0, "ended before it was {word}");
        }
    }

    /// `kill -9`, and waits until it is gone.
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

/// What this process is to be, and in which runtime directory; nothing when it is the test itself.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    let role = std::env::var("TOEHOLD_TEST_ROLE").ok()?;
    let dir = std::env::var_os("TOEHOLD_TEST_DIR").expect("set with the role");
    Some((role, dir.into()))
}

/// Says that the role is played, and stays until the test is done with us.
pub(crate) fn stay() {
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}
