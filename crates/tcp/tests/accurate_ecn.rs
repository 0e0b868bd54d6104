//! More accurate ECN feedback (RFC 9768): what it is agreed upon with, what is told, and what is
//! made of it. `e`, `W` and `E` are the three bits of the ACE field, from the highest.

#[allow(dead_code, reason = "each of the tests uses some of it")]
mod script;
#[allow(dead_code, reason = "each of the tests uses some of it")]
mod support;

use script::Stage;
use toehold_tcp::{CongestionControl, ConnectionId, Duration, EcnMode, Options, Phase};

fn accurate() -> Stage {
    Stage::new(|config, options| {
        config.timestamps = false;
        options.ecn = EcnMode::Accurate;
    })
}

fn asking() -> Options {
    Options {
        ecn: EcnMode::Accurate,
        ..Options::default()
    }
}

/// A connection that a remote has opened, and through which so many bytes may be sent.
fn accepted(congestion: CongestionControl, bytes: u64) -> (Stage, ConnectionId) {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.ecn = EcnMode::Accurate;
        options.congestion = congestion;
        options.initial_window_segments = 40;
    });
    stage.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S.W 0:0(0) ack 1");
    stage.remote(".W 1:1(0) ack 1");
    let id = stage.engine.accept(stage.listener).unwrap();
    stage.engine.publish(id, bytes).unwrap();
    (stage, id)
}

/// Section 3.1.2: each end tells how the other's packet came: not capable of ECN, or marked.
#[test]
fn a_passive_open_reflects_how_the_syn_came() {
    let mut stage = accurate();
    stage.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S.W 0:0(0) ack 1");
    let mut stage = accurate();
    stage.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK> ce");
    stage.expect("S.We 0:0(0) ack 1");
    // RFC 3168's SYN has RFC 3168's answer.
    let mut stage = accurate();
    stage.remote("SEW 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S.E 0:0(0) ack 1");
}

#[test]
fn an_active_open_reflects_how_the_syn_ack_came() {
    for (mark, reflection) in [("", ".W"), (" ce", ".We")] {
        let mut stage = accurate();
        let id = stage.connect(asking());
        stage.expect("SEWe 0:0(0)");
        stage.remote(&format!(
            "S.W 0:0(0) ack 1 win 10000 <mss 1000,sackOK>{mark}"
        ));
        stage.expect(&format!("{reflection} 1:1(0) ack 1"));
        assert_eq!(stage.engine.info(id).unwrap().ecn, EcnMode::Accurate);
        // From then on the number of marked packets: 5, or 6 with that one.
        stage.engine.publish(id, 100).unwrap();
        let counted = if mark.is_empty() { "P.Ee" } else { "P.We" };
        stage.expect(&format!("{counted} 1:101(100) ack 1"));
    }
}

/// Both ends tell twice how the other's packets came: in their SYN-ACKs, and behind them.
#[test]
fn a_simultaneous_open_reflects_how_syn_and_syn_ack_came() {
    for (mark, reflection, counted) in [("", ".W", "P.Ee"), (" ce", ".We", "P.We")] {
        let mut stage = accurate();
        let id = stage.connect(asking());
        stage.expect("SEWe 0:0(0)");
        stage.remote("SEWe 0:0(0) win 10000 <mss 1000,sackOK>");
        stage.expect("S.W 0:0(0) ack 1");
        stage.remote(&format!(
            "S.W 0:0(0) ack 1 win 10000 <mss 1000,sackOK>{mark}"
        ));
        stage.expect(&format!("{reflection} 1:1(0) ack 1"));
        stage.remote(".W 1:1(0) ack 1");
        assert_eq!(stage.engine.info(id).unwrap().ecn, EcnMode::Accurate);
        stage.engine.publish(id, 100).unwrap();
        stage.expect(&format!("{counted} 1:101(100) ack 1"));
    }
}

