//! Next hops that the engine asks the host for, if the host's routes decide.
//!
//! ```text
//!            first segment          the host's answer        routes change
//!   unknown --------------> Asked ----------------> Known ----------------> unknown
//!                             |  no route: waiting connections are told, nothing is remembered
//!                             +-------------------------------------------> unknown
//! ```
//!
//! The host answers every question, so no question is repeated. A next hop belongs to a pair of
//! addresses, because the host's rules may depend on the source as well.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::flow::FlowKey;
use crate::wire::ip::Address;

/// The most next hops remembered or asked for. Connections keep theirs in their headers, so a
/// forgotten one is asked for again only when headers are written.
const NEXT_HOPS_MAX: usize = 4_096;

/// Our address and the remote's.
type Ends = (Address, Address);

#[derive(Debug)]
enum Entry {
    /// Slots whose next segment waits for the answer.
    Asked(BTreeSet<u32>),
    Known(Address),
}

/// The neighbour to which packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextHop {
    At(Address),
    /// The host must be asked.
    Unknown,
    /// There is no route.
    NoRoute,
}

/// Whether a segment whose next hop is unknown waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// The connection is woken by the answer.
    Waits,
    /// Too many questions are unanswered.
    Full,
}

#[derive(Debug, Default)]
pub(crate) struct NextHops {
    entries: BTreeMap<Ends, Entry>,
    /// Invariant: each is `Asked` in `entries`.
    questions: VecDeque<Ends>,
}

impl NextHops {
    /// Asks the host for a connection's next hop.
    pub(crate) fn ask(&mut self, key: &FlowKey, slot: u32) -> Asked {
        let ends = (key.local, key.remote);
        if self.entries.len() >= NEXT_HOPS_MAX && !self.entries.contains_key(&ends) {
            self.entries
                .retain(|_, entry| matches!(entry, Entry::Asked(_)));
            if self.entries.len() >= NEXT_HOPS_MAX {
                return Asked::Full;
            }
        }
        let questions = &mut self.questions;
        let entry = self.entries.entry(ends).or_insert_with(|| {
            questions.push_back(ends);
            Entry::Asked(BTreeSet::new())
        });
        if let Entry::Asked(waiting) = entry {
            waiting.insert(slot);
        }
        Asked::Waits
    }

    /// The next question for the host.
    pub(crate) fn poll(&mut self) -> Option<Ends> {
        self.questions.pop_front()
    }

    /// Takes the host's answer. Returns the slots that waited; a slot may hold another connection
    /// by now.
    pub(crate) fn set(
        &mut self,
        local: Address,
        remote: Address,
        hop: Option<Address>,
    ) -> BTreeSet<u32> {
        let ends = (local, remote);
        let before = match hop {
            Some(hop) => (self.entries.get_mut(&ends))
                .map(|entry| core::mem::replace(entry, Entry::Known(hop))),
            None => self.entries.remove(&ends),
        };
        match before {
            Some(Entry::Asked(waiting)) => waiting,
            _ => BTreeSet::new(),
        }
    }

    /// Forgets the next hops to remotes for which `is_doubtful` returns true.
    pub(crate) fn forget(&mut self, is_doubtful: impl Fn(Address) -> bool) {
        self.entries
            .retain(|(_, remote), entry| matches!(entry, Entry::Asked(_)) || !is_doubtful(*remote));
    }

    pub(crate) fn next_hop(&self, key: &FlowKey) -> NextHop {
        match self.entries.get(&(key.local, key.remote)) {
            Some(Entry::Known(hop)) => NextHop::At(*hop),
            Some(Entry::Asked(_)) | None => NextHop::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(remote: u32) -> FlowKey {
        FlowKey {
            local: Address::v4(0x0a00_0001),
            remote: Address::v4(remote),
            local_port: 80,
            remote_port: 1_000,
        }
    }

    #[test]
    fn each_next_hop_is_asked_for_once_and_wakes_all_that_wait() {
        let (mut next_hops, key) = (NextHops::default(), key(7));
        for slot in [3, 1, 3] {
            assert_eq!(next_hops.ask(&key, slot), Asked::Waits);
        }
        assert_eq!(next_hops.poll(), Some((key.local, key.remote)));
        assert_eq!(next_hops.poll(), None);
        let hop = Address::v4(9);
        let woken = next_hops.set(key.local, key.remote, Some(hop));
        assert_eq!(woken, BTreeSet::from([1, 3]));
        assert_eq!(next_hops.next_hop(&key), NextHop::At(hop));
        next_hops.forget(|remote| remote != key.remote);
        assert_eq!(next_hops.next_hop(&key), NextHop::At(hop));
        next_hops.forget(|remote| remote == key.remote);
        assert_eq!(next_hops.next_hop(&key), NextHop::Unknown);
        // An answer without a question is not kept.
        next_hops.set(key.local, key.remote, Some(hop));
        assert_eq!(next_hops.next_hop(&key), NextHop::Unknown);
    }

    #[test]
    fn a_full_table_drops_known_next_hops_but_no_questions() {
        let mut next_hops = NextHops::default();
        for remote in 0..NEXT_HOPS_MAX as u32 {
            assert_eq!(next_hops.ask(&key(remote), 0), Asked::Waits);
        }
        let one_more = key(NEXT_HOPS_MAX as u32);
        assert_eq!(next_hops.ask(&one_more, 0), Asked::Full);
        let first = key(0);
        next_hops.set(first.local, first.remote, Some(Address::v4(9)));
        assert_eq!(next_hops.ask(&one_more, 0), Asked::Waits);
        assert_eq!(next_hops.next_hop(&first), NextHop::Unknown);
        assert_eq!(next_hops.entries.len(), NEXT_HOPS_MAX);
    }
}
