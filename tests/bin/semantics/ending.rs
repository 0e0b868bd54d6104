//! The end of a connection, and the results that each end observes.

use std::sync::atomic::{AtomicU32, Ordering};

use toehold_e2e::duet::ADAPTER;

use crate::Case;
use crate::role::{Pair, Role, await_events, drain, receive_all, sample, send_all, shown};
use crate::sys;

pub(crate) const CASES: &[Case] = &[
    Case::pair("close_after_data_is_all_data_then_eof", close_after_data),
    Case::pair(
        "close_after_much_data_is_all_data_then_eof",
        close_after_much,
    ),
    Case::pair(
        "exit_without_close_is_all_data_then_eof",
        exit_without_close,
    ),
    Case::pair("half_close_leaves_the_other_direction_open", half_close),
    Case::pair("half_close_by_both_ends_is_an_end", half_close_both),
    Case::pair("shutdown_for_reading_reads_eof", shutdown_read),
    Case::pair(
        "shutdown_for_reading_reads_eof_without_waiting",
        shutdown_read_nonblocking,
    ),
    Case::pair("shutdown_for_both_ends_both", shutdown_both),
    Case::pair("writing_after_own_shutdown_is_epipe", write_after_shutdown),
    Case::pair("writing_to_a_closed_end_is_sigpipe", sigpipe),
    Case::pair("ignored_sigpipe_is_epipe", sigpipe_ignored),
    Case::pair(
        "receive_after_the_answer_to_a_late_send_finds_the_end",
        receive_after_late_send,
    ),
    Case::pair(
        "error_that_answers_a_late_send_is_a_broken_pipe",
        error_after_late_send,
    ),
    Case::pair("close_with_unread_data_resets", close_with_unread),
    Case::pair("linger_zero_resets", linger_zero),
    Case::pair("reset_is_reported_once", reset_once),
    Case::pair("reset_after_data_leaves_the_data", reset_after_data),
    Case::pair(
        "reset_behind_data_of_a_connection_that_leaves_its_rings_is_an_event",
        reset_behind_data,
    ),
    Case::pair(
        "reset_after_data_is_told_first_by_recvmmsg",
        reset_told_first,
    ),
    Case::pair("killed_with_unread_data_is_an_end", killed_with_unread),
    Case::pair("killed_idle_is_an_end", |pair| killed(pair, in_receive, 0)),
    Case::pair("killed_idle_after_poll_is_an_end", |pair| {
        killed(pair, in_poll, 0);
    }),
    Case::pair("killed_idle_after_epoll_is_an_end", |pair| {
        killed(pair, in_epoll, 0);
    }),
    Case::pair("killed_idle_after_retrying_is_an_end", |pair| {
        killed(pair, by_retrying, 0);
    }),
    Case::pair("killed_in_the_middle_of_a_timed_receive", killed_in_timed),
    Case::pair("killed_after_the_other_end_is_a_hang_up", killed_after_end),
    Case::pair("killed_sender_loses_nothing_that_was_taken", |pair| {
        killed(pair, in_receive, usize::MAX);
    }),
    Case::pair("killed_sender_that_polled_loses_nothing", |pair| {
        killed(pair, in_poll, usize::MAX);
    }),
    Case::pair("killed_sender_with_epoll_loses_nothing", |pair| {
        killed(pair, in_epoll, usize::MAX);
    }),
    Case::pair("killed_sender_that_retried_loses_nothing", |pair| {
        killed(pair, by_retrying, usize::MAX);
    }),
    Case::pair("killed_sender_of_a_little_loses_nothing", |pair| {
        killed(pair, in_epoll, 100_000);
    }),
    Case::pair("end_of_stream_stays_the_end", eof_stays),
    Case::pair("end_of_stream_wakes_a_sleeper", eof_wakes),
    Case::pair("reset_wakes_a_sleeper", reset_wakes),
    Case::pair("reader_gone_wakes_a_blocked_writer", reader_gone),
    Case::pair("closed_descriptor_is_bad", closed_is_bad),
    Case::pair("shutdown_of_a_dead_connection_is_refused", shutdown_dead),
    Case::roles("close_while_the_socket_is_shown_is_an_end", |role| {
        end_while_shown(role, ShownEnd::Close);
    }),
    Case::roles(
        "close_while_the_socket_is_shown_resets_unread_data",
        |role| {
            end_while_shown(role, ShownEnd::CloseUnread);
        },
    ),
    Case::roles("close_while_the_socket_is_shown_heeds_linger", |role| {
        end_while_shown(role, ShownEnd::Linger);
    }),
    Case::roles("exit_while_the_socket_is_shown_is_an_end", |role| {
        end_while_shown(role, ShownEnd::Exit);
    }),
    Case::pair("events_at_each_stage_of_an_end", events),
    Case::pair6(
        "half_close_leaves_the_other_direction_open_ipv6",
        half_close,
    ),
];

