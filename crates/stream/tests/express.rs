//! Carriers that serve one connection after another, against a naive model: a list of the state of
//! each carrier, and a queue. Further tests use the machine's atomics, and a hostile peer.

#![cfg(not(loom))]

mod support;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering as Std};

use proptest::prelude::*;
use support::Random;
use toehold_channel::express::{AcceptQueue, ENTRIES_MAX, Turns};
use toehold_channel::layout::READY_BITS;
use toehold_channel::sync::{AtomicU32, Ordering};
use toehold_stream::express::{Carrier, Popper, Push, Pusher, Queued, TURNS_MAX, Turn, Unclaimed};

const CONNECTING: usize = 0;
const ACCEPTING: usize = 1;
const CARRIERS: usize = 4;

/// The words that two processes share, and the words of each process.
#[derive(Default)]
struct Pair {
    turns: [Turns; CARRIERS],
    queue: AcceptQueue,
    pushed: AtomicU32,
    popped: AtomicU32,
}

impl Pair {
    fn carrier(&self, slot: usize, side: usize) -> Carrier<'_> {
        Carrier::new(&self.turns[slot], side)
    }

    fn pusher(&self) -> Pusher<'_> {
        Pusher {
            words: &self.queue,
            pushed: &self.pushed,
        }
    }

    fn popper(&self) -> Popper<'_> {
        Popper {
            words: &self.queue,
            popped: &self.popped,
        }
    }
}

fn turn(number: u32) -> Turn {
    Turn::numbered(number).unwrap()
}

/// The state of a carrier, as an observer who sees both ends would write it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// True for each of the two ends that has closed the carrier.
    InUse([bool; 2]),
    /// True when the connecting end has closed the carrier already.
    Waiting(bool),
    Retired,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Connect(usize),
    Accept,
    Close(usize, usize),
    Retire(usize, usize),
    Listen(u32),
    StopListening,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let carrier = 0..CARRIERS;
    let step =
        (0..32u8, carrier, 0..2usize, 1..6u32).prop_map(|(kind, slot, side, places)| match kind {
            0..=10 => Step::Connect(slot),
            11..=16 => Step::Accept,
            17..=27 => Step::Close(slot, side),
            28 => Step::Retire(slot, side),
            29..=30 => Step::Listen(places),
            _ => Step::StopListening,
        });
    prop::collection::vec(step, 1..200)
}

/// Both ends, and their expected state.
struct Both {
    pair: Pair,
    /// For each carrier: the number of its turn, and the state of that turn.
    states: [(u32, State); CARRIERS],
    queue: VecDeque<(usize, u32)>,
    places: usize,
}

