//! Randomness and keyed hashing. Everything follows from the seed that the caller gives.

/// A small, fast generator (xoshiro256**), seeded through SplitMix64.
///
/// It gives jitter and ports, and the key of SipHash, which makes secrets. The caller of the engine
/// seeds it from the system's entropy, the simulator from its seed. The generator is not taken from
/// another crate: a recorded seed must replay the same run with every later version.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// A generator that is determined by `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Self([next(), next(), next(), next()])
    }

    /// A generator from 256 bits of entropy.
    #[must_use]
    pub fn from_entropy(entropy: [u64; 4]) -> Self {
        let mut random = Self(entropy);
        random.0[0] |= 1; // The all-zero state is the one the generator cannot leave.
        random
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound` (which must not be zero).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with a probability of `per_million` in a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million != 0 && self.below(1_000_000) < u64::from(per_million)
    }
}

/// A secret for SipHash-2-4, the keyed function behind initial sequence numbers and cookies.
#[derive(Clone, Copy)]
pub(crate) struct SipKey(u64, u64);

impl core::fmt::Debug for SipKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SipKey")
    }
}

impl SipKey {
    pub(crate) fn draw(random: &mut Random) -> Self {
        Self(random.bits(), random.bits())
    }

    pub(crate) fn of_words([low, high]: [u64; 2]) -> Self {
        Self(low, high)
    }

    /// SipHash-2-4 of `words`.
    pub(crate) fn hash(self, words: &[u64]) -> u64 {
        let mut v = [
            self.0 ^ 0x736f_6d65_7073_6575,
            self.1 ^ 0x646f_7261_6e64_6f6d,
            self.0 ^ 0x6c79_6765_6e65_7261,
            self.1 ^ 0x7465_6462_7974_6573,
        ];
        let length = (words.len() as u64 * 8) << 56;
        for &word in words.iter().chain([&length]) {
            v[3] ^= word;
            round(&mut v);
            round(&mut v);
            v[0] ^= word;
        }
        v[2] ^= 0xff;
        for _ in 0..4 {
            round(&mut v);
        }
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siphash_matches_its_published_vectors() {
        // Key and message of the SipHash paper's appendix: bytes 00..0f, messages 00.. of length n.
        let key = SipKey(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(key.hash(&[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(key.hash(&[0x0706_0504_0302_0100]), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn a_seed_decides_everything_and_bounds_hold() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        for _ in 0..1_000 {
            assert_eq!(a.bits(), b.bits());
            assert!((3..=9).contains(&a.between(3, 9)));
            b.bits();
        }
    }
}
