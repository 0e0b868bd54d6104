//! Detects whether memory is in a cache, by the time of loads from four of its lines.
//!
//! An ordinary copy is faster for memory in a cache (hot), a non-temporal copy for other memory
//! (cold), and the caller does not know which it has. Four parallel loads show the difference: if
//! one of them has to go to memory, they take several times as long. The loads are spread over the
//! source, so that a recently used part does not decide alone.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use crate::nontemporal::{NT_BYTES_MIN, copy_nontemporal};
use crate::{from_shared, prefetch};

/// Copies by `memcpy` or by non-temporal stores, whichever suits the memory.
///
/// # Safety
///
/// As for [`from_shared`] and [`to_shared`](crate::to_shared): no reference to either side is
/// formed, and either may be shared.
#[inline]
pub unsafe fn copy_by_residency(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's contract; no length below the limit is zero.
    unsafe {
        match len >= nontemporal_from() && is_cold(source, len) {
            true => copy_nontemporal(source, target, len),
            false => from_shared(source, target, len),
        }
    }
}

/// Whether the source is in no cache.
///
/// # Safety
///
/// `source` is readable for `len` bytes, and `len` is not zero. Others may write it meanwhile.
pub(crate) unsafe fn is_cold(source: *const u8, len: usize) -> bool {
    // SAFETY: the caller's contract.
    unsafe { touch_ticks(source, len) > u64::from(COLD_TICKS.load(Relaxed)) }
}

/// The time of four loads, spread over the source, in ticks.
///
/// # Safety
///
/// As for [`is_cold`].
pub(crate) unsafe fn touch_ticks(source: *const u8, len: usize) -> u64 {
    let begin = ticks();
    for part in [1, 3, 5, 7] {
        // SAFETY: `len` is not zero, so this is less than `len`.
        unsafe { touch(source.add(len / 8 * part + len % 8 / 2)) };
    }
    // The copy that follows begins with these lines, so they are fetched while the loads are under
    // way.
    for line in 0..LINES_AHEAD {
        prefetch::for_read(source.wrapping_add(line * LINE_BYTES));
    }
    ticks().wrapping_sub(begin)
}

/// As many further loads as a processor can have under way.
const LINES_AHEAD: usize = 12;

/// Loads a byte and discards it. Its value must not be used: a peer may be writing the byte, or it
/// may be uninitialized.
///
/// # Safety
///
/// The byte is readable.
#[inline(always)]
unsafe fn touch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a load of a readable byte.
    unsafe {
        core::arch::asm!(
            "movzx {0:e}, byte ptr [{1}]",
            out(reg) _,
            in(reg) at,
            options(nostack, readonly, preserves_flags)
        );
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "ldrb {0:w}, [{1}]",
            out(reg) _,
            in(reg) at,
            options(nostack, readonly, preserves_flags)
        );
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}

/// Drops a range from every cache of the machine, if the processor lets a program do that. True if
/// it did.
///
/// For measuring: a copy of evicted memory is what a copy engine competes with.
///
/// # Safety
///
/// The range is mapped.
pub unsafe fn evict(at: *const u8, len: usize) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let unordered = has_clflushopt();
        for line in (0..len).step_by(LINE_BYTES).chain(len.checked_sub(1)) {
            // SAFETY: within the caller's range; the instructions change no values, and exist.
            unsafe {
                let line = at.add(line);
                if unordered {
                    core::arch::asm!(
                        "clflushopt [{}]",
                        in(reg) line,
                        options(nostack, preserves_flags)
                    );
                } else {
                    core::arch::x86_64::_mm_clflush(line);
                }
            }
        }
        // SAFETY: no memory is touched.
        unsafe { core::arch::x86_64::_mm_mfence() };
        true
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = (at, len);
        false
    }
}

/// Whether lines can be flushed several at a time, which is many times faster. CPUID runs once: in
/// a virtual machine the host answers it, which takes microseconds.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_clflushopt() -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    const CLFLUSHOPT: u32 = 1 << 23;
    const UNASKED: u32 = 2;
    static ANSWER: AtomicU32 = AtomicU32::new(UNASKED);
    // Relaxed: whoever asks gets the same answer.
    let answer = ANSWER.load(Relaxed);
    if answer != UNASKED {
        return answer == 1;
    }
    let answer = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & CLFLUSHOPT != 0;
    ANSWER.store(answer.into(), Relaxed);
    answer
}

const LINE_BYTES: usize = 64;

/// Sets the number of ticks of four loads above which memory counts as cold, for calibration.
/// Relaxed: no other data depends on it, and any value gives a correct copy.
#[cfg(feature = "std")]
pub(crate) fn set_cold_ticks(ticks: u32) {
    COLD_TICKS.store(ticks.max(1), Relaxed);
}

/// From the second-level cache four loads take some 50 ticks with the reading of the clock, from an
/// outer one 100 to 200, from memory 400 and more.
static COLD_TICKS: AtomicU32 = AtomicU32::new(280);

/// Sets the length from which on cold memory is copied past the cache, for calibration;
/// `usize::MAX` for never.
#[cfg(feature = "std")]
pub(crate) fn set_nontemporal_from(bytes: usize) {
    NONTEMPORAL_FROM.store(bytes.max(NT_BYTES_MIN), Relaxed);
}

/// The length from which on cold memory is copied past the cache. Relaxed, as above.
#[inline]
pub(crate) fn nontemporal_from() -> usize {
    NONTEMPORAL_FROM.load(Relaxed)
}

static NONTEMPORAL_FROM: AtomicUsize = AtomicUsize::new(NT_BYTES_MIN);

/// A clock that is cheap to read and runs evenly. Without such a clock all memory looks hot.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // The fence waits for the loads of the copy: without it the clock is read while they are on
        // their way. SAFETY: every x86-64 has both, and user space may read the clock unless a
        // process asked to be kept from it.
        unsafe {
            core::arch::x86_64::_mm_lfence();
            core::arch::x86_64::_rdtsc()
        }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let count: u64;
        // SAFETY: Linux lets user space read the virtual counter. The barrier is for the same
        // reason as above.
        unsafe {
            core::arch::asm!(
                "dsb ld", "isb", "mrs {}, cntvct_el0",
                out(reg) count,
                options(nostack)
            )
        };
        count
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn the_bytes_do_not_depend_on_the_threshold() {
        let source: Vec<u8> = (0..200_000u32).map(|i| (i * 7) as u8).collect();
        for threshold in [0, u32::MAX] {
            COLD_TICKS.store(threshold, Relaxed);
            for len in [0, 1, 4095, 4096, NT_BYTES_MIN - 1, NT_BYTES_MIN, 199_999] {
                let mut target = vec![0; len];
                // SAFETY: both hold `len` bytes.
                unsafe { copy_by_residency(source.as_ptr(), target.as_mut_ptr(), len) };
                assert_eq!(target, source[..len]);
            }
        }
    }
}
