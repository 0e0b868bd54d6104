//! Copies past the cache: non-temporal stores, four pages at a time, fetched ahead.
//!
//! An ordinary store to a line that is not in the cache first reads the line from memory, and then pushes
//! something else out. A non-temporal store does neither, so a large copy of cold memory saves a third
//! of its traffic and leaves the caller's working set where it was. Walking four pages side by side keeps
//! four streams of the hardware prefetcher and four memory banks busy; it is worth as much again.
//!
//! ```text
//!             page 0      page 1      page 2      page 3
//!   step 0    line 0,1    line 0,1    line 0,1    line 0,1      loads, then stores
//!   step 1    line 2,3    ...
//! ```
//!
//! It loses when the target is in the cache (its lines are thrown out), or will be read soon. Hence
//! [`Flags::CACHE`], and the probing `auto` engine.
//!
//! Non-temporal stores are weakly ordered: an `sfence` at the end of every copy makes them visible
//! before anything that is stored afterwards, so a Release store publishes them like ordinary ones.

use crate::backend::{Backend, Outcome, Refused};
use crate::cpu::{Finished, execute};
use crate::operation::{Flags, Kind};
use crate::{Cookie, Operation, from_shared};

/// The `cpu-nt` engine: like `cpu`, but copies above a threshold go past the cache.
pub struct CpuNt {
    finished: Finished,
}

impl CpuNt {
    /// The engine; it has no parameters.
    pub fn new() -> CpuNt {
        CpuNt {
            finished: Finished::default(),
        }
    }
}

impl Default for CpuNt {
    fn default() -> CpuNt {
        CpuNt::new()
    }
}

// SAFETY: an operation is over when `submit` returns, and touches only its own ranges.
unsafe impl Backend for CpuNt {
    fn name(&self) -> &'static str {
        "cpu-nt"
    }

    unsafe fn submit(&mut self, cookie: Cookie, operation: &Operation) -> Result<(), Refused> {
        let past_the_cache = operation.kind == Kind::Copy
            && operation.len >= NT_BYTES_MIN
            && !operation.flags.contains(Flags::CACHE);
        let outcome = if past_the_cache {
            // SAFETY: valid and disjoint by the caller's contract.
            unsafe { copy_nontemporal(operation.source, operation.target, operation.len) };
            Outcome::DONE
        } else {
            // SAFETY: the caller's contract is `execute`'s.
            unsafe { execute(operation) }
        };
        self.finished.push(cookie, outcome);
        Ok(())
    }

    fn poll(&mut self, report: &mut dyn FnMut(Cookie, Outcome)) {
        self.finished.report(report);
    }
}

/// Below this a copy is a few hundred nanoseconds, and the fence and the lost cache lines cost more.
pub const NT_BYTES_MIN: usize = 4 * GROUP_BYTES;

/// Copies past the cache where the processor can, otherwise like [`from_shared`].
///
/// # Safety
///
/// As for [`from_shared`] and [`to_shared`](crate::to_shared): no reference to either side is formed, and
/// either may be shared.
pub unsafe fn copy_nontemporal(source: *const u8, target: *mut u8, len: usize) {
    let head = target.align_offset(LINE_BYTES).min(len);
    let groups = (len - head) / GROUP_BYTES;
    // SAFETY: head, groups and tail follow one another and add up to `len`; after the head the target
    // is aligned to a line.
    unsafe {
        from_shared(source, target, head);
        if groups > 0 {
            copy_groups(source.add(head), target.add(head), groups);
        }
        let done = head + groups * GROUP_BYTES;
        from_shared(source.add(done), target.add(done), len - done);
    }
}

/// What the hardware calls a cache line.
const LINE_BYTES: usize = 64;

/// Distance between the four streams.
const PAGE_BYTES: usize = 4096;

/// The unit of the inner loop: four pages.
const GROUP_BYTES: usize = 4 * PAGE_BYTES;

