//! Several processes that sleep on one connection.

use crate::Case;
use crate::role::{Pair, await_events, receive_all, sample, send_all};
use crate::sys::{self, Fd};

use super::{in_child, receives};

pub(crate) const CASES: &[Case] = &[
    Case::pair("two_processes_that_sleep_are_both_woken", both_sleep),
    Case::pair(
        "two_processes_that_sleep_for_room_are_both_woken",
        both_sleep_for_room,
    ),
    Case::pair(
        "epoll_and_a_child_that_receives_are_both_woken",
        epoll_beside_child,
    ),
    Case::pair(
        "process_that_is_killed_asleep_takes_no_bytes_along",
        killed_asleep,
    ),
];

/// The way in which a process sleeps until bytes arrive.
type Sleep = fn(Fd);

fn in_receive(_: Fd) {}

fn in_poll(fd: Fd) {
    await_events(fd, libc::POLLIN);
}

fn in_epoll(fd: Fd) {
    const TIME_LIMIT_MS: i32 = 20_000;
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, 4).value();
    sys::epoll_wait(epoll, 4, TIME_LIMIT_MS).0.value();
    sys::close(epoll).value();
}

/// Time for a process to fall asleep. If the time is too short, the test still passes, but tests
/// nothing.
const ASLEEP: std::time::Duration = std::time::Duration::from_millis(10);

/// Two processes sleep in each round. In every other round a message wakes one of them, which reads
/// nothing more until a second message has woken the other. In the other rounds both messages come
/// together.
fn both_sleep(pair: &Pair) {
    const WAYS: [[Sleep; 2]; 5] = [
        [in_receive, in_receive],
        [in_poll, in_poll],
        [in_epoll, in_epoll],
        [in_receive, in_poll],
        [in_epoll, in_receive],
    ];
    const ROUNDS: usize = 8;
    if pair.server() {
        for round in 0..ROUNDS * WAYS.len() {
            let messages: &[&[u8]] = match round % 2 {
                0 => &[b"message;", b"message;"],
                _ => &[b"message;message;"],
            };
            for message in messages {
                pair.step();
                std::thread::sleep(ASLEEP);
                send_all(pair.fd, message);
            }
        }
        pair.step();
        return;
    }
    for ways in WAYS {
        let done = sys::pipe();
        // Each child has its own pipe, so that a fast child does not take the other child's turn.
        let gos = [(); 2].map(|()| sys::pipe());
        let children = [0, 1].map(|which| {
            let (sleep, go) = (ways[which], gos[which]);
            in_child(|| {
                (0..ROUNDS).all(|_| {
                    sleep(pair.fd);
                    let right = receives(pair.fd, b"message;");
                    sys::write(done.1, b".").value();
                    sys::read(go.0, &mut [0; 1]).value();
                    right
                })
            })
        });
        for round in 0..ROUNDS {
            pair.step();
            sys::read(done.0, &mut [0; 1]).value();
            if round % 2 == 0 {
                pair.step();
            }
            sys::read(done.0, &mut [0; 1]).value();
            for go in gos {
                sys::write(go.1, b".").value();
            }
        }
        for child in children {
            pair.say("child", sys::wait_for(child));
        }
    }
    pair.step();
}

/// Like the rounds in which both messages come together. The parent sleeps on an epoll instance
/// that had the connection as a member before the child was forked.
fn epoll_beside_child(pair: &Pair) {
    const TIME_LIMIT_MS: i32 = 20_000;
    const ROUNDS: usize = 20;
    if pair.server() {
        for _ in 0..ROUNDS {
            pair.step();
            std::thread::sleep(ASLEEP);
            send_all(pair.fd, b"message;message;");
        }
        pair.step();
        return;
    }
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLIN, 4).value();
    let (done, go) = (sys::pipe(), sys::pipe());
    let child = in_child(|| {
        (0..ROUNDS).all(|_| {
            let right = receives(pair.fd, b"message;");
            sys::write(done.1, b".").value();
            sys::read(go.0, &mut [0; 1]).value();
            right
        })
    });
    for _ in 0..ROUNDS {
        pair.step();
        assert_eq!(sys::epoll_wait(epoll, 4, TIME_LIMIT_MS).0.value(), 1);
        receive_all(pair.fd, &mut [0; 8]);
        sys::read(done.0, &mut [0; 1]).value();
        sys::write(go.1, b".").value();
    }
    pair.say("child", sys::wait_for(child));
    pair.step();
}

fn both_sleep_for_room(pair: &Pair) {
    const LEN: usize = 12_000_000;
    const ROUNDS: usize = 4;
    for _ in 0..ROUNDS {
        if pair.server() {
            pair.step();
            std::thread::sleep(ASLEEP);
            receive_all(pair.fd, &mut vec![0; 2 * LEN]);
            pair.step();
        } else {
            let bytes = sample(LEN);
            let children = [(); 2].map(|()| {
                in_child(|| {
                    send_all(pair.fd, &bytes);
                    true
                })
            });
            pair.step();
            for child in children {
                pair.say("child", sys::wait_for(child));
            }
            pair.step();
        }
    }
}

fn killed_asleep(pair: &Pair) {
    const ROUNDS: usize = 10;
    for _ in 0..ROUNDS {
        if pair.server() {
            pair.step();
            std::thread::sleep(ASLEEP);
            send_all(pair.fd, b"message;");
            pair.step();
        } else {
            let children = [(); 2].map(|()| in_child(|| receives(pair.fd, b"message;")));
            std::thread::sleep(ASLEEP);
            // SAFETY: our child, not reaped yet.
            unsafe { libc::kill(children[0], libc::SIGKILL) };
            pair.say("killed", sys::wait_for(children[0]));
            pair.step();
            pair.say("other", sys::wait_for(children[1]));
            pair.step();
        }
    }
}
