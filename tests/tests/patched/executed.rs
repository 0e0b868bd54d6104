//! Programs that another program executes: the ones that are patched, and the reasons of the
//! others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use toehold_e2e::patched::{Waiting, compile, compile_as};
use toehold_e2e::process::OutputInTime;
use toehold_e2e::toehold::Path as OnPath;
use toehold_e2e::{Toehold, host};

use crate::containers::CONTAINER;
use crate::unpatched::without;

/// A static program, a script for it, a copy of it, and a file with only a program's header, which
/// cannot be executed.
pub(crate) fn executables(directory: &Path) -> [PathBuf; 4] {
    let says = compile_as("says", directory, "cc", &["-O2", "-static"], "says.c");
    let [script, copy, header] = ["script", "copy", "header"].map(|name| directory.join(name));
    fs::copy(&says, &copy).expect("copied");
    fs::copy(&says, &header).expect("copied");
    let mut bytes = fs::read(&says).expect("readable");
    bytes.truncate(64);
    bytes[56..58].fill(0);
    fs::write(&header, bytes).expect("written");
    fs::copy(&says, &script).expect("copied");
    fs::write(&script, format!("#!{} x\n", says.display())).expect("written");
    [says, script, copy, header]
}

/// A program that executes others does so plain and accelerated. The static programs that it
/// executes have the library.
fn check_children(parent: &Path, executables: &[PathBuf; 4]) {
    check_children_behind(&[], parent, executables);
}

