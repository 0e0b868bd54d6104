//! From a frame to the connection it is for.

use core::hint::black_box;
use std::collections::VecDeque;

use super::deadlines::Deadlines;
use super::fragments::Outcome;
use super::table::Tag;
use super::turns::Turns;
use super::{Engine, LastFlow};
use crate::config::Medium;
use crate::connection::{
    Conditions, Connection, Context, FlowKey, Offer, Progressed, State, Verdict,
};
use crate::host::{ConnectionId, ListenerId, Memory, NoRoom};
use crate::time::{Duration, Instant};
use crate::wire::ethernet::{self, MacAddress};
use crate::wire::ip::{self, Address, Packet};
use crate::wire::tcp::{Flags, Segment, Timestamps};
use crate::wire::{Malformed, arp, u16_at, u32_at};

/// How long after a cookie its handshake may still be under way.
const COOKIE_GRACE: Duration = Duration::from_secs(128);

/// Connections whose hot lines, and entries in the flow table, find room in a core's own cache.
const CONNECTIONS_IN_CACHE: usize = 4_096;

/// What the link knows about a frame it delivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiveOffload {
    /// The TCP checksum was verified by the link, or the frame never left this machine.
    pub checksum_verified: bool,
}

/// Ethernet, IPv4 and TCP headers with a timestamp as the only option.
pub const USUAL_HEADERS_BYTES: usize = 66;

/// Where a frame's payload would belong: a byte of a connection's stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// Whose stream.
    pub connection: ConnectionId,
    /// The next byte of it.
    pub offset: u64,
}

/// The segment of a frame of the usual layout.
#[inline]
fn usual_segment<'a>(h: &[u8; USUAL_HEADERS_BYTES], payload: &'a [u8]) -> Segment<'a> {
    Segment {
        source_port: u16_at(h, 34),
        destination_port: u16_at(h, 36),
        seq: u32_at(h, 38),
        ack: u32_at(h, 42),
        flags: Flags(h[47]),
        window: u16_at(h, 48),
        timestamps: Some(Timestamps {
            value: u32_at(h, 58),
            echo: u32_at(h, 62),
        }),
        options: &[],
        payload,
    }
}

/// Where an answer to a frame goes, when it goes back to where the frame came from.
pub(super) type ReplyTo = Option<MacAddress>;

/// The queues a connection can belong to.
type Queues<'a> = (&'a mut Turns, &'a mut VecDeque<u32>, &'a mut Deadlines);

/// What [`Engine::settle`] does, after a segment in order: nothing in the cold part of the connection has changed.
#[inline(always)]
fn settle_usual(connection: &mut Connection, slot: u32, (turns, event_queue, deadlines): Queues) {
    let conditions = connection.conditions;
    let has_output = conditions
        .has(Conditions::ACK_NOW | Conditions::FIN_WANTED | Conditions::TAIL_PROBE_DUE)
        || connection.snd_nxt < connection.snd_end;
    if has_output && !conditions.has(Conditions::QUEUED) {
        connection.conditions.set(Conditions::QUEUED);
        turns.push(slot);
    }
    announce(connection, slot, event_queue);
    let deadline = connection.ack_deadline.min(connection.loss_deadline);
    if deadline < connection.asked_by {
        connection.asked_by = deadline;
        deadlines.ask_by(slot, deadline);
    }
}

/// The host has news of a connection that has got on.
#[inline(always)]
fn announce(connection: &mut Connection, slot: u32, event_queue: &mut VecDeque<u32>) {
    if !connection.conditions.has(Conditions::ANNOUNCED) {
        announce_first(connection, slot, event_queue);
    }
}

#[inline(never)]
fn announce_first(connection: &mut Connection, slot: u32, event_queue: &mut VecDeque<u32>) {
    let conditions = connection.conditions;
    if conditions.has(Conditions::ACCEPTED) || !conditions.has(Conditions::PASSIVE) {
        connection.conditions.set(Conditions::ANNOUNCED);
        event_queue.push_back(slot);
    }
}

