//! Timestamps (RFC 7323), as scripts of segments.

use crate::script::Stage;
use toehold_tcp::sim::checker;
use toehold_tcp::{ConnectionId, Duration, Options};

/// A connection with timestamps, whose remote is 100 ms away.
fn with_timestamps() -> (Stage, ConnectionId) {
    let mut stage = Stage::new(|_, options| options.nodelay = true);
    stage.remote("S 0:0(0) win 65535 <mss 1012,sackOK,TS>");
    stage.expect("S. 0:0(0) ack 1 <TS>");
    stage.wait(Duration::from_millis(100));
    stage.remote(". 1:1(0) ack 1 win 60000 <TS>");
    let id = stage.engine.accept(stage.listener).unwrap();
    (stage, id)
}

/// TSecr of the engine's next segment.
#[track_caller]
fn next_echo(stage: &mut Stage) -> u32 {
    let bytes = stage.next_sent();
    let packet = checker::parse(&bytes).expect("the engine sends TCP");
    packet.timestamps.expect("timestamps were agreed upon").1
}

#[test]
fn the_clock_goes_with_time() {
    let (mut stage, id) = with_timestamps();
    let mut sent = 0u64;
    let mut clock_after = |span| {
        stage.wait(span);
        sent += 1;
        stage.engine.publish(id, sent).unwrap();
        stage.expect(&format!("P. {sent}:{}(1) ack 1 <TS>", sent + 1));
        stage.remote(&format!(". 1:1(0) ack {} win 60000 <TS>", sent + 1));
        stage.engine_clock
    };
    let begin = clock_after(Duration::ZERO);
    //= RFC 7323#5.4
    //= type=test
    //# It MUST tick at least once for each 2^31 bytes sent.
    // 2^31 bytes take 1.7 ms at 10 Tbit/s, and no link is that fast.
    let span = Duration::from_micros((8 << 31) / 10_000_000);
    let tick = clock_after(span).wrapping_sub(begin);
    assert!(tick >= 1, "no tick in {span:?}");
    //= RFC 7323#4.1
    //= type=test
    //# Values of this clock MUST be at least approximately proportional to real time, in order to
    //# measure actual RTT.
    let mut last = begin.wrapping_add(tick);
    for seconds in [1, 10, 100, 1_000, 86_400] {
        let clock = clock_after(Duration::from_secs(seconds));
        let ticks_per_second = f64::from(clock.wrapping_sub(last)) / seconds as f64;
        assert!((970.0..=980.0).contains(&ticks_per_second), "{seconds} s");
        last = clock;
    }
    //= RFC 7323#5.4
    //= type=test
    //# The recycling time of the timestamp clock MUST be greater than MSL seconds.
    // MSL is two minutes (RFC 9293 section 3.4.2). The clock does not wrap in more than a day.
    assert!(last.wrapping_sub(begin) > 86_400 * 970);
}

#[test]
fn the_segment_that_fills_a_gap_is_echoed() {
    let (mut stage, id) = with_timestamps();
    stage.remote("P. 1:11(10) ack 1 <TS 2001>");
    assert_eq!(next_echo(&mut stage), 2_001);
    // RFC 7323 section 4.3 (B): the timestamp of a segment after a gap is not echoed.
    stage.remote("P. 21:31(10) ack 1 <TS 2003>");
    assert_eq!(next_echo(&mut stage), 2_001);
    //= RFC 7323#4.3
    //= type=test
    //# Thus, the timestamp from the latest segment (which filled the hole) MUST be echoed.
    stage.remote("P. 11:21(10) ack 1 <TS 2005>");
    assert_eq!(next_echo(&mut stage), 2_005);
    assert_eq!(stage.engine.info(id).unwrap().received, 30);
}

#[test]
fn a_segment_is_judged_when_it_arrives_and_never_again() {
    let (mut stage, id) = with_timestamps();
    stage.remote("P. 1:11(10) ack 1 <TS 2001>");
    stage.expect(". 1:1(0) ack 11 <sack>");
    //= RFC 7323#5.3
    //= type=test
    //# It is important to note that the timestamp MUST be checked only when a segment first
    //# arrives at the receiver, regardless of whether it is in sequence or it must be queued for
    //# later delivery.
    stage.remote("P. 21:31(10) ack 1 <TS 1999>");
    stage.expect(". 1:1(0) ack 11 <sack>");
    stage.remote("P. 21:31(10) ack 1 <TS 2003>");
    stage.expect(". 1:1(0) ack 11 <sack 21:31>");
    // By now the waiting segment is older than the latest one. It is still delivered.
    stage.remote("P. 11:21(10) ack 1 <TS 2005>");
    stage.expect(". 1:1(0) ack 31 <sack>");
    assert_eq!(stage.engine.info(id).unwrap().received, 30);
}

#[test]
fn an_echo_without_an_acknowledgement_measures_nothing() {
    //= RFC 7323#3.2
    //= type=test
    //# When the ACK bit is not set, the receiver MUST ignore the value of the TSecr field.
    // A simultaneous open: the SYN of the remote acknowledges nothing, and echoes our timestamp.
    let mut stage = Stage::new(|_, _| {});
    let id = stage.connect(Options::default());
    stage.expect("S 0:0(0) <TS>");
    stage.wait(Duration::from_millis(300));
    stage.remote("S 0:0(0) win 10000 <mss 1012,TS>");
    stage.expect("S. 0:0(0) ack 1 <TS>");
    assert_eq!(stage.engine.info(id).unwrap().round_trip, None);
    // A similar check on an established connection, with data in flight.
    let (mut stage, id) = with_timestamps();
    stage.engine.publish(id, 1_000).unwrap();
    stage.expect("P. 1:1001(1000) ack 1 <TS>");
    let before = stage.engine.info(id).unwrap().round_trip;
    stage.wait(Duration::from_millis(50));
    stage.remote("- 1:11(10) ack 1001 win 60000 <TS>");
    let after = stage.engine.info(id).unwrap();
    assert_eq!(after.round_trip, before);
    assert_eq!((after.acknowledged, after.received), (0, 0));
}

/// A remote that always echoes zero tells nothing, whatever our clock says.
#[test]
fn echo_of_zero_undoes_no_answer_to_a_loss() {
    for port in 4_000..4_008 {
        let mut stage = Stage::new(|config, options| {
            config.window_scaling = false;
            config.tail_probes = false;
            options.nodelay = true;
        });
        stage.come_from(port);
        stage.remote("S 0:0(0) win 65535 <mss 1012,sackOK,TS>");
        stage.expect("S. 0:0(0) ack 1 <TS>");
        stage.wait(Duration::from_millis(20));
        stage.remote(". 1:1(0) ack 1 win 60000 <TS>");
        let id = stage.engine.accept(stage.listener).unwrap();
        stage.engine.publish(id, 3_000).unwrap();
        stage.forget_sent();
        stage.wait(Duration::from_secs(2));
        assert!(stage.engine.counters().timeouts > 0);
        stage.forget_sent();
        let clock = stage.remote_clock;
        stage.remote(&format!(". 1:1(0) ack 1001 win 60000 <TS {clock}:0>"));
        assert_eq!(stage.engine.counters().recoveries_undone, 0, "port {port}");
        assert_eq!(stage.engine.info(id).unwrap().acknowledged, 1_000);
    }
}
