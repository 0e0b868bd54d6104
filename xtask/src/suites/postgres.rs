//! PostgreSQL's regression and isolation tests, with the installed server and test programs, over
//! TCP. The server has no Unix socket.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::run::{Outcome, Program, Reading};
use super::source;
use crate::root;

/// Longer than any test takes, and longer than the server takes to start.
const TIME_LIMIT: Duration = Duration::from_secs(180);
/// The package of the server, and its folder.
const PACKAGE: &str = "postgresql-15";
const INSTALLED: &str = "/usr/lib/postgresql/15";
const SCRIPT: &str = "postgres_suite.sh";
/// The package with the server's headers. It would bring a compiler, so it is not installed.
const HEADERS: &str = "postgresql-server-dev-15";
/// Compiles a library with functions in C, which the tests load.
const COMPILE: [&str; 6] = [
    "cc",
    "-O2",
    "-fPIC",
    "-shared",
    "-fno-strict-aliasing",
    "-fwrapv",
];
/// Libraries of the server's that tests load from the folder that has `regress.so`.
const LIBRARIES: [&str; 2] = ["autoinc.so", "refint.so"];
/// The number of groups of tests in the selection for `make test`, from the first group on: types,
/// and copying. Later groups take longer, and need the results of earlier ones.
const QUICK_GROUPS: usize = 6;

/// A program for each of the two kinds of tests; the quick part has the first tests of one kind.
pub(super) fn programs(is_quick: bool) -> Result<Vec<Program>, String> {
    let runners = Path::new(INSTALLED).join("lib/pgxs/src/test");
    let regress = runners.join("regress/pg_regress");
    if !regress.is_file() {
        return Err(format!("{PACKAGE} is not installed"));
    }
    let source = source::of_installed(PACKAGE)?;
    let tests = source.join("src/test");
    let library = tests.join("regress/regress.so");
    if !library.is_file() {
        let headers = source::unpacked(HEADERS, PACKAGE)?;
        let headers = format!("-I{}/usr/include/postgresql/15/server", headers.display());
        let library = library.to_string_lossy();
        let files = [&*headers, "-o", &*library, "src/test/regress/regress.c"];
        source::build(&source, &[&COMPILE[..], &files].concat())?;
    }
    let work = source::cache().join("postgres-work");
    prepare(&tests, &work).map_err(|error| format!("{}: {error}", work.display()))?;
    if is_quick {
        return Ok(vec![program(
            &work,
            "regress",
            &regress,
            &["--schedule=quick_schedule"],
        )?]);
    }
    let isolation = runners.join("isolation/pg_isolation_regress");
    // Two of the isolation tests need prepared transactions, and are therefore in no schedule.
    let isolated = [
        "--schedule=isolation_schedule",
        "prepared-transactions",
        "prepared-transactions-cic",
    ];
    Ok(vec![
        program(
            &work,
            "regress",
            &regress,
            &["--schedule=parallel_schedule"],
        )?,
        program(&work, "isolation", &isolation, &isolated)?,
    ])
}

fn program(work: &Path, name: &str, runner: &Path, options: &[&str]) -> Result<Program, String> {
    let mut command: Vec<OsString> = vec!["bash".into(), SCRIPT.into()];
    command.push(Path::new(INSTALLED).join("bin").into());
    command.push(
        free_port()
            .map_err(|error| error.to_string())?
            .to_string()
            .into(),
    );
    command.push(runner.into());
    command.extend(options.iter().map(Into::into));
    Ok(Program {
        name: name.to_owned(),
        command,
        dir: work.join(name),
        environment: Vec::new(),
        reading: Reading::Lines(read),
        time_limit: TIME_LIMIT,
    })
}

/// A folder for each program, with its tests and the script that starts the server. The user that
/// the server runs as gets a copy of it.
fn prepare(tests: &Path, work: &Path) -> io::Result<()> {
    if work.exists() {
        fs::remove_dir_all(work)?;
    }
    for (name, folders, files) in [
        (
            "regress",
            &["sql", "expected", "data"][..],
            &["regress.so", "parallel_schedule", "resultmap"][..],
        ),
        ("isolation", &["specs", "expected"], &["isolation_schedule"]),
    ] {
        let (from, to) = (tests.join(name), work.join(name));
        for folder in folders {
            source::copy_tree(&from.join(folder), &to.join(folder))?;
        }
        for file in files {
            fs::copy(from.join(file), to.join(file))?;
        }
        fs::copy(root().join("tests/scripts").join(SCRIPT), to.join(SCRIPT))?;
    }
    let schedule = fs::read_to_string(tests.join("regress/parallel_schedule"))?;
    let groups = schedule.lines().filter(|line| line.starts_with("test:"));
    let quick: Vec<&str> = groups.take(QUICK_GROUPS).collect();
    fs::write(work.join("regress/quick_schedule"), quick.join("\n") + "\n")?;
    for library in LIBRARIES {
        let from: PathBuf = Path::new(INSTALLED).join("lib").join(library);
        fs::copy(from, work.join("regress").join(library))?;
    }
    Ok(())
}

/// A free port in this network, if the program does not have its own network.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// `test strings                      ... ok          123 ms`, or the name alone in a group.
fn read(line: &str) -> Option<(String, Outcome)> {
    let (test, said) = line.split_once(" ... ")?;
    let outcome = match said.split_whitespace().next()? {
        "ok" => Outcome::Passed,
        "FAILED" | "failed" => Outcome::Failed,
        _ => return None,
    };
    let test = test.trim();
    let test = test.strip_prefix("test ").unwrap_or(test).trim();
    Some((test.to_owned(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_has_its_name_alone_and_in_a_group() {
        let passed = |test: &str| Some((test.to_owned(), Outcome::Passed));
        let alone = "test tablespace                   ... ok          250 ms";
        assert_eq!(read(alone), passed("tablespace"));
        assert_eq!(
            read("     boolean                      ... ok   88 ms"),
            passed("boolean")
        );
        let failed = read("test async                        ... FAILED       88 ms");
        assert_eq!(failed, Some(("async".to_owned(), Outcome::Failed)));
        assert_eq!(read("parallel group (2 tests):  char boolean"), None);
    }
}
