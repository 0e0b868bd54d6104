//! More accurate ECN feedback (RFC 9768): its negotiation, the feedback that is sent, and the
//! reaction to feedback. `e`, `W` and `E` are the three bits of the ACE field, from the highest.

use crate::script::Stage;
use toehold_tcp::sim::checker;
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

//= RFC 9768#3.1.1
//= type=test
//# If a TCP Server (host B) that is AccECN-enabled receives a SYN with the above three flags set,
//# it MUST set both its half-connections into AccECN mode.
//= RFC 9768#3.1.1
//= type=test
//# Then it MUST set the AE, CWR, and ECE TCP flags on the SYN/ACK to the combination in the top
//# block of Table 2 that feeds back the IP-ECN field that arrived on the SYN.
/// Section 3.1.2: each end reports how the other end's packet arrived: not ECN-capable, or marked.
#[test]
fn a_passive_open_reflects_how_the_syn_came() {
    let mut stage = accurate();
    stage.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S.W 0:0(0) ack 1");
    let mut stage = accurate();
    stage.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK> ce");
    stage.expect("S.We 0:0(0) ack 1");
}

//= RFC 9768#3.1.1
//= type=test
//# The TCP Server MUST NOT set one of these 4 combination of flags on the SYN/ACK unless the
//# preceding SYN requested support for AccECN as above.
//= RFC 9768#3.1.2
//= type=test
//# When an AccECN-enabled TCP Server (B) receives a SYN with (AE,CWR,ECE) = (0,1,1) it MUST do one
//# of the following:
//= RFC 9768#3.1.2
//= type=test
//# set both its half connections into the Classic ECN feedback mode and return a SYN/ACK with
//# (AE,CWR,ECE) = (0,0,1) as shown. Then it MUST comply with [RFC3168].
//= RFC 9768#3.1.2
//= type=test
//# When an AccECN-enabled TCP Server (B) receives a SYN with (AE,CWR,ECE) = (0,0,0) it MUST set
//# both its half connections into the Not ECN feedback mode, return a SYN/ACK with (AE,CWR,ECE) =
//# (0,0,0) as shown and continue with ECN disabled.
//= RFC 9768#3.1.5
//= type=test
//# MUST NOT set ECT if it is in Not ECN feedback mode.
//= RFC 9768#3.1.5
//= type=test
//# MUST NOT use reception of packets with ECT set in the IP-ECN field as an implicit signal that
//# the peer is ECN-capable.
//= RFC 9768#3.1.5
//= type=test
//# SHOULD respond to any subsequent valid SYN using a SYN/ACK with (AE,CWR,ECE) = (0,0,0), even if
//# the SYN is offering to negotiate Classic ECN or AccECN feedback mode;
#[test]
fn a_passive_open_takes_what_the_remote_has() {
    let mut stage = accurate();
    stage.remote("SEW 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S.E 0:0(0) ack 1");
    stage.remote(". 1:1(0) ack 1");
    let id = stage.engine.accept(stage.listener).unwrap();
    assert_eq!(stage.engine.info(id).unwrap().ecn, EcnMode::Classic);
    // The engine reports a mark until CWR comes.
    stage.remote("P. 1:101(100) ack 1 ce");
    stage.expect(".E 1:1(0) ack 101");
    stage.remote("P. 101:201(100) ack 1 ect0");
    stage.expect(".E 1:1(0) ack 201");
    // ECT on a SYN that asks for no ECN has no effect, and neither has a later SYN.
    let mut stage = accurate();
    stage.remote("S 0:0(0) win 65535 <mss 1000,sackOK> ect0");
    stage.expect("S. 0:0(0) ack 1");
    stage.remote("SEWe 0:0(0) win 65535 <mss 1000,sackOK>");
    stage.expect("S. 0:0(0) ack 1");
    stage.remote(". 1:1(0) ack 1");
    stage.remote("P. 1:101(100) ack 1 ce");
    stage.expect(". 1:1(0) ack 101");
    let id = stage.engine.accept(stage.listener).unwrap();
    assert_eq!(stage.engine.info(id).unwrap().ecn, EcnMode::Off);
    stage.engine.publish(id, 100).unwrap();
    assert_eq!(stage.next_ecn(), 0);
}

