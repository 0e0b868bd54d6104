//! Bytes that go by the carrier, and the windows of both ends.

use super::*;

#[test]
fn bytes_go_both_ways_whole() {
    let mut bench = Bench::new();
    bench.remote_says(300_000);
    assert!(bench.read(300_000) == pattern(300_000));
    bench.write(&pattern(300_000));
    bench.pass(Duration::from_secs(1));
    assert!(bench.rings.0 == pattern(300_000));
}

#[test]
fn program_that_does_not_read_closes_the_window_and_loses_nothing() {
    let mut bench = Bench::new();
    bench.remote_says(MUCH as u64);
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    let (taken, received) = (bench.flow.taken, bench.flow.received);
    assert!(taken > 0, "its socket takes some");
    assert!(received < MUCH as u64, "the window is closed");
    assert!(received - taken <= 1 << WINDOW_LOG2);
    assert!(bench.flow.taken < bench.flow.arrived);
    assert!(bench.read(MUCH) == pattern(MUCH));
    assert_eq!(bench.flow.taken, bench.flow.arrived);
}

/// The remote's bytes fill the program's receive buffer, the carrier and our ring.
#[test]
fn remote_can_send_little_to_a_program_that_does_not_read() {
    let mut bench = Bench::new();
    bench.remote_says(MUCH as u64);
    assert_eq!(bench.pass(Duration::from_secs(60)), Next::Wait);
    let (received, taken) = (bench.flow.received, bench.flow.taken);
    assert!(
        received <= 256 << 10,
        "{received} bytes unread, {taken} in the carrier"
    );
    assert!(bench.read(MUCH) == pattern(MUCH));
    assert!(bench.flow.window.is_of_reader());
}

#[test]
fn remote_that_does_not_read_fills_a_small_ring_and_no_more() {
    let mut bench = Bench::new();
    bench.remote_reads = false;
    let sent = bench.stuff();
    let flow = &bench.flow;
    let unacknowledged = flow.published - flow.acknowledged;
    assert!(unacknowledged <= 256 << 10, "{unacknowledged} bytes");
    assert!(
        sent as u64 > flow.published,
        "the rest is in the program's socket"
    );
    bench.remote_reads = true;
    bench.pass(Duration::from_secs(300));
    assert_eq!(bench.rings.0.len(), sent);
    assert!(bench.rings.0 == pattern(sent));
}

#[test]
fn windows_grow_with_the_length_of_the_path() {
    let mut bench = Bench::with_long_path();
    let much = 96 << 20;
    // The connection measures a round trip when it sends data.
    bench.program.write_all(b"x").expect("room");
    assert_eq!(bench.advance(), Next::Wait);
    for _ in 0..3 {
        assert_eq!(bench.travel(LONG_PATH), Next::Wait);
    }
    bench.rings = Rings::default();
    bench.remote_says(much);
    let mut buffer = vec![0; 1 << 20];
    let mut got = 0;
    while got < much {
        assert_eq!(bench.travel(LONG_PATH), Next::Wait);
        while let Ok(count) = bench.program.read(&mut buffer) {
            assert!(count > 0 && is_pattern_from(got, &buffer[..count]));
            got += count as u64;
            assert_eq!(bench.advance(), Next::Wait);
        }
    }
    let info = bench.engine.info(bench.flow.id).expect("open");
    assert!(
        info.receive_limit >= 16 << 20,
        "{} bytes",
        info.receive_limit
    );
    let bytes = pattern_from(1, 32 << 20);
    let mut sent = 0;
    let mut in_flight = 0;
    while bench.flow.acknowledged <= bytes.len() as u64 {
        while let Ok(count @ 1..) = bench.program.write(&bytes[sent..]) {
            sent += count;
            assert_eq!(bench.advance(), Next::Wait);
        }
        assert_eq!(bench.travel(LONG_PATH), Next::Wait);
        in_flight = in_flight.max(bench.engine.info(bench.flow.id).expect("open").in_flight);
    }
    assert!(in_flight > 6 << 20, "{in_flight} bytes");
    assert!(bench.rings.0[1..] == bytes);
}
