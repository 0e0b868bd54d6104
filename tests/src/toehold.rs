//! The product under test: found, started, asked.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;
use toehold_adapter::client::{self, ClientError};

use crate::activation::Activation;
use crate::process::{
    OutputInTime, Running, TIME_LIMIT, copy_program, host_whereabouts, tail, wait_until,
    whereabouts,
};

/// The option of an adapter that serves all users.
const SYSTEM: &str = "--system";

/// The way in which a program under test is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// As it is, on the kernel: the oracle.
    Host,
    /// Under `toehold run --path direct`.
    Direct,
    /// Under `toehold run --path direct --express always`.
    Express,
    /// Under `toehold run --path offload`.
    Offload,
    /// Under `toehold run`, where rules decide.
    Auto,
}

/// One adapter with its private runtime directory, and the means to run programs under it.
#[derive(Debug)]
pub struct Toehold {
    product: Product,
    /// Before the adapter, which says what it knows when a test fails.
    scratch: Scratch,
    adapter: Option<Running>,
    user: Option<String>,
    /// The command that starts every program, for example `ip netns exec NAME`.
    starter: Vec<String>,
    /// The adapter's arguments besides its runtime directory.
    adapter_arguments: Vec<String>,
    /// The wait mode of programs, if they are told: `--wait` of `toehold run`.
    wait: Option<&'static str>,
}

/// The two files a user installs.
#[derive(Clone, Debug)]
struct Product {
    command: PathBuf,
    library: PathBuf,
}

impl Toehold {
    /// Builds the product if need be and starts an adapter for this test alone.
    ///
    /// # Panics
    /// When the product does not build or the adapter does not answer.
    pub fn start() -> Toehold {
        Toehold::start_for(None)
    }

    /// As [`Toehold::start`], with the adapter and every program run as `user`.
    ///
    /// # Panics
    /// When the product does not build, the adapter does not answer, or we may not become `user`.
    pub fn start_as(user: &str) -> Toehold {
        Toehold::start_for(Some(user.to_owned()))
    }

    /// A place to run programs on the kernel: no adapter, nothing built.
    ///
    /// # Panics
    /// When there is no room for a scratch directory.
    pub fn absent() -> Toehold {
        let product = Product {
            command: PathBuf::new(),
            library: PathBuf::new(),
        };
        Toehold {
            product,
            scratch: Scratch::new(),
            adapter: None,
            user: None,
            starter: Vec::new(),
            adapter_arguments: Vec::new(),
            wait: None,
        }
    }

    /// As [`Toehold::start`], with every program told how to wait.
    ///
    /// # Panics
    /// As [`Toehold::start`].
    pub fn start_waiting(wait: &'static str) -> Toehold {
        Toehold {
            wait: Some(wait),
            ..Toehold::start()
        }
    }

    /// As [`Toehold::start`], for programs that become other users: the adapter serves them all.
    ///
    /// # Panics
    /// As [`Toehold::start`], or when we are not root.
    pub fn start_for_all_users() -> Toehold {
        let mut toehold = Toehold::absent();
        toehold.product = product().copied_to(toehold.scratch.path());
        toehold.use_adapter_arguments(&[SYSTEM]);
        toehold.start_adapter();
        toehold
    }

    /// As [`Toehold::absent`], with every program run as `user`.
    ///
    /// # Panics
    /// When there is no room for a scratch directory that `user` can write.
    pub fn absent_as(user: &str) -> Toehold {
        let toehold = Toehold {
            user: Some(user.to_owned()),
            ..Toehold::absent()
        };
        toehold.give_to_user(toehold.scratch.path());
        toehold
    }

    /// As [`Toehold::start`], with every program started by `starter` and the adapter told
    /// `adapter_arguments`.
    ///
    /// # Panics
    /// As [`Toehold::start`].
    pub fn start_in(starter: &[&str], adapter_arguments: &[&str]) -> Toehold {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let mut toehold = Toehold {
            product: product().clone(),
            starter: words(starter),
            adapter_arguments: words(adapter_arguments),
            ..Toehold::absent()
        };
        // A system adapter makes its own, which all users may enter.
        if !adapter_arguments.contains(&SYSTEM) {
            toehold.make_runtime();
        }
        toehold.start_adapter();
        toehold
    }

    /// As [`Toehold::start`], with adapters that a service manager starts for whoever comes.
    ///
    /// # Panics
    /// When the product does not build.
    pub fn start_activated() -> (Toehold, Activation) {
        let toehold = Toehold {
            product: product().clone(),
            ..Toehold::absent()
        };
        toehold.make_runtime();
        let activation = toehold.activate();
        (toehold, activation)
    }

