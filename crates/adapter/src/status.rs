//! The answer to `toehold status`, collected from the tables, the registry and `/proc`.

use crate::aside::{Aside, ask_about};
use crate::diag::Diag;
use crate::engine;
use crate::proc::mappings::{self, Mappings};
use crate::proc::{self, Environment, OtherEnd, Sockets};
use crate::registry::{End, Registry, TableId, Tuple};
use crate::tables::{FileKey, MappedTable, Tables};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use toehold_channel::offload;
use toehold_channel::preamble::PREAMBLE_BYTES;
use toehold_channel::table::{
    COMMAND_DETACH, COMMAND_YIELD, ENTRIES, Entry, FLAG_ACCEPTED, FLAG_ASKED, FLAG_ATTACHED,
    FLAG_OFFLOAD, FLAG_PARKED, FLAG_UNIX, LAYOUT_VERSION, Mode, Reason, WaitMode,
};
use toehold_channel::untrusted::{Word32, Word64};

/// Everything, by process.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) processes: Vec<Process>,
    /// Connections that this adapter has given a channel, those that have ended included.
    pub(crate) channels_made: u64,
    /// The counts of the TCP engine, where there is one.
    pub(crate) engine: Option<engine::Report>,
    /// The reason why there is no engine, if the operator wanted one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) no_engine: Option<String>,
    /// The system adapter's: whether it pairs connections between network namespaces, or why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) across_namespaces: Option<String>,
}

/// One process of a family.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) program: String,
    pub(crate) uid: u32,
    pub(crate) library_version: String,
    pub(crate) wait: &'static str,
    /// The rule that sets its wait mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wait_rule: Option<String>,
    /// The rule that sets whether its short connections reuse carriers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) express_rule: Option<String>,
    pub(crate) connections: Vec<Connection>,
    /// The counts of the whole family's short connections, listed with one of its processes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) express: BTreeMap<&'static str, u64>,
}

/// One connection: the momentary values of its table entry.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Connection {
    /// Its network namespace, if it has asked for a partner.
    #[serde(skip)]
    netns: Option<u64>,
    pub(crate) fd: u32,
    /// Empty when the process cannot be inspected.
    pub(crate) local: String,
    pub(crate) remote: String,
    pub(crate) path: &'static str,
    pub(crate) tx_path: &'static str,
    pub(crate) rx_path: &'static str,
    pub(crate) reason: Cow<'static, str>,
    /// The number of connections of the program that its carrier has served before.
    pub(crate) turns: u32,
    pub(crate) bytes_host_tx: u64,
    pub(crate) bytes_host_rx: u64,
    pub(crate) bytes_ring_tx: u64,
    pub(crate) bytes_ring_rx: u64,
    pub(crate) upgrades: u32,
    pub(crate) downgrades: u32,
    pub(crate) doorbells_rung: u32,
    /// Those of `doorbells_rung` that were no bytes on the carrier.
    pub(crate) doorbells_by_pair: u32,
    pub(crate) doorbells_suppressed: u32,
    pub(crate) wakeups: u32,
    pub(crate) spins_paid: u32,
    pub(crate) spins_failed: u32,
    /// Calls served by a ring: each copies its bytes once.
    pub(crate) copies: u64,
    /// Calls served by a ring, minus the doorbells rung for them.
    pub(crate) syscalls_avoided: u64,
}

/// A process that said hello.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) pid: u32,
    /// Its number in its own pid namespace.
    pub(crate) own_pid: u32,
    pub(crate) uid: u32,
    pub(crate) table: TableId,
}

/// The operator's rules, in words.
pub(crate) struct RulesInWords<'a> {
    /// The reason why a rule keeps an end on the kernel.
    pub(crate) against: &'a dyn Fn(End) -> Option<String>,
    /// The rule that sets a family's wait mode.
    pub(crate) wait: &'a dyn Fn(TableId) -> Option<String>,
    /// The rule that sets whether a family's short connections reuse carriers.
    pub(crate) express: &'a dyn Fn(TableId) -> Option<String>,
    /// Whether ends in different network namespaces can be partners.
    pub(crate) are_namespaces_paired: bool,
}

