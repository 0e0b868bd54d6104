//! Carriers that serve one connection of the program after another.
//!
//! When a connection has ended, both ends can keep its carrier and use it for the program's next
//! connection, without a handshake and without pairing. A *turn* is one connection of the program
//! on a carrier. One word holds the phase of the turn, and only a compare-exchange changes that
//! word:
//!
//! ```text
//!                both ends have closed turn t          accept (t + 1)
//!   in use (t) ──────────► claimed (t + 1) ──────────────► in use (t + 1)
//!       │        connect                │
//!       │ either end, at any time       │ connecting end: the listener has closed
//!       ▼                               ▼ accepting end: it closes its listener
//!    retired                         retired
//! ```
//!
//! A carrier is *parked* when both ends have closed its turn. The phase does not show that: each
//! end has a word of its own, in which it says that it has closed. Both ends may change the phase.
//! Only the connecting end claims, so a parked carrier is taken once. When a claim and a retirement
//! meet, one succeeds and the other sees that.
//!
//! Each turn has a number, which each end keeps in private memory. A word with the number of
//! another turn says nothing about this turn. So a word that an end wrote late, or before it was
//! killed, is never taken for a word about the next connection.
//!
//! The positions of the rings go on from turn to turn. An end closes in order only when it has read
//! all bytes that came. If the other end sends bytes after that, no program reads them: the
//! connecting end looks at both rings before it claims, and retires the carrier if there are any
//! bytes.
//!
//! Connections that wait for `accept` stand in a queue of the pair of processes, in the order in
//! which they were made:
//!
//! ```text
//!   connecting end                              accepting end
//!   claim, push, fence, look: places?           places := 0, fence, pop all and refuse each
//!   none? withdraw what was pushed
//! ```
//!
//! Either the connecting end sees that the listener has closed, or the accepting end finds the
//! connection when it empties the queue. Both may happen. Then withdrawal and refusal both try to
//! change the phase, and one of them succeeds.

use toehold_channel::express::{AcceptQueue, ENTRIES_MAX, Ended, REQUEST_BYTES, Turns};
use toehold_channel::layout::{READY_BITS, SIDE_ACQUIRE, SIDE_RELEASE};
use toehold_channel::ring::Fault;
use toehold_channel::sync::{AtomicU32, Ordering, fence};
use toehold_channel::untrusted::Untrusted;

/// Number of a connection of the program on its carrier. The connection for which the carrier was
/// made has number 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn(u32);

/// Number of bits of a turn. The phase is in the bits below.
const TURN_BITS: u32 = 30;
const PHASE_BITS: u32 = 32 - TURN_BITS;
/// The most turns of a carrier. After them the carrier is retired.
pub const TURNS_MAX: u32 = 1 << TURN_BITS;

impl Turn {
    /// The first.
    pub const FIRST: Turn = Turn(0);

    /// The turn of that number, if there is one.
    pub fn numbered(number: u32) -> Option<Turn> {
        (number < TURNS_MAX).then_some(Turn(number))
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The next one, if there is one.
    fn next(self) -> Option<Turn> {
        Turn::numbered(self.0 + 1)
    }

    /// The value of an `ended`, `seen` or `freed` word for this turn.
    fn as_ended(self) -> u32 {
        self.0 + 1
    }
}

/// The phase of a turn. The first is that of zeroed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// Both ends use the turn, or have used and closed it.
    InUse = 0,
    /// The connecting end uses the turn, and the accepting end has not accepted it yet.
    Claimed = 1,
    /// The carrier serves no further connection.
    Retired = 2,
}

fn word(turn: Turn, phase: Phase) -> u32 {
    turn.0 << PHASE_BITS | phase as u32
}

/// The ordering of a compare-exchange of the phase: an end that sees the change sees everything
/// that the other end did before it. Pairs with itself and with the loads by [`SIDE_ACQUIRE`].
const PHASE_ACQ_REL: Ordering = Ordering::AcqRel;

/// True when a connection with this client port is to be paired at once, for a level that selects
/// one port in `2^level`. Both ends come to the same answer without a message. The ports of a
/// higher level are a subset of those of a lower level.
pub fn is_chosen(port: u16, level: u32) -> bool {
    // Knuth's multiplicative hash: neighbouring ports are far apart.
    let hash = u32::from(port).wrapping_mul(0x9E37_79B1) >> 12;
    hash & ((1 << level) - 1) == 0
}

/// Connections from an engine are paired at once for one port in this many, as a power of two
/// ([`is_chosen`]). The engine chooses the ports itself.
pub const ENGINE_PORTS_LOG2: u32 = 6;

