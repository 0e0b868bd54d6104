//! Each thread's word for the door, for threads without an area.
//!
//! A thread is identified by FS, which is different for each thread once the C library has started.
//! A table has a word for each value of FS. The table does not fill up, because C libraries reuse
//! the memory of ended threads, and so the values recur.

use core::arch::asm;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// One thread's words.
pub(super) struct Slot {
    /// FS plus 1, or 0 for none.
    thread: AtomicU64,
    word: AtomicI32,
    /// The number of the thread, while its child may be using its memory and FS; otherwise 0.
    pub(super) waiting: AtomicU64,
    /// Whether the thread was cancelled, and is in a call that a cancellation ends
    /// (`super::cancellation`).
    pub(super) state: AtomicU32,
    /// A stack for calls of such a child, or 0; and the stack on which the child is making a call,
    /// or 0.
    pub(super) stack: AtomicUsize,
    pub(super) stack_in_use: AtomicUsize,
}

impl Slot {
    /// Sets bits of the state with one instruction, so that a handler of this thread comes before
    /// or after it. No other thread writes the word, so the instruction needs no `lock` prefix,
    /// which would take most of its time.
    pub(super) fn set(&self, bits: u32) {
        // SAFETY: this thread's own word.
        unsafe {
            asm!("or dword ptr [{}], {:e}", in(reg) self.state.as_ptr(), in(reg) bits,
                options(nostack));
        }
    }

    /// Clears the other bits of the state. As [`Slot::set`].
    pub(super) fn keep(&self, bits: u32) {
        // SAFETY: this thread's own word.
        unsafe {
            asm!("and dword ptr [{}], {:e}", in(reg) self.state.as_ptr(), in(reg) bits,
                options(nostack));
        }
    }
}

const SLOTS: usize = 1 << 14;

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        thread: AtomicU64::new(0),
        word: AtomicI32::new(0),
        waiting: AtomicU64::new(0),
        state: AtomicU32::new(0),
        stack: AtomicUsize::new(0),
        stack_in_use: AtomicUsize::new(0),
    }
}; SLOTS];

/// The calling thread's word.
///
/// # Safety
/// Called by the door only.
pub(crate) unsafe extern "C" fn word() -> *mut i32 {
    slot().word.as_ptr()
}

/// The calling thread's FS.
pub(super) fn pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register. The launcher has checked that processor and kernel allow it.
    unsafe { asm!("rdfsbase {}", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// The calling thread's words.
pub(super) fn slot() -> &'static Slot {
    let pointer = pointer() as u64;
    let key = pointer + 1;
    // Threads' control blocks lie on multiples of 64 bytes, and often of a page.
    let mut at = (pointer >> 6 ^ pointer >> 12 ^ pointer >> 21) as usize % SLOTS;
    for _ in 0..SLOTS {
        let slot = &TABLE[at];
        // Relaxed: only the thread itself has its value, and the word is its own.
        match slot.thread.load(Ordering::Relaxed) {
            found if found == key => return slot,
            0 => {
                let (none, relaxed) = (0, Ordering::Relaxed); // As above.
                if slot
                    .thread
                    .compare_exchange(none, key, relaxed, relaxed)
                    .is_ok()
                {
                    return slot;
                }
            }
            _ => at = (at + 1) % SLOTS,
        }
    }
    // There are more threads than slots: a shared word is better than none.
    &TABLE[at]
}
