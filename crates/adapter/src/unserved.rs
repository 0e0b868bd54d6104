//! Programs that no adapter knows, found in `/proc` by a user that may inspect them.
//!
//! Some have the library, but their adapter died or answers only root. A program keeps its table
//! open as a descriptor, from which the user reads what the adapter would read. Others were started
//! with the library, but run without it. A new adapter finds the programs of its dead predecessor
//! in this way, and asks them to connect ([`hail`]).

use crate::aside::{Aside, ask_about};
use crate::descriptors::closes_at_once;
use crate::diag::Diag;
use crate::proc::mappings::Mappings;
use crate::proc::{self, Environment};
use crate::registry::{Limits, Policy, Registry, TableId};
use crate::status::{self, Client};
use crate::tables::Tables;
use crate::unseen::{Patching, Searched};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// A search of `/proc`. A process can delay what the kernel tells of it for as long as it wants. So
/// other threads ask, and the search waits for each answer a short time.
#[derive(Debug)]
pub struct Search(Option<Aside>);

/// The programs of a runtime directory that we may inspect.
#[derive(Debug, Default)]
pub struct Found {
    /// The connections of those with the library, in the form of [`crate::client::status`]. `None`
    /// when there is no such program.
    pub status: Option<String>,
    /// Those without the library, and those that make system calls which it does not see.
    pub bare: Vec<Bare>,
    /// Processes that the kernel did not show in time, and further processes of their users.
    pub not_shown: Vec<u32>,
}

/// A process, as the kernel shows it.
struct Shown {
    environment: Environment,
    mappings: Mappings,
    /// The file of its table, if it has one and is not known.
    table: Option<OwnedFd>,
}

impl Search {
    /// Starts the threads.
    #[must_use]
    pub fn begin() -> Search {
        // Without threads the search waits for whatever delays an answer.
        Search(Aside::start().ok())
    }

    /// The answer of `ask`, a question about process `pid`; `None` when the answer is not there in
    /// time, or when the process's user delays another answer.
    pub fn ask<T: Send + 'static>(
        &self,
        pid: u32,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.ask_within(SEARCH_TIME_MAX, pid, ask)
    }

    fn ask_within<T: Send + 'static>(
        &self,
        limit: Duration,
        pid: u32,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        ask_about(self.0.as_ref(), pid, limit, ask)
    }

    /// Goes through all processes once. For `known` processes only the calls that the library does
    /// not see are reported.
    #[must_use]
    pub fn find(&self, runtime_dir: &Path, known: &BTreeSet<u32>) -> Found {
        let mut tables = Tables::default();
        let mut clients = Vec::new();
        let mut bare = Vec::new();
        let mut not_shown = Vec::new();
        let mut searched = Searched::default();
        for pid in proc::processes() {
            let is_known = known.contains(&pid);
            let place = runtime_dir.to_owned();
            let Some(shown) = self.ask(pid, move || shown(pid, &place, is_known)) else {
                not_shown.extend(proc::name(pid).map(|_| pid));
                continue;
            };
            let Some(Shown {
                environment,
                mappings,
                table,
            }) = shown
            else {
                continue;
            };
            let said = environment.get("TOEHOLD_RUNTIME_DIR");
            if said.is_some() && mappings.execute_library() {
                let mut refusal = mappings.refusal().map(str::to_owned);
                if refusal.is_none() {
                    let patching = patching(pid, &environment);
                    let (mut before, mappings) = (std::mem::take(&mut searched), mappings.clone());
                    let read = move || (before.reason(pid, &mappings, patching), before);
                    match self.ask_within(READING_TIME_MAX, pid, read) {
                        Some(read) => (refusal, searched) = read,
                        None => not_shown.push(pid),
                    }
                }
                bare.extend(refusal.and_then(|refusal| Bare::with_library(pid, refusal)));
            }
            if is_known {
                continue;
            }
            if mappings.have_table() {
                let table = table.and_then(|file| tables.open(file).ok());
                let meets = |table: TableId| {
                    // The table is also checked, because a program may have overwritten its
                    // environment.
                    let mapped = tables.get(table);
                    said.is_some() || mapped.is_some_and(|mapped| mapped.meets_in(runtime_dir))
                };
                let table = table.filter(|&table| meets(table));
                if let (Some(table), Some(uid)) = (table, proc::user(pid)) {
                    clients.push(Client {
                        pid,
                        own_pid: proc::own_number(pid).unwrap_or(pid),
                        uid,
                        table,
                    });
                }
            } else if said.is_some() && !mappings.have_library() {
                bare.extend(Bare::of(pid, &environment));
            } else if said.is_some() && mappings.refusal().is_none() {
                let left = left(pid, &environment);
                bare.extend(left.and_then(|left| Bare::left(pid, left)));
            }
        }
        let status = (!clients.is_empty()).then(|| report(clients, &tables, runtime_dir));
        Found {
            status: status.flatten(),
            bare,
            not_shown,
        }
    }
}