fn linger(fd: sys::Fd, seconds: i32) {
    let value = libc::linger {
        l_onoff: 1,
        l_linger: seconds,
    };
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, value).value();
}

fn all_events(pair: &Pair) -> String {
    let wanted = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;
    let (result, events) = sys::poll(&[(pair.fd, wanted)], 0);
    format!("{result} {:x}", events[0])
}

fn close_after_data(pair: &Pair) {
    if pair.server() {
        pair.say("send", sys::send(pair.fd, b"last words", 0));
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        pair.step();
        pair.say("received", drain(pair.fd));
        pair.say("SO_ERROR", sys::socket_error(pair.fd));
    }
}

fn close_after_much(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, &sample(9_000_000));
        pair.say("close", sys::close(pair.fd));
    } else {
        pair.say("received", drain(pair.fd));
    }
}

fn exit_without_close(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, &sample(300_000));
        sys::exit_now(3);
    }
    pair.say("received", drain(pair.fd));
}

fn half_close(pair: &Pair) {
    if pair.server() {
        pair.say("request", drain(pair.fd));
        send_all(pair.fd, &sample(2_000_000));
        pair.say("close", sys::close(pair.fd));
    } else {
        send_all(pair.fd, &sample(1_000_000));
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
        pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
        pair.say("response", drain(pair.fd));
    }
}

fn half_close_both(pair: &Pair) {
    send_all(pair.fd, b"goodbye");
    pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
    pair.say("received", drain(pair.fd));
    pair.step();
    pair.say("events", all_events(pair));
    pair.say("shutdown again", sys::shutdown(pair.fd, libc::SHUT_WR));
    pair.say("close", sys::close(pair.fd));
}

fn shutdown_read_nonblocking(pair: &Pair) {
    if pair.server() {
        pair.step();
    } else {
        pair.say("shutdown RD", sys::shutdown(pair.fd, libc::SHUT_RD));
        for flags in [0, libc::MSG_PEEK, libc::MSG_WAITALL, libc::MSG_PEEK] {
            let result = sys::recv(pair.fd, &mut [0; 8], flags | libc::MSG_DONTWAIT);
            pair.say("recv", result);
        }
        pair.step();
    }
}

fn shutdown_read(pair: &Pair) {
    if pair.server() {
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_RD));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
        pair.say("events", all_events(pair));
        pair.step();
        pair.step();
        pair.arrived(pair.fd, 8);
        // Bytes that arrive after a shutdown for reading can still be read; then the next read is
        // EOF again.
        let mut bytes = [0; 16];
        let result = sys::recv(pair.fd, &mut bytes, 0);
        pair.say(
            "recv",
            format!("{result} {}", shown(&bytes[..result.len()])),
        );
        pair.say("recv", sys::recv(pair.fd, &mut bytes, 0));
        pair.say("send", sys::send(pair.fd, b"still sending", 0));
        pair.step();
        pair.step();
    } else {
        pair.step();
        pair.say("send", sys::send(pair.fd, b"unwanted", libc::MSG_NOSIGNAL));
        pair.step();
        pair.step();
        let mut bytes = [0; 13];
        receive_all(pair.fd, &mut bytes);
        pair.say("received", shown(&bytes));
        pair.step();
    }
}

fn shutdown_both(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"bye");
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_RDWR));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
        pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
        pair.say("events", all_events(pair));
        pair.step();
        pair.step();
    } else {
        pair.step();
        pair.say("received", drain(pair.fd));
        pair.say("events", all_events(pair));
        pair.step();
    }
}

fn write_after_shutdown(pair: &Pair) {
    if pair.server() {
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
        pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
        pair.say("sendmsg", sys::sendmsg(pair.fd, b"x", libc::MSG_NOSIGNAL));
        catch_sigpipe();
        pair.say("write", sys::write(pair.fd, b"x"));
        pair.say("writev", sys::writev(pair.fd, b"xyz"));
        pair.say("signals", SIGPIPES.load(Ordering::Relaxed));
        pair.step();
    } else {
        pair.say("received", drain(pair.fd));
        pair.step();
    }
}

