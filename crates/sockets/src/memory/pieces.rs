//! Memory for one call that would be too large for the program's stack.
//!
//! A thread may have only 16 KiB of stack (`PTHREAD_STACK_MIN`), and a signal handler less. So no
//! function of the library has a stack frame of more than a page.
//!
//! A returned piece is kept for the next call, because mapping a piece and touching its pages takes
//! microseconds. A piece is never returned if its thread ends inside the call or leaves it by
//! `longjmp(3)`, or if another thread had it when the process forked. Such a piece stays mapped.

use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use toehold_freestanding::memory;

use crate::system::sys;

/// Bytes of a piece. Its pages use memory only once they are touched.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// Free pieces. A piece that is returned while all places are full is unmapped.
static SPARES: [AtomicPtr<u8>; 4] = [const { AtomicPtr::new(null_mut()) }; 4];

/// A piece of memory that belongs to the caller until it is dropped. Its contents are undefined.
pub(crate) struct Piece {
    base: NonNull<u8>,
}

impl Piece {
    /// A spare piece, or a new one. `None`: there is no memory. Safe in signal handlers.
    pub(crate) fn take() -> Option<Piece> {
        let spare = SPARES
            .iter()
            // Acquire pairs with Release in `drop`: the former owner does not use the piece any
            // more.
            .find_map(|place| NonNull::new(place.swap(null_mut(), Ordering::Acquire)));
        let base = spare.or_else(|| NonNull::new(sys::map_memory(PIECE_BYTES)))?;
        Some(Piece { base })
    }

    /// Its first bytes, as a place for `T`s.
    pub(crate) fn places<T>(&mut self) -> &mut [MaybeUninit<T>] {
        const { assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0) };
        let count = PIECE_BYTES / size_of::<T>();
        // SAFETY: mapped for as many, page-aligned, and ours alone for as long as `self` is.
        unsafe { core::slice::from_raw_parts_mut(self.base.as_ptr().cast(), count) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let base = self.base.as_ptr();
        let put = |place: &AtomicPtr<u8>| {
            // Release pairs with Acquire in `take`. Relaxed: a failure only means that the place is
            // not free.
            let put =
                place.compare_exchange(null_mut(), base, Ordering::Release, Ordering::Relaxed);
            put.is_ok()
        };
        if !SPARES.iter().any(put) {
            // SAFETY: mapped with this length, and nobody else has it.
            unsafe { memory::unmap(base, PIECE_BYTES) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_one_callers_and_serves_again() {
        let mut pieces: Vec<Piece> = (0..10).map_while(|_| Piece::take()).collect();
        assert_eq!(pieces.len(), 10);
        for (n, piece) in pieces.iter_mut().enumerate() {
            let words = piece.places::<usize>();
            assert_eq!(words.len() * size_of::<usize>(), PIECE_BYTES);
            words[0].write(n);
            words[words.len() - 1].write(n);
        }
        for (n, piece) in pieces.iter_mut().enumerate() {
            let words = piece.places::<usize>();
            // SAFETY: written above.
            let found = unsafe { [words[0].assume_init(), words[words.len() - 1].assume_init()] };
            assert_eq!(found, [n; 2]);
        }
    }

    #[test]
    fn threads_get_pieces_of_their_own() {
        std::thread::scope(|scope| {
            for n in 0..4usize {
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        let mut piece = Piece::take().expect("memory");
                        let place = &mut piece.places::<usize>()[0];
                        place.write(n);
                        core::hint::black_box(&place);
                        // SAFETY: just written.
                        assert_eq!(unsafe { place.assume_init() }, n);
                    }
                });
            }
        });
    }
}
