//! epoll in all its modes.

mod duplicates;
mod early;
mod moving;
mod outside;
mod sharing;
mod unseen;
mod untold;

use std::time::Duration;

use crate::Case;
use crate::role::{Pair, Role, await_events, drain, fill, receive_all, send_all, shown};
use crate::sys::{self, Fd};

use outside::{member_meanwhile, nested, nested_deep, nested_quiet, polled};

pub(crate) const CASES: &[Case] = &[
    Case::pair("level_triggered_events_repeat", level),
    Case::pair("edge_triggered_events_come_once_per_arrival", edge),
    Case::pair("edge_triggered_event_survives_a_partial_read", edge_partial),
    Case::pair("edge_triggered_room_comes_once_per_drain", edge_room),
    Case::pair(
        "edge_triggered_registration_reports_what_is_there",
        edge_first,
    ),
    Case::pair("oneshot_is_silent_until_rearmed", oneshot),
    Case::roles(
        "oneshot_that_has_told_is_silent_while_the_connection_moves",
        oneshot_moves,
    ),
    Case::roles(
        "events_that_are_not_told_leave_no_trace",
        untold::leaves_no_trace,
    ),
    Case::pair("exclusive_waiters_miss_nothing", exclusive),
    Case::pair("nested_epoll_is_readable_when_its_inside_is", nested),
    Case::pair("nested_epoll_is_silent_while_its_inside_is", nested_quiet),
    Case::pair("epoll_is_polled_with_members_of_both_kinds", polled),
    Case::pair("epoll_inside_an_epoll_inside_an_epoll", nested_deep),
    Case::pair(
        "member_of_a_polled_instance_wakes_a_receiver_later",
        member_meanwhile,
    ),
    Case::pair("epoll_mixes_sockets_pipes_and_eventfds", mixed),
    Case::pair("epoll_wakes_for_data_that_comes_later", wakes),
    Case::pair(
        "epoll_wakes_for_an_eventfd_while_a_socket_is_quiet",
        wakes_for_event,
    ),
    Case::pair("epoll_pwait2_waits_by_nanoseconds", pwait2),
    Case::pair("room_is_reported_when_it_returns", room),
    Case::roles(
        "room_asked_for_before_the_connection_moves_is_reported",
        early::room,
    ),
    Case::pair("modified_interest_takes_effect", modify),
    Case::pair("readiness_is_told_by_all_its_names", other_names),
    Case::unix("readiness_is_told_by_all_its_names_locally", other_names),
    Case::pair("epoll_ctl_refuses_what_it_must", refusals),
    Case::pair("closing_a_descriptor_ends_its_registration", close_removes),
    Case::pair("duplicate_keeps_the_registration", dup_keeps),
    Case::pair("registration_outlives_its_descriptor", outlives),
    Case::pair("end_of_stream_is_an_event", end_events),
    Case::pair("reset_is_an_event", reset_events),
    Case::roles(
        "registration_made_before_connecting_holds",
        early::before_connecting,
    ),
    Case::roles(
        "registration_made_before_the_traffic_holds",
        early::before_traffic,
    ),
    Case::roles("small_event_arrays_starve_nobody", starvation),
    Case::roles("news_comes_in_the_order_it_was_sent", order),
    Case::pair(
        "registration_by_another_thread_wakes_the_waiter",
        other_thread,
    ),
    Case::pair(
        "registration_taken_out_and_put_back_wakes_the_waiter",
        put_back,
    ),
    Case::pair(
        "registration_goes_from_one_instance_to_another_and_back",
        moving::between_instances,
    ),
    Case::roles(
        "registration_taken_out_is_put_back_by_a_child",
        moving::by_a_child,
    ),
    Case::pair(
        "what_is_told_once_is_told_to_one_of_two_threads",
        sharing::told_once,
    ),
    Case::roles(
        "news_on_several_connections_wakes_several_threads",
        sharing::news_for_each,
    ),
    Case::pair(
        "sleeper_is_woken_although_another_thread_has_read_before_it",
        sharing::read_before_a_sleeper,
    ),
    Case::pair(
        "sleeper_is_woken_although_another_thread_was_told_before_it",
        sharing::told_before_a_sleeper,
    ),
    Case::pair(
        "sleeper_is_woken_although_another_thread_was_told_at_once_before_it",
        sharing::told_at_once_before_a_sleeper,
    ),
    Case::roles(
        "heavy_traffic_of_a_program_that_waits_past_libc",
        unseen::heavy,
    ),
    Case::roles(
        "short_connections_of_a_server_that_waits_past_libc_at_times",
        unseen::short_at_server,
    ),
    Case::roles(
        "short_connections_of_a_client_that_waits_past_libc_at_times",
        unseen::short_at_client,
    ),
    Case::roles(
        "short_connections_of_two_programs_that_wait_past_libc_at_times",
        unseen::short_at_both,
    ),
    Case::roles(
        "end_before_accept_is_told_to_a_server_that_waits_past_libc",
        unseen::ended_before_accept,
    ),
    Case::roles(
        "member_of_one_instance_among_many_hundreds",
        unseen::many_instances,
    ),
    Case::pair(
        "instance_closed_under_a_sleeper_leaves_no_sleeper",
        sharing::closed_under_a_sleeper,
    ),
    Case::pair(
        "instance_closed_under_a_sleeper_takes_no_event_of_the_next",
        sharing::closed_and_replaced_under_a_sleeper,
    ),
    Case::pair("instance_lives_on_in_its_duplicate", duplicates::outlives),
    Case::roles(
        "instance_from_before_the_traffic_lives_on_in_its_duplicate",
        duplicates::outlives_from_before,
    ),
    Case::pair(
        "sleeper_in_a_duplicate_of_the_instance_is_woken",
        duplicates::sleeper,
    ),
    Case::roles(
        "waiter_from_before_the_traffic_hears_of_the_traffic",
        early::waiter,
    ),
    Case::roles(
        "poll_of_an_epoll_from_before_the_traffic_hears_of_the_traffic",
        early::poller,
    ),
];

