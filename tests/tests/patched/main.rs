//! Programs that make system calls themselves, with these calls patched: they behave as on the
//! kernel, and their connections use shared memory.

#![cfg(target_arch = "x86_64")]

mod containers;
mod executed;
mod libraries;
mod unpatched;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use toehold_e2e::patched::{Waiting, compile, compile_as};
use toehold_e2e::process::{TIME_LIMIT, end_of};
use toehold_e2e::toehold::Connection;
use toehold_e2e::{Running, Toehold, host, wait_until};

/// Runs `program` plain and patched, and compares. Returns how many of its connections were direct.
fn check(program: &Path) -> usize {
    let plain = Waiting::start(&mut Command::new(program)).end();
    let toehold = Toehold::start();
    let patched = Waiting::start(&mut toehold.patched(program));
    let counts = patched.counts();
    let status = toehold.status();
    let connections = Connection::all_of(&status).into_iter();
    let direct = connections.filter(Connection::is_direct).count();
    let untold = &status["without_library"];
    assert!(untold.as_array().is_none_or(Vec::is_empty), "{untold}");
    let patched = patched.end();
    assert_eq!(plain, patched);
    let counts = counts.expect("the library is in the program");
    let count = |number: libc::c_long| counts[number as usize];
    assert!(count(libc::SYS_read) > 1000, "reads go through the library");
    assert!(
        count(libc::SYS_write) > 1000,
        "writes go through the library"
    );
    let births = [libc::SYS_clone, libc::SYS_clone3].map(count);
    assert!(births.iter().sum::<u64>() >= 4, "threads are made");
    direct
}

#[test]
fn a_static_program_of_glibc_does_the_same_when_patched() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let options = ["-O2", "-w", "-static", "-pthread"];
    check(&compile(directory.path(), "cc", &options, "threads.c"));
}

