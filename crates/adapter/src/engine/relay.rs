//! The bytes of one connection in both directions: on the carrier, or in the channel beside it.

use std::io::{self, IoSlice, IoSliceMut};

use toehold_channel::doorbell::are_doorbells;
use toehold_channel::ring::Fault;
use toehold_stream::credit::Credit;
use toehold_stream::express::Turn;
use toehold_stream::next::{Carrier as Seen, Next};
use toehold_stream::worth;
use toehold_tcp::{Engine, Instant};

use super::carrier::Reset;
use super::carriers::Reusable;
use super::channels::{ChannelKey, Channels};
use super::endpoint::Endpoint;
use super::flow::{ChannelState, Flow, Opener, ProgramEnding, RemoteEnding, Stage, Window};
use super::memory::Streams;
use super::rings::{RING_BYTES_MAX, RING_BYTES_MIN, STEP_LOG2};
use super::sys;
use super::tcp_config::{self, PROOF_OF_READING_BYTES, RECEIVE_BYTES};
use crate::diag::Diag;

/// Bytes after which the number of bytes in flight is computed again.
const BYTES_BETWEEN_LOOKS: u64 = 1 << 20;
/// The urgent byte.
const ANSWER_BYTES: u64 = 1;
/// Reads from one carrier before others have their turn.
const STEPS_MAX: u32 = 64;

/// The surroundings that a connection's step works with.
pub(super) struct StepContext<'a> {
    pub(super) now: Instant,
    pub(super) engine: &'a mut Engine,
    pub(super) streams: &'a mut Streams,
    pub(super) channels: &'a mut Channels,
    /// The step has reached its limit with work left, for which no event will come.
    pub(super) is_unfinished: bool,
}

impl<'a> StepContext<'a> {
    pub(super) fn new(
        now: Instant,
        engine: &'a mut Engine,
        streams: &'a mut Streams,
        channels: &'a mut Channels,
    ) -> StepContext<'a> {
        StepContext {
            now,
            engine,
            streams,
            channels,
            is_unfinished: false,
        }
    }
}

/// The state of the remote's bytes after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// All bytes that have arrived are available to the program, even if the engine ends.
    Complete,
    /// Some bytes still wait here for room or for a copy.
    Pending,
}

impl Delivery {
    fn complete_if(is_complete: bool) -> Delivery {
        match is_complete {
            true => Delivery::Complete,
            false => Delivery::Pending,
        }
    }
}

/// The program is gone, or wrote invalid words: its connection ends.
#[derive(Debug)]
pub(super) struct Gone;

impl From<io::Error> for Gone {
    fn from(_: io::Error) -> Gone {
        Gone
    }
}

impl From<Fault> for Gone {
    fn from(_: Fault) -> Gone {
        Gone
    }
}

impl Flow {
    /// The remote's bytes, to the program.
    pub(super) fn deliver(&mut self, cx: &mut StepContext<'_>) -> Result<Delivery, Gone> {
        let before = self.taken;
        self.received = cx.streams.copying.copied(self.id, self.arrived);
        let stays_down = self.program.has_finished();
        let turn = self.serving.map(|serving| serving.turn);
        let endpoint = cx.streams.endpoint(self.id);
        let (is_up, goes_down) = endpoint.map_or((false, false), |endpoint| {
            let is_up = endpoint.is_up();
            // A program that has closed by the turn's end needs no more bytes, and its carrier
            // stays unchanged.
            let has_ended = turn.is_some() && endpoint.is_turn_ending();
            let is_unwanted = stays_down || endpoint.is_unwanted() || self.is_unseen(endpoint);
            (is_up, is_up && is_unwanted && !has_ended)
        });
        if goes_down {
            self.go_down(cx)?;
        }
        let delivery = if is_up && !goes_down {
            self.deliver_by_ring(cx)?
        } else {
            let delivery = self.deliver_by_carrier(cx)?;
            if delivery == Delivery::Complete {
                self.try_up(cx)?;
            }
            delivery
        };
        if self.taken > before && self.closed.is_none() {
            // It fails only for a connection that has closed, of which an event is on its way.
            let _ = cx.engine.take(self.id, self.taken);
            self.bound_window(cx);
        }
        if self.remote == RemoteEnding::Finished && delivery == Delivery::Complete {
            self.send_end(cx)?;
        }
        Ok(delivery)
    }

