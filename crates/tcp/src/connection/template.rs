//! The headers with which a connection's segments begin. A segment's headers are a copy with few
//! changes.
//!
//! ```text
//! 0       14   16     18 20  22  24   26   30   34     38   42   46   48     50   54   58   62  66
//! |macs.. |45..|length|id|DF.|ttl|csum|src |dst |ports |seq |ack |80fl|window|csum|nn8a |TSv |TSe |
//! ```
//!
//! The drawing shows the layout of the fast path for IPv4. The template keeps the headers as they
//! were last sent: between two segments of a burst only the sequence number changes. Over IPv6 the
//! TCP header begins 20 bytes later, and the payload length is at offset 18. The identification of
//! IPv4 is zero: RFC 6864 section 4.1, "originating sources MAY set the IPv4 ID field of atomic
//! datagrams to any value". Because all are alike, a receiver's link may coalesce the segments.

use super::{Conditions, Connection};
use crate::flow::FlowKey;
use crate::time::Instant;
use crate::wire::checksum::Sum;
use crate::wire::tcp::{self, Flags, Timestamps};
use crate::wire::{ip, put_u16, put_u32, put_u64};

const IP_AT: usize = 14;
/// Offset of the TCP header of a segment of the fast path, over Ethernet and IPv4.
pub(crate) const TCP_AT_V4: usize = IP_AT + ip::V4_HEADER_BYTES;
/// [`TCP_AT_V4`] over IPv6.
pub(crate) const TCP_AT_V6: usize = IP_AT + ip::V6_HEADER_BYTES;
/// The data offset, the reserved bits and the flags of a segment on the fast path.
const OFFSET_AND_ACK: u64 = ((Template::TCP_BYTES / 4) << 12) as u64 | Flags::ACK.0 as u64;

/// Offset of the acknowledgement in a TCP header; data offset, flags and window follow it.
const ACK_AT: usize = 8;
/// Offset of the timestamps in the TCP header of a segment of the fast path.
const VALUE_AT: usize = 24;

/// The headers that a template contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Layout {
    /// At most those of the link and of IP.
    WithoutTcp,
    /// Those of the fast path: Ethernet, IPv4, and TCP with timestamps.
    V4,
    /// [`Layout::V4`] with IPv6.
    V6,
}

/// The bytes with which a segment's headers begin; lengths, numbers and checksums are filled in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    pub(crate) bytes: [u8; Template::BYTES_MAX],
    /// Length of the link's header, zero while the neighbour is not resolved.
    pub(crate) link_bytes: u8,
    pub(crate) ip_bytes: u8,
    pub(crate) is_ready: bool,
    pub(crate) layout: Layout,
    /// The payload size for which lengths and checksums are valid.
    payload_bytes: u16,
    /// The sums of the IP header without its length, and of the pseudo-header without the length.
    ip_short: u16,
    pub(crate) pseudo_short: u16,
}

impl Template {
    /// The TCP header that nearly all segments have, with timestamps.
    pub(crate) const TCP_BYTES: usize = tcp::HEADER_BYTES + tcp::TIMESTAMPS_BYTES;
    /// Ethernet, IPv6 and TCP with timestamps.
    pub(crate) const BYTES_MAX: usize = TCP_AT_V6 + Self::TCP_BYTES;

    pub(crate) const fn empty() -> Self {
        Self {
            bytes: [0; Self::BYTES_MAX],
            link_bytes: 0,
            ip_bytes: 0,
            is_ready: false,
            layout: Layout::WithoutTcp,
            payload_bytes: 0,
            ip_short: 0,
            pseudo_short: 0,
        }
    }

    /// The headers are written again before the next segment.
    pub(crate) fn forget(&mut self) {
        self.is_ready = false;
        self.layout = Layout::WithoutTcp;
    }

    /// Offset of the TCP header on the fast path.
    const fn tcp_at(&self) -> usize {
        match self.layout {
            Layout::V6 => TCP_AT_V6,
            Layout::V4 | Layout::WithoutTcp => TCP_AT_V4,
        }
    }

    /// Adds the TCP header and the timestamp option to the headers of Ethernet and IP.
    pub(crate) fn complete(&mut self, key: &FlowKey) {
        self.layout = if key.remote.is_v4() {
            Layout::V4
        } else {
            Layout::V6
        };
        let header = tcp::Header {
            source_port: key.local_port,
            destination_port: key.remote_port,
            seq: 0,
            ack: 0,
            flags: Flags::ACK,
            window: 0,
        };
        let tcp_at = self.tcp_at();
        let tcp = &mut self.bytes[tcp_at..][..Self::TCP_BYTES];
        header.write(tcp, tcp::TIMESTAMPS_BYTES);
        let zero = Timestamps { value: 0, echo: 0 };
        tcp[tcp::HEADER_BYTES..].copy_from_slice(&tcp::timestamps_bytes(zero));
        if self.layout == Layout::V4 {
            put_u16(&mut self.bytes, IP_AT + 2, 0);
            put_u16(&mut self.bytes, IP_AT + 10, 0);
            self.ip_short = Sum::ZERO.bytes(&self.bytes[IP_AT..TCP_AT_V4]).short();
        }
        self.set_payload_length(0);
    }

