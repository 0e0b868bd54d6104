//! The delivery rate of a connection: the data that arrived in the time between the sending of a
//! segment and its acknowledgement (draft-ietf-ccwg-bbr section 4.1).
//!
//! The draft keeps the state at the time of sending with every segment in flight. Here a connection
//! keeps *marks*: its state at a few earlier times, the newest ones a quarter of a round trip
//! apart. A sample begins with the last mark before its segment was sent. So it covers at most a
//! quarter of a round trip more than in the draft, records in flight need no extra memory, and
//! connections that need no rate pay nothing.
//!
//! A remote without SACK acknowledges data beyond a hole only once the hole is filled. If such data
//! was deduced to be lost, it may have arrived long before, and is no part of a sample. The draft
//! has no such rule.

use crate::time::{Duration, Instant};

/// Marks cover two round trips, so a sample finds its mark although a queue has doubled the round
/// trip meanwhile.
const MARKS: usize = 8;
const MARKS_PER_ROUND_TRIP: u64 = 4;

/// The bytes that had been delivered at a time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    bytes: u64,
    /// When the newest data that had arrived was sent (the draft's C.first_sent_time).
    sent_at: Instant,
}

/// An acknowledgement of data that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) now: Instant,
    pub(super) bytes: u64,
    /// Those of `bytes` that may have arrived long ago. They are no part of a sample.
    pub(super) late_bytes: u64,
    /// When the newest of the data was last sent.
    pub(super) sent_at: Option<Instant>,
    /// The shortest round trip of the path.
    pub(super) min_rtt: Duration,
}

/// Measures the delivery rate.
#[derive(Clone, Debug)]
pub(super) struct DeliveryRate {
    delivered: u64,
    newest_sent_at: Instant,
    marks: [Mark; MARKS],
    /// The index of the newest mark.
    newest: usize,
}

impl DeliveryRate {
    pub(super) fn new(now: Instant) -> Self {
        let mark = Mark {
            at: now,
            bytes: 0,
            sent_at: now,
        };
        Self {
            delivered: 0,
            newest_sent_at: now,
            marks: [mark; MARKS],
            newest: 0,
        }
    }

    /// All bytes that have arrived.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Data is sent while nothing is in flight. The time before that is no part of a sample.
    pub(super) fn restart(&mut self, now: Instant) {
        self.newest_sent_at = now;
        self.mark(now);
    }

    /// Takes an acknowledgement, and returns a sample in bytes per second.
    pub(super) fn take(&mut self, arrival: Arrival) -> Option<u64> {
        let Arrival { now, .. } = arrival;
        self.delivered += arrival.bytes;
        for mark in &mut self.marks {
            mark.bytes += arrival.late_bytes;
        }
        let sent_at = arrival.sent_at?;
        self.newest_sent_at = self.newest_sent_at.max(sent_at);
        let mark = self.mark_before(sent_at);
        let round_trip = now.since(sent_at).max(arrival.min_rtt).as_micros();
        let age = now.since(self.marks[self.newest].at).as_micros();
        if age == 0 || age * MARKS_PER_ROUND_TRIP >= round_trip {
            self.mark(now);
        }
        // Acknowledgements may arrive closer together than the data was sent, but data does not
        // arrive faster than it was sent.
        let sending = self.newest_sent_at.since(mark.sent_at);
        let interval = now.since(mark.at).max(sending);
        // The first copy of a segment that was sent twice was acknowledged.
        let is_first_copy = now.since(sent_at) < arrival.min_rtt;
        let micros = interval.as_micros();
        (micros > 0 && !is_first_copy).then(|| (self.delivered - mark.bytes) * 1_000_000 / micros)
    }

    /// The last mark that is not later than `at`, or else the oldest one.
    fn mark_before(&self, at: Instant) -> Mark {
        let mut mark = self.marks[self.newest];
        for back in 1..MARKS {
            if mark.at <= at {
                break;
            }
            mark = self.marks[(self.newest + MARKS - back) % MARKS];
        }
        mark
    }

    /// Several acknowledgements of one moment leave one mark, of the last of them.
    fn mark(&mut self, now: Instant) {
        if self.marks[self.newest].at < now {
            self.newest = (self.newest + 1) % MARKS;
        }
        self.marks[self.newest] = Mark {
            at: now,
            bytes: self.delivered,
            sent_at: self.newest_sent_at,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(8);

    fn at(millis: u64) -> Instant {
        Instant::from_micros(1_000_000 + millis * 1_000)
    }

    /// 1,000 bytes that left at a time arrive at another.
    fn take(rate: &mut DeliveryRate, sent: u64, now: u64) -> Option<u64> {
        rate.take(Arrival {
            now: at(now),
            bytes: 1_000,
            late_bytes: 0,
            sent_at: Some(at(sent)),
            min_rtt: ROUND_TRIP,
        })
    }

    /// Segments that left at `sending` milliseconds from each other arrive at `arriving`.
    fn steady(sending: u64, arriving: u64) -> Vec<u64> {
        let mut rate = DeliveryRate::new(at(0));
        let samples = (1..100).map(|n| take(&mut rate, n * sending, 100 + n * arriving));
        samples.skip(50).flatten().collect()
    }

    #[test]
    fn the_rate_of_arrivals_is_measured() {
        let samples = steady(2, 2);
        assert!(!samples.is_empty());
        assert!(
            samples
                .iter()
                .all(|rate| (490_000..=510_000).contains(rate)),
            "{samples:?}"
        );
    }

    /// Acknowledgements that arrive closer together than the data was sent show no larger rate:
    /// here 8 ms after the acknowledgement of data that was sent 10 ms earlier.
    #[test]
    fn data_does_not_arrive_faster_than_it_was_sent() {
        let mut rate = DeliveryRate::new(at(0));
        take(&mut rate, 10, 20);
        assert_eq!(take(&mut rate, 20, 28), Some(100_000));
    }

    /// A flow waits ten round trips before each burst.
    #[test]
    fn waiting_is_no_part_of_a_sample() {
        let mut rate = DeliveryRate::new(at(0));
        for burst in 1..10 {
            let sent = burst * 100;
            rate.restart(at(sent));
            for _ in 0..3 {
                take(&mut rate, sent, sent + 8);
            }
            assert_eq!(take(&mut rate, sent, sent + 8), Some(500_000));
        }
    }

    /// One segment fills a hole, and the acknowledgement covers nine segments that had arrived
    /// before.
    #[test]
    fn late_bytes_are_no_part_of_a_sample() {
        let mut rate = DeliveryRate::new(at(0));
        rate.restart(at(100));
        let sample = rate.take(Arrival {
            now: at(110),
            bytes: 10_000,
            late_bytes: 9_000,
            sent_at: Some(at(100)),
            min_rtt: ROUND_TRIP,
        });
        assert_eq!(sample, Some(100_000));
        assert_eq!(rate.delivered(), 10_000);
    }

    /// The acknowledgement of the first copy arrives soon after the second one was sent.
    #[test]
    fn an_acknowledgement_of_a_first_copy_is_no_sample() {
        let mut rate = DeliveryRate::new(at(0));
        for n in 1..20 {
            take(&mut rate, n, n + 8);
        }
        assert_eq!(take(&mut rate, 27, 28), None);
    }
}
