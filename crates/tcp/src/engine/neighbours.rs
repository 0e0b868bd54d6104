//! Hardware addresses of neighbours (RFC 826, RFC 4861), and the connections that wait for one.

use std::collections::BTreeMap;

use crate::time::{Duration, Instant};
use crate::wire::ethernet::MacAddress;
use crate::wire::ip::Address;

/// Neighbours remembered; a flood of addresses cannot push out the resolved ones.
const NEIGHBOURS_MAX: usize = 4_096;
/// RFC 4861 section 10, and RFC 1122 section 2.3.2.1: at most one question a second.
const RETRY: Duration = Duration::from_secs(1);
const TRIES_MAX: u8 = 3;

#[derive(Clone, Copy, Debug)]
enum Entry {
    Resolved(MacAddress),
    Asked { again_at: Instant, tries: u8 },
}

#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    entries: BTreeMap<Address, Entry>,
    /// Slots of connections whose next segment has nowhere to go yet, and their next hop.
    waiting: Vec<(Address, u32)>,
}

/// What to do about a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resolution {
    At(MacAddress),
    /// Ask the link, and wait.
    Ask,
    /// Asked already; wait.
    Wait,
    /// The table is full of questions.
    Full,
}

impl Neighbours {
    /// Where `hop` is, or what to do to find out.
    pub(crate) fn resolve(&mut self, now: Instant, hop: Address) -> Resolution {
        match self.entries.get(&hop) {
            Some(Entry::Resolved(mac)) => Resolution::At(*mac),
            Some(Entry::Asked { .. }) => Resolution::Wait,
            None if self.entries.len() >= NEIGHBOURS_MAX => Resolution::Full,
            None => {
                self.entries.insert(
                    hop,
                    Entry::Asked {
                        again_at: now + RETRY,
                        tries: 1,
                    },
                );
                Resolution::Ask
            }
        }
    }

    /// Remembers that a connection waits for `hop`.
    pub(crate) fn wait(&mut self, hop: Address, slot: u32) {
        self.waiting.push((hop, slot));
    }

    /// A neighbour has said where it is. RFC 826: an address that is known is updated always;
    /// `create` says whether an unknown one is of interest. Returns the connections to wake.
    pub(crate) fn learn(&mut self, hop: Address, mac: MacAddress, create: bool) -> Vec<u32> {
        let is_known = self.entries.contains_key(&hop);
        if mac.is_group() || !(is_known || create && self.entries.len() < NEIGHBOURS_MAX) {
            return Vec::new();
        }
        self.entries.insert(hop, Entry::Resolved(mac));
        self.wake(hop)
    }

    /// Takes the sender of a connection request for its next hop, unless that is known.
    pub(crate) fn learn_if_unknown(&mut self, hop: Address, mac: MacAddress) -> Vec<u32> {
        if matches!(self.entries.get(&hop), Some(Entry::Resolved(_))) {
            return Vec::new();
        }
        self.learn(hop, mac, true)
    }

    /// RFC 1122 section 2.3.2.1 (4), advice of a higher layer: nothing comes back from there.
    pub(crate) fn suspect(&mut self, hop: Address) {
        if matches!(self.entries.get(&hop), Some(Entry::Resolved(_))) {
            self.entries.remove(&hop);
        }
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub(crate) fn next_deadline(&self) -> Instant {
        if self.waiting.is_empty() {
            return Instant::NEVER;
        }
        let at = |entry: &Entry| match entry {
            Entry::Asked { again_at, .. } => *again_at,
            Entry::Resolved(_) => Instant::NEVER,
        };
        self.entries
            .values()
            .map(at)
            .min()
            .unwrap_or(Instant::NEVER)
    }

    /// Asks again for what was not answered, and gives up on what never is: calls `ask`, and
    /// returns the connections that waited in vain.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        mut ask: impl FnMut(Address),
    ) -> Vec<u32> {
        let mut lost = Vec::new();
        for (hop, entry) in &mut self.entries {
            if let Entry::Asked { again_at, tries } = entry
                && *again_at <= now
            {
                if *tries >= TRIES_MAX {
                    lost.push(*hop);
                } else {
                    *tries += 1;
                    *again_at = now + RETRY;
                    ask(*hop);
                }
            }
        }
        let mut failed = Vec::new();
        for hop in lost {
            self.entries.remove(&hop);
            failed.extend(self.wake(hop));
        }
        failed
    }

    fn wake(&mut self, hop: Address) -> Vec<u32> {
        let (woken, waiting) = core::mem::take(&mut self.waiting)
            .into_iter()
            .partition::<Vec<_>, _>(|&(waited_for, _)| waited_for == hop);
        self.waiting = waiting;
        woken.into_iter().map(|(_, slot)| slot).collect()
    }

    /// A connection is gone.
    pub(crate) fn forget_waiting(&mut self, slot: u32) {
        self.waiting.retain(|&(_, waiting)| waiting != slot);
    }
}
