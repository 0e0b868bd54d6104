//! Detection, feedback and repair of losses: scripts of segments.

use crate::script::{Stage, plain};
use toehold_tcp::{ConnectionId, Duration, EcnMode, Options, Phase};

mod spurious_timeouts;
mod taken_windows;

const MILLISECOND: Duration = Duration::from_millis(1);

/// RFC 5681 section 3.2 counts duplicates without payload, and RFC 2018 section 4 wants each
/// duplicate to carry blocks: the engine sends such an acknowledgement before data of its own.
#[test]
fn a_gap_is_acknowledged_before_data_goes_the_other_way() {
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

/// RFC 2883: the engine sends the report of a duplicate before data of its own, too.
#[test]
fn a_duplicate_is_acknowledged_before_data_goes_the_other_way() {
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

/// Sends three segments after one whose round trip took 100 ms. The tail loss probe that follows
/// has been sent.
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

/// RFC 8985 section 7.4.2: the acknowledgement of all segments may be for the originals, which were
/// late. The answer to the probe itself shows that.
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
/// RFC 8985 section 7.4.2: when more is acknowledged and no duplicate was reported, the original
/// was lost and the probe repaired the loss.
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

/// A connection with timestamps and without tail probes, whose path has this round trip.
fn with_timestamps(round_trip: Duration) -> (Stage, ConnectionId) {
    let mut stage = Stage::new(|config, options| {
        config.window_scaling = false;
        config.tail_probes = false;
        options.nodelay = true;
    });
    stage.remote("S 0:0(0) win 65535 <mss 1012,sackOK,TS>");
    stage.expect("S. 0:0(0) ack 1 <TS>");
    stage.wait(round_trip);
    stage.remote(". 1:1(0) ack 1 win 60000 <TS>");
    let id = stage.engine.accept(stage.listener).unwrap();
    (stage, id)
}

/// RFC 8985 section 6.2 step 2: the echo of a time before the retransmission shows that the
/// original arrived. The time of the retransmission must not make all earlier segments look lost.
#[test]
fn an_original_that_was_late_is_not_taken_for_its_retransmission() {
    let (mut stage, id) = with_timestamps(Duration::from_millis(20));
    stage.engine.publish(id, 5_000).unwrap();
    let originals = u64::from(stage.engine_clock) + 20;
    stage.forget_sent();
    stage.wait(stage.engine.info(id).unwrap().timeout);
    stage.expect(". 1:1001(1000) ack 1");
    stage.expect_nothing();
    // This is later than the shortest round trip: by the time alone, the answer might be to the
    // retransmission.
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

/// Ten segments were sent. The last three have arrived, and the first was sent again: returns the
/// timestamp of that.
fn in_a_recovery() -> (Stage, ConnectionId, u32) {
    let (mut stage, id) = with_timestamps(Duration::from_millis(100));
    stage.engine.publish(id, 10_000).unwrap();
    for from in (1..10_000).step_by(1_000) {
        let flags = if from == 9_001 { "P." } else { "." };
        stage.expect(&format!("{flags} {from}:{}(1000) ack 1 <TS>", from + 1_000));
    }
    stage.wait(Duration::from_millis(100));
    stage.remote(". 1:1(0) ack 1 win 60000 <TS,sack 7001:10001>");
    stage.expect(". 1:1001(1000) ack 1 <TS>");
    let again = stage.engine_clock;
    stage.forget_sent();
    assert_eq!(stage.engine.info(id).unwrap().phase, Phase::Recovery);
    (stage, id, again)
}

/// RFC 3522 section 3.2, step 2: the time of the first retransmission stays as loss recovery
/// progresses. The retransmission of a timeout is a later one. An acknowledgement of the first
/// shows that the timeout was too early, and not that nothing was lost.
#[test]
fn a_loss_before_a_spurious_timeout_is_not_forgotten() {
    let (mut stage, id, again) = in_a_recovery();
    stage.wait(stage.engine.info(id).unwrap().timeout);
    assert_eq!(stage.engine.counters().timeouts, 1);
    let clock = stage.remote_clock;
    stage.remote(&format!(
        ". 1:1(0) ack 1001 win 60000 <TS {clock}:{again},sack 7001:10001>"
    ));
    assert_eq!(stage.engine.counters().recoveries_undone, 0);
    assert!(stage.engine.info(id).unwrap().slow_start_threshold < 10_000);
}

/// RFC 5681 section 4.3: the loss of a retransmission is a second indication of congestion. Each
/// lowers the window by CUBIC's factor. During the recovery PRR keeps the window smaller than that,
/// at first as small as the data that has arrived.
#[test]
fn a_timeout_in_a_recovery_is_a_second_reduction_and_no_more() {
    let (mut stage, id, _) = in_a_recovery();
    let info = stage.engine.info(id).unwrap();
    assert_eq!(info.slow_start_threshold, 7_000);
    assert!(info.congestion_window < 7_000);
    stage.wait(info.timeout);
    assert_eq!(stage.engine.counters().timeouts, 1);
    let after = stage.engine.info(id).unwrap().slow_start_threshold;
    assert_eq!(after, 4_900);
}

/// RFC 3168 section 6.1.2: CWR goes with "the first new data packet" after a reduction "for any
/// reason", including a timeout. Marks of the same window cause no second reduction.
#[test]
fn a_timeout_is_a_reduction_that_is_announced() {
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

//= RFC 2018#5
//= type=test
//# The data sender MUST retransmit the segment at the left edge of the window after a
//# retransmit timeout, whether or not the SACKed bit is on for that segment.
//= RFC 2018#8
//= type=test
//# Since the data receiver may later discard data reported in a SACK option, the sender MUST
//# NOT discard data before it is acknowledged by the Acknowledgment Number field in the TCP
//# header.
/// RFC 2018 section 8: a remote may drop data that it has reported. After a timeout that data is
/// sent again, and so is the data after it.
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

//= RFC 8985#9.3
//= type=test
//# A segment marked as lost by RACK-TLP MUST NOT be retransmitted until congestion control
//# deems this appropriate.
//= RFC 8985#9.2
//= type=test
//# Therefore, the algorithm [RFC6675] MUST NOT be used with RACK-TLP; instead, a modified
//# recovery algorithm that carefully addresses such a case is needed.
/// RFC 8985 section 6.2 and RFC 6937: a loss is repaired within a round trip.
#[test]
fn a_hole_is_retransmitted_when_rack_is_sure() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 5_000).unwrap();
    for segment in 0..5 {
        let (from, to) = (segment * 1_000 + 1, segment * 1_000 + 1_001);
        let flags = if segment == 4 { "P." } else { "." };
        stage.expect(&format!("{flags} {from}:{to}(1000) ack 1"));
    }
    stage.wait(Duration::from_millis(100));
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 1001:2001>");
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 1001:3001>");
    stage.expect_nothing();
    // The third segment beyond the hole arrives: reordering was never seen, so the missing segment
    // is lost.
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 1001:4001>");
    stage.expect(". 1:1001(1000) ack 1");
    stage.remote(". 1:1(0) ack 5001 win 60000");
    stage.expect_nothing();
    assert_eq!(stage.engine.counters().recoveries, 1);
}

//= RFC 8985#7.3
//= type=test
//# When the PTO timer expires, the sender MUST check whether both of the following conditions
//# are met before sending a loss probe:
//= RFC 8985#7.3
//= type=test
//# If such an unsent segment is not available, then the sender SHOULD retransmit the
//# highest-sequence segment sent so far and set TLP.is_retrans to true.
/// RFC 8985 section 7: two round trips after the last segment was sent, it is sent again.
#[test]
fn a_lost_tail_is_probed() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect("P. 1:1001(1000) ack 1");
    stage.wait(Duration::from_millis(100));
    stage.remote(". 1:1(0) ack 1001 win 60000");
    stage.engine.publish(id, 4_000).unwrap();
    stage.expect(". 1001:2001(1000) ack 1");
    stage.expect(". 2001:3001(1000) ack 1");
    stage.expect("P. 3001:4001(1000) ack 1");
    stage.wait(Duration::from_millis(60));
    stage.remote(". 1:1(0) ack 2001 win 60000");
    let round_trip = stage.engine.info(id).unwrap().round_trip.unwrap();
    stage.wait(round_trip * 2 - MILLISECOND);
    stage.expect_nothing();
    stage.wait(MILLISECOND + MILLISECOND);
    stage.expect("P. 3001:4001(1000) ack 1");
    assert_eq!(stage.engine.counters().tail_probes, 1);
}

/// RFC 6582 section 3.2: recovery without SACK, by three duplicates and partial acknowledgements.
#[test]
fn new_reno_repairs_without_sack() {
    let mut stage = plain();
    let id = stage.accepted("", 60_000);
    stage.engine.publish(id, 8_000).unwrap();
    for segment in 0..8 {
        let (from, to) = (segment * 1_000 + 1, segment * 1_000 + 1_001);
        let flags = if segment == 7 { "P." } else { "." };
        stage.expect(&format!("{flags} {from}:{to}(1000) ack 1"));
    }
    stage.remote(". 1:1(0) ack 1 win 60000");
    stage.remote(". 1:1(0) ack 1 win 60000");
    stage.expect_nothing();
    stage.remote(". 1:1(0) ack 1 win 60000");
    stage.expect(". 1:1001(1000) ack 1");
    stage.remote(". 1:1(0) ack 3001 win 60000");
    stage.expect(". 3001:4001(1000) ack 1");
    stage.remote(". 1:1(0) ack 8001 win 60000");
    stage.expect_nothing();
}

//= RFC 8985#7.2
//= type=test
//# The sender SHOULD start or restart a loss probe PTO timer after transmitting new data
//# (that was not itself a loss probe) or upon receiving an ACK that cumulatively acknowledges
//# new data unless it is already in fast recovery, RTO recovery, or segments have been SACKed
//# (i.e., RACK.segs_sacked is not zero).
/// RFC 8985 section 7.2: new data postpones the tail loss probe.
#[test]
fn new_data_restarts_the_probe_timer() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 10_000);
    for end in [1_000, 2_000, 3_000] {
        stage.engine.publish(id, end).unwrap();
        stage.forget_sent();
        // Two round trips, and the time by which the remote may delay its acknowledgement of one
        // segment.
        stage.wait(Duration::from_millis(190));
        stage.expect_nothing();
    }
    stage.wait(Duration::from_millis(20));
    stage.expect("P. 2001:3001(1000) ack 1");
}

