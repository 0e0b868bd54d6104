//! Hardware addresses of neighbours (RFC 826, RFC 4861), and the connections that wait for one.
//!
//! ```text
//!              answer              a round without message           no answer
//!   Asked -------------> Resolved ------------------------> Verifying --------> forgotten
//!     |                     ^         (while in use)           |
//!     +--> given up         +----------------------------------+
//!                                        answer
//! ```
//!
//! RFC 1122 section 2.3.2.1 wants entries verified about once a minute, even those in use. Every
//! [`ROUND`] the engine says which entries are in use, and verifies those that were not confirmed
//! since. Frames are still sent meanwhile. Entries that are not in use are forgotten.
//!
//! Any host on the link can invent neighbours that ask for us. In a full table the entries that we
//! have neither asked for nor used are replaced first. Linux also prefers these (`neigh_forced_gc`:
//! entries without a reference). A new question may replace a known neighbour as well: the headers
//! of that neighbour's connections are written already, and it can be resolved again.

use std::collections::{BTreeMap, BTreeSet};

use crate::time::{Duration, Instant};
use crate::wire::ethernet::MacAddress;
use crate::wire::ip::Address;

/// The most neighbours that are remembered.
const NEIGHBOURS_MAX: usize = 4_096;
/// RFC 4861 section 10, and RFC 1122 section 2.3.2.1: at most one question a second.
const RETRY: Duration = Duration::from_secs(1);
const TRIES_MAX: u8 = 3;
/// RFC 1122 section 2.3.2.1: "the timeout needs to be on the order of a minute".
const ROUND: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Entry {
    /// Known, and perhaps confirmed since the round began.
    Resolved {
        mac: MacAddress,
        is_confirmed: bool,
        /// The neighbour has answered us, or we have sent to it; so we do not rely on its own claim
        /// only.
        is_used: bool,
    },
    /// Known, but being verified.
    Verifying { mac: MacAddress, question: Question },
    /// Not known yet.
    Asked(Question),
}

#[derive(Clone, Copy, Debug)]
struct Question {
    again_at: Instant,
    tries: u8,
}

#[derive(Debug)]
pub(crate) struct Neighbours {
    entries: BTreeMap<Address, Entry>,
    /// Slots of connections whose next segment waits for a neighbour, and that neighbour. Each slot
    /// is here at most once.
    waiting: BTreeMap<u32, Address>,
    /// When the round ends; not armed while no neighbour is resolved.
    round_ends_at: Instant,
    /// When the earliest question is repeated.
    again_at: Instant,
    /// Whether the engine resolves neighbours itself, and so verifies them.
    verifies: bool,
    /// The entry where the search for a replaceable entry continues.
    hand: Option<Address>,
}

/// The occasion on which a neighbour's address was learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Occasion {
    /// A message to another host, or an answer: used if the neighbour is known or was asked for.
    AnswerOrOverheard,
    /// A request to us: used, but any host can forge it.
    Request,
    /// The owner of the engine says it, or a handshake has proved that the neighbour is there.
    Confirmation,
}

impl Neighbours {
    pub(crate) fn new(verifies: bool) -> Self {
        Self {
            verifies,
            entries: BTreeMap::new(),
            waiting: BTreeMap::new(),
            round_ends_at: Instant::NEVER,
            again_at: Instant::NEVER,
            hand: None,
        }
    }
}

/// The next step for a packet to a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resolution {
    At(MacAddress),
    /// Ask the link, and wait.
    Ask,
    /// Already asked; wait.
    Wait,
    /// The table is full of open questions.
    Full,
}

/// Consequences of a neighbour's message.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    /// Connections that waited for it.
    pub(crate) woken: Vec<u32>,
    /// The neighbour had another address before: written headers must be written again.
    pub(crate) has_moved: bool,
}

/// Consequences of expired timers.
#[derive(Debug, Default)]
pub(crate) struct Expired {
    /// Neighbours to be resolved.
    pub(crate) ask: Vec<Address>,
    /// Neighbours that are gone.
    pub(crate) gone: Vec<Address>,
    /// Connections that waited in vain.
    pub(crate) failed: Vec<u32>,
}

impl Neighbours {
    /// [`Self::resolve`], but an unknown neighbour has the address `otherwise`.
    pub(crate) fn resolve_or(
        &mut self,
        now: Instant,
        hop: Address,
        otherwise: Option<MacAddress>,
    ) -> Resolution {
        match otherwise {
            Some(mac) if !self.knows(hop) => Resolution::At(mac),
            _ => self.resolve(now, hop),
        }
    }

