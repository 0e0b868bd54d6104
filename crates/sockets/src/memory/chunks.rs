//! Tables that grow as they are used.
//!
//! A table is an array of pointers to *chunks* of a fixed number of elements. A chunk is mapped
//! when its first element is needed. It never moves and is never unmapped, so readers take no lock:
//!
//! ```text
//!   element n  =  chunk n >> LOG2,  place n & (1 << LOG2) - 1
//! ```
//!
//! Address space is not free: under `mlockall(2)` every mapped page is resident, and the kernel
//! compares the size of all mappings, touched or not, with the user's limit (`RLIMIT_MEMLOCK`,
//! mm/mlock.c). So a program without connections maps almost nothing.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use toehold_freestanding::memory;

use crate::system::sys;

/// At most `COUNT << LOG2` elements, of a type for which zeroes are a valid value.
///
/// Each pointer is moved back to where element 0 would be, if the chunk reached down to it. So a
/// look-up is one shift, one load and the usual multiplication. Null: not mapped yet.
pub(crate) struct Chunks<T, const LOG2: u32, const COUNT: usize> {
    bases: [AtomicPtr<T>; COUNT],
}

impl<T, const LOG2: u32, const COUNT: usize> Chunks<T, LOG2, COUNT> {
    /// Bytes of one chunk.
    pub(crate) const CHUNK_BYTES: usize = size_of::<T>() << LOG2;

    pub(crate) const fn new() -> Chunks<T, LOG2, COUNT> {
        Chunks {
            bases: [const { AtomicPtr::new(null_mut()) }; COUNT],
        }
    }

    /// Element `n`, if its chunk is mapped.
    #[inline]
    pub(crate) fn get(&self, n: usize) -> Option<&'static T> {
        // Acquire pairs with the exchange in `get_or_map`.
        let base = self.bases.get(n >> LOG2)?.load(Ordering::Acquire);
        if base.is_null() {
            return None;
        }
        let element = base.wrapping_add(n);
        // SAFETY: nothing is mapped at address 0. (The compiler does not know that.)
        unsafe { core::hint::assert_unchecked(!element.is_null()) };
        // SAFETY: the chunk with element `n` is mapped, and stays so as long as the process lives;
        // `map`'s promise in `get_or_map` makes its contents valid.
        Some(unsafe { &*element })
    }

    /// Element `n`. If its chunk is not mapped, `map` is called with the chunk's number and maps
    /// it, or returns null when there is no memory. Safe in signal handlers.
    ///
    /// # Safety
    /// What `map` returns is mapped for [`Self::CHUNK_BYTES`], page-aligned, and holds valid
    /// elements for ever.
    unsafe fn get_or_map_by(
        &self,
        n: usize,
        map: impl FnOnce(usize) -> *mut u8,
    ) -> Option<&'static T> {
        let place = self.bases.get(n >> LOG2)?;
        // Relaxed: `get` loads it again.
        if place.load(Ordering::Relaxed).is_null() {
            let mapped = map(n >> LOG2);
            let base = mapped.cast::<T>().wrapping_sub(n >> LOG2 << LOG2);
            if mapped.is_null() || base.is_null() {
                return None;
            }
            // Release pairs with the Acquire load in `get`.
            let placed =
                place.compare_exchange(null_mut(), base, Ordering::Release, Ordering::Relaxed);
            if placed.is_err() {
                // Another thread was faster.
                // SAFETY: mapped above with this length and shown to nobody.
                unsafe { memory::unmap(mapped.cast(), Self::CHUNK_BYTES) };
            }
        }
        self.get(n)
    }

    /// Element `n` of a table in private memory. `None` when there is no memory.
    #[inline]
    pub(crate) fn get_or_map(&self, n: usize) -> Option<&'static T> {
        match self.get(n) {
            Some(element) => Some(element),
            // SAFETY: fresh anonymous memory, zeroes.
            None => unsafe { self.get_or_map_by(n, |_| sys::map_memory(Self::CHUNK_BYTES)) },
        }
    }

    /// Element `n` of a table in memory that `map` finds.
    ///
    /// # Safety
    /// As for [`Self::get_or_map_by`].
    pub(crate) unsafe fn get_or_map_with(
        &self,
        n: usize,
        map: impl FnOnce(usize) -> *mut u8,
    ) -> Option<&'static T> {
        match self.get(n) {
            Some(element) => Some(element),
            // SAFETY: the caller's promise.
            None => unsafe { self.get_or_map_by(n, map) },
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;

    static TABLE: Chunks<AtomicU64, 9, 4> = Chunks::new();

    #[test]
    fn elements_keep_their_place_and_others_are_not_mapped() {
        assert!(TABLE.get(0).is_none() && TABLE.get(512).is_none());
        for n in [512usize, 1023, 600] {
            let element = TABLE.get_or_map(n).expect("memory");
            assert_eq!(element.load(Ordering::Relaxed), 0);
            element.store(n as u64, Ordering::Relaxed);
        }
        for n in [512usize, 1023, 600] {
            let element = TABLE.get(n).expect("mapped");
            assert_eq!(element.load(Ordering::Relaxed), n as u64);
        }
        assert!(TABLE.get(0).is_none() && TABLE.get(1024).is_none());
        assert!(TABLE.get_or_map(2047).is_some());
        assert!(TABLE.get(2048).is_none() && TABLE.get_or_map(2048).is_none());
    }

    #[test]
    fn threads_that_map_one_chunk_at_a_time_see_the_same_elements() {
        static SHARED: Chunks<AtomicU64, 9, 64> = Chunks::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in (0..64 << 9).step_by(256) {
                        let element = SHARED.get_or_map(n).expect("memory");
                        element.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        for n in (0..64 << 9).step_by(256) {
            assert_eq!(SHARED.get(n).expect("mapped").load(Ordering::Relaxed), 4);
        }
    }
}
