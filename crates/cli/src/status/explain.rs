//! `toehold explain`: one program's connections to one address, and the advice that fits.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use toehold_adapter::printable;

use super::answer::{Connection, Flow, Process, Status};
use super::count::count;
use super::{flow, report, understood};
use crate::failure::Failure;
use crate::meeting::Meeting;
use crate::options::AdapterChoice;
use crate::output::{print, print_json};

/// Options of `toehold explain`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// The program: a part of its name, or its process number
    #[arg(value_name = "PROGRAM")]
    program: String,

    /// An address of its connections, local or remote: IP, IP:PORT, :PORT, or a Unix socket's path
    #[arg(value_name = "ADDRESS")]
    address: String,

    /// Print as JSON: a list of groups of connections that are alike
    #[arg(long)]
    json: bool,

    /// Which adapter is asked
    #[arg(long, value_enum, default_value = "auto", value_name = "WHOSE")]
    #[arg(conflicts_with = "runtime_dir")]
    adapter: AdapterChoice,

    /// The adapter's runtime directory
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    runtime_dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  toehold explain redis :6379
  toehold explain 4711 10.0.0.7
  toehold explain psql /run/postgresql/.s.PGSQL.5432
  toehold explain redis :6379 --json

With --json each group has `pid`, `program`, `path` and `reason` as `toehold status` has them, the
`advice` or null, `bytes_by_rings` and `bytes_by_kernel`, and its `connections`: their `fd`, `local`
and `remote`, and `flow`, the report of the adapter's engine where there is one.

Exit status: 0 when all of these connections are accelerated, else 1.";

/// Asks and explains.
pub(crate) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let meeting = Meeting::to_look_at(args.runtime_dir.as_deref(), args.adapter);
    let (report, missing) = report(meeting.dir())?;
    let status = understood(report)?;
    let groups = match explain(&status, &args.program, &args.address) {
        Ok(groups) => groups,
        Err(nothing) => {
            return Err(match missing {
                Some(missing) => missing,
                None if may_be_address(&args.address) => Failure::new(nothing),
                None => Failure::usage(format!(
                    "`{}` is not an address: expected IP, IP:PORT, :PORT or a Unix socket's path",
                    args.address
                )),
            });
        }
    };
    if args.json {
        print_json(&groups)?;
    } else {
        print(text(&groups))?;
    }
    match missing {
        Some(missing) => Err(missing),
        None if groups.iter().all(Group::is_accelerated) => Ok(()),
        None => Err(Failure::new("not all of it is accelerated")),
    }
}

/// Connections of one process that are alike.
#[derive(Debug, Serialize)]
struct Group<'a> {
    pid: u32,
    program: &'a str,
    path: &'a str,
    reason: &'a str,
    advice: Option<&'static str>,
    bytes_by_rings: u64,
    bytes_by_kernel: u64,
    connections: Vec<Member<'a>>,
}

#[derive(Debug, Serialize)]
struct Member<'a> {
    fd: i64,
    local: &'a str,
    remote: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<&'a Flow>,
}

impl Group<'_> {
    fn of<'a>(process: &'a Process, members: &[&'a Connection], flows: &'a [Flow]) -> Group<'a> {
        let first = members[0];
        let member = |one: &&'a Connection| Member {
            fd: one.fd,
            local: &one.local,
            remote: &one.remote,
            flow: flow::of(one, flows),
        };
        Group {
            pid: process.pid,
            program: &process.program,
            path: &first.path,
            reason: &first.reason,
            advice: advice(&first.reason),
            bytes_by_rings: members.iter().map(|one| one.by_rings()).sum(),
            bytes_by_kernel: members.iter().map(|one| one.by_kernel()).sum(),
            connections: members.iter().map(member).collect(),
        }
    }

    fn is_accelerated(&self) -> bool {
        self.path != "host"
    }
}

