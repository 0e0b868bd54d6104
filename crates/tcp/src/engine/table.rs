//! Finding a connection by its ends: open addressing, linear probing, keyed hash.
//!
//! An entry is sixteen bytes: for IPv4 the ends themselves, so that a connection is found without being
//! touched; for IPv6 96 bits of hash, and the ends are compared in the connection. Deletion shifts
//! entries back instead of leaving tombstones: a table that has seen a billion connections probes like
//! a new one.

use crate::connection::FlowKey;
use crate::random::Random;
use crate::share::fold;

/// Marks an empty entry; no slot has this number.
const EMPTY: u32 = u32::MAX;
/// Marks the slot of an IPv6 connection. Slots are fewer than 2^31.
const V6: u32 = 1 << 31;

/// What stands for a flow: its ends, or a hash of them and the mark that says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag {
    words: [u32; 3],
    mark: u32,
}

impl Tag {
    /// Of an IPv4 flow.
    #[inline]
    pub(crate) const fn v4(local: u32, remote: u32, local_port: u16, remote_port: u16) -> Self {
        let ports = (local_port as u32) << 16 | remote_port as u32;
        Self {
            words: [local, remote, ports],
            mark: 0,
        }
    }

    /// Whether the ends have to be compared in the connection.
    #[inline]
    pub(crate) const fn is_hash(self) -> bool {
        self.mark != 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    words: [u32; 3],
    /// The slot, and `V6`.
    slot: u32,
}

#[derive(Debug)]
pub(crate) struct FlowTable {
    /// Invariant: a power of two long, at least a half of it empty.
    entries: Box<[Entry]>,
    length: usize,
    secret: [u64; 2],
}

const SMALLEST: usize = 64;

impl FlowTable {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self {
            entries: empty_entries(SMALLEST),
            length: 0,
            secret: [random.bits(), random.bits()],
        }
    }

    /// What stands for a flow in this table.
    pub(crate) fn tag(&self, key: &FlowKey) -> Tag {
        if key.local.is_v4() && key.remote.is_v4() {
            return Tag::v4(
                key.local.low(),
                key.remote.low(),
                key.local_port,
                key.remote_port,
            );
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
            words: [third as u32, (third >> 32) as u32, (first ^ second) as u32],
            mark: V6,
        }
    }

    /// Where to begin looking. Not cryptographic: a remote that could learn the secret might make
    /// chains longer, and would still meet the limit on its connections.
    #[inline]
    fn home(&self, words: [u32; 3]) -> usize {
        let first = u64::from(words[0]) << 32 | u64::from(words[1]);
        let hash = fold(first ^ self.secret[0], u64::from(words[2]) ^ self.secret[1]);
        hash as usize & (self.entries.len() - 1)
    }

    /// The slot whose connection has the tag, and `is_it`.
    #[inline]
    pub(crate) fn find(&self, tag: Tag, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mask = self.entries.len() - 1;
        let mut at = self.home(tag.words);
        loop {
            let entry = self.entries[at & mask];
            if entry.slot == EMPTY {
                return None;
            }
            if entry.words == tag.words && entry.slot & V6 == tag.mark {
                let slot = entry.slot & !V6;
                if is_it(slot) {
                    return Some(slot);
                }
            }
            at += 1;
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
        self.put(Entry {
            words: tag.words,
            slot: slot | tag.mark,
        });
        self.length += 1;
    }

    fn put(&mut self, entry: Entry) {
        let mask = self.entries.len() - 1;
        let mut at = self.home(entry.words);
        while self.entries[at].slot != EMPTY {
            at = (at + 1) & mask;
        }
        self.entries[at] = entry;
    }

    /// Removes the flow in `slot`.
    pub(crate) fn remove(&mut self, tag: Tag, slot: u32) {
        let mask = self.entries.len() - 1;
        let mut at = self.home(tag.words);
        while self.entries[at].slot != slot | tag.mark {
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
            let home = self.home(self.entries[next].words);
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

fn empty_entries(length: usize) -> Box<[Entry]> {
    vec![
        Entry {
            words: [0; 3],
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
            let mut at = table.home(tag.words);
            while table.entries[at].slot != number | tag.mark {
                at = (at + 1) & mask;
                probes += 1;
            }
        }
        assert!(probes < 100_000, "{probes} extra probes for 100000 flows");
    }
}
