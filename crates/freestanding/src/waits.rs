//! System calls that may wait, in a process that can cancel its threads.
//!
//! A C library cancels a thread by a signal, whose handler examines the interrupted instruction: if
//! it is in one of the C library's own waiting calls, the handler ends the call. In a program
//! without a dynamic linker, this library makes the waiting call instead of the C library. So it
//! has such a range of instructions, too: from the check of a word up to the `syscall` itself. A
//! handler that finds the thread in this range changes the word and lets the thread continue at the
//! range's end. A thread that comes later sees the word. So no thread can wait unnoticed between
//! the check and the call.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The value of a thread's word that ends waiting calls.
pub const ENDS: u32 = 7;

/// The means to end waiting calls.
#[derive(Debug)]
pub struct Ends {
    /// Returns the calling thread's word.
    pub word: fn() -> &'static AtomicU32,
}

/// An [`Ends`], or null.
static ENDS_BY: AtomicPtr<Ends> = AtomicPtr::new(core::ptr::null_mut());

/// From now on a thread's word ends its waiting calls.
pub fn end_by(ends: &'static Ends) {
    // Release pairs with Acquire in `call` and `end_here`.
    ENDS_BY.store(core::ptr::from_ref(ends).cast_mut(), Ordering::Release);
}

/// True when [`end_by`] has been called.
#[inline]
#[must_use]
pub fn is_ended() -> bool {
    // Relaxed: at worst, `end_by` is called again.
    !ENDS_BY.load(Ordering::Relaxed).is_null()
}

/// True when the calling thread's waiting calls end: the program's call is to end, too.
#[inline]
#[must_use]
pub fn end_here() -> bool {
    // SAFETY: `end_by` has stored it: a static. Acquire pairs with its Release.
    let ends = unsafe { ENDS_BY.load(Ordering::Acquire).as_ref() };
    // Relaxed: the word is the thread's own.
    ends.is_some_and(|ends| (ends.word)().load(Ordering::Relaxed) == ENDS)
}

/// A system call that may wait.
///
/// # Safety
/// As for the system call.
#[inline]
pub unsafe fn call(number: libc::c_long, arguments: &[usize; 6]) -> isize {
    // SAFETY: `end_by` has stored it: a static.
    let ends = unsafe { ENDS_BY.load(Ordering::Acquire).as_ref() };
    #[cfg(target_arch = "x86_64")]
    if let Some(ends) = ends {
        // SAFETY: the caller's promise; the word is live.
        let answer = unsafe { call_unless((ends.word)().as_ptr(), number, arguments) };
        return match answer {
            ENDED => -(libc::EINTR as isize),
            answer => answer,
        };
    }
    let _ = ends;
    let &[a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's promise.
    unsafe { crate::syscall::raw(number, a, b, c, d, e, f) }
}

/// True when a thread with instruction pointer `at` is in the range that begins with the check of
/// its word, and has no answer from the kernel yet.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn is_waiting(at: usize) -> bool {
    let (from, to) = (&raw const toehold_wait, &raw const toehold_wait_over);
    (from as usize..to as usize).contains(&at)
}

/// An answer that the kernel never gives: the word has ended the call.
#[cfg(target_arch = "x86_64")]
const ENDED: isize = isize::MIN;

/// The address at which such a thread continues to end its call.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn end() -> usize {
    (&raw const toehold_wait_ends) as usize
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    static toehold_wait: u8;
    static toehold_wait_over: u8;
    static toehold_wait_ends: u8;
}

/// Makes a system call, or answers [`ENDED`] if the word is [`ENDS`].
///
/// # Safety
/// As for the system call; the word is live.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn call_unless(
    word: *const u32,
    number: libc::c_long,
    arguments: *const [usize; 6],
) -> isize {
    core::arch::naked_asm!(
        ".globl toehold_wait, toehold_wait_over, toehold_wait_ends",
        ".hidden toehold_wait, toehold_wait_over, toehold_wait_ends",
        "mov rax, rsi",
        "mov rcx, rdi",
        "mov r11, rdx",
        "mov rdi, [r11]",
        "mov rsi, [r11 + 8]",
        "mov rdx, [r11 + 16]",
        "mov r10, [r11 + 24]",
        "mov r8, [r11 + 32]",
        "mov r9, [r11 + 40]",
        "toehold_wait:",
        "cmp dword ptr [rcx], {ENDS}",
        "je toehold_wait_ends",
        "syscall",
        "toehold_wait_over:",
        "ret",
        "toehold_wait_ends:",
        "mov rax, {ENDED}",
        "ret",
        ENDS = const ENDS,
        ENDED = const ENDED,
    )
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_whose_word_says_so_does_not_wait() {
        let word = AtomicU32::new(ENDS);
        let arguments = [0, 0, usize::MAX, 0, 0, 0];
        // SAFETY: poll(2) of nothing, without end; the word is live.
        let answer = unsafe { call_unless(word.as_ptr(), libc::SYS_poll, &arguments) };
        assert_eq!(answer, ENDED);
        word.store(1, Ordering::Relaxed);
        // SAFETY: the same without waiting.
        let answer = unsafe { call_unless(word.as_ptr(), libc::SYS_poll, &[0; 6]) };
        assert_eq!(answer, 0);
        assert!(!is_waiting(end()) && is_waiting(&raw const toehold_wait as usize));
    }
}
