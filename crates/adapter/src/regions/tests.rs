//! The memory of channels as both ends and the kernel see it.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::*;
use crate::registry::{ClientId, End, Introduction, TableId};

const NEVER: Forks = [0, 0];

fn matched(channel: u64, slot: u32, forks: Forks) -> Match {
    let end = |table| Introduction {
        client: ClientId(table),
        end: End {
            table: TableId(table),
            entry: slot,
            generation: 1,
        },
        pair_attached: false,
        wants_slab: false,
    };
    Match {
        channel: ChannelId(channel),
        pair: PairId(1),
        slot,
        forks,
        sides: [end(1), end(2)],
    }
}

/// A slab as a program has it.
struct Mapped(NonNull<u8>);

impl Mapped {
    fn of(memory: &Memory) -> Mapped {
        let base =
            memfd::map(memory.slab.as_fd(), SLAB_BYTES).expect("sealed, of the right length");
        Mapped(base)
    }

    fn control(&self, slot: u32) -> &Control {
        // SAFETY: inside the mapping, which lives as long as `self`; all atomics.
        unsafe { self.0.add(place_in_slab(slot)).cast().as_ref() }
    }

    /// Writes to each page of a ring's first bytes.
    fn fill(&self, slot: u32, ring: usize, bytes: usize) {
        let begins = place_in_slab(slot) + CONTROL_BYTES + ring * RING_BYTES;
        for at in (0..bytes).step_by(4096) {
            // SAFETY: inside the mapping; nobody else uses it.
            unsafe { self.0.add(begins + at).write(1) };
        }
    }
}

impl Mapped {
    /// Whether nothing is left of a region.
    fn is_wiped(&self, slot: u32) -> bool {
        let mut bytes = vec![1; REGION_BYTES];
        // SAFETY: inside the mapping; nobody else uses it.
        unsafe {
            let region = self.0.add(place_in_slab(slot)).as_ptr();
            region.copy_to_nonoverlapping(bytes.as_mut_ptr(), REGION_BYTES);
        }
        bytes.iter().all(|&byte| byte == 0)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length; references into it borrow from `self`.
        unsafe { memfd::unmap(self.0, SLAB_BYTES) };
    }
}

/// Pages that a slab holds.
fn pages(memory: &Memory) -> u64 {
    let file = File::from(memory.slab.try_clone().expect("descriptors"));
    file.metadata().expect("metadata").blocks() / 8
}

#[test]
fn region_says_what_it_is_and_how_large_its_rings_are_each_time() {
    let (mut regions, now) = (Regions::new(usize::MAX), Instant::now());
    for channel in 0..2 {
        let memory = regions.create(&matched(channel, 3, NEVER)).expect("memory");
        let slab = Mapped::of(&memory);
        let control = slab.control(3);
        assert_eq!(control.magic.load(Ordering::Relaxed), REGION_MAGIC);
        assert_eq!(control.version.load(Ordering::Relaxed), LAYOUT_VERSION);
        for side in &control.sides {
            let capacity_log2 = side.publish.capacity_log2.load(Ordering::Relaxed);
            assert_eq!(capacity_log2, CAPACITY_LOG2_MIN);
            assert_eq!(side.publish.tail.load(Ordering::Relaxed), 0);
            assert_eq!(side.wake.attached.load(Ordering::Relaxed), 0);
            // Words that the next channel must not find.
            side.publish.capacity_log2.store(22, Ordering::Relaxed);
            side.publish.tail.store(77, Ordering::Relaxed);
            side.wake.attached.store(1, Ordering::Relaxed);
            side.wake.processor.store(1, Ordering::Relaxed);
        }
        regions.close(Ended::Channel(ChannelId(channel)), now);
    }
}

#[test]
fn slab_is_shown_once_and_its_slots_are_its_regions() {
    let mut regions = Regions::new(usize::MAX);
    let first = regions.create(&matched(1, 0, NEVER)).expect("memory");
    let second = regions.create(&matched(2, 1, NEVER)).expect("memory");
    let third = regions
        .create(&matched(3, SLAB_SLOTS, NEVER))
        .expect("memory");
    assert_eq!(
        [first.shown, second.shown, third.shown],
        [[false; 2], [true; 2], [false; 2]]
    );
    assert!(Arc::ptr_eq(&first.slab, &second.slab));
    assert!(!Arc::ptr_eq(&first.slab, &third.slab));
    assert!(Arc::ptr_eq(&first.pair, &third.pair));
}

