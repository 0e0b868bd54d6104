//! Fast Open (RFC 7413), from both sides.

use crate::script::Stage;
use toehold_tcp::sim::checker;
use toehold_tcp::{CloseReason, ConnectionId, Duration, Event, Options, State};

const HOUR: Duration = Duration::from_secs(3_600);

/// A listener of which Fast Open may open this many connections, and a remote that has its cookie.
fn server(pending_max: usize) -> Stage {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        config.window_scaling = false;
        options.nodelay = true;
    });
    stage.engine.set_fast_open(stage.listener, pending_max);
    stage.come_from(4_000);
    stage.remote("S 0:0(0) win 65535 <mss 1000,fo>");
    stage.expect("S. 0:0(0) ack 1 <mss 1460,fo 1>");
    stage.remote("R 1:1(0) win 0");
    stage.come_from(4_001);
    stage
}

/// The remote opens a connection with 100 bytes, and the host accepts the connection.
fn opened(stage: &mut Stage) -> ConnectionId {
    stage.remote("S 0:0(100) win 65535 <mss 1000,fo 1>");
    stage.expect("S. 0:0(0) ack 101 <mss 1460>");
    let acceptable = Event::Acceptable(stage.listener);
    assert_eq!(stage.engine.poll_event(), Some(acceptable));
    let id = stage.engine.accept(stage.listener).expect("it is open");
    assert_eq!(stage.rings.received.len(), 100);
    id
}

fn state(stage: &Stage, id: ConnectionId) -> Option<State> {
    stage.engine.info(id).map(|info| info.state)
}

#[test]
fn payload_of_a_syn_with_a_cookie_is_the_hosts_at_once_and_so_may_be_the_answer() {
    let mut stage = server(1);
    let id = opened(&mut stage);
    let info = stage.engine.info(id).expect("it exists");
    assert_eq!((info.state, info.received), (State::SynReceived, 100));
    assert!(info.syn_data);
    stage.engine.take(id, 100).expect("it has come");
    stage.engine.publish(id, 50).expect("it is open");
    stage.expect("P. 1:51(50) ack 101");
    stage.engine.finish(stage.now, id).expect("it is open");
    stage.expect_nothing();
    stage.remote(". 101:101(0) ack 51 win 65535");
    stage.expect("F. 51:51(0) ack 101");
    let events: Vec<Event> = core::iter::from_fn(|| stage.engine.poll_event()).collect();
    let is_progress = |event: &Event| matches!(event, Event::Progress { .. });
    assert!(events.iter().all(is_progress), "{events:?}");
    stage.remote("F. 101:101(0) ack 52");
    stage.expect(". 52:52(0) ack 102");
    stage.expect_closed(CloseReason::Finished);
}

//= RFC 7413#4.2
//= type=test
//# It MUST be turned on explicitly by the application.
//= RFC 7413#4.2
//= type=test
//# When this flag is off, the server does not perform any TFO-related operations and MUST
//# ignore all cookie options.
#[test]
fn listeners_take_no_part_unless_they_are_told_to() {
    let mut stage = server(1);
    stage.engine.set_fast_open(stage.listener, 0);
    stage.remote("S 0:0(100) win 65535 <mss 1000,fo 1>");
    stage.expect("S. 0:0(0) ack 1 <mss 1460>");
    assert_eq!(stage.engine.poll_event(), None);
    stage.remote(". 1:101(100) ack 1 win 65535");
    stage.expect(". 1:1(0) ack 101");
}

