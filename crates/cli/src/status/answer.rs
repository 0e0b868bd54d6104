//! The adapter's answer, as far as this version understands it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toehold_adapter::client;

use crate::failure::Failure;

/// The state that the adapter reports.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Status {
    /// Processes that use the library.
    #[serde(default)]
    pub(crate) processes: Vec<Process>,
    /// Connections that ever got shared memory.
    #[serde(default)]
    pub(crate) channels_made: u64,
    /// The adapter's TCP engine, if it has one.
    #[serde(default)]
    pub(crate) engine: Option<Engine>,
    /// The reason why there is no engine, although one was wanted.
    #[serde(default)]
    pub(crate) no_engine: Option<String>,
    /// The system adapter's: whether it pairs connections between network namespaces: `yes`, or
    /// `no` and the reason.
    #[serde(default)]
    pub(crate) across_namespaces: Option<String>,
    /// Programs without the library.
    #[serde(default)]
    pub(super) without_library: Vec<Bare>,
    /// Processes that the kernel did not show in time, and further processes of their users: nobody
    /// knows whether they run under Toehold.
    #[serde(default)]
    pub(super) not_shown: Vec<u32>,
}

/// A program that was started with the library but runs without it, or that makes system calls that
/// the library does not see.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Bare {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) uid: u32,
    /// The reason, a sentence.
    pub(super) reason: String,
    /// It has the library, but the library does not see its own system calls.
    pub(super) has_library: bool,
    /// It has the library, but makes no calls through it.
    pub(super) is_left: bool,
}

/// The counts of the TCP engine.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Engine {
    pub(super) link: String,
    pub(super) link_mode: Option<String>,
    pub(super) addresses: Vec<String>,
    pub(super) shared: Vec<SharedAddress>,
    pub(super) complaints: Vec<String>,
    pub(super) mtu: u64,
    pub(super) connections: u64,
    pub(super) listeners: u64,
    pub(super) listeners_refused: u64,
    pub(super) listeners_of_one_max: u64,
    pub(super) listeners_max: u64,
    pub(super) segments_received: u64,
    pub(super) segments_sent: u64,
    pub(super) bytes_received: u64,
    pub(super) bytes_sent: u64,
    pub(super) retransmissions: u64,
    pub(super) frames_malformed: u64,
    pub(super) frames_malformed_by_reason: BTreeMap<String, u64>,
    pub(super) frames_passed_on: u64,
    pub(super) frames_lost: u64,
    pub(super) link_gone: bool,
    pub(super) switches: Option<Switches>,
    pub(super) new_connections: Option<NewConnections>,
    pub(super) payloads_in_place: u64,
    pub(super) payloads_by_engine: u64,
    pub(super) connections_opened: u64,
    pub(super) connections_accepted: u64,
    pub(super) connections_on_used_carriers: u64,
    pub(super) carriers_parked: usize,
    pub(super) fast_opens_sent: u64,
    pub(super) fast_opens_acknowledged: u64,
    pub(super) fast_opens_accepted: u64,
    pub(super) fast_opens_declined: u64,
    pub(super) flows: Vec<Flow>,
    pub(super) threads: Vec<Engine>,
}

/// The behaviour of one connection of the engine.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Flow {
    pub(super) local: String,
    pub(super) remote: String,
    pub(super) congestion: String,
    pub(super) ecn: bool,
    pub(super) accurate_ecn: bool,
    pub(super) pacing: bool,
    /// `None` before the first measurement.
    pub(super) round_trip_us: Option<u64>,
    pub(super) congestion_window: u64,
    pub(super) receive_window: u64,
    pub(super) in_flight: u64,
}

/// The work that the link and the copy engine do for the engine.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Switches {
    pub(super) lso: bool,
    pub(super) lro: bool,
    pub(super) checksum: String,
    pub(super) split_headers: bool,
    pub(super) copy_engine: String,
    pub(super) copybreak: Option<u64>,
    pub(super) coalesce_us: u64,
    pub(super) threads: u64,
    pub(super) batch: u64,
    pub(super) quota: u64,
    pub(super) memory_mb: u64,
}

/// Settings for new connections.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NewConnections {
    pub(super) window_mb: u64,
    pub(super) congestion: String,
    pub(super) ecn: String,
    pub(super) pacing: bool,
    pub(super) initial_window: u64,
    pub(super) keepalive_s: Option<u64>,
    pub(super) fast_open: String,
    pub(super) lines_by_destination: u64,
}

