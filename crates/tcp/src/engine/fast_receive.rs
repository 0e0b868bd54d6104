//! The receive fast path: segments in order, over Ethernet and IP, with timestamps. All other
//! frames go through [`Engine::handle_any`]. IPv4 is tried first. IPv6 differs only in the
//! recognition of its headers and in the look-up of its connections.
//!
//! ```text
//!   common headers ──> whose? ──> payload and nothing else ────> its place, perhaps an ACK
//!                                 payload and something else ──> as any segment in order
//!                                 an acknowledgement ──────────> records of sent data are dropped
//! ```

use core::hint::black_box;

use super::deadlines::Deadlines;
use super::line::Line;
use super::table::{Ends, EndsV6};
use super::turns::Turns;
use super::{Engine, LastFlow, NO_SLOT, announce_progress};
use crate::connection::{
    AckWords, Acknowledge, Conditions, Connection, Context, Progressed, TCP_AT_V6, Template,
};
use crate::host::{ConnectionId, Memory, NoRoom};
use crate::position::Position;
use crate::state::State;
use crate::time::Instant;
use crate::wire::tcp::{Flags, Segment, Timestamps};
use crate::wire::{ethernet, ip, u16_at, u32_at};

/// From this many connections on, their hot cache lines and flow table entries no longer fit into a
/// core's own cache.
const CONNECTIONS_IN_CACHE: usize = 4_096;

/// The number of frames whose connections are looked up before the first frame is handled.
const LOOKUP_BATCH: usize = 32;

/// The link's knowledge about a frame that it has received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiveOffload {
    /// The TCP checksum was verified by the link, or the frame never left this machine.
    pub checksum_verified: bool,
}

/// Ethernet, IPv4 and TCP headers with a timestamp as the only option.
const V4_HEADERS_BYTES: usize = 66;
/// [`V4_HEADERS_BYTES`] with IPv6.
const V6_HEADERS_BYTES: usize = TCP_AT_V6 + Template::TCP_BYTES;

/// The headers of a frame that may take the fast path: Ethernet, IP, and TCP with a timestamp as
/// the only option.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Headers {
    /// IPv4 without options.
    #[default]
    V4,
    /// IPv6 without extension headers.
    V6,
}

impl Headers {
    /// The headers that a frame on the fast path would have, by its Ethernet type; nothing else of
    /// the frame is checked.
    #[inline]
    #[must_use]
    pub fn of(frame: &[u8]) -> Option<Headers> {
        match frame.get(12..14)? {
            [0x08, 0x00] => Some(Headers::V4),
            [0x86, 0xdd] => Some(Headers::V6),
            _ => None,
        }
    }

    /// Length of the headers in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Headers::V4 => V4_HEADERS_BYTES,
            Headers::V6 => V6_HEADERS_BYTES,
        }
    }
}

/// The TCP header of the fast path.
///
/// ```text
/// 0     4    8    12   14     16   18  20       24  28  32
/// |ports|seq |ack |80fl|window|csum|urg|01 1 8 a|TSv|TSe|
/// ```
type TcpHeader = [u8; Template::TCP_BYTES];

/// The TCP header of a frame with the layout of the fast path.
#[inline(always)]
fn tcp_of(h: &[u8; V4_HEADERS_BYTES]) -> &TcpHeader {
    h.last_chunk().expect("the headers are longer")
}

/// The place of a frame's payload: a byte of a connection's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The connection of the stream.
    pub connection: ConnectionId,
    /// The next byte of the stream.
    pub offset: u64,
    /// The headers of the connection's frames.
    pub headers: Headers,
}

/// The segment with header `h`, without its payload.
#[inline]
fn fast_path_segment(h: &TcpHeader) -> Segment<'static> {
    Segment {
        source_port: u16_at(h, 0),
        destination_port: u16_at(h, 2),
        seq: u32_at(h, 4),
        ack: u32_at(h, 8),
        flags: Flags(h[13].into()),
        window: u16_at(h, 14),
        timestamps: Some(Timestamps {
            value: u32_at(h, 24),
            echo: u32_at(h, 28),
        }),
        options: &[],
        has_bad_option: false,
        payload: &[],
    }
}

