//! Signals that arrive while a call waits.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Case;
use crate::role::{Pair, Role, receive_all, send_all, shown};
use crate::sys;

pub(crate) const CASES: &[Case] = &[
    Case::pair("recv_is_interrupted_without_sa_restart", recv_plain),
    Case::pair("recv_goes_on_with_sa_restart", recv_restart),
    Case::pair("send_is_interrupted_with_what_it_has_sent", send_plain),
    Case::pair("waitall_is_interrupted_with_what_it_has", waitall),
    Case::pair("poll_is_interrupted_even_with_sa_restart", poll),
    Case::pair("select_is_interrupted_even_with_sa_restart", select),
    Case::pair("epoll_wait_is_interrupted_even_with_sa_restart", epoll),
    Case::pair(
        "epoll_pwait_lets_the_signal_in_only_while_it_waits",
        epoll_pwait,
    ),
    Case::pair(
        "handler_that_uses_the_socket_does_not_deadlock",
        handler_sends,
    ),
    Case::pair("timer_storm_loses_no_byte", storm),
    Case::roles("accept_is_interrupted_without_sa_restart", accept),
];

static CAUGHT: AtomicU32 = AtomicU32::new(0);
/// The socket that `answer` writes to; -1 for none.
static ANSWERS_ON: AtomicU32 = AtomicU32::new(u32::MAX);

extern "C" fn count(_: i32) {
    // Relaxed: a counter that the interrupted thread itself reads.
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn answer(_: i32) {
    count(0);
    // Relaxed: stored before the handler was installed.
    let fd = ANSWERS_ON.load(Ordering::Relaxed).cast_signed();
    let _ = sys::send(fd, b"signal!!", libc::MSG_NOSIGNAL);
}

fn caught() -> u32 {
    CAUGHT.load(Ordering::Relaxed)
}

/// Has SIGALRM handled by `handler`.
fn handle(handler: extern "C" fn(i32), flags: i32) {
    // SAFETY: a sigaction of zeroes is valid; the handler only does what signal handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, ptr::null_mut()), 0);
    }
}

/// Has SIGALRM come after `first_ms` and then every `every_ms` (0: once).
///
/// Where a call must be interrupted the signal repeats: a single one could come before the call sleeps.
fn alarm(first_ms: i64, every_ms: i64) {
    let time = |ms: i64| libc::timeval {
        tv_sec: ms / 1000,
        tv_usec: ms % 1000 * 1000,
    };
    let timer = libc::itimerval {
        it_interval: time(every_ms),
        it_value: time(first_ms),
    };
    // SAFETY: the timer is live; the old one is not wanted.
    let set = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()) };
    assert_eq!(set, 0);
}

fn recv_plain(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"after");
        pair.step();
    } else {
        handle(count, 0);
        alarm(30, 30);
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
        alarm(30, 30);
        pair.say("read", sys::read(pair.fd, &mut [0; 8]));
        alarm(30, 30);
        pair.say("recvmsg", sys::recvmsg(pair.fd, &mut [0; 8], 0).0);
        alarm(0, 0);
        pair.step();
        let mut bytes = [0; 5];
        receive_all(pair.fd, &mut bytes);
        pair.say("recv", shown(&bytes));
        pair.step();
    }
}

fn recv_restart(pair: &Pair) {
    if pair.server() {
        pair.step();
        std::thread::sleep(std::time::Duration::from_millis(80));
        send_all(pair.fd, b"late");
        pair.step();
    } else {
        handle(count, libc::SA_RESTART);
        alarm(10, 0);
        pair.step();
        let mut bytes = [0; 4];
        let result = sys::recv(pair.fd, &mut bytes, 0);
        pair.say("recv", format!("{result} {}", shown(&bytes)));
        pair.say("caught", caught());
        pair.step();
    }
}

fn send_plain(pair: &Pair) {
    if pair.server() {
        let bytes = vec![5; 64 << 20];
        handle(count, 0);
        alarm(60, 60);
        let first = sys::send(pair.fd, &bytes, 0);
        pair.say(
            "send takes a part",
            first.len() > 0 && first.len() < bytes.len(),
        );
        // The buffers may have grown meanwhile; they do not grow for ever.
        let mut sent = first.len();
        let refusal = loop {
            let result = sys::send(pair.fd, &bytes, 0);
            if result.0.is_err() {
                break result;
            }
            sent += result.len();
        };
        alarm(0, 0);
        pair.say("send into a full socket", refusal);
        pair.tell(u32::try_from(sent).expect("below 4 GB"));
        pair.step();
    } else {
        let sent = pair.hear() as usize;
        let mut bytes = vec![0; sent];
        receive_all(pair.fd, &mut bytes);
        pair.say("all fives", bytes.iter().all(|byte| *byte == 5));
        pair.say(
            "nothing else",
            sys::recv(pair.fd, &mut [0; 8], libc::MSG_DONTWAIT),
        );
        pair.step();
    }
}

fn waitall(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"half");
        pair.step();
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 4);
        handle(count, 0);
        alarm(30, 30);
        let mut bytes = [0; 8];
        let result = sys::recv(pair.fd, &mut bytes, libc::MSG_WAITALL);
        pair.say(
            "recv",
            format!("{result} {}", shown(&bytes[..result.len()])),
        );
        pair.step();
    }
}

