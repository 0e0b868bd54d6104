//! Tests of the growth and the reduction of the congestion window, as scripts of segments.

use crate::script::Stage;
use toehold_tcp::{CongestionControl, Duration, EcnMode, Options};

const MILLISECOND: Duration = Duration::from_millis(1);

/// RFC 8257 section 3.2: each mark is echoed, and the end of each run of marks is acknowledged at
/// once. RFC 8257 section 3.3: the window falls by the share of marked bytes.
#[test]
fn dctcp_echoes_each_mark_and_answers_in_proportion() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.ecn = EcnMode::Classic;
        options.congestion = CongestionControl::Dctcp;
    });
    stage.remote("SEW 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S.E 0:0(0) ack 1");
    stage.remote(". 1:1(0) ack 1");
    let id = stage.engine.accept(stage.listener).unwrap();
    // Acknowledgements are delayed from here on.
    stage.engine.publish(id, 1_000).unwrap();
    stage.remote("P. 1:101(100) ack 1");
    stage.forget_sent();
    stage.engine.publish(id, 2_000).unwrap();
    stage.forget_sent();
    stage.remote("P. 101:201(100) ack 1");
    stage.expect_nothing();
    // The segment whose acknowledgement was delayed was not marked.
    stage.remote("P. 201:301(100) ack 1 ce");
    stage.expect(". 2001:2001(0) ack 201");
    stage.expect(".E 2001:2001(0) ack 301");
    stage.remote("P. 301:401(100) ack 1 ce");
    stage.remote("P. 401:501(100) ack 1 ce");
    stage.expect(".E 2001:2001(0) ack 501");
    stage.remote("P. 501:601(100) ack 1");
    stage.expect(". 2001:2001(0) ack 601");
    // The other change: an unmarked segment after a marked one.
    stage.remote("P. 601:701(100) ack 1 ce");
    stage.expect(".E 2001:2001(0) ack 701");
    stage.remote("P. 701:801(100) ack 1 ce");
    stage.expect_nothing();
    stage.remote("P. 801:901(100) ack 1");
    stage.expect(".E 2001:2001(0) ack 801");
    stage.expect(". 2001:2001(0) ack 901");
    stage.expect_nothing();
    // In windows without a mark the estimate, which begins at 1, falls by a sixteenth each time.
    let mut end = 2_000;
    for _ in 0..60 {
        stage.remote(&format!(". 901:901(0) ack {} win 65535", end + 1));
        end += 1_000;
        stage.engine.publish(id, end).unwrap();
        stage.forget_sent();
    }
    let before = stage.engine.info(id).unwrap().congestion_window;
    stage.remote(&format!(".E 901:901(0) ack {} win 65535", end + 1));
    let after = stage.engine.info(id).unwrap().slow_start_threshold;
    assert!(
        (before * 9 / 10..before).contains(&after),
        "{after} of {before}"
    );
}

/// Pacing: a window is spread over its round trip, at twice the rate while slow start doubles the
/// window.
#[test]
fn a_paced_window_leaves_in_half_a_round_trip() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.pacing = true;
    });
    let id = stage.accepted(",sackOK", 60_000);
    assert_eq!(stage.engine.info(id).unwrap().congestion_window, 10_000);
    let round_trip = stage.engine.info(id).unwrap().round_trip.unwrap();
    assert_eq!(round_trip, Duration::from_millis(100));
    stage.engine.publish(id, 10_000).unwrap();
    for segment in 0..10 {
        let (from, to) = (segment * 1_000 + 1, segment * 1_000 + 1_001);
        let flags = if segment == 9 { "P." } else { "." };
        stage.expect(&format!("{flags} {from}:{to}(1000) ack 1"));
        stage.expect_nothing();
        stage.wait(Duration::from_millis(5) - MILLISECOND);
        stage.expect_nothing();
        stage.wait(MILLISECOND);
    }
}