/// The words about our sending direction in header `h`.
#[inline(always)]
fn ack_words(h: &TcpHeader) -> AckWords {
    AckWords::of(*h[8..].first_chunk().expect("the header is longer"))
}

/// The payload length by the IPv4 header of a frame with the layout of the fast path.
#[inline(always)]
fn v4_payload_bytes(h: &[u8; V4_HEADERS_BYTES]) -> usize {
    usize::from(u16_at(h, 16)).wrapping_sub(V4_HEADERS_BYTES - ethernet::HEADER_BYTES)
}

/// [`v4_payload_bytes`] over IPv6.
#[inline(always)]
fn v6_payload_bytes(h: &[u8; V6_HEADERS_BYTES]) -> usize {
    usize::from(u16_at(h, 18)).wrapping_sub(Template::TCP_BYTES)
}

/// The endpoints of a frame with the layout of the fast path, over IPv4.
#[inline(always)]
fn fast_path_ends(h: &[u8; V4_HEADERS_BYTES]) -> Ends {
    Ends {
        local_and_ports: u64::from_ne_bytes(*h[30..].first_chunk().expect("the header is longer")),
        remote: u32::from_ne_bytes(*h[26..].first_chunk().expect("the header is longer")),
    }
}

/// The queues to which a connection can belong.
type Queues<'a> = (&'a mut Turns, &'a mut Line, &'a mut Deadlines);

/// [`Engine::settle`] after a segment in order: no seldom-used field of the connection has changed.
#[inline(always)]
fn settle_fast(connection: &mut Connection, slot: u32, (turns, event_queue, deadlines): Queues) {
    let conditions = connection.conditions;
    let has_output = conditions
        .has(Conditions::ACK_NOW | Conditions::FIN_WANTED | Conditions::TAIL_PROBE_DUE)
        || connection.snd_nxt < connection.snd_end;
    if has_output && !conditions.has(Conditions::QUEUED) {
        connection.conditions.set(Conditions::QUEUED);
        turns.push(slot);
    }
    announce_progress(connection, slot, event_queue);
    let deadline = connection.ack_deadline.min(connection.loss_deadline);
    if deadline < connection.asked_by {
        connection.asked_by = deadline;
        deadlines.ask_by(slot, deadline);
    }
}

/// [`settle_fast`] after a segment with payload only, whose acknowledgement is scheduled: other
/// output is queued already, or waits for an acknowledgement, a window or a timer.
#[inline(always)]
fn settle_payload(
    connection: &mut Connection,
    slot: u32,
    acknowledge: Acknowledge,
    (turns, event_queue, deadlines): Queues,
) {
    match acknowledge {
        Acknowledge::Now => {
            let before = connection.conditions;
            connection.conditions = before | Conditions::ACK_NOW | Conditions::QUEUED;
            if !before.has(Conditions::QUEUED) {
                turns.push(slot);
            }
        }
        Acknowledge::Later => {
            if connection.ack_deadline < connection.asked_by {
                connection.asked_by = connection.ack_deadline;
                deadlines.ask_by(slot, connection.ack_deadline);
            }
        }
    }
    announce_progress(connection, slot, event_queue);
}

impl Engine {
    /// Takes a frame from the link. Payload goes to `memory`; the caller polls for all other
    /// effects. Malformed frames are counted by reason.
    #[inline]
    pub fn handle_frame(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) {
        if self.handle_predicted(now, frame, offload, memory) {
            self.note_predicted(1);
        } else {
            self.handle_any(now, frame, offload, memory);
        }
    }

