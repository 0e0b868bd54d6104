//! Copies between shared memory and a program's buffers that report a bad pointer, so that the
//! library can return `EFAULT` as the kernel does.
//!
//! The program chooses a buffer's address: the memory may be unmapped or protected, or the mapped
//! file may be truncated. A check before each copy would cost more than the copy. So the copy is
//! tried, and a handler of SIGSEGV and SIGBUS asks [`recover`] whether the fault came from such a
//! copy:
//!
//! ```text
//!   try_to_shared ─► short routine           all of its instructions lie between two labels, and
//!                    │                       it does not move the stack pointer
//!                    └ fault: on at `ret`, with the carry flag set
//!   try_to_shared ─► long routine ─► memcpy  of libc, anywhere
//!                    └ fault: the return address on the stack says who has called it; on there,
//!                      with the registers that the routine has saved, and the carry flag set
//! ```
//!
//! A copy that fails has copied an unknown part of its bytes. Without a handler, a bad pointer ends
//! the program, as with every other copy.
//!
//! Other processors than x86-64 have plain copies, which never fail.

/// A pointer of the program is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// The short routine makes copies of at most this many bytes.
pub const SHORT_BYTES: usize = 512;

/// [`from_shared`](crate::from_shared) to a buffer of the program.
///
/// # Errors
/// When `target` cannot be written.
///
/// # Safety
/// As for [`from_shared`](crate::from_shared), but `target` may be bad.
#[inline(always)]
pub unsafe fn try_from_shared(source: *const u8, target: *mut u8, len: usize) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe { routines::copy(source, target, len) }
}

/// [`to_shared`](crate::to_shared) from a buffer of the program.
///
/// # Errors
/// When `source` cannot be read.
///
/// # Safety
/// As for [`to_shared`](crate::to_shared), but `source` may be bad.
#[inline(always)]
pub unsafe fn try_to_shared(source: *const u8, target: *mut u8, len: usize) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe { routines::copy(source, target, len) }
}

/// [`try_from_shared`] for at most [`SHORT_BYTES`].
///
/// # Errors
/// When `target` cannot be written.
///
/// # Safety
/// As for [`try_from_shared`].
#[inline(always)]
pub unsafe fn try_from_shared_short(
    source: *const u8,
    target: *mut u8,
    len: usize,
) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe { routines::copy_short(source, target, len) }
}

/// [`try_to_shared`] for at most [`SHORT_BYTES`].
///
/// # Errors
/// When `source` cannot be read.
///
/// # Safety
/// As for [`try_to_shared`].
#[inline(always)]
pub unsafe fn try_to_shared_short(
    source: *const u8,
    target: *mut u8,
    len: usize,
) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe { routines::copy_short(source, target, len) }
}

const PAGE_BYTES: usize = 4096;

/// Checks whether `len` bytes at `address` can be read now: reads one byte of each page.
///
/// # Errors
/// When one of them cannot.
#[inline]
pub fn probe(address: usize, len: usize) -> Result<(), Fault> {
    if len == 0 {
        return Ok(());
    }
    let last = address.checked_add(len - 1).ok_or(Fault)?;
    let mut at = address;
    loop {
        look(at)?;
        at = (at & !(PAGE_BYTES - 1)).saturating_add(PAGE_BYTES);
        if at > last {
            return Ok(());
        }
    }
}

/// Reads the byte at `address`.
///
/// # Errors
/// When it cannot be read.
#[inline(always)]
pub fn look(address: usize) -> Result<(), Fault> {
    // SAFETY: a look that a handler answers when it fails.
    unsafe { routines::look(address) }
}

/// Checks whether `len` bytes at `address` can be written now: calls [`touch`] for the first byte
/// and for one byte in each further page.
///
/// # Errors
/// When one of them cannot.
#[inline]
pub fn probe_for_writing(address: usize, len: usize) -> Result<(), Fault> {
    let Some(last) = len.checked_sub(1) else {
        return Ok(());
    };
    let last = address.checked_add(last).ok_or(Fault)?;
    for at in (address..last).step_by(PAGE_BYTES) {
        touch(at)?;
    }
    touch(last)
}

/// Writes the byte at `address` back unchanged. No other thread may change the byte meanwhile.
///
/// # Errors
/// When it cannot be written.
#[inline(always)]
pub fn touch(address: usize) -> Result<(), Fault> {
    // SAFETY: a touch that a handler answers when it fails.
    unsafe { routines::touch(address) }
}

