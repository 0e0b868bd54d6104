//! `pthread_cancel` in a static program.
//!
//! C libraries cancel a thread by a signal. Their handlers look at the interrupted instruction, and
//! expect it to be at certain places. A thread whose call came to the library is at none of these
//! places. So at the program's first `pthread_cancel` the library puts its own handler in front of
//! theirs.
//!
//! *musl* makes the calls that are cancellation points by one piece of code. Its handler looks at
//! the interrupted instruction: in that piece of code, up to `syscall`, the thread ends there.
//! Elsewhere the handler blocks the signal and sends it again, for the next such call. So a thread
//! that waits in the library would go on waiting, with the signal blocked.
//!
//! - *In a stub*, or on the way back to it, the call was not made yet: the library's handler makes
//!   musl's handler see the program's own `syscall`.
//! - *In a call of the library's* that may wait, the call ends, and the ones after it
//!   ([`toehold_freestanding::waits`]). The program's call is answered `EINTR`, and then musl ends
//!   the thread.
//! - *Elsewhere in the library* a bit in the thread's word ends the waits that come later.
//!
//! Only sites that are cancellation points are concerned. They are recognised by their
//! instructions.
//!
//! A thread that may be cancelled at any moment (`PTHREAD_CANCEL_ASYNCHRONOUS`) would end in the
//! handler, wherever it is. But in the library it may hold a lock. So there its waiting calls end,
//! and at the end of the program's call the signal is sent again. The thread's cancellation type is
//! stored beside the word with which musl asks it to end; a cancellation point passes the address
//! of that word.
//!
//! *glibc* unwinds the thread from inside its handler, at any place in a call that is a
//! cancellation point. In the library the thread may hold a lock, or be counted as a sleeper of a
//! connection. So there the waiting call ends, as with musl, and at the end of the program's call
//! the signal is sent again.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use toehold_freestanding::waits::{self, Ends};

use super::frame::{Frame, Stub, Verdict};
use super::raw;
use super::words::{self, Slot};

/// The signal of musl (`pthread_impl.h`). glibc uses this number for another purpose, which
/// interrupts no call.
const OF_MUSL: usize = 33;
/// The signal of glibc (`internal-signals.h`).
const OF_GLIBC: usize = 32;
const MUSL_BIT: u64 = 1 << (OF_MUSL - 1);

/// In a thread's word: it was cancelled. With musl it ends at its next cancellation point; with
/// glibc the signal was not passed on yet.
const CANCELLED: u32 = 1;
/// In a thread's word: its waits end when it is cancelled.
const WAITS_END: u32 = 2;
/// In a thread's word: it is in the library.
const INSIDE: u32 = 4;
const _: () = assert!(waits::ENDS == CANCELLED | WAITS_END | INSIDE);

/// Where musl keeps the word by which a thread is asked to end (`cancel` of its `struct pthread`),
/// relative to FS; 0 until a cancellation point has passed it.
static CANCEL_AT: AtomicUsize = AtomicUsize::new(0);

/// The program's handlers, of either signal.
static HANDLERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

fn handler_of(signal: usize) -> &'static AtomicUsize {
    &HANDLERS[usize::from(signal == OF_GLIBC)]
}

static ENDS: Ends = Ends {
    word: || &words::slot().state,
};

/// `struct sigaction` of the kernel: handler, flags, restorer, mask.
type Action = [usize; 4];

