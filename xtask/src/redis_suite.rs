//! Redis's own test suite, with the servers and their Tcl clients under `toehold run`.
//!
//! The suite comes with Redis's source and is not part of this project: a folder with that is given (on Debian, what
//! `apt-get source redis` unpacks). The servers under test are those that are installed, so both must be of one version.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::Steps;
use crate::{root, target};

/// What is run unless units are named: those that talk to servers in every way there is, without the hour that all of them take.
const UNITS: [&str; 24] = [
    "unit/auth",
    "unit/protocol",
    "unit/keyspace",
    "unit/scan",
    "unit/type/string",
    "unit/type/incr",
    "unit/type/list",
    "unit/type/list-2",
    "unit/type/set",
    "unit/type/zset",
    "unit/type/hash",
    "unit/type/stream",
    "unit/expire",
    "unit/other",
    "unit/multi",
    "unit/quit",
    "unit/introspection",
    "unit/limits",
    "unit/obuf-limits",
    "unit/pubsub",
    "unit/querybuf",
    "unit/tracking",
    "integration/redis-cli",
    "integration/replication",
];
/// The programs that the suite expects to have been built.
const PROGRAMS: [&str; 5] = [
    "redis-server",
    "redis-cli",
    "redis-benchmark",
    "redis-check-aof",
    "redis-check-rdb",
];

/// What is needed, and where it is.
struct Setup {
    source: PathBuf,
    programs: Vec<PathBuf>,
}

impl Setup {
    /// From arguments, or else the environment.
    fn find(arguments: &[String]) -> Result<Setup, String> {
        let at = arguments.iter().position(|argument| argument == "--source");
        let given = at.and_then(|at| arguments.get(at + 1).cloned());
        let given = given.or_else(|| std::env::var("REDIS_SOURCE").ok());
        let Some(source) = given.filter(|given| !given.is_empty()) else {
            return Err(
                "give a folder with Redis's source, which is not part of Toehold (apt-get source \
                 redis): REDIS_SOURCE=..."
                    .to_owned(),
            );
        };
        let source =
            std::fs::canonicalize(&source).map_err(|error| format!("{source}: {error}"))?;
        if !source.join("runtest").is_file() {
            return Err(format!("{} has no test suite", source.display()));
        }
        let programs = PROGRAMS.map(|name| in_path(name).ok_or(name));
        let programs: Result<Vec<_>, _> = programs.into_iter().collect();
        let programs = programs.map_err(|name| format!("{name} is not installed"))?;
        if in_path("tclsh").or_else(|| in_path("tclsh8.6")).is_none() {
            return Err("Tcl is not installed".to_owned());
        }
        let (suite, server) = (version_of_source(&source), version_of_server(&programs[0]));
        if suite.is_none() || suite != server {
            let spell = |version: Option<String>| version.unwrap_or_else(|| "unknown".to_owned());
            return Err(format!(
                "the source is of version {} and the server of {}",
                spell(suite),
                spell(server)
            ));
        }
        Ok(Setup { source, programs })
    }
}

/// The step of a full test: skipped, loudly, where there is no source.
pub(crate) fn add(steps: &mut Steps) {
    match Setup::find(&[]) {
        Ok(_) => steps.check("redis suite", || run(&[])),
        Err(reason) => steps.skip("redis suite", &reason),
    }
}

/// Runs the units named, or [`UNITS`].
pub(crate) fn run(arguments: &[String]) -> bool {
    let setup = match Setup::find(arguments) {
        Ok(setup) => setup,
        Err(reason) => {
            eprintln!("redis suite: {reason}");
            return false;
        }
    };
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--quiet"]);
    build.args(["-p", "toehold", "-p", "toehold-preload"]);
    let built = build.current_dir(root()).status();
    if !built.is_ok_and(|status| status.success()) {
        return false;
    }
    let work = target().join("redis-suite");
    if let Err(error) = prepare(&setup, &work) {
        eprintln!("redis suite: {}: {error}", work.display());
        return false;
    }
    let named: Vec<&str> = arguments
        .iter()
        .take_while(|argument| !argument.starts_with("--"))
        .map(String::as_str)
        .collect();
    let units = if named.is_empty() {
        UNITS.to_vec()
    } else {
        named
    };
    let mut command = Command::new(target().join("release/toehold"));
    command.args(["run", "--", "./runtest", "--clients", "2"]);
    for unit in units {
        command.args(["--single", unit]);
    }
    let ended = command.current_dir(&work).status();
    ended.is_ok_and(|status| status.success())
}

/// A folder in which the suite may write, with the installed programs where it looks for them.
fn prepare(setup: &Setup, work: &Path) -> std::io::Result<()> {
    if work.exists() {
        std::fs::remove_dir_all(work)?;
    }
    std::fs::create_dir_all(work.join("src"))?;
    for (name, program) in PROGRAMS.iter().zip(&setup.programs) {
        std::os::unix::fs::symlink(program, work.join("src").join(name))?;
    }
    // `tests` holds what a run leaves behind; of the rest the suite only reads.
    for entry in std::fs::read_dir(&setup.source)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "src" || name == "tests" {
            continue;
        }
        std::os::unix::fs::symlink(entry.path(), work.join(name))?;
    }
    copy_tree(&setup.source.join("tests"), &work.join("tests"))
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else if kind.is_file() {
            // Not the sockets that an earlier run, elsewhere, may have left.
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// `#define REDIS_VERSION "7.0.15"`.
fn version_of_source(source: &Path) -> Option<String> {
    let header = std::fs::read_to_string(source.join("src/version.h")).ok()?;
    let line = header
        .lines()
        .find(|line| line.contains("REDIS_VERSION "))?;
    Some(line.split('"').nth(1)?.to_owned())
}

/// `Redis server v=7.0.15 sha=...`.
fn version_of_server(server: &Path) -> Option<String> {
    let output = Command::new(server).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let word = text
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="))?;
    Some(word.to_owned())
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}