/// Where the report comes from.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    /// Answers for our network namespace.
    pub(crate) diag: Option<&'a Diag>,
    pub(crate) runtime_dir: &'a Path,
    /// Threads for questions about processes of other users.
    pub(crate) aside: Option<&'a Aside>,
}

impl Places<'_> {
    /// The answer of `ask`, a question about process `pid` which that process may delay.
    fn ask<T: Send + 'static>(
        &self,
        pid: u32,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        ask_about(self.aside, pid, ANSWER_TIME_MAX, ask)
    }
}

/// The time that the system adapter waits for the kernel to show a process's memory: once for each
/// user, whose further processes are passed over then.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(100);

/// Collects the report. A process is listed when it said hello, or when it was the last to use a
/// connection of such a process's family. Also frees entries of members that were killed.
pub(crate) fn report(
    clients: impl Iterator<Item = Client>,
    tables: &Tables,
    registry: &Registry,
    rules: &RulesInWords,
    (engine, no_engine): (Option<engine::Report>, Option<String>),
    places: Places<'_>,
) -> Report {
    let mut families = BTreeMap::new();
    let mut collector = Collector::new(tables, registry, rules, places);
    for client in clients {
        families
            .entry(client.table)
            .or_insert((client.uid, client.pid));
        collector.add_client(&client);
    }
    let mut budgets = BTreeMap::new();
    for (&id, &(uid, client)) in &families {
        let Some(table) = tables.get(id) else {
            continue;
        };
        // The client can write any entries, and each costs memory here and in the answer, so their
        // number is limited.
        let budget = budgets.entry(uid).or_insert(ENTRIES_PER_USER_MAX);
        let used = table.entries_used();
        if used <= *budget {
            *budget -= used;
            collector.add_family(&Family { id, uid, table }, client);
        }
    }
    let Collector {
        mut processes,
        mut sockets,
        ..
    } = collector;
    count_express(&mut processes, tables);
    for (&(_, id), process) in &mut processes {
        process.wait_rule = (rules.wait)(id);
        process.express_rule = (rules.express)(id);
    }
    let mut processes: Vec<Process> = processes.into_values().collect();
    for process in &mut processes {
        process.connections.sort_by_key(|connection| connection.fd);
    }
    let listed = Listed::new(&processes, rules.are_namespaces_paired);
    explain_by_partner(&mut processes, &listed);
    let adapter_of = |pid| adapter_of(pid, tables, places);
    explain_by_kernel(&mut processes, &listed, &mut sockets, adapter_of);
    Report {
        processes,
        channels_made: registry.channels_made(),
        engine,
        no_engine,
        across_namespaces: None,
    }
}

/// The processes and connections listed so far, and cached look-ups.
struct Collector<'a> {
    tables: &'a Tables,
    registry: &'a Registry,
    rules: &'a RulesInWords<'a>,
    processes: BTreeMap<(u32, TableId), Process>,
    names: Names,
    sockets: Sockets<'a>,
    living: Living,
    members: Members,
    places: Places<'a>,
}

/// A family that is being listed.
struct Family<'a> {
    id: TableId,
    uid: u32,
    table: &'a MappedTable,
}

