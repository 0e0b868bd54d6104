//! A rate limit on answers that any host can provoke.

use crate::random::Random;
use crate::time::Instant;

const SECOND_MICROS: u64 = 1_000_000;

/// Answers per second. The bound is random, so that outsiders cannot count it down: the fixed limit
/// of RFC 5961 section 7 let attackers detect other hosts' connections (CVE-2016-5696).
#[derive(Debug, Default)]
pub(crate) struct Limiter {
    /// The second for which `left` is valid; `None` before the first question.
    second: Option<u64>,
    left: u32,
}

impl Limiter {
    pub(crate) fn allows(&mut self, now: Instant, per_second: u32, random: &mut Random) -> bool {
        let second = now.as_micros() / SECOND_MICROS;
        if self.second != Some(second) {
            self.second = Some(second);
            self.left = per_second / 2 + random.below(u64::from(per_second.max(1))) as u32;
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}
