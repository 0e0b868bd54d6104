//! epoll in all its modes.

mod again;
mod duplicates;
mod early;
mod endings;
mod fairness;
mod known;
mod modes;
mod moving;
mod names;
mod outside;
mod registrations;
mod sharing;
mod unseen;
mod untold;

use crate::Case;
use crate::role::{Pair, fill, receive_all, send_all};
use crate::sys::{self, Fd};

pub(crate) const CASES: &[Case] = &[
    Case::pair(
        "instance_is_told_of_what_a_sleeping_splice_leaves",
        |pair| {
            sharing::beside_a_splice(pair, 0);
        },
    ),
    Case::pair(
        "exclusive_instance_is_told_of_what_a_sleeping_splice_leaves",
        |pair| sharing::beside_a_splice(pair, libc::EPOLLEXCLUSIVE),
    ),
    Case::pair(
        "edge_of_bytes_that_come_by_the_carrier_is_told_once",
        again::bytes_by_the_carrier,
    ),
    Case::pair("level_triggered_events_repeat", modes::level),
    Case::pair("edge_triggered_events_come_once_per_arrival", modes::edge),
    Case::pair(
        "edge_triggered_event_survives_a_partial_read",
        modes::edge_partial,
    ),
    Case::pair("edge_triggered_room_comes_once_per_drain", modes::edge_room),
    Case::pair(
        "edge_triggered_registration_reports_what_is_there",
        modes::edge_first,
    ),
    Case::pair("oneshot_is_silent_until_rearmed", modes::oneshot),
    Case::roles(
        "oneshot_that_has_told_is_silent_while_the_connection_moves",
        modes::oneshot_moves,
    ),
    Case::roles(
        "events_that_are_not_told_leave_no_trace",
        untold::leaves_no_trace,
    ),
    Case::pair("news_of_another_call_is_news_of_a_wait", |pair| {
        known::of_a_slow_sender(pair, IN);
    }),
    Case::pair("news_of_another_call_is_an_edge_of_a_wait", |pair| {
        known::of_a_slow_sender(pair, IN | ET);
    }),
    Case::pair("exclusive_waiters_miss_nothing", modes::exclusive),
    Case::pair(
        "exclusive_registrations_are_refused_as_by_the_kernel",
        modes::exclusive_refused,
    ),
    Case::pair(
        "nested_epoll_is_readable_when_its_inside_is",
        outside::nested,
    ),
    Case::pair(
        "nested_epoll_is_silent_while_its_inside_is",
        outside::nested_quiet,
    ),
    Case::pair(
        "nested_epoll_tells_by_level_by_edge_and_once",
        outside::nested_tells,
    ),
    Case::pair(
        "member_of_one_of_many_nested_epolls_wakes_the_outside",
        outside::nested_many,
    ),
    Case::pair(
        "instance_is_quiet_at_an_end_nobody_asked_for_after_a_refusal",
        outside::quiet_after_a_refusal,
    ),
    Case::roles(
        "instance_from_before_the_traffic_is_quiet_at_an_end_nobody_asked_for",
        outside::quiet_after_the_kernel,
    ),
    Case::pair(
        "epoll_is_polled_with_members_of_both_kinds",
        outside::polled,
    ),
    Case::pair(
        "epoll_inside_an_epoll_inside_an_epoll",
        outside::nested_deep,
    ),
    Case::pair(
        "member_of_a_polled_instance_wakes_a_receiver_later",
        outside::member_meanwhile,
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
    Case::pair("modified_interest_takes_effect", registrations::modify),
    Case::pair("readiness_is_told_by_all_its_names", names::other_names),
    Case::unix(
        "readiness_is_told_by_all_its_names_locally",
        names::other_names,
    ),
    Case::pair("epoll_ctl_refuses_what_it_must", registrations::refusals),
    Case::pair(
        "closing_a_descriptor_ends_its_registration",
        registrations::close_removes,
    ),
    Case::pair("duplicate_keeps_the_registration", registrations::dup_keeps),
    Case::pair(
        "registration_outlives_its_descriptor",
        registrations::outlives,
    ),
    Case::pair(
        "registration_of_a_number_s_next_file_stays",
        registrations::number_goes_on,
    ),
    Case::pair("end_of_stream_is_an_event", endings::end_events),
    Case::pair("reset_is_an_event", endings::reset_events),
    Case::roles(
        "registration_made_before_connecting_holds",
        early::before_connecting,
    ),
    Case::roles(
        "registration_made_before_the_traffic_holds",
        early::before_traffic,
    ),
    Case::roles("small_event_arrays_starve_nobody", fairness::starvation),
    Case::roles(
        "full_event_arrays_starve_no_ordinary_member",
        fairness::turns,
    ),
    Case::roles(
        "instances_inside_are_starved_by_no_other_member",
        fairness::turns_of_nested,
    ),
    Case::roles("news_comes_in_the_order_it_was_sent", fairness::order),
    Case::pair(
        "registration_by_another_thread_wakes_the_waiter",
        moving::other_thread,
    ),
    Case::pair(
        "registration_taken_out_and_put_back_wakes_the_waiter",
        moving::put_back,
    ),
    Case::pair(
        "member_that_an_operator_moves_is_told_once_a_wait",
        moving::beside_a_wait,
    ),
    Case::pair(
        "registration_goes_from_one_instance_to_another_and_back",
        moving::between_instances,
    ),
    Case::pair(
        "registration_armed_for_nothing_yet_wakes_nobody",
        moving::armed_beside_a_sleeper,
    ),
    Case::pair(
        "spent_one_shot_of_another_instance_is_not_woken",
        moving::beside_a_spent_one_shot,
    ),
    Case::roles(
        "registration_taken_out_is_put_back_by_a_child",
        moving::by_a_child,
    ),
    Case::roles(
        "connections_on_which_a_child_has_sent_are_reported_in_one_call",
        |role| moving::passed_beside_a_child(role, false),
    ),
    Case::roles(
        "connections_on_which_a_child_has_sent_are_reported_beside_a_file",
        |role| moving::passed_beside_a_child(role, true),
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
        "sleeper_is_woken_although_another_thread_has_polled_the_instance",
        sharing::polled_before_a_sleeper,
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
    Case::roles("instance_that_is_waited_on_past_libc", unseen::instance),
    Case::roles(
        "instance_that_is_waited_on_past_libc_for_edges",
        unseen::instance_edge,
    ),
    Case::roles(
        "instance_that_is_waited_on_past_libc_once_for_each_arming",
        unseen::instance_oneshot,
    ),
    Case::roles(
        "instance_inside_another_that_is_waited_on_past_libc",
        unseen::instance_inside,
    ),
    Case::roles("connect_that_is_waited_for_past_libc", unseen::connecting),
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

/// Creates an epoll instance that has this pair's socket as a member.
fn watching(pair: &Pair, events: i32) -> Fd {
    let epoll = sys::epoll_create();
    sys::epoll_ctl(epoll, ADD, pair.fd, events, 7).value();
    epoll
}

/// The events that an epoll_wait returns without waiting.
fn now(epoll: Fd) -> String {
    seen(&sys::epoll_wait(epoll, 16, 0))
}

fn seen((result, events): &(sys::Ret, Vec<(u64, u32)>)) -> String {
    let events: Vec<String> = events
        .iter()
        .map(|(data, mask)| format!("{data}:{mask:x}"))
        .collect();
    format!("{result} [{}]", events.join(" "))
}

/// The server sends each of `parts`. The client runs `look` after each part has arrived.
fn parts(pair: &Pair, parts: &[&[u8]], mut look: impl FnMut(usize)) {
    // Steps keep the server from sending ahead, so bytes that are unread here were unread before.
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
        pair.step_to_sleep();
        pair.say("room returns", seen(&sys::epoll_wait(epoll, 4, -1)));
        pair.step();
    } else {
        let sent = pair.hear() as usize;
        pair.step_to_sleeper();
        receive_all(pair.fd, &mut vec![0; sent]);
        pair.step();
    }
}