impl<'a> Collector<'a> {
    fn new(
        tables: &'a Tables,
        registry: &'a Registry,
        rules: &'a RulesInWords<'a>,
        places: Places<'a>,
    ) -> Collector<'a> {
        Collector {
            tables,
            registry,
            rules,
            processes: BTreeMap::new(),
            names: Names::default(),
            sockets: Sockets::new(places.diag),
            living: Living::default(),
            members: Members::default(),
            places,
        }
    }

    /// Lists a process that said hello.
    fn add_client(&mut self, client: &Client) {
        let named = (client.table, client.own_pid);
        self.names.0.insert(named, client.pid);
        if let Some(table) = self.tables.get(client.table) {
            self.processes
                .entry((client.pid, client.table))
                .or_insert_with(|| process(client.pid, client.uid, table));
        }
    }

    /// Lists the connections of a family, one of whose processes is a client of ours.
    fn add_family(&mut self, family: &Family<'_>, client: u32) {
        let &Family { id, uid, table } = family;
        // The family's process numbers are valid here if one of them is the client's number as we
        // see it.
        let is_visible = table.members().any(|pid| self.names.of(id, pid) == client);
        for (index, entry) in table.live() {
            let mut pid = self.names.of(id, entry.pid.load(Ordering::Relaxed));
            if is_visible && !self.living.is(pid) {
                match self.fate_of(family, (index, entry)) {
                    Fate::With(survivor) => pid = survivor,
                    Fate::Unknown => continue,
                    Fate::Gone => {
                        table.reap(index);
                        continue;
                    }
                }
            }
            let connection = self.connection_of((pid, id), (index, entry));
            self.processes
                .entry((pid, id))
                .or_insert_with(|| process(pid, uid, table))
                .connections
                .push(connection);
        }
    }

    /// The fate of a connection whose process has ended.
    fn fate_of(&mut self, family: &Family<'_>, (index, entry): (u32, &Entry)) -> Fate {
        let &Family { id, table, .. } = family;
        let tuple = self.registry.end(id, index).map(|(_, tuple)| tuple);
        let mut members = table.members().map(|own| self.names.of(id, own));
        let survivor = members.find(|&pid| self.living.is(pid));
        fate(survivor, entry, tuple, &mut self.sockets)
    }

    fn connection_of(
        &mut self,
        (pid, id): (u32, TableId),
        (index, entry): (u32, &Entry),
    ) -> Connection {
        let generation = entry.channel_generation.load(Ordering::Relaxed);
        let known = self.registry.end(id, index);
        let known = known.filter(|(end, _)| end.generation == generation);
        let tuple = known.map(|(_, tuple)| tuple);
        let addresses = self.addresses_of((pid, id), entry, tuple);
        let partner = known.and_then(|(end, _)| self.registry.partner(end));
        let partner = partner.and_then(|end| self.tables.current(end));
        let mut connection = connection(entry, partner, addresses.unwrap_or_default());
        connection.netns = tuple.map(|tuple| tuple.netns);
        if connection.reason == Reason::FewBytes.words()
            && self.has_unseen_bytes(pid, entry, &connection)
        {
            connection.reason = Reason::CountsDisagree.words().into();
        }
        let by_rule = known.filter(|_| connection.path == HOST);
        if let Some(by_rule) = by_rule.and_then(|(end, _)| (self.rules.against)(end)) {
            connection.reason = by_rule.into();
        }
        connection
    }

    /// Whether the kernel has moved more bytes of a connection than its library has counted. Then
    /// code that the library does not see uses the connection, and the library may never compare
    /// the counts itself. The library counts a call's bytes when the call returns, so a call that
    /// sleeps in the middle of its transfer gives a false positive. The system adapter does not
    /// ask.
    fn has_unseen_bytes(&mut self, pid: u32, entry: &Entry, connection: &Connection) -> bool {
        // The kernel counts the SYN and the FIN as bytes.
        const NO_BYTES: u64 = 2;
        // The kernel counts under the socket's lock, which another user's program may hold for
        // ever.
        let may_wait = self.tables.are_of_strangers();
        if may_wait || connection.path != HOST || connection.turns != 0 {
            return false;
        }
        let addresses = connection.local.parse().ok();
        let addresses = addresses.zip(connection.remote.parse().ok());
        let moved = addresses.and_then(|(local, remote)| self.sockets.moved(pid, local, remote));
        moved.is_some_and(|moved| {
            // Read after the kernel's counts, so that they include all calls that the library has
            // seen.
            let [sent, taken] = [&entry.tx_carrier, &entry.rx_carrier]
                .map(|count| count.load(Ordering::Relaxed).saturating_add(NO_BYTES));
            moved.sent > sent || moved.taken > taken
        })
    }

    /// Both addresses of a connection: from the engine, from the registry, or from the kernel's
    /// list, in this order.
    fn addresses_of(
        &mut self,
        (pid, id): (u32, TableId),
        entry: &Entry,
        tuple: Option<Tuple>,
    ) -> Option<(String, String)> {
        if entry.flags.load(Ordering::Relaxed) & FLAG_OFFLOAD != 0 {
            return Some(spell(true_addresses(entry)));
        }
        if let Some(tuple) = tuple {
            return Some(self.sockets.spell(pid, tuple));
        }
        let fd = entry.fd.load(Ordering::Relaxed);
        if !self.members.has(pid, id, self.tables, self.places) {
            return None;
        }
        match entry.flags.load(Ordering::Relaxed) & FLAG_UNIX {
            0 => self.sockets.addresses(pid, fd).map(spell),
            // The kernel's list does not show the other end.
            _ => Some((self.sockets.unix_name(pid, fd)?, "#?".into())),
        }
    }
}

