//! The flow table: finds a connection by its endpoints. Open addressing, linear probing, keyed
//! hash.
//!
//! An entry is sixteen bytes. For IPv4 it holds the endpoints themselves, so that a look-up does
//! not touch the connection. For IPv6 it holds 96 bits of hash, and the endpoints are compared in
//! the connection. Deletion shifts entries back instead of leaving tombstones: so probing does not
//! become slower with time.

use crate::flow::FlowKey;
use crate::random::Random;
use crate::share::fold;
use crate::wire::ip::Address;

/// Marks an empty entry; no slot has this number.
const EMPTY: u32 = u32::MAX;
/// Marks the slot of an IPv6 connection. Slot numbers are below 2^31.
const V6: u32 = 1 << 31;

/// The endpoints of an IPv4 flow in the order of a frame from the remote: its address, our address,
/// its port, our port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ends {
    /// The part that differs most often comes first, to be compared first.
    pub(crate) local_and_ports: u64,
    pub(crate) remote: u32,
}

impl Ends {
    /// No flow has these.
    pub(crate) const NOBODY: Self = Self {
        local_and_ports: 0,
        remote: 0,
    };

    fn of(key: &FlowKey) -> Self {
        let [remote, local] = [key.remote, key.local].map(|address| address.low().to_be_bytes());
        let [remote_port, local_port] = [key.remote_port, key.local_port].map(u16::to_be_bytes);
        let mut local_and_ports = [0; 8];
        local_and_ports[..4].copy_from_slice(&local);
        local_and_ports[4..6].copy_from_slice(&remote_port);
        local_and_ports[6..].copy_from_slice(&local_port);
        Self {
            local_and_ports: u64::from_ne_bytes(local_and_ports),
            remote: u32::from_ne_bytes(remote),
        }
    }
}

/// The endpoints of an IPv6 flow in the order of a frame from the remote: its address, our address,
/// its port, our port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EndsV6 {
    ports: u32,
    addresses: [u64; 4],
}

impl EndsV6 {
    /// Ethernet, IPv6 without extensions, and the ports.
    pub(crate) const HEADERS_BYTES: usize = 58;
    /// No flow has these.
    pub(crate) const NOBODY: Self = Self {
        ports: 0,
        addresses: [0; 4],
    };

    /// The endpoints in the headers of a frame.
    #[inline(always)]
    pub(crate) fn of(h: &[u8; Self::HEADERS_BYTES]) -> Self {
        let word =
            |at: usize| u64::from_ne_bytes(*h[at..].first_chunk().expect("the header is longer"));
        Self {
            ports: u32::from_ne_bytes(*h.last_chunk().expect("the header is longer")),
            // Not by `map`, for which newer compilers generate a call.
            addresses: [word(22), word(30), word(38), word(46)],
        }
    }

    #[inline(always)]
    pub(crate) fn key(&self) -> FlowKey {
        let [remote_high, remote_low, local_high, local_low] = self.addresses;
        let address = |high, low| Address([u64::from_be(high), u64::from_be(low)]);
        let ports = u32::from_be(self.ports);
        FlowKey {
            local: address(local_high, local_low),
            remote: address(remote_high, remote_low),
            local_port: ports as u16,
            remote_port: (ports >> 16) as u16,
        }
    }
}

/// The key of a flow: its endpoints, or a hash of them with a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag {
    ends: Ends,
    mark: u32,
}

impl Tag {
    /// Whether the endpoints must be compared in the connection.
    #[inline]
    pub(crate) const fn is_hash(self) -> bool {
        self.mark != 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    local_and_ports: u64,
    remote: u32,
    /// The slot, with the bit `V6` for IPv6.
    slot: u32,
}

impl Entry {
    const NOBODY: Self = Self::new(Ends::NOBODY, EMPTY);

    const fn new(ends: Ends, slot: u32) -> Self {
        Self {
            local_and_ports: ends.local_and_ports,
            remote: ends.remote,
            slot,
        }
    }

