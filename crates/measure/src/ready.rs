//! Detects when a freshly started server can be measured.

use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{self, Launch, Program};
use crate::{procfs, shell};

/// The way in which readiness is detected.
#[derive(Clone, Debug, PartialEq)]
pub enum Ready {
    /// Some process of the server listens on a TCP port; or on a Unix socket, and for half a second
    /// on no TCP port.
    Listens,
    /// A socket listens on this TCP port. This is read from the kernel's tables: a test connection
    /// would disturb some benchmark servers, which take it for their client.
    TcpPort(u16),
    /// A connection to this host and port succeeds.
    Tcp(String, u16),
    /// A connection to this socket succeeds.
    Unix(PathBuf),
    /// This much time has passed.
    Sleep(Duration),
    /// This command succeeds.
    Command(String),
}

impl FromStr for Ready {
    type Err = String;

    fn from_str(text: &str) -> Result<Ready, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let port = |text: &str| -> Result<u16, String> {
            match text.parse() {
                Ok(port) if port > 0 => Ok(port),
                _ => Err(format!("\"{text}\" is not a port between 1 and 65535")),
            }
        };
        match kind {
            "listens" if rest.is_empty() => Ok(Ready::Listens),
            "tcp" => match rest.rsplit_once(':') {
                None => Ok(Ready::TcpPort(port(rest)?)),
                Some((host, number)) => {
                    let host = host.trim_start_matches('[').trim_end_matches(']');
                    Ok(Ready::Tcp(host.to_owned(), port(number)?))
                }
            },
            "unix" if !rest.is_empty() => Ok(Ready::Unix(rest.into())),
            "cmd" if !rest.is_empty() => Ok(Ready::Command(rest.to_owned())),
            "sleep" => match rest.parse::<f64>().map(Duration::try_from_secs_f64) {
                Ok(Ok(duration)) => Ok(Ready::Sleep(duration)),
                _ => Err(format!("\"{rest}\" is not a number of seconds")),
            },
            _ => Err(
                "use listens, tcp:PORT, tcp:HOST:PORT, unix:PATH, cmd:COMMAND or sleep:SECONDS"
                    .to_owned(),
            ),
        }
    }
}

impl Ready {
    /// Checks that the port is free before our server starts, so that no other server is measured.
    ///
    /// # Errors
    ///
    /// A sentence that names the port.
    pub fn check_free(&self) -> Result<(), String> {
        let (Ready::TcpPort(port) | Ready::Tcp(_, port)) = self else {
            return Ok(());
        };
        let local = match self {
            Ready::Tcp(host, _) => matches!(host.as_str(), "localhost" | "127.0.0.1" | "::1"),
            _ => true,
        };
        if local
            && procfs::listening_sockets()
                .values()
                .any(|taken| taken == port)
        {
            return Err(format!(
                "something already listens on port {port}; stop it, or give the server another port"
            ));
        }
        Ok(())
    }

