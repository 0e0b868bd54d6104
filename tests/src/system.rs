//! A system adapter for tests, and programs of different users under it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use toehold_network::Namespace;

use crate::host;
use crate::process::{OutputInTime, Running, TIME_LIMIT, copy_program, wait_until};

/// Users that no system has: only their numbers count.
pub const SERVER: u32 = 60_001;
/// Another.
pub const CLIENT: u32 = 60_002;
/// A third.
pub const STRANGER: u32 = 60_003;

/// A system adapter in a directory of its own, and programs that any user may run.
#[derive(Debug)]
pub struct System {
    scratch: TempDir,
    command: PathBuf,
    library: PathBuf,
    program: PathBuf,
    adapter: Option<Running>,
}

impl System {
    /// Starts one, with copies of the product and of `program` that any user may run. `None`, said
    /// loudly, without the right to become other users.
    ///
    /// # Panics
    /// When the adapter does not start.
    pub fn start(program: &Path) -> Option<System> {
        System::start_in(&std::env::temp_dir(), program)
    }

    /// As [`System::start`], with everything below this directory.
    ///
    /// # Panics
    /// When the adapter does not start.
    pub fn start_in(directory: &Path, program: &Path) -> Option<System> {
        // SAFETY: cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            host::skipped("the system adapter needs root");
            return None;
        }
        let scratch = tempfile::Builder::new()
            .prefix("toehold-e2e-")
            .tempdir_in(directory);
        let scratch = scratch.expect("the directory is writable");
        open_to_all(scratch.path());
        let library = crate::toehold::library();
        let command = library.with_file_name("toehold");
        let copied = |from: &Path| {
            let to = scratch.path().join(from.file_name().expect("a file"));
            copy_program(from, &to);
            to
        };
        let mut host = System {
            command: copied(&command),
            library: copied(&library),
            program: copied(program),
            scratch,
            adapter: None,
        };
        host.start_adapter();
        Some(host)
    }

    /// Starts the adapter, which does not run.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_adapter(&mut self) {
        self.start_adapter_with(&[]);
    }

    /// As [`System::start_adapter`], with these options.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_adapter_with(&mut self, options: &[&str]) {
        let mut command = Command::new(&self.command);
        command.args(["adapter", "--system"]).args(options);
        command.env("TOEHOLD_SYSTEM_DIR", self.system_dir());
        let mut adapter = Running::start(command, "adapter", self.scratch.path());
        let up = wait_until(TIME_LIMIT, || {
            adapter.ended().is_some() || toehold_adapter::client::ping(&self.system_dir()).is_ok()
        });
        assert!(up && adapter.ended().is_none(), "{}", adapter.outputs());
        self.adapter = Some(adapter);
    }

    /// The adapter's process.
    ///
    /// # Panics
    /// When it was never started.
    pub fn adapter(&mut self) -> &mut Running {
        self.adapter.as_mut().expect("started")
    }

    /// The adapter dies suddenly.
    ///
    /// # Panics
    /// When it does not.
    pub fn kill_adapter(&mut self) {
        self.adapter().signal(libc::SIGKILL);
        assert!(
            self.adapter().wait(TIME_LIMIT).is_some(),
            "SIGKILL does not kill"
        );
    }

    /// Where it meets its clients.
    pub fn system_dir(&self) -> PathBuf {
        self.scratch.path().join("system")
    }

    /// A directory for everything else, which any user may enter.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// The copy of the product's command, with the library beside it.
    pub fn command(&self) -> &Path {
        &self.command
    }

    /// The copy of the library.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// The copy of the program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A user's own directory.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn home(&self, user: u32) -> PathBuf {
        let home = self.scratch.path().join(format!("home-{user}"));
        if !home.exists() {
            std::fs::create_dir(&home).expect("scratch");
            std::os::unix::fs::chown(&home, Some(user), Some(user)).expect("root may");
        }
        home
    }

    /// A `toehold` subcommand as a user would type it.
    ///
    /// # Panics
    /// When the user's directory cannot be made.
    pub fn toehold_as(&self, user: u32, words: &[&str]) -> Command {
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
    ///
    /// # Panics
    /// When the command cannot be started.
    pub fn status(&self) -> Value {
        let mut command = Command::new(&self.command);
        command.args(["status", "--json", "--adapter", "system"]);
        command.env("TOEHOLD_SYSTEM_DIR", self.system_dir());
        let output = command.output_in_time().expect("toehold runs");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    /// The connections of a process, by what root is told.
    pub fn connections(&self, pid: u32) -> Vec<Value> {
        let status = self.status();
        let processes = status["processes"].as_array().cloned().unwrap_or_default();
        let mut processes = processes.into_iter();
        let its = processes.find(|process| process["pid"].as_u64() == Some(pid.into()));
        its.map_or(Vec::new(), |process| {
            let connections = process["connections"].as_array();
            connections.cloned().unwrap_or_default()
        })
    }

    /// A server and a client of two users, connected; each sends `bytes`, 0 for without end.
    ///
    /// # Panics
    /// When the server does not start.
    pub fn pair(&self, name: &str, bytes: u64) -> [Running; 2] {
        self.pair_by(name, bytes, &["run", "--"])
    }

    /// Starts one end as a user under `toehold run`, in a namespace if one is given. `role` is what
    /// the program is to do.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn end(&self, name: &str, user: u32, place: Option<&Namespace>, role: &[&str]) -> Running {
        let program = self.program.to_string_lossy();
        let words: Vec<&str> = ["run", "--", &*program]
            .into_iter()
            .chain(role.iter().copied())
            .collect();
        let mut command = self.toehold_as(user, &words);
        if let Some(place) = place {
            // Before it becomes the user, who may not.
            place.hold(&mut command);
        }
        Running::start(command, &format!("{name}.{user}"), self.scratch.path())
    }

    /// Waits until a server says where it listens, and returns the port.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn port_of(server: &mut Running) -> String {
        let mut port = None;
        wait_until(TIME_LIMIT, || {
            let words = server.stdout();
            port = words
                .strip_prefix("port ")
                .and_then(|rest| rest.lines().next().map(String::from));
            port.is_some() || server.ended().is_some()
        });
        port.unwrap_or_else(|| panic!("no server\n{}", server.outputs()))
    }

    /// As [`System::pair`], with the client under `toehold` and these words.
    ///
    /// # Panics
    /// When the server does not start.
    pub fn pair_by(&self, name: &str, bytes: u64, clients: &[&str]) -> [Running; 2] {
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
        let port = System::port_of(&mut server);
        let client = start(CLIENT, &["connect", &port]);
        [server, client]
    }

    /// The connections of a process that have moved bytes through shared memory, both ways: how
    /// many. Two ends that both wait for room go by their carrier for a moment, so a look at the
    /// paths says less.
    pub fn in_memory(&self, pid: u32) -> usize {
        let has_moved = |one: &&Value| {
            let bytes = |key: &str| one[key].as_u64().unwrap_or(0);
            bytes("bytes_ring_tx") > 1_000_000 && bytes("bytes_ring_rx") > 1_000_000
        };
        self.connections(pid).iter().filter(has_moved).count()
    }

    /// Sees the one connection of each end of a pair move bytes through shared memory.
    ///
    /// # Panics
    /// When it does not in time.
    pub fn assert_in_memory(&self, pair: &[Running; 2], context: &str) {
        let moves = wait_until(TIME_LIMIT, || {
            pair.iter().all(|end| self.in_memory(end.pid()) == 1)
        });
        let ends = pair.iter().map(Running::outputs).collect::<String>();
        let adapter = self.adapter.as_ref().map(Running::outputs);
        let adapter = adapter.unwrap_or_default();
        assert!(moves, "{context}: {}\n{ends}\n{adapter}", self.status());
    }
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("it is ours");
}
