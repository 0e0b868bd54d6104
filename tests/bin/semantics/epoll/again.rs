//! Events that were reported, and are not reported again when the connection's bytes take another
//! way.

use super::{ADD, DEL, ET, IN, seen, watching};
use crate::descriptors::{send_descriptor, socket_pair};
use crate::role::{Pair, receive_all, send_all};
use crate::sys;

/// The server has passed its connection to another program, so it sends by the carrier. Two
/// instances have the connection. Waits with and without a time-out report each arrival once.
pub(super) fn bytes_by_the_carrier(pair: &Pair) {
    const TIMES_MS: [i32; 6] = [2, 0, 2, 2, 0, 0];
    let _level = watching(pair, IN);
    let events = IN | libc::EPOLLRDHUP | ET;
    let edge = watching(pair, events);
    if pair.server() {
        let (ours, theirs) = socket_pair();
        send_descriptor(ours, pair.fd).value();
        for end in [ours, theirs] {
            sys::close(end).value();
        }
    }
    let mut unread = 0;
    for turn in 0..TIMES_MS.len() {
        pair.step();
        if pair.server() {
            send_all(pair.fd, b"data");
            pair.step();
            continue;
        }
        pair.step();
        unread += 4;
        pair.arrived(pair.fd, unread);
        for look in 0..3 {
            let time_ms = TIMES_MS[(turn + look) % TIMES_MS.len()];
            let events = seen(&sys::epoll_wait(edge, 4, time_ms));
            pair.say(&format!("look {look} with {time_ms} ms"), events);
        }
        // The kernel was asked just now, and has an event of the new registration, too.
        sys::epoll_ctl(edge, DEL, pair.fd, 0, 0).value();
        sys::epoll_ctl(edge, ADD, pair.fd, events, 8).value();
        for look in 0..3 {
            let events = seen(&sys::epoll_wait(edge, 4, 2));
            pair.say(&format!("look {look} after it was put back"), events);
        }
        if turn % 2 == 1 {
            receive_all(pair.fd, &mut vec![0; unread]);
            unread = 0;
            pair.say("received", seen(&sys::epoll_wait(edge, 4, 2)));
        }
    }
    pair.step();
}
