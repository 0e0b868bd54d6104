//! Congestion control: how the window grows on acknowledgements, and how far it shrinks on
//! congestion.
//!
//! Three algorithms share slow start and differ in two functions, [`Congestion::grow`] and
//! [`Congestion::reduce`]. BBR uses neither: each acknowledgement goes to its model
//! ([`Congestion::follow`]). Windows are in bytes. Proportional rate reduction in `recovery.rs`
//! spreads a reduction over a round trip.

use super::bbr::{Bbr, Bounds, Step};
use super::hystart::{Growth, HyStart};
use crate::config::CongestionControl;
use crate::position::Position;
use crate::time::{Duration, Instant};

/// RFC 5681 section 3.1: ssthresh never falls below two segments for a loss.
const FLOOR_SEGMENTS: u32 = 2;
//= RFC 9438#4.6
//# The parameter β__cubic_ SHOULD be set to 0.7, which is different from the multiplicative
//# decrease factor used in [RFC5681] (and [RFC6675]) during fast recovery.
/// RFC 9438 section 4.6 and section 5: the multiplicative decrease factor, and the aggressiveness.
const CUBIC_BETA: f64 = 0.7;
//= RFC 9438#5.1
//# Therefore, _C_ SHOULD be set to 0.4.
const CUBIC_C: f64 = 0.4;
/// Before the first congestion, the window grows by at least this part in each round trip.
const CUBIC_FIRST_PARTS: f64 = 20.0;
/// RFC 8257 section 4.2: the weight g of the newest fraction.
const DCTCP_GAIN: f64 = 1.0 / 16.0;

// The fields are in the order of use: a connection that does not fill its window reads only the
// first two.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Congestion {
    pub(crate) ssthresh: u32,
    /// The most bytes recently in flight: slow start ends at twice this size (RFC 7661's concern).
    pub(crate) flight_bytes_max: u32,
    control: CongestionControl,
    /// Bytes acknowledged in congestion avoidance that have not been added to the window yet.
    credit_bytes: f64,
    hystart: HyStart,
    cubic: Cubic,
    more: AlgorithmState,
}

/// The reason for a reduction of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Data was lost and has to be sent again.
    Loss,
    /// A tail loss probe has repaired a loss already.
    RepairedLoss,
    /// The remote reports an ECN mark.
    Mark,
}

/// The window and the state of its growth, before a reduction that may prove a mistake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prior {
    pub(crate) cwnd: u32,
    ssthresh: u32,
    cubic: Cubic,
    bounds: Option<Bounds>,
}

/// State that only some algorithms need.
#[derive(Clone, Debug)]
enum AlgorithmState {
    Nothing,
    Dctcp(Box<Dctcp>),
    Bbr(Box<Bbr>),
}

/// RFC 9438's variables; windows in segments, times in seconds.
#[derive(Clone, Copy, Debug)]
struct Cubic {
    w_max: f64,
    /// The window when ssthresh was last set for congestion. With fast convergence W_max is
    /// smaller.
    cwnd_prior: f64,
    w_est: f64,
    k: f64,
    /// The start of the current congestion avoidance stage, moved later by the time in which the
    /// window was not the limit. Not armed between two stages.
    epoch_start: Instant,
    /// When the window was last computed in this stage.
    stepped_at: Instant,
}

/// RFC 8257 section 3.3's variables.
#[derive(Clone, Copy, Debug)]
struct Dctcp {
    alpha: f64,
    acked_bytes: u64,
    marked_bytes: u64,
    window_end: Position,
}

/// One acknowledgement, as the algorithm sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) now: Instant,
    pub(crate) acked_bytes: u32,
    pub(crate) mss: u32,
    pub(crate) srtt: Duration,
    /// The round-trip time of the newest acknowledged segment.
    pub(crate) rtt: Option<Duration>,
    pub(crate) una: Position,
    pub(crate) nxt: Position,
}