/// One end's view of a carrier's turns.
#[derive(Clone, Copy)]
pub struct Carrier<'a> {
    words: &'a Turns,
    side: usize,
}

/// The reason why a parked carrier could not be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclaimed {
    /// One end has not closed the turn yet.
    InUse,
    /// The carrier is retired, or has no turns left, or the peer wrote an invalid word.
    Retired,
}

impl<'a> Carrier<'a> {
    /// The end of `side`, 0 or 1.
    pub fn new(words: &'a Turns, side: usize) -> Carrier<'a> {
        Carrier { words, side }
    }

    fn changes(&self, from: (Turn, Phase), to: (Turn, Phase)) -> bool {
        let (from, to) = (word(from.0, from.1), word(to.0, to.1));
        let phase = &self.words.phase;
        phase
            .compare_exchange(from, to, PHASE_ACQ_REL, SIDE_ACQUIRE)
            .is_ok()
    }

    /// Says that this end has closed `turn` in order: it has read all bytes that came, and sends no
    /// more. The caller then wakes the peer.
    pub fn end(&self, turn: Turn) {
        self.words.sides[self.side]
            .ended
            .store(turn.as_ended(), SIDE_RELEASE);
        // Pairs with the sleeper's fence, after it has stored its wake word
        // (`toehold_channel::doorbell`): a sleeper that does not see this is seen.
        fence(Ordering::SeqCst);
    }

    /// True when the peer has closed `turn` in order. Bytes that the peer sent before are in the
    /// ring.
    #[inline]
    pub fn is_ended_by_peer(&self, turn: Turn) -> bool {
        self.words.sides[1 - self.side]
            .ended
            .load(SIDE_ACQUIRE)
            .is(turn.as_ended())
    }

    /// Says that this end's program waits for the connection of `turn` in a way that the library
    /// sees.
    pub fn note_seen(&self, turn: Turn) {
        let seen = &self.words.sides[self.side].seen;
        // Relaxed: a peer that does not see this yet only rings an unnecessary doorbell.
        seen.store(turn.as_ended(), Ordering::Relaxed);
    }

    /// True when the peer's program was seen waiting in `turn`.
    pub fn is_peer_seen(&self, turn: Turn) -> bool {
        let seen = self.words.sides[1 - self.side].seen.load(Ordering::Relaxed);
        seen.is(turn.as_ended())
    }

    /// True when both ends have closed `turn`.
    pub fn is_parked(&self, turn: Turn) -> bool {
        let ours = self.words.sides[self.side].ended.load(Ordering::Relaxed);
        ours.is(turn.as_ended()) && self.is_ended_by_peer(turn)
    }

    /// The addresses of the phase and of the peer's words, which the peer has written when the
    /// carrier is parked. [`Carrier::try_claim`] changes the phase and reads the other.
    pub fn lines_of_claim(&self) -> (*const Turns, *const Ended) {
        let words: *const Turns = self.words;
        (words, &raw const self.words.sides[1 - self.side])
    }

    /// The connecting end claims the parked carrier for its next connection. Returns the new turn.
    ///
    /// # Errors
    /// [`Unclaimed`], and nothing has changed.
    pub fn try_claim(&self, turn: Turn) -> Result<Turn, Unclaimed> {
        if !self.is_parked(turn) {
            return Err(Unclaimed::InUse);
        }
        let next = turn.next().ok_or(Unclaimed::Retired)?;
        match self.changes((turn, Phase::InUse), (next, Phase::Claimed)) {
            true => Ok(next),
            false => Err(Unclaimed::Retired),
        }
    }

    /// Says that this end, an engine, has forwarded all bytes of `turn`, which both ends have
    /// closed. A connecting end that waits for this may claim the carrier now.
    pub fn free(&self, turn: Turn) {
        let freed = &self.words.sides[self.side].freed;
        freed.store(turn.as_ended(), SIDE_RELEASE);
    }

    /// True when the peer, an engine, has forwarded all bytes of `turn`.
    pub fn is_freed_by_peer(&self, turn: Turn) -> bool {
        let freed = &self.words.sides[1 - self.side].freed;
        freed.load(SIDE_ACQUIRE).is(turn.as_ended())
    }

    /// Stores the connect preamble of the connection for which this end has claimed the carrier.
    /// Called before the connection is queued.
    pub fn request(&self, preamble: &[u8; REQUEST_BYTES]) {
        let (bytes, _) = preamble.as_chunks();
        for (word, bytes) in self.words.request.iter().zip(bytes) {
            // Relaxed: carried by the queue's `tail`.
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// The connect preamble of a connection that was taken from the queue, as the connecting end
    /// wrote it.
    pub fn requested(&self) -> [u8; REQUEST_BYTES] {
        let mut preamble = [0; REQUEST_BYTES];
        let (bytes, _) = preamble.as_chunks_mut();
        for (bytes, word) in bytes.iter_mut().zip(&self.words.request) {
            // The bytes are unchecked: the caller parses them.
            *bytes = word.load(Ordering::Relaxed).capped(u64::MAX).to_ne_bytes();
        }
        preamble
    }

    /// The accepting end gives its program the connection. False when it was withdrawn.
    pub fn accept(&self, turn: Turn) -> bool {
        self.changes((turn, Phase::Claimed), (turn, Phase::InUse))
    }

    /// True when the connecting end has claimed the carrier for the turn after `turn`, and that
    /// turn is not accepted yet.
    pub fn is_next_waiting(&self, turn: Turn) -> bool {
        turn.next().is_some_and(|next| self.is_waiting(next))
    }

    /// True when the peer has not accepted `turn`, which this end has claimed. If the carrier ends
    /// now, the connection was refused.
    pub fn is_waiting(&self, turn: Turn) -> bool {
        self.words
            .phase
            .load(SIDE_ACQUIRE)
            .is(word(turn, Phase::Claimed))
    }

    /// True when the peer has not accepted, or has refused, `turn`, which this end has claimed. So
    /// the peer has read none of this end's bytes.
    pub fn is_unaccepted(&self, turn: Turn) -> bool {
        let phase = self.words.phase.load(SIDE_ACQUIRE);
        // A turn that was accepted is retired only after the peer has ended it.
        let is_refused = phase.is(word(turn, Phase::Retired)) && !self.is_ended_by_peer(turn);
        turn != Turn::FIRST && (phase.is(word(turn, Phase::Claimed)) || is_refused)
    }

    /// Either end gives up a connection that waits for `accept`. True when this end has decided
    /// that; false when the other end has already accepted the connection or given it up.
    pub fn give_up(&self, turn: Turn) -> bool {
        self.changes((turn, Phase::Claimed), (turn, Phase::Retired))
    }

    /// Either end makes `turn` the last turn, because it is about to close the carrier. `None` on
    /// success. Otherwise returns the turn that the peer has claimed meanwhile, which has to be
    /// accepted or given up.
    pub fn retire(&self, turn: Turn) -> Option<Turn> {
        if self.changes((turn, Phase::InUse), (turn, Phase::Retired)) {
            return None;
        }
        // With any other word the peer does not wait for `accept`.
        turn.next().filter(|next| self.is_waiting(*next))
    }
}

/// A connection in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The slot of its channel.
    pub slot: u32,
    /// The turn of that channel's carrier.
    pub turn: Turn,
}

const SLOT_SHIFT: u32 = 32;

impl Queued {
    fn to_word(self) -> u64 {
        u64::from(self.slot) << SLOT_SHIFT | u64::from(self.turn.number())
    }

    fn from_word(word: u64) -> Option<Queued> {
        let slot = (word >> SLOT_SHIFT) as u32;
        let turn = Turn::numbered(word as u32)?;
        ((slot as usize) < READY_BITS).then_some(Queued { slot, turn })
    }
}

/// The result of queueing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// It waits, and the accepting end is to be notified.
    Queued,
    /// There is no room: the backlog is full.
    Full,
    /// The accepting end does not listen. Nothing was queued.
    Closed,
    /// The connection was queued, but the accepting end has stopped listening. The caller gives the
    /// connection up ([`Carrier::give_up`]). If that fails, the connection was refused, or was
    /// accepted just before.
    ClosedMeanwhile,
}

/// The connecting end of a queue. Only one thread at a time may push.
#[derive(Clone, Copy)]
pub struct Pusher<'a> {
    /// The queue.
    pub words: &'a AcceptQueue,
    /// Connections that we have queued in all: our private count.
    pub pushed: &'a AtomicU32,
}

