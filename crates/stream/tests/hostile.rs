//! A peer rewrites every shared word between every step, and while we work. We neither panic, nor
//! leave the ring, nor hang. At worst a call returns a `Fault`. A member of the fork family that
//! rewrites every word of our entry in the family's table can do no more harm.

#![cfg(not(loom))]

mod support;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use support::Random;
use support::party::{Party, Received, connect, connect_upgraded};
use support::walk::walk;
use toehold_channel::layout::{CAPACITY_LOG2_MAX, RECORD_SLOTS, RING_BYTES};
use toehold_channel::ring::Fault;
use toehold_channel::table::{Entry, Mode};
use toehold_stream::holders::Members;
use toehold_stream::sleepers::Family;

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

/// Rounds of the tests with two threads, and calls of the victim in each.
const ROUNDS: u64 = 20;
const CALLS: usize = 3_000;
/// After this many calls of the victim, the other thread must have written again.
const CALLS_BETWEEN_WRITES: usize = 64;

/// In each round, lets a fresh victim make its calls while another thread writes into its memory.
fn while_another_writes(
    write: impl Fn(&Party, &mut Random) + Sync,
    mut call: impl FnMut(&Party, &mut Random),
) {
    for seed in 0..ROUNDS {
        let [victim, _peer] = connect_upgraded(600);
        let (done, writes) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(seed);
                while !done.load(Ordering::Relaxed) {
                    write(&victim, &mut random);
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            });
            // Stops the other thread, even if this thread panics.
            let _done = Done(&done);
            let mut random = Random(!seed);
            for number in 0..CALLS {
                if number % CALLS_BETWEEN_WRITES == 0 {
                    wait_for_a_write(&writes);
                }
                call(&victim, &mut random);
            }
        });
    }
}

/// Without this wait, the victim can finish on a busy machine before the other thread begins.
fn wait_for_a_write(writes: &AtomicU32) {
    let before = writes.load(Ordering::Relaxed);
    while writes.load(Ordering::Relaxed) == before {
        std::thread::yield_now();
    }
}

/// `Party` itself asserts that no stretch of a call leaves its ring.
#[test]
fn a_region_rewritten_while_we_work_costs_at_most_a_fault() {
    let bytes = vec![1; 1 << 20];
    let (mut faults, mut moved_bytes) = (0, 0);
    let write = |victim: &Party, random: &mut Random| {
        let words = victim.memory().control_words();
        // Mostly small numbers, because small numbers pass more checks.
        let value = random.next() >> (32 + random.below(32));
        words[32 + random.below(256) as usize].store(value as u32, Ordering::Relaxed);
    };
    while_another_writes(write, |victim, random| {
        let len = random.len(19) as usize;
        let outcome = match random.below(8) {
            0..=1 => victim.try_send(&bytes[..len]),
            2 => victim.end().ahead().map(|_| 0),
            3..=5 => {
                let received = victim.try_receive(len, random.below(4) == 0);
                received.map(|received| match received {
                    Received::Bytes(bytes) => bytes.len(),
                    Received::Nothing | Received::End => 0,
                })
            }
            6 => victim.try_up().map(|_| 0),
            _ if victim.end().tx_mode() == Mode::Ring => {
                let unread = victim.end().go_down(|_| {});
                let again = unread.map(|unread| victim.end().unread(unread)).transpose();
                again.map(|_| 0)
            }
            _ => Ok(0),
        };
        match outcome {
            Ok(bytes) => {
                assert!(bytes <= len, "{bytes} bytes moved by a call for {len}");
                moved_bytes += bytes;
            }
            Err(_) => faults += 1,
        }
    });
    // Both outcomes must be common, or the test explores nothing.
    let calls = ROUNDS as usize * CALLS;
    assert!(faults > calls / 100, "{faults} faults in {calls} calls");
    assert!(
        faults < calls - calls / 100,
        "{faults} faults in {calls} calls"
    );
    assert!(moved_bytes > 0, "nothing was ever sent or received");
}

/// Raises a flag when dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Every word of an entry, for a thread that overwrites words at random.
fn words(entry: &Entry) -> &[AtomicU32] {
    let count = size_of::<Entry>() / size_of::<AtomicU32>();
    // SAFETY: an entry is atomics all through. Mixed sizes are what a hostile member of the family
    // would use, too, and x86 and AArch64 define them.
    unsafe { core::slice::from_raw_parts((&raw const *entry).cast(), count) }
}

/// Overwrites one word of the victim's entry, usually with a value that is nearly right.
fn rewrite(victim: &Party, random: &mut Random) {
    let entry = victim.end().entry;
    let words = words(entry);
    let word = &words[random.below(words.len() as u64) as usize];
    let near = random.below(256) as u32;
    let value = match random.below(12) {
        0 => 0,
        1 => u32::MAX - near % 2,
        2 => near,
        3 => word.load(Ordering::Relaxed).wrapping_add(near % 4),
        4 => word.load(Ordering::Relaxed).wrapping_sub(near % 4),
        5 => CAPACITY_LOG2_MAX + near % 3,
        6 => 63 + near % 3,
        7 => entry.tx_ring.own() as u32,
        8 => (entry.tx_ring.own() as u32).wrapping_add(near << 14),
        9 => entry.rx_ring.own() as u32,
        10 => near << 23,
        _ => random.next() as u32,
    };
    word.store(value, Ordering::Relaxed);
}

