//! The Internet checksum (RFC 1071), summed in native byte order eight bytes at a time.

/// A ones' complement sum that has not been folded yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// Adds `bytes`, which begin at an even offset of the data. An odd last byte is padded with
    /// zero, so only the last part of the data may have an odd length.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // RFC 1071 section 2 (B): the sum may be computed in either byte order. Two 32-bit halves
        // are added separately, so 2^32 words fit before anything could overflow.
        let mut sum = 0u64;
        let mut chunks = bytes.chunks_exact(32);
        for chunk in &mut chunks {
            for lane in chunk.chunks_exact(4) {
                sum += u64::from(u32::from_ne_bytes([lane[0], lane[1], lane[2], lane[3]]));
            }
        }
        let mut lanes = chunks.remainder().chunks_exact(2);
        for lane in &mut lanes {
            sum += u64::from(u16::from_ne_bytes([lane[0], lane[1]]));
        }
        if let [last] = lanes.remainder() {
            sum += u64::from(u16::from_ne_bytes([*last, 0]));
        }
        self.join(Self(sum))
    }

    /// Adds a number that the data contains in network byte order.
    #[must_use]
    pub const fn word(self, word: u16) -> Self {
        Self(self.0 + u16::from_ne_bytes(word.to_be_bytes()) as u64)
    }

    /// Adds another sum.
    #[must_use]
    pub const fn join(self, other: Self) -> Self {
        let (sum, carry) = self.0.overflowing_add(other.0);
        Self(sum + carry as u64)
    }

    /// Adds data that begins at an odd offset: RFC 1071 section 2 (B), byte swapping.
    #[must_use]
    pub const fn join_odd(self, other: Self) -> Self {
        self.join(Self(other.folded().swap_bytes() as u64))
    }

    /// The sum in 16 bits, so that [`Self::join_words`] can continue it cheaply.
    #[must_use]
    pub(crate) const fn short(self) -> u16 {
        self.folded()
    }

    /// The sum that [`Self::short`] returned.
    #[must_use]
    pub(crate) const fn of_short(short: u16) -> Self {
        Self(short as u64)
    }

    /// A short sum plus a few numbers that the data contains in network byte order, in 16 bits.
    #[inline]
    #[must_use]
    pub(crate) const fn join_words(short: u16, first: u16, second: u16) -> u16 {
        let words = first.swap_bytes() as u32 + second.swap_bytes() as u32;
        let native = if cfg!(target_endian = "little") {
            words
        } else {
            first as u32 + second as u32
        };
        let sum = short as u32 + native;
        // Adds the upper and the lower half with carry: the upper half of the sum of the word and
        // the rotated word.
        (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
    }

    /// The sum in 16 bits, in native byte order.
    const fn folded(self) -> u16 {
        let mut sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        sum = (sum >> 32) + (sum & 0xffff_ffff);
        sum = (sum >> 16) + (sum & 0xffff);
        sum = (sum >> 16) + (sum & 0xffff);
        sum = (sum >> 16) + (sum & 0xffff);
        sum as u16
    }

    /// The checksum as it is stored in a header.
    #[must_use]
    pub const fn checksum(self) -> [u8; 2] {
        (!self.folded()).to_ne_bytes()
    }

    /// The sum as it is stored in a header whose checksum is completed later (virtio, TAP).
    #[must_use]
    pub const fn partial(self) -> [u8; 2] {
        self.folded().to_ne_bytes()
    }

    /// Whether data that includes its checksum is intact.
    #[must_use]
    pub const fn is_intact(self) -> bool {
        self.folded() == 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071 section 4.1, word by word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn agrees_with_the_definition_at_every_length_and_split() {
        let mut random = crate::Random::new(1);
        let data: Vec<u8> = (0..300).map(|_| random.bits() as u8).collect();
        for length in 0..data.len() {
            let data = &data[..length];
            let whole = Sum::ZERO.bytes(data);
            assert_eq!(
                whole.checksum(),
                naive(data).to_be_bytes(),
                "length {length}"
            );
            let split = length / 3;
            let (a, b) = (
                Sum::ZERO.bytes(&data[..split]),
                Sum::ZERO.bytes(&data[split..]),
            );
            let joined = if split % 2 == 0 {
                a.join(b)
            } else {
                a.join_odd(b)
            };
            assert_eq!(joined.checksum(), whole.checksum());
        }
    }

    #[test]
    fn short_sums_agree_with_long_ones() {
        let mut random = crate::Random::new(2);
        for _ in 0..10_000 {
            let (a, b, c) = (
                random.bits() as u16,
                random.bits() as u16,
                random.bits() as u16,
            );
            let long = Sum::ZERO.word(a).word(b).word(c);
            let short = Sum::join_words(Sum::ZERO.word(a).short(), b, c);
            assert_eq!(short.to_ne_bytes(), long.partial());
        }
        assert_eq!(Sum::join_words(0xffff, 0xffff, 0xffff), 0xffff);
    }

    //= RFC 9293#3.1
    //= type=test
    //# The sender MUST generate it (MUST-2)
    #[test]
    fn agrees_with_the_definition_at_every_alignment_and_in_any_three_parts() {
        let mut random = crate::Random::new(3);
        // Bytes with carries in every lane, and without.
        let bytes = |_| match random.below(3) {
            0 => 0xff,
            _ => random.bits() as u8,
        };
        let data: Vec<u8> = (0..80).map(bytes).collect();
        for (start, length) in (0..8).flat_map(|start| (0..=72).map(move |length| (start, length)))
        {
            let data = &data[start..start + length];
            let expected = naive(data).to_be_bytes();
            for (a, b) in (0..=length).flat_map(|b| (0..=b).map(move |a| (a, b))) {
                let parts = [(0, a), (a, b), (b, length)];
                let sum = parts.iter().fold(Sum::ZERO, |sum, &(from, to)| {
                    let part = Sum::ZERO.bytes(&data[from..to]);
                    match from % 2 {
                        0 => sum.join(part),
                        _ => sum.join_odd(part),
                    }
                });
                assert_eq!(
                    sum.checksum(),
                    expected,
                    "{start} + {length} at {a} and {b}"
                );
            }
        }
    }

    #[test]
    fn short_sums_take_words_at_every_carry() {
        let edges = [0, 1, 0xff, 0x100, 0x7fff, 0x8000, 0xff00, 0xfffe, 0xffff];
        for short in 0..=u16::MAX {
            for (first, second) in edges.iter().flat_map(|&a| edges.map(|b| (a, b))) {
                let long = Sum::ZERO.word(u16::from_be(short)).word(first).word(second);
                let joined = Sum::join_words(short, first, second);
                assert_eq!(joined.to_ne_bytes(), long.partial());
            }
        }
    }

    #[test]
    fn a_word_may_be_replaced_in_a_sum() {
        // RFC 1624 section 3: HC' = ~(~HC + ~m + m').
        let mut random = crate::Random::new(4);
        let mut data: Vec<u8> = (0..40).map(|_| random.bits() as u8).collect();
        for round in 0..20_000 {
            let at = 2 * random.below(20) as usize;
            let old = u16::from_be_bytes([data[at], data[at + 1]]);
            let new = [0, 0xffff, random.bits() as u16][round % 3];
            let before = Sum::ZERO.bytes(&data);
            data[at..at + 2].copy_from_slice(&new.to_be_bytes());
            let after = before.word(!old).word(new);
            // Zero has two representations: data is intact with one exactly if it is intact with
            // the other.
            let whole = Sum::ZERO.bytes(&data);
            let [a, b] = [after, whole].map(|sum| u16::from_be_bytes(sum.partial()) % 0xffff);
            assert_eq!(a, b, "{new} for {old} at {at}");
        }
    }

    #[test]
    fn data_with_its_checksum_is_intact() {
        let mut data = *b"0123456789ab\0\0";
        let checksum = Sum::ZERO.bytes(&data).checksum();
        data[12..].copy_from_slice(&checksum);
        assert!(Sum::ZERO.bytes(&data).is_intact());
        data[3] ^= 4;
        assert!(!Sum::ZERO.bytes(&data).is_intact());
    }
}
