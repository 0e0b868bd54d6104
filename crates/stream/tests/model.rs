//! A channel against a queue of bytes. Whatever the two ends do, in any order, each direction
//! delivers the bytes that were sent, once, in order. The bytes in a ring plus the credit always
//! equal its capacity.

#![cfg(not(loom))]

mod support;

use std::collections::VecDeque;

use proptest::prelude::*;
use support::byte_at;
use support::party::{Party, Received, connect};
use toehold_channel::table::Mode;
use toehold_stream::end::Incoming;

/// Bytes that a direction of the carrier holds: few, so that sends are cut short on the carrier,
/// too.
const CARRIER_BYTES: usize = 3000;

#[derive(Clone, Debug)]
enum Step {
    Send { side: usize, len: usize },
    Receive { side: usize, len: usize },
    Peek { side: usize, len: usize },
    Up { side: usize },
    Down { side: usize },
    AskToResend { side: usize },
    ShutDown { side: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![1..64usize, 1..5_000usize, 1..40_000usize];
    let step = (0..16u8, 0..2usize, len).prop_map(|(kind, side, len)| match kind {
        0..=4 => Step::Send { side, len },
        5..=9 => Step::Receive { side, len },
        10 => Step::Peek { side, len },
        11..=13 => Step::Up { side },
        14 => Step::Down { side },
        _ if len > 20_000 => Step::AskToResend { side },
        _ if len < 4 => Step::ShutDown { side },
        _ => Step::Down { side },
    });
    prop::collection::vec(step, 1..150)
}

/// Both ends and, per sending side, the bytes that are on their way.
struct Pair {
    parties: [Party; 2],
    on_the_way: [VecDeque<u8>; 2],
    sent: [u64; 2],
    shut: [bool; 2],
}

impl Pair {
    fn new() -> Pair {
        Pair {
            parties: connect(CARRIER_BYTES),
            on_the_way: [VecDeque::new(), VecDeque::new()],
            sent: [0; 2],
            shut: [false; 2],
        }
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::Send { side, len } if !self.shut[side] => {
                let bytes = support::bytes_at(self.sent[side], len);
                let sent = self.parties[side].try_send(&bytes).unwrap();
                self.on_the_way[side].extend(&bytes[..sent]);
                self.sent[side] += sent as u64;
            }
            Step::Receive { side, len } => {
                self.receive(side, len, false);
            }
            Step::Peek { side, len } => {
                self.receive(side, len, true);
            }
            Step::Up { side } if !self.shut[side] => {
                self.parties[side].try_up().unwrap();
            }
            Step::Down { side } => self.parties[side].go_down(),
            Step::AskToResend { side } => {
                self.parties[side].ask_to_resend();
            }
            Step::ShutDown { side } if !self.shut[side] => {
                self.parties[side].shut_down();
                self.shut[side] = true;
            }
            Step::Send { .. } | Step::Up { .. } | Step::ShutDown { .. } => {}
        }
    }

    /// Receives at `side` and compares the bytes with the queue. Returns how many bytes came.
    fn receive(&mut self, side: usize, len: usize, peek: bool) -> usize {
        let expected = &mut self.on_the_way[1 - side];
        match self.parties[side].try_receive(len, peek).unwrap() {
            Received::Bytes(bytes) => {
                assert!(!bytes.is_empty() && bytes.len() <= len);
                assert!(bytes.iter().eq(expected.iter().take(bytes.len())));
                if !peek {
                    expected.drain(..bytes.len());
                }
                bytes.len()
            }
            Received::Nothing => {
                let is_asked = self.parties[side].end().rx_mode() == Mode::Resend;
                assert!(
                    expected.is_empty() || is_asked,
                    "{} bytes were held back",
                    expected.len()
                );
                0
            }
            Received::End => {
                assert!(self.shut[1 - side] && expected.is_empty());
                0
            }
        }
    }

    /// A ring's content and its credit add up to its capacity, and the receiver agrees about both.
    fn check_credit(&self) {
        for side in 0..2 {
            let (end, peer) = (self.parties[side].end(), self.parties[1 - side].end());
            let tail = end.entry.tx_ring.own();
            let head = peer.entry.rx_ring.own();
            let credit = end.sender().credit_fresh().unwrap();
            let capacity = 1 << end.entry.tx_capacity_log2.own();
            assert_eq!(tail - head + credit, capacity);
            assert_eq!(peer.receiver().available().unwrap().len, tail - head);
        }
    }

    /// A look ahead sees every byte that was sent, in the ring or on the carrier.
    fn check_ahead(&self) {
        for side in 0..2 {
            if self.parties[side].end().rx_mode() == Mode::Resend {
                continue;
            }
            let mut on_carrier = self.parties[side].carrier_in().waiting() as u64;
            let mut seen = 0;
            for part in self.parties[side]
                .end()
                .ahead()
                .unwrap()
                .into_iter()
                .flatten()
            {
                match part {
                    Incoming::Ring(filled) => seen += filled.len,
                    Incoming::Skip { bytes } => on_carrier -= bytes,
                    Incoming::Carrier { limit } => {
                        seen += on_carrier.min(limit);
                        on_carrier -= on_carrier.min(limit);
                    }
                }
            }
            assert_eq!(seen, self.on_the_way[1 - side].len() as u64);
        }
    }

    fn drain(&mut self) {
        for side in 0..2 {
            if self.parties[side].end().rx_mode() == Mode::Resend {
                self.parties[1 - side].go_down();
            }
            while self.receive(side, usize::MAX, false) > 0 {}
            assert!(self.on_the_way[1 - side].is_empty());
            if self.shut[1 - side] {
                assert_eq!(self.parties[side].try_receive(1, false), Ok(Received::End));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_channel_is_two_queues_of_bytes(steps in steps()) {
        let mut pair = Pair::new();
        for step in steps {
            pair.perform(step);
            pair.check_credit();
            pair.check_ahead();
        }
        pair.drain();
        pair.check_credit();
    }
}

#[test]
fn a_ring_that_was_full_and_is_empty_grows_to_the_largest() {
    let [sender, receiver] = support::party::connect_upgraded(CARRIER_BYTES);
    let mut position = 0;
    let mut capacities = Vec::new();
    for _ in 0..6 {
        let mut filled = 0;
        loop {
            let sent = sender
                .try_send(&support::bytes_at(position, 1 << 20))
                .unwrap();
            if sent == 0 {
                break;
            }
            filled += sent as u64;
            position += sent as u64;
        }
        capacities.push(filled);
        let mut left = filled;
        while left > 0 {
            let Received::Bytes(bytes) = receiver.try_receive(1 << 20, false).unwrap() else {
                panic!("{left} bytes were held back");
            };
            assert_eq!(bytes[0], byte_at(position - left));
            left -= bytes.len() as u64;
        }
    }
    assert_eq!(
        capacities,
        [1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 22]
    );
}

#[test]
fn a_direction_has_at_most_an_up_and_its_down_outstanding() {
    let [sender, receiver] = connect(CARRIER_BYTES);
    assert_eq!(sender.try_up(), Ok(true));
    sender.go_down();
    for _ in 0..10 {
        assert_eq!(sender.try_up(), Ok(false));
    }
    assert_eq!(receiver.try_receive(1, false), Ok(Received::Nothing));
    assert_eq!(sender.try_up(), Ok(true));
    assert_eq!(sender.end().tx_mode(), Mode::Ring);
}
