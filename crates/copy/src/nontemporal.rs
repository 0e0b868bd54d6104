//! Copies past the cache: non-temporal stores, in one stream or four, fetched ahead.
//!
//! An ordinary store to a line that is not in the cache first reads the line from memory, and then
//! evicts another line. A non-temporal store does neither. So a large copy of cold memory saves a
//! third of its traffic, and the caller's working set stays in the cache. On some processors it is
//! even faster to copy four pages side by side, which keeps four streams of the hardware prefetcher
//! and four memory banks busy. On other processors, whose prefetcher follows one stream far enough,
//! four streams lose the whole gain. Calibration measures both ways.
//!
//! ```text
//!             stream 0    stream 1    stream 2    stream 3
//!   step 0    line 0      line 0      line 0      line 0      loads, then stores
//!   step 1    line 1      ...
//! ```
//!
//! Streams are a page apart; those of the last, shorter group are as far apart as it has lines for.
//!
//! Non-temporal stores are slower if the target is in the cache, because they evict its lines, or
//! if the target will be read soon. Hence [`Flags::CACHE`], and the timed loads of the `auto`
//! engine.
//!
//! Non-temporal stores are weakly ordered: an `sfence` at the end of every copy makes them visible
//! before anything that is stored afterwards, so a Release store publishes them like ordinary ones.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

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

    fn forget_after_fork(&mut self) {
        self.finished = Finished::default();
    }
}

/// A shorter copy takes a few hundred nanoseconds; the fence and the lost cache lines would cost
/// more.
pub const NT_BYTES_MIN: usize = 64 * 1024;

/// Copies past the cache if the processor supports it, otherwise like [`from_shared`].
///
/// # Safety
///
/// As for [`from_shared`] and [`to_shared`](crate::to_shared): no reference to either side is
/// formed, and either may be shared.
pub unsafe fn copy_nontemporal(source: *const u8, target: *mut u8, len: usize) {
    let head = target.align_offset(LINE_BYTES).min(len);
    let body = (len - head) / (4 * LINE_BYTES) * (4 * LINE_BYTES);
    let tail = len - head - body;
    // SAFETY: head, body and tail follow one another and add up to `len`; after the head the target
    // is aligned to a line.
    unsafe {
        from_shared(source, target, head);
        copy_body(source.add(head), target.add(head), body);
        from_shared(source.add(head + body), target.add(head + body), tail);
    }
}

/// The hardware's cache line.
const LINE_BYTES: usize = 64;

/// Distance between the four streams.
const PAGE_BYTES: usize = 4096;

/// # Safety
///
/// Both ranges are valid for `len`, a multiple of four lines; `target` is aligned to a line.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_body(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the caller's ranges.
    unsafe { from_shared(source, target, len) }
}

/// # Safety
///
/// Both ranges are valid for `len`, a multiple of four lines; `target` is aligned to a line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_body(source: *const u8, target: *mut u8, len: usize) {
    let wide = has_avx();
    if wide && STREAMS.load(Relaxed) == 1 {
        if len > 0 {
            // SAFETY: AVX was found; the rest is the caller's contract.
            unsafe { copy_stream_avx(source, target, len) };
        }
        return fence_stores();
    }
    let mut done = 0;
    while done < len {
        let stride = ((len - done) / 4).min(PAGE_BYTES);
        // SAFETY: `done + 4 * stride <= len`; both are multiples of a line, so the target stays
        // aligned.
        unsafe {
            let (source, target) = (source.add(done), target.add(done));
            if wide {
                copy_group_avx(source, target, stride);
            } else {
                copy_group_sse2(source, target, stride);
            }
        }
        done += 4 * stride;
    }
    fence_stores();
}

/// Orders non-temporal stores before every later one.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn fence_stores() {
    // SAFETY: touches nothing.
    unsafe { core::arch::asm!("sfence", options(nostack, preserves_flags)) };
}

/// Sets the number of streams, for calibration: 1 or 4.
#[cfg(feature = "std")]
pub(crate) fn set_streams(streams: u32) {
    STREAMS.store(streams, Relaxed);
}

/// The number of streams. Relaxed: no other data depends on it, and any value gives a correct copy.
static STREAMS: AtomicU32 = AtomicU32::new(4);

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn has_avx() -> bool {
    #[cfg(feature = "std")]
    return std::arch::is_x86_feature_detected!("avx");
    #[cfg(not(feature = "std"))]
    return has_avx_asked();
}

