//! poll and select on accelerated and ordinary descriptors together.

use std::time::Duration;

use crate::Case;
use crate::descriptors::limit_numbers;
use crate::role::{Pair, await_events, fill, receive_all, send_all};
use crate::sleeper::Sleeper;
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::pair("poll_tells_data_and_room", poll_masks),
    Case::pair("ppoll_and_poll_chk_agree_with_poll", poll_variants),
    Case::pair("poll_mixes_sockets_pipes_and_eventfds", poll_mixed),
    Case::pair(
        "poll_asks_about_files_that_the_last_poll_did_not_name",
        poll_others,
    ),
    Case::pair(
        "poll_ignores_negative_and_reports_bad_descriptors",
        poll_odd,
    ),
    Case::pair("poll_wakes_for_data_that_comes_later", poll_wakes),
    Case::pair(
        "poll_wakes_for_a_pipe_while_a_socket_is_quiet",
        poll_wakes_for_pipe,
    ),
    Case::pair("poll_has_as_many_places_as_the_limit_allows", poll_limit),
    Case::pair("poll_wakes_when_room_returns", poll_room),
    Case::pair("poll_times_out_on_a_quiet_socket", poll_times_out),
    Case::pair("select_tells_data_and_room", select_sets),
    Case::pair("pselect_tells_data_and_room", pselect_sets),
    Case::pair("select_mixes_sockets_pipes_and_eventfds", select_mixed),
    Case::pair("select_wakes_for_data_that_comes_later", select_wakes),
    Case::pair(
        "select_of_more_than_there_are_looks_no_further",
        select_many,
    ),
    Case::pair("waits_refuse_times_that_are_none", odd_times),
    Case::pair("repeated_polls_of_unread_data_repeat_themselves", level),
    Case::pair(
        "poll_from_before_a_connection_moved_leaves_it_to_its_receiver",
        poll_from_before,
    ),
];

const BOTH: i16 = libc::POLLIN | libc::POLLOUT;

fn poll_masks(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
    } else {
        pair.say("quiet", format!("{:?}", sys::poll(&[(pair.fd, BOTH)], 0)));
        pair.say(
            "quiet, in",
            format!("{:?}", sys::poll(&[(pair.fd, libc::POLLIN)], 0)),
        );
        pair.say(
            "quiet, nothing asked",
            format!("{:?}", sys::poll(&[(pair.fd, 0)], 0)),
        );
        pair.step();
        pair.step();
        pair.arrived(pair.fd, 4);
        pair.say(
            "data",
            format!("{:?}", sys::poll(&[(pair.fd, BOTH | libc::POLLPRI)], 0)),
        );
        pair.say(
            "data, norm",
            format!(
                "{:?}",
                sys::poll(&[(pair.fd, libc::POLLRDNORM | libc::POLLWRNORM)], 0)
            ),
        );
        receive_all(pair.fd, &mut [0; 3]);
        pair.say(
            "a byte left",
            format!("{:?}", sys::poll(&[(pair.fd, libc::POLLIN)], 0)),
        );
        receive_all(pair.fd, &mut [0; 1]);
        pair.say(
            "read",
            format!("{:?}", sys::poll(&[(pair.fd, libc::POLLIN)], 0)),
        );
        pair.step();
    }
}

fn poll_variants(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 4);
        let wanted = [(pair.fd, BOTH)];
        pair.say("poll", format!("{:?}", sys::poll(&wanted, -1)));
        pair.say("ppoll", format!("{:?}", sys::ppoll(&wanted, 1000)));
        pair.say("__poll_chk", format!("{:?}", sys::poll_chk(&wanted, 1000)));
        pair.step();
    }
}

/// An empty pipe, a pipe with bytes, an eventfd with count 0 and an eventfd that is readable.
fn ordinary() -> [Fd; 4] {
    let (quiet_pipe, keep_open) = sys::pipe();
    let (pipe, writer) = sys::pipe();
    sys::write(writer, b"pipe").value();
    // The writing ends stay open, because their end would be an event.
    let _ = (keep_open, writer);
    let (quiet_event, event) = (sys::eventfd(), sys::eventfd());
    sys::write(event, &1_u64.to_ne_bytes()).value();
    [quiet_pipe, pipe, quiet_event, event]
}

