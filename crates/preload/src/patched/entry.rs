//! From a stub to [`calls::handle`] and back.
//!
//! A stub comes with its own address in rcx, the call's number in eax and its arguments in their
//! registers. rcx and r11 are free, because `syscall` destroys them. Everything else is restored
//! for the program: the other registers, the flags, the SSE registers and its stack. No byte below
//! the stack pointer is changed (in [`own`]: no byte of the red zone).
//!
//! [`private`] uses the stack in the thread's [`Area`]: for Go. A signal that arrives there runs
//! its handler on the stack for signals, as Go's runtime demands of all handlers (`SA_ONSTACK`);
//! calls from that handler use the next part of the area. [`beside_libc`] is the same for programs
//! whose threads libc makes: Go with cgo.
//!
//! [`own`] uses the program's stack, as a preloaded library does: handlers may run there, and may
//! leave by `longjmp`.
//!
//! A call that is passed on is made after the frame was left, at the site itself. A call that makes
//! a thread or a process happens where [`Verdict::MakeHere`] says so.

use core::arch::naked_asm;
use core::mem::offset_of;

use super::area::{Area, HAS_NO_SPARES, SPARES, SPARES_COUNT, STACK_BYTES};
use super::calls::{
    after_in_child, after_in_child_on_own, after_in_parent, handle, handle_beside_libc,
    handle_on_own,
};

use super::frame::{Child, Frame, Stub, Verdict};

const FRAME: usize = size_of::<Frame>();
const RBX: usize = offset_of!(Frame, rbx);
const RAX: usize = offset_of!(Frame, rax);
const FLAGS: usize = offset_of!(Frame, flags);
const STUB: usize = offset_of!(Frame, stub);
const STACK: usize = offset_of!(Frame, stack);
const NEW: usize = offset_of!(Frame, new);
const SSE: usize = offset_of!(Frame, sse);
const PASS: usize = offset_of!(Stub, pass);
const DONE: usize = offset_of!(Stub, done);
const AREA_STACK: usize = offset_of!(Area, stack);
const AREA_FS: usize = offset_of!(Area, thread_pointer);
/// The next two words, which the launcher writes, too.
const AREA_LOWEST: usize = AREA_FS + 8;
const AREA_FIRST: usize = offset_of!(Area, first);
const RED_ZONE: usize = 128;

// The entry uses these numbers as they are.
const _: () = assert!(Verdict::Pass as u32 == 0 && Verdict::Answered as u32 == 1);
const _: () =
    assert!(Child::HasFrame as u32 == 1 && FRAME.is_multiple_of(16) && SSE.is_multiple_of(16));

/// Saves the flags and the number in r11, so that rax is free.
macro_rules! keep_flags {
    () => {
        "mov r11d, eax
         lahf
         seto al
         movzx eax, ax
         shl rax, 32
         or r11, rax"
    };
}

/// The reverse, when nothing else was saved: goes on with the program's own `syscall`.
macro_rules! pass_by {
    () => {
        "mov rax, r11
         shr rax, 32
         add al, 127
         sahf
         mov eax, r11d
         jmp [rcx + {PASS}]"
    };
}

