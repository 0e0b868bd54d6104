//! The helper's side of the protocol, and how the helper is made.

use core::ffi::{c_int, c_void};

use toehold_freestanding::call;
use toehold_patcher::heap::{self, Arena};
use toehold_patcher::{Error, File, Result, Task, Watch, stand_alone};

use super::Event;
use crate::program::Buffer;
use crate::tracer::Named;

/// The helper's arguments. They are in the helper's memory, above its stack.
struct Start {
    arena: Arena,
    /// The helper's end of the socket pair.
    socket: c_int,
    library: Buffer,
    /// The program's path; empty where it is an open file.
    program: Buffer,
}

/// A helper that is this process's child.
#[derive(Debug)]
pub(super) struct Child {
    process: c_int,
}

impl Child {
    /// Waits until the helper has ended. A helper that was killed has left its memory, which is
    /// freed here.
    pub(super) fn wait(self) {
        if self.status(0).is_some_and(|status| status != 0) {
            heap::take_back();
        }
    }

    /// Names the helper to Yama as this process's tracer.
    pub(super) fn name(&self) -> Option<Named> {
        Named::begin(self.process as usize)
    }

    /// Does not wait for the helper, which may have ended or may never end.
    pub(super) fn forget(self) {
        self.status(libc::WNOHANG);
    }

    /// The helper's exit status; `None` when it has not ended, or when this program has already
    /// waited for it.
    fn status(&self, flags: c_int) -> Option<c_int> {
        let (mut status, flags): (c_int, _) = (0, libc::__WALL | flags);
        loop {
            let into = &raw mut status;
            // SAFETY: the status is written.
            match unsafe { call!(SYS_wait4, self.process, into, flags, 0) } as c_int {
                ended if ended == self.process => return Some(status),
                error if error == -libc::EINTR => {}
                _ => return None,
            }
        }
    }
}

/// Makes the helper, which communicates over `socket`.
pub(super) fn start(socket: c_int, library: &Buffer, program: &Buffer) -> Option<Child> {
    const START_BYTES: usize = size_of::<Start>().next_multiple_of(16);
    let arena = Arena::new()?;
    let start: *mut Start = arena.stack().wrapping_sub(START_BYTES).cast();
    // SAFETY: the end of fresh memory, which is a multiple of a page. The caller's stack may have
    // no room for the whole.
    unsafe {
        (&raw mut (*start).arena).write(arena);
        (&raw mut (*start).socket).write(socket);
        (&raw mut (*start).library).copy_from_nonoverlapping(library, 1);
        (&raw mut (*start).program).copy_from_nonoverlapping(program, 1);
    }
    // SAFETY: below what the helper is told is its stack, and it has its own arguments.
    let helper = unsafe { beside(start.cast(), help, start.cast(), arena.alive()) };
    // If the helper was made, it frees its memory itself.
    if helper <= 0 {
        arena.discard();
    }
    (helper > 0).then_some(Child {
        process: helper as c_int,
    })
}

/// The helper's main function.
unsafe extern "C" fn help(start: *const c_void) -> ! {
    // SAFETY: what it is told lies in its own memory. It has one thread and a table of descriptors
    // of its own, in which nobody else uses the socket.
    let (start, caller) = unsafe {
        let start = &*start.cast::<Start>();
        stand_alone(start.socket);
        (start, File::from_raw_fd(0))
    };
    // The error is not reported here: `toehold status` finds the reason by itself.
    let _ = follow(caller, start);
    start.arena.end()
}

fn follow(caller: File, start: &Start) -> Result<()> {
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

/// Runs `function` in a new process that shares this process's memory, on a stack that ends at
/// `stack`. Returns the process's number, or a negated errno. No signal announces its end; the
/// kernel clears `alive` then.
///
/// # Safety
/// The stack is nobody's; `alive` stays; `function` never returns, and uses no
/// thread-local storage.
unsafe fn beside(
    stack: *mut u8,
    function: unsafe extern "C" fn(*const c_void) -> !,
    argument: *const c_void,
    alive: *mut c_int,
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
            in("rdi") libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID,
            in("rsi") stack,
            in("rdx") 0,
            in("r10") alive,
            in("r8") 0,
            in("r12") argument,
            in("r13") function,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_was_killed_has_its_memory_taken_from_it() {
        unsafe extern "C" fn waits(_: *const c_void) -> ! {
            loop {
                // SAFETY: no memory is involved.
                unsafe { call!(SYS_pause) };
            }
        }
        unsafe extern "C" fn ends(arena: *const c_void) -> ! {
            // SAFETY: the starter's argument, which is read before the arena is given back.
            unsafe { *arena.cast::<Arena>() }.end()
        }
        let is_mapped = |arena: Arena| {
            let (mut pages, last) = ([0u8; 1], arena.stack().wrapping_sub(4096));
            // SAFETY: one byte for the one page that is asked for.
            unsafe { call!(SYS_mincore, last, 4096, pages.as_mut_ptr()) == 0 }
        };
        let begin = |function| {
            let arena = Arena::new().expect("memory");
            assert!(!arena.alive().is_null());
            let (stack, argument) = (arena.stack(), (&raw const arena).cast());
            // SAFETY: the arena is the helper's, and `arena` outlives it or its look.
            let process = unsafe { beside(stack, function, argument, arena.alive()) };
            assert!(process > 0);
            let process = process as c_int;
            if function as usize == ends as *const () as usize {
                Child { process }.wait();
            }
            (arena, process)
        };
        let (killed, process) = begin(waits);
        let (living, other) = begin(waits);
        // SAFETY: a process of this test's.
        unsafe { call!(SYS_kill, process, libc::SIGKILL) };
        Child { process }.wait();
        assert!(!is_mapped(killed) && is_mapped(living));
        // One that nobody waits for leaves its memory to the next arena's maker.
        // SAFETY: as above.
        unsafe {
            call!(SYS_kill, other, libc::SIGKILL);
            call!(SYS_wait4, other, 0, libc::__WALL, 0);
        }
        assert!(is_mapped(living));
        heap::take_back();
        assert!(!is_mapped(living));
        // A helper that ends by itself has freed its memory, and its slot is used again.
        for _ in 0..100 {
            begin(ends);
        }
    }
}