/// # Safety
///
/// Both ranges are valid for `groups * GROUP_BYTES`; `target` is aligned to a line.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_groups(source: *const u8, target: *mut u8, groups: usize) {
    // SAFETY: the caller's ranges.
    unsafe { from_shared(source, target, groups * GROUP_BYTES) }
}

/// # Safety
///
/// Both ranges are valid for `groups * GROUP_BYTES`; `target` is aligned to a line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_groups(source: *const u8, target: *mut u8, groups: usize) {
    let wide = has_avx();
    for group in 0..groups {
        let at = group * GROUP_BYTES;
        // SAFETY: `at + GROUP_BYTES` is within both ranges; each call copies one group.
        unsafe {
            if wide {
                copy_group_avx(source.add(at), target.add(at));
            } else {
                copy_group_sse2(source.add(at), target.add(at));
            }
        }
    }
    // SAFETY: orders the stores above before every later one; touches nothing.
    unsafe { core::arch::asm!("sfence", options(nostack, preserves_flags)) };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_avx() -> bool {
    #[cfg(feature = "std")]
    return std::arch::is_x86_feature_detected!("avx");
    #[cfg(not(feature = "std"))]
    return cfg!(target_feature = "avx");
}

/// Defines one group's copy: a loop over the lines of a page, one line of each of the four pages a turn.
/// It is assembly so that the compiler sees no typed access to memory that a peer may be writing.
///
/// The prefetches run past the end of the last page by up to `AHEAD`. A prefetch never faults.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! copy_group {
    ($name:ident, $doc:literal, [$($line:literal),+ $(,)?], [$($register:tt),+ $(,)?]) => {
        #[doc = $doc]
        ///
        /// # Safety
        ///
        /// The processor has the instructions; both sides are valid for `GROUP_BYTES`; `target` is
        /// aligned to a line.
        unsafe fn $name(source: *const u8, target: *mut u8) {
            // SAFETY: reads `source..source + GROUP_BYTES` and writes as much of `target`, a line of
            // each page a turn, until the first page is done. Clobbers are declared.
            unsafe {
                core::arch::asm!(
                    "2:",
                    "prefetcht0 [{s} + 256]",
                    "prefetcht0 [{s} + 4096 + 256]",
                    "prefetcht0 [{s} + 8192 + 256]",
                    "prefetcht0 [{s} + 12288 + 256]",
                    $($line,)+
                    "add {s}, 64",
                    "add {t}, 64",
                    "cmp {s}, {e}",
                    "jb 2b",
                    s = inout(reg) source => _,
                    t = inout(reg) target => _,
                    e = in(reg) source.add(PAGE_BYTES),
                    $(out($register) _,)+
                    options(nostack),
                )
            }
        }
    };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
copy_group!(
    copy_group_avx,
    "Thirty-two bytes an instruction.",
    [
        "vmovdqu ymm0, [{s}]",
        "vmovdqu ymm1, [{s} + 32]",
        "vmovdqu ymm2, [{s} + 4096]",
        "vmovdqu ymm3, [{s} + 4096 + 32]",
        "vmovdqu ymm4, [{s} + 8192]",
        "vmovdqu ymm5, [{s} + 8192 + 32]",
        "vmovdqu ymm6, [{s} + 12288]",
        "vmovdqu ymm7, [{s} + 12288 + 32]",
        "vmovntdq [{t}], ymm0",
        "vmovntdq [{t} + 32], ymm1",
        "vmovntdq [{t} + 4096], ymm2",
        "vmovntdq [{t} + 4096 + 32], ymm3",
        "vmovntdq [{t} + 8192], ymm4",
        "vmovntdq [{t} + 8192 + 32], ymm5",
        "vmovntdq [{t} + 12288], ymm6",
        "vmovntdq [{t} + 12288 + 32], ymm7",
    ],
    [
        "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7"
    ]
);

