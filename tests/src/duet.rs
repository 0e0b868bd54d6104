//! One case of the semantics suite: two roles in two processes, one transcript.
//!
//! The roles are started by us and meet on a socket pair beside the connection under test, on which they
//! tell each other the port and keep in step. A case that wants its connection upgraded before it looks
//! at anything asks us, and we ask `toehold status`.
//!
//! ```text
//!   semantics server CASE ──── connection under test ──── semantics client CASE
//!         └───────────────────── steps (fd 200) ────────────────────┘ └─ oracle (fd 201) ─ this process
//! ```

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::process::{Running, ending, wait_until};
use crate::toehold::{Path, Toehold};

/// The descriptor on which the two roles keep in step.
pub const STEPS_FD: RawFd = 200;
/// The descriptor on which the client asks whether its connection has been upgraded.
pub const ORACLE_FD: RawFd = 201;

/// How each side of a connection is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sides {
    /// The listening program's path.
    pub server: Path,
    /// The connecting program's path.
    pub client: Path,
}

impl Sides {
    /// Both sides plain: the oracle.
    pub const HOST: Sides = Sides {
        server: Path::Host,
        client: Path::Host,
    };
    /// Both sides accelerated.
    pub const DIRECT: Sides = Sides {
        server: Path::Direct,
        client: Path::Direct,
    };
    /// Only the server accelerated.
    pub const SERVER_ONLY: Sides = Sides {
        server: Path::Direct,
        client: Path::Host,
    };
    /// Only the client accelerated.
    pub const CLIENT_ONLY: Sides = Sides {
        server: Path::Host,
        client: Path::Direct,
    };

    /// Whether the connection between them can leave the kernel.
    pub fn pair_up(self) -> bool {
        self == Sides::DIRECT
    }
}

/// What one run of a case left behind.
#[derive(Debug)]
pub struct Duet {
    /// What the case did and saw, side by side; equal on every path.
    pub transcript: Vec<String>,
    /// Connections that the case asked about.
    pub asked: usize,
    /// Those of them that were found upgraded in both directions.
    pub upgraded: usize,
}

impl Duet {
    /// Plays `case` with its server and its client started as `sides` says.
    ///
    /// Never panics over what the roles do: a crash, a hang or a complaint is a line of the transcript.
    ///
    /// # Panics
    /// When the host cannot start the roles at all.
    pub fn play(toehold: &Toehold, sides: Sides, program: &str, case: &str) -> Duet {
        let (server_steps, client_steps) = UnixStream::pair().expect("a socket pair");
        let (oracle, questions) = UnixStream::pair().expect("a socket pair");
        let start = |role: &str, path, descriptors: Vec<(RawFd, RawFd)>| {
            let mut command = toehold.command(path, program);
            command.args([role, case]).env("RUST_BACKTRACE", "0");
            if sides.pair_up() && role == "client" {
                command.env("E2E_ORACLE", "yes");
            }
            inherit(&mut command, descriptors);
            let name = format!("{case}.{role}.{path:?}");
            Running::start(command, &name, toehold.dir())
        };
        let server = start(
            "server",
            sides.server,
            vec![(server_steps.as_raw_fd(), STEPS_FD)],
        );
        let client = start(
            "client",
            sides.client,
            vec![
                (client_steps.as_raw_fd(), STEPS_FD),
                (questions.as_raw_fd(), ORACLE_FD),
            ],
        );
        drop((server_steps, client_steps, questions));
        std::thread::scope(|scope| {
            let answers = scope.spawn(|| answer(toehold, oracle));
            let mut transcript = Vec::new();
            let mut roles = [("server", server), ("client", client)];
            wait_until(CASE_PATIENCE, || {
                roles.iter_mut().all(|(_, role)| role.ended().is_some())
            });
            for (name, role) in &mut roles {
                let end = match role.ended() {
                    Some(status) => ending(status),
                    None => format!("STUCK in {}", role.whereabouts()),
                };
                transcript.extend(role.stdout().lines().map(|line| format!("{name}: {line}")));
                let complaints = role.stderr();
                transcript.extend(complaints.lines().map(|line| format!("{name}! {line}")));
                transcript.push(format!("{name}: {end}"));
            }
            // Ends the roles, and with them the questions.
            drop(roles);
            let (asked, upgraded) = answers.join().expect("the oracle does not panic");
            Duet {
                transcript,
                asked,
                upgraded,
            }
        })
    }

    /// Where this transcript departs from the oracle's, line by line; empty when nowhere.
    pub fn differences(&self, oracle: &Duet) -> Vec<String> {
        let longest = self.transcript.len().max(oracle.transcript.len());
        let line = |duet: &Duet, index: usize| {
            duet.transcript
                .get(index)
                .cloned()
                .unwrap_or_else(|| "(nothing)".into())
        };
        (0..longest)
            .map(|index| (line(oracle, index), line(self, index)))
            .filter(|(expected, got)| expected != got)
            .map(|(expected, got)| format!("expected `{expected}`, got `{got}`"))
            .collect()
    }
}

/// Longer than any case takes; shorter than a reader's patience with a hanging one.
const CASE_PATIENCE: Duration = Duration::from_secs(40);

/// Lets a child have copies of our descriptors under fixed numbers.
fn inherit(command: &mut Command, descriptors: Vec<(RawFd, RawFd)>) {
    let place = move || {
        for &(ours, fixed) in &descriptors {
            // SAFETY: dup2 is async-signal-safe and takes no pointers; `fixed` is beyond every
            // descriptor the runtime holds at this point, between fork and exec.
            if unsafe { libc::dup2(ours, fixed) } < 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure only calls dup2 and does not allocate on success.
    unsafe { command.pre_exec(place) };
}

/// Answers `upgraded PORT` questions until the client is gone; counts questions' final answers.
fn answer(toehold: &Toehold, oracle: UnixStream) -> (usize, usize) {
    let mut replies = oracle.try_clone().expect("a descriptor");
    let (mut asked, mut upgraded) = (0, 0);
    let mut last_port = None;
    for line in BufReader::new(oracle).lines().map_while(Result::ok) {
        let port: u16 = line
            .rsplit(' ')
            .next()
            .and_then(|port| port.parse().ok())
            .unwrap_or(0);
        if last_port != Some(port) {
            asked += 1;
            last_port = Some(port);
        }
        let connections = toehold.connections();
        let ours = connections
            .iter()
            .filter(|connection| connection.has_port(port));
        // Both ends report; both must be there.
        let yes = ours.filter(|connection| connection.is_direct()).count() >= 2;
        if yes {
            upgraded += 1;
        }
        if replies.write_all(if yes { b"y" } else { b"n" }).is_err() {
            break;
        }
    }
    (asked, upgraded)
}
