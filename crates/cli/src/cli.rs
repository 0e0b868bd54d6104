//! The command line as a whole: help, completions and the manual are made from it.

use clap::{Parser, Subcommand};

use crate::adapter::AdapterArgs;
use crate::capture::CaptureArgs;
use crate::compare::CompareArgs;
use crate::completions::CompletionsArgs;
use crate::container::ContainerArgs;
use crate::detach::DetachArgs;
use crate::doctor::DoctorArgs;
use crate::lab::LabArgs;
use crate::man::ManArgs;
use crate::rules::RulesArgs;
use crate::run::RunArgs;
use crate::services::{EnableArgs, ListArgs, Units};
use crate::status::StatusArgs;
use crate::status::explain::ExplainArgs;
use crate::status::metrics::MetricsArgs;

/// Makes ordinary TCP programs faster and cheaper to run, without changing them
///
/// Two programs on this host that were started with `toehold run` exchange bytes through shared
/// memory. All other connections use kernel TCP. Every connection begins on the kernel, and stays
/// there when Toehold cannot accelerate it.
#[derive(Parser, Debug)]
#[command(name = "toehold", version, after_help = EXAMPLES, propagate_version = true)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a program with accelerated connections
    Run(RunArgs),
    /// Measure whether it helps your server and your client
    Compare(CompareArgs),
    /// Show every connection of the accelerated programs and how its bytes travel
    Status(StatusArgs),
    /// Explain the path of a program's connections to an address, and print advice
    Explain(ExplainArgs),
    /// Print the state of the adapter's connections for Prometheus, or answer on a socket
    Metrics(MetricsArgs),
    /// Move live connections back to the kernel
    Detach(DetachArgs),
    /// Make systemd services start with accelerated connections
    Enable(EnableArgs),
    /// Make systemd services start without accelerated connections again
    Disable(Units),
    /// Show the enabled services, and whether they run with accelerated connections
    List(ListArgs),
    /// Print the options that a container needs for accelerated connections
    Container(ContainerArgs),
    /// Check the rules of toehold.conf, and show them in their order
    Rules(RulesArgs),
    /// Show what this host allows and what is missing
    Doctor(DoctorArgs),
    /// Run the adapter, which pairs the connections of programs
    Adapter(Box<AdapterArgs>),
    /// Show or save the frames on the adapter's link, and the TCP engine's action for each
    Capture(CaptureArgs),
    /// Repeat the experiments of the literature on this host
    Lab(LabArgs),
    /// Write the manual pages
    Man(ManArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
}

const EXAMPLES: &str = "\
Examples:
  toehold run -- redis-server             and in another terminal:
  toehold run -- redis-benchmark -t get   both ends accelerated: bytes go through shared memory
  toehold status                          am I accelerated, and if not, why not?
  toehold compare --server 'redis-server --save \"\"' \\
                  --client 'redis-benchmark -t get -n 500000 --csv'
  toehold doctor                          what does this host allow?

Environment:
  TOEHOLD_RUNTIME_DIR   the adapter's runtime directory (else $XDG_RUNTIME_DIR/toehold, else
                        /tmp/toehold-UID)
  TOEHOLD_LIB           path of libtoehold.so, when it is not beside this program or installed

