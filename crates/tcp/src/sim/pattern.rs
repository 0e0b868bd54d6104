//! The bytes that programs send. A stream's bytes follow from its name, so any part of the stream
//! can be checked.

/// Eight bytes of the stream called `name`, from `8 * index` on.
#[inline]
fn word(name: u64, index: u64) -> [u8; 8] {
    let word = index.wrapping_add(name).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (word ^ word >> 32).to_le_bytes()
}

/// Byte `offset` of the stream called `name`.
pub(crate) fn byte(name: u64, offset: u64) -> u8 {
    word(name, offset >> 3)[(offset & 7) as usize]
}

/// Writes the bytes of the stream called `name` from `offset` on.
pub(crate) fn fill(name: u64, offset: u64, target: &mut [u8]) {
    let (first, rest) = target.split_at_mut(to_next_word(offset).min(target.len()));
    for (target, at) in first.iter_mut().zip(offset..) {
        *target = byte(name, at);
    }
    let rest_at = offset + first.len() as u64;
    let (words, last) = rest.as_chunks_mut();
    for (target, index) in words.iter_mut().zip(rest_at >> 3..) {
        *target = word(name, index);
    }
    for (target, at) in last.iter_mut().zip(rest_at + 8 * words.len() as u64..) {
        *target = byte(name, at);
    }
}

/// The index of the first of `bytes` that differs from the stream `name` at `offset`.
pub(crate) fn first_difference(name: u64, offset: u64, bytes: &[u8]) -> Option<usize> {
    let (first, rest) = bytes.split_at(to_next_word(offset).min(bytes.len()));
    let rest_at = offset + first.len() as u64;
    let (words, last) = rest.as_chunks();
    // Compares without a branch for each word.
    let differs = |(&seen, index): (&[u8; 8], u64)| {
        u64::from_ne_bytes(seen) ^ u64::from_ne_bytes(word(name, index))
    };
    let indices = rest_at >> 3..;
    let is_right = is_right(name, offset, first)
        && words
            .iter()
            .zip(indices)
            .map(differs)
            .fold(0, |all, bits| all | bits)
            == 0
        && is_right(name, rest_at + 8 * words.len() as u64, last);
    if is_right {
        return None;
    }
    let mut both = bytes.iter().zip(offset..);
    both.position(|(&seen, at)| seen != byte(name, at))
}

/// Whether `bytes` equal the stream from `offset` on.
fn is_right(name: u64, offset: u64, bytes: &[u8]) -> bool {
    let mut both = bytes.iter().zip(offset..);
    both.all(|(&seen, at)| seen == byte(name, at))
}

/// Bytes from `offset` to the beginning of the next word.
fn to_next_word(offset: u64) -> usize {
    (offset.wrapping_neg() & 7) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_stretch_are_those_of_the_stream() {
        for offset in 0..20 {
            for length in 0..40 {
                let mut bytes = vec![0; length];
                fill(7 << 40, offset, &mut bytes);
                let expected: Vec<u8> = (offset..)
                    .map(|at| byte(7 << 40, at))
                    .take(length)
                    .collect();
                assert_eq!(bytes, expected);
                assert_eq!(first_difference(7 << 40, offset, &bytes), None);
            }
        }
    }

    #[test]
    fn a_wrong_byte_is_found_wherever_it_is() {
        for offset in 0..9 {
            for wrong in 0..40 {
                let mut bytes = vec![0; 40];
                fill(3, offset, &mut bytes);
                bytes[wrong] ^= 1;
                bytes[39] ^= 2;
                assert_eq!(first_difference(3, offset, &bytes), Some(wrong));
            }
        }
    }
}
