//! An epoll instance that is a member of another instance, or one of the descriptors of a poll.

use super::{ADD, DEL, ET, IN, MOD, OUT, now, parts, seen, watching};
use crate::role::{Pair, Role, receive_all, send_all};
use crate::sys::{self, Fd};

/// Long enough on any machine. Short enough that a lost wake-up becomes a line of the transcript.
const MOMENT_MS: i32 = 5_000;

/// The readiness of `epoll` as `poll`, `select` and `epoll_wait` report it.
fn from_outside(epoll: Fd) -> String {
    let (result, seen) = sys::poll(&[(epoll, libc::POLLIN | libc::POLLRDNORM)], 0);
    let selected = sys::select(&[epoll], &[], Some(0), false);
    format!("{result} {seen:x?}, {selected}, {}", now(epoll))
}

/// Bytes arrive while the client waits, three times. The client runs `before` before it lets the
/// server send, and `after` afterwards.
fn later(pair: &Pair, before: impl Fn(), after: impl Fn()) {
    for _ in 0..3 {
        if pair.server() {
            pair.step();
            std::thread::sleep(std::time::Duration::from_millis(5));
            send_all(pair.fd, b"later");
        } else {
            before();
            pair.step();
            after();
        }
        pair.step();
    }
}

pub(super) fn polled(pair: &Pair) {
    let inner = watching(pair, IN);
    let event = sys::eventfd();
    sys::epoll_ctl(inner, ADD, event, IN, 21).value();
    let wait = || format!("{:?}", sys::poll(&[(inner, libc::POLLIN)], -1));
    pair.say("quiet", from_outside(inner));
    sys::write(event, &1_u64.to_ne_bytes()).value();
    pair.say("the event", format!("{} {}", wait(), from_outside(inner)));
    sys::read(event, &mut [0; 8]).value();
    pair.say("quiet again", from_outside(inner));
    let waker = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(5));
        sys::write(event, &1_u64.to_ne_bytes())
    });
    pair.say("a later event", wait());
    pair.say("written", waker.join().expect("the waker does not panic"));
    pair.step();
    parts(pair, &[b"data", b"more"], |_| {
        // An engine reports bytes a moment after they can be counted.
        while sys::epoll_wait(inner, 2, 0).0.len() < 2 {
            std::thread::yield_now();
        }
        pair.say("both", from_outside(inner));
        receive_all(pair.fd, &mut [0; 4]);
        pair.say("read", from_outside(inner));
    });
    sys::read(event, &mut [0; 8]).value();
    pair.say("nothing", from_outside(inner));
    later(
        pair,
        || (),
        || {
            pair.say("later", wait());
            receive_all(pair.fd, &mut [0; 5]);
            pair.say("read", from_outside(inner));
        },
    );
}

/// A thread polls an instance, and the connection becomes a member of the instance during the poll.
/// Then the poll ends. Bytes that arrive later wake another thread, which sleeps in a receive all
/// the time.
pub(super) fn member_meanwhile(pair: &Pair) {
    const MOMENT: std::time::Duration = std::time::Duration::from_millis(20);
    // The time-out turns a missing wake-up into a line of the transcript.
    let seconds = libc::timeval {
        tv_sec: 3,
        tv_usec: 0,
    };
    sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, seconds).value();
    for _ in 0..5 {
        if pair.server() {
            pair.step();
            send_all(pair.fd, b"data");
            pair.step();
            continue;
        }
        // A connection has one wake word, and its first instance uses that word. So the second
        // instance checks the connection on each call.
        let (fd, first) = (pair.fd, watching(pair, IN));
        let [polled, event] = [sys::epoll_create(), sys::eventfd()];
        sys::epoll_ctl(polled, ADD, event, IN, 21).value();
        let poller = std::thread::spawn(move || sys::poll(&[(polled, libc::POLLIN)], -1));
        let receiver = std::thread::spawn(move || sys::recv(fd, &mut [0; 4], 0));
        std::thread::sleep(MOMENT);
        pair.say("ADD", sys::epoll_ctl(polled, ADD, fd, IN, 22));
        sys::write(event, &1_u64.to_ne_bytes()).value();
        let result = poller.join().expect("it does not panic");
        pair.say("polled", format!("{result:?}"));
        std::thread::sleep(MOMENT);
        pair.step();
        let result = receiver.join().expect("it does not panic");
        pair.say("received", result);
        for epoll in [first, polled, event] {
            sys::close(epoll).value();
        }
        pair.step();
    }
}

pub(super) fn nested_deep(pair: &Pair) {
    let inner = watching(pair, IN);
    let [middle, outer] = [inner, 0].map(|_| sys::epoll_create());
    pair.say("ADD", sys::epoll_ctl(middle, ADD, inner, IN, 1));
    pair.say("ADD", sys::epoll_ctl(outer, ADD, middle, IN, 2));
    pair.say("a circle", sys::epoll_ctl(inner, ADD, outer, IN, 3));
    pair.step();
    parts(pair, &[b"data", b"more"], |_| {
        for epoll in [outer, middle] {
            let seen = sys::poll(&[(epoll, libc::POLLIN)], -1);
            pair.say("poll", format!("{seen:?} {}", now(epoll)));
        }
        receive_all(pair.fd, &mut [0; 4]);
    });
    later(
        pair,
        || drop(now(inner)),
        || {
            pair.say("later", seen(&sys::epoll_wait(outer, 4, -1)));
            receive_all(pair.fd, &mut [0; 5]);
        },
    );
    // Another instance may get the number of a closed instance. The new instance is not a member of
    // `middle`.
    sys::close(inner).value();
    let another = watching(pair, OUT);
    pair.say("the number is taken again", another == inner);
    pair.say("another", now(another));
    pair.say("middle", now(middle));
}

