//! All names of readiness events.

use crate::role::{Pair, send_all};
use crate::sys;

/// A program may ask for `EPOLLRDNORM` or a related event alone.
pub(super) fn other_names(pair: &Pair) {
    const NAMES: [(&str, i32); 9] = [
        ("RDNORM", libc::EPOLLRDNORM),
        ("WRNORM", libc::EPOLLWRNORM),
        ("WRBAND", libc::EPOLLWRBAND),
        ("RDBAND", libc::EPOLLRDBAND),
        ("all for reading", libc::EPOLLRDNORM | libc::EPOLLIN),
        ("all for writing", libc::EPOLLWRNORM | libc::EPOLLOUT),
        ("RDNORM, edge", libc::EPOLLRDNORM | libc::EPOLLET),
        ("WRNORM, once", libc::EPOLLWRNORM | libc::EPOLLONESHOT),
        ("RDNORM, once", libc::EPOLLRDNORM | libc::EPOLLONESHOT),
    ];
    if pair.server() {
        pair.step();
        pair.step_to_sleeper();
        send_all(pair.fd, b"news");
        pair.step();
        pair.step();
        return;
    }
    let look = |when: &str| {
        for (name, events) in NAMES {
            let epoll = sys::epoll_create();
            sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, events, 5).value();
            for _ in 0..2 {
                let seen = format!("{:?}", sys::epoll_wait(epoll, 4, 0));
                pair.say(&format!("{when}, {name}"), seen);
            }
            let polled = sys::poll(&[(pair.fd, events as i16)], 0);
            pair.say(&format!("{when}, {name}, poll"), format!("{polled:?}"));
            sys::close(epoll).value();
        }
    };
    pair.step();
    look("quiet");
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLRDNORM, 6).value();
    pair.step_to_sleep();
    pair.say("waits", format!("{:?}", sys::epoll_wait(epoll, 4, 20_000)));
    pair.step();
    pair.arrived(pair.fd, 4);
    look("news");
    pair.step();
}
