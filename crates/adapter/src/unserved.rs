//! Programs that no adapter knows, read from their own tables: the adapter died, or it answers only
//! root.
//!
//! A program keeps its table as a descriptor. A user who may look into the program finds the table
//! in `/proc`, and reads there what the adapter would read.

use crate::proc;
use crate::registry::{Limits, Policy, Registry};
use crate::status::{self, Client};
use crate::tables::Tables;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The connections of programs that meet their adapter in a directory, as far as we may look, in
/// the form of [`crate::client::status`]; without the processes that are `known` already. `None`
/// when there is no such program.
pub fn status(runtime_dir: &Path, known: &BTreeSet<u32>) -> Option<String> {
    let mut tables = Tables::default();
    let mut clients = Vec::new();
    for pid in proc::processes().filter(|pid| !known.contains(pid)) {
        if !meets_in(pid, runtime_dir) {
            continue;
        }
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
        &|_| None,
        (None, None),
    );
    serde_json::to_string(&report).ok()
}

/// Whether the environment of a program names a runtime directory.
fn meets_in(pid: u32, runtime_dir: &Path) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|&byte| byte == 0);
    variables.any(|variable| {
        let value = variable.strip_prefix(b"TOEHOLD_RUNTIME_DIR=");
        value.is_some_and(|value| OsStr::from_bytes(value) == runtime_dir)
    })
}
