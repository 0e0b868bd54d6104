//! The ends of connections and the state that remains: scripts of segments.

use crate::script::{Stage, plain};
use toehold_tcp::{CloseReason, ConnectionId, Departure, Duration, Options, State};

/// A server closes first, more often than TIME-WAIT lasts. There is room for three connections.
#[test]
fn time_wait_makes_room_for_the_next_connection() {
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.connections_max = 3;
    });
    for host in 10..30 {
        let remote = [10, 0, 0, host];
        stage.raw(&stage.packet("S 0:0(0) win 65535 <mss 1000>", remote));
        stage.expect("S. 0:0(0) ack 1");
        stage.raw(&stage.packet(". 1:1(0) ack 1", remote));
        let id = stage.engine.accept(stage.listener).expect("there is room");
        stage.engine.release(stage.now, id).unwrap();
        stage.expect("F. 1:1(0) ack 1");
        stage.raw(&stage.packet("F. 1:1(0) ack 2", remote));
        stage.expect(". 2:2(0) ack 2");
        while stage.engine.poll_event().is_some() {}
    }
    assert_eq!(stage.engine.counters().cookies_sent, 0);
    assert_eq!(stage.engine.counters().time_wait_cut, 17);
    stage.engine.assert_invariants();
}

/// Connections in use stay, and the next remote gets no answer.
#[test]
fn established_connections_make_no_room() {
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.connections_max = 3;
    });
    for host in 10..14 {
        let remote = [10, 0, 0, host];
        stage.raw(&stage.packet("S 0:0(0) win 65535 <mss 1000>", remote));
        stage.expect("S. 0:0(0) ack 1");
        stage.raw(&stage.packet(". 1:1(0) ack 1", remote));
        assert_eq!(stage.engine.accept(stage.listener).is_some(), host < 13);
    }
    assert_eq!(stage.engine.connection_count(), 3);
}

/// RFC 9293 section 3.6.1 is about data that no program will read. Data that was read arrives again
/// with the FIN when its acknowledgement was lost. That is no reason to reset: our own last data is
/// still in flight.
#[test]
fn data_that_was_read_and_comes_again_with_a_fin_resets_nothing() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.remote("P. 1:101(100) ack 1");
    stage.expect(". 1:1(0) ack 101");
    stage.engine.take(id, 100).unwrap();
    stage.engine.publish(id, 50).unwrap();
    stage.engine.release(stage.now, id).unwrap();
    stage.expect("FP. 1:51(50) ack 101");
    stage.remote("FP. 1:101(100) ack 1");
    stage.expect(". 52:52(0) ack 102");
    stage.remote(". 102:102(0) ack 52");
    assert_eq!(stage.engine.connection_count(), 1, "it is in TIME-WAIT");
}

/// The host is told once that a connection has ended: in TIME-WAIT, and not again when TIME-WAIT is
/// over.
#[test]
fn the_end_is_reported_once() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.engine.finish(stage.now, id).unwrap();
    stage.expect("F. 1:1(0) ack 1");
    stage.remote("F. 1:1(0) ack 2");
    stage.expect_closed(CloseReason::Finished);
    stage.wait(Duration::from_secs(61));
    assert_eq!(stage.engine.poll_event(), None);
    assert_eq!(stage.engine.connection_count(), 0);
    assert_eq!(stage.engine.info(id).unwrap().state, State::Closed);
    stage.engine.release(stage.now, id).unwrap();
    assert_eq!(stage.engine.info(id), None);
}

/// RFC 6429 section 3: a remote that keeps its window closed may be given up. The engine gives it
/// up once no program waits for it any more. Otherwise a remote that requests much and reads
/// nothing would hold our memory for ever.
#[test]
fn who_takes_nothing_from_a_host_that_has_gone_is_given_up() {
    // Data, data that is in flight when the window closes, and only a FIN.
    for (window, bytes) in [(0, 1_000), (10_000, 1_000), (0, 0)] {
        for (act, is_certain) in [(RELEASES, true), (DEPARTS, true), (MAY_DEPART, false)] {
            let mut stage = plain();
            let id = stage.accepted("", window);
            stage.engine.publish(id, bytes).unwrap();
            stage.forget_sent();
            act(&mut stage, id);
            stage.remote(". 1:1(0) ack 1 win 0");
            let is_open = |stage: &Stage| stage.engine.holds_ring(id);
            for _ in 0..4 {
                stage.wait(Duration::from_secs(30));
                stage.remote(". 1:1(0) ack 1 win 0");
            }
            assert!(is_open(&stage), "it has time");
            // Linux (tcp_probe_timer): until the time between probes is at its upper bound.
            for _ in 0..6 {
                stage.wait(Duration::from_secs(30));
                stage.remote(". 1:1(0) ack 1 win 0");
            }
            assert_eq!(is_open(&stage), !is_certain, "{:?}", (window, bytes));
            for _ in 0..60 {
                stage.wait(Duration::from_secs(30));
                stage.remote(". 1:1(0) ack 1 win 0");
            }
            assert!(!is_open(&stage), "{:?}", (window, bytes));
        }
    }
}

