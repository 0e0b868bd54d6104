//! From a plan to a frame.
//!
//! A frame has two parts: headers, written into the caller's buffer, and payload, named by its
//! place in the host's ring. A link that gathers (writev, descriptors) never copies payload.
//! [`Engine::poll_frame`] is for links that need the frame in one piece.

use super::Engine;
use crate::config::Medium;
use crate::connection::{
    AccurateEcn, Conditions, Connection, Context, Layout, Plan, PlanKind, TCP_AT_V4, TCP_AT_V6,
};
use crate::flow::FlowKey;
use crate::host::{ConnectionId, Memory};
use crate::position::Position;
use crate::state::{CloseReason, State};
use crate::time::Instant;
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{self, MacAddress};
use crate::wire::ip::{self, Address, Ecn};
use crate::wire::tcp::{self, Flags, OptionWriter, Timestamps};

use super::neighbours::{Learned, Resolution};
use super::next_hops::{Asked, NextHop};

/// The buffer size that [`Engine::poll_transmit`] needs for headers. Echo replies, which are
/// written whole, are the longest.
pub const HEADER_BUFFER_BYTES: usize = 2_048;

/// The payload of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload {
    /// The connection of the stream.
    pub connection: ConnectionId,
    /// Offset of the first byte in the stream.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u32,
}

/// The remaining work on a frame's TCP checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChecksumWork {
    /// Nothing.
    Done,
    /// The link completes the checksum: it sums from `start` on and stores the result at `start +
    /// at`.
    Link {
        /// Offset of the TCP header in the frame.
        start: u16,
        /// Offset of the checksum in the TCP header; the field holds the pseudo-header's sum.
        at: u16,
    },
    /// The sum of the payload must be added to `sum`, and the checksum stored at `at` in the
    /// headers.
    Payload {
        /// Sum of the pseudo-header and the TCP header.
        sum: Sum,
        /// Offset of the checksum in the frame.
        at: u16,
    },
}

/// The link's work on a frame (the content of `virtio_net_hdr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransmitOffload {
    /// The TCP checksum.
    pub checksum: ChecksumWork,
    /// Divide the payload into segments of this size; zero: one segment.
    pub segment_bytes: u16,
    /// Length of all headers, which segmentation repeats.
    pub header_bytes: u16,
    /// IPv6 rather than IPv4.
    pub is_v6: bool,
    /// The packet is ECN-capable, and only its first segment carries CWR.
    pub has_cwr: bool,
}

/// A frame to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Bytes written into the header buffer.
    pub header_bytes: usize,
    /// The payload that follows.
    pub payload: Option<Payload>,
    /// The link's work on the frame.
    pub offload: TransmitOffload,
}

impl Transmit {
    /// Completes the checksum in the headers, given the sum of the payload.
    pub fn complete_checksum(&mut self, header: &mut [u8], payload: Sum) {
        if let ChecksumWork::Payload { sum, at } = self.offload.checksum {
            // All headers have an even length, so the payload begins at an even offset.
            let at = usize::from(at);
            header[at..at + 2].copy_from_slice(&sum.join(payload).checksum());
            self.offload.checksum = ChecksumWork::Done;
        }
    }
}

impl Engine {
    /// The next frame to be sent. Its headers are written to the start of `header` (at least
    /// [`HEADER_BUFFER_BYTES`] long).
    ///
    /// # Panics
    /// When `header` is shorter.
    #[inline(always)]
    pub fn poll_transmit(&mut self, now: Instant, header: &mut [u8]) -> Option<Transmit> {
        let out: &mut [u8; HEADER_BUFFER_BYTES] = header
            .first_chunk_mut()
            .expect("header buffer shorter than promised");
        if self.run.goes_on::<TCP_AT_V4>(now) {
            let transmit = if self.config.offload.transmit_checksum {
                self.continue_run::<true, TCP_AT_V4>(out)
            } else {
                self.continue_run::<false, TCP_AT_V4>(out)
            };
            if transmit.is_some() {
                return transmit;
            }
        }
        match self.turns.current() {
            Some(slot) if self.control_queue.is_empty() => {
                if self.config.offload.transmit_checksum {
                    self.transmit_next::<true>(now, slot, out)
                } else {
                    self.transmit_next::<false>(now, slot, out)
                }
            }
            None if self.control_queue.is_empty() => None,
            _ => self.transmit_slowly(now, out),
        }
    }

