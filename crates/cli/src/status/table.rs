//! The text of `toehold status`: totals, then each program with a line for each connection.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::SortKey;
use super::answer::{Connection, Flow, Process, Status};
use super::count::count;
use super::{bare, engine, express, flow};
use crate::users;

/// The part of an answer that is shown, and its form.
pub(super) struct View<'a> {
    /// Only this process.
    pub(super) pid: Option<u32>,
    /// Only programs whose name contains this.
    pub(super) program: Option<&'a str>,
    /// Only connections on this path, as the adapter spells it.
    pub(super) path: Option<&'a str>,
    /// The order of a program's connections.
    pub(super) sort: SortKey,
    /// With the counters of each connection.
    pub(super) counters: bool,
    /// With sockets that are not connected, and all connections of each program.
    pub(super) all: bool,
    /// With bytes in a second.
    pub(super) rates: bool,
    /// The last look, and how long ago it was.
    pub(super) since: Option<(Duration, &'a Earlier)>,
}

impl View<'_> {
    /// Sockets without another end are shown when all are.
    fn shows(&self, one: &Connection) -> bool {
        self.all || one.is_connected()
    }
}

/// Which connection: process, descriptor and both addresses. A descriptor's number alone is used
/// again.
type Key = (u32, i64, String, String);

/// The bytes that connections had carried at an earlier look: through rings, through the kernel.
#[derive(Debug, Default)]
pub(super) struct Earlier(HashMap<Key, (u64, u64)>);

impl Earlier {
    /// The bytes that they have carried now.
    pub(super) fn of(status: &Status) -> Earlier {
        let each = status.processes.iter().flat_map(|process| {
            let of_one = |one| (key(process, one), (one.by_rings(), one.by_kernel()));
            process.connections.iter().map(of_one)
        });
        Earlier(each.collect())
    }
}

fn key(process: &Process, one: &Connection) -> Key {
    (process.pid, one.fd, one.local.clone(), one.remote.clone())
}

/// The whole text.
pub(super) fn render(status: &Status, view: &View) -> String {
    let mut out = status.engine.as_ref().map_or(String::new(), engine::lines);
    if let Some(why) = &status.no_engine {
        let _ = writeln!(out, "no TCP engine: {why}");
    }
    let refused = status.across_namespaces.as_ref();
    if let Some(why) = refused.and_then(|words| words.strip_prefix("no: ")) {
        let _ = writeln!(
            out,
            "connections between network namespaces stay on the kernel: {why}"
        );
    }
    let is_meant = |pid: u32, program: &str| {
        view.pid.is_none_or(|one| pid == one)
            && view.program.is_none_or(|name| program.contains(name))
    };
    let is_on_path = |process: &Process| {
        let mut connections = process.connections.iter();
        view.path
            .is_none_or(|path| connections.any(|one| one.path == path && view.shows(one)))
    };
    let is_shown =
        |process: &&Process| is_meant(process.pid, &process.program) && is_on_path(process);
    let processes: Vec<&Process> = status.processes.iter().filter(is_shown).collect();
    let bare = status.without_library.iter();
    let is_kernel_meant = view.path.is_none_or(|path| path == "host");
    let bare = bare.filter(|one| is_kernel_meant && is_meant(one.pid, &one.program));
    let bare = bare::lines(bare);
    if status.processes.is_empty() {
        out.push_str("no accelerated program is running; start one with: toehold run -- PROGRAM\n");
    } else if processes.is_empty() && bare.is_empty() {
        let all = status.processes.len();
        let _ = writeln!(
            out,
            "these options hide all {all} programs that run with the library"
        );
    }
    if processes.len() > 1 {
        out.push_str(&totals(&processes));
    }
    for process in processes {
        out.push_str(&of_process(process, status.flows(), view));
    }
    out.push_str(&bare);
    out.push_str(&not_shown(&status.not_shown));
    out
}

/// A line about the processes that were passed over.
fn not_shown(processes: &[u32]) -> String {
    const NAMED_MAX: usize = 8;
    if processes.is_empty() {
        return String::new();
    }
    let named = processes.iter().take(NAMED_MAX);
    let named: Vec<String> = named.map(u32::to_string).collect();
    let others = match processes.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        others => format!(" and {others} others"),
    };
    format!(
        "not looked at: pid {}{others}; the kernel did not show them, or an earlier process of \
         their user, in time\n",
        named.join(", ")
    )
}

/// All that is shown, in one line.
fn totals(processes: &[&Process]) -> String {
    let connections = || processes.iter().flat_map(|process| &process.connections);
    let rings = connections().fold(0, |sum: u64, one| sum.saturating_add(one.by_rings()));
    let kernel = connections().fold(0, |sum: u64, one| sum.saturating_add(one.by_kernel()));
    format!(
        "{} processes: {}; {}B through rings, {}B through the kernel\n",
        processes.len(),
        by_path(connections().filter(|one| one.is_connected())),
        count(rings),
        count(kernel),
    )
}

