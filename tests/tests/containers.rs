//! Containers by podman under the system adapter: programs of other users, in namespaces of their
//! own for users, processes, files and the network. Rootless containers, also under the adapter of
//! their own user.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use toehold_e2e::podman::{Contained, SUBORDINATE};
use toehold_e2e::system::{CLIENT, SERVER, System};
use toehold_e2e::{Podman, Running, host, wait_until};
use toehold_network::Namespace;

const PROGRAM: &str = env!("CARGO_BIN_EXE_stream");
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn line_of_status(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.expect("a line of this name").trim().to_owned()
}

/// A system adapter that pairs connections between namespaces; `None`, with a message, where it is
/// not possible.
fn system() -> Option<System> {
    host::require(["podman", "crun", "unshare", "ldd", "ip"])?;
    let system = System::start(Path::new(PROGRAM))?;
    if system.status()["across_namespaces"].as_str() != Some("yes") {
        host::skipped("the kernel's facts are not to be had");
        return None;
    }
    Some(system)
}

/// A server and a client in containers, and the expected results.
struct Meeting<'a> {
    system: &'a System,
    podman: &'a Podman,
    /// The directory of the adapter's socket.
    runtime: &'a Path,
    /// The adapter's current answer.
    status: &'a dyn Fn() -> Value,
    /// Options of podman for the server and for the client.
    options: [&'a [&'a str]; 2],
    /// The address of the server.
    address: &'a str,
    /// The users of the two, as numbers of the host, in order.
    users: [u32; 2],
}

impl Meeting<'_> {
    /// Checks that the connection of the two is in shared memory, and that it ends when one is
    /// killed.
    fn is_accelerated(&self) {
        let serve = ["serve", self.address, "7", "0", "/tmp/serve.ledger"];
        let reach = ["reach", self.address, "7", "0", "/tmp/reach.ledger"];
        let start = |options: &[&str], role: &[&str]| {
            self.podman.run(self.system, self.runtime, options, role)
        };
        let mut server = start(self.options[0], &serve);
        System::port_of(&mut server);
        let mut client = start(self.options[1], &reach);
        let mut contained = Contained::of(&(self.status)());
        let are_in_memory = wait_until(TIME_LIMIT, || {
            contained = Contained::of(&(self.status)());
            contained.are_in_memory()
        });
        let ended = format!("{:?} {:?}\n", server.ended(), client.ended());
        let outputs = [ended, server.outputs(), client.outputs()].concat();
        assert!(are_in_memory, "{}\n{outputs}", (self.status)());
        let mut users: Vec<u32> = Vec::new();
        for pid in contained.pids() {
            // The adapter uses the host's process numbers, although each program is process 1 of
            // its own namespace.
            let numbers = line_of_status(pid, "NSpid:");
            assert_eq!(numbers, format!("{pid}\t1"));
            let its = line_of_status(pid, "Uid:");
            let its = its.split('\t').next().and_then(|uid| uid.parse().ok());
            users.push(its.expect("a number"));
            assert_ne!(line_of_status(pid, "Seccomp:"), "0", "podman's filter");
        }
        // The adapter sorts by process number, and process numbers wrap at some time.
        users.sort_unstable();
        assert_eq!(users, self.users);
        // One program ends; the other reads the end of the stream.
        let victim = contained.pids().next().expect("two of them");
        // SAFETY: a program that this test has started.
        unsafe { libc::kill(victim as libc::pid_t, libc::SIGKILL) };
        let both = [&mut server, &mut client];
        for end in both {
            assert!(end.wait(TIME_LIMIT).is_some(), "{}", end.outputs());
        }
        let words = [server.stdout(), client.stdout()].concat();
        let ends = ["then EOF", "then ECONNRESET"];
        assert!(ends.iter().any(|end| words.contains(end)), "{words}");
    }
}

/// Two containers of root that reach each other. `options` are the options of each, `users` their
/// users on the host.
fn meet(options: [&[&str]; 2], users: [u32; 2]) {
    let Some(system) = system() else {
        return;
    };
    let podman = Podman::new(&system);
    let place = || Namespace::new().expect("root makes namespaces");
    let (one, other) = (place(), place());
    one.add_veth("v0", &other, "v0", "").expect("a veth");
    for (place, address) in [(&one, "10.8.0.1"), (&other, "10.8.0.2")] {
        place
            .ip(&format!("addr add {address}/24 dev v0"))
            .expect("an address");
        place.ip("link set v0 up").expect("up");
    }
    let networks = [&one, &other].map(|place| format!("--network=ns:{}", place.path()));
    let server = [&[&*networks[0]], options[0]].concat();
    let client = [&[&*networks[1]], options[1]].concat();
    Meeting {
        system: &system,
        podman: &podman,
        runtime: &system.system_dir(),
        status: &|| system.status(),
        options: [&server, &client],
        address: "10.8.0.1:7000",
        users,
    }
    .is_accelerated();
}

