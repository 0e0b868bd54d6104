//! Four threads on one connection with the machine's own atomics: both ends send and receive at one
//! time, sleep, ring, and move their directions up and down. A lost wake-up shows as a hang, any
//! other fault as a wrong byte.

#![cfg(not(loom))]

mod support;

use support::party::{Party, connect};
use support::{Random, bytes_at, check_bytes};
use toehold_channel::sync::Ordering;
use toehold_channel::table::Mode;

/// Bytes each direction carries.
const STREAM_BYTES: u64 = 12 << 20;
/// Bytes a direction of the carrier holds.
const CARRIER_BYTES: usize = 4096;

fn send_all(party: &Party, seed: u64) {
    let mut random = Random(seed);
    let mut sent = 0;
    while sent < STREAM_BYTES {
        match random.below(64) {
            0 => party.go_down(),
            1..=16 if party.end().tx_mode() == Mode::Carrier => drop(party.try_up().unwrap()),
            _ => {}
        }
        let len = random.len(15);
        let len = len.min(STREAM_BYTES - sent);
        party.send(&bytes_at(sent, len as usize)).unwrap();
        sent += len;
    }
    party.shut_down();
}

fn receive_all(party: &Party, seed: u64) {
    let mut random = Random(seed);
    let mut received = 0;
    loop {
        let len = random.len(16);
        let bytes = party.receive(len as usize).unwrap();
        if bytes.is_empty() {
            break;
        }
        check_bytes(received, &bytes);
        received += bytes.len() as u64;
    }
    assert_eq!(received, STREAM_BYTES);
}

#[test]
fn streams_that_switch_under_load_arrive_whole() {
    for seed in 0..16 {
        let parties = connect(CARRIER_BYTES);
        std::thread::scope(|scope| {
            for (side, party) in parties.iter().enumerate() {
                let seed = seed << 8 | side as u64;
                scope.spawn(move || send_all(party, seed));
                scope.spawn(move || receive_all(party, !seed));
            }
        });
        for party in &parties {
            let entry = party.end().entry;
            assert!(entry.upgrades.load(Ordering::Relaxed) > 0);
            assert!(entry.downgrades.load(Ordering::Relaxed) > 0);
        }
    }
}
