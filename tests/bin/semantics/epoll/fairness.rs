//! Small arrays of events, and the order of news.

use super::{ADD, IN, seen};
use crate::role::{Role, receive_all, send_all};
use crate::sys;

pub(super) fn starvation(role: &Role) {
    const CONNECTIONS: usize = 5;
    let connections: [sys::Fd; CONNECTIONS] = role.meet_several();
    if role.server() {
        connections.iter().for_each(|fd| send_all(*fd, b"ready"));
        role.step();
        role.step();
    } else {
        let epoll = sys::epoll_create();
        for (index, fd) in connections.iter().enumerate() {
            sys::epoll_ctl(epoll, ADD, *fd, IN, index as u64).value();
        }
        role.step();
        connections.iter().for_each(|fd| role.arrived(*fd, 5));
        let mut found = std::collections::BTreeSet::new();
        for _ in 0..CONNECTIONS {
            let (result, events) = sys::epoll_wait(epoll, 1, -1);
            role.say("one at a time", result);
            found.extend(events);
        }
        role.say("all had their turn", format!("{found:x?}"));
        role.step();
    }
}

/// Members of other kinds have their turn however full connections keep the arrays.
pub(super) fn turns(role: &Role) {
    const CONNECTIONS: usize = 3;
    const ORDINARY: usize = 2;
    /// The kernel needs one for each member. More than a thread makes in a few milliseconds.
    const CALLS: usize = 200_000;
    let connections: [sys::Fd; CONNECTIONS] = role.meet_several();
    if role.server() {
        connections.iter().for_each(|fd| send_all(*fd, b"ready"));
        role.step();
        role.step();
        return;
    }
    let epoll = sys::epoll_create();
    role.step();
    connections.iter().for_each(|fd| role.arrived(*fd, 5));
    let ordinary = (0..ORDINARY).map(|_| (sys::eventfd(), libc::EPOLLOUT));
    let all: Vec<(sys::Fd, i32)> = connections
        .iter()
        .map(|fd| (*fd, IN))
        .chain(ordinary)
        .collect();
    for (number, (fd, events)) in all.iter().enumerate() {
        sys::epoll_ctl(epoll, ADD, *fd, *events, number as u64).value();
    }
    for places in [1, 2, CONNECTIONS, CONNECTIONS + 1] {
        for look in [-1, 0] {
            let mut missing: std::collections::BTreeSet<u64> = (0..all.len() as u64).collect();
            for _ in 0..CALLS {
                let (_, events) = sys::epoll_wait(epoll, places, look);
                for (number, _) in events {
                    missing.remove(&number);
                }
                if missing.is_empty() {
                    break;
                }
            }
            role.say("not told", format!("{places} {missing:?}"));
        }
    }
    role.step();
}

/// Of three connections the second has seen enough traffic to be accelerated; the others are new.
pub(super) fn order(role: &Role) {
    let listener = role.server().then(|| role.listen(0));
    let port = if role.server() { 0 } else { role.hear_port() };
    let mut connections = Vec::new();
    for number in 0..3 {
        let fd = match listener {
            Some(listener) => sys::accept(listener).fd(),
            None => role.connect(port),
        };
        if number == 1 {
            role.warm(fd);
        }
        connections.push(fd);
    }
    let turns = [[0, 2, 1], [2, 0, 1], [2, 1, 0], [0, 1, 2]];
    if role.server() {
        role.step();
        send_all(connections[0], b"first");
        role.step();
        for turn in turns {
            turn.iter().for_each(|&n| send_all(connections[n], b"news"));
            role.step();
            role.step();
        }
    } else {
        let epoll = sys::epoll_create();
        for (number, fd) in connections.iter().enumerate() {
            sys::epoll_ctl(epoll, ADD, *fd, IN, number as u64).value();
        }
        role.step();
        role.say("first", seen(&sys::epoll_wait(epoll, 16, -1)));
        receive_all(connections[0], &mut [0; 5]);
        role.step();
        for turn in turns {
            role.step();
            connections.iter().for_each(|fd| role.arrived(*fd, 4));
            let (result, events) = sys::epoll_wait(epoll, 16, -1);
            let numbers: Vec<u64> = events.iter().map(|event| event.0).collect();
            // Where the accelerated one was last. Elsewhere rings and kernel are two queues, and
            // their members come in another order.
            if turn[2] == 1 {
                role.say("in order", format!("{result} {numbers:?}"));
            } else {
                let all: std::collections::BTreeSet<u64> = numbers.into_iter().collect();
                role.say("all", format!("{result} {all:?}"));
            }
            connections
                .iter()
                .for_each(|fd| receive_all(*fd, &mut [0; 4]));
            role.step();
        }
    }
}