    /// Tells the program that the remote has finished: by the turn's end if possible, otherwise by
    /// the carrier's end.
    fn send_end(&mut self, cx: &mut StepContext<'_>) -> Result<(), Gone> {
        let endpoint = cx.streams.endpoint(self.id);
        let (Some(serving), Some(endpoint)) = (self.serving, endpoint) else {
            return self.end_carrier();
        };
        if !endpoint.is_in_rings() {
            self.serves_no_more();
            return self.end_carrier();
        }
        endpoint.end_turn(serving.turn);
        self.remote = RemoteEnding::ToldByTurn;
        let is_heard = endpoint.is_end_heard(serving.turn);
        let is_queued = self.stage == Stage::Queued;
        self.notify(cx)?;
        if !is_heard && !is_queued {
            // The carrier does not end, so a program that waits past the library must be rung.
            self.ring(cx.streams);
        }
        Ok(())
    }

    fn end_carrier(&mut self) -> Result<(), Gone> {
        self.remote = RemoteEnding::ToldByCarrier;
        Ok(self.carrier.end_sending()?)
    }

    /// Moves the remote's stream to the channel before its first byte: true when it is there.
    pub(super) fn goes_up_at_once(&mut self, cx: &mut StepContext<'_>) -> bool {
        let is_up = matches!(self.go_up(cx, 0), Ok(true));
        if is_up && let Some(endpoint) = cx.streams.endpoint(self.id) {
            endpoint.note_seen(Turn::FIRST);
        }
        is_up
    }

    /// Rings if a turn's program was not seen waiting, and two successive looks find the same bytes
    /// untaken. False when no further look is needed.
    pub(super) fn look_at_turn(&mut self, streams: &mut Streams) -> bool {
        let endpoint = streams.endpoint(self.id);
        let (Some(serving), Some(endpoint)) = (&mut self.serving, endpoint) else {
            return false;
        };
        let turns = endpoint.turns();
        if !endpoint.is_up() || turns.is_peer_seen(serving.turn) || self.program.has_closed() {
            return false;
        }
        let untaken = match turns.is_waiting(serving.turn) {
            // No program has accepted it yet.
            true => 0,
            false => endpoint.untaken(self.remote == RemoteEnding::ToldByTurn),
        };
        let is_same = untaken != 0 && untaken == serving.untaken;
        let rings = is_same && !serving.is_rung;
        serving.is_rung = is_same;
        serving.was_rung |= rings;
        serving.untaken = untaken;
        if rings {
            self.ring(streams);
        }
        true
    }

    /// True when the program seems to wait past the library: in this turn it had to be rung for
    /// bytes that it did not take, and it was not seen waiting. Its next bytes go by the carrier,
    /// where the kernel wakes the program at once. A turn whose end was told goes on in the ring.
    fn is_unseen(&self, endpoint: &Endpoint) -> bool {
        self.serving
            .is_some_and(|serving| serving.was_rung && !endpoint.turns().is_peer_seen(serving.turn))
            && self.remote != RemoteEnding::ToldByTurn
    }

    /// Sets the limit of the receive window, if it changes.
    fn bound_window(&mut self, cx: &mut StepContext<'_>) {
        if cx.streams.take_cramped(self.id) {
            return self.narrow_window(cx);
        }
        match self.window {
            Window::First if self.has_shown_reading(cx) => self.widen_window(cx),
            Window::Budget(bytes) => self.leave_budget(cx, bytes << STEP_LOG2),
            Window::First | Window::Path => {}
        }
    }

    /// True when the program certainly reads. On the carrier it must have taken more than the
    /// buffers on the way hold. From its ring a program takes only what it reads.
    fn has_shown_reading(&self, cx: &mut StepContext<'_>) -> bool {
        if self.taken < u64::from(RECEIVE_BYTES) {
            return false;
        }
        let endpoint = cx.streams.endpoint(self.id);
        self.taken >= PROOF_OF_READING_BYTES
            || endpoint.is_some_and(|endpoint| endpoint.is_being_read(self.taken))
    }

