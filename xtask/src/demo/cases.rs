//! The programs of the demonstration and their commands.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

/// One comparison.
pub(crate) struct Case {
    /// The name of its report.
    pub(crate) name: &'static str,
    /// The name of the case in the table.
    pub(crate) title: &'static str,
    /// The metric in the table, under its name in the report.
    pub(crate) metric: &'static str,
    /// The server's command.
    pub(crate) server: String,
    /// The client's command.
    pub(crate) client: String,
    /// The condition under which the server can be measured.
    pub(crate) ready: String,
    programs: [&'static Program; 2],
}

/// A program and the Debian package that has it.
struct Program {
    name: &'static str,
    package: &'static str,
}

const REDIS_SERVER: Program = Program {
    name: "redis-server",
    package: "redis-server",
};
const REDIS_BENCHMARK: Program = Program {
    name: "redis-benchmark",
    package: "redis-tools",
};
const IPERF3: Program = Program {
    name: "iperf3",
    package: "iperf3",
};
const SOCKPERF: Program = Program {
    name: "sockperf",
    package: "sockperf",
};
const NGINX: Program = Program {
    name: "nginx",
    package: "nginx-light",
};
const WRK: Program = Program {
    name: "wrk",
    package: "wrk",
};

impl Case {
    /// The first program that is not installed, and its package.
    pub(crate) fn missing(&self) -> Option<(&'static str, &'static str)> {
        let missing = self
            .programs
            .iter()
            .find(|program| program.path().is_none())?;
        Some((missing.name, missing.package))
    }
}

impl Program {
    /// The path of the program. Debian keeps servers in directories that an ordinary user's `PATH`
    /// does not contain.
    fn path(&self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
        places.extend(["/usr/sbin", "/usr/bin"].map(PathBuf::from));
        let mut candidates = places.into_iter().map(|place| place.join(self.name));
        candidates.find(|candidate| candidate.is_file())
    }