    /// The address of `hop`, or the next step to find it.
    pub(crate) fn resolve(&mut self, now: Instant, hop: Address) -> Resolution {
        let Some(entry) = self.entries.get_mut(&hop) else {
            if !self.make_room(true) {
                return Resolution::Full;
            }
            let question = Question::first(now);
            self.again_at = self.again_at.min(question.again_at);
            self.entries.insert(hop, Entry::Asked(question));
            return Resolution::Ask;
        };
        let Some(mac) = entry.mac() else {
            return Resolution::Wait;
        };
        if let Entry::Resolved { is_used, .. } = entry {
            *is_used = true;
        }
        if self.verifies && !self.round_ends_at.is_armed() {
            self.round_ends_at = now + ROUND;
        }
        Resolution::At(mac)
    }

    /// Makes room for another entry: true when there is room. A new neighbour or question may
    /// replace an entry that was never used; only a question may replace a used one.
    fn make_room(&mut self, for_question: bool) -> bool {
        if self.entries.len() < NEIGHBOURS_MAX {
            return true;
        }
        let mut victim = self.find(false);
        if for_question {
            victim = victim.or_else(|| self.find(true));
        }
        self.hand = victim;
        victim.is_some_and(|hop| self.entries.remove(&hop).is_some())
    }

    /// The next known neighbour after the hand whose `is_used` is `used`.
    fn find(&self, used: bool) -> Option<Address> {
        let hand = self.hand.unwrap_or_default();
        let behind = self.entries.range(hand..);
        let mut all = behind.chain(self.entries.range(..hand));
        let found = all.find(
            |(_, entry)| matches!(entry, Entry::Resolved { is_used, .. } if *is_used == used),
        );
        found.map(|(&hop, _)| hop)
    }

    /// Remembers that a connection waits for `hop`.
    pub(crate) fn wait(&mut self, hop: Address, slot: u32) {
        self.waiting.insert(slot, hop);
    }

    /// Takes a neighbour's message. RFC 826: the address of a known neighbour is always updated.
    pub(crate) fn learn(&mut self, hop: Address, mac: MacAddress, occasion: Occasion) -> Learned {
        let known = self.entries.get(&hop).copied();
        let may_add = || occasion != Occasion::AnswerOrOverheard;
        if mac.is_group() || known.is_none() && !(may_add() && self.make_room(false)) {
            return Learned::default();
        }
        let is_used = match known {
            None => occasion == Occasion::Confirmation,
            Some(Entry::Resolved { is_used, .. }) => is_used || occasion == Occasion::Confirmation,
            Some(Entry::Verifying { .. } | Entry::Asked(_)) => true,
        };
        let entry = Entry::Resolved {
            mac,
            is_confirmed: true,
            is_used,
        };
        self.entries.insert(hop, entry);
        let Some(known) = known else {
            return Learned::default();
        };
        if !matches!(known, Entry::Resolved { .. }) {
            self.update_next_question();
        }
        Learned {
            woken: self.wake(hop),
            has_moved: known.mac().is_some_and(|old| old != mac),
        }
    }

    /// Takes the sender of a connection request as its next hop, unless the next hop is known.
    pub(crate) fn learn_if_unknown(&mut self, hop: Address, mac: MacAddress) -> Learned {
        if self.knows(hop) {
            return Learned::default();
        }
        self.learn(hop, mac, Occasion::Confirmation)
    }

    /// Whether the address of `hop` is known.
    pub(crate) fn knows(&self, hop: Address) -> bool {
        self.mac_of(hop).is_some()
    }

    /// Whether `hop` is known to have another address.
    pub(crate) fn is_elsewhere(&self, hop: Address, mac: MacAddress) -> bool {
        self.mac_of(hop).is_some_and(|known| known != mac)
    }

    fn mac_of(&self, hop: Address) -> Option<MacAddress> {
        self.entries.get(&hop)?.mac()
    }

    /// RFC 1122 section 2.3.2.1 (4), advice of a higher layer: the neighbour does not respond.
    pub(crate) fn suspect(&mut self, hop: Address) {
        if !matches!(self.entries.get(&hop), Some(Entry::Asked(_)) | None) {
            self.entries.remove(&hop);
            self.update_next_question();
        }
    }

    /// Forgets all addresses; open questions stay open.
    pub(crate) fn forget(&mut self) {
        self.entries
            .retain(|_, entry| matches!(entry, Entry::Asked(_)));
        self.update_next_question();
    }