    /// Makes a window larger that the budget has limited, if there is room now.
    #[cold]
    fn leave_budget(&mut self, cx: &mut StepContext<'_>, larger: usize) {
        if self.is_up(cx) {
            self.widen_window(cx);
        } else if (cx.streams.rings()).has_room_to_spare(larger, Some(self.holder.client)) {
            self.follow_budget(cx, larger);
        }
    }

    /// Whether the remote's stream goes to the program's ring. Such bytes need none of our memory,
    /// and the window must not be smaller than the ring: the program rings only when it crosses
    /// half of the ring, so a smaller window would stay closed for ever.
    pub(super) fn is_up(&self, cx: &mut StepContext<'_>) -> bool {
        let endpoint = cx.streams.endpoint(self.id);
        endpoint.is_some_and(|endpoint| endpoint.is_up())
    }

    /// If the window promises more than the budget has room for, segments are lost, and losses at
    /// the end of a flight cost a timeout. So the window becomes as small as the ring. A stream
    /// that has moved to a channel since then keeps the channel's window.
    #[cold]
    fn narrow_window(&mut self, cx: &mut StepContext<'_>) {
        if self.is_up(cx) {
            return;
        }
        let bytes = cx.streams.receiving_bytes(self.id).max(RING_BYTES_MIN);
        if self.window.is_of_reader() {
            return self.follow_budget(cx, bytes);
        }
        // It fails only for a connection that has closed, of which an event is on its way.
        let _ = cx.engine.bound_window(cx.now, self.id, 0, bytes as u32);
    }

    /// The budget has room for a ring of this many bytes again.
    #[cold]
    fn follow_budget(&mut self, cx: &mut StepContext<'_>, bytes: usize) {
        if bytes >= RING_BYTES_MAX {
            return self.widen_window(cx);
        }
        self.window = Window::Budget(bytes);
        let most = (bytes as u32).min(self.window_bytes_max);
        // It fails only for a connection that has closed, of which an event is on its way.
        let _ = cx.engine.bound_window(cx.now, self.id, 0, most);
    }

    /// The program reads: from now on its window may grow as far as the path needs.
    #[cold]
    fn widen_window(&mut self, cx: &mut StepContext<'_>) {
        self.window = Window::Path;
        let Some(info) = cx.engine.info(self.id) else {
            return;
        };
        let most = match cx.streams.endpoint(self.id) {
            // A window is not larger than the ring to which the stream may move. A remote without
            // window scaling cannot fill half of a large ring, and then the program would never
            // ring.
            Some(endpoint) => {
                if info.window_scales.is_some() {
                    endpoint.want_window(tcp_config::window_log2(&info));
                }
                endpoint.window_bytes() as u32
            }
            None => tcp_config::window_bytes(&info, self.window_bytes_max),
        };
        let _ = cx.engine.bound_window(cx.now, self.id, 0, most);
    }

    fn deliver_by_carrier(&mut self, cx: &mut StepContext<'_>) -> io::Result<Delivery> {
        while self.carrier.is_writable() && self.taken < self.received {
            let parts = cx.streams.arrived(self.id, self.received);
            match self.carrier.write(&parts.map(IoSlice::new))? {
                Some(count) => {
                    self.taken += count as u64;
                    self.calls += 1;
                    cx.streams.take(self.id, self.taken);
                }
                None => cx.streams.set_stuck(self.id, true),
            }
        }
        if self.carrier.is_writable() {
            cx.streams.set_stuck(self.id, false);
        }
        Ok(Delivery::complete_if(self.taken == self.arrived))
    }

