//! Threads of a role sleep on the connection, each in its own type of call, until the other role
//! sends or ends the connection. Meanwhile signals interrupt the threads, or descriptors of the
//! connection are opened and closed.

use std::os::unix::thread::JoinHandleExt;
use std::time::Duration;

use super::{Over, close_all, ours};
use crate::improvised::draw::{Draw, pick};
use crate::improvised::player::{Did, Player};
use crate::interrupts;
use crate::role::Checksum;
use crate::sleeper::Sleeper;
use crate::sys::{self, Fd};

const IN: i32 = libc::EPOLLIN | libc::EPOLLRDHUP;

/// The call that a thread sleeps in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    Poll,
    Ppoll,
    Select,
    Pselect,
    /// An epoll instance with the connection, registered with these flags.
    Instance(i32),
    /// An epoll instance that has such an instance as its member.
    Around,
    PollOfInstance,
    Peek,
    /// Receives bytes, but leaves some for all other threads.
    Take,
    Splice,
}

const WAITS: &[Wait] = &[
    Wait::Poll,
    Wait::Ppoll,
    Wait::Select,
    Wait::Pselect,
    Wait::Instance(0),
    Wait::Instance(libc::EPOLLET),
    Wait::Instance(libc::EPOLLONESHOT),
    Wait::Instance(libc::EPOLLEXCLUSIVE),
    Wait::Around,
    Wait::PollOfInstance,
    Wait::Peek,
    Wait::Take,
    Wait::Splice,
];

/// An event during the sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// A signal that interrupts every call.
    Signal,
    /// A signal after which a receive continues.
    SignalToRestart,
    /// A descriptor of the connection is opened or closed.
    Number,
}

/// The lowest new number. Smaller numbers belong to the sleepers, which may still be opening their
/// instances.
const NUMBERS_BESIDE_SLEEPERS: Fd = 100;

/// No other code uses this signal.
const SIGNAL: i32 = libc::SIGUSR2;

pub(super) fn lead(player: &mut Player, turn: usize, draw: &Draw) -> Over {
    let taken_before = take_all(player, turn);
    player.role.tell(taken_before as u32);
    // Enough bytes stay to wake the threads that only look: one byte more than the low-water mark.
    let take = draw.len.clamp(1, 5000);
    player.role.tell((take + player.low_water) as u32);
    let meanwhile = pick(
        &[
            Meanwhile::Nothing,
            Meanwhile::Nothing,
            Meanwhile::Signal,
            Meanwhile::SignalToRestart,
            Meanwhile::Number,
        ],
        draw.which,
    );
    let waits = chosen(draw, meanwhile);
    let fd = player.fds[draw.fd % player.fds.len()];
    let nonblocking = sys::fcntl(fd, libc::F_GETFL, 0).value() as i32 & libc::O_NONBLOCK != 0;
    let sleepers: Vec<(Wait, Sleeper<Slept>)> = waits
        .into_iter()
        .filter(|wait| !(nonblocking && wait.receives()))
        .map(|wait| (wait, Sleeper::start_soon(move || wait.sleep(fd, take))))
        .collect();
    match meanwhile {
        Meanwhile::Nothing => {}
        Meanwhile::Number => {
            let (call, seen) = player.duplicate_or_close(draw, NUMBERS_BESIDE_SLEEPERS);
            player.say(turn, &format!("{call} beside sleepers"), seen);
        }
        Meanwhile::Signal => interrupt(&sleepers, 0),
        Meanwhile::SignalToRestart => interrupt(&sleepers, libc::SA_RESTART),
    }
    player.role.tell(0);
    let did = Did::hear(&player.role);
    let mut taken = 0;
    for (wait, sleeper) in sleepers {
        let slept = sleeper.result();
        // If the connection ends, the first thread to wake may see another state of the end than
        // the last.
        let seen = match did.closed {
            true => slept.result.0.is_ok().to_string(),
            false => format!("{} {}", slept.result, slept.seen),
        };
        player.say(turn, &format!("sleeps in {wait:?} for {take}"), seen);
        taken += slept.taken;
    }
    player.role.tell(taken as u32);
    let is_over = did.closed;
    player.hear(&Did {
        sent: did.sent - taken,
        ..did
    });
    match is_over {
        true => Over::Theirs,
        false => Over::Neither,
    }
}

pub(super) fn follow(player: &mut Player, turn: usize, draw: &Draw) -> Over {
    player.theirs_unread -= player.role.hear() as usize;
    let least = player.role.hear() as usize;
    player.role.hear();
    let fd = player.fds[draw.how as usize % player.fds.len()];
    let mut did = Did::default();
    let send = Draw {
        len: least,
        ..*draw
    };
    let (call, seen) = match draw.how % 16 {
        // If bytes are never read, a close resets the connection. The kernel reports the shutdown
        // before the reset, or the reset, whichever wakes the sleeper. So this end takes one step
        // then.
        0 => player.end_by(draw, player.unread == 0, &mut did),
        1 if !player.shut_reading => player.end_writing(fd, &mut did),
        2..6 => player.in_child(turn, fd, &Draw { fd: 0, ..send }, &mut did),
        _ => player.send(fd, &send, &mut did),
    };
    player.say(turn, &format!("{call} for sleepers"), seen);
    did.tell(&player.role);
    let taken = player.role.hear() as usize;
    let over = ours(player, &did);
    player.theirs_unread -= taken.min(player.theirs_unread);
    over
}