fn poll_mixed(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
    } else {
        let [quiet_pipe, pipe, quiet_event, event] = ordinary();
        let plain = sys::socket(libc::AF_INET, 0);
        let wanted = [
            (quiet_pipe, libc::POLLIN),
            (pair.fd, BOTH),
            (pipe, libc::POLLIN),
            (plain, BOTH),
            (quiet_event, libc::POLLIN),
            (pair.fd, libc::POLLIN),
            (event, libc::POLLIN),
        ];
        pair.say("quiet socket", format!("{:?}", sys::poll(&wanted, 0)));
        pair.step();
        pair.step();
        pair.arrived(pair.fd, 4);
        pair.say("socket with data", format!("{:?}", sys::poll(&wanted, 0)));
        pair.say("and waiting", format!("{:?}", sys::poll(&wanted, 1000)));
        pair.step();
    }
}

/// Two poll calls in a row while data is unread. The second call polls another file.
fn poll_others(pair: &Pair) {
    const ROUNDS: usize = 20;
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"data");
        pair.step();
        return;
    }
    let [quiet_pipe, pipe, ..] = ordinary();
    pair.step();
    pair.arrived(pair.fd, 4);
    let data = (pair.fd, libc::POLLIN);
    let looks = |_| {
        let quiet = sys::poll(&[(quiet_pipe, libc::POLLIN), data], 1000);
        let ready = sys::poll(&[(pipe, libc::POLLIN), data], 1000);
        format!("{quiet:?} {ready:?}")
    };
    let mut told: Vec<String> = (0..ROUNDS).map(looks).collect();
    told.dedup();
    pair.say("both looks", told.join(", "));
    pair.step();
}

fn poll_odd(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 4);
        let gone = sys::eventfd();
        sys::close(gone).value();
        let wanted = [
            (-1, BOTH),
            (pair.fd, libc::POLLIN),
            (gone, BOTH),
            (-7, libc::POLLIN),
        ];
        pair.say("poll", format!("{:?}", sys::poll(&wanted, -1)));
        pair.say("nothing", format!("{:?}", sys::poll(&[], 0)));
        pair.say(
            "only negative",
            format!("{:?}", sys::poll(&[(-1, BOTH)], 1)),
        );
        pair.step();
    }
}

fn poll_wakes(pair: &Pair) {
    const ROUNDS: usize = 50;
    for round in 0..ROUNDS {
        if pair.server() {
            pair.step();
            // In some rounds the other role has not gone to sleep yet; in others it sleeps for a
            // while.
            std::thread::sleep(std::time::Duration::from_micros(round as u64 * 100));
            send_all(pair.fd, b"wake");
        } else {
            pair.step();
            let (result, events) = sys::poll(&[(pair.fd, libc::POLLIN)], -1);
            let mut bytes = [0; 4];
            receive_all(pair.fd, &mut bytes);
            if round % 10 == 0 {
                pair.say("poll", format!("{result} {events:?}"));
            }
        }
    }
    pair.step();
}

fn poll_wakes_for_pipe(pair: &Pair) {
    if !pair.server() {
        let (reader, writer) = sys::pipe();
        let event = sys::eventfd();
        for target in [writer, event] {
            let waker = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                sys::write(target, &1_u64.to_ne_bytes())
            });
            let wanted = [
                (pair.fd, libc::POLLIN),
                (reader, libc::POLLIN),
                (event, libc::POLLIN),
            ];
            pair.say("poll", format!("{:?}", sys::poll(&wanted, -1)));
            pair.say("written", waker.join().expect("the waker does not panic"));
            sys::read(if target == writer { reader } else { event }, &mut [0; 8]).value();
        }
    }
    pair.step();
}

/// A call may have one place for each descriptor that the program may open.
fn poll_limit(pair: &Pair) {
    if pair.server() {
        pair.step_to_sleeper();
        send_all(pair.fd, b"later");
        pair.step();
    } else {
        const PLACES: usize = 20;
        limit_numbers(PLACES as u64);
        let mut wanted = [(-1, libc::POLLIN); PLACES + 1];
        wanted[0].0 = pair.fd;
        pair.say("too many", sys::poll(&wanted, -1).0);
        pair.step_to_sleep();
        pair.say("as many", sys::poll(&wanted[..PLACES], -1).0);
        pair.step();
    }
}