const ADD: i32 = libc::EPOLL_CTL_ADD;
const MOD: i32 = libc::EPOLL_CTL_MOD;
const DEL: i32 = libc::EPOLL_CTL_DEL;
const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const ET: i32 = libc::EPOLLET;

/// An epoll with this pair's socket in it.
fn watching(pair: &Pair, events: i32) -> Fd {
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, ADD, pair.fd, events, 7).value();
    epoll
}

/// The events that an epoll_wait finds at once.
fn now(epoll: Fd) -> String {
    seen(&sys::epoll_wait(epoll, 16, 0))
}

/// As above for arrived bytes: an engine reports them a moment after they can be counted.
fn arrival(epoll: Fd) -> String {
    const MOMENT_MS: i32 = 1_000;
    seen(&sys::epoll_wait(epoll, 16, MOMENT_MS))
}

fn seen((result, events): &(sys::Ret, Vec<(u64, u32)>)) -> String {
    let events: Vec<String> = events
        .iter()
        .map(|(data, mask)| format!("{data}:{mask:x}"))
        .collect();
    format!("{result} [{}]", events.join(" "))
}

/// The server sends each of `parts`; when each has arrived, the client runs `look`.
fn parts(pair: &Pair, parts: &[&[u8]], mut look: impl FnMut(usize)) {
    // Steps keep the server from sending ahead, so what is unread here was so before.
    let mut unread = sys::readable_bytes(pair.fd).len();
    pair.step();
    for (index, part) in parts.iter().enumerate() {
        if pair.server() {
            send_all(pair.fd, part);
            pair.step();
        } else {
            pair.step();
            pair.arrived(pair.fd, unread + part.len());
            look(index);
            unread = sys::readable_bytes(pair.fd).len();
        }
        pair.step();
    }
}

fn level(pair: &Pair) {
    let epoll = watching(pair, IN);
    pair.say("quiet", now(epoll));
    pair.step();
    parts(pair, &[b"data"], |_| {
        pair.say("data", arrival(epoll));
        for _ in 0..2 {
            pair.say("data", now(epoll));
        }
        receive_all(pair.fd, &mut [0; 2]);
        pair.say("half read", now(epoll));
        receive_all(pair.fd, &mut [0; 2]);
        pair.say("read", now(epoll));
    });
}

fn edge(pair: &Pair) {
    let epoll = watching(pair, IN | ET);
    pair.say("quiet", now(epoll));
    pair.step();
    parts(pair, &[b"one", b"two", b"three"], |_| {
        pair.say("arrival", arrival(epoll));
        pair.say("again", now(epoll));
    });
    if !pair.server() {
        receive_all(pair.fd, &mut [0; 11]);
        pair.say("read", now(epoll));
    }
    parts(pair, &[b"four"], |_| {
        pair.say("arrival", arrival(epoll));
        receive_all(pair.fd, &mut [0; 4]);
        pair.say("read", now(epoll));
    });
}