#[test]
fn two_containers_of_two_users_are_paired() {
    let options = [SERVER, CLIENT].map(|user| format!("--user={user}"));
    meet([&[&options[0]], &[&options[1]]], [SERVER, CLIENT]);
}

/// The users of the two containers: the host's numbers that stand for user 5 in each.
#[test]
fn two_containers_with_user_namespaces_are_paired() {
    let options = [200_000, 300_000].map(|first| {
        let map = format!("0:{first}:1000");
        [
            "--user=5".to_owned(),
            format!("--uidmap={map}"),
            format!("--gidmap={map}"),
        ]
    });
    let options = options
        .each_ref()
        .map(|one| one.each_ref().map(String::as_str));
    meet([&options[0], &options[1]], [200_005, 300_005]);
}

/// Programs that podman needs for an ordinary user.
fn may_be_rootless() -> bool {
    host::require(["newuidmap", "slirp4netns", "setpriv", "chown", "mknod"]).is_some()
}

/// Two containers of one ordinary user; `options` are the options of each.
fn meet_rootless(networks: &[&str], options: [&[&str]; 2], address: &str, users: [u32; 2]) {
    let Some(system) = system().filter(|_| may_be_rootless()) else {
        return;
    };
    let podman = Podman::rootless(&system, CLIENT);
    if !networks.is_empty() {
        podman.succeed(&[&["network", "create"], networks].concat());
    }
    Meeting {
        system: &system,
        podman: &podman,
        runtime: &system.system_dir(),
        status: &|| system.status(),
        options,
        address,
        users,
    }
    .is_accelerated();
}

/// Both share slirp4netns; their users are neither root nor the user who starts them.
#[test]
fn rootless_containers_of_one_network_are_paired() {
    let server = ["--name=server", "--network=slirp4netns", "--user=33"];
    let client = ["--network=container:server", "--user=44"];
    let users = [33, 44].map(|user| SUBORDINATE - 1 + user);
    meet_rootless(&[], [&server, &client], "127.0.0.1:7000", users);
}

/// A bridge in a namespace of the user, between the namespaces of the two containers.
#[test]
fn rootless_containers_of_a_bridge_are_paired() {
    let network = ["--subnet=10.97.77.0/24", "web"];
    let server = ["--network=web", "--ip=10.97.77.2"];
    let client = ["--network=web"];
    let address = "10.97.77.2:7000";
    meet_rootless(&network, [&server, &client], address, [CLIENT, CLIENT]);
}

/// No privilege at all: root in the containers is the adapter's own user.
#[test]
fn rootless_containers_are_paired_by_the_adapter_of_their_user() {
    let Some(system) = system().filter(|_| may_be_rootless()) else {
        return;
    };
    let podman = Podman::rootless(&system, CLIENT);
    let runtime = system.home(CLIENT).join("adapter");
    let runtime_text = runtime.to_string_lossy();
    let start = |name: &str, words: &[&str]| {
        let words = [words, &["--runtime-dir", &*runtime_text]].concat();
        Running::start(system.toehold_as(CLIENT, &words), name, system.scratch())
    };
    let adapter = start("own-adapter", &["adapter"]);
    // The adapter answers only its own user.
    let status = || {
        let mut said = start("own-status", &["status", "--json"]);
        said.wait(TIME_LIMIT);
        serde_json::from_str(&said.stdout()).unwrap_or(Value::Null)
    };
    let is_up = wait_until(TIME_LIMIT, || status()["processes"].is_array());
    assert!(is_up, "{}", adapter.outputs());
    Meeting {
        system: &system,
        podman: &podman,
        runtime: &runtime,
        status: &status,
        options: [
            &["--name=server", "--network=none"],
            &["--network=container:server"],
        ],
        address: "127.0.0.1:7000",
        users: [CLIENT, CLIENT],
    }
    .is_accelerated();
}
