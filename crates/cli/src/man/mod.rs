//! `toehold man`: a manual page for the program, for each subcommand, and for both configuration
//! files.

mod page;
mod rules_page;
mod settings_page;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};

use crate::failure::Failure;

/// Options of `toehold man`.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The directory to write toehold.1, toehold-run.1 and the others into; created when missing
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    out: PathBuf,
}

/// Writes the pages of `command_line`.
pub(crate) fn run(args: &ManArgs, command_line: Command) -> Result<(), Failure> {
    write_all(&args.out, command_line).map_err(|error: io::Error| {
        Failure::new(format!(
            "cannot write manual pages to {}: {error}",
            args.out.display()
        ))
    })
}

fn write_all(dir: &Path, command_line: Command) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut program = command_line.disable_help_subcommand(true);
    program.build();
    let names: Vec<String> = program.get_subcommands().map(page::name).collect();
    for command in family(&program) {
        let others = names.iter().map(String::as_str);
        let text = page::of_command(command, others)?;
        fs::write(dir.join(page::name(command) + ".1"), text)?;
    }
    fs::write(dir.join("toehold-engine.5"), settings_page::text())?;
    fs::write(dir.join("toehold.conf.5"), rules_page::text())
}

/// A command and all commands below it: `toehold lab` has subcommands. Hidden commands have no
/// page.
fn family(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().flat_map(family);
    let all = std::iter::once(command).chain(below);
    all.filter(|command| !command.is_hide_set()).collect()
}
