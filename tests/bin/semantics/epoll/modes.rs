//! Level-triggered, edge-triggered, one-shot and exclusive registrations: how often each reports an
//! event.

use super::{ADD, ET, IN, MOD, OUT, now, parts, seen, watching};
use crate::role::{Pair, Role, await_events, fill, receive_all, send_all};
use crate::sleeper::Sleeper;
use crate::sys::{self, Fd};

pub(super) fn level(pair: &Pair) {
    let epoll = watching(pair, IN);
    pair.say("quiet", now(epoll));
    pair.step();
    parts(pair, &[b"data"], |_| {
        pair.say("data", now(epoll));
        for _ in 0..2 {
            pair.say("data", now(epoll));
        }
        receive_all(pair.fd, &mut [0; 2]);
        pair.say("half read", now(epoll));
        receive_all(pair.fd, &mut [0; 2]);
        pair.say("read", now(epoll));
    });
}

pub(super) fn edge(pair: &Pair) {
    let epoll = watching(pair, IN | ET);
    pair.say("quiet", now(epoll));
    pair.step();
    parts(pair, &[b"one", b"two", b"three"], |_| {
        pair.say("arrival", now(epoll));
        pair.say("again", now(epoll));
    });
    if !pair.server() {
        receive_all(pair.fd, &mut [0; 11]);
        pair.say("read", now(epoll));
    }
    parts(pair, &[b"four"], |_| {
        pair.say("arrival", now(epoll));
        receive_all(pair.fd, &mut [0; 4]);
        pair.say("read", now(epoll));
    });
}

pub(super) fn edge_partial(pair: &Pair) {
    let epoll = watching(pair, IN | ET);
    pair.step();
    parts(pair, &[b"abcdef", b"ghi"], |_| {
        pair.say("arrival", now(epoll));
        receive_all(pair.fd, &mut [0; 2]);
        pair.say("after a partial read", now(epoll));
    });
}

pub(super) fn edge_room(pair: &Pair) {
    if pair.server() {
        sys::set_nonblocking(pair.fd, true);
        let epoll = watching(pair, OUT | ET);
        pair.say("room at first", now(epoll));
        pair.say("again", now(epoll));
        for _ in 0..3 {
            pair.tell(u32::try_from(fill(pair.fd)).expect("below 4 GB"));
            pair.say("room returns", seen(&sys::epoll_wait(epoll, 16, -1)));
            pair.step();
        }
    } else {
        for _ in 0..3 {
            let sent = pair.hear() as usize;
            receive_all(pair.fd, &mut vec![0; sent]);
            pair.step();
        }
    }
}

pub(super) fn edge_first(pair: &Pair) {
    parts(pair, &[b"waiting"], |_| {
        await_events(pair.fd, libc::POLLIN);
        let epoll = watching(pair, IN | OUT | ET);
        pair.say("at once", now(epoll));
        pair.say("again", now(epoll));
        pair.say("MOD", sys::epoll_ctl(epoll, MOD, pair.fd, IN | ET, 8));
        pair.say("after MOD", now(epoll));
        pair.say("again", now(epoll));
    });
}

pub(super) fn oneshot(pair: &Pair) {
    let epoll = watching(pair, IN | libc::EPOLLONESHOT);
    pair.step();
    parts(pair, &[b"one", b"two"], |_| {
        pair.say("event", now(epoll));
        pair.say("silence", now(epoll));
    });
    if !pair.server() {
        pair.say(
            "MOD",
            sys::epoll_ctl(epoll, MOD, pair.fd, IN | libc::EPOLLONESHOT, 9),
        );
        pair.say("rearmed", now(epoll));
        pair.say("silence", now(epoll));
        receive_all(pair.fd, &mut [0; 6]);
        pair.say(
            "MOD",
            sys::epoll_ctl(epoll, MOD, pair.fd, IN | ET | libc::EPOLLONESHOT, 10),
        );
        pair.say("nothing there", now(epoll));
    }
    pair.step();
    parts(pair, &[b"three", b"four"], |_| {
        pair.say("event", now(epoll));
    });
}

