//! The engine's counts, for `toehold status`.

use std::collections::BTreeMap;

use serde::Serialize;
use toehold_tcp::{Counters, Malformed};

/// The counts of one thread, or of all of them.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) link: String,
    /// The link's mode, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) link_mode: Option<&'static str>,
    pub(crate) addresses: Vec<String>,
    /// The addresses that are shared with the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) shared: Vec<SharedReport>,
    /// Sentences about settings that could not be applied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) complaints: Vec<String>,
    /// Ports of shared addresses that the kernel's table did not take.
    pub(crate) ports_not_set: u64,
    pub(crate) mtu: u16,
    /// The interface that the link is on does not exist at the moment.
    pub(crate) link_gone: bool,
    pub(crate) connections: usize,
    /// Connections with a channel beside the carrier.
    pub(crate) channels: usize,
    pub(crate) listeners: usize,
    /// Listeners of programs that the engine does not serve, because of the limit for one program
    /// or for all.
    pub(crate) listeners_refused: u64,
    pub(crate) listeners_of_one_max: usize,
    pub(crate) listeners_max: usize,
    /// Captures that run.
    pub(crate) captures: usize,
    pub(crate) frames_received: u64,
    pub(crate) frames_sent: u64,
    pub(crate) frames_malformed: u64,
    /// Malformed frames by reason, in words; reasons without frames are left out.
    pub(crate) frames_malformed_by_reason: BTreeMap<String, u64>,
    pub(crate) segments_received: u64,
    pub(crate) segments_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) retransmissions: u64,
    pub(crate) timeouts: u64,
    pub(crate) resets_sent: u64,
    pub(crate) resets_received: u64,
    pub(crate) connections_opened: u64,
    pub(crate) connections_accepted: u64,
    /// Connections of both kinds whose carrier has served an earlier one.
    pub(crate) connections_on_used_carriers: u64,
    /// Carriers that wait for another connection.
    pub(crate) carriers_parked: usize,
    /// SYNs of ours with payload (RFC 7413), and those whose payload came with the SYN.
    pub(crate) fast_opens_sent: u64,
    pub(crate) fast_opens_acknowledged: u64,
    /// Connections whose SYN brought payload that was taken, and SYNs with a cookie whose payload
    /// was not.
    pub(crate) fast_opens_accepted: u64,
    pub(crate) fast_opens_declined: u64,
    /// Connections reset because their program was gone.
    pub(crate) programs_gone: u64,
    /// Carriers that were reset because their preamble was missing, late, or without a valid token.
    pub(crate) carriers_refused: u64,
    /// Requests and connections refused because a program was at its quota.
    pub(crate) over_quota: u64,
    /// Memory that counts against the budget: the engine's own rings, and the state of connections.
    pub(crate) memory_bytes: usize,
    /// The most bytes that the kernel can hold in full carriers.
    pub(crate) memory_of_carriers_bytes: usize,
    /// The number of times that the budget had no room.
    pub(crate) memory_refused: u64,
    /// Connections whose bytes ahead of a gap were discarded because memory was short.
    pub(crate) memory_pruned: u64,
    /// Frames the link did not take.
    pub(crate) frames_refused: u64,
    /// Frames that the link had no room to keep for us.
    pub(crate) frames_lost: u64,
    /// Payloads that the link put into a program's ring with no copy between.
    pub(crate) payloads_in_place: u64,
    /// The work that the link and the copy engine do for the engine.
    pub(crate) switches: Switches,
    /// The settings of connections that begin from now on.
    pub(crate) new_connections: NewConnections,
    /// Payloads that a copy engine brought to a program's ring, and their bytes.
    pub(crate) payloads_by_engine: u64,
    pub(crate) bytes_by_engine: u64,
    /// Times the settings were changed while it ran.
    pub(crate) reconfigured: u64,
    /// Times a thread slept.
    pub(crate) sleeps: u64,
    /// Frames that another thread's queue was given.
    pub(crate) frames_passed_on: u64,
    /// Frames for which that thread had no room, and that could not wait.
    pub(crate) frames_not_passed_on: u64,
    /// Times a thread stopped receiving until another thread had room for a frame.
    pub(crate) stalls: u64,
    /// Some of the connections, and how they behave.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) flows: Vec<FlowReport>,
    /// Each thread's own, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) threads: Vec<Report>,
}

