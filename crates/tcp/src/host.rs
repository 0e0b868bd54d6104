//! The host's interface to the engine: ids, payload by reference, events.
//!
//! The engine holds no payload. Each connection has two streams of bytes, numbered from zero, in
//! rings that belong to the host. For sending, the host says how many bytes it has published. The
//! engine reads bytes when it sends or retransmits them, and reports how many are acknowledged:
//! until then the bytes must stay. For receiving, the engine places bytes at their offset as they
//! arrive, even beyond a gap, and reports how many have arrived without a gap.

use core::net::SocketAddr;

use crate::config::EcnMode;
use crate::state::{CloseReason, Phase};
use crate::time::Duration;

/// A connection. Valid until the host releases the connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ConnectionId {
    /// The connection's slot: a small number that is reused, suitable as an index into a table of
    /// rings.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub(crate) u32);

/// The host has no room for these bytes, although the window allowed them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// The rings of the host. Offsets count the bytes of a stream from its beginning.
pub trait Memory {
    /// Stores `bytes` at `offset` of the stream that `connection` receives. Offsets below the
    /// announced number of received bytes never come again; beyond it, bytes may come in any order.
    ///
    /// # Errors
    /// [`NoRoom`] makes the engine treat the segment as lost: the remote will send it again.
    fn place(&mut self, connection: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom>;

    /// Fills `target` with the bytes that `connection` sends from `offset` on. The engine asks only
    /// for bytes that were published and are not yet acknowledged, any number of times.
    fn gather(&mut self, connection: ConnectionId, offset: u64, target: &mut [u8]);
}

/// An event for the host. Events of one connection are merged until the host fetches them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A connection that the host opened is established.
    Connected(ConnectionId),
    /// A listener has connections to be accepted.
    Acceptable(ListenerId),
    /// A connection has ended before it was accepted: the host may discard the bytes that were
    /// placed for it.
    Abandoned(ConnectionId),
    /// A connection made progress.
    Progress {
        /// The connection.
        connection: ConnectionId,
        /// Bytes received without a gap since the beginning of the stream.
        received: u64,
        //= RFC 2018#8
        //# Since the data receiver may later discard data reported in a SACK option, the sender
        //# MUST NOT discard data before it is acknowledged by the Acknowledgment Number field in
        //# the TCP header.
        /// Bytes acknowledged since the beginning of the stream: their room in the ring is free.
        acknowledged: u64,
        /// The remote has finished: no bytes follow those received.
        remote_finished: bool,
    },
    /// A connection ended. Its received bytes may still be read; its id is valid until the host
    /// releases it.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        reason: CloseReason,
    },
}

/// The reason why the engine cannot listen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenError {
    /// Another listener has this address and port.
    AddressInUse,
    /// The address is not one of the engine's.
    AddressNotOurs,
    /// Port zero.
    NoPort,
}

/// The reason why a connection cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectError {
    /// A connection between these two endpoints exists already.
    AddressInUse,
    /// The local address is not one of the engine's.
    AddressNotOurs,
    /// All ephemeral ports towards this destination are in use.
    NoPortLeft,
    /// The destination is not possible: multicast, unspecified, port zero, or without a route or an
    /// address of its family.
    Unreachable,
    /// `connections_max` connections exist.
    NoSlotLeft,
}

/// An invalid call about a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallError {
    /// The connection does not exist, or exists no more.
    NoConnection,
    /// An offset that moves back, or beyond the available bytes.
    BadOffset,
}

/// The properties of a connection that the host can ask for.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Our end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// The state of RFC 9293.
    pub state: crate::state::State,
    /// Bytes received without a gap.
    pub received: u64,
    /// Bytes acknowledged by the remote.
    pub acknowledged: u64,
    /// The remote has finished.
    pub remote_finished: bool,
    /// The congestion window, in bytes.
    pub congestion_window: u32,
    /// The slow start threshold, in bytes.
    pub slow_start_threshold: u32,
    /// Bytes believed to be in the network.
    pub in_flight: u32,
    /// Bytes that the remote has room for, beyond those it has acknowledged.
    pub remote_window: u64,
    /// Payload of a full segment.
    pub mss: u16,
    /// The smoothed round-trip time, once measured.
    pub round_trip: Option<Duration>,
    /// The variation of the round-trip time (RFC 6298).
    pub round_trip_variation: Duration,
    /// The shortest recent round-trip time; zero before the first measurement.
    pub round_trip_minimum: Duration,
    /// The retransmission timeout, backed off.
    pub timeout: Duration,
    /// Retransmissions or probes since the remote last answered.
    pub retries: u8,
    /// The phase of loss recovery.
    pub phase: Phase,
    /// Bytes of our stream that were sent at least once.
    pub sent: u64,
    /// Bytes in flight that the remote has selectively acknowledged.
    pub sacked: u32,
    /// Bytes deduced to be lost and not retransmitted.
    pub lost: u32,
    /// Bytes retransmitted and not acknowledged.
    pub retransmitted: u32,
    /// The MSS option we send.
    pub advertised_mss: u16,
    /// Timestamps were negotiated.
    pub timestamps: bool,
    /// Selective acknowledgements were negotiated.
    pub selective: bool,
    /// Congestion notification was negotiated.
    pub ecn: EcnMode,
    /// The congestion control algorithm.
    pub congestion: crate::config::CongestionControl,
    /// Pacing is on: data is spread over the round trip.
    pub pacing: bool,
    /// The window scales of the remote and of our side, if negotiated.
    pub window_scales: Option<(u8, u8)>,
    /// The receive window when the host has taken everything.
    pub receive_limit: u32,
    /// Bytes of the engine's memory that this connection uses.
    pub memory_bytes: usize,
    /// Payload on a SYN was acknowledged with that SYN, by the remote or by us (RFC 7413).
    pub syn_data: bool,
}
