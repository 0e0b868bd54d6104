//! Runs programs of other projects four ways: the table of `docs/programs.md`.
//!
//! The cases are scripts in `tests/programs`. The program that runs them needs the tests' library,
//! so it is in the tests' package.

use std::process::Command;

/// Builds that program and runs it with `arguments`.
pub(crate) fn run(arguments: &[String]) -> bool {
    // In the caller's directory: file names are relative to it.
    let mut command = Command::new("cargo");
    command.args(["run", "--release", "--quiet", "--manifest-path"]);
    command.arg(crate::root().join("Cargo.toml"));
    command.args(["-p", "toehold-e2e", "--bin", "programs", "--"]);
    let ended = command.args(arguments).status();
    ended.is_ok_and(|status| status.success())
}