    fn deliver_by_ring(&mut self, cx: &mut StepContext<'_>) -> Result<Delivery, Gone> {
        let Some(endpoint) = cx.streams.endpoint(self.id) else {
            return Ok(Delivery::Pending);
        };
        if endpoint.take_widened() {
            let window = endpoint.window_bytes() as u32;
            let _ = cx.engine.bound_window(cx.now, self.id, window, window);
        }
        let has_news = endpoint.publish(self.received);
        let mut is_deaf = false;
        // A reader rings when it crosses half of a ring.
        let unread_min = endpoint.window_bytes() / 2;
        if self.received - endpoint.consumed()? >= unread_min {
            let credit = endpoint.want_credit(self.received, unread_min)?;
            is_deaf = credit == Credit::Unreachable;
        } else {
            endpoint.stop_wanting();
        }
        let taken = endpoint.consumed()?;
        self.taken = taken;
        cx.streams.take(self.id, taken);
        if has_news {
            self.notify(cx)?;
        }
        if is_deaf {
            self.go_down(cx)?;
            return Ok(Delivery::complete_if(self.taken == self.arrived));
        }
        Ok(Delivery::complete_if(self.received == self.arrived))
    }

    /// Moves the remote's stream to the channel, if that is possible now.
    fn try_up(&mut self, cx: &mut StepContext<'_>) -> Result<(), Gone> {
        let is_early = cx.streams.has_early(self.id, self.received);
        let endpoint = cx.streams.endpoint(self.id);
        let is_unseen = endpoint.is_some_and(|endpoint| self.is_unseen(endpoint));
        if !self.is_over() && !is_early && !is_unseen {
            self.go_up(cx, self.received)?;
        }
        Ok(())
    }

    /// Whether one of the streams has ended.
    fn is_over(&self) -> bool {
        self.remote.has_finished() || self.program.has_finished() || self.closed.is_some()
    }

    /// Moves the remote's stream from `next` on to the channel, if there is one that wants it: true
    /// when it did.
    fn go_up(&self, cx: &mut StepContext<'_>, next: u64) -> Result<bool, Gone> {
        let endpoint = cx.streams.endpoint(self.id);
        let endpoint = endpoint.filter(|endpoint| !endpoint.is_unwanted());
        if let Some(endpoint) = endpoint
            && endpoint.try_up(next, self.carrier.sent)?
        {
            // The program does not ring before it has read half of the ring. It fails only for a
            // connection that has closed, of which an event is on its way.
            let window = endpoint.window_bytes() as u32;
            let _ = cx.engine.bound_window(cx.now, self.id, window, window);
            return Ok(true);
        }
        Ok(false)
    }

    /// Moves the remote's stream back to the carrier: all unpublished bytes, and those that the
    /// program asks for again. (A program that goes back to the kernel may no longer look at its
    /// ring.)
    ///
    /// An end that the turn has told must be on the carrier when the program looks for it there. So
    /// the carrier ends before the program learns of the switch, unless bytes have to follow.
    fn go_down(&mut self, cx: &mut StepContext<'_>) -> Result<(), Gone> {
        let is_open = self.is_carrier_open();
        let Some(endpoint) = cx.streams.endpoint(self.id) else {
            return Ok(());
        };
        let is_told = self.remote == RemoteEnding::ToldByTurn;
        let ends_carrier = is_told && endpoint.forbid_resend();
        let needed_from = endpoint.go_down(|must_ring| {
            if must_ring && is_open {
                let _ = endpoint.ring(|| self.carrier.ring());
            }
            if ends_carrier {
                // It fails only for a carrier that has ended.
                let _ = self.carrier.end_sending();
            }
            self.carrier.sent
        })?;
        // Unread bytes in the ring are in the program's memory. Our window counts only the bytes
        // after them.
        self.taken = needed_from;
        cx.streams.fetch_from(self.id, needed_from);
        // Copies that were under way are over.
        self.received = self.arrived;
        cx.is_unfinished |= self.received > needed_from;
        if ends_carrier {
            self.remote = RemoteEnding::ToldByCarrier;
        } else if is_told {
            // The carrier ends behind the bytes that the program has asked for.
            self.remote = RemoteEnding::Finished;
            cx.is_unfinished = true;
        }
        Ok(())
    }

    /// The program's bytes, to the engine.
    pub(super) fn collect(&mut self, cx: &mut StepContext<'_>) -> Result<(), Gone> {
        let before = self.published;
        let was_finished = self.program.has_finished();
        let result = self.give_back(cx).and_then(|()| self.take_in(cx));
        if self.published > before {
            // As above: a closed connection will report that by an event.
            let _ = cx.engine.publish(self.id, self.published);
        }
        if self.program.has_finished() && !was_finished {
            let _ = cx.engine.finish(cx.now, self.id);
            if !self.remote.has_finished() && !self.program.has_closed() {
                // The program has closed or still reads, and the remote may never finish.
                self.held_at = Some(cx.now);
            }
        }
        result
    }

