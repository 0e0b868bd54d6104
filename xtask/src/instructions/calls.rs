//! Counts the instructions of a program's call, in the library and in libc.
//!
//! `tests/bin/calls` makes the calls on a connection to itself, upgraded or on the kernel. The
//! difference of two runs excludes the setup of the connection.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{build, counted, release};
use crate::adapter::Adapter;

/// The functions that are counted, and their names in the table.
const CALLS: [(&str, &str); 5] = [
    ("send", "`send` of 64 bytes"),
    ("recv", "`recv` of 64 bytes"),
    (
        "epoll_wait",
        "`epoll_wait` twice: one event, then none at once",
    ),
    ("epoll_ctl", "`epoll_ctl` twice: remove, then add again"),
    (
        SHORT_CONNECTION,
        "a connection of one request, both ends: 17 calls",
    ),
];
const SHORT_CONNECTION: &str = "short_connection";
const ROUNDS_FEW: u64 = 2_000;
const ROUNDS_MANY: u64 = 22_000;

/// Prints the table of `docs/benchmarks/calls.md`.
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
    match table() {
        Ok(table) => {
            println!("\n{table}");
            true
        }
        Err(reason) => {
            eprintln!("not counted: {reason}");
            false
        }
    }
}

fn table() -> Result<String, String> {
    let work = tempfile::tempdir().map_err(|error| error.to_string())?;
    let runtime = work.path().join("runtime");
    let toehold = release("toehold");
    let command = Command::new(&toehold);
    let adapter = Adapter::start(command, &toehold, &runtime, None, Stdio::inherit())?;
    let mut table = String::from(
        "| call | without Toehold | stays on the kernel | upgraded |\n|---|---|---|---|\n",
    );
    for (function, name) in CALLS {
        let mut row = format!("| {name} |");
        for way in [Way::Plain, Way::Kernel, Way::Upgraded] {
            if function == SHORT_CONNECTION && way == Way::Upgraded {
                row += " - |";
                continue;
            }
            row += &format!(" {} |", count(function, way, adapter.runtime())?);
        }
        table += &row;
        table += "\n";
    }
    Ok(table)
}

/// The way in which the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Without the library.
    Plain,
    /// With the library, which leaves the connection on the kernel.
    Kernel,
    /// With the library, in shared memory.
    Upgraded,
}

/// Instructions in `function` for each round.
fn count(function: &str, way: Way, runtime: &Path) -> Result<u64, String> {
    let few = instructions(function, way, runtime, ROUNDS_FEW)?;
    let many = instructions(function, way, runtime, ROUNDS_MANY)?;
    Ok((many - few) / (ROUNDS_MANY - ROUNDS_FEW))
}

fn instructions(function: &str, way: Way, runtime: &Path, rounds: u64) -> Result<u64, String> {
    let mut command = match way {
        Way::Plain => Command::new("valgrind"),
        Way::Kernel | Way::Upgraded => {
            let mut command = Command::new(release("toehold"));
            command.args(["run", "--runtime-dir"]).arg(runtime);
            command.args(["--path", "direct", "--", "valgrind"]);
            command.env("TOEHOLD_LIB", release("libtoehold.so"));
            command
        }
    };
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect={function}"))
        .arg(release("calls"))
        .arg(rounds.to_string())
        .args(match (function, way) {
            (SHORT_CONNECTION, _) => &["short"][..],
            ("epoll_ctl", Way::Upgraded) => &["upgraded", "again"],
            ("epoll_ctl", _) => &["kernel", "again"],
            (_, Way::Upgraded) => &["upgraded"],
            (_, _) => &["kernel"],
        });
    counted(&mut command)
}
