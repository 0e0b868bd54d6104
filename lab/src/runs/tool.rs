//! Load generators of other projects: for experiments about one of them, and beside our own.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toehold_measure::metric::Reading;
use toehold_measure::parse;

use crate::generator::{Latency, Load, Outcome, Pattern, SCHEMA};

/// A server and a client of another project.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// tbench: the messages that a file server's clients send, without the files.
    Tbench,
    /// nuttcp: a stream, or several.
    Nuttcp,
    /// iperf3: the same.
    Iperf3,
    /// sockperf: a ping-pong.
    Sockperf,
    /// wrk, against nginx: requests of HTTP in a closed loop.
    Wrk,
}

/// A place for a tool's server: ports, and a directory that it may write to.
pub(super) struct Site<'a> {
    /// Two free ports; tbench uses its own port.
    pub(super) ports: [u16; 2],
    /// A private directory.
    pub(super) folder: &'a Path,
}

impl Tool {
    /// Its server and its client, and the Debian packages that have them.
    pub(super) fn programs(self) -> [(&'static str, &'static str); 2] {
        match self {
            Tool::Tbench => [("tbench_srv", "dbench"), ("tbench", "dbench")],
            Tool::Nuttcp => [("nuttcp", "nuttcp"); 2],
            Tool::Iperf3 => [("iperf3", "iperf3"); 2],
            Tool::Sockperf => [("sockperf", "sockperf"); 2],
            Tool::Wrk => [("nginx", "nginx-light"), ("wrk", "wrk")],
        }
    }

    /// Its client's name.
    pub(super) fn name(self) -> &'static str {
        self.programs()[1].0
    }

    /// Whether the tool supports this load.
    pub(super) fn makes(self, load: &Load) -> bool {
        let is_plain =
            !load.touch && !load.sendfile && !load.polling && load.socket_buffer.is_none();
        is_plain
            && match self {
                Tool::Tbench => load.pattern == Pattern::Requests,
                Tool::Nuttcp | Tool::Iperf3 => load.pattern == Pattern::ToServer,
                Tool::Sockperf => load.pattern == Pattern::PingPong && load.streams == 1,
                Tool::Wrk => load.pattern == Pattern::Requests && load.rate.is_none(),
            }
    }

    /// The port that its server takes.
    pub(super) fn port(self, site: &Site<'_>) -> u16 {
        match self {
            Tool::Tbench => 7003,
            _ => site.ports[0],
        }
    }

    /// The words of its server.
    ///
    /// # Errors
    ///
    /// When its settings cannot be written.
    pub(super) fn server(self, load: &Load, site: &Site<'_>) -> io::Result<Vec<String>> {
        let [port, _] = site.ports.map(|port| port.to_string());
        let words = match self {
            // Debian's version takes no address: it listens on all addresses.
            Tool::Tbench => "tbench_srv".to_owned(),
            Tool::Nuttcp => format!("nuttcp -4 -S --nofork -P {port}"),
            Tool::Iperf3 => format!("iperf3 -4 -s -p {port}"),
            Tool::Sockperf => format!("sockperf server --tcp -i {HOST} -p {port}"),
            Tool::Wrk => {
                let settings = site.folder.join("nginx.conf");
                fs::write(&settings, nginx(load, &port, site.folder))?;
                format!("nginx -c {}", settings.display())
            }
        };
        Ok(words.split(' ').map(str::to_owned).collect())
    }

    /// The words of its client.
    pub(super) fn client(self, load: &Load, site: &Site<'_>) -> Vec<String> {
        let [port, other] = site.ports.map(|port| port.to_string());
        let (seconds, streams, message) = (seconds(load), load.streams, load.message);
        let words = match self {
            Tool::Tbench => format!("tbench -t {seconds} {streams} {HOST}"),
            Tool::Nuttcp => format!(
                "nuttcp -4 -fparse -T{seconds} -N{streams} -l{message} -P{port} -p{other} {HOST}"
            ),
            Tool::Iperf3 => {
                format!("iperf3 -4 -J -c {HOST} -p {port} -t {seconds} -l {message} -P {streams}")
            }
            Tool::Sockperf => {
                format!("sockperf ping-pong --tcp -i {HOST} -p {port} -t {seconds} -m {message}")
            }
            Tool::Wrk => {
                format!("wrk -t1 -c{streams} -d{seconds}s --latency http://{HOST}:{port}/")
            }
        };
        words.split(' ').map(str::to_owned).collect()
    }

    /// The least time of a sample: shorter ones report nothing.
    pub(super) fn seconds_min(self) -> f64 {
        match self {
            Tool::Tbench => 2.0,
            _ => 1.0,
        }
    }

    /// The numbers in its client's output.
    pub(super) fn outcome(
        self,
        output: &str,
        load: &Load,
        cpu: Option<(f64, f64)>,
    ) -> Option<Outcome> {
        let counted = match self {
            Tool::Tbench => tbench(output, load),
            Tool::Nuttcp => nuttcp(output, load),
            Tool::Iperf3 => read(parse::Tool::Iperf3, output, load),
            Tool::Sockperf => read(parse::Tool::Sockperf, output, load),
            Tool::Wrk => read(parse::Tool::Wrk, output, load),
        };
        counted?.outcome(self.name(), load, cpu)
    }
}

