//! `toehold explain`: one program's connections to one address, and the advice that fits.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

use super::answer::{Connection, Flow, Process, Status};
use super::count::count;
use super::{flow, report, understood};
use crate::failure::Failure;
use crate::meeting::Meeting;
use crate::options::AdapterChoice;
use crate::output::print;

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

    /// Which adapter is asked
    #[arg(long, value_enum, default_value = "auto", value_name = "WHOSE")]
    #[arg(conflicts_with = "runtime_dir")]
    adapter: AdapterChoice,

    /// Where the adapter is met
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    runtime_dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  toehold explain redis :6379
  toehold explain 4711 10.0.0.7
  toehold explain psql /run/postgresql/.s.PGSQL.5432

Exit status: 0 when all of these connections are accelerated, else 1.";

/// Asks and explains.
pub(crate) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let meeting = Meeting::to_look_at(args.runtime_dir.as_deref(), args.adapter);
    let (report, missing) = report(meeting.dir())?;
    let status = understood(report)?;
    let explained = explain(&status, &args.program, &args.address);
    if let Ok((text, _)) = &explained {
        print(text)?;
    }
    match (missing, explained) {
        (Some(missing), _) => Err(missing),
        (None, Ok((_, true))) => Ok(()),
        (None, Ok((_, false))) => Err(Failure::new("not all of it is accelerated")),
        (None, Err(_)) if !may_be_address(&args.address) => Err(Failure::usage(format!(
            "`{}` is no address: expected IP, IP:PORT, :PORT or a Unix socket's path",
            args.address
        ))),
        (None, Err(nothing)) => Err(Failure::new(nothing)),
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

/// The explanation, and whether all is accelerated.
///
/// # Errors
/// When there is nothing to explain.
fn explain(status: &Status, program: &str, address: &str) -> Result<(String, bool), String> {
    let is_named = |process: &&Process| {
        process.program.contains(program) || process.pid.to_string() == program
    };
    let processes: Vec<&Process> = status.processes.iter().filter(is_named).collect();
    if processes.is_empty() {
        return Err(format!(
            "no program named {program} runs with the library of this adapter; start it with\n\
             `toehold run`, or as a service: `toehold enable UNIT`"
        ));
    }
    let mut text = String::new();
    let mut is_good = true;
    let mut count_found = 0usize;
    for process in &processes {
        let connections = process.connections.iter();
        let found: Vec<_> = connections.filter(|one| has(one, address)).collect();
        count_found += found.len();
        let mut groups: Vec<(&str, &str, Vec<&Connection>)> = Vec::new();
        for one in found {
            let group = groups.iter_mut().find(|(path, reason, _)| {
                *path == one.path.as_str() && *reason == one.reason.as_str()
            });
            match group {
                Some((_, _, members)) => members.push(one),
                None => groups.push((&one.path, &one.reason, vec![one])),
            }
        }
        for (path, reason, members) in groups {
            is_good &= path != "host";
            let _ = writeln!(
                text,
                "{}",
                said(process, path, reason, &members, status.flows())
            );
        }
    }
    if count_found == 0 {
        let name = &processes[0].program;
        return Err(format!(
            "{name} runs with the library and has no connection with {address} now"
        ));
    }
    Ok((text, is_good))
}

/// Some connections of one process that are alike.
fn said(
    process: &Process,
    path: &str,
    reason: &str,
    members: &[&Connection],
    flows: &[Flow],
) -> String {
    let first = members[0];
    let rings: u64 = members.iter().map(|one| one.by_rings()).sum();
    let kernel: u64 = members.iter().map(|one| one.by_kernel()).sum();
    let (program, pid) = (&process.program, process.pid);
    let which = match members.len() {
        1 => format!("{} - {}", first.local, first.remote),
        more => format!(
            "{more} connections, {} - {} for one",
            first.local, first.remote
        ),
    };
    let how = match path {
        "direct" => "by shared memory",
        "parked" => "not at all, until the next connection is made",
        "offload" => "by the adapter's engine",
        _ => "by the kernel",
    };
    let mut text = format!(
        "{program}, pid {pid}: {which}\n  {how}; so far {}B by rings, {}B by the kernel\n",
        count(rings),
        count(kernel)
    );
    if let Some((one, flow)) = members
        .iter()
        .find_map(|one| Some((one, flow::of(one, flows)?)))
    {
        if members.len() > 1 {
            let _ = writeln!(text, "  one of them, {} - {}:", one.local, one.remote);
        }
        for line in flow::lines(flow) {
            let _ = writeln!(text, "  {line}");
        }
    }
    if !reason.is_empty() {
        let _ = writeln!(text, "  because: {reason}");
    }
    if let Some(advice) = advice(reason) {
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

const ADVICE: [(&str, &str); 18] = [
    (
        "a rule keeps it",
        "change the rule, then: systemctl reload toehold-adapter",
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
        "the adapter was busy",
        "none: it is asked again with the connection's next calls",
    ),
    (
        "belongs to another user",
        "let both use the system adapter: toehold adapter --system",
    ),
    (
        "a packet capture or a new firewall rule",
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
             "reason": "a packet capture or a new firewall rule is to see it",
             "bytes_host_rx": 1234},
            {"local": "127.0.0.1:6379", "remote": "127.0.0.1:50002", "path": "host",
             "reason": "a packet capture or a new firewall rule is to see it"},
            {"local": "/run/redis/a.sock#12", "remote": "#13", "path": "direct"},
            {"local": "[::1]:7", "remote": "", "path": "host"}]}]}"##;
        serde_json::from_str(json).expect("a status")
    }

    fn explain(status: &Status, program: &str, address: &str) -> (String, bool) {
        super::explain(status, program, address).expect("there are connections")
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
