//! Turns the operator's settings into the configuration of the TCP crate.

use std::net::IpAddr;
use std::num::NonZeroU8;

use toehold_tcp::{
    Config, ConnectionInfo, Duration, InterfaceAddress, Keepalive, MacAddress, Medium, Offload,
    Options, Route, Share,
};

use super::endpoint::{FIRST_WINDOW_LOG2, LONG_WINDOW_LOG2, WINDOW_LOG2};
use super::settings::{ConnectionSettings, DeviceKind, Settings, to_sixteen_bytes};

/// The largest segment that we give to the link to split: an IP packet has 16 bits for its length.
pub(super) const LARGE_SEGMENT_BYTES: u32 = 64_000;
/// The initial receive window, as on Linux: the most that a remote can send to a program that does
/// not accept or read. It grows as the program reads.
pub(super) const RECEIVE_BYTES: u32 = 64 << 10;
/// A program that has taken this many bytes certainly reads, because the buffers on the way hold
/// less.
pub(super) const PROOF_OF_READING_BYTES: u64 = 384 << 10;
/// From this round-trip time on a path counts as long: there the smaller window limits the rate to
/// 2 Gbit/s.
const LONG_ROUND_TRIP: Duration = Duration::from_millis(4);

/// Everything that is not on the link goes to the gateway of its family.
pub(super) fn routes(settings: &Settings) -> Vec<Route> {
    let everything = |gateway: &IpAddr| Route {
        destination: match gateway {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0; 16]),
        },
        prefix_bits: 0,
        gateway: *gateway,
    };
    settings.gateways.iter().map(everything).collect()
}

/// An Ethernet address of the engine's own: locally administered, and the same after a restart,
/// since neighbours remember it.
pub(super) fn mac(settings: &Settings) -> [u8; 6] {
    let (first, _) = settings.addresses[0];
    let [.., a, b, c, d] = to_sixteen_bytes(first);
    [0x02, 0x54, a, b, c, d]
}

/// The work that the link does for the engine.
pub(super) fn offload(settings: &Settings) -> Offload {
    Offload {
        transmit_checksum: settings.checksum.is_by_link()
            && settings.device.kind != DeviceKind::Xdp,
        segmentation_bytes_max: if settings.lso { LARGE_SEGMENT_BYTES } else { 0 },
    }
}

pub(super) fn config(settings: &Settings, mac: [u8; 6], mtu: u16, share: Share) -> Config {
    let addresses = settings.addresses.iter();
    let addresses = addresses.map(|&(address, prefix_bits)| InterfaceAddress {
        address,
        prefix_bits,
    });
    let addresses: Vec<InterfaceAddress> = addresses.collect();
    let medium = Medium::Ethernet {
        mac: MacAddress(mac),
        // If addresses are shared with the kernel, the kernel answers for them, and finds
        // neighbours.
        resolve: settings.shares.is_empty(),
    };
    let config = Config::new(medium, mtu, addresses[0]);
    let engines = share.count() as u32;
    Config {
        share,
        // The limit is for the host, so it is divided among the engines.
        challenges_per_second_max: config.challenges_per_second_max / engines,
        refusals_per_second_max: config.refusals_per_second_max / engines,
        echo_replies_per_second_max: config.echo_replies_per_second_max / engines,
        arp_replies_per_second_max: config.arp_replies_per_second_max / engines,
        advertisements_per_second_max: config.advertisements_per_second_max / engines,
        cookies_per_second_max: config.cookies_per_second_max / engines,
        routes: routes(settings),
        asks_next_hops: !settings.shares.is_empty(),
        offload: offload(settings),
        addresses,
        ..config
    }
}

/// The options of relayed connections. Small segments are sent at once: the program's own socket
/// applies Nagle's rule, if the program wants it.
pub(super) fn options(settings: &ConnectionSettings) -> Options {
    Options {
        nodelay: true,
        receive_bytes: RECEIVE_BYTES,
        receive_bytes_max: settings.window_bytes,
        congestion: settings.congestion,
        ecn: settings.ecn,
        pacing: settings.pacing,
        initial_window_segments: settings.initial_window,
        keepalive: settings.keepalive.map(|idle| Keepalive {
            idle,
            // Linux has these values (`tcp_keepalive_intvl`, `tcp_keepalive_probes`).
            interval: Duration::from_secs(75),
            probes_max: const { NonZeroU8::new(9).expect("not zero") },
        }),
        ..Options::default()
    }
}

/// Capacity of our ring in a new channel, and of the largest one, each as a power of two: a program
/// first has to show that it reads. Without window scaling the remote cannot fill half of a large
/// ring, and then the program would never ring.
pub(super) fn first_and_largest_log2(info: Option<ConnectionInfo>, is_reader: bool) -> (u32, u32) {
    let largest = info.as_ref().map_or(WINDOW_LOG2, window_log2);
    let is_scaled = info.is_some_and(|info| info.window_scales.is_some());
    let first = if is_reader && is_scaled {
        largest
    } else {
        FIRST_WINDOW_LOG2
    };
    (first, largest)
}

/// The largest window of a connection with a channel, as a power of two, either way.
pub(super) fn window_log2(info: &ConnectionInfo) -> u32 {
    if is_long(info) || info.receive_limit > 1 << WINDOW_LOG2 {
        LONG_WINDOW_LOG2
    } else {
        WINDOW_LOG2
    }
}

/// The largest window of a connection without a channel, in bytes, either way, where the settings
/// allow `window_bytes_max`.
pub(super) fn window_bytes(info: &ConnectionInfo, window_bytes_max: u32) -> u32 {
    if is_long(info) {
        window_bytes_max
    } else {
        window_bytes_max.min(1 << WINDOW_LOG2)
    }
}

/// Whether this rate fills more than half of a channel's rings with bytes in flight. Then a ring
/// has too little room for other bytes.
pub(super) fn outgrows_channel(info: &ConnectionInfo, bytes: u64, span: Duration) -> bool {
    let round_trip = info.round_trip_minimum.as_micros();
    let in_flight = u128::from(bytes) * u128::from(round_trip);
    let half_ring = u128::from(span.as_micros()) << (LONG_WINDOW_LOG2 - 1);
    is_long(info) && in_flight > half_ring
}

/// The shortest round trip is the length of the path. Longer ones include time in queues, such as
/// our own rings, and more room would only make the queues longer.
fn is_long(info: &ConnectionInfo) -> bool {
    info.round_trip_minimum >= LONG_ROUND_TRIP
}