static SIGPIPES: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_sigpipe(_: i32) {
    // Relaxed: a counter that the interrupted thread itself reads.
    SIGPIPES.fetch_add(1, Ordering::Relaxed);
}

fn catch_sigpipe() {
    // SAFETY: the handler only adds to an atomic.
    unsafe { libc::signal(libc::SIGPIPE, count_sigpipe as *const () as usize) };
}

fn sigpipe(pair: &Pair) {
    if pair.server() {
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        pair.step();
        await_events(pair.fd, libc::POLLIN);
        catch_sigpipe();
        pair.say("write", sys::write(pair.fd, b"x"));
        await_events(pair.fd, libc::POLLHUP);
        pair.say("write", sys::write(pair.fd, b"x"));
        pair.say("send", sys::send(pair.fd, b"x", 0));
        pair.say("writev", sys::writev(pair.fd, b"xyz"));
        pair.say("signals", SIGPIPES.load(Ordering::Relaxed));
        // SIGPIPE gets its default action; Rust's runtime had ignored it.
        // SAFETY: takes no pointers.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let result = sys::write(pair.fd, b"x");
        pair.say("survived", result);
    }
}

fn sigpipe_ignored(pair: &Pair) {
    if send_late(pair) {
        pair.say("write", sys::write(pair.fd, b"x"));
        pair.say("read", sys::read(pair.fd, &mut [0; 8]));
    }
}

/// The reset that answers a late send is the error of later sends. A receive finds the end that
/// came before it.
fn receive_after_late_send(pair: &Pair) {
    if send_late(pair) {
        pair.say("read", sys::read(pair.fd, &mut [0; 8]));
        pair.say("peek", sys::recv(pair.fd, &mut [0; 8], libc::MSG_PEEK));
        pair.say("error", sys::socket_error(pair.fd));
        pair.say("write", sys::write(pair.fd, b"x"));
    }
}

fn error_after_late_send(pair: &Pair) {
    if send_late(pair) {
        pair.say("error", sys::socket_error(pair.fd));
        pair.say("error again", sys::socket_error(pair.fd));
        pair.say("read", sys::read(pair.fd, &mut [0; 8]));
    }
}

/// The server closes, and then the client sends a byte, which a reset answers. True for the client.
fn send_late(pair: &Pair) -> bool {
    if pair.server() {
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        // SAFETY: takes no pointers.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        pair.step();
        await_events(pair.fd, libc::POLLIN);
        pair.say("write", sys::write(pair.fd, b"x"));
        await_events(pair.fd, libc::POLLHUP);
    }
    !pair.server()
}

fn close_with_unread(pair: &Pair) {
    if pair.server() {
        pair.step();
        await_events(pair.fd, libc::POLLIN);
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        send_all(pair.fd, b"never read");
        pair.step();
        pair.step();
        await_events(pair.fd, libc::POLLHUP);
        pair.say("events", all_events(pair));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
        pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
        pair.say("events", all_events(pair));
    }
}

fn linger_zero(pair: &Pair) {
    if pair.server() {
        linger(pair.fd, 0);
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        pair.step();
        await_events(pair.fd, libc::POLLHUP);
        pair.say("events", all_events(pair));
        pair.say("SO_ERROR", sys::socket_error(pair.fd));
        pair.say("SO_ERROR", sys::socket_error(pair.fd));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
        pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
    }
}

fn reset_once(pair: &Pair) {
    if pair.server() {
        linger(pair.fd, 0);
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        pair.step();
        await_events(pair.fd, libc::POLLHUP);
        pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
        pair.say("send", sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
        pair.say(
            "getpeername",
            sys::name(pair.fd, true).is_err_and(|result| result.is(libc::ENOTCONN)),
        );
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
        pair.say("close", sys::close(pair.fd));
    }
}

fn reset_after_data(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"data before the reset");
        pair.step();
        pair.step();
        linger(pair.fd, 0);
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 21);
        pair.step();
        pair.step();
        await_events(pair.fd, libc::POLLHUP);
        pair.say("events", all_events(pair));
        pair.say("received", drain(pair.fd));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
    }
}

