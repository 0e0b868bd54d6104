//! Acknowledgements that arrive at once, as over a radio link that gathers frames
//! (draft-ietf-ccwg-bbr section 5.5.9, BBRUpdateACKAggregation).

use crate::time::{Duration, Instant};

/// The most time for which acknowledgements are believed to be gathered (Linux,
/// bbr_extra_acked_max_us), and half of the rounds that BBRExtraAckedFilterLen counts.
const TIME_MAX: Duration = Duration::from_millis(100);
const ROUNDS: u8 = 5;
/// Acknowledgements that arrive within this time count as one burst.
const BURST: Duration = Duration::from_millis(1);

/// An acknowledgement of a flow with this bandwidth, in bytes per second, and this window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledged {
    pub(super) now: Instant,
    pub(super) bytes: u64,
    pub(super) rate: u64,
    pub(super) window: u64,
}

/// The bytes that gathered acknowledgements cover beyond the bandwidth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gathered {
    /// Since then acknowledgements have arrived faster than the bandwidth, for this many bytes.
    began: Instant,
    delivered: u64,
    /// The most bytes beyond the bandwidth, in the previous rounds and in the latest ones.
    most: [u64; 2],
    /// How many the latest rounds are.
    rounds: u8,
}

impl Gathered {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            delivered: 0,
            most: [0; 2],
            rounds: 0,
        }
    }

    pub(super) fn note(&mut self, acknowledged: Acknowledged) {
        let Acknowledged {
            now, bytes, rate, ..
        } = acknowledged;
        let expected = |began| now.since(began).bytes_at(rate);
        let is_over = now.since(self.began) > BURST;
        if is_over || self.delivered <= expected(self.began) {
            self.began = now;
            self.delivered = 0;
        }
        self.delivered += bytes;
        let extra = self.delivered.saturating_sub(expected(self.began));
        self.most[1] = self.most[1].max(extra.min(acknowledged.window));
    }

    /// A round is over. The maximum of the last five to ten rounds counts, and in Startup that of
    /// one or two.
    pub(super) fn end_round(&mut self, is_full: bool) {
        self.rounds += 1;
        if self.rounds >= if is_full { ROUNDS } else { 1 } {
            self.most = [self.most[1], 0];
            self.rounds = 0;
        }
    }

    /// The bytes for which a flow with this bandwidth needs room in its window.
    pub(super) fn bytes(&self, rate: u64) -> u64 {
        let most = self.most[0].max(self.most[1]);
        most.min(TIME_MAX.bytes_at(rate))
    }
}
