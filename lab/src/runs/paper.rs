//! `toehold lab run paper` and `paper-applications`: every plan that repeats the literature, one
//! after the other. Plans of applications are long, and a series of their own.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use toehold_measure::output::tell_line;
use toehold_measure::page::{self, escape};
use toehold_measure::process;

use super::plan_file::Series;
use super::record::Record;
use super::{Form, PlanFile, fresh, known, resume, summary};
use crate::command::{RunRequest, run_plan};
use crate::error::LabError;

impl Series {
    /// Every series.
    pub const ALL: [Series; 2] = [Series::Paper, Series::Applications];

    /// The series of that name.
    pub fn named(name: &str) -> Option<Series> {
        Series::ALL.into_iter().find(|series| series.name() == name)
    }

    /// The name by which the user starts it.
    pub fn name(self) -> &'static str {
        match self {
            Series::Paper => "paper",
            Series::Applications => "paper-applications",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Series::Paper => "The papers, on this machine",
            Series::Applications => "The papers' applications, on this machine",
        }
    }

    /// Its plans.
    pub fn plans(self) -> Vec<PlanFile> {
        let all = known().into_iter();
        all.filter(|plan| plan.series == Some(self)).collect()
    }

    /// Experiments within one process: they are code, and have no rounds to resume.
    fn within_a_process(self) -> &'static [&'static str] {
        match self {
            Series::Paper => &["ioat-copy", "srv-memaccess"],
            Series::Applications => &[],
        }
    }
}

/// The plans of a series in words, and how long they take.
pub fn describe_series(series: Series, adjust: impl Fn(PlanFile) -> PlanFile) -> String {
    let plans: Vec<PlanFile> = series.plans().into_iter().map(adjust).collect();
    let mut text = String::new();
    for plan in &plans {
        let _ = writeln!(
            text,
            "{:<17} {:>5} samples, about {:>3.0} minutes",
            plan.name,
            plan.samples(),
            plan.minutes()
        );
    }
    for name in series.within_a_process() {
        let _ = writeln!(text, "{name:<17} within one process, not estimated");
    }
    let seconds: f64 = plans.iter().map(PlanFile::duration).sum();
    let _ = writeln!(
        text,
        "\nall together about {:.0} minutes",
        (seconds / 60.0).ceil()
    );
    text
}

/// Runs every plan of a series, each into its own folder below `out`, and writes an index. Finished
/// plans are skipped and unfinished ones resumed, so that the command can be repeated. If a plan
/// cannot be run, the others still are.
///
/// # Errors
///
/// One sentence: the plans that could not be run, or that the run was interrupted.
pub fn run_series(
    series: Series,
    out: Option<&Path>,
    is_hurried: bool,
    adjust: impl Fn(PlanFile) -> PlanFile,
) -> Result<(), LabError> {
    let folder = match out {
        Some(out) => out.to_owned(),
        None => super::state_folder(series.name())?,
    };
    let plans: Vec<PlanFile> = series.plans().into_iter().map(adjust).collect();
    let seconds: f64 = plans.iter().map(PlanFile::duration).sum();
    tell_line(format!(
        "{} plans, about {:.0} minutes, into {}",
        plans.len() + series.within_a_process().len(),
        (seconds / 60.0).ceil(),
        folder.display()
    ));
    let mut failures = Vec::new();
    let mut records = Vec::new();
    for (at, plan) in plans.iter().enumerate() {
        tell_line(format!("plan {} of {}: {}", at + 1, plans.len(), plan.name));
        let own = folder.join(&plan.name);
        if let Err(error) = one(plan, &own) {
            if process::interrupted() {
                return Err(error);
            }
            tell_line(format!("{}: {}", plan.name, error.sentence));
            failures.push(plan.name.clone());
        }
        if let Ok(record) = Record::load(&own) {
            records.push(record);
        }
        write_index(series, &folder, &records)?;
    }
    for name in series.within_a_process() {
        if folder.join(format!("{name}.html")).exists() {
            continue;
        }
        run_plan(&RunRequest {
            plan: (*name).to_owned(),
            json: false,
            out: Some(folder.clone()),
            quick: is_hurried,
            rounds: None,
        })?;
    }
    tell_line(format!(
        "the index is {}",
        folder.join("index.html").display()
    ));
    if failures.is_empty() {
        return Ok(());
    }
    Err(LabError::new(format!(
        "not everything could be run: {}; the same command tries these again",
        failures.join(", ")
    )))
}

fn one(plan: &PlanFile, folder: &Path) -> Result<(), LabError> {
    if !folder.join("run.json").exists() {
        return super::finish(fresh(plan.clone()), folder, Form::Text);
    }
    if Record::load(folder)?.is_finished() {
        return Ok(());
    }
    resume(folder, Form::Text)
}

fn write_index(series: Series, folder: &Path, records: &[Record]) -> Result<(), LabError> {
    let page = folder.join("index.html");
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(&page, index(series, records))
    };
    write().map_err(|error| LabError::new(format!("cannot write {}: {error}", page.display())))
}

/// The conclusions of all plans, with links to their pages.
pub(super) fn index(series: Series, records: &[Record]) -> String {
    let mut body = format!("<h1>{}</h1>\n", series.title());
    for record in records {
        let name = escape(&record.plan.name);
        let _ = writeln!(
            body,
            "<h2><a href=\"{name}/report.html\">{name}</a></h2><p>{}</p>",
            escape(&record.plan.about)
        );
        for sentence in summary::conclusions(record) {
            let _ = writeln!(body, "<p class=conclusion>{}</p>", escape(&sentence));
        }
    }
    for name in series.within_a_process() {
        let _ = writeln!(body, "<h2><a href=\"{name}.html\">{name}</a></h2>");
    }
    page::page(series.title(), &body)
}