    /// A service manager takes the place where programs look for the adapter, which may run.
    ///
    /// # Panics
    /// When there is no socket to be had.
    pub fn activate(&self) -> Activation {
        Activation::start(&self.product.command, &self.runtime())
    }

    fn start_for(user: Option<String>) -> Toehold {
        let mut toehold = match &user {
            Some(user) => Toehold::absent_as(user),
            None => Toehold::absent(),
        };
        toehold.product = product().clone();
        if user.is_some() {
            toehold.product = toehold.product.copied_to(toehold.scratch.path());
        }
        toehold.make_runtime();
        toehold.start_adapter();
        toehold
    }

    fn make_runtime(&self) {
        let runtime = self.runtime();
        fs::create_dir(&runtime).expect("the scratch directory is writable");
        fs::set_permissions(&runtime, PermissionsExt::from_mode(0o700)).expect("it is ours");
        self.give_to_user(&runtime);
    }

    /// Starts the adapter, or starts it again after it was killed.
    ///
    /// # Panics
    /// When it does not answer within ten seconds.
    pub fn start_adapter(&mut self) {
        self.start_adapter_with(&[]);
    }

    /// As [`Toehold::start_adapter`], in place of one that runs, with more options.
    ///
    /// # Panics
    /// As [`Toehold::start_adapter`].
    pub fn start_adapter_with(&mut self, options: &[&str]) {
        let command = self.as_user(&self.product.command);
        self.start_adapter_by(command, options);
    }

    /// As [`Toehold::start_adapter`], in place of one that runs, with so many descriptors at most.
    ///
    /// # Panics
    /// As [`Toehold::start_adapter`].
    pub fn start_adapter_with_descriptors(&mut self, most: u32) {
        let mut command = self.as_user("sh");
        let limit = format!("ulimit -n {most} && exec \"$0\" \"$@\"");
        command.args(["-c", &limit]).arg(&self.product.command);
        self.start_adapter_by(command, &[]);
    }

    fn start_adapter_by(&mut self, mut command: Command, options: &[&str]) {
        self.adapter = None;
        command
            .arg("adapter")
            .args(options)
            .arg("--runtime-dir")
            .arg(self.runtime())
            .args(&self.adapter_arguments);
        let arguments = || {
            options
                .iter()
                .copied()
                .chain(self.adapter_arguments.iter().map(|it| &**it))
        };
        if !arguments().any(|argument| argument == "--rules") {
            // The rules of whoever runs the tests must not decide them.
            command.args(["--rules", "/dev/null"]);
        }
        let mut adapter = Running::start(command, "adapter", self.dir());
        let mut refusal = None;
        let up = wait_until(TIME_LIMIT, || {
            let known = self.try_known();
            refusal = known.as_ref().err().map(ToString::to_string);
            adapter.ended().is_some() || known.is_ok_and(|known| known.is_object())
        });
        assert!(
            up && adapter.ended().is_none(),
            "the adapter did not start ({:?}): {}\n{}\n{}{}",
            adapter.ended(),
            refusal.unwrap_or_default(),
            adapter.whereabouts(),
            host_whereabouts(),
            adapter.outputs()
        );
        self.adapter = Some(adapter);
    }

    /// Arguments of adapters that start from here on, beside their runtime directory.
    pub fn use_adapter_arguments(&mut self, arguments: &[&str]) {
        self.adapter_arguments = arguments.iter().map(|&word| word.to_owned()).collect();
    }

    /// The running adapter.
    ///
    /// # Panics
    /// When this is a [`Toehold::absent`] one.
    pub fn adapter(&mut self) -> &mut Running {
        self.adapter.as_mut().expect("an adapter was started")
    }

    /// A command that runs `program` on `path`.
    pub fn command(&self, path: Path, program: impl AsRef<OsStr>) -> Command {
        self.command_with(path, &[], program)
    }

    /// As [`Toehold::command`], with `options` of `toehold run`.
    pub fn command_with(
        &self,
        path: Path,
        options: &[&str],
        program: impl AsRef<OsStr>,
    ) -> Command {
        match path {
            Path::Host => self.as_user(program),
            Path::Direct | Path::Express | Path::Offload | Path::Auto => {
                let word = match path {
                    Path::Offload => "offload",
                    Path::Auto => "auto",
                    _ => "direct",
                };
                let mut command = self.as_user(&self.product.command);
                command.env("TOEHOLD_LIB", &self.product.library);
                command.args(["run", "--path", word]);
                if self.adapter_arguments.iter().any(|it| it == SYSTEM) {
                    command.args(["--adapter", "system"]);
                    command.env("TOEHOLD_SYSTEM_DIR", self.runtime());
                } else {
                    command.arg("--runtime-dir").arg(self.runtime());
                }
                if path == Path::Express {
                    command.args(["--express", "always"]);
                    command.env("E2E_EXPRESS", "yes");
                }
                if let Some(wait) = self.wait {
                    command.args(["--wait", wait]);
                }
                command.args(options).arg("--").arg(program);
                command
            }
        }
    }

