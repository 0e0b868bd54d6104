//! A queue of slots: first in, first out.

/// A served slot stays in the array until the queue is found empty or the array is full: so both
/// ends are indices. Each slot is in the queue at most once, so there are no more entries than
/// connections.
#[derive(Debug, Default)]
pub(super) struct Line {
    slots: Vec<u32>,
    served: usize,
}

impl Line {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            served: 0,
        }
    }

    /// Joins at the end.
    #[inline(always)]
    pub(super) fn push(&mut self, slot: u32) {
        if self.slots.len() == self.slots.capacity() {
            self.make_room();
        }
        self.slots.push(slot);
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self) {
        // At least half of the array is served and at most half is moved: each slot is moved once,
        // on average.
        if self.served > self.slots.len() / 2 {
            self.slots.drain(..self.served);
            self.served = 0;
        } else {
            self.slots.reserve(1);
        }
    }

    /// The next slot.
    #[inline(always)]
    pub(super) fn first(&mut self) -> Option<u32> {
        let first = self.slots.get(self.served).copied();
        if first.is_none() {
            self.slots.clear();
            self.served = 0;
        }
        first
    }

    /// Removes the first slot.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<u32> {
        let slot = self.first()?;
        self.served += 1;
        Some(slot)
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.served == self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn agrees_with_a_queue_and_does_not_grow_beyond_twice_of_what_waits() {
        let mut random = crate::Random::new(9);
        let mut line = Line::new();
        let mut model = VecDeque::new();
        let mut longest = 0;
        for slot in 0..100_000 {
            // The queue is never empty in the busy stretches, and often empty in the others.
            let is_busy = slot / 10_000 % 2 == 0;
            if random.below(2) == 0 || (is_busy && model.len() < 40) {
                line.push(slot);
                model.push_back(slot);
            } else {
                assert_eq!(line.first(), model.front().copied());
                assert_eq!(line.pop(), model.pop_front());
            }
            longest = longest.max(model.len());
            assert_eq!(line.is_empty(), model.is_empty());
            assert!(line.slots.capacity() <= (4 * longest).max(8), "it leaks");
        }
    }
}