    #[inline(never)]
    pub(super) fn transmit_slowly(
        &mut self,
        now: Instant,
        header: &mut [u8; HEADER_BUFFER_BYTES],
    ) -> Option<Transmit> {
        self.run.end();
        if let Some(frame) = self.control_queue.pop_front() {
            self.counters.frames_sent += 1;
            header[..frame.0.len()].copy_from_slice(&frame.0);
            return Some(Transmit {
                header_bytes: frame.0.len(),
                payload: None,
                offload: TransmitOffload {
                    checksum: ChecksumWork::Done,
                    segment_bytes: 0,
                    header_bytes: frame.0.len() as u16,
                    is_v6: false,
                    has_cwr: false,
                },
            });
        }
        while let Some(slot) = self.turns.current() {
            if let Some(transmit) = self.transmit_from(now, slot, header) {
                self.counters.frames_sent += 1;
                return Some(transmit);
            }
            self.turns.finish();
            self.slots[slot as usize]
                .conditions
                .clear(Conditions::QUEUED);
            self.settle_quiet(slot);
            if !self.control_queue.is_empty() {
                // Resolving a neighbour has queued a control frame.
                return self.transmit_slowly(now, header);
            }
        }
        None
    }

    /// The next frame in one piece, in `frame`. Returns its length and the link's work on it.
    ///
    /// # Panics
    /// When `frame` is too short for headers and the largest payload the configuration allows.
    pub fn poll_frame(
        &mut self,
        now: Instant,
        memory: &mut dyn Memory,
        frame: &mut [u8],
    ) -> Option<(usize, TransmitOffload)> {
        let mut transmit = self.poll_transmit(now, frame)?;
        let mut length = transmit.header_bytes;
        if let Some(payload) = transmit.payload {
            let (header, rest) = frame.split_at_mut(length);
            let bytes = &mut rest[..payload.bytes as usize];
            memory.gather(payload.connection, payload.offset, bytes);
            if matches!(transmit.offload.checksum, ChecksumWork::Payload { .. }) {
                transmit.complete_checksum(header, Sum::ZERO.bytes(bytes));
            }
            length += bytes.len();
        }
        Some((length, transmit.offload))
    }

