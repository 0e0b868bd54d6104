//! Configuration by the engine's owner: the link, and the behaviour of connections.

use core::net::IpAddr;
use core::num::NonZeroU8;

use crate::share::Share;
use crate::time::Duration;
use crate::wire::ethernet::MacAddress;

/// The kind of packets on the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Ethernet frames; the engine resolves its neighbours' hardware addresses.
    Ethernet {
        /// Our address on the link.
        mac: MacAddress,
        /// Whether the engine owns its IP addresses on this link, and so answers ARP requests and
        /// neighbour solicitations for them. False if the kernel shares the interface.
        resolve: bool,
    },
    /// Bare IP packets, as on a TUN device.
    Ip,
}

/// Work that the link does for the engine. Each kind is switched on separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The link completes TCP checksums: segments are sent with the pseudo-header's sum only.
    pub transmit_checksum: bool,
    /// Segmentation offload: the largest TCP payload that the link divides into segments. Zero if
    /// it does not.
    pub segmentation_bytes_max: u32,
}

/// One of the engine's addresses, and its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// Length of the prefix of hosts that are reached without a router.
    pub prefix_bits: u8,
}

/// A route to hosts beyond the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Destinations: the address part of the prefix.
    pub destination: IpAddr,
    /// Destinations: the length of the prefix; zero is the default route.
    pub prefix_bits: u8,
    /// The neighbour that forwards.
    pub gateway: IpAddr,
}

/// The algorithm that sets the congestion window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CongestionControl {
    /// RFC 5681 and RFC 6582.
    NewReno,
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 8257. Only for networks whose switches mark packets as DCTCP expects.
    Dctcp,
    /// draft-ietf-ccwg-bbr: a model of the path. Data is always paced.
    Bbr,
}

/// Explicit congestion notification: the mode a connection asks for, or the negotiated mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EcnMode {
    /// No ECN.
    #[default]
    Off,
    /// RFC 3168: a receiver reports a mark repeatedly, until the sender has responded.
    Classic,
    /// RFC 9768: a receiver counts the marks. If the remote does not support it:
    /// [`EcnMode::Classic`].
    Accurate,
}

/// Keepalive probes (RFC 9293 section 3.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    //= RFC 9293#3.8.4
    //# This interval MUST be configurable (MUST-27)
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection is given up.
    pub probes_max: NonZeroU8,
}

/// The behaviour of a connection. Connections take the options of their listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The congestion control algorithm.
    pub congestion: CongestionControl,
    /// Negotiate explicit congestion notification.
    pub ecn: EcnMode,
    /// Spread data over the round trip instead of sending bursts, if the handshake took at least
    /// [`PACED_ROUND_TRIP_MIN`](Self::PACED_ROUND_TRIP_MIN). On a shorter path the intervals would
    /// be shorter than the timers' granularity.
    pub pacing: bool,
    /// Send small segments at once (the Nagle algorithm off).
    pub nodelay: bool,
    /// Probe a silent remote.
    pub keepalive: Option<Keepalive>,
    /// Give up when data or a SYN stays unacknowledged for this long (RFC 9293 section 3.9.1, RFC
    /// 5482).
    pub user_timeout: Option<Duration>,
    /// Retransmissions of a SYN before giving up (TCP_SYNCNT), instead of
    /// [`Config::syn_retries_max`].
    pub syn_retries_max: Option<NonZeroU8>,
    /// The initial receive window. The host's receive ring must have at least this size.
    pub receive_bytes: u32,
    /// The size up to which the receive window may grow while the host keeps up with a fast remote.
    pub receive_bytes_max: u32,
    /// The largest MSS to offer and to use (TCP_MAXSEG), where the path allows more.
    pub mss_max: u16,
    /// The initial congestion window, in segments (RFC 6928). At least one is sent.
    pub initial_window_segments: u8,
}

impl Options {
    /// The shortest round trip at which pacing has an effect.
    pub const PACED_ROUND_TRIP_MIN: Duration = Duration::from_millis(4);
}

impl Default for Options {
    fn default() -> Self {
        Self {
            congestion: CongestionControl::default(),
            ecn: EcnMode::Off,
            pacing: false,
            nodelay: false,
            //= RFC 9293#3.8.4
            //# If keep-alives are included, the application MUST be able to turn them on or off for
            //# each TCP connection (MUST-24)
            //= RFC 9293#3.8.4
            //# and they MUST default to off (MUST-25).
            keepalive: None,
            user_timeout: None,
            syn_retries_max: None,
            receive_bytes: 64 * 1024,
            receive_bytes_max: 4 * 1024 * 1024,
            mss_max: u16::MAX,
            initial_window_segments: 10,
        }
    }
}

