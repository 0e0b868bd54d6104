//! A channel seen from one end: two rings, and the positions at which each direction changes
//! between carrier and ring.
//!
//! ```text
//!   bytes:    carrier 0..c0 │ ring 0..r0 │ (doorbells c0..c1) carrier c1..c2 │ ring r0.. …
//!   records:            0: up at c0   1: down at r0, c1            2: up at c2
//! ```
//!
//! The sender writes records. The receiver carries a record out when it has read up to the record's
//! position, and then acknowledges the record. Rules that keep every sleeper reachable (a doorbell
//! is a byte on the carrier of a direction in ring mode):
//!
//! 1. A direction may go *up* only when all earlier records are acknowledged and the peer is
//!    attached.
//! 2. A direction may always go *down*. So at most two records are outstanding: an up and its down.
//! 3. A sender sleeps for credit only while the peer can ring it ([`End::peer_can_ring`]): its
//!    incoming direction is a ring, no record is pending in it, and the peer is not going down.
//!    Otherwise the sender goes down itself, and the kernel blocks it.
//! 4. A sender that goes down first sets `going_down`, fences, rings a peer that sleeps for credit,
//!    and only then publishes the record. The peer sets `want_credit`, fences, then looks at
//!    `going_down`.
//! 5. Unread bytes stay in the ring when the sender goes down, unless the receiver has asked for
//!    them before ([`crate::resend`]).

use toehold_channel::layout::{
    CONTROL_BYTES, Control, LEFT, RECORD_SLOTS, RECORDS_OUTSTANDING_MAX, RING_BYTES, SIDE_ACQUIRE,
    Side,
};
use toehold_channel::ring::{Fault, Filled, Receiver, STEP_RELEASE, Sender};
use toehold_channel::sync::{Ordering, fence};
use toehold_channel::table::{Entry, Mode};
use toehold_channel::untrusted::Untrusted;

use crate::express;

/// The most stretches of bytes that two outstanding records can separate.
pub const AHEAD_MAX: usize = 4;

/// One end of a mapped channel, borrowed for one operation.
#[derive(Clone, Copy)]
pub struct End<'a> {
    /// The connection's words in the family's table: cursors, counts, modes. A member of the family
    /// that changed its user can write any of them at any time, so every value is checked: none may
    /// lead outside the ring.
    pub entry: &'a Entry,
    control: &'a Control,
    rings: *mut u8,
    side: usize,
}

/// Where the next received bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// On the carrier, at most this many before the direction changes.
    Carrier {
        /// Bytes up to the next switch; `u64::MAX` when none is announced.
        limit: u64,
    },
    /// In the ring.
    Ring(Filled),
    /// This many doorbell bytes must be taken off the carrier first.
    Skip {
        /// Doorbell bytes to discard.
        bytes: u64,
    },
}

/// Bytes of our ring that the peer has not read and wants on the carrier: see [`End::unread`].
#[derive(Clone, Copy, Debug)]
pub struct Unread {
    /// Where they begin.
    pub(crate) head: Untrusted<u64>,
}

impl<'a> End<'a> {
    /// The end of `side` of the region mapped at `region`.
    ///
    /// # Safety
    /// `region` is a mapping of [`REGION_BYTES`](toehold_channel::layout::REGION_BYTES) that
    /// outlives `'a`; `side` is 0 or 1.
    #[inline]
    pub unsafe fn at(entry: &'a Entry, region: *mut u8, side: usize) -> End<'a> {
        // SAFETY: page-aligned and long enough by the caller's promise; all fields are atomics.
        let control = unsafe { &*region.cast::<Control>() };
        // SAFETY: the rings follow the control page inside the same mapping.
        let rings = unsafe { region.add(CONTROL_BYTES) };
        End::new(entry, control, rings, side)
    }

    /// The end of `side` of a channel whose control words and rings are in separate memory: models
    /// keep them on the heap. Only [`End::ring_in`] and [`End::ring_out`] compute with `rings`, and
    /// this crate never dereferences it.
    #[inline]
    pub fn new(entry: &'a Entry, control: &'a Control, rings: *mut u8, side: usize) -> End<'a> {
        End {
            entry,
            control,
            rings,
            side,
        }
    }