/// Adds the counts of each family to the first of its processes.
fn count_express(processes: &mut BTreeMap<(u32, TableId), Process>, tables: &Tables) {
    let mut told = BTreeSet::new();
    for (&(_, id), process) in processes {
        if let Some(table) = tables.get(id).filter(|_| told.insert(id)) {
            process.express = table.header().express.named().collect();
        }
    }
}

/// The reason of each listed end, by its own and the other address.
struct Listed {
    ends: BTreeMap<(String, String), Vec<ListedEnd>>,
    are_namespaces_paired: bool,
}

/// The network namespace of an end, if it has asked for a partner, and its reason.
type ListedEnd = (Option<u64>, Cow<'static, str>);

impl Listed {
    fn new(processes: &[Process], are_namespaces_paired: bool) -> Listed {
        let mut ends: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for one in processes.iter().flat_map(|process| &process.connections) {
            let addresses = (one.local.clone(), one.remote.clone());
            let end = (one.netns, one.reason.clone());
            ends.entry(addresses).or_default().push(end);
        }
        Listed {
            ends,
            are_namespaces_paired,
        }
    }

    /// Ends with mirrored addresses, and whether each can be the partner.
    fn mirrored(&self, one: &Connection) -> impl Iterator<Item = (bool, &Cow<'static, str>)> {
        let addresses = (one.remote.clone(), one.local.clone());
        let netns = one.netns;
        let ends = self.ends.get(&addresses).into_iter().flatten();
        ends.map(move |(other, reason)| {
            let is_known = netns.is_some() && other.is_some();
            let is_apart = is_known && netns != *other && !self.are_namespaces_paired;
            (!is_apart, reason)
        })
    }

    /// The reason of an end's partner.
    fn of_partner(&self, one: &Connection) -> Option<&Cow<'static, str>> {
        let mut partners = self.mirrored(one).filter(|(can_be, _)| *can_be);
        Some(partners.next()?.1)
    }

    /// Whether an end that would be the partner is in another network namespace.
    fn is_apart(&self, one: &Connection) -> bool {
        self.mirrored(one).any(|(can_be, _)| !can_be)
    }
}

/// If the partner of a waiting end is listed, too, replaces the reason: by the partner's reason, or
/// by what both wait for.
fn explain_by_partner(processes: &mut [Process], listed: &Listed) {
    for one in processes
        .iter_mut()
        .flat_map(|process| &mut process.connections)
    {
        let has_asked = one.reason == Reason::NoPartner.words();
        if !has_asked && one.reason != Reason::PartnerNotAttached.words() {
            continue;
        }
        let Some(theirs) = listed.of_partner(one) else {
            continue;
        };
        let waits = [Reason::NoPartner, Reason::PartnerNotAttached, Reason::None];
        let waits = waits.map(Reason::words).contains(&theirs.as_ref());
        one.reason = match (has_asked, waits) {
            (_, false) => format!("the other end: {theirs}").into(),
            (true, _) if theirs == Reason::NoPartner.words() => BOTH_HAVE_ASKED.into(),
            (true, _) => OFFERED.into(),
            (false, _) => continue,
        };
    }
}

/// The adapter has not yet read the requests of both ends, or has many requests at once.
const BOTH_HAVE_ASKED: &str = "both ends have asked; the adapter has not answered yet";
/// The other end has attached; this end has not taken its offer yet.
const OFFERED: &str = "offered: it moves at the program's next call";

