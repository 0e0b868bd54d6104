//! The engine's end of a channel against a program's end on the same memory.

use std::os::fd::AsFd;

use crate::memfd;
use toehold_channel::layout::{
    CAPACITY_LOG2_MIN, CLOSED_ALL, CLOSED_CLEAN, EVICT, LEFT, REFUSE, REGION_BYTES,
};

use super::*;
use toehold_stream::end::Incoming;

/// A program's end of a channel.
pub(in crate::engine) struct Program {
    pub(in crate::engine) entry: &'static Entry,
    region: NonNull<u8>,
}

/// Both ends of a channel that neither has attached.
pub(in crate::engine) fn channel() -> (Endpoint, Program) {
    let file = memfd::create(c"toehold-region", REGION_BYTES).expect("memfd");
    let map = || memfd::map(file.as_fd(), REGION_BYTES).expect("sealed, of the right length");
    let entry = || -> &'static Entry { Box::leak(Box::default()) };
    // SAFETY: mapped just now for that length, and never unmapped.
    let endpoint = unsafe { Endpoint::new(map(), entry(), 0) };
    let program = Program {
        entry: entry(),
        region: map(),
    };
    let capacity = &program.end().ours().publish.capacity_log2;
    capacity.store(CAPACITY_LOG2_MIN, Ordering::Relaxed);
    let capacity = &program.entry.tx_capacity_log2;
    capacity.store(CAPACITY_LOG2_MIN, Ordering::Relaxed);
    (endpoint, program)
}

impl Program {
    pub(in crate::engine) fn end(&self) -> End<'_> {
        // SAFETY: the mapping lives as long as `self`.
        unsafe { End::at(self.entry, self.region.as_ptr(), 1) }
    }

    pub(in crate::engine) fn attach(&self) {
        self.end().ours().wake.attached.store(1, Ordering::Release);
    }

    /// Moves its direction to the ring after so many bytes on the carrier.
    pub(in crate::engine) fn go_up(&self, carrier_bytes: u64) {
        let sent = &self.entry.tx_carrier;
        sent.store(carrier_bytes, Ordering::Relaxed);
        assert_eq!(self.end().try_up(), Ok(true));
    }

    /// Moves it back, and has not rung in between.
    pub(in crate::engine) fn go_down(&self) {
        assert!(self.end().go_down(|_| {}).is_none());
    }

    /// Publishes what there is credit for; how much that was.
    pub(in crate::engine) fn write(&self, bytes: &[u8]) -> usize {
        let sender = self.end().sender();
        let credit = sender.credit_fresh().expect("the engine keeps the rules");
        let bytes = &bytes[..bytes.len().min(credit as usize)];
        let mut from = bytes.as_ptr();
        for (at, len) in sender.reserve(bytes.len()) {
            // SAFETY: `reserve` stays inside the mapped ring; `from` walks over `bytes`.
            unsafe {
                toehold_copy::to_shared(from, self.end().ring_out().add(at), len);
                from = from.add(len);
            }
        }
        sender.publish(bytes.len());
        bytes.len()
    }

    /// Takes up to `most` bytes out of the ring, when `got` have come by the carrier.
    pub(in crate::engine) fn read(&self, most: usize, got: u64) -> Vec<u8> {
        self.entry.rx_carrier.store(got, Ordering::Relaxed);
        let Ok(Incoming::Ring(filled)) = self.end().incoming() else {
            return Vec::new();
        };
        let mut bytes = vec![0; most.min(filled.len as usize)];
        let mut target = bytes.as_mut_ptr();
        let receiver = self.end().receiver();
        for (at, len) in receiver.peek(0, bytes.len(), filled) {
            // SAFETY: `peek` stays inside the mapped ring; `target` walks over `bytes`.
            unsafe {
                toehold_copy::from_shared(self.end().ring_in().add(at), target, len);
                target = target.add(len);
            }
        }
        let _crossed = receiver.consume(bytes.len(), filled);
        bytes
    }

    /// Says that it has closed with nothing left unread.
    pub(in crate::engine) fn close_cleanly(&self) {
        let closed = &self.end().ours().wake.closed;
        closed.store(CLOSED_ALL | CLOSED_CLEAN, Ordering::SeqCst);
    }

    /// Says that it has ended a turn, and that the carrier goes on.
    pub(in crate::engine) fn end_turn(&self, turn: Turn) {
        self.end().end_turn(turn);
    }

    /// Says that it has left the channel.
    pub(in crate::engine) fn leave(&self) {
        let attached = &self.end().ours().wake.attached;
        attached.store(LEFT, Ordering::Release);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: mapped by `channel`; nothing refers to it any more.
        unsafe { memfd::unmap(self.region, REGION_BYTES) };
    }
}

