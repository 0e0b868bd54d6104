//! The earliest deadline among many connections: a four-way heap with an index of the slots'
//! places.
//!
//! A connection's deadline moves later with nearly every acknowledgement. The heap does not follow:
//! it keeps the earlier time, and then looks at the connection again. So a busy connection costs
//! one heap operation per timeout, not one per segment.

use crate::time::Instant;

const ABSENT: u32 = u32::MAX;
const ARITY: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    /// Invariant: no entry is earlier than its parent.
    heap: Vec<(Instant, u32)>,
    /// The place of each slot in the heap.
    places: Vec<u32>,
}

impl Deadlines {
    /// The earliest deadline.
    #[inline]
    pub(crate) fn earliest(&self) -> Option<Instant> {
        self.heap.first().map(|&(at, _)| at)
    }

    /// Takes a slot whose time has come.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let &(at, slot) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove(slot);
        Some(slot)
    }

    /// Makes sure that `slot` is looked at no later than `at`.
    #[inline(never)]
    pub(crate) fn ask_by(&mut self, slot: u32, at: Instant) {
        let place = self.places.get(slot as usize).copied().unwrap_or(ABSENT);
        if place == ABSENT {
            self.insert(slot, at);
        } else if at < self.heap[place as usize].0 {
            self.heap[place as usize].0 = at;
            self.sift_up(place as usize);
        }
    }

    #[cold]
    fn insert(&mut self, slot: u32, at: Instant) {
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, ABSENT);
        }
        self.heap.push((at, slot));
        self.places[slot as usize] = (self.heap.len() - 1) as u32;
        self.sift_up(self.heap.len() - 1);
    }

    /// Removes a slot.
    pub(crate) fn remove(&mut self, slot: u32) {
        let place = self.places.get(slot as usize).copied().unwrap_or(ABSENT);
        if place == ABSENT {
            return;
        }
        self.places[slot as usize] = ABSENT;
        let last = self.heap.pop().expect("a slot with a place is in the heap");
        if place as usize == self.heap.len() {
            return;
        }
        self.heap[place as usize] = last;
        self.places[last.1 as usize] = place;
        self.sift_up(place as usize);
        self.sift_down(self.places[last.1 as usize] as usize);
    }

    fn sift_up(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.heap[parent].0 <= self.heap[place].0 {
                break;
            }
            self.swap(place, parent);
            place = parent;
        }
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let first = place * ARITY + 1;
            let children = first..(first + ARITY).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].0) else {
                return;
            };
            if self.heap[place].0 <= self.heap[least].0 {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].1 as usize] = a as u32;
        self.places[self.heap[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_sorted_map() {
        let mut random = crate::Random::new(8);
        let mut deadlines = Deadlines::default();
        let mut model = std::collections::BTreeMap::<u32, Instant>::new();
        for _ in 0..50_000 {
            let slot = random.below(100) as u32;
            let at = Instant::from_micros(random.below(1_000));
            match random.below(4) {
                0 => {
                    deadlines.remove(slot);
                    model.remove(&slot);
                }
                1 => {
                    let now = Instant::from_micros(random.below(50));
                    while let Some(slot) = deadlines.pop_due(now) {
                        assert!(model.remove(&slot).is_some_and(|at| at <= now));
                    }
                    assert!(model.values().all(|&at| at > now));
                }
                _ => {
                    deadlines.ask_by(slot, at);
                    let entry = model.entry(slot).or_insert(at);
                    *entry = (*entry).min(at);
                }
            }
            assert_eq!(deadlines.earliest(), model.values().min().copied());
        }
    }
}
