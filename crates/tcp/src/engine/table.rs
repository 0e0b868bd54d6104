//! Finding a connection by its ends: open addressing, linear probing, keyed hash.
//!
//! An entry is the hash and the slot, eight bytes, so a probe rarely leaves a cache line; the key
//! itself is compared in the connection, which is needed next anyway. Deletion shifts entries back
//! instead of leaving tombstones: a table that has seen a billion connections probes like a new one.

use crate::connection::FlowKey;
use crate::random::Random;

/// Marks an empty entry; no slot has this number.
const EMPTY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    slot: u32,
}

#[derive(Debug)]
pub(crate) struct FlowTable {
    /// Invariant: a power of two long, at least a half of it empty.
    entries: Box<[Entry]>,
    length: usize,
    secret: [u64; 3],
}

const SMALLEST: usize = 64;

impl FlowTable {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self {
            entries: empty_entries(SMALLEST),
            length: 0,
            // Odd, so that multiplication loses nothing.
            secret: [random.bits() | 1, random.bits(), random.bits() | 1],
        }
    }

    /// The hash of a flow. Not cryptographic: a remote that could learn it might make chains
    /// longer, and would still meet the limit on its connections.
    #[inline]
    pub(crate) fn hash(&self, key: &FlowKey) -> u32 {
        let ports = u64::from(key.local_port) << 16 | u64::from(key.remote_port);
        let near = key.local.0[0] ^ key.local.0[1].rotate_left(32);
        let far = key.remote.0[0].rotate_left(17) ^ key.remote.0[1];
        let first = fold(
            (far ^ self.secret[1]).wrapping_add(ports << 32 | ports),
            self.secret[0],
        );
        let second = fold(near ^ first, self.secret[2]);
        (second ^ second >> 32) as u32
    }

    /// The slot whose connection `is_it`.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mask = self.entries.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let entry = self.entries[at];
            if entry.slot == EMPTY {
                return None;
            }
            if entry.hash == hash && is_it(entry.slot) {
                return Some(entry.slot);
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a flow that is not in the table.
    pub(crate) fn insert(&mut self, hash: u32, slot: u32) {
        if (self.length + 1) * 2 > self.entries.len() {
            let larger = empty_entries(self.entries.len() * 2);
            let old = core::mem::replace(&mut self.entries, larger);
            for entry in old.iter().filter(|entry| entry.slot != EMPTY) {
                self.put(*entry);
            }
        }
        self.put(Entry { hash, slot });
        self.length += 1;
    }

    fn put(&mut self, entry: Entry) {
        let mask = self.entries.len() - 1;
        let mut at = entry.hash as usize & mask;
        while self.entries[at].slot != EMPTY {
            at = (at + 1) & mask;
        }
        self.entries[at] = entry;
    }

    /// Removes the flow in `slot`.
    pub(crate) fn remove(&mut self, hash: u32, slot: u32) {
        let mask = self.entries.len() - 1;
        let mut at = hash as usize & mask;
        while self.entries[at].slot != slot {
            assert!(
                self.entries[at].slot != EMPTY,
                "the flow to be removed is not in the table"
            );
            at = (at + 1) & mask;
        }
        self.length -= 1;
        // Move back whatever would become unreachable behind the hole.
        let mut next = (at + 1) & mask;
        while self.entries[next].slot != EMPTY {
            let home = self.entries[next].hash as usize & mask;
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(at) & mask) {
                self.entries[at] = self.entries[next];
                at = next;
            }
            next = (next + 1) & mask;
        }
        self.entries[at].slot = EMPTY;
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }
}

/// Multiplies to 128 bits and folds the halves.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

fn empty_entries(length: usize) -> Box<[Entry]> {
    vec![
        Entry {
            hash: 0,
            slot: EMPTY
        };
        length
    ]
    .into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ip::Address;

    fn key(number: u32) -> FlowKey {
        FlowKey {
            local: Address::v4(0x0a00_0001),
            remote: Address::v4(0x0a00_0000 | number >> 10),
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
            let hash = table.hash(&key(number));
            let found = table.find(hash, |slot| key(slot) == key(number));
            assert_eq!(found.is_some(), present.contains(&number));
            if present.remove(&number) {
                table.remove(hash, number);
            } else {
                table.insert(hash, number);
                present.insert(number);
            }
            assert_eq!(table.len(), present.len());
        }
    }

    #[test]
    fn probes_stay_short_for_addresses_and_ports_in_rows() {
        let mut table = FlowTable::new(&mut Random::new(6));
        for number in 0..100_000 {
            table.insert(table.hash(&key(number)), number);
        }
        let mut probes = 0u64;
        for number in 0..100_000 {
            let hash = table.hash(&key(number));
            let mask = table.entries.len() - 1;
            let mut at = hash as usize & mask;
            while table.entries[at].slot != number {
                at = (at + 1) & mask;
                probes += 1;
            }
        }
        assert!(probes < 100_000, "{probes} extra probes for 100000 flows");
    }
}
