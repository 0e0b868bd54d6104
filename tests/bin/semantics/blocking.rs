//! Blocking and non-blocking calls: O_NONBLOCK for both directions, time-outs, and the number of
//! readable bytes.

use std::time::Instant;

use crate::Case;
use crate::role::{Pair, await_events, drain, receive_all, send_all, send_until_refused, shown};
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::pair("nonblocking_by_fcntl_and_back", by_fcntl),
    Case::pair("nonblocking_by_ioctl_and_back", by_ioctl),
    Case::pair("nonblocking_write_takes_what_fits", partial_write),
    Case::pair("blocking_write_waits_for_the_reader", blocking_write),
    Case::pair("fionread_counts_what_can_be_read", fionread),
    Case::pair("receive_timeout_ends_the_wait", receive_timeout),
    Case::pair(
        "receive_timeout_leaves_partial_waitall",
        receive_timeout_partial,
    ),
    Case::pair("send_timeout_ends_the_wait", send_timeout),
    Case::pair("receive_low_water_mark_holds_poll_back", low_water),
    Case::pair(
        "receive_low_water_mark_counts_what_waits_already",
        low_water_later,
    ),
    Case::pair(
        "receive_low_water_mark_holds_epoll_back_on_the_way_to_the_kernel",
        low_water_on_the_kernel,
    ),
    Case::pair("unsent_bytes_are_none_when_all_is_read", unsent),
    Case::pair(
        "receive_timeout_is_for_the_whole_call",
        timeout_of_whole_receive,
    ),
    Case::pair("send_timeout_is_for_the_whole_call", timeout_of_whole_send),
];

/// A recv that does not block, as text.
fn try_recv(fd: Fd) -> String {
    let mut bytes = [0; 64];
    let result = sys::recv(fd, &mut bytes, 0);
    format!("{result} {}", shown(&bytes[..result.len()]))
}

fn by_fcntl(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"first");
        pair.step();
        pair.step_to_sleeper();
        send_all(pair.fd, b"second");
        pair.step();
    } else {
        sys::set_nonblocking(pair.fd, true);
        pair.say("recv", try_recv(pair.fd));
        pair.say("read", sys::read(pair.fd, &mut [0; 8]));
        pair.say("readv", sys::readv(pair.fd, &mut [0; 8]));
        pair.step();
        pair.step();
        pair.arrived(pair.fd, 5);
        pair.say("recv", try_recv(pair.fd));
        sys::set_nonblocking(pair.fd, false);
        let flags = sys::fcntl(pair.fd, libc::F_GETFL, 0).value() as i32;
        pair.say("O_NONBLOCK", flags & libc::O_NONBLOCK != 0);
        pair.step_to_sleep();
        pair.say("blocking recv", try_recv(pair.fd));
        pair.step();
    }
}

fn by_ioctl(pair: &Pair) {
    if pair.server() {
        pair.step_to_sleeper();
        send_all(pair.fd, b"data");
        pair.step();
    } else {
        pair.say("FIONBIO", sys::ioctl(pair.fd, libc::FIONBIO, &mut 1));
        let flags = sys::fcntl(pair.fd, libc::F_GETFL, 0).value() as i32;
        pair.say("O_NONBLOCK", flags & libc::O_NONBLOCK != 0);
        pair.say("recv", try_recv(pair.fd));
        pair.say("FIONBIO", sys::ioctl(pair.fd, libc::FIONBIO, &mut 0));
        pair.step_to_sleep();
        pair.say("blocking recv", try_recv(pair.fd));
        pair.step();
    }
}

fn partial_write(pair: &Pair) {
    const LEN: usize = 64 << 20;
    const SETTLED: std::time::Duration = std::time::Duration::from_millis(50);
    if pair.server() {
        sys::set_nonblocking(pair.fd, true);
        let bytes = vec![9; LEN];
        let first = sys::write(pair.fd, &bytes);
        pair.say("write takes a part", first.len() > 0 && first.len() < LEN);
        let (mut sent, mut before) = (first.len(), 0);
        let refusal = loop {
            let result = sys::write(pair.fd, &bytes[sent..]);
            if result.0.is_ok() {
                sent += result.len();
                continue;
            }
            // Bytes in transit may still free buffer space.
            if sent == before {
                break result;
            }
            before = sent;
            std::thread::sleep(SETTLED);
        };
        pair.say("then", refusal);
        pair.say("writev", sys::writev(pair.fd, &bytes[..100]));
        pair.say(
            "poll",
            format!("{:?}", sys::poll(&[(pair.fd, libc::POLLOUT)], 0)),
        );
        pair.tell(u32::try_from(sent).expect("below 4 GB"));
        let half = pair.hear();
        assert!(half > 0);
        await_events(pair.fd, libc::POLLOUT);
        pair.say("write again", sys::write(pair.fd, b"end").len() > 0);
        pair.say("close", sys::close(pair.fd));
    } else {
        let sent = pair.hear() as usize;
        let mut bytes = vec![0; sent];
        receive_all(pair.fd, &mut bytes);
        pair.say("all there", bytes.iter().all(|byte| *byte == 9));
        pair.tell(1);
        pair.say("then", drain(pair.fd));
    }
}

