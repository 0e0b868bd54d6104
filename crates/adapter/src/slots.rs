//! Slot numbers of one pair of processes. The lowest free number is given out first, so that few
//! words of the ready bitmaps and few slabs are in use.
//!
//! Two processes that share a slot of a slab share the whole slab. A forked child inherits its
//! parent's slabs. So after a fork, existing slabs of that process get no new channels until they
//! are empty and can be replaced.

use toehold_channel::layout::SLAB_SLOTS;

/// Which slots are taken. Numbers below `limit` only.
#[derive(Debug)]
pub(crate) struct Slots {
    slabs: Vec<Slab>,
    limit: u32,
    taken: u32,
}

/// The number of times that each of the two processes has forked.
pub(crate) type Forks = [u32; 2];

#[derive(Debug, Default)]
struct Slab {
    /// One bit for each slot.
    taken: u8,
    /// When its first slot was taken.
    forks: Forks,
    /// Other processes may see the slab now.
    is_closed: bool,
}

const _: () = assert!(SLAB_SLOTS == u8::BITS);

impl Slab {
    fn takes(&self, forks: Forks) -> bool {
        let has_room = self.taken != u8::MAX;
        self.taken == 0 || (has_room && !self.is_closed && self.forks == forks)
    }
}

impl Slots {
    /// No slot taken, `limit` of them in all.
    pub(crate) fn new(limit: u32) -> Slots {
        Slots {
            slabs: Vec::new(),
            limit,
            taken: 0,
        }
    }

    /// Takes the lowest free slot, for processes with these fork counts. `None` when all are taken.
    pub(crate) fn take(&mut self, forks: Forks) -> Option<u32> {
        let found = self.slabs.iter().position(|slab| slab.takes(forks));
        let index = found.unwrap_or(self.slabs.len());
        let bit = found.map_or(0, |index| self.slabs[index].taken.trailing_ones());
        let slot = index as u32 * SLAB_SLOTS + bit;
        if slot >= self.limit {
            return None;
        }
        if found.is_none() {
            self.slabs.push(Slab::default());
        }
        let slab = &mut self.slabs[index];
        if slab.taken == 0 {
            (slab.forks, slab.is_closed) = (forks, false);
        }
        slab.taken |= 1 << bit;
        self.taken += 1;
        Some(slot)
    }

    /// Gives a slot back.
    ///
    /// # Panics
    /// When it was not taken: two channels would have shared it.
    pub(crate) fn release(&mut self, slot: u32) {
        let slab = &mut self.slabs[(slot / SLAB_SLOTS) as usize];
        let mask = 1u8 << (slot % SLAB_SLOTS);
        assert!(slab.taken & mask != 0, "slot {slot} was not taken");
        slab.taken &= !mask;
        self.taken -= 1;
    }

    /// Closes the slab of a slot for new channels, if this slot has its only channel. False when
    /// there are other channels; then nothing changes.
    pub(crate) fn close_slab(&mut self, slot: u32) -> bool {
        let slab = &mut self.slabs[(slot / SLAB_SLOTS) as usize];
        let is_alone = slab.taken == 1 << (slot % SLAB_SLOTS);
        slab.is_closed |= is_alone;
        is_alone
    }

    /// Whether no slot is taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Forks = [0, 0];

    #[test]
    fn slots_come_lowest_first_and_are_reused() {
        let mut slots = Slots::new(1000);
        let first: Vec<_> = (0..130).map(|_| slots.take(NEVER).expect("free")).collect();
        assert_eq!(first, (0..130).collect::<Vec<_>>());
        slots.release(64);
        slots.release(3);
        assert_eq!(slots.take(NEVER), Some(3));
        assert_eq!(slots.take(NEVER), Some(64));
        assert_eq!(slots.take(NEVER), Some(130));
    }

    #[test]
    fn a_full_set_has_no_slot_until_one_is_given_back() {
        let mut slots = Slots::new(65);
        for slot in 0..65 {
            assert_eq!(slots.take(NEVER), Some(slot));
        }
        assert_eq!(slots.take(NEVER), None);
        slots.release(64);
        assert_eq!(slots.take(NEVER), Some(64));
        for slot in 0..65 {
            slots.release(slot);
        }
        assert!(slots.is_empty());
    }

    #[test]
    fn slab_from_before_a_fork_gets_no_channel_until_it_is_empty() {
        let mut slots = Slots::new(1000);
        assert_eq!([0, 1].map(|_| slots.take(NEVER)), [Some(0), Some(1)]);
        assert_eq!(slots.take([0, 1]), Some(SLAB_SLOTS), "a slab of its own");
        assert_eq!(slots.take([1, 1]), Some(2 * SLAB_SLOTS), "whoever forked");
        slots.release(0);
        assert_eq!(slots.take([0, 1]), Some(SLAB_SLOTS + 1));
        slots.release(1);
        assert_eq!(slots.take([0, 1]), Some(0), "empty: another slab");
        assert_eq!(slots.take(NEVER), Some(3 * SLAB_SLOTS));
    }

    #[test]
    fn slab_is_closed_for_its_only_channel_and_opened_when_empty() {
        let mut slots = Slots::new(1000);
        assert_eq!([0, 1].map(|_| slots.take(NEVER)), [Some(0), Some(1)]);
        assert!(!slots.close_slab(0), "there is another");
        slots.release(1);
        assert!(slots.close_slab(0));
        assert_eq!(slots.take(NEVER), Some(SLAB_SLOTS));
        slots.release(0);
        assert_eq!(slots.take(NEVER), Some(0));
        assert_eq!(slots.take(NEVER), Some(1));
    }

    #[test]
    #[should_panic(expected = "was not taken")]
    fn a_slot_cannot_be_given_back_twice() {
        let mut slots = Slots::new(64);
        slots.take(NEVER);
        slots.release(0);
        slots.release(0);
    }
}
