//! Loopback aliases of the engine's addresses, which the kernel does not have.

use std::net::{IpAddr, Ipv4Addr};

use toehold_channel::offload::Own;

use super::settings::{Settings, to_sixteen_bytes};

/// The loopback alias of each address that we have, or ever had.
pub(super) struct LoopbackAliases {
    first: Ipv4Addr,
    known: Vec<IpAddr>,
}

impl LoopbackAliases {
    pub(super) fn next_to(source: Ipv4Addr) -> LoopbackAliases {
        LoopbackAliases {
            first: source,
            known: Vec::new(),
        }
    }

    /// All addresses of the settings with their aliases. An address that had an alias before keeps
    /// it. After 65,535 aliases the first are used again. Shared addresses of the host need no
    /// alias: they are their own.
    pub(super) fn for_all(&mut self, settings: &Settings) -> Vec<(IpAddr, IpAddr)> {
        if !settings.shares.is_empty() {
            let shared = settings.addresses.iter();
            return shared.map(|&(ip, _)| (ip, ip)).collect();
        }
        let one = |&(ip, _): &(IpAddr, u8)| {
            let known = self.known.iter().position(|known| *known == ip);
            let index = known.unwrap_or_else(|| {
                self.known.push(ip);
                self.known.len() - 1
            });
            let [a, b, c, d] = self.first.octets();
            let [high, low] = (u16::from_be_bytes([c, d]) ^ (1 + index as u16)).to_be_bytes();
            (ip, Ipv4Addr::new(a, b, high, low).into())
        };
        settings.addresses.iter().map(one).collect()
    }
}

/// The addresses with an alias, in the form for clients.
pub(super) fn shown(own: &[(IpAddr, IpAddr)]) -> Vec<Own> {
    let one = |&(ip, alias): &(IpAddr, IpAddr)| match alias {
        IpAddr::V4(alias) if ip != alias => Some(Own {
            ip: to_sixteen_bytes(ip),
            alias: alias.octets(),
        }),
        _ => None,
    };
    own.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::settings::Draft;

    fn settings(addresses: &[&str]) -> Settings {
        let mut draft = Draft::default();
        draft.set("link", "tap:toe0").expect("valid");
        for address in addresses {
            draft.set("address", address).expect("valid");
        }
        draft.finish().expect("whole").expect("wanted")
    }

    #[test]
    fn address_keeps_its_alias_while_others_come_and_go() {
        let source = Ipv4Addr::new(127, 99, 1, 0);
        let mut loopback_aliases = LoopbackAliases::next_to(source);
        let source = IpAddr::from(source);
        let first = loopback_aliases.for_all(&settings(&["10.0.0.1/24", "fd84::1/64"]));
        assert_ne!(first[0].1, first[1].1);
        let second = loopback_aliases.for_all(&settings(&["fd84::1/64", "10.0.0.2/24"]));
        assert_eq!(second[0], first[1]);
        let all = [first[0].1, first[1].1, second[1].1];
        assert!(!all.contains(&source) && second[1].1 != first[0].1);
        assert!(all.iter().all(IpAddr::is_loopback));
        assert_eq!(
            loopback_aliases.for_all(&settings(&["10.0.0.1/24"])),
            first[..1]
        );
    }
}
