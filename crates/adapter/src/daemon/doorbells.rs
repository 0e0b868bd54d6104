//! The doorbells of pairs ([`toehold_channel::doorbell::Doorbell::Pair`]), and how many of them
//! each user gets.

use crate::epoll::Epoll;
use crate::regions::SharedFd;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A doorbell of a pair. The process that rings it has an `eventfd`. The process that it wakes has
/// only an epoll instance that watches the `eventfd`. `O_NONBLOCK` and the count belong to the
/// file: with the `eventfd`, that process could make the other's write wait.
pub(super) struct Doorbell {
    pub(super) rung: SharedFd,
    pub(super) heard: SharedFd,
}

impl Doorbell {
    pub(super) fn new() -> io::Result<Doorbell> {
        let rung = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let heard = Epoll::new()?;
        heard.add(rung.as_fd(), 0, libc::EPOLLIN | libc::EPOLLET)?;
        Ok(Doorbell {
            rung: SharedFd::new(rung),
            heard: SharedFd::new(heard.into()),
        })
    }
}

/// The doorbells that a user may get at once.
const AT_ONCE: u32 = 4096;

/// Doorbells for each user. The kernel counts the watch of an epoll instance for the adapter's user
/// (`fs.epoll.max_user_watches`), also when only other processes have the instance. A user that
/// collects them would use up all of them.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    used: BTreeMap<u32, Used>,
}

#[derive(Debug)]
struct Used {
    count: u32,
    since: Instant,
}

impl Quotas {
    /// Takes one of a user's doorbells. False when the user has had too many; one more comes each
    /// second.
    pub(super) fn take(&mut self, uid: u32, now: Instant) -> bool {
        let used = self.used.entry(uid).or_insert(Used {
            count: 0,
            since: now,
        });
        let seconds = now.saturating_duration_since(used.since).as_secs();
        used.count = used
            .count
            .saturating_sub(u32::try_from(seconds).unwrap_or(u32::MAX));
        used.since += Duration::from_secs(seconds);
        let is_free = used.count < AT_ONCE;
        used.count += u32::from(is_free);
        is_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_collects_doorbells_gets_one_in_a_second() {
        let (mut quotas, begin) = (Quotas::default(), Instant::now());
        let mut taken = |uid, millis| {
            let now = begin + Duration::from_millis(millis);
            (0..2 * AT_ONCE).filter(|_| quotas.take(uid, now)).count() as u32
        };
        assert_eq!(taken(1, 0), AT_ONCE);
        assert_eq!(taken(2, 0), AT_ONCE, "another user has its own");
        assert_eq!(taken(1, 1_500), 1);
        assert_eq!(taken(1, 3_000), 2);
        assert_eq!(taken(1, 1_000_000_000), AT_ONCE);
    }
}