const WINDOW: u64 = 1 << WINDOW_LOG2;

/// Both ends attached; the remote's stream is in the ring from `next` on, after `carrier` bytes on
/// the carrier.
fn up(next: u64, carrier: u64) -> (Endpoint, Program) {
    let (mut endpoint, program) = channel();
    endpoint.attach(3, WINDOW_LOG2, WINDOW_LOG2);
    program.attach();
    assert_eq!(endpoint.try_up(next, carrier), Ok(true));
    (endpoint, program)
}

/// The end of a carrier whose first turn is over at both ends.
pub(in crate::engine) fn parked() -> Endpoint {
    let (mut endpoint, program) = up(0, 0);
    program.go_up(0);
    assert_eq!(endpoint.next(0, 0, Carrier::Empty), Ok(Next::Wait));
    assert!(
        program.read(1, 0).is_empty(),
        "it has seen that ours is a ring"
    );
    program.end_turn(Turn::FIRST);
    endpoint.end_turn(Turn::FIRST);
    assert!(endpoint.is_between_turns());
    endpoint
}

fn pattern(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64)
        .map(|at| (at % 251) as u8)
        .collect()
}

fn length(room: Option<[Room; 2]>) -> Option<usize> {
    room.map(|parts| parts.iter().map(|(_, len)| len).sum())
}

fn said(parts: [Part; 2]) -> Vec<u8> {
    let mut all = Vec::new();
    for (base, len) in parts {
        let mut part = vec![0; len];
        // SAFETY: the endpoint names mapped memory.
        unsafe { toehold_copy::from_shared(base, part.as_mut_ptr(), len) };
        all.extend(part);
    }
    all
}

#[test]
fn remote_s_stream_is_published_up_to_its_first_gap() {
    let (endpoint, program) = up(1_000, 500);
    assert!(endpoint.place(1_005, b"world"));
    assert!(!endpoint.publish(1_000));
    assert_eq!(program.read(100, 500), b"");
    assert!(endpoint.place(1_000, b"hello"));
    assert!(endpoint.publish(1_010));
    assert_eq!(endpoint.consumed(), Ok(1_000));
    assert_eq!(program.read(100, 500), b"helloworld");
    assert_eq!(endpoint.consumed(), Ok(1_010));
}

#[test]
fn each_turn_s_streams_begin_anew_wherever_the_rings_are() {
    let (mut endpoint, program) = up(1_000, 500);
    program.go_up(0);
    assert_eq!(endpoint.next(0, 0, Carrier::Empty), Ok(Next::Wait));
    let mut turn = Turn::FIRST;
    let mut next = 1_000;
    for round in 0..3 {
        let bytes = pattern(round, 40_000);
        assert!(endpoint.place(next, &bytes) && endpoint.publish(next + 40_000));
        assert!(!endpoint.is_between_turns(), "unread bytes");
        assert!(program.read(50_000, 500) == bytes);
        assert_eq!(endpoint.consumed(), Ok(next + 40_000));
        let answer = pattern(round + 7, 1_000);
        assert_eq!(program.write(&answer), 1_000);
        let Ok(Next::Ring(filled)) = endpoint.next(0, 0, Carrier::Empty) else {
            panic!("it has written");
        };
        assert_eq!(endpoint.published(filled.len), 1_000);
        assert!(said(endpoint.sent(0, 1_000)) == answer);
        assert!(!endpoint.is_turn_ended(turn));
        program.end_turn(turn);
        assert!(endpoint.is_turn_ending() && endpoint.is_turn_ended(turn));
        assert!(!endpoint.is_between_turns(), "bytes not given back");
        assert!(endpoint.give_back(1_000).is_ok() && endpoint.is_between_turns());
        endpoint.end_turn(turn);
        turn = endpoint.turns().try_claim(turn).expect("parked");
        endpoint.begin_claimed(turn, (FIRST_WINDOW_LOG2, WINDOW_LOG2));
        assert!(!endpoint.is_turn_ending() && !endpoint.is_turn_ended(turn));
        assert!(program.end().turns().accept(turn));
        next = 0;
    }
}