    /// The program has reset its carrier. With a kernel connection, the bytes that it sent before
    /// would already be under way, ahead of the reset. So would its end.
    pub(super) fn collect_last_words(&mut self, cx: &mut StepContext<'_>, reset: Reset) {
        let before = self.program;
        self.carrier.note_readable();
        // If it also wrote invalid words, there are no more bytes to take.
        let _ = self.take_in(cx);
        let _ = cx.engine.publish(self.id, self.published);
        if reset == Reset::AfterEnd && !before.has_finished() {
            let _ = cx.engine.finish(cx.now, self.id);
        }
        // A reset also looks like an end.
        self.program = before;
    }

    /// The program is gone, by a reset of the carrier or by its own words. False when it means a
    /// reset; true when it had closed in order before, or was killed with no bytes unread. The
    /// bytes that it published before must still be sent.
    pub(super) fn depart(&mut self, cx: &mut StepContext<'_>, is_reset: bool) -> bool {
        let (published, got, sent) = (self.published, self.carrier.got, self.carrier.sent);
        let Some(endpoint) = cx
            .streams
            .endpoint(self.id)
            .filter(|endpoint| endpoint.is_reset_by_doorbell(sent, is_reset))
        else {
            return false;
        };
        if let Ok(Next::Ring(filled)) = endpoint.next(published, got, Seen::Unseen) {
            self.published = endpoint.published(filled.len);
            let _ = cx.engine.publish(self.id, self.published);
        }
        self.note_last_taken(cx);
        if !self.program.has_finished() {
            let _ = cx.engine.finish(cx.now, self.id);
        }
        self.program = match self.program.has_closed() {
            true => ProgramEnding::LeftCarrier,
            false => ProgramEnding::Gone,
        };
        true
    }

    /// The program has reset its carrier. True when the reset only means that the program has not
    /// read the answer to its `connect`: the urgent byte was unread when it closed or ended. That
    /// counts as an end in order, after the bytes of an opening message. (A program that aborts
    /// with `SO_LINGER` before the remote has sent anything cannot be distinguished from this.)
    pub(super) fn departs_unheard(&mut self, cx: &mut StepContext<'_>) -> bool {
        let is_unheard = self.opens_by_message && self.carrier.sent == ANSWER_BYTES;
        if is_unheard {
            if !self.program.has_finished() {
                let _ = cx.engine.finish(cx.now, self.id);
            }
            self.program = ProgramEnding::Gone;
        }
        is_unheard
    }

    /// Whether the program has finished, by the carrier's end, and the remote has not.
    pub(super) fn is_half_closed(&self) -> bool {
        self.program == ProgramEnding::Finished
            && !self.remote.has_finished()
            && self.closed.is_none()
    }

    /// Asks the kernel whether a program still has its end of the carrier open, after it has
    /// finished. False when it has closed in order: the remote may still be reading.
    pub(super) fn look_for_program(&mut self, cx: &mut StepContext<'_>, diag: &Diag) -> bool {
        let ends = self.carrier.ends().ok();
        let is_held = ends.and_then(|(ours, theirs)| diag.is_held(theirs, ours));
        match is_held {
            None => true,
            Some(true) => {
                self.held_at = Some(cx.now);
                true
            }
            Some(false) => {
                if !self.depart(cx, true) {
                    self.program = ProgramEnding::Gone;
                }
                false
            }
        }
    }

    /// The carrier was reset. True when the program had closed in order and the kernel has given up
    /// its socket, as it does after a while. The remote may still be reading. A program that has
    /// had its socket open until now has reset it.
    pub(super) fn was_closed(&mut self, cx: &StepContext<'_>) -> bool {
        let limit = toehold_tcp::Duration::from_secs(sys::fin_timeout_seconds());
        let is_it = self.program == ProgramEnding::Finished
            && (self.held_at).is_some_and(|held_at| cx.now.since(held_at) >= limit);
        if is_it {
            self.program = ProgramEnding::Gone;
        }
        is_it
    }

