//! The paths of the connections of a comparison, as the adapter tells them.

use serde::Serialize;

use crate::status::{Engine, Process, Status};

/// The connections that `toehold status` showed in the middle of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ConnectionsSeen {
    /// Connections on shared memory.
    pub(crate) direct: usize,
    /// Connections on the engine.
    pub(crate) offload: usize,
    /// Connections on kernel TCP.
    pub(crate) host: usize,
    /// The reasons of connections on kernel TCP.
    pub(crate) reasons: Vec<String>,
}

impl ConnectionsSeen {
    /// Counts the ends of connections that the adapter knows: a connection between two accelerated
    /// programs counts twice.
    pub(crate) fn of(status: &Status) -> ConnectionsSeen {
        let mut seen = ConnectionsSeen::default();
        for connection in status
            .processes
            .iter()
            .flat_map(|process| &process.connections)
        {
            match connection.path.as_str() {
                "direct" => seen.direct += 1,
                "offload" => seen.offload += 1,
                _ => {
                    seen.host += 1;
                    let reason = &connection.reason;
                    if !reason.is_empty() && !seen.reasons.contains(reason) {
                        seen.reasons.push(reason.clone());
                    }
                }
            }
        }
        seen
    }

    /// The rank of an answer: by moved connections first, then by all connections.
    pub(crate) fn rank(&self) -> (usize, usize) {
        let moved = self.direct + self.offload;
        (moved, moved + self.host)
    }
}

/// Counts of the connections that left kernel TCP. A connection of one request ends before anybody
/// sees it, but it is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Moved {
    /// Connections that got shared memory.
    pub(crate) channels: u64,
    /// Connections between two programs that used a carrier again.
    pub(crate) used_carriers: u64,
    /// Connections of the engine.
    pub(crate) engine: u64,
}

impl Moved {
    /// The counts of the adapter, and of the processes that it knows now.
    pub(crate) fn of(status: &Status) -> Moved {
        let engine = status.engine.as_ref();
        Moved {
            channels: status.channels_made,
            used_carriers: status
                .processes
                .iter()
                .map(Process::accepted_on_used_carriers)
                .sum(),
            engine: engine.map_or(0, Engine::connections_ever),
        }
    }

    /// The differences from `before`.
    pub(crate) fn since(self, before: Moved) -> Moved {
        Moved {
            channels: self.channels.saturating_sub(before.channels),
            used_carriers: self.used_carriers.saturating_sub(before.used_carriers),
            engine: self.engine.saturating_sub(before.engine),
        }
    }

    /// Whether all connections stayed on kernel TCP.
    pub(crate) fn is_none(self) -> bool {
        self == Moved::default()
    }

    /// The counts in words.
    pub(crate) fn words(self) -> String {
        let mut parts = vec![format!("{} got shared memory", self.channels)];
        if self.used_carriers > 0 {
            parts.push(format!("{} used a carrier again", self.used_carriers));
        }
        if self.engine > 0 {
            parts.push(format!("{} went through the engine", self.engine));
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(json: &str) -> Status {
        serde_json::from_str(json).expect("an answer")
    }

    /// A connection of one request is over before a look at the adapter's list finds it.
    #[test]
    fn connections_that_nobody_saw_are_counted() {
        let before = Moved::of(&status(r#"{"channels_made": 3}"#));
        let after = status(
            r#"{"channels_made": 5, "processes": [
                {"pid": 1, "express": {"accepted": 2960, "connected": 1}, "connections": []},
                {"pid": 2, "express": {"connected": 2960}, "connections": []}],
                "engine": {"connections_opened": 4, "connections_accepted": 3}}"#,
        );
        assert_eq!(ConnectionsSeen::of(&after), ConnectionsSeen::default());
        let moved = Moved::of(&after).since(before);
        assert_eq!(
            (moved.channels, moved.used_carriers, moved.engine),
            (2, 2960, 7)
        );
        assert!(!moved.is_none() && before.since(before).is_none());
    }
}