/// From a frame at rsp to the handler.
macro_rules! save_and_handle {
    () => {
        "mov [rsp + {STUB}], rcx
         movsxd rax, r11d
         shr r11, 32
         mov [rsp + {RAX}], rax
         mov [rsp + {FLAGS}], r11
         mov [rsp], rdi
         mov [rsp + 8], rsi
         mov [rsp + 16], rdx
         mov [rsp + 24], r10
         mov [rsp + 32], r8
         mov [rsp + 40], r9
         mov [rsp + {RBX}], rbx
         mov qword ptr [rsp + {NEW}], 0
         movaps [rsp + {SSE}], xmm0
         movaps [rsp + {SSE} + 16], xmm1
         movaps [rsp + {SSE} + 32], xmm2
         movaps [rsp + {SSE} + 48], xmm3
         movaps [rsp + {SSE} + 64], xmm4
         movaps [rsp + {SSE} + 80], xmm5
         movaps [rsp + {SSE} + 96], xmm6
         movaps [rsp + {SSE} + 112], xmm7
         movaps [rsp + {SSE} + 128], xmm8
         movaps [rsp + {SSE} + 144], xmm9
         movaps [rsp + {SSE} + 160], xmm10
         movaps [rsp + {SSE} + 176], xmm11
         movaps [rsp + {SSE} + 192], xmm12
         movaps [rsp + {SSE} + 208], xmm13
         movaps [rsp + {SSE} + 224], xmm14
         movaps [rsp + {SSE} + 240], xmm15
         mov rdi, rsp
         call {handle}"
    };
}

