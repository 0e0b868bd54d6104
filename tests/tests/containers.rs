//! Containers by podman under the system adapter: programs of other users, in namespaces of their
//! own for users, processes, files and the network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use toehold_e2e::process::copy_program;
use toehold_e2e::system::{CLIENT, SERVER, System};
use toehold_e2e::{Running, host, wait_until};
use toehold_network::Namespace;

const PROGRAM: &str = env!("CARGO_BIN_EXE_stream");
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A place for podman, and a root for containers: the program and the libraries that it needs.
struct Podman {
    scratch: PathBuf,
    root: PathBuf,
}

impl Podman {
    fn new(system: &System) -> Podman {
        let scratch = system.scratch().join("podman");
        let root = scratch.join("root");
        // In a user namespace the runtime may make no place to mount at: the root is not its own.
        for directory in [
            "tmp",
            "proc",
            "sys",
            "dev",
            "run/toehold",
            "run/toehold-lib",
            "etc",
        ] {
            fs::create_dir_all(root.join(directory)).expect("scratch");
        }
        let library = "run/toehold-lib/libtoehold.so";
        let podmans = [
            "run/.containerenv",
            "etc/hosts",
            "etc/hostname",
            "etc/resolv.conf",
        ];
        for file in podmans.into_iter().chain([library]) {
            fs::write(root.join(file), "").expect("scratch");
        }
        // Podman sets parameters of the network that a user namespace may not.
        let conf = "[containers]\ndefault_sysctls = []\n";
        fs::write(scratch.join("containers.conf"), conf).expect("scratch");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        fs::set_permissions(root.join("tmp"), open).expect("ours");
        copy_program(system.program(), &root.join("stream"));
        for file in [system.program(), system.library()] {
            for library in libraries(file) {
                let there = root.join(library.strip_prefix("/").expect("absolute"));
                fs::create_dir_all(there.parent().expect("not the root")).expect("scratch");
                fs::copy(&library, there).expect("a library");
            }
        }
        Podman { scratch, root }
    }

    /// A command of podman's. Cgroups are not of interest here, and podman's runtime refuses some
    /// arrangements of them: it sees one that it knows.
    fn command(&self) -> Command {
        let mut command = Command::new("unshare");
        let script = "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup; \
                      exec podman \"$@\"";
        command.args(["--mount", "sh", "-c", script, "podman"]);
        for (option, place) in [("--root", "store"), ("--runroot", "run")] {
            command.arg(option).arg(self.scratch.join(place));
        }
        command.args(["--storage-driver=vfs", "--cgroup-manager=cgroupfs"]);
        command.env("CONTAINERS_CONF", self.scratch.join("containers.conf"));
        command
    }

    /// Runs the program in a container with what `toehold container` prints, and `options`.
    fn run(&self, system: &System, place: &Namespace, options: &[&str], role: &[&str]) -> Running {
        let mut print = Command::new(system.command());
        print.args(["container", "podman", "--runtime-dir"]);
        print.arg(system.system_dir());
        if options.iter().any(|option| option.starts_with("--uidmap")) {
            print.arg("--user-namespace");
        }
        let printed = print.output().expect("toehold runs");
        assert!(printed.status.success(), "{printed:?}");
        let printed = String::from_utf8(printed.stdout).expect("text");
        let mut command = self.command();
        command.args(["run", "--rm", "--cgroups=disabled"]);
        command.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]);
        command.arg(format!("--network=ns:{}", place.path()));
        command.args(options).args(printed.split_ascii_whitespace());
        command.arg("--rootfs").arg(&self.root).arg("/stream");
        command.args(role);
        let name = role[0].to_owned();
        Running::start(command, &name, system.scratch())
    }
}

/// The shared libraries of a file, and the loader.
fn libraries(file: &Path) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(file).output().expect("ldd runs");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let words = text.split_ascii_whitespace();
    let paths = words.filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).collect()
}

/// The processes of containers that the adapter knows, by its own numbers.
struct Contained(Vec<Value>);

impl Contained {
    fn of(system: &System) -> Contained {
        let status = system.status();
        Contained(status["processes"].as_array().cloned().unwrap_or_default())
    }

    /// Whether both have one connection that has moved bytes through shared memory, both ways.
    fn are_in_memory(&self, system: &System) -> bool {
        self.0.len() == 2 && self.pids().all(|pid| system.in_memory(pid) == 1)
    }

    fn pids(&self) -> impl Iterator<Item = u32> {
        let pids = self.0.iter().filter_map(|process| process["pid"].as_u64());
        pids.filter_map(|pid| pid.try_into().ok())
    }
}

/// Containers are not children of this test.
impl Drop for Podman {
    fn drop(&mut self) {
        let mut command = self.command();
        let _ = command
            .args(["rm", "--force", "--all", "--time=0"])
            .output();
    }
}

fn line_of_status(pid: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.expect("a line of this name").trim().to_owned()
}

/// Two containers that reach each other; `options` are those of each, `users` theirs on the host.
fn meet(options: [&[&str]; 2], users: [u32; 2]) {
    let Some(_) = host::require(["podman", "crun", "unshare", "ldd", "ip"]) else {
        return;
    };
    let Some(system) = System::start(Path::new(PROGRAM)) else {
        return;
    };
    if system.status()["across_namespaces"].as_str() != Some("yes") {
        return host::skipped("the kernel's facts are not to be had");
    }
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
    let serve = ["serve", "10.8.0.1:7000", "7", "0", "/tmp/serve.ledger"];
    let reach = ["reach", "10.8.0.1:7000", "7", "0", "/tmp/reach.ledger"];
    let mut server = podman.run(&system, &one, options[0], &serve);
    System::port_of(&mut server);
    let mut client = podman.run(&system, &other, options[1], &reach);
    let mut contained = Contained::of(&system);
    let are_in_memory = wait_until(TIME_LIMIT, || {
        contained = Contained::of(&system);
        contained.are_in_memory(&system)
    });
    let ended = format!("{:?} {:?}\n", server.ended(), client.ended());
    let outputs = [ended, server.outputs(), client.outputs()].concat();
    assert!(are_in_memory, "{}\n{outputs}", system.status());
    // By the host's numbers, although each is process 1 of its own namespace.
    for (pid, user) in contained.pids().zip(users) {
        let numbers = line_of_status(pid, "NSpid:");
        assert_eq!(numbers, format!("{pid}\t1"));
        let its = line_of_status(pid, "Uid:");
        assert_eq!(its.split('\t').next(), Some(&*user.to_string()));
        assert_ne!(line_of_status(pid, "Seccomp:"), "0", "podman's filter");
    }
    // One ends; the other finds the end of the stream.
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

#[test]
fn two_containers_of_two_users_are_paired() {
    let options = [SERVER, CLIENT].map(|user| format!("--user={user}"));
    meet([&[&options[0]], &[&options[1]]], [SERVER, CLIENT]);
}

/// The users of the two containers are numbers of the host that stand for users 5 of each.
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