/// [`check_children`], where the program is executed by `words`.
pub(crate) fn check_children_behind(words: &[&str], parent: &Path, executables: &[PathBuf; 4]) {
    let [first, rest @ ..] = &[words, &[parent.to_str().expect("text")]].concat()[..] else {
        unreachable!("there is a program");
    };
    let run = |mut command: Command| {
        let output = command.args(rest).args(executables).output_in_time();
        let output = output.expect("runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {errors}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned() + &errors
    };
    let plain = run(Command::new(first));
    let patched = run(Toehold::start().patched(first));
    assert!(plain.matches("patched 0 traced 0").count() >= 8, "{plain}");
    assert_eq!(
        plain.replace("patched 0 traced 0", "patched 1 traced 0"),
        patched
    );
}

#[test]
fn static_programs_that_are_executed_are_patched_however_that_is_done() {
    if host::require(["cc", "musl-gcc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let executables = executables(directory.path());
    let (compile, source) = (compile_as, "executes.c");
    for (compiler, options) in [
        ("cc", &["-O2", "-w"][..]),
        ("cc", &["-O2", "-w", "-static"]),
        ("musl-gcc", &["-O2", "-w", "-static"]),
    ] {
        let parent = compile("executes", directory.path(), compiler, options, source);
        check_children(&parent, &executables);
    }
}

#[test]
fn programs_that_a_go_program_executes_are_patched() {
    if host::require(["cc", "go", "unshare"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let executables = executables(directory.path());
    for options in [
        &["CGO_ENABLED=0"][..],
        &["CGO_ENABLED=0", "GOFLAGS=-buildmode=pie"],
        &["CGO_ENABLED=1", "GOFLAGS=-ldflags=-linkmode=external"],
    ] {
        let options = [options, &["go", "build"]].concat();
        let parent = compile(directory.path(), "env", &options, "executes.go");
        check_children(&parent, &executables);
        check_children_behind(&CONTAINER, &parent, &executables);
    }
}

#[test]
fn programs_run_on_when_the_helper_that_patches_them_is_killed() {
    if host::require(["cc", "musl-gcc"]).is_none() {
        return;
    }
    let own = std::process::id();
    if !Path::new(&format!("/proc/{own}/task/{own}/children")).exists() {
        host::skipped("this kernel does not tell a process's children (CONFIG_PROC_CHILDREN)");
        return;
    }
    let kills = host::rounds(200);
    let directory = tempfile::tempdir().expect("scratch");
    let parent = compile(directory.path(), "cc", &["-O2", "-w"], "kills.c");
    for compiler in ["cc", "musl-gcc"] {
        let options = ["-O2", "-w", "-static"];
        let program = compile_as("killed", directory.path(), compiler, &options, "kills.c");
        let toehold = Toehold::start();
        let mut command = toehold.patched(&parent);
        let command = command.env("PROGRAM", &program);
        let (line, rest) = Waiting::start(command.env("KILLS", kills.to_string())).end();
        let expected = format!("0 of {kills} have not ended well\n");
        assert_eq!(line, expected, "{compiler}: {rest}");
        let killed = rest.split(' ').next().and_then(|word| word.parse().ok());
        assert!(killed > Some(kills / 4), "{compiler}: {rest}");
    }
}

#[test]
fn a_program_under_a_debugger_or_in_another_namespace_is_not_patched() {
    if host::require(["cc", "strace", "unshare"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let [says, ..] = executables(directory.path());
    let toehold = Toehold::start();
    let mut command = toehold.patched("sh");
    // The first child of a namespace is its init: a helper would be a strange process there.
    let line = "strace -o /dev/null \"$0\"; unshare -U -r -p \"$0\"; \"$0\"";
    let output = command
        .args(["-c", line])
        .arg(says)
        .output_in_time()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let words = said.lines().filter_map(|line| line.split_once(" desc"));
    let wanted = [
        "patched 0 traced 1",
        "patched 0 traced 0",
        "patched 1 traced 0",
    ];
    assert!(words.map(|(words, _)| words).eq(wanted), "{output:?}");
}

/// A kernel without Yama does not know this call. In this test strace answers the call instead, and
/// so hinders the helper.
#[test]
fn a_program_that_names_its_tracer_names_it_again_after_the_helper() {
    if host::require(["cc", "strace"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let [says, ..] = executables(directory.path());
    let program = compile_as("names", directory.path(), "cc", &["-O2"], "names.c");
    let said = |command: &mut Command| {
        let output = command.arg(&says).output_in_time().expect("runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let toehold = Toehold::start();
    let plain = said(&mut Command::new(&program));
    let patched = said(&mut toehold.patched(&program));
    assert_eq!(plain.replace("patched 0", "patched 1"), patched);
    let calls = directory.path().join("calls");
    let mut strace = toehold.patched("strace");
    strace.args(["-f", "-e", "trace=prctl", "-e", "inject=prctl:retval=0"]);
    said(strace.arg("-o").arg(&calls).arg(&program));
    let calls = fs::read_to_string(calls).expect("text");
    let whom = |line: &str| {
        let (_, rest) = line.split_once("prctl(PR_SET_PTRACER, ")?;
        Some(rest.split_once(')')?.0.to_owned())
    };
    let named: Vec<String> = calls.lines().filter_map(whom).collect();
    let [own, helper, again] = &named[..] else {
        panic!("{calls}");
    };
    assert!(own == again && own != helper, "{calls}");
}

#[test]
fn valgrind_is_not_patched_and_its_program_has_the_library_once() {
    if host::require(["valgrind"]).is_none() {
        return;
    }
    let toehold = Toehold::start();
    let mappings = |mut command: Command| {
        // valgrind makes up the one file for its program; the other is the kernel's.
        let line = "grep -c libtoehold.so /proc/$$/maps /proc/self/maps";
        command.args(["-q", "/bin/sh", "-c", line]);
        let output = command.output_in_time().expect("runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let patched = mappings(toehold.patched("valgrind"));
    let unpatched = mappings(toehold.unpatched("valgrind"));
    let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    assert_eq!(words(&patched), words(&unpatched));
    let counts = |text: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.rsplit_once(':'));
        lines.map(|(_, count)| count.to_owned()).collect()
    };
    assert!(!counts(&patched).is_empty());
    assert_eq!(counts(&patched), counts(&unpatched));
}

#[test]
fn a_dynamic_linker_that_is_run_by_hand_is_not_patched() {
    const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";
    let toehold = Toehold::start();
    let mut command = toehold.patched(LINKER);
    // The linker preloads the library itself.
    let read = ["/bin/grep", "-c", "libtoehold.so", "/proc/self/maps"];
    let output = command.args(read).output_in_time().expect("runs");
    assert_eq!(output.stderr, b"");
    let mappings = String::from_utf8_lossy(&output.stdout);
    let plain = toehold
        .command(OnPath::Direct, read[0])
        .args(&read[1..])
        .output_in_time()
        .expect("runs");
    assert_eq!(mappings, String::from_utf8_lossy(&plain.stdout));
}

#[test]
fn status_says_why_a_child_is_not_patched() {
    if host::require(["cc", "strace", "python3"]).is_none() {
        return;
    }
    const SPAWNS: &str = "import os, sys; os.waitpid(os.posix_spawn(sys.argv[1], \
                          sys.argv[1:], os.environ), 0)";
    let directory = tempfile::tempdir().expect("scratch");
    let [says, ..] = executables(directory.path());
    let toehold = Toehold::start();
    let mut by_strace = toehold.patched("strace");
    by_strace.args(["-o", "/dev/null"]).arg(&says).arg("wait");
    let mut by_parent = toehold.patched("strace");
    by_parent.args(["-f", "-o", "/dev/null", "python3", "-c", SPAWNS]);
    by_parent.arg(&says).arg("wait");
    let mut by_shell = toehold.patched("sh");
    by_shell.args(["-c", "exec \"$0\" wait"]).arg(&says);
    without(libc::SYS_ptrace, &mut by_shell);
    let mut commands = vec![
        (by_strace, "another process traces it"),
        (by_parent, "has one tracer at most: strace (pid "),
        (by_shell, "the kernel does not let it be traced"),
    ];
    if host::require(["proot"]).is_some() {
        let mut by_proot = toehold.patched("proot");
        by_proot.arg(&says).arg("wait");
        commands.push((by_proot, "another process traces it"));
    }
    for (mut command, expected) in commands {
        let waiting = Waiting::start(&mut command);
        let status = toehold.status();
        let bare = status["without_library"].as_array().expect("a list");
        assert_eq!(bare.len(), 1, "{status}");
        let reason = bare[0]["reason"].as_str().expect("text");
        assert!(reason.contains(expected), "{reason}");
        let line = waiting.line();
        assert!(line.starts_with("patched 0 "), "{line}");
        let (_, said) = waiting.end();
        assert_eq!(said, "");
    }
}
