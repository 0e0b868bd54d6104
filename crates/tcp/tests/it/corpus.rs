//! Replays the inputs that the fuzzers keep (`fuzz/`), and mutations of them, so that an ordinary
//! test run covers them, too.

use crate::conversation;
use crate::inputs::inputs;
use toehold_tcp::{Counters, Random};

/// The number of mutations of each kept input; `TOEHOLD_MUTATIONS` overrides it.
fn mutations() -> u64 {
    let set = std::env::var("TOEHOLD_MUTATIONS").ok();
    set.and_then(|count| count.parse().ok()).unwrap_or(200)
}

fn mutate(random: &mut Random, input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        let value = random.bits() as u8;
        match random.below(4) {
            0 => bytes.insert(at, value),
            1 if at < bytes.len() => _ = bytes.remove(at),
            2 => {
                let from = random.below(bytes.len() as u64 + 1) as usize;
                let piece = bytes[from.min(at)..from.max(at)].to_vec();
                bytes.extend(piece.iter().take(200));
            }
            _ if at < bytes.len() => bytes[at] = value,
            _ => bytes.push(value),
        }
    }
    bytes
}

fn replay(folder: &str, run: fn(&[u8])) {
    for (number, input) in (0..).zip(inputs(folder)) {
        run(&input);
        for seed in 0..mutations() {
            let mut random = Random::new(number << 32 | seed);
            let mutated = mutate(&mut random, &input);
            let outcome = std::panic::catch_unwind(|| run(&mutated));
            assert!(
                outcome.is_ok(),
                "input {number} of {folder}, seed {seed}: {mutated:?}"
            );
        }
    }
}

#[test]
fn every_kept_frame_is_taken_or_refused() {
    replay("frame", conversation::frames);
}

#[test]
fn every_kept_conversation_ends() {
    replay("conversation", |program| {
        _ = conversation::converse(program)
    });
}

#[test]
fn the_kept_conversations_get_somewhere() {
    let counted: Vec<_> = inputs("conversation")
        .iter()
        .map(|program| conversation::converse(program))
        .collect();
    let sum = |count: fn(&Counters) -> u64| counted.iter().map(count).sum::<u64>();
    assert!(sum(|counters| counters.connections_accepted) >= 6);
    assert!(sum(|counters| counters.connections_opened) >= 2);
    assert!(sum(|counters| counters.bytes_received) > 1_000);
    assert!(sum(|counters| counters.bytes_sent) > 1_000);
    assert!(sum(|counters| counters.retransmissions) > 3);
    assert!(sum(|counters| counters.out_of_order_received) > 3);
    assert!(sum(|counters| counters.challenges_sent) > 0);
    assert!(sum(|counters| counters.resets_received) > 0);
    assert!(sum(|counters| counters.host_had_no_room) > 0);
    assert!(sum(|counters| counters.fast_opens_accepted) > 0);
    assert!(sum(|counters| counters.fast_opens_acknowledged) > 0);
}