/// `3 direct, 1 host`.
fn by_path<'a>(connections: impl Iterator<Item = &'a Connection> + Clone) -> String {
    let of = |path: &str| connections.clone().filter(|one| one.path == path).count();
    let counts = ["direct", "offload", "host", "parked"].map(|path| (of(path), path));
    let counts: Vec<String> = counts
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, path)| format!("{number} {path}"))
        .collect();
    if counts.is_empty() {
        "no connections".to_owned()
    } else {
        counts.join(", ")
    }
}

fn of_process(process: &Process, flows: &[Flow], view: &View) -> String {
    let connected = process.connections.iter().filter(|one| one.is_connected());
    let program = if process.program.is_empty() {
        "?"
    } else {
        &process.program
    };
    let mut out = format!(
        "{program}, pid {}, user {}, wait {}: {}\n",
        process.pid,
        users::name(process.uid),
        process.wait,
        by_path(connected)
    );
    if let Some(rule) = &process.wait_rule {
        let _ = writeln!(out, "  wait set by a rule: {rule}");
    }
    if let Some(rule) = &process.express_rule {
        let _ = writeln!(out, "  express set by a rule: {rule}");
    }
    out.push_str(&express::lines(&process.express, view.counters));
    let mut shown: Vec<&Connection> = process
        .connections
        .iter()
        .filter(|one| view.path.is_none_or(|path| one.path == path))
        .collect();
    let on_path = shown.len();
    shown.retain(|one| view.shows(one));
    let unconnected = on_path - shown.len();
    let most_first =
        |one: &&Connection| std::cmp::Reverse(one.by_rings().saturating_add(one.by_kernel()));
    let mut left_out = Vec::new();
    if !view.all && shown.len() > ROWS_MAX {
        shown.sort_by_key(most_first);
        left_out = shown.split_off(ROWS_MAX);
    }
    match view.sort {
        SortKey::Fd => shown.sort_by_key(|one| one.fd),
        SortKey::Bytes => shown.sort_by_key(most_first),
        SortKey::Remote => shown.sort_by(|one, other| one.remote.cmp(&other.remote)),
    }
    out.push_str(&rows(process, &shown, flows, view));
    if !left_out.is_empty() {
        let paths = by_path(left_out.iter().copied());
        let _ = writeln!(out, "  and {paths} that carried fewer bytes: --all");
    }
    if unconnected > 0 {
        let sockets = if unconnected == 1 {
            "socket"
        } else {
            "sockets"
        };
        let _ = writeln!(
            out,
            "  and {unconnected} {sockets} without another end: --all"
        );
    }
    out
}

/// A line for each connection. The reason stands at its end, or below it where the line would be
/// longer than a terminal is wide. With counters, two lines below a connection of the engine's tell
/// how it behaves.
fn rows(process: &Process, connections: &[&Connection], flows: &[Flow], view: &View) -> String {
    if connections.is_empty() {
        return String::new();
    }
    let mut rows = vec![titles(view)];
    rows.extend(connections.iter().map(|one| cells(process, one, view)));
    let lines = columns(&rows);
    let mut out = String::new();
    let Some((titles, lines)) = lines.split_first() else {
        return out;
    };
    let is_told = connections.iter().any(|one| !one.reason.is_empty());
    let _ = writeln!(
        out,
        "{}",
        if is_told {
            format!("{titles}  why")
        } else {
            titles.clone()
        }
        .trim_end()
    );
    for (line, one) in lines.iter().zip(connections) {
        let why = &one.reason;
        let width = line.chars().count();
        let _ = match why.as_str() {
            "" => writeln!(out, "{}", line.trim_end()),
            _ if width + 2 + why.len() <= COLUMNS_OF_A_TERMINAL => writeln!(out, "{line}  {why}"),
            _ => writeln!(out, "{}\n        {why}", line.trim_end()),
        };
        let flow = view.counters.then(|| flow::of(one, flows)).flatten();
        for line in flow.into_iter().flat_map(flow::lines) {
            let _ = writeln!(out, "        {line}");
        }
    }
    out
}

fn titles(view: &View) -> Vec<String> {
    let mut titles = vec!["fd", "local", "remote", "path", "rings", "kernel"];
    if view.rates {
        titles.extend(["rings/s", "kernel/s"]);
    }
    if view.counters {
        titles.extend(["up", "down", "rung", "quiet", "woken", "spins", "saved"]);
    }
    titles.into_iter().map(str::to_owned).collect()
}

