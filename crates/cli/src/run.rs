//! `toehold run`: starts a program with the library, whatever state the host is in.
//!
//! Whatever stands in the way of acceleration is said in one sentence, and the program runs all the
//! same, on the host path. Only a program that cannot be run at all is a failure.

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use toehold_adapter::client::{self, ClientError};
use toehold_adapter::runtime_dir::{self, RuntimeDir};

use crate::adapter;
use crate::failure::{Failure, STATUS_CANNOT_EXECUTE, STATUS_NOT_FOUND};
use crate::library;
use crate::options::{PathChoice, WaitChoice};
use crate::program::{self, FindError};

/// Options of `toehold run`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// How the program's connections may travel
    #[arg(long, value_enum, default_value = "auto")]
    path: PathChoice,

    /// How the program waits for bytes
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: WaitChoice,

    /// Where to meet the adapter
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  toehold run -- redis-server
  toehold run --wait event -- nginx -g 'daemon off;'
  toehold run --path host -- curl http://localhost/      the same program, not accelerated

Child processes are accelerated too. An adapter is started in the background when none runs; it
leaves when it has been idle for a while.

Exit status: the program's own; 127 when it was not found, 126 when it cannot be executed.";

/// Replaces this process by the program.
pub(crate) fn run(args: RunArgs) -> Result<Infallible, Failure> {
    let name = &args.program[0];
    let path = program::find(name).map_err(|error| match error {
        FindError::NotFound { .. } => Failure::with_status(error.to_string(), STATUS_NOT_FOUND),
        FindError::CannotExecute { .. } => {
            Failure::with_status(error.to_string(), STATUS_CANNOT_EXECUTE)
        }
    })?;
    let mut command = Command::new(&path);
    command.arg0(name).args(&args.program[1..]);
    match acceleration(&args, &path) {
        Ok(Some(acceleration)) => acceleration.apply(&mut command),
        Ok(None) => remove_acceleration(&mut command),
        Err(sentence) => {
            warn(&format!("{sentence}; the program runs on kernel TCP"));
            remove_acceleration(&mut command);
        }
    }
    let error = command.exec();
    let status = match error.kind() {
        io::ErrorKind::NotFound => STATUS_NOT_FOUND,
        _ => STATUS_CANNOT_EXECUTE,
    };
    Err(Failure::with_status(
        format!("cannot execute {}: {error}", path.display()),
        status,
    ))
}

/// What a program needs to be accelerated.
#[derive(Debug)]
struct Acceleration {
    library: PathBuf,
    runtime_dir: PathBuf,
    path: PathChoice,
    wait: WaitChoice,
}

/// Prepares everything; `None` when none is wanted, a sentence when it cannot be had.
fn acceleration(args: &RunArgs, program: &Path) -> Result<Option<Acceleration>, String> {
    if args.path == PathChoice::Host {
        return Ok(None);
    }
    if let Some(obstacle) = program::obstacle(program) {
        return Err(obstacle.to_string());
    }
    let library = library::find().map_err(|error| error.to_string())?;
    if library
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| matches!(byte, b' ' | b':' | b'$'))
    {
        // ld.so(8): the list is separated by spaces or colons, and nothing escapes them.
        return Err(format!(
            "the path {} cannot stand in LD_PRELOAD",
            library.display()
        ));
    }
    let wanted = args
        .runtime_dir
        .clone()
        .unwrap_or_else(runtime_dir::default_path);
    let wanted = std::path::absolute(&wanted).unwrap_or(wanted);
    let dir = RuntimeDir::open_or_create(&wanted).map_err(|error| error.to_string())?;
    match client::ping(dir.path()) {
        Ok(_) => {}
        Err(ClientError::NoAdapter(_) | ClientError::StaleSocket(_)) => {
            if let Err(error) = adapter::start_in_background(dir.path()) {
                // The library asks again by itself: connections move once an adapter is there.
                warn(&format!(
                    "{error}; connections stay on kernel TCP until an adapter runs"
                ));
            }
        }
        Err(error @ ClientError::TimedOut) => {
            warn(&format!(
                "{error}; connections stay on kernel TCP until it does"
            ));
        }
        Err(error) => return Err(error.to_string()),
    }
    Ok(Some(Acceleration {
        library,
        runtime_dir: dir.path().into(),
        path: args.path,
        wait: args.wait,
    }))
}

impl Acceleration {
    fn apply(&self, command: &mut Command) {
        let others = without_library(env::var_os(PRELOAD).as_deref());
        let mut preload = self.library.clone().into_os_string();
        if let Some(others) = others {
            // First, so that our calls are found before those of any other such library.
            preload.push(":");
            preload.push(others);
        }
        command
            .env(PRELOAD, preload)
            .env("TOEHOLD_RUNTIME_DIR", &self.runtime_dir)
            .env("TOEHOLD_PATH", self.path.word())
            .env("TOEHOLD_WAIT", self.wait.word());
    }
}

/// Undoes what an outer `toehold run` has put into the environment.
pub(crate) fn remove_acceleration(command: &mut Command) {
    match without_library(env::var_os(PRELOAD).as_deref()) {
        Some(others) => command.env(PRELOAD, others),
        None => command.env_remove(PRELOAD),
    };
    command
        .env_remove("TOEHOLD_PATH")
        .env_remove("TOEHOLD_WAIT");
}

/// The preloaded libraries that are not ours; `None` when there are none.
fn without_library(preload: Option<&OsStr>) -> Option<OsString> {
    let is_ours =
        |path: &[u8]| path.rsplit(|byte| *byte == b'/').next() == Some(library::NAME.as_bytes());
    let others: Vec<&[u8]> = preload?
        .as_bytes()
        .split(|byte| matches!(byte, b':' | b' '))
        .filter(|path| !path.is_empty() && !is_ours(path))
        .collect();
    (!others.is_empty()).then(|| OsString::from_vec(others.join(&b':')))
}

fn warn(sentence: &str) {
    eprintln!("toehold: {sentence}");
}

/// The loader's list of libraries to load first.
const PRELOAD: &str = "LD_PRELOAD";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_library_is_taken_out() {
        let out = |list: &str| without_library(Some(OsStr::new(list)));
        assert_eq!(out("/a/libtoehold.so"), None);
        assert_eq!(
            out("/a/libtoehold.so:/b/other.so c.so"),
            Some("/b/other.so:c.so".into())
        );
        assert_eq!(
            out("/a/libtoehold.so.bak"),
            Some("/a/libtoehold.so.bak".into())
        );
        assert_eq!(without_library(None), None);
    }

    #[test]
    fn our_library_stands_first_and_once() {
        let acceleration = Acceleration {
            library: "/x/libtoehold.so".into(),
            runtime_dir: "/r".into(),
            path: PathChoice::Direct,
            wait: WaitChoice::Event,
        };
        let mut command = Command::new("true");
        acceleration.apply(&mut command);
        let get = |name: &str| {
            let found = command.get_envs().find(|(key, _)| *key == OsStr::new(name));
            found.and_then(|(_, value)| value).map(OsStr::to_owned)
        };
        assert!(
            get(PRELOAD)
                .expect("set")
                .to_string_lossy()
                .starts_with("/x/libtoehold.so")
        );
        assert_eq!(get("TOEHOLD_PATH"), Some("direct".into()));
        assert_eq!(get("TOEHOLD_WAIT"), Some("event".into()));
        assert_eq!(get("TOEHOLD_RUNTIME_DIR"), Some("/r".into()));
    }
}