impl Congestion {
    /// `seed` makes connections probe at different times.
    pub(crate) fn new(control: CongestionControl, now: Instant, seed: u64) -> Self {
        let more = match control {
            // RFC 8257 section 4.2: alpha begins at 1, so that the first mark is taken seriously.
            CongestionControl::Dctcp => AlgorithmState::Dctcp(Box::new(Dctcp {
                alpha: 1.0,
                acked_bytes: 0,
                marked_bytes: 0,
                window_end: Position::default(),
            })),
            CongestionControl::Bbr => AlgorithmState::Bbr(Box::new(Bbr::new(now, seed))),
            _ => AlgorithmState::Nothing,
        };
        Self {
            control,
            more,
            // RFC 5681 section 3.1: "SHOULD be set arbitrarily high".
            ssthresh: u32::MAX,
            flight_bytes_max: 0,
            credit_bytes: 0.0,
            hystart: HyStart::default(),
            cubic: Cubic {
                w_max: 0.0,
                cwnd_prior: 0.0,
                w_est: 0.0,
                k: 0.0,
                epoch_start: Instant::NEVER,
                stepped_at: now,
            },
        }
    }

    //= RFC 9293#3.8.2
    //# A TCP endpoint MUST implement the basic congestion control algorithms slow start,
    //# congestion avoidance, and exponential backoff of RTO to avoid creating congestion collapse
    //# conditions (MUST-19).
    /// The window after an acknowledgement that arrived while the window was the limit.
    pub(crate) fn grow(&mut self, cwnd: u32, progress: Progress) -> u32 {
        let mut acked = progress.acked_bytes;
        let mut cwnd = cwnd;
        //= RFC 9438#4.10
        //# When _cwnd_ is no more than _ssthresh_, CUBIC MUST employ a slow start algorithm.
        //= RFC 9438#4.10
        //# In general, CUBIC SHOULD use the HyStart++ slow start algorithm [RFC9406] or MAY use the
        //# Reno TCP slow start algorithm [RFC5681] in the rare cases when HyStart++ is not
        //# suitable.
        if cwnd < self.ssthresh {
            // RFC 5681 section 3.1 with the byte counting of RFC 3465, but without its limit: a
            // remote whose link coalesces segments acknowledges forty at a time. RFC 9406 section
            // 4.2 allows this when slow start is bounded by other means.
            let mut step = acked;
            if self.ssthresh == u32::MAX {
                let rtt = progress.rtt.map(|rtt| rtt.as_micros().min(1 << 30) as u32);
                match self.hystart.grow(acked, rtt, progress.una, progress.nxt) {
                    Growth::Bytes(bytes) => step = bytes,
                    Growth::Over => self.ssthresh = cwnd,
                }
                if step < acked {
                    return cwnd.saturating_add(step);
                }
            }
            let step = step.min(self.ssthresh - cwnd);
            cwnd = cwnd.saturating_add(step);
            acked -= step.min(acked);
            if cwnd < self.ssthresh || acked == 0 {
                return cwnd;
            }
        }
        let step = match self.control {
            CongestionControl::Cubic => self.cubic.step(
                cwnd,
                Progress {
                    acked_bytes: acked,
                    ..progress
                },
            ),
            // RFC 5681 equation (3), counting bytes: one segment a window.
            _ => f64::from(progress.mss) * f64::from(acked) / f64::from(cwnd),
        };
        self.credit_bytes += step;
        let whole = self.credit_bytes as u32;
        self.credit_bytes -= f64::from(whole);
        cwnd.saturating_add(whole)
    }

    //= RFC 2018#5.1
    //# However, the congestion control algorithms present in the de facto standard TCP
    //# implementations MUST be preserved [Stevens94].
    /// Lowers ssthresh because of congestion; the caller moves the window there.
    pub(crate) fn reduce(&mut self, cwnd: u32, in_flight: u32, mss: u32, is_mark: bool) {
        let target = match self.control {
            // RFC 5681 equation (4): half the flight.
            CongestionControl::NewReno => in_flight.max(mss) / 2,
            //= RFC 9438#4.6
            //# In the case of packet loss, the sender MUST reduce _cwnd_ and _ssthresh_ immediately
            //# upon entering loss recovery, similar to [RFC5681] (and [RFC6675]).
            CongestionControl::Cubic => {
                self.cubic.reduce(f64::from(cwnd) / f64::from(mss));
                (f64::from(cwnd) * CUBIC_BETA) as u32
            }
            // RFC 8257 section 3.3, step 9; section 3.5: loss is handled as in RFC 5681.
            CongestionControl::Dctcp if is_mark => {
                let alpha = match &self.more {
                    AlgorithmState::Dctcp(dctcp) => dctcp.alpha,
                    _ => 1.0,
                };
                (f64::from(cwnd) * (1.0 - alpha / 2.0)) as u32
            }
            CongestionControl::Dctcp => cwnd / 2,
            // A mark counts as much as the loss of its segment.
            CongestionControl::Bbr => {
                self.note_lost(if is_mark { mss } else { 0 });
                return;
            }
        };
        //= RFC 9438#4.6
        //# Note that CUBIC MUST continue to reduce _cwnd_ in response to congestion events detected
        //# by ECN-Echo ACKs until it reaches a value of 1 SMSS.
        let floor = match self.control {
            CongestionControl::Cubic if is_mark => 1,
            _ => FLOOR_SEGMENTS,
        };
        self.ssthresh = target.max(floor * mss);
        self.credit_bytes = 0.0;
    }

