//! How losses are noticed, told and repaired: scripts of segments.

#[allow(dead_code, reason = "each of the tests uses some of it")]
mod script;
#[allow(dead_code, reason = "each of the tests uses some of it")]
mod support;

use script::{Stage, plain};
use toehold_tcp::{CloseReason, ConnectionId, Duration, EcnMode, Phase, State};

/// RFC 5681 section 3.2 counts duplicates without payload, and RFC 2018 section 4 wants each of
/// them to carry blocks: data of our own does not go before what the remote has to know.
#[test]
fn a_gap_is_told_before_data_goes_the_other_way() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.remote(". 1:1001(1000) ack 1");
    stage.expect(". 1:1(0) ack 1001");
    stage.engine.publish(id, 5_000).unwrap();
    stage.remote(". 2001:3001(1000) ack 1");
    stage.expect(". 1:1(0) ack 1001 <sack 2001:3001>");
    stage.expect(". 1:1001(1000) ack 1001");
    stage.forget_sent();
    stage.engine.publish(id, 7_000).unwrap();
    stage.remote(". 3001:4001(1000) ack 1");
    stage.expect(". 5001:5001(0) ack 1001 <sack 2001:4001>");
    stage.expect(". 5001:6001(1000) ack 1001");
    stage.forget_sent();
    stage.engine.publish(id, 8_000).unwrap();
    stage.remote(". 1001:2001(1000) ack 1");
    stage.expect("P. 7001:8001(1000) ack 4001");
    stage.expect_nothing();
}

/// RFC 2883: nor before the report of a duplicate.
#[test]
fn a_duplicate_is_told_before_data_goes_the_other_way() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.remote(". 1:1001(1000) ack 1");
    stage.expect(". 1:1(0) ack 1001");
    stage.engine.publish(id, 1_000).unwrap();
    stage.remote(". 1:1001(1000) ack 1");
    stage.expect(". 1:1(0) ack 1001 <sack 1:1001>");
    stage.expect("P. 1:1001(1000) ack 1001");
    stage.expect_nothing();
}

/// Three segments after one whose round trip took 100 ms; the tail loss probe that follows has been
/// sent.
fn after_a_tail_probe() -> (Stage, ConnectionId) {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect("P. 1:1001(1000) ack 1");
    stage.wait(Duration::from_millis(100));
    stage.remote(". 1:1(0) ack 1001 win 60000");
    stage.engine.publish(id, 4_000).unwrap();
    stage.forget_sent();
    let round_trip = stage.engine.info(id).unwrap().round_trip.unwrap();
    stage.wait(round_trip * 2);
    stage.expect("P. 3001:4001(1000) ack 1");
    stage.expect_nothing();
    (stage, id)
}

/// RFC 8985 section 7.4.2: the acknowledgement of everything may be for the originals, which were
/// late. The probe's own answer tells.
#[test]
fn a_probe_that_was_not_needed_costs_nothing() {
    for answer in [
        ". 1:1(0) ack 4001 win 60000 <sack 3001:4001>",
        ". 1:1(0) ack 4001 win 60000",
    ] {
        let (mut stage, id) = after_a_tail_probe();
        let before = stage.engine.info(id).unwrap().congestion_window;
        stage.remote(". 1:1(0) ack 4001 win 60000");
        stage.remote(answer);
        stage.engine.publish(id, 5_000).unwrap();
        stage.expect("P. 4001:5001(1000) ack 1");
        stage.remote(". 1:1(0) ack 5001 win 60000");
        assert!(stage.engine.info(id).unwrap().congestion_window >= before);
        assert_eq!(stage.engine.counters().recoveries, 0);
    }
}

//= RFC 8985#7.4.2
//= type=test
//# If the TLP sender does not receive such an indication, then it MUST assume that the
//# original data segment, the TLP retransmission, or a corresponding ACK was lost for
//# congestion control purposes.
//= RFC 8985#7.4.2
//= type=test
//# The sender then SHOULD invoke a congestion control response equivalent to a fast recovery.
/// RFC 8985 section 7.4.2: when more is acknowledged and nothing was reported twice, the original
/// was lost and the probe repaired it.
#[test]
fn a_probe_that_repaired_a_loss_costs_one_reduction() {
    let (mut stage, id) = after_a_tail_probe();
    let before = stage.engine.info(id).unwrap().congestion_window;
    stage.remote(". 1:1(0) ack 4001 win 60000");
    stage.engine.publish(id, 5_000).unwrap();
    stage.expect("P. 4001:5001(1000) ack 1");
    stage.remote(". 1:1(0) ack 5001 win 60000");
    assert!(stage.engine.info(id).unwrap().congestion_window < before);
    assert_eq!(stage.engine.counters().recoveries, 1);
    assert_eq!(stage.engine.info(id).unwrap().phase, Phase::Open);
}

