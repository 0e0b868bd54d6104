//! Copies in and out of memory that another process may be writing.
//!
//! A region shared with a peer is not Rust memory: the peer may change any byte at any time, so a
//! `&[u8]` or `&mut [u8]` into it would be undefined behaviour the moment it is formed. The two
//! calls here take raw pointers, form no reference to the shared side, and hand the bytes to the
//! platform's `memcpy`, whose loads and stores the compiler cannot see into.
//!
//! A copy from shared memory gives *some* value of each byte. A peer that writes while we read
//! gives us a mixture of old and new: a caller must treat copied bytes as data and never check them
//! in place and use them again from the region. Ordering is not provided: a position published with
//! Release and read with Acquire makes the bytes before it visible.

/// Copies `len` bytes out of shared memory at `source` to private memory at `target`.
///
/// # Safety
///
/// - `source` is mapped and readable for `len` bytes for the whole call. Others may write it
///   meanwhile.
/// - `target` is writable for `len` bytes and nobody else touches it during the call.
/// - The two ranges do not overlap.
#[inline]
pub unsafe fn from_shared(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: mapped, writable and disjoint by the caller's contract. No reference to the shared
    // side is formed, and no byte read from it is used here except to be stored.
    unsafe { copy(opaque(source), target, len) }
}

/// Copies `len` bytes of private memory at `source` into shared memory at `target`.
///
/// # Safety
///
/// - `source` is readable for `len` bytes and nobody writes it during the call.
/// - `target` is mapped and writable for `len` bytes for the whole call. Others may read or write
///   it meanwhile; what they then see is theirs to distrust.
/// - The two ranges do not overlap.
#[inline]
pub unsafe fn to_shared(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: readable, mapped and disjoint by the caller's contract. No reference to the shared
    // side is formed.
    unsafe { copy(source, opaque(target as *const u8).cast_mut(), len) }
}

/// The platform's `memcpy`, divided into pieces where one call would be slow.
///
/// Above about two kilobytes glibc copies by `rep movsb` on processors that report it as fast. On
/// AMD's Zen 3 and 4 this is up to thirty times slower than a loop when the target's offset in its
/// page is slightly larger than the source's: the processor mistakes each load for one of the bytes
/// just stored. Shorter calls use loops.
///
/// # Safety
///
/// As for `core::ptr::copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if cfg!(target_arch = "x86_64") && len > PIECE_BYTES && is_just_ahead(source, target) {
            return copy_in_pieces(source, target, len);
        }
        core::ptr::copy_nonoverlapping(source, target, len);
    }
}

#[inline(always)]
pub(crate) fn is_just_ahead(source: *const u8, target: *mut u8) -> bool {
    let ahead = (target as usize).wrapping_sub(source as usize) % PAGE_BYTES;
    (1..AHEAD_BYTES).contains(&ahead)
}

/// # Safety
///
/// As for `core::ptr::copy_nonoverlapping`.
#[inline(never)]
unsafe fn copy_in_pieces(source: *const u8, target: *mut u8, len: usize) {
    for done in (0..len).step_by(PIECE_BYTES) {
        let part = PIECE_BYTES.min(len - done);
        // SAFETY: `done + part <= len`; the ranges are the caller's.
        unsafe { core::ptr::copy_nonoverlapping(source.add(done), target.add(done), part) };
    }
}

/// Up to this length glibc does not use `rep movsb`.
pub(crate) const PIECE_BYTES: usize = 2048;

const PAGE_BYTES: usize = 4096;

/// A target offset that is larger by at most this much is slow.
const AHEAD_BYTES: usize = 256;

/// Hides where a pointer came from, so that the compiler can neither merge two copies of the same
/// shared bytes into one nor assume that a byte it saw earlier is still the same.
///
/// An empty instruction keeps the pointer in its register; `black_box` would take it through the
/// stack.
#[inline(always)]
fn opaque(pointer: *const u8) -> *const u8 {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    {
        let mut pointer = pointer;
        // SAFETY: no instruction is emitted; the register comes back unchanged. Without `nomem` the
        // compiler must assume that memory was read and written here, which is the point.
        unsafe {
            core::arch::asm!("/* {0} */", inout(reg) pointer, options(nostack, preserves_flags))
        };
        pointer
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    core::hint::black_box(pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_a_whole() {
        let source: Vec<u8> = (0..20_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let mut target = vec![0u8; 30_000];
        // The allocator chooses the target's offset in its page, so every distance is tried.
        for shift in (0..PAGE_BYTES).step_by(63) {
            for len in [2047, 2048, 2049, 4096, 4097, 6143, 20_000] {
                target.fill(0xee);
                // SAFETY: `shift + len` is less than 30,000, and the source holds 20,000.
                unsafe { from_shared(source.as_ptr(), target.as_mut_ptr().add(shift), len) };
                assert!(target[..shift].iter().all(|&byte| byte == 0xee));
                assert_eq!(target[shift..shift + len], source[..len]);
                assert!(target[shift + len..].iter().all(|&byte| byte == 0xee));
            }
        }
        target.fill(0xee);
        // SAFETY: both hold 5,000 bytes.
        unsafe { copy_in_pieces(source.as_ptr(), target.as_mut_ptr(), 5000) };
        assert_eq!(target[..5000], source[..5000]);
        assert_eq!(target[5000], 0xee);
    }

    #[test]
    fn bytes_arrive_in_both_directions_at_every_alignment() {
        let source: Vec<u8> = (0..300u32).map(|i| (i * 7) as u8).collect();
        for offset in 0..64 {
            for len in [0, 1, 7, 8, 63, 64, 65, 200] {
                let mut shared = vec![0u8; 300];
                let mut back = vec![0u8; 300];
                // SAFETY: `offset + len` is at most 263 and each vector holds 300 bytes; the three
                // are separate allocations.
                unsafe {
                    to_shared(
                        source.as_ptr().add(offset),
                        shared.as_mut_ptr().add(offset),
                        len,
                    );
                    from_shared(
                        shared.as_ptr().add(offset),
                        back.as_mut_ptr().add(offset),
                        len,
                    );
                }
                assert_eq!(back[offset..offset + len], source[offset..offset + len]);
                assert!(
                    back[..offset]
                        .iter()
                        .chain(&back[offset + len..])
                        .all(|&b| b == 0)
                );
            }
        }
    }
}