    #[inline(always)]
    fn ends(&self) -> Ends {
        Ends {
            local_and_ports: self.local_and_ports,
            remote: self.remote,
        }
    }
}

const _: () = assert!(size_of::<Entry>() == 16);

#[derive(Debug)]
pub(crate) struct FlowTable {
    /// Invariant: the length is a power of two, and at least half of the entries are empty.
    entries: Box<[Entry]>,
    length: usize,
    /// Insertions and removals so far: while this number does not change, earlier results of
    /// look-ups are valid.
    changes: u64,
    secret: [u64; 2],
}

const SMALLEST: usize = 64;

impl FlowTable {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self {
            entries: empty_entries(SMALLEST),
            length: 0,
            changes: 0,
            secret: [random.bits(), random.bits()],
        }
    }

    /// The key of a flow in this table.
    pub(crate) fn tag(&self, key: &FlowKey) -> Tag {
        if key.local.is_v4() && key.remote.is_v4() {
            return Tag {
                ends: Ends::of(key),
                mark: 0,
            };
        }
        let ports = u64::from(key.local_port) << 16 | u64::from(key.remote_port);
        let first = fold(
            key.local.0[0] ^ self.secret[0],
            key.local.0[1] ^ self.secret[1],
        );
        let second = fold(
            key.remote.0[0] ^ first,
            key.remote.0[1] ^ self.secret[0].rotate_left(32),
        );
        let third = fold(ports ^ second, self.secret[1] | 1);
        Tag {
            ends: Ends {
                local_and_ports: third,
                remote: (first ^ second) as u32,
            },
            mark: V6,
        }
    }

    /// The index at which a search begins. Not cryptographic: a remote that learns the secret could
    /// make chains longer, but only up to the limit on its connections.
    #[inline(always)]
    fn hash(&self, ends: Ends) -> usize {
        let hash = fold(
            ends.local_and_ports ^ self.secret[0],
            u64::from(ends.remote) ^ self.secret[1],
        );
        hash as usize
    }

    fn home(&self, ends: Ends) -> usize {
        self.hash(ends) & (self.entries.len() - 1)
    }