/// Whether the processor has AVX and the system saves its registers (Intel's manual, volume 1,
/// 14.3). CPUID runs once: in a virtual machine the host answers it, which takes microseconds.
#[cfg(all(target_arch = "x86_64", not(miri), any(test, not(feature = "std"))))]
fn has_avx_asked() -> bool {
    const OSXSAVE_AND_AVX: u32 = 0b11 << 27;
    const XMM_AND_YMM: u32 = 0b110;
    const UNASKED: u32 = 2;
    static ANSWER: AtomicU32 = AtomicU32::new(UNASKED);
    // Relaxed: every thread computes the same answer.
    let answer = ANSWER.load(Relaxed);
    if answer != UNASKED {
        return answer == 1;
    }
    let mut answer = core::arch::x86_64::__cpuid(1).ecx & OSXSAVE_AND_AVX == OSXSAVE_AND_AVX;
    if answer {
        let kept: u32;
        // SAFETY: the system has enabled the instruction, which reads a register.
        unsafe {
            core::arch::asm!(
                "xgetbv",
                in("ecx") 0,
                out("eax") kept,
                out("edx") _,
                options(nomem, nostack, preserves_flags)
            );
        }
        answer = kept & XMM_AND_YMM == XMM_AND_YMM;
    }
    ANSWER.store(answer.into(), Relaxed);
    answer
}