#[cfg(all(target_arch = "x86_64", not(miri)))]
copy_group!(
    copy_group_sse2,
    "Sixteen bytes an instruction: what every x86-64 processor has.",
    [
        "movdqu xmm0, [{s}]",
        "movdqu xmm1, [{s} + 16]",
        "movdqu xmm2, [{s} + 32]",
        "movdqu xmm3, [{s} + 48]",
        "movdqu xmm4, [{s} + 4096]",
        "movdqu xmm5, [{s} + 4096 + 16]",
        "movdqu xmm6, [{s} + 4096 + 32]",
        "movdqu xmm7, [{s} + 4096 + 48]",
        "movdqu xmm8, [{s} + 8192]",
        "movdqu xmm9, [{s} + 8192 + 16]",
        "movdqu xmm10, [{s} + 8192 + 32]",
        "movdqu xmm11, [{s} + 8192 + 48]",
        "movdqu xmm12, [{s} + 12288]",
        "movdqu xmm13, [{s} + 12288 + 16]",
        "movdqu xmm14, [{s} + 12288 + 32]",
        "movdqu xmm15, [{s} + 12288 + 48]",
        "movntdq [{t}], xmm0",
        "movntdq [{t} + 16], xmm1",
        "movntdq [{t} + 32], xmm2",
        "movntdq [{t} + 48], xmm3",
        "movntdq [{t} + 4096], xmm4",
        "movntdq [{t} + 4096 + 16], xmm5",
        "movntdq [{t} + 4096 + 32], xmm6",
        "movntdq [{t} + 4096 + 48], xmm7",
        "movntdq [{t} + 8192], xmm8",
        "movntdq [{t} + 8192 + 16], xmm9",
        "movntdq [{t} + 8192 + 32], xmm10",
        "movntdq [{t} + 8192 + 48], xmm11",
        "movntdq [{t} + 12288], xmm12",
        "movntdq [{t} + 12288 + 16], xmm13",
        "movntdq [{t} + 12288 + 32], xmm14",
        "movntdq [{t} + 12288 + 48], xmm15",
    ],
    [
        "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
    ]
);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn every_alignment_and_tail_arrives_and_nothing_else_is_touched() {
        let source: Vec<u8> = (0..80_000u32).map(|i| ((i * 31) >> 2) as u8).collect();
        for from in [0, 1, 31, 63] {
            for to in [0, 1, 32, 63] {
                for len in [
                    0,
                    1,
                    63,
                    64,
                    16383,
                    16384,
                    16385,
                    32768 + 100,
                    65536,
                    70_001,
                ] {
                    let mut target = vec![0xaa; 80_000];
                    // SAFETY: 63 + 70,001 bytes fit in both vectors.
                    unsafe {
                        copy_nontemporal(
                            source.as_ptr().add(from),
                            target.as_mut_ptr().add(to),
                            len,
                        )
                    };
                    assert_eq!(target[to..to + len], source[from..from + len]);
                    assert!(target[..to].iter().all(|&b| b == 0xaa));
                    assert!(target[to + len..].iter().all(|&b| b == 0xaa));
                }
            }
        }
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn both_widths_copy_the_same_group() {
        #[repr(align(64))]
        struct Group([u8; GROUP_BYTES]);
        let source: Vec<u8> = (0..GROUP_BYTES as u32)
            .map(|i| ((i * 13) >> 3) as u8)
            .collect();
        let mut target = alloc::boxed::Box::new(Group([0; GROUP_BYTES]));
        // SAFETY: SSE2 is in every x86-64; both sides hold one group, the target is aligned.
        unsafe { copy_group_sse2(source.as_ptr(), target.0.as_mut_ptr()) };
        assert_eq!(target.0[..], source[..]);
        if has_avx() {
            target.0.fill(0);
            // SAFETY: as above, and AVX was found.
            unsafe { copy_group_avx(source.as_ptr(), target.0.as_mut_ptr()) };
            assert_eq!(target.0[..], source[..]);
        }
    }
}