/// Table 2: a server that knows RFC 3168 alone answers with ECE, and one without ECN with nothing.
#[test]
fn an_active_open_takes_what_the_remote_has() {
    for (answer, agreed) in [
        ("S.E", EcnMode::Classic),
        ("S.", EcnMode::Off),
        ("S.EWe", EcnMode::Off),
    ] {
        let mut stage = accurate();
        let id = stage.connect(asking());
        stage.expect("SEWe 0:0(0)");
        stage.remote(&format!(
            "{answer} 0:0(0) ack 1 win 10000 <mss 1000,sackOK>"
        ));
        stage.expect(". 1:1(0) ack 1");
        assert_eq!(stage.engine.info(id).unwrap().ecn, agreed);
    }
}

/// Section 3.1.4.1: a box that drops such SYNs costs two attempts.
#[test]
fn a_third_syn_asks_for_nothing() {
    let mut stage = accurate();
    stage.connect(asking());
    for flags in ["SEWe", "SEWe", "S"] {
        stage.expect(&format!("{flags} 0:0(0)"));
        stage.wait(Duration::from_secs(8));
    }
}

/// Section 3.2.2.5.1: the first marked packet is told at once, and then every second.
#[test]
fn marks_are_counted() {
    let (mut stage, _) = accepted(CongestionControl::Cubic, 0);
    let mut end = 1;
    // The next hundred bytes.
    let mut data = |stage: &mut Stage, mark: &str| {
        stage.remote(&format!("P.Ee {end}:{}(100) ack 1{mark}", end + 100));
        end += 100;
        end
    };
    // A remote in slow start has an acknowledgement for each segment.
    for _ in 0..20 {
        data(&mut stage, "");
    }
    stage.wait(Duration::from_millis(600));
    stage.forget_sent();
    let end = data(&mut stage, " ce");
    stage.expect(&format!(".We 1:1(0) ack {end} <ecn 1 100>"));
    data(&mut stage, " ce");
    stage.expect_nothing();
    let end = data(&mut stage, " ce");
    // 8 is 0 in three bits.
    stage.expect(&format!(". 1:1(0) ack {end} <ecn 1 300>"));
    // An acknowledgement of RFC 3168 would go on with ECE; this one says the same number again.
    let end = data(&mut stage, "");
    stage.wait(Duration::from_millis(600));
    stage.expect(&format!(". 1:1(0) ack {end} <ecn 1 300>"));
}

/// RFC 3168 section 6.1.2: the answer to marks is one a window. CWR has another meaning here.
#[test]
fn marks_reduce_the_window_once_a_round_trip() {
    let (mut stage, id) = accepted(CongestionControl::Cubic, 30_000);
    for from in 0..30u64 {
        let push = if from == 29 { "P" } else { "" };
        stage.expect(&format!(
            "{push}.Ee {}:{}(1000) ack 1",
            from * 1_000 + 1,
            from * 1_000 + 1_001
        ));
    }
    let window = |stage: &Stage| stage.engine.info(id).unwrap().congestion_window;
    let before = window(&stage);
    stage.remote(".Ee 1:1(0) ack 2001 <ecn 2001 0>");
    assert_eq!(stage.engine.info(id).unwrap().phase, Phase::Open);
    stage.remote(".We 1:1(0) ack 4001 <ecn 3001 1000>");
    assert_eq!(stage.engine.info(id).unwrap().phase, Phase::Recovery);
    stage.remote(". 1:1(0) ack 6001 <ecn 3001 3000>");
    stage.remote(". 1:1(0) ack 30001 <ecn 27001 3000>");
    assert_eq!(stage.engine.info(id).unwrap().phase, Phase::Open);
    let after = window(&stage);
    assert!(
        after < before && after > before / 2,
        "one reduction by a third: {before}, {after}"
    );
    stage.engine.publish(id, 31_000).unwrap();
    stage.expect("P.Ee 30001:31001(1000) ack 1");
}

