//! Addresses, routes, path MTUs: the IP layer of a host (RFC 1122 section 3.3).

use core::net::IpAddr;
use std::collections::BTreeMap;

use super::next_hops::{NextHop, NextHops};
use crate::config::{Config, InterfaceAddress, Route};
use crate::flow::FlowKey;
use crate::time::{Duration, Instant};
use crate::wire::ip::{self, Address};

/// The most path MTUs that are remembered; then the one that expires first is forgotten.
const PATHS_MAX: usize = 1_024;
/// RFC 8201 section 4: no increase sooner than 5 minutes, 10 recommended.
const PATH_LIFETIME: Duration = Duration::from_secs(600);
/// RFC 8200 section 5, and for IPv4 the `min_pmtu` of Linux: a report of a smaller MTU is more
/// likely an attack than a real path.
const MTU_MIN_V6: u32 = 1_280;
const MTU_MIN_V4: u32 = 552;

/// The IP layer's tables.
#[derive(Debug)]
pub(crate) struct Interface {
    addresses: Vec<(Address, u8)>,
    /// Sorted by prefix length, longest first.
    routes: Vec<(Address, u8, Address)>,
    /// The host's routes, if the host decides instead of `addresses` and `routes`.
    pub(crate) next_hops: Option<NextHops>,
    paths: BTreeMap<Address, (u16, Instant)>,
    mtu: u16,
}

impl Interface {
    pub(crate) fn new(config: &Config) -> Self {
        let mut interface = Self {
            addresses: Vec::new(),
            routes: Vec::new(),
            next_hops: config.asks_next_hops.then(NextHops::default),
            paths: BTreeMap::new(),
            mtu: config.mtu,
        };
        config
            .addresses
            .iter()
            .for_each(|address| interface.add(*address));
        interface.set_routes(&config.routes);
        interface
    }

    pub(crate) fn set_routes(&mut self, routes: &[Route]) {
        let routes = routes.iter().map(|route| {
            let bits = prefix_in_128(route.destination, route.prefix_bits);
            (route.destination.into(), bits, route.gateway.into())
        });
        self.routes = routes.collect();
        self.routes
            .sort_by_key(|&(_, bits, _)| core::cmp::Reverse(bits));
    }

    /// Adds an address, or changes the prefix of an existing one.
    pub(crate) fn add(&mut self, address: InterfaceAddress) {
        let bits = prefix_in_128(address.address, address.prefix_bits);
        let address = Address::from(address.address);
        self.remove(address);
        self.addresses.push((address, bits));
    }

    pub(crate) fn remove(&mut self, address: Address) {
        self.addresses.retain(|&(ours, _)| ours != address);
    }

    #[inline]
    pub(crate) fn is_ours(&self, address: Address) -> bool {
        self.addresses.iter().any(|&(ours, _)| ours == address)
    }

    /// Whether this is the broadcast address of one of our networks (RFC 1122 section 3.2.1.3 (d)).
    /// A network of two addresses has none (RFC 3021).
    pub(crate) fn is_broadcast(&self, address: Address) -> bool {
        self.addresses.iter().any(|&(ours, bits)| {
            let host_bits = u32::from(128 - bits);
            address.is_v4()
                && (2..=32).contains(&host_bits)
                && is_in_prefix(address, ours, bits)
                && address.low().trailing_ones() >= host_bits
        })
    }

    /// Our address for connections to `remote`: one in its network, otherwise one of its family.
    pub(crate) fn source_for(&self, remote: Address) -> Option<Address> {
        let same_family = || {
            self.addresses
                .iter()
                .filter(|(ours, _)| ours.is_v4() == remote.is_v4())
        };
        same_family()
            .find(|&&(ours, bits)| is_in_prefix(remote, ours, bits))
            .or_else(|| same_family().next())
            .map(|&(ours, _)| ours)
    }

    /// The neighbour to which packets of a connection go.
    pub(crate) fn next_hop(&self, key: &FlowKey) -> NextHop {
        if let Some(next_hops) = &self.next_hops {
            return next_hops.next_hop(key);
        }
        self.own_next_hop(key.remote)
            .map_or(NextHop::NoRoute, NextHop::At)
    }

    fn own_next_hop(&self, remote: Address) -> Option<Address> {
        let is_local = self.addresses.iter().any(|&(ours, bits)| {
            ours.is_v4() == remote.is_v4() && is_in_prefix(remote, ours, bits)
        });
        if is_local {
            return Some(remote);
        }
        self.routes
            .iter()
            .find(|&&(destination, bits, gateway)| {
                gateway.is_v4() == remote.is_v4() && is_in_prefix(remote, destination, bits)
            })
            .map(|&(_, _, gateway)| gateway)
    }

    /// The host's routes to these destinations have changed. Returns a test whether a remote is one
    /// of these destinations.
    pub(crate) fn forget_next_hops(
        &mut self,
        destination: IpAddr,
        prefix_bits: u8,
    ) -> impl Fn(Address) -> bool + use<> {
        let bits = prefix_in_128(destination, prefix_bits);
        let destination = Address::from(destination);
        let is_meant = move |remote: Address| {
            remote.is_v4() == destination.is_v4() && is_in_prefix(remote, destination, bits)
        };
        if let Some(next_hops) = &mut self.next_hops {
            next_hops.forget(is_meant);
        }
        is_meant
    }

