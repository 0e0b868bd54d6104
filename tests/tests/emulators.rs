//! Emulators run another program in their own process: they stay on the kernel, and report the
//! reason.

#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::Command;

use toehold_e2e::patched::{Waiting, compile, compile_as};
use toehold_e2e::{Toehold, host};

/// A program that waits for bytes which its signal handlers send.
fn interrupted(directory: &Path, options: &[&str]) -> PathBuf {
    let options = [&["-O2", "-pthread"], options].concat();
    compile(directory, "cc", &options, "emulator.c")
}

/// Runs a program plain and under Toehold, and compares. The program has reported why it is on the
/// kernel, and so does `status`. Returns how many programs the adapter knows.
fn check_on_kernel(program: &str, arguments: &[&Path]) -> usize {
    let plain = Waiting::start(Command::new(program).args(arguments)).end();
    let toehold = Toehold::start();
    let waiting = Waiting::start(toehold.patched(program).args(arguments));
    let status = toehold.status();
    let bare = status["without_library"].as_array().expect("a list");
    assert_eq!(bare.len(), 1, "{status}");
    assert_eq!(bare[0]["pid"], waiting.pid());
    let reason = bare[0]["reason"].as_str().expect("text").to_owned();
    assert!(reason.contains("as those of emulators do"), "{reason}");
    assert_eq!(status["channels_made"], 0);
    let (line, said) = waiting.end();
    assert_eq!((line, plain.1), (plain.0, String::new()));
    assert!(said.starts_with(&format!("toehold: {reason}; ")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    status["processes"].as_array().expect("a list").len()
}

#[test]
fn a_program_whose_handlers_set_its_calls_back_is_not_patched() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = interrupted(directory.path(), &["-static", "-DEMULATOR"]);
    let program = program.to_str().expect("text");
    assert_eq!(check_on_kernel(program, &[]), 0);
}

#[test]
fn a_static_program_does_the_same_in_an_emulator() {
    if host::require(["cc", "qemu-x86_64"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = interrupted(directory.path(), &["-static"]);
    assert_eq!(check_on_kernel("qemu-x86_64", &[&program]), 0);
}

#[test]
fn a_dynamic_program_in_an_emulator_has_the_library_once() {
    if host::require(["cc", "qemu-x86_64"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = interrupted(directory.path(), &[]);
    assert_eq!(check_on_kernel("qemu-x86_64", &[&program]), 1);
}

#[test]
fn a_program_for_another_processor_does_the_same_in_an_emulator() {
    if host::require(["go", "qemu-aarch64"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let options = ["CGO_ENABLED=0", "GOARCH=arm64", "go", "build"];
    let program = compile_as("arm", directory.path(), "env", &options, "emulated.go");
    assert_eq!(check_on_kernel("qemu-aarch64", &[&program]), 0);
}
