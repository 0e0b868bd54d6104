//! BBR's first version. The names are those of `tcp_bbr.c`, spelled out.

use std::collections::VecDeque;

use super::{INITIAL_WINDOW, Step};
use crate::{Duration, Instant};

const HIGH_GAIN: f64 = 2.885;
const PROBE_GAINS: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const WINDOW_GAIN: f64 = 2.0;
const PACING_MARGIN: f64 = 0.99;
const RATE_ROUNDS: u64 = 10;
const MIN_RTT_LASTS: Duration = Duration::from_secs(10);
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
const WINDOW_MIN: f64 = 4.0;
/// `bbr_quantization_budget`: room for three buffers that the link divides. A buffer has the bytes
/// of 2^-10 seconds, and at least two packets.
const BUFFERS: f64 = 3.0;
const BUFFERS_PER_SECOND: f64 = 1_024.0;
const BUFFER_MIN: f64 = 2.0;
/// `bbr_extra_acked_win_rtts_thresh` and `bbr_extra_acked_max_us`.
const EXTRA_ROUNDS: u8 = 5;
const EXTRA_SECONDS_MAX: f64 = 0.1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Startup,
    Drain,
    ProbeBandwidth,
    ProbeRtt,
}

#[derive(Debug)]
pub(super) struct Bbr {
    pub(super) window: f64,
    mode: Mode,
    round: u64,
    /// The rates of the last rounds, with the numbers of the rounds.
    rates: VecDeque<(u64, f64)>,
    min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    full_rate: f64,
    full_rounds: u8,
    cycle: usize,
    cycle_at: Instant,
    probe_rtt_ends_at: Option<Instant>,
    prior_window: f64,
    was_recovering: bool,
    /// In the first round of a recovery, a packet is sent for each packet that arrived.
    conserves: bool,
    extra: ExtraAcked,
}

/// Packets that were acknowledged beyond the rate (`bbr_update_ack_aggregation`).
#[derive(Debug)]
struct ExtraAcked {
    /// Since then acknowledgements have arrived faster than the rate, for this many packets.
    began: Instant,
    acked: f64,
    /// The most packets beyond the rate, in the previous rounds and in the latest ones.
    most: [f64; 2],
    /// How many the latest rounds are.
    rounds: u8,
}

impl ExtraAcked {
    fn note(&mut self, step: &Step, rate: f64, window: f64) {
        if step.is_round {
            self.rounds += 1;
            if self.rounds >= EXTRA_ROUNDS {
                self.most = [self.most[1], 0.0];
                self.rounds = 0;
            }
        }
        let mut expected = rate * step.now.since(self.began).as_secs_f64();
        if self.acked <= expected {
            (self.began, self.acked, expected) = (step.now, 0.0, 0.0);
        }
        self.acked += 1.0;
        let extra = (self.acked - expected).min(window);
        self.most[1] = self.most[1].max(extra);
    }

    fn packets(&self, rate: f64) -> f64 {
        let most = self.most[0].max(self.most[1]);
        most.min(rate * EXTRA_SECONDS_MAX)
    }
}

