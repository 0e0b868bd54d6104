//! A histogram of latencies.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::Latency;

/// Latencies of up to a minute, to three digits.
pub(super) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(super) fn new() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, NANOS_MAX, DIGITS).expect("bounds are valid"))
    }

    pub(super) fn add(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(NANOS_MAX);
        self.0.saturating_record(nanos.max(1));
    }

    pub(super) fn join(&mut self, others: &Latencies) {
        self.0.add(&others.0).expect("of the same bounds");
    }

    /// Adds the latencies that [`Latencies::finish`] returned.
    pub(super) fn join_finished(&mut self, latency: &Latency) {
        for (nanos, count) in &latency.histogram {
            self.0.saturating_record_n(*nanos, *count);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len()
    }

    /// `None` when nothing was recorded.
    pub(super) fn finish(&self) -> Option<Latency> {
        let of = |part: f64| self.0.value_at_quantile(part);
        (!self.0.is_empty()).then(|| Latency {
            p50: of(0.5),
            p99: of(0.99),
            p99_9: of(0.999),
            max: self.0.max(),
            mean: self.0.mean(),
            histogram: self
                .0
                .iter_recorded()
                .map(|bin| (bin.value_iterated_to(), bin.count_at_value()))
                .collect(),
        })
    }
}

const NANOS_MAX: u64 = 60_000_000_000;
const DIGITS: u8 = 3;