/// `None` for a process that we may not inspect, or that belongs to another directory.
fn shown(pid: u32, runtime_dir: &Path, is_known: bool) -> Option<Shown> {
    let environment = Environment::of(pid);
    let said = environment.get("TOEHOLD_RUNTIME_DIR");
    if said.is_some_and(|said| said != runtime_dir) {
        return None;
    }
    let mappings = Mappings::of(pid)?;
    let table = || opened(pid, proc::table_descriptor(pid)?).and_then(only_closed_at_once);
    let has_unknown = !is_known && mappings.have_table();
    let table = has_unknown.then(table).flatten();
    Some(Shown {
        environment,
        mappings,
        table,
    })
}

/// The reason why the library makes no calls in a process, if that is visible. A filter under which
/// `toehold run` itself was started is not a reason.
fn left(pid: u32, environment: &Environment) -> Option<Left> {
    let known = environment.get(FILTERS);
    let known = known.and_then(|count| count.to_str()?.parse().ok());
    if proc::filters(pid).is_some_and(|count| count > known.unwrap_or(0)) {
        return Some(Left::Confined);
    }
    proc::has_polled_ring(pid).then_some(Left::Polled)
}

/// Whether the calls of a process are to be patched, by its environment.
fn patching(pid: u32, environment: &Environment) -> Patching {
    let is_asked = environment
        .get(PATCH_CALLS)
        .is_some_and(|path| !path.is_empty());
    let started = environment
        .get(STARTED)
        .and_then(|number| number.to_str()?.parse().ok());
    match is_asked {
        false => Patching::Off,
        true if started.is_some() && started == proc::own_number(pid) => Patching::Run,
        true => Patching::Executed,
    }
}

fn report(clients: Vec<Client>, tables: &Tables, runtime_dir: &Path) -> Option<String> {
    let registry = Registry::new(Limits::with_regions(0), Policy::default());
    let rules = status::RulesInWords {
        against: &|_| None,
        wait: &|_| None,
        express: &|_| None,
        are_namespaces_paired: false,
    };
    let clients = clients.into_iter();
    let diag = Diag::open().ok();
    let report = status::report(
        clients,
        tables,
        &registry,
        &rules,
        (None, None),
        status::Places {
            diag: diag.as_ref(),
            runtime_dir,
            aside: None,
        },
    );
    serde_json::to_string(&report).ok()
}

/// Opens the file behind a descriptor of a process.
fn opened(pid: u32, number: u32) -> Option<OwnedFd> {
    // Should it be another file by now, opening must not wait for anybody.
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(format!("/proc/{pid}/fd/{number}"));
    file.ok().map(OwnedFd::from)
}

/// Duplicates a descriptor of a process. No file is opened, because that could block.
fn shared(pid: u32, number: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(pid.try_into().ok()?)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let number = number.try_into().ok()?;
    let shared = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
    only_closed_at_once(shared)
}

/// The file, unless closing it might block, as it may if a program serves the file and does not
/// answer. Such a file is no table, and stays open.
fn only_closed_at_once(file: OwnedFd) -> Option<OwnedFd> {
    if closes_at_once(file.as_fd()) {
        return Some(file);
    }
    let _ = file.into_raw_fd();
    None
}

/// Asks programs of an earlier adapter of this directory to connect to the current one. They do so
/// at their next calls. Returns the number of families. A family that we may not inspect connects
/// when one of its connections asks for a channel.
pub fn hail(runtime_dir: &Path, is_system: bool) -> usize {
    // Without threads the system adapter does not look: it must not wait for a process of another
    // user.
    let aside = is_system.then(Aside::start).transpose();
    let Ok(aside) = aside else { return 0 };
    let mut tables = Tables::default();
    let mut hailed = BTreeSet::new();
    for pid in proc::processes() {
        let file = ask_about(aside.as_ref(), pid, HAIL_TIME_MAX, move || {
            table_of(pid, is_system)
        });
        let Some(table) = file.flatten().and_then(|file| tables.open(file).ok()) else {
            continue;
        };
        let meets = tables.get(table).is_some_and(|it| it.meets_in(runtime_dir));
        if meets && hailed.insert(table) {
            tables.call_attention(table);
        }
    }
    hailed.len()
}

/// The file of a process's table, if it has one.
fn table_of(pid: u32, is_system: bool) -> Option<OwnedFd> {
    Mappings::of(pid).filter(Mappings::have_table)?;
    let number = proc::table_descriptor(pid)?;
    shared(pid, number).or_else(|| match is_system {
        true => None,
        false => opened(pid, number),
    })
}

/// The time that a new system adapter waits for the kernel to show a process: once for each user,
/// whose further processes are passed over then.
const HAIL_TIME_MAX: Duration = Duration::from_millis(250);
/// The time that a search waits. A busy host may need it for a large process.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(2);
/// The time for reading a process's code from its files.
const READING_TIME_MAX: Duration = Duration::from_secs(20);

