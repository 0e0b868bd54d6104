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
/// As above, and `len` is at least [`PROBE_BYTES`].
unsafe fn copy_probing(source: *const u8, target: *mut u8, len: usize) {
    let begin = ticks();
    // SAFETY: within both ranges.
    unsafe { from_shared(source, target, PROBE_BYTES) };
    let is_cold = ticks().wrapping_sub(begin) > u64::from(COLD_TICKS.load(Relaxed));
    // SAFETY: what is left of both ranges.
    unsafe {
        let (source, target) = (source.add(PROBE_BYTES), target.add(PROBE_BYTES));
        if is_cold {
            copy_nontemporal(source, target, len - PROBE_BYTES);
        } else {
            from_shared(source, target, len - PROBE_BYTES);
        }
    }
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

/// A page copied within the second-level cache takes 300 ticks or so, from memory more than a thousand.
static COLD_TICKS: AtomicU32 = AtomicU32::new(700);

/// One page: enough to tell, too little to matter.
pub(crate) const PROBE_BYTES: usize = 4096;

/// A clock that is cheap to read and runs evenly. Where there is none all memory looks hot.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // The counter is not ordered with the copy around it; a page is long enough for that not to matter.
        // SAFETY: every x86-64 has it, and user space may read it unless a process asked to be stopped from it.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let count: u64;
        // SAFETY: Linux lets user space read the virtual counter.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
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
