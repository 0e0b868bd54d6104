//! One case of the semantics suite: two roles in two processes, one transcript.
//!
//! This process starts the roles. They meet on a socket pair beside the connection under test, on
//! which they exchange the port and keep in step. A case that needs its connection upgraded before
//! it continues asks this process, which asks `toehold status`.
//!
//! ```text
//!   semantics server CASE ──── connection under test ──── semantics client CASE
//!         └───────────────── steps (fd 200) ────────────────┘ └─ oracle (fd 201) ─ this process
//! ```

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::process::{Running, ending, wait_until};
use crate::toehold::{Connection, Path, Toehold};

/// The descriptor on which the two roles keep in step.
pub const STEPS_FD: RawFd = 200;
/// The descriptor on which the client asks whether its connection has been upgraded.
pub const ORACLE_FD: RawFd = 201;

/// The adapter's process, for cases that stop it.
pub const ADAPTER: &str = "E2E_ADAPTER";

/// The server's address for IPv4, if the roles do not meet on loopback.
pub const MEET_V4: &str = "E2E_MEET_V4";
/// The server's address for IPv6, if the roles do not meet on loopback.
pub const MEET_V6: &str = "E2E_MEET_V6";

/// Set for roles that meet on a Unix socket.
pub const UNIX: &str = "E2E_UNIX";

/// The start of each side of a connection.
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
    /// Both sides accelerated, on carriers that were used before.
    pub const EXPRESS: Sides = Sides {
        server: Path::Express,
        client: Path::Express,
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
        self == Sides::DIRECT || self == Sides::EXPRESS
    }
}

/// The results of one run of a case.
#[derive(Debug)]
pub struct Duet {
    /// The acts and observations of the case, side by side; equal on every path.
    pub transcript: Vec<String>,
    /// Connections that the case asked about.
    pub asked: usize,
    /// Those of them that were found upgraded in both directions.
    pub upgraded: usize,
    /// Facts that may explain why a role did not end, where one did not.
    pub evidence: Option<String>,
}

/// The options for a case's programs. If a program were patched, its waits would not bypass libc.
pub fn options_of(case: &str) -> &'static [&'static str] {
    match case.contains("past_libc") {
        true => &["--patch-calls", "off"],
        false => &[],
    }
}

impl Duet {
    /// Plays `case` with its server and its client started as `sides` says.
    ///
    /// Does not panic because of the roles: a crash, a hang or a complaint is a line of the
    /// transcript.
    ///
    /// # Panics
    /// When the host cannot start the roles at all.
    pub fn play(toehold: &Toehold, sides: Sides, program: &str, case: &str) -> Duet {
        let command = |path| toehold.command_with(path, options_of(case), program);
        let roles = [sides.server, sides.client].map(command);
        let is_asked = sides.pair_up();
        Duet::play_roles(toehold, roles, case, is_asked.then_some(is_direct))
    }

    /// As [`Duet::play`], by a Unix socket.
    ///
    /// # Panics
    /// As [`Duet::play`].
    pub fn play_on_unix(toehold: &Toehold, sides: Sides, program: &str, case: &str) -> Duet {
        let roles = [sides.server, sides.client].map(|path| {
            let mut command = toehold.command(path, program);
            command.env(UNIX, "yes");
            command
        });
        let is_asked = sides.pair_up();
        Duet::play_roles(toehold, roles, case, is_asked.then_some(is_direct))
    }

