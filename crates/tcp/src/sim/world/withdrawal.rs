//! Receivers that shrink a window that is in use, as Linux does when its buffers overflow.
//!
//! From some byte on, the program at such an end reads nothing more until all bytes that it writes
//! have been acknowledged. Meanwhile its host offers no window. The host ignores a segment that
//! ends beyond the acknowledged bytes, together with its acknowledgement (Linux since 6.16,
//! `tcp_sequence`). So the other end must acknowledge with segments at the window's edge, or
//! neither end goes on.

use core::net::SocketAddr;

use super::World;
use crate::sim::checker::{ACK, FIN, Packet, RST, SYN, parse};
use crate::sim::impair::set_window;

/// The end of a connection that takes its window back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Withdrawal {
    /// The end takes its window back after it has acknowledged this many bytes.
    after_bytes: u64,
    /// The window stays closed until this many bytes of its own are acknowledged.
    own_bytes: u64,
    /// The sequence numbers of the first byte of this end, and of the first byte of the other end.
    own_first: u32,
    other_first: u32,
    /// The last acknowledgement number that this end has sent.
    acknowledged: u32,
    /// The sequence and acknowledgement numbers of the segment that set the other end's window.
    window_from: Option<(u32, u32)>,
    /// True when the other end has closed its window, as far as this end has received.
    is_other_closed: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The end has not taken its window back.
    Before,
    Withdrawn,
    /// The end has taken its window back once and does not do so again.
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
            // A SYN that acknowledges nothing has the number 0 here, until the next segment.
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
        // The other end would reopen a closed window with a segment at this window's edge. If this
        // end has received a segment further to the right, it would ignore the reopening segment as
        // an old one (RFC 9293 section 3.10.7.4, SND.WL1), as Linux does, and neither end would go
        // on.
        if self.phase == Phase::Before && taken >= self.after_bytes && !self.is_other_closed {
            self.phase = Phase::Withdrawn;
        }
        self.phase == Phase::Withdrawn
    }

    /// A segment arrives at the end. False when the end ignores the segment.
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

    /// The window of a retransmission is an old window: it does not reopen a window that a later
    /// segment has closed.
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

/// Whether a number comes after another number, modulo 2^32.
fn is_after(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) > 0
}

impl World {
    /// The address of a transfer's client is known now: one of the transfer's ends may take its
    /// window back.
    pub(super) fn note_withdrawal(&mut self, index: usize, client: SocketAddr, server: SocketAddr) {
        // An earlier transfer may have had these addresses.
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

    /// A packet of an end that takes its window back, as the packet leaves the host.
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

    /// Whether the end of a connection accepts a packet that has arrived.
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