//= RFC 9768#3.1.1
//= type=test
//# During the TCP three-way handshake at the start of a connection, to request more Accurate ECN
//# feedback the TCP Client (host A) MUST set the TCP flags (AE,CWR,ECE) = (1,1,1) in the initial
//# SYN segment.
//= RFC 9768#3.1.1
//= type=test
//# Once a TCP Client (A) has sent the above SYN to declare that it supports AccECN, and once it has
//# received the above SYN/ACK segment that confirms that the TCP Server supports AccECN, the TCP
//# Client MUST set both its half-connections into AccECN mode.
//= RFC 9768#3.1.1
//= type=test
//# The TCP Client MUST NOT enter AccECN mode (or any feedback mode) before it has received the
//# first SYN/ACK.
//= RFC 9768#3.2.2.1
//= type=test
//# A TCP Client (A) in AccECN mode MUST feed back which of the 4 possible values of the IP-ECN
//# field was on the SYN/ACK by writing it into the ACE field of a pure ACK with no SACK blocks
//# using the binary encoding in Table 3 (which is the same as that used on the SYN/ACK in Table 2).
//= RFC 9768#3.2.2
//= type=test
//# On such a packet, a Data Receiver MUST encode the 3 least significant bits of its r.cep counter
//# into the ACE field that it feeds back to the Data Sender.
//= RFC 9768#3.2.3.2.1
//= type=test
//# A TCP Client that has successfully negotiated AccECN SHOULD include an AccECN Option in the
//# first ACK at the end of the three-way handshake.
#[test]
fn an_active_open_reflects_how_the_syn_ack_came() {
    for (mark, reflection) in [("", ".W"), (" ce", ".We")] {
        let mut stage = accurate();
        let id = stage.connect(asking());
        stage.expect("SEWe 0:0(0)");
        assert_eq!(stage.engine.info(id).unwrap().ecn, EcnMode::Off);
        stage.remote(&format!(
            "S.W 0:0(0) ack 1 win 10000 <mss 1000,sackOK>{mark}"
        ));
        stage.expect(&format!("{reflection} 1:1(0) ack 1 <ecn 1 0>"));
        assert_eq!(stage.engine.info(id).unwrap().ecn, EcnMode::Accurate);
        // From then on the field counts marked packets: 5, or 6 with the mark of this packet.
        stage.engine.publish(id, 100).unwrap();
        let counted = if mark.is_empty() { "P.Ee" } else { "P.We" };
        stage.expect(&format!("{counted} 1:101(100) ack 1"));
    }
}

//= RFC 9768#3.1.2
//= type=test
//# Host A MUST then enter the same feedback mode as it would have entered had it been a responding
//# host and received the same SYN.
//= RFC 9768#3.1.2
//= type=test
//# Then host A MUST send the same SYN/ACK as it would have sent had it been a responding host.
/// Both ends report twice how the other end's packets arrived: in their SYN-ACKs, and after them.
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

//= RFC 9768#3.1.2
//= type=test
//# Therefore, as soon as an AccECN-capable TCP Client (A) receives the SYN/ACK shown it MUST set
//# both its half connections into the feedback mode shown in the rightmost column.
//= RFC 9768#3.1.2
//= type=test
//# If the TCP Client has set itself into Classic ECN feedback mode it MUST then comply with
//# [RFC3168].
//= RFC 9768#3.1.2
//= type=test
//# Such broken TCP Servers (B) cannot support ECN, so as soon as an AccECN-capable TCP Client (A)
//# receives such a broken SYN/ACK it MUST fall back to Not ECN mode for both its half connections
//# and continue with ECN disabled.
/// Table 2: a server that supports only RFC 3168 answers with ECE, and a server without ECN with no
/// bit.
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
        stage.remote("P. 1:101(100) ack 1 ce");
        let echo = if agreed == EcnMode::Classic {
            ".E"
        } else {
            "."
        };
        stage.expect(&format!("{echo} 1:1(0) ack 101"));
    }
}

