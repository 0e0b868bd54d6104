//! How losses are noticed, told and repaired: scripts of segments.

#[allow(dead_code, reason = "each of the tests uses some of it")]
mod script;

use script::Stage;

fn plain() -> Stage {
    Stage::new(|config, options| {
        config.timestamps = false;
        config.window_scaling = false;
        options.nodelay = true;
    })
}

/// RFC 5681 section 3.2 counts duplicates without payload, and RFC 2018 section 4 wants each of them to carry blocks: data of our own does
/// not go before what the remote has to know.
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