/// `rt_sigaction(2)` is about to be called: the program's first `pthread_cancel` does so.
///
/// # Safety
/// The call is the program's.
pub(super) unsafe fn set_handler(frame: &mut Frame) -> Option<Verdict> {
    let [signal, new, old, ..] = frame.arguments;
    if !matches!(signal, OF_MUSL | OF_GLIBC) || new == 0 {
        return None;
    }
    // SAFETY: the caller's promise (rt_sigaction(2)). Only C libraries have a use for this signal.
    let mut action = unsafe { *(new as *const Action) };
    if action[0] <= libc::SIG_IGN || action[1] as c_int & libc::SA_SIGINFO == 0 {
        return None;
    }
    // Release pairs with Acquire in `call_handler`.
    let before = handler_of(signal).swap(action[0], Ordering::Release);
    action[0] = handle as *const () as usize;
    let mut arguments = frame.arguments;
    arguments[1] = (&raw const action) as usize;
    // SAFETY: the program's call, with another handler that calls the program's.
    frame.rax = unsafe { raw::call(libc::SYS_rt_sigaction, arguments) };
    if frame.rax == 0 {
        // SAFETY: the kernel has just written it.
        if let Some(old) = unsafe { (old as *mut Action).as_mut() }
            && old[0] == action[0]
        {
            old[0] = before;
        }
    }
    Some(Verdict::Answered)
}