fn edge_partial(pair: &Pair) {
    let epoll = watching(pair, IN | ET);
    pair.step();
    parts(pair, &[b"abcdef", b"ghi"], |_| {
        pair.say("arrival", arrival(epoll));
        receive_all(pair.fd, &mut [0; 2]);
        pair.say("after a partial read", now(epoll));
    });
}

fn edge_room(pair: &Pair) {
    if pair.server() {
        sys::set_nonblocking(pair.fd, true);
        let epoll = watching(pair, OUT | ET);
        pair.say("room at first", now(epoll));
        pair.say("again", now(epoll));
        for _ in 0..3 {
            pair.tell(u32::try_from(fill(pair.fd)).expect("below 4 GB"));
            pair.say("room returns", seen(&sys::epoll_wait(epoll, 16, -1)));
            pair.step();
        }
    } else {
        for _ in 0..3 {
            let sent = pair.hear() as usize;
            receive_all(pair.fd, &mut vec![0; sent]);
            pair.step();
        }
    }
}

fn edge_first(pair: &Pair) {
    parts(pair, &[b"waiting"], |_| {
        await_events(pair.fd, libc::POLLIN);
        let epoll = watching(pair, IN | OUT | ET);
        pair.say("at once", now(epoll));
        pair.say("again", now(epoll));
        pair.say("MOD", sys::epoll_ctl(epoll, MOD, pair.fd, IN | ET, 8));
        pair.say("after MOD", now(epoll));
        pair.say("again", now(epoll));
    });
}

fn oneshot(pair: &Pair) {
    let epoll = watching(pair, IN | libc::EPOLLONESHOT);
    pair.step();
    parts(pair, &[b"one", b"two"], |_| {
        pair.say("event", arrival(epoll));
        pair.say("silence", now(epoll));
    });
    if !pair.server() {
        pair.say(
            "MOD",
            sys::epoll_ctl(epoll, MOD, pair.fd, IN | libc::EPOLLONESHOT, 9),
        );
        pair.say("rearmed", now(epoll));
        pair.say("silence", now(epoll));
        receive_all(pair.fd, &mut [0; 6]);
        pair.say(
            "MOD",
            sys::epoll_ctl(epoll, MOD, pair.fd, IN | ET | libc::EPOLLONESHOT, 10),
        );
        pair.say("nothing there", now(epoll));
    }
    pair.step();
    parts(pair, &[b"three", b"four"], |index| {
        let event = if index == 0 {
            arrival(epoll)
        } else {
            now(epoll)
        };
        pair.say("event", event);
    });
}

/// A worker that was told of a connection keeps it to itself until it arms it again, however busy
/// it makes it meanwhile.
fn oneshot_moves(role: &Role) {
    const ONE: i32 = libc::EPOLLONESHOT;
    let epolls = [0; 3].map(|_| sys::epoll_create());
    let all = || epolls.map(now).join(", ");
    let send = |fd, bytes| {
        if role.server() {
            send_all(fd, bytes);
        } else {
            role.arrived(fd, bytes.len());
        }
    };
    // One registers before there is a connection.
    let listener = role.server().then(|| role.listen(0));
    let fd = match listener {
        Some(listener) => sys::accept(listener).fd(),
        None => {
            let port = role.hear_port();
            let fd = sys::socket(role.family, 0);
            sys::epoll_ctl(epolls[2], ADD, fd, IN | ONE, 3).value();
            role.say("ADD twice", sys::epoll_ctl(epolls[2], ADD, fd, OUT, 4));
            role.say("unconnected", all());
            sys::connect(fd, role.family, port).value();
            fd
        }
    };
    sys::epoll_ctl(epolls[0], ADD, fd, IN | ONE, 1).value();
    sys::epoll_ctl(epolls[1], ADD, fd, IN | ONE, 1).value();
    for (epoll, data) in [(epolls[1], 2), (epolls[2], 3)] {
        let result = sys::epoll_ctl(epoll, MOD, fd, IN | ONE, data);
        role.say("MOD", result);
    }
    role.step();
    send(fd, b"first");
    if !role.server() {
        role.say("first", all());
        role.say("told", all());
        receive_all(fd, &mut [0; 5]);
    }
    role.step();
    role.warm(fd);
    role.step();
    send(fd, b"later");
    if !role.server() {
        role.say("not armed", all());
        let events = [IN | ONE, IN, IN | ONE];
        for (epoll, events) in epolls.into_iter().zip(events) {
            role.say("MOD", sys::epoll_ctl(epoll, MOD, fd, events, 9));
            role.say("armed", now(epoll));
            role.say("told", now(epoll));
        }
        receive_all(fd, &mut [0; 5]);
    }
    role.step();
    if role.server() {
        sys::close(fd).value();
    } else {
        sys::shutdown(fd, libc::SHUT_WR).value();
        await_events(fd, libc::POLLHUP);
        role.say("over", all());
    }
    role.step();
}

