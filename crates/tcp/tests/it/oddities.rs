//! Unusual but valid segments, and their correct handling.

use std::net::Ipv6Addr;

use crate::script::Stage;
use crate::support::{Family, Rings, on_link};
use toehold_tcp::{
    ChecksumSum, Config, Duration, Engine, Instant, Malformed, Medium, Options, Random,
    ReceiveOffload,
};

/// A stage without timestamps, so that scripts are shorter.
fn plain() -> Stage {
    Stage::new(|config, _| config.timestamps = false)
}

/// RFC 2883 section 4.2: a segment that repeats a part, here a part that arrived out of order.
#[test]
fn partial_duplicates_are_reported() {
    let mut stage = plain();
    stage.accepted(",sackOK", 10_000);
    stage.remote("P. 1001:3001(2000) ack 1");
    stage.expect(". 1:1(0) ack 1 <sack 1001:3001>");
    stage.remote("P. 7001:8001(1000) ack 1");
    stage.expect(". 1:1(0) ack 1 <sack 7001:8001:1001:3001>");
    // In order, and over the early part; the first of the two repeated parts is reported.
    stage.remote("P. 1:6001(6000) ack 1");
    stage.expect(". 1:1(0) ack 6001 <sack 1001:3001:7001:8001>");
    // The segment is early itself, and half of it is known.
    stage.remote("P. 7501:9001(1500) ack 1");
    stage.expect(". 1:1(0) ack 6001 <sack 7501:8001:7001:9001>");
    stage.remote("P. 5001:9001(4000) ack 1");
    stage.expect(". 1:1(0) ack 9001 <sack 5001:6001>");
}

/// A remote that has filled the window acknowledges from the window's right edge, where the table
/// of RFC 9293 section 3.4 ends.
#[test]
fn an_acknowledgement_at_the_right_edge_counts() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.receive_bytes = 2_000;
        options.receive_bytes_max = 2_000;
    });
    let id = stage.accepted("", 10_000);
    stage.engine.publish(id, 500).unwrap();
    stage.expect("P. 1:501(500) ack 1");
    // The first half of the window was lost.
    stage.remote("P. 1001:2001(1000) ack 1 win 10000");
    stage.expect(". 501:501(0) ack 1");
    stage.remote(". 2001:2001(0) ack 501 win 10000");
    stage.expect_nothing();
    assert_eq!(stage.engine.info(id).unwrap().acknowledged, 500);
    // One further is outside; and a reset at the edge is not accepted.
    stage.remote(". 2002:2002(0) ack 501 win 10000");
    stage.expect(". 501:501(0) ack 1");
    stage.remote("R 2001:2001(0)");
    stage.expect_nothing();
    assert!(stage.engine.info(id).is_some());
}

/// A host that makes its ring larger announces the larger window, and never takes an offered window
/// back.
#[test]
fn the_host_bounds_the_window() {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        options.receive_bytes = 2_000;
        options.receive_bytes_max = 60_000;
    });
    let id = stage.accepted("", 10_000);
    stage.remote("P. 1:1501(1500) ack 1");
    stage.expect(". 1:1(0) ack 1501 win 500");
    let bound = |stage: &mut Stage, least, most| {
        let (now, engine) = (stage.now, &mut stage.engine);
        engine
            .bound_window(now, id, least, most)
            .expect("it is there");
    };
    bound(&mut stage, 8_000, 8_000);
    stage.expect(". 1:1(0) ack 1501 win 6500");
    bound(&mut stage, 0, 2_000);
    stage.expect_nothing();
    assert_eq!(stage.engine.info(id).unwrap().receive_limit, 2_000);
    stage.remote("P. 1501:2501(1000) ack 1");
    stage.expect(". 1:1(0) ack 2501 win 5500");
}

