//! `toehold adapter` as a service manager sees it.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Longer than any adapter takes to answer.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn adapter(runtime_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toehold"));
    // The environment of the test run must not change the outcome.
    command
        .env_remove("TOEHOLD_RUNTIME_DIR")
        .env_remove("LD_PRELOAD")
        .env_remove("NOTIFY_SOCKET");
    command.args(["adapter", "--runtime-dir"]).arg(runtime_dir);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The arguments of an engine that cannot start: the interface does not exist, or the privilege is
/// missing.
const WITHOUT_A_LINK: [&str; 4] = ["--link", "packet:nosuch0", "--address", "10.84.0.2/24"];

/// An adapter that is ended with the test.
struct Adapter(Child);

impl Adapter {
    fn terminate(mut self) -> bool {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("it runs");
        self.0.wait().expect("it ends").success()
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The adapter's next message, one assignment a line.
fn heard(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let length = loop {
        // With a time limit the kernel does not restart the call after a signal (signal(7)).
        match manager.recv(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            heard => break heard.expect("the adapter says it"),
        }
    };
    String::from_utf8(buffer[..length].to_vec()).expect("text")
}

fn says(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A service manager's socket in `scratch`, and an adapter that reports to it.
fn managed(scratch: &Path) -> (UnixDatagram, Command) {
    let socket = scratch.join("manager");
    let manager = UnixDatagram::bind(&socket).expect("a socket");
    manager.set_read_timeout(Some(TIME_LIMIT)).expect("a limit");
    let mut command = adapter(&scratch.join("runtime"));
    command.env("NOTIFY_SOCKET", &socket);
    (manager, command)
}

#[test]
fn a_service_manager_hears_that_it_serves_and_what_is_missing_and_that_it_leaves() {
    let scratch = tempfile::tempdir().expect("a folder");
    let (manager, mut command) = managed(scratch.path());
    command.args(WITHOUT_A_LINK);
    let adapter = Adapter(command.spawn().expect("it starts"));
    let ready = heard(&manager);
    assert!(ready.contains("READY=1\n"), "{ready}");
    assert!(
        ready.contains("STATUS=") && ready.contains("no TCP engine: "),
        "{ready}"
    );
    assert!(adapter.terminate());
    assert!(heard(&manager).contains("STOPPING=1"));
}

/// Any number of seconds is a time.
#[test]
fn an_adapter_may_wait_for_programs_as_long_as_a_number_says() {
    let scratch = tempfile::tempdir().expect("a folder");
    let (manager, mut command) = managed(scratch.path());
    command.args(["--idle-exit", &u64::MAX.to_string()]);
    let adapter = Adapter(command.spawn().expect("it starts"));
    assert!(heard(&manager).contains("READY=1\n"));
    assert!(adapter.terminate());
}

#[test]
fn an_engine_that_is_required_and_does_not_start_is_a_failure() {
    let scratch = tempfile::tempdir().expect("a folder");
    let mut command = adapter(&scratch.path().join("runtime"));
    command.args(WITHOUT_A_LINK).arg("--require-engine");
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let said = says(&output);
    assert!(said.starts_with("toehold: no TCP engine: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn an_engine_that_is_required_must_be_described() {
    let scratch = tempfile::tempdir().expect("a folder");
    let mut command = adapter(&scratch.path().join("runtime"));
    let output = command.arg("--require-engine").output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(says(&output).contains("--link"), "{}", says(&output));
}

/// The options come from the command line, and not from a file.
#[test]
fn options_of_the_engine_that_cannot_be_are_a_wrong_command_line() {
    let scratch = tempfile::tempdir().expect("a folder");
    let file = scratch.path().join("engine.conf");
    std::fs::write(&file, "congestion bbr\n").expect("scratch");
    let file = file.to_str().expect("a name");
    let refused = |arguments: &[&str], words: &str, code| {
        let mut command = adapter(&scratch.path().join("runtime"));
        let output = command.args(arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(says(&output).contains(words), "{}", says(&output));
    };
    refused(&["--link", "eth0"], "`eth0` is not a link", 2);
    refused(&["--coalesce", "100000"], "(0 to 10000)", 2);
    refused(&["--ecn", "2"], "toehold: --ecn: `2` is neither on, ", 2);
    refused(&["--no-offload", "here"], "--no-offload: `here` is no", 2);
    refused(&["--address", "10.0.0.2"], "--address: `10.0.0.2` has", 2);
    let beside = ["--set", "ecn=on", "--memory", "64"];
    refused(&beside, "cannot be used with", 2);
    refused(&["--congestion", "bbr"], "an engine needs a link", 2);
    refused(&["--config", file], "an engine needs a link", 1);
}

#[test]
fn an_adapter_with_a_wrong_rule_does_not_start_and_programs_run_on_the_kernel() {
    let scratch = tempfile::tempdir().expect("a folder");
    let directory = scratch.path().join("toehold");
    std::fs::create_dir(&directory).expect("scratch");
    let file = directory.join("toehold.conf");
    std::fs::write(&file, "# rules\nport 5432 path kernel\n").expect("scratch");
    let expected = format!(
        "{}, line 2: `kernel` is not a path of a rule: expected auto or host",
        file.display()
    );
    let runtime = scratch.path().join("runtime");
    let mut command = adapter(&runtime);
    let output = command.env("XDG_CONFIG_HOME", scratch.path()).output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(says(&output), format!("toehold: {expected}\n"));

    let mut command = Command::new(env!("CARGO_BIN_EXE_toehold"));
    command
        .args(["rules"])
        .env("XDG_CONFIG_HOME", scratch.path());
    let output = command.output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(says(&output), format!("toehold: {expected}\n"));

    let mut command = Command::new(env!("CARGO_BIN_EXE_toehold"));
    command.env_remove("LD_PRELOAD").env_remove("TOEHOLD_LIB");
    command.env("XDG_CONFIG_HOME", scratch.path());
    // Any ELF file: the program makes no connection.
    let library = scratch.path().join("libtoehold.so");
    std::fs::copy(env!("CARGO_BIN_EXE_toehold"), &library).expect("scratch");
    command.env("TOEHOLD_LIB", &library);
    command.args(["run", "--runtime-dir"]).arg(&runtime);
    let output = command.args(["--", "echo", "unharmed"]).output();
    let output = output.expect("it runs");
    assert_eq!(output.stdout, b"unharmed\n");
    assert!(output.status.success());
    let said = says(&output);
    assert!(
        said.contains(&format!("{expected}; connections stay on kernel TCP")),
        "{said}"
    );
}

/// `HOME` stays the former user's under setpriv(1) and in some services.
#[test]
fn a_home_that_this_user_may_not_look_into_has_no_rules() {
    let home = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(home.path().join(".config/toehold")).expect("scratch");
    let file = home.path().join(".config/toehold/toehold.conf");
    std::fs::write(file, "port 5432 path kernel\n").expect("scratch");
    let closed = std::fs::Permissions::from_mode(0o0);
    std::fs::set_permissions(home.path(), closed).expect("scratch");
    let toehold = env!("CARGO_BIN_EXE_toehold");
    let mut command = match rustix::process::geteuid().is_root() {
        // Root may look everywhere.
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", toehold]);
            command
        }
        false => Command::new(toehold),
    };
    command.arg("rules").env("HOME", home.path());
    let output = command.env_remove("XDG_CONFIG_HOME").output();
    let open = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(home.path(), open).expect("scratch");
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", says(&output));
}

#[test]
fn rules_are_shown_in_their_order() {
    let scratch = tempfile::tempdir().expect("a folder");
    let file = scratch.path().join("some.conf");
    std::fs::write(&file, "program a   path auto # yes\n\nport 80 path host\n").expect("scratch");
    let mut command = Command::new(env!("CARGO_BIN_EXE_toehold"));
    let output = command.arg("rules").arg(&file).output().expect("it runs");
    let name = file.display();
    let expected =
        format!("{name}, line 1  program a path auto\n{name}, line 3  port 80 path host\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn an_adapter_serves_with_a_full_standard_error() {
    let scratch = tempfile::tempdir().expect("a folder");
    let (manager, mut command) = managed(scratch.path());
    let full = File::options().write(true).open("/dev/full");
    // The adapter reports that it has no engine.
    command.args(WITHOUT_A_LINK).stderr(full.expect("a device"));
    let adapter = Adapter(command.spawn().expect("it starts"));
    assert!(heard(&manager).contains("READY=1\n"));
    assert!(adapter.terminate());
}