//= RFC 9768#3.1.3
//= type=test
//# However, an AccECN Client implementation MUST NOT send a SYN with any combination other than the
//# three listed.
//= RFC 9768#3.1.4.1
//= type=test
//# If the sender of an AccECN SYN (the TCP Client) times out before receiving the SYN/ACK, it
//# SHOULD attempt to negotiate the use of AccECN at least one more time by continuing to set all
//# three TCP ECN flags (AE,CWR,ECE) = (1,1,1) on the first retransmitted SYN (using the usual
//# retransmission time-outs).
//= RFC 9768#3.1.4.1
//= type=test
//# If this first retransmission also fails to be acknowledged, in deployment scenarios where AccECN
//# path traversal might be problematic, the TCP Client SHOULD send subsequent retransmissions of
//# the SYN with the three TCP-ECN flags cleared (AE,CWR,ECE) = (0,0,0).
//= RFC 9768#3.1.4.1
//= type=test
//# Such a retransmitted SYN MUST use the same initial sequence number (ISN) as the original SYN.
//= RFC 9768#3.1.5
//= type=test
//# MUST NOT send a 'Classic' ECN-setup SYN [RFC3168] with (AE,CWR,ECE) = (0,1,1) and a SYN with
//# (AE,CWR,ECE) = (1,1,1) requesting AccECN feedback within the same connection;
//= RFC 9768#3.2.3.2.1
//= type=test
//# The TCP Client MUST NOT include an AccECN TCP Option on the SYN.
/// Section 3.1.4.1: a middlebox that drops such SYNs costs two attempts.
#[test]
fn a_third_syn_asks_for_nothing() {
    let mut stage = accurate();
    stage.connect(asking());
    let mut first = None;
    for (has_ae, flags) in [(true, 0b1100_0010), (true, 0b1100_0010), (false, 0b10)] {
        let bytes = stage.next_sent();
        let syn = checker::parse(&bytes).unwrap();
        assert_eq!((syn.has_ae, syn.flags), (has_ae, flags));
        assert_eq!(*first.get_or_insert(syn.seq), syn.seq);
        assert_eq!(syn.ecn_counters, None);
        stage.wait(Duration::from_secs(8));
    }
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

//= RFC 9768#3.1.3
//= type=test
//# However, an AccECN Server implementation MUST NOT send a SYN/ACK with this combination
//# (AE,CWR,ECE) = (1,0,1).
//= RFC 9768#3.1.5
//= type=test
//# MUST feed back the IP-ECN field on the latest valid SYN or acceptable SYN/ACK to arrive.
//= RFC 9768#3.2.2.2
//= type=test
//# If a TCP Server in AccECN mode receives a CE mark in the IP-ECN field of a SYN (SYN=1, ACK=0),
//# it MUST NOT increment r.cep (it remains at its initial value of 5).
/// The engine reports how the latest SYN arrived; the mark of a SYN is in no counter.
#[test]
fn a_repeated_syn_is_the_one_that_is_reported() {
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

//= RFC 9768#3.1.5
//= type=test
//# MUST reset the connection with a RST packet, if it receives a 'Classic' ECN-setup SYN with
//# (AE,CWR,ECE) = (0,1,1) and a SYN requesting AccECN feedback during the same handshake;
/// A remote that asks for one kind of feedback and then for the other cannot know which kind is in
/// use.
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
    // An end that supports only one kind of feedback has nothing to mix up.
    let mut stage = Stage::new(|_, options| options.ecn = EcnMode::Classic);
    for flags in ["SEW", "SEWe", "S"] {
        stage.remote(&format!("{flags} 0:0(0) win 65535 <mss 1000,sackOK>"));
        stage.expect("S.E 0:0(0) ack 1");
    }
}

//= RFC 9768#3.1.5
//= type=test
//# MUST NOT switch into a different feedback mode from the one it first entered according to Table
//# 2, no matter whether it subsequently receives valid SYNs or Acceptable SYN/ACKs of different
//# types.
//= RFC 9768#3.1.5
//= type=test
//# MUST NOT set ECT on any packet for the rest of the connection if it has received or sent at
//# least one valid SYN or Acceptable SYN/ACK with (AE,CWR,ECE) = (0,0,0) during the handshake.
//= RFC 9768#3.1.5
//= type=test
//# MUST NOT send a 'Classic' ECN-setup SYN/ACK [RFC3168] with (AE,CWR,ECE) = (0,0,1) and a SYN/ACK
//# agreeing to use AccECN feedback within the same connection;
//= RFC 9768#3.1.5
//= type=test
//# SHOULD acknowledge a valid SYN arriving with (AE,CWR,ECE) = (0,0,0) by emitting an AccECN
//# SYN/ACK (with the appropriate combination of TCP-ECN flags to feed back the IP-ECN field of this
//# latest SYN);
//= RFC 9768#3.1.5
//= type=test
//# MUST feed back the information in the IP-ECN field of incoming packets using Accurate ECN
//# feedback, as specified in Section 3.2.
//= RFC 9768#3.2.3.2.2
//= type=test
//# If this retransmission times out, to expedite connection setup, the TCP Server SHOULD retransmit
//# the SYN/ACK with (AE,CWR,ECE) = (0,0,0) and no AccECN Option, but it remains in AccECN feedback
//# mode (per Section 3.1.5).
/// A remote that may have received the SYN-ACK without ECN perhaps keeps no counters.
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
        // Marks are still reported, and the engine reacts to reports.
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

//= RFC 9768#3.1.5
//= type=test
//# SHOULD ignore the TCP-ECN flags in SYNs or SYN/ACKs that are received after the implementation
//# reaches the Established state, in line with the general TCP approach [RFC9293];
//= RFC 9768#3.2.2.1
//= type=test
//# The TCP Client MUST also use the handshake encoding for the pure ACK of any retransmitted
//# SYN/ACK that confirms that the TCP Server supports AccECN.
//= RFC 9768#3.2.2.2
//= type=test
//# If a TCP Client in AccECN mode receives a CE mark in the IP-ECN field of a SYN/ACK, it MUST
//# increment r.cep, but no more than once no matter how many CE-marked SYN/ACKs it receives (i.e.,
//# incremented from 5 to 6, but no further).
/// The first acknowledgement was lost: the answer to each SYN-ACK reports how that SYN-ACK arrived.
/// One mark is counted, and no more.
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
        // Such answers are limited like challenges; an answer that the limit suppresses is not sent
        // later.
        stage.remote(&format!("{answer} {came}"));
        stage.expect_nothing();
    }
    // For a server that has dropped ECN since, the answer carries the counter in the field.
    stage.wait(Duration::from_secs(1));
    stage.remote("S. 0:0(0) ack 1 win 10000 <mss 1000,sackOK>");
    stage.expect(".We 1:1(0) ack 1");
    stage.engine.publish(id, 100).unwrap();
    stage.expect("P.We 1:101(100) ack 1");
}