impl Engine {
    /// Takes a frame from the link. Payload goes to `memory`; everything else shows in what is
    /// polled afterwards. Malformed frames are counted by reason.
    #[inline]
    pub fn handle_frame(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) {
        self.counters.frames_received += 1;
        if self.handle_predicted(now, frame, offload, memory) {
            return;
        }
        self.handle_any(now, frame, offload, memory);
    }

    /// [`Self::handle_frame`] for frames that arrived together. Where connections are so many that they
    /// do not stay in the cache, all of the frames' are looked up before the first is handled: the
    /// memory's delays pass at once instead of one after the other.
    pub fn handle_frames<'a, I>(&mut self, now: Instant, frames: I, memory: &mut dyn Memory)
    where
        I: Iterator<Item = (&'a [u8], ReceiveOffload)> + Clone,
    {
        if self.flows.len() > CONNECTIONS_IN_CACHE && frames.clone().nth(1).is_some() {
            let look_up = |touched, (frame, _): (&[u8], _)| touched ^ self.look_up(frame);
            black_box(frames.clone().fold(0, look_up));
        }
        for (frame, offload) in frames {
            self.handle_frame(now, frame, offload, memory);
        }
    }

    /// Reads what [`Self::handle_predicted`] will read, and decides nothing.
    #[inline]
    fn look_up(&self, frame: &[u8]) -> u32 {
        let Some(h) = frame.first_chunk::<38>() else {
            return 0;
        };
        let tag = Tag::v4(u32_at(h, 30), u32_at(h, 26), u16_at(h, 36), u16_at(h, 34));
        let slot = self.flows.find(tag, |_| true).unwrap_or(0);
        self.slots.get(slot as usize).map_or(0, Connection::touch)
    }

    /// Where the payload of the next frame belongs, should it continue what the last one brought. Memory
    /// that takes it there straight from the link spares a copy: see [`Self::handle_placed`].
    #[inline]
    #[must_use]
    pub fn expected(&self) -> Option<Expected> {
        let slot = self.last_flow.slot;
        let connection = self.slots.get(slot as usize)?;
        // Ahead of a gap stand bytes that must not be written over.
        let is_plain = connection.state == State::Established
            && !connection.conditions.has(Conditions::RECEIVE_DETOUR);
        is_plain.then(|| Expected {
            connection: ConnectionId {
                index: slot,
                generation: connection.generation,
            },
            offset: connection.rcv_nxt.byte(),
        })
    }

    /// Where the payload belongs of a frame with these headers and `payload_bytes` bytes of it, if it is the next of an established
    /// connection. For links that show headers first: no guess as [`Self::expected`] is, but said before all has been verified.
    #[inline]
    pub fn place_of(
        &mut self,
        headers: &[u8; USUAL_HEADERS_BYTES],
        payload_bytes: usize,
        offload: ReceiveOffload,
    ) -> Option<Expected> {
        if !self.has_usual_payload(headers, payload_bytes, offload) {
            return None;
        }
        self.find_usual(headers)?;
        let expected = self.expected()?;
        let connection = self.slots.get(expected.connection.index())?;
        let is_next = u32_at(headers, 38) == connection.rcv_nxt.wire(connection.irs);
        is_next.then_some(expected)
    }

    /// [`Self::handle_frame`] for a frame whose `payload_bytes` bytes of payload the host has read to
    /// where [`Self::expected`] said. Does nothing and returns false unless they belong there: then
    /// the host puts the frame together and calls [`Self::handle_frame`].
    #[inline]
    pub fn handle_placed(
        &mut self,
        now: Instant,
        headers: &[u8; USUAL_HEADERS_BYTES],
        payload_bytes: usize,
        offload: ReceiveOffload,
        expected: Expected,
    ) -> bool {
        let is_usual = self.has_usual_payload(headers, payload_bytes, offload);
        let Some(slot) = is_usual.then(|| self.find_usual(headers)).flatten() else {
            return false;
        };
        let segment = usual_segment(headers, &[]);
        let is_done =
            self.handle_usual(now, slot, &segment, payload_bytes, |connection, offset| {
                if (Expected { connection, offset }) == expected {
                    Ok(())
                } else {
                    Err(NoRoom)
                }
            });
        self.counters.frames_received += u64::from(is_done);
        is_done
    }

    /// The layout that nearly all frames of a busy connection have, read in one piece: Ethernet,
    /// IPv4 without options or fragments, TCP with a timestamp alone, payload in its turn or an
    /// acknowledgement of something new. Does nothing and returns false for everything else.
    ///
    /// ```text
    /// 0        14   16     20   22  23    26   30   34     38   42   46   48     54    58   62   66
    /// | macs.. |45..|length|frag|ttl|proto|src |dst |ports |seq |ack |80fl|window|nn8a |TSv |TSe |
    /// ```
    #[inline]
    fn handle_predicted(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) -> bool {
        let Some(h) = frame.first_chunk() else {
            return false;
        };
        if !self.is_usual(h, offload) {
            return false;
        }
        let length = usize::from(u16_at(h, 16)) + ethernet::HEADER_BYTES;
        if length == USUAL_HEADERS_BYTES {
            return self.handle_acknowledgement(now, h);
        }
        let Some(payload) = frame.get(USUAL_HEADERS_BYTES..length) else {
            return false;
        };
        let Some(slot) = self.find_usual(h) else {
            return false;
        };
        let segment = usual_segment(h, payload);
        let place = |id, offset| memory.place(id, offset, payload);
        self.handle_usual(now, slot, &segment, payload.len(), place)
    }

    /// The same for an acknowledgement and nothing else.
    #[inline(always)]
    fn handle_acknowledgement(&mut self, now: Instant, h: &[u8; USUAL_HEADERS_BYTES]) -> bool {
        let Some(slot) = self.find_usual(h) else {
            return false;
        };
        let segment = usual_segment(h, &[]);
        let timestamp = u32_at(h, 58);
        let Some(connection) = self.slots.get_mut(slot as usize) else {
            return false;
        };
        let progressed =
            connection.handle_usual_acknowledgement(now, &self.config, &segment, timestamp);
        if progressed == Progressed::No {
            return false;
        }
        self.counters.segments_predicted += 1;
        self.counters.segments_received += 1;
        self.run.end();
        if progressed == Progressed::ToTheEnd {
            announce(connection, slot, &mut self.event_queue);
        } else {
            let queues = (&mut self.turns, &mut self.event_queue, &mut self.deadlines);
            settle_usual(connection, slot, queues);
        }
        true
    }

    /// Whether the headers have that layout, and say that so much payload follows.
    #[inline]
    fn has_usual_payload(
        &self,
        h: &[u8; USUAL_HEADERS_BYTES],
        payload_bytes: usize,
        offload: ReceiveOffload,
    ) -> bool {
        let length = USUAL_HEADERS_BYTES - ethernet::HEADER_BYTES + payload_bytes;
        self.is_usual(h, offload) && usize::from(u16_at(h, 16)) == length
    }

    /// Whether the headers have that layout.
    #[inline(always)]
    fn is_usual(&self, h: &[u8; USUAL_HEADERS_BYTES], offload: ReceiveOffload) -> bool {
        let first: &[u8; 8] = h.first_chunk().expect("the header is longer");
        offload.checksum_verified
            && u64::from_le_bytes(*first) << 16 == self.own_mac
            && u16_at(h, 12) == ethernet::TYPE_IPV4
            && h[14] == 0x45
            // Not a fragment, and TCP.
            && u32_at(h, 20) & 0x3fff_00ff == u32::from(ip::PROTOCOL_TCP)
            // A timestamp's room, and the flags that say nothing of interest.
            && u16_at(h, 46) & !u16::from(Flags::PSH.0) == 0x8000 | u16::from(Flags::ACK.0)
            && u32_at(h, 54) == 0x0101_080a
    }

    /// Whose they are.
    #[inline(always)]
    fn find_usual(&mut self, h: &[u8; USUAL_HEADERS_BYTES]) -> Option<u32> {
        let last = self.last_flow;
        let addresses = u64::from_ne_bytes(*h[26..].first_chunk().expect("the header is longer"));
        let ports = u32::from_ne_bytes(*h[34..].first_chunk().expect("the header is longer"));
        if addresses == last.addresses && ports == last.ports {
            return Some(last.slot);
        }
        let tag = Tag::v4(u32_at(h, 30), u32_at(h, 26), u16_at(h, 36), u16_at(h, 34));
        let slot = self.flows.find(tag, |_| true)?;
        self.last_flow = LastFlow {
            addresses,
            ports,
            slot,
        };
        Some(slot)
    }

    #[inline(always)]
    fn handle_usual(
        &mut self,
        now: Instant,
        slot: u32,
        segment: &Segment<'_>,
        payload_bytes: usize,
        place: impl FnOnce(ConnectionId, u64) -> Result<(), NoRoom>,
    ) -> bool {
        let Some(connection) = self.slots.get_mut(slot as usize) else {
            return false;
        };
        let generation = connection.generation;
        let place = |offset| {
            let index = slot;
            place(ConnectionId { index, generation }, offset)
        };
        let mut cx = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
        };
        if !connection.handle_in_order(&mut cx, segment, payload_bytes, place) {
            return false;
        }
        self.counters.segments_predicted += 1;
        self.counters.segments_received += 1;
        self.run.end();
        let queues = (&mut self.turns, &mut self.event_queue, &mut self.deadlines);
        settle_usual(connection, slot, queues);
        true
    }

