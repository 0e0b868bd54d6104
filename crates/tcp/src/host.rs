//! The host's side of the engine: names for things, payload by reference, news.
//!
//! The engine holds no payload. Each connection has two streams of bytes, numbered from zero, that
//! live in rings of the host's. For sending, the host says how far it has published; the engine
//! reads bytes when they go onto the link, again when they are retransmitted, and says how far they
//! are acknowledged: until then they must stay. For receiving, the engine places bytes at their
//! offset as they arrive, early ones beyond a gap included, and says how far they are contiguous.

use core::net::SocketAddr;

use crate::config::EcnMode;
use crate::state::{CloseReason, Phase};
use crate::time::Duration;

/// A connection, for as long as the host has not let go of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ConnectionId {
    /// The connection's slot: small numbers, reused; fit to index a table of rings.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub(crate) u32);

/// The host has no room for these bytes, in spite of the window it allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// The rings of the host. Offsets count the bytes of a stream from its beginning.
pub trait Memory {
    /// Stores `bytes` at `offset` of what `connection` receives. Offsets below what was announced
    /// as received never come again; beyond it they may come in any order.
    ///
    /// # Errors
    /// [`NoRoom`] makes the engine treat the segment as lost: the remote will send it again.
    fn place(&mut self, connection: ConnectionId, offset: u64, bytes: &[u8]) -> Result<(), NoRoom>;

    /// Fills `target` with what `connection` sends from `offset` on. Only bytes that were published
    /// and are not yet acknowledged are asked for, any number of times.
    fn gather(&mut self, connection: ConnectionId, offset: u64, target: &mut [u8]);
}

/// Something the host may want to act upon. News of one connection is merged until it is fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A connection the host opened is established.
    Connected(ConnectionId),
    /// A listener has connections to be accepted.
    Acceptable(ListenerId),
    /// A connection ended that nobody will accept any more: the bytes that were placed for it may
    /// be forgotten.
    Abandoned(ConnectionId),
    /// A connection got on.
    Progress {
        /// Which one.
        connection: ConnectionId,
        /// Bytes received without a gap since the stream began.
        received: u64,
        //= RFC 2018#8
        //# Since the data receiver may later discard data reported in a SACK option, the sender
        //# MUST NOT discard data before it is acknowledged by the Acknowledgment Number field in
        //# the TCP header.
        /// Bytes acknowledged since the stream began: the ring may use their room again.
        acknowledged: u64,
        /// Nothing will follow what was received: the remote has finished.
        remote_finished: bool,
    },
    /// A connection ended. Its received bytes may still be read; it stays until it is released.
    Closed {
        /// Which one.
        connection: ConnectionId,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a listener cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenError {
    /// Another listener has the address and port.
    AddressInUse,
    /// The address is not one of the engine's.
    AddressNotOurs,
    /// Port zero.
    NoPort,
}

/// Why a connection cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectError {
    /// These two ends are connected already.
    AddressInUse,
    /// The local address is not one of the engine's.
    AddressNotOurs,
    /// All ephemeral ports towards this destination are in use.
    NoPortLeft,
    /// The destination cannot be connected to: multicast, unspecified, port zero, or without a
    /// route or address of its family.
    Unreachable,
    /// `connections_max` connections exist.
    NoSlotLeft,
}

/// A call about a connection that makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallError {
    /// There is no such connection (any more).
    NoConnection,
    /// An offset that moves backwards, or beyond what there is.
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
    /// Bytes beyond what it has acknowledged that the remote has room for.
    pub remote_window: u64,
    /// Payload of a full segment.
    pub mss: u16,
    /// The smoothed round-trip time, once measured.
    pub round_trip: Option<Duration>,
    /// How much the round-trip time varies (RFC 6298).
    pub round_trip_variation: Duration,
    /// The shortest round-trip time of late; zero before the first measurement.
    pub round_trip_minimum: Duration,
    /// The retransmission timeout, backed off.
    pub timeout: Duration,
    /// Retransmissions or probes since the remote last answered.
    pub retries: u8,
    /// Where the connection stands with regard to loss.
    pub phase: Phase,
    /// Bytes of our stream that were sent at least once.
    pub sent: u64,
    /// Bytes in flight that the remote has selectively acknowledged.
    pub sacked: u32,
    /// Bytes deduced to be lost and not sent again.
    pub lost: u32,
    /// Bytes sent again and not acknowledged.
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
    /// Data is spread over the round trip.
    pub pacing: bool,
    /// The window scales of the remote and of ours, where negotiated.
    pub window_scales: Option<(u8, u8)>,
    /// The receive window when everything is taken.
    pub receive_limit: u32,
    /// Bytes of the engine's memory this connection takes.
    pub memory_bytes: usize,
    /// Payload on a SYN was acknowledged with it, the remote's or ours (RFC 7413).
    pub syn_data: bool,
}
