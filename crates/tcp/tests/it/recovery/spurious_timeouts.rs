//! Timeouts that were a mistake, and those that were not (F-RTO, RFC 5682).

use crate::script::Stage;

/// Ten segments without an answer until the first of them is sent again.
fn after_a_timeout(syn_options: &str) -> Stage {
    let mut stage = Stage::new(|config, options| {
        config.timestamps = false;
        config.window_scaling = false;
        config.tail_probes = false;
        options.nodelay = true;
    });
    let id = stage.accepted(syn_options, 60_000);
    stage.engine.publish(id, 30_000).unwrap();
    for segment in 0..10 {
        let (from, to) = (segment * 1_000 + 1, segment * 1_000 + 1_001);
        stage.expect(&format!(". {from}:{to}(1000) ack 1"));
    }
    let timeout = stage.engine.info(id).unwrap().timeout;
    stage.wait(timeout);
    stage.expect(". 1:1001(1000) ack 1");
    assert_eq!(stage.engine.counters().timeouts, 1);
    stage.expect_nothing();
    stage
}

/// RFC 5682 section 2.1: the flight was late, not lost. Only its first segment is sent again.
#[test]
fn a_spurious_timeout_is_undone_without_timestamps() {
    for syn_options in ["", ",sackOK"] {
        let mut stage = after_a_timeout(syn_options);
        stage.remote(". 1:1(0) ack 2001 win 60000");
        stage.expect(". 10001:11001(1000) ack 1");
        stage.expect(". 11001:12001(1000) ack 1");
        stage.expect_nothing();
        stage.remote(". 1:1(0) ack 4001 win 60000");
        assert_eq!(stage.engine.counters().recoveries_undone, 1);
        stage.expect(". 12001:13001(1000) ack 1");
        stage.expect(". 13001:14001(1000) ack 1");
        stage.expect_nothing();
        stage.remote(". 1:1(0) ack 14001 win 60000");
        assert_eq!(stage.engine.counters().retransmissions, 1);
    }
}

/// RFC 5682 section 3.1 step 3b: a block that reports a segment of the flight is a proof as well.
#[test]
fn a_spurious_timeout_is_undone_by_a_block() {
    let mut stage = after_a_timeout(",sackOK");
    stage.remote(". 1:1(0) ack 1001 win 60000");
    stage.expect(". 10001:11001(1000) ack 1");
    stage.expect(". 11001:12001(1000) ack 1");
    stage.remote(". 1:1(0) ack 1001 win 60000 <sack 2001:3001>");
    assert_eq!(stage.engine.counters().recoveries_undone, 1);
}

/// RFC 5682 section 2.1 step 3a, and section 3.1: only segments that were sent afterwards arrive.
#[test]
fn a_timeout_that_was_right_goes_on_after_two_new_segments() {
    for (syn_options, blocks) in [("", ""), (",sackOK", " <sack 10001:11001>")] {
        let mut stage = after_a_timeout(syn_options);
        stage.remote(". 1:1(0) ack 1001 win 60000");
        stage.expect(". 10001:11001(1000) ack 1");
        stage.expect(". 11001:12001(1000) ack 1");
        stage.expect_nothing();
        stage.remote(&format!(". 1:1(0) ack 1001 win 60000{blocks}"));
        stage.expect(". 1001:2001(1000) ack 1");
        assert_eq!(stage.engine.counters().recoveries_undone, 0);
    }
}

/// RFC 5682 section 2.1 step 2a: an acknowledgement of all data, or of none, proves nothing.
#[test]
fn a_timeout_is_believed_when_nothing_can_be_tried() {
    let mut stage = after_a_timeout("");
    stage.remote(". 1:1(0) ack 1 win 60000");
    stage.remote(". 1:1(0) ack 1001 win 60000");
    stage.expect(". 1001:2001(1000) ack 1");
    // The window has no room for new data.
    let mut stage = after_a_timeout(",sackOK");
    stage.remote(". 1:1(0) ack 1001 win 9000");
    stage.expect(". 1001:2001(1000) ack 1");
}
