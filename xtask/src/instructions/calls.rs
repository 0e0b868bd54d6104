//! Counts the instructions of a program's call, in the library and in libc.
//!
//! `tests/bin/calls` makes the calls on a connection, upgraded or on the kernel, and on other
//! files. The difference of two runs excludes the setup of the connection.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{build, counted, release};
use crate::adapter::Adapter;

/// The functions that are counted on a connection, and their names in the table.
const ON_CONNECTIONS: [(&str, &str); 4] = [
    ("send", "`send` of 64 bytes"),
    ("recv", "`recv` of 64 bytes"),
    (
        "epoll_wait",
        "`epoll_wait` twice: one event, then none at once",
    ),
    ("epoll_ctl", "`epoll_ctl` twice: remove, then add again"),
];
/// The columns of that table: whether the library is there, and the word for `calls`.
const WAYS: [(bool, &str); 4] = [
    (false, "pinned"),
    (true, "pinned"),
    (true, "alone"),
    (true, "upgraded"),
];
/// The rows of the other table, with the word for `calls`.
const BESIDE: [(&str, &str, &str); 9] = [
    (
        "short_connection",
        "short",
        "a connection of one request, both ends: 17 calls",
    ),
    ("write", "foreign", "`write` to a pipe"),
    ("read", "foreign", "`read` from a pipe"),
    ("writev", "foreign", "`writev` to a pipe"),
    ("readv", "foreign", "`readv` from a pipe"),
    ("send", "foreign", "`send` to UDP"),
    ("recv", "foreign", "`recv` from UDP"),
    ("sendmsg", "foreign", "`sendmsg` to UDP"),
    ("recvmsg", "foreign", "`recvmsg` from UDP"),
];
const ROUNDS_FEW: u64 = 2_000;
const ROUNDS_MANY: u64 = 22_000;

/// Prints the tables of `docs/benchmarks/calls.md`.
pub(super) fn run() -> bool {
    if !build(&[
        "-p",
        "toehold",
        "-p",
        "toehold-preload",
        "-p",
        "toehold-e2e",
    ]) {
        return false;
    }
    match tables() {
        Ok(tables) => {
            println!("\n{tables}");
            true
        }
        Err(reason) => {
            eprintln!("not counted: {reason}");
            false
        }
    }
}

fn tables() -> Result<String, String> {
    let work = tempfile::tempdir().map_err(|error| error.to_string())?;
    let runtime = work.path().join("runtime");
    let toehold = release("toehold");
    let command = Command::new(&toehold);
    let adapter = Adapter::start(command, &toehold, &runtime, None, Stdio::inherit())?;
    let runtime = adapter.runtime();
    let mut text = String::from(
        "| call | without Toehold | pinned to the kernel | no partner | upgraded |\n\
         |---|---|---|---|---|\n",
    );
    for (function, name) in ON_CONNECTIONS {
        text += &row(function, name, &WAYS, runtime)?;
    }
    text += "\n| call | without Toehold | with Toehold |\n|---|---|---|\n";
    for (function, word, name) in BESIDE {
        text += &row(function, name, &[(false, word), (true, word)], runtime)?;
    }
    Ok(text)
}

fn row(
    function: &str,
    name: &str,
    ways: &[(bool, &str)],
    runtime: &Path,
) -> Result<String, String> {
    let mut row = format!("| {name} |");
    for &(has_library, word) in ways {
        let library = has_library.then_some(runtime);
        row += &format!(" {} |", count(function, word, library)?);
    }
    Ok(row + "\n")
}

/// Instructions in `function` for each round, with the library if there is a runtime directory.
fn count(function: &str, word: &str, library: Option<&Path>) -> Result<u64, String> {
    let few = instructions(function, word, library, ROUNDS_FEW)?;
    let many = instructions(function, word, library, ROUNDS_MANY)?;
    Ok((many - few) / (ROUNDS_MANY - ROUNDS_FEW))
}

fn instructions(
    function: &str,
    word: &str,
    library: Option<&Path>,
    rounds: u64,
) -> Result<u64, String> {
    let mut command = match library {
        None => Command::new("valgrind"),
        Some(runtime) => {
            let mut command = Command::new(release("toehold"));
            command.args(["run", "--runtime-dir"]).arg(runtime);
            command.args(["--path", "direct", "--", "valgrind"]);
            command.env("TOEHOLD_LIB", release("libtoehold.so"));
            command
        }
    };
    let again = (function == "epoll_ctl").then_some("again");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect={function}"))
        .arg(release("calls"))
        .args([&rounds.to_string(), word])
        .args(again);
    counted(&mut command)
}
