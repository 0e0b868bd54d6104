//! Frames when several engines share a link: their owner, and the use that other engines make of
//! them.
//!
//! ```text
//!   TCP, and ICMP errors about TCP     the owner of the connection
//!   a fragment                         the thread that reassembles for these two hosts
//!   ARP, neighbour discovery           all: the receiver answers, the others listen
//!   anything else, and nonsense        the receiver
//! ```

use super::Engine;
use super::control::quoted_flow;
use super::table::EndsV6;
use crate::config::Medium;
use crate::flow::FlowKey;
use crate::time::Instant;
use crate::wire::icmp::Message;
use crate::wire::ip::{self, Address, Packet};
use crate::wire::{Malformed, arp, ethernet, u16_at, u32_at};

/// The owner of a frame; see [`crate::Share`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameOwner {
    /// [`Engine::handle_frame`] of this engine.
    Engine(usize),
    /// [`Engine::put_together`] of this engine.
    Assembler(usize),
    /// [`Engine::handle_frame`] of the engine that received it, [`Engine::overhear`] of the others.
    Everybody,
    /// [`Engine::handle_frame`] of the engine that received it.
    Anybody,
}

/// Ethernet, IPv4 without options, and the ports.
const FAST_PATH_ENDS_BYTES: usize = 38;

impl Engine {
    /// The owner of a frame. The frame is checked only as far as needed for that.
    #[inline]
    #[must_use]
    pub fn frame_owner(&self, frame: &[u8]) -> FrameOwner {
        self.fast_path_owner(frame)
            .map_or_else(|| self.find_owner(frame), FrameOwner::Engine)
    }

    /// The owner of a TCP segment with the most frequent headers.
    #[inline]
    fn fast_path_owner(&self, frame: &[u8]) -> Option<usize> {
        let h = frame.first_chunk::<FAST_PATH_ENDS_BYTES>()?;
        let is_fast_path = matches!(self.config.medium, Medium::Ethernet { .. })
            && u16_at(h, 12) == ethernet::TYPE_IPV4
            && h[14] == 0x45
            && u16_at(h, 20) & 0x3fff == 0
            && h[23] == ip::PROTOCOL_TCP;
        if !is_fast_path {
            return self.fast_path_owner_v6(frame);
        }
        Some(self.config.share.owner_of(&FlowKey {
            local: Address::v4(u32_at(h, 30)),
            remote: Address::v4(u32_at(h, 26)),
            local_port: u16_at(h, 36),
            remote_port: u16_at(h, 34),
        }))
    }

    /// [`Self::fast_path_owner`] over IPv6.
    fn fast_path_owner_v6(&self, frame: &[u8]) -> Option<usize> {
        let h = frame.first_chunk()?;
        let key = EndsV6::of(h).key();
        let is_fast_path = matches!(self.config.medium, Medium::Ethernet { .. })
            && u16_at(h, 12) == ethernet::TYPE_IPV6
            && h[14] >> 4 == 6
            && h[20] == ip::PROTOCOL_TCP
            && !key.remote.is_v4();
        is_fast_path.then(|| self.config.share.owner_of(&key))
    }

    #[cold]
    fn find_owner(&self, frame: &[u8]) -> FrameOwner {
        if let (Medium::Ethernet { .. }, Some(ethernet::TYPE_ARP)) = (
            self.config.medium,
            frame.get(12..14).map(|bytes| u16_at(bytes, 0)),
        ) {
            return FrameOwner::Everybody;
        }
        let packet = self.packet_in(frame);
        packet.map_or(FrameOwner::Anybody, |packet| self.owner_of_packet(&packet))
    }