/// As on Linux (tcp_tso_autosize): where the link divides segments, a paced segment holds a
/// millisecond's data, and at least two parts. A longer burst would fill the queue of a bottleneck.
#[test]
fn a_paced_connection_sends_no_long_bursts() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        config.offload.segmentation_bytes_max = 60_000;
        options.pacing = true;
    });
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 10_000).unwrap();
    for burst in 0..5 {
        let from = burst * 2_000 + 1;
        stage.expect(&format!("P. {from}:{}(2000) ack 1", from + 2_000));
        stage.expect_nothing();
        stage.wait(Duration::from_millis(10));
    }
}

/// BBR's window stays as it is when much is lost. If everything lost were sent again at once, most
/// of it would be lost again.
#[test]
fn retransmissions_are_paced() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.congestion = CongestionControl::Bbr;
    });
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 10_000).unwrap();
    for _ in 0..10 {
        stage.forget_sent();
        stage.wait(Duration::from_millis(10));
    }
    stage.remote(". 1:1(0) ack 1 win 60000 <sack 6001:10001>");
    for segment in 0..6 {
        let from = segment * 1_000 + 1;
        stage.expect(&format!(". {from}:{}(1000) ack 1", from + 1_000));
        stage.expect_nothing();
        // 2.77 windows of ten segments in a round trip of 100 ms, less one per cent.
        stage.wait(Duration::from_micros(3_650));
    }
}

/// All data in flight is lost, and so are its retransmissions, until the timeout is long. If the
/// wait for the timer were part of a rate that BBR measures, the pacing rate would be less than
/// 100 bytes per second, and each wait for the pacing would confirm that rate.
#[test]
fn waiting_for_the_retransmission_timer_is_no_part_of_a_rate() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.congestion = CongestionControl::Bbr;
    });
    let id = stage.accepted("", 60_000);
    stage.engine.publish(id, 10_000).unwrap();
    // The first timeout expires after 300 ms. One retransmission arrives, and ends a round.
    stage.wait(Duration::from_millis(400));
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 1001 win 60000");
    // The timeouts double. The last one before the end of this outage is the sixth.
    let timeouts = stage.engine.counters().timeouts;
    while stage.engine.counters().timeouts < timeouts + 5 {
        stage.wait(MILLISECOND);
    }
    assert!(stage.engine.info(id).unwrap().timeout > Duration::from_secs(9));
    // From now on all data arrives, and is acknowledged after a round trip.
    for _ in 0..20 {
        stage.wait(Duration::from_millis(100));
        let info = stage.engine.info(id).unwrap();
        let end = info.acknowledged + u64::from(info.in_flight);
        stage.remote(&format!(". 1:1(0) ack {} win 60000", end + 1));
    }
    assert_eq!(stage.engine.info(id).unwrap().acknowledged, 10_000);
}

/// On a short path the parts of a window would be shorter than a timer's tick.
#[test]
fn nothing_is_paced_on_a_short_path() {
    for (milliseconds, is_paced) in [(1, false), (5, true)] {
        let mut stage = Stage::new(|config, _| config.timestamps = false);
        let options = Options {
            pacing: true,
            ..Options::default()
        };
        let id = stage.connect(options);
        stage.expect("S 0:0(0)");
        stage.wait(Duration::from_millis(milliseconds));
        stage.remote("S. 0:0(0) ack 1 win 60000 <mss 1000>");
        assert_eq!(stage.engine.info(id).unwrap().pacing, is_paced);
        // A handshake that took long by chance does not count for ever.
        for end in 1..=20 {
            stage.engine.publish(id, end).unwrap();
            stage.forget_sent();
            stage.wait(MILLISECOND);
            stage.remote(&format!(". 1:1(0) ack {} win 60000", end + 1));
        }
        assert!(!stage.engine.info(id).unwrap().pacing);
    }
}

