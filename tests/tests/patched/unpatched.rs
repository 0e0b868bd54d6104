//! Programs that are not patched, or whose calls the library does not see: the messages of `run`
//! and `status` about them.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::process::Command;

use toehold_e2e::patched::{Waiting, compile, compile_as, compile_static_threads};
use toehold_e2e::process::OutputInTime;
use toehold_e2e::{Toehold, host};

use crate::shared;

/// Runs `command` under a filter that answers `EPERM` to a system call, as a container's filter
/// may.
pub(crate) fn without(number: libc::c_long, command: &mut Command) -> &mut Command {
    const LOAD_NUMBER: libc::sock_filter = libc::sock_filter {
        code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let is_it = libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: number as u32,
    };
    let answer = |k| libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let mut filter = [
        LOAD_NUMBER,
        is_it,
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: the filter is live.
        let result = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
        };
        match result {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: two system calls between fork and exec.
    unsafe { command.pre_exec(install) }
}

/// Runs a program that cannot be patched, because of `hinder`, and compares it with a plain run.
/// Returns the text on its standard error and the text of `status`, or `None` where there is no
/// compiler.
fn said_of_unpatched(
    hinder: impl FnOnce(&mut Command) -> &mut Command,
) -> Option<(String, String)> {
    host::require(["cc"])?;
    let directory = tempfile::tempdir().expect("scratch");
    let program = compile_static_threads(directory.path());
    let plain = Waiting::start(&mut Command::new(&program)).end();
    let toehold = Toehold::start();
    let mut command = toehold.patched(&program);
    let patched = Waiting::start(hinder(&mut command));
    assert!(patched.counts().is_none());
    let status = toehold.status();
    let bare = status["without_library"].as_array().expect("a list");
    assert_eq!(bare.len(), 1, "{status}");
    assert_eq!(bare[0]["pid"], patched.pid());
    let reason = bare[0]["reason"].as_str().expect("text").to_owned();
    let (line, said) = patched.end();
    assert_eq!(line, plain.0);
    Some((said, reason))
}

#[test]
fn a_program_that_is_traced_already_runs_on_the_kernel_after_one_sentence() {
    if host::require(["strace"]).is_none() {
        return;
    }
    let said = said_of_unpatched(|command| {
        let mut traced = Command::new("strace");
        // The program keeps its process number: the tracer is another process.
        traced.args(["-D", "-f", "-o", "/dev/null"]);
        traced.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => traced.env(name, value),
                None => traced.env_remove(name),
            };
        }
        *command = traced;
        command
    });
    let Some((said, reason)) = said else {
        return;
    };
    for told in [&said, &reason] {
        assert!(told.contains("another process traces it"), "{told}");
    }
}

#[test]
fn a_program_that_may_not_be_traced_runs_on_the_kernel_after_one_sentence() {
    let said = said_of_unpatched(|command| without(libc::SYS_ptrace, command));
    let Some((said, reason)) = said else {
        return;
    };
    for told in [&said, &reason] {
        assert!(
            told.contains("the kernel does not let it be traced"),
            "{told}"
        );
    }
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_program_with_a_send_that_cannot_be_patched_runs_on_the_kernel_after_one_sentence() {
    if host::require(["cc"]).is_none() {
        return;
    }
    const WHY: &str =
        "its system calls are not patched, because one about sockets has no room for a patch";
    let directory = tempfile::tempdir().expect("scratch");
    let program = compile(
        directory.path(),
        "cc",
        &["-O2", "-w", "-static"],
        "cramped.c",
    );
    let toehold = Toehold::start();
    let left = Waiting::start(&mut toehold.patched(&program));
    assert!(left.counts().is_none());
    let status = toehold.status();
    let reason = &status["without_library"][0]["reason"];
    assert!(
        reason.as_str().is_some_and(|it| it.contains(WHY)),
        "{status}"
    );
    let (line, said) = left.end();
    assert_eq!(line, "done\n");
    assert!(said.lines().count() == 1 && said.contains(WHY), "{said}");
}

#[test]
fn a_program_that_the_kernel_does_not_execute_is_a_failure_after_one_sentence() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = compile_static_threads(directory.path());
    let toehold = Toehold::start();
    // A file that is being written cannot be executed.
    let writer = File::options().append(true).open(&program);
    let writer = writer.expect("ours");
    // The helper works meanwhile.
    for _ in 0..50 {
        let output = toehold
            .patched(&program)
            .output_in_time()
            .expect("toehold runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(126), "{output:?}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("Text file busy"), "{said}");
    }
    drop(writer);
    Waiting::start(&mut toehold.patched(&program)).end();
}

