//! HyStart++ (RFC 9406): leaves the first slow start before it overflows a queue.
//!
//! ```text
//!                round-trip times have risen          five rounds
//!   slow start ------------------------------> CSS ---------------> congestion avoidance
//!              <------------------------------
//!                they are back where they were
//! ```
//!
//! CSS, conservative slow start, grows a quarter as fast, which gives time to find out whether our
//! own queue caused the rise. The names below are the RFC's.

use crate::position::Position;

/// RFC 9406 section 4.3; times in microseconds.
const MIN_RTT_THRESH: u32 = 4_000;
const MAX_RTT_THRESH: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;
/// Not yet measured.
const INFINITE: u32 = u32::MAX;

/// The state of the first slow start.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// The round ends when this position is acknowledged.
    window_end: Position,
    last_round_min_rtt: u32,
    current_round_min_rtt: u32,
    /// The round-trip time at which CSS was entered.
    css_baseline_min_rtt: u32,
    rtt_sample_count: u8,
    /// Rounds of CSS left, the current one included; zero outside of CSS.
    css_rounds_left: u8,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            window_end: Position::default(),
            last_round_min_rtt: INFINITE,
            current_round_min_rtt: INFINITE,
            css_baseline_min_rtt: INFINITE,
            rtt_sample_count: 0,
            css_rounds_left: 0,
        }
    }
}

/// Growth of slow start after one acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Growth {
    /// The window grows by this many bytes.
    Bytes(u32),
    /// Slow start is over.
    Over,
}

impl HyStart {
    /// RFC 9406 section 4.2, for an acknowledgement of `acked_bytes` up to `una`. The round-trip
    /// time of its newest segment is `rtt_micros`. Everything before `nxt` has been sent.
    pub(super) fn grow(
        &mut self,
        acked_bytes: u32,
        rtt_micros: Option<u32>,
        una: Position,
        nxt: Position,
    ) -> Growth {
        if let Some(rtt) = rtt_micros {
            self.current_round_min_rtt = self.current_round_min_rtt.min(rtt);
            self.rtt_sample_count = self.rtt_sample_count.saturating_add(1);
            if self.rtt_sample_count >= N_RTT_SAMPLE {
                self.look_at_round_trips();
            }
        }
        if una >= self.window_end && !self.begin_round(nxt) {
            return Growth::Over;
        }
        Growth::Bytes(if self.css_rounds_left > 0 {
            acked_bytes / CSS_GROWTH_DIVISOR
        } else {
            acked_bytes
        })
    }

    fn look_at_round_trips(&mut self) {
        let current = self.current_round_min_rtt;
        if self.css_rounds_left > 0 {
            if current < self.css_baseline_min_rtt {
                // The exit was a mistake: "cssBaselineMinRtt = infinity; resume slow start".
                self.css_baseline_min_rtt = INFINITE;
                self.css_rounds_left = 0;
            }
            return;
        }
        if self.last_round_min_rtt == INFINITE {
            return;
        }
        let threshold =
            (self.last_round_min_rtt / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
        if current >= self.last_round_min_rtt.saturating_add(threshold) {
            self.css_baseline_min_rtt = current;
            self.css_rounds_left = CSS_ROUNDS;
        }
    }

    /// Begins a round; false when it was the last of CSS.
    fn begin_round(&mut self, nxt: Position) -> bool {
        self.window_end = nxt;
        self.last_round_min_rtt = self.current_round_min_rtt;
        self.current_round_min_rtt = INFINITE;
        self.rtt_sample_count = 0;
        if self.css_rounds_left > 0 {
            self.css_rounds_left -= 1;
            return self.css_rounds_left > 0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1_000;

    /// One round of ten segments, acknowledged one by one; returns how much the window grew.
    fn round(hystart: &mut HyStart, from: u64, rtt_micros: u32) -> Option<u32> {
        let nxt = Position::of_byte((from + 20) * u64::from(MSS));
        (1..=10).try_fold(0, |sum, at| {
            let una = Position::of_byte((from + at) * u64::from(MSS));
            match hystart.grow(MSS, Some(rtt_micros), una, nxt) {
                Growth::Bytes(bytes) => Some(sum + bytes),
                Growth::Over => None,
            }
        })
    }

    #[test]
    fn a_steady_round_trip_doubles_the_window() {
        let mut hystart = HyStart::default();
        for at in 0..20 {
            assert_eq!(round(&mut hystart, at * 10, 50_000), Some(10 * MSS));
        }
    }

    #[test]
    fn a_queue_slows_growth_and_then_ends_it() {
        let mut hystart = HyStart::default();
        for at in 0..3 {
            round(&mut hystart, at * 10, 50_000);
        }
        let grown: Vec<_> = (3..12)
            .map(|at| round(&mut hystart, at * 10, 60_000))
            .collect();
        let end = grown.iter().position(Option::is_none).expect("CSS ends");
        assert!(end <= 1 + usize::from(CSS_ROUNDS), "after five rounds");
        assert!(grown[1].unwrap() < 10 * MSS / 2, "a quarter as fast");
    }

    #[test]
    fn a_rise_that_passes_resumes_slow_start() {
        let mut hystart = HyStart::default();
        for at in 0..3 {
            round(&mut hystart, at * 10, 50_000);
        }
        round(&mut hystart, 30, 60_000);
        assert!(hystart.css_rounds_left > 0);
        round(&mut hystart, 40, 50_000);
        assert_eq!(round(&mut hystart, 50, 50_000), Some(10 * MSS));
    }
}
