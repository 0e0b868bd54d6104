//! Several threads that use one socket.

use std::collections::HashSet;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::Case;
use crate::role::{Pair, Role, drain, receive_all, sample, send_all, shown};
use crate::sleeper::Sleeper;
use crate::sys;

pub(crate) const CASES: &[Case] = &[
    Case::pair("one_thread_reads_while_another_writes", read_while_write),
    Case::pair("messages_of_two_writers_stay_whole", two_writers),
    Case::pair("bytes_go_to_one_of_two_readers", two_readers),
    Case::pair("shutdown_wakes_a_thread_blocked_in_recv", shutdown_wakes),
    Case::pair(
        "shutdown_wakes_a_thread_blocked_in_poll",
        shutdown_wakes_poll,
    ),
    Case::pair("close_while_another_thread_receives", close_under_recv),
    Case::pair("two_threads_blocked_in_recv_are_both_served", both_blocked),
    Case::pair("thread_per_direction_by_epoll", epoll_threads),
    Case::pair("fewer_bytes_to_wait_for_wake_a_thread", fewer_bytes),
    Case::roles(
        "instance_is_closed_while_another_thread_closes_its_members",
        closed_at_once,
    ),
    Case::pair("thread_with_descriptors_of_its_own_closes_them", |pair| {
        closed_elsewhere(pair, |fd| {
            // SAFETY: takes no pointers.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            sys::close(fd).value();
        });
    }),
    Case::pair("thread_closes_a_range_of_descriptors_of_its_own", |pair| {
        closed_elsewhere(pair, |fd| {
            const CLOSE_RANGE_UNSHARE: i64 = 2;
            let (call, fd) = (libc::SYS_close_range, i64::from(fd));
            // SAFETY: takes no pointers.
            let closed = unsafe { libc::syscall(call, fd, fd, CLOSE_RANGE_UNSHARE) };
            assert_eq!(closed, 0);
        });
    }),
];

/// Another thread waits for more bytes than are there. The wait ends when the low-water mark is
/// lowered.
fn fewer_bytes(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"ten bytes.");
        pair.step();
        return;
    }
    let enough = |bytes| sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes);
    pair.say("a thousand", enough(1000));
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLIN, 7).value();
    let sleeper = Sleeper::start(move || sys::epoll_wait(epoll, 4, 5_000));
    pair.step();
    pair.arrived(pair.fd, 10);
    pair.say("five", enough(5));
    pair.say("woken", format!("{:?}", sleeper.result()));
    pair.step();
}

/// The server closes an instance while another thread closes most of its members. The others are
/// members of a new instance then, which reports each of them. (libev makes a new instance when it
/// meets the event of a descriptor that was closed elsewhere.)
fn closed_at_once(role: &Role) {
    const KEPT: usize = 6;
    // With every connection on a used carrier, a new connection may wait for one.
    let (rounds, closed) = match std::env::var_os("E2E_EXPRESS") {
        Some(_) => (2, 2),
        None if role.is_over_network() => (60, 32),
        None => (600, 32),
    };
    let listener = role.server().then(|| role.listen(0));
    let port = if role.server() { 0 } else { role.hear_port() };
    let kept = [(); KEPT].map(|()| role.meet_by(listener, port));
    let mut missed = 0;
    for round in 0..rounds {
        let connect = |_| match listener {
            Some(listener) => sys::accept(listener).fd(),
            None => role.connect(port),
        };
        let connections: Vec<_> = (0..closed).map(connect).collect();
        if !role.server() {
            kept.iter().for_each(|&fd| send_all(fd, &[round as u8]));
            role.step();
            let close = |fd: sys::Fd| assert_eq!(sys::close(fd).value(), 0);
            connections.into_iter().for_each(close);
            continue;
        }
        let watch = |epoll, fds: &[sys::Fd]| {
            for (number, &fd) in fds.iter().enumerate() {
                let (add, readable) = (libc::EPOLL_CTL_ADD, libc::EPOLLIN);
                sys::epoll_ctl(epoll, add, fd, readable, number as u64).value();
            }
        };
        let epoll = sys::epoll_create();
        watch(epoll, &connections);
        watch(epoll, &kept);
        sys::epoll_wait(epoll, 64, 0).0.value();
        let both = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                let close = |fd| assert_eq!(sys::close(fd).value(), 0);
                connections.into_iter().for_each(close);
            });
            both.wait();
            // It meets the other thread at another member in each round.
            let began = Instant::now();
            while began.elapsed() < Duration::from_micros(round as u64 % 64 * 2) {}
            sys::close(epoll).value();
        });
        let epoll = sys::epoll_create();
        watch(epoll, &kept);
        let mut waiting: HashSet<u64> = (0..KEPT as u64).collect();
        while !waiting.is_empty() {
            let patience_ms = if missed == 0 { 5_000 } else { 0 };
            let (_, events) = sys::epoll_wait(epoll, 64, patience_ms);
            if events.is_empty() {
                missed += waiting.len();
                break;
            }
            for (number, _) in events {
                receive_all(kept[number as usize], &mut [0]);
                waiting.remove(&number);
            }
        }
        sys::close(epoll).value();
        role.step();
    }
    role.say("missed", missed);
}

