//! Halves of active opens that wait for their other halves: carriers whose requests have not come, and the other way round.
//!
//! Both are on their way within a moment of each other. What waits for long waits in vain, so where there are too many the oldest go: a
//! program that floods the relay drives out its own first.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long halves wait for each other.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How many of one kind.
const COUNT_MAX: usize = 4096;

/// Halves of one kind, by the program's end of the carrier.
#[derive(Debug)]
pub(super) struct Unmet<T> {
    by_carrier: HashMap<SocketAddr, (T, Instant)>,
    /// When they came, in order; those that were met meanwhile, or came again, are still here under their old time.
    arrivals: VecDeque<(SocketAddr, Instant)>,
}

impl<T> Default for Unmet<T> {
    fn default() -> Self {
        Unmet {
            by_carrier: HashMap::new(),
            arrivals: VecDeque::new(),
        }
    }
}

impl<T> Unmet<T> {
    pub(super) fn insert(&mut self, carrier: SocketAddr, half: T, now: Instant) {
        self.by_carrier.insert(carrier, (half, now));
        self.arrivals.push_back((carrier, now));
        while self.arrivals.len() > COUNT_MAX {
            self.forget_oldest();
        }
    }

    pub(super) fn take(&mut self, carrier: &SocketAddr) -> Option<T> {
        let (half, _) = self.by_carrier.remove(carrier)?;
        if self.by_carrier.is_empty() {
            self.arrivals.clear();
        }
        Some(half)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_carrier.is_empty()
    }

    /// Those that have waited for too long go.
    pub(super) fn forget_old(&mut self, now: Instant) {
        let is_old = |since: Instant| now.duration_since(since) >= PATIENCE;
        while self
            .arrivals
            .front()
            .is_some_and(|&(_, since)| is_old(since))
        {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((carrier, since)) = self.arrivals.pop_front() else {
            return;
        };
        let is_the_one = |(_, came): &(T, Instant)| *came == since;
        if self.by_carrier.get(&carrier).is_some_and(is_the_one) {
            self.by_carrier.remove(&carrier);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::new([127, 0, 0, 1].into(), port)
    }

    #[test]
    fn halves_meet_once() {
        let mut unmet = Unmet::default();
        unmet.insert(at(1), "a", Instant::now());
        assert_eq!(unmet.take(&at(1)), Some("a"));
        assert_eq!(unmet.take(&at(1)), None);
        assert!(unmet.is_empty() && unmet.arrivals.is_empty());
    }

    #[test]
    fn flood_drives_out_its_own_first() {
        let mut unmet = Unmet::default();
        let now = Instant::now();
        for port in 0..2 * COUNT_MAX as u16 {
            unmet.insert(at(port), port, now + Duration::from_micros(port.into()));
            // Somebody else's, whose other half comes next.
            let other = SocketAddr::new([127, 0, 0, 2].into(), port);
            unmet.insert(other, port, now + Duration::from_micros(port.into()));
            assert_eq!(unmet.take(&other), Some(port));
        }
        assert!(unmet.by_carrier.len() <= COUNT_MAX && unmet.arrivals.len() <= COUNT_MAX);
    }

    #[test]
    fn what_waits_in_vain_is_forgotten() {
        let mut unmet = Unmet::default();
        let now = Instant::now();
        unmet.insert(at(1), "old", now);
        unmet.insert(at(2), "young", now + PATIENCE / 2);
        // The same carrier once more: its first time counts no longer.
        unmet.insert(at(3), "first", now);
        unmet.insert(at(3), "second", now + PATIENCE / 2);
        unmet.forget_old(now + PATIENCE);
        assert_eq!(unmet.take(&at(1)), None);
        assert_eq!(unmet.take(&at(2)), Some("young"));
        assert_eq!(unmet.take(&at(3)), Some("second"));
    }
}