/// The numbers of a client of an application, in the form of our own generator's.
pub(super) fn outcome_of(
    name: &str,
    reading: Reading,
    load: &Load,
    seconds: f64,
    cpu: Option<(f64, f64)>,
) -> Option<Outcome> {
    counted(reading, load, seconds)?.outcome(name, load, cpu)
}

/// The counts of a client.
struct Counted {
    seconds: f64,
    operations: f64,
    bytes: f64,
    latency: Option<Latency>,
}

impl Counted {
    fn outcome(self, name: &str, load: &Load, cpu: Option<(f64, f64)>) -> Option<Outcome> {
        (self.operations > 0.0).then(|| Outcome {
            schema: SCHEMA.to_owned(),
            load: load.clone(),
            kind: name.to_owned(),
            seconds: self.seconds,
            operations: self.operations as u64,
            bytes: self.bytes as u64,
            unanswered: 0,
            latency: self.latency,
            cpu_all: cpu.map(|(all, _)| all),
            cpu_softirq: cpu.map(|(_, softirq)| softirq),
            memory: None,
            digest: None,
            tiers: Vec::new(),
            standing: None,
        })
    }
}

fn seconds(load: &Load) -> f64 {
    load.seconds.ceil()
}

fn tbench(output: &str, load: &Load) -> Option<Counted> {
    let mut operations = 0.0;
    let mut megabytes = None;
    let mut is_table = false;
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Throughput", number, "MB/sec", ..] => megabytes = number.parse::<f64>().ok(),
            ["Operation", "Count", ..] => is_table = true,
            [_, count, _, _] if is_table => operations += count.parse::<f64>().unwrap_or(0.0),
            _ => {}
        }
    }
    Some(Counted {
        seconds: seconds(load),
        operations,
        bytes: megabytes.filter(|megabytes| *megabytes > 0.0)? * 1e6 * seconds(load),
        latency: None,
    })
}

fn nuttcp(output: &str, load: &Load) -> Option<Counted> {
    let number = |name: &str| {
        let mut words = output.split_whitespace();
        let word = words.find_map(|word| word.strip_prefix(name))?;
        word.parse::<f64>().ok()
    };
    let bytes = number("megabytes=")? * 1_048_576.0;
    Some(Counted {
        seconds: number("real_seconds=")?,
        operations: bytes / load.message as f64,
        bytes,
        latency: None,
    })
}

fn read(tool: parse::Tool, output: &str, load: &Load) -> Option<Counted> {
    counted(tool.read("", output).ok()?, load, seconds(load))
}

fn counted(Reading { metrics, work }: Reading, load: &Load, seconds: f64) -> Option<Counted> {
    let value = |name: &str| {
        let metric = metrics.iter().find(|metric| metric.name == name);
        metric.map(|metric| metric.value)
    };
    let nanos = |name: &str| Some((value(name)? * 1e3) as u64);
    let latency = nanos("latency p50").zip(nanos("latency p99"));
    let latency = latency.map(|(p50, p99)| Latency {
        p50,
        p99,
        p99_9: nanos("latency p99.9").unwrap_or(p99),
        max: nanos("latency p99.9").unwrap_or(p99),
        mean: value("latency average").unwrap_or(0.0) * 1e3,
        histogram: Vec::new(),
    });
    // The first metric is work by time, in Gbit/s or in operations a second.
    let first = metrics.first()?;
    let message = load.message as f64;
    Some(match work.unit {
        "GB" => Counted {
            seconds: work.amount * 8.0 / first.value,
            operations: work.amount * 1e9 / message,
            bytes: work.amount * 1e9,
            latency,
        },
        _ => Counted {
            seconds: match first.unit.as_str() {
                "requests/s" => work.amount / first.value,
                _ => seconds,
            },
            operations: work.amount,
            bytes: work.amount * 2.0 * message,
            latency,
        },
    })
}

