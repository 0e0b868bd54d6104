//! The calls that come here, and the handling of new threads and processes.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use toehold_sockets::before_vfork;

use super::area;
use super::cancellation;
use super::counts::{COUNTS_LEN, count};
use super::frame::{COPIES_MEMORY, Child, Frame, SHARES_MEMORY, Verdict};
use super::raw;
use super::words::{self, Slot};
use crate::by_number::Clone3;
use crate::{by_number, door};

/// The calls that come here; the program makes all others itself. They make threads and processes,
/// set a thread's pointer, end the process, or concern the library's connections.
pub(crate) static WANTED: [u16; WANTED_COUNT] = {
    let mut numbers = [0; WANTED_COUNT];
    let (mut number, mut count) = (0, 0);
    while number < COUNTS_LEN {
        if is_wanted(number as i64) {
            numbers[count] = number as u16;
            count += 1;
        }
        number += 1;
    }
    numbers
};

const WANTED_COUNT: usize = {
    let (mut number, mut count) = (0, 0);
    while number < COUNTS_LEN {
        count += is_wanted(number as i64) as usize;
        number += 1;
    }
    count
};

const fn is_wanted(number: i64) -> bool {
    by_number::is_of_interest(number)
        || matches!(
            number,
            libc::SYS_clone
                | libc::SYS_clone3
                | libc::SYS_fork
                | libc::SYS_vfork
                | libc::SYS_arch_prctl
                | libc::SYS_exit_group
        )
}

/// A call from a patched site, on the stack of the thread's area.
///
/// # Safety
/// Called by the entry only.
pub(crate) unsafe extern "C" fn handle(frame: &mut Frame) -> Verdict {
    count(frame.rax);
    match frame.rax as i64 {
        libc::SYS_arch_prctl => set_thread_pointer(frame),
        // SAFETY: the program's own arguments.
        number => match unsafe { Birth::of(number, &frame.arguments) } {
            // SAFETY: the caller's promise.
            None | Some(Birth::Process) => unsafe { ask(frame) },
            Some(Birth::Strange) => Verdict::Pass,
            Some(Birth::Guest) => make_here(frame, SHARES_MEMORY),
            Some(Birth::Thread) => match area::take() {
                // Without memory the thread will not be served.
                None => Verdict::Pass,
                Some(area) => {
                    let verdict = make_here(frame, area as usize);
                    // SAFETY: the area is nobody's yet; `frame` is whole. Volatile: a copy without
                    // libc's memcpy.
                    unsafe {
                        let (from, to) = (&raw const *frame, &raw mut (*area).first);
                        for word in 0..size_of::<Frame>() / 8 {
                            let word_from = from.cast::<u64>().add(word);
                            to.cast::<u64>().add(word).write_volatile(*word_from);
                        }
                    }
                    verdict
                }
            },
        },
    }
}

/// A call from a patched site, on the stack of the thread's area, in a process that has libc: the
/// threads are libc's. A thread that the program makes by itself does not have libc's memory for
/// threads, so it is not served.
///
/// # Safety
/// Called by the entry only.
pub(crate) unsafe extern "C" fn handle_beside_libc(frame: &mut Frame) -> Verdict {
    area::settle();
    let number = frame.rax as i64;
    // SAFETY: the program's own arguments.
    let is_thread = unsafe { Birth::of(number, &frame.arguments) } == Some(Birth::Thread);
    if is_thread || number == libc::SYS_arch_prctl && frame.arguments[0] == ARCH_SET_FS {
        count(frame.rax);
        return Verdict::Pass;
    }
    // SAFETY: the caller's promise.
    unsafe { handle(frame) }
}

/// A call from a patched site, on the program's own stack.
///
/// # Safety
/// Called by the entry only.
pub(crate) unsafe extern "C" fn handle_on_own(frame: &mut Frame) -> Verdict {
    count(frame.rax);
    let slot = words::slot();
    if let Some(verdict) = handle_as_guest(frame, slot) {
        return verdict;
    }
    let before = cancellation::enter(slot, frame);
    // SAFETY: the caller's promise.
    let verdict = unsafe { handle_in_slot(frame, slot) };
    cancellation::leave(slot, frame, before, verdict)
}

