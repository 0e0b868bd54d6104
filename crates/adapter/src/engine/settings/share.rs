//! An address that the engine shares with the kernel.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::rule::host_address;
use super::value::address;
use crate::engine::ports::in_words;

/// An address of the host. Its ports are the engine's when programs listen there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The address.
    pub ip: IpAddr,
    /// Ports that may be the engine's; all of them when empty.
    pub ports: Vec<RangeInclusive<u16>>,
    /// The file and the line, if the setting comes from a file.
    pub origin: Option<String>,
}

impl Share {
    /// Whether a port may be the engine's.
    pub(in crate::engine) fn has(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|range| range.contains(&port))
    }

    /// Its ports, as a person writes them.
    pub(in crate::engine) fn ports_in_words(&self) -> String {
        let all: Vec<String> = self.ports.iter().map(in_words).collect();
        if all.is_empty() {
            return "all".to_owned();
        }
        all.join(",")
    }

    /// The address with its full length as prefix length, before the kernel has reported the real
    /// one.
    pub(in crate::engine) fn alone(&self) -> (IpAddr, u8) {
        (self.ip, if self.ip.is_ipv4() { 32 } else { 128 })
    }
}

impl FromStr for Share {
    type Err = String;

    /// `ADDRESS`, or `ADDRESS:PORTS`; with brackets around an IPv6 address that has ports.
    fn from_str(value: &str) -> Result<Share, String> {
        let bracketed = value
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'));
        let (ip, ports) = match bracketed {
            Some((ip, rest)) => (ip, rest.strip_prefix(':')),
            None => match value.split_once(':') {
                Some((ip, ports)) if !ports.contains(':') => (ip, Some(ports)),
                _ => (value, None),
            },
        };
        if ip.contains('/') {
            return Err(format!(
                "`{value}` must not have a prefix length, because the kernel sets it: share {}",
                ip.split('/').next().unwrap_or_default()
            ));
        }
        let ip = address(ip)?;
        host_address(ip)?;
        let ports = match ports {
            None => Vec::new(),
            Some(ports) => ports.split(',').map(port_range).collect::<Result<_, _>>()?,
        };
        let origin = None;
        Ok(Share { ip, ports, origin })
    }
}

/// `PORT` or `FIRST-LAST`.
pub(super) fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.parse().ok().filter(|port| *port > 0);
    let range = port(first)
        .zip(port(last))
        .filter(|(first, last)| first <= last);
    let (first, last) = range.ok_or(format!(
        "`{text}` is neither a port nor a range of ports (1 to 65535): 80, or 8000-8099"
    ))?;
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::settings::draft::tests::draft;
    use crate::engine::settings::{Draft, RuleAction, to_sixteen_bytes};

    #[test]
    fn connections_go_out_where_the_settings_name_ports_for_them() {
        let settings = draft(&[
            ("link", "xdp:eth0"),
            ("share", "192.0.2.7:80"),
            ("outgoing", "61000-65535"),
            ("offload", "198.51.100.0/24"),
        ]);
        let settings = settings.finish().expect("whole").expect("there");
        assert_eq!(settings.outgoing, Some(61_000..=65_535));
        let rules = settings.all_rules();
        let action = |ip: &str| {
            let ip = to_sixteen_bytes(ip.parse().expect("address"));
            let rule = rules.iter().find(|rule| rule.matches(ip, 1));
            rule.map(|rule| rule.action)
        };
        assert_eq!(action("198.51.100.1"), Some(RuleAction::Offload));
        assert_eq!(action("203.0.113.1"), Some(RuleAction::OffloadOnRequest));
        for own in ["192.0.2.7", "127.0.0.1", "0.0.0.0"] {
            assert_eq!(action(own), Some(RuleAction::Direct), "{own}");
        }
        assert_eq!(action("2001:db8::1"), None, "no address of that family");
    }

    #[test]
    fn shared_addresses_have_their_ports_and_nothing_of_their_own() {
        let whole = |draft: Draft| draft.finish().expect("whole").expect("there");
        let settings = whole(draft(&[
            ("link", "xdp:eth0"),
            ("share", "192.0.2.7:80,8000-8099"),
            ("share", "[2001:db8::7]:443"),
            ("share", "192.0.2.8"),
        ]));
        let has = |at: usize, port| settings.shares[at].has(port);
        assert!(has(0, 80) && has(0, 8_099) && !has(0, 81) && !has(0, 8_100));
        assert!(has(1, 443) && !has(1, 80) && has(2, 1));
        let words = settings.shares.iter().map(Share::ports_in_words);
        assert_eq!(words.collect::<Vec<_>>(), ["80,8000-8099", "443", "all"]);
        assert!(settings.all_rules().is_empty(), "connects are the kernel's");
        for (value, cause) in [
            (
                "192.0.2.7/24",
                "because the kernel sets it: share 192.0.2.7",
            ),
            (
                "192.0.2.7:0",
                "neither a port nor a range of ports (1 to 65535)",
            ),
            ("192.0.2.7:90-80", "neither a port nor a range"),
            ("192.0.2.7:", "neither a port nor a range"),
            ("here:80", "`here` is not an address"),
            ("0.0.0.0:80", "not the address of an interface"),
            ("127.0.0.1", "not the address of an interface"),
        ] {
            let error = Draft::default().set("share", value).expect_err("wrong");
            assert!(error.to_string().contains(cause), "{error}");
        }
        let error = Draft::default()
            .set("outgoing", "61000-")
            .expect_err("wrong");
        assert!(
            error.to_string().contains("nor a range of ports"),
            "{error}"
        );
        let packet = ("link", "packet:eth0");
        for (settings, cause) in [
            (
                &[("link", "tap:a"), ("share", "192.0.2.7")][..],
                "on the interface",
            ),
            (
                &[packet, ("share", "192.0.2.7"), ("address", "10.0.0.2/24")],
                "do not go together",
            ),
            (
                &[packet, ("share", "192.0.2.7"), ("gateway", "192.0.2.1")],
                "the kernel's routes",
            ),
            (
                &[packet, ("share", "192.0.2.7"), ("offload", "0.0.0.0/0")],
                "leave `offload` out, or say from which ports they go: outgoing 61000-65535",
            ),
            (
                &[
                    packet,
                    ("address", "10.0.0.2/24"),
                    ("outgoing", "61000-65535"),
                ],
                "that is the host's, too: share",
            ),
        ] {
            let error = draft(settings).finish().expect_err("not whole");
            assert!(error.to_string().contains(cause), "{error}");
        }
    }
}