impl Pusher<'_> {
    /// The number of connections that wait now; a hint.
    ///
    /// # Errors
    /// [`Fault::Head`] when the peer took more than there were.
    #[inline]
    pub fn waiting(&self) -> Result<u32, Fault> {
        let pushed = self.pushed.load(Ordering::Relaxed);
        // Acquire pairs with the Release store in `Popper::pop`: the place may be written again.
        let head = self.words.head.load(Ordering::Acquire);
        let waiting = Untrusted::from(pushed).ahead_of(head, ENTRIES_MAX as u32);
        waiting.ok_or(Fault::Head)
    }

    /// The number of further connections that may be queued now; a hint.
    ///
    /// # Errors
    /// As for [`Pusher::waiting`].
    pub fn room(&self) -> Result<u32, Fault> {
        let places = self
            .words
            .places
            .load(SIDE_ACQUIRE)
            .capped(ENTRIES_MAX as u32);
        Ok(places.saturating_sub(self.waiting()?))
    }

    /// Queues a connection.
    ///
    /// # Errors
    /// As for [`Pusher::room`].
    pub fn push(&self, queued: Queued) -> Result<Push, Fault> {
        if self.room()? == 0 {
            let is_closed = self.words.places.load(SIDE_ACQUIRE).is(0);
            return Ok(if is_closed { Push::Closed } else { Push::Full });
        }
        let at = self.pushed.load(Ordering::Relaxed);
        let entry = &self.words.entries[at as usize % ENTRIES_MAX];
        entry.store(queued.to_word(), Ordering::Relaxed);
        let next = at.wrapping_add(1);
        self.pushed.store(next, Ordering::Relaxed);
        // Release pairs with the Acquire load in `Popper::waiting`: the entry is there, and all
        // that was done for it.
        self.words.tail.store(next, Ordering::Release);
        // Pairs with the fence in `Popper::close`; and with the sleeper's, as drawn in
        // `toehold_channel::doorbell`.
        fence(Ordering::SeqCst);
        match self.words.places.load(Ordering::Relaxed).is(0) {
            true => Ok(Push::ClosedMeanwhile),
            false => Ok(Push::Queued),
        }
    }
}

