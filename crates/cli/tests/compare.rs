//! `toehold compare` from the outside, with servers and clients that every host has.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// No more options.
const NONE: &[&str] = &[];

/// A comparison of the host path with itself: needs neither library nor adapter.
fn compare(server: &str, client: &str, more: &[impl AsRef<OsStr>]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_toehold"))
        .args(["compare", "--paths", "host,host", "--no-syscalls"])
        .args(["--server", server, "--client", client])
        .args(more)
        .output()
        .expect("toehold runs")
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn assert_fails_with(output: &Output, words: &str) {
    assert_eq!(output.status.code(), Some(1));
    let error = error_of(output);
    assert!(error.contains(words), "{error}");
}

#[test]
fn every_round_is_in_the_json() {
    let more = [
        "--ready", "sleep:0", "--rounds", "4", "--warmup", "1", "--aa", "--json",
    ];
    let output = compare("sleep 600", "true", &more);
    assert!(output.status.success(), "{}", error_of(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["schema"], "toehold-compare/2");
    let labels: Vec<&str> = report["arms"]
        .as_array()
        .expect("arms")
        .iter()
        .filter_map(|arm| arm["label"].as_str())
        .collect();
    assert_eq!(labels, ["host", "host #2", "host again"]);
    for arm in report["arms"].as_array().expect("arms") {
        assert_eq!(arm["rounds"].as_array().map(Vec::len), Some(4));
        assert_eq!(arm["failures"], Value::Array(Vec::new()));
    }
    let metric = &report["metrics"][0];
    assert_eq!(metric["name"], "run time");
    assert_eq!(
        metric["arms"][0]["samples"].as_array().map(Vec::len),
        Some(4)
    );
    assert!(metric["arms"][1]["ratio"]["low"].is_number());
    assert!(metric["noise_floor"].is_number());
    assert!(report["environment"]["kernel"].is_string());
}

#[test]
fn the_page_is_written_and_the_table_names_both_paths() {
    let folder = tempfile::tempdir().expect("room");
    let page = folder.path().join("page.html");
    let path = page.to_string_lossy().into_owned();
    let more = [
        "--ready", "sleep:0", "--rounds", "1", "--warmup", "0", "--html", &path,
    ];
    let output = compare("sleep 600", "true", &more);
    assert!(output.status.success(), "{}", error_of(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(
        table.contains("host #2") && table.contains("run time"),
        "{table}"
    );
    let html = fs::read_to_string(&page).expect("the page");
    assert!(html.contains("<svg") && html.ends_with("</html>\n"));
}

/// The report names the command, whose words may be any bytes.
#[test]
fn a_page_may_have_a_name_that_is_no_text() {
    let folder = tempfile::tempdir().expect("room");
    let page = folder.path().join(OsStr::from_bytes(b"p\xff.html"));
    let more = [
        "--ready", "sleep:0", "--rounds", "1", "--warmup", "0", "--html",
    ];
    let more = more.map(OsStr::new).into_iter().chain([page.as_os_str()]);
    let output = compare("sleep 600", "true", &more.collect::<Vec<_>>());
    assert!(output.status.success(), "{}", error_of(&output));
    assert!(page.is_file());
}

#[test]
fn a_server_that_ends_early_is_explained_with_its_own_words() {
    let output = compare("sh -c 'echo no luck >&2; exit 7'", "true", NONE);
    assert_eq!(output.status.code(), Some(1));
    let error = error_of(&output);
    assert!(
        error.contains("exited with status 7") && error.matches("no luck").count() == 1,
        "{error}"
    );
}

#[test]
fn a_client_that_fails_is_explained_with_its_own_words() {
    let output = compare(
        "sleep 600",
        "sh -c 'echo refused >&2; exit 3'",
        &["--ready", "sleep:0"],
    );
    assert_eq!(output.status.code(), Some(1));
    let error = error_of(&output);
    assert!(
        error.contains("exited with status 3") && error.contains("refused"),
        "{error}"
    );
}

#[test]
fn a_client_without_end_is_ended() {
    let output = compare(
        "sleep 600",
        "sleep 600",
        &["--ready", "sleep:0", "--timeout", "1"],
    );
    assert_fails_with(&output, "--timeout");
}

#[test]
fn a_server_that_never_listens_is_ended() {
    let output = compare("sleep 600", "true", &["--ready-timeout", "1"]);
    assert_fails_with(&output, "not ready (listens)");
}

#[test]
fn a_probe_that_does_not_end_is_ended() {
    let more = ["--ready", "cmd:sleep 600", "--ready-timeout", "1"];
    let output = compare("sleep 601", "true", &more);
    assert_fails_with(&output, "not ready (cmd:sleep 600) within 1 s");
}

#[test]
fn a_probe_that_is_not_there_is_named_at_once() {
    let more = ["--ready", "cmd:toehold-no-such-probe"];
    let output = compare("sleep 600", "true", &more);
    assert_fails_with(&output, "cannot run cmd:toehold-no-such-probe: ");
}

#[test]
fn a_server_that_listens_on_a_unix_socket_only_is_ready() {
    let folder = tempfile::tempdir().expect("room");
    let socket = folder.path().join("socket");
    let socket = socket.display();
    let program = env!("CARGO_BIN_EXE_toehold");
    // The server of the round before has left its socket.
    let server = format!("rm -f {socket}; exec {program} lab server --listen unix:{socket}");
    let output = compare(
        &format!("sh -c '{server}'"),
        &format!("{program} lab client --seconds 0.05 --warmup 0 unix:{socket}"),
        &["--rounds", "1", "--warmup", "0"],
    );
    assert!(output.status.success(), "{}", error_of(&output));
}

#[test]
fn an_interruption_ends_everything_that_was_started() {
    let temporary = tempfile::tempdir().expect("room");
    let mut comparison = Command::new(env!("CARGO_BIN_EXE_toehold"))
        .args(["compare", "--paths", "host,host", "--ready", "sleep:0"])
        .args(["--server", "sleep 600", "--client", "sleep 600"])
        .env("TMPDIR", temporary.path())
        .stderr(Stdio::piped())
        .spawn()
        .expect("toehold runs");
    // The comparison's own directory; no entries when there is none.
    let scratch = || {
        let mut entries = fs::read_dir(temporary.path()).expect("readable");
        entries.next().map(|entry| entry.expect("readable").path())
    };
    while !scratch().is_some_and(|scratch| scratch.join("client.out").exists()) {
        assert_eq!(
            comparison.try_wait().expect("a status"),
            None,
            "ended by itself"
        );
        thread::yield_now();
    }
    kill_process(Pid::from_child(&comparison), Signal::INT).expect("it runs");
    let output = comparison.wait_with_output().expect("it ends");
    assert_fails_with(&output, "interrupted after 0 of 22 runs");
    assert_eq!(scratch(), None);
}

/// A run on each of two paths is a round. The fifth run has no second one, and the sixth waits.
#[test]
fn an_interrupted_comparison_reports_its_finished_rounds() {
    let folder = tempfile::tempdir().expect("room");
    let [runs, waits] = ["runs", "waits"].map(|name| folder.path().join(name));
    let client = format!(
        "sh -c 'echo >> {runs}; test $(wc -l < {runs}) -lt 6 || {{ touch {waits}; sleep 600; }}'",
        runs = runs.display(),
        waits = waits.display()
    );
    let page = folder.path().join("page.html");
    let mut comparison = Command::new(env!("CARGO_BIN_EXE_toehold"))
        .args(["compare", "--paths", "host,host", "--ready", "sleep:0"])
        .args(["--rounds", "10", "--warmup", "0", "--json"])
        .args(["--server", "sleep 600", "--client", &client, "--html"])
        .arg(&page)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("toehold runs");
    while !waits.exists() {
        let ended = comparison.try_wait().expect("a status");
        assert_eq!(ended, None, "ended by itself");
        thread::yield_now();
    }
    kill_process(Pid::from_child(&comparison), Signal::INT).expect("it runs");
    let output = comparison.wait_with_output().expect("it ends");
    assert_fails_with(
        &output,
        "interrupted after 5 of 20 runs; the report is about",
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["interruption"], "interrupted after 5 of 20 runs");
    assert_eq!(report["plan"]["rounds"], 2);
    for arm in report["arms"].as_array().expect("arms") {
        assert_eq!(arm["rounds"].as_array().map(Vec::len), Some(2));
    }
    let page = fs::read_to_string(page).expect("a page");
    assert!(page.contains("interrupted after 5 of 20 runs"), "{page}");
}

/// nohup(1) ignores SIGHUP, and a comparison that it has started ignores it, too.
#[test]
fn a_comparison_under_nohup_outlives_its_terminal() {
    let folder = tempfile::tempdir().expect("room");
    let [begun, end] = ["begun", "end"].map(|name| folder.path().join(name));
    let client = format!(
        "sh -c 'touch {}; until test -e {}; do sleep 0.01; done'",
        begun.display(),
        end.display()
    );
    let mut comparison = Command::new("/bin/sh")
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_toehold"))
        .args(["compare", "--paths", "host", "--no-syscalls"])
        .args(["--ready", "sleep:0", "--rounds", "1", "--warmup", "0"])
        .args(["--server", "sleep 600", "--client", &client])
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell runs");
    while !begun.exists() {
        let ended = comparison.try_wait().expect("a status");
        assert_eq!(ended, None, "ended by itself");
        thread::yield_now();
    }
    kill_process(Pid::from_child(&comparison), Signal::HUP).expect("it runs");
    fs::write(end, "").expect("room");
    let output = comparison.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", error_of(&output));
}

#[test]
fn a_missing_program_is_named() {
    let output = compare("toehold-no-such-server", "true", NONE);
    assert_fails_with(&output, "toehold-no-such-server");
}

#[test]
fn a_comparison_without_the_library_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_toehold"))
        .env("TOEHOLD_LIB", "/nonexistent/libtoehold.so")
        .args(["compare", "--server", "sleep 600", "--client", "true"])
        .output()
        .expect("toehold runs");
    assert_fails_with(&output, "/nonexistent/libtoehold.so");
}

#[test]
fn wrong_options_are_2() {
    for more in [
        &["--ready", "udp:5"][..],
        &["--rounds", "0"],
        &["--timeout", "18446744073709551615"],
        &["--ready-timeout", "0"],
        &["--paths", "fast"],
        &["--pin", "both"],
    ] {
        assert_eq!(
            compare("sleep 600", "true", more).status.code(),
            Some(2),
            "{more:?}"
        );
    }
}
