//! A child of the role executes a program that uses the connection. The program is this program
//! again, with the library or without it. The child inherits the connection or receives it by
//! `SCM_RIGHTS`. The program sends some bytes and receives some bytes from the other role.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::{Over, close_all, sleep};
use crate::descriptors::{receive_descriptor, send_descriptor};
use crate::improvised::draw::{Draw, pick};
use crate::improvised::player::{Did, Player};
use crate::role::{Checksum, await_events};
use crate::sys::{self, Fd};

/// The way in which a child gets the connection, and whether the child has the library.
#[derive(Clone, Copy, Debug)]
enum Gift {
    Inherited,
    InheritedWithoutLibrary,
    Sent,
    SentWithoutLibrary,
}

const GIFTS: &[Gift] = &[
    Gift::Inherited,
    Gift::InheritedWithoutLibrary,
    Gift::Sent,
    Gift::SentWithoutLibrary,
];

impl Gift {
    fn is_sent(self) -> bool {
        matches!(self, Gift::Sent | Gift::SentWithoutLibrary)
    }

    fn has_library(self) -> bool {
        matches!(self, Gift::Inherited | Gift::Sent)
    }
}

/// The number of bytes that the child receives.
fn wanted(draw: &Draw) -> usize {
    1 + draw.len
}

pub(super) fn lead(player: &mut Player, turn: usize, draw: &Draw) -> Over {
    player.exact_edges = false;
    let taken = sleep::take_all(player, turn);
    player.role.tell(taken as u32);
    let gift = pick(GIFTS, draw.which);
    let fd = player.fds[draw.fd % player.fds.len()];
    let bytes = player.next_bytes(draw.how as usize % 3000);
    let (ours, theirs) = pair();
    let handed = if gift.is_sent() { theirs } else { fd };
    // Let the child inherit the descriptor across exec(2).
    for inherited in [fd, theirs] {
        sys::fcntl(inherited, libc::F_SETFD, 0).value();
    }
    let program = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(program);
    command.args([
        "executed",
        "given",
        if gift.is_sent() { "sent" } else { "inherited" },
    ]);
    command.args([handed.to_string(), wanted(draw).to_string()]);
    if !gift.has_library() {
        command.env_remove("LD_PRELOAD");
    }
    if draw.how & 1024 != 0 {
        // With a `pre_exec` hook the child is made by fork(2), not by posix_spawn(3).
        // SAFETY: the hook does nothing.
        unsafe { command.pre_exec(|| Ok(())) };
    }
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    if gift.is_sent() {
        send_descriptor(ours, fd).value();
    }
    let mut input = child.stdin.take().expect("piped");
    input.write_all(&bytes).expect("there is room");
    drop(input);
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut sent = String::new();
    output.read_line(&mut sent).expect("text");
    let count = sent.trim().parse().unwrap_or(0);
    player.sent += count;
    player.note_sent(count);
    player.role.tell(count as u32);
    let did = Did::hear(&player.role);
    let mut got = String::new();
    output.read_to_string(&mut got).expect("text");
    let ended = child.wait().expect("a child");
    close_all(&[ours, theirs]);
    let seen = format!(
        "{} of {}, {got} of {}, {ended}",
        sent.trim(),
        bytes.len(),
        did.sent
    );
    player.say(turn, &format!("{gift:?} by a child"), seen);
    player.role.tell(0);
    Over::Neither
}

pub(super) fn follow(player: &mut Player, turn: usize, draw: &Draw) -> Over {
    player.exact_edges = false;
    player.theirs_unread -= player.role.hear() as usize;
    player.unread += player.role.hear() as usize;
    player.role.arrived(player.fds[0], player.unread);
    let mut did = Did::default();
    let fd = player.fds[draw.call as usize % player.fds.len()];
    let send = Draw {
        len: wanted(draw),
        ..*draw
    };
    let (call, seen) = player.send(fd, &send, &mut did);
    player.say(turn, &format!("{call} for a child"), seen);
    did.tell(&player.role);
    player.role.hear();
    Over::Neither
}

/// A pair of connected sockets that is not under test.
fn pair() -> (Fd, Fd) {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    let made = unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
            ends.as_mut_ptr(),
        )
    };
    sys::ret(made).value();
    (ends[0], ends[1])
}

/// The program that the child executes. It sends its standard input and prints the number of bytes
/// sent. Then it receives `wanted` bytes and prints their checksum.
pub(crate) fn given(how: &str, number: Fd, wanted: usize) {
    let fd = match how {
        "sent" => receive_descriptor(number),
        _ => number,
    };
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).expect("bytes");
    let sent = match bytes.is_empty() {
        true => "0".to_owned(),
        false => sys::send(fd, &bytes, 0).to_string(),
    };
    println!("{sent}");
    let mut bytes = vec![0; wanted];
    let mut taken = 0;
    while taken < wanted {
        let result = sys::recv(fd, &mut bytes[taken..], 0);
        match result.0 {
            Err(libc::EAGAIN) => await_events(fd, libc::POLLIN),
            Ok(1..) => taken += result.len(),
            _ => {
                print!("{result} at ");
                break;
            }
        }
    }
    print!("{taken} {}", Checksum::of(&bytes[..taken]));
}