    // Not inlined: the short path shall not prepare for the long one.
    #[inline(never)]
    fn handle_any(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) {
        if let Err(reason) = self.try_handle_frame(now, frame, offload, memory) {
            self.counters.count_malformed(reason);
        }
    }

    #[inline]
    fn try_handle_frame(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) -> Result<(), Malformed> {
        let Medium::Ethernet { mac, .. } = self.config.medium else {
            let packet = match frame.first().ok_or(Malformed::IpTruncated)? >> 4 {
                4 => Packet::parse_v4(frame, !offload.checksum_verified)?,
                6 => Packet::parse_v6(frame)?,
                _ => return Err(Malformed::IpVersion),
            };
            return self.handle_packet(now, &packet, None, offload, memory);
        };
        let frame = ethernet::Frame::parse(frame)?;
        if frame.destination != mac && !frame.destination.is_group() {
            self.counters.not_for_us += 1;
            return Ok(());
        }
        let packet = match frame.ether_type {
            ethernet::TYPE_IPV4 => Packet::parse_v4(frame.payload, !offload.checksum_verified)?,
            ethernet::TYPE_IPV6 => Packet::parse_v6(frame.payload)?,
            ethernet::TYPE_ARP => {
                self.handle_arp(&arp::Packet::parse(frame.payload)?);
                return Ok(());
            }
            _ => return Err(Malformed::EtherTypeUnknown),
        };
        if frame.destination.is_group() && packet.protocol == ip::PROTOCOL_TCP {
            // RFC 1122 section 4.2.3.10: TCP to a link broadcast is silently discarded.
            self.counters.not_for_us += 1;
            return Ok(());
        }
        self.handle_packet(now, &packet, Some(frame.source), offload, memory)
    }

