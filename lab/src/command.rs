//! The lab's share of the command line: subcommands and their arguments.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use serde::Serialize;
use toehold_measure::output::{tell, tell_line};

use crate::error::{LabError, put};
use crate::plan::Plan;
use crate::published::{elsewhere, experiments, sources};
use crate::runner::{self, Options};
use crate::{html, plans, runs, table};

/// A plan by name.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// The name by which the user runs the plan.
    pub name: String,
    /// The question that the plan answers.
    pub about: String,
    /// The approximate duration of a run. Experiments within one process have no fixed duration.
    pub minutes: Option<f64>,
}

/// The plans.
pub fn list() -> Vec<Listed> {
    let files = runs::known().into_iter().map(|plan| Listed {
        minutes: Some(plan.minutes()),
        name: plan.name,
        about: plan.about,
    });
    let others = plans::all();
    let others = others.iter().map(|plan| Listed {
        name: plan.name().to_owned(),
        about: plan.about().to_owned(),
        minutes: None,
    });
    files.chain(others).collect()
}

/// An experiment of a paper, and its counterpart here.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// The experiment's name.
    pub id: String,
    /// The paper: title, authors, where it was published.
    pub source: String,
    /// The place in the paper.
    pub figure: String,
    /// The plans that repeat the experiment, or the reason why it is missing.
    pub place: String,
}

/// Every experiment of the papers, in their order.
pub fn catalogue() -> Vec<Entry> {
    let sources = sources();
    let plans = runs::known();
    let code = plans::all();
    let elsewhere = elsewhere();
    let place = |id: &str| -> String {
        let of_files = plans.iter().filter(|plan| plan.repeats(id));
        let mut names: Vec<&str> = of_files.map(|plan| plan.name.as_str()).collect();
        let of_code = code.iter().filter(|plan| plan.published_as() == Some(id));
        names.extend(of_code.map(|plan| plan.name()));
        if !names.is_empty() {
            return names.join(", ");
        }
        let found = elsewhere.iter().find(|(other, _)| other == id);
        found.map_or(String::new(), |(_, place)| place.clone())
    };
    let all = experiments().into_iter();
    all.map(|experiment| {
        let place = place(&experiment.id);
        let mut known = sources.iter();
        let source = known.find(|source| source.id == experiment.source);
        Entry {
            id: experiment.id,
            source: source.expect("a test reads all of them").to_string(),
            figure: experiment.figure,
            place,
        }
    })
    .collect()
}

/// A run that the user asked for.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// The plan's name.
    pub plan: String,
    /// Prints the report as JSON.
    pub json: bool,
    /// Writes the report to this file.
    pub out: Option<PathBuf>,
    /// Fewer rounds and points.
    pub quick: bool,
    /// The number of rounds, if it is not the plan's.
    pub rounds: Option<usize>,
}

/// Carries out a plan and prints its report.
///
/// # Errors
///
/// A sentence.
pub fn run_plan(request: &RunRequest) -> Result<(), LabError> {
    let mut plan = plan_named(&request.plan)?;
    let mut options = if request.quick {
        Options::quick()
    } else {
        Options::default()
    };
    options.rounds = request.rounds.unwrap_or(options.rounds);
    let on_terminal = io::stderr().is_terminal();
    let kept = request.out.as_ref();
    let kept = kept.map(|folder| folder.join(format!("{}.kept.json", plan.name())));
    let report = runner::run(plan.as_mut(), options, kept.as_deref(), |done, all| {
        if on_terminal {
            tell(format!(
                "\rround {done} of {all}{}",
                if done == all { "\n" } else { "" }
            ));
        }
    })?;
    let json = serde_json::to_string_pretty(&report)
        .map_err(|error| LabError::new(format!("the report is not JSON: {error}")))?;
    let figures = plan.figures();
    let text = if request.json {
        json.clone() + "\n"
    } else {
        table::render(&report, &figures)
    };
    // The report is saved even if it cannot be printed.
    let printed = put(text);
    let Some(folder) = &request.out else {
        return printed;
    };
    let page =
        save(folder, plan.name(), &json, &html::render(&report, &figures)).map_err(|error| {
            LabError::new(format!(
                "the report could not be written to {}: {error}",
                folder.display()
            ))
        })?;
    if let Some(kept) = kept {
        // The report contains all of it.
        let _ = fs::remove_file(kept);
    }
    tell_line(format!("the report with plots is {}", page.display()));
    printed
}

fn plan_named(name: &str) -> Result<Box<dyn Plan>, LabError> {
    let mut plans = plans::all();
    match plans.iter().position(|plan| plan.name() == name) {
        Some(at) => Ok(plans.swap_remove(at)),
        None => {
            let names: Vec<String> = list().into_iter().map(|plan| plan.name).collect();
            Err(LabError::usage(format!(
                "there is no plan `{name}`; there are: {}",
                names.join(", ")
            )))
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

/// A number of bytes: `4096`, `4K`, `1M`.
pub fn bytes(text: &str) -> Option<usize> {
    let (digits, unit) = match text.trim().strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => match text.trim().strip_suffix(['M', 'm']) {
            Some(digits) => (digits, 1 << 20),
            None => (text.trim(), 1),
        },
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_plan_is_one_sentence_with_the_known_ones() {
        let request = RunRequest {
            plan: "perpetuum-mobile".to_owned(),
            json: false,
            out: None,
            quick: true,
            rounds: None,
        };
        let error = run_plan(&request).expect_err("unknown");
        assert!(
            error.is_usage && error.sentence.contains("ioat-copy"),
            "{error:?}"
        );
    }

    #[test]
    fn every_experiment_of_the_papers_has_its_place() {
        let all = catalogue();
        assert_eq!(all.len(), 53);
        for entry in &all {
            assert!(!entry.place.is_empty(), "{entry:?}");
        }
        let repeated = |id: &str| runs::known().iter().any(|plan| plan.repeats(id));
        for (id, _) in elsewhere() {
            assert!(all.iter().any(|entry| entry.id == id), "{id} is unknown");
            assert!(!repeated(&id), "{id} stands twice");
        }
    }

    #[test]
    fn the_documentation_has_a_row_for_every_experiment() {
        let page = include_str!("../../docs/lab.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
        for Entry { id, place, .. } in catalogue() {
            let begin = format!("| {id} | ");
            let mut own = rows.iter().filter(|row| row.starts_with(&begin));
            let row = own.next().unwrap_or_else(|| panic!("{id} has no row"));
            assert!(own.next().is_none(), "{id} has two rows");
            if elsewhere().iter().all(|(other, _)| *other != id) {
                let names: Vec<String> =
                    place.split(", ").map(|name| format!("`{name}`")).collect();
                let wanted = format!("{begin}{} | ", names.join(", "));
                assert!(row.starts_with(&wanted), "{id} is in {place}");
            }
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("64"), Some(64));
        assert_eq!(bytes("4K"), Some(4096));
        assert_eq!(bytes("2m"), Some(2 << 20));
        for wrong in ["", "K", "4G", "-1", "99999999999999M"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
