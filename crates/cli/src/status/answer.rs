//! The adapter's answer, or as much of it as this version knows.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use toehold_adapter::client;

use crate::failure::Failure;

/// Everything that the adapter knows.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Status {
    /// Processes that use the library.
    #[serde(default)]
    pub(crate) processes: Vec<Process>,
    /// The adapter's TCP engine, where it has one.
    #[serde(default)]
    pub(crate) engine: Option<Engine>,
    /// Why there is none, where one was wanted.
    #[serde(default)]
    pub(crate) no_engine: Option<String>,
}

/// What the TCP engine has done.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Engine {
    pub(super) link: String,
    pub(super) link_manner: Option<String>,
    pub(super) addresses: Vec<String>,
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
    pub(super) threads: Vec<Engine>,
}

/// One process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Process {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) uid: u32,
    pub(super) wait: String,
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
    /// How its bytes travel.
    pub(crate) path: String,
    pub(super) tx_path: String,
    pub(super) rx_path: String,
    /// Why it is on the host path.
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
    /// Asks the adapter of a runtime directory; `None` when there is no usable answer.
    pub(crate) fn ask(runtime_dir: &Path) -> Option<Status> {
        serde_json::from_str(&client::status(runtime_dir).ok()?).ok()
    }
}

/// Reads JSON of the adapter's.
pub(super) fn parse<T: serde::de::DeserializeOwned>(json: &str) -> Result<T, Failure> {
    serde_json::from_str(json)
        .map_err(|error| Failure::new(format!("the adapter's answer is not understood: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_a_failure() {
        assert!(parse::<Status>("[1").is_err());
    }
}