type Act = fn(&mut Stage, ConnectionId);

const RELEASES: Act = |stage, id| stage.engine.release(stage.now, id).unwrap();
/// The host keeps the connection, because of the ring.
const DEPARTS: Act = |stage, id| {
    stage.engine.finish(stage.now, id).unwrap();
    stage.engine.note_departure(id, Departure::Certain);
};
const MAY_DEPART: Act = |stage, id| {
    stage.engine.finish(stage.now, id).unwrap();
    stage.engine.note_departure(id, Departure::Possible);
};

/// Linux (tcp_orphan_retries): a silent remote for which no program waits is given up at the first
/// timeout after as much time as eight retransmissions take with the shortest timeout.
#[test]
fn silent_remote_of_a_host_that_has_gone_is_given_up_early() {
    let finishes: Act = |stage, id| stage.engine.finish(stage.now, id).unwrap();
    for (act, is_early) in [
        (RELEASES, true),
        (DEPARTS, true),
        (MAY_DEPART, false),
        (finishes, false),
    ] {
        // Data in flight, and data that waits for a window.
        for window in [10_000, 0] {
            let mut stage = plain();
            let id = stage.accepted("", window);
            stage.engine.publish(id, 1_000).unwrap();
            stage.forget_sent();
            act(&mut stage, id);
            stage.wait(Duration::from_secs(76));
            assert!(stage.engine.holds_ring(id));
            stage.wait(Duration::from_secs(100));
            let is_open = stage.engine.holds_ring(id);
            assert_eq!(is_open, !is_early, "window {window}");
        }
    }
}

/// RFC 6191 section 2: with timestamps, the timestamp alone identifies a later SYN; its sequence
/// number does not matter.
#[test]
fn time_wait_gives_way_to_a_later_timestamp_and_no_other() {
    let waiting = || {
        let mut stage = Stage::new(|_, _| {});
        stage.remote("S 0:0(0) win 65535 <mss 1000,TS 500 0>");
        stage.expect("S. 0:0(0) ack 1 <TS>");
        stage.remote(". 1:1(0) ack 1 <TS 500>");
        let id = stage.engine.accept(stage.listener).unwrap();
        stage.engine.finish(stage.now, id).unwrap();
        stage.expect("F. 1:1(0) ack 1");
        stage.remote("F. 1:1(0) ack 2 <TS 501>");
        stage.expect(". 2:2(0) ack 2");
        stage
    };
    let mut stage = waiting();
    stage.remote("S 0:0(0) win 65535 <mss 1000,TS 502 0>");
    stage.expect("S. 0:0(0) ack 1");
    assert_eq!(stage.engine.counters().time_wait_reused, 1);
    let mut stage = waiting();
    stage.remote("S 5000:5000(0) win 65535 <mss 1000,TS 499 0>");
    stage.expect(". 2:2(0) ack 2");
    assert_eq!(stage.engine.counters().time_wait_reused, 0);
}

/// RFC 9293 section 3.10.4: an attempt that is aborted leaves nothing behind.
#[test]
fn an_attempt_may_be_called_off() {
    let mut stage = plain();
    let id = stage.connect(Options::default());
    stage.expect("S 0:0(0)");
    stage.engine.finish(stage.now, id).unwrap();
    stage.expect_closed(CloseReason::Aborted);
    stage.wait(Duration::from_secs(10));
    stage.expect_nothing();
    stage.engine.release(stage.now, id).unwrap();
    assert_eq!(stage.engine.connection_count(), 0);
}