    #[inline]
    fn transmit_from(&mut self, now: Instant, slot: u32, header: &mut [u8]) -> Option<Transmit> {
        let connection = &self.slots[slot as usize];
        // A template from the handshake is rebuilt, because the options were not negotiated then.
        let is_early = connection.state == State::Established
            && connection.template.layout == Layout::WithoutTcp
            && connection.conditions.has(Conditions::TIMESTAMPS)
            && connection.template.link_bytes > 0;
        if !connection.template.is_ready || is_early {
            match self.prepare_template(now, slot) {
                Way::Known => {}
                Way::Awaited => return None,
                Way::Crowded => {
                    self.drop_segment(now, slot);
                    return None;
                }
                Way::None(why) => {
                    self.lose_segment(now, slot, why);
                    return None;
                }
            }
        }
        let connection = &mut self.slots[slot as usize];
        let mut cx = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
        };
        let plan = connection.next_segment(&mut cx)?;
        if plan.flags.has(Flags::RST) {
            self.counters.resets_sent += 1;
        }
        let id = connection.id(slot);
        let transmit = write_segment(connection, &self.config, now, id, &plan, header);
        if plan.payload_bytes == 0 && plan.kind == PlanKind::Plain {
            connection.has_duplicate = false; // Reported.
        }
        let deadline = connection.next_deadline();
        self.ask_by(slot, deadline);
        let connection = &mut self.slots[slot as usize];
        if !connection.has_pending_output() {
            // Removed from the run queue here, so that the connection needs no visit of its own.
            connection.conditions.clear(Conditions::QUEUED);
            self.turns.finish();
            if self.slots[slot as usize].state == State::Closed {
                self.free_if_over(slot);
            }
        } else {
            _ = self.turns.go_on();
        }
        Some(transmit)
    }

    /// Settles a connection that has nothing (more) to send.
    fn settle_quiet(&mut self, slot: u32) {
        let deadline = self.slots[slot as usize].next_deadline();
        self.ask_by(slot, deadline);
        self.free_if_over(slot);
    }

    /// Without a route to the remote the next segment counts as lost: the retransmission timer
    /// sends it again, up to R2. RFC 1122 section 4.2.3.9: on such a soft error TCP "MUST NOT abort
    /// the connection". RFC 5461 section 4.1: but TCP may abort a connection that is not
    /// synchronized.
    #[cold]
    fn lose_segment(&mut self, now: Instant, slot: u32, why: CloseReason) {
        let connection = &mut self.slots[slot as usize];
        if matches!(connection.state, State::SynSent | State::SynReceived) {
            connection.close(why);
            return self.settle_later(slot);
        }
        if let Some(lost) = self.drop_segment(now, slot) {
            self.slots[slot as usize].note_no_route(lost, why);
        }
    }

    /// Counts the next segment as lost before it was sent; the timer sends it again. Returns the
    /// segment's start.
    #[cold]
    fn drop_segment(&mut self, now: Instant, slot: u32) -> Option<Position> {
        let connection = &mut self.slots[slot as usize];
        let mut cx = Context {
            now,
            config: &self.config,
            counters: &mut self.counters,
        };
        let lost = connection.next_segment(&mut cx);
        let deadline = connection.next_deadline();
        self.ask_by(slot, deadline);
        lost.map(|plan| plan.seq)
    }

    /// Writes the headers with which a connection's segments begin, if the next hop is known.
    #[cold]
    fn prepare_template(&mut self, now: Instant, slot: u32) -> Way {
        let key = self.slots[slot as usize].key;
        let mut mac = None;
        if let Medium::Ethernet { .. } = self.config.medium {
            let hop = match self.interface.next_hop(&key) {
                NextHop::At(hop) => hop,
                NextHop::NoRoute => return Way::None(CloseReason::NoRoute),
                NextHop::Unknown => {
                    let asked = self
                        .interface
                        .next_hops
                        .as_mut()
                        .map(|next_hops| next_hops.ask(&key, slot));
                    return match asked {
                        Some(Asked::Waits) => Way::Awaited,
                        Some(Asked::Full) | None => Way::Crowded,
                    };
                }
            };
            let sender = self.sender_of_syn(slot);
            match self.neighbours.resolve_or(now, hop, sender) {
                Resolution::At(found) => mac = Some(found),
                Resolution::Ask => {
                    self.neighbours.wait(hop, slot);
                    self.ask_for(hop);
                    return Way::Awaited;
                }
                Resolution::Wait => {
                    self.neighbours.wait(hop, slot);
                    return Way::Awaited;
                }
                Resolution::Full => return Way::Crowded,
            }
        }
        self.write_template(slot, &key, mac);
        Way::Known
    }

    /// The hardware address that sent a half-open connection's SYN, if the headers were written to
    /// that address before the route was known.
    fn sender_of_syn(&self, slot: u32) -> Option<MacAddress> {
        let connection = &self.slots[slot as usize];
        let (state, template) = (connection.state, &connection.template);
        let &[a, b, c, d, e, f, ..] = &template.bytes;
        let is_kept = state == State::SynReceived && template.link_bytes > 0;
        is_kept.then_some(MacAddress([a, b, c, d, e, f]))
    }

    pub(super) fn write_template(&mut self, slot: u32, key: &FlowKey, mac: Option<MacAddress>) {
        let is_v4 = key.remote.is_v4();
        let template = &mut self.slots[slot as usize].template;
        let mut link_bytes = 0;
        if let (Medium::Ethernet { mac: ours, .. }, Some(mac)) = (self.config.medium, mac) {
            let ether_type = if is_v4 {
                ethernet::TYPE_IPV4
            } else {
                ethernet::TYPE_IPV6
            };
            ethernet::write(&mut template.bytes, mac, ours, ether_type);
            link_bytes = ethernet::HEADER_BYTES;
        }
        let header = ip::Header {
            source: key.local,
            destination: key.remote,
            protocol: ip::PROTOCOL_TCP,
        };
        header.write(&mut template.bytes[link_bytes..], 0, self.config.hop_limit);
        template.layout = Layout::WithoutTcp;
        template.link_bytes = link_bytes as u8;
        template.ip_bytes = ip::header_bytes(is_v4) as u8;
        let pseudo = ip::pseudo_header(key.local, key.remote, ip::PROTOCOL_TCP, 0);
        template.pseudo_short = pseudo.short();
        template.is_ready = true;
        let connection = &mut self.slots[slot as usize];
        let has_timestamps = connection.conditions.has(Conditions::TIMESTAMPS);
        if link_bytes > 0 && has_timestamps && connection.state == State::Established {
            connection.template.complete(key);
            connection.is_told = false;
        }
    }

    /// A neighbour was heard: connections that waited for it are queued, and headers with an old
    /// address are written again.
    pub(super) fn note(&mut self, hop: Address, learned: Learned) {
        if learned.has_moved {
            self.forget_templates(hop);
        }
        for slot in learned.woken {
            self.settle(slot);
        }
    }

    #[cold]
    fn forget_templates(&mut self, hop: Address) {
        self.run.end();
        for connection in &mut self.slots {
            let its = self.interface.next_hop(&connection.key);
            // A next hop that is still to be asked for may be this neighbour.
            if its == NextHop::At(hop) || its == NextHop::Unknown {
                connection.template.forget();
            }
        }
    }

    /// RFC 1122 section 2.3.2.1: repeated timeouts are a reason to resolve the neighbour again.
    pub(super) fn suspect_neighbour(&mut self, slot: u32) {
        let Medium::Ethernet { resolve, .. } = self.config.medium else {
            return;
        };
        let connection = &mut self.slots[slot as usize];
        if connection.state == State::SynReceived {
            return; // Its sender, if there is one, has only just said where it is.
        }
        let key = connection.key;
        if resolve {
            connection.template.forget();
        }
        match self.interface.next_hop(&key) {
            NextHop::At(hop) if resolve => self.neighbours.suspect(hop),
            // The known address is used until the host answers.
            NextHop::At(hop) => self.ask_for(hop),
            // Then the route has to be asked for first.
            NextHop::Unknown => connection.template.forget(),
            NextHop::NoRoute => {}
        }
    }

    /// Asks again for neighbours that have not answered, and gives up after too many attempts.
    pub(super) fn retry_neighbours(&mut self, now: Instant) {
        if self.neighbours.next_deadline() > now {
            return;
        }
        if self.neighbours.is_round_over(now) {
            let in_use = |connection: &Connection| {
                let is_ready = connection.template.is_ready && connection.state != State::Closed;
                match self.interface.next_hop(&connection.key) {
                    NextHop::At(hop) if is_ready => Some(hop),
                    _ => None,
                }
            };
            let hops = self.slots.iter().filter_map(in_use).collect();
            let ask = self.neighbours.begin_round(now, &hops);
            ask.into_iter().for_each(|hop| self.ask_for(hop));
        }
        let overdue = self.neighbours.handle_timeout(now);
        overdue.ask.into_iter().for_each(|hop| self.ask_for(hop));
        for hop in overdue.gone {
            self.forget_templates(hop);
        }
        for slot in overdue.failed {
            self.give_up_waiting(now, slot, CloseReason::Unreachable);
        }
    }

    /// A connection's segment has waited for a next hop, and there is none.
    fn give_up_waiting(&mut self, now: Instant, slot: u32, why: CloseReason) {
        // From now on an established connection's own timer asks again.
        self.lose_segment(now, slot, why);
        let connection = &mut self.slots[slot as usize];
        if connection.snd_nxt == connection.snd_una && connection.state == State::Closed {
            connection.conditions.clear(Conditions::RESET_DUE);
        }
        self.settle_later(slot);
    }

    /// Takes the host's answer about a route.
    pub(super) fn note_next_hop(
        &mut self,
        now: Instant,
        (local, remote): (Address, Address),
        hop: Option<Address>,
    ) {
        let next_hops = self.interface.next_hops.as_mut();
        let woken = next_hops.map(|next_hops| next_hops.set(local, remote, hop));
        for slot in woken.unwrap_or_default() {
            let connection = &self.slots[slot as usize];
            let (key, conditions) = (connection.key, connection.conditions);
            let is_it = (key.local, key.remote) == (local, remote);
            if conditions.has(Conditions::FREE) || !is_it || connection.state == State::Closed {
                continue;
            }
            match hop {
                Some(_) => self.settle(slot),
                None => self.give_up_waiting(now, slot, CloseReason::NoRoute),
            }
        }
    }

    /// [`Self::settle`] for a slot that may be queued to send.
    fn settle_later(&mut self, slot: u32) {
        if self.slots[slot as usize].state == State::Closed {
            self.settle(slot);
        }
    }
}

