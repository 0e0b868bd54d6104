//! Sources of others, as Debian has them: fetched once, kept under `target/suites`, never
//! committed.
//!
//! `apt-get source` is told of a list of its own, so that the system's lists stay as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::target;

/// Where sources of the release that this is come from.
const ARCHIVE: &str = "http://deb.debian.org/debian";

/// Where everything that suites need is kept.
pub(crate) fn cache() -> PathBuf {
    target().join("suites")
}

/// Held while apt runs: suites begin at the same time, and its lists have one lock.
static APT: Mutex<()> = Mutex::new(());

/// The unpacked source of a Debian source package.
pub(crate) fn of_package(package: &str) -> Result<PathBuf, String> {
    let release = release()?;
    let list = format!("deb-src {ARCHIVE} {release} main\n");
    fetched(package, package, &list)
}

/// The unpacked source that an installed package was built from; where it is no longer to be had,
/// the source that the release came with.
pub(crate) fn of_installed(package: &str) -> Result<PathBuf, String> {
    let mut ask = Command::new("dpkg-query");
    let answer = ask
        .args(["-W", "-f", "${source:Version}", package])
        .output();
    let answer = answer.map_err(|error| format!("{ask:?}: {error}"))?;
    if !answer.status.success() {
        return Err(format!("{package} is not installed"));
    }
    let version = String::from_utf8_lossy(&answer.stdout).into_owned();
    let release = release()?;
    let list = format!(
        "deb-src {ARCHIVE} {release} main\ndeb-src {ARCHIVE}-security {release}-security main\n"
    );
    let exact = fetched(
        &format!("{package}_{version}"),
        &format!("{package}={version}"),
        &list,
    );
    exact.or_else(|_| of_package(package))
}

/// The source that `apt-get source WORD` brings, with a list of its own, kept as `name`.
fn fetched(name: &str, word: &str, list: &str) -> Result<PathBuf, String> {
    let dir = cache().join(name);
    if let Some(source) = only_folder(&dir) {
        return Ok(source);
    }
    let _apt = APT.lock().expect("nobody panics with it");
    let partial = cache().join(format!("{name}.partial"));
    let _ = fs::remove_dir_all(&partial);
    let state = cache().join("apt");
    let made =
        fs::create_dir_all(&partial).and_then(|()| fs::create_dir_all(state.join("partial")));
    made.map_err(|error| error.to_string())?;
    // Not among apt's lists: apt removes there what it does not know.
    let sources = cache().join("sources.list");
    fs::write(&sources, list).map_err(|error| error.to_string())?;
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(["-qq", "-o"]);
        command.arg(format!("Dir::Etc::SourceList={}", sources.display()));
        command.args(["-o", "Dir::Etc::SourceParts=/dev/null", "-o"]);
        command.arg(format!("Dir::State::Lists={}", state.display()));
        succeeds(command.args(words).current_dir(&partial))
    };
    apt(&["update"])?;
    apt(&["source", word])?;
    fs::rename(&partial, &dir).map_err(|error| error.to_string())?;
    only_folder(&dir).ok_or_else(|| format!("{word} has no source in {}", dir.display()))
}

/// Runs a step of a build in `dir`; what it says is shown when it fails.
pub(crate) fn build(dir: &Path, words: &[&str]) -> Result<(), String> {
    let (program, arguments) = words.split_first().expect("a step has a program");
    succeeds(Command::new(program).args(arguments).current_dir(dir))
}

/// Copies a folder with the folders and files in it. Sockets and links are left out: an earlier
/// run, elsewhere, may have left them.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// A program in one of the folders of `PATH`.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    let output = command.output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}\n{said}", output.status))
}

fn only_folder(dir: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.flatten();
    entries.map(|entry| entry.path()).find(|path| path.is_dir())
}

/// The code name of this Debian.
fn release() -> Result<String, String> {
    let about = fs::read_to_string("/etc/os-release").map_err(|error| error.to_string())?;
    let is_debian = about.lines().any(|line| line == "ID=debian");
    let name = about
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    match name {
        Some(name) if is_debian => Ok(name.to_owned()),
        _ => Err("sources are fetched on Debian only".to_owned()),
    }
}