#[test]
fn a_wrong_cookie_is_replaced_and_the_handshake_is_an_ordinary_one() {
    let mut stage = server(1);
    stage.remote("S 0:0(100) win 65535 <mss 1000,fo 0>");
    stage.expect("S. 0:0(0) ack 1 <mss 1460,fo 1>");
    assert_eq!(stage.engine.poll_event(), None);
    assert!(stage.rings.received.is_empty());
    assert_eq!(stage.engine.counters().fast_opens_declined, 1);
    // The cookie of another remote is wrong, too.
    let other = stage.packet("S 0:0(100) win 65535 <mss 1000,fo 1>", [10, 0, 0, 3]);
    stage.raw(&other);
    stage.expect("S. 0:0(0) ack 1 <mss 1460,fo 1>");
    assert_eq!(stage.engine.poll_event(), None);
    // Payload without a cookie is ignored.
    stage.come_from(4_002);
    stage.remote("S 0:0(100) win 65535 <mss 1000>");
    stage.expect("S. 0:0(0) ack 1 <mss 1460>");
}

//= RFC 7413#4.2
//= type=test
//# If this variable goes over a preset system limit, the server MUST disable TFO for all
//# new connection requests until PendingFastOpenRequests drops below the system limit.
#[test]
fn half_open_connections_are_limited_and_those_reset_count_for_a_minute() {
    let mut stage = server(1);
    let first = opened(&mut stage);
    let is_opened = |stage: &mut Stage, port| {
        stage.come_from(port);
        stage.remote("S 0:0(10) win 65535 <mss 1000,fo 1>");
        stage.forget_sent();
        stage.engine.assert_invariants();
        stage.engine.accept(stage.listener).is_some()
    };
    assert!(!is_opened(&mut stage, 4_002));
    // The first connection's handshake is over.
    stage.come_from(4_001);
    stage.remote(". 101:101(0) ack 1 win 65535");
    assert_eq!(state(&stage, first), Some(State::Established));
    // The SYN-ACK belongs to another connection by now.
    assert!(is_opened(&mut stage, 4_003));
    // Another host has used the remote's address.
    stage.remote("R 11:11(0) win 0");
    stage.expect_closed(CloseReason::Reset);
    assert!(!is_opened(&mut stage, 4_004));
    stage.wait(Duration::from_secs(61));
    stage.forget_sent();
    assert!(is_opened(&mut stage, 4_005));
}

#[test]
fn fast_open_gives_way_to_syn_cookies_and_to_a_host_without_room() {
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.half_open_max = 0;
    });
    stage.engine.set_fast_open(stage.listener, 1);
    stage.remote("S 0:0(0) win 65535 <mss 1000,fo>");
    stage.expect("S. 0:0(0) ack 1 <mss 1460>");

    let mut stage = server(1);
    stage.rings.bytes_max = Some(99);
    stage.remote("S 0:0(100) win 65535 <mss 1000,fo 1>");
    stage.expect("S. 0:0(0) ack 1 <mss 1460>");
    assert_eq!(stage.engine.poll_event(), None);
    stage.rings.bytes_max = None;
    stage.remote(". 1:101(100) ack 1 win 65535");
    let acceptable = Event::Acceptable(stage.listener);
    assert_eq!(stage.engine.poll_event(), Some(acceptable));
    assert_eq!(stage.rings.received.len(), 100);
}

#[test]
fn of_what_the_remote_has_not_answered_only_the_syn_ack_is_sent_again() {
    let mut stage = server(1);
    let id = opened(&mut stage);
    stage.engine.publish(id, 50).expect("it is open");
    stage.expect("P. 1:51(50) ack 101");
    // The SYN again, unchanged and without its payload.
    for syn in [
        "S 0:0(100) win 65535 <mss 1000,fo 1>",
        "S 0:0(0) win 65535 <mss 1000>",
    ] {
        stage.remote(syn);
        stage.expect("S. 0:0(0) ack 101 <mss 1460>");
        stage.expect_nothing();
    }
    // The SYN carries more payload than was accepted: the answer is unchanged, and is no challenge.
    stage.remote("S 0:0(200) win 65535 <mss 1000,fo 1>");
    stage.expect("S. 0:0(0) ack 101 <mss 1460>");
    stage.expect_nothing();
    stage.wait(Duration::from_secs(1));
    stage.expect("S. 0:0(0) ack 101 <mss 1460>");
    stage.expect_nothing();
    stage.wait(Duration::from_secs(2));
    stage.expect("S. 0:0(0) ack 101 <mss 1460>");
    stage.expect_nothing();
    // The answer has not arrived. The engine sends it again as soon as it knows that.
    stage.remote(". 101:101(0) ack 1 win 65535");
    stage.wait(Duration::from_secs(5));
    stage.expect("P. 1:51(50) ack 101");
}

