//! Unusual segments that are right, and what is to be made of them.

#[allow(dead_code, reason = "each of the tests uses some of it")]
mod script;

use script::Stage;
use toehold_tcp::Options;

/// Without timestamps, so that scripts are shorter.
fn plain() -> Stage {
    Stage::new(|config, _| config.timestamps = false)
}

/// RFC 2883 section 4.2: a segment that repeats a part, here one that arrived before its turn.
#[test]
fn partial_duplicates_are_reported() {
    let mut stage = plain();
    stage.accepted(",sackOK", 10_000);
    stage.remote("P. 1001:3001(2000) ack 1");
    stage.expect(". 1:1(0) ack 1 <sack 1001:3001>");
    stage.remote("P. 7001:8001(1000) ack 1");
    stage.expect(". 1:1(0) ack 1 <sack 7001:8001:1001:3001>");
    // In order, over what was early; the first of two parts counts.
    stage.remote("P. 1:6001(6000) ack 1");
    stage.expect(". 1:1(0) ack 6001 <sack 1001:3001:7001:8001>");
    // Early itself, and half of it known.
    stage.remote("P. 7501:9001(1500) ack 1");
    stage.expect(". 1:1(0) ack 6001 <sack 7501:8001:7001:9001>");
    stage.remote("P. 5001:9001(4000) ack 1");
    stage.expect(". 1:1(0) ack 9001 <sack 5001:6001>");
}

/// A remote that has filled the window acknowledges from its right edge, where the table of RFC 9293 section 3.4 ends.
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
    // One further is outside; and a reset at the edge is none.
    stage.remote(". 2002:2002(0) ack 501 win 10000");
    stage.expect(". 501:501(0) ack 1");
    stage.remote("R 2001:2001(0)");
    stage.expect_nothing();
    assert!(stage.engine.info(id).is_some());
}

/// RFC 1191 section 3.1, RFC 8201 section 5.3: all that was too large is sent again at once, and later connections know the path; what
/// they offer to receive depends on our own link.
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