fn cells(process: &Process, one: &Connection, view: &View) -> Vec<String> {
    let or_dash = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
    let path = if one.tx_path == one.rx_path || one.tx_path.is_empty() {
        one.path.clone()
    } else {
        format!("{}/{}", one.tx_path, one.rx_path)
    };
    let mut cells = vec![
        one.fd.to_string(),
        or_dash(&one.local),
        or_dash(&one.remote),
        path,
        count(one.by_rings()),
        count(one.by_kernel()),
    ];
    if view.rates {
        cells.extend(rates(process, one, view));
    }
    if view.counters {
        let tried = one.spins_paid.saturating_add(one.spins_failed);
        cells.extend([
            count(one.upgrades),
            count(one.downgrades),
            count(one.doorbells_rung),
            count(one.doorbells_suppressed),
            count(one.wakeups),
            format!("{}/{}", count(one.spins_paid), count(tried)),
            count(one.syscalls_avoided),
        ]);
    }
    cells
}

/// Bytes in a second through rings and through the kernel; `-` for a connection that was not there
/// at the last look.
fn rates(process: &Process, one: &Connection, view: &View) -> [String; 2] {
    let known = view.since.and_then(|(time, earlier)| {
        let before = earlier.0.get(&key(process, one))?;
        Some((time.as_secs_f64(), before))
    });
    match known {
        Some((seconds, &(rings, kernel))) if seconds > 0.0 => {
            let rate = |now: u64, before: u64| {
                count((now.saturating_sub(before) as f64 / seconds).round() as u64)
            };
            [rate(one.by_rings(), rings), rate(one.by_kernel(), kernel)]
        }
        _ => ["-".to_owned(), "-".to_owned()],
    }
}

/// The rows as lines, every column as wide as its widest cell.
fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let mut widths = vec![0; rows.first().map_or(0, Vec::len)];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        cells.fold(String::new(), |mut line, (cell, width)| {
            let _ = write!(line, "  {cell:<width$}");
            line
        })
    };
    rows.iter().map(line).collect()
}

/// Connections of a program that are shown without `--all`.
const ROWS_MAX: usize = 20;

/// The width of a terminal that nobody made wider.
const COLUMNS_OF_A_TERMINAL: usize = 80;

#[cfg(test)]
mod tests {
    use super::super::answer::parse;
    use super::*;

    const ANSWER: &str = r#"{"processes":[{"pid":7,"program":"redis-server","uid":4294967290,
        "wait":"adaptive","a_later_version_s_field":1,"connections":[
        {"fd":9,"local":"127.0.0.1:6379","remote":"127.0.0.1:40000","path":"direct",
         "tx_path":"direct","rx_path":"host","reason":"","bytes_ring_tx":1500000,
         "bytes_host_rx":12,"upgrades":1,"doorbells_rung":3,"doorbells_suppressed":4000},
        {"fd":10,"local":"127.0.0.1:6379","remote":"127.0.0.1:40001","path":"host",
         "reason":"no partner"},
        {"fd":11,"path":"host","reason":"too little traffic so far"}]},
        {"pid":8,"program":"nginx","uid":4294967290,"wait":"event","connections":[]}]}"#;

    fn view() -> View<'static> {
        View {
            pid: None,
            program: None,
            path: None,
            sort: SortKey::Fd,
            counters: false,
            all: false,
            rates: false,
            since: None,
        }
    }

    fn shown(view: &View) -> String {
        render(&parse(ANSWER).expect("an answer"), view)
    }

    #[test]
    fn processes_that_were_passed_over_are_named() {
        let told = |json: &str| render(&parse(json).expect("an answer"), &view());
        assert!(!told("{}").contains("not looked at"));
        let two = told(r#"{"not_shown":[4,7]}"#);
        assert!(two.contains("not looked at: pid 4, 7; the kernel"), "{two}");
        let many = told(r#"{"not_shown":[1,2,3,4,5,6,7,8,9,10]}"#);
        assert!(many.contains(" 7, 8 and 2 others;"), "{many}");
    }

    #[test]
    fn totals_then_programs_then_their_connections() {
        assert_eq!(
            shown(&view()),
            "\
2 processes: 1 direct, 1 host; 1.50MB through rings, 12B through the kernel
redis-server, pid 7, user 4294967290, wait adaptive: 1 direct, 1 host
  fd  local           remote           path         rings  kernel  why
  9   127.0.0.1:6379  127.0.0.1:40000  direct/host  1.50M  12
  10  127.0.0.1:6379  127.0.0.1:40001  host         0      0       no partner
  and 1 socket without another end: --all
nginx, pid 8, user 4294967290, wait event: no connections
"
        );
    }

    #[test]
    fn sockets_without_another_end_are_shown_when_all_are() {
        let text = shown(&View {
            all: true,
            ..view()
        });
        assert!(text.contains("  11  -  "), "{text}");
        assert!(!text.contains("--all"), "{text}");
    }

    #[test]
    fn options_leave_out() {
        let one = shown(&View {
            program: Some("redis"),
            path: Some("direct"),
            ..view()
        });
        assert!(
            one.contains("40000") && !one.contains("40001") && !one.contains("nginx"),
            "{one}"
        );
        let none = shown(&View {
            pid: Some(1),
            ..view()
        });
        assert!(none.contains("hide all 2 programs"), "{none}");
        // A program of which nothing is on the path is not there either.
        let one = shown(&View {
            path: Some("direct"),
            ..view()
        });
        assert!(one.contains("40000") && !one.contains("nginx"), "{one}");
        let none = shown(&View {
            path: Some("offload"),
            ..view()
        });
        assert!(none.starts_with("these options hide all"), "{none}");
    }

    #[test]
    fn counters_have_a_column_each() {
        let text = shown(&View {
            counters: true,
            ..view()
        });
        let row = text
            .lines()
            .find(|line| line.contains(":40000"))
            .expect("the row");
        let cells: Vec<&str> = row.split_ascii_whitespace().collect();
        assert_eq!(cells[6..], ["1", "0", "3", "4.00k", "0", "0/0", "0"]);
    }

    #[test]
    fn behaviour_of_the_engine_s_connections_stands_below_with_the_counters() {
        let answer = r#"{"processes":[{"pid":7,"program":"nginx","uid":4294967290,"connections":[
            {"fd":9,"local":"10.84.0.2:80","remote":"10.84.0.1:40000","path":"offload"}]}],
            "engine":{"flows":[{"local":"10.84.0.2:80","remote":"10.84.0.1:40000",
            "congestion":"cubic","round_trip_us":118,"congestion_window":14480,
            "receive_window":65536,"in_flight":1448}]}}"#;
        let status = parse(answer).expect("an answer");
        let lines = "
        cubic, no ECN, not paced; round trip 118us
        windows: congestion 14.5kB (1.45kB in flight), receive 65.5kB
