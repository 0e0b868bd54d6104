//! The system adapter: programs of different users, each as its own user, and who may do what.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use toehold_e2e::{Running, host, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_stream");
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Users that no system has: only their numbers count.
const SERVER: u32 = 60_001;
const CLIENT: u32 = 60_002;
const STRANGER: u32 = 60_003;

/// A system adapter in a directory of its own, and programs that any user may run.
struct Host {
    scratch: TempDir,
    command: PathBuf,
    library: PathBuf,
    program: PathBuf,
    adapter: Option<Running>,
}

impl Host {
    /// `None`, said loudly, without the right to become other users.
    fn start() -> Option<Host> {
        // SAFETY: cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            host::skipped("the system adapter needs root");
            return None;
        }
        let scratch = tempfile::Builder::new().prefix("toehold-e2e-").tempdir();
        let scratch = scratch.expect("the temporary directory is writable");
        open_to_all(scratch.path());
        let library = toehold_e2e::toehold::library();
        let command = library.with_file_name("toehold");
        let copied = |from: &Path| {
            let to = scratch.path().join(from.file_name().expect("a file"));
            std::fs::copy(from, &to).expect("the scratch directory is writable");
            to
        };
        let mut host = Host {
            command: copied(&command),
            library: copied(&library),
            program: copied(Path::new(PROGRAM)),
            scratch,
            adapter: None,
        };
        for user in [SERVER, CLIENT, STRANGER] {
            let home = host.home(user);
            std::fs::create_dir(&home).expect("scratch");
            std::os::unix::fs::chown(&home, Some(user), Some(user)).expect("root may");
        }
        host.start_adapter();
        Some(host)
    }

    fn start_adapter(&mut self) {
        let mut command = Command::new(&self.command);
        command.args(["adapter", "--system"]);
        command.env("TOEHOLD_SYSTEM_DIR", self.system_dir());
        let mut adapter = Running::start(command, "adapter", self.scratch.path());
        let up = wait_until(TIME_LIMIT, || {
            adapter.ended().is_some() || toehold_adapter::client::ping(&self.system_dir()).is_ok()
        });
        assert!(up && adapter.ended().is_none(), "{}", adapter.outputs());
        self.adapter = Some(adapter);
    }

    fn adapter(&mut self) -> &mut Running {
        self.adapter.as_mut().expect("started")
    }

    /// The adapter dies suddenly.
    fn kill_adapter(&mut self) {
        self.adapter().signal(libc::SIGKILL);
        assert!(
            self.adapter().wait(TIME_LIMIT).is_some(),
            "SIGKILL does not kill"
        );
    }

    fn system_dir(&self) -> PathBuf {
        self.scratch.path().join("system")
    }

    fn home(&self, user: u32) -> PathBuf {
        self.scratch.path().join(format!("home-{user}"))
    }

    /// A `toehold` subcommand as a user would type it.
    fn toehold_as(&self, user: u32, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        let user = user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]);
        command.arg(&self.command).args(words);
        let home = self.home(user.parse().expect("a number"));
        command.current_dir(&home).env("HOME", &home);
        // A session has a directory of its own there, which is not to be used.
        command.env("XDG_RUNTIME_DIR", &home);
        command.env_remove("TOEHOLD_RUNTIME_DIR");
        command.env("TOEHOLD_LIB", &self.library);
        command.env("TOEHOLD_SYSTEM_DIR", self.system_dir());
        command
    }

    /// Everything that root is told.
    fn status(&self) -> Value {
        let mut command = Command::new(&self.command);
        command.args(["status", "--json", "--adapter", "system"]);
        command.env("TOEHOLD_SYSTEM_DIR", self.system_dir());
        let output = command.stdin(Stdio::null()).output().expect("toehold runs");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// The connections of a process, by what root is told.
    fn connections(&self, pid: u32) -> Vec<Value> {
        let status = self.status();
        let processes = status["processes"].as_array().cloned().unwrap_or_default();
        let mut processes = processes.into_iter();
        let its = processes.find(|process| process["pid"].as_u64() == Some(pid.into()));
        its.map_or(Vec::new(), |process| {
            let connections = process["connections"].as_array();
            connections.cloned().unwrap_or_default()
        })
    }

    fn is_direct(&self, pid: u32) -> bool {
        let connections = self.connections(pid);
        let is = |one: &Value, key: &str| one[key].as_str() == Some("direct");
        let both = |one: &&Value| is(one, "tx_path") && is(one, "rx_path");
        connections.iter().filter(both).count() == 1
    }

    /// A server and a client of two users, connected; each sends `bytes`, 0 for without end.
    fn pair(&self, name: &str, bytes: u64) -> [Running; 2] {
        self.pair_by(name, bytes, &["run", "--"])
    }

    /// As [`Host::pair`], with the client under `toehold` and these words.
    fn pair_by(&self, name: &str, bytes: u64, clients: &[&str]) -> [Running; 2] {
        let program = self.program.to_string_lossy().into_owned();
        let start = |user: u32, role: &[&str]| {
            let ledger = self.home(user).join(format!("{name}.ledger"));
            let (ledger, bytes) = (ledger.to_string_lossy(), bytes.to_string());
            let under = if user == CLIENT {
                clients
            } else {
                &["run", "--"]
            };
            let program = [&*program];
            let words = under.iter().chain(&program).chain(role).copied();
            let words: Vec<&str> = words.chain(["7", &bytes, &ledger]).collect();
            let command = self.toehold_as(user, &words);
            Running::start(command, &format!("{name}.{user}"), self.scratch.path())
        };
        let mut server = start(SERVER, &["listen"]);
        let mut port = None;
        wait_until(TIME_LIMIT, || {
            let words = server.stdout();
            port = words
                .strip_prefix("port ")
                .and_then(|rest| rest.lines().next().map(String::from));
            port.is_some() || server.ended().is_some()
        });
        let port = port.unwrap_or_else(|| panic!("no server\n{}", server.outputs()));
        let client = start(CLIENT, &["connect", &port]);
        [server, client]
    }

    fn assert_direct(&self, pair: &[Running; 2], context: &str) {
        let direct = wait_until(TIME_LIMIT, || {
            pair.iter().all(|end| self.is_direct(end.pid()))
        });
        let ends = pair.iter().map(Running::outputs).collect::<String>();
        assert!(direct, "{context}: {}\n{ends}", self.status());
    }
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("it is ours");
}

