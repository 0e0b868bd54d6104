//! Calls of a family's attention that need not come at once.
//!
//! A family that is called looks at all its connections. While regions are taken back, the peers of
//! one family may leave thousands of channels within a second. The adapter calls the family once
//! for all channels that the peers have left within [`CALL_INTERVAL`].

use super::Daemon;
use crate::registry::TableId;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The families to call.
#[derive(Debug, Default)]
pub(super) struct Calls {
    wanted: BTreeSet<TableId>,
    called: Option<Instant>,
}

impl Calls {
    /// A family is to be called.
    pub(super) fn want(&mut self, table: TableId) {
        self.wanted.insert(table);
    }

    /// When to call without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        let called = self.called.filter(|_| !self.wanted.is_empty());
        called.map(|called| called + CALL_INTERVAL)
    }

    /// The families to call now.
    fn take(&mut self, now: Instant) -> BTreeSet<TableId> {
        if self.wanted.is_empty() || self.due().is_some_and(|due| now < due) {
            return BTreeSet::new();
        }
        self.called = Some(now);
        std::mem::take(&mut self.wanted)
    }
}

impl Daemon {
    /// Calls families whose calls have waited for long enough.
    pub(super) fn call_families(&mut self) {
        for table in self.calls.take(Instant::now()) {
            self.tables.call_attention(table);
        }
    }
}

/// The shortest time between two calls. A channel that both ends have left keeps its memory for at
/// most this time.
const CALL_INTERVAL: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_called_at_once_and_then_once_in_a_while() {
        let mut calls = Calls::default();
        let begun = Instant::now();
        assert!(calls.take(begun).is_empty());
        let family = TableId(7);
        calls.want(family);
        assert_eq!(calls.due(), None, "with the end of this turn");
        assert_eq!(calls.take(begun), BTreeSet::from([family]));
        for _ in 0..3 {
            calls.want(family);
            assert!(calls.take(begun).is_empty());
        }
        let due = begun + CALL_INTERVAL;
        assert_eq!(calls.due(), Some(due));
        assert_eq!(calls.take(due), BTreeSet::from([family]));
        assert_eq!(calls.due(), None);
    }
}
