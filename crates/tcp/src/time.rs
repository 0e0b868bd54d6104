//! Time in the engine: microseconds on a clock that the caller reads.
//!
//! Each time is one word, so that a deadline fits beside the sequence state to which it belongs.
//! The caller chooses the epoch; only differences have a meaning.

use core::fmt;
use core::ops::{Add, AddAssign, Mul, Sub};

/// A point on the caller's monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The clock's epoch.
    pub const ZERO: Self = Self(0);
    /// Later than every reachable instant: an unarmed timer.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant `micros` after the epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The clock of the timestamps that we send: RFC 7323 section 5.4 wants a tick of 1 ms to 1 s,
    /// and a tick of 1024 us needs no division.
    #[inline]
    pub(crate) const fn timestamp_ticks(self) -> u32 {
        (self.0 >> TIMESTAMP_TICK_SHIFT) as u32
    }

    /// The end of the tick `ticks_ago` ticks before this one; `None` if that was before the epoch.
    pub(crate) const fn end_of_timestamp(self, ticks_ago: u32) -> Option<Self> {
        match (self.0 >> TIMESTAMP_TICK_SHIFT).checked_sub(ticks_ago as u64) {
            Some(tick) => Some(Self(((tick + 1) << TIMESTAMP_TICK_SHIFT) - 1)),
            None => None,
        }
    }

    /// The time since `earlier`; zero if `earlier` is in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }

    /// The time since `earlier`, which is not in the future.
    #[inline]
    pub(crate) const fn after(self, earlier: Self) -> Duration {
        debug_assert!(earlier.0 <= self.0, "it is later");
        Duration(self.0.wrapping_sub(earlier.0))
    }

    /// This instant plus a short span; the result is a reachable instant.
    #[inline]
    pub(crate) const fn later(self, span: Duration) -> Self {
        debug_assert!(self.is_armed());
        Self(self.0.wrapping_add(span.0))
    }

    /// Whether this instant is reachable, so that a timer can expire.
    #[must_use]
    pub const fn is_armed(self) -> bool {
        self.0 != u64::MAX
    }
}

const TIMESTAMP_TICK_SHIFT: u32 = 10;

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_armed() {
            write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
        } else {
            f.write_str("never")
        }
    }
}

/// A span of time, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(u64);

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of `micros` microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// A span of `ticks` ticks of [`Instant::timestamp_ticks`].
    pub(crate) const fn from_timestamp_ticks(ticks: u32) -> Self {
        Self((ticks as u64) << TIMESTAMP_TICK_SHIFT)
    }

    /// A span of `millis` milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000)
    }

    /// A span of `secs` seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * 1_000_000)
    }

    /// The span in microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The span in whole milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000
    }

    /// The bytes that pass in this span at `rate` bytes per second.
    pub(crate) const fn bytes_at(self, rate: u64) -> u64 {
        (rate as u128 * self.0 as u128 / 1_000_000) as u64
    }

    /// The span in seconds, for arithmetic that is fractional by nature.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Add for Duration {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Duration {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Mul<u64> for Duration {
    type Output = Self;
    fn mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}
