//! Paths that carry small segments and drop large ones: the engine detects such a path, and does
//! not mistake an outage for one.

use crate::script::{Stage, plain};
use toehold_tcp::{CongestionControl, ConnectionId, Duration};

const MILLISECOND: Duration = Duration::from_millis(1);

fn on_a_dark_path() -> (Stage, ConnectionId) {
    let mut stage = plain();
    stage.remote("S 0:0(0) win 65535 <mss 1460,sackOK>");
    stage.expect("S. 0:0(0) ack 1");
    stage.wait(Duration::from_millis(10));
    stage.remote(". 1:1(0) ack 1");
    let id = stage
        .engine
        .accept(stage.listener)
        .expect("it is established");
    (stage, id)
}

/// Sends two full segments. No answer comes through three timeouts, so the first bytes have been
/// sent again in a small segment.
fn in_doubt(stage: &mut Stage, id: ConnectionId) {
    stage.engine.publish(id, 2_920).unwrap();
    stage.expect(". 1:1461(1460) ack 1");
    stage.expect("P. 1461:2921(1460) ack 1");
    while stage.engine.counters().timeouts < 2 {
        stage.wait(MILLISECOND);
    }
    stage.forget_sent();
    wait_for_timeout(stage, id);
    stage.expect(". 1:731(730) ack 1");
    stage.expect_nothing();
}

/// RFC 4821 section 7.7: if even the small segment is too large, the next one is smaller.
#[test]
fn a_small_segment_gets_smaller_until_one_passes() {
    let (mut stage, id) = on_a_dark_path();
    in_doubt(&mut stage, id);
    for _ in 0..2 {
        wait_for_timeout(&mut stage, id);
        stage.expect(". 1:513(512) ack 1");
    }
    stage.remote(". 1:1(0) ack 513");
    stage.forget_sent();
    wait_for_timeout(&mut stage, id);
    stage.expect(". 513:731(218) ack 1");
    stage.remote(". 1:1(0) ack 1461");
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 2921");
    assert_eq!(stage.engine.info(id).unwrap().mss, 1_460);
}

fn wait_for_timeout(stage: &mut Stage, id: ConnectionId) {
    let before = stage.engine.counters().timeouts;
    while stage.engine.counters().timeouts == before {
        stage.wait(MILLISECOND);
    }
    assert!(stage.engine.info(id).unwrap().retries > 0);
}

/// RFC 4821 section 7.7: an outage stops segments of every size. Segments after the outage have
/// their former size.
#[test]
fn an_outage_is_no_black_hole() {
    for stamps in ["", ",TS"] {
        let mut stage = Stage::new(|_, options| options.nodelay = true);
        stage.remote(&format!("S 0:0(0) win 65535 <mss 1460,sackOK{stamps}>"));
        stage.expect("S. 0:0(0) ack 1");
        stage.wait(Duration::from_millis(1));
        let stamps = stamps.trim_start_matches(',');
        stage.remote(&format!(". 1:1(0) ack 1 <{stamps}>"));
        let id = stage.engine.accept(stage.listener).expect("established");
        let mss = u64::from(stage.engine.info(id).unwrap().mss);
        stage.engine.publish(id, 100 * mss).unwrap();
        stage.forget_sent();
        // 2.5 s pass without an answer.
        stage.wait(Duration::from_millis(2_500));
        assert!(stage.engine.info(id).unwrap().retries >= 3);
        stage.wait(Duration::from_millis(800));
        stage.forget_sent();
        let small = if stamps.is_empty() { 512 } else { 500 };
        stage.remote(&format!(". 1:1(0) ack {} <{stamps}>", 1 + small));
        for _ in 0..20 {
            stage.forget_sent();
            let sent = stage.engine.info(id).unwrap().sent;
            let ack = (1 + 10 * mss).max(sent + 1);
            stage.remote(&format!(". 1:1(0) ack {ack} <{stamps}>"));
            let info = stage.engine.info(id).unwrap();
            assert_eq!(u64::from(info.mss), mss, "{info:?}");
        }
        assert_eq!(stage.engine.info(id).unwrap().acknowledged, 100 * mss);
        assert_eq!(stage.engine.counters().mtu_reductions, 0);
        // A later outage, after which the delayed segments arrive, is not taken for a black hole
        // either.
        stage.engine.publish(id, 102 * mss).unwrap();
        stage.wait(Duration::from_secs(8));
        stage.forget_sent();
        let (start, end) = (1 + 100 * mss, 1 + 102 * mss);
        stage.remote(&format!(". 1:1(0) ack {} <{stamps}>", start + small));
        stage.remote(&format!(". 1:1(0) ack {end} <{stamps}>"));
        assert_eq!(stage.engine.counters().mtu_reductions, 0);
    }
}

