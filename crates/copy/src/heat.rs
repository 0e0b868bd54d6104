//! Finding out whether memory is in the cache, by copying the first page of it with a stopwatch.
//!
//! Hot memory wants an ordinary copy, cold memory a non-temporal one, and the caller cannot tell which it has. The
//! first page of a large copy can: it takes ten times as long when it is cold.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::from_shared;
use crate::nontemporal::{NT_BYTES_MIN, copy_nontemporal};

/// Copies with whichever of `memcpy` and non-temporal stores suits the memory at hand.
///
/// # Safety
///
/// As for [`from_shared`] and [`to_shared`](crate::to_shared): no reference to either side is formed, and
/// either may be shared.
#[inline]
pub unsafe fn copy_by_heat(source: *const u8, target: *mut u8, len: usize) {
    if len < NT_BYTES_MIN {
        // SAFETY: the caller's contract.
        return unsafe { from_shared(source, target, len) };
    }
    // SAFETY: the caller's contract.
    unsafe { copy_probing(source, target, len) }
}

/// # Safety
///
/// As above, and `len` is at least [`NT_BYTES_MIN`].
unsafe fn copy_probing(source: *const u8, target: *mut u8, len: usize) {
    // The pages before the one that is timed bring streams and translations under way, which the rest then has too.
    let ahead = (len / 64).clamp(PROBE_BYTES, 4 * PROBE_BYTES) / PROBE_BYTES * PROBE_BYTES;
    let untimed = ahead - PROBE_BYTES;
    // SAFETY: `ahead` is less than `len`; each call takes what the last one left.
    unsafe {
        from_shared(source, target, untimed);
        let is_cold = copy_page(source.add(untimed), target.add(untimed));
        let (source, target) = (source.add(ahead), target.add(ahead));
        if is_cold {
            copy_nontemporal(source, target, len - ahead);
        } else {
            from_shared(source, target, len - ahead);
        }
    }
}

/// Copies the first page of a longer copy, and tells whether it was cold.
///
/// # Safety
///
/// As for [`copy_by_heat`], for [`PROBE_BYTES`].
pub(crate) unsafe fn copy_page(source: *const u8, target: *mut u8) -> bool {
    let begin = ticks();
    // SAFETY: the caller's contract.
    unsafe { from_shared(source, target, PROBE_BYTES) };
    ticks().wrapping_sub(begin) > u64::from(COLD_TICKS.load(Relaxed))
}

/// Drops a range from every cache of the machine, where the processor lets a program do that; true if it did.
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
                    core::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
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

/// Whether lines can be flushed several at a time, which is many times faster.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_clflushopt() -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    const CLFLUSHOPT: u32 = 1 << 23;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & CLFLUSHOPT != 0
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE_BYTES: usize = 64;

/// Lets calibration say how many ticks a page takes that is neither hot nor cold. Relaxed: it is a number by itself, and
/// any value gives a correct copy.
#[cfg(feature = "std")]
pub(crate) fn set_cold_ticks(ticks: u32) {
    COLD_TICKS.store(ticks.max(1), Relaxed);
}

/// A page copied within the second-level cache takes 240 ticks or so, from an outer one 600 to 900, from memory more than a
/// thousand.
static COLD_TICKS: AtomicU32 = AtomicU32::new(800);

/// One page: enough to tell, too little to matter.
pub(crate) const PROBE_BYTES: usize = 4096;

/// A clock that is cheap to read and runs evenly. Where there is none all memory looks hot.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // The fence waits for the loads of the copy: without it the clock is read while they are on their way.
        // SAFETY: every x86-64 has both, and user space may read the clock unless a process asked to be kept from it.
        unsafe {
            core::arch::x86_64::_mm_lfence();
            core::arch::x86_64::_rdtsc()
        }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let count: u64;
        // SAFETY: Linux lets user space read the virtual counter. The barrier is for the same reason as above.
        unsafe {
            core::arch::asm!("dsb ld", "isb", "mrs {}, cntvct_el0", out(reg) count, options(nostack))
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
    fn the_bytes_do_not_depend_on_the_verdict() {
        let source: Vec<u8> = (0..200_000u32).map(|i| (i * 7) as u8).collect();
        for verdict in [0, u32::MAX] {
            COLD_TICKS.store(verdict, Relaxed);
            for len in [0, 1, 4095, 4096, NT_BYTES_MIN - 1, NT_BYTES_MIN, 199_999] {
                let mut target = vec![0; len];
                // SAFETY: both hold `len` bytes.
                unsafe { copy_by_heat(source.as_ptr(), target.as_mut_ptr(), len) };
                assert_eq!(target, source[..len]);
            }
        }
    }
}
