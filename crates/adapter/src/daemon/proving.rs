//! Proof between namespaces and across address translation: finds the waiting end that is the other
//! end of a connection, by the kernel's facts ([`crate::facts`]).
//!
//! ```text
//!   an end is shown ─► its numbers ─► ends that wait and whose numbers fit (one look-up)
//!        each: read both sockets now ─┬─ numbers and hashes fit ─► the two are introduced
//!                                     └─ numbers only ─► a doubt: read both again later
//!   introduced ─► both still established? read both again ─► established still? ─► the channel
//! ```
//!
//! The adapter holds no descriptor of the sockets. So each time it asks the kernel whether they are
//! established (sock_diag(7)), before and after it reads their facts. Facts that are read between
//! two such answers belong to these two sockets.
//!
//! Claims cost time. So each user may make [`CLAIMS_PER_SECOND`], and a doubt counts as several
//! claims.

use super::Daemon;
use super::introductions::is_current;
use super::user_quotas::UserQuotas;
use crate::facts::{Verdict, Witness};
use crate::proof::Proved;
use crate::registry::{End, Match};
use std::time::{Duration, Instant};

/// The daemon's witness, and the doubts that must be looked at again.
#[derive(Debug, Default)]
pub(super) struct Proving {
    witness: Option<Witness>,
    /// The reason why there is no witness, if there should be one.
    pub(super) no_witness: Option<String>,
    doubts: Vec<Doubt>,
    /// Claims that each user may still make.
    claims: UserQuotas<CLAIMS_PER_SECOND, CLAIMS_PER_SECOND>,
}

/// Two ends whose numbers fit, but whose hashes did not.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    ends: [End; 2],
    tries: u32,
    due: Instant,
}

impl Proving {
    /// Loads the kernel's part, while the adapter still has capabilities.
    pub(super) fn load() -> Proving {
        match Witness::load() {
            Ok(witness) => Proving {
                witness: Some(witness),
                ..Proving::default()
            },
            Err(why) => Proving {
                no_witness: Some(why),
                ..Proving::default()
            },
        }
    }

    /// Checks that it still works without them.
    pub(super) fn check(&mut self) {
        let checked = self.witness.as_ref().map(Witness::check);
        if let Some(Err(why)) = checked {
            self.witness = None;
            self.no_witness = Some(why);
        }
    }

    pub(super) fn witness(&self) -> Option<&Witness> {
        self.witness.as_ref()
    }

    /// When a doubt must be looked at.
    pub(super) fn due(&self) -> Option<Instant> {
        self.doubts.iter().map(|doubt| doubt.due).min()
    }

    /// Whether a user may make `count` claims now.
    pub(super) fn may_claim(&mut self, uid: u32, count: u32, now: Instant) -> bool {
        if self.witness.is_none() {
            return true;
        }
        self.claims.take(uid, count, now)
    }

    fn doubt(&mut self, ends: [End; 2], tries: u32, now: Instant) {
        let is_known = self.doubts.iter().any(|doubt| doubt.ends == ends);
        if is_known || tries >= TRIES_MAX || self.doubts.len() >= DOUBTS_MAX {
            return;
        }
        self.doubts.push(Doubt {
            ends,
            tries,
            due: now + DOUBT_WAIT * (1 << tries),
        });
    }
}

impl Daemon {
    /// The waiting end that is proved to be the other end of the asking end's connection.
    pub(super) fn partner_by_facts(&mut self, end: End, uid: u32, proved: &Proved) -> Option<End> {
        let facts = proved.facts.filter(|_| self.options.across_namespaces)?;
        let witness = self.proving.witness.as_ref()?;
        let candidates = self.registry.candidates(&facts.numbers);
        let current = is_current(&self.tables);
        let mut doubtful = Vec::new();
        let mut found = None;
        for candidate in candidates.take(CANDIDATES_MAX).filter(|it| current(*it)) {
            let Some((tuple, cookie)) = self.registry.claim(candidate) else {
                continue;
            };
            // Ends with mirrored addresses in one namespace are found by their addresses.
            if tuple == proved.tuple.mirrored() || cookie == proved.cookie {
                continue;
            }
            match witness.facts(cookie).map(|its| facts.verdict(&its)) {
                Some(Verdict::Proved) => {
                    found = Some(candidate);
                    break;
                }
                Some(Verdict::Doubtful) => doubtful.push(candidate),
                Some(Verdict::Refuted) | None => {}
            }
        }
        if found.is_none() {
            let now = Instant::now();
            for candidate in doubtful {
                if self.proving.may_claim(uid, CLAIMS_PER_DOUBT, now) {
                    self.proving.doubt([candidate, end], 0, now);
                }
            }
        }
        found
    }

