//! `toehold run` from the outside: it runs the program despite any obstacle, and ends with the
//! program's status.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid, Signal, kill_process};

fn toehold() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toehold"));
    // The environment of the test run must not change the outcome.
    command
        .env_remove("TOEHOLD_LIB")
        .env_remove("TOEHOLD_RUNTIME_DIR")
        .env_remove("LD_PRELOAD");
    command
}

fn output(command: &mut Command) -> Output {
    command.output().expect("toehold runs")
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Exactly one line, from us.
fn assert_one_sentence(text: &str) {
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("toehold: "), "{text}");
}

#[test]
fn the_program_s_status_is_ours() {
    for status in [0, 1, 42] {
        let script = format!("exit {status}");
        let output = output(toehold().args(["run", "--path", "host", "--", "sh", "-c", &script]));
        assert_eq!(output.status.code(), Some(status));
        assert_eq!(error_of(&output), "");
    }
}

#[test]
fn the_program_begins_with_the_signal_and_the_descriptors_that_run_was_given() {
    let looks = "trap '' USR1; grep SigIgn: /proc/$$/status; \\
        for fd in 0 2; do test -e /proc/$$/fd/$fd || echo no $fd; done";
    for path in ["host", "auto"] {
        let mut command = toehold();
        command.args(["run", "--path", path, "--", "sh", "-c", looks]);
        // Without a library, `auto` prints a sentence and then starts the program.
        command.env("TOEHOLD_LIB", "/nonexistent/libtoehold.so");
        let usual = output(&mut command);
        // SAFETY: two system calls.
        let strange = output(unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                libc::close(0);
                libc::close(2);
                Ok(())
            })
        });
        let [usual, strange] = [usual, strange].map(|one| {
            let text = String::from_utf8_lossy(&one.stdout).into_owned();
            let (mask, closed) = text.split_once('\n').expect("a line");
            let mask = mask.rsplit('\t').next().expect("a field");
            let mask = u64::from_str_radix(mask, 16).expect("a number");
            (mask >> (libc::SIGPIPE - 1) & 1, closed.to_owned())
        });
        assert_eq!(usual, (0, String::new()), "{path}");
        assert_eq!(strange, (1, "no 0\nno 2\n".to_owned()), "{path}");
    }
}

#[test]
fn a_program_that_begins_with_an_adapter_finds_no_signal_of_a_child() {
    let scratch = tempfile::tempdir().expect("scratch directory");
    let dir = scratch.path().join("run");
    let mut command = toehold();
    // The loader ignores this library.
    command.env("TOEHOLD_LIB", env!("CARGO_BIN_EXE_toehold"));
    command.args(["run", "--runtime-dir"]).arg(&dir);
    let looks = "grep Pnd: /proc/$$/status";
    // SAFETY: the closure writes the set before it reads the set.
    let output = output(unsafe {
        command.args(["--", "sh", "-c", looks]).pre_exec(|| {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            Ok(())
        })
    });
    terminate(toehold_adapter::client::ping(&dir).expect("started").pid);
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    let none = "0000000000000000";
    assert_eq!(words, ["SigPnd:", none, "ShdPnd:", none]);
}

/// A file to which nothing can be written.
fn full() -> File {
    let mut options = File::options();
    options.write(true).open("/dev/full").expect("a device")
}

#[test]
fn a_full_standard_error_keeps_no_program_from_running() {
    let mut warned = toehold();
    warned.env("TOEHOLD_LIB", "/nonexistent/libtoehold.so");
    warned.args(["run", "--", "true"]).stderr(full());
    assert_eq!(output(&mut warned).status.code(), Some(0));
    let mut missing = toehold();
    missing.args(["run", "--", "toehold-no-such-program"]);
    let status = output(missing.stderr(full())).status;
    assert_eq!(status.code(), Some(127));
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    for words in [&["lab", "list"][..], &["rules"], &["completions", "bash"]] {
        let mut command = toehold();
        let output = command.args(words).stdout(full()).stderr(Stdio::piped());
        let output = output.spawn().and_then(|child| child.wait_with_output());
        let output = output.expect("toehold runs");
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert_one_sentence(&error_of(&output));
    }
}