#[test]
fn a_remote_that_never_answers_is_given_up() {
    let mut stage = server(1);
    let id = opened(&mut stage);
    stage.engine.publish(id, 50).expect("it is open");
    stage.wait(HOUR);
    stage.expect_closed(CloseReason::TimedOut);
    stage.engine.release(stage.now, id).expect("it is closed");
    stage.engine.assert_invariants();
    assert_eq!(stage.engine.connection_count(), 0);
}

#[test]
fn connections_that_nobody_accepts_end_with_their_listener() {
    let mut stage = server(1);
    stage.remote("S 0:0(100) win 65535 <mss 1000,fo 1>");
    stage.expect("S. 0:0(0) ack 101 <mss 1460>");
    stage.engine.unlisten(stage.listener);
    stage.expect("R. 1:1(0) ack 101");
    let events: Vec<Event> = core::iter::from_fn(|| stage.engine.poll_event()).collect();
    assert!(matches!(events[..], [Event::Abandoned(_)]), "{events:?}");
    assert_eq!(stage.engine.connection_count(), 0);
}

//= RFC 7413#4.2.2
//= type=test
//# If the FastOpened flag is set, the server MUST follow [RFC5681] (based on [RFC3390]) to
//# set the initial congestion window for sending more data packets.
#[test]
fn the_answer_is_no_larger_than_an_initial_window() {
    let mut stage = server(1);
    let id = opened(&mut stage);
    stage.engine.publish(id, 60_000).expect("it is open");
    for segment in 0..10 {
        let (from, to) = (1 + 1_000 * segment, 1_001 + 1_000 * segment);
        stage.expect(&format!(". {from}:{to}(1000) ack 101"));
    }
    stage.expect_nothing();
}

#[test]
fn cookies_are_good_for_a_day_and_are_replaced_on_the_next() {
    let mut stage = server(4);
    let first = stage.cookie.clone();
    stage.wait(HOUR * 24);
    stage.remote("S 0:0(100) win 65535 <mss 1000,fo 1>");
    stage.expect("S. 0:0(0) ack 101 <mss 1460,fo 1>");
    assert!(stage.engine.accept(stage.listener).is_some());
    assert_ne!(stage.cookie, first);
    stage.cookie = first;
    stage.wait(HOUR * 24);
    stage.forget_sent();
    stage.come_from(4_002);
    stage.remote("S 0:0(100) win 65535 <mss 1000,fo 1>");
    stage.expect("S. 0:0(0) ack 1 <mss 1460,fo 1>");
}

/// A host that connects by Fast Open, and publishes 100 bytes at once.
fn connect(stage: &mut Stage) -> ConnectionId {
    let id = stage.connect(Options {
        nodelay: true,
        ..Options::default()
    });
    stage.engine.open_fast(stage.now, id);
    stage.engine.publish(id, 100).expect("it is open");
    id
}

/// A client whose remote has given it a cookie.
fn client() -> Stage {
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.window_scaling = false;
    });
    connect(&mut stage);
    stage.expect("S 0:0(0) <mss 1460,fo>");
    stage.cookie = vec![9; 6];
    stage.remote("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,fo 1>");
    stage.expect("P. 1:101(100) ack 1");
    stage.remote(". 1:1(0) ack 101 win 65535");
    stage
}

