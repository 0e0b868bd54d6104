//! The engine's counters.

use crate::wire::Malformed;

/// Counts since the engine was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Frames received from the link.
    pub frames_received: u64,
    /// Frames given to the link.
    pub frames_sent: u64,
    /// Segments received with a correct header.
    pub segments_received: u64,
    /// Segments sent, retransmissions included.
    pub segments_sent: u64,
    /// Received segments that took the fast path.
    pub segments_predicted: u64,
    /// Payload bytes placed in the host's rings.
    pub bytes_received: u64,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Retransmitted segments.
    pub retransmissions: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Segments sent to probe a larger MTU (RFC 4821).
    pub mtu_probes: u64,
    /// Tail loss probes (RFC 8985).
    pub tail_probes: u64,
    /// Probes of a closed window, or of a silent remote (RFC 9293 sections 3.8.6.1 and 3.8.4).
    pub probes: u64,
    /// Recoveries entered.
    pub recoveries: u64,
    /// Recoveries and timeouts that were unnecessary and were undone.
    pub recoveries_undone: u64,
    /// Segments that brought nothing new.
    pub duplicates_received: u64,
    /// Segments received beyond a gap.
    pub out_of_order_received: u64,
    /// Payload that arrived beyond the window.
    pub beyond_window: u64,
    /// Segments dropped because their timestamp was older than a former one (PAWS).
    pub paws_refused: u64,
    /// Payload dropped because the host had no room for it, although the window allowed it.
    pub host_had_no_room: u64,
    /// Payload bytes beyond a gap that the host discarded; the remote sends them again.
    pub early_bytes_discarded: u64,
    /// Segments dropped because too many gaps were open.
    pub too_many_gaps: u64,
    /// Challenge acknowledgements sent (RFC 5961).
    pub challenges_sent: u64,
    /// Challenges that a rate limit suppressed, the connection's or the engine's.
    pub challenges_suppressed: u64,
    /// Resets for segments without a connection that the rate limit suppressed.
    pub refusals_suppressed: u64,
    /// ARP replies and neighbour advertisements that a rate limit suppressed.
    pub neighbour_answers_suppressed: u64,
    /// SYN cookies that the rate limit suppressed.
    pub cookies_suppressed: u64,
    /// Resets sent.
    pub resets_sent: u64,
    /// Resets received and accepted.
    pub resets_received: u64,
    /// Connections opened by the host.
    pub connections_opened: u64,
    /// Connections accepted from remotes.
    pub connections_accepted: u64,
    /// SYNs, and acknowledgements that would have completed a handshake, dropped because a
    /// listener's backlog was full.
    pub backlog_overflows: u64,
    /// SYN cookies sent (RFC 4987).
    pub cookies_sent: u64,
    /// Valid SYN cookies received.
    pub cookies_accepted: u64,
    /// SYNs of ours with payload (RFC 7413).
    pub fast_opens_sent: u64,
    /// Our SYNs with payload whose SYN-ACK acknowledged the payload.
    pub fast_opens_acknowledged: u64,
    /// Connections given to the host on a SYN with a valid cookie.
    pub fast_opens_accepted: u64,
    /// SYNs with a cookie that did not give the host a connection: the cookie was not ours, too
    /// many were pending, or the host had no room. Their handshake was an ordinary one.
    pub fast_opens_declined: u64,
    /// Fast Open cookies given to remotes.
    pub fast_open_cookies_given: u64,
    /// TIME-WAIT connections that were replaced by a new one (RFC 6191).
    pub time_wait_reused: u64,
    /// TIME-WAIT connections closed early because there was no room for another connection.
    pub time_wait_cut: u64,
    /// Segments without a connection.
    pub no_connection: u64,
    /// Packets for an address or protocol that is not ours.
    pub not_for_us: u64,
    /// Fragments dropped: their packet was replaced by a newer one because the reassembly store was
    /// full, or it expired, or it was invalid.
    pub fragments_dropped: u64,
    /// Answers dropped because the queue of frames without a connection was full.
    pub control_queue_full: u64,
    /// Congestion marks received in IP headers.
    pub marks_received: u64,
    /// Path MTU reductions, by ICMP or by black-hole detection.
    pub mtu_reductions: u64,
    malformed: [u64; Malformed::COUNT],
}

impl Counters {
    /// Frames dropped for this reason, or segments that were used without an invalid option.
    #[must_use]
    pub const fn malformed(&self, reason: Malformed) -> u64 {
        self.malformed[reason as usize]
    }

    /// Malformed frames of all kinds: all are dropped except those with an invalid option.
    #[must_use]
    pub fn malformed_total(&self) -> u64 {
        self.malformed.iter().sum()
    }

    pub(crate) fn count_malformed(&mut self, reason: Malformed) {
        self.malformed[reason as usize] += 1;
    }
}