    /// Whether the current facts of two ends that have met show that they belong together. If their
    /// addresses are mirrored in one namespace, the hashes are not required, because lost segments
    /// change them.
    pub(super) fn holds_by_facts(&self, ends: [End; 2]) -> bool {
        let [Some((tuple, one)), Some((other_tuple, other))] =
            ends.map(|end| self.registry.claim(end))
        else {
            return false;
        };
        let is_mirrored = tuple == other_tuple.mirrored();
        let verdict = self.proving.witness().and_then(|witness| {
            let both = witness.facts(one).zip(witness.facts(other));
            both.map(|(one, other)| one.verdict(&other))
        });
        match verdict {
            Some(Verdict::Proved) => true,
            Some(Verdict::Doubtful) | None => is_mirrored,
            Some(Verdict::Refuted) => false,
        }
    }

    /// Two ends are not introduced because of a doubt. Both wait.
    pub(super) fn postpone_for_facts(&mut self, matched: &Match) {
        self.registry.hold(matched);
        let ends = matched.sides.map(|side| side.end);
        self.proving.doubt(ends, 0, Instant::now());
    }

    /// Looks again at doubts that are due.
    pub(super) fn settle_doubts(&mut self) {
        let now = Instant::now();
        if self.proving.due().is_none_or(|due| now < due) {
            return;
        }
        let all = std::mem::take(&mut self.proving.doubts);
        let (due, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|doubt| doubt.due <= now);
        self.proving.doubts = later;
        for Doubt { ends, tries, .. } in due {
            let is_there = ends.iter().all(|end| self.tables.current(*end).is_some());
            if !is_there {
                continue;
            }
            if !self.holds_by_facts(ends) {
                self.proving.doubt(ends, tries + 1, now);
            } else if let Some(matched) = self.registry.unite(ends) {
                drop(self.introduce(&matched));
            }
        }
    }

    /// Makes the witness forget sockets that are no longer claimed.
    pub(super) fn forget_unclaimed(&mut self) {
        while let Some(cookie) = self.registry.poll_unclaimed() {
            self.forget_socket(cookie);
        }
    }

    /// Makes the witness forget a socket without a claim, for example after its claim was refused.
    pub(super) fn forget_socket(&self, cookie: u64) {
        let witness = self.proving.witness();
        if let Some(witness) = witness.filter(|_| !self.registry.is_claimed(cookie)) {
            witness.forget(cookie);
        }
    }
}

/// The most ends with fitting numbers that are checked for one claim. Usually there is at most one;
/// more are possible if connections were opened in one tick of the kernel's clock.
const CANDIDATES_MAX: usize = 8;
/// Claims that one user may make in a second.
const CLAIMS_PER_SECOND: u32 = 32_768;
/// A doubt counts as this many claims, because only an attacker makes a socket with another
/// socket's numbers.
const CLAIMS_PER_DOUBT: u32 = CLAIMS_PER_SECOND / 64;
/// The most doubts that are kept.
const DOUBTS_MAX: usize = 1024;
/// The number of times that a doubt is looked at.
const TRIES_MAX: u32 = 8;
/// Time before the first of these looks. It doubles with each look: 6 s in all.
const DOUBT_WAIT: Duration = Duration::from_millis(25);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_many_claims_in_a_second() {
        let Ok(witness) = Witness::load() else {
            return println!("SKIPPED: no proof by the kernel's facts");
        };
        let mut proving = Proving {
            witness: Some(witness),
            ..Proving::default()
        };
        let start = Instant::now();
        for _ in 0..CLAIMS_PER_SECOND {
            assert!(proving.may_claim(1, 1, start));
        }
        assert!(!proving.may_claim(1, 1, start));
        assert!(proving.may_claim(2, CLAIMS_PER_SECOND, start));
        let later = start + Duration::from_millis(500);
        assert!(proving.may_claim(1, CLAIMS_PER_SECOND / 2, later));
        assert!(!proving.may_claim(1, 1, later));
    }
}