/// If this adapter does not know the other end, the kernel may: it tells the owner of the socket
/// and, if we may inspect that process, whether it is under Toehold, and with which adapter.
fn explain_by_kernel(
    processes: &mut [Process],
    listed: &Listed,
    sockets: &mut Sockets,
    adapter_of: impl Fn(u32) -> Option<ItsAdapter>,
) {
    let mut waiting = Vec::new();
    let ours: BTreeSet<u32> = processes.iter().map(|process| process.pid).collect();
    for process in processes {
        let pid = process.pid;
        for one in &mut process.connections {
            if one.reason != Reason::NoPartner.words() {
                continue;
            }
            let addresses = one.local.parse().ok().zip(one.remote.parse().ok());
            if let Some((local, remote)) = addresses {
                let other = sockets.other_end(pid, local, remote);
                if other.is_none() && listed.is_apart(one) {
                    one.reason = OTHER_END_APART.into();
                    continue;
                }
                waiting.push((&mut one.reason, other));
            }
        }
    }
    let inodes = waiting.iter().filter_map(|(_, other)| match other {
        Some(OtherEnd::Held { inode, .. }) => Some(*inode),
        _ => None,
    });
    let holders = proc::holders(&inodes.collect());
    // Many sockets may belong to one process.
    let programs: BTreeSet<u32> = holders.values().copied().collect();
    let under_toehold: BTreeMap<u32, ItsAdapter> = programs
        .into_iter()
        .filter_map(|pid| Some((pid, adapter_of(pid)?)))
        .collect();
    for (reason, other) in waiting {
        let (inode, uid) = match other {
            Some(OtherEnd::Held { inode, uid }) => (inode, uid),
            Some(OtherEnd::Unheld) => {
                *reason = OTHER_END_UNHELD.into();
                continue;
            }
            None => {
                *reason = OTHER_END_ELSEWHERE.into();
                continue;
            }
        };
        let Some(&holder) = holders.get(&inode) else {
            *reason = format!(
                "the other end is user {uid}'s: not under Toehold, or with another adapter"
            )
            .into();
            continue;
        };
        *reason = match under_toehold.get(&holder) {
            None => "the other end is not under Toehold".into(),
            Some(_) if ours.contains(&holder) => OTHER_END_UNSEEN.into(),
            Some(ItsAdapter::This) => OTHER_END_UNSEEN.into(),
            Some(ItsAdapter::Unasked) => OTHER_END_UNASKED.into(),
            Some(ItsAdapter::Another) => format!(
                "the other end is under Toehold, but with another adapter (user {})",
                proc::user(holder).unwrap_or(uid)
            )
            .into(),
        };
    }
}

/// The adapter of a process under Toehold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ItsAdapter {
    /// We have its family's table.
    This,
    /// It uses our runtime directory, or that is not known, and has asked us for nothing.
    Unasked,
    /// It uses another runtime directory.
    Another,
}

/// `None` for a process that is not under Toehold, or that delays the answer.
fn adapter_of(pid: u32, tables: &Tables, places: Places<'_>) -> Option<ItsAdapter> {
    let files: Vec<FileKey> = tables
        .iter()
        .filter_map(|(id, _)| tables.file(id))
        .collect();
    let runtime_dir = places.runtime_dir.to_owned();
    let its = move || {
        let mappings = Mappings::of(pid).filter(Mappings::have_table)?;
        if files.iter().any(|&file| mappings.have(file)) {
            return Some(ItsAdapter::This);
        }
        let environment = Environment::of(pid);
        let named = environment.get("TOEHOLD_RUNTIME_DIR");
        Some(adapter_named(named, &runtime_dir))
    };
    places.ask(pid, its).flatten()
}

/// The adapter of a process whose table we do not have, by the directory that its environment
/// names. A program may have overwritten its environment.
fn adapter_named(named: Option<&OsStr>, runtime_dir: &Path) -> ItsAdapter {
    match named.is_none_or(|named| named == runtime_dir) {
        true => ItsAdapter::Unasked,
        false => ItsAdapter::Another,
    }
}

/// Code that makes its calls past the library uses that end, or the program got the descriptor from
/// another program.
const OTHER_END_UNSEEN: &str =
    "the other end's program is under Toehold, and its library does not see that connection";
/// It has not introduced itself, or that was not possible.
const OTHER_END_UNASKED: &str =
    "the other end's program is under Toehold, and has not asked this adapter";
const OTHER_END_UNHELD: &str =
    "the other end's program has not accepted the connection yet, or has closed it";
