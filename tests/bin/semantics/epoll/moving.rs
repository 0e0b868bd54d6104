//! Registrations that move: to another instance and back, or out of an instance and in again by
//! another thread or process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{ADD, DEL, ET, IN, MOD, now, seen, watching};
use crate::descriptors::{send_descriptor, socket_pair};
use crate::role::{Pair, Role, ask_harness, receive_all, send_all, shown};
use crate::sleeper::Sleeper;
use crate::sys::{self, Fd};

/// Long enough on any machine. Short enough that a lost wake-up becomes a line of the transcript.
const TIME_LIMIT_MS: i32 = 5_000;

/// Tests bytes that arrive while the client waits in `epoll`, then bytes that arrive before its
/// call.
fn hears(pair: &Pair, place: &str, epoll: Fd) {
    if pair.server() {
        pair.step_to_sleeper();
        send_all(pair.fd, b"later");
        pair.step();
        send_all(pair.fd, b"first");
        pair.step();
    } else {
        pair.step_to_sleep();
        let found = sys::epoll_wait(epoll, 4, TIME_LIMIT_MS);
        pair.say(place, format!("waits {}", seen(&found)));
        receive_all(pair.fd, &mut [0; 5]);
        pair.step();
        pair.step();
        pair.arrived(pair.fd, 5);
        pair.say(place, format!("looks {}", now(epoll)));
        receive_all(pair.fd, &mut [0; 5]);
    }
    pair.step();
}

/// Moves a connection as varnish does: after service the connection moves from the worker's
/// instance back to its first instance.
pub(super) fn between_instances(pair: &Pair) {
    for events in [IN, IN | ET] {
        let [home, worker] = [0; 2].map(|_| sys::epoll_create());
        let add = |epoll, data| sys::epoll_ctl(epoll, ADD, pair.fd, events, data).value();
        let take = |epoll| sys::epoll_ctl(epoll, DEL, pair.fd, 0, 0).value();
        add(home, 1);
        hears(pair, "home", home);
        for _ in 0..2 {
            take(home);
            add(worker, 2);
            hears(pair, "worker", worker);
            pair.say("the former", now(home));
            take(worker);
            add(home, 3);
            hears(pair, "home again", home);
        }
        // The connection is a member of both instances, then of each instance alone.
        add(worker, 4);
        hears(pair, "worker, too", worker);
        pair.say("home, too", now(home));
        take(home);
        hears(pair, "worker alone", worker);
        take(worker);
        add(worker, 5);
        hears(pair, "worker put back", worker);
        sys::close(worker).value();
        add(home, 6);
        hears(pair, "home put back", home);
        sys::close(home).value();
    }
}

/// A child is forked while the registration is removed. The child registers the connection with an
/// instance that it inherited.
pub(super) fn by_a_child(role: &Role) {
    let [moved, other] = role.meet_several();
    let pair = Pair {
        role: Role { ..*role },
        fd: moved,
    };
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, ADD, moved, IN, 1).value();
    sys::epoll_ctl(epoll, ADD, other, IN, 9).value();
    hears(&pair, "before", epoll);
    if role.server() {
        hears(&pair, "", epoll);
        return;
    }
    sys::epoll_ctl(epoll, DEL, moved, 0, 0).value();
    let child = sys::fork();
    if child == 0 {
        sys::epoll_ctl(epoll, ADD, moved, IN, 2).value();
        hears(&pair, "child", epoll);
        sys::exit_now(0);
    }
    role.say("child", sys::wait_for(child));
}

