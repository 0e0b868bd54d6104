//! Carriers that serve one connection after another: how a turn ends.

use std::time::Instant as Clock;

use toehold_stream::express::Turn;
use toehold_stream::leaving::Refusal;

use super::*;
use crate::engine::carriers::Serving;
use crate::engine::channels::ChannelKey;
use crate::engine::listeners::Target;

const CHANNEL: ChannelState = ChannelState::Channel(ChannelKey {
    entry: 0,
    place: (0, 0),
});

impl Bench {
    /// A channel beside a carrier that may serve further connections.
    fn with_turns(&mut self) -> Program {
        let program = self.with_channel();
        // The program learns that we are in the ring before the first byte arrives.
        assert_eq!(program.read(1, self.flow.carrier.sent), b"");
        self.flow.beside = CHANNEL;
        let target = Target {
            holder: HOLDER,
            address: ([127, 0, 0, 1], 80).into(),
        };
        let serving = Serving::first(Some(target), 4_000, Clock::now());
        self.flow.serving = Some(serving);
        program
    }

    /// A program connects, and its carrier is to serve further connections. The remote has
    /// answered.
    fn answered(&mut self) {
        self.flow.opener = Opener::Program;
        self.flow.stage = Stage::Connecting;
        self.flow.serving = Some(Serving::first(None, 4_000, Clock::now()));
        self.flow.answer(Clock::now()).expect("a carrier");
    }

    /// True when the carrier can serve another connection.
    fn frees_carrier(self) -> bool {
        let Bench {
            flow, mut streams, ..
        } = self;
        let endpoint = flow.free_channel(&mut streams);
        endpoint.is_some_and(|endpoint| flow.into_reusable(endpoint).is_some())
    }

    /// True while the program reads no end of stream from its carrier.
    fn carrier_is_open(&mut self) -> bool {
        let read = self.program.read(&mut [0; 8]);
        !matches!(read, Ok(0)) && read.is_ok_and(|count| count > 0)
            || self.program.peek(&mut [0]).is_err()
    }
}

#[test]
fn program_hears_that_it_has_connected_when_we_have_our_end_of_its_channel() {
    let mut bench = Bench::new();
    bench.answered();
    let sent = bench.flow.carrier.sent;
    assert_eq!(bench.turn(), Next::Wait);
    assert_eq!(
        (bench.flow.stage, bench.flow.carrier.sent),
        (Stage::Answered, sent)
    );
    bench.flow.beside = CHANNEL;
    assert_eq!(bench.turn(), Next::Wait);
    assert_eq!(
        (bench.flow.stage, bench.flow.carrier.sent),
        (Stage::Pairing, sent + 1)
    );
    // The program has no end of the channel, and sends by its carrier.
    bench.write(b"request");
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Wait);
    assert_eq!(
        (bench.flow.stage, &bench.rings.0[..]),
        (Stage::Open, &b"request"[..])
    );
}

#[test]
fn program_hears_that_it_has_connected_without_a_channel_in_time() {
    let mut bench = Bench::new();
    bench.answered();
    let sent = bench.flow.carrier.sent;
    let serving = bench.flow.serving.as_mut().expect("a seed");
    serving.made -= std::time::Duration::from_secs(1);
    assert_eq!(bench.turn(), Next::Wait);
    assert_eq!(
        (bench.flow.stage, bench.flow.carrier.sent),
        (Stage::Open, sent + 1)
    );
    assert!(
        bench.flow.serving.is_some(),
        "its channel may be there by now"
    );
}

#[test]
fn carrier_is_free_when_the_program_has_closed_first() {
    let mut bench = Bench::new();
    let program = bench.with_turns();
    bench.remote_says(100);
    assert_eq!(bench.turn(), Next::Wait);
    let got = bench.flow.carrier.sent;
    assert_eq!(program.read(200, got), pattern(100));
    program.write(b"answer");
    program.end_turn(Turn::FIRST);
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Departed);
    assert_eq!(bench.rings.0, b"answer");
    assert!(bench.remote_saw_end() && !bench.remote_saw_reset());
    assert!(bench.carrier_is_open());
    assert!(bench.frees_carrier());
}

#[test]
fn carrier_is_free_when_the_remote_has_finished_first() {
    let mut bench = Bench::new();
    let program = bench.with_turns();
    bench.remote_says(100);
    bench.remote_finishes();
    assert_eq!(bench.turn(), Next::Wait);
    assert!(bench.carrier_is_open(), "the turn's end tells it");
    assert!(program.end().turns().is_ended_by_peer(Turn::FIRST));
    let got = bench.flow.carrier.sent;
    assert_eq!(program.read(200, got), pattern(100));
    program.write(b"answer");
    program.end_turn(Turn::FIRST);
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Over);
    assert_eq!(bench.rings.0, b"answer");
    assert!(bench.remote_saw_end() && !bench.remote_saw_reset());
    assert!(bench.frees_carrier());
}