//= RFC 9438#4.6
//= type=test
//# Implementations that use _cwnd_ MUST use other measures to prevent _cwnd_ from growing
//# when the volume of bytes in flight is smaller than _cwnd_.
/// RFC 7661's concern: a window that was never filled grows to at most twice the bytes in flight.
#[test]
fn slow_start_ends_at_twice_the_flight() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 9_000).unwrap();
    stage.forget_sent();
    for ack in [2_001, 4_001, 6_001, 8_001, 9_001] {
        stage.remote(&format!(". 1:1(0) ack {ack} win 60000"));
    }
    assert_eq!(stage.engine.info(id).unwrap().congestion_window, 18_000);
}

/// RFC 5681 section 3.1: the acknowledgement that ends the recovery from a timeout counts like any
/// other.
#[test]
fn slow_start_goes_on_with_the_acknowledgement_that_ends_it() {
    let mut stage = plain();
    let id = stage.accepted("", 60_000);
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect("P. 1:1001(1000) ack 1");
    stage.wait(Duration::from_secs(1));
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 1001 win 60000");
    assert_eq!(stage.engine.info(id).unwrap().congestion_window, 2_000);
}

/// RFC 6937: when only a timer declares all segments lost, one segment is sent at first.
#[test]
fn a_recovery_that_a_timer_begins_sends_one_segment() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 10_000).unwrap();
    stage.forget_sent();
    stage.wait(Duration::from_millis(100));
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 7001:8001>");
    stage.expect_nothing();
    stage.wait(Duration::from_millis(30));
    stage.expect(". 1:1001(1000) ack 1");
    stage.expect_nothing();
    // Each arrival releases an equal number of bytes: PRR counts the duplicate once, by its block.
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 3001:4001:7001:8001>");
    stage.expect(". 1001:2001(1000) ack 1");
    stage.expect_nothing();
    // An acknowledgement that was overtaken still brings its blocks.
    stage.remote(". 1:1(0) ack 1001 win 60000 <sack 3001:4001:7001:8001>");
    stage.forget_sent();
    let before = stage.engine.info(id).unwrap().sacked;
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 4001:5001:7001:8001>");
    assert_eq!(stage.engine.info(id).unwrap().sacked, before + 1_000);
}

