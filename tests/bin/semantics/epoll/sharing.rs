//! Several threads that wait in one epoll instance.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::{ADD, ET, IN, MOD};
use crate::role::{Pair, Role, receive_all, send_all};
use crate::sleeper::Sleeper;
use crate::sys::{self, Fd};

/// Long enough on any machine. Short enough that a lost wake-up becomes a line of the transcript.
const TIME_LIMIT: Duration = Duration::from_secs(5);
const ONE: i32 = libc::EPOLLONESHOT;
/// A number that no round has.
const OVER: usize = usize::MAX;

/// Two threads wait at the same time for an event that may be reported only once.
pub(super) fn told_once(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"!");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    pair.arrived(pair.fd, 1);
    for events in [IN | ONE, IN | ET, IN | ET | ONE] {
        let [epoll, other] = [0; 2].map(|_| sys::epoll_create());
        sys::epoll_ctl(epoll, ADD, pair.fd, events, 1).value();
        pair.say("alone", looks(epoll, pair.fd, events));
        sys::epoll_ctl(other, ADD, pair.fd, libc::EPOLLRDHUP, 2).value();
        pair.say("with another instance", looks(epoll, pair.fd, events));
        for epoll in [epoll, other] {
            sys::close(epoll).value();
        }
    }
    pair.step();
}

/// Arms `fd` again and again. Each time two threads call epoll_wait at once. Returns the number of
/// rounds in which neither thread was told of the event, and the number in which both were.
///
/// Ten thousand rounds take a moment while both threads run in parallel. If the threads share a
/// processor, a round waits for the scheduler and tests little, so there are fewer rounds.
fn looks(epoll: Fd, fd: Fd, events: i32) -> String {
    const ROUNDS_MAX: usize = 10_000;
    const LOOKING: Duration = Duration::from_millis(300);
    let mut reports = [0; 3];
    let (begun, found, done) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let look = || {
        let count = usize::from(sys::epoll_wait(epoll, 1, 0).0.len() > 0);
        found.fetch_add(count, Ordering::SeqCst);
    };
    let until = |word: &AtomicUsize, value| {
        let mut turn = 0;
        while word.load(Ordering::SeqCst) < value {
            turn += 1;
            if turn % 1000 == 0 {
                thread::yield_now();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                until(&begun, round);
                if begun.load(Ordering::SeqCst) == OVER {
                    return;
                }
                look();
                done.store(round, Ordering::SeqCst);
            }
        });
        let start = Instant::now();
        for round in 1..=ROUNDS_MAX {
            sys::epoll_ctl(epoll, MOD, fd, events, 1).value();
            begun.store(round, Ordering::SeqCst);
            look();
            until(&done, round);
            reports[found.swap(0, Ordering::SeqCst)] += 1;
            if start.elapsed() > LOOKING {
                break;
            }
        }
        begun.store(OVER, Ordering::SeqCst);
    });
    let [none, _, both] = reports;
    format!("none {none}, both {both}")
}

/// There are as many sleepers as connections. Each sleeper takes one event and keeps it. Events
/// that arrive together wake all sleepers.
pub(super) fn news_for_each(role: &Role) {
    const CONNECTIONS: usize = 3;
    const ROUNDS: usize = 4;
    let connections: [Fd; CONNECTIONS] = role.meet_several();
    for events in [IN | ONE, IN | ET, IN] {
        let epoll = sys::epoll_create();
        for fd in &connections {
            let data = u64::from(fd.cast_unsigned());
            sys::epoll_ctl(epoll, ADD, *fd, events, data).value();
        }
        let mut missed = 0;
        for _ in 0..ROUNDS {
            role.step();
            if role.server() {
                thread::sleep(Duration::from_millis(5));
                connections.iter().for_each(|fd| send_all(*fd, b"!"));
            } else {
                missed += sleepers(epoll, &connections, events);
            }
            role.step();
        }
        role.say("sleepers that were not woken", missed);
        sys::close(epoll).value();
    }
}

/// Starts a sleeper for each connection. Returns the number of sleepers that get no event until the
/// others are done.
fn sleepers(epoll: Fd, connections: &[Fd], events: i32) -> usize {
    let (sender, receiver) = mpsc::channel();
    let waiters: Vec<_> = connections
        .iter()
        .map(|_| {
            let sender = sender.clone();
            let (done, all_told) = mpsc::channel::<()>();
            let waiter = thread::spawn(move || {
                let (_, events) = sys::epoll_wait(epoll, 1, -1);
                sender.send(events[0].0).expect("somebody listens");
                // Keep the event until all sleepers have one.
                let _ = all_told.recv();
            });
            (waiter, done)
        })
        .collect();
    let heard = connections
        .iter()
        .filter(|_| receiver.recv_timeout(TIME_LIMIT).is_ok())
        .count();
    // A sleeper that still sleeps is woken by the unread bytes of the other connections, once they
    // are armed again.
    for fd in connections {
        let data = u64::from(fd.cast_unsigned());
        sys::epoll_ctl(epoll, MOD, *fd, events, data).value();
    }
    for (waiter, done) in waiters {
        drop(done);
        waiter.join().expect("the waiter does not panic");
    }
    for fd in connections {
        receive_all(*fd, &mut [0; 1]);
        let data = u64::from(fd.cast_unsigned());
        sys::epoll_ctl(epoll, MOD, *fd, events, data).value();
    }
    connections.len() - heard
}

