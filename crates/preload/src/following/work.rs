//! The helper's side of the conversation, and how the helper is made.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use toehold_freestanding::{call, memory};
use toehold_patcher::heap::Arena;
use toehold_patcher::{Error, File, Result, Task, Watch, stand_alone};

use super::Event;
use crate::program::Buffer;

/// All that the helper is told. It lies in the helper's memory, above its stack.
struct Start {
    arena: Arena,
    /// The helper's end.
    socket: c_int,
    library: Buffer,
    /// The program's path; empty where it is an open file.
    program: Buffer,
}

/// For the process between this one and the helper.
struct Between {
    start: *const Start,
    /// The answer to the call that makes the helper. Relaxed: it is read when the process that
    /// writes it was waited for.
    helper: AtomicIsize,
}

/// Makes the helper, which has `socket` for the conversation.
pub(super) fn start(socket: c_int, library: &Buffer, program: &Buffer) {
    const STACK_BYTES: usize = 16 << 10;
    const START_BYTES: usize = size_of::<Start>().next_multiple_of(16);
    let Some(arena) = Arena::new() else { return };
    let start: *mut Start = arena.stack().wrapping_sub(START_BYTES).cast();
    // SAFETY: the end of fresh memory, which is a multiple of a page.
    unsafe {
        start.write(Start {
            arena,
            socket,
            library: library.clone(),
            program: program.clone(),
        });
    }
    let between = Between {
        start,
        helper: AtomicIsize::new(0),
    };
    let stack = memory::anonymous(STACK_BYTES, false);
    if !stack.is_null() {
        let top = stack.wrapping_add(STACK_BYTES);
        let argument = (&raw const between).cast();
        // SAFETY: the stack is the child's alone; `between` lives until the child has ended. The
        // child is one that only this thread can wait for (`__WALL`).
        unsafe {
            let child = beside(libc::CLONE_VFORK, top, make_helper, argument);
            if child > 0 {
                call!(SYS_wait4, child, 0, libc::__WALL, 0);
            }
            memory::unmap(stack, STACK_BYTES);
        }
    }
    // The helper gives its memory back by itself, if there is one.
    if between.helper.load(Relaxed) <= 0 {
        arena.discard();
    }
}

/// Stands between this process and the helper, so that the helper is no child of this one.
unsafe extern "C" fn make_helper(between: *const c_void) -> ! {
    // SAFETY: the starter's argument. Below what the helper is told is its stack.
    unsafe {
        let between = &*between.cast::<Between>();
        let stack = between.start.cast_mut().cast();
        let helper = beside(0, stack, help, between.start.cast());
        between.helper.store(helper, Relaxed);
        loop {
            call!(SYS_exit, 0);
        }
    }
}

/// The helper.
unsafe extern "C" fn help(start: *const c_void) -> ! {
    // SAFETY: what it is told lies in its own memory. It has one thread and a table of descriptors
    // of its own, in which nobody else uses the socket.
    let (start, caller) = unsafe {
        let start = &*start.cast::<Start>();
        stand_alone(start.socket);
        (start, File::from_raw_fd(0))
    };
    start.arena.begin();
    // There is nobody to tell: `toehold status` finds the reason by itself.
    let _ = follow(caller, start);
    start.arena.end()
}

fn follow(caller: File, start: &Start) -> Result<()> {
    // SAFETY: no memory is involved.
    let own = unsafe { call!(SYS_getpid) } as c_int;
    caller.send(&own.to_ne_bytes())?;
    let watch = loop {
        let mut request = [0; 8];
        caller.receive(&mut request)?;
        let number = |at: usize| c_int::from_ne_bytes(core::array::from_fn(|n| request[at + n]));
        let result = Watch::begin(number(0), number(4) == Event::Spawn as c_int);
        let error = result.as_ref().err().map_or(0, Error::number);
        caller.send(&error.to_ne_bytes())?;
        if let Ok(watch) = result {
            break watch;
        }
    };
    let program = start.program.as_c_str();
    let task = Task {
        library: start.library.as_c_str(),
        program: (!program.is_empty()).then_some(program),
        runtime_directory: None,
    };
    let _ = watch.patch(&task, caller);
    Ok(())
}

/// Runs `function` in a process that uses this one's memory, on a stack that ends at `stack`. With
/// `CLONE_VFORK` in `flags`, returns when that process has ended. Gives its number, or a negated
/// errno. No signal tells of its end.
///
/// # Safety
/// The stack is nobody's; `function` never returns, and uses no thread-local storage.
unsafe fn beside(
    flags: c_int,
    stack: *mut u8,
    function: unsafe extern "C" fn(*const c_void) -> !,
    argument: *const c_void,
) -> isize {
    let answer: isize;
    // SAFETY: the caller's promise. In the new process the stack pointer is `stack`, which is a
    // multiple of 16.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => answer,
            in("rdi") libc::CLONE_VM | flags,
            in("rsi") stack,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            in("r12") argument,
            in("r13") function,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}
