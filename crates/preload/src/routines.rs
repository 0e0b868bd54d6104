//! The functions that the compiler calls implicitly: `memcpy` and similar ones. They are defined
//! here and hidden, so that the library needs none from outside at its start and exports none to
//! the program. Each calls through a pointer: first a plain function in this file, later libc's
//! function, which is tuned for the processor.
//!
//! The plain ones use general registers and the first vector registers in their 128-bit form only.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

use toehold_freestanding::elf::Name;
use toehold_freestanding::objects;

// System V AMD64 ABI: arguments in rdi, rsi, rdx; the result in rax; the direction flag is clear.
core::arch::global_asm!(
    r#"
    .macro toehold_routine name, plain
    .globl \name
    .hidden \name
    .type \name, @function
\name:
    jmp qword ptr [rip + toehold_\name]
    .size \name, . - \name
    .pushsection .data.toehold_\name, "aw", @progbits
    .balign 8
    .globl toehold_\name
    .hidden toehold_\name
toehold_\name:
    .quad \plain
    .globl \plain
    .hidden \plain
    .popsection
    .endm

    .pushsection .text.startup.toehold_routines, "ax", @progbits
    toehold_routine memcpy, toehold_plain_memcpy
    toehold_routine memmove, toehold_plain_memmove
    toehold_routine memset, toehold_plain_memset
    toehold_routine memcmp, toehold_plain_memcmp
    toehold_routine bcmp, toehold_plain_memcmp
    toehold_routine strlen, toehold_plain_strlen

    .balign 16
toehold_plain_memcpy:
    mov rax, rdi
    cmp rdx, 16
    jb 3f
    movups xmm0, [rsi + rdx - 16]
    lea r8, [rdi + rdx - 16]
    // Copies pieces of 64 bytes, then of 16, then the last 16 bytes, which may overlap.
2:
    cmp rdx, 64
    jbe 4f
    movups xmm1, [rsi]
    movups xmm2, [rsi + 16]
    movups xmm3, [rsi + 32]
    movups xmm4, [rsi + 48]
    movups [rdi], xmm1
    movups [rdi + 16], xmm2
    movups [rdi + 32], xmm3
    movups [rdi + 48], xmm4
    add rsi, 64
    add rdi, 64
    sub rdx, 64
    jmp 2b
4:
    cmp rdx, 16
    jbe 5f
    movups xmm1, [rsi]
    movups [rdi], xmm1
    add rsi, 16
    add rdi, 16
    sub rdx, 16
    jmp 4b
5:
    movups [r8], xmm0
    ret
3:
    cmp rdx, 8
    jb 6f
    mov rcx, [rsi]
    mov r9, [rsi + rdx - 8]
    mov [rdi], rcx
    mov [rdi + rdx - 8], r9
    ret
6:
    test rdx, rdx
    je 8f
7:
    movzx ecx, byte ptr [rsi + rdx - 1]
    mov [rdi + rdx - 1], cl
    dec rdx
    jne 7b
8:
    ret

    .balign 16
toehold_plain_memmove:
    // Copies forwards unless the target begins inside the source.
    mov rax, rdi
    mov rcx, rdi
    sub rcx, rsi
    cmp rcx, rdx
    jb 2f
    mov rcx, rdx
    rep movsb
    ret
2:
    cmp rdx, 8
    jb 3f
    mov rcx, [rsi + rdx - 8]
    mov [rdi + rdx - 8], rcx
    sub rdx, 8
    jmp 2b
3:
    test rdx, rdx
    je 5f
4:
    movzx ecx, byte ptr [rsi + rdx - 1]
    mov [rdi + rdx - 1], cl
    dec rdx
    jne 4b
5:
    ret

    .balign 16
toehold_plain_memset:
    mov r8, rdi
    mov eax, esi
    mov rcx, rdx
    rep stosb
    mov rax, r8
    ret

    .balign 16
toehold_plain_memcmp:
    xor ecx, ecx
2:
    cmp rcx, rdx
    je 3f
    movzx eax, byte ptr [rdi + rcx]
    movzx r8d, byte ptr [rsi + rcx]
    inc rcx
    sub eax, r8d
    je 2b
    ret
3:
    xor eax, eax
    ret

    .balign 16
toehold_plain_strlen:
    mov rax, -1
2:
    inc rax
    cmp byte ptr [rdi + rax], 0
    jne 2b
    ret

    // Names that the compiled standard library has for unwinding. Nothing unwinds here.
    .globl rust_eh_personality
    .hidden rust_eh_personality
rust_eh_personality:
    .globl _Unwind_Resume
    .hidden _Unwind_Resume
_Unwind_Resume:
    ud2
    .popsection
    "#
);

macro_rules! pointers {
    ($($pointer:ident: $name:literal, $plain:ident;)*) => {
        unsafe extern "C" {
            $(static $pointer: AtomicPtr<c_void>;)*
        }

        /// From now on libc's functions are used, if libc has them.
        #[unsafe(link_section = ".text.startup")]
        pub(crate) fn take_from_libc() {
            $({
                const NAME: Name = Name::of(concat!($name, "\0"));
                let found = objects::next(&NAME);
                if !found.is_null() {
                    // SAFETY: a word of ours. Relaxed, here and below: either function does it.
                    unsafe { $pointer.store(found, Ordering::Relaxed) };
                }
            })*
        }

        /// From now on the plain functions are used again. Other threads may still be inside
        /// libc's.
        pub(crate) fn use_plain_ones() {
            unsafe extern "C" {
                fn toehold_plain_memcpy();
                fn toehold_plain_memmove();
                fn toehold_plain_memset();
                fn toehold_plain_memcmp();
                fn toehold_plain_strlen();
            }
            $({
                let plain = $plain as *const c_void;
                // SAFETY: a word of ours.
                unsafe { $pointer.store(plain.cast_mut(), Ordering::Relaxed) };
            })*
        }
    };
}

pointers! {
    toehold_memcpy: "memcpy", toehold_plain_memcpy;
    toehold_memmove: "memmove", toehold_plain_memmove;
    toehold_memset: "memset", toehold_plain_memset;
    toehold_memcmp: "memcmp", toehold_plain_memcmp;
    toehold_bcmp: "bcmp", toehold_plain_memcmp;
    toehold_strlen: "strlen", toehold_plain_strlen;
}