fn poll_room(pair: &Pair) {
    if pair.server() {
        sys::set_nonblocking(pair.fd, true);
        let sent = fill(pair.fd);
        pair.say("full", format!("{:?}", sys::poll(&[(pair.fd, BOTH)], 0)));
        pair.say("full, select", sys::select(&[], &[pair.fd], Some(0), false));
        pair.tell(u32::try_from(sent).expect("below 4 GB"));
        pair.step_to_sleep();
        pair.say("room", format!("{:?}", sys::poll(&[(pair.fd, BOTH)], -1)));
        pair.step();
    } else {
        let sent = pair.hear() as usize;
        pair.step_to_sleeper();
        receive_all(pair.fd, &mut vec![0; sent]);
        pair.step();
    }
}

fn poll_times_out(pair: &Pair) {
    let start = std::time::Instant::now();
    pair.say(
        "poll",
        format!("{:?}", sys::poll(&[(pair.fd, libc::POLLIN)], 30)),
    );
    pair.say(
        "ppoll",
        format!("{:?}", sys::ppoll(&[(pair.fd, libc::POLLIN)], 30)),
    );
    pair.say("select", sys::select(&[pair.fd], &[], Some(30), false));
    pair.say("pselect", sys::select(&[pair.fd], &[], Some(30), true));
    pair.say("not before its time", start.elapsed().as_millis() >= 118);
    pair.step();
}

fn select_sets(pair: &Pair) {
    sets(pair, false);
}

fn pselect_sets(pair: &Pair) {
    sets(pair, true);
}

fn sets(pair: &Pair, pselect: bool) {
    let fd = [pair.fd];
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
        sys::close(pair.fd).value();
        pair.step();
    } else {
        pair.say("quiet", sys::select(&fd, &fd, Some(0), pselect));
        pair.say("quiet, read", sys::select(&fd, &[], Some(0), pselect));
        pair.step();
        pair.step();
        pair.arrived(pair.fd, 4);
        pair.say("data", sys::select(&fd, &fd, Some(1000), pselect));
        pair.say(
            "data, waiting for ever",
            sys::select(&fd, &[], None, pselect),
        );
        receive_all(pair.fd, &mut [0; 4]);
        pair.say("read", sys::select(&fd, &[], Some(0), pselect));
        pair.step();
        pair.step();
        pair.say("EOF", sys::select(&fd, &[], None, pselect));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 4], 0));
    }
}

fn select_mixed(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
    } else {
        let [quiet_pipe, pipe, quiet_event, event] = ordinary();
        let read = [quiet_pipe, pair.fd, pipe, quiet_event, event];
        pair.say(
            "quiet socket",
            sys::select(&read, &[pair.fd], Some(0), false),
        );
        pair.step();
        pair.step();
        pair.arrived(pair.fd, 4);
        pair.say(
            "socket with data",
            sys::select(&read, &[pair.fd], None, false),
        );
        pair.say("by pselect", sys::select(&read, &[pair.fd], None, true));
        pair.step();
    }
}

fn select_wakes(pair: &Pair) {
    for round in 0..30_u64 {
        if pair.server() {
            pair.step();
            std::thread::sleep(std::time::Duration::from_micros(round * 150));
            send_all(pair.fd, b"wake");
        } else {
            pair.step();
            let found = sys::select(&[pair.fd], &[], None, round % 2 == 0);
            receive_all(pair.fd, &mut [0; 4]);
            if round % 10 == 0 {
                pair.say("select", found);
            }
        }
    }
    pair.step();
}

fn level(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"unread");
        pair.step();
        pair.step();
    } else {
        pair.step();
        await_events(pair.fd, libc::POLLIN);
        for _ in 0..5 {
            pair.say(
                "poll",
                format!("{:?}", sys::poll(&[(pair.fd, libc::POLLIN)], -1)),
            );
        }
        pair.step();
    }
}

/// A thread begins to poll two connections. One of them moves to its rings during the poll. Another
/// thread sleeps on that connection when the poll ends.
fn poll_from_before(pair: &Pair) {
    /// Time for the first thread to return from its poll. If the time is too short, the case passes
    /// but tests nothing.
    const AWAKE: Duration = Duration::from_millis(200);
    let moves = pair.meet();
    if pair.server() {
        pair.warm(moves);
        pair.step();
        send_all(pair.fd, b"!");
        pair.step();
        std::thread::sleep(AWAKE);
        send_all(moves, b"?");
        pair.step();
        return;
    }
    let wanted = [(pair.fd, libc::POLLIN), (moves, libc::POLLPRI)];
    let seconds = libc::timeval {
        tv_sec: 20,
        tv_usec: 0,
    };
    sys::set_option(moves, libc::SOL_SOCKET, libc::SO_RCVTIMEO, seconds).value();
    let polls = Sleeper::start(move || format!("{:?}", sys::poll(&wanted, -1)));
    pair.warm(moves);
    let receives = Sleeper::start(move || sys::recv(moves, &mut [0; 8], 0));
    pair.step();
    pair.say("polled", polls.result());
    pair.step();
    pair.say("received", receives.result());
    pair.step();
}