/// A connection with a single round trip so far, which took this long.
fn at_distance(round_trip: Duration, syn_options: &str) -> (Stage, ConnectionId) {
    let mut stage = plain();
    stage.remote(&format!("S 0:0(0) win 65535 <mss 1000{syn_options}>"));
    stage.expect("S. 0:0(0) ack 1");
    stage.wait(round_trip);
    stage.remote(". 1:1(0) ack 1 win 60000");
    let id = stage.engine.accept(stage.listener).unwrap();
    (stage, id)
}

#[test]
fn reordering_is_waited_for_no_longer_than_a_round_trip() {
    let (mut stage, id) = at_distance(Duration::from_millis(100), ",sackOK");
    // Each report of a duplicate widens the reordering window by a quarter of the round trip.
    let mut sent = 0;
    for _ in 0..20 {
        stage.engine.publish(id, sent + 1_000).unwrap();
        stage.forget_sent();
        stage.wait(Duration::from_millis(100));
        let (from, to) = (sent + 1, sent + 1_001);
        stage.remote(&format!(". 1:1(0) ack {to} win 60000 <sack {from}:{to}>"));
        sent += 1_000;
    }
    stage.engine.publish(id, sent + 2_000).unwrap();
    stage.forget_sent();
    stage.wait(Duration::from_millis(100));
    let (lost, next, end) = (sent + 1, sent + 1_001, sent + 2_001);
    stage.remote(&format!(
        ". 1:1(0) ack {lost} win 60000 <sack {next}:{end}>"
    ));
    //= RFC 8985#3.3.2
    //= type=test
    //# The RACK reordering window MUST be bounded, and this bound SHOULD be SRTT.
    stage.wait(Duration::from_millis(99));
    stage.expect_nothing();
    stage.wait(MILLISECOND + MILLISECOND);
    stage.expect(&format!(". {lost}:{next}(1000) ack 1"));
    let counters = stage.engine.counters();
    assert_eq!((counters.timeouts, counters.tail_probes), (0, 0));
}