/// BBR's window alone would be too large: BBR paces on any path, even before it has measured a
/// rate.
#[test]
fn bbr_paces_on_a_short_path() {
    let mut stage = Stage::new(|config, _| config.timestamps = false);
    let options = Options {
        congestion: CongestionControl::Bbr,
        ..Options::default()
    };
    let id = stage.connect(options);
    stage.expect("S 0:0(0)");
    stage.wait(MILLISECOND);
    stage.remote("S. 0:0(0) ack 1 win 60000 <mss 1000>");
    for end in 1..=20 {
        stage.engine.publish(id, end).unwrap();
        stage.forget_sent();
        assert!(stage.engine.info(id).unwrap().pacing);
        stage.wait(MILLISECOND);
        stage.remote(&format!(". 1:1(0) ack {} win 60000", end + 1));
    }
    assert!(stage.engine.info(id).unwrap().pacing);
}

/// RFC 5681 section 4.1: after a pause of more than a timeout, the window restarts from its initial
/// size.
#[test]
fn an_idle_connection_starts_slowly_again() {
    let mut stage = Stage::new(|config, _| config.timestamps = false);
    let id = stage.accepted(",sackOK", 60_000);
    let mut end = 0;
    for _ in 0..4 {
        end += 10_000;
        stage.engine.publish(id, end).unwrap();
        stage.forget_sent();
        stage.remote(&format!(". 1:1(0) ack {} win 60000", end + 1));
    }
    assert!(stage.engine.info(id).unwrap().congestion_window > 15_000);
    stage.wait(Duration::from_secs(2));
    stage.engine.publish(id, end + 30_000).unwrap();
    stage.forget_sent();
    assert_eq!(stage.engine.info(id).unwrap().in_flight, 10_000);
}

/// RFC 3168 section 6.1.1.1: a SYN without an answer is sent again without ECN, because a middlebox
/// may drop SYNs with ECN.
#[test]
fn a_syn_is_repeated_without_congestion_notification() {
    let mut stage = Stage::new(|_, _| {});
    let options = Options {
        ecn: EcnMode::Classic,
        ..Options::default()
    };
    stage.connect(options);
    stage.expect("SEW 0:0(0)");
    stage.wait(Duration::from_secs(1));
    stage.expect("S 0:0(0)");
}

/// RFC 8985 section 7.4.2: the response to a loss that a tail loss probe has repaired is
/// "equivalent to a fast recovery". RFC 8257 section 3.5: DCTCP halves the window for a loss,
/// whatever share of the bytes was marked.
#[test]
fn dctcp_takes_a_repaired_tail_for_a_loss() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        config.window_scaling = false;
        options.nodelay = true;
        options.ecn = EcnMode::Classic;
        options.congestion = CongestionControl::Dctcp;
    });
    stage.remote("SEW 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S.E 0:0(0) ack 1");
    stage.wait(MILLISECOND * 100);
    stage.remote(". 1:1(0) ack 1");
    let id = stage.engine.accept(stage.listener).unwrap();
    // Without a mark the estimate falls to almost zero.
    let mut end = 0;
    for _ in 0..60 {
        end += 1_000;
        stage.engine.publish(id, end).unwrap();
        stage.forget_sent();
        stage.wait(MILLISECOND * 100);
        stage.remote(&format!(". 1:1(0) ack {} win 60000", end + 1));
    }
    stage.engine.publish(id, end + 3_000).unwrap();
    stage.forget_sent();
    let before = stage.engine.info(id).unwrap().congestion_window;
    let round_trip = stage.engine.info(id).unwrap().round_trip.unwrap();
    stage.wait(round_trip * 2 + MILLISECOND);
    assert_eq!(stage.engine.counters().tail_probes, 1);
    stage.forget_sent();
    stage.remote(&format!(". 1:1(0) ack {} win 60000", end + 3_001));
    stage.engine.publish(id, end + 4_000).unwrap();
    stage.forget_sent();
    stage.remote(&format!(". 1:1(0) ack {} win 60000", end + 4_001));
    let after = stage.engine.info(id).unwrap().slow_start_threshold;
    assert_eq!(after, before / 2);
}
