//! The offload engine: a complete TCP/IP without I/O.
//!
//! Frames go in and frames come out. The caller gives the time and the randomness. The engine knows
//! nothing else, so one seed replays everything. See [`Engine`] for the steps and [`Memory`] for
//! the place of payload. The README lists, by RFC, the supported and the missing functions.
//!
//! - `engine`: many connections, one link; `share`: several engines on one link.
//! - `connection`: one connection; `state`: its states; `flow`: its endpoints.
//! - `wire`: frames as bytes; [`numbers`]: types and protocols.
//! - `host`: the interface to the engine's owner; `config`: the owner's decisions; `counters`.
//! - `time`, `position`, `random`: microseconds, sequence numbers that do not wrap, keyed hashing.
//! - [`sim`]: a network in one thread, determined by one seed.
//!
//! ```
//! use toehold_tcp::{Config, Engine, Instant, InterfaceAddress, Medium, Options, Random};
//!
//! let address = InterfaceAddress { address: "10.0.0.1".parse().unwrap(), prefix_bits: 24 };
//! let mut engine = Engine::new(Config::new(Medium::Ip, 1500, address), Random::new(1));
//! let remote = "10.0.0.2:80".parse().unwrap();
//! let connection = engine.connect(Instant::ZERO, None, remote, Options::default()).unwrap();
//! let mut header = [0; toehold_tcp::HEADER_BUFFER_BYTES];
//! let syn = engine.poll_transmit(Instant::ZERO, &mut header).expect("a SYN to be sent");
//! assert!(syn.payload.is_none());
//! assert_eq!(engine.info(connection).unwrap().remote, remote);
//! ```
#![forbid(unsafe_code)]

mod config;
mod connection;
mod counters;
mod engine;
mod flow;
mod host;
mod position;
mod random;
mod share;
pub mod sim;
mod state;
mod time;
mod wire;

/// Type and protocol numbers of frames and packets.
pub mod numbers {
    pub use crate::wire::ethernet::{TYPE_ARP, TYPE_IPV4, TYPE_IPV6};
    pub use crate::wire::ip::{PROTOCOL_ICMP, PROTOCOL_ICMP_V6, PROTOCOL_TCP};
}

pub use config::{
    Config, CongestionControl, EcnMode, InterfaceAddress, Keepalive, Medium, Offload, Options,
    Route,
};
pub use counters::Counters;
pub use engine::{
    ChecksumWork, Engine, Expected, FrameOwner, HEADER_BUFFER_BYTES, Headers, Payload,
    ReceiveOffload, Transmit, TransmitOffload,
};
pub use host::{
    CallError, ConnectError, ConnectionId, ConnectionInfo, Event, ListenError, ListenerId, Memory,
    NoRoom,
};
pub use random::Random;
pub use share::{Share, Spread};
pub use state::{CloseReason, Departure, Phase, State};
pub use time::{Duration, Instant};
pub use wire::Malformed;
pub use wire::checksum::Sum as ChecksumSum;
pub use wire::ethernet::MacAddress;