//= RFC 9293#3.7.1
//= type=test
//# The maximum size of a segment that a TCP endpoint really sends, the "effective send MSS",
//# MUST be the smaller (MUST-16) of the send MSS (that reflects the available reassembly
//# buffer size at the remote host, the EMTU_R [19]) and the largest transmission size
//# permitted by the IP layer (EMTU_S [19]):
/// RFC 1191 section 3.1, RFC 8201 section 5.3: all segments that were too large are sent again at
/// once, and later connections know the path. The MSS that they offer depends on our own link only.
#[test]
fn a_narrow_path_limits_what_is_sent_and_not_what_is_offered() {
    let mut stage = plain();
    let id = stage.connect(Options::default());
    stage.expect("S 0:0(0) <mss 1460>");
    stage.remote("S. 0:0(0) ack 1 win 65535 <mss 1460>");
    stage.expect(". 1:1(0) ack 1");
    stage.engine.publish(id, 1_460).unwrap();
    stage.expect("P. 1:1461(1460) ack 1");
    let packet = stage.too_big(1, 1_200);
    stage.raw(&packet);
    stage.expect(". 1:1161(1160) ack 1");
    stage.expect("P. 1161:1461(300) ack 1");
    stage.remote(". 1:1(0) ack 1461");
    stage.expect_nothing();
    let second = stage.connect(Options::default());
    stage.expect("S 0:0(0) <mss 1460>");
    stage.remote("S. 0:0(0) ack 1 win 65535 <mss 1460>");
    stage.expect(". 1:1(0) ack 1");
    stage.engine.publish(second, 1_460).unwrap();
    stage.expect(". 1:1161(1160) ack 1");
    stage.expect("P. 1161:1461(300) ack 1");
    assert_eq!(stage.engine.info(second).unwrap().advertised_mss, 1_460);
}

/// The probes of nmap (T1 to T7 and ECN), and those of its scans that open no connection. RFC 9293
/// section 3.10.7.1 and .2.
#[test]
fn port_scanners_learn_no_more_than_they_must() {
    const SCANNERS: &str = "<mss 265,ws 10,sackOK,TS 4294967295:0>";
    let mut stage = plain();
    // An open port: only a plain SYN and an acknowledgement are answered.
    for silent in ["-", "SFPU", "F", "FPU", "SR", "R", "PU"] {
        stage.remote(&format!("{silent} 0:0(0) {SCANNERS}"));
        stage.expect_nothing();
    }
    stage.remote(&format!(". 0:0(0) ack 7 win 1024 {SCANNERS}"));
    stage.expect("R 7:7(0)");
    stage.remote(&format!("S. 0:0(0) ack 7 {SCANNERS}"));
    stage.expect("R 7:7(0)");
    // Both congestion bits, to a listener without ECN.
    stage.remote("SEW 0:0(0) win 3 <ws 10,mss 1460,sackOK>");
    stage.expect("S. 0:0(0) ack 1");
    stage.remote("R 1:1(0)");
    assert_eq!(stage.engine.connection_count(), 0);

    // A closed port: everything but a reset is answered.
    stage.aim(81);
    stage.remote(&format!("S 0:0(0) win 31337 {SCANNERS}"));
    stage.expect_refusal(1);
    for (probe, length) in [("-", 0), ("F", 1), ("FPU", 1), ("PU", 0)] {
        stage.remote(&format!("{probe} 0:0(0) {SCANNERS}"));
        stage.expect_refusal(length);
    }
    stage.remote("R 0:0(0)");
    stage.expect_nothing();
}

//= RFC 9293#3.9.2.3
//= type=test
//# An incoming SYN with an invalid source address MUST be ignored either by TCP or by the IP
//# layer [(MUST-63)] (see Section 3.2.1.3).
/// RFC 1122 section 3.2.1.3: a segment with an impossible source address is not answered. Neither
/// is a SYN to an address of many hosts (section 4.2.3.10).
#[test]
fn senders_that_cannot_be_are_not_answered() {
    let mut stage = plain();
    for source in [
        [10, 0, 0, 1], // Ours: the LAND attack.
        [255, 255, 255, 255],
        [224, 0, 0, 1],
        [0, 0, 0, 0],
        [127, 0, 0, 1],
    ] {
        let packet = stage.packet("S 0:0(0) win 1000 <mss 1000>", source);
        stage.raw(&packet);
        stage.expect_nothing();
        assert_eq!(stage.engine.connection_count(), 0, "{source:?}");
    }
}

