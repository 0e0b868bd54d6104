//! A victim in a region whose words a script rewrites. The bytes of the script choose the words,
//! their values, and the victim's next call. The seeded test, the corpus and the fuzzer share this
//! file.

use super::party::{Party, connect, connect_upgraded};
use std::sync::atomic::Ordering;
use toehold_channel::doorbell::must_ring;
use toehold_channel::layout::{CAPACITY_LOG2_MAX, ReadyBitmap};
use toehold_channel::ring::Fault;
use toehold_channel::table::Mode;

/// The result of a walk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// Calls that the victim made.
    pub(crate) calls: usize,
    /// Calls that ended in a [`Fault`].
    pub(crate) faults: usize,
}

/// Bytes that one step reads.
pub(crate) const STEP_BYTES: usize = 8;
/// Bytes a direction of the carrier holds.
const CARRIER_BYTES: usize = 600;
/// Longest send or receive of the victim: longer than the largest ring.
const CALL_BYTES_MAX: usize = (1 << CAPACITY_LOG2_MAX) + 1000;

/// Plays `script`. Panics when the victim leaves its ring, accepts more credit than a ring has, or
/// breaks an invariant of its own.
pub(crate) fn walk(script: &[u8]) -> Walked {
    let parties = match script.first() {
        Some(byte) if byte % 2 == 0 => connect(CARRIER_BYTES),
        _ => connect_upgraded(CARRIER_BYTES),
    };
    let bitmap = ReadyBitmap::default();
    let mut walked = Walked::default();
    for step in script.chunks_exact(STEP_BYTES) {
        let step = u64::from_le_bytes(step.try_into().unwrap());
        if step % 4 != 0 {
            rewrite(&parties[0], step >> 2);
            continue;
        }
        walked.calls += 1;
        walked.faults += usize::from(call(&parties, step >> 2, &bitmap).is_err());
    }
    walked
}

/// Overwrites one word, usually with a value that is nearly right.
fn rewrite(victim: &Party, choice: u64) {
    let words = victim.memory().control_words();
    let entry = victim.end().entry;
    // The words in use are the first 128 + 2 * 512 bytes.
    let word = &words[(choice & 0xff) as usize + 32];
    let near = ((choice >> 16) & 0xff) as u32;
    let value = match (choice >> 8) & 15 {
        0 => 0,
        1 => 1,
        2 => u32::MAX,
        3 => u32::MAX - near,
        4 => near,
        5 => word.load(Ordering::Relaxed).wrapping_add(1),
        6 => word.load(Ordering::Relaxed).wrapping_sub(near),
        7 => (entry.rx_ring.own() as u32).wrapping_add(near),
        8 => (entry.rx_ring.own() as u32).wrapping_add(near << 12),
        9 => (entry.tx_ring.own() as u32).wrapping_sub(near.min(1)),
        10 => (entry.rx_carrier.load(Ordering::Relaxed) as u32).wrapping_add(near),
        11 => entry.rx_records.own().wrapping_add(near % 4),
        12 => entry.tx_records.own().wrapping_sub(near % 4),
        13 => 1 << 31 | near << 12 | near,
        14 => CAPACITY_LOG2_MAX + near % 3,
        _ => (choice >> 24) as u32,
    };
    word.store(value, Ordering::Relaxed);
}

/// One call of the victim.
fn call(parties: &[Party; 2], choice: u64, bitmap: &ReadyBitmap) -> Result<(), Fault> {
    let [victim, peer] = parties;
    let len = 1
        + (choice >> 8) as usize
            % if choice & 0x80 == 0 {
                300
            } else {
                CALL_BYTES_MAX
            };
    let end = victim.end();
    match choice & 15 {
        0..=3 => drop(victim.try_send(&vec![1; len])?),
        4..=8 => drop(victim.try_receive(len, false)?),
        9 => drop(victim.try_receive(len, true)?),
        10 => drop(victim.try_up()?),
        11 if end.tx_mode() == Mode::Ring => {
            if let Some(unread) = end.go_down(|_| {}) {
                end.unread(unread)?;
            }
        }
        11 => {}
        12 => {
            let credit = end.sender().credit(u64::MAX)?;
            assert!(credit <= 1 << end.entry.tx_capacity_log2.own());
        }
        13 => drop(must_ring(&end.theirs().wake, |index| {
            (index < 4).then_some(bitmap)
        })?),
        14 if len.is_multiple_of(2) => drop(end.peer_can_ring()),
        14 => drop(end.ask_to_resend()),
        _ => drop(peer.carrier_out().send(&vec![0; len.min(CARRIER_BYTES)])),
    }
    Ok(())
}
