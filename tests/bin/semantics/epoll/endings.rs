//! Events at the end of a connection.

use super::{ET, IN, now, seen, watching};
use crate::role::{Pair, await_events, receive_all, send_all};
use crate::sys;

pub(super) fn end_events(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"last");
        sys::shutdown(pair.fd, libc::SHUT_WR).value();
        pair.step();
        pair.step();
        sys::close(pair.fd).value();
        pair.step();
    } else {
        let level = watching(pair, IN | libc::EPOLLRDHUP);
        let edge = watching(pair, IN | ET | libc::EPOLLRDHUP);
        pair.say("quiet", format!("{} {}", now(level), now(edge)));
        pair.step();
        pair.step();
        await_events(pair.fd, libc::POLLRDHUP);
        pair.say("data and EOF", format!("{} {}", now(level), now(edge)));
        receive_all(pair.fd, &mut [0; 4]);
        pair.say("EOF", format!("{} {}", now(level), now(edge)));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 4], 0));
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
        pair.step();
        pair.step();
        await_events(pair.fd, libc::POLLHUP);
        pair.say("over", format!("{} {}", now(level), now(edge)));
        pair.say("over", format!("{} {}", now(level), now(edge)));
    }
}

pub(super) fn reset_events(pair: &Pair) {
    if pair.server() {
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_LINGER, linger).value();
        pair.step_to_sleeper();
        sys::close(pair.fd).value();
    } else {
        let epoll = watching(pair, 0);
        let with_in = watching(pair, IN | ET | libc::EPOLLRDHUP);
        pair.step_to_sleep();
        pair.say("no interest", seen(&sys::epoll_wait(epoll, 4, -1)));
        pair.say("interest", seen(&sys::epoll_wait(with_in, 4, -1)));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 4], 0));
        pair.say("after", format!("{} {}", now(epoll), now(with_in)));
    }
}