/// RFC 8985 section 6.2 step 4: sixteen recoveries without a report of a duplicate end the wider
/// reordering window. Recoveries after a timeout count, too.
#[test]
fn a_wider_reordering_window_ends_with_recoveries_after_timeouts() {
    let (mut stage, id) = at_distance(Duration::from_millis(100), ",sackOK");
    let mut sent = 0;
    for _ in 0..4 {
        stage.engine.publish(id, sent + 1_000).unwrap();
        stage.forget_sent();
        stage.wait(Duration::from_millis(100));
        let (from, to) = (sent + 1, sent + 1_001);
        stage.remote(&format!(". 1:1(0) ack {to} win 60000 <sack {from}:{to}>"));
        sent += 1_000;
    }
    for _ in 0..16 {
        let before = stage.engine.counters().timeouts;
        stage.engine.publish(id, sent + 1_000).unwrap();
        while stage.engine.counters().timeouts == before {
            stage.wait(MILLISECOND);
        }
        sent += 1_000;
        stage.remote(&format!(". 1:1(0) ack {} win 60000", sent + 1));
    }
    // A round trip that is measured ends the longer timeouts.
    for segments in [1, 2] {
        stage.wait(Duration::from_secs(1));
        stage.forget_sent();
        stage.engine.publish(id, sent + segments * 1_000).unwrap();
        stage.forget_sent();
        stage.wait(Duration::from_millis(100));
        if segments == 1 {
            sent += 1_000;
            stage.remote(&format!(". 1:1(0) ack {} win 60000", sent + 1));
        }
    }
    let (lost, next, end) = (sent + 1, sent + 1_001, sent + 2_001);
    let blocks = format!("<sack {next}:{end}>");
    stage.remote(&format!(". 1:1(0) ack {lost} win 60000 {blocks}"));
    stage.wait(Duration::from_millis(24));
    stage.expect_nothing();
    stage.wait(MILLISECOND + MILLISECOND);
    stage.expect(&format!(". {lost}:{next}(1000) ack 1"));
}