//= RFC 9293#3.1
//= type=test
//# and the receiver MUST check it (MUST-3).
/// Invalid headers are dropped, each for its reason, and the connection that they name goes on.
#[test]
fn broken_headers_are_counted_and_forgotten() {
    let mut stage = plain();
    stage.accepted("", 10_000);
    let whole = stage.packet("P. 1:11(10) ack 1", [10, 0, 0, 2]);
    for (at, value) in [
        (0, 0x95),  // An IP version that is not.
        (0, 0x44),  // A header shorter than headers are.
        (0, 0x4f),  // And one that takes all there is.
        (2, 0xff),  // A length beyond the packet.
        (10, 0x11), // Another checksum.
        (32, 0x10), // A TCP header shorter than headers are.
        (32, 0xf0), // And one beyond the segment.
        (36, 0x11), // Another checksum.
    ] {
        let mut broken = whole.clone();
        broken[at] = value;
        let before = stage.engine.counters().malformed_total();
        stage.raw(&broken);
        stage.expect_nothing();
        assert_eq!(
            stage.engine.counters().malformed_total(),
            before + 1,
            "byte {at}"
        );
    }
    for length in 0..whole.len() {
        stage.raw(&whole[..length]);
        stage.expect_nothing();
    }
    stage.raw(&whole);
    stage.expect(". 1:1(0) ack 11");
}

/// Two ends that disagree about sequence numbers must not answer each other for ever (Linux:
/// tcp_oow_rate_limited). Segments without payload are answered twice a second; probes come more
/// slowly.
#[test]
fn acknowledgements_of_the_past_are_answered_twice_a_second() {
    let mut stage = plain();
    stage.accepted("", 10_000);
    stage.remote("P. 1:101(100) ack 1");
    stage.expect(". 1:1(0) ack 101");
    for _ in 0..4 {
        for _ in 0..10 {
            stage.remote(". 50:50(0) ack 1");
        }
        stage.expect(". 1:1(0) ack 101");
        stage.expect_nothing();
        stage.wait(Duration::from_millis(530));
    }
    // A repeated segment with payload always gets an answer: perhaps our first answer was lost.
    for _ in 0..3 {
        stage.remote("P. 1:101(100) ack 1");
        stage.expect(". 1:1(0) ack 101");
    }
}

/// RFC 7323 section 5.5: after 24 days a timestamp has no meaning any more. The remote's clock may
/// have passed half of its numbers.
#[test]
fn timestamps_expire() {
    let mut stage = Stage::new(|_, _| {});
    stage.remote("S 0:0(0) win 65535 <mss 1000,TS>");
    stage.expect("S. 0:0(0) ack 1 <TS>");
    stage.remote(". 1:1(0) ack 1 <TS>");
    stage.wait(Duration::from_secs(25 * 24 * 3_600));
    stage.remote("P. 1:11(10) ack 1 <TS>");
    stage.expect(". 1:1(0) ack 11 <TS>");
    let before = stage.remote_clock - 1;
    stage.remote(&format!("P. 11:21(10) ack 1 <TS {before}>"));
    stage.expect(". 1:1(0) ack 11 <TS>");
}

//= RFC 5961#7
//= type=test
//# An implementation SHOULD include an ACK throttling mechanism to be conservative.
/// RFC 5961 section 7: challenges are limited per second, by a number that an attacker cannot learn
/// by counting.
#[test]
fn challenges_are_limited() {
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.challenges_per_second_max = 10;
    });
    let from = [10, 0, 0, 2];
    // The limit of all connections shows only with many of them: a single connection is challenged
    // twice a second.
    let sources = 4_000..4_100;
    for port in sources.clone() {
        stage.come_from(port);
        stage.accepted("", 10_000);
        // The listener reports the next connection after it was found empty.
        assert_eq!(stage.engine.accept(stage.listener), None);
        while stage.engine.poll_event().is_some() {}
    }
    let mut before = 0;
    for _ in 0..3 {
        stage.wait(Duration::from_secs(1));
        for port in sources.clone() {
            stage.come_from(port);
            let reset = stage.packet("R 500:500(0)", from);
            stage.raw(&reset);
        }
        let sent = stage.engine.counters().challenges_sent;
        assert!((5..15).contains(&(sent - before)), "{sent} after {before}");
        before = sent;
    }
    assert_eq!(stage.engine.counters().challenges_suppressed, 300 - before);
}

