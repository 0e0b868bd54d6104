//! Plans on sockets: plan files, runs on disk, and their reports.

mod application;
mod arm;
mod beside;
mod comparison;
mod crossings;
mod execution;
mod guard;
mod headline;
mod network;
mod page;
mod paper;
mod plan_file;
mod record;
mod scratch;
mod sockmap;
mod summary;
mod tiers;
mod tool;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use toehold_measure::environment::Environment;
use toehold_measure::output::tell_line;
use toehold_measure::shell;

pub use arm::ENGINE_SETTINGS;
pub use guard::guard;
pub use paper::{describe_series, run_series};
pub use plan_file::{PlanFile, Series};
pub use record::Record;

use self::comparison::Comparison;
use crate::error::{LabError, put};

/// The format in which a report is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Form {
    /// Tables.
    #[default]
    Text,
    /// The whole run.
    Json,
    /// Every sample, a line each.
    Csv,
}

/// The plans that come with the lab.
pub fn known() -> Vec<PlanFile> {
    KNOWN.clone()
}

/// Read once: the experiments of the literature are looked up in all of them.
static KNOWN: LazyLock<Vec<PlanFile>> = LazyLock::new(|| {
    let plans = PLANS
        .iter()
        .map(|(place, text)| PlanFile::parse(text, place));
    plans.map(|plan| plan.expect("tested")).collect()
});

/// Begins a run: in `out`, or in a new folder in the user's state directory.
///
/// # Errors
///
/// One sentence.
pub fn begin(plan: PlanFile, out: Option<&Path>, form: Form) -> Result<(), LabError> {
    let folder = match out {
        Some(out) => out.to_owned(),
        None => state_folder(&plan.name)?,
    };
    if folder.join("run.json").exists() {
        return Err(LabError::usage(format!(
            "there is a run in {} already; resume it, or name another directory",
            folder.display()
        )));
    }
    finish(fresh(plan), &folder, form)
}

/// A run without samples.
fn fresh(plan: PlanFile) -> Record {
    Record {
        schema: record::SCHEMA.to_owned(),
        plan,
        command: shell::own_command(),
        environment: Environment::capture(),
        seed: 1,
        rounds_done: 0,
        samples: Vec::new(),
        stayed: Vec::new(),
        steal: Vec::new(),
        missing: Vec::new(),
        crossings: Vec::new(),
    }
}

/// Continues an interrupted run.
///
/// # Errors
///
/// One sentence.
pub fn resume(folder: &Path, form: Form) -> Result<(), LabError> {
    finish(Record::load(folder)?, folder, form)
}

fn finish(mut record: Record, folder: &Path, form: Form) -> Result<(), LabError> {
    let completed = execution::complete(&mut record, folder);
    if let Err(error) = completed {
        if record.rounds_done == 0 {
            return Err(error);
        }
        return Err(LabError::new(format!(
            "{}; go on with: toehold lab resume {}",
            error.sentence,
            shell::quoted(&folder.to_string_lossy())
        )));
    }
    write_page(&record, &folder.join("report.html"))?;
    print(&record, form)?;
    tell_line(format!(
        "the page is {}",
        folder.join("report.html").display()
    ));
    Ok(())
}

/// Prints the report of a run, and writes its page if requested.
///
/// # Errors
///
/// One sentence.
pub fn report(run: &Path, page: Option<&Path>, form: Form) -> Result<(), LabError> {
    let record = Record::load(run)?;
    if let Some(page) = page {
        write_page(&record, page)?;
    }
    print(&record, form)
}

/// Prints two runs beside each other.
///
/// # Errors
///
/// One sentence: a run cannot be read, or they are of different machines and that was not allowed.
pub fn compare(a: &Path, b: &Path, any_machine: bool, is_json: bool) -> Result<(), LabError> {
    let (a, b) = (Record::load(a)?, Record::load(b)?);
    let (old, new) = (a.environment.fingerprint(), b.environment.fingerprint());
    if old != new && !any_machine {
        return Err(LabError::usage(format!(
            "the runs are of different machines ({old}; and {new}); --any-machine compares them"
        )));
    }
    let comparison = Comparison::of(&a, &b);
    put(match is_json {
        true => json(&comparison)?,
        false => comparison.text(),
    })
}

fn print(record: &Record, form: Form) -> Result<(), LabError> {
    let text = match form {
        Form::Text => summary::text(record),
        Form::Csv => record.csv(),
        Form::Json => json(record)?,
    };
    put(text)
}

fn json(value: &impl Serialize) -> Result<String, LabError> {
    let json = serde_json::to_string(value);
    let json = json.map_err(|error| LabError::new(format!("the run is not JSON: {error}")))?;
    Ok(json + "\n")
}

fn write_page(record: &Record, file: &Path) -> Result<(), LabError> {
    fs::write(file, page::html(record))
        .map_err(|error| LabError::new(format!("cannot write {}: {error}", file.display())))
}

fn state_folder(name: &str) -> Result<PathBuf, LabError> {
    let folder = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
    let state = folder("XDG_STATE_HOME")
        .or_else(|| Some(folder("HOME")?.join(".local/state")))
        .ok_or_else(|| LabError::usage("neither XDG_STATE_HOME nor HOME is set: give --out DIR"))?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    Ok(state.join("toehold/lab").join(format!("{name}-{now}")))
}

macro_rules! plans {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("../../plans/", $name)))),+]
    };
}

const PLANS: [(&str, &str); 29] = plans![
    "quick.toml",
    "headline.toml",
    "generators.toml",
    "bandwidth.toml",
    "ports.toml",
    "multistream.toml",
    "opt.toml",
    "split.toml",
    "touch.toml",
    "tbench.toml",
    "latency.toml",
    "toe-bandwidth.toml",
    "hotspot.toml",
    "ipoib-offloads.toml",
    "ipoib-all.toml",
    "threshold.toml",
    "crossings.toml",
    "connections.toml",
    "sidecar.toml",
    "short-connections.toml",
    "new-connections.toml",
    "data-centre.toml",
    "cluster-monitor.toml",
    "filter-streams.toml",
    "mpi.toml",
    "parallel-fs.toml",
    "moosefs.toml",
    "web-shop.toml",
    "web-server.toml",
];

#[cfg(test)]
mod browser_tests;
#[cfg(test)]
mod tests;