    /// The program has closed in order, but its carrier goes on without the connection, so no end
    /// comes on it.
    pub(super) fn depart_from_carrier(&mut self, cx: &mut StepContext<'_>) {
        self.note_last_taken(cx);
        self.program = ProgramEnding::LeftCarrier;
    }

    /// The program is gone: records how much it had read.
    fn note_last_taken(&mut self, cx: &mut StepContext<'_>) {
        let endpoint = cx.streams.endpoint(self.id);
        if let Some(Ok(taken)) = endpoint.map(|endpoint| endpoint.consumed()) {
            self.taken = taken.max(self.taken);
            // It fails only for a connection that has closed, of which an event is on its way.
            let _ = cx.engine.take(self.id, self.taken);
        }
    }

    /// The channel beside the carrier of a connection that is over, if both can serve another one.
    pub(super) fn free_channel(&self, streams: &mut Streams) -> Option<Endpoint> {
        let has_left = self.program == ProgramEnding::LeftCarrier && self.carrier.is_sound();
        let is_known = self.serving.is_some() && self.beside.channel().is_some();
        let endpoint = streams.endpoint(self.id)?;
        let is_free = has_left
            && is_known
            && endpoint.give_back(self.published).is_ok()
            && endpoint.is_between_turns();
        is_free.then(|| streams.take_endpoint(self.id)).flatten()
    }

    /// Detaches the carrier from the connection, with the channel from [`Flow::free_channel`].
    pub(super) fn into_reusable(self, endpoint: Endpoint) -> Option<Reusable> {
        let (channel, serving) = (self.beside.channel()?, self.serving?);
        if self.remote != RemoteEnding::ToldByTurn {
            endpoint.end_turn(serving.turn);
        }
        Some(Reusable {
            carrier: self.carrier,
            endpoint,
            channel,
            serving,
        })
    }

    pub(super) fn give_back(&mut self, cx: &mut StepContext<'_>) -> Result<(), Gone> {
        let acknowledged = self.acknowledged;
        if acknowledged == self.published {
            cx.streams.sent_all(self.id);
        }
        let endpoint = cx.streams.endpoint(self.id);
        let wants = endpoint.map_or(Ok(false), |endpoint| endpoint.give_back(acknowledged))?;
        if wants { self.notify(cx) } else { Ok(()) }
    }

    fn take_in(&mut self, cx: &mut StepContext<'_>) -> Result<(), Gone> {
        // After the carrier's end nothing more can come on it.
        let mut seen = Seen::Unseen;
        for _ in 0..STEPS_MAX {
            if self.program.has_finished() {
                return Ok(());
            }
            if !self.carrier.is_readable() && seen == Seen::Unseen {
                seen = Seen::Empty;
            }
            let (published, got) = (self.published, self.carrier.got);
            let turn = self.serving.map(|serving| serving.turn);
            let next = match cx.streams.endpoint(self.id) {
                Some(endpoint) => {
                    // Read before the look at the ring, so that all bytes published before the end
                    // are seen.
                    let has_ended = turn.is_some_and(|turn| endpoint.is_turn_ended(turn));
                    match endpoint.next(published, got, seen)? {
                        Next::Wait | Next::Look | Next::Doorbells { .. } if has_ended => {
                            self.program = ProgramEnding::Closed;
                            return Ok(());
                        }
                        next => next,
                    }
                }
                None if self.carrier.is_readable() => Next::Data { max: u64::MAX },
                None => Next::Wait,
            };
            let seen_before = std::mem::replace(&mut seen, Seen::Unseen);
            match next {
                Next::Wait => return Ok(()),
                Next::Look => seen = self.carrier.look()?,
                Next::End => self.program = ProgramEnding::Finished,
                Next::Cut => return Err(Gone),
                Next::Ring(filled) => {
                    let Some(endpoint) = cx.streams.endpoint(self.id) else {
                        return Ok(());
                    };
                    self.published = endpoint.published(filled.len);
                    seen = seen_before;
                }
                Next::Doorbells { max } => {
                    let mut scratch = [0u8; 256];
                    let len = scratch.len().min(max as usize);
                    match (self.carrier).read(&mut [IoSliceMut::new(&mut scratch[..len])])? {
                        None => return Ok(()),
                        Some(0) => seen = Seen::Ended,
                        Some(count) if are_doorbells(&scratch[..count]) => {}
                        // The program has written past its library. The position of these bytes in
                        // the stream is lost.
                        Some(_) => return Err(Gone),
                    }
                }
                Next::Data { max } => {
                    let (end, done) = (self.published, self.acknowledged);
                    let mut parts = cx.streams.free_to_send(self.id, end, done, max);
                    if parts[0].is_empty() {
                        if !self.grow_to_send(cx) {
                            return Ok(());
                        }
                        parts = cx.streams.free_to_send(self.id, end, done, max);
                    }
                    let want = (parts[0].len() + parts[1].len()) as u64;
                    match self.carrier.read(&mut parts.map(IoSliceMut::new))? {
                        None => return Ok(()),
                        Some(0) => self.program = ProgramEnding::Finished,
                        Some(count) => {
                            self.published += count as u64;
                            self.calls += 1;
                            // With a channel the read was limited to the bytes that the look had
                            // found.
                            if cx.streams.endpoint(self.id).is_none() && (count as u64) < want {
                                self.carrier.note_short_read();
                            }
                        }
                    }
                }
            }
        }
        // Other connections have their turn.
        cx.is_unfinished = true;
        Ok(())
    }

