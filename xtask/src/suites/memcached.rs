//! memcached's own tests: a Perl script each, and its program `testapp`.
//!
//! Built without Unix sockets: its scripts then start every server on TCP, where they would
//! otherwise prefer a Unix socket.

use std::path::Path;
use std::time::Duration;

use super::run::{Outcome, Program, Reading};
use super::source;

/// Longer than any script is silent.
const TIME_LIMIT: Duration = Duration::from_secs(180);
/// Scripts that are left out: `binary.t` again, with items on a disk, for minutes.
const LEFT_OUT: [&str; 1] = ["binary-extstore.t"];
/// The programs that memcached's scripts start.
const TARGETS: [&str; 4] = ["memcached-debug", "timedrun", "sizes", "testapp"];

/// A program for each script; none is in the quick selection.
pub(crate) fn programs(is_quick: bool) -> Result<Vec<Program>, String> {
    if is_quick {
        return Ok(Vec::new());
    }
    let source = source::of_package("memcached")?;
    if !source.join("testapp").is_file() {
        let configure = [
            "./configure",
            "--quiet",
            "--disable-unix-socket",
            "--disable-docs",
        ];
        source::build(&source, &configure)?;
        source::build(&source, &[&["make", "-j2"][..], &TARGETS].concat())?;
    }
    let scripts = scripts(&source.join("t")).map_err(|error| error.to_string())?;
    if scripts.is_empty() {
        return Err("its source has no scripts".to_owned());
    }
    let script = |name: &String| program(&source, name, &["perl", &format!("t/{name}")]);
    let mut programs: Vec<Program> = scripts.iter().map(script).collect();
    programs.push(program(&source, "testapp", &["./testapp"]));
    Ok(programs)
}

fn program(source: &Path, name: &str, command: &[&str]) -> Program {
    Program {
        name: name.to_owned(),
        command: command.iter().map(Into::into).collect(),
        dir: source.to_owned(),
        environment: Vec::new(),
        reading: Reading::Whole(judge),
        time_limit: TIME_LIMIT,
    }
}

fn scripts(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".t") && !LEFT_OUT.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// By the Test Anything Protocol. A script counts as one test: one script may report 100,000, most
/// of them from one loop.
fn judge(said: &str, success: bool) -> Outcome {
    let wants_nothing = |line: &str| line.starts_with("1..0");
    match success {
        true if said.lines().any(wants_nothing) => Outcome::Skipped,
        true => Outcome::Passed,
        false => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_without_a_plan_is_skipped() {
        assert_eq!(judge("1..0 # SKIP no TLS\n", true), Outcome::Skipped);
        assert_eq!(judge("1..2\nok 1\nok 2\n", true), Outcome::Passed);
        assert_eq!(judge("1..2\nok 1\nnot ok 2\n", false), Outcome::Failed);
    }
}