/// Members with and without `EPOLLRDHUP`, alone and beside an ordinary member. A receive that found
/// no bytes has asked for a doorbell, and bytes have arrived since then.
pub(super) fn nested_quiet(pair: &Pair) {
    if pair.server() {
        for _ in 0..4 {
            pair.step();
            send_all(pair.fd, b"x");
            pair.step();
        }
        return;
    }
    let (reading, _writing) = sys::pipe();
    for events in [IN, IN | libc::EPOLLRDHUP] {
        for has_pipe in [false, true] {
            let looked = sys::recv(pair.fd, &mut [0; 4], libc::MSG_DONTWAIT);
            pair.say("looked", looked);
            pair.step();
            pair.arrived(pair.fd, 1);
            receive_all(pair.fd, &mut [0; 1]);
            let inner = watching(pair, events);
            let outer = sys::epoll_create();
            if has_pipe {
                sys::epoll_ctl(inner, ADD, reading, IN, 8).value();
            }
            sys::epoll_ctl(outer, ADD, inner, IN, 99).value();
            pair.say("at first", now(outer));
            for _ in 0..3 {
                let waited = seen(&sys::epoll_wait(outer, 4, 5));
                pair.say("silent", format!("{waited} {}", now(outer)));
            }
            sys::close(outer).value();
            sys::close(inner).value();
            pair.step();
        }
    }
}

/// An inner member has an event without interest in it, and then an event with interest. An outer
/// instance reports the inner one: level-triggered, edge-triggered and one-shot. The cases run with
/// and without an ordinary one-shot member.
pub(super) fn nested_tells(pair: &Pair) {
    let modes = [0, libc::EPOLLET, libc::EPOLLONESHOT];
    let all = modes
        .into_iter()
        .flat_map(|mode| [(mode, false), (mode, true)]);
    if pair.server() {
        for _ in all {
            for byte in [b"a", b"b"] {
                pair.step_to_sleeper();
                send_all(pair.fd, byte);
                pair.step();
            }
        }
        return pair.step();
    }
    let (fd, [event, bell]) = (pair.fd, [(); 2].map(|()| sys::eventfd()));
    let [one, mut eight] = [1_u64, 0].map(u64::to_ne_bytes);
    for (mode, has_event) in all {
        let inner = watching(pair, libc::EPOLLRDHUP);
        let outer = sys::epoll_create();
        if has_event {
            let once = IN | libc::EPOLLONESHOT;
            sys::epoll_ctl(inner, ADD, event, once, 8).value();
        }
        sys::epoll_ctl(outer, ADD, inner, IN | mode, 99).value();
        sys::epoll_ctl(outer, ADD, bell, IN, 77).value();
        let twice = |what: &str| {
            pair.say(what, format!("{} {}", now(outer), now(outer)));
        };
        let waker = std::thread::spawn(move || {
            while sys::readable_bytes(fd).value() == 0 {
                std::thread::yield_now();
            }
            sys::write(bell, &one)
        });
        pair.step_to_sleep();
        pair.say("nobody asked", seen(&sys::epoll_wait(outer, 4, -1)));
        waker.join().expect("the waker does not panic").value();
        sys::read(bell, &mut eight).value();
        pair.step();
        twice("nobody asked");
        sys::epoll_ctl(inner, MOD, pair.fd, IN, 1).value();
        twice("asked for");
        pair.say("inside", now(inner));
        receive_all(pair.fd, &mut [0; 1]);
        twice("received");
        sys::epoll_ctl(outer, MOD, inner, IN | mode, 98).value();
        twice("modified");
        pair.step_to_sleep();
        pair.say("sleeps", seen(&sys::epoll_wait(outer, 4, -1)));
        pair.step();
        twice("told");
        pair.say("inside", now(inner));
        receive_all(pair.fd, &mut [0; 1]);
        if has_event {
            sys::epoll_ctl(outer, MOD, inner, IN | mode, 97).value();
            sys::write(event, &one).value();
            twice("the event");
            pair.say("inside", now(inner));
            sys::read(event, &mut eight).value();
        }
        twice("nothing left");
        sys::close(outer).value();
        sys::close(inner).value();
    }
    pair.step();
}

