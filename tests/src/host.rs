//! The tests' needs of the host: free ports, installed programs, loud skips.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// A TCP port that was free a moment ago.
///
/// For programs that cannot bind port 0 and report the result. The port is in the ephemeral range,
/// so another test can take it in between: callers retry if a server cannot bind.
///
/// # Panics
/// When the loopback interface has no free port left.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback interface has ports");
    listener
        .local_addr()
        .expect("a bound listener has an address")
        .port()
}

/// Raises the descriptor limit of this process, and of those that it starts, to the host's maximum.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is live; what is set is what was got, with one number changed.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}

/// The path of an installed program, if it is installed.
///
/// Looks beyond `PATH` in the directories that Debian keeps servers in.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.extend(["/usr/sbin", "/usr/bin", "/sbin"].map(PathBuf::from));
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        places.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    places
        .into_iter()
        .map(|place| place.join(name))
        .find(|path| path.is_file())
}

/// An option of Python for scripts that use the standard library only: no packages of this host.
/// Some hosts have packages that Python imports at each start, in a tenth of a second. The tests
/// start it thousands of times.
pub const PYTHON_ALONE: &str = "-S";

/// The arguments with which Python runs a script of the folder `scripts`.
///
/// Python would compile the script at each start, which takes as long as to start Python. So each
/// test program compiles it once, and Python runs the result.
///
/// # Panics
/// If Python cannot compile it, or is not installed: callers have asked for [`python`].
pub fn script(name: &'static str) -> [&'static str; 2] {
    static COMPILED: Mutex<BTreeMap<&str, &str>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let path: &str = compiled.entry(name).or_insert_with(|| compile(name).leak());
    [PYTHON_ALONE, path]
}

/// Compiles a script into the folder of this test program. Another test program may do so at the
/// same time: `py_compile` replaces the whole file.
fn compile(name: &str) -> String {
    let source = format!("{}/scripts/{name}", env!("CARGO_MANIFEST_DIR"));
    let program = std::env::current_exe().expect("a running program has a path");
    let target = program.with_file_name(format!("{name}c"));
    let target = target.to_string_lossy().into_owned();
    let compile = "import py_compile, sys; py_compile.compile(*sys.argv[1:], doraise=True)";
    let mut command = Command::new(python().expect("Python is installed"));
    command.args([PYTHON_ALONE, "-c", compile, &source, &target]);
    let output = command.output().expect("Python is a program");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{source} is not compiled: {said}");
    target
}

/// The Python interpreter itself, and not a launcher script before it in `PATH`. `None`, after
/// reporting a skip, if there is none.
pub fn python() -> Option<PathBuf> {
    // A launcher may be a script that takes as long as many a test.
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let python = FOUND.get_or_init(interpreter).clone();
    if python.is_none() {
        skipped("python3 is not installed");
    }
    python
}

fn interpreter() -> Option<PathBuf> {
    // A distribution compiles Python with every optimization. It needs two thirds of the time of
    // one that somebody compiled on this host.
    let installed = Path::new("/usr/bin/python3");
    if installed.is_file() {
        return Some(installed.to_owned());
    }
    let launcher = program("python3")?;
    let output = Command::new(launcher)
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.is_file().then_some(path)
}

/// Says, past the test runner's output capture, that a test did not run.
pub fn skipped(reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // The runner captures `println!`, not the descriptor: a skip must be seen in a passing run.
    let _ = std::io::stderr().write_all(format!("SKIPPED: {test}: {reason}\n").as_bytes());
}

/// The first of `names` that is not installed, reported as a skip.
///
/// Returns the programs' paths in order, or `None` after saying what is missing.
pub fn require<const N: usize>(names: [&str; N]) -> Option<[PathBuf; N]> {
    let mut found = Vec::with_capacity(N);
    for name in names {
        match program(name) {
            Some(path) => found.push(path),
            None => {
                skipped(&format!("{name} is not installed"));
                return None;
            }
        }
    }
    found.try_into().ok()
}

/// The first seed of the random cases: 0, or the number in `TOEHOLD_SEED`.
pub fn seed() -> u64 {
    number("TOEHOLD_SEED").unwrap_or(0)
}

/// The number of rounds that a repeated test runs: `usual`, or the number in `TOEHOLD_SOAK`.
pub fn rounds(usual: u64) -> u64 {
    number("TOEHOLD_SOAK").unwrap_or(usual)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