/// Settings of a server in one process that answers with as many bytes as a response has.
fn nginx(load: &Load, port: &str, folder: &Path) -> String {
    let body = "x".repeat(load.response_bytes());
    let folder = folder.display();
    let places: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {folder}/{name};\n"))
        .collect();
    format!(
        "daemon off;\nmaster_process off;\nerror_log stderr;\npid {folder}/nginx.pid;\n\
         events {{ worker_connections 20000; }}\n\
         http {{\naccess_log off;\nkeepalive_requests 1000000000;\n{places}\
         server {{ listen {HOST}:{port}; location / {{ return 200 \"{body}\"; }} }}\n}}\n"
    )
}

const HOST: &str = "127.0.0.1";

#[cfg(test)]
mod tests {
    use super::*;

    const TBENCH: &str = "\
Running for 3 seconds with load '/usr/share/dbench/client.txt' and minimum warmup 0 secs
   4     11832   918.19 MB/sec  execute   2 sec  latency 7.567 ms

 Operation      Count    AvgLat    MaxLat
 ----------------------------------------
 NTCreateX      50000     0.021     8.801
 Close          30000     0.023     6.424

Throughput 918.041 MB/sec  4 clients  4 procs  max_latency=7.567 ms
";

    fn load(pattern: Pattern) -> Load {
        Load {
            pattern,
            seconds: 2.5,
            streams: 4,
            message: 1 << 17,
            ..Load::default()
        }
    }

    #[test]
    fn tbench_s_output_is_read() {
        let load = load(Pattern::Requests);
        let outcome = Tool::Tbench.outcome(TBENCH, &load, Some((5.0, 1.0)));
        let outcome = outcome.expect("a throughput");
        assert_eq!((outcome.operations, outcome.bytes), (80_000, 2_754_123_000));
        assert_eq!((outcome.kind.as_str(), outcome.seconds), ("tbench", 3.0));
        // tbench prints this for less than two seconds.
        let none = TBENCH.replace("918.041", "0");
        assert_eq!(Tool::Tbench.outcome(&none, &load, None), None);
    }

    #[test]
    fn nuttcp_s_output_is_read() {
        let said = "megabytes=635.5 real_seconds=1.25 rate_Mbps=5312.5557 tx_cpu=5 rx_cpu=22\n";
        let outcome = Tool::Nuttcp.outcome(said, &load(Pattern::ToServer), None);
        let outcome = outcome.expect("a throughput");
        assert_eq!((outcome.operations, outcome.seconds), (5084, 1.25));
        assert_eq!(outcome.bytes, 666_370_048);
        assert_eq!(
            Tool::Nuttcp.outcome("nuttcp-t: Error", &load(Pattern::ToServer), None),
            None
        );
    }

    #[test]
    fn a_tool_makes_its_own_loads_alone() {
        let site = Site {
            ports: [7, 8],
            folder: Path::new("/tmp"),
        };
        let nuttcp = Tool::Nuttcp
            .client(&load(Pattern::ToServer), &site)
            .join(" ");
        assert_eq!(
            nuttcp,
            "nuttcp -4 -fparse -T3 -N4 -l131072 -P7 -p8 127.0.0.1"
        );
        assert!(Tool::Nuttcp.makes(&load(Pattern::ToServer)));
        assert!(!Tool::Nuttcp.makes(&load(Pattern::Both)));
        assert!(!Tool::Sockperf.makes(&load(Pattern::PingPong)));
        assert!(Tool::Wrk.makes(&load(Pattern::Requests)));
        let settings = nginx(&load(Pattern::Requests), "7", Path::new("/tmp/x"));
        assert!(settings.contains("listen 127.0.0.1:7;") && settings.contains("/tmp/x/proxy;"));
    }
}