//= RFC 8985#4
//= type=test
//# The connection MUST use selective acknowledgment (SACK) options [RFC2018], and the sender MUST
//# keep SACK scoreboard information on a per-connection basis ("SACK scoreboard" has the same
//# meaning here as in [RFC6675], Section 3).
#[test]
fn probes_and_the_order_of_time_are_for_connections_with_blocks() {
    for (options, probes) in [("", 0), (",sackOK", 1)] {
        let (mut stage, id) = at_distance(Duration::from_millis(100), options);
        stage.engine.publish(id, 4_000).unwrap();
        stage.forget_sent();
        stage.wait(stage.engine.info(id).unwrap().timeout - MILLISECOND);
        let counters = stage.engine.counters();
        assert_eq!(
            (counters.tail_probes, counters.timeouts),
            (probes, 0),
            "{options}"
        );
    }
    // Two connections with the same remote: each has a scoreboard of its own.
    let (mut stage, first) = at_distance(Duration::from_millis(100), ",sackOK");
    stage.engine.publish(first, 3_000).unwrap();
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 1001:2001>");
    stage.forget_sent();
    stage.come_from(4_322);
    stage.remote("S 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S. 0:0(0) ack 1");
    stage.remote(". 1:1(0) ack 1 win 60000");
    let second = stage.engine.accept(stage.listener).unwrap();
    stage.engine.publish(second, 4_000).unwrap();
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 1001:3001>");
    let sacked = [first, second].map(|id| stage.engine.info(id).unwrap().sacked);
    assert_eq!(sacked, [1_000, 2_000]);
}

#[test]
fn segments_of_a_short_path_are_distinguished_by_their_times() {
    let micros = Duration::from_micros;
    let (mut stage, id) = at_distance(micros(400), ",sackOK");
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect("P. 1:1001(1000) ack 1");
    stage.wait(micros(50));
    stage.engine.publish(id, 2_000).unwrap();
    stage.expect("P. 1001:2001(1000) ack 1");
    stage.wait(micros(10));
    stage.engine.publish(id, 3_000).unwrap();
    stage.expect("P. 2001:3001(1000) ack 1");
    stage.wait(micros(390));
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 1001:2001>");
    //= RFC 8985#4
    //= type=test
    //# For each data segment sent, the sender MUST store its most recent transmission time with a
    //# timestamp whose granularity is finer than 1/4 of the minimum RTT of the connection.
    // The first segment is lost a round trip and a quarter after it was sent: 500 us.
    stage.wait(micros(49));
    stage.expect_nothing();
    stage.wait(micros(1));
    stage.expect(". 1:1001(1000) ack 1");
    // From now on the first segment has the time of its retransmission, which is later than the
    // third segment's time.
    stage.wait(micros(10));
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 1001:3001>");
    stage.wait(micros(380));
    stage.expect_nothing();
    let counters = stage.engine.counters();
    assert_eq!((counters.timeouts, counters.tail_probes), (0, 0));
}

#[test]
fn a_probe_has_a_time_of_its_own() {
    //= RFC 8985#7.3
    //= type=test
    //# The sender MUST follow the RACK transmission procedures in the "Upon Transmitting a Data
    //# Segment" section upon sending either a retransmission or a new data loss probe.
    let (mut stage, id) = after_a_tail_probe();
    stage.wait(Duration::from_millis(100));
    // A segment that was sent more than a quarter of a round trip before the probe is lost.
    stage.remote(". 1:1(0) ack 1001 win 60000 <sack 3001:4001>");
    stage.expect(". 1001:2001(1000) ack 1");
    let info = stage.engine.info(id).unwrap();
    assert_eq!((info.retransmitted, info.lost), (1_000, 1_000));
}

#[test]
fn a_timeout_follows_a_probe() {
    //= RFC 8985#7.3
    //= type=test
    //# After attempting to send a loss probe, regardless of whether a loss probe was sent, the
    //# sender MUST re-arm the RTO timer, not the PTO timer, if the FlightSize is not zero.
    let (mut stage, id) = after_a_tail_probe();
    stage.wait(stage.engine.info(id).unwrap().timeout - MILLISECOND);
    stage.expect_nothing();
    stage.wait(MILLISECOND + MILLISECOND);
    stage.expect(". 1001:2001(1000) ack 1");
    let counters = stage.engine.counters();
    assert_eq!((counters.tail_probes, counters.timeouts), (1, 1));
}