    /// Our words.
    #[inline]
    pub fn ours(&self) -> &'a Side {
        &self.control.sides[self.side]
    }

    /// The peer's words.
    #[inline]
    pub fn theirs(&self) -> &'a Side {
        &self.control.sides[1 - self.side]
    }

    /// The carrier's turns, as this end sees them.
    #[inline]
    pub fn turns(&self) -> express::Carrier<'a> {
        express::Carrier::new(&self.control.turns, self.side)
    }

    /// Memory of the ring that we write.
    #[inline]
    pub fn ring_out(&self) -> *mut u8 {
        self.rings.wrapping_add(self.side * RING_BYTES)
    }

    /// Memory of the ring that we read.
    #[inline]
    pub fn ring_in(&self) -> *mut u8 {
        self.rings.wrapping_add((1 - self.side) * RING_BYTES)
    }

    /// The sending end of our ring.
    #[inline]
    pub fn sender(&self) -> Sender<'a> {
        Sender {
            publish: &self.ours().publish,
            consume: &self.theirs().consume,
            tail: &self.entry.tx_ring,
            head_seen: &self.entry.tx_head_seen,
            capacity_log2: &self.entry.tx_capacity_log2,
            was_full: &self.entry.tx_was_full,
        }
    }

    /// The receiving end of the peer's ring.
    #[inline]
    pub fn receiver(&self) -> Receiver<'a> {
        Receiver {
            publish: &self.theirs().publish,
            consume: &self.ours().consume,
            head: &self.entry.rx_ring,
        }
    }

    /// The path of our next sent byte.
    #[inline]
    pub fn tx_mode(&self) -> Mode {
        let mode = self.entry.tx_mode.load(Ordering::Relaxed);
        mode.parsed(Mode::from_word).unwrap_or(Mode::Carrier)
    }

    /// The path of our next received byte, by the records that we have carried out.
    #[inline]
    pub fn rx_mode(&self) -> Mode {
        let mode = self.entry.rx_mode.load(Ordering::Relaxed);
        mode.parsed(Mode::from_word).unwrap_or(Mode::Carrier)
    }

    /// True while our next received byte may come from the ring.
    #[inline]
    pub fn reads_ring(&self) -> bool {
        matches!(self.rx_mode(), Mode::Ring | Mode::Skip)
    }

    /// True when the peer has published records that we have not carried out. Needs no lock.
    #[inline]
    pub fn records_pending(&self) -> bool {
        // Acquire pairs with the Release store in `publish_record`.
        self.theirs().switch.records.load(Ordering::Acquire)
            != self.entry.rx_records.load(Ordering::Relaxed)
    }

    /// True when a record is pending that can be carried out before another byte comes on the
    /// carrier. Other records are not news: the bytes before their position wake the receiver, and
    /// the bytes that a hostile peer announces may never come. Needs no lock.
    pub fn is_record_due(&self) -> bool {
        let done = self.entry.rx_records.load(Ordering::Relaxed);
        // Acquire pairs with the Release store in `publish_record`: the record's positions are
        // there.
        let announced = self.theirs().switch.records.load(Ordering::Acquire);
        if announced == done {
            return false;
        }
        match self.rx_mode() {
            Mode::Ring | Mode::Resend => true,
            Mode::Carrier | Mode::Skip => {
                let record = &self.theirs().switch.record[slot_of(done)];
                let carrier = Untrusted::from(self.entry.rx_carrier.load(Ordering::Relaxed));
                // A position that was already passed is a fault, which the next call of `incoming`
                // reports.
                (record.carrier.load(Ordering::Relaxed))
                    .beyond(carrier)
                    .is_none()
            }
        }
    }

    /// Carries out the peer's records that are due, and returns where the next bytes are. Callers
    /// hold the receive lock.
    ///
    /// # Errors
    /// A [`Fault`] when the peer's words contradict what was counted.
    #[inline]
    pub fn incoming(&self) -> Result<Incoming, Fault> {
        if self.rx_mode() == Mode::Ring && !self.records_pending() {
            return Ok(Incoming::Ring(self.receiver().available()?));
        }
        self.incoming_switching()
    }

    fn incoming_switching(&self) -> Result<Incoming, Fault> {
        let entry = self.entry;
        // Each iteration carries out one step of one record, and at most two records are
        // outstanding.
        for _ in 0..4 * RECORDS_OUTSTANDING_MAX {
            let done = entry.rx_records.load(Ordering::Relaxed);
            // Acquire pairs with the Release store in `publish_record`: the record's positions are
            // there.
            let announced = self.theirs().switch.records.load(Ordering::Acquire);
            let pending = announced
                .ahead_of(done, RECORDS_OUTSTANDING_MAX)
                .ok_or(Fault::Record)?;
            let record = &self.theirs().switch.record[slot_of(done)];
            let at_carrier = record.carrier.load(Ordering::Relaxed);
            let at_ring = record.ring.load(Ordering::Relaxed);
            let carrier = Untrusted::from(entry.rx_carrier.load(Ordering::Relaxed));
            match self.rx_mode() {
                Mode::Carrier => {
                    if pending == 0 {
                        return Ok(Incoming::Carrier { limit: u64::MAX });
                    }
                    if at_carrier < carrier || at_ring != entry.rx_ring.load(Ordering::Relaxed) {
                        return Err(Fault::Record);
                    }
                    if let Some(limit) = at_carrier.beyond(carrier) {
                        return Ok(Incoming::Carrier { limit });
                    }
                    entry.rx_mode.store(Mode::Ring as u32, Ordering::Relaxed);
                    self.acknowledge(done.plus(1));
                }
                Mode::Ring => {
                    let filled = self.receiver().available()?;
                    if pending == 0 {
                        return Ok(Incoming::Ring(filled));
                    }
                    let ring = entry.rx_ring.load(Ordering::Relaxed);
                    let len = at_ring.ahead_of(ring, filled.len).ok_or(Fault::Record)?;
                    if at_carrier < carrier {
                        return Err(Fault::Record);
                    }
                    if len > 0 {
                        return Ok(Incoming::Ring(Filled { len, ..filled }));
                    }
                    entry.rx_mode.store(Mode::Skip as u32, Ordering::Relaxed);
                }
                Mode::Resend => {
                    let filled = self.receiver().available()?;
                    if pending == 0 {
                        return Ok(Incoming::Ring(Filled { len: 0, ..filled }));
                    }
                    self.skip_resent(at_ring, filled)?;
                }
                Mode::Skip => {
                    if pending == 0 || at_carrier < carrier {
                        return Err(Fault::Record);
                    }
                    if let Some(bytes) = at_carrier.beyond(carrier) {
                        return Ok(Incoming::Skip { bytes });
                    }
                    entry.rx_mode.store(Mode::Carrier as u32, Ordering::Relaxed);
                    self.acknowledge(done.plus(1));
                }
            }
        }
        Err(Fault::Record)
    }

    /// All places of bytes that [`End::incoming`] would return, one after another. For callers that
    /// peek. Changes nothing. Callers hold the receive lock.
    ///
    /// # Errors
    /// A [`Fault`] when the peer's words contradict what was counted.
    pub fn ahead(&self) -> Result<[Option<Incoming>; AHEAD_MAX], Fault> {
        let entry = self.entry;
        let mut done = entry.rx_records.load(Ordering::Relaxed);
        // Acquire pairs with the Release store in `publish_record`; the ring's `tail` is loaded
        // later, so it is not behind the records' positions.
        let announced = self.theirs().switch.records.load(Ordering::Acquire);
        announced
            .ahead_of(done, RECORDS_OUTSTANDING_MAX)
            .ok_or(Fault::Record)?;
        let mut filled = self.receiver().available()?;
        let mut carrier = Untrusted::from(entry.rx_carrier.load(Ordering::Relaxed));
        let mut ring = entry.rx_ring.load(Ordering::Relaxed);
        let mut mode = self.rx_mode();
        let mut ahead = [None; AHEAD_MAX];
        for place in &mut ahead {
            if done == announced {
                *place = match mode {
                    Mode::Carrier => Some(Incoming::Carrier { limit: u64::MAX }),
                    Mode::Ring => Some(Incoming::Ring(filled)),
                    Mode::Resend => Some(Incoming::Ring(Filled { len: 0, ..filled })),
                    Mode::Skip => return Err(Fault::Record),
                };
                return Ok(ahead);
            }
            let record = &self.theirs().switch.record[slot_of(done)];
            let at_carrier = record.carrier.load(Ordering::Relaxed);
            let at_ring = record.ring.load(Ordering::Relaxed);
            if at_carrier < carrier {
                return Err(Fault::Record);
            }
            let bytes = at_carrier.beyond(carrier).unwrap_or(0);
            let len = at_ring.ahead_of(ring, filled.len).ok_or(Fault::Record)?;
            let is_in_ring = matches!(mode, Mode::Ring | Mode::Resend);
            if !is_in_ring && len > 0 {
                return Err(Fault::Record);
            }
            if is_in_ring {
                filled.len -= len;
                let len = if mode == Mode::Ring { len } else { 0 };
                *place = Some(Incoming::Ring(Filled { len, ..filled }));
                (ring, mode) = (at_ring, Mode::Skip);
                continue;
            }
            (*place, mode) = match mode {
                Mode::Carrier => (Some(Incoming::Carrier { limit: bytes }), Mode::Ring),
                _ => (Some(Incoming::Skip { bytes }), Mode::Carrier),
            };
            carrier = at_carrier;
            done = done.plus(1);
        }
        Ok(ahead)
    }

    fn acknowledge(&self, records: Untrusted<u32>) {
        self.entry.rx_records.store(records, STEP_RELEASE);
        // Release pairs with the Acquire load in `all_acknowledged`: everything before the switch
        // was read.
        self.ours()
            .consume
            .acknowledged
            .store(records, Ordering::Release);
    }

    /// True when the peer has read every byte that we sent on the carrier. That is certain in two
    /// cases: our direction is a ring and the peer has acknowledged its beginning; or our direction
    /// has left the ring and has sent nothing since. Doorbells do not count.
    pub fn carrier_is_unused(&self) -> bool {
        let records = self.entry.tx_records.load(Ordering::Relaxed);
        // Acquire pairs with the Release store in `acknowledge`.
        let acknowledged = self.theirs().consume.acknowledged.load(Ordering::Acquire);
        if self.tx_mode() == Mode::Ring {
            return acknowledged == records;
        }
        let last = records.plus(u32::MAX);
        let record = &self.ours().switch.record[slot_of(last)];
        // The last record may be unacknowledged: the peer carries out a downgrade only after it has
        // read the ring, and it may have ended before that.
        !records.is(0)
            && last.ahead_of(acknowledged, 1).is_some()
            && (record.carrier.load(Ordering::Relaxed))
                .is(self.entry.tx_carrier.load(Ordering::Relaxed))
    }

    /// True when the peer has carried out all our records. Callers hold the send lock.
    ///
    /// # Errors
    /// [`Fault::Record`] when it acknowledged more than there were.
    pub fn all_acknowledged(&self) -> Result<bool, Fault> {
        let records = self.entry.tx_records.load(Ordering::Relaxed);
        // Acquire pairs with the Release store in `acknowledge`.
        let acknowledged = self.theirs().consume.acknowledged.load(Ordering::Acquire);
        let outstanding = records.ahead_of(acknowledged, RECORDS_OUTSTANDING_MAX);
        Ok(outstanding.ok_or(Fault::Record)? == 0)
    }

    /// Moves our direction to the ring if the rules allow it now. Callers hold the send lock, no
    /// thread is inside a kernel send, and `tx_carrier` is exact. True when it did.
    ///
    /// # Errors
    /// [`Fault::Record`].
    pub fn try_up(&self) -> Result<bool, Fault> {
        if !self.theirs().wake.attached.load(SIDE_ACQUIRE).is(1)
            || self.ours().wake.attached.load(Ordering::Relaxed).is(LEFT)
            || !self.theirs().wake.refuse.load(SIDE_ACQUIRE).is(0)
            || !self.all_acknowledged()?
        {
            return Ok(false);
        }
        self.entry
            .tx_mode
            .store(Mode::Ring as u32, Ordering::Relaxed);
        self.begin_resend();
        self.publish_record();
        self.entry.upgrades.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Moves our direction back to the carrier: the next byte goes there. `ring` is called before
    /// the record is published, while a byte on the carrier still counts as a doorbell. Its
    /// argument is true when the peer sleeps for credit and must be rung now. `tx_carrier` is exact
    /// when `ring` returns. A direction that is on the carrier stays there. Callers hold the send
    /// lock.
    ///
    /// Returns the unread bytes that the peer wants on the carrier, if it has asked for them. The
    /// caller sends these bytes first, and then calls [`End::unread_is_sent`].
    #[must_use = "what is returned is sent on the carrier before anything else"]
    pub fn go_down(&self, ring: impl FnOnce(bool)) -> Option<Unread> {
        if self.tx_mode() != Mode::Ring {
            return None;
        }
        self.ours().switch.going_down.store(1, Ordering::Relaxed);
        // Pairs with the fence in `peer_can_ring`.
        fence(Ordering::SeqCst);
        ring(!self.theirs().wake.want_credit.load(Ordering::Relaxed).is(0));
        self.entry
            .tx_mode
            .store(Mode::Carrier as u32, Ordering::Relaxed);
        // Before the record is published, because with the record the receiver gives all unread
        // bytes back as credit.
        let unread = self.settle_resend();
        self.publish_record();
        // Release pairs with the Acquire load in `peer_can_ring`: a peer that sees 0 here sees the
        // record.
        self.ours().switch.going_down.store(0, Ordering::Release);
        self.entry.downgrades.fetch_add(1, Ordering::Relaxed);
        unread
    }

    /// Publishes the processor on which we wait, and returns the peer's: one more than its number,
    /// or 0 when it is not known. To spin for a peer on the same processor is pointless.
    #[inline]
    pub fn exchange_processors(&self, ours: u32) -> u32 {
        let word = &self.ours().wake.processor;
        // Stored only when it changes, because the peer has this line in its cache.
        if !word.load(Ordering::Relaxed).is(ours) {
            word.store(ours, Ordering::Relaxed);
        }
        let theirs = &self.theirs().wake.processor;
        theirs.load(Ordering::Relaxed).shown()
    }

    fn publish_record(&self) {
        let records = self.entry.tx_records.load(Ordering::Relaxed);
        let record = &self.ours().switch.record[slot_of(records)];
        record.carrier.store(
            self.entry.tx_carrier.load(Ordering::Relaxed),
            Ordering::Relaxed,
        );
        record.ring.store(
            self.entry.tx_ring.load(Ordering::Relaxed),
            Ordering::Relaxed,
        );
        let records = records.plus(1);
        self.entry.tx_records.store(records, STEP_RELEASE);
        // Release pairs with the Acquire load in `incoming_switching`.
        self.ours().switch.records.store(records, Ordering::Release);
    }

    /// True when the peer is able to ring us for credit. Callers have set `want_credit` before.
    /// This function fences, then looks.
    pub fn peer_can_ring(&self) -> bool {
        // Pairs with the fence in `go_down`: either the peer sees that we want credit and rings
        // before it goes, or we see it going.
        fence(Ordering::SeqCst);
        // Acquire pairs with the last store in `go_down`: the record is there.
        self.rx_mode() == Mode::Ring
            && self
                .theirs()
                .switch
                .going_down
                .load(Ordering::Acquire)
                .is(0)
            && !self.records_pending()
    }
}

/// Index of record `n`.
#[inline]
fn slot_of(n: Untrusted<u32>) -> usize {
    const _: () = assert!(RECORD_SLOTS.is_power_of_two());
    n.masked(RECORD_SLOTS as u32 - 1) as usize
}
