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

/// A helper that is this process's child.
#[derive(Debug)]
pub(super) struct Child {
    process: c_int,
    arena: Arena,
}

impl Child {
    /// Waits until it has ended. One that was killed has left its memory.
    pub(super) fn wait(self) {
        if self.status(0).is_some_and(|status| status != 0) {
            self.arena.discard();
        }
    }

    /// Waits for nothing: it may have ended, or never end.
    pub(super) fn forget(self) {
        self.status(libc::WNOHANG);
    }

    /// How it has ended; `None` when it has not, or when this program has waited for it elsewhere.
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

/// Makes the helper, which has `socket` for the conversation. Where `is_ours`, it is this process's
/// child, and given back.
pub(super) fn start(
    socket: c_int,
    library: &Buffer,
    program: &Buffer,
    is_ours: bool,
) -> Option<Child> {
    const START_BYTES: usize = size_of::<Start>().next_multiple_of(16);
    let arena = Arena::new()?;
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
    let helper = match is_ours {
        // SAFETY: below what the helper is told is its stack, and it has its own arguments.
        true => unsafe { beside(0, start.cast(), help, start.cast()) },
        false => as_orphan(start),
    };
    // The helper gives its memory back by itself, if there is one.
    if helper <= 0 {
        arena.discard();
    }
    (is_ours && helper > 0).then_some(Child {
        process: helper as c_int,
        arena,
    })
}

/// Makes the helper so that it is no child of this process. Its number, or a number below 1.
fn as_orphan(start: *mut Start) -> isize {
    const STACK_BYTES: usize = 16 << 10;
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
    between.helper.load(Relaxed)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_was_killed_has_its_memory_taken_from_it() {
        let is_mapped = |arena: Arena| {
            let (mut pages, last) = ([0u8; 1], arena.stack().wrapping_sub(4096));
            // SAFETY: one byte for the one page that is asked for.
            unsafe { call!(SYS_mincore, last, 4096, pages.as_mut_ptr()) == 0 }
        };
        let helper = |signal| {
            let arena = Arena::new().expect("memory");
            // SAFETY: between fork and exit the child makes system calls only.
            let process = unsafe { libc::fork() };
            if process == 0 {
                // SAFETY: no memory is involved. Without a signal it ends as a helper does.
                unsafe {
                    call!(SYS_kill, call!(SYS_getpid), signal);
                    libc::_exit(0);
                }
            }
            (Child { process, arena }, arena)
        };
        let (child, arena) = helper(libc::SIGKILL);
        assert!(is_mapped(arena));
        child.wait();
        assert!(!is_mapped(arena));
        // One that has ended by itself has given its memory back, which may be somebody's again.
        let (child, arena) = helper(0);
        child.wait();
        assert!(is_mapped(arena));
        arena.discard();
    }
}