#[test]
fn warm_region_keeps_its_first_pages_for_a_while() {
    let (mut regions, now) = (Regions::new(usize::MAX), Instant::now());
    let memory = regions.create(&matched(1, 0, NEVER)).expect("memory");
    // One channel stays, so that the slab stays.
    regions.create(&matched(2, 1, NEVER)).expect("memory");
    let slab = Mapped::of(&memory);
    slab.fill(0, 0, 1 << 20);
    slab.fill(0, 1, 8192);
    let grown = &slab.control(0).sides[0].publish.capacity_log2;
    grown.store(20, Ordering::Relaxed);
    assert_eq!(pages(&memory), 2 + 256 + 2);
    regions.close(Ended::Channel(ChannelId(1)), now);
    let kept = (WARM_RING_BYTES / 4096) as u64;
    assert_eq!(pages(&memory), 2 + kept + 2);
    assert_eq!(regions.cool_due(), Some(now + WARM_FOR));
    regions.cool(now + WARM_FOR / 2);
    assert_eq!(pages(&memory), 2 + kept + 2);
    regions.cool(now + WARM_FOR);
    assert_eq!(pages(&memory), 1, "the other's control words");
    assert_eq!(regions.cool_due(), None);
    let again = regions.create(&matched(3, 0, NEVER)).expect("memory");
    assert_eq!(again.shown, [true; 2]);
}

/// Until the pages of a region are given back, a new channel must not use it: its bytes would be
/// lost.
#[test]
fn region_whose_pages_are_still_to_be_given_back_is_not_used() {
    let (mut regions, now) = (Regions::new(usize::MAX), Instant::now());
    regions.give_back_later();
    let memory = regions.create(&matched(1, 0, NEVER)).expect("memory");
    regions.create(&matched(2, 1, NEVER)).expect("memory");
    let slab = Mapped::of(&memory);
    slab.fill(0, 0, 1 << 20);
    let grown = &slab.control(0).sides[0].publish.capacity_log2;
    grown.store(20, Ordering::Relaxed);
    regions.close(Ended::Channel(ChannelId(1)), now);
    let parts: Vec<_> = std::iter::from_fn(|| regions.poll_give_back()).collect();
    assert_eq!(parts.len(), 2, "one for each ring");
    let may_be_used = parts.into_iter().map(|part| {
        let refused = regions.create(&matched(3, 0, NEVER)).expect_err("not yet");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        regions.gave_back(part.run().expect("the slab stays"))
    });
    assert_eq!(may_be_used.collect::<Vec<_>>(), [false, true]);
    assert_eq!(pages(&memory), 2 + (WARM_RING_BYTES / 4096) as u64);
    regions.create(&matched(3, 0, NEVER)).expect("memory");
    // Of a slab that is given up, nobody waits for the pages.
    regions.close(Ended::Pair(PairId(1)), now);
    let part = regions.poll_give_back().expect("all of the slab");
    assert_eq!(part.run(), None);
    assert_eq!(pages(&memory), 0);
}

#[test]
fn slab_without_channels_is_given_up_and_so_is_all_of_a_pair() {
    let (mut regions, now) = (Regions::new(usize::MAX), Instant::now());
    let memory = regions.create(&matched(1, 0, NEVER)).expect("memory");
    regions.close(Ended::Channel(ChannelId(1)), now);
    regions.cool(now + WARM_FOR);
    assert_eq!(pages(&memory), 0);
    let other = regions.create(&matched(2, 0, NEVER)).expect("memory");
    assert_eq!(other.shown, [false; 2]);
    assert!(!Arc::ptr_eq(&memory.slab, &other.slab));
    Mapped::of(&other).fill(0, 1, 8192);
    regions.close(Ended::Channel(ChannelId(2)), now);
    regions.close(Ended::Pair(PairId(1)), now);
    assert_eq!(pages(&other), 0);
    assert!(regions.warm.is_empty());
}

#[test]
fn who_has_forked_gets_another_slab() {
    let (mut regions, now) = (Regions::new(usize::MAX), Instant::now());
    let before = regions.create(&matched(1, 0, NEVER)).expect("memory");
    regions.close(Ended::Channel(ChannelId(1)), now);
    let after = regions.create(&matched(2, 0, [0, 1])).expect("memory");
    assert!(!Arc::ptr_eq(&before.slab, &after.slab));
    assert_eq!(after.shown, [false; 2]);
    assert_eq!(pages(&before), 0, "a child may have it mapped");
}

