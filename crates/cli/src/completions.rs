//! `toehold completions`: scripts with which a shell completes our command lines.

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output::print;

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

/// Prints the script for `command_line`.
pub(crate) fn run(args: &CompletionsArgs, mut command_line: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line, "toehold", &mut script);
    if args.shell == Shell::Bash {
        script.extend_from_slice(programs_in_bash(&command_line).as_bytes());
    }
    print(script).map(drop)
}

/// Adds to clap's script for bash: after `toehold run` and its options, programs are completed;
/// after a program, its own completion is used if bash-completion is loaded.
fn programs_in_bash(command_line: &Command) -> String {
    let run = command_line.find_subcommand("run");
    let options = run.map_or(Vec::new(), |run| run.get_opts().collect());
    let with_values: Vec<String> = options
        .into_iter()
        .filter(|option| option.get_action().takes_values())
        .filter_map(|option| option.get_long().map(|long| format!("--{long}")))
        .collect();
    PROGRAMS_IN_BASH.replace("@OPTIONS@", &with_values.join("|"))
}

const PROGRAMS_IN_BASH: &str = r#"
_toehold_or_program() {
    local at=2 dashes=
    if [[ ${COMP_WORDS[1]} == run ]]; then
        while ((at < COMP_CWORD)); do
            case ${COMP_WORDS[at]} in
                --) dashes=1; ((at += 1)); break ;;
                @OPTIONS@)
                    if [[ ${COMP_WORDS[at + 1]} == '=' ]]; then ((at += 3)); else ((at += 2)); fi ;;
                -*) ((at += 1)) ;;
                *) break ;;
            esac
        done
        if ((at == COMP_CWORD)) && [[ $dashes || ${COMP_WORDS[at]} != -* ]]; then
            COMPREPLY=($(compgen -c -- "${COMP_WORDS[at]}"))
            return 0
        elif ((at < COMP_CWORD)); then
            COMPREPLY=()
            if declare -F _command_offset >/dev/null; then _command_offset "$at"; fi
            return 0
        fi
    fi
    _toehold "$@"
}
complete -o bashdefault -o default -F _toehold_or_program toehold
"#;
