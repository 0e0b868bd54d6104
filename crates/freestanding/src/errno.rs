//! The program's `errno`.
//!
//! libc keeps `errno` at a fixed offset from the thread pointer, equal in all threads: libc is
//! loaded at the program's start, so its thread-local variables are in the static block (ELF
//! Handling for Thread-Local Storage, 3.4.6). One call of `__errno_location` finds the offset.
//!
//! If there is no libc, the code that enters the library by system call number provides a word for
//! each thread ([`use_words`]).

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::elf::Name;
use crate::objects;

/// Returns the calling thread's own word, whose address is constant while the thread lives.
pub type Words = unsafe extern "C" fn() -> *mut i32;

/// The offset from the thread pointer, or one of the odd values below.
static DISTANCE: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = 1;
/// [`WORDS`] returns the word.
const IN_WORDS: usize = 3;
/// Neither libc nor words: one word for all threads, which is never read.
const NOWHERE: usize = 5;
static SHARED: AtomicUsize = AtomicUsize::new(0);
/// A function of type [`Words`].
static WORDS: AtomicUsize = AtomicUsize::new(0);

/// There is no libc: `words` returns the words of threads, and their addresses identify the threads
/// from now on.
pub fn use_words(words: Words) {
    WORDS.store(words as usize, Ordering::Relaxed);
    DISTANCE.store(IN_WORDS, Ordering::Relaxed);
}

/// A number that identifies the calling thread: the address of its control block, or of its word.
#[inline]
pub fn thread() -> usize {
    if DISTANCE.load(Ordering::Relaxed) == IN_WORDS {
        return word() as usize;
    }
    thread_pointer()
}

#[cold]
fn word() -> *mut i32 {
    let words = WORDS.load(Ordering::Relaxed);
    // SAFETY: stored by `use_words`, before `IN_WORDS`.
    unsafe { core::mem::transmute::<usize, Words>(words)() }
}

/// The value of the thread pointer: the address of this thread's control block.
#[inline]
pub fn thread_pointer() -> usize {
    let thread: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the thread pointer, which the ABI keeps at fs:0.
    unsafe {
        core::arch::asm!(
            "mov {}, fs:0",
            out(reg) thread,
            options(nostack, readonly, pure, preserves_flags)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads the thread pointer.
    unsafe {
        core::arch::asm!(
            "mrs {}, tpidr_el0",
            out(reg) thread,
            options(nostack, nomem, preserves_flags)
        );
    }
    thread
}

/// The address of this thread's `errno`.
#[inline]
fn place() -> *mut i32 {
    let distance = DISTANCE.load(Ordering::Relaxed);
    if distance & 1 == 0 {
        return thread_pointer().wrapping_add(distance) as *mut i32;
    }
    odd_place(distance)
}

#[cold]
fn odd_place(distance: usize) -> *mut i32 {
    match distance {
        UNKNOWN => {
            find();
            place()
        }
        IN_WORDS => word(),
        _ => (&raw const SHARED).cast_mut().cast(),
    }
}

/// Finds libc's offset.
#[cold]
pub fn find() {
    const LOCATION: Name = Name::new(c"__errno_location");
    let found = objects::first(&LOCATION);
    if found.is_null() {
        return DISTANCE.store(NOWHERE, Ordering::Relaxed);
    }
    // SAFETY: libc's function of that name.
    let location: extern "C" fn() -> *mut i32 = unsafe { core::mem::transmute(found) };
    let distance = (location() as usize).wrapping_sub(thread_pointer());
    DISTANCE.store(distance, Ordering::Relaxed);
}

/// True when `errno` is libc's.
pub fn is_of_libc() -> bool {
    DISTANCE.load(Ordering::Relaxed).is_multiple_of(2)
}

/// The value of `errno`.
#[inline]
pub fn get() -> i32 {
    // SAFETY: this thread's own word.
    unsafe { place().read() }
}

/// Sets `errno`.
#[inline]
pub fn set(value: i32) {
    // SAFETY: this thread's own word.
    unsafe { place().write(value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_has_one_for_each_thread() {
        let check = || {
            set(libc::EXDEV);
            // SAFETY: this thread's errno.
            assert_eq!(unsafe { *libc::__errno_location() }, libc::EXDEV);
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = libc::EDOM };
            assert_eq!(get(), libc::EDOM);
        };
        check();
        std::thread::scope(|scope| {
            scope.spawn(check);
            scope.spawn(check);
        });
    }
}
