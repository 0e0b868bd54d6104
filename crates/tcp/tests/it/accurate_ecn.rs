//! More accurate ECN feedback (RFC 9768): the feedback that is sent, and the reaction to feedback.
//! `e`, `W` and `E` are the three bits of the ACE field, from the highest.

use crate::script::Stage;
use toehold_tcp::{CongestionControl, ConnectionId, Duration, EcnMode, Options, Phase};

mod negotiation;

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

/// A connection that a remote has opened, on which the host has published this many bytes.
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

//= RFC 9768#3.2
//= type=test
//# The Data Receiver MUST increment the CE packet counter (r.cep), for every Acceptable packet that
//# it receives with the CE code point in the IP-ECN field, including CE-marked control packets and
//# retransmissions but excluding CE on SYN packets (SYN=1; ACK=0).
//= RFC 9768#3.2
//= type=test
//# A Data Receiver that supports sending of AccECN TCP Options MUST increment the r.ceb, r.e0b or
//# r.e1b byte counters by the number of TCP payload octets in Acceptable packets marked with the
//# CE, ECT(0) and ECT(1) codepoint in their IP-ECN field, including any payload octets on control
//# packets and retransmissions, but not including any payload octets on SYN packets (SYN=1; ACK=0).
//= RFC 9768#3.2.2.2
//= type=test
//# Whenever the Data Receiver sends an ACK with SYN=0 (with or without data), unless the handshake
//# encoding in Section 3.2.2.1 applies, the Data Receiver MUST encode the least significant 3 bits
//# of its r.cep counter into the ACE field (see Appendix A.2).
//= RFC 9768#3.2.2.5.1
//= type=test
//# If there is unacknowledged data at the receiver, 'n' SHOULD be 2.
//= RFC 9768#3.2.3.1
//= type=test
//# Whenever the Data Receiver includes any of the counter fields (ECEB, EE0B, EE1B) in an AccECN
//# Option, it MUST encode the 24 least significant bits of the current value of the associated
//# counter into the field (respectively r.ceb, r.e0b, r.e1b).
/// Section 3.2.2.5.1: the first marked packet is reported at once, and later marks every second.
#[test]
fn marks_are_counted() {
    let (mut stage, _) = accepted(CongestionControl::Cubic, 0);
    let mut end = 1;
    // The remote sends the next hundred bytes.
    let mut data = |stage: &mut Stage, mark: &str| {
        stage.remote(&format!("P.Ee {end}:{}(100) ack 1{mark}", end + 100));
        end += 100;
        end
    };
    // A remote in slow start gets an acknowledgement for each segment.
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
    // 8 is 0 modulo 8: the field has three bits.
    stage.expect(&format!(". 1:1(0) ack {end} <ecn 1 300>"));
    // An acknowledgement of RFC 3168 would still carry ECE; this one repeats the number.
    let end = data(&mut stage, "");
    stage.wait(Duration::from_millis(600));
    stage.expect(&format!(". 1:1(0) ack {end} <ecn 1 300>"));
}

//= RFC 9768#3.1.5
//= type=test
//# MUST NOT set CWR to indicate that it has received and responded to indications of congestion.
//= RFC 9768#3.2.2
//= type=test
//# With one exception (Section 3.2.2.1), a host with both of its half-connections in AccECN mode
//# MUST interpret the AE, CWR and ECE flags as the 3-bit ACE counter on a segment with the SYN flag
//# cleared (SYN=0).
/// RFC 3168 section 6.1.2: the sender reacts to marks once per window. CWR has another meaning
/// here.
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