/// An engine's fixed properties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The kind of packets on the link.
    pub medium: Medium,
    /// The largest IP packet that the link takes, in bytes.
    pub mtu: u16,
    //= RFC 9293#3.9.2
    //# Time to Live (TTL): The TTL value used to send TCP segments MUST be configurable
    //# (MUST-49).
    /// TTL or hop limit of packets. Neighbour discovery uses its own.
    pub hop_limit: u8,
    /// Work that the link does for the engine.
    pub offload: Offload,
    /// The engine's addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Routes beyond the link; the most specific match is used.
    pub routes: Vec<Route>,
    /// The host knows all routes, even those on the link, and [`Self::routes`] are not used:
    /// [`crate::Engine::poll_next_hop`] asks, [`crate::Engine::set_next_hop`] answers.
    pub asks_next_hops: bool,
    /// The most connections, in any state. Memory is reserved for all, and touched when a
    /// connection is created.
    pub connections_max: usize,
    /// The most half-open connections of all listeners; for more, SYN cookies are used (RFC 4987).
    pub half_open_max: usize,
    /// The engine's share of the connections, if several engines have the same addresses.
    pub share: Share,
    /// The first and last port for connections that name no port.
    pub ephemeral_ports: (u16, u16),
    /// Lower bound of the retransmission timeout. RFC 6298 section 2.4 asks for one second and
    /// allows less with a finer clock and better estimators; Linux uses 200 ms. Values below the
    /// timers' granularity count as one millisecond.
    pub rto_min: Duration,
    /// Upper bound of the retransmission timeout (RFC 6298 section 2.5: at least 60 s).
    pub rto_max: Duration,
    /// The timeout before the first measurement (RFC 6298 section 2.1).
    pub rto_initial: Duration,
    /// The time that an acknowledgement may be delayed. RFC 9293 section 3.8.6.3 wants less than
    /// half a second; longer values count as 499 ms.
    pub delayed_ack: Duration,
    /// Duration of TIME-WAIT, two maximum segment lifetimes. RFC 9293 section 3.4.2 says 2 min
    /// each; Linux waits 60 s in total, and so does the engine.
    pub time_wait: Duration,
    /// Retransmissions of a SYN before the attempt fails.
    pub syn_retries_max: u8,
    /// Retransmissions of data, or window probes, before the connection is given up (R2 of RFC 9293
    /// section 3.8.3), if no user timeout is set.
    pub retries_max: u8,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Offer window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Send tail loss probes (RFC 8985 section 7).
    pub tail_probes: bool,
    /// Return to the initial window after an idle time (RFC 5681 section 4.1).
    pub restart_after_idle: bool,
    /// The secret of Fast Open's cookies; random if `None`. Engines with the same addresses need
    /// the same secret, because any of them may get a remote's next connection.
    pub fast_open_key: Option<[u64; 2]>,
    /// Challenge acknowledgements per second, of all connections (RFC 5961 section 7). Each
    /// connection sends at most one in half a second, as on Linux (`tcp_invalid_ratelimit`). This
    /// limit and the next ones are separate: a flood that uses up one does not affect the others.
    pub challenges_per_second_max: u32,
    /// Resets per second that refuse segments without a connection (RFC 9293 section 3.10.7.1).
    pub refusals_per_second_max: u32,
    /// Echo replies per second (RFC 1122 section 3.2.2.6, RFC 4443 section 4.2).
    pub echo_replies_per_second_max: u32,
    /// ARP replies per second (RFC 826). Many honest neighbours may ask at the same time.
    pub arp_replies_per_second_max: u32,
    /// Neighbour advertisements per second that answer solicitations (RFC 4861 section 7.2.4).
    pub advertisements_per_second_max: u32,
    /// SYN cookies per second (RFC 4987). SYNs beyond this limit get no answer. An honest SYN among
    /// them gets none either, and is sent again: so this limit is far above the others.
    pub cookies_per_second_max: u32,
}

impl Config {
    /// A configuration for one address on a link, with defaults that suit most hosts.
    #[must_use]
    pub fn new(medium: Medium, mtu: u16, address: InterfaceAddress) -> Self {
        Self {
            medium,
            mtu,
            hop_limit: 64,
            offload: Offload::default(),
            addresses: vec![address],
            routes: Vec::new(),
            asks_next_hops: false,
            connections_max: 100_000,
            half_open_max: 4_096,
            share: Share::WHOLE,
            ephemeral_ports: (32_768, 60_999),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            rto_initial: Duration::from_secs(1),
            delayed_ack: Duration::from_millis(40),
            time_wait: Duration::from_secs(60),
            syn_retries_max: 6,
            //= RFC 9293#3.8.3
            //# The value of R2 SHOULD correspond to at least 100 seconds (SHLD-11).
            retries_max: 15,
            timestamps: true,
            sack: true,
            window_scaling: true,
            tail_probes: true,
            restart_after_idle: true,
            fast_open_key: None,
            challenges_per_second_max: 1_000,
            refusals_per_second_max: 1_000,
            echo_replies_per_second_max: 1_000,
            arp_replies_per_second_max: 10_000,
            advertisements_per_second_max: 10_000,
            cookies_per_second_max: 50_000,
        }
    }
}