    #[inline]
    fn handle_packet(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        reply_to: ReplyTo,
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) -> Result<(), Malformed> {
        if packet.fragment.is_none() && packet.protocol == ip::PROTOCOL_TCP {
            return self.handle_tcp(now, packet, reply_to, offload, memory);
        }
        if packet.fragment.is_some() {
            let Some(whole) = self.reassemble(now, packet)? else {
                return Ok(());
            };
            let packet = Packet {
                fragment: None,
                payload: &whole,
                ..*packet
            };
            // A link verifies no checksum that spans packets.
            return self.handle_packet(now, &packet, reply_to, ReceiveOffload::default(), memory);
        }
        match packet.protocol {
            ip::PROTOCOL_ICMP if packet.source.is_v4() => self.handle_icmp(now, packet, reply_to),
            ip::PROTOCOL_ICMP_V6 if !packet.source.is_v4() => {
                self.handle_icmp(now, packet, reply_to)
            }
            _ => {
                self.counters.not_for_us += 1;
                Ok(())
            }
        }
    }

    /// The payload of a fragment's packet, when that was the last one missing.
    pub(super) fn reassemble(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
    ) -> Result<Option<Vec<u8>>, Malformed> {
        Ok(match self.fragments.take(now, packet)? {
            Outcome::Whole(whole) => Some(whole),
            Outcome::Pending => None,
            Outcome::Dropped => {
                self.counters.fragments_dropped += 1;
                None
            }
        })
    }