/// RFC 8257 section 3.3, with the reported count of marked bytes in place of all acknowledged
/// bytes.
#[test]
fn dctcp_takes_the_marked_bytes_as_they_are_reported() {
    let reduced = |marked: u32| {
        let (mut stage, id) = accepted(CongestionControl::Dctcp, 30_000);
        stage.forget_sent();
        // alpha begins at 1: each window without marks multiplies it by 15/16.
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

//= RFC 9768#3.1.5
//= type=test
//# SHOULD set an ECT codepoint in the IP header of packets to indicate to the network that the
//# transport is capable and willing to participate in ECN for this packet;
//= RFC 9768#3.2.2.1
//= type=test
//# {Note 1}: If the Server is in AccECN mode and in SYN-RCVD state, and if it receives a value of
//# zero on a pure ACK with SYN=0 and no SACK blocks, for the rest of the connection the Server MUST
//# NOT set ECT on outgoing packets
//= RFC 9768#3.2.2.1
//= type=test
//# and MUST NOT respond to AccECN feedback.
//= RFC 9768#3.2.2.1
//= type=test
//# Nonetheless, as a Data Receiver it MUST NOT disable AccECN feedback.
//= RFC 9768#3.2.2.4
//= type=test
//# Note that a host in AccECN mode MUST continue to provide Accurate ECN feedback to its peer, even
//# if it is no longer sending ECT itself over the other half connection.
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
    // The engine still reports the remote's marks, and the remote's reports have no effect.
    stage.remote("P.EWe 1:101(100) ack 101 ce");
    stage.expect(".We 101:101(0) ack 101 <ecn 1 100>");
    assert_eq!(
        stage.engine.info(id).unwrap().slow_start_threshold,
        u32::MAX
    );
    let (mut stage, _) = accepted(CongestionControl::Cubic, 100);
    assert_eq!(stage.next_ecn(), 2);
}

//= RFC 9768#3.2.2.5.1
//= type=test
//# An AccECN receiver of a packet MUST emit an ACK if 'n' CE marks have arrived since the previous
//# ACK.
//= RFC 9768#3.2.2.5.1
//= type=test
//# If there is no unacknowledged data at the receiver, 'n' SHOULD be 3
//= RFC 9768#3.2.2.5.1
//= type=test
//# and MUST be no less than 3.
//= RFC 9768#3.2.2.5.1
//= type=test
//# In either case, 'n' MUST be no greater than 7.
/// Marks on segments without payload are counted. Every third one is reported, or every second one
/// with data.
#[test]
fn marks_on_acknowledgements_are_reported() {
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

//= RFC 9768#3.2.2.5.1
//= type=test
//# An AccECN Data Receiver SHOULD emit an ACK whenever a data packet marked CE arrives after the
//# previous packet was not CE.
//= RFC 9768#3.2.2.5.1
//= type=test
//# All that is necessary here is to require that these ACKs of ACKs MUST NOT contain any SACK
//# blocks (which would normally not happen anyway).
/// The state of the previous packet counts, with payload or without.
#[test]
fn a_mark_after_an_unmarked_acknowledgement_is_reported_at_once() {
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

//= RFC 9768#3.2.3.3
//= type=test
//# If SACK has been negotiated [RFC2018], and the smallest recommended AccECN Option would leave
//# insufficient space for two SACK blocks on a particular ACK, the Data Receiver MUST give
//# precedence to the SACK option (total 18 octets), because loss feedback is more critical.
//= RFC 9768#3.2.3.3
//= type=test
//# If there is insufficient space to include an AccECN TCP option containing the counter(s) that
//# have changed since the previous AccECN TCP option, then the entire AccECN TCP option MUST be
//# omitted.
/// Two blocks have room, both with the option and without.
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
    // With ECT(1)'s counter the option is longer, so it is omitted.
    stage.remote("P.Ee 601:701(100) ack 1 <TS> ect1");
    stage.expect(".Ee 1:1(0) ack 101 <TS,sack 601:701:401:501:201:301>");
    stage.remote("P.Ee 101:201(100) ack 1 <TS> ect1");
    stage.expect(".Ee 1:1(0) ack 301 <TS,sack 601:701:401:501>");
    stage.remote("P.Ee 301:401(100) ack 1 <TS> ect1");
    stage.expect(".Ee 1:1(0) ack 501 <TS,ecn 301 0,sack 601:701>");
}

//= RFC 9768#3.2.2
//= type=test
//# A host MUST NOT interpret the 3 flags as a 3-bit ACE field on any segment with SYN=1 (whether
//# ACK is 0 or 1), or if AccECN negotiation is incomplete or has not succeeded.
//= RFC 9768#3.2.2.2
//= type=test
//# If a TCP Client in AccECN mode receives CE feedback in the TCP flags of a SYN/ACK, it MUST NOT
//# increment s.cep (it remains at its initial value of 5), so that it stays in step with r.cep on
//# the Server.
//= RFC 9768#3.2.3.2.1
//= type=test
//# If there is somehow an AccECN Option on a SYN, it MUST be ignored when forwarded or received.
/// The flags of a SYN-ACK report how our SYN arrived, and are no counter. An option on a SYN or
/// SYN-ACK has no counters.
#[test]
fn flags_and_option_of_a_syn_ack_are_not_counted() {
    let mut stage = accurate();
    let id = stage.connect(asking());
    stage.expect("SEWe 0:0(0)");
    let answer = "S.We 0:0(0) ack 1 win 10000 <mss 1000,sackOK,ecn 1 5000>";
    stage.remote(answer);
    stage.expect(".W 1:1(0) ack 1");
    stage.engine.publish(id, 2_000).unwrap();
    stage.forget_sent();
    stage.remote(answer);
    stage.expect(".W 2001:2001(0) ack 1");
    stage.remote(".Ee 1:1(0) ack 1001 win 10000");
    let threshold = |stage: &Stage| stage.engine.info(id).unwrap().slow_start_threshold;
    assert_eq!(threshold(&stage), u32::MAX);
    stage.remote(".We 1:1(0) ack 2001 win 10000");
    assert!(threshold(&stage) < u32::MAX);
    let mut stage = accurate();
    stage.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK,ecn 1 5000>");
    stage.expect("S.W 0:0(0) ack 1");
    stage.remote(".W 1:1(0) ack 1 <ecn 1 0>");
    let id = stage.engine.accept(stage.listener).unwrap();
    stage.engine.publish(id, 100).unwrap();
    stage.remote(".Ee 1:1(0) ack 101 <ecn 101 0>");
    let info = stage.engine.info(id).unwrap();
    assert_eq!(info.slow_start_threshold, u32::MAX);
}

//= RFC 9768#3.2.2.3
//= type=test
//# However, the TCP Client MUST remain in the AccECN feedback mode and it MUST continue to feed
//# back any ECN markings on arriving packets (in its role as Data Receiver).
//= RFC 9768#3.2.2.3
//= type=test
//# However, the Server MUST remain in the AccECN feedback mode and it MUST continue to feed back
//# any ECN markings on arriving packets (in its role as Data Receiver).
/// The remote reports that our SYN or SYN-ACK arrived with bits that we did not send.
#[test]
fn feedback_goes_on_behind_a_path_that_changes_the_field() {
    for changed in ["EW", "e", "We"] {
        let mut stage = accurate();
        let client = stage.connect(asking());
        stage.expect("SEWe 0:0(0)");
        stage.remote(&format!(
            "S.{changed} 0:0(0) ack 1 win 10000 <mss 1000,sackOK>"
        ));
        stage.expect(".W 1:1(0) ack 1");
        stage.remote("P.Ee 1:101(100) ack 1 ce");
        stage.expect(".We 1:1(0) ack 101 <ecn 1 100>");
        assert_eq!(stage.engine.info(client).unwrap().ecn, EcnMode::Accurate);
        let mut stage = accurate();
        stage.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK>");
        stage.expect("S.W 0:0(0) ack 1");
        stage.remote(&format!(".{changed} 1:1(0) ack 1"));
        stage.remote("P.Ee 1:101(100) ack 1 ce");
        stage.expect(".We 1:1(0) ack 101 <ecn 1 100>");
        let server = stage.engine.accept(stage.listener).unwrap();
        assert_eq!(stage.engine.info(server).unwrap().ecn, EcnMode::Accurate);
    }
}

//= RFC 9768#3.1.1
//= type=test
//# If SACK is implemented with AccECN, Duplicate Selective Acknowledgement (D-SACK) [RFC2883] MUST
//# also be implemented.
//= RFC 9768#3.2
//= type=test
//# Whenever a Data Receiver feeds back the value of any counter, it MUST report the most recent
//# value, no matter whether it is in a pure ACK, or an ACK piggybacked on a packet used by the
//# other half-connection, whether new payload data or a retransmission.
/// A retransmitted segment carries the current counter. A segment that arrives again is counted
/// again, and reported as a duplicate (RFC 2883).
#[test]
fn what_is_repeated_has_the_latest_number() {
    let (mut stage, _) = accepted(CongestionControl::Cubic, 100);
    stage.expect("P.Ee 1:101(100) ack 1");
    stage.remote("P.Ee 1:101(100) ack 1 ce");
    stage.expect(".We 101:101(0) ack 101 <ecn 1 100>");
    stage.remote("P.Ee 51:151(100) ack 1 ce");
    stage.expect(".EWe 101:101(0) ack 151 <ecn 1 200,sack 51:101>");
    stage.wait(Duration::from_secs(2));
    stage.expect("P.EWe 1:101(100) ack 151");
}

/// Section 3.2.2.3: the remote reports that the path has changed the codepoint of our SYN or
/// SYN-ACK.
#[test]
fn data_cannot_be_marked_on_a_path_that_changes_codepoints() {
    for (report, codepoint) in [("W", 2), ("Ee", 2), ("EW", 0), ("e", 0), ("We", 0)] {
        let mut active = accurate();
        let id = active.connect(asking());
        active.expect("SEWe 0:0(0)");
        active.remote(&format!(
            "S.{report} 0:0(0) ack 1 win 10000 <mss 1000,sackOK>"
        ));
        active.expect(".W 1:1(0) ack 1");
        let mut passive = accurate();
        passive.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK>");
        passive.expect("S.W 0:0(0) ack 1");
        passive.remote(&format!(".{report} 1:1(0) ack 1"));
        let accepted = passive.engine.accept(passive.listener).unwrap();
        for (mut stage, id) in [(active, id), (passive, accepted)] {
            stage.engine.publish(id, 100).unwrap();
            assert_eq!(stage.next_ecn(), codepoint, "{report}");
            // Feedback goes on in both directions.
            stage.remote("P.Ee 1:101(100) ack 101 ce");
            stage.expect(".We 101:101(0) ack 101 <ecn 1 100>");
        }
    }
}

/// Two acknowledgements with one number, of which the second arrives first. The older one has the
/// older counter, which looks like seven marks.
#[test]
fn an_acknowledgement_that_was_overtaken_reports_no_marks() {
    let (mut stage, id) = accepted(CongestionControl::Cubic, 8_000);
    stage.forget_sent();
    let threshold = |stage: &Stage| stage.engine.info(id).unwrap().slow_start_threshold;
    stage.remote(".We 1:1(0) ack 1001");
    let reduced = threshold(&stage);
    assert!(reduced < u32::MAX);
    stage.remote(".We 1:1(0) ack 8001");
    stage.engine.publish(id, 16_000).unwrap();
    stage.forget_sent();
    stage.remote(".Ee 1:1(0) ack 8001");
    stage.remote(".We 1:1(0) ack 9001");
    assert_eq!(threshold(&stage), reduced);
    // The next mark counts.
    stage.remote(".EWe 1:1(0) ack 10001");
    assert!(threshold(&stage) < reduced);
}