/// The connection moves as in the Erlang runtime: the one-shot of the polling thread's instance was
/// reported and is not armed again, and a scheduler waits in an instance of its own. Messages wake
/// the scheduler only.
pub(super) fn beside_a_spent_one_shot(pair: &Pair) {
    const MESSAGES: usize = 100;
    const ONCE: i32 = IN | libc::EPOLLONESHOT;
    if pair.server() {
        answer_slowly(pair.fd);
        return;
    }
    let ask = || send_all(pair.fd, b"?");
    let take = || receive_all(pair.fd, &mut [0]);
    let hear = |epoll| {
        ask();
        let found = seen(&sys::epoll_wait(epoll, 4, TIME_LIMIT_MS));
        take();
        found
    };
    let [home, worker] = [0; 2].map(|_| sys::epoll_create());
    sys::epoll_ctl(home, ADD, pair.fd, ONCE, 1).value();
    pair.say("home", hear(home));
    sys::epoll_ctl(worker, ADD, pair.fd, IN, 2).value();
    for is_armed_asleep in [true, false] {
        let end = sys::eventfd();
        sys::epoll_ctl(home, ADD, end, IN, 3).value();
        let sleeper = Sleeper::start(move || {
            let before = sleeps_so_far();
            let found = seen(&sys::epoll_wait(home, 4, TIME_LIMIT_MS));
            (found, sleeps_so_far() - before)
        });
        let told = (0..MESSAGES).filter(|_| hear(worker) == hear(worker));
        pair.say("told alike", told.count());
        if is_armed_asleep {
            sys::epoll_ctl(home, MOD, pair.fd, ONCE, 4).value();
            ask();
        } else {
            sys::write(end, &1_u64.to_ne_bytes()).value();
        }
        let (found, sleeps) = sleeper.result();
        pair.say("the sleeper", found);
        pair.say("it was left alone", sleeps < MESSAGES as i64);
        if is_armed_asleep {
            pair.say("the worker", now(worker));
            take();
        }
        sys::close(end).value();
        sys::epoll_ctl(home, MOD, pair.fd, ONCE, 5).value();
        pair.say("home again", hear(home));
    }
    sys::epoll_ctl(worker, DEL, pair.fd, 0, 0).value();
    sys::epoll_ctl(home, MOD, pair.fd, ONCE, 6).value();
    pair.say("home alone", hear(home));
    sys::epoll_ctl(home, DEL, pair.fd, 0, 0).value();
    sys::epoll_ctl(home, ADD, pair.fd, IN, 7).value();
    pair.say("home put back", hear(home));
    send_all(pair.fd, b".");
}

/// A thread sleeps while others change its instance's registration, or remove it and put it back.
/// Nothing has arrived, so the thread is left alone.
pub(super) fn armed_beside_a_sleeper(pair: &Pair) {
    const CHANGES: usize = 100;
    for operation in [MOD, DEL] {
        if pair.server() {
            pair.step();
            send_all(pair.fd, b"!");
            pair.step();
            continue;
        }
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, ADD, pair.fd, IN, 1).value();
        let sleeper = Sleeper::start(move || {
            let before = sleeps_so_far();
            let found = seen(&sys::epoll_wait(epoll, 4, TIME_LIMIT_MS));
            (found, sleeps_so_far() - before)
        });
        for _ in 0..CHANGES {
            let events = IN | libc::EPOLLONESHOT;
            sys::epoll_ctl(epoll, operation, pair.fd, events, 2).value();
            if operation == DEL {
                sys::epoll_ctl(epoll, ADD, pair.fd, events, 3).value();
            }
            thread::sleep(Duration::from_millis(1));
        }
        pair.step();
        let (found, sleeps) = sleeper.result();
        pair.say("the sleeper", found);
        pair.say("it was left alone", sleeps < CHANGES as i64 / 2);
        receive_all(pair.fd, &mut [0]);
        sys::close(epoll).value();
        pair.step();
    }
}

/// Answers each byte with a byte, when the client has had time to fall asleep. Returns at a full
/// stop.
fn answer_slowly(fd: Fd) {
    loop {
        let mut byte = [0];
        receive_all(fd, &mut byte);
        if byte == *b"." {
            return;
        }
        thread::sleep(Duration::from_millis(1));
        send_all(fd, &byte);
    }
}

/// How often this thread has given up its processor to wait.
fn sleeps_so_far() -> i64 {
    // SAFETY: all zeroes is a value of it, and it is writable.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_nvcsw
    }
}

pub(super) fn other_thread(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
    } else {
        pair.step();
        let epoll = sys::epoll_create();
        let waiter = Sleeper::start(move || seen(&sys::epoll_wait(epoll, 4, -1)));
        pair.say("ADD", sys::epoll_ctl(epoll, ADD, pair.fd, IN, 5));
        pair.say("the waiter", waiter.result());
        pair.step();
    }
}

