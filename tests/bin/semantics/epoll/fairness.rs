//! Small event arrays, and the order of events.

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

/// Members of other types are reported in turn, even if ready connections could fill every array.
pub(super) fn turns(role: &Role) {
    const CONNECTIONS: usize = 3;
    const ORDINARY: usize = 2;
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
    watch_all(epoll, &all);
    for places in [1, 2, CONNECTIONS, CONNECTIONS + 1] {
        say_untold(role, epoll, all.len(), places);
    }
    role.step();
}

/// Nested instances are reported in turn beside connections and other members, and beside each
/// other, in full arrays and in arrays with free places.
pub(super) fn turns_of_nested(role: &Role) {
    const CONNECTIONS: usize = 4;
    let connections: [sys::Fd; CONNECTIONS] = role.meet_several();
    if role.server() {
        connections.iter().for_each(|fd| send_all(*fd, b"ready"));
        role.step();
        role.step();
        return;
    }
    role.step();
    connections.iter().for_each(|fd| role.arrived(*fd, 5));
    let inside = |fd: sys::Fd| {
        let inner = sys::epoll_create();
        sys::epoll_ctl(inner, ADD, fd, IN, 9).value();
        (inner, IN)
    };
    let event = (sys::eventfd(), libc::EPOLLOUT);
    let [one, other, first, second] = connections;
    let nested = [inside(first), inside(second)];
    let sets = [
        nested.to_vec(),
        [&nested[..], &[(one, IN)]].concat(),
        [&nested[..], &[(one, IN), event]].concat(),
        [&nested[..], &[(one, IN), (other, IN), event]].concat(),
    ];
    for set in sets {
        let epoll = sys::epoll_create();
        watch_all(epoll, &set);
        for places in 1..=set.len() {
            say_untold(role, epoll, set.len(), places);
        }
        sys::close(epoll).value();
    }
    role.step();
}

/// Registers `members`; the data of each member is its index.
fn watch_all(epoll: sys::Fd, members: &[(sys::Fd, i32)]) {
    for (number, (fd, events)) in members.iter().enumerate() {
        sys::epoll_ctl(epoll, ADD, *fd, *events, number as u64).value();
    }
}

/// All of `count` members are ready. Prints the members that are not reported by calls with an
/// array of `places` events, and whether each call reported each member at most once.
fn say_untold(role: &Role, epoll: sys::Fd, count: usize, places: usize) {
    /// The kernel needs one call for each member. This is more than a thread makes in a few
    /// milliseconds.
    const CALLS: usize = 200_000;
    for look in [-1, 0] {
        let mut missing: std::collections::BTreeSet<u64> = (0..count as u64).collect();
        let mut is_once = true;
        for _ in 0..CALLS {
            let (_, events) = sys::epoll_wait(epoll, places, look);
            let told: std::collections::BTreeSet<u64> = events.iter().map(|one| one.0).collect();
            is_once &= told.len() == events.len();
            missing.retain(|number| !told.contains(number));
            if missing.is_empty() {
                break;
            }
        }
        role.say("not told", format!("{places} {missing:?} {is_once}"));
    }
}

/// The second of three connections has had enough traffic to be accelerated; the others are new.
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
            // The order is fixed if the accelerated connection was last. Otherwise rings and kernel
            // are two queues, and their members come in another order.
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
