//! Programs that nobody wrote with Toehold in mind, run four ways: the table of `docs/programs.md`.
//!
//! The cases are scripts in `tests/programs`; what runs them needs the tests' library and so is a
//! program beside the tests.

use std::process::Command;

/// Builds it and hands it the arguments.
pub(crate) fn run(arguments: &[String]) -> bool {
    // From where it was called: names of files are meant from there.
    let mut command = Command::new("cargo");
    command.args(["run", "--release", "--quiet", "--manifest-path"]);
    command.arg(crate::root().join("Cargo.toml"));
    command.args(["-p", "toehold-e2e", "--bin", "programs", "--"]);
    let ended = command.args(arguments).status();
    ended.is_ok_and(|status| status.success())
}
