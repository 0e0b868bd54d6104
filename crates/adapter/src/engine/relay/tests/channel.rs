//! Bytes that go by the rings of a channel, and the way back to the carrier.

use toehold_stream::leaving::Refusal;

use super::*;

#[test]
fn bytes_go_by_rings_both_ways() {
    let mut bench = Bench::new();
    bench.write(b"by the carrier ");
    let program = bench.with_channel();
    program.write(b"by the ring");
    assert_eq!(bench.turn(), Next::Wait);
    bench.remote_says(1_000);
    assert_eq!(bench.turn(), Next::Wait);
    assert_eq!(bench.rings.0, b"by the carrier by the ring");
    let got = bench.flow.carrier.sent;
    assert!(program.read(2_000, got) == pattern(1_000));
    assert_eq!(bench.flow.carrier.sent, 0, "nothing by the carrier");
}

#[test]
fn window_of_a_channel_closes_and_opens_with_the_program_s_reading() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    bench.remote_says(MUCH as u64);
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    // The window field counts in steps of 512 bytes.
    let unread = bench.flow.received - bench.flow.taken;
    assert!(((1 << WINDOW_LOG2) - 512..=1 << WINDOW_LOG2).contains(&unread));
    let endpoint = bench.streams.endpoint(bench.flow.id).expect("there");
    assert!(endpoint.is_up(), "the program can be rung for");
    let wants = &program.end().theirs().wake.want_credit;
    assert_eq!(wants.load(std::sync::atomic::Ordering::SeqCst), 1);
    let mut got = Vec::new();
    while got.len() < MUCH {
        got.extend(program.read(300_000, bench.flow.carrier.sent));
        assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    }
    assert!(got == pattern(MUCH));
}

/// The remote may send more than a carrier holds only once the program has shown that it reads.
#[test]
fn ring_of_a_program_becomes_larger_once_it_has_read() {
    let mut bench = Bench::new();
    let program = bench.with_new_channel();
    bench.remote_says(MUCH as u64);
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    let unread = bench.flow.received - bench.flow.taken;
    assert!(unread <= 64 << 10, "{unread} bytes");
    let mut got = Vec::new();
    while got.len() < MUCH {
        got.extend(program.read(MUCH, bench.flow.carrier.sent));
        assert_eq!(
            bench.turn(),
            Next::Wait,
            "no probe of a closed window is needed"
        );
    }
    assert!(got == pattern(MUCH));
    let endpoint = bench.streams.endpoint(bench.flow.id).expect("there");
    assert_eq!(endpoint.window_bytes(), 1 << WINDOW_LOG2);
    let info = bench.engine.info(bench.flow.id).expect("open");
    assert_eq!(info.receive_limit, 1 << WINDOW_LOG2);
}

/// A remote on a long path is in slow start when the program has read the first window. A window
/// that stayed small would cost it round trips.
#[test]
fn first_window_read_from_the_ring_is_proof_of_reading() {
    let mut bench = Bench::new();
    bench.remote_says(1_000);
    assert_eq!(bench.turn(), Next::Wait);
    let program = bench.with_new_channel();
    bench.remote_says(RECEIVE_BYTES.into());
    let mut got = bench.read_carrier();
    while got.len() < RECEIVE_BYTES as usize {
        assert_eq!(bench.receive_limit(), RECEIVE_BYTES);
        got.extend(program.read(16 << 10, bench.flow.carrier.sent));
        assert_eq!(bench.turn(), Next::Wait);
    }
    assert!(got == pattern(RECEIVE_BYTES as usize));
    // The next bytes find the ring empty, so it becomes larger.
    bench.remote_says(u64::from(RECEIVE_BYTES) + 1_000);
    assert_eq!(bench.turn(), Next::Wait);
    assert_eq!(bench.receive_limit(), 1 << WINDOW_LOG2);
}

/// Bytes that wait in the carrier's buffers are not read, even if the ring has become the way of
/// the next ones.
#[test]
fn bytes_in_the_carrier_are_no_proof_of_reading() {
    let mut bench = Bench::new();
    bench.remote_says(2 * u64::from(RECEIVE_BYTES));
    assert_eq!(bench.turn(), Next::Wait);
    assert!(bench.flow.taken >= RECEIVE_BYTES.into(), "in the carrier");
    let _program = bench.with_new_channel();
    assert_eq!(bench.turn(), Next::Wait);
    assert_eq!(bench.receive_limit(), RECEIVE_BYTES);
}

