//! `toehold run`: starts a program with the library, in any state of the host.
//!
//! An obstacle to acceleration is reported in one sentence, and the program still runs, on the host
//! path. The command fails only if the program cannot be run at all.

use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::io;
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use toehold_adapter::client::{self, ClientError};
use toehold_adapter::runtime_dir::RuntimeDir;
use toehold_adapter::unserved::{PATCH_CALLS, REFUSED, STARTED};

use crate::adapter;
use crate::failure::{Failure, STATUS_CANNOT_EXECUTE, STATUS_NOT_FOUND};
use crate::inherited;
use crate::library;
use crate::meeting::Meeting;
#[cfg(target_arch = "x86_64")]
use crate::options::PatchChoice;
use crate::options::{AdapterChoice, ExpressChoice, PathChoice, WaitChoice};
use crate::output::warn;
#[cfg(target_arch = "x86_64")]
use crate::patched;
use crate::preload::{self, EXPRESS, FILTERS, PAIR_AFTER, PRELOAD};
use crate::program::{self, FindError};

/// Options of `toehold run`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// The path that the program's connections may take
    #[arg(long, value_enum, default_value = "auto")]
    path: PathChoice,

    /// How the program waits for bytes
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: WaitChoice,

    /// Whether short connections to programs on this host use TCP connections again
    #[arg(long, value_enum, default_value = "on")]
    express: ExpressChoice,

    /// Pair a connection after so many calls that moved bytes: 1 for tests of short connections
    #[arg(long, value_name = "CALLS", hide = true)]
    pair_after: Option<NonZeroU32>,

    /// Which adapter pairs its connections
    #[arg(long, value_enum, default_value = "auto", value_name = "WHOSE")]
    #[arg(conflicts_with = "runtime_dir")]
    adapter: AdapterChoice,

    /// The adapter's runtime directory
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    runtime_dir: Option<PathBuf>,

    /// Whether programs that make system calls without libc (Go, static programs) are patched
    #[cfg(target_arch = "x86_64")]
    #[arg(long, value_enum, default_value = "on")]
    patch_calls: PatchChoice,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    pub(crate) program: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  toehold run -- redis-server
  toehold run --wait event -- nginx -g 'daemon off;'
  toehold run --path host -- curl http://localhost/      the same program, not accelerated
  toehold run --patch-calls off -- caddy run             a program of Go, left as it is

Child processes are accelerated too. If a system adapter runs, it pairs the connections of all
users' programs. Otherwise `run` starts an adapter of this user in the background when none runs;
this adapter ends when it has been idle for a minute.

Exit status: the program's own; 127 when it was not found, 126 when it cannot be executed.";

/// The variable for the adapter's directory.
const RUNTIME_DIR: &str = "TOEHOLD_RUNTIME_DIR";

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
        Ok(Some(acceleration)) => {
            acceleration.apply(&mut command);
            #[cfg(target_arch = "x86_64")]
            if acceleration.is_patched
                && let Some(refusal) =
                    patched::exec(&acceleration.library, &path, &args.program, &command)
            {
                refuse(&refusal.to_string(), &mut command);
            }
        }
        Ok(None) => preload::remove_acceleration(&mut command),
        Err(sentence) => {
            refuse(&sentence, &mut command);
            let meeting = Meeting::of(args.runtime_dir.as_deref(), args.adapter);
            command.env(RUNTIME_DIR, meeting.dir());
        }
    }
    // SAFETY: it makes system calls only.
    let error = unsafe { command.pre_exec(inherited::restore) }.exec();
    let status = match error.kind() {
        io::ErrorKind::NotFound => STATUS_NOT_FOUND,
        _ => STATUS_CANNOT_EXECUTE,
    };
    Err(Failure::with_status(
        format!("cannot execute {}: {error}", path.display()),
        status,
    ))
}

/// Leaves the program on the kernel, and reports the reason: now, and later in `toehold status`.
fn refuse(sentence: &str, command: &mut Command) {
    warn(format!("{sentence}; the program runs on kernel TCP"));
    preload::remove_acceleration(command);
    // The program keeps our process number.
    command.env(REFUSED, format!("{}:{sentence}", std::process::id()));
}

/// The files and variables that a program needs to be accelerated.
#[derive(Debug)]
struct Acceleration {
    library: PathBuf,
    runtime_dir: PathBuf,
    path: PathChoice,
    wait: WaitChoice,
    express: ExpressChoice,
    pair_after: Option<NonZeroU32>,
    /// The program has no dynamic linker, so its system calls are patched.
    #[cfg(target_arch = "x86_64")]
    is_patched: bool,
    /// The path of this command, if it patches programs that the program executes.
    patches_children: bool,
}