/// Behaves like Apache's event MPM: one thread waits and removes the descriptors with events. Other
/// threads serve the descriptors and register them again, while the first thread waits.
pub(super) fn put_back(pair: &Pair) {
    const ROUNDS: usize = 20;
    if pair.server() {
        for _ in 0..ROUNDS {
            send_all(pair.fd, b"ask");
            receive_all(pair.fd, &mut [0; 6]);
        }
        return;
    }
    let epoll = watching(pair, IN);
    let fd = pair.fd;
    let (news, served) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        loop {
            let seen = seen(&sys::epoll_wait(epoll, 4, -1));
            let deleted = sys::epoll_ctl(epoll, DEL, fd, 0, 0);
            if news.send((seen, deleted)).is_err() {
                break;
            }
        }
    });
    for round in 0..ROUNDS {
        let (seen, deleted) = served.recv().expect("the waiter lives");
        let mut request = [0; 3];
        receive_all(fd, &mut request);
        pair.say("news", format!("{seen} {deleted} {}", shown(&request)));
        send_all(fd, b"answer");
        // In some rounds the next request arrives before the registration. In the other rounds it
        // arrives while the waiter sleeps.
        if round % 4 == 0 {
            pair.arrived(fd, if round + 1 < ROUNDS { 3 } else { 0 });
        } else {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        pair.say("ADD", sys::epoll_ctl(epoll, ADD, fd, IN, 7));
    }
}

/// An operator moves the connection between kernel and rings, while one thread uses the connection
/// and another waits for events.
pub(super) fn beside_a_wait(pair: &Pair) {
    const MOVES: usize = 100;
    const CALLS: usize = 10;
    let exchange = || {
        for _ in 0..CALLS {
            send_all(pair.fd, b"question");
            receive_all(pair.fd, &mut [0; 6]);
        }
    };
    if pair.server() {
        for _ in 0..MOVES * 2 * CALLS {
            receive_all(pair.fd, &mut [0; 8]);
            send_all(pair.fd, b"answer");
        }
        return pair.step();
    }
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, ADD, pair.fd, IN | libc::EPOLLOUT, 1).value();
    let is_over = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::Relaxed) {
                most = most.max(sys::epoll_wait(epoll, 8, 1000).0.len());
            }
            most
        });
        for _ in 0..MOVES {
            for command in ["detach", "attach"] {
                ask_harness(command);
                exchange();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        looker.join().expect("no panic")
    });
    pair.say("most events of one member", most);
    pair.step();
}

/// The client passes two of its connections to another program, so the kernel reports their events.
/// Then a forked child, which has the registrations, too, sends on them. The parent must be told of
/// all connections in one call, and of another file that has an event.
pub(super) fn passed_beside_a_child(role: &Role, is_file_ready: bool) {
    const DATA: &[u8] = b"data";
    let fds: [Fd; 3] = role.meet_several();
    let passed = &fds[..2];
    if role.server() {
        role.step();
        fds.iter().for_each(|fd| send_all(*fd, DATA));
        role.step();
        passed.iter().for_each(|fd| receive_all(*fd, &mut [0; 1]));
        return role.step();
    }
    let (epoll, event) = (sys::epoll_create(), sys::eventfd());
    for (fd, data) in fds.into_iter().chain([event]).zip(1..) {
        sys::epoll_ctl(epoll, ADD, fd, IN, data).value();
    }
    // The order of events is not specified.
    let sorted = || {
        let (result, mut events) = sys::epoll_wait(epoll, 16, 0);
        events.sort_unstable();
        seen(&(result, events))
    };
    role.say("at first", sorted());
    let (ours, theirs) = socket_pair();
    for fd in passed {
        send_descriptor(ours, *fd).value();
    }
    for end in [ours, theirs] {
        sys::close(end).value();
    }
    role.step();
    role.step();
    fds.iter().for_each(|fd| role.arrived(*fd, DATA.len()));
    let child = sys::fork();
    if child == 0 {
        passed.iter().for_each(|fd| send_all(*fd, b"!"));
        sys::exit_now(0);
    }
    role.say("child", sys::wait_for(child));
    if is_file_ready {
        sys::write(event, &1_u64.to_ne_bytes()).value();
    }
    role.say("a look", sorted());
    role.say("one more look", sorted());
    fds.iter()
        .for_each(|fd| receive_all(*fd, &mut [0; DATA.len()]));
    role.say("all is received", sorted());
    role.step();
}