/// Whether a connection may have this address. Names of hosts are not looked up. The name of a Unix
/// socket may be any word, but then it was found.
fn may_be_address(text: &str) -> bool {
    let port = text.strip_prefix(':').map(str::parse::<u16>);
    text.parse::<IpAddr>().is_ok()
        || text.parse::<SocketAddr>().is_ok()
        || port.is_some_and(|port| port.is_ok())
        || text.contains('/')
        || text.starts_with('@')
}

/// The connections of a program with an address, in groups that are alike.
///
/// # Errors
/// When there is nothing to explain.
fn explain<'a>(status: &'a Status, program: &str, address: &str) -> Result<Vec<Group<'a>>, String> {
    let is_named = |name: &str, pid: u32| name.contains(program) || pid.to_string() == program;
    let processes = status.processes.iter();
    let processes: Vec<&Process> = processes
        .filter(|one| is_named(&one.program, one.pid))
        .collect();
    let mut bare = status.without_library.iter();
    let bare = bare.find(|one| is_named(&one.program, one.pid));
    let because = bare.map_or_else(String::new, |one| {
        let (name, reason) = (printable(&one.program), printable(&one.reason));
        format!("\n{name}, pid {}: {reason}", one.pid)
    });
    if processes.is_empty() {
        return Err(format!(
            "no program named {program} runs with the library of this adapter; start it with\n\
             `toehold run`, or as a service: `toehold enable UNIT`{because}"
        ));
    }
    let mut all = Vec::new();
    for process in &processes {
        let connections = process.connections.iter();
        let mut groups: Vec<Vec<&Connection>> = Vec::new();
        for one in connections.filter(|one| has(one, address)) {
            let is_alike =
                |other: &Connection| other.path == one.path && other.reason == one.reason;
            match groups.iter_mut().find(|group| is_alike(group[0])) {
                Some(group) => group.push(one),
                None => groups.push(vec![one]),
            }
        }
        let groups = groups.iter();
        all.extend(groups.map(|members| Group::of(process, members, status.flows())));
    }
    if all.is_empty() {
        let name = &processes[0].program;
        return Err(format!(
            "{name} runs with the library, which sees no connection with {address} now{because}"
        ));
    }
    Ok(all)
}

fn text(groups: &[Group<'_>]) -> String {
    groups.iter().map(|group| said(group) + "\n").collect()
}

/// A group for people.
fn said(group: &Group<'_>) -> String {
    let first = &group.connections[0];
    let which = match group.connections.len() {
        1 => format!("{} - {}", first.local, first.remote),
        more => format!(
            "{more} connections, {} - {} for one",
            first.local, first.remote
        ),
    };
    let how = match group.path {
        "direct" => "by shared memory",
        "parked" => "not at all, until the next connection is made",
        "offload" => "by the adapter's engine",
        _ => "by the kernel",
    };
    let mut text = format!(
        "{}, pid {}: {which}\n  {how}; so far {}B by rings, {}B by the kernel\n",
        group.program,
        group.pid,
        count(group.bytes_by_rings),
        count(group.bytes_by_kernel)
    );
    let mut reported = group.connections.iter();
    if let Some((one, flow)) = reported.find_map(|one| Some((one, one.flow?))) {
        if group.connections.len() > 1 {
            let _ = writeln!(text, "  one of them, {} - {}:", one.local, one.remote);
        }
        for line in flow::lines(flow) {
            let _ = writeln!(text, "  {line}");
        }
    }
    if !group.reason.is_empty() {
        let _ = writeln!(text, "  because: {}", group.reason);
    }
    if let Some(advice) = group.advice {
        let _ = writeln!(text, "  advice:  {advice}");
    }
    text
}

/// Whether an address is one of a connection's.
fn has(one: &Connection, address: &str) -> bool {
    [&one.local, &one.remote].into_iter().any(|end| {
        // A Unix socket: its name, before its inode.
        let named = end.rsplit_once('#').map(|(name, _)| name);
        if let Some(name) = named.filter(|name| !name.is_empty()) {
            return address == name;
        }
        let Ok(end) = end.parse::<SocketAddr>() else {
            return false;
        };
        let (ip, port) = (end.ip().to_string(), end.port().to_string());
        address == ip
            || address.strip_prefix(':') == Some(&port)
            || address.parse::<SocketAddr>() == Ok(end)
    })
}

/// Advice for the reasons that somebody can do something about, by words of theirs.
fn advice(reason: &str) -> Option<&'static str> {
    ADVICE
        .iter()
        .find(|(words, _)| reason.contains(words))
        .map(|(_, advice)| *advice)
}