/// One lost segment leaves room for two small ones. The second small segment waits: an
/// acknowledgement of both would look like that of a full segment, and the engine would never
/// detect the black hole.
#[test]
fn a_small_segment_goes_alone_while_the_path_is_in_doubt() {
    let (mut stage, id) = on_a_dark_path();
    stage.engine.publish(id, 1_460).unwrap();
    while stage.engine.counters().timeouts < 2 {
        stage.wait(MILLISECOND);
    }
    stage.forget_sent();
    wait_for_timeout(&mut stage, id);
    stage.expect(". 1:731(730) ack 1");
    stage.expect_nothing();
    stage.remote(". 1:1(0) ack 731");
    stage.expect("P. 731:1461(730) ack 1");
    stage.remote(". 1:1(0) ack 1461");
    stage.engine.publish(id, 2_920).unwrap();
    stage.expect("P. 1461:2921(1460) ack 1");
    wait_for_timeout(&mut stage, id);
    stage.expect(". 1461:2191(730) ack 1");
    stage.expect_nothing();
    stage.remote(". 1:1(0) ack 2191");
    assert_eq!(stage.engine.info(id).unwrap().mss, 730);
}

/// The engine still knows that small segments pass when one of them is lost: its loss is not due to
/// its size.
#[test]
fn a_small_segment_that_is_lost_disproves_nothing() {
    let (mut stage, id) = on_a_dark_path();
    in_doubt(&mut stage, id);
    stage.remote(". 1:1(0) ack 731");
    stage.expect(". 731:1461(730) ack 1");
    stage.forget_sent();
    wait_for_timeout(&mut stage, id);
    stage.expect(". 731:1461(730) ack 1");
    stage.remote(". 1:1(0) ack 1461");
    stage.expect("P. 1461:2921(1460) ack 1");
    stage.forget_sent();
    wait_for_timeout(&mut stage, id);
    stage.expect(". 1461:2191(730) ack 1");
    stage.remote(". 1:1(0) ack 2191");
    assert_eq!(stage.engine.info(id).unwrap().mss, 730);
}

/// Small segments that are acknowledged together do not prove that a full segment passes. One is
/// the end of a flight that is less than a full segment; the other is the rest of a segment that
/// was sent in parts.
#[test]
fn small_segments_that_are_acknowledged_together_are_no_full_one() {
    let (mut stage, id) = on_a_dark_path();
    stage.engine.publish(id, 1_460).unwrap();
    stage.expect("P. 1:1461(1460) ack 1");
    stage.wait(MILLISECOND);
    stage.engine.publish(id, 2_600).unwrap();
    stage.expect("P. 1461:2601(1140) ack 1");
    while stage.engine.counters().timeouts < 2 {
        stage.wait(MILLISECOND);
    }
    stage.forget_sent();
    wait_for_timeout(&mut stage, id);
    stage.expect(". 1:731(730) ack 1");
    stage.remote(". 1:1(0) ack 731");
    // The rest of the first segment passes in parts; the second segment arrived long ago.
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 2601");
    stage.engine.publish(id, 4_060).unwrap();
    stage.expect("P. 2601:4061(1460) ack 1");
    wait_for_timeout(&mut stage, id);
    stage.expect(". 2601:3331(730) ack 1");
    stage.remote(". 1:1(0) ack 3331");
    assert_eq!(stage.engine.info(id).unwrap().mss, 730);
}

