//! Cheaper TCP for unmodified programs: run, status, compare, lab.
//!
//! [`cli`] is the command line as a whole. Most subcommands have a module of their name: [`run`],
//! [`container`], [`rules`], [`adapter`], [`status`], [`detach`], [`capture`], [`compare`],
//! [`doctor`], [`lab`], [`man`], [`completions`]; those for systemd's services share [`services`].
//!
//! The other modules serve them:
//!
//! - [`program`]: judges the program that is to be run; [`library`]: finds `libtoehold.so`;
//!   [`preload`]: the environment variable that names it.
//! - [`patched`]: programs without a dynamic linker. [`inherited`]: the state of this process that
//!   a program inherits; [`reaper`]: keeps orphans from a program; [`stack`]: room for the rest
//!   where the limit of stacks is low.
//! - [`meeting`]: which adapter a command is about; [`users`]: users by their names.
//! - [`options`]: common choices; [`output`]: prints; [`failure`]: how a subcommand ends badly.

#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]

mod adapter;
mod capture;
mod cli;
mod compare;
mod completions;
mod container;
mod detach;
mod doctor;
mod failure;
mod inherited;
mod lab;
mod library;
mod man;
mod meeting;
mod options;
mod output;
#[cfg(target_arch = "x86_64")]
mod patched;
mod preload;
mod program;
mod reaper;
mod rules;
mod run;
mod services;
mod stack;
mod status;
mod users;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    let command = match stack::with_room(Cli::try_parse) {
        Ok(line) => line.command,
        // A wrong command line: report on standard error, with clap's status.
        Err(error) if error.use_stderr() => error.exit(),
        Err(help) => return end(output::print_by(|| help.print())),
    };
    end(match command {
        // On the stack that this process was given, because this process becomes the program.
        Command::Run(_) => work(command),
        _ => stack::with_room(|| work(command)),
    })
}

fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::warn(&failure);
            ExitCode::from(failure.status)
        }
    }
}

fn work(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => run::run(args).map(|never| match never {}),
        Command::Enable(args) => services::enable(&args),
        Command::Disable(args) => services::disable(&args),
        Command::Container(args) => container::run(&args),
        Command::List(args) => services::list(&args),
        Command::Rules(args) => rules::run(&args),
        Command::Adapter(args) => adapter::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Explain(args) => status::explain::run(&args),
        Command::Metrics(args) => status::metrics::run(&args),
        Command::Detach(args) => detach::run(&args),
        Command::Capture(args) => capture::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::Completions(args) => completions::run(&args, Cli::command()),
    }
}
