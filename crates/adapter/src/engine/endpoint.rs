//! The channel endpoint: the engine's end of a channel. It reads and writes a program's rings as
//! the streams of one of the engine's connections.
//!
//! ```text
//!   program's ring ──► the link, read in place; credit goes back when the remote has acknowledged
//!   the link ──► our ring, at its place in the stream, also past a gap; published up to it
//! ```
//!
//! A direction's stream offsets and ring positions differ by the bytes that went over the carrier
//! before: its *base*. The switches between carrier and ring are those of the direct path
//! ([`End`]); the engine is a peer like any other.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use toehold_channel::doorbell::{self, WakeWord};
use toehold_channel::layout::{
    CAPACITY_LOG2_ENGINE, CAPACITY_LOG2_MAX, CAPACITY_LOG2_MIN, CLOSED_TURN, ReadyBitmap,
    SIDE_ACQUIRE,
};
use toehold_channel::ring::{Fault, stretches};
use toehold_channel::table::{COMMAND_DETACH, COMMAND_EVICT, Entry, Mode, is_eviction};
use toehold_stream::credit::Credit;
use toehold_stream::end::End;
use toehold_stream::express::{Carrier as Carrying, Turn};
use toehold_stream::leaving::Refusal;
use toehold_stream::next::{Carrier, Next};

/// Initial capacity of our ring, as a power of two, and so the initial receive window: the most
/// that a remote can send to a program that does not read. A remote without window scaling cannot
/// use a larger one.
pub(super) const FIRST_WINDOW_LOG2: u32 = 16;
/// Capacity for a program that reads: the ring takes the remote's next flight while the program
/// reads the last.
pub(super) const WINDOW_LOG2: u32 = 20;
/// Capacity for a long path, on which more bytes are under way. It is not used everywhere, because
/// a large ring does not stay in the processor's cache.
pub(super) const LONG_WINDOW_LOG2: u32 = 22;
const _: () = assert!(FIRST_WINDOW_LOG2 >= CAPACITY_LOG2_MIN);
const _: () = assert!(WINDOW_LOG2 >= CAPACITY_LOG2_ENGINE && LONG_WINDOW_LOG2 <= CAPACITY_LOG2_MAX);

/// A stretch of memory to which the program may be writing.
pub(super) type Part = (*const u8, usize);

/// A stretch of memory that only we write, and that the program may be reading.
pub(super) type Room = (*mut u8, usize);

pub(super) struct Endpoint {
    region: NonNull<u8>,
    /// In the engine's own table, which is never unmapped.
    entry: &'static Entry,
    /// 0 or 1.
    side: u8,
    /// Capacity of our ring, as a power of two.
    window_log2: u32,
    /// The capacity that the ring gets as soon as it is empty.
    wanted_log2: u32,
    /// The ring has become larger since the last call of [`Endpoint::take_widened`].
    is_widened: bool,
    /// The largest capacity of the program's ring.
    sending_log2: u32,
    /// Stream offset of ring position 0, while our direction is a ring. It is below zero (and
    /// wraps) if the ring was already in use when the stream began.
    base_out: u64,
    /// Stream offset at which our direction became a ring.
    out_begins: u64,
    /// As [`Endpoint::base_out`], for the program's direction.
    base_in: u64,
    /// Stream offset at which the program's direction became a ring.
    ring_begins: u64,
}

// SAFETY: the region is atomics and raw memory, and only the engine's thread has this mapping of
// it.
unsafe impl Send for Endpoint {}

