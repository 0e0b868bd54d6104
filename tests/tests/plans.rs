//! Plans that are kept for static programs, so that their next start is faster (decision 26).

#![cfg(target_arch = "x86_64")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use toehold_e2e::patched::{Waiting, compile_static_threads};
use toehold_e2e::{Toehold, host};

#[test]
fn the_next_start_of_a_program_uses_the_plan_of_the_last() {
    if host::require(["cc"]).is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("scratch");
    let program = compile_static_threads(directory.path());
    // No plan is kept for a file that was changed less than three seconds ago.
    std::thread::sleep(Duration::from_secs(5));
    let toehold = Toehold::start();
    let plans = directory.path().join("toehold-plans");
    // The helper has the program's standard error. When no process can write there, the helper has
    // ended.
    let start = |hinder: fn(&mut Command) -> &mut Command, runtime: &Path| {
        let mut command = toehold.patched(&program);
        hinder(command.env("XDG_RUNTIME_DIR", runtime));
        let waiting = Waiting::start(&mut command);
        assert!(waiting.counts().is_some(), "the program is patched");
        let (_, said) = waiting.end();
        assert_eq!(said, "");
    };
    let entry = || {
        let mut entries = fs::read_dir(&plans).expect("made by the first start");
        let path = entries.next()?.expect("an entry").path();
        assert!(entries.next().is_none());
        let inode = fs::metadata(&path).expect("an entry").ino();
        Some((fs::read(&path).expect("readable"), inode, path))
    };
    start(|command| command, directory.path());
    let first = entry().expect("the plan was kept");
    start(|command| command, directory.path());
    assert!(entry().is_some_and(|now| now == first), "the plan was used");
    let (whole, _, path) = first;
    let mut torn = whole.clone();
    torn.truncate(whole.len() / 2);
    fs::write(&path, &torn).expect("room");
    start(|command| command, directory.path());
    assert!(
        entry().is_some_and(|(bytes, ..)| bytes == whole),
        "it is whole again"
    );
    // As on a full disk: a file that the helper makes has no room for a byte.
    fs::remove_file(&path).expect("ours");
    start(without_room, directory.path());
    assert!(entry().is_none());
    // No process can make a directory here.
    start(|command| command, Path::new("/proc"));
}

/// Makes every write fail that would make a file longer (RLIMIT_FSIZE).
fn without_room(command: &mut Command) -> &mut Command {
    let limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
}