    fn owner_of_packet(&self, packet: &Packet<'_>) -> FrameOwner {
        let share = &self.config.share;
        if packet.fragment.is_some() {
            return FrameOwner::Assembler(share.assembler(packet.destination, packet.source));
        }
        match packet.protocol {
            ip::PROTOCOL_TCP => match packet.payload.first_chunk::<4>() {
                Some(ports) => FrameOwner::Engine(share.owner_of(&FlowKey {
                    local: packet.destination,
                    remote: packet.source,
                    local_port: u16_at(ports, 2),
                    remote_port: u16_at(ports, 0),
                })),
                None => FrameOwner::Anybody,
            },
            ip::PROTOCOL_ICMP | ip::PROTOCOL_ICMP_V6 => match Message::parse(packet) {
                Ok(Message::Error { quoted, .. }) => {
                    let flow = quoted_flow(quoted, packet.source.is_v4());
                    flow.map_or(FrameOwner::Anybody, |(key, _)| {
                        FrameOwner::Engine(share.owner_of(&key))
                    })
                }
                Ok(Message::Solicitation { .. } | Message::Advertisement { .. }) => {
                    FrameOwner::Everybody
                }
                _ => FrameOwner::Anybody,
            },
            _ => FrameOwner::Anybody,
        }
    }

    fn packet_in<'a>(&self, frame: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        let payload = match self.config.medium {
            Medium::Ethernet { .. } => ethernet::Frame::parse(frame)?.payload,
            Medium::Ip => frame,
        };
        match payload.first().ok_or(Malformed::IpTruncated)? >> 4 {
            4 => Packet::parse_v4(payload, true),
            6 => Packet::parse_v6(payload),
            _ => Err(Malformed::IpVersion),
        }
    }

    /// Takes a frame that another engine has handled, to learn about neighbours from it. Sends no
    /// answer and counts nothing.
    pub fn overhear(&mut self, frame: &[u8]) {
        // The engine that received the frame counts it if it is malformed.
        let _ = self.try_overhear(frame);
    }

    fn try_overhear(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        let Medium::Ethernet { mac, resolve: true } = self.config.medium else {
            return Ok(());
        };
        let header = ethernet::Frame::parse(frame)?;
        if header.destination != mac && !header.destination.is_group() {
            return Ok(());
        }
        if header.ether_type == ethernet::TYPE_ARP {
            self.learn_from_arp(&arp::Packet::parse(header.payload)?);
            return Ok(());
        }
        let packet = self.packet_in(frame)?;
        if packet.protocol == ip::PROTOCOL_ICMP_V6 && packet.fragment.is_none() {
            self.learn_from_discovery(&packet, &Message::parse(&packet)?);
        }
        Ok(())
    }

    /// Takes a fragment; any other frame is malformed. After the last fragment of a packet, returns
    /// a frame with the whole packet. It may belong to another engine; its checksums have not been
    /// verified.
    pub fn put_together(&mut self, now: Instant, frame: &[u8]) -> Option<Vec<u8>> {
        self.counters.frames_received += 1;
        let whole = self.try_put_together(now, frame);
        whole.unwrap_or_else(|reason| {
            self.counters.count_malformed(reason);
            None
        })
    }

    fn try_put_together(
        &mut self,
        now: Instant,
        frame: &[u8],
    ) -> Result<Option<Vec<u8>>, Malformed> {
        let packet = self.packet_in(frame)?;
        if packet.fragment.is_none() {
            return Err(Malformed::Fragment);
        }
        let link_bytes = match self.config.medium {
            Medium::Ethernet { mac, .. } => {
                let to = ethernet::Frame::parse(frame)?.destination;
                if to != mac && !to.is_group() {
                    self.counters.not_for_us += 1;
                    return Ok(None);
                }
                ethernet::HEADER_BYTES
            }
            Medium::Ip => 0,
        };
        let Some((payload, ecn)) = self.reassemble(now, &packet)? else {
            return Ok(None);
        };
        let is_v4 = packet.source.is_v4();
        let header_bytes = ip::header_bytes(is_v4);
        if is_v4 && header_bytes + payload.len() > usize::from(u16::MAX) {
            return Err(Malformed::Fragment);
        }
        let mut whole = frame[..link_bytes].to_vec();
        whole.resize(link_bytes + header_bytes, 0);
        let header = ip::Header {
            source: packet.source,
            destination: packet.destination,
            protocol: packet.protocol,
        };
        let out = &mut whole[link_bytes..];
        header.write(out, payload.len(), packet.hop_limit);
        ip::patch(out, is_v4, payload.len(), ecn);
        whole.extend_from_slice(&payload);
        Ok(Some(whole))
    }
}