/// One operation of the victim. Fails the test when it would touch memory outside its rings.
fn operate(victim: &Party, random: &mut Random, bytes: &[u8]) -> Result<(), Fault> {
    let end = victim.end();
    let len = random.len(23) as usize;
    match random.below(8) {
        0..=2 if end.tx_mode() == Mode::Ring => {
            let sender = end.sender();
            let credit = sender.credit(len as u64)?;
            assert!(credit <= RING_BYTES as u64, "{credit} bytes of credit");
            let len = len.min(credit as usize);
            for (offset, part) in sender.reserve(len) {
                assert!(offset + part <= RING_BYTES, "{part} bytes at {offset}");
                let target = end.ring_out().wrapping_add(offset);
                // SAFETY: inside the ring by the assertion above.
                unsafe { toehold_copy::to_shared(bytes.as_ptr(), target, part) };
            }
            sender.publish(len);
        }
        3 => drop(end.ahead()?),
        4..=5 => drop(victim.try_receive(len, random.below(4) == 0)?),
        6 => drop(victim.try_up()?),
        7 if end.tx_mode() == Mode::Ring => {
            if let Some(unread) = end.go_down(|_| {}) {
                end.unread(unread)?;
            }
        }
        8 => drop(end.ask_to_resend()),
        _ => drop(end.peer_can_ring()),
    }
    Ok(())
}

#[test]
fn an_entry_rewritten_between_every_step_costs_at_most_a_fault() {
    let bytes = vec![1; RING_BYTES];
    let (mut calls, mut faults, mut by_table) = (0, 0, 0);
    for seed in 0..200 {
        let mut random = Random(seed);
        let [victim, _peer] = connect_upgraded(600);
        for _ in 0..500 {
            if random.below(4) != 0 {
                rewrite(&victim, &mut random);
                continue;
            }
            calls += 1;
            let outcome = operate(&victim, &mut random, &bytes);
            faults += usize::from(outcome.is_err());
            by_table += usize::from(outcome == Err(Fault::Table));
        }
    }
    // Each outcome must be common, or the test explores nothing.
    assert!(by_table > 100, "{by_table} of the table in {calls}");
    assert!(faults < calls - calls / 20, "{faults} faults in {calls}");
}

#[test]
fn an_entry_rewritten_while_we_work_costs_at_most_a_fault() {
    let bytes = vec![1; RING_BYTES];
    while_another_writes(rewrite, |victim, random| {
        let _ = operate(victim, random, &bytes);
    });
}

#[test]
fn stretches_stay_in_the_largest_ring_whatever_they_are_asked_for() {
    let mut random = Random(7);
    for _ in 0..100_000 {
        let (position, len) = (random.next(), random.next() >> random.below(64));
        let log2 = random.next() as u32 >> random.below(32);
        for (offset, part) in toehold_channel::ring::stretches(position, len as usize, log2) {
            assert!(offset <= RING_BYTES && part <= RING_BYTES - offset);
        }
    }
}

/// The direction goes down behind doorbells that are never sent.
#[test]
fn a_record_whose_position_never_comes_has_no_effect() {
    let [victim, peer] = connect_upgraded(600);
    let end = peer.end();
    let records = end.entry.tx_records.load(Ordering::Relaxed);
    let switch = &end.ours().switch;
    let record = &switch.record[records.masked(RECORD_SLOTS as u32 - 1) as usize];
    record.carrier.store(1 << 40, Ordering::Relaxed);
    let sent = end.entry.tx_ring.load(Ordering::Relaxed);
    record.ring.store(sent, Ordering::Relaxed);
    switch.records.store(records.plus(1), Ordering::Release);
    assert!(victim.end().is_record_due());
    assert_eq!(victim.try_receive(1, false), Ok(Received::Nothing));
    assert!(victim.end().records_pending());
    assert!(!victim.end().is_record_due());
}

#[test]
fn a_record_is_due_when_the_bytes_before_it_are_read() {
    let [receiver, sender] = connect(600);
    assert_eq!(sender.try_send(b"abc"), Ok(3));
    assert_eq!(sender.try_up(), Ok(true));
    for byte in [b"a", b"b", b"c"] {
        assert!(!receiver.end().is_record_due());
        let received = Ok(Received::Bytes(byte.to_vec()));
        assert_eq!(receiver.try_receive(1, false), received);
    }
    assert!(receiver.end().is_record_due());
    assert_eq!(receiver.try_receive(1, false), Ok(Received::Nothing));
    assert!(!receiver.end().records_pending());
}

/// A family whose list another member rewrites whenever this process asks whether a member lives.
struct RewrittenList {
    list: [AtomicU32; 2],
    asked: Cell<u32>,
}

/// More questions than any call needs.
const ASKED_MAX: u32 = 10_000;

impl Family for RewrittenList {
    fn me(&self) -> u32 {
        self.list[0].load(Ordering::Relaxed)
    }

    fn is_alive(&self, _: u32) -> bool {
        self.asked.set(self.asked.get() + 1);
        assert!(self.asked.get() < ASKED_MAX, "the call does not return");
        let other_dead = 100 + self.asked.get();
        self.list[1].store(other_dead, Ordering::Relaxed);
        false
    }
}

impl Members for RewrittenList {
    fn list(&self) -> &[AtomicU32] {
        &self.list
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        std::iter::empty()
    }

    fn now_seconds(&self) -> u32 {
        0
    }
}

#[test]
fn a_place_in_the_list_that_always_changes_counts_as_a_member() {
    let family = RewrittenList {
        list: [AtomicU32::new(1), AtomicU32::new(100)],
        asked: Cell::new(0),
    };
    let entry = Entry::default();
    entry.held_by[0].store(0b11, Ordering::Relaxed);
    assert!(family.are_others(&entry));
    // The list is at rest: the other member is dead.
    let family = RewrittenList {
        list: [AtomicU32::new(1), AtomicU32::new(0)],
        asked: Cell::new(0),
    };
    assert!(!family.are_others(&entry));
}