    /// Makes a full send ring larger if the remote would take more; false otherwise. As on Linux
    /// (`tcp_sndbuf_expand`), up to twice the congestion window is kept for the remote.
    #[cold]
    fn grow_to_send(&self, cx: &mut StepContext<'_>) -> bool {
        let Some(info) = cx.engine.info(self.id) else {
            return false;
        };
        let wanted = 2 * info.congestion_window as usize;
        let most = tcp_config::window_bytes(&info, self.window_bytes_max);
        let bytes_max = wanted.min(most as usize);
        let held = (self.acknowledged, self.published);
        cx.streams.grow_to_send(self.id, held, bytes_max)
    }

    /// Makes the program notice news or room in a ring, or a connection in its queue.
    pub(super) fn notify(&mut self, cx: &mut StepContext<'_>) -> Result<(), Gone> {
        let Some(channel) = self.beside.channel() else {
            return Ok(());
        };
        let (pair, _) = channel.place;
        let channels = &*cx.channels;
        // A byte on a direction that is not a ring would be data. No program sleeps for a doorbell
        // there: see rule 3 of `toehold_stream::end`.
        let endpoint = cx
            .streams
            .endpoint(self.id)
            .filter(|endpoint| endpoint.is_up());
        let Some(endpoint) = endpoint else {
            return Ok(());
        };
        let must_ring = endpoint.must_ring(|bitmap| channels.their_bitmap(pair, bitmap))?;
        if must_ring && self.is_carrier_open() && !endpoint.ring(|| self.carrier.ring()) {
            // A silent program gets its news on the carrier.
            return self.go_down(cx);
        }
        Ok(())
    }