/// A line of `/proc/PID/status`.
fn line_of_status(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(name));
    line.expect("a line of this name").trim().to_owned()
}

#[test]
fn two_users_exchange_bytes_through_shared_memory() {
    let Some(mut host) = Host::start() else {
        return;
    };
    let mut pair = host.pair("whole", 300_000_000);
    host.assert_direct(&pair, "two users");
    for (end, user) in pair.iter().zip([SERVER, CLIENT]) {
        assert!(line_of_status(end.pid(), "Uid:").starts_with(&user.to_string()));
    }
    // Every byte is checked where it arrives, and every end goes on to its end.
    for end in &mut pair {
        let status = end.wait(TIME_LIMIT * 4);
        assert!(status.is_some_and(|it| it.success()), "{}", end.outputs());
    }
    // All that with three capabilities and a filter for system calls.
    let adapter = host.adapter().pid();
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapBnd:"] {
        let kept = line_of_status(adapter, set);
        let kept = u64::from_str_radix(&kept, 16).expect("a mask");
        // DAC_READ_SEARCH, SYS_PTRACE and SYS_RESOURCE; root of a container may have fewer.
        assert_eq!(kept & !(1 << 2 | 1 << 19 | 1 << 24), 0, "{set} {kept:x}");
    }
    assert_eq!(line_of_status(adapter, "Seccomp:"), "2");
    assert_eq!(line_of_status(adapter, "NoNewPrivs:"), "1");
}

#[test]
fn a_killed_end_is_noticed_by_the_other_user() {
    let Some(host) = Host::start() else { return };
    for victim in 0..2 {
        let mut pair = host.pair(&format!("kill{victim}"), 0);
        host.assert_direct(&pair, "before the kill");
        pair[victim].signal(libc::SIGKILL);
        assert!(
            pair[victim].wait(TIME_LIMIT).is_some(),
            "SIGKILL does not kill"
        );
        let survivor = &mut pair[1 - victim];
        let end = survivor.wait(TIME_LIMIT);
        assert!(end.is_some_and(|it| it.success()), "{}", survivor.outputs());
        let words = survivor.stdout();
        let ends = ["then EOF", "then ECONNRESET"];
        assert!(ends.iter().any(|end| words.contains(end)), "{words}");
    }
}

#[test]
fn connections_outlive_the_system_adapter_and_new_ones_find_the_next() {
    let Some(mut host) = Host::start() else {
        return;
    };
    let mut old = host.pair("old", 0);
    host.assert_direct(&old, "before the adapter's death");
    host.kill_adapter();
    // Without an adapter two users' connection is the kernel's, and complete.
    let mut between = host.pair("between", 30_000_000);
    for end in &mut between {
        let status = end.wait(TIME_LIMIT * 4);
        assert!(status.is_some_and(|it| it.success()), "{}", end.outputs());
    }
    for end in &mut old {
        assert!(end.ended().is_none(), "{}", end.outputs());
    }
    host.start_adapter();
    let new = host.pair("new", 0);
    host.assert_direct(&new, "after the restart");
    for end in &mut old {
        assert!(end.ended().is_none(), "{}", end.outputs());
    }
}

