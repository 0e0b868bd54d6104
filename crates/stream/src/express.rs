//! Carriers that serve one connection of the program after another.
//!
//! Both ends of a carrier that carries no byte of a connection any more can keep it, and use it for
//! the program's next connection: no handshake and no pairing. A *turn* is one connection of the
//! program on a carrier. One word says how far the turn has come, and only a compare-exchange
//! changes it:
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
//! A turn that both ends have closed is *parked*. There is no word for that: each end says of
//! itself that it has closed. Nobody owns the word. The connecting end alone claims, so a parked
//! carrier is taken once. Of a claim and a retirement that meet, one wins and the other sees it.
//!
//! A number tells the turns apart. Each end keeps its own in private memory, and a word that speaks
//! of another turn says nothing about this one. So what an end wrote before it was killed, or late,
//! is never taken for a word about the next connection.
//!
//! The positions of the rings go on from turn to turn. An end closes in order only when it has read
//! all that came. Bytes that the other end sends after that are read by nobody: the connecting end
//! looks at both rings before it claims, and retires the carrier if there are any.
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
//! Either the look finds that nobody listens any more, or the connection is in the queue when the
//! accepting end empties it. Both may happen: then withdrawal and refusal meet at the word.

use toehold_channel::express::{AcceptQueue, ENTRIES_MAX, REQUEST_BYTES, Turns};
use toehold_channel::layout::{READY_BITS, SIDE_SEEN, SIDE_TOLD};
use toehold_channel::ring::Fault;
use toehold_channel::sync::{AtomicU32, Ordering, fence};
use toehold_channel::untrusted::Untrusted;

/// Which connection of the program, counted from 0: that is the one for which the carrier was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn(u32);

/// Turns have so many bits; the phase stands below them.
const TURN_BITS: u32 = 30;
const PHASE_BITS: u32 = 32 - TURN_BITS;
/// No carrier gets older: it is retired instead.
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

    /// The word of an end that has closed this turn, or was seen in it.
    fn as_ended(self) -> u32 {
        self.0 + 1
    }
}

/// The phase of a turn. The first is that of zeroed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// Both ends have it, or had it and have closed it.
    InUse = 0,
    /// The connecting end has it, and it waits for the other's `accept`.
    Claimed = 1,
    /// The carrier serves no further connection.
    Retired = 2,
}

fn word(turn: Turn, phase: Phase) -> u32 {
    turn.0 << PHASE_BITS | phase as u32
}

/// How a compare-exchange of the phase orders: what each end did before its change comes before
/// what the other does after it. Pairs with itself and with the loads by [`SIDE_SEEN`].
const PHASE_CHANGED: Ordering = Ordering::AcqRel;

/// True for a connection whose client has that port, when one in `2^level` is to be paired at once.
/// Both ends ask this without a word between them. The ports of a higher level are among those of a
/// lower one.
pub fn is_chosen(port: u16, level: u32) -> bool {
    // Knuth's multiplicative hash: neighbouring ports are far apart.
    let hash = u32::from(port).wrapping_mul(0x9E37_79B1) >> 12;
    hash & ((1 << level) - 1) == 0
}

/// Of connections that come from an engine, those are paired at once whose port is one of one in so
/// many, as a power of two ([`is_chosen`]): the engine chooses the ports itself.
pub const ENGINE_PORTS_LOG2: u32 = 6;

/// One end's view of a carrier's turns.
#[derive(Clone, Copy)]
pub struct Carrier<'a> {
    words: &'a Turns,
    side: usize,
}