    /// A command that runs a program that makes its system calls itself, with these calls patched.
    pub fn patched(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command(Path::Direct, program);
        command.env("TOEHOLD_COUNT_CALLS", "on");
        command
    }

    /// A command that runs such a program as it is.
    pub fn unpatched(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.as_user(&self.product.command);
        command.env("TOEHOLD_LIB", &self.product.library);
        command.args(["run", "--path", "direct", "--patch-calls", "off"]);
        command.arg("--runtime-dir").arg(self.runtime());
        command.arg("--").arg(program);
        command
    }

    /// The `toehold` command and its library, for scripts that start programs themselves.
    pub fn files(&self) -> (&FilePath, &FilePath) {
        (&self.product.command, &self.product.library)
    }

    /// Runs a `toehold` subcommand against this adapter; its output, or `None` when it fails.
    pub fn ask(&self, arguments: &[&str]) -> Option<String> {
        let output = self.asking(arguments).output_in_time().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A command that runs a `toehold` subcommand against this adapter.
    pub fn asking(&self, arguments: &[&str]) -> Command {
        let mut command = self.as_user(&self.product.command);
        command
            .args(arguments)
            .arg("--runtime-dir")
            .arg(self.runtime());
        command
    }

    /// The program `toehold` itself.
    pub fn program(&self) -> &OsStr {
        self.product.command.as_ref()
    }

    /// Everything that `toehold status` knows now.
    pub fn status(&self) -> Value {
        let text = self.ask(&["status", "--json"]);
        text.and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or(Value::Null)
    }

    /// As [`Toehold::status`], without what the command finds in the host's other processes: for
    /// those who ask again and again. The command takes a hundred times as long, most of it to look
    /// at every process.
    pub fn known(&self) -> Value {
        self.try_known().unwrap_or(Value::Null)
    }

    fn try_known(&self) -> Result<Value, ClientError> {
        match client::status(&self.runtime()) {
            Ok(text) => Ok(serde_json::from_str(&text).unwrap_or(Value::Null)),
            // Another user's: the command is run as that user.
            Err(ClientError::OtherOwner { .. } | ClientError::RuntimeDir(_)) => Ok(self.status()),
            Err(error) => Err(error),
        }
    }

    /// Every connection that `toehold status` knows now.
    pub fn connections(&self) -> Vec<Connection> {
        Connection::all_of(&self.status())
    }

    /// As [`Toehold::connections`], of [`Toehold::known`].
    pub fn known_connections(&self) -> Vec<Connection> {
        Connection::all_of(&self.known())
    }

    /// Sends every connection back to the kernel; how many were told.
    pub fn detach_all(&self) -> u32 {
        client::detach(&self.runtime(), 0, None).unwrap_or(0)
    }

    /// Lets every connection go to its rings again; how many were told.
    pub fn attach_all(&self) -> u32 {
        client::attach(&self.runtime(), 0, None).unwrap_or(0)
    }

    /// A directory for this test's files; gone afterwards.
    pub fn dir(&self) -> &FilePath {
        self.scratch.path()
    }

    /// The adapter's runtime directory.
    pub fn runtime(&self) -> PathBuf {
        self.scratch.runtime()
    }

    /// A command for `program` as the user this instance is for.
    fn as_user(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.user {
            None => match self.starter.split_first() {
                None => Command::new(program),
                Some((starter, words)) => {
                    let mut command = Command::new(starter);
                    command.args(words).arg(program);
                    command
                }
            },
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", user, "--regid", user, "--clear-groups", "--"]);
                command
                    .arg(program)
                    .current_dir(self.dir())
                    .env("HOME", self.dir());
                command.env_remove("XDG_RUNTIME_DIR");
                command
            }
        }
    }

    /// Makes `path` the user's own.
    pub fn give_to_user(&self, path: &FilePath) {
        if let Some(user) = &self.user {
            let status = Command::new("chown")
                .arg(format!("{user}:"))
                .arg(path)
                .status();
            assert!(
                status.is_ok_and(|status| status.success()),
                "chown {user} {path:?} failed"
            );
        }
    }
}

/// One connection as `toehold status` tells of it.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The process that holds it.
    pub pid: u64,
    /// Everything told.
    pub value: Value,
}