    #[inline]
    fn handle_tcp(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        reply_to: ReplyTo,
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) -> Result<(), Malformed> {
        let segment = Segment::parse(packet.payload)?;
        if !offload.checksum_verified {
            let pseudo = ip::pseudo_header(
                packet.source,
                packet.destination,
                ip::PROTOCOL_TCP,
                packet.payload.len(),
            );
            if !pseudo.bytes(packet.payload).is_intact() {
                return Err(Malformed::TcpChecksum);
            }
        }
        self.counters.segments_received += 1;
        let key = FlowKey {
            local: packet.destination,
            remote: packet.source,
            local_port: segment.destination_port,
            remote_port: segment.source_port,
        };
        let Some(slot) = self.find_flow(&key) else {
            return self.handle_stranger(now, packet, &segment, &key, reply_to, memory);
        };
        if self.waits_for_backlog(slot, segment.flags) {
            self.counters.backlog_overflows += 1;
            return Ok(());
        }
        let connection = &mut self.slots[slot as usize];
        let id = ConnectionId {
            index: slot,
            generation: connection.generation,
        };
        let mut cx = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
        };
        let was_half_open = connection.conditions.has(Conditions::HALF_OPEN);
        let verdict = connection.handle_segment(&mut cx, &segment, packet.ecn, id, memory);
        if was_half_open && connection.state == State::Established {
            self.learn_from(key.remote, reply_to);
        }
        if verdict != Verdict::Done {
            self.carry_out(now, verdict, slot, packet, &segment, reply_to);
        }
        self.settle(slot);
        Ok(())
    }

    /// Whether this would end a handshake where no more connections can wait to be accepted. Like Linux (tcp_check_req, unless
    /// tcp_abort_on_overflow) we take it for lost: our SYN-ACK goes out again, until there is room.
    fn waits_for_backlog(&self, slot: u32, flags: Flags) -> bool {
        let connection = &self.slots[slot as usize];
        connection.conditions.has(Conditions::HALF_OPEN)
            && connection.state == State::SynReceived
            && flags.has(Flags::ACK)
            && !flags.has(Flags::SYN | Flags::RST)
            && self.listeners.is_full(ListenerId(connection.listener))
    }

    #[cold]
    fn carry_out(
        &mut self,
        now: Instant,
        verdict: Verdict,
        slot: u32,
        packet: &Packet<'_>,
        segment: &Segment<'_>,
        reply_to: ReplyTo,
    ) {
        match verdict {
            Verdict::Done => {}
            Verdict::Refuse => self.refuse(now, packet, segment, reply_to),
            Verdict::Challenge => {
                let limit = self.config.challenges_per_second_max;
                if self.limiter.allows(now, limit, &mut self.random) {
                    self.counters.challenges_sent += 1;
                    self.slots[slot as usize]
                        .conditions
                        .set(Conditions::ACK_NOW);
                } else {
                    self.counters.challenges_suppressed += 1;
                }
            }
            Verdict::Reopen => {
                let old = &mut self.slots[slot as usize];
                let key = old.key;
                let old_end = old.snd_nxt.wire(old.iss);
                // Without a listener the old connection stays, and the SYN meets silence.
                let listener = self.listeners.find(key.local, key.local_port);
                if listener.is_some_and(|(_, listener)| !listener.is_full()) {
                    self.counters.time_wait_reused += 1;
                    old.close(crate::connection::CloseReason::Finished);
                    self.settle(slot);
                    self.open_passively(now, segment, &key, reply_to, Some(old_end));
                }
            }
        }
    }

    /// A segment without a connection: RFC 9293 section 3.10.7.1 (CLOSED) and 3.10.7.2 (LISTEN).
    #[cold]
    fn handle_stranger(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        segment: &Segment<'_>,
        key: &FlowKey,
        reply_to: ReplyTo,
        memory: &mut dyn Memory,
    ) -> Result<(), Malformed> {
        // RFC 1122 section 3.2.1.3: "a host MUST silently discard" what comes from where nothing can; nor
        // does anything of ours come from the link.
        let can_be = key.remote.is_unicast() && !self.interface.is_ours(key.remote);
        if !self.interface.is_ours(key.local) || !can_be {
            self.counters.not_for_us += 1;
            return Ok(());
        }
        let flags = segment.flags;
        if flags.has(Flags::RST) {
            self.counters.no_connection += 1;
            return Ok(());
        }
        if flags.has(Flags::SYN) && flags.has(Flags::FIN) {
            return Err(Malformed::TcpFlags);
        }
        let listener = self
            .listeners
            .find(key.local, key.local_port)
            .map(|(id, _)| id);
        match listener {
            Some(_) if flags.has(Flags::SYN) && !flags.has(Flags::ACK) => {
                self.open_passively(now, segment, key, reply_to, None);
                Ok(())
            }
            Some(listener)
                if flags.has(Flags::ACK)
                    && !flags.has(Flags::SYN)
                    && self.open_from_cookie(now, segment, key, listener, reply_to, memory) =>
            {
                Ok(())
            }
            // With cookies about, an acknowledgement that overtook the one with the cookie must not
            // be refused, which RFC 9293 would have us do: the remote will repeat what it overtook.
            Some(_) if self.awaits_cookies(now) && !flags.has(Flags::SYN) => {
                self.counters.no_connection += 1;
                Ok(())
            }
            // LISTEN, neither SYN nor ACK: "should not be reached ... drop the segment".
            Some(_) if !flags.has(Flags::ACK) => Ok(()),
            _ => {
                self.counters.no_connection += 1;
                self.refuse(now, packet, segment, reply_to);
                Ok(())
            }
        }
    }

    /// RFC 9293 section 3.10.7.2, third step. Payload on the SYN is not taken: the remote sends it
    /// again once the connection is established.
    fn open_passively(
        &mut self,
        now: Instant,
        segment: &Segment<'_>,
        key: &FlowKey,
        reply_to: ReplyTo,
        old_end: Option<u32>,
    ) {
        let Some((id, listener)) = self.listeners.find(key.local, key.local_port) else {
            return;
        };
        if listener.is_full() {
            // Like Linux: a SYN that could not be accepted anyway is better repeated later.
            self.counters.backlog_overflows += 1;
            return;
        }
        let options = listener.options;
        let offer = Offer::of(segment);
        let is_flooded = self.listeners.half_open() >= self.config.half_open_max;
        if is_flooded || !self.make_room() {
            self.send_cookie(now, key, &offer, options, reply_to);
            return;
        }
        self.listeners.begin_half_open(id);
        let slot = self.insert(|engine, generation| {
            let mut open = engine.open_context(now, *key, options, generation);
            if let Some(old_end) = old_end
                && (open.iss.wrapping_sub(old_end) as i32) <= 0
            {
                // RFC 9293 section 3.4.1: above all that the old incarnation used.
                open.iss = old_end.wrapping_add(64_000);
            }
            let mut connection = Connection::accept(&open, &offer);
            connection.listener = id.0;
            connection.conditions.set(Conditions::HALF_OPEN);
            connection
        });
        self.answer_to(slot, reply_to);
        self.settle(slot);
    }

    /// RFC 4987 section 3.6: the acknowledgement of a handshake that only its cookie remembers.
    fn open_from_cookie(
        &mut self,
        now: Instant,
        segment: &Segment<'_>,
        key: &FlowKey,
        listener: ListenerId,
        reply_to: ReplyTo,
        memory: &mut dyn Memory,
    ) -> bool {
        if !self.awaits_cookies(now) {
            return false;
        }
        let offset = self.timestamp_offset(key);
        let clock = |echo: u32| echo.wrapping_sub(offset);
        let Some((isn, offer)) = self.secrets.cookies.open(now, key, segment, clock) else {
            return false;
        };
        let Some((_, found)) = self.listeners.find(key.local, key.local_port) else {
            return false;
        };
        if found.is_full() {
            self.counters.backlog_overflows += 1;
            return true; // Dropped: the remote repeats its acknowledgement or its data.
        }
        let options = found.options;
        if !self.make_room() {
            return true; // Likewise.
        }
        self.counters.cookies_accepted += 1;
        self.listeners.begin_half_open(listener);
        let mut counters = core::mem::take(&mut self.counters);
        let slot = self.insert(|engine, generation| {
            let mut open = engine.open_context(now, *key, options, generation);
            open.iss = isn;
            let mut cx = Context {
                now,
                config: &engine.config,
                counters: &mut counters,
            };
            let mut connection = Connection::accept_cookie(&open, &offer, &mut cx, segment);
            connection.listener = listener.0;
            connection.conditions.set(Conditions::HALF_OPEN);
            connection
        });
        self.counters = counters;
        self.learn_from(key.remote, reply_to);
        // The segment may carry data; it is an ordinary segment of the connection by now.
        let connection = &mut self.slots[slot as usize];
        let id = ConnectionId {
            index: slot,
            generation: connection.generation,
        };
        let mut cx = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
        };
        debug_assert_eq!(connection.state, State::Established);
        connection.handle_segment(&mut cx, segment, ip::Ecn::NotCapable, id, memory);
        self.settle(slot);
        true
    }

    fn awaits_cookies(&self, now: Instant) -> bool {
        self.cookie_sent_at
            .is_some_and(|at| now.since(at) < COOKIE_GRACE)
    }

    /// The answer to a SYN goes to where that came from, unless we know better. Its sender is remembered when the handshake has shown that
    /// there is one: a flood fills no table.
    fn answer_to(&mut self, slot: u32, source: ReplyTo) {
        let key = self.slots[slot as usize].key;
        if let (Some(mac), Some(hop)) = (source, self.interface.next_hop(key.remote))
            && !mac.is_group()
            && !self.neighbours.knows(hop)
        {
            self.write_template(slot, &key, Some(mac));
        }
    }

    /// A remote that speaks first says where its next hop is; who is known is not believed anew.
    fn learn_from(&mut self, remote: Address, source: ReplyTo) {
        if let (Some(mac), Some(hop)) = (source, self.interface.next_hop(remote)) {
            let learned = self.neighbours.learn_if_unknown(hop, mac);
            self.note(hop, learned);
        }
    }
}