const OTHER_END_APART: &str =
    "the other end has asked in another network namespace, and this adapter pairs within one";
const OTHER_END_ELSEWHERE: &str =
    "the other end is on another host or network namespace, or behind address translation";
/// The text that replaces these reasons if neither namespaces nor translation matter.
const OTHER_END_SILENT: &str =
    "the other end is on another host, or in another network namespace and not under Toehold";

impl Report {
    /// Stores whether the adapter pairs connections between network namespaces, or why not.
    pub(crate) fn set_namespace_pairing(&mut self, refusal: Option<String>) {
        if refusal.is_none() {
            let processes = self.processes.iter_mut();
            for one in processes.flat_map(|process| &mut process.connections) {
                if one.reason == OTHER_END_ELSEWHERE {
                    one.reason = OTHER_END_SILENT.into();
                }
            }
        }
        let words = refusal.map_or("yes".to_owned(), |why| format!("no: {why}"));
        self.across_namespaces = Some(words);
    }
}

/// Maps a family and a process's number in its own pid namespace to the number that we see.
#[derive(Debug, Default)]
struct Names(BTreeMap<(TableId, u32), u32>);

impl Names {
    fn of(&self, table: TableId, own: u32) -> u32 {
        self.0.get(&(table, own)).copied().unwrap_or(own)
    }
}

/// A cache of which processes are alive.
#[derive(Debug, Default)]
struct Living(BTreeMap<u32, bool>);

impl Living {
    fn is(&mut self, pid: u32) -> bool {
        *self.0.entry(pid).or_insert_with(|| proc::is_running(pid))
    }
}

/// Which processes have a table mapped. A client can write any process number into its table, but
/// the adapter shows it information only about these processes.
#[derive(Debug, Default)]
struct Members(BTreeMap<(u32, TableId), bool>);

impl Members {
    fn has(&mut self, pid: u32, id: TableId, tables: &Tables, places: Places<'_>) -> bool {
        let looked_up = self.0.entry((pid, id));
        *looked_up.or_insert_with(|| {
            let file = tables.file(id);
            let has =
                file.and_then(|file| places.ask(pid, move || mappings::has_mapped(pid, file)));
            has.unwrap_or(false)
        })
    }
}

/// The most table entries that are read for one user.
const ENTRIES_PER_USER_MAX: usize = 4 * ENTRIES;

/// The fate of a connection.
enum Fate {
    /// A living member of the family holds it.
    With(u32),
    /// A living member may hold the connection, but that is not known.
    Unknown,
    /// The connection ended with its last holder.
    Gone,
}

/// The fate of a connection whose last user is gone. That process may have been killed without a
/// report.
fn fate(survivor: Option<u32>, entry: &Entry, tuple: Option<Tuple>, sockets: &mut Sockets) -> Fate {
    let Some(survivor) = survivor else {
        return Fate::Gone;
    };
    match tuple {
        Some(tuple) if sockets.is_open(survivor, tuple) => Fate::With(survivor),
        Some(_) => Fate::Gone,
        None if entry.holder_count(Ordering::Relaxed) > 1 => Fate::With(survivor),
        None => Fate::Unknown,
    }
}

fn process(pid: u32, uid: u32, table: &MappedTable) -> Process {
    Process {
        pid,
        program: table.program(),
        uid,
        library_version: format!("layout {LAYOUT_VERSION}"),
        wait_rule: None,
        express_rule: None,
        wait: table.wait_mode().map_or("unknown", WaitMode::name),
        connections: Vec::new(),
        express: BTreeMap::new(),
    }
}

