//! The memory behind a channel: a region as the adapter makes it. Under the model checker it is
//! control words that loom made, and ring bytes that report every unsynchronised access.

use toehold_channel::layout::CAPACITY_LOG2_MIN;
use toehold_channel::ring::Stretches;
use toehold_channel::sync::Ordering;
use toehold_channel::table::Entry;
use toehold_stream::end::End;

#[cfg(not(loom))]
pub(crate) use heap::Memory;
#[cfg(loom)]
pub(crate) use model::Memory;

/// Changes one end's words as attaching changes them.
pub(crate) fn attach(end: &End<'_>) {
    end.entry
        .tx_capacity_log2
        .store(CAPACITY_LOG2_MIN, Ordering::Relaxed);
    end.ours()
        .publish
        .capacity_log2
        .store(CAPACITY_LOG2_MIN, Ordering::Relaxed);
    end.ours().wake.attached.store(1, Ordering::Release);
}

#[cfg(not(loom))]
mod heap {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
    use toehold_channel::layout::{CONTROL_BYTES, REGION_BYTES, RING_BYTES};

    /// A region on the heap.
    pub(crate) struct Memory(*mut u8);

    // SAFETY: control words are atomics, ring bytes move through `toehold_copy`, which allows for
    // writers elsewhere.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    const LAYOUT: Layout = match Layout::from_size_align(REGION_BYTES, 4096) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

    impl Memory {
        /// A fresh region.
        pub(crate) fn new() -> Memory {
            // SAFETY: the layout is not empty.
            let base = unsafe { alloc_zeroed(LAYOUT) };
            if base.is_null() {
                handle_alloc_error(LAYOUT);
            }
            Memory(base)
        }

        /// One end of the channel in this region.
        pub(crate) fn end<'a>(&'a self, entry: &'a Entry, side: usize) -> End<'a> {
            // SAFETY: REGION_BYTES long, page-aligned, zeroed, and borrowed for as long as the end.
            unsafe { End::at(entry, self.0, side) }
        }

        /// Every word before the first ring, for a test that overwrites words at random.
        pub(crate) fn control_words(&self) -> &[core::sync::atomic::AtomicU32] {
            // SAFETY: aligned, zeroed, shared as atomics everywhere; mixed sizes are what a hostile
            // peer would use, too, and x86 and AArch64 define them.
            unsafe { core::slice::from_raw_parts(self.0.cast(), CONTROL_BYTES / 4) }
        }

        /// Copies `bytes` to `stretches` of the ring that `side` writes.
        pub(crate) fn write(&self, side: usize, stretches: Stretches, bytes: &[u8]) {
            let mut at = 0;
            for (offset, len) in stretches {
                assert!(offset + len <= RING_BYTES, "outside the ring");
                let target = self
                    .0
                    .wrapping_add(CONTROL_BYTES + side * RING_BYTES + offset);
                // SAFETY: inside the ring by the assertion; the source's slice checks its own
                // bounds.
                unsafe { toehold_copy::to_shared(bytes[at..at + len].as_ptr(), target, len) };
                at += len;
            }
            assert_eq!(at, bytes.len());
        }

        /// The bytes at `stretches` of the ring that `side` writes.
        pub(crate) fn read(&self, side: usize, stretches: Stretches) -> Vec<u8> {
            let mut out = vec![0; stretches[0].1 + stretches[1].1];
            let mut at = 0;
            for (offset, len) in stretches {
                assert!(offset + len <= RING_BYTES, "outside the ring");
                let source = self
                    .0
                    .wrapping_add(CONTROL_BYTES + side * RING_BYTES + offset);
                // SAFETY: as in `write`.
                unsafe { toehold_copy::from_shared(source, out[at..at + len].as_mut_ptr(), len) };
                at += len;
            }
            out
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.0, LAYOUT) };
        }
    }
}

#[cfg(loom)]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use toehold_channel::layout::{Control, RING_BYTES};

    /// Control words and two rings of checked cells.
    pub(crate) struct Memory {
        control: Control,
        rings: [Vec<UnsafeCell<u8>>; 2],
    }

    impl Memory {
        /// Fresh words and bytes.
        pub(crate) fn new() -> Memory {
            let ring = || (0..RING_BYTES).map(|_| UnsafeCell::new(0)).collect();
            Memory {
                control: Control::default(),
                rings: [ring(), ring()],
            }
        }

        /// One end of the channel in this memory.
        pub(crate) fn end<'a>(&'a self, entry: &'a Entry, side: usize) -> End<'a> {
            End::new(entry, &self.control, core::ptr::null_mut(), side)
        }

        /// Writes `bytes` at `stretches` of the ring that `side` writes. loom fails the test when a
        /// reader is still using these cells.
        pub(crate) fn write(&self, side: usize, stretches: Stretches, bytes: &[u8]) {
            let mut bytes = bytes.iter();
            for (offset, len) in stretches {
                for cell in &self.rings[side][offset..offset + len] {
                    let byte = *bytes.next().unwrap();
                    // SAFETY: loom checks that nobody else has the cell now.
                    cell.with_mut(|cell| unsafe { *cell = byte });
                }
            }
            assert!(bytes.next().is_none());
        }

        /// The bytes at `stretches` of the ring that `side` writes. loom fails the test unless they
        /// were written before (happens-before).
        pub(crate) fn read(&self, side: usize, stretches: Stretches) -> Vec<u8> {
            let cells = stretches
                .iter()
                .flat_map(|&(offset, len)| &self.rings[side][offset..offset + len]);
            // SAFETY: loom checks that nobody writes the cell now.
            cells
                .map(|cell| cell.with(|cell| unsafe { *cell }))
                .collect()
        }
    }
}