/// RFC 8985 section 6.2 step 2: the echo of a time before the retransmission tells that it was the
/// original that arrived. The retransmission's time must not have everything that was sent before
/// it look lost.
#[test]
fn an_original_that_was_late_is_not_taken_for_its_retransmission() {
    let mut stage = Stage::new(|config, options| {
        config.window_scaling = false;
        config.tail_probes = false;
        options.nodelay = true;
    });
    stage.remote("S 0:0(0) win 65535 <mss 1012,sackOK,TS>");
    stage.expect("S. 0:0(0) ack 1 <TS>");
    stage.wait(Duration::from_millis(20));
    stage.remote(". 1:1(0) ack 1 win 60000 <TS>");
    let id = stage.engine.accept(stage.listener).unwrap();
    stage.engine.publish(id, 5_000).unwrap();
    let originals = u64::from(stage.engine_clock) + 20;
    stage.forget_sent();
    stage.wait(stage.engine.info(id).unwrap().timeout);
    stage.expect(". 1:1001(1000) ack 1");
    stage.expect_nothing();
    // More than the shortest round trip later: by that alone it might be the retransmission.
    stage.wait(Duration::from_millis(50));
    for ack in [1_001, 2_001, 3_001, 4_001] {
        stage.remote(&format!(
            ". 1:1(0) ack {ack} win 60000 <TS {}:{originals}>",
            stage.remote_clock
        ));
        stage.expect_nothing();
    }
    assert_eq!(stage.engine.counters().retransmissions, 1);
}

/// RFC 3168 section 6.1.2: CWR goes with "the first new data packet" after a reduction "for any
/// reason", a timeout too; and marks of the same window ask for no second one.
#[test]
fn a_timeout_is_a_reduction_that_is_told() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        config.window_scaling = false;
        config.tail_probes = false;
        options.ecn = EcnMode::Classic;
    });
    stage.remote("SEW 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S.E 0:0(0) ack 1");
    stage.remote(". 1:1(0) ack 1");
    let id = stage.engine.accept(stage.listener).unwrap();
    stage.engine.publish(id, 2_000).unwrap();
    stage.forget_sent();
    stage.wait(stage.engine.info(id).unwrap().timeout);
    stage.expect(". 1:1001(1000) ack 1");
    stage.expect_nothing();
    stage.engine.publish(id, 3_000).unwrap();
    stage.remote(".E 1:1(0) ack 2001");
    stage.expect("P.W 2001:3001(1000) ack 1");
    assert_eq!(stage.engine.counters().recoveries, 0);
}

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
/// RFC 9293 section 3.8.6: a remote may take its window back; as long as it answers, the connection
/// lives, data in flight or not.
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

/// And without answers it does not.
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

//= RFC 2018#5
//= type=test
//# The data sender MUST retransmit the segment at the left edge of the window after a
//# retransmit timeout, whether or not the SACKed bit is on for that segment.
//= RFC 2018#8
//= type=test
//# Since the data receiver may later discard data reported in a SACK option, the sender MUST
//# NOT discard data before it is acknowledged by the Acknowledgment Number field in the TCP
//# header.
/// RFC 2018 section 8: a remote may drop what it has reported; after a timeout it is sent again,
/// and so is what follows.
#[test]
fn what_was_reported_and_dropped_is_sent_again() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 5_000).unwrap();
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 1001:5001>");
    stage.expect(". 1:1001(1000) ack 1");
    stage.remote(". 1:1(0) ack 1001 win 60000");
    stage.expect_nothing();
    stage.wait(stage.engine.info(id).unwrap().timeout);
    stage.expect(". 1001:2001(1000) ack 1");
    stage.remote(". 1:1(0) ack 2001 win 60000");
    stage.expect(". 2001:3001(1000) ack 1");
    stage.expect(". 3001:4001(1000) ack 1");
    stage.remote(". 1:1(0) ack 4001 win 60000");
    stage.expect("P. 4001:5001(1000) ack 1");
    stage.remote(". 1:1(0) ack 5001 win 60000");
    assert_eq!(stage.engine.info(id).unwrap().acknowledged, 5_000);
}