/// A call of a child that uses the memory of its parent while the parent waits. The child's stack
/// may have only a few KiB (musl's `posix_spawn`), too few for the door.
fn handle_as_guest(frame: &mut Frame, slot: &Slot) -> Option<Verdict> {
    // Relaxed, here and below: the thread and its child do not run at the same time.
    let waiting = slot.waiting.load(Ordering::Relaxed);
    if waiting == 0 {
        return None;
    }
    if raw::thread() != waiting {
        return Some(match is_for_guests(frame.rax as i64) {
            true => ask_elsewhere(frame, slot),
            false => Verdict::Pass,
        });
    }
    slot.waiting.store(0, Ordering::Relaxed); // As above: the child has gone.
    // The child has executed a program, so its stack is free again.
    let left = slot.stack_in_use.swap(0, Ordering::Relaxed);
    give_back(slot, left);
    None
}

/// The part of [`handle_on_own`] for a thread with these words.
///
/// # Safety
/// As there.
unsafe fn handle_in_slot(frame: &mut Frame, slot: &Slot) -> Verdict {
    if frame.rax as i64 == libc::SYS_rt_sigaction {
        // SAFETY: the program's own arguments.
        if let Some(verdict) = unsafe { cancellation::set_handler(frame) } {
            return verdict;
        }
    }
    // SAFETY: the program's own arguments.
    match unsafe { Birth::of(frame.rax as i64, &frame.arguments) } {
        // SAFETY: the caller's promise.
        None | Some(Birth::Process) => unsafe { ask(frame) },
        Some(Birth::Guest) => {
            before_vfork();
            // Relaxed: as in `handle_as_guest`.
            slot.waiting.store(raw::thread(), Ordering::Relaxed);
            Verdict::Pass
        }
        _ => Verdict::Pass,
    }
}

/// Asks the door.
///
/// # Safety
/// The call is the program's.
unsafe fn ask(frame: &mut Frame) -> Verdict {
    // SAFETY: the caller's promise; the entry has saved what the door may change.
    match unsafe { door::toehold_call(frame.rax as i64, &frame.arguments) } {
        door::KERNEL => Verdict::Pass,
        door::KERNEL_THEN_TELL => make_here(frame, COPIES_MEMORY),
        answer => {
            frame.rax = answer;
            Verdict::Answered
        }
    }
}

/// The calls of a process that shares its parent's memory for which the door is needed: those that
/// move bytes of connections, or give descriptors to another program.
fn is_for_guests(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_execve
            | libc::SYS_execveat
            | libc::SYS_dup
            | libc::SYS_dup2
            | libc::SYS_dup3
            | libc::SYS_fcntl
            | libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_recvfrom
            | libc::SYS_sendto
            | libc::SYS_recvmsg
            | libc::SYS_sendmsg
    )
}

/// [`ask`], on a separate stack for the thread's children. A handler that interrupts such a call
/// may make another call, on another stack.
fn ask_elsewhere(frame: &mut Frame, slot: &Slot) -> Verdict {
    unsafe extern "C" fn ask_there(frame: *mut c_void) -> u32 {
        // SAFETY: the frame below, which waits.
        unsafe { ask(&mut *frame.cast()) as u32 }
    }
    // Relaxed, here and below: parent and child do not run at the same time.
    let stack = match slot.stack.swap(0, Ordering::Relaxed) {
        0 => raw::map(area::STACK_BYTES),
        stack => Some(stack),
    };
    let Some(stack) = stack else {
        return Verdict::Pass;
    };
    let before = slot.stack_in_use.swap(stack, Ordering::Relaxed);
    let end = stack + area::STACK_BYTES;
    // SAFETY: a stack of nobody's; the frame is on another one.
    let verdict = unsafe { raw::on_stack(end, ask_there, (&raw mut *frame).cast()) };
    slot.stack_in_use.store(before, Ordering::Relaxed);
    give_back(slot, stack);
    match verdict {
        ANSWERED => Verdict::Answered,
        _ => Verdict::Pass,
    }
}