    /// A retransmission timeout ends the current stage of growth. RFC 9438 section 4.8: in the next
    /// stage K is 0, and W_max is the window at its beginning.
    pub(crate) fn note_timeout(&mut self) {
        // The next stage begins with a larger W_max: its window.
        self.cubic.w_max = 0.0;
        self.end_epoch();
    }

    /// An idle period ends the current stage of growth.
    pub(crate) fn end_epoch(&mut self) {
        self.cubic.epoch_start = Instant::NEVER;
        self.credit_bytes = 0.0;
    }

    /// The values that [`Congestion::restore`] needs if the coming reduction proves a mistake.
    pub(crate) fn prior(&self, cwnd: u32) -> Prior {
        Prior {
            cwnd,
            ssthresh: self.ssthresh,
            cubic: self.cubic,
            bounds: match &self.more {
                AlgorithmState::Bbr(model) => Some(model.bounds()),
                _ => None,
            },
        }
    }

    /// Undoes a reduction that was a mistake; `cwnd` is the current window. Returns the new window.
    pub(crate) fn restore(&mut self, prior: &Prior, cwnd: u32) -> u32 {
        self.ssthresh = prior.ssthresh;
        //= RFC 9438#4.9.2
        //# In rare cases, when the detection happens long after a spurious fast retransmit event
        //# and the current _cwnd_ is already higher than _cwnd_prior_, CUBIC SHOULD continue to use
        //# the current and the most recent values of these variables.
        if cwnd <= prior.cwnd {
            // Section 4.9.2 names W_max, K, t_epoch and W_est, beside the window and ssthresh.
            self.cubic = prior.cubic;
        }
        if let (AlgorithmState::Bbr(model), Some(bounds)) = (&mut self.more, prior.bounds) {
            model.forget_losses(bounds);
        }
        cwnd.max(prior.cwnd)
    }

    /// DCTCP's estimate of the fraction of marked bytes, updated once per window.
    pub(crate) fn count_marks(
        &mut self,
        acked_bytes: u64,
        marked_bytes: u64,
        una: Position,
        nxt: Position,
    ) {
        let AlgorithmState::Dctcp(dctcp) = &mut self.more else {
            return;
        };
        dctcp.acked_bytes += acked_bytes;
        dctcp.marked_bytes += marked_bytes.min(acked_bytes);
        if una > dctcp.window_end && dctcp.acked_bytes > 0 {
            let fraction = dctcp.marked_bytes as f64 / dctcp.acked_bytes as f64;
            dctcp.alpha = dctcp.alpha * (1.0 - DCTCP_GAIN) + DCTCP_GAIN * fraction;
            dctcp.acked_bytes = 0;
            dctcp.marked_bytes = 0;
            dctcp.window_end = nxt;
        }
    }

    /// The window after any acknowledgement, if a model of the path decides; otherwise `None`.
    pub(crate) fn follow(&mut self, step: Step) -> Option<u32> {
        let AlgorithmState::Bbr(model) = &mut self.more else {
            return None;
        };
        Some(u32::try_from(model.follow(step)).unwrap_or(u32::MAX))
    }

    /// Data is sent while nothing is in flight.
    pub(crate) fn note_restart(&mut self, now: Instant) {
        if let AlgorithmState::Bbr(model) = &mut self.more {
            model.note_restart(now);
        }
    }