/// A connection without SACK, on which both ends understand marks, with eight segments in flight.
fn marking_without_sack() -> (Stage, ConnectionId) {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        config.window_scaling = false;
        options.ecn = EcnMode::Classic;
        options.nodelay = true;
    });
    stage.remote("SEW 0:0(0) win 65535 <mss 1000>");
    stage.expect("S.E 0:0(0) ack 1");
    stage.remote(". 1:1(0) ack 1");
    let id = stage.engine.accept(stage.listener).unwrap();
    stage.engine.publish(id, 8_000).unwrap();
    stage.forget_sent();
    stage.wait(MILLISECOND * 10);
    (stage, id)
}

/// RFC 3168 section 6.1.2: a mark is no loss. The acknowledgements that follow it are not the
/// partial ones of RFC 6582, and nothing is sent again.
#[test]
fn a_mark_is_answered_without_retransmissions() {
    let (mut stage, id) = marking_without_sack();
    let before = stage.engine.info(id).unwrap().congestion_window;
    for ack in [1_001, 2_001, 3_001, 4_001, 5_001, 6_001, 7_001, 8_001] {
        stage.remote(&format!(".E 1:1(0) ack {ack} win 65535"));
    }
    assert_eq!(stage.engine.counters().retransmissions, 0);
    let info = stage.engine.info(id).unwrap();
    assert!(info.congestion_window < before);
    assert_eq!(info.phase, Phase::Open);
}

/// RFC 5681 section 3.2: three duplicates show a loss, also while a mark is answered, and directly
/// after that.
#[test]
fn a_loss_is_repaired_while_a_mark_is_answered() {
    let (mut stage, id) = marking_without_sack();
    stage.remote(".E 1:1(0) ack 1001 win 65535");
    let marked = stage.engine.info(id).unwrap().slow_start_threshold;
    for _ in 0..3 {
        stage.expect_nothing();
        stage.remote(".E 1:1(0) ack 1001 win 65535");
    }
    stage.expect(". 1001:2001(1000) ack 1");
    stage.remote(".E 1:1(0) ack 3001 win 65535");
    stage.expect(". 3001:4001(1000) ack 1");
    stage.remote(".E 1:1(0) ack 8001 win 65535");
    stage.expect_nothing();
    // One reduction is the answer to both.
    let info = stage.engine.info(id).unwrap();
    assert_eq!(
        (info.phase, info.slow_start_threshold),
        (Phase::Open, marked)
    );
    let (mut stage, id) = marking_without_sack();
    stage.remote(".E 1:1(0) ack 1001 win 65535");
    stage.remote(".E 1:1(0) ack 8001 win 65535");
    stage.engine.publish(id, 12_000).unwrap();
    stage.forget_sent();
    for _ in 0..3 {
        stage.remote(". 1:1(0) ack 8001 win 65535");
    }
    stage.expect(". 8001:9001(1000) ack 1");
}

/// RFC 6582 section 3.2 step 1: before any loss, "recover is set to the initial send sequence
/// number". A SYN that was sent twice is no reason to ignore duplicates.
#[test]
fn first_segment_after_a_lost_syn_is_repaired_by_duplicates() {
    let mut stage = plain();
    let id = stage.connect(Options {
        nodelay: true,
        ..Options::default()
    });
    stage.expect("S 0:0(0)");
    stage.wait(Duration::from_secs(1));
    stage.expect("S 0:0(0)");
    stage.wait(MILLISECOND * 100);
    stage.remote("S. 0:0(0) ack 1 win 60000 <mss 1000>");
    stage.expect(". 1:1(0) ack 1");
    stage.engine.publish(id, 8_000).unwrap();
    stage.forget_sent();
    for _ in 0..3 {
        stage.remote(". 1:1(0) ack 1 win 60000");
    }
    assert_eq!(stage.engine.counters().retransmissions, 2);
}