/// RFC 8257 section 3.3, with the marked bytes in place of all that is acknowledged.
#[test]
fn dctcp_takes_the_marked_bytes_as_they_are_told() {
    let reduced = |marked: u32| {
        let (mut stage, id) = accepted(CongestionControl::Dctcp, 30_000);
        stage.forget_sent();
        // alpha begins at 1: a window without marks makes it 15/16, each time.
        let mut acked = 0;
        for _ in 0..40 {
            acked += 30_000;
            stage.wait(Duration::from_millis(50));
            stage.remote(&format!(
                ".Ee 1:1(0) ack {} <ecn {} 0>",
                acked + 1,
                acked + 1
            ));
            stage.engine.publish(id, acked + 30_000).unwrap();
            stage.forget_sent();
        }
        let before = stage.engine.info(id).unwrap().congestion_window;
        let ack = acked + 15_001;
        stage.remote(&format!(".We 1:1(0) ack {ack} <ecn {acked} {marked}>"));
        let after = stage.engine.info(id).unwrap().congestion_window;
        (f64::from(before) - f64::from(after)) / f64::from(before)
    };
    let (few, many) = (reduced(1_000), reduced(15_000));
    assert!(few < 0.1 && few <= many, "{few}, {many}");
}

/// Section 3.2.2.3: a path that clears the bits would hide every mark.
#[test]
fn data_is_not_capable_behind_a_path_that_clears_the_bits() {
    let mut stage = accurate();
    stage.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S.W 0:0(0) ack 1");
    stage.remote(". 1:1(0) ack 1");
    let id = stage.engine.accept(stage.listener).unwrap();
    stage.engine.publish(id, 100).unwrap();
    assert_eq!(stage.next_ecn(), 0);
    let (mut stage, _) = accepted(CongestionControl::Cubic, 100);
    assert_eq!(stage.next_ecn(), 2);
}

/// How the latest SYN came; and its mark is in no counter.
#[test]
fn a_repeated_syn_is_the_one_that_is_told_of() {
    let mut stage = accurate();
    stage.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S.W 0:0(0) ack 1");
    for (came, told) in [("ect0", "S.e"), ("ect1", "S.EW"), ("ce", "S.We")] {
        stage.remote(&format!("SEWe 0:0(0) win 65535 <mss 1000,sackOK> {came}"));
        stage.expect(&format!("{told} 0:0(0) ack 1"));
    }
    stage.remote(".W 1:1(0) ack 1");
    stage.remote("P.Ee 1:101(100) ack 1");
    stage.expect(".Ee 1:1(0) ack 101");
}

/// A remote that asks for one feedback and then for the other cannot know which it has got.
#[test]
fn a_remote_that_asks_for_both_feedbacks_is_refused() {
    for (first, then) in [("SEWe", "SEW"), ("SEW", "SEWe"), ("SEW", "SE")] {
        let mut stage = accurate();
        stage.remote(&format!("{first} 0:0(0) win 65535 <mss 1000,sackOK>"));
        stage.forget_sent();
        stage.remote(&format!("{then} 0:0(0) win 65535 <mss 1000,sackOK>"));
        stage.expect_refusal(1);
        stage.expect_nothing();
        stage.remote(". 1:1(0) ack 1");
        stage.expect("R 1:1(0)");
    }
    // An end that knows only one has no choice to regret.
    let mut stage = Stage::new(|_, options| options.ecn = EcnMode::Classic);
    for flags in ["SEW", "SEWe", "S"] {
        stage.remote(&format!("{flags} 0:0(0) win 65535 <mss 1000,sackOK>"));
        stage.expect("S.E 0:0(0) ack 1");
    }
}