/// Why a parked carrier could not be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unclaimed {
    /// One end has not closed the turn yet.
    InUse,
    /// It is retired, or has had all its turns, or the peer wrote nonsense.
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
            .compare_exchange(from, to, PHASE_CHANGED, SIDE_SEEN)
            .is_ok()
    }

    /// This end has closed `turn` in order: it has read all that came, and sends nothing more. The
    /// caller makes the peer notice.
    pub fn end(&self, turn: Turn) {
        self.words.sides[self.side]
            .ended
            .store(turn.as_ended(), SIDE_TOLD);
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
            .load(SIDE_SEEN)
            .is(turn.as_ended())
    }

    /// This end's program waits for the connection of `turn` in a way that it is told of.
    pub fn note_seen(&self, turn: Turn) {
        let seen = &self.words.sides[self.side].seen;
        // Relaxed: the peer rings a doorbell too many if it does not see this yet.
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

    /// The connecting end takes the parked carrier for its next connection: its turn.
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

    /// This end has done with all that came in `turn`, which both ends have closed: the other may
    /// claim the carrier, if it waits for this word.
    pub fn free(&self, turn: Turn) {
        let freed = &self.words.sides[self.side].freed;
        freed.store(turn.as_ended(), SIDE_TOLD);
    }

    /// True when the peer has done with all that came in `turn`.
    pub fn is_freed_by_peer(&self, turn: Turn) -> bool {
        let freed = &self.words.sides[1 - self.side].freed;
        freed.load(SIDE_SEEN).is(turn.as_ended())
    }

    /// Stores where the connection is to lead for which this end has claimed the carrier, before it
    /// is queued: a connect preamble.
    pub fn request(&self, preamble: &[u8; REQUEST_BYTES]) {
        let (bytes, _) = preamble.as_chunks();
        for (word, bytes) in self.words.request.iter().zip(bytes) {
            // Relaxed: carried by the queue's `tail`.
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Where a connection is to lead that was taken from the queue, as the connecting end says.
    pub fn requested(&self) -> [u8; REQUEST_BYTES] {
        let mut preamble = [0; REQUEST_BYTES];
        let (bytes, _) = preamble.as_chunks_mut();
        for (bytes, word) in bytes.iter_mut().zip(&self.words.request) {
            // Whatever stands there is parsed by the caller.
            *bytes = word.load(Ordering::Relaxed).capped(u64::MAX).to_ne_bytes();
        }
        preamble
    }

    /// The accepting end gives its program the connection. False when it was withdrawn.
    pub fn accept(&self, turn: Turn) -> bool {
        self.changes((turn, Phase::Claimed), (turn, Phase::InUse))
    }

    /// True when the connecting end has taken the carrier for the turn after `turn`, and nobody has
    /// accepted that yet.
    pub fn is_next_waiting(&self, turn: Turn) -> bool {
        turn.next().is_some_and(|next| self.is_waiting(next))
    }

    /// True when the peer has not accepted `turn`, which this end has claimed: a carrier that ends
    /// now was refused.
    pub fn is_waiting(&self, turn: Turn) -> bool {
        self.words
            .phase
            .load(SIDE_SEEN)
            .is(word(turn, Phase::Claimed))
    }

    /// True when the peer has not accepted `turn`, which this end has claimed, and perhaps never
    /// will: the bytes of this end are where it has put them.
    pub fn is_unaccepted(&self, turn: Turn) -> bool {
        let phase = self.words.phase.load(SIDE_SEEN);
        // A turn that was accepted is retired only after the peer has ended it.
        let is_refused = phase.is(word(turn, Phase::Retired)) && !self.is_ended_by_peer(turn);
        turn != Turn::FIRST && (phase.is(word(turn, Phase::Claimed)) || is_refused)
    }

    /// Either end: a connection that waits is not to be accepted any more. True when this end was
    /// the one to decide so; false when the other has accepted or given it up.
    pub fn give_up(&self, turn: Turn) -> bool {
        self.changes((turn, Phase::Claimed), (turn, Phase::Retired))
    }

    /// Either end: `turn` is the last, and this end is about to close the carrier. `None` when it
    /// is. Else the connection that the peer has claimed meanwhile: it is to be accepted, or given
    /// up.
    pub fn retire(&self, turn: Turn) -> Option<Turn> {
        if self.changes((turn, Phase::InUse), (turn, Phase::Retired)) {
            return None;
        }
        // Whatever else stands there, the peer does not wait for `accept`.
        turn.next().filter(|next| self.is_waiting(*next))
    }
}

/// A connection in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Its channel in the pair of processes.
    pub slot: u32,
    /// Which connection on that channel's carrier.
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
    /// There is no place: the backlog is full.
    Full,
    /// Nobody listens. Nothing was queued.
    Closed,
    /// It was queued, but nobody listens any more: the caller gives it up ([`Carrier::give_up`]).
    /// If that fails, it was refused, or accepted just before.
    ClosedMeanwhile,
}

/// The connecting end of a queue. Of several threads one at a time pushes.
#[derive(Clone, Copy)]
pub struct Pusher<'a> {
    /// The queue.
    pub words: &'a AcceptQueue,
    /// Connections queued, ever: our own count.
    pub pushed: &'a AtomicU32,
}

impl Pusher<'_> {
    /// How many connections wait now; a hint.
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

    /// How many more connections may be queued now; a hint.
    ///
    /// # Errors
    /// As for [`Pusher::waiting`].
    pub fn room(&self) -> Result<u32, Fault> {
        let places = self.words.places.load(SIDE_SEEN).capped(ENTRIES_MAX as u32);
        Ok(places.saturating_sub(self.waiting()?))
    }

    /// Queues a connection.
    ///
    /// # Errors
    /// As for [`Pusher::room`].
    pub fn push(&self, queued: Queued) -> Result<Push, Fault> {
        if self.room()? == 0 {
            let is_closed = self.words.places.load(SIDE_SEEN).is(0);
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

/// The accepting end of a queue. Of several threads one at a time pops.
#[derive(Clone, Copy)]
pub struct Popper<'a> {
    /// The queue.
    pub words: &'a AcceptQueue,
    /// Connections taken, ever: our own count.
    pub popped: &'a AtomicU32,
}

impl Popper<'_> {
    /// From now on so many connections may wait.
    pub fn open(&self, places: u32) {
        let places = places.min(ENTRIES_MAX as u32);
        self.words.places.store(places, SIDE_TOLD);
    }

    /// Nobody listens any more. The caller then pops what is left and gives each up.
    pub fn close(&self) {
        self.words.places.store(0, SIDE_TOLD);
        // Pairs with the fence in `Pusher::push`: what is queued from here on is withdrawn by the
        // one who queues it.
        fence(Ordering::SeqCst);
    }

    /// How many wait.
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

    /// True when the connection of `slot` waits here: a carrier that ended before `accept`.
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
