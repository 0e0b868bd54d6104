//! Frames that belong to no connection: ARP, neighbour discovery, ICMP, resets, SYN cookies.

use super::frames::ReplyTo;
use super::neighbours::Occasion;
use super::{CONTROL_FRAMES_MAX, Engine, HEADER_BUFFER_BYTES};
use crate::config::{EcnMode, Medium, Options};
use crate::connection::{Conditions, Connection, Context, Offer, window_scale};
use crate::flow::FlowKey;
use crate::state::{CloseReason, State};
use crate::time::Instant;
use crate::wire::ethernet::{self, MacAddress};
use crate::wire::icmp::NeighbourMessage::{Advertisement, Solicitation};
use crate::wire::icmp::{self, Message, Trouble};
use crate::wire::ip::{self, Address, Packet};
use crate::wire::tcp::{self, Flags, OptionWriter, Segment, SynOptions, Timestamps};
use crate::wire::{Malformed, arp, u16_at, u32_at};

/// A complete frame, ready for the link.
#[derive(Debug)]
pub(super) struct ControlFrame(pub(super) Box<[u8]>);

impl Engine {
    fn queue(&mut self, frame: Vec<u8>) {
        if self.control_queue.len() >= CONTROL_FRAMES_MAX {
            self.counters.control_queue_full += 1;
            return;
        }
        self.control_queue
            .push_back(ControlFrame(frame.into_boxed_slice()));
    }

    /// A frame with its link and IP headers and room for `payload_bytes`; and the offset of that
    /// room.
    fn frame_to(
        &self,
        mac: Option<MacAddress>,
        header: &ip::Header,
        payload_bytes: usize,
        hop_limit: Option<u8>,
    ) -> (Vec<u8>, usize) {
        let link_bytes = match (self.config.medium, mac) {
            (Medium::Ethernet { .. }, Some(_)) => ethernet::HEADER_BYTES,
            _ => 0,
        };
        let is_v4 = header.source.is_v4();
        let at = link_bytes + ip::header_bytes(is_v4);
        let mut frame = vec![0; at + payload_bytes];
        if let (Medium::Ethernet { mac: ours, .. }, Some(mac)) = (self.config.medium, mac) {
            let ether_type = if is_v4 {
                ethernet::TYPE_IPV4
            } else {
                ethernet::TYPE_IPV6
            };
            ethernet::write(&mut frame, mac, ours, ether_type);
        }
        header.write(
            &mut frame[link_bytes..],
            payload_bytes,
            hop_limit.unwrap_or(self.config.hop_limit),
        );
        (frame, at)
    }

    /// RFC 826, packet reception.
    pub(super) fn handle_arp(&mut self, now: Instant, packet: &arp::Packet) {
        let Medium::Ethernet { mac, resolve: true } = self.config.medium else {
            return;
        };
        let is_for_us = self.learn_from_arp(packet);
        if is_for_us && packet.is_request {
            let limit = self.config.arp_replies_per_second_max;
            if !self.arp_replies.allows(now, limit, &mut self.random) {
                self.counters.neighbour_answers_suppressed += 1;
                return;
            }
            self.queue_arp(&arp::Packet {
                is_request: false,
                sender_mac: mac,
                sender: packet.target,
                target_mac: packet.sender_mac,
                target: packet.sender,
            });
        }
    }

    /// Learns the sender's hardware address; returns whether the packet is for us.
    pub(super) fn learn_from_arp(&mut self, packet: &arp::Packet) -> bool {
        let sender = Address::v4(packet.sender.into());
        let is_for_us = self.interface.is_ours(Address::v4(packet.target.into()));
        if !packet.sender.is_unspecified() {
            let word = if is_for_us {
                Occasion::Request
            } else {
                Occasion::AnswerOrOverheard
            };
            let learned = self.neighbours.learn(sender, packet.sender_mac, word);
            self.note(sender, learned);
        }
        is_for_us
    }

    fn queue_arp(&mut self, packet: &arp::Packet) {
        let mut frame = vec![0; ethernet::HEADER_BYTES + arp::PACKET_BYTES];
        let to = if packet.is_request {
            MacAddress::BROADCAST
        } else {
            packet.target_mac
        };
        ethernet::write(&mut frame, to, packet.sender_mac, ethernet::TYPE_ARP);
        packet.write(&mut frame[ethernet::HEADER_BYTES..]);
        self.queue(frame);
    }