#[test]
fn a_stranger_learns_and_changes_nothing() {
    let Some(host) = Host::start() else { return };
    let mut pair = host.pair("private", 0);
    host.assert_direct(&pair, "two users");
    let pid = pair[0].pid().to_string();
    for words in [
        &["status", "--json", "--adapter", "system"][..],
        &["status", "--json", "--adapter", "system", "--pid", &pid],
        &["detach", "all", "--adapter", "system"],
        &["detach", &pid, "--adapter", "system"],
    ] {
        let output = host.toehold_as(STRANGER, words).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!said.contains("127.0.0.1"), "{words:?}: {said}");
        assert!(
            !said.contains(&format!("\"pid\":{pid}")),
            "{words:?}: {said}"
        );
    }
    // It can neither take the adapter's place nor its directory.
    let dir = host.system_dir();
    for script in [
        format!("rm -f {}/adapter.sock", dir.display()),
        format!("mv {} {}.old", dir.display(), dir.display()),
        format!("touch {}/adapter.new", dir.display()),
        format!("cat {}/adapter.lock", dir.display()),
    ] {
        let user = STRANGER.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]);
        command.args(["sh", "-c", &script]).stderr(Stdio::null());
        assert!(!command.status().expect("runs").success(), "{script}");
    }
    assert!(dir.join("adapter.sock").exists());
    host.assert_direct(&pair, "after the stranger");
    for end in &mut pair {
        assert!(end.ended().is_none(), "{}", end.outputs());
    }
}

/// Why the server of a pair is on the kernel, by what root is told, once that is `words`.
fn assert_reason(host: &Host, pair: &[Running; 2], words: &str) {
    let reasons = || {
        let connections = host.connections(pair[0].pid());
        let reason = |one: &Value| one["reason"].as_str().map(String::from);
        connections.iter().filter_map(reason).collect::<Vec<_>>()
    };
    let said = wait_until(TIME_LIMIT, || {
        reasons().iter().any(|reason| reason == words)
    });
    assert!(said, "not {words:?}: {:?}", reasons());
}

#[test]
fn the_reason_names_another_adapter_only_where_there_is_one() {
    let Some(host) = Host::start() else { return };
    let kernels = host.pair_by("plain", 0, &["run", "--path", "host", "--"]);
    assert_reason(&host, &kernels, "the other end is not under Toehold");
    let others = host.pair_by("other", 0, &["run", "--adapter", "user", "--"]);
    let words = format!("the other end is under Toehold, but with another adapter (user {CLIENT})");
    assert_reason(&host, &others, &words);
    stop_adapter_of(&host, CLIENT);
}

/// Its adapter is dead, then another one that has not heard of it: `status` reads its table.
#[test]
fn live_channels_are_shown_without_the_adapter_that_made_them() {
    let Some(mut host) = Host::start() else {
        return;
    };
    let mut pair = host.pair("shown", 0);
    host.assert_direct(&pair, "before the adapter's death");
    host.kill_adapter();
    host.assert_direct(&pair, "without an adapter");
    // A user is shown its own.
    let words = ["status", "--json", "--adapter", "system"];
    let output = host.toehold_as(SERVER, &words).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains(&format!("\"pid\":{}", pair[0].pid())),
        "{said}"
    );
    assert!(
        !said.contains(&format!("\"pid\":{}", pair[1].pid())),
        "{said}"
    );
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(
        words.contains("is gone") && !output.status.success(),
        "{words}"
    );
    host.start_adapter();
    host.assert_direct(&pair, "with the next adapter");
    for end in &mut pair {
        assert!(end.ended().is_none(), "{}", end.outputs());
    }
}

/// The adapter that `toehold run` has started for a user leaves when it is idle. Here it is told
/// to.
fn stop_adapter_of(host: &Host, user: u32) {
    let lock = std::fs::read_to_string(host.home(user).join("toehold/adapter.lock"));
    let pid: i32 = lock.expect("its adapter's").trim().parse().expect("a pid");
    // SAFETY: an adapter that this test has started.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}

/// One `toehold run` says `--adapter user`: nobody pairs across two adapters.
#[test]
fn a_user_s_own_adapter_pairs_with_nobody_else() {
    let Some(host) = Host::start() else { return };
    let program = host.program.to_string_lossy().into_owned();
    let words = ["run", "--adapter", "user", "--", &program, "--help"];
    let output = host.toehold_as(STRANGER, &words).output().expect("runs");
    let own = host.home(STRANGER).join("toehold/adapter.sock");
    assert!(own.exists(), "{}", String::from_utf8_lossy(&output.stderr));
    stop_adapter_of(&host, STRANGER);
}
