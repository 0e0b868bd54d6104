//! The kernel's range of ports; and the choice of ports for carriers, because the kernel's own
//! choice becomes slow.
//!
//! bind(2) chooses a port that no socket has, not even in TIME-WAIT. It searches in order
//! (`inet_csk_find_open_port`), so with some thousands of ports in use it looks at all of these
//! each time. The port that was used longest ago is usually free.

use std::fs;
use std::ops::RangeInclusive;

/// The ports that a network namespace has for connections.
#[derive(Debug)]
pub(super) struct LocalPorts {
    range: RangeInclusive<u16>,
    /// The ports that the operator has reserved.
    reserved: Vec<RangeInclusive<u16>>,
}

impl LocalPorts {
    /// Those of this thread's network namespace.
    pub(super) fn here() -> LocalPorts {
        let setting = |name| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
        let range = setting("ip_local_port_range").ok();
        let range = range.and_then(|text| range_of(text.split_whitespace()));
        let reserved = setting("ip_local_reserved_ports").unwrap_or_default();
        // Without a range no port is tried.
        LocalPorts::new(range.unwrap_or(RangeInclusive::new(1, 0)), &reserved)
    }

    fn new(range: RangeInclusive<u16>, reserved: &str) -> LocalPorts {
        let reserved = reserved.trim().split(',');
        let reserved = reserved.filter_map(|part| range_of(part.split('-')));
        LocalPorts {
            reserved: reserved.collect(),
            range,
        }
    }

    /// Whether the kernel may give a port out.
    pub(super) fn may_give(&self, port: u16) -> bool {
        let is_reserved = || self.reserved.iter().any(|range| range.contains(&port));
        self.range.contains(&port) && !is_reserved()
    }
}

/// The ports that this network namespace has for connections, in turns.
#[derive(Debug)]
pub(super) struct Ports {
    local: LocalPorts,
    next: u16,
}

impl Ports {
    /// The kernel's ports, beginning at a random one.
    pub(super) fn beginning_at(random: u64) -> Ports {
        Ports::new(LocalPorts::here(), random)
    }

    fn new(local: LocalPorts, random: u64) -> Ports {
        let count = local.range.len().max(1) as u64;
        let next = *local.range.start() + (random % count) as u16;
        Ports { local, next }
    }

    /// Of the ports that are `fit`, the one that was given out longest ago, even if a socket has it
    /// now. `None` when no port is fit.
    pub(super) fn give(&mut self, fit: impl Fn(u16) -> bool) -> Option<u16> {
        for _ in 0..self.local.range.len() {
            let port = self.step();
            if fit(port) && self.local.may_give(port) {
                return Some(port);
            }
        }
        None
    }

    fn step(&mut self) -> u16 {
        let port = self.next;
        let is_last = port == *self.local.range.end();
        self.next = if is_last {
            *self.local.range.start()
        } else {
            port + 1
        };
        port
    }
}

/// A range of ports as text.
pub(super) fn in_words(range: &RangeInclusive<u16>) -> String {
    match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    }
}

/// One number or two.
fn range_of<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<RangeInclusive<u16>> {
    let first = words.next()?.parse().ok()?;
    let last = words.next().map_or(Ok(first), str::parse).ok()?;
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(range: RangeInclusive<u16>, reserved: &str, random: u64) -> Ports {
        Ports::new(LocalPorts::new(range, reserved), random)
    }

    fn given(ports: &mut Ports, count: usize) -> Vec<u16> {
        (0..count).map_while(|_| ports.give(|_| true)).collect()
    }

    #[test]
    fn each_port_has_its_turn() {
        let mut ports = turns(65_530..=65_535, "", 4);
        assert_eq!(
            given(&mut ports, 8),
            [
                65_534, 65_535, 65_530, 65_531, 65_532, 65_533, 65_534, 65_535
            ]
        );
    }

    #[test]
    fn reserved_ports_are_left_alone() {
        let mut ports = turns(10..=19, "1,11,13-15,19-30\n", 0);
        assert_eq!(given(&mut ports, 6), [10, 12, 16, 17, 18, 10]);
        let mut none = turns(10..=19, "1-100", 0);
        assert_eq!(none.give(|_| true), None);
    }

    #[test]
    fn settings_that_cannot_be_read_give_no_port() {
        assert_eq!(
            range_of("32768\t60999".split_whitespace()),
            Some(32_768..=60_999)
        );
        for nonsense in ["", "x", "5 4", "1 70000"] {
            assert_eq!(range_of(nonsense.split_whitespace()), None, "{nonsense}");
        }
        let mut none = turns(RangeInclusive::new(1, 0), "", 7);
        assert_eq!(none.give(|_| true), None);
    }
}