/// A set of 1024 bits. The program passes a larger descriptor count, as `getdtablesize` returns it.
/// The kernel must not write to the memory behind the set.
fn select_many(pair: &Pair) {
    const BITS: usize = 1024;
    const NAMED: i32 = 20_000;
    if pair.server() {
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    pair.arrived(pair.fd, 4);
    // SAFETY: plain calls with live arguments.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = NAMED as libc::rlim_t;
        limit.rlim_max = limit.rlim_max.max(limit.rlim_cur);
        if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
            pair.say("setrlimit", "refused");
        }
    }
    let mut words = vec![0u64; NAMED as usize / 64 + 1];
    words[BITS / 64..].fill(u64::MAX);
    words[pair.fd as usize / 64] |= 1 << (pair.fd % 64);
    let say = |call: &str, words: &[u64], result: i32| {
        let result = sys::ret(result);
        let is_left = words[BITS / 64..].iter().all(|&word| word == u64::MAX);
        let bit = words[pair.fd as usize / 64] >> (pair.fd % 64) & 1;
        pair.say(call, format!("{result}, bit {bit}, rest left: {is_left}"));
    };
    let none = std::ptr::null_mut;
    for count in [NAMED, 1000] {
        let mut waits = timeval(1, 0);
        let set = words.as_mut_ptr().cast();
        // SAFETY: the set has room for all descriptors below `count`.
        let found = unsafe { libc::select(count, set, none(), none(), &mut waits) };
        say("select", &words, found);
        let spec = libc::timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let set = words.as_mut_ptr().cast();
        // SAFETY: as above.
        let found = unsafe { libc::pselect(count, set, none(), none(), &spec, std::ptr::null()) };
        say("pselect", &words, found);
    }
    pair.step();
}

fn timeval(seconds: i64, micros: i64) -> libc::timeval {
    libc::timeval {
        tv_sec: seconds,
        tv_usec: micros,
    }
}

/// No call waits, because bytes are there. A very long time-out is a legal time-out.
fn odd_times(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
        return;
    }
    pair.step();
    pair.arrived(pair.fd, 4);
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, libc::EPOLLIN, 7).value();
    let times = [
        (-1, 0),
        (0, -1),
        (0, 999_999_999),
        (0, 1_000_000_000),
        (3, 2_000_000_000),
        (1 << 55, 0),
        (i64::MAX, 999_999),
        (0, 0),
    ];
    let none = std::ptr::null_mut;
    for (seconds, parts) in times {
        let say = |call, result| {
            pair.say(&format!("{call} {seconds} {parts}"), sys::ret(result));
        };
        let spec = libc::timespec {
            tv_sec: seconds,
            tv_nsec: parts,
        };
        let mut one = libc::pollfd {
            fd: pair.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut set = [1u64 << pair.fd; 16];
        let set: *mut libc::fd_set = set.as_mut_ptr().cast();
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: live arguments.
        unsafe {
            say("ppoll", libc::ppoll(&mut one, 1, &spec, no_mask));
            let count = pair.fd + 1;
            say(
                "pselect",
                libc::pselect(count, set, none(), none(), &spec, no_mask),
            );
            let mut value = timeval(seconds, parts);
            say(
                "select",
                libc::select(count, set, none(), none(), &mut value),
            );
            let number = libc::SYS_epoll_pwait2;
            let waited = libc::syscall(
                number,
                epoll,
                &raw mut event,
                1,
                &raw const spec,
                no_mask,
                8,
            );
            say("epoll_pwait2", waited as i32);
        }
    }
    let mut many = vec![libc::epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: one event is there, and the kernel refuses a count that is too large.
    let most = unsafe { libc::epoll_wait(epoll, many.as_mut_ptr(), i32::MAX, 0) };
    pair.say("most events", sys::ret(most));
    pair.step();
}
