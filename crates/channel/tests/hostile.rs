//! A peer that rewrites every shared word between every step, and while we work: we neither panic, nor leave the ring, nor hang.
//! At worst a call returns a `Fault`.

#![cfg(not(loom))]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use support::Random;
use support::party::connect_upgraded;
use support::walk::walk;
use toehold_channel::table::Mode;

fn script(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..len / 8)
        .flat_map(|_| random.next().to_le_bytes())
        .collect()
}

#[test]
fn a_region_rewritten_between_every_step_costs_at_most_a_fault() {
    let (mut calls, mut faults) = (0, 0);
    for seed in 0..400 {
        let walked = walk(&script(seed, 8 * 500));
        calls += walked.calls;
        faults += walked.faults;
    }
    // Both outcomes must be common, or the test explores nothing.
    assert!(faults > calls / 20, "{faults} faults in {calls} calls");
    assert!(
        faults < calls - calls / 20,
        "{faults} faults in {calls} calls"
    );
}

#[test]
fn a_region_rewritten_while_we_work_costs_at_most_a_fault() {
    for seed in 0..20 {
        let [victim, _peer] = connect_upgraded(600);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(seed);
                while !done.load(Ordering::Relaxed) {
                    let words = victim.memory().control_words();
                    // Mostly small numbers: those pass more checks.
                    let value = random.next() >> (32 + random.below(32));
                    words[32 + random.below(256) as usize].store(value as u32, Ordering::Relaxed);
                }
            });
            let mut random = Random(!seed);
            let bytes = vec![1; 1 << 20];
            for _ in 0..3_000 {
                let len = random.len(19) as usize;
                match random.below(8) {
                    0..=1 => drop(victim.try_send(&bytes[..len])),
                    2 => drop(victim.end().ahead()),
                    3..=5 => drop(victim.try_receive(len, random.below(4) == 0)),
                    6 => drop(victim.try_up()),
                    _ if victim.end().tx_mode() == Mode::Ring => {
                        let _ = victim.end().begin_down();
                        victim.end().finish_down();
                    }
                    _ => {}
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