    /// Whether lengths and checksums are valid for `payload_bytes`.
    #[inline(always)]
    pub(crate) fn fits(&self, payload_bytes: u32) -> bool {
        u32::from(self.payload_bytes) == payload_bytes
    }

    /// Sets lengths and checksums for `payload_bytes`; the TCP checksum field gets the
    /// pseudo-header's sum.
    #[inline(always)]
    pub(crate) fn fit(&mut self, payload_bytes: u32) {
        if !self.fits(payload_bytes) {
            self.set_payload_length(payload_bytes);
        }
    }

    #[inline(never)]
    fn set_payload_length(&mut self, payload_bytes: u32) {
        let tcp_bytes = (Self::TCP_BYTES as u32 + payload_bytes) as u16;
        if self.layout == Layout::V6 {
            put_u16(&mut self.bytes, IP_AT + 4, tcp_bytes);
        } else {
            let ip_bytes = ip::V4_HEADER_BYTES as u16 + tcp_bytes;
            put_u16(&mut self.bytes, IP_AT + 2, ip_bytes);
            let checksum = !Sum::join_words(self.ip_short, ip_bytes, 0);
            self.bytes[IP_AT + 10..IP_AT + 12].copy_from_slice(&checksum.to_ne_bytes());
        }
        let partial = Sum::join_words(self.pseudo_short, tcp_bytes, 0);
        let at = self.tcp_at() + tcp::CHECKSUM_AT;
        self.bytes[at..at + 2].copy_from_slice(&partial.to_ne_bytes());
        self.payload_bytes = payload_bytes as u16;
    }
}

impl Connection {
    /// Writes the headers of a fast-path segment that has only the flag ACK, and keeps the part
    /// that a directly following segment shares. Uses the current acknowledgement and window.
    #[inline(always)]
    pub(crate) fn write_fast_path_headers<const TCP_AT: usize>(
        &mut self,
        now: Instant,
        payload_bytes: u32,
        h: &mut [u8; Template::BYTES_MAX],
    ) {
        let timestamps = u64::from(self.timestamp(now)) << 32 | u64::from(self.ts_recent);
        self.template.fit(payload_bytes);
        self.copy_headers::<TCP_AT>(h);
        put_u64(h, TCP_AT + VALUE_AT, timestamps);
        put_u64(&mut self.template.bytes, TCP_AT + VALUE_AT, timestamps);
        if !self.is_told {
            let word = self.acknowledgement_word(now);
            put_u64(h, TCP_AT + ACK_AT, word);
            put_u64(&mut self.template.bytes, TCP_AT + ACK_AT, word);
            self.is_told = true;
        }
    }

    /// Copies the kept headers, as they were last sent.
    #[inline(always)]
    pub(crate) fn copy_headers<const TCP_AT: usize>(&self, h: &mut [u8; Template::BYTES_MAX]) {
        let length = TCP_AT + Template::TCP_BYTES;
        h[..length].copy_from_slice(&self.template.bytes[..length]);
    }

    /// Writes the headers of a bare acknowledgement that is due, when the kept headers are not for
    /// payload. No segment follows directly, so nothing is kept. The caller clears the conditions
    /// `ACK_NOW` and `QUEUED`.
    #[inline(always)]
    pub(crate) fn write_fast_path_acknowledgement<const TCP_AT: usize>(
        &mut self,
        now: Instant,
        h: &mut [u8; Template::BYTES_MAX],
    ) {
        debug_assert!(self.template.fits(0));
        self.copy_headers::<TCP_AT>(h);
        self.is_told = false;
        self.note_acknowledgement_sent();
        let window = self.advertise(now);
        put_u32(h, TCP_AT + 4, self.acceptable_seq().wire(self.snd_first));
        put_u32(h, TCP_AT + ACK_AT, self.rcv_nxt.wire(self.rcv_first));
        put_u16(h, TCP_AT + 14, window);
        put_u32(h, TCP_AT + VALUE_AT, self.timestamp(now));
        put_u32(h, TCP_AT + VALUE_AT + 4, self.ts_recent);
    }

    /// The acknowledgement, the flags and the window to be sent now.
    #[inline(always)]
    fn acknowledgement_word(&mut self, now: Instant) -> u64 {
        self.note_acknowledged();
        let acknowledgement = u64::from(self.rcv_nxt.wire(self.rcv_first));
        acknowledgement << 32 | OFFSET_AND_ACK << 16 | u64::from(self.advertise(now))
    }

    /// Whether the kept headers carry the current acknowledgement and window.
    pub(super) fn are_headers_current(&self) -> bool {
        let (mut edge, before) = (self.rcv_edge, self.rcv_edge);
        let window = self.window_from(&mut edge);
        let acknowledgement = u64::from(self.rcv_nxt.wire(self.rcv_first));
        let word = acknowledgement << 32 | OFFSET_AND_ACK << 16 | u64::from(window);
        let said_at = self.template.tcp_at() + ACK_AT;
        edge == before
            && self.template.bytes[said_at..said_at + 8] == word.to_be_bytes()
            && !self.conditions.has(Conditions::ACK_NOW)
            && !self.ack_deadline.is_armed()
            && self.last_ack_sent == self.rcv_nxt
    }
}
