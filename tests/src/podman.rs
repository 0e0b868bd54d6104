//! Containers by podman: of root's, or of an ordinary user (rootless).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::process::{Running, copy_program};
use crate::system::System;

/// Where a user's other numbers begin, those of the users of the containers of that user. A
/// container's user N, but for 0, is the host's `SUBORDINATE - 1 + N`.
pub const SUBORDINATE: u32 = 500_000;

/// A place for podman, and a root for containers: the program and the libraries that it needs.
#[derive(Debug)]
pub struct Podman {
    scratch: PathBuf,
    root: PathBuf,
    user: Option<u32>,
}

impl Podman {
    /// For containers of root's.
    ///
    /// # Panics
    /// When the scratch directory is not writable.
    pub fn new(system: &System) -> Podman {
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
        let open = PermissionsExt::from_mode(0o1777);
        fs::set_permissions(root.join("tmp"), open).expect("ours");
        copy_program(system.program(), &root.join("stream"));
        for file in [system.program(), system.library()] {
            for library in libraries(file) {
                let there = root.join(library.strip_prefix("/").expect("absolute"));
                fs::create_dir_all(there.parent().expect("not the root")).expect("scratch");
                fs::copy(&library, there).expect("a library");
            }
        }
        let user = None;
        Podman {
            scratch,
            root,
            user,
        }
    }

    /// For containers of this user, who is given a name and 65,536 more numbers.
    ///
    /// # Panics
    /// When the scratch directory is not writable.
    pub fn rootless(system: &System, user: u32) -> Podman {
        let mut podman = Podman::new(system);
        podman.user = Some(user);
        let etc = podman.scratch.join("etc");
        fs::create_dir(&etc).expect("scratch");
        let write = |name: &str, line: String| {
            // The lines of the host, and one more.
            let had = fs::read_to_string(Path::new("/etc").join(name)).unwrap_or_default();
            fs::write(etc.join(name), had + &line + "\n").expect("scratch");
        };
        let home = system.home(user);
        let home = home.display();
        write(
            "passwd",
            format!("rootless:x:{user}:{user}::{home}:/bin/sh"),
        );
        write("group", format!("rootless:x:{user}:"));
        for name in ["subuid", "subgid"] {
            write(name, format!("rootless:{SUBORDINATE}:65536"));
        }
        // Its user is root in its containers.
        let mut own = Command::new("chown");
        own.args(["--recursive", &format!("{user}:{user}")]);
        let owned = own.arg(&podman.scratch).status().expect("chown starts");
        assert!(owned.success(), "root may");
        podman
    }

    /// A command of podman's. Cgroups are not of interest here, and podman's runtime refuses some
    /// arrangements of them: it sees one that it knows.
    pub fn command(&self) -> Command {
        let mut command = Command::new("unshare");
        let mut script =
            String::from("umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup; ");
        if let Some(user) = self.user {
            let etc = self.scratch.join("etc");
            let etc = etc.display();
            // Everybody may use the device for virtual networks where udev has made it.
            script += &format!(
                "set -e
                for file in passwd group subuid subgid; do
                    mount --bind {etc}/$file /etc/$file
                done
                mount -t tmpfs none /dev/net
                mknod -m 666 /dev/net/tun c 10 200
                exec setpriv --reuid {user} --regid {user} --clear-groups podman \"$@\""
            );
        } else {
            script += "exec podman \"$@\"";
        }
        command.args(["--mount", "sh", "-c", &script, "podman"]);
        for (option, place) in [("--root", "store"), ("--runroot", "run")] {
            command.arg(option).arg(self.scratch.join(place));
        }
        command.args(["--storage-driver=vfs", "--cgroup-manager=cgroupfs"]);
        command.env("CONTAINERS_CONF", self.scratch.join("containers.conf"));
        if self.user.is_some() {
            // Networks that are made, and the process that holds the user namespace.
            command.env("HOME", &self.scratch);
            command.env("XDG_RUNTIME_DIR", &self.scratch);
            command.env_remove("XDG_CONFIG_HOME");
            command.env_remove("XDG_DATA_HOME");
            command.current_dir(&self.scratch);
        }
        command
    }

    /// Runs a command of podman's to its end.
    ///
    /// # Panics
    /// When it fails.
    pub fn succeed(&self, words: &[&str]) {
        let output = self.command().args(words).output().expect("unshare starts");
        assert!(output.status.success(), "{words:?}: {output:?}");
    }

    /// Runs the program in a container with what `toehold container` prints for the adapter in
    /// `runtime`, and `options`. Its files are in its directory `/tmp`, which all containers share.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn run(&self, system: &System, runtime: &Path, options: &[&str], role: &[&str]) -> Running {
        let mut words = vec!["container", "podman"];
        let is_mapped = options.iter().any(|option| option.starts_with("--uidmap"));
        words.extend(is_mapped.then_some("--user-namespace"));
        let mut print = match self.user {
            Some(user) => system.toehold_as(user, &words),
            None => Command::new(system.command()),
        };
        if self.user.is_none() {
            print.args(words);
        }
        print.arg("--runtime-dir").arg(runtime);
        let printed = print.output().expect("toehold runs");
        assert!(printed.status.success(), "{printed:?}");
        let printed = String::from_utf8(printed.stdout).expect("text");
        let mut command = self.command();
        command.args(["run", "--rm", "--cgroups=disabled"]);
        command.args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]);
        command.args(options).args(printed.split_ascii_whitespace());
        command.arg("--rootfs").arg(&self.root).arg("/stream");
        command.args(role);
        let name = role[0].to_owned();
        Running::start(command, &name, system.scratch())
    }
}

/// Containers are not children of this test. Podman says that a container on whose network another
/// depends is to be removed later.
impl Drop for Podman {
    fn drop(&mut self) {
        for _ in 0..2 {
            let mut command = self.command();
            let _ = command
                .args(["rm", "--force", "--all", "--time=0"])
                .output();
        }
        if self.user.is_some() {
            // Ends the process that holds the user namespace.
            let mut command = self.command();
            let _ = command.args(["system", "migrate"]).output();
        }
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

/// The processes of containers that an adapter knows.
#[derive(Debug)]
pub struct Contained(Vec<Value>);

impl Contained {
    /// Those of the answer of `toehold status --json`.
    pub fn of(status: &Value) -> Contained {
        Contained(status["processes"].as_array().cloned().unwrap_or_default())
    }

    /// Whether there are two, and both have one connection that has moved bytes through shared
    /// memory, both ways.
    pub fn are_in_memory(&self) -> bool {
        let has_moved = |one: &&Value| {
            let bytes = |key: &str| one[key].as_u64().unwrap_or(0);
            bytes("bytes_ring_tx") > 1_000_000 && bytes("bytes_ring_rx") > 1_000_000
        };
        let have_one = self.0.iter().all(|process| {
            let connections = process["connections"].as_array().into_iter().flatten();
            connections.filter(has_moved).count() == 1
        });
        self.0.len() == 2 && have_one
    }

    /// By the adapter's own numbers.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        let pids = self.0.iter().filter_map(|process| process["pid"].as_u64());
        pids.filter_map(|pid| pid.try_into().ok())
    }
}