#[test]
fn bytes_that_nobody_accepted_are_still_in_the_ring() {
    let (mut endpoint, program) = up(0, 0);
    program.go_up(0);
    assert_eq!(endpoint.next(0, 0, Carrier::Empty), Ok(Next::Wait));
    program.end_turn(Turn::FIRST);
    endpoint.end_turn(Turn::FIRST);
    let turn = endpoint.turns().try_claim(Turn::FIRST).expect("parked");
    endpoint.begin_claimed(turn, (FIRST_WINDOW_LOG2, WINDOW_LOG2));
    assert!(endpoint.place(0, b"hello") && endpoint.publish(5));
    assert!(endpoint.turns().is_waiting(turn));
    assert!(program.end().turns().give_up(turn), "its listener closes");
    assert!(endpoint.turns().is_unaccepted(turn));
    let mut taken = Vec::new();
    endpoint.placed(0, 5, |_, bytes| taken.extend_from_slice(bytes));
    assert_eq!(taken, b"hello");
}

#[test]
fn nothing_is_placed_where_the_program_reads_or_beyond_the_window() {
    let (endpoint, program) = up(0, 0);
    assert!(endpoint.place(0, &[7; 10]));
    endpoint.publish(10);
    assert!(!endpoint.place(9, b"xx"), "published already");
    assert_eq!(length(endpoint.room(9)), None);
    assert_eq!(length(endpoint.room(10)), Some(WINDOW as usize - 10));
    assert!(endpoint.place(WINDOW - 1, b"x"));
    assert!(!endpoint.place(WINDOW - 1, b"xx"), "beyond the window");
    assert_eq!(program.read(10, 0), [7; 10]);
    assert!(endpoint.place(WINDOW, &[8; 10]), "where the first ten were");
    assert!(!endpoint.place(WINDOW, &[8; 11]));
    assert!(
        !endpoint.place(u64::MAX - 3, b"late"),
        "before the ring began"
    );
}

#[test]
fn full_window_opens_as_the_program_reads() {
    let (endpoint, program) = up(70, 0);
    for at in (0..WINDOW).step_by(1 << 16) {
        assert!(endpoint.place(70 + at, &pattern(70 + at, 1 << 16)));
    }
    endpoint.publish(70 + WINDOW);
    assert!(!endpoint.place(70 + WINDOW, b"x"));
    assert_eq!(length(endpoint.room(70 + WINDOW)), None);
    let half = WINDOW as usize / 2;
    assert_eq!(program.read(half, 0), pattern(70, half));
    assert_eq!(endpoint.consumed(), Ok(70 + WINDOW / 2));
    assert_eq!(length(endpoint.room(70 + WINDOW)), Some(half));
    let more = pattern(70 + WINDOW, half);
    assert!(endpoint.place(70 + WINDOW, &more));
    endpoint.publish(70 + WINDOW + WINDOW / 2);
    let rest = program.read(WINDOW as usize, 0);
    assert_eq!(rest.len(), WINDOW as usize);
    assert!(rest == pattern(70 + WINDOW / 2, WINDOW as usize));
}

#[test]
fn what_waits_ahead_of_a_gap_can_be_taken_back() {
    let (endpoint, _program) = up(0, 0);
    let early = pattern(WINDOW - 3_000, 3_000);
    assert!(endpoint.place(WINDOW - 3_000, &early));
    let mut taken = Vec::new();
    endpoint.placed(WINDOW - 3_000, WINDOW, |at, bytes| {
        assert_eq!(at, WINDOW - 3_000 + taken.len() as u64);
        taken.extend_from_slice(bytes);
    });
    assert!(taken == early);
}

