//! Several engines with the same addresses on one link: which of them a connection belongs to.
//!
//! All threads use one keyed hash of both ends: so nobody has to be asked, a port is in use or in
//! TIME-WAIT where its connection is, and a remote that does not know the key cannot load one
//! engine more than the others.

use core::fmt;
use core::net::SocketAddr;

use crate::flow::FlowKey;
use crate::random::Random;
use crate::wire::ip::Address;

/// One engine's share of all connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Share {
    key: [u64; 2],
    index: u32,
    /// Invariant: at least 1, and above `index`.
    count: u32,
}

impl Share {
    /// Everything: there is one engine.
    pub const WHOLE: Share = Share {
        key: [0; 2],
        index: 0,
        count: 1,
    };

    /// The shares of `count` engines, which must be at least one.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn among(count: u32, random: &mut Random) -> Vec<Share> {
        assert!(count > 0, "somebody has to do it");
        let key = [random.bits(), random.bits()];
        let one = |index| Share { key, index, count };
        (0..count).map(one).collect()
    }

    /// Which of the engines this is.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index as usize
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count as usize
    }

    /// The thread that owns a connection between these ends.
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
        let ports = u64::from(key.local_port) << 16 | u64::from(key.remote_port);
        self.place(key.local, key.remote, ports)
    }

    /// The thread that assembles the fragments that one address sends to another: fragments do not
    /// all have ports.
    pub(crate) fn assembler(&self, local: Address, remote: Address) -> usize {
        self.place(local, remote, 0)
    }

    #[inline]
    pub(crate) fn is_ours(&self, key: &FlowKey) -> bool {
        self.count == 1 || self.owner_of(key) == self.index()
    }

    /// Not cryptographic: what could be learnt is how connections are spread.
    #[inline]
    fn place(&self, local: Address, remote: Address, ports: u64) -> usize {
        let first = fold(local.0[0] ^ self.key[0], local.0[1] ^ self.key[1]);
        let turned = self.key[0].rotate_left(32);
        let second = fold(remote.0[0] ^ first, remote.0[1] ^ turned);
        let hash = fold(ports ^ second, self.key[1] | 1);
        // The high half, scaled to the number of engines.
        (((hash >> 32) * u64::from(self.count)) >> 32) as usize
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({} of {})", self.index, self.count)
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
    fn all_agree_whose_a_connection_is_and_all_have_about_as_many() {
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
