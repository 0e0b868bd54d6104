//! What stands in on loopback for the engine's addresses, which the kernel does not have.

use std::net::{IpAddr, Ipv4Addr};

use toehold_channel::offload::Own;

use super::settings::{Settings, spell};

/// What stands in on loopback for each address we have, or ever had.
pub(super) struct StandIns {
    first: Ipv4Addr,
    known: Vec<IpAddr>,
}

impl StandIns {
    pub(super) fn next_to(source: Ipv4Addr) -> StandIns {
        StandIns {
            first: source,
            known: Vec::new(),
        }
    }

    /// All addresses of the settings; those of which there was one before keep it. After 65,535 others the first are used again.
    pub(super) fn for_all(&mut self, settings: &Settings) -> Vec<(IpAddr, Ipv4Addr)> {
        let one = |&(ip, _): &(IpAddr, u8)| {
            let known = self.known.iter().position(|known| *known == ip);
            let index = known.unwrap_or_else(|| {
                self.known.push(ip);
                self.known.len() - 1
            });
            let [a, b, c, d] = self.first.octets();
            let [high, low] = (u16::from_be_bytes([c, d]) ^ (1 + index as u16)).to_be_bytes();
            (ip, Ipv4Addr::new(a, b, high, low))
        };
        settings.addresses.iter().map(one).collect()
    }
}

/// Our addresses as clients are shown them.
pub(super) fn shown(own: &[(IpAddr, Ipv4Addr)]) -> Vec<Own> {
    let one = |&(ip, stand_in): &(IpAddr, Ipv4Addr)| Own {
        ip: spell(ip),
        stand_in: stand_in.octets(),
    };
    own.iter().map(one).collect()
}