/// The instruction and stack pointers with which a thread continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The next instruction.
    pub instruction: usize,
    /// The stack pointer there.
    pub stack: usize,
}

/// The point at which a thread continues after a fault at `instruction` with the stack pointer
/// `stack`; `None` when the fault did not come from a copy. On continuation the direction flag must
/// be clear and the carry flag set ([`RESUME_FLAGS_CLEAR`], [`RESUME_FLAGS_SET`]).
///
/// # Safety
/// The thread is this one, inside a handler, and `stack` is its stack pointer at the fault.
#[must_use]
pub unsafe fn recover(instruction: usize, stack: usize) -> Option<Resume> {
    // SAFETY: the caller's promise.
    unsafe { routines::recover(instruction, stack) }
}

/// Flags that must be set when the thread continues: the carry flag.
pub const RESUME_FLAGS_SET: i64 = 1;
/// Flags that must be clear: the direction flag.
pub const RESUME_FLAGS_CLEAR: i64 = 1 << 10;

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod routines {
    use super::{Fault, Resume};

    pub(super) unsafe fn copy(source: *const u8, target: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { crate::from_shared(source, target, len) };
        Ok(())
    }

    pub(super) use copy as copy_short;

    pub(super) unsafe fn look(_: usize) -> Result<(), Fault> {
        Ok(())
    }

    pub(super) use look as touch;

    pub(super) unsafe fn recover(_: usize, _: usize) -> Option<Resume> {
        None
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod routines {
    use core::arch::{asm, global_asm};

    use super::{Fault, Resume, SHORT_BYTES};
    use crate::objects::is_readable;
    use crate::shared::{PIECE_BYTES, is_just_ahead};

    // Target in rdi, source in rsi, length in rdx, as for `memcpy`. The carry flag is the answer:
    // set when the copy has failed. The first two change rax, rcx, rdx, rsi, rdi, r8 and xmm0 to
    // xmm7, and leave the stack pointer alone: `toehold_guarded_failed` ends both.
    global_asm!(
        r#"
    .pushsection .text.toehold_guarded, "ax", @progbits
    .globl toehold_copy_short, toehold_look, toehold_touch, toehold_copy_long
    .globl toehold_guarded_begin, toehold_guarded_end, toehold_guarded_failed
    .globl toehold_copy_long_return, toehold_copy_long_failed
    .hidden toehold_copy_short, toehold_look, toehold_touch, toehold_copy_long
    .hidden toehold_guarded_begin, toehold_guarded_end, toehold_guarded_failed
    .hidden toehold_copy_long_return, toehold_copy_long_failed

    .balign 64
    .type toehold_copy_short, @function
toehold_guarded_begin:
toehold_copy_short:
    .cfi_startproc
    // From 33 to 64 bytes. `test` clears the carry flag.
    lea rax, [rdx - 33]
    test rax, -32
    jnz 1f
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + rdx - 32]
    movups xmm3, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + rdx - 32], xmm2
    movups [rdi + rdx - 16], xmm3
    ret
1:
    cmp rdx, 32
    jbe 3f
    // Pieces of 64 bytes; the last 64 bytes may overlap the last piece.
    movups xmm2, [rsi + rdx - 32]
    movups xmm3, [rsi + rdx - 16]
    movups xmm4, [rsi + rdx - 64]
    movups xmm5, [rsi + rdx - 48]
    lea r8, [rdi + rdx - 64]
4:
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm6, [rsi + 32]
    movups xmm7, [rsi + 48]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm6
    movups [rdi + 48], xmm7
    add rsi, 64
    add rdi, 64
    sub rdx, 64
    cmp rdx, 64
    ja 4b
    movups [r8], xmm4
    movups [r8 + 16], xmm5
    movups [r8 + 32], xmm2
    movups [r8 + 48], xmm3
    clc
    ret
3:
    cmp edx, 16
    jb 5f
    movups xmm0, [rsi]
    movups xmm1, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + rdx - 16], xmm1
    clc
    ret
5:
    cmp edx, 8
    jb 6f
    mov rax, [rsi]
    mov rcx, [rsi + rdx - 8]
    mov [rdi], rax
    mov [rdi + rdx - 8], rcx
    clc
    ret
6:
    cmp edx, 4
    jb 7f
    mov eax, [rsi]
    mov ecx, [rsi + rdx - 4]
    mov [rdi], eax
    mov [rdi + rdx - 4], ecx
    clc
    ret
7:
    test edx, edx
    je 8f
    movzx eax, byte ptr [rsi]
    movzx ecx, byte ptr [rsi + rdx - 1]
    cmp edx, 3
    jne 9f
    movzx r8d, byte ptr [rsi + 1]
    mov [rdi + 1], r8b
9:
    mov [rdi], al
    mov [rdi + rdx - 1], cl
8:
    clc
    ret
    .cfi_endproc
    .size toehold_copy_short, . - toehold_copy_short

    .type toehold_look, @function
toehold_look:
    .cfi_startproc
    // Nothing is below 0: the carry flag is clear.
    cmp byte ptr [rdi], 0
    ret
    .cfi_endproc
    .size toehold_look, . - toehold_look

    .type toehold_touch, @function
toehold_touch:
    .cfi_startproc
    // `or` clears the carry flag.
    or byte ptr [rdi], 0
    ret
    .cfi_endproc
    .size toehold_touch, . - toehold_touch
toehold_guarded_end:

toehold_guarded_failed:
    stc
    ret

    .balign 16
    .type toehold_copy_long, @function
toehold_copy_long:
    .cfi_startproc
    push rbx
    .cfi_adjust_cfa_offset 8
    push rbp
    .cfi_adjust_cfa_offset 8
    push r12
    .cfi_adjust_cfa_offset 8
    push r13
    .cfi_adjust_cfa_offset 8
    push r14
    .cfi_adjust_cfa_offset 8
    push r15
    .cfi_adjust_cfa_offset 8
    sub rsp, 8
    .cfi_adjust_cfa_offset 8
    call {memcpy}
toehold_copy_long_return:
    add rsp, 8 + 6 * 8
    .cfi_adjust_cfa_offset -56
    clc
    ret
    // `memcpy` may have used any register and has restored none.
    .cfi_adjust_cfa_offset 56
toehold_copy_long_failed:
    add rsp, 8
    .cfi_adjust_cfa_offset -8
    pop r15
    .cfi_adjust_cfa_offset -8
    pop r14
    .cfi_adjust_cfa_offset -8
    pop r13
    .cfi_adjust_cfa_offset -8
    pop r12
    .cfi_adjust_cfa_offset -8
    pop rbp
    .cfi_adjust_cfa_offset -8
    pop rbx
    .cfi_adjust_cfa_offset -8
    stc
    ret
    .cfi_endproc
    .size toehold_copy_long, . - toehold_copy_long
    .popsection
    "#,
        memcpy = sym memcpy,
    );

    unsafe extern "C" {
        fn memcpy(target: *mut u8, source: *const u8, len: usize) -> *mut u8;
        static toehold_guarded_begin: u8;
        static toehold_guarded_end: u8;
        static toehold_guarded_failed: u8;
        static toehold_copy_long_return: u8;
        static toehold_copy_long_failed: u8;
    }

    #[inline(always)]
    pub(super) unsafe fn copy(source: *const u8, target: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe {
            if len <= SHORT_BYTES {
                copy_short(source, target, len)
            } else if len > PIECE_BYTES && is_just_ahead(source, target) {
                copy_in_pieces(source, target, len)
            } else {
                copy_long(source, target, len)
            }
        }
    }

    /// As `shared::copy_in_pieces`.
    #[inline(never)]
    unsafe fn copy_in_pieces(source: *const u8, target: *mut u8, len: usize) -> Result<(), Fault> {
        for done in (0..len).step_by(PIECE_BYTES) {
            let part = PIECE_BYTES.min(len - done);
            // SAFETY: `done + part <= len`; the ranges are the caller's.
            unsafe { copy_long(source.wrapping_add(done), target.wrapping_add(done), part) }?;
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) unsafe fn copy_short(
        source: *const u8,
        target: *mut u8,
        len: usize,
    ) -> Result<(), Fault> {
        // SAFETY: the caller's promise; the routine changes these registers only.
        unsafe {
            asm!(
                "call toehold_copy_short",
                "jc {failed}",
                inout("rdi") target => _,
                inout("rsi") source => _,
                inout("rdx") len => _,
                out("rax") _,
                out("rcx") _,
                out("r8") _,
                out("xmm0") _,
                out("xmm1") _,
                out("xmm2") _,
                out("xmm3") _,
                out("xmm4") _,
                out("xmm5") _,
                out("xmm6") _,
                out("xmm7") _,
                failed = label { return Err(Fault) },
            );
        }
        Ok(())
    }

    #[inline]
    unsafe fn copy_long(source: *const u8, target: *mut u8, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise; the routine is a C function but for its answer.
        unsafe {
            asm!(
                "call toehold_copy_long",
                "jc {failed}",
                inout("rdi") target => _,
                inout("rsi") source => _,
                inout("rdx") len => _,
                clobber_abi("C"),
                failed = label { return Err(Fault) },
            );
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) unsafe fn look(address: usize) -> Result<(), Fault> {
        // SAFETY: the routine reads one byte and changes the flags only; a fault is answered.
        unsafe {
            asm!(
                "call toehold_look",
                "jc {failed}",
                in("rdi") address,
                failed = label { return Err(Fault) },
            );
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) unsafe fn touch(address: usize) -> Result<(), Fault> {
        // SAFETY: the routine writes one byte with its own value and changes the flags only; a
        // fault is answered.
        unsafe {
            asm!(
                "call toehold_touch",
                "jc {failed}",
                in("rdi") address,
                failed = label { return Err(Fault) },
            );
        }
        Ok(())
    }

    /// The largest distance of the return address of `memcpy` from the stack pointer, in words:
    /// known versions save only a few registers.
    const FRAME_WORDS: usize = 32;

    pub(super) unsafe fn recover(instruction: usize, stack: usize) -> Option<Resume> {
        let address = |label: *const u8| label as usize;
        let [begin, end] = [
            &raw const toehold_guarded_begin,
            &raw const toehold_guarded_end,
        ];
        if (address(begin)..address(end)).contains(&instruction) {
            let instruction = address(&raw const toehold_guarded_failed);
            return Some(Resume { instruction, stack });
        }
        let back = address(&raw const toehold_copy_long_return);
        let words = stack as *const usize;
        // If the program has used up its stack, the fault must reach the program's own handler.
        if !is_readable(stack) || !is_readable(stack + (FRAME_WORDS - 1) * size_of::<usize>()) {
            return None;
        }
        // No other word on a stack has this value. If a handler interrupted a copy and then caused
        // a fault of its own, the return address would be further away, beyond the kernel's frame.
        // SAFETY: words of this thread's stack, at most two pages, which are there.
        let depth = (0..FRAME_WORDS).find(|&n| unsafe { words.add(n).read_volatile() } == back)?;
        Some(Resume {
            instruction: address(&raw const toehold_copy_long_failed),
            stack: stack + (depth + 1) * size_of::<usize>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_are_copied_whole_and_nothing_else() {
        let source: Vec<u8> = (0..5000u32).map(|i| ((i * 7) >> 2) as u8).collect();
        for len in (0..600).chain([1000, 2048, 2049, 4900]) {
            for shift in [0, 1, 15, 33] {
                let mut target = vec![0xee; 5000];
                // SAFETY: `shift + len` is less than 5,000.
                let copied =
                    unsafe { try_to_shared(source.as_ptr(), target.as_mut_ptr().add(shift), len) };
                assert_eq!(copied, Ok(()));
                assert_eq!(target[shift..shift + len], source[..len], "{len} {shift}");
                assert!(target[..shift].iter().all(|&byte| byte == 0xee));
                assert!(target[shift + len..].iter().all(|&byte| byte == 0xee));
            }
        }
    }

    #[test]
    fn a_probe_reaches_the_end_of_what_it_is_asked_about() {
        let bytes = vec![0u8; 3 * 4096];
        let address = bytes.as_ptr() as usize;
        assert_eq!(probe(address, bytes.len()), Ok(()));
        assert_eq!(probe(address, 0), Ok(()));
        assert_eq!(probe(address, usize::MAX), Err(Fault));
    }

    #[test]
    fn a_probe_for_writing_changes_nothing() {
        let mut bytes: Vec<u8> = (0..3 * 4096u32).map(|n| n as u8).collect();
        let before = bytes.clone();
        let address = bytes.as_mut_ptr() as usize;
        assert_eq!(probe_for_writing(address, bytes.len()), Ok(()));
        assert_eq!(probe_for_writing(address, 0), Ok(()));
        assert_eq!(probe_for_writing(address, usize::MAX), Err(Fault));
        assert_eq!(bytes, before);
    }

    #[test]
    fn an_instruction_elsewhere_is_no_copy() {
        let words = [0usize; 64];
        // SAFETY: the words stand for a stack.
        let resume = unsafe { recover(main_like as *const () as usize, words.as_ptr() as usize) };
        assert_eq!(resume, None);
    }

    fn main_like() {}
}
