//! Data beside the byte stream: an urgent byte on TCP, a descriptor on a Unix socket.
//!
//! The role that gets the extra data receives all bytes, call by call. The sizes of these calls
//! show at which position the extra data arrived.

use super::Over;
use crate::improvised::draw::Draw;
use crate::improvised::player::Player;
use crate::role::Checksum;
use crate::sys;
use crate::unix::{receive_with, send_pipe};

/// The largest number of calls that receive all bytes, each with a large buffer.
const CALLS_MAX: usize = 1000;

pub(super) fn lead(player: &mut Player, turn: usize, draw: &Draw) -> Over {
    player.exact_edges = false;
    player.role.tell(0);
    let sent = player.role.hear() as usize;
    let fd = player.fds[draw.fd % player.fds.len()];
    if player.role.family == libc::AF_UNIX {
        player.role.arrived(fd, player.unread + sent);
    } else if sent > 0 {
        let (result, _) = sys::poll(&[(fd, libc::POLLPRI)], 20_000);
        assert_eq!(result.value(), 1, "the urgent byte never came");
        let mut byte = [0];
        let result = sys::recv(fd, &mut byte, libc::MSG_OOB);
        player.say(turn, "urgent", format!("{result} {byte:?}"));
    }
    for _ in 0..CALLS_MAX {
        let got = match player.role.family {
            libc::AF_UNIX => receive_with(fd, 20_000, libc::MSG_DONTWAIT),
            _ => {
                let mut bytes = vec![0; 20_000];
                let result = sys::recv(fd, &mut bytes, libc::MSG_DONTWAIT);
                format!("{result} {}", Checksum::of(&bytes[..result.len()]))
            }
        };
        player.say(turn, "takes", &got);
        if !got.starts_with(|first: char| first.is_ascii_digit()) || got.starts_with("0 ") {
            break;
        }
    }
    player.unread = 0;
    Over::Neither
}

pub(super) fn follow(player: &mut Player, turn: usize, draw: &Draw) -> Over {
    player.exact_edges = false;
    player.role.hear();
    let bytes = player.stream(1 + draw.len % 64);
    let fd = player.fds[draw.how as usize % player.fds.len()];
    let result = match player.role.family {
        libc::AF_UNIX => send_pipe(fd, &bytes, b"gift"),
        _ => sys::send(fd, &bytes, libc::MSG_OOB),
    };
    player.say(turn, "sends something extra", result);
    player.sent += result.len();
    player.role.tell(result.len() as u32);
    player.theirs_unread = 0;
    Over::Neither
}