/// A remote that may have taken the other SYN-ACK has perhaps no counters.
#[test]
fn a_handshake_that_was_once_without_ecn_leaves_data_that_cannot_be_marked() {
    let mut asked_twice = accurate();
    asked_twice.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK>");
    asked_twice.expect("S.W 0:0(0) ack 1");
    asked_twice.remote("S 0:0(0) win 65535 <mss 1000,sackOK>");
    asked_twice.expect("S.W 0:0(0) ack 1");
    let mut answered_thrice = accurate();
    answered_thrice.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK>");
    for flags in ["S.W", "S.W", "S."] {
        answered_thrice.expect(&format!("{flags} 0:0(0) ack 1"));
        answered_thrice.wait(Duration::from_secs(3));
    }
    for mut stage in [asked_twice, answered_thrice] {
        stage.forget_sent();
        stage.remote(".W 1:1(0) ack 1");
        let id = stage.engine.accept(stage.listener).unwrap();
        stage.engine.publish(id, 100).unwrap();
        assert_eq!(stage.next_ecn(), 0);
        // Marks are told all the same, and answered.
        stage.remote("P.Ee 1:101(100) ack 101 ce");
        stage.expect(".We 101:101(0) ack 101 <ecn 1 100>");
        stage.engine.publish(id, 1_100).unwrap();
        assert_eq!(stage.next_ecn(), 0);
        let threshold = |stage: &Stage| stage.engine.info(id).unwrap().slow_start_threshold;
        assert_eq!(threshold(&stage), u32::MAX);
        stage.remote(".We 101:101(0) ack 1101");
        assert!(threshold(&stage) < u32::MAX);
    }
}

/// The first acknowledgement was lost: the answer to each SYN-ACK tells how that one came. One mark
/// is counted, and no more.
#[test]
fn a_repeated_syn_ack_is_reflected() {
    let mut stage = accurate();
    let id = stage.connect(asking());
    stage.expect("SEWe 0:0(0)");
    let answer = "S.W 0:0(0) ack 1 win 10000 <mss 1000,sackOK>";
    stage.remote(answer);
    stage.expect(".W 1:1(0) ack 1");
    for (came, reflection) in [
        ("ect1", ".EW"),
        ("ce", ".We"),
        ("ce", ".We"),
        ("ect0", ".e"),
    ] {
        stage.wait(Duration::from_secs(1));
        stage.remote(&format!("{answer} {came}"));
        stage.expect(&format!("{reflection} 1:1(0) ack 1"));
        // Not more often than a challenge; and an answer that is not given is not owed.
        stage.remote(&format!("{answer} {came}"));
        stage.expect_nothing();
    }
    // A server that has done without ECN since counts by the field.
    stage.wait(Duration::from_secs(1));
    stage.remote("S. 0:0(0) ack 1 win 10000 <mss 1000,sackOK>");
    stage.expect(".We 1:1(0) ack 1");
    stage.engine.publish(id, 100).unwrap();
    stage.expect("P.We 1:101(100) ack 1");
}

/// Data that waits for the handshake does not take the place of the acknowledgement that tells how
/// the SYN-ACK came.
#[test]
fn the_reflection_goes_before_data() {
    let mut stage = accurate();
    let id = stage.connect(asking());
    stage.engine.publish(id, 100).unwrap();
    stage.expect("SEWe 0:0(0)");
    stage.remote("S.W 0:0(0) ack 1 win 10000 <mss 1000,sackOK> ce");
    stage.expect(".We 1:1(0) ack 1");
    stage.expect("P.We 1:101(100) ack 1");
}

/// A simultaneous open after two lost SYNs: the remote, that asks for ECN, is answered as by a
/// server. Our third SYN asked for none, so no packet may be marked.
#[test]
fn a_late_simultaneous_open_has_the_same_syn_ack() {
    let mut stage = accurate();
    let id = stage.connect(asking());
    for flags in ["SEWe", "SEWe", "S"] {
        stage.expect(&format!("{flags} 0:0(0)"));
        stage.wait(Duration::from_millis(2_500));
    }
    stage.forget_sent();
    stage.remote("SEWe 0:0(0) win 10000 <mss 1000,sackOK>");
    stage.expect("S.W 0:0(0) ack 1");
    stage.remote(".W 1:1(0) ack 1");
    assert_eq!(stage.engine.info(id).unwrap().ecn, EcnMode::Accurate);
    stage.engine.publish(id, 100).unwrap();
    assert_eq!(stage.next_ecn(), 0);
}