    /// As [`Duet::play`], with a server and a client of the caller's; where `is_upgraded` is given
    /// they wait until it holds of their connection's ends.
    ///
    /// # Panics
    /// As [`Duet::play`].
    pub fn play_roles(
        toehold: &Toehold,
        [server, client]: [Command; 2],
        case: &str,
        is_upgraded: Option<Upgraded>,
    ) -> Duet {
        let (server_steps, client_steps) = UnixStream::pair().expect("a socket pair");
        let (oracle, questions) = UnixStream::pair().expect("a socket pair");
        let asking = oracle.try_clone().expect("a descriptor");
        let start = |role: &str, mut command: Command, descriptors: Vec<(RawFd, RawFd)>| {
            command.args([role, case]).env("RUST_BACKTRACE", "0");
            if is_upgraded.is_some() && role == "client" {
                command.env("E2E_ORACLE", questions_max(case).to_string());
            }
            inherit(&mut command, descriptors);
            Running::start(command, &format!("{case}.{role}"), toehold.dir())
        };
        let server = start("server", server, vec![(server_steps.as_raw_fd(), STEPS_FD)]);
        let client = start(
            "client",
            client,
            vec![
                (client_steps.as_raw_fd(), STEPS_FD),
                (questions.as_raw_fd(), ORACLE_FD),
            ],
        );
        drop((server_steps, client_steps, questions));
        std::thread::scope(|scope| {
            let is_upgraded = is_upgraded.unwrap_or(is_direct);
            let answers = scope.spawn(move || answer(toehold, oracle, is_upgraded));
            let mut transcript = Vec::new();
            let mut roles = [("server", server), ("client", client)];
            let mut said = [0; 2];
            for _ in 0..SILENCES_MAX {
                let have_ended = wait_until(SILENCE_MAX, || {
                    roles.iter_mut().all(|(_, role)| role.ended().is_some())
                });
                let now = roles.each_ref().map(|(_, role)| role.stdout().len());
                if have_ended || now == said {
                    break;
                }
                said = now;
            }
            let is_stuck = roles.iter_mut().any(|(_, role)| role.ended().is_none());
            let evidence = is_stuck.then(|| evidence(toehold, &roles));
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
            // Ends the roles, and with them the questions, even if another process has the socket.
            drop(roles);
            let _ = asking.shutdown(Shutdown::Both);
            let (asked, upgraded) = answers.join().expect("the oracle does not panic");
            Duet {
                transcript,
                asked,
                upgraded,
                evidence,
            }
        })
    }

    /// The first line that differs from the oracle's, with the previous actions of both roles, by
    /// the numbers at the beginning of their lines; `None` when no line differs.
    pub fn first_difference(&self, oracle: &[String]) -> Option<String> {
        const SHOWN: usize = 60;
        let turn = |line: &String| -> Option<usize> {
            let (_, said) = line.split_once(": ")?;
            said.split(' ').next()?.parse().ok()
        };
        let mut same = 0;
        while self.transcript.get(same) == oracle.get(same) {
            same += 1;
            if same >= self.transcript.len().max(oracle.len()) {
                return None;
            }
        }
        // This transcript may go on where the oracle's has ended.
        let last = oracle.iter().take(same + 1).rev().find_map(turn);
        let mut before: Vec<&String> = oracle.iter().collect();
        before.retain(|line| turn(line).is_some_and(|turn| Some(turn) < last));
        before.sort_by_key(|line| turn(line));
        let before = before[before.len().saturating_sub(SHOWN)..].to_vec();
        let got = self
            .transcript
            .iter()
            .skip(same)
            .take(4)
            .collect::<Vec<_>>();
        let expected = oracle.get(same);
        let evidence = self.evidence.as_deref().unwrap_or_default();
        Some(format!(
            "{before:#?}\n  expected {expected:?}\n  got      {got:?}\n{evidence}"
        ))
    }

    /// Where this transcript departs from the oracle's, line by line; empty when nowhere.
    pub fn differences(&self, oracle: &[String]) -> Vec<String> {
        let longest = self.transcript.len().max(oracle.len());
        let line = |transcript: &[String], index: usize| {
            let line = transcript.get(index).cloned();
            line.unwrap_or_else(|| "(nothing)".into())
        };
        (0..longest)
            .map(|index| (line(oracle, index), line(&self.transcript, index)))
            .filter(|(expected, got)| expected != got)
            .map(|(expected, got)| format!("expected `{expected}`, got `{got}`"))
            .collect()
    }
}

/// A transcript without lines about one of `calls`.
pub fn without(transcript: &[String], calls: &[&str]) -> Vec<String> {
    let is_about = |line: &String| {
        let mut calls = calls.iter();
        calls.any(|call| line.contains(&format!(" {call} -> ")))
    };
    let others = transcript.iter().filter(|line| !is_about(line));
    others.cloned().collect()
}