/// Linux's `tcp_invalid_ratelimit`: one challenge in half a second for each connection, so that one
/// connection cannot use up the challenges of the others (RFC 5961 section 7).
#[test]
fn one_connection_does_not_use_up_the_challenges_of_another() {
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.challenges_per_second_max = 10;
    });
    for port in [4_000, 5_000] {
        stage.come_from(port);
        stage.accepted("", 10_000);
        // The listener reports the next connection after it was found empty.
        assert_eq!(stage.engine.accept(stage.listener), None);
        while stage.engine.poll_event().is_some() {}
    }
    for _ in 0..100 {
        stage.remote("R 500:500(0)");
    }
    stage.expect(". 1:1(0) ack 1");
    stage.expect_nothing();
    stage.come_from(4_000);
    stage.remote("R 500:500(0)");
    assert_eq!(stage.engine.counters().challenges_sent, 2);
    assert_eq!(stage.engine.counters().challenges_suppressed, 99);
    stage.wait(Duration::from_millis(550));
    stage.remote("R 500:500(0)");
    assert_eq!(stage.engine.counters().challenges_sent, 3);
}

/// A flood of echo requests suppresses neither refusals nor challenges, and a flood of refusals
/// does not suppress challenges: each kind of answer has a limit of its own.
#[test]
fn floods_of_one_kind_silence_no_other_answers() {
    let mut stage = Stage::new(|config, _| {
        config.timestamps = false;
        config.challenges_per_second_max = 10;
        config.refusals_per_second_max = 10;
        config.echo_replies_per_second_max = 10;
    });
    stage.accepted("", 10_000);
    let ping = stage.echo_request();
    let before = stage.engine.counters().frames_sent;
    for _ in 0..100 {
        stage.raw(&ping);
    }
    let replies = stage.engine.counters().frames_sent - before;
    assert!((5..15).contains(&replies), "{replies} echo replies");
    stage.forget_sent();
    for _ in 0..100 {
        stage.come_from(9_999);
        stage.remote(". 1:1(0) ack 77");
    }
    let refusals = stage.engine.counters().resets_sent;
    assert!((5..15).contains(&refusals), "{refusals} refusals");
    assert_eq!(stage.engine.counters().refusals_suppressed, 100 - refusals);
    stage.come_from(4_321);
    stage.forget_sent();
    stage.remote("R 500:500(0)");
    stage.expect(". 1:1(0) ack 1");
    assert_eq!(stage.engine.counters().challenges_suppressed, 0);
}

//= RFC 9293#3.7.1
//= type=test
//# If an MSS Option is not received at connection setup, TCP implementations MUST assume a
//# default send MSS of 536 (576 - 40) for IPv4 or 1220 (1280 - 60) for IPv6 (MUST-15).
/// RFC 9293 section 3.7.1: a remote that announces no MSS gets segments of 536 bytes.
#[test]
fn segments_are_small_for_a_remote_without_mss_option() {
    let mut stage = plain();
    stage.remote("S 0:0(0) win 65535");
    stage.expect("S. 0:0(0) ack 1 <mss 1460>");
    stage.remote(". 1:1(0) ack 1");
    let id = stage.engine.accept(stage.listener).unwrap();
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect(". 1:537(536) ack 1");
    stage.expect("P. 537:1001(464) ack 1");
}

/// RFC 8899 section 5.1.1: a path that a router reported as narrow is tried again after ten
/// minutes, and not earlier.
#[test]
fn a_narrow_path_is_tried_again() {
    let mut stage = plain();
    let id = stage.accepted(",sackOK", 60_000);
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect("P. 1:1001(1000) ack 1");
    stage.raw(&stage.too_big(1, 600));
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 1001 win 60000");
    assert_eq!(stage.engine.info(id).unwrap().mss, 560);
    stage.wait(Duration::from_secs(599));
    stage.engine.publish(id, 2_120).unwrap();
    stage.expect(". 1001:1561(560) ack 1");
    stage.expect("P. 1561:2121(560) ack 1");
    stage.remote(". 1:1(0) ack 2121 win 60000");
    stage.wait(Duration::from_secs(2));
    stage.engine.publish(id, 4_120).unwrap();
    stage.expect(". 2121:3121(1000) ack 1");
    stage.forget_sent();
    stage.remote(". 1:1(0) ack 4121 win 60000");
    assert_eq!(stage.engine.info(id).unwrap().mss, 1_000);
}