/// RFC 9293 section 3.10.7.4: a FIN that arrives again in TIME-WAIT restarts TIME-WAIT.
#[test]
fn a_repeated_fin_prolongs_time_wait() {
    let mut stage = plain();
    let id = stage.accepted("", 10_000);
    stage.engine.finish(stage.now, id).unwrap();
    stage.expect("F. 1:1(0) ack 1");
    for _ in 0..3 {
        stage.remote("F. 1:1(0) ack 2");
        stage.expect(". 2:2(0) ack 2");
        stage.wait(Duration::from_secs(40));
        assert_eq!(stage.engine.info(id).unwrap().state, State::TimeWait);
    }
    stage.wait(Duration::from_secs(20));
    assert_eq!(stage.engine.info(id).unwrap().state, State::Closed);
}

/// RFC 792: codes of "destination unreachable".
const NET_UNREACHABLE: u8 = 0;
const HOST_UNREACHABLE: u8 = 1;

/// RFC 5461 section 4.1 and Linux (tcp_v4_err): a connecting program is told of soft errors at
/// once, too.
#[test]
fn attempt_ends_with_the_first_that_says_there_is_no_way() {
    const PORT_UNREACHABLE: u8 = 3;
    const PROHIBITED: u8 = 13;
    for (code, why) in [
        (NET_UNREACHABLE, CloseReason::NoRoute),
        (HOST_UNREACHABLE, CloseReason::Unreachable),
        (PORT_UNREACHABLE, CloseReason::Refused),
        (PROHIBITED, CloseReason::Unreachable),
    ] {
        let mut stage = plain();
        stage.connect(Options::default());
        stage.expect("S 0:0(0)");
        // RFC 5927 section 4.1: the message quotes a number that is not in flight.
        stage.raw(&stage.unreachable(1, code));
        assert_eq!(stage.engine.poll_event(), None);
        stage.raw(&stage.unreachable(0, code));
        stage.expect_closed(why);
    }
}

//= RFC 9293#3.9.1.8
//= type=test
//# There MUST be a mechanism for reporting soft TCP error conditions to the application
//# (MUST-47).
//= RFC 9293#3.9.2.2
//= type=test
//# Since these Unreachable messages indicate soft error conditions, a TCP implementation MUST
//# NOT abort the connection (MUST-56)
/// RFC 1122 section 4.2.3.9: a soft error alone ends nothing. RFC 5461 section 2 and Linux
/// (tcp_write_err): the soft error becomes the reason when the remote is given up, unless the
/// remote has answered in between.
#[test]
fn soft_error_is_the_reason_when_silence_ends_the_connection() {
    for (reported, is_heard, why) in [
        (None, false, CloseReason::TimedOut),
        (Some(NET_UNREACHABLE), false, CloseReason::NoRoute),
        (Some(HOST_UNREACHABLE), false, CloseReason::Unreachable),
        (Some(HOST_UNREACHABLE), true, CloseReason::TimedOut),
    ] {
        let mut stage = plain();
        let id = stage.accepted(",sackOK", 60_000);
        stage.engine.publish(id, 2_000).unwrap();
        stage.forget_sent();
        if let Some(code) = reported {
            stage.raw(&stage.unreachable(1, code));
        }
        if is_heard {
            stage.remote(". 1:1(0) ack 1001 win 60000");
        }
        stage.wait(Duration::from_secs(60));
        assert_eq!(stage.engine.info(id).unwrap().state, State::Established);
        stage.wait(Duration::from_secs(40 * 121));
        stage.expect_closed(why);
    }
}

/// RFC 9293 section 3.6.1: the successor of a connection in TIME-WAIT "assigns its initial sequence
/// number for the new connection to be larger than the largest sequence number it used on the
/// previous connection". A cookie could not promise that.
#[test]
fn successor_of_time_wait_has_higher_numbers_in_a_flood() {
    for port in 5_000..5_020 {
        let mut stage = Stage::new(|config, _| {
            config.timestamps = false;
            config.half_open_max = 1;
        });
        stage.come_from(port);
        let id = stage.accepted("", 10_000);
        stage.engine.finish(stage.now, id).unwrap();
        let fin = stage.next_sent();
        stage.remote("F. 1:1(0) ack 2");
        stage.expect(". 2:2(0) ack 2");
        stage.come_from(7_000);
        stage.remote("S 0:0(0) win 65535 <mss 1000>");
        stage.forget_sent();
        stage.come_from(port);
        stage.remote("S 100:100(0) win 65535 <mss 1000>");
        let seq = |packet: &[u8]| u32::from_be_bytes(packet[24..28].try_into().unwrap());
        let ahead = seq(&stage.next_sent()).wrapping_sub(seq(&fin));
        assert!((1..1 << 31).contains(&ahead), "{ahead}");
        assert_eq!(stage.engine.counters().cookies_sent, 0);
    }
}
