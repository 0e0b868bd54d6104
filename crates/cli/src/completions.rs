//! `toehold completions`: what a shell needs to complete our command lines.

use std::io::{self, Write};

use clap::{Args, Command};
use clap_complete::Shell;

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

/// Prints those of `command_line`.
pub(crate) fn run(args: &CompletionsArgs, mut command_line: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line, "toehold", &mut script);
    io::stdout()
        .write_all(&script)
        .map_err(|error| Failure::new(format!("cannot write the completions: {error}")))
}
