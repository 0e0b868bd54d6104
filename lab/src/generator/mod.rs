//! The lab's load generator: `toehold lab server` and `toehold lab client`, on plain sockets.
//!
//! A connection begins with a header of 32 bytes ([`wire`]) that tells the server what to do, so a
//! server needs no settings and serves any number of clients. The client's measurements are an
//! [`Outcome`]. [`bare`] has similar patterns between two bare threads, without sockets: the limit
//! of this machine. [`one_copy`] passes messages between two processes.

mod alarm;
pub mod bare;
mod client;
mod connect;
mod event_loop;
pub mod filters;
mod gate;
pub mod http;
mod latency;
mod newcomers;
pub mod one_copy;
mod ping_pong;
pub mod poll;
mod requests;
mod server;
mod session;
mod socket;
mod streams;
mod wire;

use serde::{Deserialize, Serialize};
use toehold_measure::procfs::ProcessMemory;

pub use client::run;
pub(crate) use client::{DESCRIPTORS_SPARE, raise_descriptor_limit};
pub use gate::Gate;
pub(crate) use requests::PRIOR_TIMEOUT;
pub use server::Server;
pub use socket::Address;

/// The traffic pattern: the sending end, the amount, and the times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// A message there, a message back, one after the other; with several streams, all at once: a
    /// hot spot.
    PingPong,
    /// Streams from the client to the server, each acknowledged at its end: one-way, fan-in.
    ToServer,
    /// Streams from the server to the client: fan-out.
    ToClient,
    /// `streams` streams in each direction.
    Both,
    /// Requests and responses on many connections, by one thread of the client; open loop when a
    /// rate is given, else closed.
    Requests,
    /// A connection, one byte there, one byte back, the end; one after the other in each stream.
    Connect,
    /// A connection without a byte, which the client opens and closes; one after the other in each
    /// stream.
    Empty,
    /// A crowd of `streams` new clients in one thread: each connects and sends a request. When all
    /// have their first answer, all close, and a new crowd comes.
    Newcomers,
}

impl Pattern {
    /// Every pattern with its name on the command line.
    pub const ALL: [(&'static str, Pattern); 8] = [
        ("ping-pong", Pattern::PingPong),
        ("to-server", Pattern::ToServer),
        ("to-client", Pattern::ToClient),
        ("both", Pattern::Both),
        ("requests", Pattern::Requests),
        ("connect", Pattern::Connect),
        ("empty", Pattern::Empty),
        ("newcomers", Pattern::Newcomers),
    ];

    /// Whether its connections end before they could move, so that each counts by itself.
    pub fn is_short(self) -> bool {
        matches!(self, Pattern::Connect | Pattern::Empty | Pattern::Newcomers)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let known = Pattern::ALL.iter().find(|(_, pattern)| *pattern == self);
        known.map_or("", |(name, _)| name)
    }
}

/// The times at which requests of an open loop are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Constant,
    /// As independent users send them: at exponentially distributed distances.
    Poisson,
}

/// The load of a client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// The traffic pattern.
    pub pattern: Pattern,
    /// Bytes of a message, or of a request.
    pub message: usize,
    /// Bytes of a response; by default as many as of the message.
    pub response: Option<usize>,
    /// Connections; in [`Pattern::Both`] in each direction.
    pub streams: usize,
    /// Seconds that are measured.
    pub seconds: f64,
    /// Seconds of warm-up before the measured seconds.
    pub warmup: f64,
    /// Waits by polling, at both ends; otherwise sleeps in the kernel.
    pub polling: bool,
    /// The sender writes every message anew, and the receiver adds up its bytes.
    pub touch: bool,
    /// Streams are sent by sendfile, from memory.
    pub sendfile: bool,
    /// Size of the sockets' buffers, at both ends; the kernel's choice when not given.
    pub socket_buffer: Option<usize>,
    /// Requests in a second, of all connections: an open loop.
    pub rate: Option<f64>,
    /// The times at which they are due.
    pub arrivals: Arrivals,
    /// Requests that each connection makes before the warm-up: then it has been in use.
    #[serde(default)]
    pub prior: usize,
    /// The number of connections that make requests after that; all connections by default. The
    /// others stay open and idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<usize>,
    /// The gate at which the client waits before its warm-up, and again before it closes its
    /// connections.
    #[serde(skip)]
    pub gate: Option<Gate>,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            pattern: Pattern::PingPong,
            message: 64,
            response: None,
            streams: 1,
            seconds: 1.0,
            warmup: 0.2,
            polling: false,
            touch: false,
            sendfile: false,
            socket_buffer: None,
            rate: None,
            arrivals: Arrivals::Constant,
            prior: 0,
            active: None,
            gate: None,
        }
    }
}