/// A thread closes the connection in its own descriptor table. The connection stays open in the
/// table of the other threads.
fn closed_elsewhere(pair: &Pair, close: fn(sys::Fd)) {
    const BYTES: usize = 100_000;
    let fd = pair.fd;
    if pair.server() {
        pair.step();
        send_all(fd, &sample(BYTES));
        pair.step();
        pair.say("answer", drain(fd));
        return;
    }
    thread::spawn(move || close(fd)).join().expect("it closes");
    pair.step();
    pair.step();
    let mut bytes = vec![0; BYTES];
    receive_all(fd, &mut bytes);
    pair.say("right", bytes == sample(BYTES));
    send_all(fd, b"as it was");
    pair.say("close", sys::close(fd));
}

fn read_while_write(pair: &Pair) {
    const ROUNDS: usize = 3000;
    let fd = pair.fd;
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..ROUNDS {
                send_all(fd, &[number as u8; 64]);
            }
        });
        let mut right = true;
        for number in 0..ROUNDS {
            let mut bytes = [0; 64];
            receive_all(fd, &mut bytes);
            right &= bytes == [number as u8; 64];
        }
        pair.say("received in order", right);
    });
    pair.step();
}

fn two_writers(pair: &Pair) {
    const MESSAGES: usize = 5000;
    let fd = pair.fd;
    if pair.server() {
        thread::scope(|scope| {
            for letter in *b"ab" {
                scope.spawn(move || {
                    // Each message is one send call: a stream socket does not split small messages.
                    (0..MESSAGES)
                        .for_each(|_| assert_eq!(sys::send(fd, &[letter; 100], 0).value(), 100));
                });
            }
        });
        pair.say("close", sys::close(fd));
    } else {
        let mut counts = [0; 2];
        for _ in 0..2 * MESSAGES {
            let mut message = [0; 100];
            receive_all(fd, &mut message);
            assert!(
                message.iter().all(|byte| *byte == message[0]),
                "torn: {:?}",
                shown(&message)
            );
            counts[usize::from(message[0] - b'a')] += 1;
        }
        pair.say("messages", format!("{counts:?}"));
        pair.say("then", drain(fd));
    }
}