/// Calls the program's handler.
///
/// # Safety
/// The arguments are the kernel's.
unsafe fn call_handler(signal: c_int, info: *mut c_void, context: *mut libc::ucontext_t) {
    type Handler = unsafe extern "C" fn(c_int, *mut c_void, *mut libc::ucontext_t);
    // Acquire pairs with Release in `set_handler`.
    let handler = handler_of(signal as usize).load(Ordering::Acquire);
    // SAFETY: `set_handler` was given it.
    unsafe { core::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
}

unsafe extern "C" fn handle(signal: c_int, info: *mut c_void, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel's arguments.
    unsafe {
        match signal as usize {
            OF_GLIBC => handle_of_glibc(signal, info, context),
            _ => handle_of_musl(signal, info, context),
        }
    }
}

/// # Safety
/// The arguments are the kernel's.
unsafe fn handle_of_glibc(signal: c_int, info: *mut c_void, context: *mut libc::ucontext_t) {
    let state = &words::slot().state;
    // Relaxed, here and below: a thread's own word, and handlers run on that thread.
    let word = state.load(Ordering::Relaxed);
    if word & INSIDE != 0 {
        // SAFETY: the caller's promise.
        return unsafe { defer(state, context) };
    }
    // The handler may unwind the thread. Then its memory belongs to another thread.
    state.store(0, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { call_handler(signal, info, context) };
    state.store(word, Ordering::Relaxed);
}

/// This thread is in the library, and will end when it has left the library.
///
/// # Safety
/// The context is the kernel's, and the word this thread's.
unsafe fn defer(state: &AtomicU32, context: *mut libc::ucontext_t) {
    // SAFETY: the caller's promise.
    let at = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
    if waits::is_waiting(*at as usize) {
        *at = waits::end() as i64;
    }
    // Relaxed: as in `handle_of_glibc`.
    state.fetch_or(CANCELLED | WAITS_END, Ordering::Relaxed);
}

/// Sends a signal to this thread, as `pthread_cancel` has.
fn cancel_again(signal: usize) {
    // SAFETY: no memory is involved.
    unsafe {
        let process = raw::call(libc::SYS_getpid, [0; 6]) as usize;
        let thread = raw::thread() as usize;
        raw::call(libc::SYS_tgkill, [process, thread, signal, 0, 0, 0]);
    }
}

/// A cancellation point of musl has come: learns the place of musl's word from `frame`.
fn learn(frame: &Frame) {
    // Relaxed: all threads find the same.
    if CANCEL_AT.load(Ordering::Relaxed) == 0 {
        // SAFETY: the code before the site has stored it there ([`is_point`]).
        let word = unsafe { *(frame.stack as *const usize).add(1) };
        CANCEL_AT.store(word.wrapping_sub(words::pointer()), Ordering::Relaxed);
    }
}

/// True when musl would end this thread at any moment, and was asked to.
fn ends_at_any_moment() -> bool {
    const DISABLED: u8 = 1;
    // Relaxed: as in `learn`.
    let distance = CANCEL_AT.load(Ordering::Relaxed);
    if distance == 0 {
        return false;
    }
    let word = words::pointer().wrapping_add(distance);
    // SAFETY: within this thread's `struct pthread`: `int cancel; unsigned char canceldisable,
    // cancelasync`. Another thread may write the first: it is loaded once.
    let (is_asked, [disabled, asynchronous]) = unsafe {
        (
            (*(word as *const AtomicU32)).load(Ordering::Relaxed),
            ((word + 4) as *const [u8; 2]).read_volatile(),
        )
    };
    is_asked != 0 && disabled != DISABLED && asynchronous == 1
}

/// # Safety
/// The arguments are the kernel's.
unsafe fn handle_of_musl(signal: c_int, info: *mut c_void, context: *mut libc::ucontext_t) {
    let state = &words::slot().state;
    // Relaxed: as in `handle_of_glibc`.
    if state.load(Ordering::Relaxed) & INSIDE != 0 && ends_at_any_moment() {
        // SAFETY: the caller's promise.
        return unsafe { defer(state, context) };
    }
    // SAFETY: the kernel's context, whose mask begins with the 64 bits that the kernel uses.
    unsafe {
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        let registers = &raw mut (*context).uc_mcontext.gregs;
        let [at, stack] = [libc::REG_RIP, libc::REG_RSP].map(|n| &raw mut (*registers)[n as usize]);
        let (before, interrupted) = (*mask, (*at, *stack));
        let rcx = (*registers)[libc::REG_RCX as usize];
        if let Some(shown) = not_made(interrupted.0 as usize, interrupted.1 as u64, rcx as u64) {
            (*at, *stack) = shown;
        }
        let shown = *at;
        call_handler(signal, info, context);
        if *at != shown {
            return;
        }
        (*at, *stack) = interrupted;
        if before & MUSL_BIT == 0 && *mask & MUSL_BIT != 0 {
            let word = state.fetch_or(CANCELLED, Ordering::Relaxed) | CANCELLED;
            if word == waits::ENDS && waits::is_waiting(*at as usize) {
                *at = waits::end() as i64;
            }
        }
    }
}

/// If a thread with these registers (rip, rsp and rcx) is about to reach the `syscall` of a
/// cancellation point (in the stub or at the end of the entry), returns that instruction and its
/// stack pointer.
///
/// # Safety
/// They are the registers of a thread of this process that does not run.
unsafe fn not_made(at: usize, stack: u64, rcx: u64) -> Option<(i64, i64)> {
    use toehold_sites::stub::STUB_BYTES_MAX;
    // Stubs begin at multiples of their size, so this reads only from the instruction's page.
    let stub = (at & !(STUB_BYTES_MAX - 1)) as *const Stub;
    // SAFETY: the caller's promise.
    unsafe {
        let is_stub = (*stub).entry == (&raw const toehold_own) as u64;
        let (stub, stack) = match is_stub {
            true => (stub, stack),
            false => passing_on(at, stack, rcx)?,
        };
        is_point(stub).then(|| ((*stub).site as i64, stack as i64))
    }
}

// Labels in `super::entry::own`: its beginning, the place where it begins to pass a call on, the
// place where it has left its frame, and its end.
unsafe extern "C" {
    static toehold_own: u8;
    static toehold_own_passes: u8;
    static toehold_own_passes_on: u8;
    static toehold_own_passed: u8;
}

/// The stub and the stack pointer of a call that the entry is passing on, when the registers rip,
/// rsp and rcx of its thread are these. The call has not been made.
///
/// # Safety
/// They are the registers of a thread of this process that does not run.
unsafe fn passing_on(at: usize, stack: u64, rcx: u64) -> Option<(*const Stub, u64)> {
    let (from, on) = (
        &raw const toehold_own_passes,
        &raw const toehold_own_passes_on,
    );
    let to = &raw const toehold_own_passed;
    if (from as usize..on as usize).contains(&at) {
        // SAFETY: the frame is at the stack pointer there.
        let frame = unsafe { &*(stack as *const Frame) };
        return Some((frame.stub, frame.stack));
    }
    (on as usize..to as usize)
        .contains(&at)
        .then_some((rcx as *const Stub, stack))
}

/// True when a stub belongs to musl's cancellation points: `mov [rsp + 8], r11; syscall; ret`.
///
/// # Safety
/// It is a stub.
unsafe fn is_point(stub: *const Stub) -> bool {
    use toehold_sites::stub::STUB_CODE;
    const BEFORE: [u8; 5] = [0x4c, 0x89, 0x5c, 0x24, 0x08];
    // SAFETY: the caller's promise; the site is code of the program.
    unsafe {
        let moved = stub.cast::<u8>().add(STUB_CODE).cast::<[u8; 5]>();
        (*stub).pass == (*stub).site && *moved == BEFORE && *((*stub).done as *const u8) == 0xc3
    }
}

/// Called when a call from a stub begins. Returns the word to restore at its end.
pub(super) fn enter(slot: &Slot, frame: &Frame) -> u32 {
    // The first thread that is cancelled may have begun its wait earlier.
    if !waits::is_ended() {
        waits::end_by(&ENDS);
    }
    // Relaxed, here and below: a thread's own word, and handlers run on that thread. A handler
    // between this look and the change below finds the thread outside, and leaves its other bits.
    let word = slot.state.load(Ordering::Relaxed);
    // SAFETY: the entry's stub.
    if unsafe { is_point(frame.stub) } {
        learn(frame);
        slot.set(INSIDE | WAITS_END);
        if word & CANCELLED != 0 {
            // The cancelled thread may have ended, and this thread may have its memory.
            slot.state.fetch_and(!CANCELLED, Ordering::Relaxed);
            if is_pending() {
                slot.state.fetch_or(CANCELLED, Ordering::Relaxed);
            }
        }
    } else {
        // The order matters: inside the library a handler of glibc's signal sets the first of these
        // bits.
        slot.keep(!WAITS_END);
        slot.set(INSIDE);
    }
    word & !CANCELLED
}

/// Called when the call ends with `verdict`. A thread that musl has cancelled must not wait at the
/// program's own `syscall`. A thread that must end in the handler has left the library now.
pub(super) fn leave(slot: &Slot, frame: &mut Frame, before: u32, verdict: Verdict) -> Verdict {
    let word = slot.state.load(Ordering::Relaxed);
    slot.keep(CANCELLED | before);
    // A handler may have set the bit since the first look.
    let word = word | slot.state.load(Ordering::Relaxed) & CANCELLED;
    let is_outside = before & INSIDE == 0;
    if !is_outside {
        // This is a call of a signal handler: the interrupted call goes on.
        slot.set(before);
    }
    if word & CANCELLED == 0 {
        return verdict;
    }
    let is_glibc = handler_of(OF_GLIBC).load(Ordering::Relaxed) != 0;
    let ends_here = is_glibc || ends_at_any_moment();
    if ends_here && is_outside {
        slot.state.fetch_and(!CANCELLED, Ordering::Relaxed);
        cancel_again(if is_glibc { OF_GLIBC } else { OF_MUSL });
    } else if ends_here {
        slot.state.fetch_or(WAITS_END, Ordering::Relaxed);
    } else if word == waits::ENDS && verdict == Verdict::Pass {
        frame.rax = -(libc::EINTR as isize);
        return Verdict::Answered;
    }
    verdict
}

/// True when musl's signal is pending for this thread.
fn is_pending() -> bool {
    let mut pending = 0u64;
    let at = (&raw mut pending) as usize;
    // SAFETY: eight bytes are written.
    unsafe { raw::call(libc::SYS_rt_sigpending, [at, 8, 0, 0, 0, 0]) };
    pending & MUSL_BIT != 0
}
