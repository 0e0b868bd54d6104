//! The byte streams that the soak and the crash tests check.
//!
//! The byte at a position depends only on the seed and the position. So a receiver can check every
//! byte without further information, and a byte that is lost, duplicated or moved is detected at
//! once.

/// A reproducible source of decisions.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// A generator that is determined by `seed`.
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `limit`.
    ///
    /// # Panics
    /// When `limit` is zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.u64(..limit)
    }

    /// A size from 1 to `max`, every order of magnitude equally likely.
    pub fn size(&mut self, max: usize) -> usize {
        let magnitude = self.below(u64::from(max.ilog2()) + 1);
        let size = (1u64 << magnitude) + self.below(1u64 << magnitude);
        usize::try_from(size).map_or(max, |size| size.min(max))
    }
}

/// One direction of a checked connection.
#[derive(Clone, Copy, Debug)]
pub struct Pattern(u64);

impl Pattern {
    /// The stream that belongs to `seed`; each direction has its own.
    pub fn new(seed: u64) -> Pattern {
        Pattern(mix(seed ^ 0x746f_6568_6f6c_6421))
    }

    /// Fills `bytes` with the stream from `position` on.
    pub fn fill(self, position: u64, bytes: &mut [u8]) {
        let mut index = position / 8;
        let skip = usize::try_from(position % 8).expect("below eight");
        let head = bytes.len().min((8 - skip) % 8);
        let (head, rest) = bytes.split_at_mut(head);
        if !head.is_empty() {
            head.copy_from_slice(&self.word(index)[skip..skip + head.len()]);
            index += 1;
        }
        // Most of the time of some tests is spent here. The compiler inlines little in a test
        // program, so this loop calls nothing: neither an iterator nor a copy for each word.
        let (words, tail) = rest.as_chunks_mut::<8>();
        let mut next = 0;
        while next < words.len() {
            words[next] = self.word(index);
            next += 1;
            index += 1;
        }
        tail.copy_from_slice(&self.word(index)[..tail.len()]);
    }

    /// The first position at which `bytes`, received from `position` on, are not the stream's.
    pub fn first_wrong(self, position: u64, bytes: &[u8]) -> Option<u64> {
        let mut expected = [0; 4096];
        for (index, chunk) in bytes.chunks(expected.len()).enumerate() {
            let at = position + (index * expected.len()) as u64;
            let expected = &mut expected[..chunk.len()];
            self.fill(at, expected);
            // Slices are compared at once; the place is looked for only if they differ.
            if chunk == expected {
                continue;
            }
            let mut pairs = chunk.iter().zip(expected.iter());
            let offset = pairs.position(|(got, want)| got != want);
            return offset.map(|offset| at + offset as u64);
        }
        None
    }

    /// Where in the stream the first eight of `bytes` belong, looking `reach` bytes around
    /// `position`: tells a lost part from a repeated one.
    pub fn locate(self, position: u64, bytes: &[u8], reach: u64) -> Option<u64> {
        let sample = bytes.get(..8)?;
        let mut around = vec![0; usize::try_from(2 * reach).ok()? + 8];
        let from = position.saturating_sub(reach);
        self.fill(from, &mut around);
        let offset = around.windows(8).position(|window| window == sample)?;
        Some(from + offset as u64)
    }

    #[inline(always)]
    fn word(self, index: u64) -> [u8; 8] {
        mix(self
            .0
            .wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .to_le_bytes()
    }
}

#[inline(always)]
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_the_same_however_it_is_cut() {
        let pattern = Pattern::new(7);
        let mut whole = vec![0; 10_000];
        pattern.fill(0, &mut whole);
        let mut random = Random::new(1);
        let mut position = 0;
        while position < whole.len() {
            let size = random.size(300).min(whole.len() - position);
            let mut part = vec![0; size];
            pattern.fill(position as u64, &mut part);
            assert_eq!(part, whole[position..position + size]);
            assert_eq!(pattern.first_wrong(position as u64, &part), None);
            position += size;
        }
    }

    #[test]
    fn lost_doubled_and_damaged_bytes_are_found_and_located() {
        let pattern = Pattern::new(7);
        let mut bytes = vec![0; 64];
        pattern.fill(100, &mut bytes);
        assert_eq!(pattern.first_wrong(90, &bytes), Some(90));
        assert_eq!(pattern.locate(90, &bytes, 1000), Some(100));
        bytes[9] ^= 1;
        assert_eq!(pattern.first_wrong(100, &bytes), Some(109));
    }
}