";
        assert!(!render(&status, &view()).contains("windows"));
        let counters = View {
            counters: true,
            ..view()
        };
        let text = render(&status, &counters);
        assert!(text.ends_with(lines), "{text}");
    }

    #[test]
    fn long_reasons_stand_below() {
        let reason = "the other end is not under Toehold on this host and network namespace";
        let answer = ANSWER.replace("no partner", reason);
        let text = render(&parse(&answer).expect("an answer"), &view());
        assert!(text.contains(&format!("0\n        {reason}\n")), "{text}");
        assert!(
            text.lines()
                .all(|line| line.chars().count() <= COLUMNS_OF_A_TERMINAL),
            "{text}"
        );
    }

    #[test]
    fn many_connections_are_cut_to_the_busiest() {
        let connections: Vec<String> = (0..50)
            .map(|fd| {
                format!(
                    r#"{{"fd":{fd},"local":"a","remote":"b","path":"direct","bytes_ring_tx":{fd}}}"#
                )
            })
            .collect();
        let answer = format!(
            r#"{{"processes":[{{"pid":1,"program":"p","connections":[{}]}}]}}"#,
            connections.join(",")
        );
        let status = parse(&answer).expect("an answer");
        let text = render(&status, &view());
        assert!(
            text.contains("and 30 direct that carried fewer bytes: --all"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1 + 1 + ROWS_MAX + 1, "{text}");
        assert!(
            text.lines().nth(2).expect("a row").starts_with("  30 "),
            "{text}"
        );
        let all = render(
            &status,
            &View {
                all: true,
                ..view()
            },
        );
        assert_eq!(all.lines().count(), 2 + 50, "{all}");
    }

    #[test]
    fn rates_are_of_connections_that_were_there_before() {
        let now = ANSWER
            .replace("1500000", "2500000")
            .replace(":40001", ":40002");
        let earlier = Earlier::of(&parse(ANSWER).expect("an answer"));
        let since = Some((Duration::from_secs(2), &earlier));
        let text = render(
            &parse(&now).expect("an answer"),
            &View {
                rates: true,
                since,
                ..view()
            },
        );
        let row = |part: &str| {
            let line = text
                .lines()
                .find(|line| line.contains(part))
                .expect("the row");
            line.split_ascii_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(row(":40000")[6..], ["500k", "0"]);
        assert_eq!(row(":40002")[6..8], ["-", "-"]);
    }

    #[test]
    fn no_program_is_said_with_what_to_do() {
        assert!(render(&Status::default(), &view()).contains("toehold run"));
    }

    #[test]
    fn a_missing_engine_is_said_with_its_reason() {
        let answer = r#"{"engine":null,"no_engine":"it needs CAP_NET_ADMIN","processes":[]}"#;
        let text = render(&parse(answer).expect("an answer"), &view());
        assert!(
            text.starts_with("no TCP engine: it needs CAP_NET_ADMIN\n"),
            "{text}"
        );
    }
}