/// The accepting end of a queue. Only one thread at a time may pop.
#[derive(Clone, Copy)]
pub struct Popper<'a> {
    /// The queue.
    pub words: &'a AcceptQueue,
    /// Connections that we have taken in all: our private count.
    pub popped: &'a AtomicU32,
}

impl Popper<'_> {
    /// Starts to listen: from now on up to `places` connections may wait.
    pub fn open(&self, places: u32) {
        let places = places.min(ENTRIES_MAX as u32);
        self.words.places.store(places, SIDE_RELEASE);
    }

    /// Stops listening. The caller then pops the remaining connections and gives each of them up.
    pub fn close(&self) {
        self.words.places.store(0, SIDE_RELEASE);
        // Pairs with the fence in `Pusher::push`: a connecting end that queues a connection from
        // now on withdraws it.
        fence(Ordering::SeqCst);
    }

    /// The number that wait.
    ///
    /// # Errors
    /// [`Fault::Tail`] when the peer queued more than there are places.
    #[inline]
    pub fn waiting(&self) -> Result<u32, Fault> {
        // Acquire pairs with the Release store in `Pusher::push`.
        let tail = self.words.tail.load(Ordering::Acquire);
        let popped = self.popped.load(Ordering::Relaxed);
        tail.ahead_of(popped, ENTRIES_MAX as u32).ok_or(Fault::Tail)
    }

    /// The connection that has waited longest.
    ///
    /// # Errors
    /// As for [`Popper::waiting`]; [`Fault::Record`] when the entry names no channel.
    pub fn pop(&self) -> Result<Option<Queued>, Fault> {
        if self.waiting()? == 0 {
            return Ok(None);
        }
        let at = self.popped.load(Ordering::Relaxed);
        let entry = &self.words.entries[at as usize % ENTRIES_MAX];
        let queued = entry.load(Ordering::Relaxed).parsed(Queued::from_word);
        let next = at.wrapping_add(1);
        self.popped.store(next, Ordering::Relaxed);
        // Release pairs with the Acquire load in `Pusher::room`: the entry was read.
        self.words.head.store(next, Ordering::Release);
        queued.map(Some).ok_or(Fault::Record)
    }

    /// True when the connection of `slot` waits in the queue. Asked for a carrier that ended before
    /// `accept`.
    ///
    /// # Errors
    /// As for [`Popper::waiting`].
    pub fn has(&self, slot: u32) -> Result<bool, Fault> {
        let popped = self.popped.load(Ordering::Relaxed);
        Ok((0..self.waiting()?).any(|n| {
            let at = popped.wrapping_add(n) as usize % ENTRIES_MAX;
            let entry = self.words.entries[at].load(Ordering::Relaxed);
            entry
                .parsed(Queued::from_word)
                .is_some_and(|queued| queued.slot == slot)
        }))
    }
}