/// The condition on a connection's ends, as `toehold status` shows them, before it counts as
/// upgraded.
pub type Upgraded = fn(&[&Connection]) -> bool;

/// Both ends report; both must be there.
fn is_direct(ends: &[&Connection]) -> bool {
    ends.iter().filter(|end| end.is_direct()).count() >= 2
}

/// A role that is silent for longer hangs, however busy the host is.
const SILENCE_MAX: Duration = Duration::from_secs(40);
/// A role that still says something after so many of these times goes round in a loop.
const SILENCES_MAX: usize = 15;

/// The number of times that a case's client asks whether its connection has been upgraded, before
/// it continues without an upgrade.
fn questions_max(case: &str) -> usize {
    match MAY_STAY.iter().any(|(of, _)| *of == case) {
        true => 20,
        // They take more than a second.
        false => 240,
    }
}

/// The time that a client that has been told no waits before it sends more and asks again.
const UNTIL_ASKED_AGAIN: Duration = Duration::from_millis(5);

/// Evidence about roles of which one does not end: both ends of all their connections, by the
/// adapter and by the kernel, and their last output.
fn evidence(toehold: &Toehold, roles: &[(&str, Running)]) -> String {
    let mut evidence = format!("STUCK; toehold status: {:#}\n", toehold.known());
    for (name, role) in roles {
        let (group, outputs) = (role.evidence(), role.outputs());
        evidence += &format!("{name}:\n{group}{outputs}");
    }
    evidence
}

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

/// Answers `upgraded PORT` questions until the client is gone; counts questions' final answers. Is
/// the operator, too, at the client's word: `detach`, `attach`.
fn answer(toehold: &Toehold, oracle: UnixStream, is_upgraded: Upgraded) -> (usize, usize) {
    let mut replies = oracle.try_clone().expect("a descriptor");
    let (mut asked, mut upgraded) = (0, 0);
    let mut last_port = None;
    for line in BufReader::new(oracle).lines().map_while(Result::ok) {
        let operator: Option<fn(&Toehold) -> u32> = match line.as_str() {
            "detach" => Some(Toehold::detach_all),
            "attach" => Some(Toehold::attach_all),
            _ => None,
        };
        if let Some(act) = operator {
            act(toehold);
            if replies.write_all(b"y").is_err() {
                break;
            }
            continue;
        }
        let port: u16 = line
            .rsplit(' ')
            .next()
            .and_then(|port| port.parse().ok())
            .unwrap_or(0);
        // Another connection, or the next one where none has a port.
        if last_port != Some(port) {
            asked += 1;
        }
        let connections = toehold.known_connections();
        let ours = connections.iter().filter(|one| one.has_port(port));
        let yes = is_upgraded(&ours.collect::<Vec<_>>());
        last_port = (!yes).then_some(port);
        if yes {
            upgraded += 1;
        } else {
            std::thread::sleep(UNTIL_ASKED_AGAIN);
        }
        if replies.write_all(if yes { b"y" } else { b"n" }).is_err() {
            break;
        }
    }
    (asked, upgraded)
}

/// A place where a case's transcript may differ from the kernel's, and the reason.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// The case.
    pub case: &'static str,
    /// A part of the line that differs.
    pub line: &'static str,
    /// The reason why it may.
    pub reason: &'static str,
}

impl Difference {
    /// Whether it is about this line of this case.
    pub fn explains(&self, case: &str, line: &str) -> bool {
        self.case == case && line.contains(self.line)
    }
}

/// The abilities of the kernel that rings lack.
pub const DIFFERENCES_OF_RINGS: &[Difference] = &[
    Difference {
        case: "bad_pointers_fault_and_lose_nothing",
        line: "",
        reason: "rings are memory: a bad pointer is a fault of the program, as libc may treat it, \
                 and no error of the call",
    },
    Difference {
        case: "close_while_another_thread_receives",
        line: "",
        reason: "a descriptor closed under a thread that sleeps in a call on it: \
                 that thread gets EBADF",
    },
    Difference {
        case: "handler_that_uses_the_socket_does_not_deadlock",
        line: "",
        reason: "a signal handler that sends on the socket its thread is sending on in that moment \
                 gets EAGAIN",
    },
];