    /// TCP payload bytes, options not deducted, that the path to `remote` takes (RFC 9293 section
    /// 3.7.1).
    pub(crate) fn path_mss(&self, now: Instant, remote: Address) -> u16 {
        let mtu = match self.paths.get(&remote) {
            Some(&(mtu, until)) if now < until => mtu.min(self.mtu),
            _ => self.mtu,
        };
        mss_of(mtu, remote.is_v4())
    }

    /// The MSS of the link towards `remote`, whatever routers have reported about the path.
    pub(crate) fn route_mss(&self, remote: Address) -> u16 {
        mss_of(self.mtu, remote.is_v4())
    }

    //= RFC 7323#5.7
    //# Setting the DF bit implies the use of Path MTU Discovery as described in [RFC1191],
    //# [RFC1981], and [RFC4821]; thus, any TCP implementation that implements PAWS MUST also
    //# implement Path MTU Discovery.
    /// A router reports that the path to `remote` takes `mtu`. Returns the resulting payload size;
    /// `None` if the report is impossible.
    pub(crate) fn narrow(&mut self, now: Instant, remote: Address, mtu: u32) -> Option<u16> {
        let floor = if remote.is_v4() {
            MTU_MIN_V4
        } else if mtu < MTU_MIN_V6 {
            // RFC 8201 section 4: "less than the IPv6 minimum link MTU, it must discard it".
            return None;
        } else {
            MTU_MIN_V6
        };
        let mtu = mtu.clamp(floor.min(u32::from(self.mtu)), u32::from(self.mtu)) as u16;
        // RFC 1191 section 3 and RFC 8201 section 4: such a message never increases the estimate.
        let is_known = match self.paths.get(&remote) {
            Some(&(known, until)) => now < until && known < mtu,
            None => false,
        };
        if !is_known {
            self.remember(now, remote, mtu);
        }
        Some(mss_of(mtu, remote.is_v4()))
    }

    fn remember(&mut self, now: Instant, remote: Address, mtu: u16) {
        if self.paths.len() >= PATHS_MAX
            && !self.paths.contains_key(&remote)
            && let Some((&oldest, _)) = self.paths.iter().min_by_key(|(_, (_, until))| *until)
        {
            self.paths.remove(&oldest);
        }
        self.paths.insert(remote, (mtu, now + PATH_LIFETIME));
    }

    /// The link's own MTU has changed.
    pub(crate) fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
    }
}

//= RFC 9293#3.7.1
//# where MMS_R is the maximum size for a transport-layer message that can be received (and
//# reassembled at the IP layer) (MUST-67).
fn mss_of(mtu: u16, is_v4: bool) -> u16 {
    mtu.saturating_sub((ip::header_bytes(is_v4) + crate::wire::tcp::HEADER_BYTES) as u16)
        .max(crate::connection::MSS_MIN)
}

/// A prefix length counted in the 128 bits of [`Address`].
fn prefix_in_128(address: IpAddr, bits: u8) -> u8 {
    match address {
        IpAddr::V4(_) => 96 + bits.min(32),
        IpAddr::V6(_) => bits.min(128),
    }
}

fn is_in_prefix(address: Address, prefix: Address, bits: u8) -> bool {
    let mask = |bits: u32| {
        if bits == 0 {
            0
        } else {
            u64::MAX << (64 - bits)
        }
    };
    let high = mask(u32::from(bits.min(64)));
    let low = mask(u32::from(bits.saturating_sub(64)));
    (address.0[0] ^ prefix.0[0]) & high == 0 && (address.0[1] ^ prefix.0[1]) & low == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Medium;

    //= RFC 9293#3.7.1
    //= type=test
    //# where MMS_R is the maximum size for a transport-layer message that can be received (and
    //# reassembled at the IP layer) (MUST-67).
    //= RFC 7323#5.7
    //= type=test
    //# Setting the DF bit implies the use of Path MTU Discovery as described in [RFC1191],
    //# [RFC1981], and [RFC4821]; thus, any TCP implementation that implements PAWS MUST also
    //# implement Path MTU Discovery.
    #[test]
    fn routers_narrow_a_path_and_never_widen_it() {
        let on_link = |address: &str| InterfaceAddress {
            address: address.parse().expect("an address"),
            prefix_bits: 24,
        };
        let mut interface = Interface::new(&Config::new(Medium::Ip, 1_500, on_link("10.0.0.1")));
        let far = |address: &str| Address::from(address.parse::<IpAddr>().expect("an address"));
        let (v4, v6) = (far("10.0.0.2"), far("fd00::2"));
        let now = Instant::ZERO;
        assert_eq!(interface.narrow(now, v4, 1_000), Some(960));
        assert_eq!(interface.narrow(now, v4, 1_400), Some(1_360));
        assert_eq!(interface.path_mss(now, v4), 960);
        assert_eq!(interface.narrow(now, v4, 68), Some(512));
        assert_eq!(interface.path_mss(now, v4), 512);
        assert_eq!(interface.path_mss(now + PATH_LIFETIME, v4), 1_460);
        assert_eq!(
            interface.narrow(now + PATH_LIFETIME, v4, 1_400),
            Some(1_360)
        );
        assert_eq!(interface.path_mss(now + PATH_LIFETIME, v4), 1_360);
        assert_eq!(interface.narrow(now, v6, 1_279), None);
        assert_eq!(interface.path_mss(now, v6), 1_440);
        assert_eq!(interface.narrow(now, v6, 1_280), Some(1_220));
        assert_eq!(interface.path_mss(now, v6), 1_220);
    }
}
