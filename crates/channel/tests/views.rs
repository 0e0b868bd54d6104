//! Words of a peer or of the family may have any value: the views of them neither panic nor lead
//! outside their memory.

#![cfg(not(loom))]

use proptest::prelude::*;
use toehold_channel::doorbell::WakeWord;
use toehold_channel::layout::{
    CAPACITY_LOG2_MAX, CAPACITY_LOG2_MIN, Consume, Publish, READY_BITMAPS, READY_BITS, RING_BYTES,
};
use toehold_channel::ring::{Receiver, Sender, stretches};
use toehold_channel::sync::{AtomicU32, Ordering};
use toehold_channel::untrusted::{Untrusted, Word32, Word64};

/// Numbers at the edges of what is valid, and any others.
fn position() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..4u64,
        (u64::MAX - 4)..=u64::MAX,
        0..=2 * RING_BYTES as u64,
    ]
}

fn log2() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), 0..64u32]
}

fn assert_inside(places: [(usize, usize); 2]) {
    for (offset, len) in places {
        assert!(offset + len <= RING_BYTES, "{len} bytes at {offset}");
    }
}

/// The peer has read everything, and we have not loaded its position since: the bytes in between
/// are more than a small ring holds.
#[test]
fn empty_ring_that_shrinks_has_room() {
    let (publish, consume) = (Publish::default(), Consume::default());
    let sent = 1u64 << (CAPACITY_LOG2_MIN + 2);
    consume.head.store(sent, Ordering::Relaxed);
    let (tail, head_seen) = (Word64::new(sent), Word64::new(0));
    let (capacity_log2, was_full) = (Word32::new(CAPACITY_LOG2_MAX), AtomicU32::new(0));
    let sender = Sender {
        publish: &publish,
        consume: &consume,
        tail: &tail,
        head_seen: &head_seen,
        capacity_log2: &capacity_log2,
        was_full: &was_full,
    };
    assert_eq!(sender.shrink(CAPACITY_LOG2_MIN), Ok(()));
    assert_eq!(sender.credit(1), Ok(1 << CAPACITY_LOG2_MIN));
    assert!((publish.capacity_log2.load(Ordering::Relaxed)).is(CAPACITY_LOG2_MIN));
}

proptest! {
    #[test]
    fn sender_stays_in_its_ring(
        (tail, head_seen, head) in (position(), position(), position()),
        (log2, want, len) in (log2(), any::<u64>(), any::<usize>()),
    ) {
        let (publish, consume) = (Publish::default(), Consume::default());
        consume.head.store(head, Ordering::Relaxed);
        let (tail, head_seen) = (Word64::new(tail), Word64::new(head_seen));
        let (capacity_log2, was_full) = (Word32::new(log2), AtomicU32::new(1));
        let sender = Sender {
            publish: &publish,
            consume: &consume,
            tail: &tail,
            head_seen: &head_seen,
            capacity_log2: &capacity_log2,
            was_full: &was_full,
        };
        sender.looks_writable();
        for credit in [sender.credit(want), sender.credit_fresh(), sender.credit_as_it_is()] {
            prop_assert!(credit.is_err() || credit.unwrap() <= RING_BYTES as u64);
        }
        assert_inside(sender.reserve(len));
        sender.publish(len);
        assert_inside(sender.reserve(len));
    }

    #[test]
    fn receiver_stays_in_its_ring(
        (tail, head, log2) in (position(), position(), log2()),
        (skip, len) in (position(), any::<usize>()),
    ) {
        let (publish, consume) = (Publish::default(), Consume::default());
        publish.tail.store(tail, Ordering::Relaxed);
        publish.capacity_log2.store(log2, Ordering::Relaxed);
        let head = Word64::new(head);
        let receiver = Receiver { publish: &publish, consume: &consume, head: &head };
        receiver.looks_filled();
        if let Ok(filled) = receiver.available() {
            prop_assert!(filled.len <= 1 << filled.capacity_log2);
            prop_assert!(filled.capacity_log2 <= CAPACITY_LOG2_MAX);
            assert_inside(receiver.peek(skip, len, filled));
            let all = receiver.peek(0, filled.len as usize, filled);
            prop_assert_eq!(all[0].1 + all[1].1, filled.len as usize);
        }
    }

    #[test]
    fn any_position_leads_into_the_ring(at in position(), len in any::<usize>(), log2 in log2()) {
        assert_inside(stretches(at, len, log2));
    }

    #[test]
    fn wake_words_name_bitmaps_and_bits_that_exist(word: u32) {
        let word = WakeWord::from_untrusted(Untrusted::from(word));
        if let Ok(WakeWord::Bitmap { bitmap, bit }) = word {
            prop_assert!((bitmap as usize) < READY_BITMAPS && (bit as usize) < READY_BITS);
        }
    }
}