/// The connection is a member of one of many inner instances of one outer instance. The inner
/// instances were registered before and after the program's first wait.
pub(super) fn nested_many(pair: &Pair) {
    const INSTANCES: u64 = 80;
    let outer = sys::epoll_create();
    let event = sys::eventfd();
    pair.say("quiet", now(outer));
    let inside: Vec<Fd> = (0..INSTANCES)
        .map(|number| {
            let inner = sys::epoll_create();
            sys::epoll_ctl(inner, ADD, event, IN, 8).value();
            sys::epoll_ctl(outer, ADD, inner, IN, number).value();
            inner
        })
        .collect();
    pair.say("quiet", now(outer));
    for number in [INSTANCES - 1, 0, INSTANCES / 2, 10] {
        let inner = inside[number as usize];
        if pair.server() {
            pair.step_to_sleeper();
            send_all(pair.fd, b"data");
        } else {
            sys::epoll_ctl(inner, ADD, pair.fd, IN, 7).value();
            pair.step_to_sleep();
            let found = sys::epoll_wait(outer, 100, MOMENT_MS);
            pair.say("woken", format!("{} {}", seen(&found), now(inner)));
            let seen = sys::poll(&[(outer, libc::POLLIN)], 0);
            pair.say("polled", format!("{seen:?}"));
            receive_all(pair.fd, &mut [0; 4]);
            pair.say("read", now(outer));
            sys::epoll_ctl(inner, DEL, pair.fd, 0, 0).value();
        }
        pair.step();
    }
    if !pair.server() {
        sys::write(event, &1_u64.to_ne_bytes()).value();
        let mut missing: std::collections::BTreeSet<u64> = (0..INSTANCES).collect();
        for _ in 0..INSTANCES {
            let (_, events) = sys::epoll_wait(outer, 7, 0);
            events.iter().for_each(|event| _ = missing.remove(&event.0));
        }
        pair.say("not told of the event", format!("{missing:?}"));
        // The first inner instances are closed, so only the last one can be reported.
        for inner in &inside[..INSTANCES as usize - 1] {
            sys::close(*inner).value();
        }
        let (result, _) = sys::epoll_wait(outer, 100, 0);
        pair.say("the last one", result);
        sys::read(event, &mut [0; 8]).value();
        sys::epoll_ctl(inside[INSTANCES as usize - 1], ADD, pair.fd, OUT, 7).value();
        pair.say("the last one", now(outer));
    }
    pair.step();
}

/// The other role ends the connection, and the registration does not ask for that event. Before
/// that, another registration was refused, because its number was not a descriptor.
pub(super) fn quiet_after_a_refusal(pair: &Pair) {
    let inner = (!pair.server()).then(|| watching(pair, libc::EPOLLPRI));
    quiet_at_the_end(pair, inner, |inner| {
        let none = 1 << 20;
        for (what, operation) in [("ADD", ADD), ("MOD", MOD)] {
            let result = sys::epoll_ctl(inner, operation, none, IN | ET, 9);
            pair.say(what, result);
        }
    });
}

/// Like [`quiet_after_a_refusal`]. The edge-triggered registration was made before the traffic, so
/// the kernel had it first.
pub(super) fn quiet_after_the_kernel(role: &Role) {
    let fd = role.meet();
    let pair = Pair { role: *role, fd };
    let inner = (!pair.server()).then(|| watching(&pair, libc::EPOLLPRI | ET));
    role.warm(fd);
    quiet_at_the_end(&pair, inner, |_| ());
}

fn quiet_at_the_end(pair: &Pair, inner: Option<Fd>, before: impl Fn(Fd)) {
    let Some(inner) = inner else {
        pair.step();
        sys::shutdown(pair.fd, libc::SHUT_WR).value();
        return pair.step();
    };
    pair.say("quiet", from_outside(inner));
    before(inner);
    pair.say("quiet", from_outside(inner));
    pair.step();
    sys::poll(&[(pair.fd, libc::POLLRDHUP)], -1).0.value();
    let outer = sys::epoll_create();
    sys::epoll_ctl(outer, ADD, inner, IN, 99).value();
    for _ in 0..2 {
        pair.say("ended", format!("{} {}", now(outer), from_outside(inner)));
    }
    sys::epoll_ctl(inner, MOD, pair.fd, libc::EPOLLRDHUP, 8).value();
    pair.say(
        "asked for",
        format!("{} {}", now(outer), from_outside(inner)),
    );
    pair.step();
}

pub(super) fn nested(pair: &Pair) {
    let inner = watching(pair, IN);
    let outer = sys::epoll_create();
    pair.say("ADD", sys::epoll_ctl(outer, ADD, inner, IN, 99));
    pair.say("quiet", now(outer));
    pair.step();
    parts(pair, &[b"data", b"more"], |_| {
        pair.say(
            "poll of the inner",
            format!("{:?}", sys::poll(&[(inner, libc::POLLIN)], -1)),
        );
        pair.say("outer", now(outer));
        pair.say("inner", now(inner));
        pair.say("outer again", now(outer));
        receive_all(pair.fd, &mut [0; 4]);
        pair.say("read", format!("{} {}", now(outer), now(inner)));
    });
    if pair.server() {
        pair.step_to_sleeper();
        send_all(pair.fd, b"late");
    } else {
        pair.step_to_sleep();
        pair.say(
            "woken through the outer",
            seen(&sys::epoll_wait(outer, 4, -1)),
        );
    }
    pair.step();
}
