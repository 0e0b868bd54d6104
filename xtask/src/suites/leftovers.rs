//! Removes leftovers of a run of suites: processes that their programs started, and folders.
//!
//! - A signal that asks this program to end only sets a flag. Then the current program is ended,
//!   and everything is dropped in order.
//! - SIGKILL leaves behind the processes that a suite's program had started, and the folder. The
//!   next run ends them: the lock in that folder is free, and each process of that run is in the
//!   network whose cookie the folder stores, or has the folder in its environment. (Redis
//!   overwrites its environment; without privileges there is no network.)
//!
//! The network disappears with its last process: see [`Namespace`].

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use toehold_network::{Namespace, cookie_of};

/// The variable with the path of the journal, in the environment of each program of a suite. The
/// journal lies in the run's folder.
pub(crate) const JOURNAL: &str = "TOEHOLD_SUITE_JOURNAL";
/// The file of a run's folder that has the cookie of its network.
const COOKIE: &str = "network";
/// The file of a run's folder that the run has locked.
const LOCK: &str = "lock";
/// The prefix of the file that says that a suite is being run.
const RESERVED: &str = "toehold-suite-lock-";
/// The prefix of the name of a run's folder.
const PREFIX: &str = "toehold-suites-";

static ENDED: AtomicBool = AtomicBool::new(false);

/// Makes SIGINT, SIGTERM and SIGHUP set the flag of [`is_ended`]. A second signal ends this
/// program.
pub(crate) fn watch_signals() {
    extern "C" fn note(_: libc::c_int) {
        // Relaxed: the flag publishes no other data.
        ENDED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all zeroes are a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
        // SAFETY: the action is valid, and its handler only stores to an atomic.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Whether a signal has asked this program to end.
pub(crate) fn is_ended() -> bool {
    ENDED.load(Ordering::Relaxed)
}

/// The folder of a run. It is removed with its contents.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: tempfile::TempDir,
    /// Locked for as long as the run lives; children do not inherit it.
    _lock: File,
}

impl Folder {
    /// Makes a folder, with a note of its network.
    pub(crate) fn new(network: Option<&Namespace>) -> std::io::Result<Folder> {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        if let Some(cookie) = network.and_then(Namespace::cookie) {
            fs::write(dir.path().join(COOKIE), cookie.to_string())?;
        }
        let lock = File::create(dir.path().join(LOCK))?;
        assert!(try_lock(&lock), "nobody knows of this folder yet");
        Ok(Folder { dir, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Waits until no other run on this host uses the suite. The suite's programs share files with
/// fixed names, such as libuv's `/tmp/uv-test-sock`, and prepared folders. This run has the suite
/// until the file is closed.
pub(crate) fn reserve(suite: &str) -> std::io::Result<File> {
    let path = std::env::temp_dir().join(format!("{RESERVED}{suite}"));
    let file = File::options().append(true).create(true).open(path)?;
    while !try_lock(&file) && !is_ended() {
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(file)
}

/// Removes leftovers of earlier runs that SIGKILL ended.
pub(crate) fn sweep() {
    for folder in folders_of_the_dead(&std::env::temp_dir()) {
        end_those_of(&folder);
        let _ = fs::remove_dir_all(&folder);
    }
}

/// Ends each process of the run of a folder.
pub(crate) fn end_those_of(folder: &Path) {
    let start = format!("{JOURNAL}={}/", folder.display());
    let cookie = fs::read_to_string(folder.join(COOKIE)).ok();
    let cookie: Option<u64> = cookie.and_then(|text| text.parse().ok());
    let ours = fs::read_link("/proc/self/ns/net").ok();
    for pid in processes() {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        // Most processes are in our own network.
        let is_elsewhere = fs::read_link(process.join("ns/net")).ok() != ours;
        if variables.any(|variable| variable.starts_with(start.as_bytes()))
            || is_elsewhere && cookie.is_some() && cookie_of(&process) == cookie
        {
            // SAFETY: takes no pointers. The process was of this folder a moment ago.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// The folders whose lock is free.
fn folders_of_the_dead(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_dead = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // A folder without a lock is being made.
        name.starts_with(PREFIX) && File::open(path.join(LOCK)).is_ok_and(|lock| try_lock(&lock))
    };
    entries.map(|entry| entry.path()).filter(is_dead).collect()
}

fn try_lock(file: &File) -> bool {
    // SAFETY: takes no pointers.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

fn processes() -> impl Iterator<Item = libc::pid_t> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_a_killed_run_left_is_found_and_ended() {
        let dir = tempfile::tempdir().expect("a folder can be made");
        let left = dir.path().join(format!("{PREFIX}left"));
        let held = dir.path().join(format!("{PREFIX}held"));
        let other = dir.path().join("other");
        for folder in [&left, &held, &other] {
            fs::create_dir(folder).expect("a folder can be made");
            File::create(folder.join(LOCK)).expect("a file can be made");
        }
        let lock = File::open(held.join(LOCK)).expect("the file is there");
        assert!(try_lock(&lock));
        assert_eq!(folders_of_the_dead(dir.path()), [left.as_path()]);

        let sleeper = |folder: &Path| {
            let mut command = Command::new("sleep");
            command.arg("1000").env(JOURNAL, folder.join("journal"));
            command.stdin(Stdio::null()).spawn().expect("sleep starts")
        };
        let mut theirs = sleeper(&left);
        let mut other = sleeper(&held);
        end_those_of(&left);
        let status = theirs.wait().expect("it is a child");
        assert!(!status.success());
        if let Ok(network) = Namespace::new() {
            let cookie = network.cookie().expect("this kernel has cookies");
            fs::write(left.join(COOKIE), cookie.to_string()).expect("the folder is there");
            let mut command = Command::new("sleep");
            command.arg("1000").stdin(Stdio::null());
            network.hold(&mut command);
            let mut nameless = command.spawn().expect("sleep starts");
            end_those_of(&left);
            assert!(!nameless.wait().expect("it is a child").success());
        }
        let lives = other.try_wait().expect("it is a child").is_none();
        other.kill().expect("it is a child");
        other.wait().expect("it is a child");
        assert!(lives, "a process of another run was ended");
    }
}