/// Whether the next hop of a connection's segments is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Known,
    /// The neighbour was asked and has not answered yet.
    Awaited,
    /// Too many neighbours are being resolved. This says nothing about this neighbour, so no
    /// connection ends: like Linux (`ip_finish_output2`, when `__neigh_create` has no room), we let
    /// the retransmission timer try again.
    Crowded,
    /// There is no route, or the neighbour does not answer.
    None(CloseReason),
}

/// Writes a segment's headers.
#[inline]
fn write_segment(
    connection: &Connection,
    config: &crate::config::Config,
    now: Instant,
    id: ConnectionId,
    plan: &Plan,
    out: &mut [u8],
) -> Transmit {
    let template = &connection.template;
    let (link_bytes, ip_bytes) = (
        usize::from(template.link_bytes),
        usize::from(template.ip_bytes),
    );
    let tcp_at = link_bytes + ip_bytes;
    let is_v4 = ip_bytes == ip::V4_HEADER_BYTES;
    let out: &mut [u8; HEADER_BUFFER_BYTES] = out
        .first_chunk_mut()
        .expect("poll_transmit has checked the length");
    out[..TCP_AT_V6].copy_from_slice(&template.bytes[..TCP_AT_V6]);

    let options_at = tcp_at + tcp::HEADER_BYTES;
    let options_bytes = write_options(connection, config, now, plan, &mut out[options_at..]);
    let header_bytes = tcp::HEADER_BYTES + options_bytes;
    let payload_bytes = plan.payload_bytes as usize;
    let ecn = if plan.ecn_capable {
        Ecn::Ect0
    } else {
        Ecn::NotCapable
    };
    let packet_bytes = header_bytes + payload_bytes;
    ip::patch(&mut out[link_bytes..], is_v4, packet_bytes, ecn);
    tcp_header(connection, plan).write(&mut out[tcp_at..], options_bytes);

    let pseudo = Sum::of_short(template.pseudo_short);
    let pseudo = pseudo_with_length(pseudo, packet_bytes);
    let is_offloaded = config.offload.transmit_checksum;
    let checksum = write_checksum(
        out,
        (tcp_at, header_bytes),
        payload_bytes,
        pseudo,
        is_offloaded,
    );
    let is_large = payload_bytes > usize::from(connection.mss) && !plan.is_path_probe;
    Transmit {
        header_bytes: tcp_at + header_bytes,
        payload: (payload_bytes > 0).then(|| Payload {
            connection: id,
            offset: plan.seq.byte(),
            bytes: plan.payload_bytes,
        }),
        offload: TransmitOffload {
            checksum,
            segment_bytes: if is_large { connection.mss } else { 0 },
            header_bytes: (tcp_at + header_bytes) as u16,
            is_v6: !is_v4,
            has_cwr: plan.flags.has(Flags::CWR),
        },
    }
}