Exit status: 0 success, 1 failure, 2 wrong command line; `toehold run` ends as its program does, or
with 126 (found, cannot be executed) or 127 (not found).";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn tables_are_printed_as_json_too() {
        let command = Cli::command();
        let tables = [
            "status",
            "explain",
            "list",
            "rules",
            "doctor",
            "compare",
            "lab list",
            "lab show",
            "lab run",
            "lab resume",
            "lab report",
            "lab compare",
            "lab client",
            "lab limit",
            "lab http",
            "lab poll",
            "lab view",
        ];
        for table in tables {
            let command = table.split(' ').fold(&command, |above, name| {
                above.find_subcommand(name).expect("there")
            });
            let mut options = command.get_arguments();
            assert!(options.any(|option| option.get_id() == "json"), "{table}");
        }
    }

    #[test]
    fn settings_of_the_engine_in_the_lab_are_the_adapter_s_options() {
        let command = Cli::command();
        let adapter = command.find_subcommand("adapter").expect("there");
        for name in toehold_lab::runs::ENGINE_SETTINGS {
            let is_it = |argument: &clap::Arg| argument.get_long() == Some(name);
            assert!(adapter.get_arguments().any(is_it), "{name}");
        }
    }

    /// The words after `key` in the lines that begin with `key`.
    fn values<'a>(text: &'a str, key: &'a str) -> Vec<&'a str> {
        let lines = text.lines().map(|line| line.trim_start_matches([' ', '-']));
        lines.filter_map(|line| line.strip_prefix(key)).collect()
    }

    /// The words after `toehold` in a valid command of ours.
    fn ours(words: Vec<String>) -> Option<String> {
        let rest = words
            .split_first()
            .filter(|it| it.0.ends_with("/toehold"))?;
        let rest = rest.1.join(" ");
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{rest}: {error}");
        }
        Some(rest)
    }

    /// The words of a YAML list in one line.
    fn list(text: &str) -> Vec<String> {
        let inner = text
            .trim()
            .strip_prefix('[')
            .and_then(|it| it.strip_suffix(']'));
        let inner = inner.expect("a list in one line");
        inner
            .split(',')
            .map(|word| word.trim().to_owned())
            .collect()
    }

    #[test]
    fn the_example_of_kubernetes_has_commands_that_are_accepted() {
        let example = include_str!("../../../contrib/kubernetes/adapter.yaml");
        assert!(
            values(example, "args:").is_empty(),
            "words in another place"
        );
        let commands = values(example, "command:").into_iter().map(list);
        let commands: Vec<String> = commands.filter_map(ours).collect();
        assert_eq!(
            commands,
            ["adapter --system", "status --adapter system --json"]
        );
        let unit = include_str!("../../../contrib/systemd/toehold-adapter.service");
        let named = values(unit, "CapabilityBoundingSet=").join(" ");
        let named: Vec<&str> = named
            .split(' ')
            .filter_map(|it| it.strip_prefix("CAP_"))
            .collect();
        let given = values(example, "add:").into_iter().flat_map(list);
        assert_eq!(given.collect::<Vec<_>>(), named, "as the unit of systemd");
    }

    #[test]
    fn units_of_systemd_have_commands_that_are_accepted() {
        let started = |unit: &str| {
            let command = values(unit, "ExecStart=")[0].split(' ');
            ours(command.map(str::to_owned).collect()).expect("a command of ours")
        };
        let system = include_str!("../../../contrib/systemd/toehold-adapter.service");
        assert_eq!(started(system), "adapter --system");
        let service = include_str!("../../../contrib/systemd/user/toehold-adapter.service");
        let socket = include_str!("../../../contrib/systemd/user/toehold-adapter.socket");
        let listens = values(socket, "ListenSequentialPacket=")[0];
        let directory = listens
            .strip_suffix("/adapter.sock")
            .expect("the adapter's socket");
        let expected = format!("adapter --runtime-dir {directory} ");
        assert!(started(service).starts_with(&expected), "{expected}");
    }

    #[test]
    fn a_program_s_own_options_are_its_own() {
        let words = [
            "toehold", "run", "--path", "direct", "--", "prog", "--path", "host", "-v",
        ];
        let Command::Run(args) = Cli::try_parse_from(words).expect("valid").command else {
            panic!("run");
        };
        assert_eq!(args.program, ["prog", "--path", "host", "-v"]);
    }

    #[test]
    fn the_dashes_may_be_left_out() {
        let words = ["toehold", "run", "prog", "--path", "host"];
        let Command::Run(args) = Cli::try_parse_from(words).expect("valid").command else {
            panic!("run");
        };
        assert_eq!(args.program, ["prog", "--path", "host"]);
    }

    #[test]
    fn every_subcommand_teaches() {
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name} says what it does");
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{name} {}",
                    argument.get_id()
                );
            }
        }
    }
}