    /// Asks the link, or the host, for the hardware address of `hop`.
    pub(super) fn ask_for(&mut self, hop: Address) {
        let Medium::Ethernet { mac, resolve } = self.config.medium else {
            return;
        };
        if !resolve {
            // The queue is bounded like that of control frames. Other neighbours are asked for
            // again later.
            if self.unresolved.len() < CONTROL_FRAMES_MAX {
                self.unresolved.push_back(hop);
            }
            return;
        }
        let Some(source) = self.interface.source_for(hop) else {
            return;
        };
        if hop.is_v4() {
            self.queue_arp(&arp::Packet {
                is_request: true,
                sender_mac: mac,
                sender: source.low().into(),
                target_mac: MacAddress::default(),
                target: hop.low().into(),
            });
            return;
        }
        // RFC 4291 section 2.7.1 and RFC 2464 section 7: the solicited-node multicast address.
        let low = hop.low();
        let group = Address([0xff02 << 48, 0x1_ff00_0000 | u64::from(low & 0x00ff_ffff)]);
        let [_, b, c, d] = low.to_be_bytes();
        let header = ip::Header {
            source,
            destination: group,
            protocol: ip::PROTOCOL_ICMP_V6,
        };
        let group_mac = MacAddress([0x33, 0x33, 0xff, b, c, d]);
        let (mut frame, at) =
            self.frame_to(Some(group_mac), &header, icmp::NEIGHBOUR_BYTES, Some(255));
        icmp::write_neighbour(&mut frame[at..], &header, hop, mac, Solicitation);
        self.queue(frame);
    }

    pub(super) fn handle_icmp(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        reply_to: ReplyTo,
    ) -> Result<(), Malformed> {
        let message = Message::parse(packet)?;
        self.learn_from_discovery(packet, &message);
        match message {
            Message::Echo { body } => self.answer_echo(now, packet, body, reply_to),
            Message::Error { trouble, quoted } => {
                self.handle_trouble(now, trouble, quoted, packet.source.is_v4());
            }
            Message::Solicitation { target, source_mac } => {
                self.answer_solicitation(now, packet, target, source_mac.or(reply_to));
            }
            Message::Advertisement { .. } | Message::Other => {}
        }
        Ok(())
    }

    /// Learns neighbours' hardware addresses, by RFC 4861.
    pub(super) fn learn_from_discovery(&mut self, packet: &Packet<'_>, message: &Message<'_>) {
        let Medium::Ethernet { resolve, .. } = self.config.medium else {
            return;
        };
        match *message {
            // Section 7.2.3: a host that asks for us also gives its own address.
            Message::Solicitation {
                target,
                source_mac: Some(mac),
            } if resolve && self.interface.is_ours(target) && packet.source.is_unicast() => {
                let learned = self.neighbours.learn(packet.source, mac, Occasion::Request);
                self.note(packet.source, learned);
            }
            // Section 7.2.5: without the override flag it "MUST NOT update the cache" if the cache
            // has another address.
            Message::Advertisement {
                target,
                mac: Some(mac),
                overrides,
            } if overrides || !self.neighbours.is_elsewhere(target, mac) => {
                let learned = self
                    .neighbours
                    .learn(target, mac, Occasion::AnswerOrOverheard);
                self.note(target, learned);
            }
            _ => {}
        }
    }

    /// RFC 1122 section 3.2.2.6, RFC 4443 section 4.2.
    fn answer_echo(&mut self, now: Instant, packet: &Packet<'_>, body: &[u8], reply_to: ReplyTo) {
        let limit = self.config.echo_replies_per_second_max;
        let fits = body.len() + 4 + 40 + ethernet::HEADER_BYTES
            <= HEADER_BUFFER_BYTES.min(usize::from(self.config.mtu));
        if !self.interface.is_ours(packet.destination)
            || !packet.source.is_unicast()
            || !fits
            || !self.echo_replies.allows(now, limit, &mut self.random)
        {
            return;
        }
        let header = ip::Header {
            source: packet.destination,
            destination: packet.source,
            protocol: packet.protocol,
        };
        let (mut frame, at) = self.frame_to(reply_to, &header, 4 + body.len(), None);
        icmp::write_echo_reply(&mut frame[at..], &header, body);
        self.queue(frame);
    }

    /// RFC 4861 section 7.2.3 and 7.2.4.
    fn answer_solicitation(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        target: Address,
        source_mac: Option<MacAddress>,
    ) {
        let Medium::Ethernet { mac, resolve: true } = self.config.medium else {
            return;
        };
        if !self.interface.is_ours(target) {
            return;
        }
        let limit = self.config.advertisements_per_second_max;
        if !self.advertisements.allows(now, limit, &mut self.random) {
            self.counters.neighbour_answers_suppressed += 1;
            return;
        }
        // Duplicate address detection (RFC 4862) asks from the unspecified address, and is answered
        // to all nodes. Here it can only find that the address is ours.
        let is_solicited = packet.source.is_unicast();
        let (destination, to) = match source_mac {
            Some(source_mac) if is_solicited => (packet.source, source_mac),
            _ => (
                Address([0xff02 << 48, 1]),
                MacAddress([0x33, 0x33, 0, 0, 0, 1]),
            ),
        };
        let header = ip::Header {
            source: target,
            destination,
            protocol: ip::PROTOCOL_ICMP_V6,
        };
        let (mut frame, at) = self.frame_to(Some(to), &header, icmp::NEIGHBOUR_BYTES, Some(255));
        let message = Advertisement { is_solicited };
        icmp::write_neighbour(&mut frame[at..], &header, target, mac, message);
        self.queue(frame);
    }

