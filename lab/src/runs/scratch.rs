//! A run's private directory, and the removal of directories of killed runs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;
use toehold_measure::procfs;

use super::{network, sockmap};
use crate::error::LabError;

/// A private directory, removed at the end. Its name contains its owner, so that a later run can
/// remove the directory of a killed run.
pub(super) struct Scratch {
    directory: TempDir,
    /// A name that identifies this process uniquely.
    pub(super) owner: String,
}

impl Scratch {
    pub(super) fn create() -> Result<Scratch, LabError> {
        let me = std::process::id() as i32;
        let start = start_of(me).unwrap_or(0);
        let owner = format!("{me}-{start}");
        let directory = tempfile::Builder::new()
            .prefix(&format!("{SCRATCH}{owner}-"))
            .tempdir()
            .map_err(|error| {
                LabError::new(format!("cannot create a temporary directory: {error}"))
            })?;
        Ok(Scratch { directory, owner })
    }

    /// Lets other users, as whom servers run their workers, access readable files below.
    pub(super) fn admit(&self) -> Result<(), String> {
        fs::set_permissions(self.path(), Permissions::from_mode(0o711))
            .map_err(|error| format!("cannot open {}: {error}", self.path().display()))
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes directories and namespaces of runs that were killed. Their programs have died with them.
pub(super) fn clean_up_after_others() {
    network::clean_up_after_others(lives);
    sockmap::clean_up_after_others(lives);
    for entry in fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let name = name.to_str().and_then(|name| name.strip_prefix(SCRATCH));
        let owner = name.and_then(|name| name.rsplit_once('-'));
        let owner = owner.map(|(owner, _)| owner);
        let is_one = |owner: &&str| owner.split('-').all(|part| part.parse::<u64>().is_ok());
        if owner.filter(is_one).is_some_and(|owner| !lives(owner)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a run still lives: a process with that number and that start time exists.
fn lives(owner: &str) -> bool {
    let Some((pid, start)) = owner.split_once('-') else {
        return false;
    };
    let now = pid.parse().ok().and_then(start_of);
    now.is_some_and(|now| now.to_string() == start)
}

/// When a process began, in ticks since boot.
fn start_of(pid: i32) -> Option<u64> {
    let found = procfs::processes()
        .into_iter()
        .find(|process| process.pid == pid)?;
    Some(found.start)
}

const SCRATCH: &str = "toehold-lab-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_removed_and_a_living_one_s_is_not() {
        let mine = Scratch::create().expect("room");
        let left = std::env::temp_dir().join(format!("{SCRATCH}{}-1-a", std::process::id()));
        fs::create_dir(&left).expect("room");
        clean_up_after_others();
        assert!(mine.path().is_dir() && !left.exists());
    }
}