#[test]
fn a_missing_program_is_127_and_an_unexecutable_one_126() {
    let missing = output(toehold().args(["run", "--", "toehold-no-such-program"]));
    assert_eq!(missing.status.code(), Some(127));
    assert_one_sentence(&error_of(&missing));
    let refused = output(toehold().args(["run", "--", "/etc/passwd"]));
    assert_eq!(refused.status.code(), Some(126));
    assert_one_sentence(&error_of(&refused));
}

#[test]
fn wrong_options_are_2() {
    for words in [
        &["run"][..],
        &["run", "--path", "fast", "--", "true"],
        &["runn"],
        &["capture", "-c", "0"],
        &[],
    ] {
        assert_eq!(
            output(toehold().args(words)).status.code(),
            Some(2),
            "{words:?}"
        );
    }
}

#[test]
fn without_a_library_the_program_runs_after_one_sentence() {
    let output = output(
        toehold()
            .env("TOEHOLD_LIB", "/nonexistent/libtoehold.so")
            .args(["run", "--", "sh", "-c", "echo \"[$LD_PRELOAD]\""]),
    );
    assert!(output.status.success());
    assert_eq!(output.stdout, b"[]\n");
    assert_one_sentence(&error_of(&output));
    assert!(error_of(&output).contains("/nonexistent/libtoehold.so"));
}

#[test]
fn a_library_that_is_cut_short_is_not_loaded() {
    let empty = tempfile::NamedTempFile::new().expect("room");
    let output = output(toehold().env("TOEHOLD_LIB", empty.path()).args([
        "run",
        "--",
        "sh",
        "-c",
        "echo \"[$LD_PRELOAD]\"",
    ]));
    assert!(output.status.success());
    assert_eq!(output.stdout, b"[]\n");
    assert_one_sentence(&error_of(&output));
    assert!(error_of(&output).contains("is empty, truncated, or not a library"));
}

#[test]
fn a_refused_runtime_directory_means_the_host_path() {
    let scratch = tempfile::tempdir().expect("scratch directory");
    let open = scratch.path().join("open");
    fs::create_dir(&open).expect("directory");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).expect("mode");
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink("/tmp", &link).expect("link");
    for (dir, word) in [(&open, "chmod 700"), (&link, "symbolic link")] {
        let output = output(
            // Any ELF file serves as a library that must not be loaded.
            toehold()
                .env("TOEHOLD_LIB", env!("CARGO_BIN_EXE_toehold"))
                .args(["run", "--runtime-dir"])
                .arg(dir)
                .args(["--", "sh", "-c", "echo \"[$LD_PRELOAD]\""]),
        );
        assert!(output.status.success());
        assert_eq!(output.stdout, b"[]\n");
        assert_one_sentence(&error_of(&output));
        assert!(error_of(&output).contains(word), "{}", error_of(&output));
    }
}

#[test]
fn the_host_path_undoes_an_outer_run() {
    let output = output(toehold().env("LD_PRELOAD", "/x/libtoehold.so").args([
        "run",
        "--path",
        "host",
        "--",
        "sh",
        "-c",
        "echo \"[$LD_PRELOAD]\"",
    ]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "[]\n");
}

#[test]
fn an_adapter_is_started_and_is_no_child_of_the_program() {
    let scratch = tempfile::tempdir().expect("scratch directory");
    let dir = scratch.path().join("run");
    let background = output(
        toehold()
            .args(["adapter", "--background", "--runtime-dir"])
            .arg(&dir),
    );
    assert!(background.status.success(), "{}", error_of(&background));
    let running = toehold_adapter::client::ping(&dir).expect("an adapter");
    // A second start finds the first adapter.
    let again = output(
        toehold()
            .args(["adapter", "--background", "--runtime-dir"])
            .arg(&dir),
    );
    assert!(again.status.success(), "{}", error_of(&again));
    assert_eq!(
        toehold_adapter::client::ping(&dir)
            .expect("still there")
            .pid,
        running.pid
    );
    let stat = fs::read_to_string(format!("/proc/{}/stat", running.pid)).expect("it runs");
    let parent = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(1));
    assert_ne!(parent, Some(std::process::id().to_string().as_str()));
    let status = output(
        toehold()
            .args(["status", "--json", "--runtime-dir"])
            .arg(&dir),
    );
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(status["processes"], serde_json::json!([]));
    let detach = output(toehold().args(["detach", "all", "--runtime-dir"]).arg(&dir));
    assert!(detach.status.success(), "{}", error_of(&detach));
    terminate(running.pid);
}