    //= RFC 9293#3.10.7.4
    //# For example, if the TCP endpoint is processing a series of queued segments, it MUST
    //# process them all before sending any ACK segments (MUST-59).
    /// [`Self::handle_frame`] for frames that arrived together. When there are too many connections
    /// for the cache, the connections of several frames are looked up before the first frame is
    /// handled: so the cache misses overlap.
    pub fn handle_frames<'a, I>(&mut self, now: Instant, frames: I, memory: &mut dyn Memory)
    where
        I: Iterator<Item = (&'a [u8], ReceiveOffload)> + Clone,
    {
        if self.flows.len() > CONNECTIONS_IN_CACHE && frames.clone().nth(1).is_some() {
            return self.handle_looked_up(now, frames, memory);
        }
        let mut predicted = 0;
        for (frame, offload) in frames {
            if self.handle_predicted(now, frame, offload, memory) {
                predicted += 1;
            } else {
                self.handle_any(now, frame, offload, memory);
            }
        }
        self.note_predicted(predicted);
    }

    #[inline(never)]
    fn handle_looked_up<'a, I>(&mut self, now: Instant, frames: I, memory: &mut dyn Memory)
    where
        I: Iterator<Item = (&'a [u8], ReceiveOffload)> + Clone,
    {
        let mut slots = [NO_SLOT; LOOKUP_BATCH];
        // A separate copy can stay in registers.
        let mut frames = frames.clone();
        loop {
            let changes = self.flows.changes();
            let count = self.look_up_together(frames.clone(), &mut slots);
            let (mut handled, mut on_slow_path) = (0, 0);
            for &slot in &slots[..count] {
                let Some((frame, offload)) = frames.next() else {
                    break;
                };
                handled += 1;
                if !self.handle_found(now, slot, frame, offload, memory) {
                    on_slow_path += 1;
                    self.handle_any(now, frame, offload, memory);
                    if self.flows.changes() != changes {
                        break;
                    }
                }
            }
            self.note_predicted(handled - on_slow_path);
            // Connections were opened or closed, so the remaining results of the look-up may be
            // wrong.
            for _ in handled as usize..count {
                if let Some((frame, offload)) = frames.next() {
                    self.handle_alone(now, frame, offload, memory);
                }
            }
            if count < LOOKUP_BATCH {
                return;
            }
        }
    }

    #[cold]
    fn handle_alone(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) {
        self.handle_frame(now, frame, offload, memory);
    }

    /// Looks up the connections of the next frames that have the layout of the fast path, and
    /// touches their memory. Returns the number of connections.
    // Not inlined, because it needs every register.
    #[inline(never)]
    fn look_up_together<'a>(
        &self,
        frames: impl Iterator<Item = (&'a [u8], ReceiveOffload)>,
        slots: &mut [u32; LOOKUP_BATCH],
    ) -> usize {
        let (mut count, mut touched) = (0, 0);
        for (slot, (frame, _)) in slots.iter_mut().zip(frames) {
            count += 1;
            let ends = frame.first_chunk().map(fast_path_ends);
            let found = ends.and_then(|ends| self.flows.find_v4(ends));
            *slot = found.unwrap_or(NO_SLOT);
            let connection = self.slots.get(*slot as usize);
            touched ^= connection.map_or(0, Connection::touch);
        }
        black_box(touched);
        count
    }

    /// Counts `frames` frames on the fast path.
    #[inline(always)]
    fn note_predicted(&mut self, frames: u64) {
        self.run.end();
        self.fast_paths.received += frames;
    }

    /// The place for the next frame's payload, if that frame continues the stream of the last frame
    /// with such headers. If the link delivers the payload directly there, a copy is saved: see
    /// [`Self::handle_placed`].
    #[inline]
    #[must_use]
    pub fn expected(&self, headers: Headers) -> Option<Expected> {
        let slot = match headers {
            Headers::V4 => self.last_flow.slot,
            Headers::V6 => self.last_flow_v6.slot,
        };
        let connection = self.slots.get(slot as usize)?;
        // Bytes beyond a gap must not be overwritten.
        let is_plain = connection.state == State::Established
            && !connection.conditions.has(Conditions::RECEIVE_SLOW_PATH);
        is_plain.then(|| Expected {
            connection: connection.id(slot),
            offset: connection.rcv_nxt.byte(),
            headers,
        })
    }

    /// The place for the payload of a frame that begins with these headers and has `frame_bytes`
    /// bytes, if it is the next of an established connection. For links that deliver headers first.
    /// This is no guess like [`Self::expected`], but not everything is verified yet.
    #[inline]
    pub fn place_of(
        &mut self,
        beginning: &[u8],
        frame_bytes: usize,
        offload: ReceiveOffload,
    ) -> Option<Expected> {
        let layout = Headers::of(beginning)?;
        let headers = beginning.get(..layout.bytes())?;
        let payload_bytes = frame_bytes.checked_sub(layout.bytes())?;
        let (slot, tcp) = self.find_placed(headers, payload_bytes, offload)?;
        let expected = self.expected(layout)?;
        let connection = self.slots.get(slot as usize)?;
        let is_next = u32_at(tcp, 4) == connection.rcv_nxt.wire(connection.rcv_first);
        is_next.then_some(expected)
    }

    /// [`Self::handle_frame`] for a frame with these headers, whose `payload_bytes` bytes of
    /// payload the host has read to the place from [`Self::expected`]. If they do not belong there,
    /// returns false and changes nothing: then the host assembles the frame and calls
    /// [`Self::handle_frame`].
    #[inline]
    pub fn handle_placed(
        &mut self,
        now: Instant,
        headers: &[u8],
        payload_bytes: usize,
        offload: ReceiveOffload,
        expected: Expected,
    ) -> bool {
        let Some((slot, tcp)) = self.find_placed(headers, payload_bytes, offload) else {
            return false;
        };
        let place = |connection, offset| {
            if (connection, offset) == (expected.connection, expected.offset) {
                Ok(())
            } else {
                Err(NoRoom)
            }
        };
        let is_done = self
            .handle_payload(now, slot, tcp, payload_bytes, place)
            .unwrap_or_else(|| self.handle_mixed(now, slot, tcp, payload_bytes, place));
        if is_done {
            self.note_predicted(1);
        }
        is_done
    }

    /// The connection of headers that are separate from their payload, and their TCP header.
    #[inline]
    fn find_placed<'a>(
        &mut self,
        headers: &'a [u8],
        payload_bytes: usize,
        offload: ReceiveOffload,
    ) -> Option<(u32, &'a TcpHeader)> {
        let tcp: &TcpHeader = headers.last_chunk()?;
        if !ack_words(tcp).has_fast_path_flags() {
            return None;
        }
        let slot = if let Ok(h) = headers.try_into() {
            let is_whole = self.is_fast_path(h, offload) && v4_payload_bytes(h) == payload_bytes;
            is_whole.then(|| self.find_fast(h)).flatten()
        } else {
            let h = headers.try_into().ok()?;
            let is_whole = self.is_fast_path_v6(h, offload) && v6_payload_bytes(h) == payload_bytes;
            is_whole.then(|| self.find_fast_v6(h)).flatten()
        };
        Some((slot?, tcp))
    }

    /// Handles the layout that nearly all frames of a busy connection have, read at once: Ethernet,
    /// IPv4 without options or fragments, TCP with timestamps only, and payload in order or a new
    /// acknowledgement. Returns false and changes nothing for every other frame. Over IPv4:
    ///
    /// ```text
    /// 0       14   16     20   22  23    26   30   34     38   42   46   48     54   58   62  66
    /// |macs.. |45..|length|frag|ttl|proto|src |dst |ports |seq |ack |80fl|window|nn8a |TSv |TSe |
    /// ```
    #[inline(always)]
    fn handle_predicted(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) -> bool {
        let Some((h, rest)) = frame.split_first_chunk() else {
            return false;
        };
        if !self.is_fast_path(h, offload) {
            return self.handle_predicted_v6(now, frame, offload, memory);
        }
        let Some(slot) = self.find_fast(h) else {
            return false;
        };
        self.handle_fast(now, slot, tcp_of(h), v4_payload_bytes(h), rest, memory)
    }

    /// [`Self::handle_predicted`] over IPv6. Traffic class and flow label are not checked: ECN
    /// marks matter only where ECN was negotiated, and such a connection takes the slow path.
    ///
    /// ```text
    /// 0       14       18     20  21   22   38   54    58   62   66   68     74    78   82  86
    /// |macs.. |6.class.|length|tcp|hops|src |dst |ports|seq |ack |80fl|window|nn8a |TSv |TSe |
    /// ```
    // Not inlined, so that the IPv4 path does not save registers for it.
    #[inline(never)]
    fn handle_predicted_v6(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) -> bool {
        let Some((h, rest)) = frame.split_first_chunk() else {
            return false;
        };
        if !self.is_fast_path_v6(h, offload) {
            return false;
        }
        let Some(slot) = self.find_fast_v6(h) else {
            return false;
        };
        let tcp = h.last_chunk().expect("the headers are longer");
        self.handle_fast(now, slot, tcp, v6_payload_bytes(h), rest, memory)
    }

    /// Handles an IPv4 frame of the fast path whose slot was looked up before. With so many
    /// connections, successive frames seldom belong to one flow.
    #[inline(always)]
    fn handle_found(
        &mut self,
        now: Instant,
        slot: u32,
        frame: &[u8],
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) -> bool {
        let Some((h, rest)) = frame.split_first_chunk() else {
            return false;
        };
        if !self.is_fast_path(h, offload) {
            return self.handle_predicted_v6(now, frame, offload, memory);
        }
        self.handle_fast(now, slot, tcp_of(h), v4_payload_bytes(h), rest, memory)
    }

    /// Handles a frame of a known connection whose headers are known to have the layout of the fast
    /// path.
    #[inline(always)]
    fn handle_fast(
        &mut self,
        now: Instant,
        slot: u32,
        h: &TcpHeader,
        payload_bytes: usize,
        rest: &[u8],
        memory: &mut dyn Memory,
    ) -> bool {
        if payload_bytes == 0 {
            return self.handle_acknowledgement(now, slot, h);
        }
        // Bytes behind the payload may be the link's padding.
        let Some(payload) = rest.get(..payload_bytes) else {
            return false;
        };
        let place = |id, offset| memory.place(id, offset, payload);
        match self.handle_payload(now, slot, h, payload_bytes, place) {
            Some(true) => true,
            // The slow path takes as much of the payload as there is room for.
            Some(false) => false,
            None => {
                let place = |id, offset| memory.place(id, offset, payload);
                self.handle_mixed(now, slot, h, payload_bytes, place)
            }
        }
    }

    /// Handles a segment that is only an acknowledgement.
    #[inline(always)]
    fn handle_acknowledgement(&mut self, now: Instant, slot: u32, h: &TcpHeader) -> bool {
        let (said, seq, timestamp) = (ack_words(h), u32_at(h, 4), u32_at(h, 24));
        let Some(connection) = self.slots.get_mut(slot as usize) else {
            return false;
        };
        let config = &self.config;
        let progressed = connection.handle_fast_acknowledgement(now, config, said, seq, timestamp);
        if progressed == Progressed::No {
            return false;
        }
        if progressed == Progressed::ToTheEnd {
            announce_progress(connection, slot, &mut self.event_queue);
        } else {
            let queues = (&mut self.turns, &mut self.event_queue, &mut self.deadlines);
            settle_fast(connection, slot, queues);
        }
        true
    }

    /// Whether the headers have the layout of the fast path. The caller checks data offset and
    /// flags.
    #[inline(always)]
    fn is_fast_path(&self, h: &[u8; V4_HEADERS_BYTES], offload: ReceiveOffload) -> bool {
        let first: &[u8; 8] = h.first_chunk().expect("the header is longer");
        offload.checksum_verified
            && u64::from_le_bytes(*first) << 16 == self.own_mac
            && u16_at(h, 12) == ethernet::TYPE_IPV4
            && h[14] == 0x45
            // Not a fragment.
            && u32_at(h, 20) & 0x3fff_0000 == 0
            && h[23] == ip::PROTOCOL_TCP
            && u32_at(h, 54) == 0x0101_080a
    }

    /// [`Self::is_fast_path`] over IPv6.
    fn is_fast_path_v6(&self, h: &[u8; V6_HEADERS_BYTES], offload: ReceiveOffload) -> bool {
        let first: &[u8; 8] = h.first_chunk().expect("the header is longer");
        offload.checksum_verified
            && u64::from_le_bytes(*first) << 16 == self.own_mac
            && u16_at(h, 12) == ethernet::TYPE_IPV6
            && h[14] >> 4 == 6
            && h[20] == ip::PROTOCOL_TCP
            && u32_at(h, 74) == 0x0101_080a
    }

    /// The connection of a frame on the fast path. Successive frames often belong to one
    /// connection.
    #[inline(always)]
    fn find_fast_v6(&mut self, h: &[u8; V6_HEADERS_BYTES]) -> Option<u32> {
        let ends = EndsV6::of(h.first_chunk().expect("the header is longer"));
        if ends == self.last_flow_v6.ends {
            return Some(self.last_flow_v6.slot);
        }
        self.find_another_v6(ends)
    }

    fn find_another_v6(&mut self, ends: EndsV6) -> Option<u32> {
        let key = ends.key();
        if key.remote.is_v4() {
            return None; // A mapped address is none that a packet may have.
        }
        let slot = self.find_flow(&key)?;
        self.last_flow_v6 = LastFlow { ends, slot };
        Some(slot)
    }

    /// The connection of a frame on the fast path. Successive frames often belong to one
    /// connection.
    #[inline(always)]
    fn find_fast(&mut self, h: &[u8; V4_HEADERS_BYTES]) -> Option<u32> {
        let ends = fast_path_ends(h);
        if ends == self.last_flow.ends {
            return Some(self.last_flow.slot);
        }
        let slot = self.flows.find_v4(ends)?;
        self.last_flow = LastFlow { ends, slot };
        Some(slot)
    }

    /// Handles a segment with payload and no other news. `None`: the segment is of another kind.
    /// False: the host has no room for the payload.
    #[inline(always)]
    fn handle_payload(
        &mut self,
        now: Instant,
        slot: u32,
        h: &TcpHeader,
        payload_bytes: usize,
        place: impl FnOnce(ConnectionId, u64) -> Result<(), NoRoom>,
    ) -> Option<bool> {
        let connection = self.slots.get_mut(slot as usize)?;
        let (seq, timestamp) = (u32_at(h, 4), u32_at(h, 24));
        if !connection.continues_plainly(now, ack_words(h), seq, timestamp, payload_bytes) {
            return None;
        }
        let offset = connection.rcv_nxt.after(Position::FIRST_BYTE);
        if place(connection.id(slot), offset).is_err() {
            return Some(false);
        }
        self.counters.bytes_received += payload_bytes as u64;
        connection.note_payload(payload_bytes);
        let acknowledge = connection.schedule_ack(now, &self.config, payload_bytes);
        let queues = (&mut self.turns, &mut self.event_queue, &mut self.deadlines);
        settle_payload(connection, slot, acknowledge, queues);
        Some(true)
    }

    /// Handles a segment with payload that also has a new acknowledgement or window.
    #[inline(never)]
    fn handle_mixed(
        &mut self,
        now: Instant,
        slot: u32,
        h: &TcpHeader,
        payload_bytes: usize,
        place: impl FnOnce(ConnectionId, u64) -> Result<(), NoRoom>,
    ) -> bool {
        if !ack_words(h).has_fast_path_flags() {
            return false;
        }
        let Some(connection) = self.slots.get_mut(slot as usize) else {
            return false;
        };
        let id = connection.id(slot);
        let mut cx = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
        };
        let place = |offset| place(id, offset);
        if !connection.handle_in_order(&mut cx, &fast_path_segment(h), payload_bytes, place) {
            return false;
        }
        connection.predict(ack_words(h));
        let queues = (&mut self.turns, &mut self.event_queue, &mut self.deadlines);
        settle_fast(connection, slot, queues);
        true
    }
}