#[test]
fn a_static_program_of_musl_does_the_same_when_patched() {
    if host::require(["musl-gcc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let options = ["-O2", "-w", "-static", "-pthread"];
    check(&compile(
        directory.path(),
        "musl-gcc",
        &options,
        "threads.c",
    ));
}

#[test]
fn a_static_program_at_a_random_address_does_the_same_when_patched() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let options = ["-O2", "-w", "-static-pie", "-pthread"];
    check(&compile(directory.path(), "cc", &options, "threads.c"));
}

#[test]
fn a_stripped_go_program_survives_collections_preemption_and_profiling_when_patched() {
    if host::require(["go"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let options = ["CGO_ENABLED=0", "go", "build", "-ldflags", "-s -w"];
    let direct = check(&compile(directory.path(), "env", &options, "storm.go"));
    assert!(direct > 0, "connections go through shared memory");
}

#[test]
fn a_go_program_that_may_be_loaded_anywhere_does_the_same_when_patched() {
    if host::require(["go"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let options = ["CGO_ENABLED=0", "go", "build", "-buildmode=pie"];
    let direct = check(&compile(directory.path(), "env", &options, "storm.go"));
    assert!(direct > 0, "connections go through shared memory");
}

/// libuv registers the sockets of Node.js like this: with `syscall(2)`, and with patched calls.
#[test]
fn sockets_that_requests_of_io_uring_register_with_epoll_go_through_shared_memory() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    for options in [&["-O2"][..], &["-O2", "-static"]] {
        let program = compile(directory.path(), "cc", options, "registers.c");
        let plain = Waiting::start(&mut Command::new(&program)).end();
        let toehold = Toehold::start();
        let patched = Waiting::start(&mut toehold.patched(&program));
        let connections = toehold.connections();
        let direct = connections.iter().filter(|one| one.is_direct()).count();
        assert_eq!(direct, 2, "{options:?}: {connections:?}");
        assert_eq!(patched.end(), plain, "{options:?}");
    }
}

/// `TOEHOLD_SOAK=100000000 cargo test -p toehold-e2e --release --test patched -- millions_of_calls`
/// runs the whole proof: a hundred million calls.
#[test]
fn millions_of_calls_of_preempted_goroutines_have_the_kernels_answers() {
    if host::require(["go"]).is_none() {
        return;
    }
    let calls = host::rounds(1_000_000);
    let directory = tempfile::tempdir().expect("scratch");
    let options = ["CGO_ENABLED=0", "go", "build"];
    let program = compile(directory.path(), "env", &options, "many.go");
    let toehold = Toehold::start();
    let mut command = toehold.patched(&program);
    let patched = Waiting::start(command.env("CALLS", calls.to_string()));
    let counts = patched.counts().expect("the library is in the program");
    let counts = counts[libc::SYS_read as usize] + counts[libc::SYS_write as usize];
    let connections = toehold.connections().into_iter();
    assert!(connections.filter(Connection::is_direct).count() > 0);
    let (line, rest) = patched.end();
    assert_eq!(line, "0 wrong; all made: true profile: true\n", "{rest}");
    assert!(counts >= calls, "{counts} calls went through the library");
}

/// A program in which Go and C take turns with a connection.
fn shared(directory: &Path, options: &[&str]) -> PathBuf {
    let options = [&["CGO_ENABLED=1", "go", "build"], options].concat();
    compile(directory, "env", &options, "shared.go")
}

#[test]
fn go_and_c_use_the_same_connections_of_a_patched_program() {
    if host::require(["cc", "go"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    for options in [
        &[][..],
        &["-buildmode=pie"],
        &["-ldflags=-linkmode=external -s"],
    ] {
        let direct = check(&shared(directory.path(), options));
        assert!(
            direct > 0,
            "connections go through shared memory: {options:?}"
        );
    }
}

/// The oldest version of Go that is available as a module, and the newest when this was written,
/// each with the kind of programs that it makes here. The other tests make programs of both kinds
/// with the installed version. Each version compiles its library again for each kind, which takes
/// longer than the tests. Where TOEHOLD_SOAK is set, both versions make programs of both kinds.
const OTHER_VERSIONS: [(&str, &str); 2] = [
    ("GOTOOLCHAIN=go1.21.0", "-buildmode=exe"),
    ("GOTOOLCHAIN=go1.27.0", "-buildmode=pie"),
];

#[test]
fn programs_of_other_versions_of_go_do_the_same_when_patched() {
    if host::require(["cc", "go"]).is_none() {
        return;
    }
    for (version, usual) in OTHER_VERSIONS {
        let mut asked = Command::new("env");
        let output = asked.args([version, "go", "version"]).output();
        if !output.is_ok_and(|output| output.status.success()) {
            host::skipped(&format!("{version} cannot be had"));
            continue;
        }
        let soaks = host::rounds(0) > 0;
        for (_, kind) in OTHER_VERSIONS {
            if kind != usual && !soaks {
                continue;
            }
            for (cgo, source) in [
                ("CGO_ENABLED=0", "storm.go"),
                ("CGO_ENABLED=1", "shared.go"),
            ] {
                let directory = tempfile::tempdir().expect("scratch");
                let options = [version, cgo, "go", "build", kind];
                let direct = check(&compile(directory.path(), "env", &options, source));
                assert!(direct > 0, "{version} {cgo} {kind}");
            }
        }
    }
}

#[test]
fn debuggers_that_are_attached_to_a_patched_program_see_it_and_leave_it_as_it_is() {
    if host::require(["cc", "gdb", "go", "strace"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let options = ["CGO_ENABLED=0", "go", "build"];
    let static_go = compile(directory.path(), "env", &options, "storm.go");
    let static_c = compile_as(
        "threads",
        directory.path(),
        "cc",
        &["-O2", "-w", "-static", "-pthread"],
        "threads.c",
    );
    let dynamic = directory.path().join("dynamic");
    fs::create_dir(&dynamic).expect("a directory");
    for program in [static_go, static_c, shared(&dynamic, &[])] {
        let plain = Waiting::start(&mut Command::new(&program)).end();
        let toehold = Toehold::start();
        // The tracer attaches at the start of the program, and while it waits.
        let child = Waiting::begin(&mut toehold.patched(&program));
        let number = child.id().to_string();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let mut strace = Command::new("strace");
        strace.args(["-q", "-f", "-o", "/dev/null", "-p", &number]);
        let mut strace = strace.spawn().expect("strace runs");
        std::thread::sleep(std::time::Duration::from_secs(1));
        let has_let_go = |strace: &mut std::process::Child| {
            wait_until(TIME_LIMIT / 4, || {
                strace.try_wait().is_ok_and(|ended| ended.is_some())
            })
        };
        // SAFETY: a child of ours, which lets go of the program when it is interrupted.
        unsafe { libc::kill(strace.id() as libc::pid_t, libc::SIGINT) };
        // strace may wait for a thread that is in vfork and waits for a child that strace itself
        // has stopped. When a tracer is killed, all its traced threads go on.
        if !has_let_go(&mut strace) {
            strace.kill().expect("a child");
            strace.wait().expect("a child");
        }
        let waiting = Waiting::of(child);
        assert!(waiting.counts().is_some(), "{program:?}");
        let mut gdb = Command::new("gdb");
        gdb.args(["-q", "-nx", "-batch", "-p", &number]);
        gdb.args(["-ex", "thread apply all backtrace 3", "-ex", "detach"]);
        let mut gdb = Running::start(gdb, "gdb", directory.path());
        assert!(gdb.wait(TIME_LIMIT).is_some(), "{}", gdb.evidence());
        let said = gdb.stdout();
        assert!(said.contains("#0 "), "{said}");
        assert_eq!(plain, waiting.end(), "{program:?}");
    }
}

#[test]
fn the_race_detector_finds_nothing_in_a_patched_program() {
    if host::require(["cc", "go"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let direct = check(&shared(directory.path(), &["-race"]));
    assert!(direct > 0, "connections go through shared memory");
}

#[test]
fn a_dynamic_go_program_is_patched_when_another_program_executes_it() {
    if host::require(["cc", "go", "strace"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = shared(directory.path(), &[]);
    let plain = Waiting::start(&mut Command::new(&program)).end();
    let toehold = Toehold::start();
    // This needs no tracing, so a debugger does not interfere.
    let mut shell = toehold.patched("sh");
    shell.args([
        "-c",
        "strace -f -o /dev/null \"$0\"; exec \"$0\" </dev/null",
    ]);
    let traced = Waiting::start(shell.arg(&program));
    let connections = toehold.connections().into_iter();
    assert!(connections.filter(Connection::is_direct).count() > 0);
    assert_eq!(traced.end(), (plain.0.clone(), plain.0));
}

#[test]
fn a_dynamic_program_of_rust_is_served_whose_calls_go_past_libc() {
    let program = env!("CARGO_BIN_EXE_raw");
    let plain = Waiting::start(&mut Command::new(program)).end();
    let toehold = Toehold::start();
    let patched = Waiting::start(&mut toehold.patched(program));
    let connections = toehold.connections();
    let direct = connections.iter().filter(|one| one.is_direct()).count();
    assert_eq!(patched.end(), plain);
    assert_eq!(direct, 2, "{connections:?}");
}

/// The program carries the marks of a program of Rust. A program that `run` has become is searched.
/// Any other program would start milliseconds later because of the search.
#[test]
fn a_large_dynamic_program_is_searched_when_run_starts_it() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = compile(directory.path(), "cc", &["-O2", "-w"], "large.c");
    let plain = Waiting::start(&mut Command::new(&program)).end();
    let toehold = Toehold::start();
    let by_run = Waiting::start(&mut toehold.patched(&program));
    let connections = toehold.connections();
    let direct = connections.iter().filter(|one| one.is_direct()).count();
    assert_eq!(direct, 2, "{connections:?}");
    assert_eq!(by_run.end(), plain);
    let mut shell = toehold.patched("sh");
    let by_shell = Waiting::start(shell.args(["-c", "\"$0\"; exit"]).arg(&program));
    let connections = toehold.connections();
    assert!(
        !connections.is_empty() && !connections.iter().any(Connection::is_direct),
        "{connections:?}"
    );
    let bare = &toehold.status()["without_library"];
    assert_eq!(bare.as_array().map(Vec::len), Some(1), "{bare}");
    let reason = bare[0]["reason"].as_str().expect("text");
    let begin =
        "program program makes socket calls past libc, which are not patched: more than 16 MB";
    assert!(reason.starts_with(begin), "{reason}");
    assert_eq!(by_shell.end(), plain);
}

#[test]
fn a_static_program_confines_itself_and_gives_bad_pointers_when_patched() {
    if host::require(["cc", "musl-gcc"]).is_none() {
        return;
    }
    for compiler in ["cc", "musl-gcc"] {
        let directory = tempfile::tempdir().expect("scratch");
        let options = ["-O2", "-w", "-static"];
        let program = compile(directory.path(), compiler, &options, "confined.c");
        let plain = Waiting::start(&mut Command::new(&program)).end();
        let toehold = Toehold::start();
        let patched = Waiting::start(&mut toehold.patched(&program));
        let counts = patched.counts().expect("the library is in the program");
        assert!(counts[libc::SYS_read as usize] > 5000, "{compiler}");
        assert_eq!(plain, patched.end(), "{compiler}");
    }
}

#[test]
fn programs_run_with_a_small_stack() {
    if host::require(["cc", "musl-gcc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    for (compiler, options) in [
        ("cc", &["-O2", "-w", "-pthread"][..]),
        ("cc", &["-O2", "-w", "-static", "-pthread"]),
        ("musl-gcc", &["-O2", "-w", "-static", "-pthread"]),
    ] {
        let program = compile(directory.path(), compiler, options, "standard.c");
        let limited = |mut command: Command| {
            let limit = libc::rlimit {
                rlim_cur: 64 << 10,
                rlim_max: 64 << 10,
            };
            let set = move || {
                // SAFETY: a live limit.
                match unsafe { libc::setrlimit(libc::RLIMIT_STACK, &limit) } {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            };
            // SAFETY: a system call only.
            unsafe { command.pre_exec(set) };
            Waiting::start(&mut command).end()
        };
        let plain = limited(Command::new(&program));
        let toehold = Toehold::start();
        assert_eq!(plain, limited(toehold.patched(&program)), "{compiler}");
        assert!(toehold.status()["channels_made"].as_u64() > Some(0));
    }
}

#[test]
fn calls_fit_into_the_smallest_stack_of_a_thread() {
    check_static("stacks.c");
    check_dynamic("stacks.c");
}

#[test]
fn bad_pointers_have_the_kernels_answers_through_every_door() {
    // One channel for each end of a connection.
    check_answers("pointers.c", 14);
}

#[test]
fn bad_control_messages_have_the_kernels_answers_through_every_door() {
    check_answers("controls.c", 2);
}

#[test]
fn odd_flags_and_lengths_have_the_kernels_answers_through_every_door() {
    check_answers("shapes.c", 2);
}

/// A run-time compiler makes such code. The kernel has these calls. If the calls move bytes of a
/// connection, the connection stays on the kernel. If the calls begin when it is in a ring already,
/// none of their bytes is lost without an error.
#[test]
fn calls_by_instructions_made_at_run_time_lose_nothing_in_silence() {
    if host::require(["cc", "musl-gcc"]).is_none() {
        return;
    }
    const WHOLE: &str = "all made: whole; made writes: whole; made reads: whole; begun late: ";
    const UNSEEN: &str = "bytes moved that the library did not see";
    const WAITS: &str = "the program waits in a way that the library does not see";
    for (compiler, options) in [
        ("cc", &["-O2", "-w"][..]),
        ("cc", &["-O2", "-w", "-static"]),
        ("musl-gcc", &["-O2", "-w"]),
        ("musl-gcc", &["-O2", "-w", "-static"]),
    ] {
        let directory = tempfile::tempdir().expect("scratch");
        let program = compile(directory.path(), compiler, options, "made.c");
        let (plain, _) = Waiting::start(&mut Command::new(&program)).end();
        assert_eq!(plain, format!("{WHOLE}late\n"));
        let toehold = Toehold::start();
        let patched = Waiting::start(&mut toehold.patched(&program));
        let connections = toehold.connections();
        let (line, said) = patched.end();
        assert_eq!(line, format!("{WHOLE}Connection reset by peer\n"), "{said}");
        let reasons = connections.iter().map(|one| one.value["reason"].as_str());
        let reasons: Vec<&str> = reasons.map(Option::unwrap_or_default).collect();
        // Two of each kind. Of the last two, one was reset; the other has not been used since.
        let wanted = [UNSEEN, UNSEEN, UNSEEN, UNSEEN, WAITS, WAITS, "", UNSEEN];
        assert_eq!(reasons, wanted, "{compiler} {options:?}");
    }
}

/// Runs `source`, which prints the results of calls, plain and with the library, for each C library
/// static and dynamic, and compares. At least `channels` connections must use shared memory.
fn check_answers(source: &str, channels: u64) {
    if host::require(["cc", "musl-gcc"]).is_none() {
        return;
    }
    for (compiler, options) in [
        ("cc", &["-O2", "-w"][..]),
        ("cc", &["-O2", "-w", "-static", "-DPAST_LIBC"]),
        ("musl-gcc", &["-O2", "-w"]),
        ("musl-gcc", &["-O2", "-w", "-static", "-DPAST_LIBC"]),
    ] {
        let directory = tempfile::tempdir().expect("scratch");
        let program = compile(directory.path(), compiler, options, source);
        let (_, plain) = Waiting::start(&mut Command::new(&program)).end();
        let toehold = Toehold::start();
        let (_, patched) = Waiting::start(&mut toehold.patched(&program)).end();
        let made = toehold.status()["channels_made"].as_u64();
        assert!(made >= Some(channels), "{compiler} {options:?}: {made:?}");
        let mut complaints = Vec::new();
        for (plain, patched) in plain.lines().zip(patched.lines()) {
            if plain != patched {
                complaints.push(format!("{plain} ({patched})"));
            }
        }
        const LINES_MAX: usize = 20;
        complaints.truncate(LINES_MAX);
        assert!(
            complaints.is_empty(),
            "{compiler} {options:?}: {complaints:#?}"
        );
        assert_eq!(plain.lines().count(), patched.lines().count(), "{compiler}");
    }
}

/// Runs static programs of both C libraries plain and patched, and compares. Their connections went
/// through shared memory.
fn check_static(source: &str) {
    if host::require(["cc", "musl-gcc"]).is_none() {
        return;
    }
    check_in_each(&["-static"], source);
}

/// As [`check_static`], with dynamic programs.
fn check_dynamic(source: &str) {
    if host::require(["cc", "musl-gcc"]).is_none() {
        return;
    }
    check_in_each(&[], source);
}

/// Runs `source`, compiled with `options`, plain and with the library, and compares.
fn check_in_each(options: &[&str], source: &str) {
    check_in_each_and(options, source, |_, _| ());
}

/// As [`check_in_each`]; `check` examines the program that runs with the library, after its work.
fn check_in_each_and(options: &[&str], source: &str, check: impl Fn(&Toehold, &str)) {
    for compiler in ["musl-gcc", "cc"] {
        let directory = tempfile::tempdir().expect("scratch");
        let options = [&["-O2", "-w", "-pthread"], options].concat();
        let program = compile(directory.path(), compiler, &options, source);
        let plain = Waiting::start(&mut Command::new(&program)).end();
        let toehold = Toehold::start();
        let patched = Waiting::start(&mut toehold.patched(&program));
        let status = toehold.status();
        let made = status["channels_made"].as_u64().expect("a number");
        assert!(made > 0, "{compiler}: connections go through shared memory");
        check(&toehold, compiler);
        assert_eq!(plain, patched.end(), "{compiler}");
    }
}

#[test]
fn a_child_of_vfork_gives_a_connection_to_another_program_under_another_number() {
    check_static("vfork.c");
}

#[test]
fn a_connection_that_is_standard_input_of_a_static_program_goes_through_shared_memory() {
    if host::require(["cc", "musl-gcc"]).is_none() {
        return;
    }
    check_in_each_and(&["-static"], "standard.c", |toehold, compiler| {
        let all = toehold.connections();
        let are_direct = all.iter().all(Connection::is_direct);
        assert!(are_direct && all.len() == 2, "{compiler}: {all:?}");
    });
}

#[test]
fn restartable_sequences_are_restarted_in_patched_and_dynamic_programs() {
    check_static("sections.c");
    check_dynamic("sections.c");
}

#[test]
fn clocks_are_read_through_the_vdso_in_patched_and_dynamic_programs() {
    check_static("clocks.c");
    check_dynamic("clocks.c");
}

#[test]
fn a_patched_go_program_reads_clocks_through_the_vdso() {
    if host::require(["go", "strace"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let options = ["CGO_ENABLED=0", "go", "build"];
    let program = compile(directory.path(), "env", &options, "storm.go");
    let calls = directory.path().join("calls");
    let toehold = Toehold::start();
    let child = Waiting::begin(&mut toehold.patched(&program));
    let number = child.id().to_string();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let mut strace = Command::new("strace");
    strace.args(["-q", "-f", "-e", "trace=clock_gettime,gettimeofday,write"]);
    strace.args(["-p", &number, "-o"]).arg(&calls);
    let mut strace = strace.spawn().expect("strace runs");
    let waiting = Waiting::of(child);
    assert!(waiting.counts().is_some());
    waiting.end();
    end_of(&mut strace, TIME_LIMIT);
    let calls = fs::read_to_string(calls).expect("text");
    // The program's single line, and further lines where connections are on the kernel.
    assert!(calls.contains("write(1, "), "{calls}");
    assert!(!calls.contains("gettime"), "{calls}");
}

#[test]
fn threads_that_wait_for_connections_are_cancelled() {
    check_cancelled(&["-static"]);
}

#[test]
fn threads_of_a_dynamic_program_are_cancelled() {
    check_cancelled(&[]);
}

#[test]
fn threads_that_wait_in_any_call_are_cancelled_as_on_the_kernel() {
    check_static("blocked.c");
    check_dynamic("blocked.c");
}

#[test]
fn threads_are_cancelled_at_any_moment() {
    check_static("asynchronous.c");
    check_dynamic("asynchronous.c");
}

/// Threads of a program that is compiled with `options` are cancelled. None of them may be counted
/// as inside a call of the kernel after that: its connection would stay there. None of them may be
/// counted as a sleeper: its peer would ring in vain.
fn check_cancelled(options: &[&str]) {
    if host::require(["cc", "musl-gcc"]).is_none() {
        return;
    }
    check_in_each_and(options, "cancels.c", |toehold, compiler| {
        for connection in toehold.connections() {
            assert!(connection.is_direct(), "{compiler}: {connection:?}");
            let rung = connection.value["doorbells_rung"].as_u64();
            // A wrong count gives one extra doorbell for each of 4000 sleeps. A right count gives a
            // few for each of the 700 threads.
            assert!(rung.is_some_and(|rung| rung < 1000), "{compiler}: {rung:?}");
        }
    });
}