fn blocking_write(pair: &Pair) {
    const LEN: usize = 24 << 20;
    if pair.server() {
        pair.say("write", sys::write(pair.fd, &vec![3; LEN]));
        pair.say("close", sys::close(pair.fd));
    } else {
        std::thread::sleep(std::time::Duration::from_millis(30));
        pair.say("received", drain(pair.fd));
    }
}

fn fionread(pair: &Pair) {
    if pair.server() {
        pair.step();
        for len in [1, 1000, 20_000] {
            send_all(pair.fd, &vec![b'a'; len]);
            pair.step();
            pair.step();
        }
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        pair.say("before", sys::readable_bytes(pair.fd));
        pair.step();
        for total in [1, 1001, 21_001] {
            pair.step();
            pair.arrived(pair.fd, total);
            pair.say("FIONREAD", sys::readable_bytes(pair.fd));
            pair.step();
        }
        pair.say(
            "recv",
            sys::recv(pair.fd, &mut [0; 1001], libc::MSG_WAITALL),
        );
        pair.say("FIONREAD", sys::readable_bytes(pair.fd));
        pair.step();
        pair.say("drained", drain(pair.fd));
        pair.say("FIONREAD", sys::readable_bytes(pair.fd));
    }
}

fn timeout(ms: i64) -> libc::timeval {
    libc::timeval {
        tv_sec: ms / 1000,
        tv_usec: ms % 1000 * 1000,
    }
}

fn receive_timeout(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"late");
        pair.step();
    } else {
        pair.say(
            "SO_RCVTIMEO",
            sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, timeout(60)),
        );
        for _ in 0..2 {
            let start = Instant::now();
            pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
            pair.say("not before its time", start.elapsed().as_millis() >= 58);
        }
        pair.say("read", sys::read(pair.fd, &mut [0; 8]));
        pair.say(
            "SO_RCVTIMEO",
            sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, timeout(0)),
        );
        pair.step();
        pair.say("recv", try_recv(pair.fd));
        pair.step();
    }
}

fn receive_timeout_partial(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"half");
        pair.step();
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 4);
        sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, timeout(40)).value();
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], libc::MSG_WAITALL));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], libc::MSG_WAITALL));
        pair.step();
    }
}

fn send_timeout(pair: &Pair) {
    if pair.server() {
        pair.say(
            "SO_SNDTIMEO",
            sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, timeout(40)),
        );
        let bytes = vec![1; 64 << 20];
        let (sent, refusal) = send_until_refused(pair, &bytes);
        pair.say("send", refusal);
        pair.tell(u32::try_from(sent).expect("below 4 GB"));
        pair.step();
        pair.say("send", sys::send(pair.fd, b"end", 0));
        pair.step();
    } else {
        let sent = pair.hear() as usize;
        receive_all(pair.fd, &mut vec![0; sent]);
        pair.step();
        pair.step();
        pair.say("recv", try_recv(pair.fd));
    }
}

fn low_water(pair: &Pair) {
    let fd = pair.fd;
    if pair.server() {
        pair.step();
        for _ in 0..2 {
            send_all(fd, b"12345");
            pair.step();
            pair.step();
        }
    } else {
        pair.say(
            "SO_RCVLOWAT",
            sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 10),
        );
        pair.step();
        for total in [5, 10] {
            pair.step();
            pair.arrived(fd, total);
            pair.say("poll", format!("{:?}", sys::poll(&[(fd, libc::POLLIN)], 0)));
            pair.step();
        }
        pair.say("recv", try_recv(fd));
    }
}

/// The client sets the low-water mark when its end has gone back to the kernel and the other role
/// does not know of this yet.
fn low_water_on_the_kernel(pair: &Pair) {
    let fd = pair.fd;
    if pair.server() {
        for part in [&b"1234"[..], b"12345", b"67890"] {
            pair.step();
            send_all(fd, part);
            pair.step();
        }
        return;
    }
    let [level, edge] = [libc::EPOLLIN, libc::EPOLLIN | libc::EPOLLET].map(|events| {
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, events, 7).value();
        epoll
    });
    let look = || [level, edge].map(|epoll| sys::epoll_wait(epoll, 4, 0));
    pair.say("quiet", format!("{:?}", look()));
    let set = |name, value| sys::set_option(fd, libc::SOL_SOCKET, name, value);
    pair.say("to the kernel", set(libc::SO_TIMESTAMP, 1));
    pair.step();
    pair.step();
    receive_all(fd, &mut [0; 4]);
    pair.say("received", format!("{:?}", look()[0]));
    pair.say("mark", set(libc::SO_RCVLOWAT, 10));
    for total in [5, 10] {
        pair.step();
        pair.step();
        pair.arrived(fd, total);
        pair.say("of 10", format!("{total} {:?}", look()));
    }
}