fn connection(
    entry: &Entry,
    partner: Option<&Entry>,
    (local, remote): (String, String),
) -> Connection {
    let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let ring = |count: &Word64| count.load(Ordering::Relaxed).shown();
    let is_offloaded = word(&entry.flags) & FLAG_OFFLOAD != 0;
    let is_parked = word(&entry.flags) & FLAG_PARKED != 0;
    // Each doorbell is one byte on the carrier that no program sent.
    let doorbells_heard = partner.map_or(0, |partner| word(&partner.doorbells));
    let rx_mode = match partner {
        Some(partner) if has_ring_behind_it(entry, partner) => &partner.tx_mode,
        _ => &entry.rx_mode,
    };
    let [tx_path, rx_path] = [&entry.tx_mode, rx_mode].map(|mode| match is_parked {
        true => PARKED,
        false => path_of(mode, is_offloaded),
    });
    let path = if tx_path == DIRECT { tx_path } else { rx_path };
    let calls = count(&entry.tx_calls).saturating_add(count(&entry.rx_calls));
    let doorbells = word(&entry.doorbells);
    let by_pair = word(&entry.pair_doorbells);
    let rung = doorbells.wrapping_add(by_pair);
    // If the library opened the connection through the engine, it has sent a preamble, and the
    // answer was one byte.
    let is_asked_for = is_offloaded && word(&entry.flags) & FLAG_ACCEPTED == 0;
    let (asked, answered) = if is_asked_for {
        (PREAMBLE_BYTES as u64, 1)
    } else {
        (0, 0)
    };
    Connection {
        netns: None,
        fd: word(&entry.fd),
        local,
        remote,
        path,
        tx_path,
        rx_path,
        reason: match path {
            _ if word(&entry.faults) > 0 => Cow::Borrowed(reason(entry).words()),
            PARKED => Cow::Owned(format!("has served {} connections", entry.turn() + 1)),
            DIRECT => Cow::Borrowed(""),
            _ if is_offloaded && is_by_rings(entry) => Cow::Borrowed(""),
            _ if is_released(entry) => Cow::Borrowed(RELEASED),
            _ => Cow::Borrowed(reason(entry).words()),
        },
        turns: entry.turn(),
        bytes_host_tx: count(&entry.tx_carrier).saturating_sub(asked + u64::from(doorbells)),
        bytes_host_rx: count(&entry.rx_carrier)
            .saturating_sub(answered + u64::from(doorbells_heard)),
        bytes_ring_tx: ring(&entry.tx_ring).saturating_add(count(&entry.tx_ring_before)),
        bytes_ring_rx: ring(&entry.rx_ring).saturating_add(count(&entry.rx_ring_before)),
        upgrades: word(&entry.upgrades),
        downgrades: word(&entry.downgrades),
        doorbells_rung: rung,
        doorbells_by_pair: by_pair,
        doorbells_suppressed: word(&entry.doorbells_suppressed),
        wakeups: word(&entry.wakeups),
        spins_paid: word(&entry.spins_paid),
        spins_failed: word(&entry.spins_failed),
        copies: calls,
        syscalls_avoided: calls.saturating_sub(rung.into()),
    }
}

/// The reason why a connection is on the host path: the library's reason; otherwise the adapter's;
/// otherwise a reason that follows from the connection's progress.
fn reason(entry: &Entry) -> Reason {
    let word = |word: &AtomicU32| Reason::from_word(word.load(Ordering::Relaxed));
    let library = word(&entry.reason).unwrap_or(Reason::None);
    let asked = entry.flags.load(Ordering::Relaxed) & FLAG_ASKED != 0;
    let undecided = matches!(library, Reason::None | Reason::FewBytes | Reason::NoPartner);
    if !undecided {
        return library;
    }
    match entry.command.load(Ordering::Relaxed) {
        COMMAND_DETACH => return Reason::Detached,
        COMMAND_YIELD => return Reason::Captured,
        _ => {}
    }
    if !asked {
        return Reason::FewBytes;
    }
    match word(&entry.refusal) {
        None | Some(Reason::None) => Reason::PartnerNotAttached,
        Some(refusal) => refusal,
    }
}

/// Whether a capture or the operator kept a connection on its carrier until a moment ago, and its
/// program has not used it since.
fn is_released(entry: &Entry) -> bool {
    let command = entry.command.load(Ordering::Relaxed);
    let is_attached = entry.flags.load(Ordering::Relaxed) & FLAG_ATTACHED != 0;
    let was_kept = matches!(reason(entry), Reason::Captured | Reason::Detached);
    is_attached && was_kept && !matches!(command, COMMAND_YIELD | COMMAND_DETACH)
}

const RELEASED: &str = "kept on the kernel until now; it moves when the program next uses it";

