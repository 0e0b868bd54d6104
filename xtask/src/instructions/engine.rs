//! Counts the engine's instructions per segment.
//!
//! The difference of two runs of `crates/tcp/examples/segments.rs` excludes the preparation. The
//! same difference with `--driver` gives the cost of the measurement itself.

use std::process::Command;

use super::{build, counted, release};

/// The example's arguments, the numbers of connections, and the aim for a segment.
/// Making 100,000 connections takes callgrind half a minute, four times.
const WORK: [(&str, &[u64], Option<u64>); 10] = [
    ("receive", &[1, 1_000, 100_000], Some(250)),
    ("send", &[1, 1_000, 100_000], Some(300)),
    ("send --burst 16", &[1, 1_000, 100_000], Some(300)),
    ("send --burst 44", &[1, 1_000], Some(300)),
    ("send --burst 44 --large", &[1], Some(300)),
    ("request", &[1, 1_000], None),
    ("receive --v6", &[1, 1_000], Some(250)),
    ("send --v6", &[1, 1_000], Some(300)),
    ("send --burst 16 --v6", &[1, 1_000], Some(300)),
    ("request --v6", &[1, 1_000], None),
];
/// A multiple of every burst, so that no run ends within one.
const SEGMENTS: u64 = 35_200;

/// Prints the table of `docs/benchmarks/tcp.md`. False when something could not be counted.
pub(super) fn run() -> bool {
    if !build(&["-p", "toehold-tcp", "--examples"]) {
        return false;
    }
    println!(
        "\nInstructions for each segment, without the driver's share, which stands in brackets:\n"
    );
    println!("| | flows | instructions | aim |\n|---|---|---|---|");
    for (work, flows, aim) in WORK {
        let aim = aim.map_or(String::new(), |aim| aim.to_string());
        for &flows in flows {
            match (count(work, flows, &[]), count(work, flows, &["--driver"])) {
                (Ok(all), Ok(driver)) => {
                    let own = all.saturating_sub(driver);
                    println!("| `{work}` | {flows} | {own} ({driver}) | {aim} |");
                }
                (Err(reason), _) | (_, Err(reason)) => {
                    eprintln!("not counted: {work}, {flows} flows: {reason}");
                    return false;
                }
            }
        }
    }
    true
}

/// Instructions for a segment.
fn count(work: &str, flows: u64, more: &[&str]) -> Result<u64, String> {
    let turn = (flows * burst(work)).next_multiple_of(SEGMENTS);
    let begun = (turns_to_begin(work) * flows * burst(work)).next_multiple_of(SEGMENTS);
    let few = instructions(work, flows, begun, more)?;
    let many = instructions(work, flows, begun + 2 * turn, more)?;
    Ok((many - few) / (2 * turn))
}

/// Turns of each flow before the count begins: the first segments of a connection take the slow
/// path, and the engine acknowledges the first sixteen received segments one by one.
fn turns_to_begin(work: &str) -> u64 {
    if work.starts_with("receive") { 20 } else { 1 }
}

/// Segments in one turn of a flow.
fn burst(work: &str) -> u64 {
    let mut words = work.split(' ').skip_while(|&word| word != "--burst");
    let default = if work.starts_with("send") { 2 } else { 1 };
    words
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or(default)
}

fn instructions(work: &str, flows: u64, segments: u64, more: &[&str]) -> Result<u64, String> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(release("examples/segments"));
    command.args(work.split(' ')).args(more);
    command.args([
        "--flows",
        &flows.to_string(),
        "--segments",
        &segments.to_string(),
    ]);
    counted(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_takes_a_burst() {
        let works = [
            "receive",
            "send",
            "send --burst 16",
            "send --burst 44 --large",
        ];
        assert_eq!(works.map(burst), [1, 2, 16, 44]);
        assert!(
            WORK.iter()
                .all(|(work, ..)| SEGMENTS.is_multiple_of(burst(work)))
        );
    }
}