    /// When there is something to do.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Instant {
        self.again_at.min(self.round_ends_at)
    }

    /// Whether the round has ended, so that [`Self::begin_round`] must be called.
    pub(crate) fn is_round_over(&self, now: Instant) -> bool {
        self.round_ends_at <= now
    }

    /// Begins to verify entries in use that were not confirmed in the round, and forgets other
    /// unconfirmed entries. Returns the neighbours to ask.
    pub(crate) fn begin_round(&mut self, now: Instant, in_use: &BTreeSet<Address>) -> Vec<Address> {
        let mut ask = Vec::new();
        self.entries.retain(|hop, entry| match entry {
            Entry::Resolved { is_confirmed, .. } if *is_confirmed => {
                *is_confirmed = false;
                true
            }
            Entry::Resolved { mac, .. } if in_use.contains(hop) => {
                let (mac, question) = (*mac, Question::first(now));
                *entry = Entry::Verifying { mac, question };
                ask.push(*hop);
                true
            }
            Entry::Resolved { .. } => false,
            Entry::Verifying { .. } | Entry::Asked(_) => true,
        });
        let is_known = |entry: &Entry| !matches!(entry, Entry::Asked(_));
        self.round_ends_at = if self.entries.values().any(is_known) {
            now + ROUND
        } else {
            Instant::NEVER
        };
        self.update_next_question();
        ask
    }

    /// Repeats unanswered questions, and gives up after [`TRIES_MAX`] attempts.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Expired {
        let mut overdue = Expired::default();
        for (hop, entry) in &mut self.entries {
            let (Entry::Asked(question) | Entry::Verifying { question, .. }) = entry else {
                continue;
            };
            if question.again_at > now {
                continue;
            }
            if question.tries >= TRIES_MAX {
                overdue.gone.push(*hop);
            } else {
                question.tries += 1;
                question.again_at = now + RETRY;
                overdue.ask.push(*hop);
            }
        }
        for hop in &overdue.gone {
            self.entries.remove(hop);
        }
        for hop in overdue.gone.clone() {
            overdue.failed.extend(self.wake(hop));
        }
        self.update_next_question();
        overdue
    }

    /// Finds the next question after a change.
    fn update_next_question(&mut self) {
        let at = |entry: &Entry| match entry {
            Entry::Asked(question) | Entry::Verifying { question, .. } => question.again_at,
            Entry::Resolved { .. } => Instant::NEVER,
        };
        let next = self.entries.values().map(at).min();
        self.again_at = next.unwrap_or(Instant::NEVER);
    }

    fn wake(&mut self, hop: Address) -> Vec<u32> {
        let waiting = self.waiting.iter();
        let woken: Vec<u32> = waiting
            .filter(|&(_, &waited_for)| waited_for == hop)
            .map(|(&slot, _)| slot)
            .collect();
        for slot in &woken {
            self.waiting.remove(slot);
        }
        woken
    }

    /// A connection is gone.
    pub(crate) fn forget_waiting(&mut self, slot: u32) {
        self.waiting.remove(&slot);
    }
}

impl Entry {
    fn mac(&self) -> Option<MacAddress> {
        match self {
            Entry::Resolved { mac, .. } | Entry::Verifying { mac, .. } => Some(*mac),
            Entry::Asked(_) => None,
        }
    }
}

