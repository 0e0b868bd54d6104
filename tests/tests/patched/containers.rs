//! The first process of a container becomes the parent of all orphans, and so does a process that
//! asks for them (`PR_SET_CHILD_SUBREAPER`). Such a process may be any program, and must not get a
//! process of Toehold as its child.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use toehold_e2e::patched::{compile, compile_as};
use toehold_e2e::process::OutputInTime;
use toehold_e2e::{Toehold, host};

use crate::executed::{check_children_behind, executables};
use crate::unpatched::{without, without_executable_memory};

/// Namespaces of its own for users, processes and mounts.
pub(crate) const CONTAINER: [&str; 7] = ["unshare", "-U", "-r", "-m", "-p", "-f", "--mount-proc"];

/// The program of `children.c`.
fn children(directory: &Path, options: &[&str]) -> PathBuf {
    let options = [&["-O2", "-w"], options].concat();
    compile(directory, "cc", &options, "children.c")
}

/// A command in which the first process of a container executes `words`, followed by `run`.
fn in_container(words: &[&Path], run: &Command) -> Command {
    let mut command = Command::new(CONTAINER[0]);
    command.args(&CONTAINER[1..]).args(words);
    command.arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        command.env(name, value.expect("a variable that is set"));
    }
    command
}

/// The output of a command, and its standard error for a failure.
fn said(command: &mut Command) -> (String, String) {
    let output = command.output_in_time().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn static_programs_that_a_containers_first_process_executes_leave_it_no_orphans() {
    if host::require(["cc", "unshare"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let executables = executables(directory.path());
    for options in [&["-O2", "-w"][..], &["-O2", "-w", "-static"]] {
        let parent = compile_as("executes", directory.path(), "cc", options, "executes.c");
        check_children_behind(&CONTAINER, &parent, &executables);
    }
}

/// `run` is replaced by the program.
#[test]
fn a_containers_first_process_that_run_starts_has_no_child_of_its_helper() {
    if host::require(["cc", "unshare"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = children(directory.path(), &["-static"]);
    let toehold = Toehold::start();
    let run = || in_container(&[], &toehold.patched(&program));
    let (line, errors) = said(&mut run());
    assert_eq!(line, "library 1, process 1, no children\n", "{errors}");
    type Hinder = fn(&mut Command) -> &mut Command;
    // The helper cannot trace under the first hindrance, and can change nothing under the second.
    // It prints the reason while the program runs, and ends with the program.
    let hinders: [Hinder; 2] = [
        |command| without(libc::SYS_ptrace, command),
        without_executable_memory,
    ];
    for hinder in hinders {
        let (line, errors) = said(hinder(&mut run()));
        assert_eq!(line, "library 0, process 1, no children\n", "{errors}");
    }
}

#[test]
fn static_programs_that_run_starts_in_a_container_leave_its_first_process_no_orphans() {
    if host::require(["cc", "unshare"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = children(directory.path(), &["-static"]);
    let toehold = Toehold::start();
    let mut command = in_container(&[&program], &toehold.patched(&program));
    let (lines, errors) = said(&mut command);
    let wanted = "library 1, process 2, no children\nlibrary 0, process 1, no children\n";
    assert_eq!(lines, wanted, "{errors}");
}

/// These processes have asked to become the parent of orphans.
#[test]
fn programs_that_take_orphans_over_meet_no_helper() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let child = children(directory.path(), &["-static"]);
    let toehold = Toehold::start();
    for options in [&["-static"][..], &[]] {
        let scratch = tempfile::tempdir().expect("scratch");
        let parent = children(scratch.path(), options);
        let (lines, errors) = said(toehold.patched(&parent).arg(&child));
        let words: Vec<&str> = lines.split(|c: char| c.is_ascii_digit()).collect();
        let words: String = words.concat();
        let line = "library , process , no children\n";
        assert_eq!(words, line.repeat(2), "{lines}{errors}");
        assert_eq!(lines.matches("library 1").count(), 2, "{lines}{errors}");
    }
}

/// An exec keeps that setting.
#[test]
fn a_program_that_takes_orphans_over_has_no_adapter_for_a_child() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = children(directory.path(), &[]);
    let toehold = Toehold::start();
    let (run, library) = toehold.files();
    let mut command = Command::new(run);
    command.env("TOEHOLD_LIB", library);
    command.args(["run", "--path", "direct", "--runtime-dir"]);
    command.arg(directory.path().join("runtime"));
    command.arg("--").arg(&program);
    // SAFETY: a system call.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
            Ok(())
        });
    }
    let (line, errors) = said(&mut command);
    assert!(line.starts_with("library 1"), "{line}{errors}");
    assert!(line.ends_with("no children\n"), "{line}{errors}");
}

/// Without a running adapter, `run` starts one, which goes on in the background.
#[test]
fn a_containers_first_process_has_no_adapter_for_a_child() {
    if host::require(["cc", "unshare"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let toehold = Toehold::start();
    let (run, library) = toehold.files();
    for options in [&[][..], &["-static"]] {
        let program = children(directory.path(), options);
        let scratch = tempfile::tempdir().expect("scratch");
        let runtime = scratch.path().join("runtime");
        let mut command = Command::new(run);
        command.env("TOEHOLD_LIB", library);
        command.args(["run", "--path", "direct", "--runtime-dir"]);
        command.arg(&runtime).arg("--").arg(&program);
        let (line, errors) = said(&mut in_container(&[], &command));
        assert_eq!(line, "library 1, process 1, no children\n", "{errors}");
        assert_eq!(errors, "");
        let left = std::fs::read_dir(runtime).expect("a directory");
        assert_ne!(left.count(), 0, "an adapter was there");
    }
}