    //= RFC 9293#3.9.2.2
    //# TCP implementations MUST act on an ICMP error message passed up from the IP layer,
    //# directing it to the connection that created the error (MUST-54).
    /// An ICMP error about a segment of ours (RFC 1122 section 4.2.3.9, RFC 5927).
    fn handle_trouble(&mut self, now: Instant, trouble: Trouble, quoted: &[u8], is_v4: bool) {
        let Some((key, seq)) = quoted_flow(quoted, is_v4) else {
            return;
        };
        let Some(slot) = self.find_flow(&key) else {
            return;
        };
        let connection = &mut self.slots[slot as usize];
        // RFC 5927 section 4.1: the quoted sequence number must be in flight.
        let (una, nxt) = (
            connection.snd_una.wire(connection.snd_first),
            connection.snd_nxt.wire(connection.snd_first),
        );
        if seq.wrapping_sub(una) >= nxt.wrapping_sub(una) {
            return;
        }
        let tried_fast_open = connection.state == State::SynSent && connection.tried_fast_open();
        match trouble {
            Trouble::TooBig { mtu } => {
                let Some(path_mss) = self.interface.narrow(now, key.remote, mtu) else {
                    return;
                };
                let mut cx = Context {
                    now,
                    config: &self.config,
                    counters: &mut self.counters,
                };
                connection.narrow_path(&mut cx, path_mss);
            }
            Trouble::Refused => end_attempt(connection, CloseReason::Refused),
            Trouble::Unreachable => note_no_route(connection, CloseReason::Unreachable),
            Trouble::NoRoute => note_no_route(connection, CloseReason::NoRoute),
            Trouble::Forbidden => note_no_route(connection, CloseReason::Forbidden),
        }
        if tried_fast_open {
            self.note_refused_fast_open(now, slot);
        }
        self.settle(slot);
    }

    /// RFC 9293 section 3.10.7.1: the reset that answers a segment without a connection.
    pub(super) fn refuse(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        segment: &Segment<'_>,
        reply_to: ReplyTo,
    ) {
        if segment.flags.has(Flags::RST) {
            return;
        }
        let limit = self.config.refusals_per_second_max;
        if !self.refusals.allows(now, limit, &mut self.random) {
            self.counters.refusals_suppressed += 1;
            return;
        }
        self.counters.resets_sent += 1;
        let end = segment.seq.wrapping_add(segment.sequence_bytes() as u32);
        let (seq, ack, flags) = if segment.flags.has(Flags::ACK) {
            (segment.ack, 0, Flags::RST)
        } else {
            (0, end, Flags::RST | Flags::ACK)
        };
        let header = tcp::Header {
            source_port: segment.destination_port,
            destination_port: segment.source_port,
            seq,
            ack,
            flags,
            window: 0,
        };
        self.queue_segment(packet.destination, packet.source, &header, &[], reply_to);
    }

    /// Acknowledges the segments before the one that was handled last. The connection's ordinary
    /// output cannot do that, because its state already includes the last segment.
    pub(super) fn acknowledge_run(&mut self, now: Instant, slot: u32, reply_to: ReplyTo) {
        let connection = &self.slots[slot as usize];
        let (end, key) = (connection.last_ack_sent, connection.key);
        let mut flags = Flags::ACK;
        if !connection.conditions.has(Conditions::MARKED_LAST) {
            flags = flags | Flags::ECE;
        }
        let window = (connection.rcv_edge - end) >> connection.rcv_wscale;
        let header = tcp::Header {
            source_port: key.local_port,
            destination_port: key.remote_port,
            seq: connection.acceptable_seq().wire(connection.snd_first),
            ack: end.wire(connection.rcv_first),
            flags,
            window: window.min(u64::from(u16::MAX)) as u16,
        };
        let mut writer = OptionWriter::new();
        if connection.conditions.has(Conditions::TIMESTAMPS) {
            writer.timestamps(Timestamps {
                value: connection.timestamp(now),
                echo: connection.ts_recent,
            });
        }
        self.counters.segments_sent += 1;
        self.queue_segment(key.local, key.remote, &header, writer.as_bytes(), reply_to);
    }

