//! `toehold metrics`: the state of an adapter in the text format of Prometheus.
//!
//! Series are for a program, and not for a connection: a scraper keeps every series that it has
//! seen, and connections come and go.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::answer::{Connection, Status};
use super::{report, understood};
use crate::failure::Failure;
use crate::meeting::Meeting;
use crate::options::AdapterChoice;
use crate::output::print;

/// Options of `toehold metrics`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MetricsArgs {
    /// Answer on this Unix socket, by HTTP, until ended; without it, print once
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    socket: Option<PathBuf>,

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
  toehold metrics
  toehold metrics > /var/lib/node_exporter/toehold.prom
  toehold metrics --socket /run/toehold-metrics
  curl --unix-socket /run/toehold-metrics http://localhost/metrics

Bytes, wake-ups and system calls are those of the connections that are open now: they fall when a
connection ends. `toehold_up` is 0 when no adapter answers.";

/// Prints, or answers.
pub(crate) fn run(args: &MetricsArgs) -> Result<(), Failure> {
    let meeting = Meeting::to_look_at(args.runtime_dir.as_deref(), args.adapter);
    let text = || text(meeting.dir());
    match &args.socket {
        None => print(&text()?).map(drop),
        Some(path) => serve(path, text),
    }
}

/// The metrics of the adapter that is met in a directory.
fn text(dir: &Path) -> Result<String, Failure> {
    match report(dir) {
        Ok((report, missing)) => Ok(render(&understood(report)?, missing.is_none())),
        Err(_) => Ok(render(&Status::default(), false)),
    }
}

/// Answers each caller with the metrics of that moment.
fn serve(path: &Path, text: impl Fn() -> Result<String, Failure>) -> Result<(), Failure> {
    let refused = |error| Failure::new(format!("cannot listen at {}: {error}", path.display()));
    let is_stale = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket())
        && UnixStream::connect(path).is_err();
    if is_stale {
        fs::remove_file(path).map_err(refused)?;
    }
    let listener = UnixListener::bind(path).map_err(refused)?;
    for caller in listener.incoming() {
        // A caller that leaves or is silent has only itself to blame.
        let _ = caller.and_then(|caller| answer(caller, &text));
    }
    Ok(())
}

fn answer(mut caller: UnixStream, text: &impl Fn() -> Result<String, Failure>) -> io::Result<()> {
    let deadline = Instant::now() + CALLER_TIMEOUT;
    caller.set_write_timeout(Some(CALLER_TIMEOUT))?;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|it| it == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        // One who sends a byte now and then would keep all others waiting.
        let left = deadline.saturating_duration_since(Instant::now());
        caller.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match caller.read(&mut part)? {
            0 => break,
            length => request.extend_from_slice(&part[..length]),
        }
    }
    let (status, text) = match text() {
        Ok(text) => ("200 OK", text),
        Err(failure) => ("500 Internal Server Error", format!("{failure}\n")),
    };
    let length = text.len();
    write!(
        caller,
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {length}\r\n\r\n{text}"
    )
}