#[inline]
fn tcp_header(connection: &Connection, plan: &Plan) -> tcp::Header {
    tcp::Header {
        source_port: connection.key.local_port,
        destination_port: connection.key.remote_port,
        seq: plan.seq.wire(connection.snd_first),
        ack: if plan.flags.has(Flags::ACK) {
            connection.rcv_nxt.wire(connection.rcv_first)
        } else {
            0
        },
        flags: plan.flags,
        window: plan.window,
    }
}

/// Writes as much of a segment's TCP checksum as is known without the payload, and returns the
/// remaining work. The link does all of it if `is_offloaded`.
#[inline]
fn write_checksum(
    out: &mut [u8; HEADER_BUFFER_BYTES],
    (tcp_at, header_bytes): (usize, usize),
    payload_bytes: usize,
    pseudo: Sum,
    is_offloaded: bool,
) -> ChecksumWork {
    let at = tcp_at + tcp::CHECKSUM_AT;
    //= RFC 9293#3.1
    //# The sender MUST generate it (MUST-2)
    if is_offloaded {
        out[at..at + 2].copy_from_slice(&pseudo.partial());
        return ChecksumWork::Link {
            start: tcp_at as u16,
            at: tcp::CHECKSUM_AT as u16,
        };
    }
    let sum = pseudo.bytes(&out[tcp_at..tcp_at + header_bytes]);
    if payload_bytes == 0 {
        out[at..at + 2].copy_from_slice(&sum.checksum());
        ChecksumWork::Done
    } else {
        ChecksumWork::Payload { sum, at: at as u16 }
    }
}

#[inline]
fn pseudo_with_length(pseudo: Sum, length: usize) -> Sum {
    pseudo.word((length >> 16) as u16).word(length as u16)
}

