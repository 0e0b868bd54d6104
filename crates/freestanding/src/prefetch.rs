//! Hints to fetch cache lines from another core before they are needed, so that several transfers
//! overlap.

/// Fetches the line of `address` for reading. Any address is allowed: a hint never faults.
#[inline(always)]
pub fn for_read<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it neither faults nor changes memory.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Fetches the line of `address` for writing: takes it away from other cores.
#[inline(always)]
pub fn for_write<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above. Spelled out, because for the baseline target the intrinsic becomes a fetch
    // for reading. Processors without the instruction treat it as a no-op.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) address,
            options(nostack, readonly, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