    /// Answers a SYN without storing state (RFC 4987 section 3.6).
    pub(super) fn send_cookie(
        &mut self,
        now: Instant,
        key: &FlowKey,
        offer: &Offer,
        options: Options,
        reply_to: ReplyTo,
    ) {
        let limit = self.config.cookies_per_second_max;
        if !self.cookies.allows(now, limit, &mut self.random) {
            self.counters.cookies_suppressed += 1;
            return;
        }
        self.counters.cookies_sent += 1;
        self.cookie_sent_at = Some(now);
        // The remote echoes a timestamp only if we send one. Without timestamps the remote stores
        // no options for us.
        let mut offer = *offer;
        offer.syn.timestamps = offer.syn.timestamps.filter(|_| self.config.timestamps);
        let has_timestamps = offer.syn.timestamps.is_some();
        // RFC 3168 section 6.1.1: the connection may use ECN only if this SYN-ACK agrees, and the
        // cookie stores that.
        if !has_timestamps {
            offer.ecn = EcnMode::Off;
        }
        let (isn, bits) = self.secrets.cookies.make(now, key, &offer);
        let clock = super::cookie::stamp(now.timestamp_ticks(), bits);
        let scale = window_scale(&self.config, options.receive_bytes_max);
        let mut writer = OptionWriter::new();
        writer.syn(&SynOptions {
            mss: Some(
                self.interface
                    .route_mss(key.remote)
                    .min(options.mss_max.max(crate::connection::MSS_MIN)),
            ),
            window_scale: offer
                .syn
                .window_scale
                .filter(|_| has_timestamps)
                .map(|_| scale),
            sack_permitted: has_timestamps && offer.syn.sack_permitted && self.config.sack,
            timestamps: offer.syn.timestamps.map(|theirs| {
                let value = clock.wrapping_add(self.timestamp_offset(key));
                Timestamps {
                    value,
                    echo: theirs.value,
                }
            }),
            fast_open: None,
        });
        let header = tcp::Header {
            source_port: key.local_port,
            destination_port: key.remote_port,
            seq: isn,
            ack: offer.irs.wrapping_add(1),
            flags: Flags::SYN | Flags::ACK | offer.agreeing_flags(),
            window: options.receive_bytes.min(u32::from(u16::MAX)) as u16,
        };
        self.queue_segment(key.local, key.remote, &header, writer.as_bytes(), reply_to);
    }

    fn queue_segment(
        &mut self,
        source: Address,
        destination: Address,
        header: &tcp::Header,
        options: &[u8],
        reply_to: ReplyTo,
    ) {
        let ip_header = ip::Header {
            source,
            destination,
            protocol: ip::PROTOCOL_TCP,
        };
        let length = tcp::HEADER_BYTES + options.len();
        let (mut frame, at) = self.frame_to(reply_to, &ip_header, length, None);
        let bytes = &mut frame[at..];
        header.write(bytes, options.len());
        bytes[tcp::HEADER_BYTES..].copy_from_slice(options);
        let checksum = ip::pseudo_header(source, destination, ip::PROTOCOL_TCP, length)
            .bytes(bytes)
            .checksum();
        bytes[tcp::CHECKSUM_AT..tcp::CHECKSUM_AT + 2].copy_from_slice(&checksum);
        self.queue(frame);
    }
}

/// RFC 5461 section 4.1: errors abort only connections that are not synchronized. Like Linux
/// (tcp_v4_err), even soft errors do: the connecting program is told at once.
fn end_attempt(connection: &mut Connection, why: CloseReason) {
    if connection.state == State::SynSent {
        connection.close(why);
    }
}

fn note_no_route(connection: &mut Connection, why: CloseReason) {
    connection.note_no_route(connection.snd_una, why);
    end_attempt(connection, why);
}

/// The flow of a quoted segment that we sent, from our point of view, and its sequence number.
pub(super) fn quoted_flow(quoted: &[u8], is_v4: bool) -> Option<(FlowKey, u32)> {
    let (local, remote, protocol, header_bytes) = if is_v4 {
        let header = quoted.first_chunk::<{ ip::V4_HEADER_BYTES }>()?;
        let length = usize::from(header[0] & 0xf) * 4;
        let (source, destination) = (u32_at(header, 12), u32_at(header, 16));
        (
            Address::v4(source),
            Address::v4(destination),
            header[9],
            length,
        )
    } else {
        let header = quoted.first_chunk::<{ ip::V6_HEADER_BYTES }>()?;
        let word = |at| u64::from(u32_at(header, at)) << 32 | u64::from(u32_at(header, at + 4));
        let (source, destination) = (Address([word(8), word(16)]), Address([word(24), word(32)]));
        (source, destination, header[6], ip::V6_HEADER_BYTES)
    };
    let segment = quoted.get(header_bytes..header_bytes + 8)?;
    (protocol == ip::PROTOCOL_TCP).then(|| {
        let key = FlowKey {
            local,
            remote,
            local_port: u16_at(segment, 0),
            remote_port: u16_at(segment, 2),
        };
        (key, u32_at(segment, 4))
    })
}
