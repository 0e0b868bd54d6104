//! Round-trip times and the retransmission timeout (RFC 6298).

use crate::config::Config;
use crate::time::{Duration, Instant};

/// G of RFC 6298: the granularity of the clock that drives the timers. `Config::rto_min` is never
/// shorter.
pub(crate) const GRANULARITY: Duration = Duration::from_millis(1);
/// The time that a minimum round-trip time is trusted (RFC 8985 section 6.2 leaves the window
/// open).
const MINIMUM_WINDOW: Duration = Duration::from_secs(300);
const BACKOFF_MAX: u8 = 16;
/// A flag in `backoff`: a tail loss probe was sent since the last sample.
const PROBED: u8 = 0x80;
/// The longest sample, about nine minutes; longer ones count as this, so that the sums below fit 32
/// bits.
const SAMPLE_MICROS_MAX: u64 = (1 << 29) - 1;

/// SRTT, RTTVAR and derived values, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttEstimator {
    /// SRTT; zero until the first sample.
    smoothed: u32,
    variation: u32,
    minimum: u32,
    /// Timeouts since the last sample (RFC 6298 section 5.5: each doubles the timeout), and
    /// [`PROBED`].
    backoff: u8,
    /// Until when the minimum is trusted.
    minimum_until: Instant,
}

impl RttEstimator {
    pub(crate) const fn new() -> Self {
        Self {
            smoothed: 0,
            variation: 0,
            minimum: 0,
            minimum_until: Instant::ZERO,
            backoff: 0,
        }
    }

    //= RFC 9293#3.8.1
    //# The RTO MUST be computed according to the algorithm in [10], including Karn's algorithm
    //# for taking RTT samples (MUST-18).
    /// Takes a sample from data that was not retransmitted (Karn's algorithm, section 3).
    pub(crate) fn sample(&mut self, now: Instant, rtt: Duration) {
        if self.smoothed == 0 {
            // Section 2.2.
            self.smoothed = bounded(rtt);
            self.variation = self.smoothed / 2;
            return self.note_sample(now, self.smoothed);
        }
        self.sample_again(now, rtt);
    }

    /// [`Self::sample`] for every sample except the first.
    #[inline(always)]
    pub(crate) fn sample_again(&mut self, now: Instant, rtt: Duration) {
        debug_assert!(self.smoothed != 0);
        let rtt = bounded(rtt);
        // Section 2.3, alpha = 1/8 and beta = 1/4.
        self.variation = (3 * self.variation + rtt.abs_diff(self.smoothed)) / 4;
        self.smoothed = (7 * self.smoothed + rtt) / 8;
        self.note_sample(now, rtt);
    }

    #[inline(always)]
    fn note_sample(&mut self, now: Instant, rtt: u32) {
        if rtt <= self.minimum || now >= self.minimum_until {
            self.renew_minimum(now, rtt);
        }
        // Section 5.7 and Karn: a new sample ends the backoff.
        self.backoff = 0;
    }

    #[inline(never)]
    fn renew_minimum(&mut self, now: Instant, rtt: u32) {
        self.minimum = rtt;
        self.minimum_until = now + MINIMUM_WINDOW;
    }

    pub(crate) fn back_off(&mut self) {
        let timeouts = (self.backoff & !PROBED) + 1;
        self.backoff = self.backoff & PROBED | timeouts.min(BACKOFF_MAX);
    }

    /// A tail loss probe was sent.
    pub(crate) fn note_probe(&mut self) {
        self.backoff |= PROBED;
    }

    /// Whether no tail loss probe was sent since the last sample.
    pub(crate) fn has_sample_since_probe(&self) -> bool {
        self.backoff & PROBED == 0
    }

    /// RFC 6298 section 5.7: after timeouts of the SYN, "the RTO MUST be re-initialized to 3
    /// seconds when data transmission begins". Here it becomes four times the initial RTO, unless
    /// there is a sample.
    pub(crate) fn begin_data(&mut self, was_retransmitted: bool) {
        let is_unknown = self.smoothed == 0;
        self.backoff = if was_retransmitted && is_unknown {
            2
        } else {
            0
        };
    }

    pub(crate) fn forget_backoff(&mut self) {
        self.backoff &= PROBED;
    }

