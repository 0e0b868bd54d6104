//! Slot numbers of one pair of processes: handed out lowest first, so that the boards' used words stay few.

/// Which slots are taken. Numbers below `limit` only.
#[derive(Debug)]
pub(crate) struct Slots {
    words: Vec<u64>,
    limit: u32,
    taken: u32,
}

impl Slots {
    /// No slot taken, `limit` of them in all.
    pub(crate) fn new(limit: u32) -> Slots {
        Slots {
            words: Vec::new(),
            limit,
            taken: 0,
        }
    }

    /// The lowest free slot, or nothing when all are taken.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let found = self.words.iter().position(|&word| word != u64::MAX);
        let index = found.unwrap_or(self.words.len());
        let bit = match found {
            Some(index) => self.words[index].trailing_ones(),
            None => 0,
        };
        let slot = index as u32 * u64::BITS + bit;
        if slot >= self.limit {
            return None;
        }
        if found.is_none() {
            self.words.push(0);
        }
        self.words[index] |= 1 << bit;
        self.taken += 1;
        Some(slot)
    }

    /// Gives a slot back.
    ///
    /// # Panics
    /// When it was not taken: two channels would have shared it.
    pub(crate) fn release(&mut self, slot: u32) {
        let word = &mut self.words[(slot / u64::BITS) as usize];
        let mask = 1u64 << (slot % u64::BITS);
        assert!(*word & mask != 0, "slot {slot} was not taken");
        *word &= !mask;
        self.taken -= 1;
    }

    /// Whether no slot is taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_lowest_first_and_are_reused() {
        let mut slots = Slots::new(1000);
        let first: Vec<_> = (0..130).map(|_| slots.take().expect("free")).collect();
        assert_eq!(first, (0..130).collect::<Vec<_>>());
        slots.release(64);
        slots.release(3);
        assert_eq!(slots.take(), Some(3));
        assert_eq!(slots.take(), Some(64));
        assert_eq!(slots.take(), Some(130));
    }

    #[test]
    fn a_full_set_has_no_slot_until_one_is_given_back() {
        let mut slots = Slots::new(65);
        for slot in 0..65 {
            assert_eq!(slots.take(), Some(slot));
        }
        assert_eq!(slots.take(), None);
        slots.release(64);
        assert_eq!(slots.take(), Some(64));
        for slot in 0..65 {
            slots.release(slot);
        }
        assert!(slots.is_empty());
    }

    #[test]
    #[should_panic(expected = "was not taken")]
    fn a_slot_cannot_be_given_back_twice() {
        let mut slots = Slots::new(64);
        slots.take();
        slots.release(0);
        slots.release(0);
    }
}