const ADVICE: [(&str, &str); 21] = [
    (
        "a rule keeps it",
        "change the rule, then send SIGHUP to the adapter (systemctl reload)",
    ),
    (
        "too little traffic",
        "none: it is paired after 24 calls or 256 KiB that its library sees",
    ),
    (
        "not under Toehold, or with another adapter",
        "start the other program with the library, or ask as root for more",
    ),
    (
        "has not accepted the connection yet",
        "none: it is paired after its program has accepted it",
    ),
    (
        "has not asked this adapter",
        "none: its library asks after 24 calls or 256 KiB that it sees",
    ),
    (
        "but with another adapter",
        "let both use the system adapter: toehold adapter --system",
    ),
    (
        "is not under Toehold",
        "start the other program with: toehold run, or: toehold enable UNIT",
    ),
    (
        "this adapter pairs within one",
        "let both use the system adapter: toehold adapter --system, without --namespaces own",
    ),
    (
        "on another host",
        "toehold run --path offload, with an adapter that has a link",
    ),
    (
        "the adapter does not answer",
        "start one: toehold adapter, or: systemctl start toehold-adapter",
    ),
    (
        "has become another user",
        "let it use the system adapter: toehold adapter --system",
    ),
    (
        "the adapter was busy",
        "none: it is asked again with the connection's next calls",
    ),
    (
        "belongs to another user",
        "let both use the system adapter: toehold adapter --system",
    ),
    (
        "a packet capture, new firewall rule or traffic control",
        "none: it returns when that is gone (adapter --observability)",
    ),
    (
        "detached by the operator",
        "toehold detach --undo PID, or all",
    ),
    (
        "no memory or descriptors",
        "toehold adapter --max-connections N; ulimit -n of both programs",
    ),
    (
        "as many as the system adapter allows",
        "a user may have a quarter of: toehold adapter --max-connections N",
    ),
    (
        "is of another version",
        "restart the adapter and the program after an update",
    ),
    (
        "has confined itself",
        "none: its filter for system calls could end it",
    ),
    (
        "both ends have asked",
        "none: the adapter is busy, or it waits for a processor",
    ),
    (
        "cannot prove connections",
        "load the module inet_diag: modprobe tcp_diag",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let json = r##"{"processes": [{"pid": 7, "program": "redis-server", "connections": [
            {"local": "127.0.0.1:6379", "remote": "127.0.0.1:50000", "path": "direct"},
            {"local": "127.0.0.1:6379", "remote": "127.0.0.1:50001", "path": "host",
             "reason": "a packet capture, new firewall rule or traffic control is to see it",
             "bytes_host_rx": 1234},
            {"local": "127.0.0.1:6379", "remote": "127.0.0.1:50002", "path": "host",
             "reason": "a packet capture, new firewall rule or traffic control is to see it"},
            {"local": "/run/redis/a.sock#12", "remote": "#13", "path": "direct"},
            {"local": "[::1]:7", "remote": "", "path": "host"}]}]}"##;
        serde_json::from_str(json).expect("a status")
    }

    fn explain(status: &Status, program: &str, address: &str) -> (String, bool) {
        let groups = super::explain(status, program, address).expect("there are connections");
        (text(&groups), groups.iter().all(Group::is_accelerated))
    }

    #[test]
    fn json_has_the_groups_with_all_their_connections() {
        let status = status();
        let groups = super::explain(&status, "redis", ":6379").expect("there are connections");
        let json = serde_json::to_value(&groups).expect("JSON");
        let word = "a packet capture, new firewall rule or traffic control is to see it";
        assert_eq!(json[0]["path"], "direct");
        assert_eq!(json[0]["advice"], serde_json::Value::Null);
        assert_eq!(json[1]["reason"], word);
        assert!(json[1]["advice"].is_string(), "{json}");
        assert_eq!(json[1]["bytes_by_kernel"], 1234);
        assert_eq!(json[1]["connections"][1]["remote"], "127.0.0.1:50002");
        assert!(json[1]["connections"][1].get("flow").is_none(), "{json}");
        assert_eq!(json.as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn connections_that_are_alike_are_explained_once() {
        let (text, is_good) = explain(&status(), "redis", ":6379");
        assert!(!is_good);
        assert!(text.contains("by shared memory"), "{text}");
        assert!(
            text.contains("2 connections, 127.0.0.1:6379 - 127.0.0.1:50001"),
            "{text}"
        );
        assert!(text.contains("advice:  none: it returns when"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let (text, is_good) = explain(&status(), "redis", "/run/redis/a.sock");
        assert!(is_good && text.contains("#12 - #13"), "{text}");
        let (text, is_good) = explain(&status(), "7", "127.0.0.1:50000");
        assert!(is_good && !text.contains("because"), "{text}");
    }

    #[test]
    fn settings_of_the_engine_are_shown() {
        let json = r#"{"processes": [{"pid": 7, "program": "nginx", "connections": [
            {"local": "10.84.0.2:80", "remote": "10.84.0.1:50000", "path": "offload"},
            {"local": "10.84.0.2:80", "remote": "10.84.0.1:50001", "path": "offload"},
            {"local": "127.0.0.1:80", "remote": "127.0.0.1:50001", "path": "direct"}]}],
            "engine": {"flows": [{"local": "10.84.0.2:80", "remote": "10.84.0.1:50001",
            "congestion": "bbr", "pacing": true, "round_trip_us": 250, "receive_window": 65536,
            "congestion_window": 14480, "in_flight": 0}]}}"#;
        let status = serde_json::from_str(json).expect("a status");
        let (text, is_good) = explain(&status, "nginx", "10.84.0.1:50001");
        let lines = [
            "  bbr, no ECN, paced; round trip 250us",
            "  windows: congestion 14.5kB (0B in flight), receive 65.5kB",
        ]
        .join("\n");
        assert!(is_good && text.contains(&lines), "{text}");
        // Two that are alike, of which the engine reports one.
        let (text, _) = explain(&status, "nginx", "10.84.0.2");
        let which = "  one of them, 10.84.0.2:80 - 10.84.0.1:50001:";
        assert!(text.contains(&format!("{which}\n{lines}")), "{text}");
        let (text, _) = explain(&status, "nginx", "127.0.0.1");
        assert!(!text.contains("windows"), "{text}");
    }

    #[test]
    fn names_of_hosts_are_no_addresses() {
        for text in [
            "10.0.0.7",
            "10.0.0.7:80",
            ":80",
            "::1",
            "[::1]:7",
            "/run/x",
            "@x",
        ] {
            assert!(may_be_address(text), "{text}");
        }
        for text in ["localhost", "localhost:80", "80", ":http", "10.0.0", ""] {
            assert!(!may_be_address(text), "{text}");
        }
    }

    #[test]
    fn what_is_not_there_is_said() {
        let refused = |program, address| super::explain(&status(), program, address).expect_err("");
        let text = refused("nginx", "127.0.0.1");
        assert!(text.starts_with("no program named nginx"), "{text}");
        let text = refused("redis", "10.0.0.1");
        assert!(text.contains("no connection with 10.0.0.1"), "{text}");
    }
}
