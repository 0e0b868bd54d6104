//! From a frame to its connection: the slow path, which can handle every frame. Most frames take
//! the fast path of `fast_receive.rs`.

use super::Engine;
use super::fast_open::Verdict;
use super::fast_receive::ReceiveOffload;
use super::fragments::Outcome;
use super::next_hops::NextHop;
use crate::config::Medium;
use crate::connection::{Conditions, Connection, Context, FastOpen, News, Offer, Response};
use crate::flow::FlowKey;
use crate::host::{ListenerId, Memory};
use crate::state::State;
use crate::time::{Duration, Instant};
use crate::wire::ethernet::{self, MacAddress};
use crate::wire::ip::{self, Ecn, Packet};
use crate::wire::tcp::{Flags, Segment};
use crate::wire::{Malformed, arp};

/// The time that a handshake with a cookie may take, after the last cookie was sent.
const COOKIE_GRACE: Duration = Duration::from_secs(128);

/// The hardware address for an answer to a frame: the frame's sender.
pub(super) type ReplyTo = Option<MacAddress>;

/// A segment, and the packet that carried it.
struct Arrival<'a> {
    packet: &'a Packet<'a>,
    segment: &'a Segment<'a>,
    reply_to: ReplyTo,
}

impl Engine {
    // Not inlined, so that the fast path does not save registers for it.
    #[inline(never)]
    pub(super) fn handle_any(
        &mut self,
        now: Instant,
        frame: &[u8],
        offload: ReceiveOffload,
        memory: &mut dyn Memory,
    ) {
        self.counters.frames_received += 1;
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
                self.handle_arp(now, &arp::Packet::parse(frame.payload)?);
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
            let Some((whole, ecn)) = self.reassemble(now, packet)? else {
                return Ok(());
            };
            let mut packet = Packet {
                fragment: None,
                payload: &whole,
                ecn,
                ..*packet
            };
            packet.skip_extensions_of_whole()?;
            // No link verifies a checksum that spans several packets.
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

    /// The payload of a fragmented packet and its ECN codepoint, if this fragment was the last one
    /// missing.
    pub(super) fn reassemble(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
    ) -> Result<Option<(Vec<u8>, Ecn)>, Malformed> {
        let outcome = self.fragments.take(now, packet);
        self.counters.fragments_dropped += self.fragments.take_given_up();
        Ok(match outcome? {
            Outcome::Whole(whole, ecn) => Some((whole, ecn)),
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
        //= RFC 9293#3.1
        //# and the receiver MUST check it (MUST-3).
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
        if segment.has_bad_option {
            self.counters.count_malformed(Malformed::TcpOption);
        }
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
        let id = connection.id(slot);
        let mut cx = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
        };
        let was_half_open = connection.conditions.has(Conditions::HALF_OPEN);
        let tried_fast_open = connection.state == State::SynSent && connection.tried_fast_open();
        let was_repeated = connection.retries > 0;
        let response = connection.handle_segment(&mut cx, &segment, packet.ecn, id, memory);
        let is_learnt = was_half_open && connection.state == State::Established;
        if was_half_open
            && response == Response::Refuse
            && self.yields_to_cookie(now, slot, &segment)
            && self.open_from_cookie(now, packet.ecn, &segment, &key, reply_to, memory)
        {
            return Ok(());
        }
        if is_learnt {
            self.learn_from(&key, reply_to);
        }
        if tried_fast_open {
            if self.slots[slot as usize].state == State::Established {
                let cookie = segment.syn_options().fast_open;
                self.learn_fast_open(now, slot, cookie, was_repeated);
            } else {
                self.note_refused_fast_open(now, slot);
            }
        }
        if was_half_open && segment.flags.has(Flags::RST) {
            self.hold_place_of_reset(now, slot);
        }
        if response != Response::Done {
            let arrival = Arrival {
                packet,
                segment: &segment,
                reply_to,
            };
            self.carry_out(now, response, slot, &arrival, memory);
        }
        self.settle(slot);
        Ok(())
    }

    /// RFC 7413 section 5.1: a reset may come from a host whose address was forged. Like Linux
    /// (reqsk_fastopen_remove), we count the connection as pending for one more minute.
    fn hold_place_of_reset(&mut self, now: Instant, slot: u32) {
        let connection = &self.slots[slot as usize];
        if connection.state == State::Closed && connection.is_fast_opened() {
            let listener = ListenerId(connection.listener);
            self.listeners.hold_fast_open(listener, now);
        }
    }

    /// Whether this acknowledgement would complete a handshake while the accept queue is full. Like
    /// Linux (tcp_check_req, unless tcp_abort_on_overflow), we treat it as lost: our SYN-ACK is
    /// sent again until there is room.
    fn waits_for_backlog(&self, slot: u32, flags: Flags) -> bool {
        let connection = &self.slots[slot as usize];
        connection.conditions.has(Conditions::HALF_OPEN)
            && connection.state == State::SynReceived
            && flags.has(Flags::ACK)
            && !flags.has(Flags::SYN | Flags::RST)
            && !connection.is_fast_opened()
            && self.listeners.is_full(ListenerId(connection.listener))
    }

    #[cold]
    fn carry_out(
        &mut self,
        now: Instant,
        response: Response,
        slot: u32,
        arrival: &Arrival<'_>,
        memory: &mut dyn Memory,
    ) {
        let Arrival {
            packet,
            segment,
            reply_to,
        } = *arrival;
        match response {
            Response::Done => {}
            Response::Refuse => self.refuse(now, packet, segment, reply_to),
            Response::Challenge => {
                //= RFC 5961#7
                //# An implementation SHOULD include an ACK throttling mechanism to be conservative.
                // RFC 5961 section 7, as in Linux (tcp_send_challenge_ack): the connection's own
                // limit is checked first, so that one connection cannot use up the share of others.
                let limit = self.config.challenges_per_second_max;
                let connection = &mut self.slots[slot as usize];
                if connection.may_answer_again(now)
                    && self.challenges.allows(now, limit, &mut self.random)
                {
                    self.counters.challenges_sent += 1;
                    connection.conditions.set(Conditions::ACK_NOW);
                } else {
                    self.counters.challenges_suppressed += 1;
                }
            }
            Response::AcknowledgeRun => self.acknowledge_run(now, slot, reply_to),
            Response::Reopen => {
                let old = &mut self.slots[slot as usize];
                let key = old.key;
                let old_end = old.snd_nxt.wire(old.snd_first);
                match self.listeners.find(key.local, key.local_port) {
                    Some((_, listener)) if !listener.is_full() => {
                        self.counters.time_wait_reused += 1;
                        old.close(crate::state::CloseReason::Finished);
                        self.settle(slot);
                        self.open_passively(now, arrival, &key, Some(old_end), memory);
                    }
                    Some(_) => self.counters.backlog_overflows += 1,
                    // As at every closed port. (Linux acknowledges; the remote answers with a
                    // reset, and repeats its SYN.) The old connection stays.
                    None => self.refuse(now, packet, segment, reply_to),
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
        // RFC 1122 section 3.2.1.3: "a host MUST silently discard" segments from impossible
        // sources. Our own address is impossible as well, because our segments do not come back
        // from the link.
        //= RFC 9293#3.9.2.3
        //# An incoming SYN with an invalid source address MUST be ignored either by TCP or by the
        //# IP layer [(MUST-63)] (see Section 3.2.1.3).
        let can_be = key.remote.is_unicast()
            && !self.interface.is_ours(key.remote)
            && !self.interface.is_broadcast(key.remote);
        //= RFC 9293#3.9.2.3
        //# A TCP implementation MUST silently discard an incoming SYN segment that is addressed to
        //# a broadcast or multicast address [(MUST-57)].
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
                let arrival = Arrival {
                    packet,
                    segment,
                    reply_to,
                };
                self.open_passively(now, &arrival, key, None, memory);
                Ok(())
            }
            Some(_)
                if flags.has(Flags::ACK)
                    && !flags.has(Flags::SYN)
                    && self.open_from_cookie(now, packet.ecn, segment, key, reply_to, memory) =>
            {
                Ok(())
            }
            // While handshakes with cookies are open, an acknowledgement may have overtaken the one
            // with the cookie. RFC 9293 would refuse it, but it must be ignored: the remote will
            // repeat the other one.
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

    /// RFC 9293 section 3.10.7.2, third step. Payload on the SYN is taken if a Fast Open cookie
    /// proves the remote's address. Otherwise the remote sends the payload again once the
    /// connection is established.
    fn open_passively(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        key: &FlowKey,
        old_end: Option<u32>,
        memory: &mut dyn Memory,
    ) {
        let Arrival {
            packet,
            segment,
            reply_to,
        } = *arrival;
        let Some((id, listener)) = self.listeners.find(key.local, key.local_port) else {
            return;
        };
        if listener.is_full() {
            // Like Linux: a SYN that could not be accepted now is dropped, and the remote repeats
            // it.
            self.counters.backlog_overflows += 1;
            return;
        }
        let options = listener.options;
        let offer = Offer::of(segment, packet.ecn, options.ecn);
        // A connection in TIME-WAIT gives its slot to its successor, so it costs no memory. Its
        // successor gets no cookie, because that might be below numbers that were used already
        // (Linux also makes none: tcp_conn_request, `isn`).
        let is_successor = old_end.is_some();
        let is_full = self.listeners.half_open() >= self.config.half_open_max;
        let is_flooded = is_full && !is_successor;
        if is_flooded || !self.make_room() {
            self.send_cookie(now, key, &offer, options, reply_to);
            return;
        }
        let verdict = self.judge_fast_open(now, id, key, offer.syn.fast_open);
        self.listeners.begin_half_open(id);
        let slot = self.insert(|engine, generation| {
            let mut open = engine.open_context(now, *key, options, generation);
            if let Some(old_end) = old_end
                && (open.iss.wrapping_sub(old_end) as i32) <= 0
            {
                // RFC 9293 section 3.4.1: above all numbers that the old incarnation used.
                open.iss = old_end.wrapping_add(64_000);
            }
            let mut connection = Connection::accept(&open, &offer);
            connection.listener = id.0;
            connection.conditions.set(Conditions::HALF_OPEN);
            if let Verdict::Give(cookie) | Verdict::Accept(Some(cookie)) = verdict {
                connection.fast_open = Some(Box::new(FastOpen::answer(cookie)));
            }
            connection
        });
        if let Verdict::Accept(_) = verdict {
            self.offer_early(now, slot, segment, memory);
        }
        self.answer_to(slot, reply_to);
        self.settle(slot);
    }

    /// Offers a connection to the host before its handshake is complete, with the SYN's payload.
    fn offer_early(
        &mut self,
        now: Instant,
        slot: u32,
        segment: &Segment<'_>,
        memory: &mut dyn Memory,
    ) {
        let connection = &mut self.slots[slot as usize];
        let (id, listener) = (connection.id(slot), ListenerId(connection.listener));
        let mut cx = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
        };
        if !connection.open_fast(&mut cx, segment.payload, id, memory) {
            self.counters.fast_opens_declined += 1;
            return;
        }
        self.counters.fast_opens_accepted += 1;
        self.listeners.begin_fast_open(listener);
        let is_offered = self.offer(listener, id);
        debug_assert!(is_offered, "it was not full");
    }

    /// RFC 4987 section 3.6: the acknowledgement that completes a handshake stored only in its
    /// cookie.
    fn open_from_cookie(
        &mut self,
        now: Instant,
        came: Ecn,
        segment: &Segment<'_>,
        key: &FlowKey,
        reply_to: ReplyTo,
        memory: &mut dyn Memory,
    ) -> bool {
        let Some((isn, mut offer)) = self.cookie_in(now, segment, key) else {
            return false;
        };
        let Some((listener, found)) = self.listeners.find(key.local, key.local_port) else {
            return false;
        };
        if found.is_full() {
            self.counters.backlog_overflows += 1;
            return true; // Dropped: the remote repeats its acknowledgement or its data.
        }
        let options = found.options;
        offer.ecn = options.ecn.by_cookie(offer.ecn, segment);
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
        self.learn_from(key, reply_to);
        // The segment may carry data; now it is an ordinary segment of the connection.
        let connection = &mut self.slots[slot as usize];
        let id = connection.id(slot);
        let mut cx = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
        };
        debug_assert_eq!(connection.state, State::Established);
        connection.handle_segment(&mut cx, segment, came, id, memory);
        self.settle(slot);
        true
    }

    /// Whether a segment that a half-open connection refuses completes an earlier handshake, which
    /// is stored only in its cookie. This happens when the SYN came again after there was room for
    /// a half-open connection. Then the half-open connection is dropped. Like Linux, whose listener
    /// examines segments that a request refuses (tcp_v4_rcv, tcp_check_req).
    #[cold]
    fn yields_to_cookie(&mut self, now: Instant, slot: u32, segment: &Segment<'_>) -> bool {
        let connection = &self.slots[slot as usize];
        let (state, key) = (connection.state, connection.key);
        let ends_handshake = segment.flags.has(Flags::ACK) && !segment.flags.has(Flags::SYN);
        // The host may already serve a connection that Fast Open opened.
        let is_served = connection.is_fast_opened() && !connection.news.has(News::UNSEEN);
        let gives_way = state == State::SynReceived
            && !is_served
            && ends_handshake
            && self.cookie_in(now, segment, &key).is_some();
        if !gives_way {
            return false;
        }
        self.slots[slot as usize].close(crate::state::CloseReason::Reset);
        self.settle(slot);
        true
    }

    /// The initial sequence number and the offer that a valid cookie in the segment encodes.
    fn cookie_in(
        &self,
        now: Instant,
        segment: &Segment<'_>,
        key: &FlowKey,
    ) -> Option<(u32, Offer)> {
        if !self.awaits_cookies(now) {
            return None;
        }
        let offset = self.timestamp_offset(key);
        let clock = |echo: u32| echo.wrapping_sub(offset);
        self.secrets.cookies.open(now, key, segment, clock)
    }

    fn awaits_cookies(&self, now: Instant) -> bool {
        self.cookie_sent_at
            .is_some_and(|at| now.since(at) < COOKIE_GRACE)
    }

    /// The answer to a SYN goes to the hardware address that sent it, unless we know a better one.
    /// That address is remembered only when the handshake has proved that the remote exists: so a
    /// flood fills no table.
    fn answer_to(&mut self, slot: u32, source: ReplyTo) {
        let key = self.slots[slot as usize].key;
        let Some(mac) = source.filter(|mac| !mac.is_group()) else {
            return;
        };
        match self.interface.next_hop(&key) {
            NextHop::At(hop) if !self.neighbours.knows(hop) => {
                self.write_template(slot, &key, Some(mac));
            }
            NextHop::Unknown => {
                // The template is used only if there is a route, see `prepare_template`.
                self.write_template(slot, &key, Some(mac));
                self.slots[slot as usize].template.forget();
            }
            NextHop::At(_) | NextHop::NoRoute => {}
        }
    }

    /// Learns the next hop's address from a remote that speaks first. A known address is not
    /// changed.
    fn learn_from(&mut self, key: &FlowKey, source: ReplyTo) {
        if let (Some(mac), NextHop::At(hop)) = (source, self.interface.next_hop(key)) {
            let learned = self.neighbours.learn_if_unknown(hop, mac);
            self.note(hop, learned);
        }
    }
}
