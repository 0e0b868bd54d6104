//! Registrations and waits that began before a connection had a channel, or before it was
//! connected.

use super::{ADD, ET, IN, MOD, OUT, now, seen};
use crate::role::{Role, fill, receive_all, send_all};
use crate::sleeper::Sleeper;
use crate::sys;

pub(super) fn before_connecting(role: &Role) {
    if role.server() {
        let listener = role.listen(libc::SOCK_NONBLOCK);
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, ADD, listener, IN, 1).value();
        role.step();
        role.say("connection", seen(&sys::epoll_wait(epoll, 4, -1)));
        let fd = sys::accept4(listener, libc::SOCK_NONBLOCK).fd();
        role.warm(fd);
        role.say("listener is quiet again", now(epoll));
        send_all(fd, b"data");
        role.step();
        role.step();
    } else {
        let port = role.hear_port();
        role.step();
        let fd = sys::socket(role.family, libc::SOCK_NONBLOCK);
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, ADD, fd, IN | OUT, 2).value();
        role.say("unconnected", now(epoll));
        let result = sys::connect(fd, role.family, port);
        role.say("connect", result.is(libc::EINPROGRESS) || result.0.is_ok());
        role.say("connected", seen(&sys::epoll_wait(epoll, 4, -1)));
        role.say("SO_ERROR", sys::socket_error(fd));
        role.warm(fd);
        role.step();
        role.arrived(fd, 4);
        role.say("data", now(epoll));
        role.step();
    }
}

pub(super) fn before_traffic(role: &Role) {
    let fd = role.meet();
    let level = sys::epoll_create();
    let edge = sys::epoll_create();
    sys::epoll_ctl(level, ADD, fd, IN, 1).value();
    sys::epoll_ctl(edge, ADD, fd, IN | OUT | ET, 2).value();
    role.warm(fd);
    // The warm-up caused many edges; one call consumes them.
    now(edge);
    role.step();
    if role.server() {
        send_all(fd, b"data");
        role.step();
        role.step();
    } else {
        role.step();
        role.arrived(fd, 4);
        role.say("level", now(level));
        role.say("level", now(level));
        role.say("edge", now(edge));
        role.say("edge", now(edge));
        receive_all(fd, &mut [0; 4]);
        role.say("read", format!("{} {}", now(level), now(edge)));
        role.step();
    }
}

/// A writer waits for space in the kernel's send buffer. Meanwhile its connection gets a channel.
/// The writer still waits for the kernel's buffer.
pub(super) fn room(role: &Role) {
    /// The last of these reads asks for a channel, and the next read would take it. The writer must
    /// be the first end that has the channel.
    const READS: usize = 24;
    let fd = role.meet();
    if role.server() {
        sys::set_nonblocking(fd, true);
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, ADD, fd, IN, 7).value();
        role.tell(u32::try_from(fill(fd)).expect("below 4 GB"));
        sys::epoll_ctl(epoll, MOD, fd, IN | OUT, 7).value();
        // By now the peer has read often enough to have asked for a channel.
        role.step();
        for _ in 0..100 {
            assert!(sys::recv(fd, &mut [0; 1], 0).is(libc::EAGAIN));
            sys::epoll_wait(epoll, 16, 1);
        }
        role.step();
        role.say("room returns", seen(&sys::epoll_wait(epoll, 16, -1)));
        // The program registers its interest anew, while its bytes are still in the kernel's
        // buffer.
        role.tell(u32::try_from(fill(fd)).expect("below 4 GB"));
        sys::epoll_ctl(epoll, MOD, fd, IN, 7).value();
        sys::epoll_ctl(epoll, MOD, fd, IN | OUT, 8).value();
        role.step();
        role.say("and again", seen(&sys::epoll_wait(epoll, 16, -1)));
        role.step();
    } else {
        let mut rest = role.hear() as usize;
        for _ in 0..READS {
            receive_all(fd, &mut [0; 100]);
            rest -= 100;
        }
        role.step();
        role.step();
        receive_all(fd, &mut vec![0; rest]);
        rest = role.hear() as usize;
        role.step();
        receive_all(fd, &mut vec![0; rest]);
        role.step();
    }
}

/// A thread has waited since before the traffic began. Its registration asks for an event that the
/// traffic does not cause.
pub(super) fn waiter(role: &Role) {
    let fd = role.meet();
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, ADD, fd, libc::EPOLLRDHUP, 1).value();
    let waiter = Sleeper::start(move || seen(&sys::epoll_wait(epoll, 4, -1)));
    role.warm(fd);
    role.say("MOD", sys::epoll_ctl(epoll, MOD, fd, IN, 2));
    role.step();
    send_all(fd, b"data");
    role.say("the waiter", waiter.result());
    role.step();
}

/// Like [`waiter`], but the thread polls the instance from outside.
pub(super) fn poller(role: &Role) {
    const TIME_LIMIT_MS: i32 = 5000;
    let fd = role.meet();
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, ADD, fd, libc::EPOLLRDHUP, 1).value();
    let waiter = Sleeper::start(move || sys::poll(&[(epoll, libc::POLLIN)], TIME_LIMIT_MS));
    role.warm(fd);
    role.say("MOD", sys::epoll_ctl(epoll, MOD, fd, IN, 2));
    role.step();
    send_all(fd, b"data");
    role.say("the waiter", format!("{:?}", waiter.result()));
    role.step();
}
