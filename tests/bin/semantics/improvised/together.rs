//! Turns on a connection with both ends.
//!
//! In most turns one role acts and the other role observes the result. In some turns the acting
//! role waits for the other role: its threads sleep, or it receives more bytes than any buffer
//! holds.
//!
//! ```text
//!   acting role   it can wait ──► prepares ──►                  prints results, tells the count
//!   other role                                sends or ends ──►
//! ```

mod extra;
pub(crate) mod give;
mod sleep;

use super::draw::{Draw, Move};
use super::player::{Did, Player};
use crate::role::{Checksum, ask_harness};
use crate::sys;
use crate::transfer::{RECEIVERS, SENDERS};

/// The end that a turn has closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Neither,
    Ours,
    Theirs,
}

/// Plays one turn. Both roles call this function with equal numbers.
pub(super) fn turn(player: &mut Player, turn: usize, what: Move, draw: &Draw) -> Over {
    let acts = (draw.actor == 0) == player.role.server();
    if what == Move::Operate {
        operate(player, turn, draw);
        return Over::Neither;
    }
    if let Some(joint) = Joint::of(what) {
        if acts {
            let can = (joint.can)(player);
            player.role.tell(u32::from(can));
            if can {
                return (joint.lead)(player, turn, draw);
            }
        } else if player.role.hear() == 1 {
            return (joint.follow)(player, turn, draw);
        }
    }
    if acts {
        let did = player.act(turn, what, draw);
        did.tell(&player.role);
        ours(player, &did)
    } else {
        let did = Did::hear(&player.role);
        theirs(player, &did)
    }
}

/// An operator sends all connections back to the kernel, or lets them move to rings again. The
/// harness is the operator, and only the client can ask it. In most turns connections may move
/// afterwards.
fn operate(player: &mut Player, turn: usize, draw: &Draw) {
    let commands = match draw.which % 4 {
        0 => &["detach"][..],
        1 => &["attach"],
        _ => &["detach", "attach"],
    };
    if !player.role.server() {
        for command in commands {
            ask_harness(command);
            player.say(turn, "the operator", command);
        }
    }
    player.role.step();
    // The owner of a registration changes, so an edge may be reported once more.
    player.exact_edges = false;
}

/// Updates the state after this role has acted.
pub(super) fn ours(player: &mut Player, did: &Did) -> Over {
    if did.closed {
        return Over::Ours;
    }
    player.note(did);
    Over::Neither
}

/// Updates the state after the other role has acted.
fn theirs(player: &mut Player, did: &Did) -> Over {
    player.hear(did);
    match did.closed {
        true => Over::Theirs,
        false => Over::Neither,
    }
}

/// A turn in which both roles take part.
struct Joint {
    /// Whether the acting role can wait for the other role.
    can: fn(&Player) -> bool,
    lead: fn(&mut Player, usize, &Draw) -> Over,
    follow: fn(&mut Player, usize, &Draw) -> Over,
}

impl Joint {
    fn of(what: Move) -> Option<&'static Joint> {
        match what {
            Move::Sleep => Some(&Joint {
                can: |player| player.waits_for(usize::MAX),
                lead: sleep::lead,
                follow: sleep::follow,
            }),
            Move::Bulk => Some(&Joint {
                // The last part of the bytes may be less than the low-water mark.
                can: |player| player.waits_for(usize::MAX) && player.low_water == 1,
                lead: take_bulk,
                follow: send_bulk,
            }),
            Move::Extra => Some(&Joint {
                can: |player| player.waits_for(usize::MAX),
                lead: extra::lead,
                follow: extra::follow,
            }),
            Move::Give => Some(&Joint {
                // The child's bytes may be fewer than the low-water mark.
                can: |player| player.waits_for(usize::MAX) && player.low_water == 1,
                lead: give::lead,
                follow: give::follow,
            }),
            _ => None,
        }
    }
}

/// The number of bytes in one bulk turn.
fn bulk_len(draw: &Draw) -> usize {
    100_000 + draw.which as usize * 40
}

/// After this many calls of a bulk turn, some calls may move [`BULK_PART_LEN`] bytes.
const BULK_SMALL_CALLS: usize = 2_000;
const BULK_PART_LEN: usize = 16_384;

/// The number of bytes that a call may move, after `calls` calls of a bulk turn. All calls have the
/// length that was drawn, until there have been thousands. From then on one of seven is longer:
/// otherwise two million bytes would go byte by byte. Seven has no factor in common with the
/// numbers of the ways to send and to receive, so each way has calls of both lengths.
fn bulk_part_len(calls: usize, drawn: usize) -> usize {
    if calls > BULK_SMALL_CALLS && calls.is_multiple_of(7) {
        drawn.max(BULK_PART_LEN)
    } else {
        drawn
    }
}

fn take_bulk(player: &mut Player, turn: usize, draw: &Draw) -> Over {
    player.role.tell(player.unread as u32);
    // The length includes bytes that were unread before.
    let len = bulk_len(draw) + player.unread;
    let mut sum = Checksum::default();
    let drawn = 1 + draw.len * 4;
    let mut part = vec![0; drawn.max(BULK_PART_LEN)];
    let (mut taken, mut calls) = (0, 0);
    while taken < len {
        let way = calls + draw.how as usize;
        let (name, receiver) = RECEIVERS[way % RECEIVERS.len()];
        calls += 1;
        let want = bulk_part_len(calls, drawn).min(len - taken);
        let fd = player.fds[(way + 1) % player.fds.len()];
        let result = receiver(fd, &mut part[..want]);
        if result.is(libc::EAGAIN) {
            crate::role::await_events(player.fds[0], libc::POLLIN);
            continue;
        }
        assert!(
            result.value() > 0,
            "{name} found an end at {taken} of {len}"
        );
        sum.add(&part[..result.len()]);
        taken += result.len();
    }
    player.say(turn, "takes a lot", format!("{taken} {sum}"));
    player.unread = 0;
    Over::Neither
}

fn send_bulk(player: &mut Player, turn: usize, draw: &Draw) -> Over {
    assert_eq!(player.role.hear() as usize, player.theirs_unread);
    player.theirs_unread = 0;
    let bytes = player.stream(bulk_len(draw));
    let (mut sent, mut calls) = (0, 0);
    while sent < bytes.len() {
        let way = calls + draw.how as usize;
        calls += 1;
        let len = bulk_part_len(calls, 2 + draw.len * 8);
        let part = &bytes[sent..bytes.len().min(sent + len)];
        // The call that sends two messages needs an even length.
        let (_, sender) = SENDERS[way % if part.len().is_multiple_of(2) { 8 } else { 5 }];
        let fd = player.fds[(way + 1) % player.fds.len()];
        let result = sender(fd, part);
        if result.is(libc::EAGAIN) {
            crate::role::await_events(fd, libc::POLLOUT);
            continue;
        }
        sent += usize::try_from(result.value()).expect("not negative");
    }
    player.sent += sent;
    player.say(turn, "sends a lot", sent);
    if player.role.is_over_network() {
        // The last acknowledgements are on their way when the other role has all bytes.
        crate::role::await_events(player.fds[0], libc::POLLOUT);
    }
    Over::Neither
}

/// Closes the descriptors that a turn has opened.
fn close_all(fds: &[sys::Fd]) {
    for &fd in fds {
        sys::close(fd).value();
    }
}