/// Receives all unread bytes, so that no sleeper wakes because of them.
pub(super) fn take_all(player: &mut Player, turn: usize) -> usize {
    let mut sum = Checksum::default();
    let mut bytes = vec![0; player.unread];
    let mut taken = 0;
    while taken < bytes.len() {
        let result = sys::recv(player.fds[0], &mut bytes[taken..], libc::MSG_DONTWAIT);
        assert!(result.value() > 0, "what has arrived is there");
        taken += result.len();
    }
    sum.add(&bytes);
    player.say(turn, "takes all", format!("{taken} {sum}"));
    player.unread = 0;
    taken
}

/// The calls of up to three threads. At most one of them receives bytes.
fn chosen(draw: &Draw, meanwhile: Meanwhile) -> Vec<Wait> {
    let count = 1 + draw.call as usize % 3;
    let mut waits: Vec<Wait> = Vec::new();
    for step in 0..count as u64 {
        let wait = pick(WAITS, draw.how / 16 + step * 5);
        let is_second = wait.takes() && waits.iter().any(|other| other.takes());
        // After the sleep, poll would check a number that may be closed.
        let by_number = matches!(
            wait,
            Wait::Poll | Wait::Ppoll | Wait::Select | Wait::Pselect
        );
        let is_closed_under_it = by_number && meanwhile == Meanwhile::Number;
        if !is_second && !is_closed_under_it {
            waits.push(wait);
        }
    }
    waits
}

/// Sends signals until each call has ended. A call that may continue after a signal gets one
/// signal.
fn interrupt(sleepers: &[(Wait, Sleeper<Slept>)], flags: i32) {
    interrupts::handle_signal(SIGNAL, interrupts::count, flags);
    for (wait, sleeper) in sleepers {
        let goes_on = flags != 0 && wait.receives();
        while !sleeper.has_returned() {
            // SAFETY: takes no pointers; the thread is not joined yet.
            unsafe { libc::pthread_kill(sleeper.thread().as_pthread_t(), SIGNAL) };
            std::thread::sleep(Duration::from_millis(2));
            if goes_on {
                break;
            }
        }
    }
}

/// The result of a sleeper.
struct Slept {
    result: sys::Ret,
    seen: String,
    /// The number of bytes that the sleeper has received.
    taken: usize,
}

impl Wait {
    /// Whether a signal with `SA_RESTART` leaves this call running.
    fn receives(self) -> bool {
        matches!(self, Wait::Peek | Wait::Take | Wait::Splice)
    }

    fn takes(self) -> bool {
        matches!(self, Wait::Take | Wait::Splice)
    }

    fn sleep(self, fd: Fd, take: usize) -> Slept {
        const FOREVER_MS: i32 = 30_000;
        let looked = |result: sys::Ret, seen: String| Slept {
            result,
            seen,
            taken: 0,
        };
        let input = libc::POLLIN | libc::POLLRDHUP;
        match self {
            Wait::Poll => {
                let (result, events) = sys::poll(&[(fd, input)], FOREVER_MS);
                looked(result, format!("{events:?}"))
            }
            Wait::Ppoll => {
                let (result, events) = sys::ppoll(&[(fd, input)], i64::from(FOREVER_MS));
                looked(result, format!("{events:?}"))
            }
            Wait::Select | Wait::Pselect => {
                let time = Some(i64::from(FOREVER_MS));
                let selected = sys::select(&[fd], &[], time, self == Wait::Pselect);
                looked(selected.result, selected.to_string())
            }
            Wait::Instance(modes) => {
                let epoll = instance_with(fd, modes);
                let (result, events) = sys::epoll_wait(epoll, 4, FOREVER_MS);
                close_all(&[epoll]);
                looked(result, format!("{events:?}"))
            }
            Wait::Around => {
                let epoll = instance_with(fd, 0);
                let outer = instance_with(epoll, 0);
                let (result, events) = sys::epoll_wait(outer, 4, FOREVER_MS);
                close_all(&[outer, epoll]);
                looked(result, format!("{events:?}"))
            }
            Wait::PollOfInstance => {
                let epoll = instance_with(fd, libc::EPOLLET);
                let (result, events) = sys::poll(&[(epoll, input)], FOREVER_MS);
                close_all(&[epoll]);
                looked(result, format!("{events:?}"))
            }
            Wait::Peek => {
                // The byte that the peek returns depends on whether another thread received bytes
                // before.
                let result = sys::recv(fd, &mut [0], libc::MSG_PEEK);
                looked(result, String::new())
            }
            Wait::Take => {
                let mut bytes = vec![0; take];
                let result = sys::recv(fd, &mut bytes, libc::MSG_WAITALL);
                let taken = result.len();
                Slept {
                    result,
                    seen: Checksum::of(&bytes[..taken]).to_string(),
                    taken,
                }
            }
            Wait::Splice => {
                let (from, to) = sys::pipe();
                let result = crate::files::splice(fd, to, 1, 0);
                close_all(&[from, to]);
                Slept {
                    taken: result.len(),
                    result,
                    seen: String::new(),
                }
            }
        }
    }
}

fn instance_with(fd: Fd, modes: i32) -> Fd {
    let epoll = sys::epoll_create();
    let events = match modes {
        // The kernel refuses `EPOLLEXCLUSIVE` together with flags other than these.
        libc::EPOLLEXCLUSIVE => libc::EPOLLIN,
        _ => IN,
    };
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, events | modes, 5).value();
    epoll
}