/// Defines one group's copy: a loop over the lines of a stream, one line of each of the four a
/// turn. It is assembly so that the compiler sees no typed access to memory that a peer may be
/// writing.
///
/// The prefetches run past the end of each stream. A prefetch never faults.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! copy_group {
    ($name:ident, $doc:literal, [$($line:literal),+ $(,)?], [$($register:tt),+ $(,)?]) => {
        #[doc = $doc]
        ///
        /// # Safety
        ///
        /// The processor has the instructions; both sides are valid for `4 * stride`, a multiple of
        /// four lines and not zero; `target` is aligned to a line.
        unsafe fn $name(source: *const u8, target: *mut u8, stride: usize) {
            // SAFETY: reads `source..source + 4 * stride` and writes as much of `target`, a line of
            // each stream a turn, until the first stream is done. Clobbers are declared.
            unsafe {
                core::arch::asm!(
                    "2:",
                    "prefetcht0 [{s} + 256]",
                    "prefetcht0 [{s} + {p} + 256]",
                    "prefetcht0 [{s} + 2*{p} + 256]",
                    "prefetcht0 [{s} + {q} + 256]",
                    $($line,)+
                    "add {s}, 64",
                    "add {t}, 64",
                    "cmp {s}, {e}",
                    "jb 2b",
                    s = inout(reg) source => _,
                    t = inout(reg) target => _,
                    e = in(reg) source.add(stride),
                    p = in(reg) stride,
                    q = in(reg) 3 * stride,
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
        "vmovdqu ymm2, [{s} + {p}]",
        "vmovdqu ymm3, [{s} + {p} + 32]",
        "vmovdqu ymm4, [{s} + 2*{p}]",
        "vmovdqu ymm5, [{s} + 2*{p} + 32]",
        "vmovdqu ymm6, [{s} + {q}]",
        "vmovdqu ymm7, [{s} + {q} + 32]",
        "vmovntdq [{t}], ymm0",
        "vmovntdq [{t} + 32], ymm1",
        "vmovntdq [{t} + {p}], ymm2",
        "vmovntdq [{t} + {p} + 32], ymm3",
        "vmovntdq [{t} + 2*{p}], ymm4",
        "vmovntdq [{t} + 2*{p} + 32], ymm5",
        "vmovntdq [{t} + {q}], ymm6",
        "vmovntdq [{t} + {q} + 32], ymm7",
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
        "movdqu xmm4, [{s} + {p}]",
        "movdqu xmm5, [{s} + {p} + 16]",
        "movdqu xmm6, [{s} + {p} + 32]",
        "movdqu xmm7, [{s} + {p} + 48]",
        "movdqu xmm8, [{s} + 2*{p}]",
        "movdqu xmm9, [{s} + 2*{p} + 16]",
        "movdqu xmm10, [{s} + 2*{p} + 32]",
        "movdqu xmm11, [{s} + 2*{p} + 48]",
        "movdqu xmm12, [{s} + {q}]",
        "movdqu xmm13, [{s} + {q} + 16]",
        "movdqu xmm14, [{s} + {q} + 32]",
        "movdqu xmm15, [{s} + {q} + 48]",
        "movntdq [{t}], xmm0",
        "movntdq [{t} + 16], xmm1",
        "movntdq [{t} + 32], xmm2",
        "movntdq [{t} + 48], xmm3",
        "movntdq [{t} + {p}], xmm4",
        "movntdq [{t} + {p} + 16], xmm5",
        "movntdq [{t} + {p} + 32], xmm6",
        "movntdq [{t} + {p} + 48], xmm7",
        "movntdq [{t} + 2*{p}], xmm8",
        "movntdq [{t} + 2*{p} + 16], xmm9",
        "movntdq [{t} + 2*{p} + 32], xmm10",
        "movntdq [{t} + 2*{p} + 48], xmm11",
        "movntdq [{t} + {q}], xmm12",
        "movntdq [{t} + {q} + 16], xmm13",
        "movntdq [{t} + {q} + 32], xmm14",
        "movntdq [{t} + {q} + 48], xmm15",
    ],
    [
        "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
    ]
);

/// One stream, four lines a turn, fetched a page ahead: close enough to be there in time, and
/// across the page's end, where the hardware's own prefetcher stops.
///
/// # Safety
///
/// The processor has AVX; both sides are valid for `len`, a multiple of four lines and not zero;
/// `target` is aligned to a line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_stream_avx(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: reads `source..source + len` and writes as much of `target`; a prefetch never faults.
    // Clobbers are declared.
    unsafe {
        core::arch::asm!(
            "2:",
            "prefetcht0 [{s} + 4096]",
            "prefetcht0 [{s} + 4160]",
            "prefetcht0 [{s} + 4224]",
            "prefetcht0 [{s} + 4288]",
            "vmovdqu ymm0, [{s}]",
            "vmovdqu ymm1, [{s} + 32]",
            "vmovdqu ymm2, [{s} + 64]",
            "vmovdqu ymm3, [{s} + 96]",
            "vmovdqu ymm4, [{s} + 128]",
            "vmovdqu ymm5, [{s} + 160]",
            "vmovdqu ymm6, [{s} + 192]",
            "vmovdqu ymm7, [{s} + 224]",
            "vmovntdq [{t}], ymm0",
            "vmovntdq [{t} + 32], ymm1",
            "vmovntdq [{t} + 64], ymm2",
            "vmovntdq [{t} + 96], ymm3",
            "vmovntdq [{t} + 128], ymm4",
            "vmovntdq [{t} + 160], ymm5",
            "vmovntdq [{t} + 192], ymm6",
            "vmovntdq [{t} + 224], ymm7",
            "add {s}, 256",
            "add {t}, 256",
            "cmp {s}, {e}",
            "jb 2b",
            s = inout(reg) source => _,
            t = inout(reg) target => _,
            e = in(reg) source.add(len),
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            options(nostack),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn every_alignment_and_tail_arrives_and_nothing_else_is_touched() {
        let source: Vec<u8> = (0..80_000u32).map(|i| ((i * 31) >> 2) as u8).collect();
        // Other tests of this process copy meanwhile, correctly with either number.
        let streams_before = STREAMS.load(Relaxed);
        for (streams, from) in [(1, 0), (1, 1), (1, 31), (4, 0), (4, 1), (4, 31), (4, 63)] {
            STREAMS.store(streams, Relaxed);
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
        STREAMS.store(streams_before, Relaxed);
    }

    #[cfg(all(target_arch = "x86_64", not(miri), feature = "std"))]
    #[test]
    fn the_processor_answers_as_the_standard_library_says() {
        let known = std::arch::is_x86_feature_detected!("avx");
        assert_eq!([has_avx_asked(), has_avx_asked()], [known; 2]);
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn both_widths_copy_the_same_group() {
        #[repr(align(64))]
        struct Group([u8; 4 * PAGE_BYTES]);
        let source: Vec<u8> = (0..4 * PAGE_BYTES as u32)
            .map(|i| ((i * 13) >> 3) as u8)
            .collect();
        for stride in [64, 128, 64 * 37, PAGE_BYTES] {
            let (len, mut target) = (
                4 * stride,
                alloc::boxed::Box::new(Group([0; 4 * PAGE_BYTES])),
            );
            // SAFETY: SSE2 is in every x86-64; both sides hold four pages, the target is aligned.
            unsafe { copy_group_sse2(source.as_ptr(), target.0.as_mut_ptr(), stride) };
            assert_eq!(target.0[..len], source[..len]);
            assert!(target.0[len..].iter().all(|&byte| byte == 0));
            if has_avx() {
                target.0.fill(0);
                // SAFETY: as above, and AVX was found.
                unsafe { copy_group_avx(source.as_ptr(), target.0.as_mut_ptr(), stride) };
                assert_eq!(target.0[..len], source[..len]);
                assert!(target.0[len..].iter().all(|&byte| byte == 0));
            }
        }
    }
}
