//! The results of a simulation.

use crate::{Counters, Duration};

/// The results of a simulation.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// Connections that were attempted.
    pub connections: u64,
    /// Connections whose both ends finished in order.
    pub finished: u64,
    /// Of these, the ones that both ends opened at once.
    pub simultaneous: u64,
    /// Virtual time during which connections existed; both ends count as one.
    pub connection_time: Duration,
    /// Virtual time from the first event to the last.
    pub virtual_time: Duration,
    /// Packets that entered a link.
    pub packets: u64,
    /// Packets that a link lost, changed or delivered twice.
    pub impaired: u64,
    /// Payload bytes received and compared.
    pub bytes: u64,
    /// Retransmissions of all engines.
    pub retransmissions: u64,
    /// Programs that let go of a connection before its end.
    pub departures: u64,
    /// SYN cookies of all engines, and those that came back.
    pub cookies: (u64, u64),
    /// SYNs with payload of all engines; SYNs that opened a connection to its program; and SYNs
    /// that were acknowledged with their payload (RFC 7413).
    pub fast_opens: [u64; 3],
    /// Payload received, by transfer.
    pub bytes_by_flow: Vec<u64>,
    /// Bytes of the rivals that have arrived.
    pub rival_bytes: Vec<u64>,
}

impl Report {
    /// Adds the counters of one engine.
    pub(super) fn add(&mut self, counters: &Counters) {
        self.retransmissions += counters.retransmissions;
        self.cookies.0 += counters.cookies_sent;
        self.cookies.1 += counters.cookies_accepted;
        self.fast_opens[0] += counters.fast_opens_sent;
        self.fast_opens[1] += counters.fast_opens_accepted;
        self.fast_opens[2] += counters.fast_opens_acknowledged;
    }
}
