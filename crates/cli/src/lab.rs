//! `toehold lab`: hands its words to the lab, which has a command line of its own.

use std::process::ExitCode;

use clap::Args;

/// Options of `toehold lab`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct LabArgs {
    /// The lab's own words; `toehold lab --help` shows them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WORDS"
    )]
    words: Vec<String>,
}

/// Runs the lab.
pub(crate) fn run(args: &LabArgs) -> ExitCode {
    let status = toehold_lab::run_from_args(&args.words);
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}