//= RFC 9768#3.2.2.1
//= type=test
//# If an AccECN TCP Client intends to acknowledge the SYN/ACK with a packet that does not satisfy
//# these conditions (e.g., it has data to include on the ACK), it SHOULD first send a pure ACK that
//# does satisfy these conditions (see Section 5.2), so that it can feed back which of the four
//# values of the IP-ECN field arrived on the SYN/ACK.
/// Data that waits for the handshake does not replace the acknowledgement that reports how the
/// SYN-ACK arrived.
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

/// A simultaneous open after two lost SYNs. The remote asks for ECN and gets a server's answer. Our
/// third SYN asked for no ECN, so our packets must not be ECN-capable.
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

/// Section 5.1: when only a cookie remembers the handshake, the acknowledgement shows whether the
/// client has asked for this feedback or for RFC 3168's.
#[test]
fn a_cookie_s_acknowledgement_says_which_feedback_was_agreed_upon() {
    use EcnMode::{Accurate, Classic};
    let cases = [
        // The negotiation as requested and as answered; the acknowledgement; the answer to a marked
        // packet.
        (Accurate, "SeWE", "S.W", ".W 1:1(0)", Accurate, ".eW"),
        (Accurate, "SeWE", "S.W", "P.eE 1:11(10)", Accurate, ".eW"),
        (Accurate, "SWE", "S.E", ". 1:1(0)", Classic, ".E"),
        (Accurate, "SWE", "S.E", "P.W 1:11(10)", Classic, ".E"),
        (Classic, "SeWE", "S.E", ".W 1:1(0)", Classic, ".E"),
    ];
    for (ecn, syn, answer, acknowledgement, agreed, echo) in cases {
        let mut stage = Stage::new(|config, options| {
            config.half_open_max = 0;
            options.ecn = ecn;
        });
        stage.remote(&format!("{syn} 0:0(0) win 65535 <mss 1000,TS>"));
        stage.expect(&format!("{answer} 0:0(0) ack 1"));
        stage.remote(&format!("{acknowledgement} ack 1 win 100 <TS>"));
        assert_eq!(stage.engine.counters().cookies_accepted, 1);
        let id = stage.engine.accept(stage.listener).expect("established");
        assert_eq!(stage.engine.info(id).expect("open").ecn, agreed, "{syn}");
        stage.wait(Duration::from_secs(1));
        stage.forget_sent();
        let flags = if agreed == Accurate { "P.eE" } else { "P." };
        let seq = if acknowledgement.contains("1:11") {
            "11:21(10)"
        } else {
            "1:11(10)"
        };
        stage.remote(&format!("{flags} {seq} ack 1 win 100 <TS> ce"));
        stage.expect(&format!("{echo} 1:1(0)"));
    }
}