/// The switches of the receive path, as `toehold adapter --set` takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Switches {
    pub(crate) lso: bool,
    pub(crate) lro: bool,
    pub(crate) checksum: &'static str,
    pub(crate) split_headers: bool,
    pub(crate) copy_engine: &'static str,
    /// `None` when the copy engine never pays, or there is none.
    pub(crate) copybreak: Option<usize>,
    pub(crate) coalesce_us: u64,
    pub(crate) threads: usize,
    pub(crate) batch: usize,
    pub(crate) quota: usize,
    pub(crate) memory_mb: usize,
}

/// Settings of connections, as `toehold adapter --set` takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct NewConnections {
    pub(crate) window_mb: u32,
    pub(crate) congestion: &'static str,
    pub(crate) ecn: &'static str,
    pub(crate) pacing: bool,
    pub(crate) initial_window: u8,
    /// `None`: no probes.
    pub(crate) keepalive_s: Option<u64>,
    pub(crate) fast_open: &'static str,
    /// Number of settings lines for single destinations.
    pub(crate) lines_by_destination: usize,
}

/// An address that the host has as well.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SharedReport {
    pub(crate) address: String,
    /// Ports that may be the engine's, as the settings have them.
    pub(crate) ports: String,
    /// Ports that are the engine's now.
    pub(crate) in_use: Vec<u16>,
    /// Ports that connections of programs go out from, as the settings have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outgoing: Option<String>,
    /// Whether they may go out now: not while the kernel uses such ports for translated
    /// connections.
    pub(crate) goes_out: bool,
}

/// Connections that one thread reports; more would make the status long.
pub(crate) const FLOWS_REPORTED_MAX: usize = 256;

/// The settings of one connection.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FlowReport {
    pub(crate) local: String,
    pub(crate) remote: String,
    pub(crate) congestion: &'static str,
    pub(crate) ecn: bool,
    /// The remote counts the marks.
    pub(crate) accurate_ecn: bool,
    pub(crate) pacing: bool,
    pub(crate) round_trip_us: Option<u64>,
    /// In bytes, as the next two.
    pub(crate) congestion_window: u32,
    pub(crate) receive_window: u32,
    pub(crate) in_flight: u32,
}

impl Report {
    /// The sum of several threads' counts; `None` without any.
    pub(super) fn together(mut threads: Vec<Report>) -> Option<Report> {
        if threads.len() < 2 {
            return threads.pop();
        }
        let first = threads[0].clone();
        let mut all = threads[1..].iter().fold(first, Report::and);
        // They are shown once.
        threads.iter_mut().for_each(|thread| thread.flows.clear());
        all.threads = threads;
        Some(all)
    }