impl Bbr {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            window: INITIAL_WINDOW,
            mode: Mode::Startup,
            round: 0,
            rates: VecDeque::new(),
            min_rtt: None,
            min_rtt_at: now,
            full_rate: 0.0,
            full_rounds: 0,
            cycle: 2,
            cycle_at: now,
            probe_rtt_ends_at: None,
            prior_window: 0.0,
            was_recovering: false,
            conserves: false,
            extra: ExtraAcked {
                began: now,
                acked: 0.0,
                most: [0.0; 2],
                rounds: 0,
            },
        }
    }

    /// Packets per second; `None` before anything was measured.
    pub(super) fn pacing_rate(&self) -> Option<f64> {
        let gain = match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => 1.0 / HIGH_GAIN,
            Mode::ProbeBandwidth => PROBE_GAINS[self.cycle],
            Mode::ProbeRtt => 1.0,
        };
        let rate = self.rate();
        (rate > 0.0).then_some(rate * gain * PACING_MARGIN)
    }

    pub(super) fn step(&mut self, step: &Step) {
        if step.is_round {
            self.round += 1;
            self.conserves = false;
        }
        let is_old = |&(round, _): &(u64, f64)| round + RATE_ROUNDS <= self.round;
        while self.rates.front().is_some_and(is_old) {
            self.rates.pop_front();
        }
        while self
            .rates
            .back()
            .is_some_and(|&(_, rate)| rate <= step.rate)
        {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, step.rate));
        self.extra.note(step, self.rate(), self.window);
        self.go_round(step);
        self.leave_startup(step);
        self.probe_round_trip(step);
        self.set_window(step);
    }

    fn go_round(&mut self, step: &Step) {
        if self.mode != Mode::ProbeBandwidth {
            return;
        }
        let is_long = step.now.since(self.cycle_at) > self.min_rtt.unwrap_or_default();
        let gain = PROBE_GAINS[self.cycle];
        let in_flight = step.in_flight as f64;
        let is_over = if gain > 1.0 {
            is_long && (step.lost > 0 || in_flight >= self.in_flight(gain))
        } else {
            is_long || gain < 1.0 && in_flight <= self.in_flight(1.0)
        };
        if is_over {
            self.cycle = (self.cycle + 1) % PROBE_GAINS.len();
            self.cycle_at = step.now;
        }
    }

    fn leave_startup(&mut self, step: &Step) {
        if self.mode == Mode::Startup && step.is_round {
            if self.rate() >= self.full_rate * 1.25 {
                self.full_rate = self.rate();
                self.full_rounds = 0;
            } else {
                self.full_rounds += 1;
                if self.is_full() {
                    self.mode = Mode::Drain;
                }
            }
        }
        if self.mode == Mode::Drain && step.in_flight as f64 <= self.in_flight(1.0) {
            self.begin_probing(step.now);
        }
    }

    fn probe_round_trip(&mut self, step: &Step) {
        let is_over = step.now.since(self.min_rtt_at) > MIN_RTT_LASTS;
        if is_over || self.min_rtt.is_none_or(|least| step.round_trip <= least) {
            self.min_rtt = Some(step.round_trip);
            self.min_rtt_at = step.now;
        }
        if is_over && self.mode != Mode::ProbeRtt {
            self.mode = Mode::ProbeRtt;
            self.prior_window = self.window;
            self.probe_rtt_ends_at = None;
        }
        if self.mode != Mode::ProbeRtt {
            return;
        }
        match self.probe_rtt_ends_at {
            None if step.in_flight as f64 <= WINDOW_MIN => {
                self.probe_rtt_ends_at = Some(step.now + PROBE_RTT_TIME);
            }
            Some(at) if step.now >= at && step.is_round => {
                self.min_rtt_at = step.now;
                self.window = self.window.max(self.prior_window);
                if self.is_full() {
                    self.begin_probing(step.now);
                } else {
                    self.mode = Mode::Startup;
                }
            }
            _ => {}
        }
    }

    fn begin_probing(&mut self, now: Instant) {
        self.mode = Mode::ProbeBandwidth;
        self.cycle = 2 + (self.round % 6) as usize;
        self.cycle_at = now;
    }

    fn set_window(&mut self, step: &Step) {
        let in_flight = step.in_flight as f64;
        self.window = (self.window - step.lost as f64).max(1.0);
        if step.is_recovering && !self.was_recovering {
            self.prior_window = self.window + step.lost as f64;
            self.conserves = true;
            self.window = in_flight + 1.0;
        } else if !step.is_recovering && self.was_recovering {
            self.window = self.window.max(self.prior_window);
            self.conserves = false;
        }
        self.was_recovering = step.is_recovering;
        if self.conserves {
            self.window = self.window.max(in_flight + 1.0);
        } else {
            // `bbr_ack_aggregation_cwnd`
            let extra = if self.is_full() {
                self.extra.packets(self.rate())
            } else {
                0.0
            };
            let target = self.in_flight(WINDOW_GAIN) + extra;
            if self.is_full() {
                self.window = (self.window + 1.0).min(target);
            } else if self.window < target {
                self.window += 1.0;
            }
        }
        self.window = self.window.max(WINDOW_MIN);
        if self.mode == Mode::ProbeRtt {
            self.window = WINDOW_MIN;
        }
    }

    fn is_full(&self) -> bool {
        self.full_rounds >= 3
    }

    fn rate(&self) -> f64 {
        self.rates.front().map_or(0.0, |&(_, rate)| rate)
    }

    /// `bbr_inflight`: the packets in flight for a gain.
    fn in_flight(&self, gain: f64) -> f64 {
        let buffer = self.pacing_rate().unwrap_or_default() / BUFFERS_PER_SECOND;
        let packets = self.product(gain) + BUFFERS * buffer.floor().max(BUFFER_MIN);
        let even = (packets / 2.0).ceil() * 2.0;
        let is_probing = self.mode == Mode::ProbeBandwidth && self.cycle == 0;
        if is_probing { even + 2.0 } else { even }
    }

    fn product(&self, gain: f64) -> f64 {
        let Some(min_rtt) = self.min_rtt else {
            return INITIAL_WINDOW;
        };
        self.rate() * min_rtt.as_secs_f64() * gain
    }
}
