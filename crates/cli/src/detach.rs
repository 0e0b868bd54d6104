//! `toehold detach`: moves live connections back to the kernel, without a pause and without data
//! loss.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use toehold_adapter::client;

use crate::failure::Failure;
use crate::meeting::Meeting;
use crate::options::AdapterChoice;
use crate::output::print;

/// Options of `toehold detach`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DetachArgs {
    /// Which connections: PID, PID:FD, or all
    #[arg(value_name = "WHICH")]
    target: Target,

    /// Undo an earlier detach: the connections may be accelerated again
    #[arg(long)]
    undo: bool,

    /// Which adapter is asked
    #[arg(long, value_enum, default_value = "auto", value_name = "WHOSE")]
    #[arg(conflicts_with = "runtime_dir")]
    adapter: AdapterChoice,

    /// The adapter's runtime directory
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  toehold detach 4711       every connection of process 4711
  toehold detach 4711:9     one of them; `toehold status` shows the numbers
  toehold detach all
  toehold detach --undo all

A sleeping program moves its connections at its next call.";

/// The connections to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    /// Zero for all processes, as in the adapter's protocol.
    pid: u32,
    fd: Option<u32>,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        if text == "all" {
            return Ok(Target { pid: 0, fd: None });
        }
        let (pid, fd) = match text.split_once(':') {
            None => (text, None),
            Some((pid, fd)) => (pid, Some(fd)),
        };
        let number = |what: &str, text: &str| -> Result<u32, String> {
            text.parse()
                .map_err(|_| format!("\"{text}\" is no {what}; use PID, PID:FD or all"))
        };
        let fd = fd.map(|fd| number("descriptor", fd)).transpose()?;
        match number("process id", pid)? {
            0 => Err("process 0 does not exist; use PID, PID:FD or all".to_owned()),
            pid => Ok(Target { pid, fd }),
        }
    }
}

/// Sends the request to the adapter.
pub(crate) fn run(args: &DetachArgs) -> Result<(), Failure> {
    let meeting = Meeting::to_look_at(args.runtime_dir.as_deref(), args.adapter);
    let dir = meeting.dir();
    let Target { pid, fd } = args.target;
    let (told_count, verb) = if args.undo {
        (client::attach(dir, pid, fd), "may be accelerated again")
    } else {
        (
            client::detach(dir, pid, fd),
            "told to go back to kernel TCP",
        )
    };
    let told_count = told_count.map_err(|error| Failure::new(error.to_string()))?;
    if told_count == 0 && pid != 0 {
        return Err(Failure::new(
            "no such connection; `toehold status` lists them",
        ));
    }
    let connections = if told_count == 1 {
        "connection"
    } else {
        "connections"
    };
    print(format!("{told_count} {connections} {verb}\n")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        assert_eq!("all".parse(), Ok(Target { pid: 0, fd: None }));
        assert_eq!(
            "4711".parse(),
            Ok(Target {
                pid: 4711,
                fd: None
            })
        );
        assert_eq!(
            "4711:9".parse(),
            Ok(Target {
                pid: 4711,
                fd: Some(9)
            })
        );
    }

    #[test]
    fn anything_else_is_refused_with_the_forms() {
        for text in ["", "0", "0:3", "x", "5:", "5:x", ":5", "-1", "5:6:7"] {
            let error = text.parse::<Target>().expect_err(text);
            assert!(error.contains("PID:FD"), "{text}: {error}");
        }
    }
}