/// A connection over a path that has dropped full segments and now carries segments of 730 bytes.
fn after_a_black_hole() -> (Stage, ConnectionId) {
    let (mut stage, id) = on_a_dark_path();
    in_doubt(&mut stage, id);
    // A small segment passes. A large one does not, and the next small one does.
    stage.remote(". 1:1(0) ack 731");
    stage.expect(". 731:1461(730) ack 1");
    stage.expect("P. 1461:2921(1460) ack 1");
    stage.remote(". 1:1(0) ack 1461");
    assert_eq!(stage.engine.info(id).unwrap().mss, 1_460);
    wait_for_timeout(&mut stage, id);
    stage.expect(". 1461:2191(730) ack 1");
    stage.remote(". 1:1(0) ack 2191");
    assert_eq!(stage.engine.info(id).unwrap().mss, 730);
    stage.expect("P. 2191:2921(730) ack 1");
    stage.remote(". 1:1(0) ack 2921");
    // The window has to grow before a probe is worth its risk.
    let mut end = 2_920;
    for _ in 0..8 {
        end += 10 * 730;
        stage.engine.publish(id, end).unwrap();
        for _ in 0..20 {
            stage.forget_sent();
            let sent = stage.engine.info(id).unwrap().sent;
            stage.remote(&format!(". 1:1(0) ack {}", sent + 1));
        }
    }
    stage.wait(Duration::from_secs(30));
    stage.forget_sent();
    (stage, id)
}

/// RFC 4821 section 7: a supposed black hole may have been an outage.
#[test]
fn a_path_that_recovered_is_used_in_full_again() {
    let (mut stage, id) = after_a_black_hole();
    let end = stage.engine.info(id).unwrap().sent;
    stage.engine.publish(id, end + 1_460).unwrap();
    let (start, after) = (end + 1, end + 1_461);
    stage.expect(&format!(". {start}:{after}(1460) ack 1"));
    stage.expect_nothing();
    stage.remote(&format!(". 1:1(0) ack {after}"));
    assert_eq!(stage.engine.info(id).unwrap().mss, 1_460);
    assert_eq!(stage.engine.counters().mtu_probes, 1);
}

/// RFC 4821 section 7.6.2: the loss of a probe alone is no sign of congestion.
#[test]
fn a_probe_that_is_lost_costs_its_retransmission_and_no_more() {
    let (mut stage, id) = after_a_black_hole();
    let end = stage.engine.info(id).unwrap().sent;
    stage.engine.publish(id, end + 1_460 + 5 * 730).unwrap();
    let (start, after) = (end + 1, end + 1_461);
    stage.expect(&format!(". {start}:{after}(1460) ack 1"));
    stage.forget_sent();
    let before = stage.engine.info(id).unwrap();
    let last = after + 5 * 730;
    stage.remote(&format!(". 1:1(0) ack {start} <sack {after}:{last}>"));
    stage.expect(&format!(". {start}:{}(730) ack 1", start + 730));
    stage.expect(&format!(". {}:{after}(730) ack 1", start + 730));
    stage.remote(&format!(". 1:1(0) ack {last}"));
    let info = stage.engine.info(id).unwrap();
    assert_eq!(info.mss, 730);
    let (cwnd, was) = (info.congestion_window, before.congestion_window);
    assert!(cwnd >= was, "{cwnd} after {was}");
    assert_eq!(stage.engine.counters().recoveries, 0);
}

