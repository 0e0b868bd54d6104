//! Programs that no adapter knows, found in `/proc` by a user who may look into them.
//!
//! Some have the library, and their adapter died or answers only root: a program keeps its table as
//! a descriptor, from which the user reads what the adapter would read. Others were started to have
//! the library, and run without it.

use crate::proc;
use crate::registry::{Limits, Policy, Registry};
use crate::status::{self, Client};
use crate::tables::Tables;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The connections of programs that meet their adapter in a directory, as far as we may look, in
/// the form of [`crate::client::status`]; without the processes that are `known` already. `None`
/// when there is no such program.
pub fn status(runtime_dir: &Path, known: &BTreeSet<u32>) -> Option<String> {
    let mut tables = Tables::default();
    let mut clients = Vec::new();
    for (pid, _) in meeting_in(runtime_dir).filter(|(pid, _)| !known.contains(pid)) {
        let mut descriptors = proc::descriptors(pid);
        let table = descriptors.find(|(_, target)| target.starts_with(proc::TABLE_NAME));
        let Some((number, _)) = table else {
            continue;
        };
        let path = format!("/proc/{pid}/fd/{number}");
        let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else {
            continue;
        };
        if let (Ok(table), Some(uid)) = (tables.open(file.into()), proc::user(pid)) {
            clients.push(Client {
                pid,
                own_pid: proc::own_number(pid).unwrap_or(pid),
                uid,
                table,
            });
        }
    }
    if clients.is_empty() {
        return None;
    }
    let registry = Registry::new(Limits::with_regions(0), Policy::default());
    let report = status::report(
        clients.into_iter(),
        &tables,
        &registry,
        &status::RulesSaid {
            against: &|_| None,
            wait: &|_| None,
        },
        (None, None),
    );
    serde_json::to_string(&report).ok()
}

/// A program that runs without the library, though it, or the program that started it, was started
/// to have it.
#[derive(Debug)]
pub struct Bare {
    /// Its process id, as we see it.
    pub pid: u32,
    /// Its process id, as it sees it.
    pub own_pid: u32,
    /// Its user.
    pub uid: u32,
    /// The kernel's name for it.
    pub program: String,
    /// Its variable [`REFUSED`], where it has one.
    pub refused: Option<String>,
    /// The libraries that its loader is to load first.
    pub preload: Option<OsString>,
}

/// The variable by which `toehold run` tells why it left a program without the library: the process
/// id of that program, a colon, and a sentence. Children inherit it.
pub const REFUSED: &str = "TOEHOLD_REFUSED";

/// The programs without the library that were started to meet an adapter in a directory, as far as
/// we may look.
pub fn bare(runtime_dir: &Path) -> Vec<Bare> {
    let found = meeting_in(runtime_dir).filter_map(|(pid, environment)| {
        let is_meant = environment.get("TOEHOLD_PATH").or(environment.get(REFUSED));
        if is_meant.is_none() || proc::has_library(pid)? {
            return None;
        }
        let refused = environment.get(REFUSED);
        Some(Bare {
            pid,
            own_pid: proc::own_number(pid).unwrap_or(pid),
            uid: proc::user(pid)?,
            program: proc::name(pid)?,
            refused: refused.map(|value| value.to_string_lossy().into_owned()),
            preload: environment.get("LD_PRELOAD").map(OsStr::to_owned),
        })
    });
    found.collect()
}

/// The processes whose environment names a runtime directory.
fn meeting_in(runtime_dir: &Path) -> impl Iterator<Item = (u32, Environment)> {
    let all = proc::processes().map(|pid| (pid, Environment::of(pid)));
    all.filter(move |(_, environment)| {
        let value = environment.get("TOEHOLD_RUNTIME_DIR");
        value.is_some_and(|value| value == runtime_dir)
    })
}

/// The environment that a program was started with.
struct Environment(Vec<u8>);

impl Environment {
    /// Empty for a program that we may not look into.
    fn of(pid: u32) -> Environment {
        Environment(fs::read(format!("/proc/{pid}/environ")).unwrap_or_default())
    }

    fn get(&self, name: &str) -> Option<&OsStr> {
        let mut variables = self.0.split(|&byte| byte == 0);
        variables.find_map(|variable| {
            let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(OsStr::from_bytes(value))
        })
    }
}
