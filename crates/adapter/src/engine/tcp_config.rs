//! What the TCP is told: the operator's settings, in its own words.

use std::net::IpAddr;

use toehold_tcp::{
    Config, ConnectionInfo, Duration, InterfaceAddress, MacAddress, Medium, Offload, Options,
    Route, Share,
};

use super::endpoint::{LONG_WINDOW_LOG2, WINDOW_LOG2};
use super::rings::RING_BYTES_MAX;
use super::settings::{Settings, spell};

/// The largest segment we leave to the link: an IP packet has 16 bits for its length.
pub(super) const LARGE_SEGMENT_BYTES: u32 = 64_000;
/// The receive window to begin with, as on Linux: what a remote can send to a program that does not
/// accept or read. It grows as the program reads.
pub(super) const RECEIVE_BYTES: u32 = 64 << 10;
/// What it grows to at most, as far as [`window_log2`] allows.
const RECEIVE_BYTES_MAX: u32 = 1 << LONG_WINDOW_LOG2;
const _: () = assert!(RECEIVE_BYTES_MAX as usize <= RING_BYTES_MAX);
/// A program that has taken so much reads: the buffers between hold less.
pub(super) const PROOF_OF_READING_BYTES: u64 = 384 << 10;
/// A way is long from this round trip on: a smaller window holds 2 Gbit/s back there.
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
    let [.., a, b, c, d] = spell(first);
    [0x02, 0x54, a, b, c, d]
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
        resolve: true,
    };
    let config = Config::new(medium, mtu, addresses[0]);
    let engines = share.count() as u32;
    Config {
        share,
        // The host's limits, not an engine's.
        challenges_per_second_max: config.challenges_per_second_max / engines,
        refusals_per_second_max: config.refusals_per_second_max / engines,
        echo_replies_per_second_max: config.echo_replies_per_second_max / engines,
        arp_replies_per_second_max: config.arp_replies_per_second_max / engines,
        advertisements_per_second_max: config.advertisements_per_second_max / engines,
        cookies_per_second_max: config.cookies_per_second_max / engines,
        routes: routes(settings),
        offload: Offload {
            transmit_checksum: settings.checksum,
            segmentation_bytes_max: if settings.lso { LARGE_SEGMENT_BYTES } else { 0 },
        },
        addresses,
        ..config
    }
}

/// How relayed connections behave. Small segments go out at once: the program's own socket has
/// Nagle's rule, if the program wants it.
pub(super) fn options() -> Options {
    Options {
        nodelay: true,
        receive_bytes: RECEIVE_BYTES,
        receive_bytes_max: RECEIVE_BYTES_MAX,
        ..Options::default()
    }
}

/// The largest window of a connection, as a power of two, either way.
pub(super) fn window_log2(info: &ConnectionInfo) -> u32 {
    let is_long = info.round_trip.is_some_and(|time| time >= LONG_ROUND_TRIP);
    if is_long || info.receive_limit > 1 << WINDOW_LOG2 {
        LONG_WINDOW_LOG2
    } else {
        WINDOW_LOG2
    }
}