/// A thread sleeps on an instance, or on an outer instance of it. Another thread closes the
/// instance and makes a new one; then the sleep ends. A thread that sleeps on the new instance is
/// told of a new member.
pub(super) fn closed_under_a_sleeper(pair: &Pair) {
    const AT_MOST_MS: i32 = 20_000;
    if pair.server() {
        send_all(pair.fd, b"!");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    pair.arrived(pair.fd, 1);
    for is_nested in [false, true] {
        let [slept_on, closed] = [0; 2].map(|_| sys::epoll_create());
        let slept_on = if is_nested {
            sys::epoll_ctl(slept_on, ADD, closed, IN, 1).value();
            slept_on
        } else {
            sys::close(slept_on).value();
            closed
        };
        let event = sys::eventfd();
        sys::epoll_ctl(slept_on, ADD, event, IN, 2).value();
        let before = Sleeper::start(move || format!("{:?}", sys::epoll_wait(slept_on, 8, -1)));
        sys::close(closed).value();
        let new = sys::epoll_create();
        sys::write(event, &1u64.to_ne_bytes()).value();
        pair.say("before", before.result());
        let now = Sleeper::start(move || format!("{:?}", sys::epoll_wait(new, 8, AT_MOST_MS)));
        sys::epoll_ctl(new, ADD, pair.fd, IN, 3).value();
        pair.say("now", now.result());
        sys::close(new).value();
        sys::close(event).value();
        if is_nested {
            sys::close(slept_on).value();
        }
    }
    pair.step();
}

/// A thread sleeps on an instance that another thread closes. A new instance is made, and one of
/// its members has an event. Then an event of the closed instance ends the sleep. The sleeper must
/// report only that event. The other event stays for the new instance.
pub(super) fn closed_and_replaced_under_a_sleeper(pair: &Pair) {
    const ASLEEP: Duration = Duration::from_millis(200);
    const AT_MOST_MS: i32 = 3000;
    if pair.server() {
        send_all(pair.fd, b"!");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    pair.arrived(pair.fd, 1);
    for has_connection in [false, true] {
        for events in [IN | ET, IN | ONE, IN] {
            let closed = sys::epoll_create();
            let event = sys::eventfd();
            sys::epoll_ctl(closed, ADD, event, IN, 2).value();
            if has_connection {
                sys::epoll_ctl(closed, ADD, pair.fd, libc::EPOLLRDHUP, 4).value();
            }
            thread::scope(|scope| {
                let before = scope.spawn(move || format!("{:?}", sys::epoll_wait(closed, 8, -1)));
                thread::sleep(ASLEEP);
                sys::close(closed).value();
                let new = sys::epoll_create();
                sys::epoll_ctl(new, ADD, pair.fd, events, 3).value();
                sys::write(event, &1u64.to_ne_bytes()).value();
                pair.say("before", before.join().expect("no panic"));
                pair.say("now", format!("{:?}", sys::epoll_wait(new, 8, AT_MOST_MS)));
                sys::close(new).value();
            });
            sys::close(event).value();
        }
    }
    pair.step();
}

/// One thread sleeps on the instance. Before it runs, another thread reads the bytes that were to
/// wake it.
pub(super) fn read_before_a_sleeper(pair: &Pair) {
    /// Enough calls to make the library also check the carrier.
    const LOOKS: usize = 5000;
    before_a_sleeper(pair, ROUNDS, |_, is_taken| {
        while sys::recv(pair.fd, &mut [0], 0).is(libc::EAGAIN) && !is_taken() {}
        for _ in 0..LOOKS {
            sys::recv(pair.fd, &mut [0], 0);
        }
    });
}

/// One thread sleeps on the instance. Another thread calls epoll_wait all the time and gets the
/// event that was to wake the sleeper.
pub(super) fn told_before_a_sleeper(pair: &Pair) {
    /// A message seldom arrives between the two places that a wait checks.
    const ROUNDS: usize = 200;
    before_a_sleeper(pair, ROUNDS, |epoll, is_taken| {
        while sys::epoll_wait(epoll, 1, 0).1.is_empty() && !is_taken() {}
        sys::recv(pair.fd, &mut [0], 0);
    });
}

/// One thread sleeps on the instance. Another thread polls the instance all the time, by poll(2).
pub(super) fn polled_before_a_sleeper(pair: &Pair) {
    /// As few rounds as in [`told_before_a_sleeper`], for its reason.
    const ROUNDS: usize = 200;
    before_a_sleeper(pair, ROUNDS, |epoll, is_taken| {
        while sys::poll(&[(epoll, libc::POLLIN)], 0).0.len() == 0 && !is_taken() {}
        sys::recv(pair.fd, &mut [0], 0);
    });
}

/// One thread sleeps on the instance. Another thread waits after the message has arrived, and gets
/// the event without sleeping.
pub(super) fn told_at_once_before_a_sleeper(pair: &Pair) {
    /// In most rounds the message has arrived by then, with the wake-up for the sleeper.
    const BEFORE_THE_WAIT: Duration = Duration::from_millis(1);
    before_a_sleeper(pair, ROUNDS, |epoll, is_taken| {
        let begun = Instant::now();
        while begun.elapsed() < BEFORE_THE_WAIT {
            std::hint::spin_loop();
        }
        // The array has two places, so one place is left for the kernel's events.
        while sys::epoll_wait(epoll, 2, 5).1.is_empty() && !is_taken() {}
        sys::recv(pair.fd, &mut [0], 0);
    });
}

/// The number of messages that a thread takes before the sleeper has run.
const ROUNDS: usize = 50;

/// A message arrives while a thread sleeps on the instance. `take` takes the message before that
/// thread runs, unless the thread was faster. The next message must still wake the sleeper.
fn before_a_sleeper(pair: &Pair, rounds: usize, take: impl Fn(Fd, &dyn Fn() -> bool)) {
    if pair.server() {
        for _ in 0..2 * rounds {
            pair.step();
            send_all(pair.fd, b"!");
        }
        pair.step();
        return;
    }
    let fd = pair.fd;
    sys::set_nonblocking(fd, true);
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, ADD, fd, IN | ET, 1).value();
    let read = Arc::new(AtomicUsize::new(0));
    stay_on_this_processor();
    let sleeper = read.clone();
    let (announce, announced) = std::sync::mpsc::channel();
    thread::spawn(move || {
        // SAFETY: no memory is involved.
        let id = unsafe { libc::gettid() };
        announce.send(id).expect("the starter waits for it");
        loop {
            sys::epoll_wait(epoll, 1, -1);
            let has_read = !sys::recv(fd, &mut [0], 0).is(libc::EAGAIN);
            sleeper.fetch_add(usize::from(has_read), Ordering::SeqCst);
        }
    });
    let sleeper = announced.recv().expect("the thread begins");
    let mut served = 0;
    for _ in 0..rounds {
        // The sleeper goes to sleep. From now on it runs only if no other thread wants its
        // processor.
        thread::sleep(Duration::from_millis(3));
        schedule(sleeper, libc::SCHED_IDLE);
        let before = read.load(Ordering::SeqCst);
        pair.step();
        let told = Instant::now();
        take(epoll, &|| {
            if told.elapsed() > Duration::from_millis(10) {
                // The sleeper was faster, and needs the processor to report that.
                thread::sleep(Duration::from_millis(1));
            }
            read.load(Ordering::SeqCst) != before
        });
        // On a busy host an idle-priority thread would wait too long for a processor from now on.
        // (Only root may raise its policy again.)
        schedule(sleeper, libc::SCHED_OTHER);
        thread::sleep(Duration::from_millis(3));
        let before = read.load(Ordering::SeqCst);
        pair.step();
        let is_woken = || read.load(Ordering::SeqCst) != before;
        let begun = Instant::now();
        while !is_woken() && begun.elapsed() < TIME_LIMIT {
            thread::sleep(Duration::from_micros(100));
        }
        if !is_woken() {
            break;
        }
        served += 1;
    }
    pair.say("woken", served);
    pair.step();
}

/// Pins this thread, and the threads that it starts later, to its current processor.
fn stay_on_this_processor() {
    // SAFETY: zeroes are a valid set, and it is live.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// Gives a thread of this process a scheduling policy without parameters.
fn schedule(thread: libc::pid_t, policy: libc::c_int) {
    // SAFETY: zeroes are valid parameters, and live.
    unsafe {
        let parameters: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(thread, policy, &parameters);
    }
}

/// A thread in splice(2) takes one byte of those that arrive, and another thread waits for the
/// rest. A socket option keeps the connection on the kernel.
pub(super) fn beside_a_splice(pair: &Pair, modes: i32) {
    let fd = pair.fd;
    if pair.server() {
        pair.step();
        pair.say("send", sys::send(fd, b"12345678", 0));
        pair.step();
        return;
    }
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).value();
    let waits = Sleeper::start(move || {
        let epoll = sys::epoll_create();
        let events = libc::EPOLLIN | modes;
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, events, 5).value();
        sys::epoll_wait(epoll, 4, 5000)
    });
    let takes = Sleeper::start(move || {
        let (_from, to) = sys::pipe();
        crate::files::splice(fd, to, 1, 0)
    });
    pair.step();
    pair.say("splice", takes.result());
    pair.say("epoll_wait", format!("{:?}", waits.result()));
    pair.step();
}