impl Question {
    fn first(now: Instant) -> Self {
        Self {
            again_at: now + RETRY,
            tries: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOP: Address = Address::v4(0x0a00_0002);
    const HERE: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const THERE: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    /// A neighbour that was found, and the time.
    fn found() -> (Neighbours, Instant) {
        let mut neighbours = Neighbours::new(true);
        let now = Instant::ZERO;
        assert_eq!(neighbours.resolve(now, HOP), Resolution::Ask);
        neighbours.wait(HOP, 7);
        assert_eq!(neighbours.resolve(now, HOP), Resolution::Wait);
        assert_eq!(
            neighbours
                .learn(HOP, HERE, Occasion::AnswerOrOverheard)
                .woken,
            [7]
        );
        assert_eq!(neighbours.resolve(now, HOP), Resolution::At(HERE));
        (neighbours, now)
    }

    /// Ends a round; returns the neighbours that it asks for.
    fn round(neighbours: &mut Neighbours, in_use: bool) -> Vec<Address> {
        let now = neighbours.round_ends_at;
        assert!(neighbours.is_round_over(now));
        neighbours.begin_round(now, &in_use.then_some(HOP).into_iter().collect())
    }

    #[test]
    fn what_is_in_use_is_verified_and_stays_when_confirmed() {
        let (mut neighbours, now) = found();
        assert!(
            round(&mut neighbours, true).is_empty(),
            "heard of in this round"
        );
        assert_eq!(round(&mut neighbours, true), [HOP]);
        assert_eq!(
            neighbours.resolve(now, HOP),
            Resolution::At(HERE),
            "meanwhile"
        );
        assert!(
            !neighbours
                .learn(HOP, HERE, Occasion::AnswerOrOverheard)
                .has_moved
        );
        assert!(!neighbours.again_at.is_armed());
        assert!(round(&mut neighbours, true).is_empty());
    }

    #[test]
    fn what_does_not_answer_is_gone() {
        let (mut neighbours, now) = found();
        round(&mut neighbours, true);
        round(&mut neighbours, true);
        for _ in 1..TRIES_MAX {
            let overdue = neighbours.handle_timeout(neighbours.next_deadline());
            assert_eq!((overdue.ask, overdue.gone.len()), (vec![HOP], 0));
        }
        let overdue = neighbours.handle_timeout(neighbours.next_deadline());
        assert_eq!(overdue.gone, [HOP]);
        assert_eq!(neighbours.resolve(now, HOP), Resolution::Ask);
    }

    #[test]
    fn a_waiter_is_woken_once_however_often_it_tried() {
        let mut neighbours = Neighbours::new(true);
        neighbours.resolve(Instant::ZERO, HOP);
        for slot in [7, 8, 7, 7] {
            neighbours.wait(HOP, slot);
        }
        neighbours.forget_waiting(8);
        assert_eq!(
            neighbours
                .learn(HOP, HERE, Occasion::AnswerOrOverheard)
                .woken,
            [7]
        );
        assert!(
            neighbours
                .learn(HOP, HERE, Occasion::AnswerOrOverheard)
                .woken
                .is_empty()
        );
    }

    #[test]
    fn what_is_not_in_use_is_forgotten_and_leaves_no_timer() {
        let (mut neighbours, _) = found();
        assert!(round(&mut neighbours, false).is_empty());
        assert!(round(&mut neighbours, false).is_empty());
        assert!(neighbours.entries.is_empty());
        assert_eq!(neighbours.next_deadline(), Instant::NEVER);
    }

    #[test]
    fn what_somebody_else_resolves_is_not_doubted() {
        let mut neighbours = Neighbours::new(false);
        neighbours.learn(HOP, HERE, Occasion::Confirmation);
        assert_eq!(neighbours.resolve(Instant::ZERO, HOP), Resolution::At(HERE));
        assert_eq!(neighbours.next_deadline(), Instant::NEVER);
    }

    fn hop(number: u32) -> Address {
        Address::v4(0x0a01_0000 + number)
    }

    /// Fills the table.
    fn fill(neighbours: &mut Neighbours, mut each: impl FnMut(&mut Neighbours, Address)) {
        for number in 0..NEIGHBOURS_MAX as u32 {
            each(neighbours, hop(number));
        }
    }

    #[test]
    fn strangers_give_way_and_what_is_used_stays() {
        let (mut neighbours, now) = found();
        neighbours.learn(hop(7), HERE, Occasion::Request);
        assert_eq!(neighbours.resolve(now, hop(7)), Resolution::At(HERE));
        for number in 0..2 * NEIGHBOURS_MAX as u32 {
            neighbours.learn(hop(number), THERE, Occasion::Request);
        }
        assert_eq!(neighbours.entries.len(), NEIGHBOURS_MAX);
        assert!(neighbours.knows(HOP) && neighbours.knows(hop(7)));
        // The newest is remembered, and there is room to ask.
        assert!(neighbours.knows(hop(2 * NEIGHBOURS_MAX as u32 - 1)));
        assert_eq!(neighbours.resolve(now, hop(100_000)), Resolution::Ask);
        assert_eq!(neighbours.entries.len(), NEIGHBOURS_MAX);
    }

    #[test]
    fn strangers_do_not_push_out_what_is_proved() {
        let mut neighbours = Neighbours::new(true);
        fill(&mut neighbours, |neighbours, hop| {
            neighbours.learn(hop, HERE, Occasion::Confirmation);
        });
        neighbours.learn(HOP, THERE, Occasion::Request);
        assert!(!neighbours.knows(HOP) && neighbours.knows(hop(0)));
        // A question may take the place of one.
        assert_eq!(neighbours.resolve(Instant::ZERO, HOP), Resolution::Ask);
        assert_eq!(neighbours.entries.len(), NEIGHBOURS_MAX);
    }

    #[test]
    fn questions_do_not_push_out_questions() {
        let mut neighbours = Neighbours::new(true);
        fill(&mut neighbours, |neighbours, hop| {
            assert_eq!(neighbours.resolve(Instant::ZERO, hop), Resolution::Ask);
        });
        assert_eq!(neighbours.resolve(Instant::ZERO, HOP), Resolution::Full);
        while !neighbours.entries.is_empty() {
            neighbours.handle_timeout(neighbours.next_deadline());
        }
        assert_eq!(neighbours.resolve(Instant::ZERO, HOP), Resolution::Ask);
    }

    #[test]
    fn a_neighbour_that_moves_is_noticed() {
        let (mut neighbours, now) = found();
        assert!(
            neighbours
                .learn(HOP, THERE, Occasion::AnswerOrOverheard)
                .has_moved
        );
        assert_eq!(neighbours.resolve(now, HOP), Resolution::At(THERE));
    }
}