fn exclusive(pair: &Pair) {
    let epolls = [0, 1].map(|_| watching(pair, IN | libc::EPOLLEXCLUSIVE));
    pair.say(
        "MOD is refused",
        sys::epoll_ctl(epolls[0], MOD, pair.fd, IN, 1),
    );
    pair.step();
    for _ in 0..5 {
        if pair.server() {
            pair.step();
            send_all(pair.fd, b"!");
        } else {
            // Two threads wait; at least one must see each byte, and only one can read it.
            let waiters = epolls.map(|epoll| {
                let fd = pair.fd;
                std::thread::spawn(move || {
                    let (found, _) = sys::epoll_wait(epoll, 1, 300);
                    found.len() == 1 && sys::recv(fd, &mut [0; 1], libc::MSG_DONTWAIT).len() == 1
                })
            });
            pair.step();
            let readers = waiters.map(|waiter| waiter.join().expect("no panic"));
            assert_eq!(readers.iter().filter(|read| **read).count(), 1);
        }
        pair.step();
    }
    pair.say("every byte was read once", true);
}

fn mixed(pair: &Pair) {
    let epoll = watching(pair, IN | OUT);
    let (reader, writer) = sys::pipe();
    let event = sys::eventfd();
    sys::epoll_ctl(epoll, ADD, reader, IN, 20).value();
    sys::epoll_ctl(epoll, ADD, event, IN, 21).value();
    pair.say("socket has room", now(epoll));
    sys::write(writer, b"pipe").value();
    pair.say("pipe too", now(epoll));
    sys::write(event, &1_u64.to_ne_bytes()).value();
    pair.say("eventfd too", now(epoll));
    pair.step();
    parts(pair, &[b"data"], |_| {
        pair.say("data too", now(epoll));
        pair.say("and waiting", seen(&sys::epoll_wait(epoll, 16, 1000)));
        sys::read(reader, &mut [0; 4]).value();
        sys::epoll_ctl(epoll, DEL, event, 0, 0).value();
        pair.say("socket alone", seen(&sys::epoll_wait(epoll, 16, -1)));
    });
}

fn wakes(pair: &Pair) {
    for round in 0..60_u64 {
        let flags = [IN, IN | ET, IN | libc::EPOLLONESHOT][round as usize % 3];
        let epoll = watching(pair, flags);
        if pair.server() {
            pair.step();
            std::thread::sleep(std::time::Duration::from_micros(round * 80));
            send_all(pair.fd, b"wake");
        } else {
            pair.step();
            let found = sys::epoll_wait(epoll, 4, -1);
            receive_all(pair.fd, &mut [0; 4]);
            if round % 10 == 0 {
                pair.say("epoll_wait", seen(&found));
            }
        }
        sys::close(epoll).value();
    }
    pair.step();
}

fn wakes_for_event(pair: &Pair) {
    if !pair.server() {
        let epoll = watching(pair, IN);
        let event = sys::eventfd();
        sys::epoll_ctl(epoll, ADD, event, IN, 21).value();
        for _ in 0..5 {
            let waker = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                sys::write(event, &1_u64.to_ne_bytes())
            });
            pair.say("epoll_wait", seen(&sys::epoll_wait(epoll, 16, -1)));
            pair.say("written", waker.join().expect("the waker does not panic"));
            sys::read(event, &mut [0; 8]).value();
        }
    }
    pair.step();
}

fn pwait2(pair: &Pair) {
    let epoll = watching(pair, IN);
    let start = std::time::Instant::now();
    pair.say(
        "3 ms",
        seen(&sys::epoll_pwait(epoll, 0, None, Some(3_000_000))),
    );
    pair.say("not before its time", start.elapsed().as_micros() >= 3000);
    pair.say("none", seen(&sys::epoll_pwait(epoll, 0, None, Some(0))));
    pair.step();
    parts(pair, &[b"data"], |_| {
        pair.say(
            "data",
            seen(&sys::epoll_pwait(epoll, 0, None, Some(1_000_000_000))),
        );
        pair.say(
            "by epoll_pwait",
            seen(&sys::epoll_pwait(epoll, -1, None, None)),
        );
    });
}