//= RFC 7413#4.1.3
//= type=test
//# The client MUST cache cookies from servers for later Fast Open connections.
//= RFC 7413#4.2.1
//= type=test
//# Any client attempting TFO MUST first request a cookie from the server with the following
//# steps:
//= RFC 7413#4.2.2
//= type=test
//# To open a TFO connection, the client MUST have obtained a cookie from the server:
#[test]
fn a_client_asks_for_a_cookie_and_sends_payload_with_it_from_then_on() {
    let mut stage = client();
    let id = connect(&mut stage);
    stage.expect("S 0:0(100) <mss 1460,fo 1>");
    assert_eq!(stage.cookie, [9; 6]);
    stage.remote("S. 0:0(0) ack 101 win 65535 <mss 1000,sackOK>");
    stage.expect(". 101:101(0) ack 1");
    let info = stage.engine.info(id).expect("it exists");
    assert_eq!((info.acknowledged, info.syn_data), (100, true));
    let counters = stage.engine.counters();
    assert_eq!(counters.fast_opens_acknowledged, 1);
    assert_eq!(counters.retransmissions, 0);
}

#[test]
fn payload_that_the_remote_did_not_take_goes_with_the_first_acknowledgement() {
    let mut stage = client();
    let id = connect(&mut stage);
    stage.expect("S 0:0(100) <mss 1460,fo 1>");
    // The remote gives another cookie.
    stage.cookie = vec![8; 16];
    stage.remote("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,fo 1>");
    stage.expect("P. 1:101(100) ack 1");
    stage.remote(". 1:1(0) ack 101 win 65535");
    let info = stage.engine.info(id).expect("it exists");
    assert!(!info.syn_data);
    assert_eq!(info.congestion_window, 10_000, "no loss");
    assert_eq!(stage.engine.counters().recoveries, 0);
    connect(&mut stage);
    stage.expect("S 0:0(100) <mss 1460,fo 1>");
    assert_eq!(stage.cookie, [8; 16]);
}

