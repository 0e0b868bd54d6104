//! CRC-32C (Castagnoli), and a copy that computes it in the same pass.
//!
//! The bytes are copied a block at a time, and summed from the private side while they are in the
//! first-level cache. They are never read twice from the source: a peer could change it between two
//! reads.

/// Continues `crc` (zero to begin) over `bytes`.
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: the slice is readable for its length.
    unsafe { extend(crc, bytes.as_ptr(), bytes.len()) }
}

/// Copies, and continues `crc` over what arrived at the target.
///
/// # Safety
///
/// As for [`from_shared`](crate::from_shared). When others can write the *target* too, the sum is
/// of whatever they left there.
pub(crate) unsafe fn copy_crc32c(crc: u32, source: *const u8, target: *mut u8, len: usize) -> u32 {
    let mut crc = crc;
    let mut at = 0;
    while at < len {
        let block = BLOCK_BYTES.min(len - at);
        // SAFETY: `at + block <= len`, inside both ranges, which the caller vouches for.
        unsafe {
            crate::from_shared(source.add(at), target.add(at), block);
            crc = extend(crc, target.add(at), block);
        }
        at += block;
    }
    crc
}

/// Small enough to stay in any first-level cache, large enough to amortize two calls.
const BLOCK_BYTES: usize = 4096;

/// # Safety
///
/// `at` is readable for `len` bytes.
unsafe fn extend(crc: u32, at: *const u8, len: usize) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if has_instruction() {
        // SAFETY: the instruction exists, and the range is the caller's.
        return unsafe { extend_sse42(crc, at, len) };
    }
    // SAFETY: the range is the caller's.
    unsafe { extend_table(crc, at, len) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_instruction() -> bool {
    #[cfg(feature = "std")]
    return std::arch::is_x86_feature_detected!("sse4.2");
    #[cfg(not(feature = "std"))]
    return cfg!(target_feature = "sse4.2");
}

/// # Safety
///
/// The processor has SSE 4.2; `at` is readable for `len` bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "sse4.2")]
unsafe fn extend_sse42(crc: u32, at: *const u8, len: usize) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let mut sum = u64::from(!crc);
    let words = len / 8;
    for i in 0..words {
        // SAFETY: `8 * i + 8 <= len`; unaligned reads are allowed for.
        sum = _mm_crc32_u64(sum, unsafe { at.cast::<u64>().add(i).read_unaligned() });
    }
    let mut sum = sum as u32;
    for i in 8 * words..len {
        // SAFETY: `i < len`.
        sum = _mm_crc32_u8(sum, unsafe { at.add(i).read() });
    }
    !sum
}

/// # Safety
///
/// `at` is readable for `len` bytes.
unsafe fn extend_table(crc: u32, at: *const u8, len: usize) -> u32 {
    let mut sum = !crc;
    for i in 0..len {
        // SAFETY: `i < len`.
        let byte = unsafe { at.add(i).read() };
        sum = (sum >> 8) ^ TABLE[((sum ^ u32::from(byte)) & 0xff) as usize];
    }
    !sum
}

const TABLE: [u32; 256] = {
    /// The Castagnoli polynomial, lowest power first.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut value = i as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 {
                (value >> 1) ^ POLYNOMIAL
            } else {
                value >> 1
            };
            bit += 1;
        }
        table[i] = value;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    /// RFC 3720, B.4.
    #[test]
    fn sums_match_the_published_examples() {
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(0, &[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(0, &ascending), 0x46dd_794e);
    }

    #[test]
    fn instruction_table_and_copying_agree_at_every_length() {
        let source: Vec<u8> = (0..9000u32).map(|i| ((i * i) >> 3) as u8).collect();
        for len in (0..70).chain([4095, 4096, 4097, 8193, 9000]) {
            let mut target = vec![0; len];
            // SAFETY: both vectors hold at least `len` bytes.
            let (table, copied) = unsafe {
                let copied = copy_crc32c(7, source.as_ptr(), target.as_mut_ptr(), len);
                (extend_table(7, source.as_ptr(), len), copied)
            };
            assert_eq!(table, crc32c(7, &source[..len]));
            assert_eq!(copied, table);
            assert_eq!(target, source[..len]);
        }
    }
}
