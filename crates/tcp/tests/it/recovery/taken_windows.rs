//! Windows that a remote takes back while data is in flight (RFC 9293 section 3.8.6).

use crate::script::{Stage, plain};
use toehold_tcp::{CloseReason, Duration, State};

//= RFC 9293#3.8.6
//= type=test
//# However, a sending TCP peer MUST be robust against window shrinking, which may cause the
//# "usable window" (see Section 3.8.6.2.1) to become negative (MUST-34).
//= RFC 9293#3.8.6
//= type=test
//# If the window shrinks to zero, the TCP implementation MUST probe it in the standard way
//# (described below) (MUST-35).
//= RFC 9293#3.8.6
//= type=test
//# The sender MAY also retransmit old data beyond SND.UNA+SND.WND (MAY-7), but SHOULD NOT
//# time out the connection if data beyond the right window edge is not acknowledged
//# (SHLD-17).
//= RFC 7323#2.4
//= type=test
//# Implementations MUST ensure that they handle a shrinking window, as specified in Section
//# 4.2.2.16 of [RFC1122].
/// RFC 9293 section 3.8.6: a remote may take its window back. As long as the remote answers, the
/// connection lives, with or without data in flight.
#[test]
fn a_window_that_was_taken_back_may_stay_closed_for_ever() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 3_000).unwrap();
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 1 win 0");
    for _ in 0..40 {
        stage.wait(Duration::from_secs(121));
        stage.forget_sent();
        stage.remote(". 1:1(0) ack 1 win 0");
    }
    assert_eq!(stage.engine.info(id).unwrap().state, State::Established);
    stage.remote(". 1:1(0) ack 1 win 60000");
    stage.wait(Duration::from_secs(121));
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 3001 win 60000");
    assert_eq!(stage.engine.info(id).unwrap().acknowledged, 3_000);
}

/// Data is an answer, too: a remote that goes on sending is alive, even if it never acknowledges
/// the segments that are sent again into its closed window.
#[test]
fn a_remote_that_sends_while_its_window_is_closed_is_not_given_up() {
    for stamps in ["", ",TS"] {
        let mut stage = Stage::new(|_, _| ());
        let id = stage.accepted(&format!(",sackOK{stamps}"), 60_000);
        let stamps = stamps.trim_start_matches(',');
        stage.engine.publish(id, 3_000).unwrap();
        stage.remote(&format!(". 1:1(0) ack 1 win 0 <{stamps}>"));
        for number in 0..40 {
            stage.wait(Duration::from_secs(121));
            stage.forget_sent();
            let (start, end) = (1 + 100 * number, 101 + 100 * number);
            stage.remote(&format!(". {start}:{end}(100) ack 1 win 0 <{stamps}>"));
        }
        assert_eq!(stage.engine.info(id).unwrap().state, State::Established);
        assert_eq!(stage.engine.info(id).unwrap().received, 4_000);
    }
}

/// A remote whose window has closed accepts no segment beyond the window's edge. It would ignore an
/// acknowledgement with the number SND.NXT. If its own data waited for that acknowledgement, it
/// would never read again, and neither end would go on.
#[test]
fn an_acknowledgement_stands_within_a_window_that_was_taken_back() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 3_000).unwrap();
    stage.forget_sent();
    stage.remote(". 1:1001(1000) ack 1 win 0");
    stage.expect(". 1:1(0) ack 1001");
    // The remote never receives that, and sends once more.
    stage.remote(". 1:1001(1000) ack 1 win 0");
    stage.expect(". 1:1(0) ack 1001 <sack 1:1001>");
    // A part of the bytes in flight still fits.
    stage.remote(". 1001:2001(1000) ack 1 win 1500");
    stage.expect(". 1501:1501(0) ack 2001");
    stage.remote(". 2001:3001(1000) ack 3001 win 1500");
    stage.expect(". 3001:3001(0) ack 3001");
}

/// Beyond a window that was taken back, only the first lost segment is sent again: it serves as a
/// probe. The remote accepts none of the others, and ignores their acknowledgements.
#[test]
fn nothing_but_a_probe_is_sent_again_beyond_a_window_that_was_taken_back() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 10_000).unwrap();
    stage.forget_sent();
    stage.wait(Duration::from_millis(100));
    stage.remote(". 1:1(0) ack 1 win 0 <sack 7001:8001>");
    stage.wait(Duration::from_millis(30));
    stage.expect(". 1:1001(1000) ack 1");
    for lost in 3..6 {
        let (start, end) = (1_000 * lost + 1, 1_000 * lost + 1_001);
        stage.remote(&format!(
            ". 1:1(0) ack 1 win 0 <sack {start}:{end}:7001:8001>"
        ));
        stage.expect_nothing();
    }
    stage.remote(". 1:1001(1000) ack 1 win 0 <sack 3001:6001:7001:8001>");
    stage.expect(". 1:1(0) ack 1001");
    // A part of the lost bytes fits into the window.
    stage.remote(". 1001:1001(0) ack 1 win 1500 <sack 3001:6001:7001:8001>");
    stage.expect(". 1001:1501(500) ack 1001");
    stage.expect_nothing();
    stage.remote(". 1001:1001(0) ack 1501 win 60000 <sack 3001:6001:7001:8001>");
    stage.expect(". 1501:2501(1000) ack 1001");
    stage.expect(". 2501:3001(500) ack 1001");
}

/// The tail loss probe waits, too, when its window was taken back.
#[test]
fn a_tail_is_not_probed_beyond_a_window_that_was_taken_back() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 3_000).unwrap();
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 1 win 0");
    while stage.engine.counters().timeouts == 0 {
        stage.expect_nothing();
        stage.wait(Duration::from_millis(1));
    }
    stage.expect(". 1:1001(1000) ack 1");
    stage.expect_nothing();
}

/// A FIN in flight reaches one beyond the edge of a window that has closed. That is less than the
/// rounding of the scale, but a window of zero is not rounded.
#[test]
fn an_acknowledgement_stands_before_a_fin_that_has_no_room_any_more() {
    let mut stage = Stage::new(|config, _| config.timestamps = false);
    let id = stage.accepted(",sackOK,ws 7", 600);
    stage.engine.finish(stage.now, id).unwrap();
    stage.wait(Duration::ZERO);
    stage.forget_sent();
    stage.remote(". 1:1001(1000) ack 1 win 0");
    stage.expect(". 1:1(0) ack 1001");
    stage.remote(". 1:1001(1000) ack 1 win 0");
    stage.expect(". 1:1(0) ack 1001 <sack 1:1001>");
    // The window has room, but less than the scale can express.
    stage.remote(". 1001:2001(1000) ack 2 win 0");
    stage.expect(". 2:2(0) ack 2001");
}

/// Without answers the connection ends.
#[test]
fn a_window_that_was_taken_back_in_silence_ends_the_connection() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 3_000).unwrap();
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 1 win 0");
    stage.wait(Duration::from_secs(40 * 121));
    stage.expect_closed(CloseReason::TimedOut);
}