#[test]
fn another_process_is_shown_nothing_but_the_channel_it_resumes() {
    let (mut regions, now) = (Regions::new(usize::MAX), Instant::now());
    regions.create(&matched(1, 0, NEVER)).expect("memory");
    let memory = regions.create(&matched(2, 1, NEVER)).expect("memory");
    Mapped::of(&memory).fill(0, 0, 8192);
    regions.close(Ended::Channel(ChannelId(1)), now);
    assert_eq!(pages(&memory), 4, "one is warm");
    let shown = regions.get(ChannelId(2), true).expect("it has memory");
    assert_eq!((pages(&shown), shown.shown), (1, [false; 2]));
    regions.close(Ended::Channel(ChannelId(2)), now);
    assert_eq!(pages(&shown), 0, "nothing of it is kept");
    let next = regions.create(&matched(3, 1, NEVER)).expect("memory");
    assert!(!Arc::ptr_eq(&shown.slab, &next.slab));
}

#[test]
fn another_process_finds_nothing_in_regions_whose_pages_are_given_back_later() {
    let (mut regions, now) = (Regions::new(usize::MAX), Instant::now());
    regions.give_back_later();
    let memory = regions.create(&matched(1, 0, NEVER)).expect("memory");
    regions.create(&matched(2, 1, NEVER)).expect("memory");
    let slab = Mapped::of(&memory);
    slab.fill(0, 1, 8192);
    regions.close(Ended::Channel(ChannelId(1)), now);
    let before = pages(&memory);
    regions.get(ChannelId(2), true).expect("it has memory");
    assert_eq!(pages(&memory), before, "no page was made");
    assert!(slab.is_wiped(0) && !slab.is_wiped(1));
}

#[test]
fn a_pair_says_what_it_is() {
    let file = create_pair().expect("memfd");
    let base = memfd::map(file.as_fd(), PAIR_BYTES).expect("sealed, of the right length");
    // SAFETY: mapped just now, of the right length and aligned to a page.
    let header: &PairHeader = unsafe { base.cast().as_ref() };
    assert_eq!(header.magic.load(Ordering::Relaxed), PAIR_MAGIC);
    assert_eq!(header.version.load(Ordering::Relaxed), LAYOUT_VERSION);
    // SAFETY: `header` is not used any more.
    unsafe { memfd::unmap(base, PAIR_BYTES) };
}

#[test]
fn channels_of_a_slab_that_is_there_need_no_descriptor_and_others_wait_for_one() {
    let (mut regions, now) = (Regions::new(3), Instant::now());
    assert!(regions.has_room(&matched(1, 0, NEVER)));
    let memory = regions.create(&matched(1, 0, NEVER)).expect("memory");
    assert_eq!(regions.slabs(), [1, 2]);
    let other_slab = matched(2, SLAB_SLOTS, NEVER);
    assert!(regions.has_room(&other_slab));
    regions.create(&other_slab).expect("memory");
    assert!(regions.has_room(&matched(3, 1, NEVER)));
    let third_slab = matched(3, 2 * SLAB_SLOTS, NEVER);
    assert!(!regions.has_room(&third_slab));
    // A slab that must not be used any more is replaced.
    assert!(regions.has_room(&matched(3, 1, [1, 0])));
    drop(memory);
    regions.close(Ended::Channel(ChannelId(1)), now);
    assert!(!regions.has_room(&third_slab), "it is warm");
    regions.cool(now + WARM_FOR);
    assert!(regions.has_room(&third_slab));
    assert!(!regions.has_room_for_any());
    regions.close(Ended::Pair(third_slab.pair), now);
    assert_eq!(regions.slabs(), [0, 3]);
    assert!(regions.has_room_for_any());
}

#[test]
fn slabs_of_more_channels_than_are_kept_warm_are_given_up_at_once() {
    let (mut regions, now) = (Regions::new(usize::MAX), Instant::now());
    let count = WARM_MAX as u32 + 3 * SLAB_SLOTS;
    for slot in 0..count {
        let matched = matched(u64::from(slot), slot, NEVER);
        regions.create(&matched).expect("memory");
    }
    for slot in 0..count {
        regions.close(Ended::Channel(ChannelId(slot.into())), now);
    }
    assert_eq!(regions.slabs()[0], WARM_MAX / SLAB_SLOTS as usize);
    regions.cool(now + WARM_FOR);
    assert_eq!(regions.slabs()[0], 0);
}
