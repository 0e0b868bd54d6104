//! The negotiation of accurate ECN feedback (RFC 9768 section 3.1).

use super::{accurate, asking};
use crate::script::Stage;
use toehold_tcp::sim::checker;
use toehold_tcp::{Duration, EcnMode, Options};

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
