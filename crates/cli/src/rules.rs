//! `toehold rules`: checks `toehold.conf` and shows the rules as an adapter reads them.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use toehold_adapter::rules::{self, Rule, Rules};

use crate::failure::Failure;
use crate::output::{print, print_json};

/// Options of `toehold rules`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RulesArgs {
    /// The file, in place of those that an adapter reads
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,

    /// The files that the system adapter reads
    #[arg(long, conflicts_with = "file")]
    system: bool,

    /// Print as JSON: each rule with the `origin` that `toehold status` names
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  toehold rules                        those of this user's adapter, the first that matches first
  toehold rules --system               those of the system adapter
  toehold rules new.conf               before it is installed
  systemctl reload toehold-adapter     then, or: kill -HUP PID

`toehold status` says which rule keeps a connection on the kernel.

Exit status: 0, or 1 when a rule is wrong.";

/// A rule, for `--json`.
#[derive(Serialize)]
struct RuleShown {
    origin: String,
    rule: String,
}

/// Reads and prints the rules.
pub(crate) fn run(args: &RulesArgs) -> Result<(), Failure> {
    let files = match &args.file {
        Some(file) => rules::named(file),
        None => rules::default_files(args.system),
    };
    let read = Rules::read(&files).map_err(|error| Failure::new(error.to_string()))?;
    if args.json {
        let of = |rule: &Rule| RuleShown {
            origin: rule.origin(),
            rule: rule.to_string(),
        };
        return print_json(&read.iter().map(of).collect::<Vec<_>>());
    }
    let mut text = String::new();
    let origins = read.iter().map(|rule| rule.origin().len());
    let width = origins.max().unwrap_or(0);
    for rule in read.iter() {
        text.push_str(&format!("{:width$}  {rule}\n", rule.origin()));
    }
    if read.is_empty() {
        let files = files.iter().map(|file| file.path.display().to_string());
        let files = files.collect::<Vec<_>>().join(", ");
        text.push_str(&format!("no rules in {files}\n"));
    }
    print(text).map(drop)
}