#[test]
fn up_waits_for_a_program_that_is_there_and_willing() {
    let (mut endpoint, program) = channel();
    endpoint.attach(0, WINDOW_LOG2, WINDOW_LOG2);
    assert_eq!(endpoint.try_up(0, 0), Ok(false), "not attached");
    program.attach();
    let refuse = &program.end().ours().wake.refuse;
    refuse.store(REFUSE, Ordering::Release);
    assert!(endpoint.is_unwanted() && !endpoint.is_over());
    assert_eq!(endpoint.try_up(0, 0), Ok(false), "refused");
    refuse.store(EVICT, Ordering::Release);
    assert!(endpoint.is_over());
    refuse.store(0, Ordering::Release);
    assert!(!endpoint.is_unwanted());
    endpoint
        .entry
        .command
        .store(COMMAND_EVICT, Ordering::Release);
    assert!(endpoint.is_unwanted() && endpoint.is_over());
    endpoint.entry.command.store(0, Ordering::Release);
    program.end().ours().wake.closed.store(1, Ordering::Release);
    assert!(endpoint.is_unwanted() && !endpoint.is_over());
}

#[test]
fn stream_comes_back_from_where_the_program_has_read_if_it_asks() {
    let (endpoint, program) = up(0, 0);
    assert!(endpoint.place(0, b"read, unread"));
    endpoint.publish(12);
    assert_eq!(program.read(6, 0), b"read, ");
    assert!(program.end().ask_to_resend());
    assert_eq!(program.read(6, 0), b"", "no more from the ring");
    assert_eq!(endpoint.go_down(|_| 0), Ok(6));
    assert!(matches!(
        program.end().incoming(),
        Ok(Incoming::Carrier { limit: u64::MAX })
    ));
}

#[test]
fn program_that_says_nonsense_about_its_reading_gets_nothing_again() {
    for head in [5_u64.wrapping_neg(), 5, 13] {
        let (endpoint, program) = up(0, 0);
        assert!(endpoint.place(0, b"read, unread"));
        endpoint.publish(12);
        assert_eq!(program.read(6, 0), b"read, ");
        assert_eq!(endpoint.consumed(), Ok(6));
        assert!(program.end().ask_to_resend());
        let word = &program.end().ours().consume.head;
        word.store(head, Ordering::Relaxed);
        assert_eq!(endpoint.go_down(|_| 0), Err(Fault::Head));
    }
}

#[test]
fn stream_changes_its_way_at_the_right_byte_and_back() {
    let (mut endpoint, program) = up(0, 0);
    assert!(endpoint.place(0, b"ring"));
    endpoint.publish(4);
    let needed_from = endpoint.go_down(|must_ring| {
        assert!(!must_ring, "nobody waits for credit");
        0
    });
    assert_eq!(needed_from, Ok(endpoint.published_out()));
    assert!(!endpoint.is_up());
    assert_eq!(
        endpoint.try_up(11, 7),
        Ok(false),
        "the program has not followed"
    );
    assert_eq!(program.read(100, 0), b"ring");
    assert!(matches!(
        program.end().incoming(),
        Ok(Incoming::Carrier { .. })
    ));
    // Seven bytes by the carrier.
    assert_eq!(endpoint.try_up(11, 7), Ok(true));
    assert!(endpoint.place(11, b"again"));
    endpoint.publish(16);
    assert_eq!(
        program.read(100, 6),
        b"",
        "one byte on the carrier comes first"
    );
    assert_eq!(program.read(100, 7), b"again");
    assert_eq!(endpoint.consumed(), Ok(16));
}

#[test]
fn down_rings_a_program_that_waits_for_credit() {
    let (endpoint, program) = up(0, 0);
    let want = &program.end().ours().wake.want_credit;
    want.store(1, Ordering::SeqCst);
    let mut rings = false;
    let needed_from = endpoint.go_down(|must_ring| {
        rings = must_ring;
        0
    });
    assert!(needed_from.is_ok());
    assert!(rings);
}