/// RFC 4821 section 7.6.2 for BBR. A round with much loss would end Startup, in which the window
/// doubles in each round trip.
#[test]
fn a_model_of_the_path_does_not_count_a_probe_that_is_lost() {
    const ROUND_TRIP: Duration = Duration::from_millis(5);
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.nodelay = true;
        options.congestion = CongestionControl::Bbr;
    });
    stage.remote("S 0:0(0) win 65535 <mss 1460,sackOK,ws 7>");
    stage.expect("S. 0:0(0) ack 1");
    stage.wait(ROUND_TRIP);
    stage.remote(". 1:1(0) ack 1");
    let id = stage.engine.accept(stage.listener).expect("established");
    let now = stage.now;
    stage.engine.set_mtu(now, 600);
    stage.engine.publish(id, 1 << 20).unwrap();
    // The next segment, after a round trip in which all data arrives.
    let next = |stage: &mut Stage| {
        stage.forget_sent();
        stage.wait(ROUND_TRIP);
        stage.forget_sent();
        stage.engine.info(id).unwrap().sent + 1
    };
    let ack = next(&mut stage);
    stage.remote(&format!(". 1:1(0) ack {ack}"));
    let start = next(&mut stage);
    let now = stage.now;
    stage.engine.set_mtu(now, 1_500);
    stage.remote(&format!(". 1:1(0) ack {start}"));
    let after = start + 1_460;
    stage.expect(&format!(". {start}:{after}(1460) ack 1"));
    let end = next(&mut stage);
    stage.remote(&format!(". 1:1(0) ack {start} <sack {after}:{end}>"));
    let before = stage.engine.info(id).unwrap().congestion_window;
    for _ in 0..4 {
        let ack = next(&mut stage);
        stage.remote(&format!(". 1:1(0) ack {ack}"));
    }
    assert_eq!(stage.engine.counters().recoveries, 0);
    let window = stage.engine.info(id).unwrap().congestion_window;
    assert!(window > 4 * before, "{window} after {before}");
}

/// A probe proves only the size that the link carried when the probe was sent.
#[test]
fn a_probe_from_before_the_link_narrowed_proves_nothing() {
    let (mut stage, id) = on_a_dark_path();
    let now = stage.now;
    stage.engine.set_mtu(now, 600);
    stage.engine.set_mtu(now, 1_500);
    stage.engine.publish(id, 60_000).unwrap();
    let acknowledge_all = |stage: &mut Stage| {
        let sent = stage.engine.info(id).unwrap().sent;
        stage.remote(&format!(". 1:1(0) ack {}", 1 + sent));
        stage.forget_sent();
    };
    for _ in 0..40 {
        stage.wait(Duration::from_millis(5));
        stage.forget_sent();
        if stage.engine.counters().mtu_probes > 0 {
            break;
        }
        acknowledge_all(&mut stage);
    }
    assert_eq!(stage.engine.counters().mtu_probes, 1);
    let now = stage.now;
    stage.engine.set_mtu(now, 1_000);
    acknowledge_all(&mut stage);
    assert_eq!(stage.engine.info(id).unwrap().mss, 560);
}

/// RFC 4821 section 7.6.4: a probe whose bytes were sent again in small segments has proved
/// nothing, even if another loss hides that it was too large.
#[test]
fn a_probe_that_is_lost_among_others_proves_nothing() {
    let (mut stage, id) = after_a_black_hole();
    let end = stage.engine.info(id).unwrap().sent;
    stage.engine.publish(id, end + 1_460 + 5 * 730).unwrap();
    let (start, after) = (end + 1, end + 1_461);
    stage.expect(&format!(". {start}:{after}(1460) ack 1"));
    stage.forget_sent();
    let last = after + 5 * 730;
    // The segment behind the probe is lost, too.
    let second = after + 730;
    stage.remote(&format!(". 1:1(0) ack {start} <sack {second}:{last}>"));
    for ack in [start + 730, after, last] {
        stage.remote(&format!(". 1:1(0) ack {ack}"));
    }
    assert_eq!(stage.engine.info(id).unwrap().mss, 730);
}

/// A probe at the end of a flight is sent again by the tail loss probe, in small segments.
#[test]
fn a_probe_at_the_end_of_a_flight_that_is_lost_proves_nothing() {
    let (mut stage, id) = after_a_black_hole();
    let end = stage.engine.info(id).unwrap().sent;
    stage.engine.publish(id, end + 1_460).unwrap();
    let (start, after) = (end + 1, end + 1_461);
    stage.expect(&format!(". {start}:{after}(1460) ack 1"));
    let before = stage.engine.counters().retransmissions;
    while stage.engine.counters().retransmissions == before {
        stage.wait(MILLISECOND);
    }
    stage.expect(&format!("P. {}:{after}(730) ack 1", start + 730));
    stage.remote(&format!(
        ". 1:1(0) ack {start} <sack {}:{after}>",
        start + 730
    ));
    stage.expect(&format!(". {start}:{}(730) ack 1", start + 730));
    stage.remote(&format!(". 1:1(0) ack {after}"));
    assert_eq!(stage.engine.info(id).unwrap().mss, 730);
}
