//! Several descriptors of one epoll instance.

use super::{ADD, DEL, ET, IN, MOD, now, parts};
use crate::role::{Pair, Role, receive_all, send_all};
use crate::sleeper::Sleeper;
use crate::sys;

/// The instance lives on under its duplicate. The duplicate changes registrations that were made
/// through the first number. Other instances and polls use only the duplicate.
pub(super) fn outlives(pair: &Pair) {
    let first = sys::epoll_create();
    sys::epoll_ctl(first, ADD, pair.fd, IN, 1).value();
    pair.say("before", now(first));
    let second = sys::dup(first).fd();
    pair.say("close", sys::close(first));
    pair.say("the former", sys::epoll_ctl(first, MOD, pair.fd, IN, 1));
    pair.step();
    parts(pair, &[b"one"], |_| {
        pair.say("news", now(second));
        receive_all(pair.fd, &mut [0; 3]);
        pair.say("read", now(second));
    });
    for (what, operation, events) in [
        ("MOD", MOD, IN | ET),
        ("DEL", DEL, 0),
        ("DEL twice", DEL, 0),
        ("ADD", ADD, IN),
        ("ADD twice", ADD, IN),
    ] {
        let result = sys::epoll_ctl(second, operation, pair.fd, events, 2);
        pair.say(what, result);
    }
    parts(pair, &[b"two"], |_| {
        let polled = sys::poll(&[(second, libc::POLLIN)], 1_000);
        pair.say("polled", format!("{polled:?}"));
        pair.say("news", now(second));
        receive_all(pair.fd, &mut [0; 3]);
    });
    // Another file has the first number now. The connection is taken out of the instance and put
    // back.
    let other = sys::epoll_create();
    pair.say("the first number", other == first);
    sys::epoll_ctl(other, ADD, pair.fd, IN, 3).value();
    sys::epoll_ctl(second, DEL, pair.fd, 0, 0).value();
    sys::epoll_ctl(second, ADD, pair.fd, IN, 4).value();
    parts(pair, &[b"three"], |_| {
        pair.say("one", now(second));
        pair.say("other", now(other));
        receive_all(pair.fd, &mut [0; 5]);
    });
    sys::close(other).value();
    let third = sys::dup2(second, first).fd();
    pair.say("close", sys::close(second));
    parts(pair, &[b"four"], |_| {
        pair.say("third", now(third));
        receive_all(pair.fd, &mut [0; 4]);
        pair.say("read", now(third));
    });
    sys::close(third).value();
}

/// Like [`outlives`], with registrations that were made before any traffic. By then another
/// instance has the first number.
pub(super) fn outlives_from_before(role: &Role) {
    let fd = role.meet();
    let first = sys::epoll_create();
    sys::epoll_ctl(first, ADD, fd, IN, 1).value();
    let second = sys::dup(first).fd();
    sys::close(first).value();
    let other = sys::epoll_create();
    role.say("the first number", other == first);
    role.warm(fd);
    let pair = Pair {
        role: Role { ..*role },
        fd,
    };
    pair.step();
    parts(&pair, &[b"one", b"two"], |_| {
        pair.say("news", now(second));
        pair.say("other", now(other));
        receive_all(fd, &mut [0; 3]);
    });
    pair.say("ADD to the other", sys::epoll_ctl(other, ADD, fd, IN, 2));
    parts(&pair, &[b"three"], |_| {
        pair.say("news", now(second));
        pair.say("other", now(other));
        receive_all(fd, &mut [0; 5]);
    });
}

/// A thread waits through the number that stays open, and another thread changes the registration.
pub(super) fn sleeper(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"!");
        pair.step();
        pair.step();
        return;
    }
    let first = sys::epoll_create();
    let second = sys::dup(first).fd();
    sys::epoll_ctl(first, ADD, pair.fd, libc::EPOLLRDHUP, 1).value();
    sys::close(first).value();
    pair.step();
    pair.arrived(pair.fd, 1);
    let waiter = Sleeper::start(move || sys::epoll_wait(second, 4, 5_000));
    sys::epoll_ctl(second, MOD, pair.fd, IN, 2).value();
    pair.say("the sleeper", super::seen(&waiter.result()));
    pair.step();
}