/// The remote never fills half of a large ring, so the program would never announce new room.
#[test]
fn remote_without_window_scaling_goes_on_when_the_program_has_read() {
    let mut bench = Bench::with_remote(|config| config.window_scaling = false);
    let program = bench.with_new_channel();
    bench.remote_says(MUCH as u64);
    let mut got = Vec::new();
    while got.len() < MUCH {
        assert_eq!(bench.turn(), Next::Wait);
        let wants = &program.end().theirs().wake.want_credit;
        assert_eq!(wants.load(std::sync::atomic::Ordering::SeqCst), 1);
        let before = got.len();
        got.extend(program.read(MUCH, bench.flow.carrier.sent));
        assert!(got.len() > before, "the window does not stay closed");
    }
    assert!(got == pattern(MUCH));
}

/// The program's descriptor goes to a program that knows nothing of rings. The second program reads
/// on where the first one stopped.
#[test]
fn bytes_that_a_program_leaves_in_its_ring_come_by_the_carrier() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    bench.remote_says(1_000);
    assert_eq!(bench.turn(), Next::Wait);
    assert!(program.read(400, bench.flow.carrier.sent) == pattern(400));
    assert!(program.end().ask_to_resend());
    program.end().refuse(Refusal::Paused);
    assert_eq!(bench.turn(), Next::Wait);
    bench.remote_says(1_500);
    assert_eq!(bench.turn(), Next::Wait);
    let mut buffer = [0; 2_000];
    let mut got: Vec<u8> = Vec::new();
    while let Ok(count) = bench.program.read(&mut buffer) {
        got.extend(&buffer[..count]);
    }
    assert!(got == pattern_from(400, 1_100));
    assert_eq!(bench.flow.taken, 1_500);
}

/// The rings of a channel hold 4 MB: a connection that needs more is served by its carrier.
#[test]
fn connection_with_more_in_flight_than_rings_hold_leaves_its_channel() {
    let mut bench = Bench::with_long_path();
    let much: u64 = 96 << 20;
    let program = bench.with_rings(LONG_WINDOW_LOG2, LONG_WINDOW_LOG2);
    bench.remote_says(much);
    let mut buffer = vec![0; 1 << 20];
    let mut got = 0;
    let mut in_ring = true;
    while got < much {
        if in_ring {
            // The connection measures a round trip when it sends data.
            program.write(b"x");
        }
        assert_eq!(bench.travel(LONG_PATH), Next::Wait);
        if in_ring {
            let bytes = program.read(MUCH, 0);
            assert!(is_pattern_from(got, &bytes));
            got += bytes.len() as u64;
        }
        while let Ok(count) = bench.program.read(&mut buffer) {
            got += count as u64;
        }
        if in_ring && bench.flow.outgrows_channel && program.end().rx_mode() == Mode::Carrier {
            in_ring = false;
            program.go_down();
            program.leave();
        }
        assert_eq!(bench.advance(), Next::Wait);
    }
    assert!(!in_ring && bench.streams.endpoint(bench.flow.id).is_none());
    let info = bench.engine.info(bench.flow.id).expect("open");
    assert!(info.receive_limit > 4 << 20, "{} bytes", info.receive_limit);
}

/// The program may ask for the channel later than we do; the channel exists once both have asked.
#[test]
fn connection_that_outgrows_its_channel_before_it_is_there_gives_it_back() {
    let mut bench = Bench::with_long_path();
    bench.flow.beside = ChannelState::Asked { entry: 0 };
    let mut sent = 0;
    while !bench.flow.outgrows_channel {
        assert!(sent < 256 << 20, "more than any window");
        // The connection measures a round trip when it sends data.
        bench.program.write_all(b"x").expect("room");
        sent += 8 << 20;
        bench.stream(LONG_PATH, sent);
    }
    let (mut endpoint, program) = endpoints::channel();
    program.attach();
    let key = ChannelKey {
        entry: 0,
        place: (0, 0),
    };
    let before = bench.receive_limit();
    let (engine, now) = (&mut bench.engine, bench.now);
    bench.flow.take_channel(key, &mut endpoint, engine, now);
    bench.streams.set_endpoint(bench.flow.id, Some(endpoint));
    assert_eq!(bench.turn(), Next::Wait);
    let endpoint = bench.streams.endpoint(bench.flow.id).expect("just set");
    assert!(!endpoint.is_up() && bench.receive_limit() >= before);
    program.leave();
    assert_eq!(bench.turn(), Next::Wait);
    assert!(bench.streams.endpoint(bench.flow.id).is_none());
    assert_eq!(bench.flow.beside, ChannelState::Nothing);
    bench.stream(LONG_PATH, sent + 100);
}

