//! Results that cannot be written: a full disk is a failure, a reader that has left is not.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A command of each kind that says something without an adapter.
const LINES: [&[&str]; 19] = [
    &["--help"],
    &["-h"],
    &["--version"],
    &["help"],
    &["help", "lab"],
    &["run", "--help"],
    &["lab", "run", "-h"],
    &["adapter", "--version"],
    &["completions", "bash"],
    &["completions", "fish"],
    &["rules"],
    &["rules", "--json"],
    &["list"],
    &["list", "--json"],
    &["lab", "list"],
    &["lab", "list", "--json"],
    &["lab", "show", "quick"],
    &["lab", "show", "quick", "--json"],
    &["lab", "run", "quick", "--dry-run"],
];

fn toehold(words: &[&str], output: impl Into<Stdio>) -> Output {
    let home: TempDir = tempfile::tempdir().expect("room");
    let mut command = Command::new(env!("CARGO_BIN_EXE_toehold"));
    command.args(words).env("HOME", home.path());
    command.stdout(output).stderr(Stdio::piped());
    let child = command.spawn().expect("toehold runs");
    child.wait_with_output().expect("toehold ends")
}

#[test]
fn a_full_disk_is_a_failure_of_every_command() {
    for words in LINES {
        let full = File::options().write(true).open("/dev/full");
        let output = toehold(words, full.expect("a device"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert_eq!(
            said, "toehold: cannot write: No space left on device (os error 28)\n",
            "{words:?}"
        );
    }
}

#[test]
fn a_reader_that_has_left_is_no_failure_of_any_command() {
    for words in LINES {
        let (reader, writer) = std::io::pipe().expect("room");
        drop(reader);
        let output = toehold(words, writer);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {said}");
        assert_eq!(said, "", "{words:?}");
    }
}

/// Pages are files: on a full disk the error names the page.
#[test]
fn manual_pages_that_cannot_be_written_are_a_failure() {
    let scratch = tempfile::tempdir().expect("room");
    let page = scratch.path().join("toehold-run.1");
    std::os::unix::fs::symlink("/dev/full", page).expect("room");
    let folder = scratch.path().to_str().expect("words");
    let output = toehold(&["man", "--out", folder], Stdio::null());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.ends_with(": No space left on device (os error 28)\n"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}
