//! The lab's command line: `list`, and `run PLAN [--json] [--out DIR] [--quick] [--rounds N]`.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use crate::plan::Plan;
use crate::report::Report;
use crate::runner::{self, Options};
use crate::{html, plans, table};

/// The names of the plans, and what each answers.
pub fn list() -> Vec<(&'static str, &'static str)> {
    plans::all()
        .iter()
        .map(|plan| (plan.name(), plan.about()))
        .collect()
}

/// Runs a plan by name. `None` when there is no such plan.
pub fn run(name: &str, options: Options) -> Option<Report> {
    let mut plan = plan_named(name)?;
    Some(runner::run(plan.as_mut(), options, |_, _| ()))
}

/// What `toehold lab ARGS...` does. Returns the exit code: 0, 1 when something failed, 2 for a
/// wrong command line.
pub fn run_from_args(args: &[String]) -> i32 {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => {
            for (name, about) in list() {
                println!("{name:<12} {about}");
            }
            0
        }
        ["run", rest @ ..] if rest.iter().any(|&word| matches!(word, "--help" | "-h")) => {
            println!("{USAGE}");
            0
        }
        ["run", rest @ ..] => match Request::parse(rest) {
            Ok(request) => request.carry_out(),
            Err(why) => complain(2, &format!("{why}\n{USAGE}")),
        },
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            0
        }
        [other, ..] => complain(2, &format!("the lab does not know `{other}`\n{USAGE}")),
    }
}

fn plan_named(name: &str) -> Option<Box<dyn Plan>> {
    plans::all().into_iter().find(|plan| plan.name() == name)
}

#[derive(Debug, PartialEq)]
struct Request {
    plan: String,
    json: bool,
    out: Option<PathBuf>,
    quick: bool,
    rounds: Option<usize>,
}

impl Request {
    fn parse(words: &[&str]) -> Result<Request, String> {
        let mut request = Request {
            plan: String::new(),
            json: false,
            out: None,
            quick: false,
            rounds: None,
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let mut value = || words.next().copied().ok_or(format!("{word} needs a value"));
            match word {
                "--json" => request.json = true,
                "--quick" => request.quick = true,
                "--out" => request.out = Some(PathBuf::from(value()?)),
                "--rounds" => {
                    let text = value()?;
                    let rounds = text.parse().ok().filter(|n| (1..=ROUNDS_MAX).contains(n));
                    request.rounds = Some(rounds.ok_or(format!(
                        "--rounds is a number from 1 to {ROUNDS_MAX}, and not `{text}`"
                    ))?);
                }
                flag if flag.starts_with('-') => return Err(format!("there is no flag {flag}")),
                name if request.plan.is_empty() => request.plan = name.to_owned(),
                extra => return Err(format!("one plan at a time: what is `{extra}`?")),
            }
        }
        if request.plan.is_empty() {
            return Err("which plan? `list` lists them".to_owned());
        }
        Ok(request)
    }

    fn carry_out(&self) -> i32 {
        let Some(mut plan) = plan_named(&self.plan) else {
            let names: Vec<&str> = list().into_iter().map(|(name, _)| name).collect();
            let names = names.join(", ");
            return complain(
                2,
                &format!("there is no plan `{}`; there are: {names}", self.plan),
            );
        };
        let mut options = if self.quick {
            Options::quick()
        } else {
            Options::default()
        };
        options.rounds = self.rounds.unwrap_or(options.rounds);
        let on_terminal = io::stderr().is_terminal();
        let report = runner::run(plan.as_mut(), options, |done, all| {
            if on_terminal {
                eprint!(
                    "\rround {done} of {all}{}",
                    if done == all { "\n" } else { "" }
                );
            }
        });
        let json = match serde_json::to_string_pretty(&report) {
            Ok(json) => json,
            Err(error) => return complain(1, &format!("the report is not JSON: {error}")),
        };
        let figures = plan.figures();
        let text = if self.json {
            json.clone() + "\n"
        } else {
            table::render(&report, &figures)
        };
        if io::stdout().write_all(text.as_bytes()).is_err() {
            return 1;
        }
        let Some(folder) = &self.out else { return 0 };
        match save(folder, plan.name(), &json, &html::render(&report, &figures)) {
            Ok(page) => {
                eprintln!("the report with plots is {}", page.display());
                0
            }
            Err(error) => complain(
                1,
                &format!(
                    "the report could not be written to {}: {error}",
                    folder.display()
                ),
            ),
        }
    }
}

fn save(folder: &Path, name: &str, json: &str, html: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join(format!("{name}.json")), json)?;
    let page = folder.join(format!("{name}.html"));
    fs::write(&page, html)?;
    Ok(page)
}

fn complain(code: i32, why: &str) -> i32 {
    eprintln!("{why}");
    code
}

const USAGE: &str = "usage: toehold lab list
       toehold lab run PLAN [--json] [--out DIR] [--quick] [--rounds N]

  list          the experiments there are
  run PLAN      carries one out: tables, which aims hold, and the published figures beside them
  --json        the report for programs, every number of it, instead of the tables
  --out DIR     writes PLAN.json and PLAN.html, with plots, there
  --quick       fewer rounds and sizes: to see that it works, not to be quoted
  --rounds N    how often each case is sampled, in changing order";

/// More would be a mistake in typing.
const ROUNDS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read() {
        let words = [
            "ioat-copy",
            "--json",
            "--out",
            "there",
            "--rounds",
            "3",
            "--quick",
        ];
        let expected = Request {
            plan: "ioat-copy".to_owned(),
            json: true,
            out: Some(PathBuf::from("there")),
            quick: true,
            rounds: Some(3),
        };
        assert_eq!(Request::parse(&words), Ok(expected));
    }

    #[test]
    fn a_wrong_request_is_one_sentence() {
        for wrong in [
            &["--quick"][..],
            &["a", "b"],
            &["a", "--out"],
            &["a", "--loud"],
        ] {
            assert!(Request::parse(wrong).is_err(), "{wrong:?}");
        }
        let error = Request::parse(&["a", "--rounds", "0"]).unwrap_err();
        assert_eq!(error, "--rounds is a number from 1 to 10000, and not `0`");
    }

    #[test]
    fn an_unknown_plan_or_command_is_a_wrong_command_line() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(run_from_args(&words("run perpetuum-mobile")), 2);
        assert_eq!(run_from_args(&words("dance")), 2);
        assert_eq!(run_from_args(&words("list")), 0);
    }
}
