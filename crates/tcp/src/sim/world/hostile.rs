//! Events that are not impairments of a link: hosts that lose their state, forged frames, and SYNs
//! from hosts that do not exist.

use core::net::SocketAddr;

use super::{Happening, World};
use crate::sim::checker::{self, ACK, RST, SYN};
use crate::sim::host::{Host, SERVER_PORT, address_of, frame, host_of};
use crate::sim::impair::{set_acknowledgement, syn};
use crate::sim::link::Link;
use crate::{Duration, ReceiveOffload};

/// The numbers of the hosts that flood: no host has these numbers.
const STRANGERS: (u64, u64) = (100, 200);

impl World {
    /// A host loses its state. The hosts that were connected to it notice that later.
    pub(super) fn reboot(&mut self, host: usize) {
        for (transfer, progress) in self.scenario.transfers.iter().zip(&mut self.progress) {
            if (transfer.client == host || transfer.server == host) && progress.started_at.is_some()
            {
                progress.excused = true;
            }
        }
        let seed = self.random.bits();
        self.report.retransmissions += self.hosts[host].engine.counters().retransmissions;
        let way_out = Link::new(self.hosts[host].way_out.impairments);
        self.hosts[host] = Host {
            way_out,
            ..Host::new(&self.scenario, host, seed)
        };
    }

    /// Delivers a forged frame: noise, or a segment of a connection with changed parts.
    pub(super) fn forge(&mut self) {
        let random = &mut self.random;
        let host = random.below(self.hosts.len() as u64) as usize;
        let mut packet = if self.seen.is_empty() || random.below(8) == 0 {
            (0..random.below(120))
                .map(|_| random.bits() as u8)
                .collect()
        } else {
            self.seen[random.below(self.seen.len() as u64) as usize].clone()
        };
        for _ in 0..random.below(5) {
            if !packet.is_empty() {
                let at = random.below(packet.len().min(80) as u64) as usize;
                packet[at] = random.bits() as u8;
            }
        }
        if random.below(4) == 0 {
            packet.truncate(random.below(packet.len() as u64 + 1) as usize);
        }
        let to = host_of(&packet)
            .filter(|&to| to < self.hosts.len())
            .unwrap_or(host);
        let verified = random.below(4) != 0;
        let pause = 1_000_000 / u64::from(self.scenario.forgeries_per_second);
        let next = self.now + Duration::from_micros(pause);
        let now = self.clock_of(to);
        let offload = ReceiveOffload {
            checksum_verified: verified,
        };
        if self.scenario.traits[to].ethernet {
            frame(to, &packet, &mut self.arrived);
            self.hosts[to].take(now, &self.arrived, offload);
        } else {
            self.hosts[to].take(now, &packet, offload);
        }
        self.serve(to);
        self.push(next, Happening::Forgery);
    }

    /// A packet of an optimist: it acknowledges more than has arrived, up to all bytes that were
    /// sent (Savage and others, "TCP congestion control with a misbehaving receiver").
    pub(super) fn acknowledge_more(&mut self, host: usize, mut packet: Vec<u8>) -> Vec<u8> {
        if self.scenario.optimists.is_empty() {
            return packet;
        }
        let Some(read) = checker::parse(&packet) else {
            return packet;
        };
        let (ends, tcp_at) = ((read.source, read.destination), read.tcp_at);
        let (ack, flags) = (read.ack, read.flags);
        let end = read.seq.wrapping_add(read.payload.len() as u32);
        let known = self.sent_up_to.entry(ends).or_insert(end);
        if end.wrapping_sub(*known) < 1 << 31 {
            *known = end;
        }
        let sent = self.sent_up_to.get(&(ends.1, ends.0));
        let missing = sent.map_or(0, |sent| sent.wrapping_sub(ack));
        let is_plain = flags & (SYN | RST | ACK) == ACK;
        if is_plain && self.scenario.optimists.contains(&host) && (1..1 << 31).contains(&missing) {
            let more = self.random.below(u64::from(missing) + 1) as u32;
            set_acknowledgement(&mut packet, tcp_at, ack.wrapping_add(more));
        }
        packet
    }

    /// A host that does not exist asks for a connection.
    pub(super) fn flood(&mut self, left: u32) {
        let host = self.random.below(self.hosts.len() as u64) as usize;
        let stranger = self.random.between(STRANGERS.0, STRANGERS.1) as usize;
        let is_v6 = self.scenario.mtu >= 1_280 && self.random.below(2) == 0;
        let source = SocketAddr::new(
            address_of(stranger, is_v6),
            self.random.between(1_024, 65_535) as u16,
        );
        let destination = SocketAddr::new(address_of(host, is_v6), SERVER_PORT);
        let packet = syn(source, destination, self.random.bits() as u32);
        self.push(
            self.now,
            Happening::Arrival {
                host,
                packet,
                intact: true,
            },
        );
        if left > 1 {
            let pause = 1_000_000 / u64::from(self.scenario.syns_per_second);
            let next = self.now + Duration::from_micros(pause);
            self.push(next, Happening::Flood { left: left - 1 });
        }
    }
}