//= RFC 7323#3.2
//# When the ACK bit is set in an outgoing segment, the sender MUST echo a recently received
//# TSval sent by the remote TCP in the TSval field of a Timestamps option.
//= RFC 7323#3.2
//# Once TSopt has been successfully negotiated, that is both <SYN> and <SYN,ACK> contain
//# TSopt, the TSopt MUST be sent in every non-<RST> segment for the duration of the
//# connection, and SHOULD be sent in an <RST> segment (see Section 5.2 for details).
/// Writes the options of a segment; returns their length in bytes.
#[inline]
fn write_options(
    connection: &Connection,
    config: &crate::config::Config,
    now: Instant,
    plan: &Plan,
    out: &mut [u8],
) -> usize {
    let timestamps = Timestamps {
        value: connection.timestamp(now),
        echo: if plan.flags.has(Flags::ACK) {
            connection.ts_recent
        } else {
            0
        },
    };
    let has_timestamps = connection.conditions.has(Conditions::TIMESTAMPS);
    let has_blocks = plan.kind == PlanKind::Plain
        && connection.conditions.has(Conditions::SACK)
        && (connection.conditions.has(Conditions::OUT_OF_ORDER) || connection.has_duplicate);
    let counters = connection
        .accurate_ecn
        .as_deref()
        .map(AccurateEcn::counters);
    //= RFC 9768#3.2.3.2.1
    //# The TCP Client MUST NOT include an AccECN TCP Option on the SYN.
    //= RFC 9768#3.2.3.2.1
    //# A TCP Client that has successfully negotiated AccECN SHOULD include an AccECN Option in the
    //# first ACK at the end of the three-way handshake.
    //= RFC 9768#3.2.3.2.3
    //# However, it cannot make any assumption about support of outgoing AccECN Options on the other
    //# half connection, so it SHOULD continue to send AccECN Options itself (unless it has
    //# established that sending AccECN Options is causing packets to be blocked as in Section
    //# 3.2.3.2.2).
    let is_empty = plan.payload_bytes == 0 && !plan.flags.has(Flags::RST);
    let counters = counters.filter(|_| plan.kind == PlanKind::Plain && is_empty);
    if plan.kind == PlanKind::Plain && !has_blocks && counters.is_none() {
        if !has_timestamps {
            return 0;
        }
        out[..tcp::TIMESTAMPS_BYTES].copy_from_slice(&tcp::timestamps_bytes(timestamps));
        return tcp::TIMESTAMPS_BYTES;
    }
    let mut writer = OptionWriter::new();
    if plan.kind == PlanKind::Syn {
        let mut syn = connection.syn_options(config);
        syn.timestamps = syn.timestamps.map(|_| timestamps);
        writer.syn(&syn);
    } else {
        if has_timestamps {
            writer.timestamps(timestamps);
        }
        // A segment with data keeps its size: SACK blocks are added only where there is room.
        let (blocks, count) = match plan.payload_bytes == 0 && has_blocks {
            true => connection.sack_option(),
            false => Default::default(),
        };
        if let Some(counters) = counters {
            writer.ecn_counters(counters, count);
        }
        writer.sack(&blocks[..count]);
    }
    let bytes = writer.as_bytes();
    out[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

impl Connection {
    /// The blocks of a SACK option: a duplicate first (RFC 2883 section 4), then the data that has
    /// arrived beyond a gap (RFC 2018 section 4).
    fn sack_option(&self) -> ([(u32, u32); 4], usize) {
        let mut blocks = [(0, 0); 4];
        let mut count = 0;
        let wire = |position: Position| position.wire(self.rcv_first);
        let mut put = |start: Position, end: Position| {
            if count < blocks.len() {
                blocks[count] = (wire(start), wire(end));
                count += 1;
            }
        };
        let mut said = None;
        //= RFC 9768#3.1.1
        //# If SACK is implemented with AccECN, Duplicate Selective Acknowledgement (D-SACK)
        //# [RFC2883] MUST also be implemented.
        if self.has_duplicate {
            let duplicate = self.duplicate;
            put(duplicate.start, duplicate.end);
            // RFC 2883 section 4: a duplicate beyond the gap is followed by the block that contains
            // it.
            said = self.assembler.containing(duplicate);
            if let Some(range) = said {
                put(range.start, range.end);
            }
        }
        for range in self
            .assembler
            .sack_blocks()
            .filter(|range| said != Some(*range))
        {
            put(range.start, range.end);
        }
        (blocks, count)
    }
}