fn room(pair: &Pair) {
    if pair.server() {
        sys::set_nonblocking(pair.fd, true);
        let epoll = watching(pair, IN | OUT);
        pair.say("room", now(epoll));
        let sent = fill(pair.fd);
        pair.say("full", now(epoll));
        pair.tell(u32::try_from(sent).expect("below 4 GB"));
        pair.say("room returns", seen(&sys::epoll_wait(epoll, 4, -1)));
        pair.step();
    } else {
        let sent = pair.hear() as usize;
        std::thread::sleep(std::time::Duration::from_millis(20));
        receive_all(pair.fd, &mut vec![0; sent]);
        pair.step();
    }
}

fn modify(pair: &Pair) {
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

fn refusals(pair: &Pair) {
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

fn close_removes(pair: &Pair) {
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
        // The number now belongs to something else.
        let event = sys::eventfd();
        pair.say("the number is taken again", event == pair.fd);
        sys::write(event, &1_u64.to_ne_bytes()).value();
        pair.say("still nothing", now(epoll));
        pair.say("ADD", sys::epoll_ctl(epoll, ADD, event, IN, 11));
        pair.say("the new one", now(epoll));
        pair.step();
    }
}

fn dup_keeps(pair: &Pair) {
    let epoll = watching(pair, IN);
    pair.step();
    parts(pair, &[b"data", b"more"], |index| {
        if index == 0 {
            let copy = sys::dup(pair.fd).fd();
            pair.say("ADD of the copy", sys::epoll_ctl(epoll, ADD, copy, IN, 8));
            pair.say("both", now(epoll));
            sys::close(copy).value();
            // The description lives on under its first number, so the copy's registration does too.
            pair.say("the copy is closed", now(epoll));
        } else {
            pair.say("more", now(epoll));
        }
    });
}

/// The kernel knows a registration by file and number: it goes on while the file is open, and can
/// be changed when the number is the file's again.
fn outlives(pair: &Pair) {
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
    // Nothing of ours keeps the connection open.
    if pair.server() {
        pair.say("close", sys::close(copy));
    } else {
        pair.say("then", drain(copy));
        pair.say("at the end", all());
    }
}

fn end_events(pair: &Pair) {
    if pair.server() {
        pair.step();
        send_all(pair.fd, b"last");
        sys::shutdown(pair.fd, libc::SHUT_WR).value();
        pair.step();
        pair.step();
        sys::close(pair.fd).value();
        pair.step();
    } else {
        let level = watching(pair, IN | libc::EPOLLRDHUP);
        let edge = watching(pair, IN | ET | libc::EPOLLRDHUP);
        pair.say("quiet", format!("{} {}", now(level), now(edge)));
        pair.step();
        pair.step();
        await_events(pair.fd, libc::POLLRDHUP);
        pair.say("data and EOF", format!("{} {}", now(level), now(edge)));
        receive_all(pair.fd, &mut [0; 4]);
        pair.say("EOF", format!("{} {}", now(level), now(edge)));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 4], 0));
        pair.say("shutdown", sys::shutdown(pair.fd, libc::SHUT_WR));
        pair.step();
        pair.step();
        await_events(pair.fd, libc::POLLHUP);
        pair.say("over", format!("{} {}", now(level), now(edge)));
        pair.say("over", format!("{} {}", now(level), now(edge)));
    }
}

fn reset_events(pair: &Pair) {
    if pair.server() {
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        sys::set_option(pair.fd, libc::SOL_SOCKET, libc::SO_LINGER, linger).value();
        pair.step();
        std::thread::sleep(std::time::Duration::from_millis(30));
        sys::close(pair.fd).value();
    } else {
        let epoll = watching(pair, 0);
        let with_in = watching(pair, IN | ET | libc::EPOLLRDHUP);
        pair.step();
        pair.say("no interest", seen(&sys::epoll_wait(epoll, 4, -1)));
        pair.say("interest", seen(&sys::epoll_wait(with_in, 4, -1)));
        pair.say("recv", sys::recv(pair.fd, &mut [0; 4], 0));
        pair.say("after", format!("{} {}", now(epoll), now(with_in)));
    }
}

