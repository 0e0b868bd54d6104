//! Which adapter a command is about: the system adapter, or this user's own.

use std::env;
use std::path::{Path, PathBuf};

use toehold_adapter::client::{self, ClientError};
use toehold_adapter::runtime_dir;

use crate::options::AdapterChoice;

/// Where an adapter is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// In the system adapter's directory.
    System(PathBuf),
    /// In a directory of this user's.
    User(PathBuf),
}

impl Meeting {
    /// Where the options and the environment say. A directory that is named decides; then the
    /// choice does.
    pub(crate) fn of(named: Option<&Path>, choice: AdapterChoice) -> Meeting {
        let system = runtime_dir::system_path();
        // One that is there and busy is met by others, too: a second adapter would part us from
        // them for good.
        let is_there = || {
            let asked = client::ping(&system);
            matches!(asked, Ok(_) | Err(ClientError::TimedOut))
        };
        let in_environment = env::var_os("TOEHOLD_RUNTIME_DIR").map(PathBuf::from);
        let own = || match in_environment.as_deref() == Some(&*system) {
            // A program under the system adapter has that in its environment.
            true => runtime_dir::default_path_without_ours(),
            false => runtime_dir::default_path(),
        };
        match (named, choice) {
            (Some(named), _) if named == system => Meeting::System(system),
            (Some(named), _) => {
                let named = std::path::absolute(named).unwrap_or_else(|_| named.into());
                Meeting::User(named)
            }
            (None, AdapterChoice::System) => Meeting::System(system),
            (None, AdapterChoice::User) => Meeting::User(own()),
            (None, AdapterChoice::Auto) => match &in_environment {
                Some(chosen) if *chosen != system => Meeting::User(own()),
                _ if is_there() => Meeting::System(system),
                _ => Meeting::User(own()),
            },
        }
    }

    /// As [`Meeting::of`], for a command that looks and starts nothing. Where no adapter answers
    /// and this user never had one, the system adapter is meant: it may have ended a moment ago.
    pub(crate) fn to_look_at(named: Option<&Path>, choice: AdapterChoice) -> Meeting {
        match (Meeting::of(named, choice), choice) {
            (Meeting::User(own), AdapterChoice::Auto) if named.is_none() => {
                let system = runtime_dir::system_path();
                match !own.exists() && system.exists() {
                    true => Meeting::System(system),
                    false => Meeting::User(own),
                }
            }
            (meeting, _) => meeting,
        }
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        match self {
            Meeting::System(dir) | Meeting::User(dir) => dir,
        }
    }
}