#[test]
fn adapters_started_in_the_same_moment_become_one() {
    for _ in 0..10 {
        let scratch = tempfile::tempdir().expect("scratch directory");
        let dir = scratch.path().join("run");
        let all: Vec<_> = (0..6)
            .map(|_| {
                let mut one = toehold();
                one.args(["adapter", "--background", "--runtime-dir"])
                    .arg(&dir);
                thread::spawn(move || output(&mut one))
            })
            .collect();
        for one in all {
            let output = one.join().expect("it does not panic");
            assert!(output.status.success(), "{}", error_of(&output));
        }
        let running = toehold_adapter::client::ping(&dir).expect("an adapter");
        terminate(running.pid);
    }
}

/// A directory has the place of the socket; a full disk is such an obstacle, too.
#[test]
fn an_adapter_that_cannot_start_gives_its_reason() {
    let scratch = tempfile::tempdir().expect("room");
    let dir = scratch.path().join("run");
    fs::create_dir_all(dir.join("adapter.sock")).expect("room");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("ours");
    let mut command = toehold();
    // The loader ignores this library.
    command.env("TOEHOLD_LIB", env!("CARGO_BIN_EXE_toehold"));
    command.args(["run", "--runtime-dir"]).arg(&dir);
    let output = output(command.args(["--", "true"]));
    assert_eq!(output.status.code(), Some(0));
    let said = error_of(&output);
    let first = said.lines().find(|line| line.starts_with("toehold: "));
    let expected = "toehold: the adapter ended at once: cannot listen on ";
    assert!(
        first.is_some_and(|line| line.starts_with(expected) && line.contains("Is a directory")),
        "{said}"
    );
}

