//! The run queue: connections that have segments to send.

use super::line::Line;

/// The most segments that a connection may send before the next connection's turn.
const BURST_SEGMENTS_MAX: u32 = 16;
/// No slot has this number.
const NOBODY: u32 = u32::MAX;

/// The run queue of slots, each at most once: one is current, the others wait. Mostly there is only
/// one, and then `waiting` is not touched.
#[derive(Debug)]
pub(super) struct Turns {
    /// The connection that sends now. Invariant: while this is `NOBODY`, no connection waits.
    current: u32,
    /// Segments that the current connection has sent in a row.
    burst: u32,
    waiting: Line,
}

impl Turns {
    pub(super) const fn new() -> Self {
        Self {
            current: NOBODY,
            burst: 0,
            waiting: Line::new(),
        }
    }

    /// Adds a slot that is not in the queue.
    #[inline(always)]
    pub(super) fn push(&mut self, slot: u32) {
        if self.current == NOBODY {
            self.current = slot;
        } else {
            self.waiting.push(slot);
        }
    }

    /// The connection that sends now.
    #[inline]
    pub(super) fn current(&self) -> Option<u32> {
        (self.current != NOBODY).then_some(self.current)
    }

    /// The current slot has nothing more to send: removes it.
    #[inline]
    pub(super) fn finish(&mut self) {
        self.burst = 0;
        self.current = self.waiting.pop().unwrap_or(NOBODY);
    }

    /// The current slot has sent a segment, and has more. False: now another slot is current.
    #[inline]
    pub(super) fn go_on(&mut self) -> bool {
        let is_over = self.is_last_in_a_row();
        self.count();
        if is_over {
            self.give_way();
        }
        !is_over
    }

    /// Whether another slot becomes current after the next segment.
    #[inline(always)]
    pub(super) fn is_last_in_a_row(&self) -> bool {
        self.burst + 1 >= BURST_SEGMENTS_MAX && !self.waiting.is_empty()
    }

    /// Counts a segment of the current slot.
    #[inline(always)]
    pub(super) fn count(&mut self) {
        self.burst += 1;
    }

    /// Moves the current slot, which has more to send, to the end of the queue.
    pub(super) fn give_way(&mut self) {
        self.waiting.push(self.current);
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_turn_and_none_is_forgotten() {
        let mut turns = Turns::new();
        assert_eq!(turns.current(), None);
        (7..10).for_each(|slot| turns.push(slot));
        for expected in [7, 8, 9, 7, 8] {
            for segment in 1..=BURST_SEGMENTS_MAX {
                assert_eq!(turns.current(), Some(expected));
                assert_eq!(turns.go_on(), segment < BURST_SEGMENTS_MAX);
            }
        }
        for expected in [9, 7, 8] {
            assert_eq!(turns.current(), Some(expected));
            turns.finish();
        }
        assert_eq!(turns.current(), None);
        turns.push(3);
        assert!((0..3 * BURST_SEGMENTS_MAX).all(|_| turns.go_on()));
    }
}
