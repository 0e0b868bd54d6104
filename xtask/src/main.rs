//! `cargo xtask`: tasks that need more than one cargo command.
//!
//! - [`steps`]: runs commands one after the other, counts their tests, prints one final line.
//! - [`suite`]: the steps of `check`, `test`, `loom`, `sim`, `interoperability`, `e2e`, `fuzz`.
//! - [`instructions`]: counts instructions of calls and segments by callgrind, for `bench`.
//! - [`circles`]: checks that no two modules of a crate import each other, directly or indirectly.
//! - [`links`]: checks that every link inside the documents leads somewhere.
//! - [`modules`]: checks that lists of modules are complete.
//! - [`notices`]: collects the licences of linked code.
//! - [`orderings`]: checks that atomic orderings name the access that they pair with.
//! - [`rfc`]: checks the RFCs' requirements, and where they are implemented and tested.
//! - [`text`]: checks that lines end at 100 columns and comments open with their subject.
//! - [`packetdrill`]: runs packetdrill's scripts against the engine, if packetdrill is present.
//! - [`programs`]: runs programs of other projects, four ways, for `docs/programs.md`.
//! - [`suites`]: runs test suites of other projects, plain and accelerated, for `docs/suites.md`.
//! - [`offload`]: measures the offload path against the kernel's, in its own namespaces, for
//!   `bench-offload`, `bench-paths` and `bench-switches`.
//! - [`skips`]: the tests that may be skipped where everything must be tested.
//! - [`tools`]: checks that `scripts/deps.sh` installs the programs that the tests start.
//! - [`tour`]: runs the operator's tour of `docs/operations.md`, in a Debian that is booted for it.
//! - [`adapter`]: runs an adapter during a measurement or a suite.
//! - [`demo`]: measures real programs on both paths, for `demo` and `bench`.

mod adapter;
mod circles;
mod demo;
mod instructions;
mod links;
mod modules;
mod notices;
mod offload;
mod orderings;
mod packetdrill;
mod programs;
mod rfc;
mod skips;
mod steps;
mod suite;
mod suites;
mod text;
mod tools;
mod tour;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  check          formatting, clippy, scripts, links, lists of modules, lengths of lines, imports
                 without circles, partners of atomic orderings, requirements of RFCs, licences
  notices        write the file of other projects' licences, THIRD-PARTY
  rfc [--list]   the requirements of TCP's RFCs: how many are implemented and tested by sources
                 that cite them; with --list each of them, and where
  test           everything: check, all tests, loom, sim, interoperability, e2e
  loom           model checking of the lock-free protocols
  sanitize       copy, channel, stream and sockets under the address sanitizer, and copy under the
                 thread sanitizer (a nightly toolchain)
  sim [SEED|nightly]
                 the TCP engine in the simulator; with SEED, that one in detail; nightly: a million
                 seeds on all cores, other ones each day (half an hour on two cores)
  interoperability [FILTER]
                 the TCP engine against this kernel's, in every cell of a matrix
  e2e [FILTER]   real programs, the kernel as the oracle
  programs [--rounds N] [--json FILE] [--markdown FILE] [--list] [CASE...]
                 the programs of docs/programs.md: on the kernel, with both ends or one accelerated
  tour [PACKAGE] the commands of docs/operations.md's tour in a Debian 12 that is booted for it, and
                 their outputs; with this Debian package of Toehold, or one that it makes (root)
  fuzz [SECONDS] every fuzz target for some seconds (cargo-fuzz and a nightly toolchain)
  packetdrill [FILTER] [--binary PATH] [--scripts DIR]
                 packetdrill's scripts against the TCP engine, in virtual time
  suites [--quick] [--only NAME] [--part K/N] [--jobs N] [--json FILE] [--merge FILE]
         [--markdown FILE] [--list] [SUITE...]
                 test suites of other projects, plain and accelerated: what differs
  bench          real programs on both paths, ten rounds each, then the lab and the engine
  instructions [calls|engine]
                 what a call costs in the library and a segment in the engine, counted by
                 callgrind (valgrind)
  bench-offload [--rounds N] [--json FILE] [--link tap|packet|xdp] [bulk|requests]
                 the offload path against kernel TCP between two namespaces (root)
  bench-paths [--rounds N] [--seconds N] [--json FILE] [--pair FIRST,SECOND] [windows|shares]
                 the engine beside the kernel over long paths, and against it at a bottleneck (root)
  bench-switches [--rounds N] [--json FILE]
                 bulk to the engine with each feature of the receive path alone, none, all (root)
  demo           the same programs in under three minutes

Environment:
  CI                 where it is `true`, a skip that nobody expects is a failure
  TOEHOLD_SIM_SEEDS  how many seeds `sim` runs (1000)
  PACKETDRILL, PACKETDRILL_SCRIPTS
                     a packetdrill binary and a folder of its scripts (neither is part of Toehold)
  TOEHOLD_MATRIX_SEED, TOEHOLD_MATRIX_JOBS
                     what the matrix's links do (1), and how many of its cells run at once (48)
  TOEHOLD_CASE       part of a name: which cases of the semantics suite `e2e` plays
  TOEHOLD_SOAK       how many rounds the repeated end-to-end tests run
  TOEHOLD_SEED       the first seed of what they draw by lot (0)
  PROPTEST_CASES     how many cases each property test tries";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next();
    let rest: Vec<String> = arguments.collect();
    let argument = rest.first().map(String::as_str);
    let passed = match command.as_deref() {
        Some("check") => suite::check(),
        Some("notices") => notices::write(root()),
        Some("rfc") => rfc::check(root(), argument == Some("--list")),
        Some("test") => suite::test(),
        Some("loom") => suite::loom(),
        Some("sanitize") => suite::sanitize(),
        Some("sim") => suite::sim(argument),
        Some("interoperability") => suite::interoperability(argument),
        Some("e2e") => suite::e2e(argument),
        Some("fuzz") => suite::fuzz(argument),
        Some("tour") => tour::run(&rest),
        Some("packetdrill") => packetdrill::run(&rest),
        Some("programs") => programs::run(&rest),
        Some("suites") => suites::run(&rest),
        Some("bench") => demo::bench() && suite::bench() && instructions::run(None),
        Some("instructions") => instructions::run(argument),
        Some("bench-offload") => offload::run(&rest),
        Some("bench-paths") => offload::paths::run(&rest),
        Some("bench-switches") => offload::switches::run(&rest),
        Some("demo") => demo::demo(),
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            true
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The top of the source tree.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this crate lies one level below the top")
}

/// The directory of cargo's build results.
fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}