fn starvation(role: &Role) {
    const CONNECTIONS: u32 = 5;
    let listener = role.server().then(|| role.listen(0));
    let port = if role.server() { 0 } else { role.hear_port() };
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let fd = match listener {
            Some(listener) => sys::accept(listener).fd(),
            None => role.connect(port),
        };
        role.warm(fd);
        connections.push(fd);
    }
    if role.server() {
        connections.iter().for_each(|fd| send_all(*fd, b"ready"));
        role.step();
        role.step();
    } else {
        let epoll = sys::epoll_create();
        for (index, fd) in connections.iter().enumerate() {
            sys::epoll_ctl(epoll, ADD, *fd, IN, index as u64).value();
        }
        role.step();
        connections.iter().for_each(|fd| role.arrived(*fd, 5));
        let mut found = std::collections::BTreeSet::new();
        for _ in 0..CONNECTIONS {
            let (result, events) = sys::epoll_wait(epoll, 1, -1);
            role.say("one at a time", result);
            found.extend(events);
        }
        role.say("all had their turn", format!("{found:x?}"));
        role.step();
    }
}

/// Of three connections the second has seen enough traffic to be accelerated; the others are new.
fn order(role: &Role) {
    let listener = role.server().then(|| role.listen(0));
    let port = if role.server() { 0 } else { role.hear_port() };
    let mut connections = Vec::new();
    for number in 0..3 {
        let fd = match listener {
            Some(listener) => sys::accept(listener).fd(),
            None => role.connect(port),
        };
        if number == 1 {
            role.warm(fd);
        }
        connections.push(fd);
    }
    let turns = [[0, 2, 1], [2, 0, 1], [2, 1, 0], [0, 1, 2]];
    if role.server() {
        role.step();
        send_all(connections[0], b"first");
        role.step();
        for turn in turns {
            turn.iter().for_each(|&n| send_all(connections[n], b"news"));
            role.step();
            role.step();
        }
    } else {
        let epoll = sys::epoll_create();
        for (number, fd) in connections.iter().enumerate() {
            sys::epoll_ctl(epoll, ADD, *fd, IN, number as u64).value();
        }
        role.step();
        role.say("first", seen(&sys::epoll_wait(epoll, 16, -1)));
        receive_all(connections[0], &mut [0; 5]);
        role.step();
        for turn in turns {
            role.step();
            connections.iter().for_each(|fd| role.arrived(*fd, 4));
            let (result, events) = sys::epoll_wait(epoll, 16, -1);
            let numbers: Vec<u64> = events.iter().map(|event| event.0).collect();
            // Where the accelerated one was last. Elsewhere rings and kernel are two queues, and
            // their members come in another order.
            if turn[2] == 1 {
                role.say("in order", format!("{result} {numbers:?}"));
            } else {
                let all: std::collections::BTreeSet<u64> = numbers.into_iter().collect();
                role.say("all", format!("{result} {all:?}"));
            }
            connections
                .iter()
                .for_each(|fd| receive_all(*fd, &mut [0; 4]));
            role.step();
        }
    }
}

fn other_thread(pair: &Pair) {
    if pair.server() {
        send_all(pair.fd, b"data");
        pair.step();
        pair.step();
    } else {
        pair.step();
        let epoll = sys::epoll_create();
        let waiter = std::thread::spawn(move || seen(&sys::epoll_wait(epoll, 4, -1)));
        std::thread::sleep(std::time::Duration::from_millis(20));
        pair.say("ADD", sys::epoll_ctl(epoll, ADD, pair.fd, IN, 5));
        pair.say(
            "the waiter",
            waiter.join().expect("the waiter does not panic"),
        );
        pair.step();
    }
}

/// Behaves like Apache's event MPM: one thread waits and takes out the descriptors with events,
/// others serve them and put them back while the first waits again.
fn put_back(pair: &Pair) {
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
        // Now and then the next request is there before the registration, else it comes while the
        // waiter sleeps.
        if round % 4 == 0 {
            pair.arrived(fd, if round + 1 < ROUNDS { 3 } else { 0 });
        } else {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        pair.say("ADD", sys::epoll_ctl(epoll, ADD, fd, IN, 7));
    }
}

/// Programs may ask for `EPOLLRDNORM` and its kin alone.
fn other_names(pair: &Pair) {
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
        pair.step();
        std::thread::sleep(Duration::from_millis(20));
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
    pair.step();
    pair.say("waits", format!("{:?}", sys::epoll_wait(epoll, 4, 20_000)));
    pair.step();
    pair.arrived(pair.fd, 4);
    look("news");
    pair.step();
}