    /// Rings a program in a turn, unless the direction is not a ring or the program is silent.
    fn ring(&mut self, streams: &mut Streams) {
        let endpoint = streams.endpoint(self.id);
        if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.is_up())
            && self.is_carrier_open()
        {
            let _ = endpoint.ring(|| self.carrier.ring());
        }
    }

    /// False when the program was told of the remote's end by the carrier's.
    fn is_carrier_open(&self) -> bool {
        self.remote != RemoteEnding::ToldByCarrier
    }

    /// Asks for a channel once there has been some traffic; gives up a channel that is wanted back.
    pub(super) fn consider_channel(&mut self, cx: &mut StepContext<'_>) -> Result<(), Gone> {
        if self.program.has_departed() {
            return Ok(());
        }
        if self.acknowledged + self.taken >= self.moved + BYTES_BETWEEN_LOOKS {
            self.look_at_rate(cx);
        }
        let wants_channel = !self.is_over() && !self.outgrows_channel;
        if self.beside == ChannelState::Nothing && wants_channel && self.has_traffic() {
            // If the daemon is too busy, or the channel is wanted back later, as much traffic is
            // needed again before the next request.
            self.count_anew();
            if let Ok(ends) = self.carrier.ends() {
                let flow = self.id.index() as u32;
                let is_accepted = self.opener == Opener::Program;
                self.beside = ChannelState::asked(cx.channels.ask(flow, ends, is_accepted));
            }
        }
        let endpoint = cx
            .streams
            .endpoint(self.id)
            .filter(|endpoint| endpoint.is_over());
        if endpoint.map_or(Ok(false), |endpoint| endpoint.leave())? {
            self.leave_channel(cx.streams, cx.channels);
            if self.window == Window::Path {
                self.widen_window(cx);
            }
        }
        Ok(())
    }

    /// The channel that was asked for is there. A connection that has outgrown it meanwhile gives
    /// it back at once.
    pub(super) fn take_channel(
        &mut self,
        key: ChannelKey,
        endpoint: &mut Endpoint,
        engine: &mut Engine,
        now: Instant,
    ) {
        let is_of_reader = self.window.is_of_reader();
        let info = engine.info(self.id);
        let (window_log2, most_log2) = tcp_config::first_and_largest_log2(info, is_of_reader);
        let (_, slot) = key.place;
        endpoint.attach(slot, window_log2, most_log2);
        self.beside = ChannelState::Channel(key);
        if self.outgrows_channel {
            endpoint.recall();
        } else if is_of_reader {
            // A window is not larger than the ring to which the stream may move. This fails only
            // for a connection that does not exist.
            let _ = engine.bound_window(now, self.id, 0, 1 << window_log2);
        }
    }

    /// Estimates the bytes in flight from the rate. A connection with more bytes in flight than a
    /// channel holds is served by the carrier, whose rings may be as large as the largest window.
    #[cold]
    fn look_at_rate(&mut self, cx: &mut StepContext<'_>) {
        let moved = self.acknowledged + self.taken;
        let bytes = moved - std::mem::replace(&mut self.moved, moved);
        let span = cx.now.since(std::mem::replace(&mut self.moved_at, cx.now));
        let info = cx.engine.info(self.id);
        let outgrows = info.is_some_and(|info| tcp_config::outgrows_channel(&info, bytes, span));
        if outgrows && !self.outgrows_channel {
            self.outgrows_channel = true;
            if let Some(endpoint) = cx.streams.endpoint(self.id) {
                endpoint.recall();
                cx.is_unfinished = true;
            }
        }
    }

    /// Enough for a channel to be worth its memory.
    fn has_traffic(&self) -> bool {
        let bytes = self.published + self.taken - self.bytes_before;
        worth::OFFLOADED.is_reached(self.calls, bytes)
    }

    fn count_anew(&mut self) {
        self.calls = 0;
        self.bytes_before = self.published + self.taken;
    }

    /// The channel ends: its connection is over, or goes on by another carrier, without a channel
    /// at first.
    pub(super) fn drop_channel(&mut self, streams: &mut Streams, channels: &mut Channels) {
        if let Some((entry, place)) = self.part_from_channel(streams) {
            channels.withdraw(entry, place);
        }
    }

    /// Goes on without a channel, until there has been some traffic again.
    fn leave_channel(&mut self, streams: &mut Streams, channels: &mut Channels) {
        self.count_anew();
        if let Some((entry, place)) = self.part_from_channel(streams) {
            channels.leave(entry, place);
        }
    }

    /// Drops the endpoint and forgets the channel: its entry, and its place where it had one.
    fn part_from_channel(&mut self, streams: &mut Streams) -> Option<(u32, Option<(u64, u32)>)> {
        if let Some(endpoint) = streams.endpoint(self.id) {
            endpoint.refuse();
            streams.set_endpoint(self.id, None);
        }
        match std::mem::replace(&mut self.beside, ChannelState::Nothing) {
            ChannelState::Nothing => None,
            ChannelState::Asked { entry } => Some((entry, None)),
            ChannelState::Channel(key) => Some((key.entry, Some(key.place))),
        }
    }
}

#[cfg(test)]
mod tests;