/// Cases that are not played on Unix sockets, by a part of their names, and why.
pub const ONLY_TCP: &[(&str, &str)] = &[
    ("_ipv6", "a family of its own"),
    (
        "both_write_before_either",
        "the kernel's buffers are too small for it, and it hangs there",
    ),
    (
        "error_queue_is_empty",
        "a Unix socket has no such queue, and the case hangs on the kernel",
    ),
    ("without_a_copy", "a Unix socket has no such sends"),
    ("into_a_mapping", "a Unix socket has no such receives"),
    (
        "shutdown_for_reading_reads_eof",
        "a writer to that end gets EPIPE: `unix` has a case",
    ),
    (
        "epoll_inside_an_epoll_inside_an_epoll",
        "one role ends before the other has looked",
    ),
    ("child_in_another_pid_namespace", "it reads TCP_INFO"),
    ("rate_that_the_program_sets", "a Unix socket has none"),
    ("executed_program_goes_on_for_long", "it sets TCP_NODELAY"),
];

/// Cases whose connection may stay with the kernel although both sides are accelerated, and why.
pub const MAY_STAY: &[(&str, &str)] = &[
    (
        "stream_opened_before_the_traffic_goes_on",
        "a connection that has been given to stdio is left there",
    ),
    (
        "member_of_one_instance_among_many_hundreds",
        "a member of an instance that the library does not know is left on the kernel",
    ),
];

/// Hands `$name: claim` of every group of the semantics suite, the claim being what the group's
/// test is called, to a macro.
#[macro_export]
macro_rules! each_semantics_group {
    ($with:ident) => {
        $with! {
            connecting: connections_come_about_as_on_the_kernel,
            transfer: every_call_moves_bytes_as_on_the_kernel,
            flags: every_flag_means_what_it_means_on_the_kernel,
            faults: bad_pointers_are_refused_as_by_the_kernel,
            aliases: second_names_of_calls_do_as_the_first,
            blocking: calls_wait_as_long_as_on_the_kernel,
            interrupts: signals_interrupt_as_on_the_kernel,
            ending: connections_end_as_on_the_kernel,
            readiness: poll_and_select_tell_what_the_kernel_tells,
            epoll: epoll_tells_what_the_kernel_tells,
            descriptors: descriptors_mean_what_they_mean_on_the_kernel,
            processes: families_of_processes_share_as_on_the_kernel,
            exec: programs_that_replace_themselves_keep_their_connections,
            threads: threads_share_as_on_the_kernel,
            files: files_and_pipes_meet_sockets_as_on_the_kernel,
            stdio: stdio_reads_and_writes_as_on_the_kernel,
            many: many_connections_are_served_as_on_the_kernel,
            unix: unix_sockets_do_as_on_the_kernel,
        }
    };
}

/// The names of one group's cases; with TOEHOLD_CASE set, of those whose names contain it.
///
/// # Panics
/// When the suite does not run.
pub fn cases(program: &str, group: &str) -> Vec<String> {
    let list = Command::new(program).arg("list").output();
    let list = String::from_utf8(list.expect("the suite runs").stdout).expect("names are text");
    let lines = list.lines().filter_map(|line| line.split_once(' '));
    let only = std::env::var("TOEHOLD_CASE").unwrap_or_default();
    lines
        .filter(|(of, name)| *of == group && name.contains(&only))
        .map(|(_, name)| name.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(said: &[&str]) -> Vec<String> {
        said.iter().map(|&line| line.to_owned()).collect()
    }

    #[test]
    fn transcript_that_goes_on_where_the_oracle_has_ended_differs() {
        let (oracle, longer) = (["server: 1 read", "client: 2 sent"], "server: 3 more");
        let duet = |said: &[&str]| Duet {
            transcript: lines(said),
            asked: 0,
            upgraded: 0,
            evidence: None,
        };
        let expected = lines(&oracle);
        assert_eq!(duet(&oracle).first_difference(&expected), None);
        for said in [&oracle[..1], &[oracle[0], oracle[1], longer]] {
            let difference = duet(said).first_difference(&expected);
            let difference = difference.expect("one transcript is longer");
            assert!(difference.contains(oracle[0]), "{difference}");
        }
    }
}
