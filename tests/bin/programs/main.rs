//! Runs ordinary programs four ways: without Toehold, with both ends under `toehold run`, with only
//! the server, and with only the client. A client's output and its exit status must be equal in all
//! four.
//!
//! ```text
//!   programs/NAME.sh    # what, needs, user          case     what a script says of itself
//!                       server, client, ...          run      its stages, once, and their status
//!                                                    table    what came of all runs
//! ```

mod case;
mod run;
mod table;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use toehold_e2e::Sides;

use crate::case::Case;
use crate::run::Outcome;
use crate::table::Row;

const USAGE: &str = "\
Usage: cargo xtask programs [--rounds N] [--json FILE] [--markdown FILE] [--list] [CASE...]

  CASE             only cases with this in their names
  --rounds N       how often the kernel and both ends accelerated are run, in turns (3)
  --json FILE      everything, with every time measured
  --markdown FILE  the table as it stands in docs/programs.md
  --list           the cases and what they are";

/// The command line's options.
struct Options {
    rounds: usize,
    json: Option<String>,
    markdown: Option<String>,
    list: bool,
    filters: Vec<String>,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            rounds: 3,
            json: None,
            markdown: None,
            list: false,
            filters: Vec::new(),
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} wants a value"));
            match word.as_str() {
                "--rounds" => {
                    let rounds = value()?.parse().ok().filter(|rounds| *rounds > 0);
                    options.rounds = rounds.ok_or("--rounds wants a number from 1 on")?;
                }
                "--json" => options.json = Some(value()?),
                "--markdown" => options.markdown = Some(value()?),
                "--list" => options.list = true,
                _ if word.starts_with('-') => return Err(format!("no such option: {word}")),
                _ => options.filters.push(word),
            }
        }
        Ok(options)
    }

    fn wants(&self, case: &Case) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|part| case.name.contains(part))
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match programs(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected cases; true when no result differed from the kernel.
fn programs(options: &Options) -> Result<bool, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let mut cases = Case::all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    cases.retain(|case| options.wants(case));
    if cases.is_empty() {
        return Err("no case has that in its name; --list shows them all".to_owned());
    }
    if options.list {
        for case in &cases {
            println!("{:<20} {}", case.name, case.what);
        }
        return Ok(true);
    }
    run::adopt_strays();
    let started = Instant::now();
    let mut rows = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        progress(&format!("[{}/{}] {}: ", at + 1, cases.len(), case.name));
        let row = row(case, options.rounds);
        println!("{}", row.verdict());
        rows.push(row);
    }
    print!("\n{}", table::plain(&rows));
    println!("Took {} s.", started.elapsed().as_secs());
    let keep = |file: &Option<String>, text: String| match file {
        Some(file) => std::fs::write(file, text).map_err(|error| format!("{file}: {error}")),
        None => Ok(()),
    };
    keep(&options.json, table::json(&rows, options.rounds))?;
    keep(&options.markdown, table::markdown(&rows, options.rounds))?;
    Ok(rows.iter().all(Row::is_well))
}

/// All runs of a case.
fn row(case: &Case, rounds: usize) -> Row {
    if let Some(obstacle) = case.obstacle() {
        return Row::skipped(case, obstacle);
    }
    let once = |sides: Sides| -> Outcome {
        progress(".");
        run::run(case, sides)
    };
    let mut host = vec![once(Sides::HOST)];
    let mut both = Vec::new();
    if host[0].success {
        both.push(once(Sides::DIRECT));
        for round in 1..rounds {
            // In mirrored order, so that neither way always comes after the other.
            if round % 2 == 1 {
                both.push(once(Sides::DIRECT));
                host.push(once(Sides::HOST));
            } else {
                host.push(once(Sides::HOST));
                both.push(once(Sides::DIRECT));
            }
        }
    }
    let one_sided = match host[0].success {
        true => [Sides::SERVER_ONLY, Sides::CLIENT_ONLY].map(once).into(),
        false => Vec::new(),
    };
    progress(" ");
    Row::new(case, &host, &both, &one_sided)
}

/// Prints a part of a line before the line is complete, where a person watches.
fn progress(text: &str) {
    let mut out = std::io::stdout();
    let dots_only = text == "." || text == " ";
    if !dots_only || out.is_terminal() {
        let _ = write!(out, "{text}");
        let _ = out.flush();
    }
}
