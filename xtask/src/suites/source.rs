//! Sources of other projects from Debian: fetched once, kept under `target/suites`, never
//! committed.
//!
//! `apt-get source` uses a separate list, so that the system's lists do not change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::target;

/// The variable with another address of original sources, for mirrors of the archive that lack one.
/// A file from there must have the checksum in Debian's description.
const ORIGINALS: &str = "TOEHOLD_SUITES_ORIGINALS";
/// A part of apt, which downloads a file and checks it.
const DOWNLOADER: &str = "/usr/lib/apt/apt-helper";

/// The folder for all files of the suites.
pub(crate) fn cache() -> PathBuf {
    target().join("suites")
}

/// Held while apt runs: suites begin at the same time, and its lists have one lock.
static APT: Mutex<()> = Mutex::new(());

/// The unpacked source of a Debian source package, in the version that the release came with: a
/// mirror may lack the sources of later ones.
pub(crate) fn of_package(package: &str) -> Result<PathBuf, String> {
    fetched(package, package, &of_release(&sources()?))
}

/// The unpacked source that an installed package was built from. If it is not available any more,
/// the source that came with the release.
pub(crate) fn of_installed(package: &str) -> Result<PathBuf, String> {
    let version = version(package, "${source:Version}")?;
    let exact = fetched(
        &format!("{package}_{version}"),
        &format!("{package}={version}"),
        &sources()?,
    );
    exact.or_else(|why| {
        let first = of_package(package)?;
        eprintln!("{package}: tests of {}, because {why}", first.display());
        Ok(first)
    })
}

/// A version of an installed package: the one that this field of dpkg's names.
fn version(package: &str, field: &str) -> Result<String, String> {
    let mut ask = Command::new("dpkg-query");
    let answer = ask.args(["-W", "-f", field, package]).output();
    let answer = answer.map_err(|error| format!("{ask:?}: {error}"))?;
    if !answer.status.success() {
        return Err(format!("{package} is not installed"));
    }
    Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
}

/// The files of a package that is not installed, in the version of an installed package of the same
/// source. If that version is not available any more, in the version that is.
pub(crate) fn unpacked(package: &str, installed: &str) -> Result<PathBuf, String> {
    let version = version(installed, "${Version}")?;
    let dir = cache().join(format!("{package}_{version}"));
    if let Some(files) = only_folder(&dir) {
        return Ok(files);
    }
    let partial = cache().join(format!("{package}.partial"));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).map_err(|error| error.to_string())?;
    let download = |word: &str| build(&partial, &["apt-get", "-qq", "download", word]);
    download(&format!("{package}={version}")).or_else(|_| download(package))?;
    build(&partial, &["sh", "-c", "dpkg-deb -x ./*.deb files"])?;
    fs::rename(&partial, &dir).map_err(|error| error.to_string())?;
    only_folder(&dir).ok_or_else(|| format!("{package} has no files in {}", dir.display()))
}

/// Lines of a list of sources: the archives of Debian that this host installs from.
fn sources() -> Result<String, String> {
    let mut ask = Command::new("apt-get");
    ask.args(["indextargets", "--format"]);
    ask.arg("deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)");
    ask.args(["Identifier: Packages", "Origin: Debian"]);
    let answer = ask.output().map_err(|error| format!("{ask:?}: {error}"))?;
    let list = String::from_utf8_lossy(&answer.stdout).into_owned();
    if list.is_empty() {
        return Err("apt has no lists of Debian's archive: run apt-get update".to_owned());
    }
    Ok(list)
}

/// The lines of a list that name a release, and not its updates.
fn of_release(list: &str) -> String {
    let is_of_release = |line: &&str| {
        let release = line.split_whitespace().nth(2);
        release.is_some_and(|release| !release.contains('-'))
    };
    let lines = list.lines().filter(is_of_release);
    lines.map(|line| format!("{line}\n")).collect()
}

/// The source that `apt-get source WORD` fetches, with a separate list, kept as `name`.
fn fetched(name: &str, word: &str, sources: &str) -> Result<PathBuf, String> {
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
    // Not among apt's lists, because apt removes unknown files there.
    let list = cache().join("sources.list");
    fs::write(&list, sources).map_err(|error| error.to_string())?;
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(["-qq", "-o"]);
        command.arg(format!("Dir::Etc::SourceList={}", list.display()));
        command.args(["-o", "Dir::Etc::SourceParts=/dev/null", "-o"]);
        command.arg(format!("Dir::State::Lists={}", state.display()));
        succeeds(command.args(words).current_dir(&partial))
    };
    apt(&["update"])?;
    if let Err(why) = apt(&["source", word]) {
        let elsewhere = std::env::var(ORIGINALS).map_err(|_| why)?;
        complete(&partial, &elsewhere)?;
    }
    fs::rename(&partial, &dir).map_err(|error| error.to_string())?;
    only_folder(&dir).ok_or_else(|| format!("{word} has no source in {}", dir.display()))
}

/// Unpacks a source that lacks its original file, with that file from `folder`, an address.
fn complete(dir: &Path, folder: &str) -> Result<(), String> {
    let entries = fs::read_dir(dir).map_err(|error| error.to_string())?;
    let mut files = entries.flatten().map(|entry| entry.path());
    let description = files.find(|path| path.extension().is_some_and(|end| end == "dsc"));
    let description = description.ok_or("the archive has no description of the source")?;
    let text = fs::read_to_string(&description).map_err(|error| error.to_string())?;
    let original = original(&text).ok_or("the description names no original source")?;
    let (checksum, file) = original;
    let checksum = format!("SHA256:{checksum}");
    let address = format!("{folder}/{file}");
    build(
        dir,
        &[DOWNLOADER, "download-file", &address, file, &checksum],
    )?;
    let description = description.to_string_lossy();
    build(dir, &["dpkg-source", "--extract", &description])
}

/// The SHA-256 and the name of the original source, from a description: a line of the paragraph
/// `Checksums-Sha256` with checksum, size and name.
fn original(description: &str) -> Option<(&str, &str)> {
    let mut lines = description.lines();
    lines.find(|line| line.starts_with("Checksums-Sha256:"))?;
    let files = lines.take_while(|line| line.starts_with(' '));
    let mut files = files.filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?, words.nth(1)?))
    });
    files.find(|(_, name)| name.contains(".orig.tar.") && !name.ends_with(".asc"))
}

/// Runs a build step in `dir`; its output is shown when it fails.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_release_are_not_those_of_its_updates() {
        let list = "deb-src uri:a bookworm main\ndeb-src uri:a bookworm-updates main\n";
        assert_eq!(of_release(list), "deb-src uri:a bookworm main\n");
    }

    #[test]
    fn the_original_source_has_the_checksum_of_its_paragraph() {
        let description = "Format: 3.0 (quilt)\n\
            Checksums-Sha1:\n aa 7 v_7.orig.tar.gz\n\
            Checksums-Sha256:\n b0 3 v_7.orig.tar.gz.asc\n bb 7 v_7.orig.tar.gz\n\
            \x20cc 9 v.debian.tar.xz\n\
            Files:\n dd 7 v_7.orig.tar.gz\n";
        assert_eq!(original(description), Some(("bb", "v_7.orig.tar.gz")));
        assert_eq!(original("Format: 3.0 (native)\n"), None);
    }
}