#[test]
fn program_s_stream_is_found_by_its_offsets() {
    let (mut endpoint, program) = up(0, 0);
    assert_eq!(endpoint.ring_begins(), None);
    // As after a preamble of 48 bytes: a hundred of the stream came by the carrier.
    program.go_up(148);
    assert!(endpoint.end().records_pending());
    let seen = Carrier::Waiting(1_000);
    assert_eq!(endpoint.next(60, 108, seen), Ok(Next::Data { max: 40 }));
    assert_eq!(endpoint.next(100, 148, Carrier::Empty), Ok(Next::Wait));
    assert_eq!(endpoint.ring_begins(), Some(100));
    assert!(endpoint.end().rx_mode() == Mode::Ring && !endpoint.end().records_pending());
    assert_eq!(program.write(b"abcdef"), 6);
    let Ok(Next::Ring(filled)) = endpoint.next(100, 148, Carrier::Unseen) else {
        panic!("on the carrier again");
    };
    assert_eq!(endpoint.published(filled.len), 106);
    assert_eq!(said(endpoint.sent(100, 6)), b"abcdef");
    assert_eq!(said(endpoint.sent(102, 3)), b"cde");
}

#[test]
fn bytes_are_sent_from_both_sides_of_the_ring_s_end() {
    let (mut endpoint, program) = up(0, 0);
    program.go_up(0);
    let capacity = 1u64 << CAPACITY_LOG2_MIN;
    let first = pattern(0, capacity as usize - 100);
    assert_eq!(program.write(&first), first.len());
    assert!(endpoint.next(0, 0, Carrier::Unseen).is_ok());
    assert_eq!(endpoint.give_back(first.len() as u64), Ok(false));
    let rest = pattern(first.len() as u64, 1_000);
    assert_eq!(program.write(&rest), 1_000);
    let parts = endpoint.sent(first.len() as u64, 1_000);
    assert_eq!([parts[0].1, parts[1].1], [100, 900]);
    assert!(said(parts) == rest);
}

#[test]
fn room_is_given_back_as_the_remote_acknowledges() {
    let (mut endpoint, program) = up(0, 0);
    program.go_up(0);
    program.write(&[1; 1_000]);
    assert!(endpoint.next(0, 0, Carrier::Unseen).is_ok());
    let credit = || program.end().sender().credit_as_it_is();
    let capacity = 1u64 << CAPACITY_LOG2_MIN;
    assert_eq!(endpoint.give_back(0), Ok(false));
    assert_eq!(credit(), Ok(capacity - 1_000));
    assert_eq!(endpoint.give_back(400), Ok(false), "nobody waits");
    assert_eq!(credit(), Ok(capacity - 600));
    assert_eq!(
        endpoint.give_back(2_000),
        Ok(false),
        "no more than there is"
    );
    assert_eq!(credit(), Ok(capacity));
}

#[test]
fn small_ring_that_is_full_is_given_back_all_at_once_and_grows() {
    let (mut endpoint, program) = up(0, 0);
    program.go_up(0);
    let capacity = 1u64 << CAPACITY_LOG2_MIN;
    program.write(&vec![1; capacity as usize]);
    assert_eq!(program.write(b"x"), 0);
    program
        .end()
        .ours()
        .wake
        .want_credit
        .store(1, Ordering::SeqCst);
    assert!(endpoint.next(0, 0, Carrier::Unseen).is_ok());
    assert_eq!(endpoint.give_back(capacity - 1), Ok(false));
    assert_eq!(program.end().sender().credit_as_it_is(), Ok(0));
    assert_eq!(endpoint.give_back(capacity), Ok(true), "the program waits");
    let grown = program.end().sender().credit_fresh();
    assert!(grown.is_ok_and(|credit| credit > capacity));
}

