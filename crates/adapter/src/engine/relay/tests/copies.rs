//! Payload that a copy engine copies to the ring, early and late.

use toehold_copy::{Channel, Faulty, InjectedFaults};

use super::*;

/// The number of bytes that a test sends.
const LONG: usize = 400_000;

/// A copy engine that copies everything, but late, out of order, and not reliably.
fn mischievous(seed: u64) -> Channel {
    let faults = InjectedFaults {
        seed,
        delay_polls_max: 9,
        reorder: true,
        partial_in_256: 16,
        full_in_256: 16,
        unable_in_256: 16,
        ..InjectedFaults::default()
    };
    Channel::new(Faulty::new(faults), 64)
}

#[test]
fn copies_that_end_in_any_order_are_published_in_the_order_of_the_stream() {
    let mut was_behind = false;
    for seed in 0..3 {
        let mut bench = Bench::new();
        let program = bench.with_channel();
        bench.streams.copying.use_channel(mischievous(seed), 100);
        bench.remote_says(LONG as u64);
        let mut got = Vec::new();
        while got.len() < LONG {
            assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
            was_behind |= bench.flow.received < bench.flow.arrived;
            let most = 1 + (seed as usize * 7_919) % 200_000;
            got.extend(program.read(most, bench.flow.carrier.sent));
        }
        assert!(got == pattern(LONG), "seed {seed}");
        let submitted = bench.streams.copying.submitted().0;
        assert!(submitted >= 20, "{submitted} copies");
    }
    assert!(was_behind, "some copies were late");
}

#[test]
fn copies_under_way_come_along_when_the_stream_goes_back_to_the_carrier() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    bench.streams.copying.use_channel(mischievous(1), 100);
    bench.remote_says(60_000);
    bench.exchange();
    bench.advance();
    let late = bench.flow.arrived - bench.flow.received;
    assert!(late > 0, "copies are under way");
    bench
        .streams
        .endpoint(bench.flow.id)
        .expect("there")
        .recall();
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    assert!(!bench.streams.copying.is_busy());
    let mut got = program.read(60_000, 0);
    // Bytes that were not published come by the carrier, after the carrier's doorbells.
    let rest = 60_000 - got.len();
    let carried = bench.read(bench.flow.carrier.sent as usize);
    got.extend(&carried[carried.len() - rest..]);
    assert!(got == pattern(60_000));
}

#[test]
fn a_ring_is_not_taken_away_under_a_copy() {
    let mut bench = Bench::new();
    let _program = bench.with_channel();
    bench.streams.copying.use_channel(mischievous(2), 100);
    bench.remote_says(60_000);
    bench.exchange();
    bench.advance();
    assert!(bench.streams.copying.is_busy());
    bench.streams.set_endpoint(bench.flow.id, None);
    assert!(!bench.streams.copying.is_busy());
}