/// A late SYN-ACK answers a SYN that asked for ECN. But a SYN without ECN was sent since (RFC 9768
/// section 3.1.5, RFC 3168 section 6.1.1.1).
#[test]
fn a_client_that_has_also_asked_without_ecn_sends_data_that_cannot_be_marked() {
    let (accurate_syn, classic_syn, plain_syn) = ("SEWe 0:0(0)", "SEW 0:0(0)", "S 0:0(0)");
    for (ecn, syns, answer, codepoint) in [
        (EcnMode::Accurate, &[accurate_syn; 2][..], "S.W", 2),
        (
            EcnMode::Accurate,
            &[accurate_syn, accurate_syn, plain_syn],
            "S.W",
            0,
        ),
        (
            EcnMode::Accurate,
            &[accurate_syn, accurate_syn, plain_syn],
            "S.E",
            0,
        ),
        (EcnMode::Classic, &[classic_syn], "S.E", 2),
        (EcnMode::Classic, &[classic_syn, plain_syn], "S.E", 0),
    ] {
        let mut stage = accurate();
        let id = stage.connect(Options { ecn, ..asking() });
        stage.expect(syns[0]);
        for (attempt, syn) in syns.iter().enumerate().skip(1) {
            stage.wait(Duration::from_secs(1 << (attempt - 1)));
            stage.expect(syn);
        }
        stage.remote(&format!(
            "{answer} 0:0(0) ack 1 win 10000 <mss 1000,sackOK>"
        ));
        assert_ne!(stage.engine.info(id).unwrap().ecn, EcnMode::Off);
        stage.forget_sent();
        stage.engine.publish(id, 100).unwrap();
        assert_eq!(stage.next_ecn(), codepoint, "{ecn:?}, {syns:?}, {answer}");
    }
}

/// RFC 3168 section 6.1.1.1: the remote's second SYN does not ask for ECN.
#[test]
fn a_server_that_was_also_asked_without_ecn_sends_data_that_cannot_be_marked() {
    for (again, codepoint) in [("SEW", 2), ("S", 0)] {
        let mut stage = Stage::new(|_, options| options.ecn = EcnMode::Classic);
        stage.remote("SEW 0:0(0) win 65535 <mss 1000,sackOK>");
        stage.expect("S.E 0:0(0) ack 1");
        stage.remote(&format!("{again} 0:0(0) win 65535 <mss 1000,sackOK>"));
        stage.expect("S.E 0:0(0) ack 1");
        stage.remote(". 1:1(0) ack 1");
        let id = stage.engine.accept(stage.listener).unwrap();
        stage.engine.publish(id, 100).unwrap();
        assert_eq!(stage.next_ecn(), codepoint);
    }
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