impl fmt::Debug for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Endpoint")
            .field("side", &self.side)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint over a mapped region.
    ///
    /// # Safety
    /// `region` is a mapping of [`toehold_channel::layout::REGION_BYTES`] that outlives the
    /// endpoint.
    pub(super) unsafe fn new(region: NonNull<u8>, entry: &'static Entry, side: usize) -> Endpoint {
        Endpoint {
            region,
            entry,
            side: (side & 1) as u8,
            window_log2: WINDOW_LOG2,
            wanted_log2: WINDOW_LOG2,
            is_widened: false,
            sending_log2: WINDOW_LOG2,
            base_out: 0,
            out_begins: 0,
            base_in: 0,
            ring_begins: 0,
        }
    }

    pub(super) fn end(&self) -> End<'_> {
        // SAFETY: the mapping outlives `self` by the promise of `new`, and `side` is 0 or 1.
        unsafe { End::at(self.entry, self.region.as_ptr(), self.side.into()) }
    }

    /// Announces that we follow the program's records, and that news must be marked on our ready
    /// bitmap. Our ring begins with the capacity `window_log2`, from [`FIRST_WINDOW_LOG2`] to
    /// [`LONG_WINDOW_LOG2`]; the program's ring grows up to `sending_log2`.
    pub(super) fn attach(&mut self, slot: u32, window_log2: u32, sending_log2: u32) {
        self.sending_log2 = sending_log2;
        self.set_window(window_log2.clamp(FIRST_WINDOW_LOG2, LONG_WINDOW_LOG2));
        self.wanted_log2 = self.window_log2;
        let end = self.end();
        let word = WakeWord::Bitmap {
            bitmap: 0,
            bit: slot,
        };
        end.attach(word);
    }

    /// Capacity of our ring.
    pub(super) fn window_bytes(&self) -> u64 {
        1 << self.window_log2
    }

    /// Our ring gets this capacity as soon as it is empty, if it is larger than the current one.
    pub(super) fn want_window(&mut self, window_log2: u32) {
        self.wanted_log2 = window_log2.clamp(self.window_log2, LONG_WINDOW_LOG2);
    }

    #[inline]
    pub(super) fn wants_wider(&self) -> bool {
        self.window_log2 < self.wanted_log2
    }

    /// Gives an empty ring its wanted capacity. `placed` is the end of the stored bytes, including
    /// those behind gaps: while any bytes are stored, published or not, the layout must not change.
    #[cold]
    pub(super) fn try_widen(&mut self, placed: u64) {
        if !self.is_up() {
            return;
        }
        let published = self.published_out();
        if placed <= published && matches!(self.consumed(), Ok(at) if at == published) {
            self.set_window(self.wanted_log2);
            self.is_widened = true;
        }
    }

    /// True when our ring has become larger since the last call.
    pub(super) fn take_widened(&mut self) -> bool {
        std::mem::take(&mut self.is_widened)
    }

    fn set_window(&mut self, window_log2: u32) {
        self.window_log2 = window_log2;
        self.end().sender().set_capacity(window_log2);
    }

    /// True while our bytes go into the ring.
    pub(super) fn is_up(&self) -> bool {
        self.end().tx_mode() == Mode::Ring
    }

    /// True while one side wants our direction on the carrier.
    pub(super) fn is_unwanted(&self) -> bool {
        self.end().is_wanted_down() || self.is_recalled()
    }

    /// Moves our direction to the ring, beginning at stream offset `next`; true when it did.
    pub(super) fn try_up(&mut self, next: u64, carrier_bytes: u64) -> Result<bool, Fault> {
        self.entry
            .tx_carrier
            .store(carrier_bytes, Ordering::Relaxed);
        let is_up = self.end().try_up()?;
        if is_up {
            self.base_out = next.wrapping_sub(self.entry.tx_ring.own());
            self.out_begins = next;
            // The program has read everything, because a switch waits until the former switch is
            // carried out.
            self.end().sender().credit_as_it_is()?;
        }
        Ok(is_up)
    }

    /// Makes it too late for the program to ask for unread bytes on the carrier. False when it has
    /// asked already.
    pub(super) fn forbid_resend(&self) -> bool {
        self.end().forbid_resend()
    }

    /// Moves our direction back to the carrier. `ring` is called before the switch is published;
    /// its argument is true when the program must be rung. It returns how many bytes were sent on
    /// the carrier.
    ///
    /// Returns the stream offset from which the program needs bytes on the carrier: the end of the
    /// ring, or the position up to which it has read, if it has asked for the rest again.
    ///
    /// # Errors
    /// [`Fault::Head`].
    pub(super) fn go_down(&self, ring: impl FnOnce(bool) -> u64) -> Result<u64, Fault> {
        let published = self.published_out();
        let unread = self.end().go_down(|must_ring| {
            let carrier_bytes = ring(must_ring);
            self.entry
                .tx_carrier
                .store(carrier_bytes, Ordering::Relaxed);
        });
        let again = unread.map(|unread| self.end().unread(unread)).transpose()?;
        let bytes = again.map_or(0, |[(_, one), (_, other)]| one + other);
        Ok(published - bytes as u64)
    }

    /// The place of `len` bytes of the remote's stream; `None` when there is no room for all of
    /// them.
    #[inline]
    pub(super) fn room_for(&self, offset: u64, len: usize) -> Option<[Room; 2]> {
        let position = offset.wrapping_sub(self.base_out);
        let end = position.saturating_add(len as u64);
        let seen = &self.entry.tx_head_seen;
        let limit = || seen.own() + self.window_bytes();
        if end > limit() {
            // The program may have read more since the last look.
            let _ = self.end().sender().credit_as_it_is();
        }
        if position < self.entry.tx_ring.own() || end > limit() {
            return None;
        }
        let ring = self.end().ring_out();
        Some(
            stretches(position, len, self.window_log2)
                .map(|(at, len)| (ring.wrapping_add(at), len)),
        )
    }

    /// Stores bytes of the remote's stream where [`Endpoint::room_for`] said.
    #[inline]
    pub(super) fn store(room: [Room; 2], bytes: &[u8]) {
        debug_assert_eq!(room[0].1 + room[1].1, bytes.len());
        let mut from = bytes.as_ptr();
        for (target, len) in room {
            // SAFETY: the room stays inside the ring, which is mapped; it is ours to write, beyond
            // what is published as well. `from` walks over `bytes`, whose length the parts add up
            // to.
            unsafe {
                toehold_copy::to_shared(from, target, len);
                from = from.add(len);
            }
        }
    }

    /// Stores bytes of the remote's stream at their offset. False when there is no room.
    #[cfg(test)]
    pub(super) fn place(&self, offset: u64, bytes: &[u8]) -> bool {
        let room = self.room_for(offset, bytes.len());
        room.map(|room| Self::store(room, bytes)).is_some()
    }

    /// The room for the remote's stream from `offset` on.
    pub(super) fn room(&self, offset: u64) -> Option<[Room; 2]> {
        let position = offset.wrapping_sub(self.base_out);
        self.end().sender().credit_as_it_is().ok()?;
        let limit = self.entry.tx_head_seen.own() + self.window_bytes();
        let is_ours = (self.entry.tx_ring.own()..limit).contains(&position);
        let len = is_ours.then(|| (limit - position) as usize)?;
        let ring = self.end().ring_out();
        Some(
            stretches(position, len, self.window_log2)
                .map(|(at, len)| (ring.wrapping_add(at), len)),
        )
    }

    /// Passes the stored bytes from stream offset `from` to `to`, published or not, to `each`.
    pub(super) fn placed(&self, from: u64, to: u64, mut each: impl FnMut(u64, &[u8])) {
        let mut buffer = [0u8; 4096];
        let mut at = from;
        while at < to {
            let len = (to - at).min(buffer.len() as u64) as usize;
            let mut target = buffer.as_mut_ptr();
            let position = at.wrapping_sub(self.base_out);
            for (place, part) in stretches(position, len, self.window_log2) {
                // SAFETY: inside the mapped ring; `buffer` has room for `len` bytes, which the
                // stretches add up to.
                unsafe {
                    toehold_copy::from_shared(self.end().ring_out().add(place), target, part);
                    target = target.add(part);
                }
            }
            each(at, &buffer[..len]);
            at += len as u64;
        }
    }

    /// The stream offset up to which the remote's stream is published.
    pub(super) fn published_out(&self) -> u64 {
        self.base_out.wrapping_add(self.entry.tx_ring.own())
    }

    /// Publishes the remote's stream up to `received`. True when bytes were published.
    pub(super) fn publish(&self, received: u64) -> bool {
        let len = received - self.published_out();
        if len > 0 {
            self.end().sender().publish(len as usize);
        }
        len > 0
    }

    /// The stream offset up to which the program has read.
    pub(super) fn consumed(&self) -> Result<u64, Fault> {
        self.end().sender().credit_as_it_is()?;
        Ok(self.base_out.wrapping_add(self.entry.tx_head_seen.own()))
    }

    /// True when our direction is a ring and the program, which has read up to `consumed`, has read
    /// a part of it. Then it has read everything before the ring, too.
    pub(super) fn is_being_read(&self, consumed: u64) -> bool {
        self.is_up() && consumed > self.out_begins
    }

    /// Asks the program to ring when it has read more, if at least `unread_min` of the `received`
    /// bytes are unread.
    pub(super) fn want_credit(&self, received: u64, unread_min: u64) -> Result<Credit, Fault> {
        let end = self.end();
        end.ask_for_credit(|| Ok(received - self.consumed()? >= unread_min))
    }

    /// Takes that request back.
    pub(super) fn stop_wanting(&self) {
        self.end().stop_asking();
    }

    /// After something was published, or credit given: true when the program has to be rung.
    pub(super) fn must_ring<'b>(
        &self,
        bitmap: impl FnOnce(u32) -> Option<&'b ReadyBitmap>,
    ) -> Result<bool, Fault> {
        doorbell::must_ring(&self.end().theirs().wake, bitmap)
    }

    /// Rings the program by `give` ([`End::ring`]).
    pub(super) fn ring(&self, give: impl FnOnce() -> u64) -> bool {
        self.end().ring(give)
    }

    /// The next step of the program's direction. `published` bytes of its stream are known, `got`
    /// bytes came on the carrier, and an earlier look at the carrier found `seen`.
    pub(super) fn next(&mut self, published: u64, got: u64, seen: Carrier) -> Result<Next, Fault> {
        self.entry.rx_carrier.store(got, Ordering::Relaxed);
        let was_on_carrier = self.end().rx_mode() == Mode::Carrier;
        let known = match was_on_carrier {
            true => 0,
            false => published.saturating_sub(self.published(0)),
        };
        let next = self.end().next(seen, known)?;
        if was_on_carrier && self.end().rx_mode() != Mode::Carrier {
            self.base_in = published.wrapping_sub(self.entry.rx_ring.own());
            self.ring_begins = published;
        }
        Ok(next)
    }

    /// The program's stream as far as it is published in the ring, which has `len` bytes that were
    /// not given back.
    pub(super) fn published(&self, len: u64) -> u64 {
        let end = self.entry.rx_ring.own().wrapping_add(len);
        self.base_in.wrapping_add(end)
    }

    /// Gives acknowledged bytes back as credit. True when the program may be waiting for room.
    ///
    /// A ring grows only when its sender finds it empty (`Sender::grow`), but this one empties at
    /// the remote's pace. So while the program waits for room in a small ring, credit is given back
    /// only when the whole ring is free.
    pub(super) fn give_back(&self, acknowledged: u64) -> Result<bool, Fault> {
        let end = self.end();
        if end.rx_mode() != Mode::Ring {
            return Ok(false);
        }
        let filled = end.receiver().available()?;
        let head = self.entry.rx_ring.own();
        let done = acknowledged
            .saturating_sub(self.base_in.wrapping_add(head))
            .min(filled.len);
        let wants = end.is_asked_for_credit();
        let is_growing = filled.capacity_log2 < self.sending_log2 && wants;
        if done == 0 || (is_growing && done < filled.len) {
            return Ok(false);
        }
        let crossed = end.receiver().consume(done as usize, filled);
        Ok((crossed || is_growing) && end.is_asked_for_credit())
    }

    /// Published bytes in the ring from stream offset `offset` on, in up to two stretches. Bytes
    /// before the ring's base are not included.
    pub(super) fn sent(&self, offset: u64, len: usize) -> [Part; 2] {
        let capacity_log2 = match self.end().receiver().available() {
            Ok(filled) if filled.len > 0 => filled.capacity_log2,
            // The program has overwritten the word, which the next look will notice.
            _ => self.sending_log2,
        };
        let len = len.min(1 << capacity_log2);
        let parts = stretches(offset.wrapping_sub(self.base_in), len, capacity_log2);
        parts.map(|(at, len)| (self.end().ring_in().wrapping_add(at).cast_const(), len))
    }

    /// Stream offset from which the program's bytes went into the ring; `None` when no bytes can be
    /// read there.
    pub(super) fn ring_begins(&self) -> Option<u64> {
        (self.end().rx_mode() == Mode::Ring).then_some(self.ring_begins)
    }

    /// True when either side has left the channel, or wants to.
    pub(super) fn is_over(&self) -> bool {
        self.is_recalled() || self.end().refusal() == Refusal::Over
    }

    /// Leaves the channel once both directions are on the carrier, and both ends know. True when
    /// the program has left, too, so that nobody uses the region any more.
    pub(super) fn leave(&self) -> Result<bool, Fault> {
        self.refuse();
        let end = self.end();
        Ok(end.try_leave()? && end.has_peer_left())
    }

    /// Makes us leave the channel, as when an operator asks for the region.
    pub(super) fn recall(&self) {
        // Release pairs with the Acquire load in `is_recalled`.
        self.entry.command.store(COMMAND_EVICT, Ordering::Release);
    }

    /// True when the region was requested, by an operator or because regions are short.
    fn is_recalled(&self) -> bool {
        // Acquire pairs with the Release stores in `recall` and `tables::swap_command`.
        let command = self.entry.command.load(Ordering::Acquire);
        command == COMMAND_DETACH || is_eviction(command)
    }

    /// Asks the program to keep its direction on the carrier, and to leave.
    pub(super) fn refuse(&self) {
        self.end().refuse(Refusal::Over);
    }

    /// True when the program's end was in order, though the carrier may report a reset
    /// ([`End::is_reset_by_doorbell`]). We have sent `carrier_bytes` on the carrier.
    pub(super) fn is_reset_by_doorbell(&self, carrier_bytes: u64, may_be_killed: bool) -> bool {
        self.entry
            .tx_carrier
            .store(carrier_bytes, Ordering::Relaxed);
        self.end().is_reset_by_doorbell(may_be_killed)
    }

    /// The carrier's turns.
    pub(super) fn turns(&self) -> Carrying<'_> {
        self.end().turns()
    }

    /// True when both directions are rings and stay there, and both rings are empty. Then the
    /// carrier can serve another connection once both ends have closed this one.
    pub(super) fn is_between_turns(&self) -> bool {
        let end = self.end();
        let abandoned = &end.theirs().wake.abandoned;
        self.is_in_rings()
            && self.entry.command.load(Ordering::Relaxed) == 0
            && abandoned.load(Ordering::Relaxed).is(0)
            && end.are_rings_empty()
    }

    /// True when both directions are rings, and neither side refuses that.
    pub(super) fn is_in_rings(&self) -> bool {
        let end = self.end();
        self.is_up()
            && end.rx_mode() == Mode::Ring
            && end.refusal() == Refusal::None
            && !end.records_pending()
            && end.all_acknowledged() == Ok(true)
    }

    /// Says that we notice everything that the program does in the turn, so that it need not ring.
    pub(super) fn note_seen(&self, turn: Turn) {
        self.turns().note_seen(turn);
    }

    /// As [`Endpoint::begin_turn`], on a carrier that we have claimed. Until the program accepts,
    /// only we write the words of both sides.
    pub(super) fn begin_claimed(&mut self, turn: Turn, logs: (u32, u32)) {
        self.end().reopen();
        self.begin_turn(turn, logs);
    }

    /// The program's ring may grow up to that capacity, as a power of two.
    pub(super) fn bound_sending(&mut self, sending_log2: u32) {
        self.sending_log2 = sending_log2;
    }

    /// Another connection begins on the carrier: our ring gets the first capacity, and the
    /// program's ring grows up to the second.
    pub(super) fn begin_turn(&mut self, turn: Turn, (window_log2, sending_log2): (u32, u32)) {
        self.note_seen(turn);
        self.base_out = 0u64.wrapping_sub(self.entry.tx_ring.own());
        self.out_begins = 0;
        self.base_in = 0u64.wrapping_sub(self.entry.rx_ring.own());
        self.ring_begins = 0;
        self.sending_log2 = sending_log2;
        self.is_widened = false;
        self.set_window(window_log2.clamp(FIRST_WINDOW_LOG2, LONG_WINDOW_LOG2));
        self.wanted_log2 = self.window_log2;
    }

    /// The remote has finished in this turn, and all its bytes are in the ring. The program finds
    /// the end there, because the carrier does not end. The caller then notifies the program.
    pub(super) fn end_turn(&self, turn: Turn) {
        self.end().end_turn(turn);
    }

    /// True when the program has closed in this turn: all its bytes are in the ring.
    pub(super) fn is_turn_ended(&self, turn: Turn) -> bool {
        self.turns().is_ended_by_peer(turn)
    }

    /// True when the program has closed the turn, or is about to.
    pub(super) fn is_turn_ending(&self) -> bool {
        (self.end().theirs().wake.closed.load(SIDE_ACQUIRE)).has(CLOSED_TURN)
    }

    /// True when no extra doorbell is needed to tell the program that we have ended the turn.
    pub(super) fn is_end_heard(&self, turn: Turn) -> bool {
        self.end().is_end_heard(turn)
    }

    /// Encodes our bytes, or the end of our turn, that the program has not taken. The word changes
    /// when the program takes bytes; 0 means none.
    pub(super) fn untaken(&self, has_ended: bool) -> u64 {
        let sent = self.entry.tx_ring.own();
        let head = &self.end().theirs().consume.head;
        let is_taken = head.load(Ordering::Relaxed).is(sent);
        match (is_taken, has_ended) {
            (true, false) => 0,
            (_, has_ended) => (sent << 1 | u64::from(has_ended)) + 1,
        }
    }

    /// Announces that the connection is over for us, so that a program that is awake looks.
    pub(super) fn close(&self) {
        self.end().close(false);
    }
}

#[cfg(test)]
pub(super) mod tests;
