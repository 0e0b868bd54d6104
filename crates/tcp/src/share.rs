//! Several engines with the same addresses on one link: which engine owns a connection.
//!
//! All threads use one keyed hash of both endpoints. So a thread need not ask the others: a port
//! that is in use or in TIME-WAIT is known to the engine that owns its connection. And a remote
//! that does not know the key cannot load one engine more than the others.
//!
//! The hash takes 32 bits at a time, which a classic BPF program can do as well: so a link can
//! deliver to each engine its own frames ([`Spread`]).

use core::fmt;
use core::net::SocketAddr;

use crate::flow::FlowKey;
use crate::random::Random;
use crate::wire::ip::Address;

/// One engine's share of all connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Share {
    spread: Spread,
    index: u32,
}

/// The distribution of connections over engines, for code that distributes frames.
///
/// The hash of a connection begins with [`Spread::start_v4`] or [`Spread::start_v6`].
/// [`Spread::mix`] adds one word after the other: for IPv6 the first three words of the local
/// address and of the remote one; then the last word of each, and the ports, with the remote's port
/// in the upper half. For fragments, which may have no ports, that word is 0. [`Spread::owner`]
/// turns the hash into the engine's number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// A secret: the hash of an IPv6 connection begins with it.
    pub start_v6: u32,
    /// The hash after the six words that all IPv4 connections share.
    pub start_v4: u32,
    /// A secret odd number, so that multiplication loses no information.
    pub factor: u32,
    /// The number of engines. Invariant: at least 1.
    pub count: u32,
}

impl Spread {
    /// Each step shifts the upper bits down by this.
    pub const MIX_SHIFT: u32 = 15;
    /// The last steps of the hash (MurmurHash3, fmix32): a shift, and a factor.
    pub const LAST_STEPS: [(u32, u32); 2] = [(16, 0x85eb_ca6b), (13, 0xc2b2_ae35)];
    /// The last shift before the number is scaled: only the upper half is used.
    pub const SCALE_SHIFT: u32 = 16;

    const fn new(secret: u64, count: u32) -> Spread {
        let spread = Spread {
            start_v6: (secret >> 32) as u32,
            start_v4: 0,
            factor: secret as u32 | 1,
            count,
        };
        let mut start_v4 = spread.start_v6;
        let words = [0, 0, 0xffff, 0, 0, 0xffff];
        let mut at = 0;
        while at < words.len() {
            start_v4 = spread.mix(start_v4, words[at]);
            at += 1;
        }
        Spread { start_v4, ..spread }
    }

    /// Adds another word to the hash.
    #[inline]
    #[must_use]
    pub const fn mix(&self, hash: u32, word: u32) -> u32 {
        let product = (hash ^ word).wrapping_mul(self.factor);
        product ^ product >> Self::MIX_SHIFT
    }

    /// The number of the engine for a hash.
    #[inline]
    #[must_use]
    pub fn owner(&self, hash: u32) -> usize {
        let turned = Self::LAST_STEPS
            .iter()
            .fold(hash, |hash, &(shift, factor)| {
                (hash ^ hash >> shift).wrapping_mul(factor)
            });
        let upper = turned >> Self::SCALE_SHIFT;
        (upper.wrapping_mul(self.count) >> Self::SCALE_SHIFT) as usize
    }
}

impl fmt::Debug for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spread(over {})", self.count)
    }
}

impl Share {
    /// The share of a single engine: all connections.
    pub const WHOLE: Share = Share {
        spread: Spread::new(0, 1),
        index: 0,
    };

    /// The shares of `count` engines.
    ///
    /// # Panics
    /// When `count` is 0 or more than 65,536.
    #[must_use]
    pub fn among(count: u32, random: &mut Random) -> Vec<Share> {
        assert!(
            (1..=1 << Spread::SCALE_SHIFT).contains(&count),
            "{count} engines"
        );
        let spread = Spread::new(random.bits(), count);
        let one = |index| Share { spread, index };
        (0..count).map(one).collect()
    }

    /// The distribution of connections over the engines.
    #[must_use]
    pub const fn spread(&self) -> Spread {
        self.spread
    }

    /// The number of this engine.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index as usize
    }

    /// The number of engines.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.spread.count as usize
    }

    /// The engine that owns a connection between these endpoints.
    #[must_use]
    pub fn owner(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        self.owner_of(&FlowKey {
            local: local.ip().into(),
            remote: remote.ip().into(),
            local_port: local.port(),
            remote_port: remote.port(),
        })
    }

    #[inline]
    pub(crate) fn owner_of(&self, key: &FlowKey) -> usize {
        let ports = u32::from(key.remote_port) << 16 | u32::from(key.local_port);
        self.place(key.local, key.remote, ports)
    }

    /// The engine that reassembles the fragments that one address sends to another: fragments may
    /// have no ports.
    pub(crate) fn assembler(&self, local: Address, remote: Address) -> usize {
        self.place(local, remote, 0)
    }

    #[inline]
    pub(crate) fn is_ours(&self, key: &FlowKey) -> bool {
        self.spread.count == 1 || self.owner_of(key) == self.index()
    }

    /// Not cryptographic: an attacker could only learn how connections are spread.
    #[inline]
    fn place(&self, local: Address, remote: Address, ports: u32) -> usize {
        let spread = &self.spread;
        let start = match local.is_v4() && remote.is_v4() {
            true => spread.start_v4,
            false => [local, remote]
                .into_iter()
                .flat_map(|Address([high, low])| [high >> 32, high, low >> 32])
                .fold(spread.start_v6, |hash, word| spread.mix(hash, word as u32)),
        };
        let last = [local.low(), remote.low(), ports];
        let hash = last
            .into_iter()
            .fold(start, |hash, word| spread.mix(hash, word));
        spread.owner(hash)
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({} of {})", self.index, self.spread.count)
    }
}

/// Multiplies to 128 bits and folds the halves.
#[inline]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_agree_on_the_owner_of_a_connection_and_share_connections_evenly() {
        for count in [2, 3, 4, 16] {
            let shares = Share::among(count, &mut Random::new(u64::from(count)));
            let mut owned = vec![0u32; count as usize];
            let flows = 4_000 * count;
            for flow in 0..flows {
                let end = |ip: &str, port| SocketAddr::new(ip.parse().expect("address"), port);
                let (local, remote) = match flow % 2 {
                    0 => (end("10.0.0.1", 80), end("10.0.0.2", (flow / 2) as u16)),
                    _ => (end("fd00::1", (flow / 2) as u16), end("fd00::2", 443)),
                };
                let owner = shares[0].owner(local, remote);
                assert!(shares.iter().all(|one| one.owner(local, remote) == owner));
                owned[owner] += 1;
            }
            let even = |&n: &u32| n.abs_diff(4_000) < 400;
            assert!(owned.iter().all(even), "{owned:?}");
        }
    }

    #[test]
    fn a_lone_engine_has_everything() {
        let end = |port| SocketAddr::new([10, 0, 0, 1].into(), port);
        assert!((0..100).all(|port| Share::WHOLE.owner(end(port), end(80)) == 0));
    }
}