fn two_readers(pair: &Pair) {
    const LEN: usize = 5_000_000;
    let fd = pair.fd;
    if pair.server() {
        send_all(fd, &vec![1; LEN]);
        pair.say("close", sys::close(fd));
    } else {
        let readers = [0, 1].map(|_| {
            thread::spawn(move || {
                let (mut total, mut bytes) = (0, vec![0; 7000]);
                loop {
                    let result = sys::recv(fd, &mut bytes, 0);
                    if result.value() == 0 {
                        return total;
                    }
                    assert!(bytes[..result.len()].iter().all(|byte| *byte == 1));
                    total += result.len();
                }
            })
        });
        let totals = readers.map(|reader| reader.join().expect("no panic"));
        pair.say("received by both together", totals.iter().sum::<usize>());
    }
}

fn shutdown_wakes(pair: &Pair) {
    let fd = pair.fd;
    if pair.server() {
        let reader = Sleeper::start(move || sys::recv(fd, &mut [0; 8], 0));
        pair.say("shutdown", sys::shutdown(fd, libc::SHUT_RD));
        pair.say("recv", reader.result());
    }
    pair.step();
}

fn shutdown_wakes_poll(pair: &Pair) {
    let fd = pair.fd;
    if pair.server() {
        let waiter = Sleeper::start(move || sys::poll(&[(fd, libc::POLLIN | libc::POLLRDHUP)], -1));
        pair.say("shutdown", sys::shutdown(fd, libc::SHUT_RDWR));
        pair.say("poll", waiter.result().0);
    }
    pair.step();
}

fn close_under_recv(pair: &Pair) {
    let fd = pair.fd;
    if pair.server() {
        let reader = Sleeper::start(move || {
            let mut bytes = [0; 8];
            let result = sys::recv(fd, &mut bytes, 0);
            (result, shown(&bytes[..result.len()]))
        });
        pair.say("close", sys::close(fd));
        pair.step();
        // The sleeping call still holds the socket. It gets the data, and then it returns.
        let (result, text) = reader.result();
        pair.say("recv", format!("{result} {text}"));
        pair.step();
    } else {
        pair.step();
        pair.say("send", sys::send(fd, b"late", libc::MSG_NOSIGNAL));
        pair.step();
        pair.say("then", drain(fd));
    }
}

fn both_blocked(pair: &Pair) {
    let fd = pair.fd;
    if pair.server() {
        pair.step();
        for _ in 0..2 {
            thread::sleep(Duration::from_millis(20));
            send_all(fd, b"turn");
            pair.step();
        }
    } else {
        let readers = [0, 1].map(|_| {
            thread::spawn(move || {
                let mut bytes = [0; 4];
                sys::recv(fd, &mut bytes, 0);
                shown(&bytes)
            })
        });
        pair.step();
        pair.step();
        pair.step();
        for reader in readers {
            pair.say("recv", reader.join().expect("no panic"));
        }
    }
    pair.step();
}

fn epoll_threads(pair: &Pair) {
    const LEN: usize = 10_000_000;
    let fd = pair.fd;
    sys::set_nonblocking(fd, true);
    let bytes = sample(LEN);
    let wait = |epoll| assert_eq!(sys::epoll_wait(epoll, 1, 20_000).0.value(), 1);
    let watch = |events| {
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, events | libc::EPOLLET, 0).value();
        epoll
    };
    let (reads, writes) = (watch(libc::EPOLLIN), watch(libc::EPOLLOUT));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = 0;
            while sent < LEN {
                let result = sys::send(fd, &bytes[sent..], libc::MSG_NOSIGNAL);
                if result.is(libc::EAGAIN) {
                    wait(writes);
                } else {
                    sent += usize::try_from(result.value()).expect("not negative");
                }
            }
        });
        let (mut received, mut right) = (0, true);
        let mut part = vec![0; 30_000];
        while received < LEN {
            let result = sys::recv(fd, &mut part, 0);
            if result.is(libc::EAGAIN) {
                wait(reads);
            } else {
                assert!(result.value() > 0);
                right &= part[..result.len()] == bytes[received..][..result.len()];
                received += result.len();
            }
        }
        pair.say("received", format!("{received} right {right}"));
    });
    pair.step();
}