#[test]
fn an_adapter_of_another_version_means_the_host_path() {
    let scratch = tempfile::tempdir().expect("scratch directory");
    let dir = scratch.path().join("run");
    fs::create_dir(&dir).expect("directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("mode");
    let adapter = another_version(&dir.join("adapter.sock"));
    let output = output(
        toehold()
            .env("TOEHOLD_LIB", env!("CARGO_BIN_EXE_toehold"))
            .args(["run", "--runtime-dir"])
            .arg(&dir)
            .args(["--", "sh", "-c", "echo \"[$LD_PRELOAD]\""]),
    );
    adapter.join().expect("asked once");
    assert!(output.status.success());
    assert_eq!(output.stdout, b"[]\n");
    assert_one_sentence(&error_of(&output));
    assert!(
        error_of(&output).contains("another version"),
        "{}",
        error_of(&output)
    );
}

/// Ends the adapter that a test has started.
fn terminate(pid: impl TryInto<i32>) {
    let pid = pid.try_into().ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process"), Signal::TERM).expect("it runs");
}

/// Listens like an adapter.
fn adapter_socket(path: &Path) -> OwnedFd {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let listener = socket_with(family, SocketType::SEQPACKET, flags, None).expect("a socket");
    let address = SocketAddrUnix::new(path).expect("a short path");
    net::bind(&listener, &address).expect("nobody is there");
    net::listen(&listener, 1).expect("it is bound");
    listener
}

/// Listens like an adapter and answers one question with a version that does not exist.
fn another_version(path: &Path) -> thread::JoinHandle<()> {
    let listener = adapter_socket(path);
    let patience = Some(Duration::from_secs(60));
    set_socket_timeout(&listener, Timeout::Recv, patience).expect("a socket");
    thread::spawn(move || {
        let mut client = File::from(net::accept(&listener).expect("somebody asks"));
        let mut message = [0u8; 256];
        let length = client.read(&mut message).expect("a question");
        // The second word of every message is its version.
        message[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
        client.write_all(&message[..length]).expect("an answer");
    })
}

#[test]
fn without_an_adapter_status_and_detach_say_so() {
    let scratch = tempfile::tempdir().expect("scratch directory");
    for words in [["status", "--json"], ["detach", "all"]] {
        let output = output(
            toehold()
                .args(words)
                .arg("--runtime-dir")
                .arg(scratch.path().join("run")),
        );
        assert_eq!(output.status.code(), Some(1));
        assert_one_sentence(&error_of(&output));
        assert!(
            error_of(&output).contains("no adapter"),
            "{}",
            error_of(&output)
        );
    }
}

#[test]
fn where_the_system_adapter_does_not_run_its_own_start_is_advised() {
    let scratch = tempfile::tempdir().expect("scratch directory");
    let mut command = toehold();
    command.args(["status", "--adapter", "system"]);
    command.env("TOEHOLD_SYSTEM_DIR", scratch.path().join("none"));
    let said = error_of(&output(&mut command));
    assert_one_sentence(&said);
    assert!(said.contains("systemctl start toehold-adapter"), "{said}");
}

#[test]
fn empty_variable_does_not_hide_the_system_adapter() {
    let scratch = tempfile::tempdir().expect("scratch directory");
    // An adapter too busy to answer counts as running.
    let _busy = adapter_socket(&scratch.path().join("adapter.sock"));
    let mut command = toehold();
    command.arg("status").env("TOEHOLD_RUNTIME_DIR", "");
    // This user's own adapter has ended.
    fs::create_dir(scratch.path().join("toehold")).expect("a directory");
    command.env("XDG_RUNTIME_DIR", scratch.path());
    command.env("TOEHOLD_SYSTEM_DIR", scratch.path());
    let said = error_of(&output(&mut command));
    assert!(said.contains("did not answer"), "{said}");
}

#[test]
fn doctor_finds_a_read_only_runtime_directory() {
    let scratch = tempfile::tempdir().expect("scratch directory");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
    command.arg("mount -t tmpfs -o ro,mode=700 none \"$0\" && exec \"$1\" doctor");
    command
        .arg(scratch.path())
        .arg(env!("CARGO_BIN_EXE_toehold"));
    command.env("TOEHOLD_RUNTIME_DIR", scratch.path());
    let output = output(&mut command);
    let said = String::from_utf8_lossy(&output.stdout);
    if said.is_empty() {
        eprintln!("SKIPPED: no mount by an own user: {}", error_of(&output));
        return;
    }
    let line = said.lines().find(|line| line.contains("runtime directory"));
    let line = line.expect("a line about it");
    assert!(
        line.contains("missing") && line.contains("read-only"),
        "{said}"
    );
}

#[test]
fn manual_pages_and_completions_are_made() {
    let scratch = tempfile::tempdir().expect("scratch directory");
    let man = output(
        toehold()
            .args(["man", "--out"])
            .arg(scratch.path().join("man1")),
    );
    assert!(man.status.success(), "{}", error_of(&man));
    for page in [
        "toehold.1",
        "toehold-run.1",
        "toehold-compare.1",
        "toehold-doctor.1",
        "toehold-engine.5",
    ] {
        let text = fs::read_to_string(scratch.path().join("man1").join(page)).expect(page);
        assert!(text.contains(".SH"), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = output(toehold().args(["completions", shell]));
        assert!(
            String::from_utf8_lossy(&script.stdout).contains("compare"),
            "{shell}"
        );
    }
}

/// Words of a command line, and what bash then offers for the last one.
fn offered_by_bash(words: &[&str]) -> Vec<String> {
    let script = output(toehold().args(["completions", "bash"])).stdout;
    let script = String::from_utf8(script).expect("text");
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let ask = format!(
        "{script}\nCOMP_WORDS=({})\nCOMP_CWORD={}\n_toehold_or_program toehold '{}' '{}'\n\
        printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quoted.join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let bash = output(Command::new("bash").args(["--norc", "-c", &ask]));
    let offers = String::from_utf8(bash.stdout).expect("text");
    offers.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_programs_behind_run() {
    let has = |words: &[&str], offer: &str| {
        let offers = offered_by_bash(words);
        assert!(
            offers.iter().any(|one| one == offer),
            "{words:?}: {offers:?}"
        );
    };
    has(&["toehold", "run", "basenam"], "basename");
    has(&["toehold", "run", "--", "basenam"], "basename");
    has(
        &[
            "toehold", "run", "--path", "direct", "--wait", "=", "poll", "basenam",
        ],
        "basename",
    );
    has(&["toehold", "run", "--pa"], "--path");
    has(&["toehold", "run", "--path", "d"], "direct");
    has(&["toehold", "sta"], "status");
    assert_eq!(offered_by_bash(&["toehold", "run", "cat", "--he"]), [""]);
}