    /// The program's path, quoted as the first word of a command.
    fn word(&self) -> String {
        let path = self.path().unwrap_or_else(|| self.name.into());
        quoted(&path)
    }
}

/// All cases; files they need are made in `scratch`.
///
/// # Errors
/// When `scratch` cannot be written or no port is free.
pub(crate) fn all(scratch: &Path, seconds: u32, requests: u32) -> io::Result<Vec<Case>> {
    let [redis_port, iperf3_port, sockperf_port, nginx_port] = free_ports()?;
    let redis = |name, title, clients: u32, pipeline: u32, count: u32| Case {
        name,
        title,
        metric: "GET",
        server: format!(
            "{} --bind 127.0.0.1 --port {redis_port} --save '' --appendonly no --dir {}",
            REDIS_SERVER.word(),
            quoted(scratch)
        ),
        client: format!(
            "{} -h 127.0.0.1 -p {redis_port} -t get -c {clients} -P {pipeline} -n {} --csv",
            REDIS_BENCHMARK.word(),
            count * requests
        ),
        ready: format!("tcp:{redis_port}"),
        programs: [&REDIS_SERVER, &REDIS_BENCHMARK],
    };
    let configuration = nginx_files(scratch, nginx_port)?;
    let nginx = |name, title, options: &str| Case {
        name,
        title,
        metric: "requests",
        server: format!(
            "{} -p {} -c {}",
            NGINX.word(),
            quoted(scratch),
            quoted(&configuration)
        ),
        client: format!(
            "{} --latency -t 1 -c 50 -d {seconds} {options}http://127.0.0.1:{nginx_port}/1k",
            WRK.word()
        ),
        ready: format!("tcp:{nginx_port}"),
        programs: [&NGINX, &WRK],
    };
    // A number of requests that takes the kernel some four seconds, and the direct path less than
    // one.
    Ok(vec![
        redis("redis-50", "Redis GET, 50 clients", 50, 1, 450_000),
        redis("redis-1", "Redis GET, 1 client", 1, 1, 80_000),
        redis(
            "redis-pipeline",
            "Redis GET, 50 clients, pipeline 16",
            50,
            16,
            6_000_000,
        ),
        Case {
            name: "iperf3",
            title: "iperf3, 128 KB writes",
            metric: "throughput",
            server: format!("{} -s -B 127.0.0.1 -p {iperf3_port}", IPERF3.word()),
            client: format!(
                "{} -c 127.0.0.1 -p {iperf3_port} -l 128K -t {seconds}{} -J",
                IPERF3.word(),
                fast_congestion_control()
            ),
            ready: format!("tcp:{iperf3_port}"),
            programs: [&IPERF3, &IPERF3],
        },
        Case {
            name: "sockperf",
            title: "sockperf ping-pong, 64 B, one way",
            metric: "latency p50",
            server: format!(
                "{} server --tcp -i 127.0.0.1 -p {sockperf_port}",
                SOCKPERF.word()
            ),
            // Beyond 600,000 messages a second, the program's own statistics end with an error.
            client: format!(
                "{} ping-pong --tcp -i 127.0.0.1 -p {sockperf_port} -m 64 --mps 500000 -t \
                {seconds}",
                SOCKPERF.word()
            ),
            ready: format!("tcp:{sockperf_port}"),
            programs: [&SOCKPERF, &SOCKPERF],
        },
        nginx("nginx", "nginx 1 KB, keep-alive", ""),
        nginx(
            "nginx-close",
            "nginx 1 KB, connection: close",
            "-H 'Connection: close' ",
        ),
    ])
}

/// A sentence: the kernel's default for new connections, and the programs that choose another one.
pub(crate) fn congestion_control() -> String {
    let default = sysctl("tcp_congestion_control").unwrap_or_else(|| "unknown".to_owned());
    if fast_congestion_control().is_empty() {
        default
    } else {
        format!("{default} (iperf3 is told to use reno, which is faster here)")
    }
}

/// BBR paces, which halves the kernel's bulk throughput on loopback. So iperf3 asks for reno if
/// that is allowed.
fn fast_congestion_control() -> &'static str {
    let allowed = sysctl("tcp_allowed_congestion_control").unwrap_or_default();
    let may = is_root() || allowed.split(' ').any(|name| name == "reno");
    let default = sysctl("tcp_congestion_control");
    if default.as_deref() == Some("bbr") && may {
        " -C reno"
    } else {
        ""
    }
}

fn sysctl(name: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new("/proc/sys/net/ipv4").join(name)).ok()?;
    Some(text.trim().to_owned())
}

/// Makes nginx's configuration and the page it serves; returns the configuration's path.
fn nginx_files(scratch: &Path, port: u16) -> io::Result<PathBuf> {
    fs::write(scratch.join("1k"), "x".repeat(1024))?;
    // As root, its workers would become a user who may not read a private directory.
    let user = if is_root() { "user root;\n" } else { "" };
    let dir = scratch.display();
    let text = format!(
        "{user}daemon off;
worker_processes 1;
pid {dir}/nginx.pid;
error_log {dir}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    server {{ listen 127.0.0.1:{port}; root {dir}; }}
}}
"
    );
    let path = scratch.join("nginx.conf");
    fs::write(&path, text)?;
    Ok(path)
}

/// Different ports that are free now.
fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

fn is_root() -> bool {
    // SAFETY: no arguments, no memory.
    unsafe { libc::geteuid() == 0 }
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_and_ports_of_their_own() {
        let scratch = tempfile::tempdir().expect("room for a directory");
        let cases = all(scratch.path(), 1, 1).expect("ports are free");
        let mut names: Vec<&str> = cases.iter().map(|case| case.name).collect();
        names.dedup();
        assert_eq!(names.len(), 7);
        assert!(scratch.path().join("nginx.conf").is_file());
        let [a, b] = free_ports().expect("ports are free");
        assert_ne!(a, b);
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        const NONE: Program = Program {
            name: "toehold-no-such-program",
            package: "none",
        };
        assert!(NONE.path().is_none());
        let sh = Program {
            name: "sh",
            package: "dash",
        };
        assert!(sh.path().is_some());
    }
}
