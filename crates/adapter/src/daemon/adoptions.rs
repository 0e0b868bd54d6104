//! Sockets of forked children that wait to be adopted, because their senders had not closed them
//! when the request came ([`Daemon::handle_adopt`](super::Daemon::handle_adopt)).

use super::connection::IntroducedFacts;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Adoptions(Vec<Adoption>);

/// One socket.
#[derive(Debug)]
pub(super) struct Adoption {
    pub(super) socket: OwnedFd,
    /// Its table is kept mapped.
    pub(super) facts: IntroducedFacts,
    tries: u32,
    due: Instant,
}

impl Adoption {
    /// Waits once more, twice as long as before; `false` after [`TRIES_MAX`] times.
    pub(super) fn wait_again(&mut self, now: Instant) -> bool {
        self.tries += 1;
        self.due = now + FIRST_WAIT * (1 << self.tries.min(TRIES_MAX));
        self.tries < TRIES_MAX
    }
}

impl Adoptions {
    /// Whether one more of a user's may wait.
    pub(super) fn has_room(&self, uid: u32) -> bool {
        let of_user = self.0.iter().filter(|waiting| waiting.facts.uid == uid);
        self.0.len() < WAITING_MAX && of_user.count() < WAITING_PER_USER_MAX
    }

    pub(super) fn add(&mut self, socket: OwnedFd, facts: IntroducedFacts) {
        self.0.push(Adoption {
            socket,
            facts,
            tries: 0,
            due: Instant::now() + FIRST_WAIT,
        });
    }

    pub(super) fn put_back(&mut self, adoption: Adoption) {
        self.0.push(adoption);
    }

    /// When the next one must be looked at.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.iter().map(|waiting| waiting.due).min()
    }

    /// Takes out those that must be looked at.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Adoption> {
        if self.due().is_none_or(|due| now < due) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.0);
        let (due, later) = all.into_iter().partition(|waiting| waiting.due <= now);
        self.0 = later;
        due
    }
}

/// The most sockets that wait.
const WAITING_MAX: usize = 1024;
/// The most sockets of one user that wait.
const WAITING_PER_USER_MAX: usize = WAITING_MAX / 4;
/// Time before the first look. The sender makes one system call in this time.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// The number of looks: 1 s in all.
const TRIES_MAX: u32 = 10;