impl Both {
    fn new() -> Both {
        Both {
            pair: Pair::default(),
            states: [(0, State::InUse([false; 2])); CARRIERS],
            queue: VecDeque::new(),
            places: 0,
        }
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::Connect(slot) => self.connect(slot),
            Step::Accept => {
                let popped = self.pair.popper().pop().unwrap();
                let first = self.queue.pop_front();
                assert_eq!(popped.map(|q| (q.slot as usize, q.turn.number())), first);
                if let Some((slot, number)) = first {
                    self.accept(slot, number);
                }
            }
            Step::Close(slot, side) => self.close(slot, side),
            Step::Retire(slot, side) => self.retire(slot, side),
            Step::Listen(places) => {
                self.pair.popper().open(places);
                self.places = places as usize;
            }
            Step::StopListening => {
                self.pair.popper().close();
                self.places = 0;
                while let Some(queued) = self.pair.popper().pop().unwrap() {
                    let (slot, number) = self.queue.pop_front().unwrap();
                    assert_eq!((queued.slot as usize, queued.turn), (slot, turn(number)));
                    assert!(self.pair.carrier(slot, ACCEPTING).give_up(queued.turn));
                    self.states[slot].1 = State::Retired;
                }
            }
        }
    }

    fn connect(&mut self, slot: usize) {
        let (number, state) = self.states[slot];
        let claimed = self.pair.carrier(slot, CONNECTING).try_claim(turn(number));
        let expected = match state {
            State::InUse([true, true]) => Ok(turn(number + 1)),
            State::InUse(_) | State::Waiting(_) => Err(Unclaimed::InUse),
            State::Retired => {
                assert!(claimed.is_err());
                return;
            }
        };
        assert_eq!(claimed, expected);
        let Ok(claimed) = claimed else { return };
        let slot_number = slot as u32;
        let push = self.pair.pusher().push(Queued {
            slot: slot_number,
            turn: claimed,
        });
        let expected = match (self.places, self.queue.len()) {
            (0, _) => Push::Closed,
            (places, waiting) if waiting >= places => Push::Full,
            _ => Push::Queued,
        };
        assert_eq!(push, Ok(expected));
        if expected == Push::Queued {
            self.queue.push_back((slot, number + 1));
            self.states[slot] = (number + 1, State::Waiting(false));
        } else {
            assert!(self.pair.carrier(slot, CONNECTING).give_up(claimed));
            self.states[slot] = (number + 1, State::Retired);
        }
    }

    fn accept(&mut self, slot: usize, number: u32) {
        let State::Waiting(closed) = self.states[slot].1 else {
            panic!("{:?} in the queue", self.states[slot]);
        };
        assert!(self.pair.carrier(slot, CONNECTING).is_waiting(turn(number)));
        assert!(self.pair.carrier(slot, ACCEPTING).accept(turn(number)));
        assert!(!self.pair.carrier(slot, CONNECTING).is_waiting(turn(number)));
        self.states[slot].1 = State::InUse([closed, false]);
    }

    fn close(&mut self, slot: usize, side: usize) {
        let (number, state) = &mut self.states[slot];
        match state {
            State::InUse(closed) if !closed[side] => closed[side] = true,
            State::Waiting(closed) if side == CONNECTING && !*closed => *closed = true,
            _ => return,
        }
        let number = turn(*number);
        self.pair.carrier(slot, side).end(number);
        assert!(self.pair.carrier(slot, 1 - side).is_ended_by_peer(number));
    }

    /// An end retires a carrier that it does not use, after it has closed its turn.
    fn retire(&mut self, slot: usize, side: usize) {
        let (number, state) = self.states[slot];
        match state {
            State::InUse(closed) if closed[side] => {
                assert_eq!(self.pair.carrier(slot, side).retire(turn(number)), None);
                self.states[slot].1 = State::Retired;
            }
            // The accepting end knows only the turn before.
            State::Waiting(_) if side == ACCEPTING => {
                let claimed = self.pair.carrier(slot, side).retire(turn(number - 1));
                assert_eq!(claimed, Some(turn(number)));
            }
            _ => {}
        }
    }

    fn check(&self) {
        assert_eq!(self.pair.popper().waiting(), Ok(self.queue.len() as u32));
        for (slot, (number, state)) in self.states.iter().enumerate() {
            let is_queued = self.queue.iter().any(|(queued, _)| *queued == slot);
            assert_eq!(self.pair.popper().has(slot as u32), Ok(is_queued));
            let is_parked = *state == State::InUse([true, true]);
            for side in [CONNECTING, ACCEPTING] {
                let carrier = self.pair.carrier(slot, side);
                if *state != State::Retired {
                    assert_eq!(carrier.is_parked(turn(*number)), is_parked);
                }
                // A word about one turn says nothing about another turn.
                assert!(!carrier.is_ended_by_peer(turn(number + 1)));
            }
        }
    }
}

proptest! {
    #[test]
    fn carriers_and_queue_are_what_a_naive_model_says(steps in steps()) {
        let mut both = Both::new();
        for step in steps {
            both.perform(step);
            both.check();
        }
    }
}

#[test]
fn a_claimed_carrier_says_where_its_connection_is_to_lead() {
    let words = Turns::default();
    let [program, engine] = [0, 1].map(|side| Carrier::new(&words, side));
    let first = Turn::FIRST;
    program.end(first);
    engine.end(first);
    assert!(
        !program.is_freed_by_peer(first),
        "not all of it was sent on"
    );
    engine.free(first);
    assert!(program.is_freed_by_peer(first) && !engine.is_freed_by_peer(first));
    let turn = program.try_claim(first).expect("parked");
    let preamble = core::array::from_fn(|at| at as u8);
    program.request(&preamble);
    assert!(engine.accept(turn));
    assert_eq!(engine.requested(), preamble);
    assert!(
        !program.is_freed_by_peer(turn),
        "each turn has its own word"
    );
}

#[test]
fn the_last_turn_is_not_followed_by_another() {
    let turns = Turns::default();
    let last = turn(TURNS_MAX - 1);
    turns.phase.store(last.number() << 2, Ordering::Relaxed);
    Carrier::new(&turns, ACCEPTING).end(last);
    let carrier = Carrier::new(&turns, CONNECTING);
    carrier.end(last);
    assert_eq!(carrier.try_claim(last), Err(Unclaimed::Retired));
    assert_eq!(carrier.retire(last), None);
    assert_eq!(Turn::numbered(TURNS_MAX), None);
}