fn poll(pair: &Pair) {
    handle(count, libc::SA_RESTART);
    alarm(30, 30);
    pair.say("poll", sys::poll(&[(pair.fd, libc::POLLIN)], -1).0);
    alarm(30, 30);
    pair.say("ppoll", sys::ppoll(&[(pair.fd, libc::POLLIN)], 20_000).0);
    alarm(30, 30);
    pair.say(
        "__poll_chk",
        sys::poll_chk(&[(pair.fd, libc::POLLIN)], -1).0,
    );
    pair.step();
}

fn select(pair: &Pair) {
    handle(count, libc::SA_RESTART);
    alarm(30, 30);
    pair.say("select", sys::select(&[pair.fd], &[], None, false).result);
    alarm(30, 30);
    pair.say("pselect", sys::select(&[pair.fd], &[], None, true).result);
    pair.step();
}

fn epoll(pair: &Pair) {
    handle(count, libc::SA_RESTART);
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLIN, 1).value();
    alarm(30, 30);
    pair.say("epoll_wait", sys::epoll_wait(epoll, 4, -1).0);
    alarm(30, 30);
    pair.say(
        "epoll_pwait2",
        sys::epoll_pwait(epoll, 0, None, Some(20_000_000_000)).0,
    );
    pair.step();
}

fn epoll_pwait(pair: &Pair) {
    handle(count, 0);
    // SAFETY: the sets are initialised before they are used.
    let (blocked, empty) = unsafe {
        let (mut blocked, mut empty): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigemptyset(&mut empty);
        libc::sigemptyset(&mut blocked);
        libc::sigaddset(&mut blocked, libc::SIGALRM);
        libc::sigprocmask(libc::SIG_BLOCK, &blocked, ptr::null_mut());
        (blocked, empty)
    };
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLIN, 1).value();
    alarm(10, 0);
    pair.say(
        "epoll_wait with the signal blocked",
        sys::epoll_wait(epoll, 4, 60).0,
    );
    pair.say("caught", caught());
    pair.say(
        "epoll_pwait still blocking",
        sys::epoll_pwait(epoll, 20, Some(&blocked), None).0,
    );
    pair.say("caught", caught());
    pair.say(
        "epoll_pwait letting it in",
        sys::epoll_pwait(epoll, -1, Some(&empty), None).0,
    );
    pair.say("caught", caught());
    alarm(10, 10);
    pair.say(
        "epoll_pwait2",
        sys::epoll_pwait(epoll, 0, Some(&empty), Some(20_000_000_000)).0,
    );
    pair.step();
}

fn handler_sends(pair: &Pair) {
    const SIGNALS: usize = 50;
    const REQUESTS: u32 = 300;
    if pair.server() {
        // Relaxed: the handler runs on this thread.
        ANSWERS_ON.store(pair.fd.cast_unsigned(), Ordering::Relaxed);
        handle(answer, libc::SA_RESTART);
        alarm(1, 1);
        let mut message = [0; 8];
        for _ in 0..REQUESTS {
            receive_all(pair.fd, &mut message);
            send_all(pair.fd, &message);
        }
        while (caught() as usize) < SIGNALS {
            std::hint::spin_loop();
        }
        alarm(0, 0);
        pair.tell(caught());
        pair.step();
    } else {
        // Messages and the handler's own are all eight bytes, and neither cuts the other in two.
        let mut message = [0; 8];
        let (mut replies, mut signals) = (0_u32, 0_u32);
        while replies < REQUESTS {
            send_all(pair.fd, b"request.");
            loop {
                receive_all(pair.fd, &mut message);
                if &message == b"request." {
                    replies += 1;
                    break;
                }
                assert_eq!(&message, b"signal!!");
                signals += 1;
            }
        }
        let total = pair.hear();
        while signals < total {
            receive_all(pair.fd, &mut message);
            assert_eq!(&message, b"signal!!");
            signals += 1;
        }
        pair.say("replies", replies);
        pair.say("every signal's message came", signals == total);
        pair.step();
    }
}

fn storm(pair: &Pair) {
    const LEN: usize = 30 << 20;
    handle(count, 0);
    alarm(1, 1);
    if pair.server() {
        send_all(pair.fd, &crate::role::sample(LEN));
        pair.step();
    } else {
        let mut bytes = vec![0; LEN];
        receive_all(pair.fd, &mut bytes);
        pair.say("right", bytes == crate::role::sample(LEN));
        while !pair.server() && caught() == 0 {
            std::hint::spin_loop();
        }
        pair.step();
    }
    alarm(0, 0);
}

fn accept(role: &Role) {
    if role.server() {
        let listener = role.listen(0);
        handle(count, 0);
        alarm(30, 30);
        role.say("accept", sys::accept(listener));
        alarm(30, 30);
        role.say("poll", sys::poll(&[(listener, libc::POLLIN)], -1).0);
        role.step();
        let fd = sys::accept(listener).fd();
        role.warm(fd);
    } else {
        let port = role.hear_port();
        role.step();
        let fd = role.connect(port);
        role.warm(fd);
    }
}