//= RFC 7413#4.1.3.1
//= type=test
//# The client MUST cache negative responses from the server in order to avoid potential
//# connection failures.
#[test]
fn after_a_syn_that_was_lost_fast_open_is_off_for_longer_each_time() {
    let mut stage = client();
    let opens = |stage: &mut Stage| {
        connect(stage);
        let syn = stage.next_sent();
        stage.forget_sent();
        (
            syn.len() - usize::from(syn[32] >> 4) * 4 - 20,
            syn.contains(&34),
        )
    };
    connect(&mut stage);
    stage.expect("S 0:0(100) <mss 1460,fo 1>");
    stage.wait(Duration::from_secs(1));
    stage.expect("S 0:0(0) <mss 1460>");
    stage.remote("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
    stage.expect("P. 1:101(100) ack 1");
    stage.remote(". 1:1(0) ack 101 win 65535");
    assert_eq!(opens(&mut stage), (0, false));
    stage.wait(Duration::from_secs(58));
    stage.forget_sent();
    assert_eq!(opens(&mut stage), (0, false));
    // A minute after the timeout the client asks anew. The request gets no answer either.
    stage.wait(Duration::from_secs(2));
    stage.forget_sent();
    connect(&mut stage);
    stage.expect("S 0:0(0) <mss 1460,fo>");
    stage.remote("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
    stage.expect("P. 1:101(100) ack 1");
    stage.remote(". 1:1(0) ack 101 win 65535");
    stage.wait(Duration::from_secs(119));
    stage.forget_sent();
    assert_eq!(opens(&mut stage), (0, false));
    stage.wait(Duration::from_secs(2));
    stage.forget_sent();
    connect(&mut stage);
    stage.expect("S 0:0(0) <mss 1460,fo>");
}

#[test]
fn a_late_answer_to_the_first_syn_is_one() {
    let mut stage = client();
    let id = connect(&mut stage);
    stage.expect("S 0:0(100) <mss 1460,fo 1>");
    stage.wait(Duration::from_secs(1));
    stage.expect("S 0:0(0) <mss 1460>");
    stage.remote("S. 0:0(0) ack 101 win 65535 <mss 1000,sackOK,fo 1>");
    stage.expect(". 101:101(0) ack 1");
    assert!(stage.engine.info(id).is_some_and(|info| info.syn_data));
    connect(&mut stage);
    stage.expect("S 0:0(100) <mss 1460,fo 1>");
}

#[test]
fn a_syn_takes_what_the_remotes_segments_have_room_for() {
    let mut stage = client();
    let id = stage.connect(Options::default());
    assert!(stage.engine.open_fast(stage.now, id));
    stage.engine.publish(id, 5_000).expect("it is open");
    // The payload fills the MSS of 1,000, less all the options that fit.
    stage.expect("S 0:0(960) <mss 1460,fo 1>");
    stage.remote("S. 0:0(0) ack 961 win 65535 <mss 1000,sackOK>");
    stage.expect(". 961:1961(1000) ack 1");
}

#[test]
fn a_client_without_payload_asks_and_one_that_does_not_take_part_says_nothing() {
    let mut stage = client();
    let id = stage.connect(Options::default());
    assert!(stage.engine.open_fast(stage.now, id));
    stage.expect("S 0:0(0) <mss 1460,fo>");
    stage.connect(Options::default());
    stage.expect("S 0:0(0) <mss 1460>");
    // The SYN-ACK carries a cookie that the client did not ask for.
    stage.remote("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,fo 0>");
    stage.expect(". 1:1(0) ack 1");
}

#[test]
fn a_syn_waits_for_its_payload_as_long_as_the_host_likes() {
    let mut stage = client();
    let hold = |stage: &mut Stage| {
        let id = stage.connect(Options::default());
        let has_cookie = stage.engine.open_fast(stage.now, id);
        stage.engine.hold_syn(id);
        (id, has_cookie)
    };
    let (id, has_cookie) = hold(&mut stage);
    assert!(has_cookie);
    stage.expect_nothing();
    stage.wait(HOUR);
    stage.expect_nothing();
    stage.engine.assert_invariants();
    stage.engine.publish(id, 100).expect("it is open");
    stage.expect("S 0:0(100) <mss 1460,fo 1>");
    stage.remote("S. 0:0(0) ack 101 win 65535 <mss 1000,sackOK>");
    stage.expect(". 101:101(0) ack 1");
    // A connection that is aborted meanwhile has sent nothing.
    let (id, _) = hold(&mut stage);
    stage.engine.abort(stage.now, id).expect("it is there");
    stage.expect_nothing();
    stage.expect_closed(CloseReason::Aborted);
    // Without a cookie there is no reason to wait.
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.window_scaling = false;
    });
    let (_, has_cookie) = hold(&mut stage);
    assert!(!has_cookie);
    stage.expect("S 0:0(0) <mss 1460,fo>");
}

/// RFC 9293 section 3.5, figure 8, with payload on our SYN.
#[test]
fn payload_of_a_syn_survives_a_simultaneous_open() {
    let mut stage = client();
    let id = connect(&mut stage);
    stage.expect("S 0:0(100) <mss 1460,fo 1>");
    stage.remote("S 0:0(10) win 65535 <mss 1000,sackOK,fo 0>");
    stage.expect("S. 0:0(0) ack 1 <mss 1460>");
    stage.remote("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK>");
    assert_eq!(state(&stage, id), Some(State::Established));
    stage.expect("P. 1:101(100) ack 1");
    stage.remote(". 1:11(10) ack 101 win 65535");
    stage.expect(". 101:101(0) ack 11");
    assert_eq!(stage.rings.received, (0..10).collect::<Vec<u8>>());
}

