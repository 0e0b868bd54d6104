//! The rate at which each user may ask the adapter for something that costs it or the kernel much.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Each user may ask `MOST` times at once, and `PER_SECOND` times more in each second.
#[derive(Debug, Default)]
pub(super) struct UserQuotas<const MOST: u32, const PER_SECOND: u32> {
    users: BTreeMap<u32, Quota>,
}

#[derive(Debug)]
struct Quota {
    left: u32,
    /// When `left` was computed.
    since: Instant,
}

/// The most users that are counted at a time, unless more of them have used a part of their quotas.
const USERS_MAX: usize = 1024;

impl<const MOST: u32, const PER_SECOND: u32> UserQuotas<MOST, PER_SECOND> {
    /// Takes `count` from a user's quota. False, and nothing is taken, when less is left.
    pub(super) fn take(&mut self, uid: u32, count: u32, now: Instant) -> bool {
        if self.users.len() >= USERS_MAX {
            // After this time without a request a user has the full quota again.
            let full_after = Duration::from_secs((MOST / PER_SECOND).into());
            self.users
                .retain(|_, quota| now.duration_since(quota.since) < full_after);
        }
        let quota = self.users.entry(uid).or_insert(Quota {
            left: MOST,
            since: now,
        });
        let per_second = u64::from(PER_SECOND);
        let micros = now.duration_since(quota.since).as_micros() as u64;
        let grown = micros.saturating_mul(per_second) / 1_000_000;
        if grown > 0 {
            let more = u32::try_from(grown).unwrap_or(u32::MAX);
            quota.left = quota.left.saturating_add(more).min(MOST);
            quota.since += Duration::from_micros(grown.saturating_mul(1_000_000) / per_second);
        }
        let is_allowed = quota.left >= count;
        quota.left -= if is_allowed { count } else { 0 };
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_number_at_once_and_one_more_in_a_second() {
        const MOST: u32 = 4096;
        let (mut quotas, begin) = (UserQuotas::<MOST, 1>::default(), Instant::now());
        let mut taken = |uid, millis| {
            let now = begin + Duration::from_millis(millis);
            (0..2 * MOST).filter(|_| quotas.take(uid, 1, now)).count() as u32
        };
        assert_eq!(taken(1, 0), MOST);
        assert_eq!(taken(2, 0), MOST, "another user has its own");
        assert_eq!(taken(1, 1_500), 1);
        assert_eq!(taken(1, 3_000), 2);
        assert_eq!(taken(1, 1_000_000_000), MOST);
    }

    #[test]
    fn users_with_a_full_quota_are_forgotten() {
        let (mut quotas, begin) = (UserQuotas::<32_768, 32_768>::default(), Instant::now());
        for uid in 0..4 * USERS_MAX as u32 {
            quotas.take(uid, 1, begin + Duration::from_secs(u64::from(uid)));
        }
        assert!(quotas.users.len() <= USERS_MAX);
    }
}
