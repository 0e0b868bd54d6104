//! `toehold completions`: what a shell needs to complete our command lines.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Failure;

/// Options of `toehold completions`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  toehold completions bash > /etc/bash_completion.d/toehold
  toehold completions zsh  > \"${fpath[1]}/_toehold\"
  toehold completions fish > ~/.config/fish/completions/toehold.fish";

/// Prints them.
pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "toehold", &mut script);
    io::stdout()
        .write_all(&script)
        .map_err(|error| Failure::new(format!("cannot write the completions: {error}")))
}