/// The remote acknowledges a part of the SYN's payload. The rest goes at once, not after a timeout,
/// and is no loss.
#[test]
fn payload_that_the_remote_took_in_part_goes_on_with_the_first_acknowledgement() {
    let mut stage = client();
    let id = connect(&mut stage);
    stage.expect("S 0:0(100) <mss 1460,fo 1>");
    stage.remote("S. 0:0(0) ack 61 win 65535 <mss 1000,sackOK>");
    stage.expect("P. 61:101(40) ack 1");
    stage.remote(". 1:1(0) ack 101 win 65535");
    let info = stage.engine.info(id).expect("it exists");
    assert!(info.syn_data);
    assert_eq!(info.congestion_window, 10_000, "no loss");
    assert_eq!(stage.engine.counters().recoveries, 0);
}

/// Opens a connection by Fast Open; true if its SYN carries the option.
fn tries(stage: &mut Stage) -> bool {
    connect(stage);
    let syn = stage.next_sent();
    stage.forget_sent();
    checker::parse(&syn).expect("a SYN").fast_open.is_some()
}

/// Behind some middleboxes nothing passes after a SYN with payload. Each handshake works, and the
/// time without Fast Open gets longer.
#[test]
fn a_path_that_is_silent_after_the_handshake_does_without_fast_open() {
    let mut stage = client();
    let mut cookie = 1;
    for minutes in [1, 2, 4] {
        let id = connect(&mut stage);
        stage.expect("S 0:0(100) <mss 1460,fo 1>");
        stage.remote("S. 0:0(0) ack 101 win 65535 <mss 1000,sackOK>");
        stage.expect(". 101:101(0) ack 1");
        stage.engine.publish(id, 200).expect("it is open");
        while stage.engine.info(id).is_some_and(|info| info.retries < 3) {
            stage.wait(Duration::from_millis(10));
        }
        stage.engine.abort(stage.now, id).expect("it is open");
        stage.forget_sent();
        assert!(!tries(&mut stage));
        stage.wait(Duration::from_secs(60 * minutes - 2));
        assert!(!tries(&mut stage));
        stage.wait(Duration::from_secs(4));
        stage.forget_sent();
        connect(&mut stage);
        stage.expect("S 0:0(0) <mss 1460,fo>");
        cookie += 1;
        stage.cookie = vec![cookie; 8];
        stage.remote("S. 0:0(0) ack 1 win 65535 <mss 1000,sackOK,fo 1>");
        stage.expect("P. 1:101(100) ack 1");
        stage.remote(". 1:1(0) ack 101 win 65535");
    }
    // Data that passed once shows that the path is clear: a later outage is no such sign.
    let id = connect(&mut stage);
    stage.expect("S 0:0(100) <mss 1460,fo 1>");
    stage.remote("S. 0:0(0) ack 101 win 65535 <mss 1000,sackOK>");
    stage.expect(". 101:101(0) ack 1");
    stage.engine.publish(id, 200).expect("it is open");
    stage.expect("P. 101:201(100) ack 1");
    stage.remote(". 1:1(0) ack 201 win 65535");
    stage.engine.publish(id, 300).expect("it is open");
    stage.wait(Duration::from_secs(30));
    stage.forget_sent();
    assert!(tries(&mut stage));
}

/// RFC 7413 section 4.1.3.1: an ICMP message is a negative response. So is a reset, which may come
/// from a middlebox.
#[test]
fn after_a_syn_that_was_refused_the_next_one_does_without_fast_open() {
    for is_reset in [true, false] {
        let mut stage = client();
        connect(&mut stage);
        stage.expect("S 0:0(100) <mss 1460,fo 1>");
        if is_reset {
            stage.remote("R. 0:0(0) ack 101 win 0");
        } else {
            let message = stage.unreachable(0, 3);
            stage.raw(&message);
        }
        stage.expect_closed(CloseReason::Refused);
        assert!(!tries(&mut stage));
        stage.wait(Duration::from_secs(58));
        assert!(!tries(&mut stage));
        stage.wait(Duration::from_secs(4));
        stage.forget_sent();
        assert!(tries(&mut stage));
    }
}
