//! Receivers that shrink a window which is in use, as Linux does when its buffers overflow.
//!
//! The program at such an end reads nothing more from some byte on, until all that it writes has
//! been acknowledged. Meanwhile its host offers no window. It takes nothing that ends beyond what
//! it has acknowledged, with all that such a segment says (Linux since 6.16, `tcp_sequence`). So
//! the other end must acknowledge by segments that stand at the window's edge, or neither goes on.

use core::net::SocketAddr;

use super::World;
use crate::sim::checker::{ACK, FIN, Packet, RST, SYN, parse};
use crate::sim::impair::set_window;

/// The end of a connection that takes its window back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Withdrawal {
    /// After so many bytes that it has acknowledged.
    after_bytes: u64,
    /// Until so many bytes of its own are acknowledged.
    own_bytes: u64,
    /// The sequence numbers of the first bytes of its own and of the other end's.
    own_first: u32,
    other_first: u32,
    /// The last acknowledgement number that it has sent.
    acknowledged: u32,
    /// The sequence and acknowledgement numbers that the other end's window came with.
    window_from: Option<(u32, u32)>,
    /// Whether the other end has closed its window, as far as this one has heard.
    is_other_closed: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has taken nothing back.
    Before,
    Withdrawn,
    /// It never does again.
    After,
}

impl Withdrawal {
    pub(super) fn new(after_bytes: u64, own_bytes: u64) -> Withdrawal {
        Withdrawal {
            after_bytes,
            own_bytes,
            own_first: 0,
            other_first: 0,
            acknowledged: 0,
            window_from: None,
            is_other_closed: false,
            phase: Phase::Before,
        }
    }

    /// The end sends a segment. True when it offers no window.
    fn says(&mut self, segment: &Packet<'_>) -> bool {
        if segment.flags & SYN != 0 {
            self.own_first = segment.seq.wrapping_add(1);
            // Of a SYN that acknowledges nothing the number is 0, until the next segment.
            self.other_first = segment.ack;
            self.acknowledged = segment.ack;
            return false;
        }
        if segment.flags & (RST | ACK) != ACK {
            return false;
        }
        if self.other_first == 0 {
            self.other_first = segment.ack;
        }
        self.acknowledged = segment.ack;
        let taken = u64::from(segment.ack.wrapping_sub(self.other_first));
        // The other end would open a closed window by a segment at this window's edge, and one has
        // been heard that stood further right: so this end would take it for an old one (RFC 9293
        // section 3.10.7.4, SND.WL1), as Linux does, and neither would go on.
        if self.phase == Phase::Before && taken >= self.after_bytes && !self.is_other_closed {
            self.phase = Phase::Withdrawn;
        }
        self.phase == Phase::Withdrawn
    }

    /// The end is sent a segment. False when it does not take it.
    fn takes(&mut self, segment: &Packet<'_>) -> bool {
        if segment.flags & SYN != 0 {
            self.window_from = None;
        }
        if segment.flags & (SYN | RST) != 0 {
            return true;
        }
        let fin = u32::from(segment.flags & FIN != 0);
        let end = segment.seq.wrapping_add(segment.payload.len() as u32 + fin);
        let is_beyond = is_after(end, self.acknowledged);
        if self.phase == Phase::Withdrawn && is_beyond {
            return false;
        }
        self.hear_window(segment);
        let own = segment.ack.wrapping_sub(self.own_first);
        if u64::from(own) >= self.own_bytes && own < 1 << 31 {
            self.phase = Phase::After;
        }
        true
    }

    /// A retransmission's window is an old one: it opens nothing that a later segment has closed.
    fn hear_window(&mut self, segment: &Packet<'_>) {
        let is_news = self.window_from.is_none_or(|(seq, ack)| {
            is_after(segment.ack, ack)
                || segment.ack == ack && (segment.seq == seq || is_after(segment.seq, seq))
        });
        if is_news {
            self.window_from = Some((segment.seq, segment.ack));
            self.is_other_closed = segment.window == 0;
        }
    }
}

/// Whether a number comes after another one, around the end of their space.
fn is_after(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) > 0
}

impl World {
    /// The client of a transfer has an address: one of its ends may take its window back.
    pub(super) fn note_withdrawal(&mut self, index: usize, client: SocketAddr, server: SocketAddr) {
        // An earlier transfer's may have had the same addresses.
        self.withdrawals.remove(&(client, server));
        self.withdrawals.remove(&(server, client));
        let transfer = &self.scenario.transfers[index];
        let all = &self.scenario.withdrawals;
        for one in all.iter().filter(|one| one.transfer == index) {
            let (ends, role) = if one.is_client {
                ((client, server), transfer.client_role)
            } else {
                ((server, client), transfer.server_role)
            };
            let withdrawal = Withdrawal::new(one.after_bytes, role.bytes);
            self.withdrawals.insert(ends, withdrawal);
        }
    }

    /// A packet of an end that takes its window back, as it leaves the host.
    pub(super) fn withdraw(&mut self, mut packet: Vec<u8>) -> Vec<u8> {
        if self.withdrawals.is_empty() {
            return packet;
        }
        let Some(segment) = parse(&packet) else {
            return packet;
        };
        let (ends, tcp_at) = ((segment.source, segment.destination), segment.tcp_at);
        let withdrawal = self.withdrawals.get_mut(&ends);
        if withdrawal.is_some_and(|withdrawal| withdrawal.says(&segment)) {
            set_window(&mut packet, tcp_at, 0);
        }
        packet
    }

    /// Whether the end of a connection takes a packet that has arrived.
    pub(super) fn is_taken(&mut self, packet: &[u8]) -> bool {
        if self.withdrawals.is_empty() {
            return true;
        }
        let Some(segment) = parse(packet) else {
            return true;
        };
        let ends = (segment.destination, segment.source);
        let withdrawal = self.withdrawals.get_mut(&ends);
        withdrawal.is_none_or(|withdrawal| withdrawal.takes(&segment))
    }
}
