//! The ports of shared addresses from which connections of programs go out.
//!
//! The kernel must not assign these ports to other sockets. Those in the kernel's own range are
//! reserved at the start (`ip_local_reserved_ports`), and stay reserved, so that nothing has to be
//! cleaned up if the adapter is killed. A port that a kernel socket has at that time is left out.
//! From then on only a program that explicitly binds such a port can get it.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use super::ports::{LocalPorts, in_words};
use crate::diag::Diag;

/// The ports, in an order that differs for each remote.
#[derive(Debug)]
pub(super) struct OutgoingPorts {
    ports: Vec<u16>,
    secret: RandomState,
}

impl OutgoingPorts {
    /// Reserves a range in the kernel, in this thread's network namespace.
    ///
    /// # Errors
    /// A sentence for the operator; then the range is the kernel's.
    pub(super) fn take(range: &RangeInclusive<u16>) -> Result<OutgoingPorts, String> {
        reserve(range)?;
        let sockets = Diag::open().ok().and_then(|diag| diag.tcp_ports());
        let held = sockets.ok_or("the kernel does not say which ports are in use")?;
        let ports: Vec<u16> = (range.clone())
            .filter(|port| !held.contains(port))
            .collect();
        if ports.is_empty() {
            let range = in_words(range);
            return Err(format!("all ports of outgoing {range} are in use"));
        }
        Ok(OutgoingPorts::new(ports))
    }

    fn new(ports: Vec<u16>) -> OutgoingPorts {
        let secret = RandomState::new();
        OutgoingPorts { ports, secret }
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = u16> + '_ {
        self.ports.iter().copied()
    }

    /// Whether a port is one of them.
    pub(super) fn has(&self, port: u16) -> bool {
        self.ports.binary_search(&port).is_ok()
    }

    /// The ports to try for another connection, in order, after `count` others. RFC 6056, section
    /// 3.3.3: the search begins at a place that depends on the destination, and moves on with each
    /// connection. So a port is not reused soon, and ports in TIME-WAIT are not tried each time.
    pub(super) fn for_one(
        &self,
        source: IpAddr,
        remote: SocketAddr,
        others: u32,
    ) -> impl Iterator<Item = u16> + '_ {
        let begin = self.secret.hash_one((source, remote));
        let begin = begin.wrapping_add(others.into()) % self.ports.len() as u64;
        let (before, after) = self.ports.split_at(begin as usize);
        after.iter().chain(before).copied()
    }
}

/// Makes the kernel not assign these ports of its own range.
fn reserve(range: &RangeInclusive<u16>) -> Result<(), String> {
    let known = LocalPorts::here();
    if !range.clone().any(|port| known.may_give(port)) {
        return Ok(());
    }
    let text = fs::read_to_string(RESERVED).unwrap_or_default();
    let range = in_words(range);
    let all = match text.trim() {
        "" => range.clone(),
        before => format!("{before},{range}"),
    };
    fs::write(RESERVED, &all).map_err(|error: io::Error| {
        format!(
            "outgoing {range}: the kernel gives these ports out itself, and cannot be kept from \
            it ({error}): sysctl -w net.ipv4.ip_local_reserved_ports={all}, or name ports beyond \
            net.ipv4.ip_local_port_range"
        )
    })
}

const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_destination_has_an_order_of_its_own_with_all_ports_in_it() {
        let ports = OutgoingPorts::new((1_000..2_000).filter(|port| port % 7 != 0).collect());
        let source = "192.0.2.7".parse().expect("address");
        let remote = |last: u8| SocketAddr::from(([198, 51, 100, last], 80));
        let order =
            |last, others| -> Vec<u16> { ports.for_one(source, remote(last), others).collect() };
        let sorted = |mut order: Vec<u16>| {
            order.sort_unstable();
            order
        };
        let all: Vec<u16> = ports.all().collect();
        assert!(all.iter().all(|port| ports.has(*port)) && !ports.has(1_001));
        assert_eq!(order(1, 3)[1..], order(1, 4)[..all.len() - 1]);
        let first: BTreeSet<u16> = (0..=255).map(|last| order(last, 0)[0]).collect();
        assert!(first.len() > 100, "{first:?}");
        for others in [0, 1, 7_000, u32::MAX] {
            assert_eq!(sorted(order(9, others)), all);
        }
    }
}