/// An address that the engine shares with the kernel.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SharedAddress {
    pub(super) address: String,
    pub(super) ports: String,
    pub(super) in_use: Vec<u16>,
    pub(super) outgoing: Option<String>,
    pub(super) goes_out: bool,
}

/// One process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Process {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) uid: u32,
    pub(super) wait: String,
    /// The rule that determines how it waits.
    pub(super) wait_rule: Option<String>,
    /// The rule that determines whether its short connections use parked carriers.
    pub(super) express_rule: Option<String>,
    /// Counts of its family's short connections.
    pub(super) express: super::express::Counts,
    /// Its connections.
    pub(crate) connections: Vec<Connection>,
}

/// One connection.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Connection {
    pub(super) fd: i64,
    pub(super) local: String,
    pub(super) remote: String,
    /// The path of its bytes.
    pub(crate) path: String,
    pub(super) tx_path: String,
    pub(super) rx_path: String,
    /// The reason why it is on the host path.
    pub(crate) reason: String,
    pub(super) bytes_host_tx: u64,
    pub(super) bytes_host_rx: u64,
    pub(super) bytes_ring_tx: u64,
    pub(super) bytes_ring_rx: u64,
    pub(super) upgrades: u64,
    pub(super) downgrades: u64,
    pub(super) doorbells_rung: u64,
    pub(super) doorbells_suppressed: u64,
    pub(super) wakeups: u64,
    pub(super) spins_paid: u64,
    pub(super) spins_failed: u64,
    pub(super) syscalls_avoided: u64,
}

impl Process {
    /// Short connections that this process accepted on used carriers.
    pub(crate) fn accepted_on_used_carriers(&self) -> u64 {
        self.express.get("accepted").copied().unwrap_or(0)
    }
}

impl Engine {
    /// Connections since it started, of both roles.
    pub(crate) fn connections_ever(&self) -> u64 {
        self.connections_opened
            .saturating_add(self.connections_accepted)
    }

    /// Its counts since it started: name, description, value.
    pub(super) fn counters(&self) -> [(&'static str, &'static str, u64); 8] {
        [
            (
                "engine_segments_received_total",
                "Segments that the engine has received.",
                self.segments_received,
            ),
            (
                "engine_segments_sent_total",
                "Segments that the engine has sent.",
                self.segments_sent,
            ),
            (
                "engine_bytes_received_total",
                "Bytes that the engine has received.",
                self.bytes_received,
            ),
            (
                "engine_bytes_sent_total",
                "Bytes that the engine has sent.",
                self.bytes_sent,
            ),
            (
                "engine_retransmissions_total",
                "Segments that the engine has sent again.",
                self.retransmissions,
            ),
            (
                "engine_fast_opens_sent_total",
                "SYNs of the engine's with payload (TCP Fast Open).",
                self.fast_opens_sent,
            ),
            (
                "engine_fast_opens_accepted_total",
                "Connections to the engine whose SYN brought payload that was taken.",
                self.fast_opens_accepted,
            ),
            (
                "engine_frames_lost_total",
                "Frames that the engine has lost.",
                self.frames_lost,
            ),
        ]
    }
}

impl Connection {
    /// Bytes through shared memory, both directions together.
    pub(super) fn by_rings(&self) -> u64 {
        self.bytes_ring_tx.saturating_add(self.bytes_ring_rx)
    }

    /// Bytes through the kernel, both directions together.
    pub(super) fn by_kernel(&self) -> u64 {
        self.bytes_host_tx.saturating_add(self.bytes_host_rx)
    }

    /// Whether the socket has another end. A `connect` that failed or has not been made leaves a
    /// socket without.
    pub(super) fn is_connected(&self) -> bool {
        !self.remote.is_empty()
    }
}

impl Status {
    /// The connections that the engine reports.
    pub(super) fn flows(&self) -> &[Flow] {
        self.engine.as_ref().map_or(&[], |engine| &engine.flows)
    }

    /// Asks the adapter of a runtime directory; `None` when there is no usable answer.
    pub(crate) fn ask(runtime_dir: &Path) -> Option<Status> {
        serde_json::from_str(&client::status(runtime_dir).ok()?).ok()
    }
}

/// Reads JSON of the adapter's.
pub(super) fn parse<T: serde::de::DeserializeOwned>(json: &str) -> Result<T, Failure> {
    serde_json::from_str(json)
        .map_err(|error| Failure::new(format!("cannot understand the adapter's answer: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_a_failure() {
        assert!(parse::<Status>("[1").is_err());
    }
}
