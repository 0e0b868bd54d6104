//! Instructions, counted by callgrind: exact, even on a busy machine.

use std::process::Command;

use crate::{root, target};

mod calls;
mod engine;

/// Prints the tables of `docs/benchmarks/tcp.md` and `docs/benchmarks/calls.md`. False when
/// something could not be counted.
pub(crate) fn run(which: Option<&str>) -> bool {
    match which {
        None => calls::run() && engine::run(),
        Some("calls") => calls::run(),
        Some("engine") => engine::run(),
        Some(other) => {
            eprintln!("`{other}` is not counted; there are: calls, engine");
            false
        }
    }
}

/// Builds the programs that are counted.
fn build(words: &[&str]) -> bool {
    let mut command = Command::new("cargo");
    command.args(["build", "--release"]).args(words);
    command
        .current_dir(root())
        .status()
        .is_ok_and(|status| status.success())
}

/// The path of a program built with the release profile.
fn release(name: &str) -> std::path::PathBuf {
    target().join("release").join(name)
}

/// The instructions that callgrind counts while `command` runs. The command includes callgrind.
fn counted(command: &mut Command) -> Result<u64, String> {
    let done = command
        .output()
        .map_err(|error| format!("cannot run {command:?} ({error}); valgrind is needed"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    collected(&said)
        .filter(|_| done.status.success())
        .ok_or_else(|| format!("{command:?} failed: {}", said.trim()))
}

/// The number after `Collected :`.
fn collected(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrind_s_count_is_read() {
        let said = "==1== Callgrind, a call-graph\n==1== \n\
            ==1== Events    : Ir\n==1== Collected : 1234567\n==1== \n";
        assert_eq!(collected(said), Some(1_234_567));
        assert_eq!(collected("valgrind: no such file"), None);
    }
}
