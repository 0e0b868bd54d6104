//! The tests' needs of the host: free ports, installed programs, loud skips.

use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

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