/// Connections of the test with two threads.
const CONNECTIONS: u64 = 200_000;

#[test]
fn two_threads_make_and_accept_connections_one_after_another() {
    let pair = Pair::default();
    // The connecting end leaves the number of its connection in the ring.
    let rings = [const { AtomicU64::new(0) }; CARRIERS];
    for slot in 0..CARRIERS {
        for side in [CONNECTING, ACCEPTING] {
            pair.carrier(slot, side).end(Turn::FIRST);
        }
    }
    pair.popper().open(3);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut numbers = [Turn::FIRST; CARRIERS];
            let mut made = 0;
            while made < CONNECTIONS {
                let slot = made as usize % CARRIERS;
                if pair.pusher().room() == Ok(0)
                    || !pair.carrier(slot, CONNECTING).is_parked(numbers[slot])
                {
                    std::thread::yield_now();
                    continue;
                }
                let turn = pair
                    .carrier(slot, CONNECTING)
                    .try_claim(numbers[slot])
                    .unwrap();
                rings[slot].store(made, Std::Relaxed);
                let slot_number = slot as u32;
                let push = pair.pusher().push(Queued {
                    slot: slot_number,
                    turn,
                });
                assert_eq!(push, Ok(Push::Queued));
                numbers[slot] = turn;
                made += 1;
                pair.carrier(slot, CONNECTING).end(turn);
            }
        });
        let mut accepted = 0;
        while accepted < CONNECTIONS {
            let Some(queued) = pair.popper().pop().unwrap() else {
                std::thread::yield_now();
                continue;
            };
            let slot = queued.slot as usize;
            assert!(pair.carrier(slot, ACCEPTING).accept(queued.turn));
            assert_eq!(
                rings[slot].load(Std::Relaxed),
                accepted,
                "in the order they were made"
            );
            assert_eq!(
                u64::from(queued.turn.number()),
                1 + accepted / CARRIERS as u64
            );
            pair.carrier(slot, ACCEPTING).end(queued.turn);
            accepted += 1;
        }
    });
}

#[test]
fn a_hostile_peer_costs_at_most_a_fault() {
    let (mut faults, mut answers) = (0, 0);
    for seed in 0..20_000 {
        let mut random = Random(seed);
        let pair = Pair::default();
        for _ in 0..20 {
            let word = match random.below(3) {
                0 => random.next(),
                1 => random.below(8),
                _ => random.below(ENTRIES_MAX as u64 * 2),
            };
            match random.below(5) {
                0 => pair.turns[0].phase.store(word as u32, Ordering::Relaxed),
                1 => pair.turns[0].sides[random.below(2) as usize]
                    .ended
                    .store(word as u32, Ordering::Relaxed),
                2 => pair.queue.tail.store(word as u32, Ordering::Relaxed),
                3 => pair.queue.head.store(word as u32, Ordering::Relaxed),
                _ => pair.queue.entries[random.below(ENTRIES_MAX as u64) as usize]
                    .store(random.next(), Ordering::Relaxed),
            }
            pair.queue
                .places
                .store(random.next() as u32, Ordering::Relaxed);
            let (connecting, accepting) = (pair.carrier(0, CONNECTING), pair.carrier(0, ACCEPTING));
            connecting.end(Turn::FIRST);
            let _ = connecting.try_claim(Turn::FIRST);
            if let Some(claimed) = accepting.retire(Turn::FIRST) {
                assert_eq!(claimed, turn(1), "of the next connection and of no other");
            }
            match pair.popper().pop() {
                Ok(Some(queued)) => {
                    assert!((queued.slot as usize) < READY_BITS);
                    let _ = accepting.accept(queued.turn);
                    answers += 1;
                }
                Ok(None) => answers += 1,
                Err(_) => faults += 1,
            }
            match pair.pusher().push(Queued {
                slot: 0,
                turn: turn(1),
            }) {
                Ok(_) => answers += 1,
                Err(_) => faults += 1,
            }
            assert!(
                pair.pusher()
                    .room()
                    .is_ok_and(|room| room <= ENTRIES_MAX as u32)
                    || pair.pusher().room().is_err()
            );
            let _ = pair.popper().has(0);
        }
    }
    // Both outcomes must be common, or the test explores nothing.
    assert!(
        faults > answers / 20 && answers > faults / 20,
        "{faults} {answers}"
    );
}