/// The client sets an option that only the kernel serves. Its receive finds all bytes, and behind
/// them a reset, which stays for later calls.
fn reset_behind_data(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"data before the reset");
        pair.step();
        pair.step();
        // The direction follows the request of the other end.
        pair.say("send", sys::send(pair.fd, b"", 0));
        linger(pair.fd, 0);
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        let epoll = sys::epoll_create();
        let wanted = libc::EPOLLIN | libc::EPOLLRDHUP;
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, wanted, 1).value();
        let look = || format!("{:x?}", sys::epoll_wait(epoll, 4, 0));
        pair.step();
        pair.arrived(pair.fd, 21);
        pair.say("data", look());
        sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1).value();
        pair.step();
        pair.step();
        await_events(pair.fd, libc::POLLHUP);
        pair.say("recv", sys::recv(pair.fd, &mut [0; 64], 0));
        pair.say("reset", look());
        pair.say("events", all_events(pair));
        pair.say("SO_ERROR", sys::socket_error(pair.fd));
        pair.say("end", look());
    }
}

fn reset_told_first(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"data before the reset");
        pair.step();
        linger(pair.fd, 0);
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        pair.arrived(pair.fd, 21);
        pair.step();
        pair.step();
        await_events(pair.fd, libc::POLLHUP);
        for count in [2, 2, 1, 1] {
            let mut bytes = [0; 16];
            let (result, lengths) = sys::recvmmsg(pair.fd, &mut bytes, count, 0);
            let text = String::from_utf8_lossy(&bytes).replace('\0', ".");
            pair.say("recvmmsg", format!("{result} {lengths:?} {text}"));
        }
        pair.say("SO_ERROR", sys::socket_error(pair.fd));
    }
}

fn killed_with_unread(pair: &Pair) {
    if pair.server() {
        pair.step();
        await_events(pair.fd, libc::POLLIN);
        // SAFETY: takes no pointers; ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    } else {
        send_all(pair.fd, b"never read");
        pair.step();
        // No process is left that could reset the connection for bytes that are unread in shared
        // memory. So there a killed peer looks like the end of the stream.
        let result = sys::recv(pair.fd, &mut [0; 8], 0);
        pair.say(
            "recv ends",
            result.is(libc::ECONNRESET) || result.0 == Ok(0),
        );
        let refused = loop {
            let result = sys::send(pair.fd, b"x", libc::MSG_NOSIGNAL);
            if result.0.is_err() {
                break result.is(libc::EPIPE) || result.is(libc::ECONNRESET);
            }
        };
        pair.say("send is refused", refused);
    }
}

/// The way in which a program waits for a request.
type Wait = fn(sys::Fd);

fn in_receive(_: sys::Fd) {}

fn in_poll(fd: sys::Fd) {
    await_events(fd, libc::POLLIN);
}

/// Waits by level-triggered epoll, with one instance for all requests, as event loops do.
fn in_epoll(fd: sys::Fd) {
    const TIME_LIMIT_MS: i32 = 20_000;
    static EPOLL: std::sync::OnceLock<sys::Fd> = std::sync::OnceLock::new();
    let epoll = *EPOLL.get_or_init(|| {
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, 4).value();
        epoll
    });
    sys::epoll_wait(epoll, 4, TIME_LIMIT_MS).0.value();
}