/// A worker that was told of a connection has the connection to itself until it arms the
/// registration again, however much traffic the connection has meanwhile.
pub(super) fn oneshot_moves(role: &Role) {
    const ONE: i32 = libc::EPOLLONESHOT;
    let epolls = [0; 3].map(|_| sys::epoll_create());
    let all = || epolls.map(now).join(", ");
    let send = |fd, bytes| {
        if role.server() {
            send_all(fd, bytes);
        } else {
            role.arrived(fd, bytes.len());
        }
    };
    // The client registers its socket with one instance before the socket is connected.
    let listener = role.server().then(|| role.listen(0));
    let fd = match listener {
        Some(listener) => sys::accept(listener).fd(),
        None => {
            let port = role.hear_port();
            let fd = sys::socket(role.family, 0);
            sys::epoll_ctl(epolls[2], ADD, fd, IN | ONE, 3).value();
            role.say("ADD twice", sys::epoll_ctl(epolls[2], ADD, fd, OUT, 4));
            role.say("unconnected", all());
            sys::connect(fd, role.family, port).value();
            fd
        }
    };
    sys::epoll_ctl(epolls[0], ADD, fd, IN | ONE, 1).value();
    sys::epoll_ctl(epolls[1], ADD, fd, IN | ONE, 1).value();
    for (epoll, data) in [(epolls[1], 2), (epolls[2], 3)] {
        let result = sys::epoll_ctl(epoll, MOD, fd, IN | ONE, data);
        role.say("MOD", result);
    }
    role.step();
    send(fd, b"first");
    if !role.server() {
        role.say("first", all());
        role.say("told", all());
        receive_all(fd, &mut [0; 5]);
    }
    role.step();
    role.warm(fd);
    role.step();
    send(fd, b"later");
    if !role.server() {
        role.say("not armed", all());
        let events = [IN | ONE, IN, IN | ONE];
        for (epoll, events) in epolls.into_iter().zip(events) {
            role.say("MOD", sys::epoll_ctl(epoll, MOD, fd, events, 9));
            role.say("armed", now(epoll));
            role.say("told", now(epoll));
        }
        receive_all(fd, &mut [0; 5]);
    }
    role.step();
    if role.server() {
        sys::close(fd).value();
    } else {
        sys::shutdown(fd, libc::SHUT_WR).value();
        await_events(fd, libc::POLLHUP);
        role.say("over", all());
    }
    role.step();
}

pub(super) fn exclusive(pair: &Pair) {
    let epolls = [0, 1].map(|_| watching(pair, IN | libc::EPOLLEXCLUSIVE));
    pair.say(
        "MOD is refused",
        sys::epoll_ctl(epolls[0], MOD, pair.fd, IN, 1),
    );
    pair.step();
    for _ in 0..5 {
        if pair.server() {
            pair.step();
            send_all(pair.fd, b"!");
        } else {
            // Two threads wait. At least one of them must be told of each byte, and only one can
            // read it.
            let waiters = epolls.map(|epoll| {
                let fd = pair.fd;
                Sleeper::start(move || reads_one(epoll, fd))
            });
            pair.step();
            while !waiters.iter().any(Sleeper::has_returned) {
                std::thread::yield_now();
            }
            let end = sys::eventfd();
            sys::write(end, &1u64.to_ne_bytes()).value();
            for epoll in epolls {
                sys::epoll_ctl(epoll, ADD, end, IN, END).value();
            }
            let readers = waiters.map(Sleeper::result);
            assert_eq!(readers.iter().filter(|read| **read).count(), 1);
            sys::close(end).value();
        }
        pair.step();
    }
    pair.say("every byte was read once", true);
}

/// The datum of the event that ends a wait.
const END: u64 = 9;

/// Waits until there is a byte, and reads it. False when another thread has read it, and ends the
/// wait.
fn reads_one(epoll: Fd, fd: Fd) -> bool {
    loop {
        let (_, found) = sys::epoll_wait(epoll, 1, -1);
        if found.iter().any(|(data, _)| *data == END) {
            return false;
        }
        if sys::recv(fd, &mut [0; 1], libc::MSG_DONTWAIT).len() == 1 {
            return true;
        }
    }
}

pub(super) fn exclusive_refused(pair: &Pair) {
    let exclusive = libc::EPOLLEXCLUSIVE;
    let epoll = sys::epoll_create();
    let add = |events| sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, events, 1);
    let with = [
        ("ONESHOT", libc::EPOLLONESHOT),
        ("RDHUP", libc::EPOLLRDHUP),
        ("PRI", libc::EPOLLPRI),
    ];
    for (name, event) in with {
        pair.say(name, add(IN | exclusive | event));
    }
    // A registration that was removed may still be known to the library.
    for round in 0..2 {
        pair.say("exclusive", add(IN | libc::EPOLLET | exclusive));
        pair.say("once more", add(IN | exclusive));
        pair.say(
            "once more with ONESHOT",
            add(IN | exclusive | libc::EPOLLONESHOT),
        );
        let (found, _) = sys::epoll_wait(epoll, 1, 0);
        pair.say("found", found.value());
        let delete = sys::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, pair.fd, 0, 0);
        pair.say("deleted", delete);
        for (name, event) in with {
            pair.say(name, format!("{round} {}", add(IN | exclusive | event)));
        }
    }
    pair.step();
}
