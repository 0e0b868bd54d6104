//! The adapter that a command addresses: the system adapter, or this user's own.

use std::env;
use std::path::{Path, PathBuf};

use toehold_adapter::client::{self, ClientError};
use toehold_adapter::runtime_dir;

use crate::options::AdapterChoice;

/// The runtime directory of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// The system adapter's directory.
    System(PathBuf),
    /// A directory of this user.
    User(PathBuf),
}

impl Meeting {
    /// The adapter selected by options and environment. A named directory decides; otherwise the
    /// choice does.
    pub(crate) fn of(named: Option<&Path>, choice: AdapterChoice) -> Meeting {
        let system = runtime_dir::system_path();
        // An adapter that is running but busy counts as well: other programs use it, and with a
        // second adapter we could never be paired with them.
        let is_there = || {
            let asked = client::ping(&system);
            matches!(asked, Ok(_) | Err(ClientError::TimedOut))
        };
        let in_environment = env::var_os("TOEHOLD_RUNTIME_DIR").map(PathBuf::from);
        // The runtime directory ignores other values, too.
        let in_environment = in_environment.filter(|path| path.is_absolute());
        let own = || match in_environment.as_deref() == Some(&*system) {
            // A program under the system adapter has that adapter's directory in its environment.
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

    /// [`Meeting::of`] for a command that only reads. If no adapter answers and this user never had
    /// one, the system adapter is meant: it may have ended a moment ago.
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