/// Gives a stack back: it is kept for the next call, or unmapped.
fn give_back(slot: &Slot, stack: usize) {
    if stack == 0 {
        return;
    }
    let other = slot.stack.swap(stack, Ordering::Relaxed); // As above.
    if other != 0 {
        // SAFETY: mapped by `ask_elsewhere`, and nobody's now.
        unsafe { raw::call(libc::SYS_munmap, [other, area::STACK_BYTES, 0, 0, 0, 0]) };
    }
}

const ANSWERED: u32 = Verdict::Answered as u32;

fn make_here(frame: &mut Frame, new: usize) -> Verdict {
    frame.new = new;
    Verdict::MakeHere
}

/// After [`Verdict::MakeHere`], where the call was made.
///
/// # Safety
/// Called by the entry only.
pub(crate) unsafe extern "C" fn after_in_parent(frame: &mut Frame) {
    if frame.new == COPIES_MEMORY {
        tell(frame, frame.rax);
    } else if frame.rax < 0 && frame.new > COPIES_MEMORY {
        // The thread was not made: its area is free.
        area::give_back(frame.new as *mut _);
    }
}

/// After [`Verdict::MakeHere`], in the process that was made, on its own stack.
///
/// # Safety
/// Called by the entry only.
pub(crate) unsafe extern "C" fn after_in_child_on_own(frame: &mut Frame) -> Child {
    tell(frame, 0);
    Child::HasFrame
}

/// After [`Verdict::MakeHere`], in the process that was made, on the stack of an area.
///
/// # Safety
/// Called by the entry only.
pub(crate) unsafe extern "C" fn after_in_child(frame: &mut Frame) -> Child {
    if frame.new == COPIES_MEMORY {
        area::forked();
        tell(frame, 0);
        Child::HasFrame
    } else {
        Child::BorrowsFrame
    }
}

/// Tells the door the answer of the call that made a process with memory of its own.
fn tell(frame: &Frame, answer: isize) {
    // The number is gone where the answer stands; the door does not need it.
    // SAFETY: the arguments are those of the call.
    unsafe { door::toehold_tell(libc::SYS_clone, &frame.arguments, answer) };
}

/// The thread or process that a call makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Birth {
    /// A process with memory of its own.
    Process,
    /// A process that uses its parent's memory while the parent waits.
    Guest,
    /// A thread, or a process that uses its maker's memory concurrently.
    Thread,
    /// A thread without its own stack.
    Strange,
}

impl Birth {
    /// # Safety
    /// The arguments are as the call demands.
    unsafe fn of(number: i64, arguments: &[usize; 6]) -> Option<Birth> {
        let (flags, stack) = match number {
            libc::SYS_fork => return Some(Birth::Process),
            libc::SYS_vfork => return Some(Birth::Guest),
            libc::SYS_clone => (arguments[0] as u64, arguments[1] as u64),
            libc::SYS_clone3 => {
                // The kernel refuses the call without valid arguments.
                let Clone3 { flags, stack } = Clone3::of(arguments[0], arguments[1])?;
                (flags, stack)
            }
            _ => return None,
        };
        let (shares, waits) = (libc::CLONE_VM as u64, libc::CLONE_VFORK as u64);
        Some(match (flags & shares != 0, flags & waits != 0) {
            (false, _) => Birth::Process,
            (true, true) => Birth::Guest,
            (true, false) if stack != 0 => Birth::Thread,
            (true, false) => Birth::Strange,
        })
    }
}

/// An operation of `arch_prctl(2)`.
const ARCH_SET_FS: usize = 0x1002;

/// The thread sets FS, by which its area identifies it.
fn set_thread_pointer(frame: &mut Frame) -> Verdict {
    const ARCH_SET_GS: usize = 0x1001;
    match frame.arguments[0] {
        ARCH_SET_FS => {
            // SAFETY: the program's own call.
            frame.rax = unsafe { raw::call(libc::SYS_arch_prctl, frame.arguments) };
            if frame.rax == 0 {
                // SAFETY: this thread's area.
                unsafe { (*area::own()).thread_pointer = frame.arguments[1] as u64 };
            }
            Verdict::Answered
        }
        // The area would be lost. Go does not use GS.
        ARCH_SET_GS => {
            frame.rax = -(libc::EPERM as isize);
            Verdict::Answered
        }
        _ => Verdict::Pass,
    }
}