fn by_retrying(fd: sys::Fd) {
    let peek = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    while sys::recv(fd, &mut [0], peek).is(libc::EAGAIN) {
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}

/// The client has shut its sending half, and the server is killed: both directions have ended. The
/// library does not know how the server waits, so it wakes the server by the kernel's socket.
fn killed_after_end(pair: &Pair) {
    const REQUESTS: usize = 20;
    for _ in 0..REQUESTS {
        if pair.server() {
            by_retrying(pair.fd);
            receive_all(pair.fd, &mut [0; 7]);
            send_all(pair.fd, b"reply");
        } else {
            send_all(pair.fd, b"request");
            receive_all(pair.fd, &mut [0; 5]);
        }
    }
    if pair.server() {
        pair.step();
        // SAFETY: takes no pointers; ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
    let everything = libc::EPOLLIN | libc::EPOLLRDHUP;
    let epolls = [0, everything].map(|events| {
        let epoll = sys::epoll_create();
        sys::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pair.fd, events, 1).value();
        epoll
    });
    pair.step();
    pair.until_the_other_is_gone();
    await_events(pair.fd, libc::POLLHUP);
    let (_, events) = sys::poll(&[(pair.fd, libc::POLLIN | libc::POLLRDHUP)], 0);
    pair.say("poll", format!("{events:x?}"));
    for epoll in epolls {
        pair.say("epoll", format!("{:x?}", sys::epoll_wait(epoll, 2, 0)));
    }
    pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
}

/// The server answers requests and sends at most `most` bytes, as many as the connection takes.
/// Then it dies of SIGKILL. The server has read all requests, so the client sees the end of the
/// stream behind every byte that the connection took.
fn killed(pair: &Pair, wait: Wait, most: usize) {
    const REQUESTS: usize = 20;
    /// Long enough for the server to sleep.
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(2);
    if pair.server() {
        for _ in 0..REQUESTS {
            wait(pair.fd);
            receive_all(pair.fd, &mut [0; 7]);
            send_all(pair.fd, b"reply");
        }
        let mut sent = 0;
        if most < usize::MAX {
            send_all(pair.fd, &sample(most));
            sent = most;
        } else {
            let chunk = sample(1 << 16);
            // Send until the connection takes no more bytes, even after all bytes in transit have
            // arrived.
            for _ in 0..3 {
                loop {
                    let result = sys::send(pair.fd, &chunk, libc::MSG_DONTWAIT);
                    if result.is(libc::EAGAIN) {
                        break;
                    }
                    sent += result.len();
                }
                std::thread::sleep(25 * PAUSE);
            }
        }
        pair.tell(u32::try_from(sent).expect("below 4 GB"));
        // SAFETY: takes no pointers; ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    for _ in 0..REQUESTS {
        std::thread::sleep(PAUSE);
        send_all(pair.fd, b"request");
        receive_all(pair.fd, &mut [0; 5]);
    }
    let sent = pair.hear() as usize;
    pair.until_the_other_is_gone();
    let (mut received, mut bytes) = (0, vec![0; 1 << 16]);
    let end = loop {
        let result = sys::recv(pair.fd, &mut bytes, 0);
        if result.len() == 0 {
            break result;
        }
        received += result.len();
    };
    pair.say("all that was taken", received == sent);
    pair.say("then", end);
    pair.say("and again", sys::recv(pair.fd, &mut bytes, 0));
    pair.say("error", sys::socket_error(pair.fd));
}

/// A receive with a time-out has got a part and sleeps for the rest when the peer is killed.
fn killed_in_timed(pair: &Pair) {
    const REQUESTS: usize = 50;
    if pair.server() {
        for _ in 0..REQUESTS {
            receive_all(pair.fd, &mut [0; 7]);
            send_all(pair.fd, b"reply");
        }
        pair.step();
        // Twice, so that the client sleeps for the second time.
        for part in [b"a", b"b"] {
            std::thread::sleep(std::time::Duration::from_millis(50));
            send_all(pair.fd, part);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        // SAFETY: takes no pointers; ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    for _ in 0..REQUESTS {
        send_all(pair.fd, b"request");
        receive_all(pair.fd, &mut [0; 5]);
    }
    let hours = libc::timeval {
        tv_sec: 10_000,
        tv_usec: 0,
    };
    sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, hours).value();
    pair.step();
    let mut bytes = [0; 8];
    let whole = sys::recv(pair.fd, &mut bytes, libc::MSG_WAITALL);
    pair.say("waitall", whole);
    pair.say("then", sys::recv(pair.fd, &mut bytes, 0));
}

fn eof_stays(pair: &Pair) {
    if pair.server() {
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
        pair.step();
        pair.step();
    } else {
        pair.step();
        await_events(pair.fd, libc::POLLIN);
        for _ in 0..3 {
            pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
        }
        pair.say("peek", sys::recv(pair.fd, &mut [0; 8], libc::MSG_PEEK));
        pair.say(
            "waitall",
            sys::recv(pair.fd, &mut [0; 8], libc::MSG_WAITALL),
        );
        pair.say("read", sys::read(pair.fd, &mut [0; 8]));
        pair.say("readv", sys::readv(pair.fd, &mut [0; 8]));
        pair.say("FIONREAD", sys::readable_bytes(pair.fd));
        pair.say("events", all_events(pair));
        pair.step();
    }
}

fn eof_wakes(pair: &Pair) {
    if pair.server() {
        pair.step_to_sleeper();
        pair.say("close", sys::close(pair.fd));
    } else {
        pair.step_to_sleep();
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
    }
}

fn reset_wakes(pair: &Pair) {
    if pair.server() {
        linger(pair.fd, 0);
        pair.step_to_sleeper();
        pair.say("close", sys::close(pair.fd));
    } else {
        pair.step_to_sleep();
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
    }
}

fn reader_gone(pair: &Pair) {
    if pair.server() {
        pair.step();
        // A close before the first byte has arrived would send FIN instead of RST.
        sys::poll(&[(pair.fd, libc::POLLIN)], 10_000);
        std::thread::sleep(std::time::Duration::from_millis(200));
        pair.say("close", sys::close(pair.fd));
    } else {
        pair.step();
        let bytes = vec![1; 64 << 20];
        let first = sys::send(pair.fd, &bytes, libc::MSG_NOSIGNAL);
        pair.say(
            "send takes a part",
            first.len() > 0 && first.len() < bytes.len(),
        );
        let second = sys::send(pair.fd, &bytes, libc::MSG_NOSIGNAL);
        pair.say("send", second);
        pair.say("send", sys::send(pair.fd, &bytes, libc::MSG_NOSIGNAL));
    }
}

fn closed_is_bad(pair: &Pair) {
    pair.step();
    pair.say("close", sys::close(pair.fd));
    pair.say("close", sys::close(pair.fd));
    pair.say("read", sys::read(pair.fd, &mut [0; 8]));
    pair.say("write", sys::write(pair.fd, b"x"));
    pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
    pair.say("FIONREAD", sys::readable_bytes(pair.fd));
    pair.say(
        "poll",
        format!("{:?}", sys::poll(&[(pair.fd, libc::POLLIN)], 0)),
    );
    pair.say("select", sys::select(&[pair.fd], &[], Some(0), false));
    pair.say("dup", sys::dup(pair.fd));
}

fn shutdown_dead(pair: &Pair) {
    if pair.server() {
        pair.say("close", sys::close(pair.fd));
        pair.step();
    } else {
        pair.step();
        await_events(pair.fd, libc::POLLIN);
        pair.say("shutdown WR", sys::shutdown(pair.fd, libc::SHUT_WR));
        await_events(pair.fd, libc::POLLHUP);
        pair.say("events", all_events(pair));
        pair.say("shutdown RD", sys::shutdown(pair.fd, libc::SHUT_RD));
        pair.say("shutdown RDWR", sys::shutdown(pair.fd, libc::SHUT_RDWR));
        pair.say("shutdown with nonsense", sys::shutdown(pair.fd, 17));
    }
}

fn events(pair: &Pair) {
    pair.say("open", all_events(pair));
    pair.step();
    if pair.server() {
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
        pair.step();
        pair.say("after own shutdown", all_events(pair));
        pair.step();
        pair.step();
        await_events(pair.fd, libc::POLLHUP);
        pair.say("both shut down", all_events(pair));
        pair.step();
    } else {
        pair.step();
        pair.arrived(pair.fd, 4);
        pair.say("data", all_events(pair));
        pair.step();
        pair.step();
        await_events(pair.fd, libc::POLLRDHUP);
        pair.say("data and EOF", all_events(pair));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 8], 0));
        pair.say("EOF", all_events(pair));
        pair.step();
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
        pair.step();
        await_events(pair.fd, libc::POLLHUP);
        pair.say("both shut down", all_events(pair));
        pair.step();
    }
}