    /// The slot of an IPv4 flow. The result may be no valid slot: an IPv6 flow whose hash equals
    /// these endpoints, or no connection.
    #[inline(always)]
    pub(crate) fn find_v4(&self, ends: Ends) -> Option<u32> {
        let mask = self.entries.len().checked_sub(1)?;
        let mut at = self.hash(ends) & mask;
        loop {
            let entry = &self.entries[at];
            if entry.ends() == ends {
                return Some(entry.slot);
            }
            if entry.slot == EMPTY {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    /// The slot of the connection with this tag for which `is_it` returns true.
    pub(crate) fn find(&self, tag: Tag, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mask = self.entries.len() - 1;
        let mut at = self.home(tag.ends);
        loop {
            let entry = self.entries[at];
            if entry.slot == EMPTY {
                return None;
            }
            if entry.ends() == tag.ends && entry.slot & V6 == tag.mark {
                let slot = entry.slot & !V6;
                if is_it(slot) {
                    return Some(slot);
                }
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a flow that is not in the table.
    pub(crate) fn insert(&mut self, tag: Tag, slot: u32) {
        assert!(slot < V6, "slots are fewer than 2^31");
        if (self.length + 1) * 2 > self.entries.len() {
            let larger = empty_entries(self.entries.len() * 2);
            let old = core::mem::replace(&mut self.entries, larger);
            for entry in old.iter().filter(|entry| entry.slot != EMPTY) {
                self.put(*entry);
            }
        }
        self.put(Entry::new(tag.ends, slot | tag.mark));
        self.length += 1;
        self.changes += 1;
    }

    fn put(&mut self, entry: Entry) {
        let mask = self.entries.len() - 1;
        let mut at = self.home(entry.ends());
        while self.entries[at].slot != EMPTY {
            at = (at + 1) & mask;
        }
        self.entries[at] = entry;
    }

    /// Removes the flow in `slot`.
    pub(crate) fn remove(&mut self, tag: Tag, slot: u32) {
        let mask = self.entries.len() - 1;
        let mut at = self.home(tag.ends);
        while self.entries[at].slot != slot | tag.mark {
            assert!(
                self.entries[at].slot != EMPTY,
                "the flow to be removed is not in the table"
            );
            at = (at + 1) & mask;
        }
        self.length -= 1;
        self.changes += 1;
        // Moves back every entry that the hole would make unreachable.
        let mut next = (at + 1) & mask;
        while self.entries[next].slot != EMPTY {
            let home = self.home(self.entries[next].ends());
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(at) & mask) {
                self.entries[at] = self.entries[next];
                at = next;
            }
            next = (next + 1) & mask;
        }
        self.entries[at] = Entry::NOBODY;
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }
}

fn empty_entries(length: usize) -> Box<[Entry]> {
    vec![Entry::NOBODY; length].into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neighbouring addresses and ports; every third flow is IPv6.
    fn key(number: u32) -> FlowKey {
        let address = |low: u32| match number % 3 {
            0 => Address([0x2001_0db8 << 32, u64::from(low)]),
            _ => Address::v4(low),
        };
        FlowKey {
            local: address(0x0a00_0001),
            remote: address(0x0a00_0000 | number >> 10),
            local_port: 80,
            remote_port: (number & 0x3ff) as u16 + 1,
        }
    }

    #[test]
    fn agrees_with_a_map_through_random_insertions_and_removals() {
        let mut random = Random::new(5);
        let mut table = FlowTable::new(&mut random);
        let mut present = std::collections::BTreeSet::new();
        for _ in 0..20_000 {
            let number = random.below(500) as u32;
            let tag = table.tag(&key(number));
            let found = table.find(tag, |slot| key(slot) == key(number));
            assert_eq!(found.is_some(), present.contains(&number));
            if present.remove(&number) {
                table.remove(tag, number);
            } else {
                table.insert(tag, number);
                present.insert(number);
            }
            assert_eq!(table.len(), present.len());
        }
    }

    /// All permutations of `items`.
    fn orders(items: &[usize]) -> Vec<Vec<usize>> {
        if items.is_empty() {
            return vec![Vec::new()];
        }
        let with_first = |at: usize| {
            let rest: Vec<usize> = [&items[..at], &items[at + 1..]].concat();
            let mut orders = orders(&rest);
            orders.iter_mut().for_each(|order| order.push(items[at]));
            orders
        };
        (0..items.len()).flat_map(with_first).collect()
    }

    #[test]
    fn entries_move_back_from_every_place_across_the_end_of_the_table() {
        const FLOWS: usize = 5;
        let empty = FlowTable::new(&mut Random::new(7));
        // Flows whose home is one of the last two entries or the first two.
        let homes = [SMALLEST - 2, SMALLEST - 1, 0, 1];
        let at_home = |home: usize| {
            let tags = (1..).step_by(3).map(|number| empty.tag(&key(number)));
            let tags = tags.filter(|tag| empty.home(tag.ends) == home);
            tags.take(FLOWS).collect::<Vec<Tag>>()
        };
        let tags = homes.map(at_home);
        let orders = orders(&[0, 1, 2, 3, 4]);
        for which in 0..homes.len().pow(FLOWS as u32) {
            let mut rest = which;
            let flows: [Tag; FLOWS] = core::array::from_fn(|flow| {
                let home = rest % homes.len();
                rest /= homes.len();
                tags[home][flow]
            });
            for order in &orders {
                let mut table = FlowTable::new(&mut Random::new(7));
                for (slot, &tag) in flows.iter().enumerate() {
                    table.insert(tag, slot as u32);
                }
                for (removed, &flow) in order.iter().enumerate() {
                    table.remove(flows[flow], flow as u32);
                    for (slot, &tag) in flows.iter().enumerate() {
                        let is_there = !order[..=removed].contains(&slot);
                        let expected = is_there.then_some(slot as u32);
                        assert_eq!(table.find(tag, |_| true), expected);
                    }
                }
                assert!(table.entries.iter().all(|entry| entry.slot == EMPTY));
            }
        }
    }

    #[test]
    fn probes_stay_short_for_addresses_and_ports_in_rows() {
        let mut table = FlowTable::new(&mut Random::new(6));
        for number in 0..100_000 {
            table.insert(table.tag(&key(number)), number);
        }
        let mut probes = 0u64;
        for number in 0..100_000 {
            let tag = table.tag(&key(number));
            let mask = table.entries.len() - 1;
            let mut at = table.home(tag.ends);
            while table.entries[at].slot != number | tag.mark {
                at = (at + 1) & mask;
                probes += 1;
            }
        }
        assert!(probes < 100_000, "{probes} extra probes for 100000 flows");
    }
}