/// A flood of SYNs gets a limited number of cookies per second, and uses up no other answers.
#[test]
fn cookies_are_limited() {
    let mut stage = Stage::new(|config, _| {
        config.half_open_max = 0;
        config.cookies_per_second_max = 10;
        config.refusals_per_second_max = 10;
    });
    for port in 4_000..4_100 {
        stage.come_from(port);
        stage.remote("S 0:0(0) win 65535 <mss 1000>");
    }
    let counters = stage.engine.counters();
    let sent = counters.cookies_sent;
    assert!((5..15).contains(&sent), "{sent} cookies");
    assert_eq!(counters.cookies_suppressed, 100 - sent);
    stage.forget_sent();
    stage.come_from(9_999);
    stage.remote("S. 1:1(0) ack 77 win 100");
    assert_eq!(stage.engine.counters().resets_sent, 1);
    stage.wait(Duration::from_secs(1));
    stage.come_from(4_000);
    stage.remote("S 0:0(0) win 65535 <mss 1000>");
    assert_eq!(stage.engine.counters().cookies_sent, sent + 1);
}

/// Like Linux: an option of an illegal length ends the options, and the segment is still accepted.
#[test]
fn a_syn_with_a_bad_option_is_answered_without_it() {
    let mut stage = plain();
    let mut syn = stage.packet("S 0:0(0) win 65535 <mss 1460,sackOK>", [10, 0, 0, 2]);
    let (tcp, end) = (20, syn.len());
    syn[end - 4..].copy_from_slice(&[99, 30, 0, 0]);
    syn[tcp + 16..tcp + 18].fill(0);
    let pseudo = ChecksumSum::ZERO.bytes(&syn[12..20]).word(6);
    let sum = pseudo.word((end - tcp) as u16).bytes(&syn[tcp..]);
    syn[tcp + 16..tcp + 18].copy_from_slice(&sum.checksum());
    stage.raw(&syn);
    assert_eq!(stage.engine.counters().malformed(Malformed::TcpOption), 1);
    stage.expect("S. 0:0(0) ack 1 <mss 1460>");
}

/// RFC 8200 section 4.1: destination options may stand behind the fragment header.
#[test]
fn fragments_may_have_options_before_the_segment() {
    let config = Config::new(Medium::Ip, 1_500, on_link("fd00::1"));
    let mut engine = Engine::new(config, Random::new(42));
    let listening = engine.listen(Family::V6.anywhere(), 16, Options::default());
    listening.expect("a new engine has no listener");
    let [source, destination] = ["fd00::2", "fd00::1"].map(|text| {
        let address: Ipv6Addr = text.parse().expect("an address");
        address.octets()
    });
    let mut tcp = vec![
        16, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 255, 255, 0, 0, 0, 0,
    ];
    let pseudo = ChecksumSum::ZERO.bytes(&source).bytes(&destination);
    let checksum = pseudo.word(6).word(20).bytes(&tcp).checksum();
    tcp[16..18].copy_from_slice(&checksum);
    let whole = [&[6, 0, 1, 4, 0, 0, 0, 0][..], &tcp].concat();
    let mut rings = Rings::default();
    for (from, to, more) in [(0, 16, 1), (16, 28, 0)] {
        let mut packet = vec![0x60, 0, 0, 0, 0, 8 + (to - from) as u8, 44, 64];
        packet.extend(source);
        packet.extend(destination);
        packet.extend([60, 0, 0, from as u8 | more, 0, 0, 0, 7]);
        packet.extend(&whole[from..to]);
        let offload = ReceiveOffload::default();
        engine.handle_frame(Instant::ZERO, &packet, offload, &mut rings);
    }
    let mut frame = vec![0; 70_000];
    let answer = engine.poll_frame(Instant::ZERO, &mut rings, &mut frame);
    assert!(answer.is_some(), "{:?}", engine.counters());
}