    /// `bytes` bytes were deduced to be lost.
    pub(crate) fn note_lost(&mut self, bytes: u32) {
        if let AlgorithmState::Bbr(model) = &mut self.more {
            model.note_lost(bytes.into());
        }
    }

    /// The pacing rate in bytes per second, if a model of the path gives one.
    pub(crate) fn pacing_rate(&self) -> Option<u64> {
        match &self.more {
            AlgorithmState::Bbr(model) => model.pacing_rate(),
            _ => None,
        }
    }

    /// Whether marks are echoed one by one (RFC 8257 section 3.2) or latched (RFC 3168).
    pub(crate) fn echoes_each_mark(&self) -> bool {
        self.control == CongestionControl::Dctcp
    }
}

impl Cubic {
    /// RFC 9438 section 4.2 to 4.5: bytes to add for these acknowledged bytes.
    fn step(&mut self, cwnd: u32, progress: Progress) -> f64 {
        let mss = f64::from(progress.mss);
        let window = f64::from(cwnd) / mss;
        let acked = f64::from(progress.acked_bytes) / mss;
        if !self.epoch_start.is_armed() {
            // Section 4.2: K is the time until the window is back at W_max.
            self.w_max = self.w_max.max(window);
            self.k = ((self.w_max - window) / CUBIC_C).cbrt();
            self.w_est = window;
            self.epoch_start = progress.now;
            self.stepped_at = progress.now;
        }
        // While the window is the limit, an acknowledgement arrives at least once per round trip.
        // The caller does not pass on acknowledgements that arrive while it is not the limit.
        //
        //= RFC 9438#4.2
        //# The elapsed time _t_ in Figure 1 MUST NOT include periods during
        //# which _cwnd_ has not been updated due to application-limited behavior
        //# (see Section 5.8).
        let pause = progress.now.since(self.stepped_at);
        if pause > progress.srtt * 2 {
            self.epoch_start += pause;
        }
        self.stepped_at = progress.now;
        let t = progress.now.since(self.epoch_start).as_secs_f64();
        let w_cubic = |t: f64| CUBIC_C * (t - self.k).powi(3) + self.w_max;
        //= RFC 9438#4.3
        //# Once _W_est_ has grown to reach the _cwnd_ at the time of most recently setting
        //# _ssthresh_ -- that is, _W_est_ >= _cwnd_prior_ -- the sender SHOULD set α__cubic_ to 1
        //# to ensure that it can achieve the same congestion window increment rate as Reno, which
        //# uses AIMD(1, 0.5).
        // Section 4.3: the window that Reno would have by now; until W_est reaches cwnd_prior,
        // alpha as in figure 4.
        let alpha = if self.w_est < self.cwnd_prior {
            3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA)
        } else {
            1.0
        };
        self.w_est += alpha * acked / window;
        //= RFC 9438#4.3
        //# If so, CUBIC is in the Reno-friendly region and _cwnd_ SHOULD be set to _W_est_ at each
        //# reception of a new ACK.
        // Section 4.10: a first slow start that ended without a loss has found no W_max, and CUBIC
        // begins the convex region there, with a hardly growing window. A deviation, and Linux's
        // (bictcp_update): until the first congestion, the window grows by at least a twentieth in
        // each round trip. Otherwise a path whose jitter looks like a queue would stay empty for
        // many seconds.
        let least = match self.cwnd_prior {
            0.0 => acked / CUBIC_FIRST_PARTS,
            _ => 0.0,
        };
        if w_cubic(t) < self.w_est {
            return (self.w_est - window).max(least) * mss;
        }
        //= RFC 9438#4.4
        //# In this region, _cwnd_ MUST be incremented by
        //= RFC 9438#4.5
        //# In this region, _cwnd_ MUST be incremented by
        // Sections 4.4 and 4.5: towards the target of one round trip ahead, at most 1.5 windows.
        let target = w_cubic(t + progress.srtt.as_secs_f64()).clamp(window, 1.5 * window);
        ((target - window) / window * acked).max(least) * mss
    }

    //= RFC 9438#4.7
    //# To speed up this bandwidth release by existing flows, the following fast convergence
    //# mechanism SHOULD be implemented.
    /// RFC 9438 sections 4.6 and 4.7 (fast convergence).
    fn reduce(&mut self, window: f64) {
        self.cwnd_prior = window;
        self.w_max = if window < self.w_max {
            window * (1.0 + CUBIC_BETA) / 2.0
        } else {
            window
        };
        self.epoch_start = Instant::NEVER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1_000;

    fn ack(now_ms: u64, acked_bytes: u32) -> Progress {
        Progress {
            now: Instant::ZERO + Duration::from_millis(now_ms),
            acked_bytes,
            mss: MSS,
            srtt: Duration::from_millis(100),
            rtt: None,
            una: Position::FIRST_BYTE,
            nxt: Position::FIRST_BYTE,
        }
    }

    //= RFC 9293#3.8.2
    //= type=test
    //# A TCP endpoint MUST implement the basic congestion control algorithms slow start,
    //# congestion avoidance, and exponential backoff of RTO to avoid creating congestion collapse
    //# conditions (MUST-19).
    //= RFC 9438#4.10
    //= type=test
    //# When _cwnd_ is no more than _ssthresh_, CUBIC MUST employ a slow start algorithm.
    #[test]
    fn slow_start_doubles_a_window_and_stops_at_ssthresh() {
        let mut congestion = Congestion::new(CongestionControl::NewReno, Instant::ZERO, 1);
        congestion.ssthresh = 18 * MSS;
        let mut cwnd = 10 * MSS;
        for _ in 0..10 {
            cwnd = congestion.grow(cwnd, ack(0, MSS));
        }
        assert!((18 * MSS..19 * MSS).contains(&cwnd), "{cwnd}");
    }

    //= RFC 2018#5.1
    //= type=test
    //# However, the congestion control algorithms present in the de facto standard TCP
    //# implementations MUST be preserved [Stevens94].
    #[test]
    fn reno_adds_a_segment_a_window_and_halves() {
        let mut congestion = Congestion::new(CongestionControl::NewReno, Instant::ZERO, 1);
        congestion.ssthresh = MSS;
        let mut cwnd = 20 * MSS;
        for _ in 0..20 {
            cwnd = congestion.grow(cwnd, ack(0, MSS));
        }
        assert!((20 * MSS + 900..=21 * MSS).contains(&cwnd), "{cwnd}");
        congestion.reduce(cwnd, cwnd, MSS, false);
        assert_eq!(congestion.ssthresh, cwnd / 2);
    }

    //= RFC 9438#4.6
    //= type=test
    //# In the case of packet loss, the sender MUST reduce _cwnd_ and _ssthresh_ immediately upon
    //# entering loss recovery, similar to [RFC5681] (and [RFC6675]).
    //= RFC 9438#4.4
    //= type=test
    //# In this region, _cwnd_ MUST be incremented by
    #[test]
    fn cubic_returns_to_the_old_maximum_after_k_seconds() {
        let mut congestion = Congestion::new(CongestionControl::Cubic, Instant::ZERO, 1);
        let peak = 1_000 * MSS;
        congestion.reduce(peak, peak, MSS, false);
        assert_eq!(congestion.ssthresh, 700 * MSS);
        let mut cwnd = congestion.ssthresh;
        // K = cbrt(W_max * (1 - beta) / C) = cbrt(750) = 9.08 s.
        for round in 0..91 {
            for _ in 0..cwnd / (2 * MSS) {
                cwnd = congestion.grow(cwnd, ack(round * 100, 2 * MSS));
            }
        }
        assert!((980 * MSS..=1_020 * MSS).contains(&cwnd), "{cwnd}");
    }

    /// As on Linux. Without this, the window would grow by a segment in each round trip at first.
    #[test]
    fn cubic_grows_by_a_twentieth_in_a_round_trip_until_the_first_congestion() {
        let mut congestion = Congestion::new(CongestionControl::Cubic, Instant::ZERO, 1);
        let mut cwnd = 100 * MSS;
        // HyStart++ has ended the first slow start.
        congestion.ssthresh = cwnd;
        let mut go = |congestion: &mut Congestion, round: u64| {
            for _ in 0..cwnd / (2 * MSS) {
                cwnd = congestion.grow(cwnd, ack(round * 100, 2 * MSS));
            }
            cwnd
        };
        let grown = (0..20).map(|round| go(&mut congestion, round)).last();
        // 100 * 1.05^20.
        let grown = grown.expect("there were rounds");
        assert!((255 * MSS..=270 * MSS).contains(&grown), "{grown}");
        congestion.reduce(grown, grown, MSS, false);
        let later = go(&mut congestion, 20);
        assert!(later < grown + grown / 50, "{later} after {grown}");
    }

    /// RFC 9438 section 4.8.
    #[test]
    fn cubic_forgets_the_old_maximum_after_a_timeout() {
        let mut congestion = Congestion::new(CongestionControl::Cubic, Instant::ZERO, 1);
        congestion.reduce(1_000 * MSS, 1_000 * MSS, MSS, false);
        congestion.note_timeout();
        let mut cwnd = congestion.ssthresh;
        for round in 0..=80 {
            for _ in 0..cwnd / (2 * MSS) {
                cwnd = congestion.grow(cwnd, ack(round * 100, 2 * MSS));
            }
        }
        // 700 + C * 8^3.
        assert!((890 * MSS..=920 * MSS).contains(&cwnd), "{cwnd}");
    }

    //= RFC 9438#4.5
    //= type=test
    //# In this region, _cwnd_ MUST be incremented by
    /// The convex region: beyond the old maximum the window follows C * (t - K)^3 + W_max.
    #[test]
    fn cubic_grows_ever_faster_beyond_the_old_maximum() {
        let mut congestion = Congestion::new(CongestionControl::Cubic, Instant::ZERO, 1);
        let peak = 1_000 * MSS;
        congestion.reduce(peak, peak, MSS, false);
        let mut cwnd = congestion.ssthresh;
        // Another K = 9.08 s adds as much as was missing at the beginning: 300 segments.
        let mut at = Vec::new();
        for round in 0..=181 {
            for _ in 0..cwnd / (2 * MSS) {
                cwnd = congestion.grow(cwnd, ack(round * 100, 2 * MSS));
            }
            at.push(cwnd / MSS);
        }
        for round in [121, 151, 181] {
            let seconds = round as f64 / 10.0 - 750f64.cbrt();
            let expected = 1_000.0 + CUBIC_C * seconds.powi(3);
            let error = f64::from(at[round]) / expected - 1.0;
            assert!(
                error.abs() < 0.02,
                "{} at {round}, not {expected}",
                at[round]
            );
        }
    }

    /// RFC 9438 section 4.9.2: growth continues as if nothing had happened. After a new reduction
    /// the window grows towards the old maximum, not towards one that fast convergence has lowered
    /// by mistake.
    #[test]
    fn cubic_goes_on_where_it_was_after_a_mistake() {
        let grown = |has_mistake: bool| {
            let mut congestion = Congestion::new(CongestionControl::Cubic, Instant::ZERO, 1);
            congestion.reduce(1_000 * MSS, 1_000 * MSS, MSS, false);
            let mut cwnd = congestion.ssthresh;
            for round in 0..60 {
                if has_mistake && round == 30 {
                    let prior = congestion.prior(cwnd);
                    congestion.reduce(cwnd, cwnd, MSS, false);
                    congestion.end_epoch();
                    cwnd = congestion.restore(&prior, MSS);
                }
                for _ in 0..cwnd / (2 * MSS) {
                    cwnd = congestion.grow(cwnd, ack(round * 100, 2 * MSS));
                }
            }
            cwnd
        };
        // Fractions of a byte are lost.
        assert!(grown(true).abs_diff(grown(false)) <= MSS / 100);
    }

    #[test]
    fn a_mistake_that_is_noticed_late_changes_nothing_that_was_learned_since() {
        //= RFC 9438#4.9.2
        //= type=test
        //# In rare cases, when the detection happens long after a spurious fast retransmit event
        //# and the current _cwnd_ is already higher than _cwnd_prior_, CUBIC SHOULD continue to use
        //# the current and the most recent values of these variables.
        let mut congestion = Congestion::new(CongestionControl::Cubic, Instant::ZERO, 1);
        let prior = congestion.prior(10 * MSS);
        congestion.reduce(10 * MSS, 10 * MSS, MSS, false);
        congestion.reduce(40 * MSS, 40 * MSS, MSS, false);
        let w_max = congestion.cubic.w_max;
        assert_eq!(congestion.restore(&prior, 20 * MSS), 20 * MSS);
        assert_eq!(congestion.cubic.w_max, w_max);
        assert_eq!(congestion.ssthresh, u32::MAX);
    }

    //= RFC 9438#4.3
    //= type=test
    //# Once _W_est_ has grown to reach the _cwnd_ at the time of most recently setting _ssthresh_
    //# -- that is, _W_est_ >= _cwnd_prior_ -- the sender SHOULD set α__cubic_ to 1 to ensure that
    //# it can achieve the same congestion window increment rate as Reno, which uses AIMD(1, 0.5).
    #[test]
    fn cubic_is_as_slow_as_reno_up_to_the_window_before() {
        let mut congestion = Congestion::new(CongestionControl::Cubic, Instant::ZERO, 1);
        // The second reduction lowers W_max below the window it began at.
        congestion.reduce(20 * MSS, 20 * MSS, MSS, false);
        congestion.reduce(19 * MSS, 19 * MSS, MSS, false);
        let mut cwnd = congestion.ssthresh;
        let mut rounds_of_segment = 0;
        // Round trips of 1 ms: too short a time for CUBIC's own curve to grow.
        for round in 0..60 {
            let before = cwnd;
            for _ in 0..cwnd / MSS {
                cwnd = congestion.grow(cwnd, ack(round, MSS));
            }
            let is_beyond = before > 19 * MSS + MSS / 2;
            let step = f64::from(cwnd - before) / f64::from(MSS);
            let expected = if is_beyond { 0.9..1.1 } else { 0.4..0.6 };
            let is_turn = before.abs_diff(19 * MSS) <= MSS / 2;
            assert!(is_turn || expected.contains(&step), "{before} {step}");
            rounds_of_segment += u32::from(is_beyond);
        }
        assert!(rounds_of_segment > 0);
    }

    #[test]
    fn time_in_which_the_window_was_no_limit_does_not_let_it_grow() {
        //= RFC 9438#4.2
        //= type=test
        //# The elapsed time _t_ in Figure 1 MUST NOT include periods during
        //# which _cwnd_ has not been updated due to application-limited behavior
        //# (see Section 5.8).
        let grown_after = |pause_ms| {
            let mut congestion = Congestion::new(CongestionControl::Cubic, Instant::ZERO, 1);
            congestion.reduce(1_000 * MSS, 1_000 * MSS, MSS, false);
            let mut cwnd = congestion.ssthresh;
            for round in 0..20 {
                let now = round * 100 + if round < 10 { 0 } else { pause_ms };
                for _ in 0..cwnd / (2 * MSS) {
                    cwnd = congestion.grow(cwnd, ack(now, 2 * MSS));
                }
            }
            cwnd
        };
        // The pause counts as one more round at most.
        let (without, with) = (grown_after(0), grown_after(60_000));
        assert!(with <= without, "{with} after a pause, {without} without");
        assert!(
            with + 25 * MSS > without,
            "{with} after a pause, {without} without"
        );
    }

    #[test]
    fn cubic_answers_marks_down_to_one_segment() {
        //= RFC 9438#4.6
        //= type=test
        //# Note that CUBIC MUST continue to reduce _cwnd_ in response to congestion events detected
        //# by ECN-Echo ACKs until it reaches a value of 1 SMSS.
        let mut congestion = Congestion::new(CongestionControl::Cubic, Instant::ZERO, 1);
        congestion.reduce(2 * MSS, 2 * MSS, MSS, true);
        assert_eq!(congestion.ssthresh, 1_400);
        congestion.reduce(congestion.ssthresh, MSS, MSS, true);
        assert_eq!(congestion.ssthresh, MSS);
        congestion.reduce(2 * MSS, 2 * MSS, MSS, false);
        assert_eq!(congestion.ssthresh, 2 * MSS);
    }

    #[test]
    fn dctcp_reduces_by_the_marked_fraction() {
        let mut congestion = Congestion::new(CongestionControl::Dctcp, Instant::ZERO, 1);
        for window in 1..200u64 {
            let una = Position::of_byte(window * 1_000);
            congestion.count_marks(1_000, 0, una, una);
        }
        congestion.reduce(100 * MSS, 100 * MSS, MSS, true);
        assert!(congestion.ssthresh > 99 * MSS, "{}", congestion.ssthresh);
        congestion.reduce(100 * MSS, 100 * MSS, MSS, false);
        assert_eq!(congestion.ssthresh, 50 * MSS);
    }
}