impl Load {
    /// Refuses an invalid load.
    ///
    /// # Errors
    ///
    /// A sentence that names the setting and its bounds.
    pub fn check(&self) -> Result<(), String> {
        let within = |what: &str, value: usize, max: usize| {
            if (1..=max).contains(&value) {
                Ok(())
            } else {
                Err(format!(
                    "{what} is a number from 1 to {max}, and not {value}"
                ))
            }
        };
        within("the message size", self.message, wire::MESSAGE_BYTES_MAX)?;
        within(
            "the response size",
            self.response_bytes(),
            wire::MESSAGE_BYTES_MAX,
        )?;
        within("the number of streams", self.streams, STREAMS_MAX)?;
        if let Some(bytes) = self.socket_buffer {
            within("the socket buffer", bytes, 1 << 30)?;
        }
        if !(self.seconds > 0.0 && self.seconds <= SECONDS_MAX && self.warmup >= 0.0)
            || self.warmup > SECONDS_MAX
        {
            return Err(format!(
                "a load lasts up to {SECONDS_MAX} seconds, and more than none"
            ));
        }
        if self.prior > 0 {
            within("the number of prior requests", self.prior, PRIOR_MAX)?;
            if self.pattern != Pattern::Requests {
                return Err("prior requests belong to the pattern requests".to_owned());
            }
        }
        if let Some(active) = self.active {
            within("the number of active connections", active, self.streams)?;
        }
        if self.pattern != Pattern::Requests && (self.active.is_some() || self.gate.is_some()) {
            return Err("active connections and a gate belong to the pattern requests".to_owned());
        }
        match self.rate {
            Some(rate) if !(RATE_MIN..=RATE_MAX).contains(&rate) => Err(format!(
                "the rate is a number from {RATE_MIN} to {RATE_MAX}, and not {rate}"
            )),
            Some(_) if self.pattern != Pattern::Requests => {
                Err("a rate belongs to the pattern requests".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Bytes of a response.
    pub fn response_bytes(&self) -> usize {
        self.response.unwrap_or(self.message)
    }
}

/// The client's measurements.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Names this form of the document.
    pub schema: String,
    /// The load that was asked for.
    pub load: Load,
    /// "closed loop", "open loop", "stream" or "connections".
    pub kind: String,
    /// Measured seconds, the acknowledgement of the end included.
    pub seconds: f64,
    /// Messages, requests or connections that were completed.
    pub operations: u64,
    /// Bytes of payload in both directions.
    pub bytes: u64,
    /// Requests of an open loop without a response when its time was over.
    pub unanswered: u64,
    /// Latencies: of a ping-pong half a round trip, else from the (intended) start to the end.
    pub latency: Option<Latency>,
    /// CPU seconds of all cores during the measurement; `None` between bare threads.
    pub cpu_all: Option<f64>,
    /// The part of them in soft interrupts.
    pub cpu_softirq: Option<f64>,
    /// Bytes of the host's memory in use at the end, with all connections open, minus those in use
    /// before the first was opened. Only for the pattern `requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<i64>,
    /// A digest of the responses, where the client can compute one: equal bytes have equal digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Costs of the programs of an application, or of client, server and adapter, which the lab
    /// adds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierCost>,
    /// Connections at the end of the load, which the lab adds where a plan asks for processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
}

impl Outcome {
    /// The outcome of clients that were measured at the same time; each has a part of `load`.
    pub(crate) fn of_all(clients: &[Outcome], load: &Load) -> Option<Outcome> {
        let (first, rest) = clients.split_first()?;
        let mut all = first.clone();
        all.load = load.clone();
        if rest.is_empty() {
            return Some(all);
        }
        let mut latencies = latency::Latencies::new();
        for latency in clients.iter().filter_map(|one| one.latency.as_ref()) {
            latencies.join_finished(latency);
        }
        all.latency = latencies.finish();
        // CPU times are those of the whole host, so the first client's values include the others.
        for one in rest {
            all.operations += one.operations;
            all.bytes += one.bytes;
            all.unanswered += one.unanswered;
        }
        Some(all)
    }
}

/// The costs of a tier of servers, of the client, or of the adapter.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct TierCost {
    /// The tier's name.
    pub name: String,
    /// The average number of busy cores: for an application from the client's start to its end, for
    /// others during the measurement.
    pub cores: f64,
    /// Its memory at the end of the load, if the plan asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ProcessMemory>,
}

/// Open connections at the end of a load.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Standing {
    /// The number of clients, which is also the number of servers.
    pub clients: usize,
    /// Connections of which both ends are in shared memory.
    pub direct: usize,
    /// Bytes in the buffers of the kernel's TCP sockets.
    pub socket_buffers: Option<u64>,
}

/// The distribution of a latency, in nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Half of all stay below.
    pub p50: u64,
    /// 99 of 100 stay below.
    pub p99: u64,
    /// 999 of 1000 stay below.
    pub p99_9: u64,
    /// The longest.
    pub max: u64,
    /// The mean.
    pub mean: f64,
    /// The whole histogram (three digits): values, each with its count.
    pub histogram: Vec<(u64, u64)>,
}

/// The form of an [`Outcome`].
pub const SCHEMA: &str = "toehold-generator/1";

const STREAMS_MAX: usize = 100_000;
const SECONDS_MAX: f64 = 3600.0;
/// At a lower rate no request would be due in [`SECONDS_MAX`], and the time of the next one could
/// be too large for a clock.
const RATE_MIN: f64 = 1e-3;
const RATE_MAX: f64 = 1e8;
const PRIOR_MAX: usize = 10_000;

#[cfg(test)]
mod tests;