/// Restores everything except rax, rbx, rcx, r11 and rsp, from a frame at `$at`.
macro_rules! restore {
    ($at:literal) => {
        concat!(
            "movaps xmm0, [",
            $at,
            " + {SSE}]
             movaps xmm1, [",
            $at,
            " + {SSE} + 16]
             movaps xmm2, [",
            $at,
            " + {SSE} + 32]
             movaps xmm3, [",
            $at,
            " + {SSE} + 48]
             movaps xmm4, [",
            $at,
            " + {SSE} + 64]
             movaps xmm5, [",
            $at,
            " + {SSE} + 80]
             movaps xmm6, [",
            $at,
            " + {SSE} + 96]
             movaps xmm7, [",
            $at,
            " + {SSE} + 112]
             movaps xmm8, [",
            $at,
            " + {SSE} + 128]
             movaps xmm9, [",
            $at,
            " + {SSE} + 144]
             movaps xmm10, [",
            $at,
            " + {SSE} + 160]
             movaps xmm11, [",
            $at,
            " + {SSE} + 176]
             movaps xmm12, [",
            $at,
            " + {SSE} + 192]
             movaps xmm13, [",
            $at,
            " + {SSE} + 208]
             movaps xmm14, [",
            $at,
            " + {SSE} + 224]
             movaps xmm15, [",
            $at,
            " + {SSE} + 240]
             mov rax, [",
            $at,
            " + {FLAGS}]
             add al, 127
             sahf
             mov rdi, [",
            $at,
            "]
             mov rsi, [",
            $at,
            " + 8]
             mov rdx, [",
            $at,
            " + 16]
             mov r10, [",
            $at,
            " + 24]
             mov r8, [",
            $at,
            " + 32]
             mov r9, [",
            $at,
            " + 40]
             mov rcx, [",
            $at,
            " + {STUB}]"
        )
    };
}

/// Makes the call of the frame at rsp. A new thread or process finds its first frame by rbx. A
/// child with another stack continues at label 7.
macro_rules! make_here {
    () => {
        "mov rbx, [rsp + {NEW}]
         lea rcx, [rbx + {AREA_FIRST}]
         cmp rbx, 1
         mov rbx, rsp
         cmova rbx, rcx
         mov rdi, [rsp]
         mov rsi, [rsp + 8]
         mov rdx, [rsp + 16]
         mov r10, [rsp + 24]
         mov r8, [rsp + 32]
         mov r9, [rsp + 40]
         mov rax, [rsp + {RAX}]
         syscall
         cmp rsp, rbx
         jne 6f
         test rax, rax
         jnz 5f
         22:
         mov rbx, [rsp + {RBX}]
         mov qword ptr [rsp + {RAX}], 0
         mov rdi, rsp
         call {after_in_child}
         test eax, eax
         jz 8f
         jmp 4f
         6:
         test rax, rax
         jz 7f
         5:
         mov rbx, [rsp + {RBX}]
         mov [rsp + {RAX}], rax
         mov rdi, rsp
         call {after_in_parent}"
    };
}

/// An entry that uses the stack in the thread's area. The first argument checks whether GS leads to
/// an area; the second handles a thread without its own area.
macro_rules! enter_area {
    ([$($first:tt)*] [$($foreign:tt)*] $handle:ident $($operands:tt)*) => {
        naked_asm!(
            keep_flags!(),
            $($first)*
            // Sorts out a thread that has inherited its maker's area, or is already on the area's
            // stack.
            "rdfsbase rax",
            "cmp rax, gs:[{AREA_FS}]",
            "jne 12f",
            "cmp rsp, gs:[{AREA_LOWEST} + 8]",
            "jb 3f",
            "mov rax, gs:[{AREA_LOWEST} + 8]",
            "add rax, {AREA_BYTES}",
            "cmp rsp, rax",
            "jbe 2f",
            "3:",
            // A single instruction takes the part of the area, so that a signal handler in between
            // takes and returns a different part.
            "sub qword ptr gs:[{AREA_STACK}], {STACK_BYTES}",
            "mov rax, gs:[{AREA_STACK}]",
            "cmp rax, gs:[{AREA_LOWEST}]",
            "jb 9f",
            "add rax, {STACK_BYTES} - {FRAME}",
            "mov [rax + {STACK}], rsp",
            "mov rsp, rax",
            save_and_handle!(),
            "test eax, eax",
            "jz 3f",
            "cmp eax, 1",
            "je 4f",
            make_here!(),
            // Answered.
            "4:",
            restore!("rsp"),
            "mov rax, [rsp + {RAX}]",
            "lea r11, [rsp + {FRAME}]",
            "mov rsp, [rsp + {STACK}]",
            "mov gs:[{AREA_STACK}], r11",
            "jmp [rcx + {DONE}]",
            // Passed on.
            "3:",
            restore!("rsp"),
            "mov rax, [rsp + {RAX}]",
            "lea r11, [rsp + {FRAME}]",
            "mov rsp, [rsp + {STACK}]",
            "mov gs:[{AREA_STACK}], r11",
            "jmp [rcx + {PASS}]",
            // A child that uses its parent's frame, which stays in use.
            "8:",
            restore!("rsp"),
            "mov rax, [rsp + {RAX}]",
            "mov rsp, [rsp + {STACK}]",
            "jmp [rcx + {DONE}]",
            // A child with its own stack. If it has an area, it is a thread of this process.
            "7:",
            "mov rcx, [rbx + {NEW}]",
            "jrcxz 5f",
            "cmp rcx, 1",
            "je 6f",
            "wrgsbase rcx",
            "rdfsbase rcx",
            "mov gs:[{AREA_FS}], rcx",
            "mov eax, {GETTID}",
            "syscall",
            "mov gs:[{AREA_LOWEST} + 16], rax",
            "5:",
            restore!("rbx"),
            "mov rbx, [rbx + {RBX}]",
            "mov eax, 0",
            "jmp [rcx + {DONE}]",
            // A process with its own stack and memory: continues as after any fork.
            "6:",
            "mov [rbx + {STACK}], rsp",
            "mov rsp, rbx",
            "jmp 22b",
            // Too many nested signals.
            "9:",
            "add qword ptr gs:[{AREA_STACK}], {STACK_BYTES}",
            "2:",
            pass_by!(),
            // The area of another thread.
            "12:",
            $($foreign)*,
            handle = sym $handle,
            after_in_child = sym after_in_child,
            after_in_parent = sym after_in_parent,
            FRAME = const FRAME,
            RBX = const RBX,
            RAX = const RAX,
            FLAGS = const FLAGS,
            STUB = const STUB,
            STACK = const STACK,
            NEW = const NEW,
            SSE = const SSE,
            PASS = const PASS,
            DONE = const DONE,
            AREA_STACK = const AREA_STACK,
            AREA_FS = const AREA_FS,
            AREA_LOWEST = const AREA_LOWEST,
            AREA_FIRST = const AREA_FIRST,
            AREA_BYTES = const super::area::AREA_BYTES,
            STACK_BYTES = const STACK_BYTES,
            GETTID = const libc::SYS_gettid,
            $($operands)*
        )
    };
}

/// The entry for stubs of a program without libc whose stacks are small and move.
///
/// # Safety
/// Only stubs jump here.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn private() {
    enter_area!([] ["jmp 2b"] handle)
}

/// Takes the spare area at this distance, if it is there.
macro_rules! take_spare {
    ($($distance:literal)*) => {
        concat!($(
            "xor eax, eax
             xchg rax, [rip + {SPARES} + ", $distance, "]
             test rax, rax
             jnz 14f
             "
        ),*)
    };
}

/// The entry for stubs of such a program if libc makes its threads. A thread without an area takes
/// a spare one, using only rax and no stack.
///
/// # Safety
/// Only stubs jump here.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn beside_libc() {
    enter_area!(
        [
            "rdgsbase rax",
            // A thread that was made before the first area.
            "test rax, rax",
            "jz 12f",
            "11:",
        ]
        [
            // For libc's threads, FS points to a control block that begins with its own address.
            "rdfsbase rax",
            "cmp rax, [rax]",
            "jne 2b",
            "13:",
            take_spare!(0 8 16 24 32 40 48 56),
            "cmp dword ptr [rip + {HAS_NO_SPARES}], 0",
            "jne 2b",
            // The threads that have taken the spare areas will refill them soon.
            "pause",
            "jmp 13b",
            "14:",
            "wrgsbase rax",
            "rdfsbase rax",
            "mov gs:[{AREA_FS}], rax",
            "jmp 11b"
        ]
        handle_beside_libc
        SPARES = sym SPARES,
        HAS_NO_SPARES = sym HAS_NO_SPARES,
    )
}

const _: () = assert!(SPARES_COUNT == 8);

/// The entry for stubs of other programs.
///
/// # Safety
/// Only stubs jump here.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn own() {
    naked_asm!(
        // For `super::cancellation`.
        ".globl toehold_own, toehold_own_passes, toehold_own_passes_on, toehold_own_passed",
        ".hidden toehold_own, toehold_own_passes, toehold_own_passes_on, toehold_own_passed",
        "toehold_own:",
        keep_flags!(),
        "mov rax, rsp",
        "sub rsp, {RED_ZONE} + {FRAME}",
        "and rsp, -16",
        "mov [rsp + {STACK}], rax",
        save_and_handle!(),
        "test eax, eax",
        "jz 3f",
        "cmp eax, 1",
        "je 4f",
        make_here!(),
        "4:",
        "8:",
        restore!("rsp"),
        "mov rax, [rsp + {RAX}]",
        "mov rsp, [rsp + {STACK}]",
        "jmp [rcx + {DONE}]",
        "3:",
        "toehold_own_passes:",
        restore!("rsp"),
        "mov rax, [rsp + {RAX}]",
        "mov rsp, [rsp + {STACK}]",
        "toehold_own_passes_on:",
        "jmp [rcx + {PASS}]",
        "toehold_own_passed:",
        // A process with its own stack and memory: continues as after any fork. Others are passed
        // on.
        "7:",
        "mov [rbx + {STACK}], rsp",
        "mov rsp, rbx",
        "jmp 22b",
        handle = sym handle_on_own,
        after_in_child = sym after_in_child_on_own,
        after_in_parent = sym after_in_parent,
        RED_ZONE = const RED_ZONE,
        FRAME = const FRAME,
        RBX = const RBX,
        RAX = const RAX,
        FLAGS = const FLAGS,
        STUB = const STUB,
        STACK = const STACK,
        NEW = const NEW,
        SSE = const SSE,
        PASS = const PASS,
        DONE = const DONE,
        AREA_FIRST = const AREA_FIRST,
    )
}