#[test]
fn words_without_sense_are_faults() {
    let (endpoint, program) = up(0, 0);
    let ours = program.end().ours();
    ours.consume.head.store(1, Ordering::Release);
    assert_eq!(
        endpoint.consumed(),
        Err(Fault::Head),
        "read what was not there"
    );
    let (mut endpoint, program) = up(0, 0);
    program.go_up(0);
    assert!(endpoint.next(0, 0, Carrier::Unseen).is_ok());
    let ours = program.end().ours();
    ours.publish.tail.store(1 << 40, Ordering::Release);
    assert_eq!(endpoint.next(0, 0, Carrier::Unseen), Err(Fault::Tail));
    assert_eq!(endpoint.give_back(5), Err(Fault::Tail));
    assert!(
        said(endpoint.sent(0, 10)).len() == 10,
        "inside the ring all the same"
    );
    ours.publish.tail.store(5, Ordering::Release);
    ours.publish.capacity_log2.store(63, Ordering::Release);
    assert_eq!(endpoint.next(0, 0, Carrier::Unseen), Err(Fault::Capacity));
    ours.wake.wake.store(7, Ordering::Release);
    assert_eq!(endpoint.must_ring(|_| None), Err(Fault::Wake));
    ours.switch.records.store(9, Ordering::Release);
    assert_eq!(endpoint.next(0, 0, Carrier::Unseen), Err(Fault::Record));
    ours.consume.acknowledged.store(9, Ordering::Release);
    assert_eq!(endpoint.leave(), Ok(false), "while a direction is a ring");
    endpoint.go_down(|_| 0).unwrap();
    assert_eq!(endpoint.try_up(0, 0), Err(Fault::Record));
}

#[test]
fn sleeping_program_is_rung_once() {
    let (endpoint, program) = up(0, 0);
    assert_eq!(endpoint.must_ring(|_| None), Ok(false), "it is awake");
    let bell = WakeWord::Bell.to_word();
    program.end().ours().wake.wake.store(bell, Ordering::SeqCst);
    assert_eq!(endpoint.must_ring(|_| None), Ok(true));
    assert_eq!(endpoint.must_ring(|_| None), Ok(false));
}

#[test]
fn channel_is_left_when_both_ends_are_back_on_the_carrier() {
    let (mut endpoint, program) = up(0, 0);
    program.go_up(0);
    assert!(endpoint.next(0, 0, Carrier::Unseen).is_ok());
    assert_eq!(endpoint.leave(), Ok(false));
    let refuse = &program.end().theirs().wake.refuse;
    assert_eq!(refuse.load(Ordering::SeqCst), EVICT, "the program knows");
    endpoint.go_down(|_| 0).unwrap();
    assert_eq!(
        endpoint.leave(),
        Ok(false),
        "the program's direction is a ring"
    );
    program.go_down();
    assert_eq!(endpoint.next(0, 0, Carrier::Unseen), Ok(Next::Look));
    assert_eq!(
        endpoint.leave(),
        Ok(false),
        "the program has not followed ours"
    );
    assert_eq!(program.read(1, 0), b"");
    assert_eq!(endpoint.leave(), Ok(false), "it has not left");
    program.leave();
    assert!(endpoint.is_over());
    assert_eq!(endpoint.leave(), Ok(true));
    assert_eq!(endpoint.try_up(0, 0), Ok(false), "for good");
}

#[test]
fn close_is_clean_when_all_was_read_and_nothing_has_come_since() {
    let (endpoint, program) = up(0, 0);
    assert!(endpoint.place(0, b"read"));
    endpoint.publish(4);
    assert!(!endpoint.is_reset_by_doorbell(0, false));
    let closed = &program.end().ours().wake.closed;
    closed.store(CLOSED_ALL | CLOSED_CLEAN, Ordering::Release);
    assert!(
        !endpoint.is_reset_by_doorbell(0, false),
        "four bytes are unread"
    );
    assert_eq!(program.read(4, 0), b"read");
    assert!(endpoint.is_reset_by_doorbell(0, false));
    endpoint.go_down(|_| 5).unwrap();
    assert!(endpoint.is_reset_by_doorbell(5, false));
    assert!(
        !endpoint.is_reset_by_doorbell(6, false),
        "something went by the carrier"
    );
    closed.store(CLOSED_ALL, Ordering::Release);
    assert!(!endpoint.is_reset_by_doorbell(5, false));
}

#[test]
fn end_of_the_engine_s_side_is_seen() {
    let (endpoint, program) = up(0, 0);
    endpoint.close();
    let closed = &program.end().theirs().wake.closed;
    assert_eq!(closed.load(Ordering::Acquire), CLOSED_ALL);
}

impl Endpoint {
    /// As an operator, or want of regions, does.
    pub(in crate::engine) fn command(&self, command: u32) {
        self.entry.command.store(command, Ordering::Release);
    }
}
