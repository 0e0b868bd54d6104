//! Prefixes of addresses, and rules about them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use toehold_channel::offload::{Rule, RuleAction};
use toehold_channel::rendezvous::mapped;

use super::value::address;

/// `ADDRESS/BITS` that a host on a network can have. An address without a prefix length would have
/// no neighbours.
pub(super) fn own_address(value: &str) -> Result<(IpAddr, u8), String> {
    if !value.contains('/') {
        let ip = address(value)?;
        let usual = if ip.is_ipv4() { 24 } else { 64 };
        return Err(format!(
            "`{value}` has no prefix length, which says which hosts are on the link: \
            {value}/{usual}, for \
            example"
        ));
    }
    let (ip, bits) = prefix(value)?;
    host_address(ip)?;
    let (host, host_bits) = match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()), 32 - bits),
        IpAddr::V6(ip) => (ip.to_bits(), 128 - bits),
    };
    // RFC 3021, RFC 6164: a prefix of two addresses has no others than those of hosts.
    if host_bits > 1 {
        let ones = u128::MAX
            .checked_shr(128 - u32::from(host_bits))
            .unwrap_or(0);
        if host & ones == 0 {
            return Err(format!(
                "`{value}` is a network and not the address of a host: {}/{bits}, for example",
                next(ip)
            ));
        }
        if ip.is_ipv4() && host & ones == ones {
            return Err(format!("`{ip}` is the broadcast address of its network"));
        }
    }
    Ok((ip, bits))
}

/// The address after one that ends with zeros.
fn next(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() | 1).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() | 1).into(),
    }
}

/// Refuses an address that no interface on a network can have.
pub(super) fn host_address(ip: IpAddr) -> Result<(), String> {
    let is_broadcast = ip == IpAddr::from(Ipv4Addr::BROADCAST);
    match ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_broadcast {
        true => Err(format!(
            "`{ip}` is not the address of an interface on a network"
        )),
        false => Ok(()),
    }
}

/// `ADDRESS/BITS`, or an address alone.
pub(crate) fn prefix(value: &str) -> Result<(IpAddr, u8), String> {
    let (ip, bits) = match value.split_once('/') {
        Some((ip, bits)) => (ip, Some(bits)),
        None => (value, None),
    };
    let ip = address(ip)?;
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => Some(longest),
        Some(bits) => bits.parse().ok().filter(|bits| *bits <= longest),
    };
    let bits = bits.ok_or(format!(
        "`{value}` has no prefix length from 0 to {longest}"
    ))?;
    Ok((ip, bits))
}

/// `PREFIX`, `PREFIX:PORT`, or `[PREFIX]:PORT` where the prefix is IPv6.
pub(super) fn rule(value: &str, action: RuleAction) -> Result<Rule, String> {
    let (network, port) = match value
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((network, "")) => (network, None),
        Some((network, rest)) => {
            let port = rest.strip_prefix(':');
            (
                network,
                Some(port.ok_or(format!("`{rest}` is not a port: expected :PORT"))?),
            )
        }
        None => match value.split_once(':') {
            Some((network, port)) if !port.contains(':') => (network, Some(port)),
            _ => (value, None),
        },
    };
    let port = match port {
        None => 0,
        Some(text) => text
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or(format!("`{text}` is not a port"))?,
    };
    let (ip, bits) = prefix(network)?;
    Ok(rule_of(ip, bits, port, action))
}

pub(crate) fn rule_of(ip: IpAddr, bits: u8, port: u16, action: RuleAction) -> Rule {
    let bits = u32::from(bits);
    Rule {
        prefix: to_sixteen_bytes(ip),
        prefix_bits: if ip.is_ipv4() {
            96 + bits.min(32)
        } else {
            bits
        },
        port,
        action,
    }
}

/// An address as the library and the adapter spell it.
pub(crate) fn to_sixteen_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => mapped(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}