impl Connection {
    /// Those of a status.
    pub fn all_of(status: &Value) -> Vec<Connection> {
        let processes = status["processes"].as_array();
        let mut connections = Vec::new();
        for process in processes.into_iter().flatten() {
            for connection in process["connections"].as_array().into_iter().flatten() {
                connections.push(Connection {
                    pid: process["pid"].as_u64().unwrap_or(0),
                    value: connection.clone(),
                });
            }
        }
        connections
    }

    /// Whether both directions run on rings.
    pub fn is_direct(&self) -> bool {
        let path = |key: &str| self.value[key].as_str() == Some("direct");
        path("path") && path("tx_path") && path("rx_path")
    }

    /// Whether one of its addresses ends in this port, before the inode of a Unix socket.
    pub fn has_port(&self, port: u16) -> bool {
        let ends = |key: &str| {
            self.value[key].as_str().is_some_and(|address| {
                let name = address.split('#').next().unwrap_or_default();
                name.ends_with(&format!(":{port}"))
            })
        };
        ends("local") || ends("remote")
    }

    /// A counter of this connection.
    pub fn count(&self, key: &str) -> u64 {
        self.value[key].as_u64().unwrap_or(0)
    }
}

impl Product {
    /// A copy that any user can read, whatever the build directory's permissions.
    fn copied_to(&self, dir: &FilePath) -> Product {
        let copy = |from: &FilePath| {
            let to = dir.join(from.file_name().expect("a file has a name"));
            copy_program(from, &to);
            to
        };
        Product {
            command: copy(&self.command),
            library: copy(&self.library),
        }
    }
}

/// Builds the product once for all tests of this process, as it is installed: the tests may be of
/// any profile, the product is of the release profile.
fn product() -> &'static Product {
    static PRODUCT: OnceLock<Product> = OnceLock::new();
    PRODUCT.get_or_init(|| {
        let profile = target_dir();
        let target = profile
            .parent()
            .expect("a profile lies in a target directory");
        // Cargo has released its build lock by the time it runs tests, and a build with nothing to
        // do takes a fraction of a second. Without it a test could praise an old library.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "--release"]);
        command.args(["-p", "toehold", "-p", "toehold-preload"]);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command.env("CARGO_TARGET_DIR", target);
        let built = command.status().is_ok_and(|status| status.success());
        assert!(built, "the product does not build: {command:?}");
        let dir = target.join("release");
        Product {
            command: dir.join("toehold"),
            library: dir.join("libtoehold.so"),
        }
    })
}

/// The library under test, built.
pub fn library() -> PathBuf {
    product().library.clone()
}

/// The sum of a count of short connections over all processes of a status.
pub fn express_count(status: &Value, name: &str) -> u64 {
    let processes = status["processes"].as_array();
    let counts = processes.into_iter().flatten();
    counts
        .filter_map(|process| process["express"][name].as_u64())
        .sum()
}

/// The directory of the running profile: programs run from there, and tests from `deps` in it.
fn target_dir() -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    let dir = program.parent().expect("programs lie in a directory");
    let dir = if dir.ends_with("deps") {
        dir.parent().expect("deps lies in a profile")
    } else {
        dir
    };
    dir.to_path_buf()
}

/// A directory for the files of a test, gone with it. When the test fails, it says what is there.
#[derive(Debug)]
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Scratch {
        let dir = tempfile::Builder::new().prefix("toehold-e2e-").tempdir();
        let dir = dir.expect("the temporary directory is writable");
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
        Scratch(dir)
    }

    fn path(&self) -> &FilePath {
        self.0.path()
    }

    fn runtime(&self) -> PathBuf {
        self.path().join("runtime")
    }

    /// All that is known of a test that has failed: where the adapter's threads are, its status,
    /// and the end of whatever each program has written.
    fn remains(&self) -> String {
        let mut said = String::new();
        let lock = fs::read_to_string(self.runtime().join("adapter.lock"));
        if let Some(adapter) = lock.ok().and_then(|pid| pid.trim().parse().ok()) {
            said += &format!("--- adapter, threads\n{}\n", whereabouts(adapter));
            let status = client::status(&self.runtime());
            let status = status.unwrap_or_else(|error| error.to_string());
            said += &format!("--- adapter, status\n{status}\n");
        }
        let files = fs::read_dir(self.path()).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
        files.sort_unstable();
        for file in files {
            let kind = file.extension().and_then(OsStr::to_str);
            if matches!(kind, Some("out" | "err" | "log")) {
                said += &format!("--- {}\n{}", file.display(), tail(&file));
            }
        }
        said
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.remains());
        }
    }
}