/// The mark is set when bytes already wait, in a ring or in the kernel. More bytes come in parts.
fn low_water_later(pair: &Pair) {
    const SOON: std::time::Duration = std::time::Duration::from_millis(5);
    let fd = pair.fd;
    if pair.server() {
        send_all(fd, b"12345");
        for _ in 0..2 {
            pair.step();
            for part in ["abcde", "fghij"] {
                std::thread::sleep(SOON);
                send_all(fd, part.as_bytes());
            }
        }
        pair.step();
        send_all(fd, b"last");
        std::thread::sleep(SOON);
        pair.say("close", sys::close(fd));
        return;
    }
    let [level, edge] = [libc::EPOLLIN, libc::EPOLLIN | libc::EPOLLET].map(|events| {
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, events, 7).value();
        epoll
    });
    let (socket, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    let look = || {
        let polled = sys::poll(&[(fd, libc::POLLIN)], 0);
        let selected = sys::select(&[fd], &[], Some(0), false);
        let listed = sys::epoll_wait(level, 4, 0);
        format!("{polled:?} {selected} {listed:?}")
    };
    pair.arrived(fd, 5);
    pair.say("edge", format!("{:?}", sys::epoll_wait(edge, 4, 0)));
    pair.say("readable", look());
    pair.say("set", sys::set_option(fd, socket, name, 10));
    pair.say("is", sys::option(fd, socket, name));
    pair.say("too few", look());
    let mut bytes = [0; 8];
    let result = sys::recv(fd, &mut bytes[..3], libc::MSG_DONTWAIT);
    pair.say("some of them", result);
    pair.step();
    let result = sys::recv(fd, &mut bytes, 0);
    pair.say("as many as fit", format!("{result} {}", shown(&bytes)));
    pair.arrived(fd, 4);
    pair.say("the rest", look());
    pair.step();
    let woken = sys::epoll_wait(edge, 4, -1);
    pair.say("enough", format!("{woken:?} {}", look()));
    pair.arrived(fd, 14);
    pair.say("peek", sys::recv(fd, &mut bytes, libc::MSG_PEEK));
    receive_all(fd, &mut [0; 12]);
    pair.say("two", look());
    pair.say("set", sys::set_option(fd, socket, name, 1));
    pair.say("two are enough", look());
    pair.say("set", sys::set_option(fd, socket, name, 1000));
    pair.step();
    // The end of the stream satisfies the mark, like any number of bytes.
    let result = sys::recv(fd, &mut [0; 100], 0);
    pair.say("the last", result);
    pair.say("at the end", look());
}

fn unsent(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"some bytes");
        pair.step();
        pair.step();
        let mut count = -1;
        pair.say("TIOCOUTQ", sys::ioctl(pair.fd, libc::TIOCOUTQ, &mut count));
        pair.say("unsent", count);
    } else {
        pair.step();
        receive_all(pair.fd, &mut [0; 10]);
        pair.step();
    }
}

/// Bytes arrive more often than the time-out. A receive with `MSG_WAITALL` still ends by its
/// time-out.
fn timeout_of_whole_receive(pair: &Pair) {
    const TRICKLES: usize = 30;
    if pair.server() {
        pair.step();
        for _ in 0..TRICKLES {
            send_all(pair.fd, b".");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        pair.step();
        return;
    }
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
    sys::set_option(pair.fd, level, name, timeout(100)).value();
    pair.step();
    let mut bytes = [0; TRICKLES];
    let result = sys::recv(pair.fd, &mut bytes, libc::MSG_WAITALL);
    let got = result.len();
    pair.say("a part", got > 0 && got < TRICKLES);
    sys::set_option(pair.fd, level, name, timeout(0)).value();
    receive_all(pair.fd, &mut bytes[got..]);
    pair.say("all of it", bytes == [b'.'; TRICKLES]);
    pair.step();
}

/// The receiver frees buffer space more often than the time-out.
fn timeout_of_whole_send(pair: &Pair) {
    const LEN: usize = 64 << 20;
    /// The receiver takes this many bytes at a time. The sender waits for less space than that.
    const PART: usize = 1 << 20;
    if pair.server() {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_SNDTIMEO);
        sys::set_option(pair.fd, level, name, timeout(200)).value();
        let result = sys::send(pair.fd, &vec![7; LEN], 0);
        let sent = usize::try_from(result.value()).expect("a part was sent");
        pair.say("a part", sent > 0 && sent < LEN);
        pair.tell(u32::try_from(sent).expect("below 4 GB"));
        pair.step();
        return;
    }
    let (mut received, mut bytes) = (0, vec![0; PART]);
    for _ in 0..20 {
        received += sys::recv(pair.fd, &mut bytes, libc::MSG_DONTWAIT).len();
        std::thread::sleep(std::time::Duration::from_millis(40));
    }
    let sent = pair.hear() as usize;
    receive_all(pair.fd, &mut vec![0; sent - received]);
    pair.step();
}
