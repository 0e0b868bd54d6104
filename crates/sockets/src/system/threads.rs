//! The number of the calling thread, without a system call.
//!
//! The kernel clears a word of libc's when a thread ends (`CLONE_CHILD_CLEARTID`, clone(2)), and
//! tells its address. In glibc that word is the thread's number, at a fixed distance from the
//! thread pointer. In a libc where it is another word, the number is not known.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use toehold_freestanding::errno;

use crate::process;
use crate::system::sys;

/// From the thread pointer to the number; 0 when it is not known. Relaxed everywhere: it is set
/// while the process has one thread.
static DISTANCE: AtomicUsize = AtomicUsize::new(0);

/// Finds libc's word. Called at the start.
#[unsafe(link_section = ".text.startup")]
pub(crate) fn find() {
    let distance = match sys::cleared_at_end() {
        Some(word) if errno::is_of_libc() && sys::holds(word, sys::gettid()) => {
            word.wrapping_sub(errno::thread_pointer())
        }
        _ => 0,
    };
    DISTANCE.store(distance, Ordering::Relaxed);
}

/// In a forked child. A libc that has not noticed the fork goes on with the parent's number.
pub(crate) fn forked() {
    if number() != 0 && number() != sys::gettid() {
        DISTANCE.store(0, Ordering::Relaxed);
    }
}

/// The calling thread's number; 0 when it is not known.
#[inline]
pub(crate) fn number() -> u32 {
    match DISTANCE.load(Ordering::Relaxed) {
        0 => 0,
        distance => {
            let word = errno::thread_pointer().wrapping_add(distance) as *const AtomicU32;
            // SAFETY: `find` has found the number of a thread there, and libc lays all threads'
            // memory out in one way.
            unsafe { (*word).load(Ordering::Relaxed) }
        }
    }
}

/// True when a thread of this process had this number, and has ended.
pub(crate) fn has_ended(number: u32) -> bool {
    // In a child that shares this memory, the numbers are the parent's.
    number != 0 && !process::borrowed_memory() && !sys::thread_exists(sys::getpid(), number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_has_its_number_until_it_ends() {
        find();
        if !cfg!(target_env = "gnu") {
            eprintln!("SKIPPED: the number is not known in this libc");
            return;
        }
        assert_eq!(number(), sys::gettid());
        let other = std::thread::spawn(|| (number(), sys::gettid()));
        let (told, is) = other.join().expect("no panic");
        assert_eq!(told, is);
        let pid = sys::getpid();
        // The kernel takes the thread off its list a moment after `join`.
        while sys::thread_exists(pid, told) {
            std::thread::yield_now();
        }
        assert!(sys::thread_exists(pid, number()));
    }
}