/// The kernel does so, too, when a program closes with bytes unread.
#[test]
fn bytes_that_come_after_the_program_s_end_are_answered_with_a_reset() {
    let mut bench = Bench::new();
    let program = bench.with_turns();
    program.end_turn(Turn::FIRST);
    assert_eq!(bench.turn(), Next::Departed);
    let mut bench = Bench::new();
    let program = bench.with_turns();
    bench.remote_says(100);
    bench.exchange();
    program.end_turn(Turn::FIRST);
    assert_eq!(bench.turn(), Next::ProgramGone);
    bench.abort();
    assert!(bench.remote_saw_reset());
    assert!(!bench.frees_carrier());
}

/// A remote that has finished sending still receives.
#[test]
fn program_answers_a_remote_that_has_finished_by_the_carrier() {
    let mut bench = Bench::new();
    let program = bench.with_turns();
    bench.remote_finishes();
    assert_eq!(bench.turn(), Next::Wait);
    program.go_down();
    bench.write(b"a late answer");
    bench.program.shutdown(Shutdown::Write).expect("connected");
    assert_eq!(bench.pass(Duration::from_secs(1)), Next::Over);
    assert_eq!(bench.rings.0, b"a late answer");
    assert!(bench.remote_saw_end() && !bench.remote_saw_reset());
    assert!(!bench.frees_carrier(), "its last bytes went by the carrier");
}

/// The program was not seen waiting, and finds nothing on its carrier. The engine rings once for
/// these bytes.
#[test]
fn program_that_waits_past_the_library_is_rung() {
    let mut bench = Bench::new();
    let program = bench.with_turns();
    bench.remote_says(100);
    assert_eq!(bench.turn(), Next::Wait);
    let sent = bench.flow.carrier.sent;
    for doorbells in [0, 1, 1] {
        assert!(bench.flow.look_at_turn(&mut bench.streams));
        assert_eq!(bench.flow.carrier.sent - sent, doorbells);
    }
    program.end().turns().note_seen(Turn::FIRST);
    assert!(!bench.flow.look_at_turn(&mut bench.streams), "it hears");
}

/// An operator detaches the connection: its program looks for the end on the carrier then.
#[test]
fn end_that_a_turn_has_told_is_told_again_by_the_carrier() {
    let mut bench = Bench::new();
    let program = bench.with_turns();
    bench.remote_says(100);
    bench.remote_finishes();
    assert_eq!(bench.turn(), Next::Wait);
    assert!(bench.carrier_is_open(), "the turn's end tells it");
    program.end().refuse(Refusal::Paused);
    assert_eq!(bench.turn(), Next::Wait);
    assert!(!bench.carrier_is_open());
}

/// The program looks for the end on the carrier as soon as it learns of the switch.
#[test]
fn end_that_a_turn_has_told_is_on_the_carrier_before_the_program_learns_of_the_switch() {
    for asks_for_bytes in [false, true] {
        let mut bench = Bench::new();
        let program = bench.with_turns();
        bench.remote_says(100);
        bench.remote_finishes();
        assert_eq!(bench.turn(), Next::Wait);
        assert!(bench.carrier_is_open(), "the turn's end tells it");
        if asks_for_bytes {
            assert!(program.end().ask_to_resend());
        }
        let (engine, streams) = (&mut bench.engine, &mut bench.streams);
        let mut cx = StepContext::new(bench.now, engine, streams, &mut bench.channels);
        bench.flow.go_down(&mut cx).expect("sound words");
        let is_open = bench.carrier_is_open();
        assert_eq!(is_open, asks_for_bytes, "the bytes come before the end");
        assert_eq!(bench.turn(), Next::Wait);
        let mut rest = Vec::new();
        bench.program.set_nonblocking(false).expect("a socket");
        bench.program.read_to_end(&mut rest).expect("it ends");
        let bytes = if asks_for_bytes { 100 } else { 0 };
        assert!(rest.ends_with(&pattern(bytes)));
    }
}

/// The program had to be rung once. The kernel wakes it for the bytes that follow, until the
/// library sees it waiting.
#[test]
fn bytes_for_a_program_that_was_rung_go_by_its_carrier() {
    let mut bench = Bench::new();
    let program = bench.with_turns();
    bench.remote_says(100);
    assert_eq!(bench.turn(), Next::Wait);
    for _ in 0..2 {
        assert!(bench.flow.look_at_turn(&mut bench.streams));
    }
    let rung = bench.flow.carrier.sent;
    assert_eq!(program.read(200, rung), pattern(100));
    for end in [200, 300] {
        let sent = bench.flow.carrier.sent;
        bench.remote_says(end);
        assert_eq!(bench.turn(), Next::Wait);
        assert_eq!(bench.flow.carrier.sent - sent, 100);
        // The program finds the doorbell, and then the bytes of the kernel.
        assert_eq!(program.read(200, rung), b"");
    }
    assert!(
        !bench.flow.look_at_turn(&mut bench.streams),
        "the kernel wakes it"
    );
    program.end().turns().note_seen(Turn::FIRST);
    bench.remote_says(400);
    assert_eq!(bench.turn(), Next::Wait);
    bench.remote_says(500);
    let sent = bench.flow.carrier.sent;
    assert_eq!(bench.turn(), Next::Wait);
    assert_eq!(bench.flow.carrier.sent, sent, "the ring has them");
}