    /// The smoothed round-trip time, once there is one.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        (self.smoothed != 0).then_some(micros(self.smoothed))
    }

    /// The shortest recent round trip; zero before the first.
    pub(crate) const fn minimum(&self) -> Duration {
        micros(self.minimum)
    }

    /// RTTVAR.
    pub(crate) const fn variation(&self) -> Duration {
        micros(self.variation)
    }

    /// Whether a timeout or a tail loss probe has happened since the last sample.
    #[inline(always)]
    pub(crate) fn has_backed_off(&self) -> bool {
        self.backoff != 0
    }

    /// SRTT and RTO, in microseconds, if there is a sample and no timeout has happened since.
    #[inline(always)]
    pub(crate) fn settled(&self, config: &Config) -> (u64, u64) {
        debug_assert!(self.smoothed != 0 && self.backoff == 0);
        let smoothed = u64::from(self.smoothed);
        let margin = u64::from(4 * self.variation).max(config.rto_min.as_micros());
        (
            smoothed,
            (smoothed + margin).min(config.rto_max.as_micros()),
        )
    }

    /// RTO, backed off.
    pub(crate) fn timeout(&self, config: &Config) -> Duration {
        let base = match self.smoothed() {
            None => config.rto_initial,
            // The lower bound applies to the part that is added to SRTT, as on Linux: a remote may
            // delay an acknowledgement by this much, however long the round trip is.
            Some(smoothed) => smoothed + micros(4 * self.variation).max(config.rto_min),
        };
        (base * (1 << (self.backoff & !PROBED))).min(config.rto_max)
    }
}

/// In microseconds, neither zero nor too long.
#[inline(always)]
fn bounded(rtt: Duration) -> u32 {
    #[cold]
    fn bound(micros: u64) -> u32 {
        micros.clamp(1, SAMPLE_MICROS_MAX) as u32
    }
    let micros = rtt.as_micros();
    if micros.wrapping_sub(1) < SAMPLE_MICROS_MAX {
        micros as u32
    } else {
        bound(micros)
    }
}

const fn micros(number: u32) -> Duration {
    Duration::from_micros(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{InterfaceAddress, Medium};

    fn config() -> Config {
        let address = InterfaceAddress {
            address: [10, 0, 0, 1].into(),
            prefix_bits: 24,
        };
        Config::new(Medium::Ip, 1500, address)
    }

    //= RFC 9293#3.8.1
    //= type=test
    //# The RTO MUST be computed according to the algorithm in [10], including Karn's algorithm
    //# for taking RTT samples (MUST-18).
    #[test]
    fn timeout_follows_the_samples_and_doubles_on_backoff() {
        let config = config();
        let mut rtt = RttEstimator::new();
        assert_eq!(rtt.timeout(&config), Duration::from_secs(1));
        rtt.sample(Instant::ZERO, Duration::from_millis(400));
        assert_eq!(rtt.timeout(&config), Duration::from_millis(400 + 4 * 200));
        rtt.back_off();
        assert_eq!(rtt.timeout(&config), Duration::from_millis(2_400));
        for _ in 0..40 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout(&config), config.rto_max);
        rtt.sample(Instant::ZERO, Duration::from_millis(400));
        assert_eq!(rtt.timeout(&config), Duration::from_millis(400 + 4 * 150));
    }

    #[test]
    fn timeouts_of_the_syn_do_not_slow_the_data() {
        let config = config();
        let mut rtt = RttEstimator::new();
        (0..6).for_each(|_| rtt.back_off());
        rtt.begin_data(true);
        assert_eq!(rtt.timeout(&config), Duration::from_secs(4));
        rtt.begin_data(false);
        assert_eq!(rtt.timeout(&config), Duration::from_secs(1));
    }

    #[test]
    fn a_steady_path_ends_at_the_lower_bound() {
        let config = config();
        let mut rtt = RttEstimator::new();
        for _ in 0..100 {
            rtt.sample(Instant::ZERO, Duration::from_micros(300));
        }
        let round_trip = Duration::from_micros(300);
        assert_eq!(rtt.timeout(&config), round_trip + config.rto_min);
        assert_eq!(rtt.minimum(), Duration::from_micros(300));
    }
}
