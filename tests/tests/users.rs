//! The system adapter: programs of different users, and the rights of each user.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
#[cfg(target_arch = "x86_64")]
use toehold_e2e::patched::compile_as;
use toehold_e2e::process::{OutputInTime, TIME_LIMIT};
use toehold_e2e::system::{CLIENT, SERVER, STRANGER, System};
use toehold_e2e::{Running, Toehold, host, toehold, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_stream");
/// Debian's interpreter: another one earlier in `PATH` may be accessible to root only.
const PYTHON: &str = "/usr/bin/python3";

/// A line of `/proc/PID/status`.
fn line_of_status(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(name));
    line.expect("a line of this name").trim().to_owned()
}

#[test]
fn two_users_exchange_bytes_through_shared_memory() {
    let Some(mut host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    let mut pair = host.pair("whole", 300_000_000);
    host.assert_in_memory(&pair, "two users");
    for (end, user) in pair.iter().zip([SERVER, CLIENT]) {
        assert!(line_of_status(end.pid(), "Uid:").starts_with(&user.to_string()));
    }
    // Each end checks every byte that it receives, and must end in success.
    for end in &mut pair {
        let status = end.wait(TIME_LIMIT * 4);
        assert!(status.is_some_and(|it| it.success()), "{}", end.outputs());
    }
    // The adapter did so with three capabilities and a filter for system calls.
    let adapter = host.adapter().pid();
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapBnd:"] {
        let kept = line_of_status(adapter, set);
        let kept = u64::from_str_radix(&kept, 16).expect("a mask");
        // DAC_READ_SEARCH, SYS_PTRACE and SYS_RESOURCE. Root in a container may have fewer.
        assert_eq!(kept & !(1 << 2 | 1 << 19 | 1 << 24), 0, "{set} {kept:x}");
    }
    assert_eq!(line_of_status(adapter, "Seccomp:"), "2");
    assert_eq!(line_of_status(adapter, "NoNewPrivs:"), "1");
}