/// Whether an end has read all bytes of its partner's ring, and the next byte will come on the
/// carrier. The end itself notices that only when the byte comes.
fn has_ring_behind_it(entry: &Entry, partner: &Entry) -> bool {
    let position = |count: &Word64| count.load(Ordering::Relaxed).shown();
    let sends_by_carrier = partner
        .tx_mode
        .load(Ordering::Relaxed)
        .is(Mode::Carrier as u32);
    sends_by_carrier && position(&entry.rx_ring) == position(&partner.tx_ring)
}

/// Whether both directions are on rings.
fn is_by_rings(entry: &Entry) -> bool {
    let modes = [&entry.tx_mode, &entry.rx_mode];
    let is_ring = |mode: &&Word32| mode.load(Ordering::Relaxed).is(Mode::Ring as u32);
    modes.iter().all(is_ring)
}

fn path_of(mode: &Word32, is_offloaded: bool) -> &'static str {
    match mode.load(Ordering::Relaxed).parsed(Mode::from_word) {
        _ if is_offloaded => OFFLOAD,
        Some(Mode::Ring) => DIRECT,
        _ => HOST,
    }
}

fn spell((local, remote): (SocketAddr, SocketAddr)) -> (String, String) {
    (local.to_string(), remote.to_string())
}

/// The addresses of an offloaded connection that its program sees.
fn true_addresses(entry: &Entry) -> (SocketAddr, SocketAddr) {
    let spoken = |address: offload::Address| {
        let ip = address.v4().map_or(IpAddr::from(address.ip), IpAddr::from);
        SocketAddr::new(ip, address.port)
    };
    let (local, remote) = offload::true_ends(entry);
    (spoken(local), spoken(remote))
}

const HOST: &str = "host";
const DIRECT: &str = "direct";
const OFFLOAD: &str = "offload";
const PARKED: &str = "parked";

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends of one connection, each in its own namespace, that have both asked for pairing.
    fn ends(namespaces: [u64; 2]) -> Vec<Process> {
        let addresses = ["10.0.0.1:80".to_owned(), "10.0.0.2:5000".to_owned()];
        let end = |at: usize| Process {
            // No process has this number, so nothing is read from `/proc`.
            pid: u32::MAX,
            connections: vec![Connection {
                netns: Some(namespaces[at]),
                local: addresses[at].clone(),
                remote: addresses[1 - at].clone(),
                reason: Reason::NoPartner.words().into(),
                ..Connection::default()
            }],
            ..Process::default()
        };
        vec![end(0), end(1)]
    }

    fn reasons(mut processes: Vec<Process>, are_namespaces_paired: bool) -> Vec<String> {
        let listed = Listed::new(&processes, are_namespaces_paired);
        explain_by_partner(&mut processes, &listed);
        explain_by_kernel(&mut processes, &listed, &mut Sockets::default(), |_| None);
        let connections = processes.iter().flat_map(|process| &process.connections);
        connections.map(|one| one.reason.to_string()).collect()
    }

    #[test]
    fn ends_in_two_namespaces_wait_for_each_other_only_where_namespaces_are_paired() {
        assert_eq!(reasons(ends([7, 7]), false), [BOTH_HAVE_ASKED; 2]);
        assert_eq!(reasons(ends([7, 8]), true), [BOTH_HAVE_ASKED; 2]);
        assert_eq!(reasons(ends([7, 8]), false), [OTHER_END_APART; 2]);
    }

    #[test]
    fn an_end_that_has_not_asked_may_be_anywhere() {
        let mut processes = ends([7, 8]);
        let other = &mut processes[1].connections[0];
        (other.netns, other.reason) = (None, "as it is".into());
        assert_eq!(
            reasons(processes, false),
            ["the other end: as it is", "as it is"]
        );
    }

    #[test]
    fn another_adapter_is_named_only_where_there_is_one() {
        let ours = Path::new("/run/toehold");
        let of = |named: Option<&str>| adapter_named(named.map(OsStr::new), ours);
        assert_eq!(of(Some("/run/toehold")), ItsAdapter::Unasked);
        assert_eq!(of(None), ItsAdapter::Unasked);
        assert_eq!(of(Some("/tmp/toehold-7")), ItsAdapter::Another);
    }
}