    /// Waits until `server` is ready.
    ///
    /// # Errors
    ///
    /// A sentence, when the server ends first or is not ready in time, or when the command cannot
    /// be executed.
    pub fn wait(&self, server: &mut Program, timeout: Duration) -> Result<(), String> {
        let started = Instant::now();
        let limit = match self {
            Ready::Sleep(duration) => duration.saturating_add(timeout),
            _ => timeout,
        };
        let mut pause = PAUSE_MIN;
        let mut on_unix_since = None;
        loop {
            if let Some(ended) = server.poll() {
                let words = server.last_words();
                return Err(format!(
                    "the server {} before it was ready:\n  {words}",
                    ended.words()
                ));
            }
            let ready = match self {
                Ready::Sleep(duration) => started.elapsed() >= *duration,
                Ready::Listens => is_listening(server, &mut on_unix_since),
                _ => self.probe(server, limit.saturating_sub(started.elapsed()))?,
            };
            if ready {
                return Ok(());
            }
            if process::interrupted() {
                return Err("interrupted".to_owned());
            }
            if started.elapsed() > limit {
                let words = server.last_words();
                return Err(format!(
                    "the server was not ready ({self}) within {} s; its last words:\n  {words}",
                    timeout.as_secs_f64()
                ));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Looks once. A command may take `left`.
    fn probe(&self, server: &Program, left: Duration) -> Result<bool, String> {
        Ok(match self {
            Ready::TcpPort(port) => procfs::listening_sockets()
                .values()
                .any(|listening| listening == port),
            Ready::Tcp(host, port) => {
                let Ok(mut addresses) = (host.as_str(), *port).to_socket_addrs() else {
                    return Ok(false);
                };
                addresses.any(|address| TcpStream::connect_timeout(&address, PROBE_TIMEOUT).is_ok())
            }
            Ready::Unix(path) => UnixStream::connect(path).is_ok(),
            Ready::Command(command) => {
                let launch = Launch {
                    words: &shell::words(command),
                    cores: None,
                    output: server.output_beside("ready"),
                    tracepoint: None,
                };
                let started = Program::start(&launch);
                let mut command = started.map_err(|error| format!("cannot run {self}: {error}"))?;
                let ended = command.wait_until(Instant::now() + left);
                ended.is_some_and(|ended| ended.succeeded())
            }
            Ready::Listens | Ready::Sleep(_) => false,
        })
    }
}

/// [`Ready::Listens`]. Many servers listen on a Unix socket for their operator first, and then on
/// the port that clients use.
fn is_listening(server: &Program, on_unix_since: &mut Option<Instant>) -> bool {
    let family = server.family();
    let sockets = family
        .iter()
        .flat_map(|it| procfs::socket_inodes(it.pid))
        .collect::<Vec<u64>>();
    let on_tcp = procfs::listening_sockets();
    if sockets.iter().any(|inode| on_tcp.contains_key(inode)) {
        return true;
    }
    let on_unix = procfs::listening_unix_sockets();
    if !sockets.iter().any(|inode| on_unix.contains(inode)) {
        *on_unix_since = None;
        return false;
    }
    on_unix_since.get_or_insert_with(Instant::now).elapsed() >= UNIX_ALONE
}

impl std::fmt::Display for Ready {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ready::Listens => out.write_str("listens"),
            Ready::TcpPort(port) => write!(out, "tcp:{port}"),
            Ready::Tcp(host, port) => write!(out, "tcp:{host}:{port}"),
            Ready::Unix(path) => write!(out, "unix:{}", path.display()),
            Ready::Sleep(duration) => write!(out, "sleep:{}", duration.as_secs_f64()),
            Ready::Command(command) => write!(out, "cmd:{command}"),
        }
    }
}

/// A server that listens on a Unix socket and on no TCP port for this long uses no TCP port.
const UNIX_ALONE: Duration = Duration::from_millis(500);
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_shown() {
        for text in [
            "listens",
            "tcp:80",
            "tcp:localhost:80",
            "unix:/a/b",
            "sleep:0.5",
            "cmd:pg_isready -q",
        ] {
            let ready: Ready = text.parse().expect(text);
            assert_eq!(ready.to_string(), text);
        }
        assert_eq!("tcp:[::1]:80".parse(), Ok(Ready::Tcp("::1".to_owned(), 80)));
    }

    #[test]
    fn nonsense_is_refused_with_the_forms() {
        for text in [
            "",
            "tcp",
            "tcp:",
            "tcp:0",
            "tcp:70000",
            "tcp:http",
            "unix:",
            "sleep:-1",
            "sleep:x",
            "udp:5",
            "cmd:",
        ] {
            assert!(text.parse::<Ready>().is_err(), "{text}");
        }
        assert!("udp:5".parse::<Ready>().unwrap_err().contains("tcp:PORT"));
    }

    #[test]
    fn a_taken_port_is_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its number").port();
        assert!(
            Ready::TcpPort(port)
                .check_free()
                .unwrap_err()
                .contains(&port.to_string())
        );
        assert!(
            Ready::Tcp("localhost".to_owned(), port)
                .check_free()
                .is_err()
        );
        assert!(
            Ready::Tcp("elsewhere.example".to_owned(), port)
                .check_free()
                .is_ok()
        );
        drop(listener);
        assert!(Ready::TcpPort(port).check_free().is_ok());
    }
}