/// Round trips of a short path become long while data waits in queues or a processor is busy. A
/// larger window would not make such a connection faster.
#[test]
fn connection_over_a_short_path_keeps_its_channel_whatever_waits() {
    let mut bench = Bench::new();
    let much: u64 = 32 << 20;
    let program = bench.with_rings(LONG_WINDOW_LOG2, LONG_WINDOW_LOG2);
    program.write(b"x");
    for _ in 0..2 {
        assert_eq!(bench.travel(Duration::from_micros(100)), Next::Wait);
    }
    bench.remote_says(much);
    let mut got = 0;
    while got < much {
        program.write(b"x");
        assert_eq!(bench.travel(LONG_PATH), Next::Wait);
        got += program.read(MUCH, 0).len() as u64;
        assert!(!bench.flow.outgrows_channel, "after {got} bytes");
    }
    let info = bench.engine.info(bench.flow.id).expect("open");
    assert!(info.round_trip.expect("measured") > Duration::from_millis(4));
    assert!(bench.streams.endpoint(bench.flow.id).is_some());
}

#[test]
fn evicted_channel_is_left_and_the_streams_go_on_by_the_carrier() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    program.write(b"ring ");
    bench.remote_says(10);
    assert_eq!(bench.turn(), Next::Wait);
    let endpoint = bench.streams.endpoint(bench.flow.id).expect("there");
    endpoint.command(COMMAND_EVICT);
    assert_eq!(bench.turn(), Next::Wait);
    bench.remote_says(20);
    assert_eq!(bench.turn(), Next::Wait);
    let endpoint = bench
        .streams
        .endpoint(bench.flow.id)
        .expect("until both have left");
    assert!(!endpoint.is_up());
    assert_eq!(program.read(100, 0), pattern(10));
    assert!(program.read(100, 0).is_empty());
    assert_eq!(program.end().rx_mode(), Mode::Carrier);
    program.go_down();
    assert_eq!(bench.turn(), Next::Wait);
    program.leave();
    assert_eq!(bench.turn(), Next::Wait);
    assert!(bench.streams.endpoint(bench.flow.id).is_none());
    assert_eq!(bench.read(10), pattern_from(10, 10));
    bench.write(b"carrier");
    assert_eq!(bench.rings.0, b"ring carrier");
}

#[test]
fn program_that_writes_nonsense_is_gone() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    let tail = &program.end().ours().publish.tail;
    tail.store(1 << 40, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(bench.turn(), Next::ProgramGone);
}

#[test]
fn program_that_writes_past_its_library_is_gone() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    program.write(b"by its ring");
    bench.program.write_all(&[0]).expect("room");
    assert_eq!(bench.turn(), Next::Wait);
    bench.program.write_all(b"past it").expect("room");
    assert_eq!(bench.turn(), Next::ProgramGone);
}

#[test]
fn program_that_wants_the_kernel_alone_has_the_next_bytes_from_it() {
    let mut bench = Bench::new();
    let program = bench.with_channel();
    bench.remote_says(10);
    assert_eq!(bench.turn(), Next::Wait);
    // The program is about to give its descriptor to a program that knows nothing of rings.
    let refuse = &program.end().ours().wake.refuse;
    refuse.store(1, std::sync::atomic::Ordering::SeqCst);
    bench.remote_says(30);
    assert_eq!(bench.turn(), Next::Wait);
    assert_eq!(bench.read(20), pattern_from(10, 20));
    assert_eq!(program.read(100, 0), pattern(10));
}
