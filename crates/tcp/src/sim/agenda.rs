//! The event queue of the simulation: sorted by time; events of one time stay in the order of
//! insertion.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Instant;

#[derive(Debug)]
pub(super) struct Agenda<T> {
    /// Time, number and index into `entries`. Small, because sorting moves these.
    order: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    entries: Vec<Option<T>>,
    /// Free indices of `entries`.
    free: Vec<u32>,
}

impl<T> Agenda<T> {
    pub(super) fn new() -> Self {
        Self {
            order: BinaryHeap::new(),
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Adds an event. Numbers must increase.
    pub(super) fn push(&mut self, at: Instant, number: u64, entry: T) {
        let place = self.free.pop().unwrap_or(self.entries.len() as u32);
        if place as usize == self.entries.len() {
            self.entries.push(Some(entry));
        } else {
            self.entries[place as usize] = Some(entry);
        }
        self.order.push(Reverse((at, number, place)));
    }

    /// The time of the next event.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.order.peek().map(|&Reverse((at, ..))| at)
    }

    /// Removes the next event.
    pub(super) fn pop(&mut self) -> Option<(Instant, T)> {
        let Reverse((at, _, place)) = self.order.pop()?;
        self.free.push(place);
        let entry = self.entries[place as usize].take();
        Some((at, entry.expect("each place is in the order once")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_by_time_and_then_by_number() {
        let mut agenda = Agenda::new();
        let put = |agenda: &mut Agenda<u64>, at, number| {
            agenda.push(Instant::from_micros(at), number, at * 100 + number);
        };
        for (number, at) in [3, 1, 3, 2].into_iter().enumerate() {
            put(&mut agenda, at, number as u64);
        }
        assert_eq!(agenda.pop(), Some((Instant::from_micros(1), 101)));
        put(&mut agenda, 2, 4);
        let rest: Vec<u64> = core::iter::from_fn(|| Some(agenda.pop()?.1)).collect();
        assert_eq!(rest, [203, 204, 300, 302]);
    }
}
