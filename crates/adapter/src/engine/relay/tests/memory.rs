//! Tests of a connection's memory, and of a connection that gets no memory.

use super::*;
use crate::engine::{memory, rings};

/// Another connection has used up the budget: segments are dropped until there is room again.
#[test]
fn bytes_without_memory_are_dropped_and_come_again() {
    let mut bench = Bench::new();
    bench.streams = Streams::new(8 << 10);
    bench.remote_says(100_000);
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    assert_eq!(bench.flow.received, 0);
    assert!(bench.engine.counters().host_had_no_room > 0);
    assert!(bench.streams.rings().refused() > 0);
    bench.streams.rings().set_budget(1 << 20);
    assert_eq!(bench.pass(Duration::from_secs(10)), Next::Wait);
    assert!(bench.read(100_000) == pattern(100_000));
}

#[test]
fn rings_grow_and_keep_what_is_in_them() {
    let mut streams = Streams::new(1 << 30);
    let id = Bench::new().flow.id;
    let all = pattern(200_000);
    // Early bytes come first, around the end of the first ring; then the bytes before them.
    let place = |streams: &mut Streams, from: usize, to: usize| {
        streams
            .place(id, from as u64, &all[from..to])
            .expect("within the budget");
    };
    place(&mut streams, 15_000, 16_000);
    place(&mut streams, 60_000, 61_000);
    place(&mut streams, 0, 15_000);
    streams.take(id, 10_000);
    place(&mut streams, 16_000, 60_000);
    place(&mut streams, 61_000, 200_000);
    let arrived = streams.arrived(id, 200_000).concat();
    assert!(arrived == all[10_000..]);
    assert_eq!(streams.rings().held_bytes(), 256 << 10);
    streams.forget(id);
    assert_eq!(streams.rings().held_bytes(), 0);
}

/// One byte in each page of the window occupies the whole window. The remote sends again the bytes
/// that were discarded.
#[test]
fn early_bytes_that_were_discarded_come_again() {
    let mut bench = Bench::new();
    let remote_id = bench.remote_id;
    bench.remote.publish(remote_id, 60_000).expect("connected");
    let mut frames = Vec::new();
    let mut frame = vec![0; 70_000];
    while let Some((len, _)) = bench
        .remote
        .poll_frame(bench.now, &mut bench.rings, &mut frame)
    {
        frames.push(frame[..len].to_vec());
    }
    let (now, offload) = (bench.now, ReceiveOffload::default());
    for frame in &frames[1..] {
        bench
            .engine
            .handle_frame(now, frame, offload, &mut bench.streams);
    }
    let id = bench.flow.id;
    let early = bench.engine.early_bytes(id);
    assert!(early > 10_000, "{early}");
    assert!(bench.streams.receiving_bytes(id) > 0);
    bench.engine.discard_early(id).expect("connected");
    bench.streams.discard_early(id, 0);
    assert_eq!(bench.engine.early_bytes(id), 0);
    assert_eq!(bench.streams.rings().held_bytes(), 0);
    assert_eq!(bench.engine.counters().early_bytes_discarded, early);
    assert_eq!(bench.pass(Duration::from_secs(10)), Next::Wait);
    assert!(bench.read(60_000) == pattern(60_000));
}

#[test]
fn state_of_a_connection_is_counted_in_full() {
    let bench = Bench::new();
    let info = bench.engine.info(bench.flow.id).expect("connected");
    let ours = size_of::<Option<Flow>>() + memory::DUPLEX_BYTES;
    // The largest number of ranges of early bytes, and a scoreboard that has grown.
    let heap = 2_048 + 512;
    assert!(info.memory_bytes + ours + heap <= rings::CONNECTION_BYTES);
}

/// The window of a reader follows the ring that the budget allows, down and up again.
#[test]
fn reader_without_a_larger_ring_loses_few_segments() {
    let mut bench = Bench::connected(SHORT_PATH, |_| {});
    // Half of the budget is for larger rings, and the next size takes 64 KiB.
    bench.streams.rings().set_budget(100 << 10);
    bench.stream(SHORT_PATH, 8 << 20);
    let dropped = bench.engine.counters().host_had_no_room;
    assert!(dropped > 0, "the first window is larger than a first ring");
    assert!(dropped < 100, "{dropped} segments");
    assert!(bench.remote.counters().timeouts <= 1, "of the first window");
    assert!(bench.receive_limit() as usize <= rings::RING_BYTES_MIN);
    bench.streams.rings().set_budget(1 << 30);
    bench.stream(SHORT_PATH, 16 << 20);
    assert!(bench.receive_limit() > RECEIVE_BYTES);
}

/// A program announces that it has read only when it crosses half of its ring. A window smaller
/// than that would be used up first, and nothing would open it again.
#[test]
fn window_of_a_channel_does_not_follow_the_budget() {
    for much_before in [0, tcp_config::PROOF_OF_READING_BYTES] {
        let mut bench = Bench::new();
        // Half of the budget is for larger rings, and the next size takes 64 KiB.
        bench.streams.rings().set_budget(100 << 10);
        if much_before > 0 {
            bench.stream(SHORT_PATH, much_before);
        }
        // A flight that is larger than the ring. The stream goes on as soon as the flight is
        // delivered.
        bench.remote_says(MUCH as u64);
        bench.exchange();
        assert!(bench.engine.counters().host_had_no_room > 0);
        let program = bench.with_new_channel();
        let mut got = bench.read_carrier();
        while got.len() < MUCH - much_before as usize {
            assert_eq!(bench.pass(Duration::from_secs(10)), Next::Wait);
            let endpoint = bench.streams.endpoint(bench.flow.id).expect("there");
            let half = endpoint.window_bytes() / 2;
            let unread = bench.flow.received - bench.flow.taken;
            let is_end = bench.flow.received == MUCH as u64;
            assert!(is_end || unread >= half, "{unread} bytes, half is {half}");
            got.extend(program.read(MUCH, bench.flow.carrier.sent));
            bench.streams.rings().set_budget(1 << 30);
        }
        assert!(got == pattern_from(much_before, MUCH - much_before as usize));
    }
}

const SHORT_PATH: Duration = Duration::from_micros(200);
