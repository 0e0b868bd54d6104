//! What the TCP is told: the operator's settings, in its own words.

use std::net::IpAddr;

use toehold_tcp::{Config, InterfaceAddress, MacAddress, Medium, Offload, Options, Route, Share};

use super::rings::RING_BYTES;
use super::settings::{Settings, spell};

/// The largest segment we leave to the link: an IP packet has 16 bits for its length.
pub(super) const LARGE_SEGMENT_BYTES: u32 = 64_000;
/// The receive window: all that a channel's ring can hold, from the start. A program tells that it
/// reads when it crosses half of its ring; a smaller window could close before that.
const RECEIVE_BYTES: u32 = 1 << super::endpoint::WINDOW_LOG2;
const _: () = assert!(RECEIVE_BYTES as usize <= RING_BYTES);

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
    Config {
        share,
        // The host's limits, not an engine's.
        challenges_per_second_max: config.challenges_per_second_max / share.count() as u32,
        refusals_per_second_max: config.refusals_per_second_max / share.count() as u32,
        echo_replies_per_second_max: config.echo_replies_per_second_max / share.count() as u32,
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
        receive_bytes_max: RECEIVE_BYTES,
        ..Options::default()
    }
}