/// Prepares everything. `None` when no acceleration is wanted, a sentence when it is not possible.
fn acceleration(args: &RunArgs, program: &Path) -> Result<Option<Acceleration>, String> {
    if args.path == PathChoice::Host {
        return Ok(None);
    }
    #[cfg(target_arch = "x86_64")]
    let mut is_patched = false;
    match program::obstacle(program) {
        None => {}
        #[cfg(target_arch = "x86_64")]
        Some(program::Obstacle::Static(_)) if args.patch_calls == PatchChoice::On => {
            is_patched = true;
        }
        Some(obstacle) => return Err(obstacle.to_string()),
    }
    let library = library::find().map_err(|error| error.to_string())?;
    if !preload::can_stand_in_list(&library) {
        return Err(format!(
            "the path {} cannot stand in LD_PRELOAD",
            library.display()
        ));
    }
    let meeting = Meeting::of(args.runtime_dir.as_deref(), args.adapter);
    let dir = match &meeting {
        Meeting::System(dir) => dir.clone(),
        Meeting::User(dir) => {
            let dir = RuntimeDir::open_or_create(dir).map_err(|error| error.to_string())?;
            dir.path().into()
        }
    };
    match client::ping(&dir) {
        Ok(_) => {}
        Err(error @ (ClientError::NoAdapter(_) | ClientError::StaleSocket(_)))
            if matches!(meeting, Meeting::System(_)) =>
        {
            // The system adapter's service restarts it, and the library asks again by itself.
            let why = match error {
                ClientError::NoAdapter(_) => "no system adapter is running",
                _ => "the system adapter is gone",
            };
            warn(format!(
                "{why}; connections stay on kernel TCP until one runs: toehold adapter --system"
            ));
        }
        Err(ClientError::NoAdapter(_) | ClientError::StaleSocket(_)) => {
            if let Err(error) = adapter::start_in_background(&dir) {
                // The library asks again by itself: connections move once an adapter is running.
                warn(format!(
                    "{error}; connections stay on kernel TCP until an adapter runs"
                ));
            }
        }
        Err(error @ ClientError::TimedOut) => {
            warn(format!(
                "{error}; connections stay on kernel TCP until it does"
            ));
        }
        Err(error) => return Err(error.to_string()),
    }
    if args.path == PathChoice::Offload && matches!(client::has_engine(&dir), Ok(false)) {
        warn(
            "the adapter has no TCP engine; connections to other hosts stay on kernel TCP: \
             toehold adapter --link",
        );
    }
    Ok(Some(Acceleration {
        library,
        runtime_dir: dir,
        path: args.path,
        wait: args.wait,
        express: args.express,
        pair_after: args.pair_after,
        #[cfg(target_arch = "x86_64")]
        is_patched,
        patches_children: cfg!(target_arch = "x86_64") && args.patch_calls == PatchChoice::On,
    }))
}

impl Acceleration {
    fn apply(&self, command: &mut Command) {
        let others = preload::without_library(env::var_os(PRELOAD).as_deref());
        let mut preload = self.library.clone().into_os_string();
        if let Some(others) = others {
            // First, so that our functions are found before those of other preloaded libraries.
            preload.push(":");
            preload.push(others);
        }
        command
            .env(PRELOAD, preload)
            .env(RUNTIME_DIR, &self.runtime_dir)
            .env_remove(REFUSED)
            .env("TOEHOLD_PATH", self.path.word())
            .env("TOEHOLD_WAIT", self.wait.word())
            .env(EXPRESS, self.express.word());
        match self.patches_children {
            // The program keeps our process number.
            true => command
                .envs(preload::patches())
                .env(STARTED, std::process::id().to_string()),
            false => command.env_remove(PATCH_CALLS).env_remove(STARTED),
        };
        match filters() {
            0 => command.env_remove(FILTERS),
            count => command.env(FILTERS, count.to_string()),
        };
        match self.pair_after {
            Some(calls) => command.env(PAIR_AFTER, calls.to_string()),
            None => command.env_remove(PAIR_AFTER),
        };
    }
}

/// The number of system call filters (seccomp(2)) of this process: those of its container. The
/// library does not act in programs that have more. If the kernel does not count them, 1 stands for
/// any number.
fn filters() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let number = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok())
    };
    let mode = number("Seccomp:").unwrap_or(0);
    number("Seccomp_filters:").unwrap_or(u32::from(mode != 0))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn our_library_stands_first_and_once() {
        let acceleration = Acceleration {
            library: "/x/libtoehold.so".into(),
            runtime_dir: "/r".into(),
            path: PathChoice::Direct,
            wait: WaitChoice::Event,
            express: ExpressChoice::Off,
            pair_after: NonZeroU32::new(1),
            #[cfg(target_arch = "x86_64")]
            is_patched: false,
            patches_children: true,
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
        assert_eq!(get("TOEHOLD_EXPRESS"), Some("off".into()));
        assert_eq!(get("TOEHOLD_PAIR_AFTER"), Some("1".into()));
        assert_eq!(get("TOEHOLD_PATCH_CALLS"), Some("on".into()));
        assert_eq!(get(RUNTIME_DIR), Some("/r".into()));
    }
}
