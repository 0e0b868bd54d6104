//! `toehold man`: one manual page for the program and one for each subcommand.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::{Args, Command};

use crate::failure::Failure;

/// Options of `toehold man`.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The directory to write toehold.1, toehold-run.1 and the others into; created when missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Writes those of `command_line`.
pub(crate) fn run(args: &ManArgs, command_line: Command) -> Result<(), Failure> {
    let written = fs::create_dir_all(&args.out).and_then(|()| {
        clap_mangen::generate_to(command_line.disable_help_subcommand(true), &args.out)
    });
    written.map_err(|error: io::Error| {
        Failure::new(format!(
            "cannot write manual pages to {}: {error}",
            args.out.display()
        ))
    })
}