/// The process that traces another one, and its name. A process can have only one tracer.
#[must_use]
pub fn tracer(pid: u32) -> Option<(u32, String)> {
    let tracer = proc::tracer(pid).filter(|&number| number != 0)?;
    Some((tracer, proc::name(tracer)?))
}

/// A program that runs without the library, or whose system calls are not patched, although it (or
/// the program that started it) was started with them.
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
    /// The program should have been patched if it has no loader ([`PATCH_CALLS`]).
    pub is_to_be_patched: bool,
    /// The libraries that its loader should preload.
    pub preload: Option<OsString>,
    /// It has the library, and makes system calls that the library does not see, for this reason.
    pub unpatched: Option<String>,
    /// It has the library, which makes no calls there.
    pub left: Option<Left>,
}

/// The reason why the library makes no calls in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Filters for system calls bind the program (seccomp(2)).
    Confined,
    /// A kernel thread takes its requests of io_uring.
    Polled,
}

/// The variable in which `toehold run`, or the library in the former program, stores why a program
/// has no library: the process id of that program, a colon, and a sentence. Children inherit it.
pub const REFUSED: &str = "TOEHOLD_REFUSED";

/// The variable by which `toehold run` has the library patch programs that make their system calls
/// themselves.
pub const PATCH_CALLS: &str = "TOEHOLD_PATCH_CALLS";

/// The variable by which `toehold run` says how many filters for system calls it was started under.
pub const FILTERS: &str = "TOEHOLD_FILTERS";

/// The variable by which `toehold run` says that it has become the program with this process id:
/// the library in that program tells its user why it does not patch the program.
pub const STARTED: &str = "TOEHOLD_STARTED";

impl Bare {
    fn of(pid: u32, environment: &Environment) -> Option<Bare> {
        let refused = environment.get(REFUSED);
        environment.get("TOEHOLD_PATH").or(refused)?;
        Some(Bare {
            pid,
            own_pid: proc::own_number(pid).unwrap_or(pid),
            uid: proc::user(pid)?,
            program: proc::name(pid)?,
            refused: refused.map(|value| value.to_string_lossy().into_owned()),
            is_to_be_patched: environment.get(PATCH_CALLS).is_some(),
            preload: environment.get("LD_PRELOAD").map(OsStr::to_owned),
            unpatched: None,
            left: None,
        })
    }

    fn left(pid: u32, left: Left) -> Option<Bare> {
        let bare = Bare::with_library(pid, String::new())?;
        Some(Bare {
            unpatched: None,
            left: Some(left),
            ..bare
        })
    }

    fn with_library(pid: u32, refusal: String) -> Option<Bare> {
        Some(Bare {
            pid,
            own_pid: proc::own_number(pid).unwrap_or(pid),
            uid: proc::user(pid)?,
            program: proc::name(pid)?,
            refused: None,
            is_to_be_patched: true,
            preload: None,
            unpatched: Some(refusal),
            left: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;
    use std::os::fd::AsFd;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::atomic::Ordering;
    use toehold_channel::rendezvous::meeting_of;
    use toehold_channel::table::{TABLE_BYTES, Table, WaitMode};

    /// The environment of this process names no directory, as in a program that has overwritten it
    /// with its title.
    #[test]
    fn a_program_is_found_by_the_meeting_in_its_table() {
        let runtime_dir = Path::new("/nowhere/toehold");
        let file = memfd::create(c"toehold-table", TABLE_BYTES).expect("memfd");
        let base = memfd::map(file.as_fd(), TABLE_BYTES).expect("mapped");
        // SAFETY: a mapping of the whole table, which this test never ends.
        let table = unsafe { Table::at(base.as_ptr()) };
        table.initialise(std::process::id(), WaitMode::Event, b"titled");
        let header = table.header();
        let meeting = meeting_of(runtime_dir.as_os_str().as_bytes());
        header.meeting.store(meeting, Ordering::Relaxed);
        let search = Search::begin();
        let found = search.find(runtime_dir, &BTreeSet::new());
        let status = found.status.expect("one program");
        assert!(status.contains("\"program\":\"titled\""), "{status}");
        let own = BTreeSet::from([std::process::id()]);
        assert!(search.find(runtime_dir, &own).status.is_none());
        assert!(
            search
                .find(Path::new("/nowhere"), &BTreeSet::new())
                .status
                .is_none()
        );

        let before = header.attention.load(Ordering::Relaxed);
        assert_eq!(hail(Path::new("/nowhere"), false), 0);
        assert_eq!(header.attention.load(Ordering::Relaxed), before);
        assert_eq!(hail(runtime_dir, false), 1);
        assert_ne!(header.attention.load(Ordering::Relaxed), before);
    }
}
