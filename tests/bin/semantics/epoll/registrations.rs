//! Registrations: changed, refused, and left over after a descriptor was closed or duplicated.

use super::{ADD, DEL, ET, IN, MOD, OUT, now, parts, watching};
use crate::role::{Pair, drain, receive_all, send_all};
use crate::sys;

pub(super) fn modify(pair: &Pair) {
    let epoll = watching(pair, 0);
    pair.step();
    parts(pair, &[b"data"], |_| {
        pair.say("no interest", now(epoll));
        for events in [IN, OUT, IN | OUT, 0, IN] {
            pair.say(
                "MOD",
                sys::epoll_ctl(epoll, MOD, pair.fd, events, events as u64),
            );
            pair.say("found", now(epoll));
        }
        pair.say("DEL", sys::epoll_ctl(epoll, DEL, pair.fd, 0, 0));
        pair.say("found", now(epoll));
        pair.say("ADD", sys::epoll_ctl(epoll, ADD, pair.fd, IN, u64::MAX));
        pair.say("found", now(epoll));
    });
}

pub(super) fn refusals(pair: &Pair) {
    let epoll = watching(pair, IN);
    pair.say("ADD twice", sys::epoll_ctl(epoll, ADD, pair.fd, IN, 1));
    pair.say("DEL", sys::epoll_ctl(epoll, DEL, pair.fd, 0, 0));
    pair.say("DEL twice", sys::epoll_ctl(epoll, DEL, pair.fd, 0, 0));
    pair.say("MOD of none", sys::epoll_ctl(epoll, MOD, pair.fd, IN, 1));
    pair.say(
        "ADD to a socket",
        sys::epoll_ctl(pair.fd, ADD, epoll, IN, 1),
    );
    pair.say("ADD itself", sys::epoll_ctl(epoll, ADD, epoll, IN, 1));
    pair.say(
        "unknown operation",
        sys::epoll_ctl(epoll, 77, pair.fd, IN, 1),
    );
    pair.say("wait on a socket", sys::epoll_wait(pair.fd, 1, 0).0);
    pair.say("wait for none", sys::epoll_wait(epoll, 0, 0).0);
    pair.step();
    sys::close(pair.fd).value();
    pair.say(
        "ADD of a closed one",
        sys::epoll_ctl(epoll, ADD, pair.fd, IN, 1),
    );
}

pub(super) fn close_removes(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
    } else {
        let epoll = watching(pair, IN);
        pair.step();
        pair.arrived(pair.fd, 4);
        pair.say("before", now(epoll));
        sys::close(pair.fd).value();
        pair.say("after", now(epoll));
        // The number now stands for another file.
        let event = sys::eventfd();
        pair.say("the number is taken again", event == pair.fd);
        sys::write(event, &1_u64.to_ne_bytes()).value();
        pair.say("still nothing", now(epoll));
        pair.say("ADD", sys::epoll_ctl(epoll, ADD, event, IN, 11));
        pair.say("the new one", now(epoll));
        pair.step();
    }
}

pub(super) fn dup_keeps(pair: &Pair) {
    let epoll = watching(pair, IN);
    pair.step();
    parts(pair, &[b"data", b"more"], |index| {
        if index == 0 {
            let copy = sys::dup(pair.fd).fd();
            pair.say("ADD of the copy", sys::epoll_ctl(epoll, ADD, copy, IN, 8));
            pair.say("both", now(epoll));
            sys::close(copy).value();
            // The open file description lives on under its first number, so the copy's registration
            // does, too.
            pair.say("the copy is closed", now(epoll));
        } else {
            pair.say("more", now(epoll));
        }
    });
}

/// The kernel identifies a registration by file and number. The registration stays while the file
/// is open. It can be changed when the number stands for the file again.
pub(super) fn outlives(pair: &Pair) {
    let epolls = [IN, IN | ET, IN | libc::EPOLLONESHOT].map(|events| watching(pair, events));
    let fd = pair.fd;
    let copy = sys::dup(fd).fd();
    pair.say("close", sys::close(fd));
    let all = || epolls.map(now).join(", ");
    for round in 0..5 {
        pair.step();
        if pair.server() {
            send_all(copy, b"data");
            pair.step();
            continue;
        }
        pair.step();
        pair.arrived(copy, 4);
        pair.say("data", all());
        pair.say("again", all());
        let change = |operation, fd, data| sys::epoll_ctl(epolls[0], operation, fd, IN, data);
        match round {
            0 => {
                pair.say("MOD of a closed one", change(MOD, fd, 8));
                pair.say("MOD of the copy", change(MOD, copy, 8));
                pair.say("DEL of the copy", change(DEL, copy, 8));
            }
            1 => {
                pair.say("ADD of the copy", change(ADD, copy, 8));
                pair.say("both", now(epolls[0]));
                pair.say("DEL of the copy", change(DEL, copy, 8));
            }
            2 => {
                pair.say("the number is taken again", sys::dup(copy).fd() == fd);
                pair.say("ADD", change(ADD, fd, 9));
                pair.say("MOD", change(MOD, fd, 9));
                sys::epoll_ctl(epolls[2], MOD, fd, IN | libc::EPOLLONESHOT, 9).value();
            }
            3 => {
                pair.say("DEL", change(DEL, fd, 9));
                pair.say("MOD", change(MOD, fd, 9));
                pair.say("close", sys::close(fd));
            }
            _ => {}
        }
        pair.say("then", all());
        receive_all(copy, &mut [0; 4]);
        pair.say("read", all());
    }
    pair.step();
    // The library must not keep the connection open.
    if pair.server() {
        pair.say("close", sys::close(copy));
    } else {
        pair.say("then", drain(copy));
        pair.say("at the end", all());
    }
}

/// A registration has outlived its number. It ends with its connection. The registration of the
/// next file under that number stays.
pub(super) fn number_goes_on(pair: &Pair) {
    let epoll = watching(pair, OUT);
    let copy = sys::dup(pair.fd).fd();
    sys::close(pair.fd).value();
    let event = sys::eventfd();
    pair.say("the number is taken again", event == pair.fd);
    sys::epoll_ctl(epoll, ADD, event, IN, 11).value();
    sys::write(event, &1_u64.to_ne_bytes()).value();
    let both = sys::epoll_wait(epoll, 4, 0).0;
    pair.say("both", both);
    pair.step();
    pair.say("close", sys::close(copy));
    pair.say("the next file's", now(epoll));
    pair.step();
}
