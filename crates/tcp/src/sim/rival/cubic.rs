//! CUBIC as in `tcp_cubic.c`, with HyStart by delay, and NewReno: windows without pacing.

use super::{INITIAL_WINDOW, Step};
use crate::Instant;

const BETA: f64 = 717.0 / 1024.0;
const C: f64 = 0.4;
/// HyStart: windows below `LOW_WINDOW` grow in any case; `SAMPLES` round trips count; the rise of
/// the delay is bounded by `RISE_MIN` and `RISE_MAX`.
const LOW_WINDOW: f64 = 16.0;
const SAMPLES: u32 = 8;
const RISE_MIN: f64 = 0.004;
const RISE_MAX: f64 = 0.016;

/// Windows in packets, times in seconds.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) window: f64,
    is_cubic: bool,
    threshold: f64,
    was_recovering: bool,
    least: f64,
    round_least: f64,
    samples: u32,
    last_max: f64,
    origin: f64,
    k: f64,
    reno: f64,
    epoch_at: Option<Instant>,
}

impl Window {
    pub(super) fn new(is_cubic: bool) -> Self {
        Self {
            window: INITIAL_WINDOW,
            is_cubic,
            threshold: f64::INFINITY,
            was_recovering: false,
            least: f64::INFINITY,
            round_least: f64::INFINITY,
            samples: 0,
            last_max: 0.0,
            origin: 0.0,
            k: 0.0,
            reno: 0.0,
            epoch_at: None,
        }
    }

    pub(super) fn step(&mut self, step: &Step) {
        self.least = self.least.min(step.round_trip.as_secs_f64());
        if step.is_recovering {
            if !self.was_recovering {
                self.reduce();
            }
            self.was_recovering = true;
            return;
        }
        self.was_recovering = false;
        if self.window < self.threshold {
            self.window += 1.0;
            if self.is_cubic {
                self.look_for_queue(step);
            }
        } else if self.is_cubic {
            self.grow(step);
        } else {
            self.window += 1.0 / self.window;
        }
    }

    fn reduce(&mut self) {
        self.epoch_at = None;
        if self.is_cubic {
            self.last_max = if self.window < self.last_max {
                self.window * (1.0 + BETA) / 2.0
            } else {
                self.window
            };
        }
        let part = if self.is_cubic { BETA } else { 0.5 };
        self.threshold = (self.window * part).max(2.0);
        self.window = self.threshold;
    }

    fn look_for_queue(&mut self, step: &Step) {
        if step.is_round {
            self.round_least = f64::INFINITY;
            self.samples = 0;
        }
        self.round_least = self.round_least.min(step.round_trip.as_secs_f64());
        self.samples += 1;
        let rise = (self.least / 8.0).clamp(RISE_MIN, RISE_MAX);
        let has_queue = self.samples >= SAMPLES && self.round_least > self.least + rise;
        if has_queue && self.window >= LOW_WINDOW {
            self.threshold = self.window;
        }
    }

    fn grow(&mut self, step: &Step) {
        let began = *self.epoch_at.get_or_insert_with(|| {
            self.reno = self.window;
            self.k = ((self.last_max - self.window).max(0.0) / C).cbrt();
            self.origin = self.last_max.max(self.window);
            step.now
        });
        let t = step.now.since(began).as_secs_f64() + self.least;
        let target = self.origin + C * (t - self.k).powi(3);
        self.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) / self.window;
        let cubic = if target > self.window {
            ((target - self.window) / self.window).min(0.5)
        } else {
            0.01 / self.window
        };
        let friendly = if self.reno > self.window {
            ((self.reno - self.window) / self.window).min(0.5)
        } else {
            0.0
        };
        self.window += cubic.max(friendly);
    }
}