/// The way in which a program ends a connection while the adapter learns of the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShownEnd {
    Close,
    CloseUnread,
    Linger,
    Exit,
}

/// The server ends a connection after enough messages that the connection asks for a partner. The
/// harness may make the server stop the adapter, so that the adapter does not see the request.
fn end_while_shown(role: &Role, how: ShownEnd) {
    let fd = role.meet();
    if role.server() {
        stop_adapter();
    }
    role.step();
    let mut message = [0; 8];
    for _ in 0..40 {
        if role.server() {
            receive_all(fd, &mut message);
            send_all(fd, &message);
        } else {
            send_all(fd, &message);
            receive_all(fd, &mut message);
        }
    }
    if !role.server() {
        if how == ShownEnd::CloseUnread {
            send_all(fd, &message);
        }
        role.step();
        return role.say("the other end", drain(fd));
    }
    role.step();
    match how {
        ShownEnd::Close => {}
        ShownEnd::CloseUnread => role.arrived(fd, 8),
        ShownEnd::Linger => linger(fd, 0),
        ShownEnd::Exit => sys::exit_now(0),
    }
    sys::close(fd).value();
    role.until_the_other_is_gone();
}

/// Stops the adapter, if the harness names one.
fn stop_adapter() {
    let Ok(adapter) = std::env::var(ADAPTER) else {
        return;
    };
    // SAFETY: plain system call.
    unsafe { libc::kill(adapter.parse().expect("a process"), libc::SIGSTOP) };
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{adapter}/stat")).expect("it exists");
        stat.rsplit(") ")
            .next()
            .is_some_and(|state| state.starts_with('T'))
    };
    while !is_stopped() {
        std::thread::yield_now();
    }
}