/// One line of a metric: its labels and its value.
type Series = BTreeMap<Vec<(&'static str, String)>, u64>;

fn render(status: &Status, is_up: bool) -> String {
    let mut out = String::new();
    let up = Series::from([(Vec::new(), is_up.into())]);
    metric(&mut out, "up", "gauge", "Whether an adapter answers.", &up);
    let mut processes = Series::new();
    let mut connections = Series::new();
    let mut reasons = Series::new();
    let mut bytes = Series::new();
    let mut events = Series::new();
    let mut express = Series::new();
    for process in &status.processes {
        let program = || ("program", process.program.clone());
        *processes.entry(vec![program()]).or_default() += 1;
        for (event, count) in &process.express {
            let labels = vec![program(), ("event", event.clone())];
            *express.entry(labels).or_default() += count;
        }
        for one in &process.connections {
            let path = ("path", one.path.clone());
            *connections.entry(vec![program(), path]).or_default() += 1;
            if !one.reason.is_empty() {
                let reason = ("reason", one.reason.clone());
                *reasons.entry(vec![program(), reason]).or_default() += 1;
            }
            for (medium, direction, count) in carried(one) {
                let labels = vec![
                    program(),
                    ("by", medium.to_owned()),
                    ("direction", direction.to_owned()),
                ];
                *bytes.entry(labels).or_default() += count;
            }
            for (event, count) in happened(one) {
                let labels = vec![program(), ("event", event.to_owned())];
                *events.entry(labels).or_default() += count;
            }
        }
    }
    let mut gauge = |name, help, series: &Series| metric(&mut out, name, "gauge", help, series);
    gauge("processes", "Processes with the library.", &processes);
    gauge("connections", "Open connections by path.", &connections);
    gauge(
        "reasons",
        "Open connections by the reason why they are not in shared memory.",
        &reasons,
    );
    gauge("bytes", "Bytes of the open connections.", &bytes);
    gauge("events", "What happened on the open connections.", &events);
    let help = "Events of short connections, by program.";
    metric(&mut out, "express_total", "counter", help, &express);
    let made = Series::from([(Vec::new(), status.channels_made)]);
    let help = "Connections that the adapter has given shared memory.";
    metric(&mut out, "channels_made_total", "counter", help, &made);
    if let Some(engine) = &status.engine {
        for (name, help, value) in engine.counters() {
            let series = Series::from([(Vec::new(), value)]);
            metric(&mut out, name, "counter", help, &series);
        }
    }
    out
}

fn carried(one: &Connection) -> [(&'static str, &'static str, u64); 4] {
    [
        ("rings", "sent", one.bytes_ring_tx),
        ("rings", "received", one.bytes_ring_rx),
        ("kernel", "sent", one.bytes_host_tx),
        ("kernel", "received", one.bytes_host_rx),
    ]
}

fn happened(one: &Connection) -> [(&'static str, u64); 6] {
    [
        ("upgrade", one.upgrades),
        ("downgrade", one.downgrades),
        ("doorbell_rung", one.doorbells_rung),
        ("doorbell_suppressed", one.doorbells_suppressed),
        ("wakeup", one.wakeups),
        ("system_call_avoided", one.syscalls_avoided),
    ]
}

/// The text of one metric; nothing where there is no series.
fn metric(out: &mut String, name: &str, kind: &str, help: &str, series: &Series) {
    if series.is_empty() {
        return;
    }
    let _ = writeln!(out, "# HELP toehold_{name} {help}");
    let _ = writeln!(out, "# TYPE toehold_{name} {kind}");
    for (labels, value) in series {
        let labels = labels.iter();
        let labels: Vec<_> = labels
            .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
            .collect();
        let _ = match labels.is_empty() {
            true => writeln!(out, "toehold_{name} {value}"),
            false => writeln!(out, "toehold_{name}{{{}}} {value}", labels.join(",")),
        };
    }
}

/// A label's value: the name of a program is what the program says.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

/// The time that a caller may take for its request, and for each part of the answer.
const CALLER_TIMEOUT: Duration = Duration::from_secs(2);
const REQUEST_BYTES_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let json = r#"{"channels_made": 3, "processes": [{"pid": 7, "program": "a \"b\"",
            "express": {"connected": 12}, "connections": [
                {"path": "direct", "bytes_ring_tx": 5, "doorbells_rung": 2},
                {"path": "direct", "bytes_ring_tx": 6},
                {"path": "host", "reason": "policy", "bytes_host_rx": 9}]}]}"#;
        serde_json::from_str(json).expect("a status")
    }

    #[test]
    fn connections_are_added_up_for_each_program() {
        let text = render(&status(), true);
        for line in [
            "toehold_up 1",
            r#"toehold_processes{program="a \"b\""} 1"#,
            r#"toehold_connections{program="a \"b\"",path="direct"} 2"#,
            r#"toehold_reasons{program="a \"b\"",reason="policy"} 1"#,
            r#"toehold_bytes{program="a \"b\"",by="rings",direction="sent"} 11"#,
            r#"toehold_events{program="a \"b\"",event="doorbell_rung"} 2"#,
            r#"toehold_express_total{program="a \"b\"",event="connected"} 12"#,
            "toehold_channels_made_total 3",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }

    #[test]
    fn each_metric_is_described_once_and_before_its_series() {
        let text = render(&status(), false);
        let helps = text.lines().filter(|line| line.starts_with("# HELP "));
        let helps: Vec<&str> = helps.filter_map(|line| line.split(' ').nth(2)).collect();
        let mut once = helps.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), helps.len(), "{text}");
        let mut described = "";
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => described = rest.split(' ').next().unwrap_or_default(),
                None if line.starts_with('#') => {}
                None => assert_eq!(line.split(['{', ' ']).next(), Some(described)),
            }
        }
    }

    #[test]
    fn a_caller_is_answered_by_http() {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        theirs
            .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
            .expect("room");
        answer(ours, &|| Ok("toehold_up 1\n".to_owned())).expect("it listens");
        let mut heard = String::new();
        theirs.read_to_string(&mut heard).expect("text");
        assert!(heard.starts_with("HTTP/1.0 200 OK\r\n"), "{heard}");
        assert!(heard.ends_with("\r\n\r\ntoehold_up 1\n"), "{heard}");
    }

    #[test]
    fn a_caller_that_sends_a_byte_now_and_then_is_left() {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        let caller = std::thread::spawn(move || {
            while theirs.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let begun = Instant::now();
        let refused = answer(ours, &|| Ok(String::new()));
        assert!(refused.is_err() && begun.elapsed() < 3 * CALLER_TIMEOUT);
        caller.join().expect("no panic");
    }
}