#[test]
fn a_library_that_cannot_be_mapped_leaves_the_program_alone_after_one_sentence() {
    // A library that is not ours.
    const OTHER: &str = "/lib/x86_64-linux-gnu/libm.so.6";
    let Some((said, _)) = said_of_unpatched(|command| command.env("TOEHOLD_LIB", OTHER)) else {
        return;
    };
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("its system calls cannot be patched"),
        "{said}"
    );
}

#[test]
fn a_library_that_is_mapped_in_part_is_taken_back() {
    if host::require(["cc", "unshare", "mount"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = compile(
        directory.path(),
        "cc",
        &["-O2", "-w", "-static"],
        "started.c",
    );
    let plain = Command::new(&program).output_in_time().expect("it runs");
    let toehold = Toehold::start();
    let (_, library) = toehold.files();
    // From this directory the library can be opened and read, but its code cannot be mapped.
    let script = "mount -t tmpfs -o noexec none \"$1\" && cp \"$2\" \"$1/libtoehold.so\" &&
        export TOEHOLD_LIB=\"$1/libtoehold.so\" && shift 2 && exec \"$@\"";
    let mount = directory.path().join("noexec");
    fs::create_dir(&mount).expect("room");
    let run = toehold.patched(&program);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.arg(mount).arg(library).arg(run.get_program());
    let output = command
        .args(run.get_args())
        .output_in_time()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("Operation not permitted"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(output.stdout, plain.stdout);
}

/// Makes the kernel refuse to make memory executable that was not (PR_SET_MDWE).
pub(crate) fn without_executable_memory(command: &mut Command) -> &mut Command {
    const PR_SET_MDWE: libc::c_int = 65;
    const REFUSE_EXEC_GAIN: libc::c_ulong = 1;
    // SAFETY: one system call between fork and exec; no memory is involved.
    unsafe {
        command.pre_exec(
            || match libc::prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        )
    }
}

/// The reason that `status` gives why the calls of a program with the library are not patched.
pub(crate) fn said_by_status(toehold: &Toehold, program: &Waiting) -> String {
    let status = toehold.status();
    let bare = status["without_library"].as_array().expect("a list");
    assert_eq!(bare.len(), 1, "{status}");
    assert_eq!(bare[0]["pid"], program.pid());
    assert_eq!(bare[0]["has_library"], true);
    let text = toehold.ask(&["status"]).expect("an adapter");
    assert!(
        text.contains(": system calls of its own on kernel TCP\n"),
        "{text}"
    );
    bare[0]["reason"].as_str().expect("text").to_owned()
}

#[test]
fn a_dynamic_go_program_that_cannot_be_patched_says_why_and_runs_on_the_kernel() {
    if host::require(["cc", "go"]).is_none() {
        return;
    }
    type Hinder = fn(&mut Command) -> &mut Command;
    let directory = tempfile::tempdir().expect("scratch");
    let pie = ["CGO_ENABLED=0", "go", "build", "-buildmode=pie"];
    let pie = compile_as("pie", directory.path(), "env", &pie, "storm.go");
    let cgo = shared(directory.path(), &[]);
    let hinders: [(Hinder, &str); 2] = [
        (
            |command| without(libc::SYS_pwrite64, command),
            "its code cannot be written by /proc/self/mem",
        ),
        (
            without_executable_memory,
            "it may not make memory executable",
        ),
    ];
    for program in [pie, cgo] {
        let plain = Waiting::start(&mut Command::new(&program)).end();
        for (hinder, reason) in hinders {
            let toehold = Toehold::start();
            let mut command = toehold.patched(&program);
            let patched = Waiting::start(hinder(&mut command));
            let counts = patched.counts().expect("the library is in the program");
            assert_eq!(counts.iter().sum::<u64>(), 0);
            let told = said_by_status(&toehold, &patched);
            assert!(told.contains(reason), "{told}");
            let (line, said) = patched.end();
            assert_eq!(line, plain.0);
            assert!(said.contains(&format!("toehold: {told}; ")), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }
}

#[test]
fn a_dynamic_go_program_without_proc_runs_on_the_kernel_and_status_says_why() {
    if host::require(["cc", "go", "unshare", "mount"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = shared(directory.path(), &[]);
    let plain = Waiting::start(&mut Command::new(&program)).end();
    let toehold = Toehold::start();
    let mut command = toehold.patched("unshare");
    command.args(["-U", "-r", "-m", "sh", "-c"]);
    command.arg("mount -t tmpfs none /proc && exec \"$0\"");
    let patched = Waiting::start(command.arg(&program));
    let told = said_by_status(&toehold, &patched);
    assert!(told.contains("/proc may be missing"), "{told}");
    let (line, said) = patched.end();
    assert_eq!(line, plain.0);
    // This is the process that the user has started.
    assert!(said.starts_with(&format!("toehold: {told}; ")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn status_says_why_programs_are_without_the_library() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = compile_static_threads(directory.path());
    let toehold = Toehold::start();
    let by_run = Waiting::start(&mut toehold.unpatched(&program));
    // The parent has the library, and the child does not.
    let mut shell = toehold.unpatched("sh");
    shell.args(["-c", "\"$0\"; exit"]).arg(&program);
    let by_shell = Waiting::start(&mut shell);
    let status = toehold.status();
    let bare = status["without_library"].as_array().expect("a list");
    assert_eq!(bare.len(), 2, "{status}");
    for one in bare {
        assert_eq!(one["program"], "program");
        let reason = one["reason"].as_str().expect("text");
        let is_by_run = one["pid"] == by_run.pid();
        let begin = ["it is statically linked", "it reported at its start: /"];
        assert!(
            reason.starts_with(begin[usize::from(is_by_run)]),
            "{reason}"
        );
        assert_eq!(reason.contains("--patch-calls"), !is_by_run, "{reason}");
    }
    let text = toehold.ask(&["status"]).expect("an adapter");
    assert_eq!(
        text.matches(": on kernel TCP, without the library\n")
            .count(),
        2
    );
    by_run.end();
    by_shell.end();
    assert_eq!(toehold.status()["without_library"], serde_json::json!([]));
}

/// The headers of programs that UPX has packed look like this.
#[test]
fn status_names_packed_programs() {
    if host::require(["cc", "musl-gcc", "go"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let elsewhere = ["-O2", "-static", "-Wl,-Ttext-segment=0x10000000"];
    let packer = compile_as("packer", directory.path(), "cc", &elsewhere, "packed.c");
    let options = ["-O2", "-w", "-static", "-pthread"];
    let go = ["CGO_ENABLED=0", "go", "build", "-ldflags=-buildid="];
    for (compiler, options, source) in [
        ("cc", &options[..], "threads.c"),
        ("musl-gcc", &options, "threads.c"),
        ("env", &go, "storm.go"),
    ] {
        let program = compile(directory.path(), compiler, options, source);
        let plain = Waiting::start(Command::new(&packer).arg(&program)).end();
        let toehold = Toehold::start();
        let patched = Waiting::start(toehold.patched(&packer).arg(&program));
        let told = said_by_status(&toehold, &patched);
        let name = packer.file_name().expect("a file").to_string_lossy();
        let begin = format!("program {name} makes system calls by code that is in no file");
        assert!(told.starts_with(&begin), "{told}");
        assert_eq!(patched.end(), plain, "{compiler}");
    }
}

/// Programs of tokio-uring make such requests.
#[test]
fn status_names_programs_that_make_connections_by_requests_of_io_uring() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    for options in [&["-O2"][..], &["-O2", "-static"]] {
        let program = compile(directory.path(), "cc", options, "registers.c");
        let plain = Waiting::start(Command::new(&program).arg("request")).end();
        let toehold = Toehold::start();
        let patched = Waiting::start(toehold.patched(&program).arg("request"));
        let told = said_by_status(&toehold, &patched);
        assert!(told.contains("by requests of io_uring"), "{told}");
        assert_eq!(patched.end(), plain, "{options:?}");
    }
}

#[test]
fn status_names_programs_that_the_library_has_left_before_they_had_a_connection() {
    if host::require(["cc"]).is_none() {
        return;
    }
    const CONFINED: &str =
        "it is confined to some system calls (seccomp), and the library makes others";
    const POLLED: &str = "a thread of the kernel takes its requests of io_uring (SQPOLL), which \
                          the library does not see";
    let directory = tempfile::tempdir().expect("scratch");
    for options in [&["-O2"][..], &["-O2", "-static"]] {
        let program = compile(directory.path(), "cc", options, "early.c");
        for (arguments, expected) in [(&[][..], CONFINED), (&["polled"], POLLED)] {
            let toehold = Toehold::start();
            let left = Waiting::start(toehold.patched(&program).args(arguments));
            let bare = &toehold.status()["without_library"];
            assert_eq!(bare.as_array().map(Vec::len), Some(1), "{bare}");
            assert_eq!(bare[0]["reason"], expected);
            left.end();
        }
    }
}