/// Gives the file CAP_NET_RAW, as setcap(8) does.
#[cfg(target_arch = "x86_64")]
fn give_capability(file: &Path) -> std::io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    /// `VFS_CAP_REVISION_2` and `VFS_CAP_FLAGS_EFFECTIVE` (linux/capability.h).
    const HEAD: u32 = 0x0200_0001;
    let words = [HEAD, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
    let file = std::ffi::CString::new(file.as_os_str().as_bytes())?;
    let (name, at, len) = (c"security.capability", words.as_ptr(), words.len());
    // SAFETY: strings that end with NUL, and a value of this length.
    match unsafe { libc::setxattr(file.as_ptr(), name.as_ptr(), at.cast(), len, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn static_programs_are_patched_by_a_command_that_has_capabilities() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let Some(host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    let says = compile_as("says", host.scratch(), "cc", &["-O2", "-static"], "says.c");
    if let Err(error) = give_capability(host.command()) {
        host::skipped(&format!("files cannot have capabilities here: {error}"));
        return;
    }
    // The shell has no capability. A program that gains a capability must not be traced.
    let line = "exec \"$0\" run -- \"$1\"";
    let mut command = host.toehold_as(CLIENT, &["run", "--path", "host", "--", "sh", "-c", line]);
    command.arg(host.command()).arg(&says);
    let output = command.output_in_time().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("patched 1 "), "{said}{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_killed_end_is_noticed_by_the_other_user() {
    let Some(host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    for victim in 0..2 {
        let mut pair = host.pair(&format!("kill{victim}"), 0);
        host.assert_in_memory(&pair, "before the kill");
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
    let Some(mut host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    let mut old = host.pair("old", 0);
    host.assert_in_memory(&old, "before the adapter's death");
    host.kill_adapter();
    // Without an adapter a connection of two users stays on the kernel, and is complete.
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
    host.assert_in_memory(&new, "after the restart");
    for end in &mut old {
        assert!(end.ended().is_none(), "{}", end.outputs());
    }
}

/// A busy system adapter must not make programs of one host use different adapters.
#[test]
fn programs_that_start_while_the_system_adapter_is_busy_meet_there_all_the_same() {
    let Some(mut host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    host.adapter().signal(libc::SIGSTOP);
    let pair = host.pair("early", 0);
    host.adapter().signal(libc::SIGCONT);
    host.assert_in_memory(&pair, "after it goes on");
    // The client began before the adapter continued, and reports that it had to wait.
    let said = pair[0].stderr();
    assert!(said.contains("did not answer within 2 seconds"), "{said}");
}

#[test]
fn a_stranger_learns_and_changes_nothing() {
    let Some(host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    let mut pair = host.pair("private", 0);
    host.assert_in_memory(&pair, "two users");
    let pid = pair[0].pid().to_string();
    for words in [
        &["status", "--json", "--adapter", "system"][..],
        &["status", "--json", "--adapter", "system", "--pid", &pid],
        &["detach", "all", "--adapter", "system"],
        &["detach", &pid, "--adapter", "system"],
    ] {
        let output = host
            .toehold_as(STRANGER, words)
            .output_in_time()
            .expect("runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!said.contains("127.0.0.1"), "{words:?}: {said}");
        assert!(
            !said.contains(&format!("\"pid\":{pid}")),
            "{words:?}: {said}"
        );
    }
    // A stranger can replace neither the adapter's socket nor its directory.
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
    host.assert_in_memory(&pair, "after the stranger");
    for end in &mut pair {
        assert!(end.ended().is_none(), "{}", end.outputs());
    }
}

/// A listener at the path where programs find their adapter. It prints the length of the first
/// message.
const LISTENER_OF_A_FALSE_ADAPTER: &str = "
import os, socket
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind('adapter.sock')
os.chmod('adapter.sock', 0o666)
listener.listen()
print('listening', flush=True)
while True:
    client, _ = listener.accept()
    print('heard', len(client.recv(4096)), flush=True)
";

/// A program with one connection.
const CONNECTS: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
client.sendall(b'one')
assert server.recv(3) == b'one'
";

/// The program gets the path of a listener that belongs to another user. It connects, checks the
/// owner of the listener, and sends nothing. A listener of the program's own user receives its
/// hello.
#[test]
fn an_adapter_of_another_user_hears_nothing_from_a_program() {
    let Some(host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    for (user, hears) in [(STRANGER, false), (CLIENT, true)] {
        let own = host.home(user);
        let mut listener = Command::new("setpriv");
        let number = user.to_string();
        listener.args(["--reuid", &number, "--regid", &number, "--clear-groups"]);
        listener.args(["--", PYTHON, "-c", LISTENER_OF_A_FALSE_ADAPTER]);
        listener.current_dir(&own);
        let name = format!("false-adapter.{user}");
        let listener = Running::start(listener, &name, host.scratch());
        let is_listening = || listener.stdout().contains("listening");
        assert!(
            wait_until(TIME_LIMIT, is_listening),
            "{}",
            listener.outputs()
        );

        let mut program = Command::new("setpriv");
        let number = CLIENT.to_string();
        program.args(["--reuid", &number, "--regid", &number, "--clear-groups"]);
        program.args(["--", PYTHON, "-c", CONNECTS]);
        program
            .env("LD_PRELOAD", host.library())
            .env("TOEHOLD_PATH", "direct");
        program.env("TOEHOLD_RUNTIME_DIR", &own);
        assert!(program.status().expect("it runs").success());

        let has_heard = || listener.stdout().contains("heard");
        assert!(wait_until(TIME_LIMIT, has_heard), "{}", listener.outputs());
        let heard = listener.stdout();
        assert_eq!(!heard.contains("heard 0\n"), hears, "{user}: {heard}");
    }
}

/// Asserts that the server of a pair is on the kernel for the reason `words`, as `status` tells
/// root.
fn assert_reason(host: &System, pair: &[Running; 2], words: &str) {
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
    let Some(host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    let kernels = host.pair_by("plain", 0, &["run", "--path", "host", "--"]);
    assert_reason(&host, &kernels, "the other end is not under Toehold");
    let others = host.pair_by("other", 0, &["run", "--adapter", "user", "--"]);
    let words = format!("the other end is under Toehold, but with another adapter (user {CLIENT})");
    assert_reason(&host, &others, &words);
    stop_adapter_of(&host, CLIENT);
}

/// Becomes the user nobody, then makes sockets and exchanges bytes with itself.
const BECOMES_NOBODY: &str = "
import os, socket, sys
os.setgid(65534), os.setuid(65534)
listener = socket.create_server(('127.0.0.1', 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
for _ in range(100):
    for one, other in (near, far), (far, near):
        one.sendall(b'!')
        assert other.recv(1) == b'!'
print('exchanged', flush=True)
sys.stdin.read()
";

/// A user's own adapter has a directory that other users cannot enter.
#[test]
fn the_reason_says_that_a_program_has_become_a_user_whom_the_adapter_does_not_serve() {
    // SAFETY: cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return host::skipped("programs become other users as root only");
    }
    let toehold = Toehold::start();
    let mut command = toehold.command(toehold::Path::Direct, PYTHON);
    command.args(["-c", BECOMES_NOBODY]).stdin(Stdio::piped());
    let program = Running::start_fed(command, "nobody", toehold.dir());
    let exchanged = wait_until(TIME_LIMIT, || program.stdout().contains("exchanged"));
    assert!(exchanged, "{}", program.outputs());
    let connections = toehold.connections();
    assert_eq!(connections.len(), 2, "{connections:?}");
    for one in &connections {
        let words = "the program has become another user, who may not reach the adapter";
        assert_eq!(one.value["reason"], words);
    }
}

/// The channel's adapter is killed, and then another adapter runs that does not know the channel.
/// `status` reads the program's own table.
#[test]
fn live_channels_are_shown_without_the_adapter_that_made_them() {
    let Some(mut host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    let mut pair = host.pair("shown", 0);
    host.assert_in_memory(&pair, "before the adapter's death");
    host.kill_adapter();
    host.assert_in_memory(&pair, "without an adapter");
    // A user sees only the user's own programs.
    let words = ["status", "--json", "--adapter", "system"];
    let output = host
        .toehold_as(SERVER, &words)
        .output_in_time()
        .expect("runs");
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
        words.contains("has ended") && !output.status.success(),
        "{words}"
    );
    host.start_adapter();
    host.assert_in_memory(&pair, "with the next adapter");
    for end in &mut pair {
        assert!(end.ended().is_none(), "{}", end.outputs());
    }
}

/// One of the counts of `express` that `status` tells root. The function asks seldom: while the
/// adapter reads the lists of sockets, with all ended ones, it pairs no connections.
fn express_count(host: &System, name: &str) -> u64 {
    std::thread::sleep(Duration::from_millis(500));
    toehold::express_count(&host.status(), name)
}

/// The lab's server and its client with this load, of two users, under `toehold run` with these
/// options.
fn load(host: &System, options: &[&str], load: &[&str]) -> [Running; 2] {
    let address = format!("127.0.0.1:{}", host::free_port());
    let command = host.command().to_string_lossy().into_owned();
    let start = |user: u32, words: &[&str]| {
        let command = [&["run"], options, &["--", &command, "lab"], words].concat();
        Running::start(host.toehold_as(user, &command), words[0], host.scratch())
    };
    let server = start(SERVER, &["server", "--listen", &address]);
    let listens = wait_until(TIME_LIMIT, || server.stderr().contains("listening"));
    assert!(listens, "{}", server.outputs());
    let words = [&["client", &address, "--seconds", "600"], load].concat();
    let client = start(CLIENT, &words);
    [server, client]
}

#[test]
fn short_connections_of_two_users_go_by_used_carriers() {
    let Some(host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    // `always`, because on a busy host few short connections make a carrier, and late.
    let [server, client] = load(&host, &["--express", "always"], &["--pattern", "connect"]);
    let held = wait_until(TIME_LIMIT, || {
        let of = |name| express_count(&host, name);
        of("connected") >= 1000 && of("accepted") >= 1000
    });
    let outputs = server.outputs() + &client.outputs();
    assert!(held, "{outputs}\n{}", host.status());
}

/// Both programs always sleep, so each message needs a doorbell.
#[test]
fn two_users_that_sleep_are_woken_by_the_pairs_doorbell() {
    let Some(host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    let [server, client] = load(&host, &["--wait", "event"], &[]);
    let held = wait_until(TIME_LIMIT, || {
        let connections = host.connections(client.pid());
        let by_pair = |one: &Value| one["doorbells_by_pair"].as_u64().unwrap_or(0);
        connections.iter().map(by_pair).sum::<u64>() > 100
    });
    let outputs = server.outputs() + &client.outputs();
    assert!(held, "{outputs}\n{}", host.status());
}

/// A carrier leads to the process that had the listener's address when the carrier was made. That
/// process belongs to another user, so a carrier is used only while that listener still exists.
#[test]
fn a_carrier_does_not_lead_to_who_has_lost_the_listener_s_address() {
    let Some(host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    let script = host.scratch().join("squatter.py");
    std::fs::write(&script, include_str!("../scripts/squatter.py")).expect("scratch");
    let script = script.to_string_lossy().into_owned();
    let start = |user: u32, path: &str, words: &[&str]| {
        let options = ["run", "--path", path, "--express", "always", "--"];
        let all = [&options[..], &[PYTHON, &*script], words].concat();
        Running::start(host.toehold_as(user, &all), words[0], host.scratch())
    };
    let mut squatter = start(STRANGER, "direct", &["squat"]);
    let port = System::port_of(&mut squatter);
    let client = start(CLIENT, "direct", &["ask", &port]);
    let is_warm = wait_until(TIME_LIMIT, || express_count(&host, "connected") >= 100);
    let outputs = squatter.outputs() + &client.outputs();
    assert!(is_warm, "{outputs}\n{}", host.status());
    squatter.signal(libc::SIGUSR1);
    let closed = wait_until(TIME_LIMIT, || squatter.stdout().contains("closed"));
    assert!(closed, "{}", squatter.outputs());
    let owner = start(SERVER, "host", &["own", &port]);
    let listens = wait_until(TIME_LIMIT, || owner.stdout().contains("listens"));
    assert!(listens, "{}", owner.outputs());
    client.signal(libc::SIGUSR1);
    assert_eq!(client.success(TIME_LIMIT).trim(), "owner=100");
}

/// Stops the adapter that `toehold run` has started for a user. Without this it would end when it
/// is idle.
fn stop_adapter_of(host: &System, user: u32) {
    let lock = std::fs::read_to_string(host.home(user).join("toehold/adapter.lock"));
    let pid: i32 = lock.expect("its adapter's").trim().parse().expect("a pid");
    // SAFETY: an adapter that this test has started.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}

/// One `toehold run` uses `--adapter user`. Programs of two adapters are not paired.
#[test]
fn a_user_s_own_adapter_pairs_with_nobody_else() {
    let Some(host) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    let program = host.program().to_string_lossy().into_owned();
    let words = ["run", "--adapter", "user", "--", &program, "--help"];
    let output = host
        .toehold_as(STRANGER, &words)
        .output_in_time()
        .expect("runs");
    let own = host.home(STRANGER).join("toehold/adapter.sock");
    assert!(own.exists(), "{}", String::from_utf8_lossy(&output.stderr));
    stop_adapter_of(&host, STRANGER);
}

/// Like systemd's `PrivateTmp=`: the service has its own `/tmp`. The system adapter's directory is
/// elsewhere, so both programs find the adapter.
#[test]
fn a_service_with_a_tmp_of_its_own_is_paired() {
    let Some(host) = System::start_in(Path::new("/var/lib"), Path::new(PROGRAM)) else {
        return;
    };
    let ledger = |user: u32| {
        host.home(user)
            .join("ledger")
            .to_string_lossy()
            .into_owned()
    };
    let mut server = host.end("own", SERVER, None, &["listen", "7", "0", &ledger(SERVER)]);
    let port = System::port_of(&mut server);
    let program = host.program().to_string_lossy();
    let words = ["run", "--", &*program, "connect", &port, "7", "0"];
    let ledger = ledger(CLIENT);
    let words: Vec<&str> = words.into_iter().chain([&*ledger]).collect();
    let inner = host.toehold_as(CLIENT, &words);
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /tmp && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let client = Running::start(command, "private", host.scratch());
    host.assert_in_memory(&[server, client], "with a /tmp of its own");
}