    fn and(mut self, other: &Report) -> Report {
        for (reason, count) in &other.frames_malformed_by_reason {
            *self
                .frames_malformed_by_reason
                .entry(reason.clone())
                .or_default() += count;
        }
        self.flows.extend(other.flows.iter().cloned());
        for (mine, theirs) in self.shared.iter_mut().zip(&other.shared) {
            mine.in_use.extend(&theirs.in_use);
            mine.in_use.sort_unstable();
            mine.in_use.dedup();
            mine.goes_out &= theirs.goes_out;
        }
        Report {
            connections: self.connections + other.connections,
            channels: self.channels + other.channels,
            // All threads listen for all programs, and get that command before the request for a
            // report. Each thread finds out by itself when to stop.
            listeners: self.listeners.max(other.listeners),
            listeners_refused: self.listeners_refused.max(other.listeners_refused),
            // Settings count as applied when all threads have applied them.
            reconfigured: self.reconfigured.min(other.reconfigured),
            frames_received: self.frames_received + other.frames_received,
            frames_sent: self.frames_sent + other.frames_sent,
            frames_malformed: self.frames_malformed + other.frames_malformed,
            segments_received: self.segments_received + other.segments_received,
            segments_sent: self.segments_sent + other.segments_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            retransmissions: self.retransmissions + other.retransmissions,
            timeouts: self.timeouts + other.timeouts,
            resets_sent: self.resets_sent + other.resets_sent,
            resets_received: self.resets_received + other.resets_received,
            connections_opened: self.connections_opened + other.connections_opened,
            connections_accepted: self.connections_accepted + other.connections_accepted,
            connections_on_used_carriers: self.connections_on_used_carriers
                + other.connections_on_used_carriers,
            carriers_parked: self.carriers_parked + other.carriers_parked,
            fast_opens_sent: self.fast_opens_sent + other.fast_opens_sent,
            fast_opens_acknowledged: self.fast_opens_acknowledged + other.fast_opens_acknowledged,
            fast_opens_accepted: self.fast_opens_accepted + other.fast_opens_accepted,
            fast_opens_declined: self.fast_opens_declined + other.fast_opens_declined,
            programs_gone: self.programs_gone + other.programs_gone,
            carriers_refused: self.carriers_refused + other.carriers_refused,
            over_quota: self.over_quota + other.over_quota,
            memory_bytes: self.memory_bytes + other.memory_bytes,
            memory_of_carriers_bytes: self.memory_of_carriers_bytes
                + other.memory_of_carriers_bytes,
            memory_refused: self.memory_refused + other.memory_refused,
            memory_pruned: self.memory_pruned + other.memory_pruned,
            frames_refused: self.frames_refused + other.frames_refused,
            frames_lost: self.frames_lost + other.frames_lost,
            payloads_in_place: self.payloads_in_place + other.payloads_in_place,
            payloads_by_engine: self.payloads_by_engine + other.payloads_by_engine,
            bytes_by_engine: self.bytes_by_engine + other.bytes_by_engine,
            sleeps: self.sleeps + other.sleeps,
            frames_passed_on: self.frames_passed_on + other.frames_passed_on,
            frames_not_passed_on: self.frames_not_passed_on + other.frames_not_passed_on,
            stalls: self.stalls + other.stalls,
            ports_not_set: self.ports_not_set + other.ports_not_set,
            // Link, addresses, MTU, switches and captures are common to all threads.
            ..self
        }
    }
}

/// The number of frames that were malformed, by reason.
pub(crate) fn malformed_by_reason(counters: &Counters) -> BTreeMap<String, u64> {
    let all = Malformed::ALL.into_iter();
    all.map(|reason| (reason.to_string(), counters.malformed(reason)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted_together_and_shown_alone() {
        let one = |connections, listeners| Report {
            link: "tap:toe0".into(),
            mtu: 1500,
            connections,
            listeners,
            frames_passed_on: 5,
            frames_malformed_by_reason: BTreeMap::from([("wrong TCP checksum".to_owned(), 2)]),
            ..Report::default()
        };
        let alone = Report::together(vec![one(3, 2)]).expect("there is one");
        assert!(alone.threads.is_empty() && alone.connections == 3);
        let both = Report::together(vec![one(3, 2), one(4, 2)]).expect("there are two");
        assert_eq!((both.connections, both.listeners, both.mtu), (7, 2, 1500));
        assert_eq!((both.frames_passed_on, both.threads.len()), (10, 2));
        assert_eq!(both.frames_malformed_by_reason["wrong TCP checksum"], 4);
        assert!(Report::together(Vec::new()).is_none());
    }
}
