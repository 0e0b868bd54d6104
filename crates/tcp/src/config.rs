//! Decisions of an engine's owner: the link it stands on, and how its connections behave.

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
        /// Whether the engine owns its IP addresses there, and so answers ARP requests and
        /// neighbour solicitations for them. Not where the kernel shares the interface.
        resolve: bool,
    },
    /// Bare IP packets, as on a TUN device.
    Ip,
}

/// Work that the link does for us. Each is a switch of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// The link completes TCP checksums: segments leave with the pseudo-header's sum alone.
    pub transmit_checksum: bool,
    /// Segmentation offload: the largest TCP payload the link cuts into segments by itself. Zero
    /// where it does not.
    pub segmentation_bytes_max: u32,
}

/// One of the engine's addresses, and the neighbourhood that comes with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// Length of the prefix whose hosts are reached directly.
    pub prefix_bits: u8,
}

/// A way to the hosts beyond the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Destinations: the address part of the prefix.
    pub destination: IpAddr,
    /// Destinations: the length of the prefix; zero is the default route.
    pub prefix_bits: u8,
    /// The neighbour that forwards.
    pub gateway: IpAddr,
}

/// Which algorithm decides the congestion window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CongestionControl {
    /// RFC 5681 and RFC 6582.
    NewReno,
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 8257. Only for networks whose switches mark as it expects.
    Dctcp,
    /// draft-ietf-ccwg-bbr: a model of the path. Data is always paced.
    Bbr,
}

/// Explicit congestion notification: what a connection asks for, or what both ends have agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EcnMode {
    /// None.
    #[default]
    Off,
    /// RFC 3168: a receiver says that there was a mark, until the sender has answered.
    Classic,
    /// RFC 9768: a receiver counts the marks. With a remote that does not, as [`EcnMode::Classic`].
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

/// How one connection behaves. Listeners hand theirs to the connections they accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The congestion control algorithm.
    pub congestion: CongestionControl,
    /// Negotiate explicit congestion notification.
    pub ecn: EcnMode,
    /// Spread data over the round trip instead of sending bursts, where the handshake took
    /// [`PACED_ROUND_TRIP_MIN`](Self::PACED_ROUND_TRIP_MIN) or more. On a shorter path the parts
    /// would be shorter than the timers' granularity.
    pub pacing: bool,
    /// Send small segments at once (the Nagle algorithm off).
    pub nodelay: bool,
    /// Probe a silent remote.
    pub keepalive: Option<Keepalive>,
    /// Give up when data, or a SYN, stays unacknowledged for so long (RFC 9293 section 3.9.1, RFC
    /// 5482).
    pub user_timeout: Option<Duration>,
    /// Retransmissions of a SYN before giving up (TCP_SYNCNT), instead of
    /// [`Config::syn_retries_max`].
    pub syn_retries_max: Option<NonZeroU8>,
    /// The receive window to begin with. The host's receive ring must hold as much.
    pub receive_bytes: u32,
    /// The size up to which the receive window may grow while the host keeps up with a fast remote.
    pub receive_bytes_max: u32,
    /// The largest MSS to offer and to use (TCP_MAXSEG), where the path allows more.
    pub mss_max: u16,
    /// The initial congestion window, in segments (RFC 6928). At least one is sent.
    pub initial_window_segments: u8,
}

impl Options {
    /// The round trip from which on pacing has an effect.
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
    /// The largest IP packet the link takes.
    pub mtu: u16,
    //= RFC 9293#3.9.2
    //# Time to Live (TTL): The TTL value used to send TCP segments MUST be configurable
    //# (MUST-49).
    /// TTL or hop limit of packets. Neighbour discovery has its own.
    pub hop_limit: u8,
    /// Work that the link does for us.
    pub offload: Offload,
    /// The engine's addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Ways beyond the link, the most specific match first served.
    pub routes: Vec<Route>,
    /// The host knows all ways, those on the link too, and [`Self::routes`] are not used:
    /// [`crate::Engine::poll_way`] asks, [`crate::Engine::set_way`] answers.
    pub asks_ways: bool,
    /// Connections in any state. Memory is reserved for all and touched as they come.
    pub connections_max: usize,
    /// Half-open connections of all listeners; beyond, SYN cookies (RFC 4987) take over.
    pub half_open_max: usize,
    /// The engine's share of the connections, where several have the same addresses.
    pub share: Share,
    /// Ports for connections that name none: first and last.
    pub ephemeral_ports: (u16, u16),
    /// Lower bound of the retransmission timeout. RFC 6298 section 2.4 asks for one second and
    /// allows less with a finer clock and better estimators; Linux uses 200 ms. Less than the
    /// timers' granularity, a millisecond, counts as that.
    pub rto_min: Duration,
    /// Upper bound of the retransmission timeout (RFC 6298 section 2.5: at least 60 s).
    pub rto_max: Duration,
    /// The timeout before anything was measured (RFC 6298 section 2.1).
    pub rto_initial: Duration,
    /// How long an acknowledgement may wait for company. RFC 9293 section 3.8.6.3 wants less than
    /// half a second; what is not less counts as 499 ms.
    pub delayed_ack: Duration,
    /// TIME-WAIT, two maximum segment lifetimes. RFC 9293 section 3.4.2 says 2 min each; Linux
    /// waits 60 s in all, and so do we.
    pub time_wait: Duration,
    /// Retransmissions of a SYN before the attempt fails.
    pub syn_retries_max: u8,
    /// Retransmissions of data, and probes of a window, before the connection is given up (R2 of
    /// RFC 9293 section 3.8.3), where no user timeout decides.
    pub retries_max: u8,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Offer window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Probe for the loss of a flight's tail (RFC 8985 section 7).
    pub tail_probes: bool,
    /// Begin with the initial window again after an idle time (RFC 5681 section 4.1).
    pub restart_after_idle: bool,
    /// The secret of Fast Open's cookies; drawn if it is `None`. Engines with the same addresses
    /// have the same, because any of them may get a remote's next connection.
    pub fast_open_key: Option<[u64; 2]>,
    /// Challenge acknowledgements a second, of all connections (RFC 5961 section 7). Each
    /// connection sends at most one in half a second, as on Linux (`tcp_invalid_ratelimit`). This
    /// limit and the next ones count apart: a flood that uses up one takes nothing from the others.
    pub challenges_per_second_max: u32,
    /// Resets a second that refuse segments without a connection (RFC 9293 section 3.10.7.1).
    pub refusals_per_second_max: u32,
    /// Echo replies a second (RFC 1122 section 3.2.2.6, RFC 4443 section 4.2).
    pub echo_replies_per_second_max: u32,
    /// ARP replies a second (RFC 826). A crowd of honest neighbours may ask at once.
    pub arp_replies_per_second_max: u32,
    /// Neighbour advertisements a second that answer solicitations (RFC 4861 section 7.2.4).
    pub advertisements_per_second_max: u32,
    /// SYN cookies a second (RFC 4987). A flood's SYNs beyond it get no answer. An honest SYN among
    /// them gets none either, and is sent again: so this limit is far above the others.
    pub cookies_per_second_max: u32,
}

impl Config {
    /// A configuration for one address on a link, everything else as most hosts want it.
    #[must_use]
    pub fn new(medium: Medium, mtu: u16, address: InterfaceAddress) -> Self {
        Self {
            medium,
            mtu,
            hop_limit: 64,
            offload: Offload::default(),
            addresses: vec![address],
            routes: Vec::new(),
            asks_ways: false,
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