/// Segments without payload are counted, and told of in threes, or in twos with data.
#[test]
fn marks_on_acknowledgements_are_told() {
    let (mut stage, _) = accepted(CongestionControl::Cubic, 0);
    for told in [".", ".EW"] {
        for _ in 0..2 {
            stage.remote(".Ee 1:1(0) ack 1 ce");
            stage.expect_nothing();
        }
        stage.remote(".Ee 1:1(0) ack 1 ce");
        stage.expect(&format!("{told} 1:1(0) ack 1 <ecn 1 0>"));
    }
    // The remote's slow start is over: acknowledgements are delayed.
    for from in 0..20 {
        stage.remote(&format!(
            "P.Ee {}:{}(100) ack 1",
            from * 100 + 1,
            from * 100 + 101
        ));
    }
    stage.wait(Duration::from_millis(600));
    stage.forget_sent();
    stage.remote("P.Ee 2001:2101(100) ack 1");
    stage.remote(".Ee 2101:2101(0) ack 1 ce");
    stage.expect_nothing();
    stage.remote(".Ee 2101:2101(0) ack 1 ce");
    stage.expect(".Ee 1:1(0) ack 2101 <ecn 1 0>");
}

/// The packet before counts, with payload or without.
#[test]
fn a_mark_after_an_unmarked_acknowledgement_is_told_at_once() {
    let (mut stage, _) = accepted(CongestionControl::Cubic, 0);
    for from in 0..20 {
        stage.remote(&format!(
            "P.Ee {}:{}(100) ack 1",
            from * 100 + 1,
            from * 100 + 101
        ));
    }
    stage.wait(Duration::from_millis(600));
    stage.forget_sent();
    stage.remote("P.Ee 2001:2101(100) ack 1 ce");
    stage.expect(".We 1:1(0) ack 2101 <ecn 1 100>");
    stage.remote(".Ee 2101:2101(0) ack 1");
    stage.expect_nothing();
    stage.remote("P.Ee 2101:2201(100) ack 1 ce");
    stage.expect(".EWe 1:1(0) ack 2201 <ecn 1 200>");
}

/// Two blocks have room, with the option or without.
#[test]
fn blocks_go_before_counters() {
    let mut stage = Stage::new(|_, options| options.ecn = EcnMode::Accurate);
    stage.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK,TS>");
    stage.expect("S.W 0:0(0) ack 1 <TS>");
    stage.remote(".W 1:1(0) ack 1 <TS>");
    stage.remote("P.Ee 1:101(100) ack 1 <TS> ect0");
    stage.expect(".Ee 1:1(0) ack 101 <TS,ecn 101 0>");
    stage.remote("P.Ee 201:301(100) ack 1 <TS> ect0");
    stage.expect(".Ee 1:1(0) ack 101 <TS,ecn 201 0,sack 201:301>");
    stage.remote("P.Ee 401:501(100) ack 1 <TS> ect0");
    stage.expect(".Ee 1:1(0) ack 101 <TS,ecn 301 0,sack 401:501:201:301>");
    // With ECT(1)'s counter the option is longer: it has to go.
    stage.remote("P.Ee 601:701(100) ack 1 <TS> ect1");
    stage.expect(".Ee 1:1(0) ack 101 <TS,sack 601:701:401:501:201:301>");
    stage.remote("P.Ee 101:201(100) ack 1 <TS> ect1");
    stage.expect(".Ee 1:1(0) ack 301 <TS,sack 601:701:401:501>");
    stage.remote("P.Ee 301:401(100) ack 1 <TS> ect1");
    stage.expect(".Ee 1:1(0) ack 501 <TS,ecn 301 0,sack 601:701>");
}
